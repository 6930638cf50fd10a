"""Decodes the bounds that manifests keep of columns (Iceberg, "Binary single-value serialization")."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Any

from delta_sharing_spark.access.iceberg.deletes import int_map
from delta_sharing_spark.access.iceberg.manifests import Entry
from delta_sharing_spark.schema.types import DataType, Decimal, Field

_EPOCH = datetime(1970, 1, 1)
_FIRST_DAY = date(1970, 1, 1)


def decode_bound(data: object, kind: DataType) -> Any:
    """The value of a bound: a number (of a date its days, of a timestamp its microseconds, of a decimal its unscaled value), a text,
    bytes or a boolean; None where it tells nothing that is certain.

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


def statistics_of(entry: Entry, columns: Sequence[Field]) -> str:
    """The statistics of a file as Delta's log writes them, of some top-level columns, by their physical names."""
    bounds = {
        "minValues": int_map(entry.tree.get("lower_bounds")),
        "maxValues": int_map(entry.tree.get("upper_bounds")),
    }
    nulls = int_map(entry.tree.get("null_value_counts"))
    told: dict[str, Any] = {"numRecords": entry.rows, "nullCount": {}}
    for name, values in bounds.items():
        texts = {column.physical_name: _json(values.get(column.field_id or 0), column) for column in columns}
        told[name] = {key: value for key, value in texts.items() if value is not None}
    for column in columns:
        count = nulls.get(column.field_id or 0)
        if type(count) is int:
            told["nullCount"][column.physical_name] = count
    return json.dumps(told)


def _json(data: object, column: Field) -> Any:
    kind, value = column.type, decode_bound(data, column.type)
    if value is None:
        return None
    try:
        if isinstance(kind, Decimal):
            digits = str(abs(value)).rjust(kind.scale + 1, "0")
            whole, fraction = digits[: len(digits) - kind.scale], digits[len(digits) - kind.scale :]
            return f"{'-' if value < 0 else ''}{whole}.{fraction}".rstrip(".")
        if str(kind) == "date":
            return (_FIRST_DAY + timedelta(days=value)).isoformat()
        if str(kind) in ("timestamp", "timestamp_ntz"):
            text = (_EPOCH + timedelta(microseconds=value)).isoformat(timespec="microseconds")
            return text + "Z" if str(kind) == "timestamp" else text
    except OverflowError:
        return None
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value
