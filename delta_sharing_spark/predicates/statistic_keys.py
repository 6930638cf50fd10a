"""Reads one bound of a column in a file's statistics as a key (Delta protocol, "Per-file Statistics").

Writers truncate strings and timestamps, round floats and decimals, leave NaN out; each bound that is read here allows for that.
"""

from __future__ import annotations

import decimal
import re
from datetime import date, datetime
from fractions import Fraction
from typing import Any

from delta_sharing_spark.predicates.scalar_types import (
    BINARY,
    BITS,
    BOOLEAN,
    DATE,
    FLOAT,
    FLOATS,
    SCALARS,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    domain,
    float_key,
)
from delta_sharing_spark.predicates.times import DAY, MINUTE, WHOLE_MINUTES
from delta_sharing_spark.schema.instants import EPOCH_DAY, local_micros, timestamp_micros
from delta_sharing_spark.schema.types import DataType, Decimal

#: Characters that writers append to a truncated maximum, to keep it above what it was cut from.
TIE_BREAKERS = "\ufffd\uffff\U0010ffff\x7f"
#: Microseconds that a writer of milliseconds leaves out, at most.
CUT_MICROS = 1000
#: Shorter maxima than this are taken as they are; Delta keeps 32 characters.
TRUNCATED = 31
_ZONED = re.compile(r"[T ].*(?:Z|[+-][0-9:]{2,8})$")
_SECONDS = re.compile(r"[+-][0-9]{2}:[0-9]{2}:[0-9]{2}$")
#: Numbers that JSON has no form for, as statistics name them.
_NAMED = ("NaN", "Infinity", "-Infinity")


def has_bounds(kind: DataType) -> bool:
    """Whether bounds of this type are read at all."""
    return isinstance(kind, Decimal) or (kind in SCALARS and kind != BINARY)


def lower(value: Any, kind: DataType) -> Any:
    """A key that no value is below, from ``minValues``; None if there is none that is certain."""
    key = _bound(value, kind, False)
    # A minimum of NaN may be a writer's that compares by IEEE: it says nothing of the numbers beside the NaN.
    return None if kind in FLOATS and key is not None and key >= domain(kind)[1] else key


def upper(value: Any, kind: DataType) -> tuple[Any, Any]:
    """Two keys from ``maxValues``: one that no value is above, one that no value but NaN is above; None where none is certain."""
    key = _bound(value, kind, True)
    if kind in FLOATS:
        nan = domain(kind)[1]
        return nan, None if key is None or key >= nan else key
    return key, key


def _bound(value: Any, kind: DataType, is_upper: bool) -> Any:
    if value is None:
        return None
    try:
        if kind == STRING:
            return _string(value, is_upper) if isinstance(value, str) else None
        if kind in BITS:
            return _integer(value)
        if kind == DATE:
            return days_of(value) if isinstance(value, str) else None
        if kind in (TIMESTAMP, TIMESTAMP_NTZ):
            return _timestamp(value, kind == TIMESTAMP_NTZ, is_upper) if isinstance(value, str) else None
        if kind in FLOATS:
            return _floating(value, 32 if kind == FLOAT else 64, is_upper)
        if isinstance(kind, Decimal):
            return _decimal(value, kind.scale, is_upper)
        return int(value) if kind == BOOLEAN and isinstance(value, bool) else None
    except (ValueError, OverflowError, ArithmeticError):
        return None  # a form we do not know bounds nothing: the file is kept


def _string(value: str, is_upper: bool) -> bytes:
    """The key of a bound; raises UnicodeEncodeError, a ValueError, where it holds half a surrogate pair."""
    if not is_upper:
        return value.encode()
    cut, units = value, value.encode("utf-16-le", "surrogatepass")
    if len(units) >= 2 * TRUNCATED:
        cut = units[: 2 * TRUNCATED].decode("utf-16-le", "ignore")
    cut = cut.rstrip(TIE_BREAKERS)
    return cut.encode() + b"\xff" if cut != value else value.encode()


def _integer(value: Any) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return None


def _timestamp(value: str, is_ntz: bool, is_upper: bool) -> int:
    if len(value) in (23, 24) and value[10] == "T" and (value[-1] == "Z") == (len(value) == 24):
        if len(value) == 23 and not is_ntz:
            raise ValueError("a timestamp without its zone")
        wall = datetime.fromisoformat(value[:23])
        days = wall.toordinal() - EPOCH_DAY
        micros = days * DAY + ((wall.hour * 60 + wall.minute) * 60 + wall.second) * 1_000_000 + wall.microsecond
    elif is_ntz or _ZONED.search(value):
        micros = local_micros(value) if is_ntz else timestamp_micros(value, "UTC")
    else:
        raise ValueError("a timestamp without its zone")
    # Writers drop microseconds. Delta up to 3.3 drops the seconds of an offset, which zones had until 1972.
    slack = MINUTE if not is_ntz and micros < WHOLE_MINUTES and not _SECONDS.search(value) else 0
    return micros + CUT_MICROS + slack if is_upper else micros - slack


def _floating(value: Any, bits: int, is_upper: bool) -> int | None:
    if isinstance(value, bool) or not (isinstance(value, int | float) or value in _NAMED):
        return None
    number = float(value)
    if bits == 64:
        return float_key(number, 64)
    return float_key(number, 32) + (1 if is_upper else -1)  # written through a decimal text, by writers of two widths


def _decimal(value: Any, scale: int, is_upper: bool) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str | decimal.Decimal):
        return None
    exact = Fraction(decimal.Decimal(repr(value) if isinstance(value, float) else value)) * 10**scale
    key = -(-exact.numerator // exact.denominator) if is_upper else exact.numerator // exact.denominator
    if abs(key) >= 10**15:  # a JSON number of more digits may have gone through a double, at either end
        slack = (abs(key) >> 50) + 1
        key += slack if is_upper else -slack
    return key


def days_of(text: str) -> int | None:
    """Days since 1970 of a date; None where it is of another form."""
    try:
        return date.fromisoformat(text).toordinal() - EPOCH_DAY
    except ValueError:
        return None
