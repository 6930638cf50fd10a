"""Hints: the wire form (peers.md T1-T32), and that no server that reads ranges loses a row by them."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st

from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.predicates.hints import condition_of_hints, json_hints, sql_hints
from delta_sharing_spark.predicates.sql import parse_where
from delta_sharing_spark.predicates.tree import And, Or
from delta_sharing_spark.schema.types import Decimal, Field, Primitive, Struct
from support.drawing import cases, drawn, one_of, some_of
from unit.predicates.row_oracle import answer, partition_text, statistics
from unit.predicates.where_strategies import INF, NAN, SCHEMA, predicate, rows

P = Primitive
TABLE = Struct(
    (
        Field("hireDate", P("date")), Field("userId", P("integer")), Field("cost", P("long")), Field("name", P("string")),
        Field("p", P("integer")), Field("day", P("date")), Field("city", P("string")), Field("my part", P("integer")), Field("flag", P("boolean")),
        Field("f", P("float")), Field("f8", P("double")), Field("wide", P("double"), metadata={"delta.typeChanges": [{"fromType": "float", "toType": "double"}]}), Field("ts", P("timestamp")), Field("dc", Decimal(10, 2)), Field("sh", P("short")),
        Field("n", Struct((Field("x", P("integer")),))),
    )
)  # fmt: skip
PARTITIONS = ("p", "day", "city", "my part")


def column(name: str, kind: str) -> dict[str, Any]:
    return {"op": "column", "name": name, "valueType": kind}


def op(name: str, of: str, kind: str, value: str) -> dict[str, Any]:
    return {"op": name, "children": [column(of, kind), {"op": "literal", "value": value, "valueType": kind}]}


def null(of: str, kind: str) -> dict[str, Any]:
    return {"op": "isNull", "children": [column(of, kind)]}


def both(*children: Any) -> dict[str, Any]:
    return {"op": "and", "children": list(children)}


def either(*children: Any) -> dict[str, Any]:
    return {"op": "or", "children": list(children)}


CASES: dict[str, Any] = {
    "hireDate = '2021-04-29'": op("equal", "hireDate", "date", "2021-04-29"),
    "userId = 23": op("equal", "userId", "int", "23"),
    "cost <= 24": op("lessThanOrEqual", "cost", "long", "24"),
    "cost <= 24 AND hireDate >= DATE'2020-01-02'": both(op("lessThanOrEqual", "cost", "long", "24"), op("greaterThanOrEqual", "hireDate", "date", "2020-01-02")),
    "userId = 1 OR cost = 2": either(op("equal", "userId", "int", "1"), op("equal", "cost", "long", "2")),
    "userId <=> 23": op("equal", "userId", "int", "23"),
    "userId IN (23)": op("equal", "userId", "int", "23"),
    "userId IN (23, 24)": either(op("equal", "userId", "int", "23"), op("equal", "userId", "int", "24")),
    f"userId IN ({', '.join(map(str, range(22)))})": both(op("greaterThanOrEqual", "userId", "int", "0"), op("lessThanOrEqual", "userId", "int", "21")),
    "ts = TIMESTAMP '2023-06-07 04:27:03.234567Z'": op("equal", "ts", "timestamp", "2023-06-07T04:27:03.234Z"),
    "ts > TIMESTAMP '2023-06-07 04:27:03.234567Z'": op("greaterThanOrEqual", "ts", "timestamp", "2023-06-07T04:27:03.234Z"),
    "ts < TIMESTAMP '2023-06-07 04:27:03.234567Z'": op("lessThanOrEqual", "ts", "timestamp", "2023-06-07T04:27:03.235Z"),
    "NOT cost > 24": op("lessThanOrEqual", "cost", "long", "24"),
    "NOT (cost > 24 OR userId < 3)": both(op("lessThanOrEqual", "cost", "long", "24"), op("greaterThanOrEqual", "userId", "int", "3")),
    "p IS NULL AND userId = 1": op("equal", "userId", "int", "1"),
    "p IS NOT NULL": {"op": "not", "children": [null("p", "int")]},
    "p <> 3": either(op("lessThan", "p", "int", "3"), op("greaterThan", "p", "int", "3")),
    "flag": op("equal", "flag", "bool", "true"),
    "f < 1.5F": op("lessThanOrEqual", "f", "float", "1.5000001192092896"),
    **dict.fromkeys(("f = 1.5F", "NOT f > 1.5F", "NOT f >= 1.5F", "f BETWEEN 0F AND 1.5F", "f IN (1F, 1.5F)", "f <=> 1.5F", "NOT (f <> 1.5F)"),
                    op("lessThanOrEqual", "f", "float", "1.5000001192092896")),
    **dict.fromkeys(("f8 = 1.5", "f8 < 1.5", "f8 IN (1.5, -1)", "f8 > 0 AND f8 < 1.5"), op("lessThanOrEqual", "f8", "double", "1.5")),
    "f8 <= -0D": op("lessThanOrEqual", "f8", "double", "5e-324"),
    "f = 0F": op("lessThanOrEqual", "f", "float", "1.401298464324817e-45"),
    "wide <= 0.699999988079071D": op("lessThanOrEqual", "wide", "double", "0.7000000476837158"),
    "f8 = 1.5 OR userId = 2": either(op("lessThanOrEqual", "f8", "double", "1.5"), op("equal", "userId", "int", "2")),
    "name LIKE 'ab%c'": both(op("greaterThanOrEqual", "name", "string", "ab"), op("lessThan", "name", "string", "ac")),
    # a part that cannot be said: left out under AND, fatal under OR
    "userId = 1 AND n.x = 1": op("equal", "userId", "int", "1"),
    "userId = 1 AND (cost = 2 OR n.x = 1)": op("equal", "userId", "int", "1"),
    "userId = 1 AND NOT (cost = 2 AND p = 3)": op("equal", "userId", "int", "1"),
    "userId = 1 OR NULL": op("equal", "userId", "int", "1"),
    # nothing that a server could get wrong
    **dict.fromkeys((
        "userId IS NULL", "userId IS NOT NULL", "p IS NULL", "p = 1 OR p IS NULL", "userId <> 3", "userId NOT IN (1, 2)", "NOT userId = 3", "n.x = 1", "dc = 1.5", "sh = 1",
        "f > 1.5F", "f >= 1.5F", "f <> 1F", "f NOT IN (1F, 2F)", "NOT f < 1F", "NOT f <= 1F", "f = 'NaN'", "f < 'NaN'", "f <= 'NaN'", "f IN (1F, 'NaN')",
        "f8 <= 'Infinity'", "f < CAST('3.4028235e38' AS FLOAT)", "f8 > 1 OR userId = 2", "f8 NOT BETWEEN 1 AND 2", "NOT f8 = 1", "name LIKE '%a'", "name NOT LIKE 'a%'", "name = '\uffff'", "name = ''", "userId = 1 OR n.x = 1",
        "(userId = 1) IS NULL", "NOT ((userId = 1) IS TRUE)", "userId = p", "TRUE", "flag > false",
        "ts > '1850-01-01 00:00:00Z'", "ts < '1973-01-01 00:00:00Z'",  # offsets of then had seconds, which statistics lack
    )),
}  # fmt: skip


@pytest.mark.parametrize(("text", "hint"), CASES.items(), ids=[t[:40] for t in CASES])
def test_json_hints(text: str, hint: Any) -> None:
    json_hint = json_hints(parse_where(text, TABLE), TABLE, PARTITIONS)
    assert (None if json_hint is None else json.loads(json_hint)) == hint


def test_deep_and_long_trees_stay_within_the_limits_of_servers() -> None:
    deep = parse_where("userId = 1", TABLE)
    for _ in range(80):
        deep = And((parse_where("cost = 1", TABLE), Or((parse_where("p = 2", TABLE), deep))))
    text = json_hints(deep, TABLE, PARTITIONS)
    assert text is not None
    assert depth(json.loads(text)) < 100
    long = " OR ".join(f"name = '{'x' * 200}{i}'" for i in range(4_600))
    assert json_hints(parse_where(long, TABLE), TABLE, PARTITIONS) is None


def depth(node: Any) -> int:
    return 1 + max((depth(c) for c in node.get("children", ())), default=0)


SQL = {
    "p = 0": ["p = 0"],
    "p <> 1 AND day >= '2021-01-01' AND cost = 1": ["p <> 1", "day >= '2021-01-01'"],
    "p IS NULL AND city IS NOT NULL": ["city is not null"],
    "`my part` > -1": ["`my part` > -1"],
    "city = 'New York'": ["city = 'New York'"],
    "city = 'it''s'": [],
    r"city = 'a\\b'": [],
    "p = 1 OR p = 2": [],
    "cost = 1": [],
}


@pytest.mark.parametrize(("text", "hints"), SQL.items())
def test_sql_hints(text: str, hints: list[str]) -> None:
    assert sql_hints(parse_where(text, TABLE), PARTITIONS) == hints


@pytest.mark.parametrize(
    ("hint", "condition"),
    [
        (op("equal", "f", "float", "0.1"), "`f` = 0.10000000149011612F"),
        (op("lessThan", "ts", "timestamp", "2024-01-01T00:00:00Z"), "`ts` < TIMESTAMP '2024-01-01 00:00:00Z'"),
        (either(null("name", "string"), op("greaterThan", "cost", "long", "7")), "`name` IS NULL OR `cost` > 7L"),
        (both(op("huh", "cost", "long", "7"), op("equal", "p", "int", "1")), "`p` = 1"),
        (op("equal", "cost", "long", "many"), None),
        (op("greaterThan", "dc", "double", "1.50"), "`dc` > 1.50BD"),
        (op("greaterThan", "dc", "double", "1.005"), None),
        (op("lessThan", "hireDate", "date", "2024-01-01T05:00:00"), None),
        (op("greaterThan", "ts", "timestamp", "2024-01-01T00:00:00.1234567Z"), None),
        (op("lessThan", "name", "int", "10"), None),  # '9' is less, as a number
        (op("lessThan", "cost", "string", "9"), None),  # 10 is less, as a text
        (op("equal", "cost", "int", "5"), None),
        (op("equal", "p", "long", "5"), "`p` = 5"),
        (op("lessThan", "name", "string", "\uffff"), None),  # so is '😀' for who compares in UTF-16
        (op("equal", "name", "string", ""), "`name` = ''"),
        (op("greaterThan", "f", "double", "0.1"), None),
        (
            {"op": "equal", "children": [column("p", "int"), {"op": "literal", "value": "5", "valueType": "string"}]},
            None,
        ),
        ({"op": "equal", "children": [{"op": "column", "name": "p"}, {"op": "literal", "value": "5"}]}, None),
        ({"op": "or", "children": []}, None),
        ({"op": "in", "children": [column("p", "int")]}, None),
    ],
)
def test_hints_as_a_condition(hint: Any, condition: str | None) -> None:
    found = condition_of_hints(json.dumps(hint), TABLE)
    assert condition == (None if found is None else str(found))


class Server:
    """The reference server's evaluation: ranges for data columns, three-valued, ``not`` upside down over a range, NaN by IEEE."""

    KINDS: ClassVar[dict[str, Any]] = {"bool": lambda t: {"true": 1, "false": 0}[str(t).lower()], "int": int, "long": int, "float": float, "double": float, "date": str,
             "string": lambda t: t.encode("utf-16-be", "surrogatepass"), "timestamp": str}  # fmt: skip

    def __init__(self, partitions: dict[str, str | None], stats: dict[str, Any], *, single: bool = False) -> None:
        self.partitions, self.stats = partitions, stats
        self.kinds = {**self.KINDS, "float": np.float32} if single else self.KINDS

    def keeps(self, node: Any) -> bool | None:
        children = node["children"]
        match node["op"]:
            case "and":
                answers = [self.keeps(c) for c in children]
                return False if False in answers else None if None in answers else True
            case "or":
                answers = [self.keeps(c) for c in children]
                return True if True in answers else None if None in answers else False
            case "not":
                inner = self.keeps(children[0])
                return None if inner is None else not inner
            case "isNull":
                name = children[0]["name"]
                return self.partitions[name] is None if name in self.partitions else False
        read = self.kinds[children[0]["valueType"]]
        name, value = children[0]["name"], read(children[1]["value"])
        if name in self.partitions:
            if self.partitions[name] is None:
                return False
            try:
                low = high = read(self.partitions[name])
            except (ValueError, KeyError):
                return None
        else:
            low, high = (self.stats[k].get(name) for k in ("minValues", "maxValues"))
            if low is None or high is None:
                return None
            low, high = read(low), read(high)
        return {
            "equal": low <= value <= high, "lessThan": low < value, "lessThanOrEqual": low <= value,
            "greaterThan": high > value, "greaterThanOrEqual": high >= value,
        }[node["op"]]  # fmt: skip


@cases(400, suppress_health_check=list(HealthCheck))
@given(
    drawn(
        predicate,
        rows,
        some_of(["flag", "i32", "i64", "s", "d", "f64"], 0, 3),
        one_of(None, ""),
        *[one_of(False, True)] * 3,
    )
)
def test_no_server_loses_a_row_by_a_hint(
    case: tuple[str, list[dict[str, Any]], set[str], str | None, bool, bool, bool],
) -> None:
    """Writers serialize NULL in two ways, floats with the digits of either width, which servers read in either, and NaN or not."""
    text, rows, names, null, short, single, nan = case
    try:
        expression = parse_where(text, SCHEMA)
    except PredicateError:
        assume(False)
    hint = json_hints(expression, SCHEMA, tuple(names))
    if hint is None:
        return
    if "s" in names and rows[0]["s"] == "":
        rows[0]["s"] = None
    rows = [{**r, **{name: rows[0][name] for name in names}} for r in rows]
    values = {name: null if rows[0][name] is None else partition_text(rows[0][name]) for name in names}
    server = Server(values, statistics(rows, SCHEMA, nan=nan, prefix=32, short=short), single=single)
    if any(answer(expression, row) for row in rows):
        assert server.keeps(json.loads(hint)) is not False


@pytest.mark.parametrize(
    "text", ["f32 = 0.1F", "f32 <= 0.1F", "f32 IN (0.1F, 1.5F)", "NOT f32 > 0.1F", "f32 BETWEEN 0F AND 0.1F"]
)
@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("single", [False, True])
def test_a_float_at_a_bound_is_kept_whatever_its_digits(text: str, short: bool, single: bool) -> None:
    row = dict.fromkeys((f.name for f in SCHEMA.fields), None) | {"f32": 0.10000000149011612}
    hint = json_hints(parse_where(text, SCHEMA), SCHEMA, ())
    stats = statistics([row], SCHEMA, nan=False, prefix=32, short=short)
    assert hint is None or Server({}, stats, single=single).keeps(json.loads(hint)) is not False


@cases(300)
@given(
    st.sampled_from(["f32", "f64"]),
    st.lists(st.sampled_from([1.5, -1.5, 0.0, -0.0, NAN, INF, -INF, None, 3.0]), min_size=1, max_size=3),
    st.sampled_from(
        [
            "{} = {}",
            "{} < {}",
            "{} <= {}",
            "{} > {}",
            "{} >= {}",
            "{} IN ({}, 3)",
            "{} BETWEEN -1 AND {}",
            "{} <=> {}",
            "{} <> {}",
        ]
    ),
    st.sampled_from(
        [
            "1.5",
            "CAST('NaN' AS DOUBLE)",
            "0",
            "-0D",
            "CAST('inf' AS DOUBLE)",
            "CAST('-inf' AS DOUBLE)",
            "-1.5",
            "CAST(1.5 AS FLOAT)",
        ]
    ),
    st.sampled_from(["{}", "NOT ({})", "({}) OR i32 = 1", "NOT ({} OR i32 = 1)", "({}) IS TRUE", "NOT (NOT ({}))"]),
)
def test_a_nan_among_the_values_loses_no_row_by_a_hint(
    name: str, values: list[float | None], form: str, literal: str, around: str
) -> None:
    """Delta writes a NaN as the maximum; the server compares with it by IEEE, by which nothing equals or exceeds it."""
    rows = [dict.fromkeys((f.name for f in SCHEMA.fields), None) | {name: value} for value in values]
    expression = parse_where(around.format(form.format(name, literal)), SCHEMA)
    hint = json_hints(expression, SCHEMA, ())
    if hint is not None and any(answer(expression, row) for row in rows):
        assert Server({}, statistics(rows, SCHEMA, nan=True, prefix=32)).keeps(json.loads(hint)) is not False


@pytest.mark.parametrize("text", ["i32 IS NULL", "i32 <=> NULL", "i32 IS NULL OR i32 = 1", "NOT i32 IS NOT NULL"])
def test_a_null_partition_that_is_written_as_the_empty_string_is_kept(text: str) -> None:
    expression = parse_where(text, SCHEMA)
    hint = json_hints(expression, SCHEMA, ["i32"])
    assert hint is None or Server({"i32": ""}, {}).keeps(json.loads(hint)) is not False
    assert sql_hints(expression, ["i32"]) == []
