"""Most files of a large table left out by ranges of integers, at a fraction of what weighing the whole predicate costs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from operator import ge, gt, le, lt

from delta_sharing_spark.predicates.tree import Compare, Expression, conjuncts
from delta_sharing_spark.schema.types import Primitive

_INTEGERS = {Primitive(name) for name in ("byte", "short", "integer", "long")}
_LOW, _HIGH = "minValues", "maxValues"
#: The bounds by which no value of a file can compare so.
_EXCLUDES: dict[str, list[tuple[str, Callable[[int, int], bool]]]] = {
    "=": [(_LOW, gt), (_HIGH, lt)],
    "<": [(_LOW, ge)],
    "<=": [(_LOW, gt)],
    ">": [(_HIGH, le)],
    ">=": [(_HIGH, lt)],
}


def outside(expression: Expression, physical: Mapping[tuple[str, ...], str]) -> Callable[[str], bool] | None:
    """Whether a file holds no row that passes, by bounds of integer columns alone; None where that tells nothing.

    Not pyarrow.json: it crashes on statistics that are no objects, and a server may send anything.

    Args:
        expression: The predicate; only its comparisons of integers with literals, joined by AND, are looked at.
        physical: The physical name of each top-level column with statistics, by its path in the predicate.

    Returns:
        A function of the JSON of a file's statistics.
    """
    asked: list[tuple[str, str, Callable[[int, int], bool], int]] = []
    for part in conjuncts(expression):
        if isinstance(part, Compare) and part.column.path in physical and part.column.type in _INTEGERS:
            value = part.literal.value
            if type(value) is int:
                asked += [(bound, physical[part.column.path], test, value) for bound, test in _EXCLUDES[part.op]]
    if not asked:
        return None

    def gone(text: str) -> bool:
        try:
            stats = json.loads(text)
            for bound, name, test, value in asked:
                found = stats[bound].get(name) if bound in stats else None
                if type(found) is int and test(found, value):
                    return True
        except (ValueError, RecursionError, TypeError, AttributeError):
            return False  # unreadable statistics leave nothing out
        return False

    return gone
