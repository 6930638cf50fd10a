"""Decodes the bounds that manifests keep of columns (Iceberg, "Binary single-value serialization")."""

from __future__ import annotations

import struct
from typing import Any

from delta_sharing_spark.access.iceberg.manifests import Entry
from delta_sharing_spark.predicates.scalar_types import FLOAT, FLOATS, domain, float_key
from delta_sharing_spark.predicates.three_valued import ColumnBounds, bounds_of_statistics
from delta_sharing_spark.schema.types import DataType, Decimal

_STATISTICS = ("lower_bounds", "upper_bounds", "null_value_counts")


def decode_bound(data: object, kind: DataType) -> Any:
    """The value of a bound: a number, a text, bytes or a boolean; None where it tells nothing that is certain. A date
    is its days, a timestamp its microseconds, a decimal its unscaled value.

    A column that was promoted keeps bounds of its old width.
    """
    if not isinstance(data, bytes):
        return None
    size, name = len(data), str(kind)
    try:
        if isinstance(kind, Decimal):
            return int.from_bytes(data, "big", signed=True) if data else None
        if name in ("integer", "date") or (name == "long" and size == 4):
            return struct.unpack("<i", data)[0]
        if name in ("long", "timestamp", "timestamp_ntz"):
            return struct.unpack("<q", data)[0]
        if name == "float" or (name == "double" and size == 4):
            return struct.unpack("<f", data)[0]
        if name == "double":
            return struct.unpack("<d", data)[0]
        if name == "boolean":
            return data == b"\1" if size == 1 else None
        if name == "string":
            return data.decode()
    except (struct.error, UnicodeDecodeError):
        return None
    return None


def bounds_in(entry: Entry, field_id: int, kind: DataType) -> ColumnBounds:
    """The bounds of a column in a file, as far as its manifest tells them."""
    low, high, nulls = (stored_value(entry.tree.get(name), field_id) for name in _STATISTICS)
    lowest, highest = (_key(decode_bound(bound, kind), kind) for bound in (low, high))
    # NaN is not in the statistics, and is above all that is.
    greatest = domain(kind)[1] if kind in FLOATS else highest
    is_bounded = low is not None or high is not None
    return bounds_of_statistics(kind, entry.rows, nulls, is_bounded, lowest, greatest, highest)


def stored_value(entries: Any, field_id: int) -> Any:
    """The value of a field in a map with numbers as keys, which Avro writes as a list of ``key`` and ``value``."""
    for one in entries if isinstance(entries, list) else ():
        if isinstance(one, dict) and one.get("key") == field_id:
            return one.get("value")
    return None


def _key(value: Any, kind: DataType) -> int | bytes | None:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, float):
        return None if value != value else float_key(value, 32 if kind == FLOAT else 64)
    return None if value is None else int(value)
