"""``parse_where`` and ``evaluate`` against Spark's own filter, on the same rows: many drawn predicates per Spark job."""

from __future__ import annotations

import datetime
import random
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from pyspark.errors import AnalysisException

sys.path.append(str(Path(__file__).parents[1] / "unit" / "predicates"))

import test_query_narrowing as narrowing
from where_strategies import ROWS, SCHEMA, predicates, table

from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.predicates.evaluate import evaluate
from delta_sharing_spark.predicates.lexer import Source, tokenize
from delta_sharing_spark.predicates.query import analyse
from delta_sharing_spark.predicates.query_constants import folded
from delta_sharing_spark.predicates.sql import parse_where

pytestmark = pytest.mark.spark

PER_JOB = 40


def draw(strategy, count):
    """``count`` examples at once (``given`` shrinks; here the Spark job is the cost, so examples are collected)."""
    found = []

    @seed(20261121)
    @settings(
        max_examples=count,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(example):
        found.append(example)

    collect()
    return found


def differences(spark, rows, texts):
    """Predicates whose answers differ from Spark's, or that Spark refuses though we accept them."""
    from pyspark.sql.functions import expr

    data = table(rows)
    frame = spark.createDataFrame(data).coalesce(1).cache()
    wrong = []
    for start in range(0, len(texts), PER_JOB):
        part = texts[start : start + PER_JOB]
        try:
            answers = frame.select(*[expr(f"({text}) = true").alias(f"p{i}") for i, text in enumerate(part)]).toArrow()
        except Exception:
            answers = None
        for i, text in enumerate(part):
            try:
                spark_says = (
                    answers.column(i).to_pylist()
                    if answers
                    else frame.select(expr(f"({text}) = true").alias("p")).toArrow().column(0).to_pylist()
                )
            except Exception as error:
                spark_says = str(error).split("\n")[0]
            ours = evaluate(parse_where(text, SCHEMA), data).to_pylist()
            if ours != spark_says:
                wrong.append((text, str(parse_where(text, SCHEMA)), ours, spark_says))
    frame.unpersist()
    return wrong


def accepted(text):
    try:
        parse_where(text, SCHEMA)
    except PredicateError:
        return False
    return True


def test_drawn_predicates_select_what_spark_selects(spark):
    drawn = draw(predicates(), 800)
    texts = [text for text in dict.fromkeys(drawn) if accepted(text)]
    if spark.version < "4.1":  # reads two quotes in a literal as none, and takes no ESCAPE beyond UTF-16's first plane
        texts = [text for text in texts if "''" not in text and "ESCAPE '😀'" not in text]
    assert len(texts) > len(drawn) / 3  # the language covers most of what is drawn
    rows = [row for rows in draw(ROWS, 12) for row in rows]
    assert not differences(spark, rows, texts)


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
flag IN ('t', NULL)
NOT flag IS DISTINCT FROM TRUE
""".strip().splitlines()


def test_odd_predicates_select_what_spark_selects(spark):
    # Spark 4.0 takes the surrogates of a LIKE pattern apart.
    odd = [text for text in ODD if spark.version >= "4.1" or "LIKE '_😀_'" not in text]
    assert not differences(spark, [row for rows in draw(ROWS, 40) for row in rows], odd)


def test_times_without_a_zone_are_read_in_the_sessions(spark):
    """Every half hour of the days on which clocks change, among others."""
    days = [(2020, 3, 29), (2020, 10, 25), (2020, 3, 8), (2020, 11, 1), (1969, 12, 31), (1970, 1, 1)]
    utc = datetime.timezone.utc
    moments = [datetime.datetime(*day, half // 2, half % 2 * 30, tzinfo=utc) for day in days for half in range(48)]
    data = table([dict.fromkeys(SCHEMA.names) | {"ts": moment} for moment in moments])
    texts = [
        f"ts {op} '{text}'"
        for text in ("2020-03-29 02:30:00", "2020-10-25 02:30:00", "2020-03-08 02:30:00", "2020-11-01 01:30:00", "1970-01-01")
        for op in ("<", "=", ">=")
    ]  # fmt: skip
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        for zone in ("Europe/Berlin", "America/New_York", "Asia/Kolkata", "+05:30"):
            spark.conf.set("spark.sql.session.timeZone", zone)
            asked = texts if ":" not in zone else [*texts, "ts < '1969-12-31 12:00:00'"]
            answers = spark.createDataFrame(data).selectExpr(*asked).toArrow()
            for text, answer in zip(asked, answers.columns, strict=True):
                assert evaluate(parse_where(text, SCHEMA, time_zone=zone), data).to_pylist() == answer.to_pylist(), text
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_computed_constants_are_what_spark_computes(spark):
    draw_from = random.Random(7)
    texts = []
    for _ in range(300):
        day = datetime.date(1, 1, 1) + datetime.timedelta(days=draw_from.randrange(3_652_059))
        day = draw_from.choice([day, day.replace(day=1) - datetime.timedelta(days=1) if day.toordinal() > 31 else day])
        text = f"DATE '{day}'"
        for _ in range(draw_from.choice([1, 1, 2])):
            unit, most = draw_from.choice([("DAY", 40_000), ("MONTHS", 30), ("MONTH", 900), ("YEAR", 110)])
            count = draw_from.randint(-most, most)
            text += f" {draw_from.choice('+-')} INTERVAL '{count}' {unit}"
        texts.append(text)
    numbers = [".06", "0.01", "1.5", "123456.654321", "00.10", "5.0"]
    texts += [f"{a} {op} {b} - {c}" for a in numbers for op in "+-" for b in numbers for c in numbers[:2]]
    literals = {text: edits[0][2] for text in texts if (edits := folded(tokenize(Source(text))[:-1]))}
    assert len(literals) > 350
    row = spark.range(1).selectExpr(*(f"({text}) = {literal}" for text, literal in literals.items())).toArrow()
    assert [text for text, same in zip(literals, row.columns, strict=True) if same.to_pylist() != [True]] == []
    types = spark.range(1).selectExpr(*(f"typeof({text})" for text in texts[:300] if text in literals)).toArrow()
    assert {kind for column in types.columns for kind in column.to_pylist()} == {"date"}


QUERIES = [
    "SELECT o.id, (SELECT max(city) FROM s.d.customers c WHERE c.cid = o.cust AND c.city > 'a') m FROM s.d.orders o WHERE o.price >= 1",
    "SELECT id, row_number() OVER (PARTITION BY cust ORDER BY price, id, day, note) r FROM s.d.orders WHERE id = 1 AND price > 0.5",
    "SELECT cust, count(*) FROM s.d.orders WHERE price NOT IN (1.0, 2.0) OR price IS NULL GROUP BY cust HAVING count(*) > 1",
    "SELECT a.id FROM s.d.orders a LEFT SEMI JOIN s.d.orders b ON a.id = b.cust AND b.price > 1 WHERE a.note = 'a'",
    "SELECT a.id, b.id FROM s.d.orders a JOIN s.d.orders b ON a.id = b.cust LEFT JOIN s.d.customers c ON c.cid = b.id"
    " WHERE a.price > 1 AND b.price < 3 AND c.city <=> NULL",
    "SELECT id FROM s.d.orders WHERE id IN (SELECT cid FROM s.d.customers WHERE city = 'b') AND day = '2020-01-01'",
    "SELECT DISTINCT note FROM s.d.orders WHERE NOT (note = 'a' AND id = 1) EXCEPT SELECT note FROM s.d.customers WHERE note = 'A'",
    "SELECT s.d.orders.id FROM s.d.orders, s.d.customers WHERE s.d.orders.cust = customers.cid AND customers.city = 'a'",
    "SELECT sum(CASE WHEN price > 1 THEN 1 ELSE 0 END) FROM s.d.orders WHERE id BETWEEN 1 AND 2 AND cust = 3 OR id = 3",
    "SELECT o.id FROM s.d.customers c RIGHT JOIN s.d.orders o ON o.cust = c.cid AND c.city = 'a' WHERE o.id = 1 AND c.note IS NULL",
    "SELECT g, count(1) c FROM (SELECT id + 1 AS g, * FROM s.d.orders) GROUP BY g",
    "SELECT id FROM s.d.orders o, LATERAL (SELECT city FROM s.d.customers WHERE cid = o.cust AND city = 'a') WHERE o.price > 1",
]


def test_narrowed_tables_answer_queries_as_whole_ones_do(spark):
    pick = random.Random(3).choice
    days = [datetime.date(2020, 1, 1), datetime.date(2020, 6, 1), None]
    orders = [
        (
            pick([1, 2, 3, None]),
            pick([1, 2, 3, 4]),
            pick([0.5, 1.0, 3.0, None, float("nan")]),
            pick(days),
            pick(["a", "A", "it's", None]),
        )
        for _ in range(60)
    ]
    customers = [(pick([1, 2, 3, 4]), pick(["a", "b", "it's", None]), pick(["a", "A", None])) for _ in range(20)]
    whole = {
        "orders": spark.createDataFrame(orders, "id long, cust long, price double, day date, note string"),
        "customers": spark.createDataFrame(customers, "cid long, city string, note string"),
    }
    spark.createDataFrame([(1, 3), (2, 4)], "id long, x long").createOrReplaceTempView("local")
    pushed = compared = 0
    for text in [*list(narrowing.CASES)[::3], *QUERIES]:
        if "rand()" in text or "TABLESAMPLE" in text or "note = 'x'" in text:  # by chance, or ambiguous
            continue
        query = analyse(text, narrowing.look_up)
        answers = []
        for narrow in (False, True):
            views = []
            for i, reference in enumerate(query.references):
                frame = whole[reference.name[2].lower()]
                if narrow and reference.where:
                    frame = frame.where(reference.where)
                    pushed += 1
                if narrow and reference.columns is not None:
                    frame = frame.select(*reference.columns)
                views.append(f"narrowed_{i}")
                frame.createOrReplaceTempView(views[-1])
            try:
                result = spark.sql(query.splice(views))
            except AnalysisException:
                # Some of the unit suite's cases name columns that these tables do not have: no query to compare.
                assert not narrow, text
                break
            answers.append((result.schema, sorted(map(repr, result.collect()))))
        if answers:
            assert answers[0] == answers[1], text
            compared += 1
    assert pushed > 15
    assert compared > 20
