"""Filters of Spark's plans in the words of ``where``, from expressions as Spark writes them to JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("pyspark")

from delta_sharing_spark.schema.types import Decimal, Field, Primitive, Struct
from delta_sharing_spark.spark.plan_conditions import ScanConditions, either, read_filters

P = Primitive
SCHEMA = Struct(
    (
        Field("id", P("long")),
        Field("small", P("integer")),
        Field("o`dd name", P("string")),
        Field("f", P("double")),
        Field("dec", Decimal(10, 2)),
        Field("day", P("date")),
        Field("ts", P("timestamp")),
        Field("flag", P("boolean")),
        Field("bin", P("binary")),
        Field("st", Struct((Field("a", P("integer")), Field("b", P("string"))))),
        Field("cased", P("string"), metadata={"__COLLATIONS": {"cased": "icu.UNICODE_CI"}}),
    )
)
_STRUCT = {"type": "struct", "fields": [{"name": "b", "type": "string"}]}


class Expression:
    """An expression as the JVM has it."""

    def __init__(self, kind: str, *children: Expression, value: Any = None, sql: str = "", **fields: Any) -> None:
        self.kind, self.inner, self.fields, self.raw, self.text = kind, children, fields, value, sql

    def rows(self) -> list[dict[str, Any]]:
        own = {"class": f"org.x.{self.kind}", "num-children": len(self.inner), **self.fields}
        return [own, *(row for child in self.inner for row in child.rows())]

    def toJSON(self) -> str:
        return json.dumps(self.rows())

    def children(self) -> Any:
        return self

    def apply(self, index: int) -> Expression:
        return self.inner[index]

    def child(self) -> Expression:
        return self.inner[0]

    def value(self) -> Any:
        return self.raw

    def escapeChar(self) -> str:
        return str(self.raw)

    def sql(self) -> str:
        return self.text or self.kind


def column(name: str, kind: Any) -> Expression:
    return Expression("AttributeReference", name=name, dataType=kind, sql=f"t.{name}")


def literal(text: str | None, kind: Any, value: Any = None) -> Expression:
    made = Expression("Literal", value=value, dataType=kind)
    made.fields["value"] = text
    return made


E = Expression
ID, NAME, DAY, TS = (
    column("id", "long"),
    column("o`dd name", "string"),
    column("day", "date"),
    column("ts", "timestamp"),
)
FIVE, TRUE = literal("5", "long"), literal("true", "boolean")
NOON = literal("2024-01-01 12:00:00", "timestamp", 1704110400000000)
TWO_AND_UPPER = E("And", E("EqualTo", ID, FIVE), E("EqualTo", E("Upper", NAME), literal("A", "string")))

CASES: dict[str, tuple[Expression, str]] = {
    "comparison": (E("GreaterThan", ID, FIVE), "`id` > 5L"),
    "mirrored": (E("LessThan", FIVE, ID), "5L < `id`"),
    "null-safe": (E("EqualNullSafe", E("GreaterThan", ID, FIVE), TRUE), "(`id` > 5L) <=> TRUE"),
    "quotes": (E("EqualTo", NAME, literal("it's \\ %", "string")), "`o``dd name` = 'it\\'s \\\\ %'"),
    "in": (E("In", ID, FIVE, literal(None, "long")), "`id` IN (5L, NULL)"),
    "in set": (E("InSet", ID, sql="(t.id IN (1L, 2L))"), "`id` IN (1L, 2L)"),
    "not": (E("Not", E("In", ID, FIVE)), "(NOT (`id` IN (5L)))"),
    "starts with": (E("StartsWith", NAME, literal("a%_\\", "string")), "`o``dd name` LIKE 'a\\\\%\\\\_\\\\\\\\%'"),
    "like": (E("Like", NAME, literal("a/%", "string"), value="/"), "`o``dd name` LIKE 'a/%' ESCAPE '/'"),
    "default escape": (E("Like", NAME, literal("a_", "string"), value="\\"), "`o``dd name` LIKE 'a_'"),
    "moment": (E("EqualTo", TS, NOON), "`ts` = TIMESTAMP'2024-01-01 12:00:00Z'"),
    "bytes": (E("EqualTo", column("bin", "binary"), literal("[B@1", "binary", b"\x00\xff")), "`bin` = X'00ff'"),
    "double": (E("LessThan", column("f", "double"), literal("1.0E10", "double")), "`f` < CAST('1.0E10' AS DOUBLE)"),
    "decimal": (E("EqualTo", column("dec", "decimal(10,2)"), literal("1.50", "decimal(10,2)")), "`dec` = CAST('1.50' AS DECIMAL(10,2))"),
    "is NaN": (E("IsNaN", column("f", "double")), "`f` <=> CAST('NaN' AS DOUBLE)"),
    "field": (E("EqualTo", E("GetStructField", column("st", _STRUCT), ordinal=0), literal("q", "string")), "`st`.`b` = 'q'"),
    "flag": (column("flag", "boolean"), "`flag`"),
    "lossless cast": (E("EqualTo", E("Cast", column("small", "integer"), dataType="long"), FIVE), "`small` = 5L"),
    "cast to decimal": (
        E("GreaterThan", E("Cast", ID, dataType="decimal(20,0)"), literal("5", "decimal(20,0)")),
        "`id` > CAST('5' AS DECIMAL(20,0))",
    ),
    "year": (E("EqualTo", E("Year", DAY), literal("2024", "integer")), "year(`day`) = 2024"),
    "part of an AND": (TWO_AND_UPPER, "`id` = 5L"),
    "part of an AND in an OR": (E("Or", TWO_AND_UPPER, E("IsNull", NAME)), "(`id` = 5L OR `o``dd name` IS NULL)"),
}  # fmt: skip

LEFT: dict[str, Expression] = {
    "a function": E("EqualTo", E("Upper", NAME), literal("A", "string")),
    "a subquery": E("GreaterThan", ID, E("ScalarSubquery")),
    "part of a NOT": E("Not", TWO_AND_UPPER),
    "one side of an OR": E("Or", E("EqualTo", ID, FIVE), E("EqualTo", E("Upper", NAME), literal("A", "string"))),
    "a cast that loses": E("EqualTo", E("Cast", ID, dataType="double"), literal("5.0", "double")),
    "a string cast": E("EqualTo", E("Cast", NAME, dataType="long"), FIVE),
    "a collated column": E("EqualTo", column("cased", "string collate UNICODE_CI"), literal("a", "string")),
    "a collated literal": E("EqualTo", NAME, literal("a", "string collate UTF8_LCASE")),
    "a day in another zone": E("EqualTo", E("Cast", TS, dataType="date", timeZoneId="Asia/Tokyo"), literal("2024-01-01", "date")),
    "a struct literal": E("EqualTo", column("st", _STRUCT), literal("[x]", _STRUCT)),
    "an unknown type of set": E("InSet", ID, sql="id ISIN 1"),
    "a moment that Python has not": E("EqualTo", TS, literal("+290000", "timestamp", 9 * 10**18)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_conditions(name: str) -> None:
    expression, text = CASES[name]
    assert read_filters([expression], SCHEMA, "UTC", follows_clock=False).conditions == (text,)


@pytest.mark.parametrize("name", LEFT)
def test_what_is_not_known_is_left_to_spark(name: str) -> None:
    reading = read_filters([LEFT[name], E("EqualTo", ID, FIVE)], SCHEMA, "UTC", follows_clock=False)
    assert reading.conditions == ("`id` = 5L",)
    assert len(reading.left) == 1


def test_beside_a_clock_only_lower_bounds_of_times_stay() -> None:
    day = literal("2024-03-01", "date")
    filters = [E("GreaterThan", TS, NOON), E("GreaterThanOrEqual", DAY, day), E("LessThan", DAY, day), E("EqualTo", DAY, day),
               E("Not", E("GreaterThan", DAY, day)), E("InSet", DAY, sql="(t.day IN (DATE '2024-03-01'))"),
               E("Or", E("GreaterThan", DAY, day), E("EqualTo", ID, FIVE)), E("EqualTo", ID, FIVE)]  # fmt: skip
    reading = read_filters(filters, SCHEMA, "UTC", follows_clock=True)
    assert reading.conditions == (
        "`ts` > TIMESTAMP'2023-12-31 12:00:00Z'",
        "`day` >= DATE'2024-02-29'",
        "(`day` > DATE'2024-02-29' OR `id` = 5L)",
        "`id` = 5L",
    )
    assert len(reading.left) == 4


def test_no_null_test_beside_a_comparison() -> None:
    filters = [E("IsNotNull", ID), E("IsNotNull", NAME), E("EqualTo", ID, FIVE), E("EqualNullSafe", NAME, NAME)]
    assert read_filters(filters[:3], SCHEMA, "UTC", follows_clock=False).conditions == (
        "`o``dd name` IS NOT NULL",
        "`id` = 5L",
    )


def test_rows_of_any_scan_are_needed() -> None:
    one, other, all_rows = (
        ScanConditions(("a = 1", "b = 2"), ()),
        ScanConditions(("c = 3",), ("x: y",)),
        ScanConditions((), ()),
    )
    assert either([one]) == ("a = 1 AND b = 2", ())
    assert either([one, other]) == ("(a = 1 AND b = 2) OR (c = 3)", ("x: y",))
    assert either([one, all_rows])[0] is None
    assert either([one, one])[0] == "a = 1 AND b = 2"
