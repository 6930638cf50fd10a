"""Functions, relative moments, conditions of Spark's plans and odd column names; Spark's own word on them is test_where_oracle."""

from __future__ import annotations

import pickle

import pytest

from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.options.declared import parse_options
from delta_sharing_spark.predicates.file_skipping import FileSkipping
from delta_sharing_spark.predicates.hints import json_hints
from delta_sharing_spark.predicates.skip_reason import SkipReason
from delta_sharing_spark.predicates.sql import parse_where
from delta_sharing_spark.schema.types import Field, Primitive, Struct
from support.skipping import reason_of
from unit.predicates.test_where_language import TABLE

NOW = 1_711_871_999_000_000  # 2024-03-31 07:59:59 UTC, in Berlin the morning after the clocks were set
TREES = {
    "startswith(s, 'a%')": r"`s` LIKE 'a\\%%'",
    "CONTAINS(s, 'it''s')": r"`s` LIKE '%it\'s%'",
    "endswith(s, NULL)": "CAST(NULL AS BOOLEAN)",
    "isnotnull(m) AND isnull(n.x)": "`m` IS NOT NULL AND `n`.`x` IS NULL",
    "coalesce(a, 0) = 0": "`a` = 0 OR `a` IS NULL",
    "coalesce(a, NULL, 5) < 3": "(`a` < 3) IS TRUE",
    "coalesce(a > 1, true)": "`a` > 1 OR (`a` > 1) IS NULL",
    "coalesce(a, 0) IS NULL": "FALSE",
    "CAST(ts AS DATE) = DATE '2024-02-29'": "`ts` >= TIMESTAMP '2024-02-29 00:00:00Z' AND `ts` <= TIMESTAMP '2024-02-29 23:59:59.999999Z'",
    "date(ntz) > '2024-02-29'": "`ntz` >= TIMESTAMP_NTZ '2024-03-01 00:00:00'",
    "year(d) = 2024": "`d` >= DATE '2024-01-01' AND `d` <= DATE '2024-12-31'",
    "year(ts) <> 2024": "NOT (`ts` >= TIMESTAMP '2024-01-01 00:00:00Z' AND `ts` <= TIMESTAMP '2024-12-31 23:59:59.999999Z')",
    "date_trunc('month', ts) >= '2024-02-02'": "`ts` >= TIMESTAMP '2024-03-01 00:00:00Z'",
    "trunc(d, 'YY') < '2024-01-01'": "`d` <= DATE '2023-12-31'",
    "CAST(a AS DOUBLE) > 1.5": "`a` >= 2",
    "d >= current_date() - 7": "`d` >= DATE '2024-03-24'",
    "d > current_date - INTERVAL 1 MONTH": "`d` > DATE '2024-02-29'",
    "ts > now() - INTERVAL '7' DAY": "`ts` > TIMESTAMP '2024-03-24 07:59:59Z'",
    "ts > current_timestamp() - INTERVAL 1 DAY 2 HOURS": "`ts` > TIMESTAMP '2024-03-30 05:59:59Z'",
    "d = make_date(2024, 2, 29) AND d = to_date('2024-1-1')": "`d` = DATE '2024-02-29' AND `d` = DATE '2024-01-01'",
    "a = 1 + 2 * 3 AND a = -(7 DIV 2)": "`a` = 7 AND `a` = -3",
}  # fmt: skip


@pytest.mark.parametrize(("text", "tree"), TREES.items())
def test_functions_become_ranges_patterns_and_tests(text: str, tree: str) -> None:
    assert str(parse_where(text, TABLE, now=NOW)) == tree


def test_moments_and_days_are_those_of_the_session_zone() -> None:
    berlin = {"time_zone": "Europe/Berlin", "now": NOW}
    assert str(parse_where("ts >= current_timestamp() - INTERVAL 1 DAY", TABLE, **berlin)) == (
        "`ts` >= TIMESTAMP '2024-03-30 08:59:59Z'"  # 9:59:59 on both days, 23 hours apart
    )
    assert str(parse_where("CAST(ts AS DATE) = '2024-03-31'", TABLE, **berlin)) == (
        "`ts` >= TIMESTAMP '2024-03-30 23:00:00Z' AND `ts` <= TIMESTAMP '2024-03-31 21:59:59.999999Z'"
    )
    with pytest.raises(PredicateError, match="passes midnight twice"):
        parse_where("CAST(ts AS DATE) < '2006-10-29'", TABLE, time_zone="America/St_Johns")


def test_moments_are_pinned_when_the_table_is_loaded_and_refused_in_streams() -> None:
    given = {"path": "p#a.b.c", "where": "d = current_date()"}
    first = parse_options(given, is_stream=None, loaded_at=NOW)
    assert pickle.loads(pickle.dumps(first)).loaded_at == NOW
    assert parse_options(given).loaded_at is not None
    assert parse_options(given, is_stream=True, loaded_at=NOW).loaded_at is None


@pytest.mark.parametrize("text", ["d = current_date", "ts > now()", "ntz < localtimestamp()", "d > curdate() - 1"])
def test_moments_are_refused_in_streams(text: str) -> None:
    with pytest.raises(PredicateError, match="stream"):
        parse_where(text, TABLE)


REFUSED = {
    "current_date(1) = d": "takes 0 arguments",
    "a + 1 = 2": "arithmetic",
    "year(a) = 1": "cast of a column of type INT",
    "date_trunc('fortnight', ts) = '2024-01-01'": "unit",
    "coalesce(a, l) = 1": "coalesce takes a column",
    "coalesce(a, '1') = 1": "coalesce of a string",
    "coalesce(a > 1, b)": "one condition, and then TRUE or FALSE",
    "coalesce(a > 1, b, true)": "one condition, and then TRUE or FALSE",
    "coalesce(a > 1, coalesce(b, false))": "one condition, and then TRUE or FALSE",
    "startswith(s, s)": "string literal",
    "a = 2147483647 + 1": "out of the range",
    "a = 1 / 0": "division by zero",
    "ts > now() - INTERVAL 1 MONTH 1 DAY": "two intervals",
    "d = make_date(2023, 2, 29)": "is no date",
    "CAST(l AS INT) = 1": "not evaluated here",
    "year(d) = a": "compared with literals only",
}


@pytest.mark.parametrize(("text", "reason"), REFUSED.items())
def test_what_would_be_another_answer_is_refused(text: str, reason: str) -> None:
    with pytest.raises(PredicateError, match=reason):
        parse_where(text, TABLE, now=NOW)


ODD = [
    "offset",
    "group",
    "order",
    "limit",
    "window",
    "case",
    "end",
    "start",
    "sort",
    "for",
    "version",
    "when",
    "then",
    "else",
    "select",
    "from",
    "where",
    "distinct",
    "exists",
    "as",
    "interval",
    "timestamp",
]


@pytest.mark.parametrize(
    "text", ["{0} = 2", "({0} = 2)", "2 = {0}", "{0} IN (2)", "{0} BETWEEN 2 AND 2", "NOT {0} <> 2"]
)
@pytest.mark.parametrize("name", ODD)
def test_columns_named_like_clauses_need_no_quotes(name: str, text: str) -> None:
    schema = Struct((Field(name, Primitive("integer")), Field("note", Primitive("string"))))
    assert "2" in str(parse_where(f"note = 'a' AND {text.format(name)} OR {name} IS NULL", schema))


PLANS = {
    "(((note = 'a') AND (offset = 2)) OR (id > 60L))": "(`note` = 'a' AND `offset` = 2) OR `id` > 60L",
    "startswith(note, 'a')": "`note` LIKE 'a%'",
    "(ts >= TIMESTAMP '2023-12-31 00:00:00')": "`ts` >= TIMESTAMP '2023-12-30 23:00:00Z'",
    "(NOT ((((end = 1) AND (id > 5L)) AND (note = 'a')) <=> true))": "NOT ((`end` = 1 AND `id` > 5L AND `note` = 'a') IS TRUE)",
    "(st.`b` = 'q')": "`st`.`b` = 'q'",
    "(id IN (1L, 2L))": "`id` IN (1L, 2L)",
    "isnotnull(id)": "`id` IS NOT NULL",
    "(CAST(offset AS BIGINT) <= 7L)": "`offset` <= 7",
    "(year(CAST(ts AS DATE)) = 2024)": "`ts` >= TIMESTAMP '2023-12-31 23:00:00Z' AND `ts` <= TIMESTAMP '2024-12-31 22:59:59.999999Z'",
    "(coalesce(id, 0L) > 5L)": "(`id` > 5L) IS TRUE",
}  # fmt: skip
ORDERS = Struct(
    (
        Field("id", Primitive("long")), Field("note", Primitive("string")), Field("offset", Primitive("integer")), Field("end", Primitive("integer")),
        Field("ts", Primitive("timestamp")), Field("st", Struct((Field("b", Primitive("string")),))),
    )
)  # fmt: skip


@pytest.mark.parametrize(("text", "tree"), PLANS.items())
def test_conditions_of_plans(text: str, tree: str) -> None:
    assert str(parse_where(text, ORDERS, time_zone="Europe/Berlin")) == tree


@pytest.mark.parametrize("text", ["(other.id = 1L)", "(d > current_date())", "(scalarsubquery() = 1)"])
def test_what_a_plan_says_beyond_one_table_is_refused(text: str) -> None:
    with pytest.raises(PredicateError):
        parse_where(text, ORDERS, time_zone="Europe/Berlin")


@pytest.mark.parametrize(
    ("text", "hinted"),
    [("year(d) = 2024", True), ("CAST(ts AS DATE) = '2024-05-01'", True), ("startswith(s, 'ab')", True), ("coalesce(a, 5) = 7", True), ("coalesce(a, 7) = 7", False), ("date_trunc('DAY', ts) > '2024-01-01'", True),
     ("year(d) IN (2023, 2024)", True)],
)  # fmt: skip
def test_functions_skip_files_and_are_hints(text: str, hinted: bool) -> None:
    expression = parse_where(text, TABLE)
    assert (json_hints(expression, TABLE, ()) is not None) == hinted
    skipping = FileSkipping(expression, TABLE, ())
    stats = '{{"numRecords":1,"minValues":{0},"maxValues":{0},"nullCount":{{"a":0}}}}'
    before = '{"d":"2022-05-01","ts":"2023-05-01T00:00:00.000Z","s":"aa","a":1}'
    among = '{"d":"2024-05-01","ts":"2024-05-01T00:00:00.000Z","s":"abc","a":7}'
    assert reason_of(skipping, {}, stats.format(before)) == SkipReason.STATISTICS
    assert reason_of(skipping, {}, stats.format(among)) == SkipReason.KEEP
