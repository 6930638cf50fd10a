"""Filters of Spark's plans in the words of ``where``, from expressions as Spark writes them to JSON."""

from __future__ import annotations

import decimal
import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from delta_sharing_spark.predicates.tree import MAX_DEPTH, depth
from delta_sharing_spark.schema.types import Decimal, Field, Primitive, Struct
from delta_sharing_spark.spark.plan_conditions import pushed_condition, read_filters

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

    def name(self) -> str:
        return str(self.fields["name"])

    def qualifier(self) -> Any:
        return SimpleNamespace(isEmpty=lambda: False)

    def references(self) -> Any:
        columns = [self] if self.kind == "AttributeReference" else []
        for child in self.inner:
            columns += child.references().toSeq().inner
        made = Expression("Seq", *columns)
        return SimpleNamespace(toSeq=lambda: made)

    def hset(self) -> Expression:
        return self

    def mkString(self, separator: str) -> str:
        return separator.join("null" if value is None else str(value) for value in self.raw)

    def contains(self, value: object) -> bool:
        return value in self.raw

    def size(self) -> int:
        return len(self.inner if self.raw is None else self.raw)


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
    "mirrored": (E("LessThan", FIVE, ID), "`id` > 5L"),
    "null-safe": (E("EqualNullSafe", E("GreaterThan", ID, FIVE), TRUE), "(`id` > 5L) IS TRUE"),
    "quotes": (E("EqualTo", NAME, literal("it's \\ %", "string")), "`o``dd name` = 'it\\'s \\\\ %'"),
    "in": (E("In", ID, FIVE, literal(None, "long")), "`id` = 5L OR NULL"),
    "in set": (E("InSet", ID, value=[1, 2]), "`id` IN (1L, 2L)"),
    "not": (E("Not", E("In", ID, FIVE)), "NOT (`id` = 5L)"),
    "starts with": (E("StartsWith", NAME, literal("a%_\\", "string")), "`o``dd name` LIKE 'a\\\\%\\\\_\\\\\\\\%'"),
    "like": (E("Like", NAME, literal("a/%", "string"), value="/"), "`o``dd name` LIKE 'a\\\\%'"),
    "default escape": (E("Like", NAME, literal("a_", "string"), value="\\"), "`o``dd name` LIKE 'a_'"),
    "moment": (E("EqualTo", TS, NOON), "`ts` = TIMESTAMP '2024-01-01 12:00:00Z'"),
    "bytes": (E("EqualTo", column("bin", "binary"), literal("[B@1", "binary", b"\x00\xff")), "`bin` = X'00FF'"),
    "double": (E("LessThan", column("f", "double"), literal("1.0E10", "double")), "`f` < 10000000000.0D"),
    "decimal": (E("EqualTo", column("dec", "decimal(10,2)"), literal("1.50", "decimal(10,2)")), "`dec` = 1.50BD"),
    "is NaN": (E("IsNaN", column("f", "double")), "(`f` = CAST('nan' AS DOUBLE)) IS TRUE"),
    "field": (E("EqualTo", E("GetStructField", column("st", _STRUCT), ordinal=0), literal("q", "string")), "`st`.`b` = 'q'"),
    "flag": (column("flag", "boolean"), "`flag` = TRUE"),
    "lossless cast": (E("EqualTo", E("Cast", column("small", "integer"), dataType="long"), FIVE), "`small` = 5"),
    "cast to decimal": (
        E("GreaterThan", E("Cast", ID, dataType="decimal(20,0)"), literal("5", "decimal(20,0)")),
        "`id` >= 6L",
    ),
    "cast that rounds": (E("EqualTo", E("Cast", ID, dataType="double"), literal("5.0", "double")), "`id` = 5L"),
    "in set of texts": (E("InSet", NAME, value=["null", "a", None]), "`o``dd name` IN ('a', 'null') OR NULL"),
    "in set of days": (E("InSet", DAY, value=[0, 19723]), "`day` IN (DATE '1970-01-01', DATE '2024-01-01')"),
    "year": (E("EqualTo", E("Year", DAY), literal("2024", "integer")), "`day` >= DATE '2024-01-01' AND `day` <= DATE '2024-12-31'"),
    "part of an AND": (TWO_AND_UPPER, "`id` = 5L"),
    "part of an AND in an OR": (E("Or", TWO_AND_UPPER, E("IsNull", NAME)), "`id` = 5L OR `o``dd name` IS NULL"),
}  # fmt: skip

LEFT: dict[str, Expression] = {
    "a function": E("EqualTo", E("Upper", NAME), literal("A", "string")),
    "a subquery": E("GreaterThan", ID, E("ScalarSubquery")),
    "part of a NOT": E("Not", TWO_AND_UPPER),
    "one side of an OR": E("Or", E("EqualTo", ID, FIVE), E("EqualTo", E("Upper", NAME), literal("A", "string"))),
    "a string cast": E("EqualTo", E("Cast", NAME, dataType="long"), FIVE),
    "a collated column": E("EqualTo", column("cased", "string collate UNICODE_CI"), literal("a", "string")),
    "a collated literal": E("EqualTo", NAME, literal("a", "string collate UTF8_LCASE")),
    "a day in another zone": E("EqualTo", E("Cast", TS, dataType="date", timeZoneId="Asia/Tokyo"), literal("2024-01-01", "date")),
    "a struct literal": E("EqualTo", column("st", _STRUCT), literal("[x]", _STRUCT)),
    "an unknown type of set": E("InSet", NAME, value=["a\x1fb"]),
    "a moment that Python has not": E("EqualTo", TS, literal("+290000", "timestamp", 9 * 10**18)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_conditions(name: str) -> None:
    expression, text = CASES[name]
    assert str(read_filters([expression], SCHEMA, "UTC").condition) == text


def test_filters_are_shown_to_people_as_sql() -> None:
    """Without expression ids, the letters of literals, the names of views, and the tests for NULL beside comparisons."""
    price = E("GreaterThan", column("dec", "decimal(10,2)"), literal("100.00", "decimal(10,2)"))
    unknown = E("Upper", ID, sql="(t.id + 5L > 7.50BD AND t.`o``dd name` = 'it''s 5L')")
    filters = [E("IsNotNull", ID), E("IsNotNull", NAME), E("GreaterThan", ID, FIVE), price, unknown]
    assert read_filters(filters, SCHEMA, "UTC").texts == (
        "`o``dd name` IS NOT NULL",
        "`id` > 5",
        "`dec` > 100.00",
        "(`id` + 5 > 7.50 AND t.`o``dd name` = 'it''s 5L')",
    )


@pytest.mark.parametrize("name", LEFT)
def test_what_is_not_known_is_left_to_spark(name: str) -> None:
    reading = read_filters([LEFT[name], E("EqualTo", ID, FIVE)], SCHEMA, "UTC")
    assert str(reading.condition) == "`id` = 5L"
    assert len(reading.unused) == 1


def test_no_null_test_beside_a_comparison() -> None:
    filters = [E("IsNotNull", ID), E("IsNotNull", NAME), E("EqualTo", ID, FIVE), E("EqualNullSafe", NAME, NAME)]
    assert str(read_filters(filters[:3], SCHEMA, "UTC").condition) == "`o``dd name` IS NOT NULL AND `id` = 5L"


def test_decimals_that_spark_offers_the_python_source_keep_all_their_digits() -> None:
    @dataclass
    class EqualTo:
        """As ``pyspark.sql.datasource`` has it since 4.1."""

        attribute: tuple[str, ...]
        value: decimal.Decimal

    schema = Struct((Field("d", Decimal(38, 2)),))
    texts = ("-123456789012345678901234567890123456.78", "99999999999999999999999999999.90", "0.10")
    conditions = [pushed_condition([EqualTo(("d",), decimal.Decimal(text))], schema, "UTC") for text in texts]
    assert [str(condition) for condition in conditions] == [f"`d` = {text}BD" for text in texts]


def test_deep_conditions_are_spark_s_alone() -> None:
    deep, texts = E("EqualTo", ID, FIVE), []
    for level in range(70):
        deep = E("Or" if level % 2 else "And", deep, E("LessThan", ID, literal(str(level), "long")))
        reading = read_filters([deep, E("IsNull", NAME)], SCHEMA, "UTC")
        texts.append(str(reading.condition))
        assert depth(reading.condition) <= MAX_DEPTH + 1  # an AND of filters comes around each
    assert len(texts[40]) > 40 * len("`id` < 1L")
    assert "`id`" not in texts[-1]
