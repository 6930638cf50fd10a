"""Defines the scalar types of a ``where``: their names, the type that two are compared in, and keys of their values.

A key is an integer in Spark's order, by which comparisons are rewritten and bounds compared.
"""

from __future__ import annotations

import decimal
import struct
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.predicates.tree import Literal, Value
from delta_sharing_spark.schema.types import DataType, Decimal, Primitive

VOID, BOOLEAN, STRING, BINARY = Primitive("void"), Primitive("boolean"), Primitive("string"), Primitive("binary")
BYTE, SHORT, INTEGER, LONG = Primitive("byte"), Primitive("short"), Primitive("integer"), Primitive("long")
FLOATS = FLOAT, DOUBLE = Primitive("float"), Primitive("double")
DATE, TIMESTAMP, TIMESTAMP_NTZ = Primitive("date"), Primitive("timestamp"), Primitive("timestamp_ntz")

BITS: dict[DataType, int] = {BYTE: 8, SHORT: 16, INTEGER: 32, LONG: 64}
#: What an INTERVAL literal is: microseconds of whole days, microseconds, months. No column has these types here.
INTERVAL_DAY, INTERVAL_TIME = Primitive("interval day"), Primitive("interval day to second")
INTERVAL_MONTH = Primitive("interval year to month")


def spark_name(kind: DataType) -> str:
    """The type's name in Spark SQL, for messages."""
    names = {"integer": "INT", "long": "BIGINT", "short": "SMALLINT", "byte": "TINYINT"}
    return names.get(str(kind), str(kind).upper())


#: Names that a CAST takes.
SQL_TYPES: dict[str, DataType] = {
    "BOOLEAN": BOOLEAN, "TINYINT": BYTE, "BYTE": BYTE, "SMALLINT": SHORT, "SHORT": SHORT, "INT": INTEGER,
    "INTEGER": INTEGER, "BIGINT": LONG, "LONG": LONG, "FLOAT": FLOAT, "REAL": FLOAT, "DOUBLE": DOUBLE,
    "STRING": STRING, "BINARY": BINARY, "DATE": DATE, "TIMESTAMP": TIMESTAMP, "TIMESTAMP_LTZ": TIMESTAMP,
    "TIMESTAMP_NTZ": TIMESTAMP_NTZ,
}  # fmt: skip


_FORMATS = {32: ("<f", "<i"), 64: ("<d", "<q")}
_INFINITY = {32: 0x7F800000, 64: 0x7FF0000000000000}


def float_key(value: float, bits: int) -> int:
    """An integer that orders floats as Spark does: -0.0 equals 0.0, NaN equals NaN and is above infinity."""
    if value != value:
        return _INFINITY[bits] + 1
    as_float, as_int = _FORMATS[bits]
    key: int = struct.unpack(as_int, struct.pack(as_float, value))[0]
    return key if key >= 0 else -(key & ((1 << bits - 1) - 1))


def float_value(key: int, bits: int) -> float:
    """The float of a key; 0 is +0.0."""
    if key > _INFINITY[bits]:
        return float("nan")
    as_float, as_int = _FORMATS[bits]
    value: float = struct.unpack(as_float, struct.pack(as_int, abs(key)))[0]
    return -value if key < 0 else value


def nearest_float32(exact: Fraction) -> float:
    """The single-precision number nearest to an exact one, ties to even (never through a double)."""
    if abs(exact) >= Fraction(2**128 - 2**103):
        return float("inf") if exact > 0 else float("-inf")
    key = near_float32_key(float(exact))
    near = [k for k in (key - 1, key, key + 1) if abs(k) < _INFINITY[32]]
    best = min(near, key=lambda k: (abs(Fraction(float_value(k, 32)) - exact), k & 1))
    return float_value(best, 32)


def near_float32_key(value: float) -> int:
    """The key of a finite single-precision number next to a finite double."""
    limit = float_value(_INFINITY[32] - 1, 32)
    return float_key(max(-limit, min(limit, value)), 32)


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
    """The type in which Spark compares the two; raises PredicateError where Spark refuses the pair, or the comparison would round decimals."""
    if left == right or right == VOID:
        return left
    if left == VOID:
        return right
    if STRING in (left, right):
        other = right if left == STRING else left
        if other in BITS:
            return LONG
        if other in FLOATS or isinstance(other, Decimal):
            return DOUBLE
        if other in SCALARS:
            return other
    elif left in TIMES and right in TIMES:
        return max(left, right, key=TIMES.index)
    elif left in _RANK and right in _RANK:
        wider = left if _RANK[left] > _RANK[right] else right
        return DOUBLE if wider == FLOAT else wider
    elif isinstance(left, Decimal) or isinstance(right, Decimal):
        if left in FLOATS or right in FLOATS:
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


def key(value: Value, kind: DataType) -> Any:
    """The key of a value, ordered as Spark orders the type: an integer (``from_key``), or bytes for strings and binary."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return value
    if isinstance(value, decimal.Decimal):
        assert isinstance(kind, Decimal)
        return unscaled(value, kind.scale)
    if isinstance(value, float):
        return float_key(value, 32 if kind == FLOAT else 64)
    assert value is not None
    return int(value)


def from_key(key: int, kind: DataType) -> Value:
    """The value of an integer key."""
    if isinstance(kind, Decimal):
        return from_unscaled(key, kind.scale)
    if kind in FLOATS:
        return float_value(key, 32 if kind == FLOAT else 64)
    return bool(key) if kind == BOOLEAN else key


def domain(kind: DataType) -> tuple[int, int]:
    """The least and greatest key of a type."""
    if isinstance(kind, Decimal):
        return 1 - 10**kind.precision, 10**kind.precision - 1
    if kind in FLOATS:
        infinity = _INFINITY[32 if kind == FLOAT else 64]
        return -infinity, infinity + 1  # NaN is the greatest
    if kind == BOOLEAN:
        return 0, 1
    bits = 32 if kind == DATE else 64 if kind in (TIMESTAMP, TIMESTAMP_NTZ) else BITS[kind]
    return -(1 << bits - 1), (1 << bits - 1) - 1


def first_key(least: int, greatest: int, holds: Callable[[int], bool], near: int) -> int:
    """The least key for which a monotone test holds; ``greatest + 1`` if there is none. The search starts at ``near``."""
    low = high = min(max(near, least), greatest)
    step = 1
    while low > least and holds(low):
        low, step = max(least, low - step), step * 2
    while high <= greatest and not holds(high):
        low, high, step = high + 1, min(greatest + 1, high + step), step * 2
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


_EXACT = decimal.Context(decimal.MAX_PREC, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX)


def unscaled(value: decimal.Decimal, scale: int) -> int:
    """``value * 10**scale``, which must be a whole number, exactly (whatever the decimal context is)."""
    return int(value.scaleb(scale, _EXACT))


def from_unscaled(number: int, scale: int) -> decimal.Decimal:
    """``number / 10**scale`` exactly."""
    return decimal.Decimal(number).scaleb(-scale, _EXACT)
