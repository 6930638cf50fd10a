"""What the language of where takes, how Spark reads it, and what it refuses by name and position."""

from __future__ import annotations

import pyarrow as pa
import pytest

from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.predicates.evaluate import evaluate
from delta_sharing_spark.predicates.sql import parse_where
from delta_sharing_spark.predicates.tree import referenced_columns
from delta_sharing_spark.schema.types import Decimal, Field, Map, Primitive, Struct
from unit.predicates.where_strategies import SCHEMA

# The right side of each pair was read off Spark 4.3 (the test against Spark itself is tests/spark/test_where_oracle.py).
STRINGS = {
    "'it''s'": "it's",
    '"it""s"': 'it"s',
    r"'a\'b'": "a'b",
    r"'\n\t\0\Z\b\r'": "\n\t\0\x1a\b\r",
    r"'\%\_'": r"\%\_",
    r"'\q\\'": "q\\",
    r"'\ud83d\ude00'": "😀",
    r"r'a\nb'": r"a\nb",
    r'R"a\nb"': r"a\nb",
    r"'\u00'": "u00",
    "'a -- b'": "a -- b",
    "'a /* b */'": "a /* b */",
}
STRINGS[r"'\u0041\U0001F600\101\377\x41\400'"] = "A😀A377x41400"


@pytest.mark.parametrize(("literal", "value"), STRINGS.items())
def test_strings_are_read_as_spark_reads_them(literal: str, value: str) -> None:
    assert parse_where(f"s = {literal}", SCHEMA).literal.value == value


TREES = {
    "a = 1 IS NULL": "(`a` = 1) IS NULL",
    "NOT a = 1 AND b": "NOT (`a` = 1) AND `b` = TRUE",
    "NOT b OR b AND NOT b": "NOT (`b` = TRUE) OR (`b` = TRUE AND NOT (`b` = TRUE))",
    "! ! b": "`b` = TRUE",
    "a = 1 = true": "`a` = 1",
    "(a = 1) <> true": "NOT (`a` = 1)",
    "a !> 1 and a !< 1": "`a` <= 1 AND `a` >= 1",
    "1 < a": "`a` > 1",
    "a > 1.5": "`a` >= 2",
    "a < 1.5": "`a` <= 1",
    "a = 1.5": "`a` IS NULL AND NULL",
    "a <> 1.0": "NOT (`a` = 1)",
    "a = '7'": "`a` = 7",
    "a < 99999999999": "`a` IS NOT NULL OR NULL",
    "a < 99999999999999999999": "TRUE",
    "l = 9007199254740992D": "`l` >= 9007199254740992L AND `l` <= 9007199254740993L",
    "f = 0.1": "`f` IS NULL AND NULL",
    "f < 0.1": "`f` <= 0.09999999403953552F",
    "f = 0.1F": "`f` = 0.10000000149011612F",
    "dc = 1.5": "`dc` = 1.50BD",
    "dc = 1": "`dc` = 1.00BD",
    "dc = '1.5'": "`dc` = 1.50BD",
    "dc > 1.005": "`dc` >= 1.01BD",
    "d = '2020-1-1'": "`d` = DATE '2020-01-01'",
    "d < TIMESTAMP '2020-01-01 12:00:00'": "`d` <= DATE '2020-01-01'",
    "ts >= DATE'2020-01-01'": "`ts` >= TIMESTAMP '2020-01-01 00:00:00Z'",
    "ts = '2020-01-01T01:00:00.5+01:00'": "`ts` = TIMESTAMP '2020-01-01 00:00:00.500000Z'",
    "ts < '1960-01-01 00:30:00+05:30'": "`ts` < TIMESTAMP '1959-12-31 19:00:00Z'",
    "bin = X'1'": "`bin` = X'01'",
    "a IN (1, 1.0, NULL)": "`a` = 1 OR NULL",
    "a IN (1, 2, l)": "`a` IN (1, 2) OR `a` = `l`",
    "a NOT BETWEEN 1 AND 2 AND b": "NOT (`a` >= 1 AND `a` <= 2) AND `b` = TRUE",
    "a <=> NULL": "`a` IS NULL",
    "a IS DISTINCT FROM 1": "NOT ((`a` = 1) IS TRUE)",
    "n.X = 1 and `n`.`a b` = 2": "`n`.`x` = 1 AND `n`.`a b` = 2",
    "a = 1 -- the end": "`a` = 1",
    "/* first */ a\n=\t1": "`a` = 1",
    "a=-1 and a>- 1": "`a` = -1 AND `a` > -1",
    "date = DATE '2020-01-01'": "`date` = DATE '2020-01-01'",
    "CAST(NULL AS BOOLEAN)": "CAST(NULL AS BOOLEAN)",
    "1 = '1'": "TRUE",
    "CAST('1.25' AS DECIMAL(3,1)) = 1.3": "TRUE",
    "'5'::int = a": "`a` = 5",
    "m IS NOT NULL AND n IS NULL": "`m` IS NOT NULL AND `n` IS NULL",
}
P = Primitive
TABLE = Struct(
    (
        Field("a", P("integer")), Field("b", P("boolean")), Field("l", P("long")), Field("f", P("float")),
        Field("dc", Decimal(10, 2)), Field("big", Decimal(38, 0)), Field("s", P("string")), Field("d", P("date")),
        Field("ts", P("timestamp")), Field("ntz", P("timestamp_ntz")), Field("bin", P("binary")), Field("date", P("date")),
        Field("n", Struct((Field("x", P("integer")), Field("a b", P("integer"))))),
        Field("m", Map(P("string"), P("string"))),
        Field("c", P("string"), metadata={"__CHAR_VARCHAR_TYPE_STRING": "char(5)"}),
        Field("vc", P("string"), metadata={"__CHAR_VARCHAR_TYPE_STRING": "varchar(5)"}),
        Field("co", P("string"), metadata={"__COLLATIONS": {"co": "ICU.UNICODE_CI"}}),
        Field("Twin", P("string")), Field("twin", P("string")),
    )
)  # fmt: skip


@pytest.mark.parametrize(("text", "tree"), TREES.items())
def test_trees(text: str, tree: str) -> None:
    assert str(parse_where(text, TABLE)) == tree


REFUSED = {
    "": ("empty", 1),
    "a +1 = 2": ("arithmetic (+)", 3),
    "a = 1 + a": ("arithmetic (+)", 7),
    "-a = 1": ("arithmetic", 1),
    "s || 'a' = 'b'": ("arithmetic (||)", 3),
    "a = 1 && l = 2": ("arithmetic (&) is not part of the language of where; join conditions by AND", 7),
    "(a = 1) | (l = 2)": ("join conditions by OR", 9),
    "s = Lisbon": ("; a text stands in quotes", 5),
    "upper(s) = 'A'": ("function upper()", 1),
    "1 < a < 3": ("chained", 7),
    "a IN (SELECT 1)": ("subquery", 7),
    "EXISTS (SELECT 1)": ("EXISTS", 1),
    "a = (SELECT 1)": ("subquery", 6),
    "a = ?": ("parameters", 5),
    "a = :x": ("parameters", 5),
    "s COLLATE UTF8_LCASE = 'a'": ("collation", 3),
    "co = 'a'": ("collation", 1),
    "c = 5": ("literal as a string", 3),
    "s RLIKE 'a'": ("RLIKE", 3),
    "s ILIKE 'a'": ("ILIKE", 3),
    "s LIKE ANY ('a')": ("LIKE ANY", 8),
    "s LIKE s": ("pattern", 3),
    "a LIKE '1%'": ("STRING columns only", 3),
    r"s LIKE 'a\\b'": ("escape character", 3),
    r"s LIKE 'a\\'": ("escape character", 3),
    "s LIKE 'a' ESCAPE 'ab'": ("one character", 19),
    "s LIKE 'a' ESCAPE '😀'": ("one character", 19),
    "CASE WHEN b THEN b END": ("CASE", 1),
    "CAST(a AS STRING) = '1'": ("not evaluated here", 1),
    "CAST(l AS INT) = 1": ("not evaluated here", 1),
    "CAST('a' AS VARCHAR(3)) = s": ("VARCHAR", 13),
    "CAST(300 AS TINYINT) = a": ("out of the range", 1),
    "a[0] = 1": ("subscripts", 2),
    "m.k = 'x'": ("no field 'k'", 1),
    "m = m": ("do not compare", 3),
    "zip = 1": ("no column 'zip'", 1),
    "twin = 'a'": ("ambiguous", 1),
    "0x1F = a": ("no column '0x1F'", 1),
    "a = 1 2": ("'2' cannot stand here", 7),
    "s = 'a' 'b'": ("two literals", 9),
    "a = 1;": ("';'", 6),
    "a = 1 AS x": ("keyword AS", 7),
    "a = 1 AND": ("ends too early", 10),
    "(a = 1": (") is missing", 7),
    "s = 'a": ("not closed", 5),
    "`a = 1": ("not closed", 1),
    "a = 1 /* x": ("not closed", 7),
    "a": ("a condition is needed", 1),
    "NULL": ("not a condition", 1),
    "b AND a": ("a condition is needed", 7),
    "b = 1": ("do not compare", 3),
    "d = 1": ("do not compare", 3),
    "d = 'today'": ("special value", 3),
    "d = '2020-13-01'": ("cannot be cast to DATE", 3),
    "DATE '2020-02-30' = d": ("cannot be cast to DATE", 6),
    "ts = '2020-01-01 25:00:00'": ("cannot be cast to TIMESTAMP", 4),
    "ntz = '2020-01-01 00:00:00Z'": ("time zone", 5),
    "a = '1.0'": ("cannot be cast to BIGINT", 3),
    "a = 'x'": ("cannot be cast to BIGINT", 3),
    "s = 1": ("would cast every row", 3),
    "big = 1.5": ("round", 5),
    "a = d": ("different types", 3),
    "a = f": ("different types", 3),
    "a IN (1, '2', 2.5)": ("mixes strings", 3),
    "(a, 1) = (1, 1)": ("a row in parentheses", 3),
    "a = INTERVAL 1 DAY": ("do not compare", 3),
    "current_date = d": ("each batch of a stream", 1),
    "é = 1": ("backquotes", 1),
    "a = 1\u00a0": ("U+00A0", 6),
    "X'zz' = bin": ("hexadecimal", 2),
    "128Y = a": ("out of the range", 1),
    "1e400 = f": ("out of the range", 1),
    "9" * 39 + " = big": ("38 digits", 1),
    "/*+ hint */ b": ("hint", 1),
    "a = NOT b": ("keyword NOT", 5),
}


@pytest.mark.parametrize(("text", "refusal"), REFUSED.items(), ids=[t[:30] for t in REFUSED])
def test_what_is_outside_the_language_is_named_with_its_position(text: str, refusal: tuple[str, int]) -> None:
    with pytest.raises(PredicateError) as caught:
        parse_where(text, TABLE)
    assert refusal[0] in str(caught.value)
    assert f"position {refusal[1]}" in str(caught.value)
    assert "; " in str(caught.value).partition(": ")[2], "the error has a next step"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "s = 'Lisbon' AND a =\n= 1",
            """position 22 at '= 1' after " = 'Lisbon' AND a = ": '=' cannot stand here; a column, a literal""",
        ),
        ("= 1", "position 1 at '= 1': '=' cannot stand here; a column, a literal, a function or ( is expected"),
        (
            "a = 1 b",
            "position 7 at 'b' after 'a = 1 ': 'b' cannot stand here; an operator, AND, OR or the end is expected",
        ),
        ("a = ", "position 5 (the end) after 'a = ': the expression ends too early; a column, a literal"),
        ("b AND a", "position 7 at 'a' after 'b AND ': a condition is needed here, not a column of type INT; write it"),
    ],
)
def test_an_error_shows_the_text_around_it_and_what_is_expected(text: str, shown: str) -> None:
    with pytest.raises(PredicateError) as caught:
        parse_where(text, TABLE)
    assert shown in str(caught.value)


def test_long_chains_do_not_nest() -> None:
    text = " OR ".join(f"a = {i}" for i in range(5_000))
    batch = pa.record_batch({"a": pa.array([4_999, 5_000, None], pa.int32())})
    assert evaluate(parse_where(text, TABLE), batch).to_pylist() == [True, False, None]


@pytest.mark.parametrize(
    ("zone", "micros"),
    [("UTC", 0), ("+02:00", -7_200_000_000), ("Europe/Berlin", -3_600_000_000), ("America/New_York", 18_000_000_000)],
)
def test_timestamps_without_zone_are_in_the_session_zone(zone: str, micros: int) -> None:
    assert parse_where("ts = '1970-01-02'", TABLE, time_zone=zone).literal.value == micros + 86_400_000_000


def test_a_promotion_that_depends_on_a_zone_is_refused_outside_utc() -> None:
    text = "ntz < TIMESTAMP '2020-01-01 00:00:00Z'"
    parse_where(text, TABLE)
    with pytest.raises(PredicateError, match="depends on the time zone"):
        parse_where(text, TABLE, time_zone="Europe/Berlin")


def test_referenced_columns_are_exact_paths() -> None:
    tree = parse_where("N.X = 1 OR (A > l AND s IS NULL)", TABLE)
    assert referenced_columns(tree) == {("n", "x"), ("a",), ("l",), ("s",)}


def test_dictionary_and_large_columns_are_read_like_plain_ones() -> None:
    tree = parse_where("s IN ('a', 'b') OR s LIKE 'c%d_'", TABLE)
    plain = pa.array(["a", "cxdy", "z", None])
    columns = (plain, plain.dictionary_encode(), plain.cast(pa.large_string()))
    found = [evaluate(tree, pa.table({"s": column})).to_pylist() for column in columns]
    assert found == [[True, True, False, None]] * 3


def test_in_takes_both_zeros_and_nan_for_what_they_equal() -> None:
    tree = parse_where("f IN (0F, 1F, CAST('NaN' AS FLOAT))", TABLE)
    values = pa.array([0.0, -0.0, float("nan"), 1.0, 2.0, None], pa.float32())
    assert evaluate(tree, pa.table({"f": values})).to_pylist() == [True, True, True, True, False, None]
