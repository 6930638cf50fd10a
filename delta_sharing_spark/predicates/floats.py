"""Maps floating-point numbers to integers in Spark's order, and rounds exactly to single precision."""

from __future__ import annotations

import struct
from fractions import Fraction

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


def float_keys(bits: int) -> tuple[int, int]:
    """The least and the greatest key: minus infinity and NaN."""
    return -_INFINITY[bits], _INFINITY[bits] + 1


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
    return float_key(_clamp(value), 32)


def _clamp(value: float) -> float:
    limit = float_value(_INFINITY[32] - 1, 32)
    return max(-limit, min(limit, value))
