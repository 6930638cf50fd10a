"""How far what a plan needs holds at later moments, by plans as Spark writes them to JSON."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

from delta_sharing_spark.spark.plan_reading import Moment, moment_of

Row = dict[str, Any]


def node(kind: str, *children: list[Row], **fields: Any) -> list[Row]:
    """An expression or a plan with its children, children after their parent."""
    return [{"class": f"org.x.{kind}", "num-children": len(children), **fields}, *(row for c in children for row in c)]


DAY, TODAY, THREE = node("AttributeReference", name="day"), node("CurrentDate"), node("Literal", value="3")
BEFORE = node("DateSub", TODAY, THREE)
RELATION = node("LogicalRelation")
TWO_COLUMNS = node(
    "Or", node("GreaterThan", DAY, THREE), node("GreaterThan", node("AttributeReference", name="a"), THREE)
)


def filtered(condition: list[Row], *, projects: list[list[Row]] | None = None) -> list[Row]:
    return node("Project", node("Filter", RELATION, condition=condition), projectList=projects or [DAY])


def between(first: list[Row], low: list[Row], high: list[Row]) -> list[Row]:
    ref = node("CommonExpressionRef")
    pair = node("And", node("GreaterThanOrEqual", ref, low), node("LessThanOrEqual", ref, high))
    return node(
        "Between",
        node("With", pair, node("CommonExpressionDef", first)),
        input=first,
        lower=low,
        upper=high,
        replacement=0,
    )


CASES: dict[str, tuple[list[Row], Moment]] = {
    "no clock": (filtered(node("GreaterThan", DAY, THREE)), Moment.ANY),
    "a lower bound": (filtered(node("GreaterThan", DAY, BEFORE)), Moment.BOUNDS),
    "an upper bound": (filtered(node("LessThan", DAY, TODAY)), Moment.BOUNDS),
    "mirrored": (filtered(node("LessThanOrEqual", node("Cast", BEFORE, dataType="timestamp"), DAY)), Moment.BOUNDS),
    "between": (filtered(between(DAY, BEFORE, TODAY)), Moment.BOUNDS),
    "between of the clock": (filtered(between(TODAY, DAY, DAY)), Moment.NOTHING),
    "beside another condition": (filtered(node("And", node("GreaterThan", DAY, BEFORE), TWO_COLUMNS)), Moment.BOUNDS),
    "equality": (filtered(node("EqualTo", DAY, TODAY)), Moment.COLUMNS),
    "equality, and a choice": (filtered(node("And", node("EqualTo", DAY, TODAY), TWO_COLUMNS)), Moment.NOTHING),
    "a function of both": (filtered(node("LessThan", node("DateDiff", TODAY, DAY), THREE)), Moment.COLUMNS),
    "no column": (filtered(node("GreaterThan", TODAY, THREE)), Moment.NOTHING),
    "negated": (filtered(node("Not", node("GreaterThan", DAY, BEFORE))), Moment.NOTHING),
    "as a number": (filtered(node("GreaterThan", DAY, node("Cast", TODAY, dataType="long"))), Moment.COLUMNS),
    "in the result": (filtered(THREE, projects=[DAY, node("Alias", TODAY, name="today")]), Moment.ANY),
    "a choice in the result": (
        filtered(THREE, projects=[node("Alias", node("CaseWhen", node("GreaterThan", TODAY, THREE), DAY, THREE), name="c")]),
        Moment.NOTHING,
    ),
    "below the result": (
        node("Project", filtered(THREE, projects=[node("Alias", TODAY, name="today")]), projectList=[DAY]),
        Moment.NOTHING,
    ),
    "below a sort": (node("Sort", filtered(THREE, projects=[node("Alias", TODAY, name="t")]), order=[DAY]), Moment.ANY),
    "a session's function": (filtered(node("EqualTo", DAY, node("CurrentUser"))), Moment.NOTHING),
    "a subquery with a bound": (
        filtered(node("InSubquery", DAY, node("ListQuery", plan=filtered(node("GreaterThan", DAY, BEFORE))))),
        Moment.BOUNDS,
    ),
    "a subquery of the clock": (
        filtered(node("EqualTo", DAY, node("ScalarSubquery", plan=filtered(THREE, projects=[TODAY])))),
        Moment.NOTHING,
    ),
    "in an order": (node("Sort", filtered(THREE), order=[node("DateDiff", TODAY, DAY)]), Moment.NOTHING),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_moment(name: str) -> None:
    plan, moment = CASES[name]
    assert moment_of(plan) is moment
