"""Casts leaf columns without loss: type widening (Delta protocol, "Type Widening") and types that differ by Parquet writer."""

from __future__ import annotations

import pyarrow as pa

from delta_sharing_spark.parquet.footer import INT96_BYTES
from delta_sharing_spark.schema.arrow_bridge import numbers_like

_EPOCH_DAY, _DAY = 2_440_588, 86_400_000_000
#: Bits of an integer type to the digits of its widest value.
_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}


def can_cast(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether every value of ``source`` has its equal in ``target`` (timestamps: at microsecond precision).

    Integers may become narrower, where each value is checked: Parquet has none below 32 bits, and Hive, Impala and others
    do not say which of them are meant to be.
    """
    if pa.types.is_dictionary(source):
        return source.value_type.equals(target) or can_cast(source.value_type, target)
    if pa.types.is_null(target) or pa.types.is_null(source):
        return pa.types.is_null(source)
    if pa.types.is_integer(source):
        return _integer_fits(source, target)
    if pa.types.is_floating(source):
        return pa.types.is_floating(target) and source.bit_width <= target.bit_width
    if pa.types.is_decimal(source):
        return (
            pa.types.is_decimal(target)
            and target.scale >= source.scale
            and target.precision - target.scale >= source.precision - source.scale
        )
    if pa.types.is_timestamp(source):
        return pa.types.is_timestamp(target)
    if pa.types.is_date(source):
        return pa.types.is_date(target) or (pa.types.is_timestamp(target) and target.tz is None)
    return _bytes_fit(source, target)


def _integer_fits(source: pa.DataType, target: pa.DataType) -> bool:
    if pa.types.is_integer(target):
        return True
    if pa.types.is_float64(target):
        return source.bit_width <= 32
    if pa.types.is_decimal(target):
        digits = _INTEGER_DIGITS[source.bit_width] + (source.equals(pa.uint64()))
        return target.precision - target.scale >= digits
    return False


def _bytes_fit(source: pa.DataType, target: pa.DataType) -> bool:
    is_fixed = pa.types.is_fixed_size_binary(source)
    return (is_text(source) or is_bytes(source) or is_fixed) and (
        pa.types.is_string(target) or pa.types.is_binary(target)
    )


def is_text(kind: pa.DataType) -> bool:
    """Whether values are strings, however Arrow lays them out."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def is_bytes(kind: pa.DataType) -> bool:
    """Whether values are bytes of any length, however Arrow lays them out."""
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)


def cast_leaf(array: pa.Array, target: pa.DataType) -> pa.Array:
    """``array`` as ``target``; call only where ``can_cast`` holds.

    Raises:
        pyarrow.ArrowInvalid: A value does not fit (an integer, a timestamp beyond the range of microseconds, bytes that are not UTF-8).
    """
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
        if array.type.equals(target):
            return array
    if is_bytes_of_timestamps(array.type, target):
        return _timestamps_of(array, target)
    if pa.types.is_timestamp(target) and pa.types.is_timestamp(array.type):
        return _cast_timestamp(array, target)
    if pa.types.is_fixed_size_binary(array.type) and pa.types.is_string(target):
        array = array.cast(pa.binary())
    if pa.types.is_integer(array.type) and pa.types.is_decimal(target):
        # Arrow casts an integer only to a decimal that has room for all its digits.
        wide = pa.decimal128(38, 0) if target.precision == 38 or target.scale == 0 else pa.decimal256(60, target.scale)
        return array.cast(wide).cast(target)
    return array.cast(target)


def _cast_timestamp(array: pa.Array, target: pa.DataType) -> pa.Array:
    unit = array.type.unit
    if unit == "ns":
        import pyarrow.compute as pc  # it takes 20 ms, and few files need it

        # Floor, as Spark does: Arrow truncates toward zero, which is another microsecond before 1970.
        nanos = array.cast(pa.int64())
        whole = pc.divide(nanos, 1000)
        before = pc.less(nanos, pc.multiply(whole, 1000))
        return pc.subtract(whole, before.cast(pa.int64())).view(target)
    # A zone is only a label here: both sides count from the epoch.
    return array.cast(pa.timestamp(unit)).cast(pa.timestamp("us")).cast(pa.int64()).view(target)


def is_bytes_of_timestamps(kind: pa.DataType, target: pa.DataType) -> bool:
    """Whether a column of ``kind`` holds the bytes of what becomes ``target``."""
    return bool(kind == pa.binary(INT96_BYTES) and pa.types.is_timestamp(target))


def _timestamps_of(array: pa.Array, target: pa.DataType) -> pa.Array:
    """The timestamps, in microseconds, whose bytes an array holds; what a nanosecond leaves over is cut off, as by Spark."""
    import numpy as np

    rows = np.frombuffer(array.buffers()[1], np.uint8)[array.offset * INT96_BYTES :][
        : len(array) * INT96_BYTES
    ].reshape(-1, INT96_BYTES)
    nanos, days = rows[:, :8].copy().view("<i8").ravel(), rows[:, 8:].copy().view("<i4").ravel().astype(np.int64)
    micros = (days - _EPOCH_DAY) * _DAY + nanos // 1000 + ((nanos < 0) & (nanos % 1000 != 0))
    return numbers_like(array, micros, target)
