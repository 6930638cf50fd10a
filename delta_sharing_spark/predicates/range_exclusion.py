"""Leaves out most files of a large table by ranges of integers and dates, at a fraction of the whole predicate's cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import ge, gt, le, lt
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from delta_sharing_spark.predicates.bounds import lower
from delta_sharing_spark.predicates.scalar_types import BITS, DATE
from delta_sharing_spark.predicates.tree import Compare, Expression, conjuncts

_LOW, _HIGH = "minValues", "maxValues"
#: The bounds by which no value of a file can compare so: as a test of one, and of a column of them.
_EXCLUDES: dict[str, list[tuple[str, Callable[[int, int], bool], str]]] = {
    "=": [(_LOW, gt, "greater"), (_HIGH, lt, "less")],
    "<": [(_LOW, ge, "greater_equal")],
    "<=": [(_LOW, gt, "greater")],
    ">": [(_HIGH, le, "less_equal")],
    ">=": [(_HIGH, lt, "less")],
}


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A bound of one column by which a file holds no row that passes; ``value`` is an integer, or days since 1970."""

    bound: str
    column: str
    is_date: bool
    value: int
    excludes: Callable[[int, int], bool]
    function: str

    def excludes_file(self, stats: Mapping[str, Any]) -> bool:
        """Whether a file's statistics, as parsed JSON, show that no row passes."""
        bounds = stats.get(self.bound)
        value = bounds.get(self.column) if type(bounds) is dict else None
        if self.is_date:
            value = lower(value, DATE)
        return type(value) is int and self.excludes(value, self.value)

    def among(self, stats: pa.StructArray) -> pa.BooleanArray | None:
        """The same for many files' statistics in columns (null: unknown); None if they lack the column."""
        kind: Any = stats.type
        for name in (self.bound, self.column):
            if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
                return None
            kind = kind.field(name).type
        if not (pa.types.is_date32(kind) if self.is_date else pa.types.is_integer(kind)):
            return None
        value = pa.scalar(self.value, pa.int32()).cast(kind) if self.is_date else self.value
        return getattr(pc, self.function)(pc.struct_field(stats, [self.bound, self.column]), value)


def exclusions(expression: Expression, physical: Mapping[tuple[str, ...], str]) -> tuple[Exclusion, ...]:
    """The exclusions of a predicate: of its comparisons with integers and dates that are joined by AND.

    Args:
        expression: The predicate.
        physical: The physical name of each top-level column with statistics, by its path in the predicate.
    """
    return tuple(
        Exclusion(bound, physical[part.column.path], part.column.type == DATE, part.literal.value, excludes, function)
        for part in conjuncts(expression)
        if isinstance(part, Compare) and part.column.path in physical
        if (part.column.type in BITS or part.column.type == DATE) and type(part.literal.value) is int
        for bound, excludes, function in _EXCLUDES[part.op]
    )
