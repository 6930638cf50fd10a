"""Partition values as Delta writes them: the strings of the log, the directories, and the URIs of paths."""

from __future__ import annotations

import datetime
import decimal
from typing import Any
from urllib.parse import quote

from delta_sharing_spark.schema.types import DataType, Decimal, Primitive

_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
#: What Hive and Spark escape in a partition's directory name, beside control characters.
_ESCAPED = frozenset("\"#%'*/:=?\\{[]^")
#: What Hadoop's Path.toUri leaves as it is; everything else in ASCII is percent-encoded, the rest kept.
_URI_SAFE = "/!$&'()*+,;=:@-._~"


def serialize(value: Any, data_type: DataType) -> str | None:
    """One partition value as the log keeps it (Delta protocol, "Partition Value Serialization"); None for null.

    Args:
        value: A Python value as Arrow gives it (``as_py``).
        data_type: The partition column's type.
    """
    if value is None:
        return None
    if isinstance(data_type, Decimal):
        return format(decimal.Decimal(value), "f")
    name = data_type.name if isinstance(data_type, Primitive) else str(data_type)
    if name == "boolean":
        return "true" if value else "false"
    if name in ("timestamp", "timestamp_ntz"):
        return _timestamp(value)
    if name == "date":
        return f"{value:%Y-%m-%d}" if value.year >= 1000 else f"{value.year:04d}-{value.month:02d}-{value.day:02d}"
    if name == "binary":
        return bytes(value).decode("utf-8")
    return str(value)


def _timestamp(value: datetime.datetime) -> str:
    naive = value.astimezone(datetime.timezone.utc).replace(tzinfo=None) if value.tzinfo else value
    day = f"{naive.year:04d}-{naive.month:02d}-{naive.day:02d}"
    fraction = f".{naive.microsecond:06d}" if naive.microsecond else ""
    return f"{day} {naive:%H:%M:%S}{fraction}"


def directory(values: dict[str, str | None]) -> str:
    """``a=1/b=x%3Ay``: the directory of a partition, escaped as Hive does; empty for no values."""
    return "/".join(f"{_escape(name)}={_escape(value) if value else _HIVE_NULL}" for name, value in values.items())


def _escape(text: str) -> str:
    return "".join(f"%{ord(c):02X}" if c in _ESCAPED or ord(c) < 0x20 or ord(c) == 0x7F else c for c in text)


def encode_uri(path: str) -> str:
    """A path as ``add.path`` has it: percent-encoded once, non-ASCII characters kept, as Hadoop writes them."""
    return "".join(c if ord(c) > 0x7F else quote(c, safe=_URI_SAFE) for c in path)
