"""Computes values of literals and of their casts as Spark 4 does under ANSI rules, and refuses what Spark refuses."""

from __future__ import annotations

import decimal
import re
from fractions import Fraction

from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.predicates.scalar_types import (
    BINARY,
    BITS,
    BOOLEAN,
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    SHORT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    nearest_float32,
    spark_name,
)
from delta_sharing_spark.predicates.times import DAY, Zone, malformed, parse_date, parse_timestamp
from delta_sharing_spark.predicates.tree import Literal, Value, date_text
from delta_sharing_spark.schema.types import DataType, Decimal, Primitive

#: Longer numbers are refused: no type has so many digits, and Python's conversions of long ones are bounded.
_MAX_DIGITS = 1_000
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_FLOATING = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,5})?)[dDfF]?")
_TRUE, _FALSE = {"t", "true", "y", "yes", "1"}, {"f", "false", "n", "no", "0"}
_SPECIAL_FLOATS = {
    **dict.fromkeys(("inf", "+inf", "infinity", "+infinity"), float("inf")),
    **dict.fromkeys(("-inf", "-infinity"), float("-inf")),
    "nan": float("nan"),
}


def number(text: str, is_negative: bool) -> Literal:
    """The value of an upper-cased numeric token, its minus sign apart; raises PredicateError where the number is out of the range of its type."""
    sign = "-" if is_negative else ""
    if len(text) > _MAX_DIGITS:
        raise PredicateError(f"a number of {len(text)} characters; write one of at most {_MAX_DIGITS}")
    if text.endswith("BD"):
        return _decimal_literal(sign + text[:-2])
    suffix = text[-1]
    if suffix in "LSY":
        kind = {"L": LONG, "S": SHORT, "Y": BYTE}[suffix]
        return Literal(fit(int(sign + text[:-1]), kind), kind)
    if suffix in "FD" or "E" in text:
        return _floating_literal(sign + text.rstrip("FD"), FLOAT if suffix == "F" else DOUBLE)
    if "." in text:
        return _decimal_literal(sign + text)
    value = int(sign + text)
    for kind in (INTEGER, LONG):
        if -(1 << BITS[kind] - 1) <= value < 1 << BITS[kind] - 1:
            return Literal(value, kind)
    return _decimal_literal(sign + text)


def _floating_literal(text: str, kind: Primitive) -> Literal:
    exact = _exact(text)
    value = nearest_float32(exact) if kind == FLOAT else to_double(exact)
    # Spark compares with the shortest text of the greatest value, not with the value itself.
    limit = Fraction("3.4028234663852886e38" if kind == FLOAT else "1.7976931348623157e308")
    if abs(exact) > limit:
        raise PredicateError(f"{text} is out of the range of {spark_name(kind)}")
    return Literal(-0.0 if value == 0 and text.startswith("-") else value, kind)


def _decimal_literal(text: str) -> Literal:
    power = text.partition("E")[2]
    if len(power) > 7:
        raise PredicateError(f"{text} has more than the 38 digits of a DECIMAL")
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


def to_double(exact: Fraction) -> float:
    """The nearest double, infinite beyond the greatest."""
    try:
        return float(exact)
    except OverflowError:
        return float("inf") if exact > 0 else float("-inf")


def fit(value: int, kind: DataType) -> int:
    """``value`` itself; raises PredicateError where an integer type cannot hold it."""
    if not -(1 << BITS[kind] - 1) <= value < 1 << BITS[kind] - 1:
        raise PredicateError(f"{value} is out of the range of {spark_name(kind)}")
    return value


def cast(literal: Literal, target: DataType, zone: Zone) -> Literal:
    """``CAST(literal AS target)`` under ANSI rules.

    Raises:
        PredicateError: The literal is malformed or out of range, or this pair of types is not cast here.
    """
    value, source = literal.value, literal.type
    if value is None or source == target:
        return Literal(value, target)
    converted = _cast_value(value, source, target, zone)
    if converted is None:
        raise PredicateError(
            f"a cast of a literal of type {spark_name(source)} to {spark_name(target)} is not evaluated here"
        )
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
    if len(trimmed) > _MAX_DIGITS and target not in (STRING, BINARY):
        raise malformed(text, target)
    if isinstance(target, Decimal):
        if not _DECIMAL.fullmatch(trimmed):
            raise malformed(text, target)
        return rounded(_exact(trimmed), target)
    if target in (DATE, TIMESTAMP, TIMESTAMP_NTZ):
        return parse_date(text) if target == DATE else parse_timestamp(text, zone, is_ntz=target == TIMESTAMP_NTZ)
    if target == BINARY:
        return text.encode()
    assert isinstance(target, Primitive)
    if target in BITS and _INTEGER.fullmatch(trimmed):
        return fit(int(trimmed), target)
    if target in (FLOAT, DOUBLE):
        match = _FLOATING.fullmatch(trimmed)
        if match:
            exact = _exact(match[1])
            value = nearest_float32(exact) if target == FLOAT else to_double(exact)
            return -0.0 if value == 0 and trimmed.startswith("-") else value
        if trimmed.lower() in _SPECIAL_FLOATS:
            return _SPECIAL_FLOATS[trimmed.lower()]
    if target == BOOLEAN and trimmed.lower() in _TRUE | _FALSE:
        return trimmed.lower() in _TRUE
    raise malformed(text, target)


def _cast_number(value: Value, source: DataType, target: DataType) -> Value:
    assert isinstance(value, int | float | decimal.Decimal)
    finite = not isinstance(value, float) or value - value == 0
    if target in (FLOAT, DOUBLE):
        if not finite or (isinstance(value, float) and (target == DOUBLE or value == 0)):
            return value
        return nearest_float32(Fraction(value)) if target == FLOAT else to_double(Fraction(value))
    if target == BOOLEAN:
        return bool(value)
    if target in BITS:
        assert isinstance(target, Primitive)
        if not finite:
            raise PredicateError(f"{value} cannot be cast to {spark_name(target)}")
        return fit(int(Fraction(value)), target)
    if isinstance(target, Decimal) and not isinstance(value, float):
        return rounded(Fraction(value), target)
    if target == STRING and not isinstance(value, float):
        return f"{value:f}" if isinstance(value, decimal.Decimal) else str(value)
    return None


def rounded(exact: Fraction, target: Decimal) -> decimal.Decimal:
    """``exact`` in a DECIMAL type, rounded half up; raises PredicateError where it has too many digits."""
    scaled = abs(exact) * 10**target.scale
    whole = (2 * scaled.numerator + scaled.denominator) // (2 * scaled.denominator)  # half up, away from zero
    if whole >= 10**target.precision:
        shown = f"{to_double(exact):g}" if abs(exact) < 10**300 else "the number"
        raise PredicateError(f"{shown} cannot be represented as {spark_name(target)}")
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
