"""Values of literals and of casts of literals, as Spark 4 computes them under ANSI rules.

What Spark refuses is refused here; what Spark accepts in a form that is rare and easily misread (a year of five
digits, ``'today'``, a zone on a timestamp without zone) is refused too, never guessed.
"""

from __future__ import annotations

import decimal
import re
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone, tzinfo
from fractions import Fraction

from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.predicates.floats import nearest_float32
from delta_sharing_spark.predicates.tree import Literal, Value, date_text
from delta_sharing_spark.schema.types import DataType, Decimal, Primitive

VOID, BOOLEAN, STRING, BINARY = Primitive("void"), Primitive("boolean"), Primitive("string"), Primitive("binary")
BYTE, SHORT, INTEGER, LONG = Primitive("byte"), Primitive("short"), Primitive("integer"), Primitive("long")
FLOAT, DOUBLE = Primitive("float"), Primitive("double")
DATE, TIMESTAMP, TIMESTAMP_NTZ = Primitive("date"), Primitive("timestamp"), Primitive("timestamp_ntz")

BITS: dict[DataType, int] = {BYTE: 8, SHORT: 16, INTEGER: 32, LONG: 64}
DAY = 86_400_000_000

_EPOCH = date(1970, 1, 1).toordinal()
_DATE = re.compile(r"([0-9]{4})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL)
_TIMESTAMP = re.compile(
    r"([0-9]{4})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T](?:([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]+))?)?"
    r" ?(Z|UTC|GMT|[+-][0-9]{1,2}:[0-9]{2}|[+-][0-9]{2}(?:[0-9]{2})?|[A-Z][A-Za-z_]+/[A-Za-z_/+-]+)?)?)?)?)?"
)
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_FLOATING = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,5})?)[dDfF]?")
_TRUE, _FALSE = {"t", "true", "y", "yes", "1"}, {"f", "false", "n", "no", "0"}
_SPECIAL_DATES = {"epoch", "now", "today", "tomorrow", "yesterday"}
_SPECIAL_FLOATS = {
    **dict.fromkeys(("inf", "+inf", "infinity", "+infinity"), float("inf")),
    **dict.fromkeys(("-inf", "-infinity"), float("-inf")),
    "nan": float("nan"),
}


def spark_name(kind: DataType) -> str:
    """The type's name in Spark SQL, for messages."""
    names = {"integer": "INT", "long": "BIGINT", "short": "SMALLINT", "byte": "TINYINT"}
    return names.get(str(kind), str(kind).upper())


def number(text: str, negative: bool) -> Literal:
    """The value of an upper-cased numeric token, its minus sign apart.

    Raises:
        PredicateError: Out of the range of its type.
    """
    sign = "-" if negative else ""
    if text.endswith("BD"):
        return _decimal_literal(sign + text[:-2])
    suffix = text[-1]
    if suffix in "LSY":
        return Literal(_fit(int(sign + text[:-1]), {"L": LONG, "S": SHORT, "Y": BYTE}[suffix]), _suffixed(suffix))
    if suffix in "FD" or "E" in text:
        return _floating_literal(sign + text.rstrip("FD"), FLOAT if suffix == "F" else DOUBLE)
    if "." in text:
        return _decimal_literal(sign + text)
    value = int(sign + text) if len(text) < 4000 else 0
    if len(text) < 4000:
        for kind in (INTEGER, LONG):
            if -(1 << BITS[kind] - 1) <= value < 1 << BITS[kind] - 1:
                return Literal(value, kind)
    return _decimal_literal(sign + text)


def _suffixed(suffix: str) -> Primitive:
    return {"L": LONG, "S": SHORT, "Y": BYTE}[suffix]


def _floating_literal(text: str, kind: Primitive) -> Literal:
    exact = _exact(text)
    value = nearest_float32(exact) if kind == FLOAT else _to_double(exact)
    # Spark compares with the shortest text of the greatest value, not with the value itself.
    limit = Fraction("3.4028234663852886e38" if kind == FLOAT else "1.7976931348623157e308")
    if abs(exact) > limit:
        raise PredicateError(f"{text} is out of the range of {spark_name(kind)}")
    return Literal(-0.0 if value == 0 and text.startswith("-") else value, kind)


def _decimal_literal(text: str) -> Literal:
    value = decimal.Decimal(text)
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    scale = max(-exponent, 0)
    precision = max(len(digits) + max(exponent, 0), scale)
    if precision > 38:
        raise PredicateError(f"{text} has more than the 38 digits of a DECIMAL")
    return Literal(from_unscaled(unscaled(value, scale), scale), Decimal(precision, scale))


def unscaled(value: decimal.Decimal, scale: int) -> int:
    """``value * 10**scale``, which must be a whole number, exactly (whatever the decimal context is)."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    shift = exponent + scale
    number = int("".join(map(str, digits)) or "0")
    number = number * 10**shift if shift >= 0 else number // 10**-shift
    return -number if sign else number


def from_unscaled(number: int, scale: int) -> decimal.Decimal:
    """``number / 10**scale`` exactly."""
    return decimal.Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))


def _exact(text: str) -> Fraction:
    mantissa, _, exponent = text.upper().partition("E")
    if exponent and abs(int(exponent)) > 5000 + len(mantissa):
        exponent = "5000" if int(exponent) > 0 else "-5000"
    return Fraction(f"{mantissa.rstrip('.')}E{exponent}" if exponent else mantissa.rstrip("."))


def _to_double(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        return float("inf") if exact > 0 else float("-inf")


def _fit(value: int, kind: Primitive) -> int:
    if not -(1 << BITS[kind] - 1) <= value < 1 << BITS[kind] - 1:
        raise PredicateError(f"{value} is out of the range of {spark_name(kind)}")
    return value


@dataclass(frozen=True, slots=True)
class Zone:
    """The session time zone, in which timestamps without a zone are read."""

    name: str = "UTC"

    @property
    def is_utc(self) -> bool:
        return self.name.upper() in ("UTC", "Z", "GMT", "ETC/UTC", "+00:00")

    def to_utc(self, local: int) -> int:
        """Microseconds since 1970 of a local wall clock, given as if it were UTC; as ``java.time`` resolves it."""
        ahead = self._ahead()
        if ahead is None:
            days, rest = divmod(local, DAY)
            if days < 0 or days > 2_900_000:
                raise PredicateError(f"a time in the zone {self.name} outside 1970 to 9900; write it in UTC")
            wall = datetime.fromordinal(days + _EPOCH) + timedelta(microseconds=rest)
            ahead = _micros(self._region().utcoffset(wall))
        return local - ahead

    def to_local(self, micros: int) -> int:
        """The local wall clock at an instant, as if it were UTC."""
        ahead = self._ahead()
        if ahead is None:
            if not 0 <= micros <= 2_900_000 * DAY:
                raise PredicateError(f"a time in the zone {self.name} outside 1970 to 9900; write it in UTC")
            instant = datetime.fromtimestamp(0, timezone.utc) + timedelta(microseconds=micros)
            ahead = _micros(instant.astimezone(self._region()).utcoffset())
        return micros + ahead

    def _ahead(self) -> int | None:
        """Microseconds that the zone is always ahead of UTC; None if that depends on the time."""
        if self.is_utc:
            return 0
        match = re.fullmatch(r"([+-])([0-9]{1,2}):?([0-9]{2})?", self.name)
        if match is None:
            return None
        minutes = int(match[2]) * 60 + int(match[3] or 0)
        if minutes > 18 * 60 or int(match[3] or 0) > 59:
            raise PredicateError(f"{self.name} is not a zone offset")
        return (-minutes if match[1] == "-" else minutes) * 60_000_000

    def _region(self) -> tzinfo:
        import zoneinfo

        try:
            return zoneinfo.ZoneInfo(self.name)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise PredicateError(f"the time zone {self.name!r} is not known here; write the time in UTC") from error


def _micros(offset: timedelta | None) -> int:
    assert offset is not None
    return offset // timedelta(microseconds=1)


def parse_date(text: str) -> int:
    """Days since 1970 of a string that Spark casts to DATE (``yyyy[-m[m][-d[d][ ...]]]``)."""
    match = _DATE.fullmatch(text.strip(" \t\r\n"))
    if match is None:
        raise _malformed(text, DATE)
    return _days(match[1], match[2], match[3], text, DATE)


def parse_timestamp(text: str, zone: Zone, *, ntz: bool = False) -> int:
    """Microseconds since 1970 of a string that Spark casts to TIMESTAMP, or with ``ntz`` to TIMESTAMP_NTZ."""
    kind = TIMESTAMP_NTZ if ntz else TIMESTAMP
    match = _TIMESTAMP.fullmatch(text.strip(" \t\r\n"))
    if match is None:
        raise _malformed(text, kind)
    year, month, day, hour, minute, second, fraction, zone_text = match.groups()
    if int(hour or 0) > 23 or int(minute or 0) > 59 or int(second or 0) > 59:
        raise _malformed(text, kind)
    micros = _days(year, month, day, text, kind) * DAY
    micros += ((int(hour or 0) * 60 + int(minute or 0)) * 60 + int(second or 0)) * 1_000_000
    micros += int((fraction or "0")[:6].ljust(6, "0"))
    if ntz:
        if zone_text:
            raise PredicateError(f"{text!r} names a time zone, but TIMESTAMP_NTZ has none; leave the zone out")
        return micros
    return (Zone(zone_text) if zone_text else zone).to_utc(micros)


def _days(year: str, month: str | None, day: str | None, text: str, kind: Primitive) -> int:
    try:
        return date(int(year), int(month or 1), int(day or 1)).toordinal() - _EPOCH
    except ValueError as error:
        raise _malformed(text, kind) from error


def _malformed(text: str, kind: Primitive | Decimal) -> PredicateError:
    if text.strip().lower() in _SPECIAL_DATES:
        return PredicateError(f"the special value {text!r} changes with the time of the query; write the {kind} itself")
    hints = {"date": " (yyyy-mm-dd)", "timestamp": " (yyyy-mm-dd hh:mm:ss[.ffffff][zone])"}
    form = hints.get(str(kind).removesuffix("_ntz"), "")
    return PredicateError(f"the string {text!r} cannot be cast to {spark_name(kind)}{form}")


def cast(literal: Literal, target: DataType, zone: Zone) -> Literal:
    """``CAST(literal AS target)`` under ANSI rules.

    Raises:
        PredicateError: Malformed, out of range, or a pair of types that is not cast here.
    """
    value, source = literal.value, literal.type
    if value is None or source == target:
        return Literal(value, target)
    converted = _cast_value(value, source, target, zone)
    if converted is None:
        raise PredicateError(f"a cast of a {spark_name(source)} literal to {spark_name(target)} is not evaluated here")
    return Literal(converted, target)


def _cast_value(value: Value, source: DataType, target: DataType, zone: Zone) -> Value:
    if isinstance(value, str):
        return _cast_string(value, target, zone)
    if isinstance(value, bool):
        if target in BITS:
            return int(value)
        return str(value).lower() if target == STRING else None
    if source in BITS or isinstance(value, decimal.Decimal) or source in (FLOAT, DOUBLE):
        return _cast_number(value, source, target)
    if isinstance(value, int):
        return _cast_time(value, source, target, zone)
    return None


def _cast_string(text: str, target: DataType, zone: Zone) -> Value:
    trimmed = text.strip(" \t\r\n")
    if isinstance(target, Decimal):
        if not _DECIMAL.fullmatch(trimmed):
            raise _malformed(text, target)
        return _rounded(_exact(trimmed), target)
    if target in (DATE, TIMESTAMP, TIMESTAMP_NTZ):
        return parse_date(text) if target == DATE else parse_timestamp(text, zone, ntz=target == TIMESTAMP_NTZ)
    if target == BINARY:
        return text.encode()
    assert isinstance(target, Primitive)
    if target in BITS and _INTEGER.fullmatch(trimmed) and len(trimmed) < 4000:
        return _fit(int(trimmed), target)
    if target in (FLOAT, DOUBLE):
        match = _FLOATING.fullmatch(trimmed)
        if match:
            exact = _exact(match[1])
            value = nearest_float32(exact) if target == FLOAT else _to_double(exact)
            return -0.0 if value == 0 and trimmed.startswith("-") else value
        if trimmed.lower() in _SPECIAL_FLOATS:
            return _SPECIAL_FLOATS[trimmed.lower()]
    if target == BOOLEAN and trimmed.lower() in _TRUE | _FALSE:
        return trimmed.lower() in _TRUE
    raise _malformed(text, target)


def _cast_number(value: Value, source: DataType, target: DataType) -> Value:
    assert isinstance(value, int | float | decimal.Decimal)
    finite = not isinstance(value, float) or value - value == 0
    if target in (FLOAT, DOUBLE):
        if not finite or (isinstance(value, float) and (target == DOUBLE or value == 0)):
            return value
        return nearest_float32(Fraction(value)) if target == FLOAT else _to_double(Fraction(value))
    if target == BOOLEAN:
        return bool(value)
    if target in BITS:
        assert isinstance(target, Primitive)
        if not finite:
            raise PredicateError(f"{value} cannot be cast to {spark_name(target)}")
        return _fit(int(Fraction(value)), target)
    if isinstance(target, Decimal) and not isinstance(value, float):
        return _rounded(Fraction(value), target)
    if target == STRING and not isinstance(value, float):
        return f"{value:f}" if isinstance(value, decimal.Decimal) else str(value)
    return None


def _rounded(exact: Fraction, target: Decimal) -> decimal.Decimal:
    scaled = abs(exact) * 10**target.scale
    whole = (2 * scaled.numerator + scaled.denominator) // (2 * scaled.denominator)  # half up, away from zero
    if whole >= 10**target.precision:
        raise PredicateError(f"{float(exact)} cannot be represented as {spark_name(target)}")
    return from_unscaled(-whole if exact < 0 else whole, target.scale)


def _cast_time(value: int, source: DataType, target: DataType, zone: Zone) -> Value:
    if source == DATE and target == STRING:
        return date_text(value)
    if source == DATE and target in (TIMESTAMP, TIMESTAMP_NTZ):
        return value * DAY if target == TIMESTAMP_NTZ else zone.to_utc(value * DAY)
    if source == TIMESTAMP_NTZ and target in (DATE, TIMESTAMP):
        return value // DAY if target == DATE else zone.to_utc(value)
    if source == TIMESTAMP and target in (DATE, TIMESTAMP_NTZ):
        local = zone.to_local(value)
        return local // DAY if target == DATE else local
    return None
