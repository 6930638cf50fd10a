"""Finds out how a plan depends on the moment at which it is planned.

Spark computes ``current_date()`` and its like when a plan is optimized, and each action on a data frame may optimize it
anew: what one optimized plan needs must hold for those of later moments too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

_CLOCK = {"CurrentDate", "CurrentTimestamp", "Now", "LocalTimestamp"}
_COMPARISONS = {"EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual"}
#: Functions of a moment and constants that never go back when the moment goes on (but for a change of the zone's offset).
_STEADY = {"TimestampAddInterval", "TimeAdd", "TimestampAddYMInterval", "DateAdd", "DateSub", "DateAddInterval", "DateAddYMInterval",
           "AddMonths", "TruncDate", "TruncTimestamp", "TimestampAdd", "Cast"}  # fmt: skip
_TIMES = ("date", "timestamp", "timestamp_ntz")
#: Further functions whose value no other part of a plan is chosen by.
_PLAIN = {*_STEADY, "DateDiff", "SubtractDates", "SubtractTimestamps", "TimestampDiff", "Year", "Month", "DayOfMonth", "Alias", "Add",
          "Subtract", "Multiply", "Divide", "MonthsBetween", "UnixTimestamp", "ToUnixTimestamp", "DateFormatClass"}  # fmt: skip
#: What chooses between expressions: a value that is folded into it may remove columns from the plan.
_CHOICES = {"CaseWhen", "If", "Coalesce", "Or", "Not", "GetArrayItem", "GetMapValue", "ElementAt", "Elt", "In", "NullIf", "Nvl2",
            "Greatest", "Least"}  # fmt: skip
_THROUGH = {"Sort", "GlobalLimit", "LocalLimit", "Distinct", "Offset"}


class Moment(IntEnum):
    """How far a plan's needs hold at later moments."""

    ANY = 0
    """The plan does not depend on the moment."""
    BOUNDS = 1
    """Conditions hold, but for those that speak of times and are no lower bounds."""
    COLUMNS = 2
    """The columns hold, conditions may not."""
    NOTHING = 3
    """Another plan may be needed at another moment."""


def moment_of(analyzed: Sequence[dict[str, Any]]) -> Moment:
    """How an analysed plan, as the rows that Spark writes to JSON, depends on the moment.

    Every use of the clock must be known: it bounds a column in a filter, or it stands in the result's columns.
    """
    worst = _plan(_tree(iter(analyzed)), is_result=True)
    chosen = any(_kind(row) in _CHOICES for row in _rows(analyzed))
    return Moment.NOTHING if worst is Moment.COLUMNS and chosen else worst


def _rows(value: Any) -> Iterator[dict[str, Any]]:
    """Every plan and expression within a value."""
    if isinstance(value, dict):
        if "class" in value:
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _rows(inner)


def _kind(row: dict[str, Any]) -> str:
    return str(row["class"]).rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class _Tree:
    """A plan or an expression with its children."""

    row: dict[str, Any]
    children: tuple[_Tree, ...]

    @property
    def kind(self) -> str:
        return _kind(self.row)

    def walk(self) -> Iterator[_Tree]:
        yield self
        for child in self.children:
            yield from child.walk()

    def is_timed(self) -> bool:
        """Whether part of it, apart from plans of subqueries, is known only at the moment of planning."""
        return any(tree.kind in _CLOCK or tree.kind.startswith("Current") for tree in self.walk())

    def has_column(self) -> bool:
        return any(tree.kind in ("AttributeReference", "CommonExpressionRef") for tree in self.walk())


def _tree(rows: Iterator[dict[str, Any]]) -> _Tree:
    """The tree whose rows, children after their parent, come next."""
    row = next(rows)
    children = tuple(_tree(rows) for _ in range(row["num-children"]))
    if isinstance(row.get("replacement"), int):  # a function that is another by definition
        return children[row["replacement"]]
    if _kind(row) == "With" and all(d.has_column() and not d.is_timed() for d in children[1:]):
        return children[0]
    return _Tree(row, children)


def _plan(plan: _Tree, *, is_result: bool) -> Moment:
    """The dependence of a plan; ``is_result`` if its columns are those of the whole query."""
    worst = max(
        (_plan(child, is_result=is_result and plan.kind in _THROUGH) for child in plan.children), default=Moment.ANY
    )
    for name, value in plan.row.items():
        for rows in _expressions(value):
            tree = _tree(iter(rows))
            for inner in tree.walk():
                if inner.row.get("plan"):
                    worst = max(worst, _plan(_tree(iter(inner.row["plan"])), is_result=False))
            if tree.is_timed():
                worst = max(worst, _use(plan.kind, name, tree, is_result))
    return worst


def _expressions(value: Any) -> Iterator[list[dict[str, Any]]]:
    """The expressions that one field of a plan holds."""
    if isinstance(value, list) and value:
        if all(isinstance(row, dict) and "num-children" in row for row in value):
            yield value
        else:
            for inner in value:
                yield from _expressions(inner)


def _use(plan: str, name: str, tree: _Tree, is_result: bool) -> Moment:
    if plan in ("Filter", "Join") and name == "condition":
        return _condition(tree)
    if is_result and name in ("projectList", "aggregateExpressions") and _is_plain(tree):
        return Moment.ANY
    return Moment.NOTHING


def _condition(tree: _Tree) -> Moment:
    if not tree.is_timed():
        return Moment.ANY
    if tree.kind in ("And", "Or"):
        return max(_condition(child) for child in tree.children)
    if tree.kind in _COMPARISONS and tree.has_column() and all(_is_plain(child) for child in tree.children):
        first, second = tree.children
        bound = (_is_steady(first) and not second.is_timed()) or (_is_steady(second) and not first.is_timed())
        return Moment.BOUNDS if bound and not tree.kind.startswith("Equal") else Moment.COLUMNS
    return Moment.NOTHING


def _is_plain(tree: _Tree) -> bool:
    """Whether the moment's value passes only through functions that choose nothing by it."""
    if not tree.is_timed() or tree.kind in _CLOCK:
        return True
    return tree.kind in _PLAIN and all(_is_plain(child) for child in tree.children)


def _is_steady(tree: _Tree) -> bool:
    """Whether the expression is the moment, moved or truncated by constants."""
    if tree.kind in _CLOCK:
        return True
    if tree.kind not in _STEADY or (tree.kind == "Cast" and tree.row.get("dataType") not in _TIMES):
        return False
    timed = [child for child in tree.children if child.is_timed()]
    return len(timed) == 1 and _is_steady(timed[0]) and not tree.has_column()
