"""Finds the type in which Spark compares values of two types, under ANSI rules."""

from __future__ import annotations

from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.predicates.scalar_types import (
    BINARY,
    BITS,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VOID,
    spark_name,
)
from delta_sharing_spark.predicates.tree import Literal
from delta_sharing_spark.schema.types import DataType, Decimal

_RANK = {kind: rank for rank, kind in enumerate((*BITS, FLOAT, DOUBLE))}
#: In the order in which Spark promotes them.
TIMES = (DATE, TIMESTAMP_NTZ, TIMESTAMP)
_DECIMAL_OF = {8: Decimal(3, 0), 16: Decimal(5, 0), 32: Decimal(10, 0), 64: Decimal(20, 0)}
#: Types whose values compare.
SCALARS = (BOOLEAN, STRING, BINARY, *_RANK, *TIMES)


class CastLiteral(Literal):
    """A literal under the user's own CAST, for which Spark's special rules for literals do not hold."""

    __slots__ = ()


def common_type(left: DataType, right: DataType) -> DataType:
    """The type in which Spark compares the two.

    Raises:
        PredicateError: Spark refuses the pair, or the comparison would round decimals.
    """
    if left == right or right == VOID:
        return left
    if left == VOID:
        return right
    if STRING in (left, right):
        other = right if left == STRING else left
        if other in BITS:
            return LONG
        if other in (FLOAT, DOUBLE) or isinstance(other, Decimal):
            return DOUBLE
        if other in SCALARS:
            return other
    elif left in TIMES and right in TIMES:
        return max(left, right, key=TIMES.index)
    elif left in _RANK and right in _RANK:
        wider = left if _RANK[left] > _RANK[right] else right
        return DOUBLE if wider == FLOAT else wider
    elif isinstance(left, Decimal) or isinstance(right, Decimal):
        if left in (FLOAT, DOUBLE) or right in (FLOAT, DOUBLE):
            return DOUBLE
        a, b = as_decimal(left), as_decimal(right)
        if a and b:
            scale = max(a.scale, b.scale)
            precision = max(a.precision - a.scale, b.precision - b.scale) + scale
            if precision > 38:
                raise PredicateError(
                    f"comparing {spark_name(left)} with {spark_name(right)} needs {precision} digits, and Spark would"
                    f" round the column to 38; write the literal with fewer digits, or in the column's type"
                )
            return Decimal(precision, scale)
    raise PredicateError(
        f"{spark_name(left)} and {spark_name(right)} do not compare; cast the literal to the column's type"
    )


def as_decimal(kind: DataType) -> Decimal | None:
    """The DECIMAL type that Spark converts an integer type to; a DECIMAL itself; None for other types."""
    return kind if isinstance(kind, Decimal) else _DECIMAL_OF[BITS[kind]] if kind in BITS else None
