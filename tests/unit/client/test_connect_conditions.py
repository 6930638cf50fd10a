"""What a Connect plan's text is conjectured to say, and what makes a conjecture believed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from delta_sharing_spark.predicates.sql import parse_where
from delta_sharing_spark.predicates.tree import Expression
from delta_sharing_spark.schema.types import Field, Primitive, Struct
from delta_sharing_spark.spark.connect_plans import conjectures, implied_conditions

P = Primitive
TABLE = Struct(
    (
        Field("id", P("long")),
        Field("no te", P("string")),
        Field("day", P("date")),
        Field("at", P("timestamp")),
        Field("box", Struct((Field("end", P("integer")),))),
        Field("flag", P("boolean")),
        Field("price", P("double")),
    )
)
KINDS = ["LongType", "StringType", "DateType", "TimestampType", "StructType(StructField(end,IntegerType,true))", "BooleanType", "DoubleType"]  # fmt: skip


def column(place: int, table: int = 0, row: int = 15) -> str:
    """A column as Spark 4.3 writes it."""
    mark = f"concat(wORDt{table}c{place}z, cast(id#{row}L as string))"
    return f"from_json(StructField(value,{KINDS[place]},true), {mark}, Some(UTC), false).value"


def plan(*filters: str) -> str:
    unreadable = (
        "isnull(raise_error(USER_RAISED_EXCEPTION, map(errorMessage, concat(this, cast(id#15L as string))), NullType))"
    )
    return "\n".join(f"   :  +- *(2) Filter ({unreadable} AND {text})\n      +- *(1) Range (0, 9)" for text in filters)


ID, NOTE, DAY, AT, BOX, FLAG, PRICE = (column(i) for i in range(7))


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        (f"(({ID} > 5) AND ({NOTE} = x y))", "`id` > 5L AND `no te` = 'x y'"),
        (f"({NOTE} IN (a,b, c) AND NOT {FLAG})", "`no te` IN ('a', 'b', ' c') AND NOT (`flag` = TRUE)"),
        (f"({ID} INSET 1, 10, 2 AND isnotnull({ID}))", "`id` IN (1L, 10L, 2L) AND `id` IS NOT NULL"),
        (f"((({DAY} = 2024-01-01) OR StartsWith({NOTE}, a)) AND (year({DAY}) = 2024))", "`day` = DATE '2024-01-01' OR `no te` LIKE 'a%'"),
        (f"({AT} > 2024-01-01 05:00:00.123)", "`at` > TIMESTAMP '2024-01-01 10:00:00.123000Z'"),
        (f"({BOX}.end <=> 3)", "(`box`.`end` = 3) IS TRUE"),
        (f"({PRICE} >= 1.0E10)", "`price` >= 10000000000.0D"),
        (f"({NOTE} LIKE a_b%)", "`no te` LIKE 'a_b%'"),
        (f"(({NOTE} = it's) AND (({ID} > 5) OR ({NOTE} = a\\b)))", "`no te` = 'it\\'s' AND (`id` > 5L OR `no te` = 'a\\\\b')"),
        (f"(({ID} = null) AND ({ID} > {BOX}.end))", None),
        (f"({ID} = 1) AND {column(0, 1)} = 1", None),
    ],
)  # fmt: skip
def test_a_filter_in_the_words_of_where(text: str, condition: str | None) -> None:
    assert texts_of(plan(text), "America/New_York") == [condition, None]


def texts_of(text: str, zone: str) -> list[str | None]:
    return [None if c is None else str(c) for c in conjectures(text, "wORD", [TABLE, TABLE], zone)]


def test_a_table_that_is_scanned_twice_is_needed_where_either_filter_holds() -> None:
    of_three = plan(f"({ID} > 5)", f"({FLAG} AND ({column(0, 1)} < 2))", f"({NOTE} = q)")
    assert texts_of(of_three, "UTC") == ["`id` > 5L OR `no te` = 'q'", None]


def test_only_what_leaves_the_plan_as_it_is_is_believed() -> None:
    first, second = f"(({ID} > 5) AND ({NOTE} = x))", f"({column(0, 1)} < 2)"
    asked = []

    a, wrong = (parse_where(text, TABLE) for text in ("id > 5", "id < 0"))

    def plan_with(conditions: Sequence[Expression | None]) -> str | None:
        asked.append(list(conditions))
        again = f"(({NOTE} = x) AND ({column(0, 0, 99)} > 5))"  # in another order, with other numbers
        return plan(again, second if conditions[1] is None else f"({second} AND ({column(0, 1)} < 3))").replace(
            "(2)", "(7)"
        )

    assert implied_conditions(plan(first, second), "wORD", [a, None], plan_with) == [a, None]
    assert implied_conditions(plan(first, second), "wORD", [a, wrong], plan_with) == [a, None]
    assert asked == [[a, None], [a, wrong], [a, None]]
    assert implied_conditions(plan(f"({ID} > 6)", second), "wORD", [a, wrong], plan_with) == [None, None]
    assert implied_conditions(plan(first, second), "wORD", [None, None], plan_with) == [None, None]
    assert len(asked) == 4
    assert implied_conditions(plan(first, second), "wORD", [a, None], lambda _: None) == [None, None]
    assert implied_conditions(plan(first, second), "wORD", [a, None], lambda _: "LocalTableScan <empty>") == [
        None,
        None,
    ]
    twice = plan(f"(({ID} > 5) AND ({ID} > 5))")
    assert implied_conditions(plan(f"({ID} > 5)"), "wORD", [a], lambda _: twice) == [None]
