"""Maps values to integers in Spark's order, by which comparisons are rewritten and bounds compared."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Any

from delta_sharing_spark.predicates.literals import from_unscaled, unscaled
from delta_sharing_spark.predicates.scalar_types import (
    BITS,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    float_key,
    float_keys,
    float_value,
)
from delta_sharing_spark.predicates.tree import Value
from delta_sharing_spark.schema.types import DataType, Decimal


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
    if kind in (FLOAT, DOUBLE):
        return float_value(key, 32 if kind == FLOAT else 64)
    return bool(key) if kind == BOOLEAN else key


def domain(kind: DataType) -> tuple[int, int]:
    """The least and greatest key of a type."""
    if isinstance(kind, Decimal):
        return 1 - 10**kind.precision, 10**kind.precision - 1
    if kind in (FLOAT, DOUBLE):
        return float_keys(32 if kind == FLOAT else 64)
    if kind == BOOLEAN:
        return 0, 1
    bits = 32 if kind == DATE else 64 if kind in (TIMESTAMP, TIMESTAMP_NTZ) else BITS[kind]
    return -(1 << bits - 1), (1 << bits - 1) - 1


def first_key(least: int, greatest: int, holds: Callable[[int], bool], near: int) -> int:
    """The least key for which a monotone test holds; ``greatest + 1`` if there is none. The search starts at ``near``."""
    near = min(max(near, least), greatest)
    step = 1
    if holds(near):
        low, high = least, near
        while near - step >= least:
            if not holds(near - step):
                low = near - step + 1
                break
            high = near - step
            step *= 2
    else:
        low, high = near + 1, greatest + 1
        while near + step <= greatest:
            if holds(near + step):
                high = near + step
                break
            low = near + step + 1
            step *= 2
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
