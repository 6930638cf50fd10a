"""Computes literals as Spark 4 does under ANSI rules: their values, their casts, and arithmetic with them, intervals included.

What Spark refuses is refused, and so is what would be rounded to fewer digits than the operands have.
"""

from __future__ import annotations

import decimal
import math
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from operator import add, mul, sub

from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.predicates.scalar_types import (
    BINARY,
    BITS,
    BOOLEAN,
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    FLOATS,
    INTEGER,
    INTERVAL_DAY,
    INTERVAL_MONTH,
    INTERVAL_TIME,
    LONG,
    SHORT,
    STRING,
    TIMES,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VOID,
    CastLiteral,
    as_decimal,
    from_unscaled,
    nearest_float32,
    spark_name,
    unscaled,
)
from delta_sharing_spark.predicates.times import DAY, Zone, malformed, parse_date, parse_timestamp, plus_months
from delta_sharing_spark.predicates.tree import MAX_DAYS, MIN_DAYS, Literal, Value, date_text
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


def typed(value: Value, kind: DataType) -> Literal:
    """A literal of a value as a tree holds it.

    Args:
        value: Days of a DATE, microseconds of the other times.

    Raises:
        PredicateError: A date or moment outside the years 1 to 9999.
    """
    if kind in TIMES and isinstance(value, int):
        days = value if kind == DATE else value // DAY
        if not MIN_DAYS <= days <= MAX_DAYS:
            raise PredicateError("a moment outside the years 1 to 9999")
    return CastLiteral(value, kind)


def cast(literal: Literal, target: DataType, zone: Zone) -> Literal:
    """``CAST(literal AS target)``; raises PredicateError where Spark does, and for a pair of types that is not cast here."""
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
    if source in BITS or isinstance(value, float | decimal.Decimal):
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
    if target in FLOATS:
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
    if target in FLOATS:
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
        text = f"{to_double(exact):g}" if abs(exact) < 10**300 else "the number"
        raise PredicateError(f"{text} cannot be represented as {spark_name(target)}")
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


INTERVALS = (INTERVAL_DAY, INTERVAL_TIME, INTERVAL_MONTH)
_MICROS = {"WEEK": 7 * DAY, "DAY": DAY, "HOUR": 3_600_000_000, "MINUTE": 60_000_000, "SECOND": 1_000_000,
           "MILLISECOND": 1000, "MICROSECOND": 1}  # fmt: skip
_MONTHS = {"YEAR": 12, "MONTH": 1}
#: Units of intervals, in the singular and the plural.
UNITS = {name + end: name for name in (*_MICROS, *_MONTHS) for end in ("", "S")}
_WHOLE = re.compile(r"\s*([+-]?)([0-9]{1,18})\s*")
_SECONDS = re.compile(r"\s*([+-]?)([0-9]{0,10})(?:\.([0-9]{1,9}))?\s*")
#: What a part of a range must be less than.
_MOST = {"MONTH": 12, "HOUR": 24, "MINUTE": 60, "SECOND": 60}
_RANGES = {
    ("YEAR", "MONTH"): re.compile(r"\s*([+-]?)([0-9]{1,9})-([0-9]{1,2})\s*"),
    ("DAY", "SECOND"): re.compile(r"\s*([+-]?)([0-9]{1,9}) ([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2}(?:\.[0-9]{1,6})?)\s*"),
}


def interval(parts: Sequence[tuple[str, str]]) -> Literal:
    """``INTERVAL 1 YEAR 2 MONTHS``, ``INTERVAL '7' DAY``; raises PredicateError for numbers or units that are no interval."""
    units = [UNITS[unit] for _, unit in parts]
    in_months = [unit in _MONTHS for unit in units]
    if all(in_months):
        return Literal(
            _months(sum(_count(text, unit) * _MONTHS[unit] for (text, _), unit in zip(parts, units, strict=True))),
            INTERVAL_MONTH,
        )
    if any(in_months):
        raise PredicateError("an interval has years and months, or days and smaller units; write two intervals")
    total = sum(_count(text, unit) for (text, _), unit in zip(parts, units, strict=True))
    return Literal(fit(total, LONG), INTERVAL_DAY if set(units) <= {"DAY", "WEEK"} else INTERVAL_TIME)


def interval_range(text: str, first: str, last: str) -> Literal:
    """``INTERVAL '1-2' YEAR TO MONTH`` and ``INTERVAL '1 2:03:04.5' DAY TO SECOND``; raises PredicateError for others."""
    pattern = _RANGES.get((UNITS[first], UNITS[last]))
    match = pattern.fullmatch(text) if pattern else None
    if match is None:
        raise PredicateError(
            f"the interval {text[:50]!r} {first} TO {last} is not read; '1-2' YEAR TO MONTH and '1 2:03:04' DAY TO SECOND are"
        )
    sign, *fields = match.groups()
    names = ("YEAR", "MONTH") if len(fields) == 2 else ("DAY", "HOUR", "MINUTE", "SECOND")
    for field, name in zip(fields[1:], names[1:], strict=True):
        if float(field) >= _MOST[name]:
            raise PredicateError(
                f"the interval {text!r} has {field} {name.lower()}s, and less than {_MOST[name]} are read"
            )
    return interval([(sign + field, name) for field, name in zip(fields, names, strict=True)])


def _months(months: int) -> int:
    if not -(1 << 31) <= months < 1 << 31:
        raise PredicateError("the interval is longer than an INTERVAL YEAR TO MONTH can be")
    return months


def _count(text: str, unit: str) -> int:
    """Months, or microseconds, of a number of units."""
    match = (_SECONDS if unit == "SECOND" else _WHOLE).fullmatch(text)
    if match is None or not any(match.groups()[1:]):
        raise PredicateError(f"{text[:50]!r} is not a number of {unit.lower()}s that is read here")
    count = int(match[2] or 0)
    if unit in _MONTHS:
        return -count if match[1] == "-" else count
    micros = count * _MICROS[unit] + (int((match[3] or "0")[:6].ljust(6, "0")) if unit == "SECOND" else 0)
    return -micros if match[1] == "-" else micros


def negate(value: Literal) -> Literal:
    """``- value``; raises PredicateError if it overflows, or is neither a number nor an interval."""
    if value.value is None:
        return value
    if value.type in INTERVALS or value.type in BITS:
        assert isinstance(value.value, int)
        kind = LONG if value.type in INTERVALS else value.type
        return Literal(fit(-value.value, kind), value.type)
    if isinstance(value.type, Decimal):
        return Literal(rounded(-Fraction(_number(value)), value.type), value.type)
    if isinstance(value.value, float):
        return Literal(-value.value, value.type)
    raise PredicateError(f"a {spark_name(value.type)} has no sign")


def fold(op: str, left: Literal, right: Literal, zone: Zone) -> Literal:
    """``left op right`` with ``op`` one of ``+ - * / % DIV``; raises PredicateError where it overflows or is not computed here."""
    if left.value is None or right.value is None:
        return Literal(None, VOID)
    if op in "+-" and (moved := _moved(op, left, right, zone)) is not None:
        return moved
    kinds = {left.type, right.type}
    if not all(kind in BITS or kind in FLOATS or isinstance(kind, Decimal) for kind in kinds):
        operation = f"{spark_name(left.type)} {op} {spark_name(right.type)}"
        raise PredicateError(f"{operation} is not part of the language of where")
    if not kinds.isdisjoint(FLOATS) or (op == "/" and kinds <= BITS.keys()):
        return _floating(op, left, right, zone)
    if not kinds <= BITS.keys():
        return _decimals(op, left, right)
    kind = LONG if op == "DIV" else max(kinds, key=BITS.__getitem__)
    return Literal(fit(int(_computed(op, _number(left), _number(right))), kind), kind)


def _number(value: Literal) -> Fraction:
    assert value.value is not None
    assert not isinstance(value.value, str | bytes)
    return Fraction(value.value)


def _computed(op: str, a: Fraction, b: Fraction) -> Fraction:
    """``a op b`` exactly; quotients are cut towards zero by ``DIV``, and a remainder has the sign of what is divided."""
    if op in _RING:
        return _RING[op](a, b)
    if b == 0:
        raise PredicateError("a division by zero")
    whole = math.trunc(a / b)
    return a / b if op == "/" else a - b * whole if op == "%" else Fraction(whole)


_RING: dict[str, Callable[[Fraction, Fraction], Fraction]] = {"+": add, "-": sub, "*": mul}


def _floating(op: str, left: Literal, right: Literal, zone: Zone) -> Literal:
    if op == "DIV":
        raise PredicateError("DIV of FLOAT or DOUBLE is not part of the language of where")
    a, b = (cast(value, DOUBLE, zone) for value in (left, right))
    if not all(isinstance(value.value, float) and math.isfinite(value.value) for value in (a, b)):
        raise PredicateError("arithmetic with infinities and NaN is not part of the language of where")
    exact = _computed(op, _number(a), _number(b))
    if left.type == right.type == FLOAT and op != "/":
        return Literal(nearest_float32(exact), FLOAT)
    return Literal(to_double(exact), DOUBLE)


def _decimals(op: str, left: Literal, right: Literal) -> Literal:
    if op == "DIV":
        raise PredicateError("DIV of DECIMALs is not part of the language of where")
    exact = _computed(op, _number(left), _number(right))
    (p, s), (q, t) = _digits(left), _digits(right)
    whole, scale = {
        "*": (p + q + 1 - s - t, s + t),
        "/": (p - s + t, max(6, s + q + 1)),
        "%": (min(p - s, q - t), max(s, t)),
    }.get(op, (max(p - s, q - t) + 1, max(s, t)))
    if whole + scale > 38:
        raise PredicateError(f"the result of {op} needs {whole + scale} digits, and Spark would round it to 38")
    kind = Decimal(whole + scale, scale)
    return Literal(rounded(exact, kind), kind)


def _digits(value: Literal) -> tuple[int, int]:
    """Precision and scale; of an integer literal its own digits, of another integer those of its type."""
    if value.type in BITS and not isinstance(value, CastLiteral):
        return len(str(abs(int(_number(value))))), 0
    kind = as_decimal(value.type)
    assert kind is not None
    return kind.precision, kind.scale


def _moved(op: str, left: Literal, right: Literal, zone: Zone) -> Literal | None:
    """Add or subtract an interval and a date or timestamp, days and a date, or two intervals; None for other operands."""
    if left.type in INTERVALS and right.type in INTERVALS:
        months = [v.type == INTERVAL_MONTH for v in (left, right)]
        if months[0] != months[1]:
            return None
        a, b = int(_number(left)), int(_number(right))
        total = a + b if op == "+" else a - b
        if all(months):
            return Literal(_months(total), INTERVAL_MONTH)
        return Literal(fit(total, LONG), INTERVAL_DAY if left.type == right.type == INTERVAL_DAY else INTERVAL_TIME)
    if op == "+" and (left.type in INTERVALS or left.type in BITS) and right.type in (DATE, TIMESTAMP, TIMESTAMP_NTZ):
        left, right = right, left
    if right.type not in INTERVALS and (left.type != DATE or right.type not in BITS or right.type == LONG):
        return None
    if left.type not in (DATE, TIMESTAMP, TIMESTAMP_NTZ):
        return None
    amount = int(_number(right)) * (-1 if op == "-" else 1)
    return later(left, amount, right.type, zone)


def later(moment: Literal, amount: int, unit: DataType, zone: Zone) -> Literal:
    """A date or timestamp some time later; ``unit`` is the type of an interval, or an integer type for days.

    Raises:
        PredicateError: The result is beyond what Spark's types hold, or the years the time zone is known for.
    """
    value, kind = int(_number(moment)), moment.type
    if kind == DATE and unit == INTERVAL_TIME:
        value, kind = int(_number(cast(moment, TIMESTAMP, zone))), TIMESTAMP
    in_zone = zone if kind == TIMESTAMP else Zone()
    if kind == DATE:
        days = plus_months(value, amount) if unit == INTERVAL_MONTH else value + amount
        days = value + amount // DAY if unit == INTERVAL_DAY else days
        if not -(1 << 31) <= days < 1 << 31:
            raise PredicateError("the date is beyond what a DATE holds")
        return Literal(days, DATE)
    if unit == INTERVAL_MONTH:
        days = in_zone.to_local(value) // DAY
        return Literal(fit(in_zone.plus(value, plus_months(days, amount) - days, 0), LONG), kind)
    days = abs(amount) // DAY * (-1 if amount < 0 else 1)
    return Literal(fit(in_zone.plus(value, days, amount - days * DAY), LONG), kind)
