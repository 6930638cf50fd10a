"""Parses serialized partition values (Delta protocol, "Partition Value Serialization") to Arrow scalars."""

from __future__ import annotations

import datetime
import decimal
import re
from typing import Any

import pyarrow as pa

from delta_sharing_spark.errors import CorruptFileError
from delta_sharing_spark.schema.arrow import arrow_type
from delta_sharing_spark.schema.instants import zone_of
from delta_sharing_spark.schema.types import DataType, Decimal, Primitive

_INTEGER_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DATE = re.compile(r"([+-]?\d{4,6})-(\d{1,2})-(\d{1,2})", re.ASCII)
_TIMESTAMP = re.compile(
    r"([+-]?\d{4,6})-(\d{1,2})-(\d{1,2})"
    r"(?:[ T](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,9}))?)?)?"
    r"\s*(Z|z|UTC|GMT|[+-]\d{1,2}(?::?\d{2}(?::?\d{2})?)?)?",
    re.ASCII,
)


def partition_value(text: str | None, data_type: DataType, *, time_zone: str = "UTC") -> Any:
    """The Python value of one serialized partition value; None for NULL.

    Integers for integer types; ``decimal.Decimal``; for ``date`` days and for ``timestamp`` and ``timestamp_ntz``
    microseconds since the epoch (years beyond ``datetime`` exist). An empty string is NULL for every type.

    Args:
        text: The string of the log or of the server's answer.
        time_zone: The zone of a timestamp that names none.

    Raises:
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
        return timestamp_micros(text, time_zone if name == "timestamp" else None)
    if name == "binary":
        return text.encode("utf-8")  # what Delta on Spark and the kernels do with the "escaped binary" of the protocol
    raise ValueError(f"a {data_type} cannot be a partition column")


def partition_scalar(
    text: str | None, data_type: DataType, *, column: str, file: str, time_zone: str = "UTC"
) -> pa.Scalar:
    """The Arrow scalar (of Spark's type) of one serialized partition value; raises CorruptFileError where it is none."""
    target = arrow_type(data_type)
    try:
        value = partition_value(text, data_type, time_zone=time_zone)
        return pa.scalar(value, type=target)
    except (ValueError, OverflowError, ArithmeticError, pa.ArrowInvalid) as error:
        raise CorruptFileError(
            f"file {file}: the partition value {text!r} of column {column!r} is not a {data_type} ({error}); "
            f"ask the provider to check the table's log",
            file=file,
            column=column,
        ) from None


def timestamp_micros(text: str, time_zone: str | None) -> int:
    """Microseconds since the epoch of ``yyyy-MM-dd HH:mm:ss[.ffffff]`` or an ISO-8601 timestamp.

    Args:
        text: With or without a zone.
        time_zone: The zone of a text that names none; None takes the local fields as they are and ignores a zone (NTZ).

    Raises:
        ValueError: Not a timestamp.
    """
    match = _TIMESTAMP.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a timestamp")
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    near, shift = _near_year(int(year))
    clock = datetime.datetime(near, int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0))
    micros = int((fraction or "0").ljust(9, "0")[:6])
    delta = clock - datetime.datetime(1970, 1, 1)
    total = ((delta.days + shift) * 86_400 + delta.seconds) * 1_000_000 + micros
    if time_zone is None:
        return total
    if zone is None and time_zone == "UTC":
        return total
    offset = clock.replace(tzinfo=zone_of(zone.upper() if zone else time_zone)).utcoffset()
    assert offset is not None
    return total - int(offset.total_seconds()) * 1_000_000


def date_days(text: str) -> int:
    """Days since the epoch of ``[+-]y...yyy-MM-dd``, in years beyond ``datetime`` too; raises ValueError where the text is no date."""
    match = _DATE.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a date")
    near, shift = _near_year(int(match[1]))
    return (datetime.date(near, int(match[2]), int(match[3])) - datetime.date(1970, 1, 1)).days + shift


def _near_year(year: int) -> tuple[int, int]:
    """A year that ``datetime`` knows and has the same calendar and rules of time zones, and the days from it to ``year``."""
    if 1 <= year <= 9999:
        return year, 0
    cycles, rest = divmod(year, 400)  # the Gregorian calendar repeats after 400 years
    alike = 24 if year > 0 else 1
    return alike * 400 + rest, (cycles - alike) * 146_097


def _number(text: str) -> str:
    if "_" in text:  # Python's digit separators are not the protocol's
        raise ValueError(f"{text!r} is not a number")
    return text


def _decimal(text: str, target: Decimal) -> decimal.Decimal:
    with decimal.localcontext(decimal.Context(76, traps=[decimal.Inexact, decimal.InvalidOperation])):
        return decimal.Decimal(text).quantize(decimal.Decimal(1).scaleb(-target.scale))
