"""Compares CHAR columns as Spark does: values, and the literals beside them, are padded with blanks.

Spark shows a value of CHAR(n) with n characters at least, and in a comparison pads the shorter side to the longer one. Files may hold
it unpadded, so that no statistics and no hints are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.predicates import tree
from delta_sharing_spark.predicates.scalar_types import STRING, VOID, spark_name
from delta_sharing_spark.schema.types import DataType, Primitive

_CHAR = re.compile(r"char\(([0-9]{1,9})\)", re.IGNORECASE)


def char_type(mark: str) -> Primitive | None:
    """The type of a column of CHAR by the mark in its metadata; None for VARCHAR, and for a type that has CHAR within it."""
    match = _CHAR.fullmatch(mark.strip())
    return Primitive(f"char({int(match[1])})") if match else None


def char_length(kind: DataType) -> int:
    """The n of CHAR(n); 0 for another type."""
    match = _CHAR.fullmatch(kind.name) if isinstance(kind, Primitive) else None
    return int(match[1]) if match else 0


def compare_padded(op: str, column: tree.Column, other: tree.Column | tree.Literal) -> tree.Expression:
    """``column op other``, of which one is CHAR; raises PredicateError where the other is no string."""
    if isinstance(other, tree.Column):
        if not all(kind == STRING or char_length(kind) for kind in (column.type, other.type)):
            raise _no_text(column, other.type)
        return tree.CompareColumns(op, column, other)
    if other.value is None:
        return tree.UNKNOWN
    return tree.Compare(op, column, _padded(column, [other])[0])


def membership_padded(column: tree.Column, items: Sequence[tree.Literal]) -> tree.Expression:
    """``column IN (items)`` of a CHAR column: all are padded to the longest; raises PredicateError for a NULL among strings."""
    if any(item.value is None for item in items):
        raise PredicateError(f"NULL in a list beside the CHAR column {column}; leave it out, it is equal to nothing")
    literals = tuple(dict.fromkeys(_padded(column, items)))
    return tree.In(column, literals) if len(literals) > 1 else tree.Compare("=", column, literals[0])


def _padded(column: tree.Column, literals: Sequence[tree.Literal]) -> list[tree.Literal]:
    texts = [literal.value for literal in literals if isinstance(literal.value, str)]
    if len(texts) < len(literals):
        kind = next(literal.type for literal in literals if literal.type not in (STRING, VOID))
        raise _no_text(column, kind)
    width = max(char_length(column.type), *map(len, texts))
    return [tree.Literal(text.ljust(width), STRING) for text in texts]


def _no_text(column: tree.Column, kind: DataType) -> PredicateError:
    return PredicateError(
        f"comparing the column {column} ({spark_name(column.type)}) with {spark_name(kind)} would cast every row; write the literal as "
        f"a string"
    )
