"""Parses serialized partition values (Delta protocol, "Partition Value Serialization") to Arrow scalars."""

from __future__ import annotations

import decimal
import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from delta_sharing_spark.errors import CorruptFileError, OptionError
from delta_sharing_spark.schema.arrow import arrow_type
from delta_sharing_spark.schema.arrow_bridge import scalar
from delta_sharing_spark.schema.instants import NoZoneError, date_days, local_micros, timestamp_micros
from delta_sharing_spark.schema.types import DataType, Decimal, Primitive

_INTEGER_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_INTEGER = re.compile(r"[+-]?[0-9]+")


def partition_keys(names: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The keys under which a file's action may hold the value of each partition column, by the column's physical name.

    Values of mapped columns stand under physical names. Releases of Trino and of Delta Kernel wrote them under logical ones, and so
    do some sharing servers. A logical name that is another column's physical one tells nothing: columns may have
    exchanged their names.

    Args:
        names: Logical to physical names of all partition columns.
    """
    physical = frozenset(names.values())
    return {key: (key,) if name in physical else (key, name) for name, key in names.items()}


def partition_value(text: str | None, data_type: DataType, *, time_zone: str | None = "UTC") -> Any:
    """The Python value of one serialized partition value; None for NULL.

    Integers for integer types; ``decimal.Decimal``; for ``date`` days and for ``timestamp`` and ``timestamp_ntz``
    microseconds since the epoch (years beyond ``datetime`` exist). An empty string is NULL for every type.

    Args:
        text: The string of the log or of the server's answer.
        time_zone: The zone of a timestamp that names none; None where none is known.

    Raises:
        NoZoneError: A timestamp names no zone, and ``time_zone`` is None.
        ValueError: The text is not a value of that type.
    """
    if text is None or text == "":
        return None
    if isinstance(data_type, Decimal):
        return _decimal(_number(text), data_type)
    if not isinstance(data_type, Primitive):
        raise ValueError(f"a {data_type} cannot be a partition column")
    name = data_type.name
    if name == "string":
        return text
    if name in _INTEGER_BITS:
        number, bits = int(text) if _INTEGER.fullmatch(text) else None, _INTEGER_BITS[name]
        if number is None or not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
            raise ValueError(f"{text!r} is not an integer of {bits} bits")
        return number
    if name in ("float", "double"):
        return float(_number(text))
    if name == "boolean":
        lowered = text.lower()
        if lowered not in ("true", "false"):
            raise ValueError(f"{text!r} is not a boolean")
        return lowered == "true"
    if name == "date":
        return date_days(text)
    if name in ("timestamp", "timestamp_ntz"):
        return timestamp_micros(text, time_zone) if name == "timestamp" else local_micros(text)
    if name == "binary":
        return text.encode("utf-8")  # what Delta on Spark and the kernels do with the "escaped binary" of the protocol
    raise ValueError(f"a {data_type} cannot be a partition column")


def partition_scalar(
    text: str | None, data_type: DataType, *, column: str, file: str, time_zone: str | None = "UTC"
) -> pa.Scalar:
    """The Arrow scalar (of Spark's type) of one serialized partition value.

    Raises:
        OptionError: A timestamp names no zone, and none is known.
        CorruptFileError: The text is no value of the type.
    """
    target = arrow_type(data_type)
    try:
        value = partition_value(text, data_type, time_zone=time_zone)
        return scalar(value, target)
    except NoZoneError:
        raise OptionError(
            f"file {file}: the partition value {text!r} of column {column!r} names no time zone, and no Spark session is known here "
            f"whose zone it could mean; set the option timeZone"
        ) from None
    except (ValueError, OverflowError) as error:
        raise CorruptFileError(
            f"file {file}: the partition value {text!r} of column {column!r} is no {data_type} ({error}); "
            f"ask the provider to check the table's log",
            file=file,
            column=column,
        ) from None


def _number(text: str) -> str:
    if "_" in text:  # Python's digit separators are not the protocol's
        raise ValueError(f"{text!r} is not a number")
    return text


def _decimal(text: str, target: Decimal) -> decimal.Decimal:
    """The number with the column's scale; delta-rs writes negative ones wrongly (``-1.-5`` for -1.05) and cannot read them."""
    with decimal.localcontext(decimal.Context(76, traps=[decimal.Inexact, decimal.InvalidOperation])):
        try:
            return decimal.Decimal(text).quantize(decimal.Decimal(1).scaleb(-target.scale))
        except decimal.Inexact:
            raise ValueError(f"it has more than {target.scale} decimal places") from None
        except decimal.InvalidOperation:
            raise ValueError("it is not a number") from None
