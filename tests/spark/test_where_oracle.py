"""``parse_where`` and ``evaluate`` against Spark's own filter, on the same rows: many drawn predicates per Spark job."""

from __future__ import annotations

import datetime
from random import Random

import pytest

from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.predicates.evaluate import evaluate
from delta_sharing_spark.predicates.sql import parse_where
from delta_sharing_spark.predicates.tree import quote_bytes, sql_of
from unit.predicates.where_strategies import SCHEMA, predicate, row, table

pytestmark = pytest.mark.spark

PER_JOB = 40


def differences(spark, rows, texts):
    """Predicates whose answers differ from Spark's, or that Spark refuses though we accept them, as they are and as the lane writes them."""
    from pyspark.sql.functions import expr

    data = table(rows)
    frame = spark.createDataFrame(data).coalesce(1).cache()
    bound = {text: parse_where(text, SCHEMA) for text in texts}
    asked = [(text, sql) for text, where in bound.items() for sql in (text, sql_of(where, quote_bytes))]
    wrong = []
    for start in range(0, len(asked), 2 * PER_JOB):
        part = asked[start : start + 2 * PER_JOB]
        try:
            conditions = [expr(f"({sql}) = true").alias(f"p{i}") for i, (_, sql) in enumerate(part)]
            answers = frame.select(*conditions).toArrow()
        except Exception:
            answers = None
        for i, (text, sql) in enumerate(part):
            try:
                spark_says = (
                    answers.column(i).to_pylist()
                    if answers
                    else frame.select(expr(f"({sql}) = true").alias("p")).toArrow().column(0).to_pylist()
                )
            except Exception as error:
                spark_says = str(error).split("\n")[0]
            ours = evaluate(bound[text], data).to_pylist()
            if ours != spark_says:
                wrong.append((text, sql, ours, spark_says))
    frame.unpersist()
    return wrong


def accepted(text, zone="UTC"):
    try:
        parse_where(text, SCHEMA, time_zone=zone)
    except PredicateError:
        return False
    return True


def test_drawn_predicates_select_what_spark_selects(spark):
    random = Random(20261121)
    texts = [text for text in dict.fromkeys(predicate(random) for _ in range(400)) if accepted(text)]
    if spark.version < "4.1":  # reads two quotes in a literal as none, and takes no ESCAPE beyond UTF-16's first plane
        texts = [text for text in texts if "''" not in text and "ESCAPE '😀'" not in text]
    assert len(texts) > 200  # the language covers most of what is drawn
    assert not differences(spark, [row(random) for _ in range(70)], texts)


#: NULL in every place, floats at their edges, decimals of other scales, times before 1970, escapes of LIKE.
ODD = r"""
NOT (i32 IN (1, NULL))
(i32 NOT IN (1, NULL)) IS NULL
i32 NOT IN (NULL)
NOT (i32 BETWEEN NULL AND 5)
NOT (i32 NOT BETWEEN 1 AND NULL)
NOT (NULL AND flag)
(NULL OR flag) IS NULL
NOT (i32 = 1 AND NULL)
NOT flag <=> NULL
(i32 = 1) <=> FALSE
NOT i32 = 1 IS NULL
NOT (NULL IN (i32, 1))
1 IN (i32, 2)
st.z.w <=> NULL
st.z IS NULL AND st IS NOT NULL
NOT st.z.w > 0
st.z.w = 'NaN'
st.y LIKE '_'
f64 < -0.0D
f64 >= -0.0D
f64 IN (-0.0D)
f64 NOT IN (CAST('NaN' AS DOUBLE))
f64 > CAST('Infinity' AS DOUBLE)
f64 <= 'nan'
f64 = '1e400'
f64 = '1.5f'
f64 >= 9223372036854775807
f32 IN (0.1)
f32 = '0.1'
f32 > 3.4028235e38
f32 <=> CAST('NaN' AS FLOAT)
f32 BETWEEN 0.1 AND 0.2
i64 = 9007199254740993D
i64 = 9223372036854775807.5
i64 <= -9223372036854775809
i64 IN (1.5, 2.0)
i64 IN (1, 2D)
i8 IN (1, 1000)
i8 = i64
dec IN (1, 1.5, 1.005)
dec IN (1.5, 2D)
dec BETWEEN 0.001 AND 1e0
dec > 99999999.995
dec <> 1.5F
dec = dec4
dec >= dec4
dec4 > 9007199254740992.99995
big = 0.1D
big > 99999999999999999999
ts = TIMESTAMP '1969-12-31 23:59:59.999999'
ts > '1969-12-31 23:59:59.9999995'
ts <= TIMESTAMP '0001-01-01 00:00:00.000001'
ts >= DATE '1582-10-15'
ts IN ('1970-01-01', NULL)
ts = '2020-01-01 12:34:56 America/New_York'
ts = TIMESTAMP_NTZ '2020-01-01 12:34:56'
ntz < TIMESTAMP_NTZ '1970-01-01'
ntz > TIMESTAMP '1969-12-31 23:59:59Z'
d = DATE '1582-10-10'
d < TIMESTAMP '1970-01-01 00:00:01'
d IN ('1970-01-01', '1969-12-31', NULL)
d BETWEEN '1969-12-31' AND '1970-01-01T00'
s LIKE 'a%%' ESCAPE '%'
s LIKE 'a__' ESCAPE '_'
s LIKE 'aa%' ESCAPE 'a'
s LIKE '\\\\'
s LIKE r'a\_c'
s NOT LIKE r'a\%'
NOT s LIKE NULL
s LIKE '_😀_'
s > '\uffff'
s BETWEEN 'a' AND 'a😀'
s NOT IN ('')
bin IN (X'00', NULL)
bin < 'é'
year(d) < 12000
year(d) > -100
trunc(ts, 'YEAR') < DATE '9999-12-31'
flag IN ('t', NULL)
NOT flag IS DISTINCT FROM TRUE
""".strip().splitlines()


def test_odd_predicates_select_what_spark_selects(spark):
    # Spark 4.0 takes the surrogates of a LIKE pattern apart.
    odd = [text for text in ODD if spark.version >= "4.1" or "LIKE '_😀_'" not in text]
    random = Random(20261121)
    assert not differences(spark, [row(random) for _ in range(200)], odd)


@pytest.mark.parametrize(
    "zone", ["Europe/Berlin", "America/New_York", "America/Sao_Paulo", "Africa/Cairo", "Asia/Kolkata", "+05:30"]
)
def test_times_without_a_zone_are_read_in_the_sessions(spark, zone):
    """Every half hour of the days on which clocks change, among others."""
    days = [
        (2020, 3, 28),
        (2020, 3, 30),
        (2020, 10, 24),
        (2020, 10, 26),
        (2020, 2, 16),
        (2020, 3, 29),
        (2020, 10, 25),
        (2020, 3, 8),
        (2020, 11, 1),
        (1969, 12, 31),
        (1970, 1, 1),
    ]
    utc = datetime.timezone.utc
    moments = [datetime.datetime(*day, half // 2, half % 2 * 30, tzinfo=utc) for day in days for half in range(48)]
    data = table([dict.fromkeys(SCHEMA.names) | {"ts": moment, "d": moment.date()} for moment in moments])
    texts = [
        f"ts {op} '{text}'"
        for text in ("2020-03-29 02:30:00", "2020-10-25 02:30:00", "2020-03-08 02:30:00", "2020-11-01 01:30:00", "1970-01-01")
        for op in ("<", "=", ">=")
    ]  # fmt: skip
    texts += [
        f"{function} >= {literal}"
        for function in ("CAST(ts AS DATE)", "date_trunc('DAY', ts)")
        for literal in ("'2020-03-29'", "'2020-11-01'", "'2020-02-16'")
    ]
    texts += [
        f"ts >= TIMESTAMP '{day} 02:30:00' {sign} INTERVAL {interval}"
        for day in ("2020-03-28", "2020-03-30", "2020-10-24", "2020-10-26", "2020-11-02")
        for sign in "+-"
        for interval in ("1 DAY", "24 HOURS", "1 DAY 1 HOUR", "1 MONTH")
    ]
    texts += [
        "year(ts) = 2020",
        "year(ts) < 2021",
        "trunc(ts, 'MONTH') = '2020-03-01'",
        "d < TIMESTAMP '2020-03-29 12:00:00'",
        "d = TIMESTAMP '2020-02-16 00:00:00'",
        "coalesce(ts, DATE '2020-03-29') < '2020-03-29 12:00:00'",
    ]
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", zone)
        asked = texts if ":" not in zone else [*texts, "ts < '1969-12-31 12:00:00'"]
        asked = [text for text in asked if accepted(text, zone)]
        assert len(asked) > len(texts) * 0.8
        answers = spark.createDataFrame(data).selectExpr(*asked).toArrow().columns
        ours = {text: evaluate(parse_where(text, SCHEMA, time_zone=zone), data).to_pylist() for text in asked}
        theirs = {text: answer.to_pylist() for text, answer in zip(asked, answers, strict=True)}
        assert [text for text in asked if ours[text] != theirs[text]] == []
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
