"""Decodes the bounds that manifests keep of columns (Iceberg, "Binary single-value serialization")."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta, timezone
from typing import Any

from delta_sharing_spark.access.iceberg.manifests import LOWER, NULLS, UPPER, Entry
from delta_sharing_spark.predicates.scalar_types import FLOAT, FLOATS, domain, float_key
from delta_sharing_spark.predicates.three_valued import ColumnBounds, bounds_of_statistics
from delta_sharing_spark.schema.instants import EPOCH, EPOCH_DAY
from delta_sharing_spark.schema.types import DataType, Decimal

_INT, _LONG, _FLOAT, _DOUBLE = (struct.Struct(form) for form in ("<i", "<q", "<f", "<d"))


def decode_bound(data: object, kind: DataType) -> Any:
    """The value of a bound: a number, a text, bytes or a boolean; None where it tells nothing that is certain. A date
    is its days, a timestamp its microseconds, a decimal its unscaled value.

    A column that was promoted keeps bounds of its old width.
    """
    decode = _decoder_of(kind)
    if decode is None or not isinstance(data, bytes):
        return None
    try:
        return decode(data)
    except (struct.error, UnicodeDecodeError):
        return None


def _decoder_of(kind: DataType) -> Callable[[bytes], Any] | None:
    return _unscaled if isinstance(kind, Decimal) else _DECODERS.get(str(kind))


def _unscaled(data: bytes) -> int | None:
    return int.from_bytes(data, "big", signed=True) if data else None


def _number(short: struct.Struct, long: struct.Struct) -> Callable[[bytes], Any]:
    """Of a column that may have been promoted: the bound is of one of two widths."""
    return lambda data: (short if len(data) == short.size else long).unpack(data)[0]


_DECODERS: Mapping[str, Callable[[bytes], Any]] = {
    "integer": lambda data: _INT.unpack(data)[0],
    "date": lambda data: _INT.unpack(data)[0],
    "long": _number(_INT, _LONG),
    # Of a date that became a timestamp the bound counts days, which is not what its rows are compared by.
    "timestamp": lambda data: _LONG.unpack(data)[0],
    "timestamp_ntz": lambda data: _LONG.unpack(data)[0],
    "float": lambda data: _FLOAT.unpack(data)[0],
    "double": _number(_FLOAT, _DOUBLE),
    "boolean": lambda data: data == b"\1" if len(data) == 1 else None,
    "string": bytes.decode,
}


def number_of(value: date) -> int:
    """The days of a date since 1970, or the microseconds of a timestamp; one without a zone is in UTC."""
    if not isinstance(value, datetime):
        return value.toordinal() - EPOCH_DAY
    aware = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
    return (aware - EPOCH) // timedelta(microseconds=1)


class StoredBounds:
    """The bounds that manifests tell of a column.

    Args:
        field_id: The column's.
        kind: Its type in the table.
        is_nested: Whether it lies within a struct, which may be NULL where no NULL of the column is counted.
    """

    __slots__ = ("_greatest", "_is_nested", "_kind", "field_id")

    def __init__(self, field_id: int, kind: DataType, *, is_nested: bool = False) -> None:
        self.field_id, self._is_nested = field_id, is_nested
        # NaN is not in the statistics, and is above all that is.
        self._kind, self._greatest = kind, domain(kind)[1] if kind in FLOATS else None

    def of(self, entry: Entry) -> ColumnBounds:
        """The bounds in a file, as far as its manifest tells them."""
        kind = self._kind
        low, high, nulls = [entry.of_field(name, self.field_id) for name in (LOWER, UPPER, NULLS)]
        nulls = None if self._is_nested and nulls == 0 else nulls
        lowest, highest = _key(decode_bound(low, kind), kind), _key(decode_bound(high, kind), kind)
        is_bounded, greatest = low is not None or high is not None, self._greatest
        return bounds_of_statistics(
            kind, entry.rows, nulls, is_bounded, lowest, highest if greatest is None else greatest, highest
        )


def _key(value: Any, kind: DataType) -> int | bytes | None:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, float):
        return None if value != value else float_key(value, 32 if kind == FLOAT else 64)
    return None if value is None else int(value)
