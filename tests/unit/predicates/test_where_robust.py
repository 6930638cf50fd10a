"""Any text is a condition or an error of ours, however long, deep or odd; and what it parses to can be used."""

from __future__ import annotations

import json
import pickle
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_sharing_spark.errors import DeltaSharingError, PredicateError
from delta_sharing_spark.predicates.evaluate import evaluate
from delta_sharing_spark.predicates.file_skipping import FileSkipping
from delta_sharing_spark.predicates.functions import call, compare, membership, null_test
from delta_sharing_spark.predicates.hints import json_hints, sql_hints
from delta_sharing_spark.predicates.like import like_matcher, standard_pattern
from delta_sharing_spark.predicates.literals import typed
from delta_sharing_spark.predicates.scalar_types import from_unscaled
from delta_sharing_spark.predicates.sql import parse_where, resolve
from delta_sharing_spark.predicates.times import DAY, Zone
from delta_sharing_spark.predicates.tree import (
    MAX_DAYS,
    MIN_DAYS,
    Expression,
    conjunction,
    depth,
    disjunction,
    negation,
)
from delta_sharing_spark.schema.types import Decimal, Field, Primitive, Struct
from support.drawing import cases, drawn
from support.skipping import reason_of
from unit.predicates.row_oracle import like
from unit.predicates.where_strategies import COMPUTED, FUNCTIONS, SCHEMA, predicate, rows, table

PIECES = [
    *"()+-*/%,.;:!?[]{}`'\"\\=<>|&^~@#$ \n\t\x00\x01\x7f\u00a0é\u0661",
    "\ud800", "\udfff", "😀", "AND", "OR", "NOT", "IS", "NULL", "IN (", "IN", "LIKE", "ESCAPE", "BETWEEN", "CASE WHEN", "END", "CAST(", "AS", "AS DATE)",
    "AS DECIMAL(10,2))", "AS DECIMAL(", "::", "INTERVAL", "DAY", "TO SECOND", "MONTHS", "DATE", "TIMESTAMP '", "TRUE", "<=>", "<>", "DIV", "--", "/*", "*/", "/*+",
    "i32", "i64", "f32", "f64", "dec", "big", "s", "d", "ts", "ntz", "bin", "flag", "st.x", "st", "`a b`", "1", "0", "9" * 20, "9" * 40, "1" * 5000, "1e9999",
    "1e-99999999", "1E99999999999999999999BD", "1." + "0" * 5000 + "1", ".5", "0x1F", "1Y", "1e400D", "'1e400'", "'" + "9" * 5000 + "'", "'2020-01-01'", "'9999-12-31 23:59:59.999999'",
    "'0001-01-01'", "'2020-01-01 00:00:00 Europe/Nowhere'", "'2020-01-01 00:00:00+99:99'", "'\\u0000'", "'\\ud800'", "X'1'", "r'", "INTERVAL 999999999999999999 DAYS",
    "INTERVAL '178956970-7' YEAR TO MONTH", "now()", "current_date", "make_date(", "date_add(", "year(", "date_trunc(", "trunc(d, 'MM')", "coalesce(", "startswith(", "to_date(",
    "-2147483648", "9223372036854775807",
]  # fmt: skip
SOUP = st.lists(st.sampled_from(PIECES), max_size=12).flatmap(
    lambda pieces: st.sampled_from(["", " "]).map(lambda between: between.join(pieces))
)
ZONES = st.sampled_from(
    ["UTC", "Europe/Berlin", "+05:30", "America/St_Johns", "Nowhere", "+99:00", "", "../..", "\x00"]
)


def use(expression: Expression, rows: list[dict[str, object]]) -> None:
    """Everything that a load does with a condition."""
    evaluate(expression, table(rows))
    hint = json_hints(expression, SCHEMA, ("i32",))
    assert hint is None or json.loads(hint)
    sql_hints(expression, ("i32",))
    skipping = FileSkipping(expression, SCHEMA, ("i32",))
    skipping.non_pruning_conjuncts()
    stats = {
        "numRecords": 1,
        "minValues": {"s": "a", "d": "2020-01-01"},
        "maxValues": {"s": "b"},
        "nullCount": {"s": 0},
    }
    reason_of(skipping, {"i32": "1"}, json.dumps(stats))
    assert pickle.loads(pickle.dumps(expression)) == expression
    # Exact, and of no zone; a NaN is no other's equal.
    assert repr(parse_where(str(expression), SCHEMA, time_zone=None)) == repr(expression)
    hash(expression)


@cases(200)
@given(
    st.one_of(SOUP, st.text(max_size=40), st.tuples(drawn(predicate), SOUP).map(lambda two: two[0][0] + two[1])),
    ZONES,
    drawn(rows),
)
def test_any_text_is_a_condition_or_an_error_of_ours(
    text: str, zone: str, rows: tuple[list[dict[str, object]]]
) -> None:
    try:
        expression = parse_where(text, SCHEMA, time_zone=zone, now=1_700_000_000_000_000)
    except DeltaSharingError as error:
        str(error).encode()  # shows no half of a surrogate pair
        return
    use(expression, *rows)


ODD = Struct((*SCHEMA.fields, Field("o`d d.'", Primitive("string")), Field("select", Primitive("date"))))
CUT = Zone(None)


@st.composite
def bound_trees(draw: st.DrawFn) -> Expression:
    """Conditions as Polars', Spark's and a server's are bound: of any value of a column's type."""
    column = resolve([draw(st.sampled_from([field.name for field in ODD.fields if field.name != "st"]))], ODD)
    kind = column.type
    values: dict[str, st.SearchStrategy[Any]] = {
        "boolean": st.booleans(),
        "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
        "binary": st.binary(max_size=8),
        "date": st.integers(MIN_DAYS, MAX_DAYS),
        "timestamp": st.integers(MIN_DAYS * DAY, MAX_DAYS * DAY),
        "timestamp_ntz": st.integers(MIN_DAYS * DAY, MAX_DAYS * DAY),
        "float": st.floats(width=32),
        "double": st.floats(),
    }
    numbers = st.integers(-128, 127)
    if isinstance(kind, Decimal):
        scale = kind.scale
        numbers = st.integers(-(10**9), 10**9).map(lambda unscaled: from_unscaled(unscaled, scale))
    literals = [
        typed(value, column.type) for value in draw(st.lists(values.get(str(kind), numbers), min_size=1, max_size=4))
    ]
    made = [
        compare(draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "<=>"])), column, literals[0], CUT),
        membership(column, literals, CUT),
        null_test(column),
    ]
    if str(kind) == "string":
        made.append(call("CONTAINS", [column, literals[0]], CUT, None))
    return draw(st.sampled_from(made))


TREES = st.recursive(
    bound_trees(),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(conjunction),
        st.lists(inner, min_size=2, max_size=3).map(disjunction),
        inner.map(negation),
        inner.map(null_test),
    ),
    max_leaves=6,
)


@cases(300)
@given(TREES)
def test_a_printed_tree_is_read_as_the_same_tree(expression: Expression) -> None:
    assert repr(parse_where(str(expression), ODD, time_zone=None)) == repr(expression)


NUMBER = st.one_of(
    st.sampled_from(PIECES), st.integers().map(str), st.decimals(allow_nan=False, allow_infinity=False).map(str)
)


@cases(100)
@given(
    st.sampled_from([*FUNCTIONS, *(column for column, _ in COMPUTED)]),
    st.lists(st.one_of(NUMBER, st.sampled_from([text for _, text in COMPUTED])), min_size=1, max_size=3),
    st.sampled_from(["+", "-", "*", "/", "%", "DIV", ","]),
    drawn(rows),
)
def test_any_computed_literal_is_a_value_or_an_error_of_ours(
    function: str, numbers: list[str], op: str, rows: tuple[list[dict[str, object]]]
) -> None:
    try:
        expression = parse_where(f"{function} >= {f' {op} '.join(numbers)}", SCHEMA, now=0)
    except DeltaSharingError:
        return
    use(expression, *rows)


ENDLESS = {
    "a cast that overflows": "dec = CAST('1e400' AS DECIMAL(10,2))",
    **{f"{kind} of 5,000 digits": f"i64 = {text}" for kind, text in {
        "an integer": "9" * 5000, "a long": "9" * 5000 + "L", "a fraction": "0." + "9" * 5000, "a double": "9" * 5000 + "D", "an exponent": "1e" + "9" * 5000,
        "a decimal": "9" * 5000 + "BD", "a negative": "-" + "9" * 5000, "a cast": f"CAST('{'9' * 5000}' AS INT)", "a cast to double": f"CAST('1e{'9' * 5000}' AS DOUBLE)",
        "an interval": f"INTERVAL {'9' * 5000} DAYS", "a year": f"make_date({'9' * 5000}, 1, 1)"}.items()},
    **{f"{kind} unclosed": text * 500 for kind, text in {"casts": "CAST(", "lists": "1 IN (", "parentheses": "(", "conditions": "NOT (", "calls": "coalesce("}.items()},
    "a million parentheses": "(" * (1 << 20),
    "six million parentheses": "(" * 6_000_000,
    "two million blanks": " " * 2_000_000 + "flag",
    "lists": "1 IN (" * 300 + "1" + ")" * 300,
    "signs": "i32 = " + "- " * 5000 + "i32",
    "cases": "CASE WHEN " * 500,
    "betweens": "i32 BETWEEN " * 500 + "1",
    "alternating": "(flag OR i32 = 1 AND " * 200 + "flag" + ")" * 200,
    "tests of tests": "(" * 3000 + "flag" + " IS NULL)" * 3000,
    "negated tests": "NOT (" * 100 + "flag" + " AND i32 > 1 OR flag)" * 100,
    "a control character": "i32 = 1 \x00",
    "another": "\x01",
    "half a pair": "s = '\ud800'",
    "half a pair in a name": "`\ud800` = 1",
}  # fmt: skip


@pytest.mark.parametrize("text", ENDLESS.values(), ids=ENDLESS)
def test_what_goes_too_far_is_refused_by_name(text: str) -> None:
    with pytest.raises(PredicateError) as caught:
        parse_where(text, SCHEMA)
    assert len(str(caught.value)) < 500


LONG = {
    "conjuncts": " AND ".join(f"i32 <> {i}" for i in range(1000)),
    "conjuncts as a plan nests them": "(" * 1000 + "(i32 = 1)" + "".join(f" AND (i32 <> {i}))" for i in range(1000)),
    "alternatives as a plan nests them": "(" * 1000 + "(i32 = 1)" + "".join(f" OR (i64 = {i}L))" for i in range(1000)),
    "casts": "i32 = " + "CAST(" * 500 + "1" + " AS INT)" * 500,
    "values": f"i64 IN ({', '.join(map(str, range(20_000)))})",
    "values of another type": f"f32 IN ({', '.join(f'{i}.1' for i in range(20_000))})",
    "texts": f"s NOT IN ({', '.join(map(repr, map(str, range(20_000))))})",
    "years": f"year(d) IN ({', '.join(map(str, range(1, 2000)))})",
    "parentheses": "(" * 2000 + "flag" + ")" * 2000,
    "negations": "NOT " * 2000 + "flag",
    "a pattern": "s LIKE '" + "a_%" * 2000 + "'",
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_what_is_only_long_is_read_and_used(text: str) -> None:
    rows = [dict.fromkeys(SCHEMA.names) | {"i32": 1, "i64": 7, "s": "a", "flag": True, "f32": 0.5}]
    use(parse_where(text, SCHEMA), rows)


def test_the_deepest_tree_that_is_read_can_be_used_from_a_deep_stack() -> None:
    text = "flag"
    for i in range(31):
        text = f"((i32 = {i} AND {text}) OR i64 = {i})"
    expression = parse_where(text, SCHEMA)
    assert depth(expression) == 63
    frames, frame = 0, sys._getframe()
    while frame.f_back is not None:
        frames, frame = frames + 1, frame.f_back
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(frames + 600)
    try:
        use(expression, [dict.fromkeys(SCHEMA.names)])
    finally:
        sys.setrecursionlimit(before)
    with pytest.raises(PredicateError, match="nest more than 64 deep"):
        parse_where(f"((i32 = 1 AND {text}) OR i64 = 1)", SCHEMA)


@given(st.text("ab%_!\n", max_size=6), st.text("ab%\n😀", max_size=6))
def test_a_pattern_matches_one_text_as_the_oracle_does(pattern: str, text: str) -> None:
    try:
        standard = standard_pattern(pattern, "!")
    except PredicateError:
        return
    assert like_matcher(standard)(text) == like(text, pattern, "!")


def test_a_pattern_of_many_parts_takes_no_time_to_fail() -> None:
    assert not like_matcher("%a" * 30 + "%b")("a" * 5000)
