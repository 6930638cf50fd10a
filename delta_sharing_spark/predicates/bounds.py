"""Reads bounds of a column, never too narrow, from a file's statistics (Delta protocol, "Per-file Statistics").

Writers truncate strings and timestamps, round floats and decimals, leave NaN out; each reading here allows for that.
"""

from __future__ import annotations

import decimal
from datetime import date, datetime
from fractions import Fraction
from typing import Any

from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.predicates.keys import domain
from delta_sharing_spark.predicates.scalar_types import (
    BITS,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    float_key,
)
from delta_sharing_spark.predicates.times import DAY, Zone, parse_timestamp
from delta_sharing_spark.schema.types import DataType, Decimal

_EPOCH_DAYS = date(1970, 1, 1).toordinal()
#: Characters that writers append to a truncated maximum, to keep it above what it was cut from.
_TIE_BREAKERS = "\ufffd\uffff\U0010ffff\x7f"
#: Shorter maxima than this are taken as they are; Delta keeps 32 characters.
_TRUNCATED = 31
_UTC = Zone("UTC")


def has_bounds(kind: DataType) -> bool:
    """Whether bounds of this type are read at all."""
    return (
        isinstance(kind, Decimal)
        or kind in BITS
        or kind in (FLOAT, DOUBLE, STRING, DATE, TIMESTAMP, TIMESTAMP_NTZ, BOOLEAN)
    )


def lower(value: Any, kind: DataType) -> Any:
    """A key that no value is below, from ``minValues``; None if there is none that is certain."""
    key = _bound(value, kind, False)
    # A minimum of NaN may be a writer's that compares by IEEE: it says nothing of the numbers beside the NaN.
    return None if kind in (FLOAT, DOUBLE) and key is not None and key >= domain(kind)[1] else key


def upper(value: Any, kind: DataType) -> tuple[Any, Any]:
    """Two keys from ``maxValues``: one that no value is above, one that no value but NaN is above; None where none is certain."""
    key = _bound(value, kind, True)
    if kind in (FLOAT, DOUBLE):
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
            return date.fromisoformat(value).toordinal() - _EPOCH_DAYS if isinstance(value, str) else None
        if kind in (TIMESTAMP, TIMESTAMP_NTZ):
            return (
                _timestamp(value, kind == TIMESTAMP_NTZ) + (1000 if is_upper else 0) if isinstance(value, str) else None
            )
        if kind in (FLOAT, DOUBLE):
            return _floating(value, 32 if kind == FLOAT else 64, is_upper)
        if isinstance(kind, Decimal):
            return _decimal(value, kind.scale, is_upper)
        return int(value) if kind == BOOLEAN and isinstance(value, bool) else None
    except (ValueError, OverflowError, ArithmeticError, PredicateError):
        return None  # a form we do not know bounds nothing: the file is kept


def _string(value: str, is_upper: bool) -> bytes | None:
    if is_upper:
        cut = value
        if len(cut.encode("utf-16-le", "surrogatepass")) >= 2 * _TRUNCATED:
            cut = cut.encode("utf-16-le", "surrogatepass")[: 2 * _TRUNCATED].decode("utf-16-le", "ignore")
        cut = cut.rstrip(_TIE_BREAKERS)
        if cut != value:
            return cut.encode() + b"\xff" if not _surrogates(cut) else None
    if _surrogates(value):
        return None
    return value.encode()


def _surrogates(text: str) -> bool:
    return any("\ud800" <= c <= "\udfff" for c in text) if not text.isascii() else False


def _integer(value: Any) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return None


def _timestamp(value: str, is_ntz: bool) -> int:
    if len(value) in (23, 24) and value[10] == "T" and (value[-1] == "Z") == (len(value) == 24):
        if len(value) == 23 and not is_ntz:
            raise ValueError("a timestamp without its zone")
        wall = datetime.fromisoformat(value[:23])
        days = wall.toordinal() - _EPOCH_DAYS
        return days * DAY + ((wall.hour * 60 + wall.minute) * 60 + wall.second) * 1_000_000 + wall.microsecond
    if is_ntz:
        return parse_timestamp(value.removesuffix("Z"), _UTC, is_ntz=True)
    if not (value.endswith("Z") or value[-6:-5] in ("+", "-")):
        raise ValueError("a timestamp without its zone")
    return parse_timestamp(value, _UTC)


def _floating(value: Any, bits: int, is_upper: bool) -> int | None:
    if isinstance(value, str):
        value = (
            {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}[value]
            if value in _NAMED
            else None
        )
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    number = float(value)
    if bits == 64:
        return float_key(number, 64)
    return float_key(number, 32) + (1 if is_upper else -1)  # written through a decimal text, by writers of two widths


_NAMED = frozenset(("NaN", "Infinity", "-Infinity"))


def _decimal(value: Any, scale: int, is_upper: bool) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str | decimal.Decimal):
        return None
    exact = Fraction(decimal.Decimal(repr(value) if isinstance(value, float) else value)) * 10**scale
    key = -(-exact.numerator // exact.denominator) if is_upper else exact.numerator // exact.denominator
    if abs(key) >= 10**15:  # a JSON number of more digits may have gone through a double, at either end
        slack = (abs(key) >> 50) + 1
        key += slack if is_upper else -slack
    return key
