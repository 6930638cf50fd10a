"""Defines monotone functions of a column, such as casts to wider types and to dates, ``year`` and truncation.

The values of the column for which such a function compares so with a literal are a range, whose ends are computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.predicates.keys import domain, first_key
from delta_sharing_spark.predicates.scalar_types import (
    BITS,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    as_decimal,
    float_key,
    float_value,
    near_float32_key,
    spark_name,
)
from delta_sharing_spark.predicates.times import DAY, Zone, days_from_civil, start_of_unit
from delta_sharing_spark.predicates.tree import Column
from delta_sharing_spark.schema.types import DataType, Decimal

#: The least key of one type whose image is at or above a key of another; beyond the type's keys if there is none.
FirstKey = Callable[[int], int]

_CLOCK_UNITS = {"HOUR": 3_600_000_000, "MINUTE": 60_000_000, "SECOND": 1_000_000, "MILLISECOND": 1000, "MICROSECOND": 1}
_UNITS = {
    **dict.fromkeys(("YEAR", "YYYY", "YY"), "YEAR"),
    "QUARTER": "QUARTER",
    **dict.fromkeys(("MONTH", "MON", "MM"), "MONTH"),
    "WEEK": "WEEK",
    **dict.fromkeys(("DAY", "DD"), "DAY"),
    **{unit: unit for unit in _CLOCK_UNITS},
}
_BY_DAYS = frozenset(("YEAR", "QUARTER", "MONTH", "WEEK"))


@dataclass(frozen=True, slots=True)
class Monotone:
    """A monotone function of a column; NULL for NULL only.

    Attributes:
        column: The column.
        type: The type of the function's values.
        first: Maps a key of ``type`` to the least key of the column whose image is at or above it.
    """

    column: Column
    type: DataType
    first: FirstKey

    def then(self, type: DataType, first: FirstKey) -> Monotone:
        """A monotone function of this one's value."""
        least, greatest = domain(self.type)
        lowest, highest = domain(self.column.type)

        def composed(key: int) -> int:
            inner = first(key)
            return lowest if inner <= least else highest + 1 if inner > greatest else self.first(inner)

        return Monotone(self.column, type, composed)


def identity(operand: Column | Monotone) -> Monotone:
    """A column as a function of itself."""
    return operand if isinstance(operand, Monotone) else Monotone(operand, operand.type, lambda key: key)


def key_range(op: str, function: Monotone, key: int) -> tuple[int | None, int | None]:
    """The least and greatest key of the column for which ``function op key`` holds; None is unbounded."""
    if op in ("<", "<="):
        return None, function.first(key if op == "<" else key + 1) - 1
    if op in (">", ">="):
        return function.first(key + 1 if op == ">" else key), None
    return function.first(key), function.first(key + 1) - 1


def upcast(operand: Column | Monotone, target: DataType, zone: Zone) -> Monotone:
    """The operand cast to a type that holds each of its values, rounded at most.

    Raises:
        PredicateError: Some value could overflow, or the cast depends on a time zone in a way that is not computed here.
    """
    function = identity(operand)
    first = _first_of_cast(function.type, target, zone)
    return function if first is None else function.then(target, first)


def _first_of_cast(kind: DataType, target: DataType, zone: Zone) -> FirstKey | None:
    if kind == target:
        return None
    exact = _factor(kind, target)
    if exact is not None:
        factor = exact
        return lambda key: -(-key // factor)
    if target == DOUBLE and (kind in BITS or isinstance(kind, Decimal) or kind == FLOAT):
        return _first_of_double(kind)
    if kind == DATE and target == TIMESTAMP:
        return lambda key: first_key(
            *domain(DATE), lambda days: zone.start_of_day(days) >= key, zone.to_local(key) // DAY
        )
    if kind == TIMESTAMP_NTZ and target == TIMESTAMP and zone.is_fixed:
        return lambda key: zone.to_local(key)
    if kind == TIMESTAMP_NTZ and target == DATE:
        return lambda key: key * DAY
    if kind == TIMESTAMP and target == DATE:
        return lambda key: _midnight(key, zone)
    if kind == TIMESTAMP_NTZ and target == TIMESTAMP:
        raise PredicateError(
            f"comparing a TIMESTAMP_NTZ column with a TIMESTAMP depends on the time zone {zone.name};"
            f" write a TIMESTAMP_NTZ literal"
        )
    raise PredicateError(f"a cast of a column of type {spark_name(kind)} to {spark_name(target)} is not evaluated here")


def _factor(kind: DataType, target: DataType) -> int | None:
    """The factor of a key in a cast that is exact for every value; None if the cast is not."""
    if kind in BITS and target in BITS and BITS[kind] < BITS[target]:
        return 1
    narrow = as_decimal(kind)
    if narrow is not None and isinstance(target, Decimal):
        fits = narrow.scale <= target.scale and narrow.precision - narrow.scale <= target.precision - target.scale
        return int(10 ** (target.scale - narrow.scale)) if fits else None
    return DAY if kind == DATE and target == TIMESTAMP_NTZ else None


def _first_of_double(kind: DataType) -> FirstKey:
    """For casts of numbers to DOUBLE, each rounded to the nearest. (Of casts to FLOAT Spark's optimizer makes other rows.)"""
    least, greatest = domain(kind)
    divisor = 10**kind.scale if isinstance(kind, Decimal) else 1

    def image(key: int) -> int:
        return float_key(float_value(key, 32) if kind == FLOAT else key / divisor, 64)

    def near(key: int) -> int:
        value = float_value(key, 64)
        if value - value != 0:
            return greatest if value > 0 or value != value else least
        if kind == FLOAT:
            return near_float32_key(value)
        return int(value) if divisor == 1 else int(Fraction(value) * divisor)

    return lambda key: first_key(least, greatest, lambda k: image(k) >= key, near(key))


def _midnight(days: int, zone: Zone) -> int:
    """The first instant of a day, where the clock does not pass that midnight twice."""
    if not zone.passes_once(days * DAY):
        raise PredicateError(
            f"the clock of {zone.name} passes midnight twice on that day; compare the column with timestamps"
        )
    return zone.start_of_day(days)


def to_date(operand: Column | Monotone, zone: Zone) -> Monotone:
    """``CAST(operand AS DATE)``; raises PredicateError for what is no date or timestamp."""
    return upcast(operand, DATE, zone)


def year(operand: Column | Monotone, zone: Zone) -> Monotone:
    """``year(operand)``; raises PredicateError for what is no date or timestamp."""
    return to_date(operand, zone).then(INTEGER, lambda key: days_from_civil(key, 1, 1))


def truncated_date(operand: Column | Monotone, unit: str, zone: Zone) -> Monotone:
    """``trunc(operand, unit)``; raises PredicateError for a unit that Spark would answer with NULL."""
    name = _UNITS.get(unit.upper(), "")
    if name not in _BY_DAYS:
        raise PredicateError(f"{unit[:50]!r} is not a unit of trunc: YEAR, QUARTER, MONTH, WEEK")
    return to_date(operand, zone).then(DATE, lambda key: _first_start(key, name))


def truncated_timestamp(unit: str, operand: Column | Monotone, zone: Zone) -> Monotone:
    """``date_trunc(unit, operand)``; raises PredicateError for a unit that Spark would answer with NULL, or for what is no timestamp."""
    name = _UNITS.get(unit.upper(), "")
    if not name or operand.type != TIMESTAMP:
        raise PredicateError(
            f"date_trunc takes a unit from YEAR to MICROSECOND and a TIMESTAMP, not {unit[:50]!r} and {spark_name(operand.type)}"
        )
    if name in _CLOCK_UNITS:
        if not zone.is_fixed:
            raise PredicateError(f"hours and less of the zone {zone.name} are not truncated here; compare timestamps")
        size = _CLOCK_UNITS[name]
        return identity(operand).then(TIMESTAMP, lambda key: key + -zone.to_local(key) % size)

    def first(key: int) -> int:
        starts = (start_of_unit(zone.to_local(key) // DAY, name, later) for later in (0, 1))
        return next(instant for instant in (_midnight(day, zone) for day in starts) if instant >= key)

    return identity(operand).then(TIMESTAMP, first)


def _first_start(days: int, unit: str) -> int:
    start = start_of_unit(days, unit)
    return start if start == days else start_of_unit(days, unit, 1)
