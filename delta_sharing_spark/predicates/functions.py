"""Defines the functions of ``where``: each call becomes a literal, a condition, or a function of a column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.predicates import coercion, tree
from delta_sharing_spark.predicates.coercion import Monotone, Scalar, cast_operand, identity, midnight, upcast
from delta_sharing_spark.predicates.like import escaped, standard_pattern
from delta_sharing_spark.predicates.literals import cast, later
from delta_sharing_spark.predicates.padding import char_length
from delta_sharing_spark.predicates.scalar_types import (
    BITS,
    BOOLEAN,
    DATE,
    INTEGER,
    INTERVAL_MONTH,
    LONG,
    SQL_TYPES,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VOID,
    CastLiteral,
    spark_name,
)
from delta_sharing_spark.predicates.times import DAY, Zone, first_of_month, month_of, start_of_unit
from delta_sharing_spark.schema.types import DataType

Operand = Scalar | tree.Expression

#: Functions of the moment of the load, with the type of their value; the first need no parentheses.
CURRENT: dict[str, DataType] = {"CURRENT_DATE": DATE, "CURRENT_TIMESTAMP": TIMESTAMP, "LOCALTIMESTAMP": TIMESTAMP_NTZ}
_MOMENTS = {**CURRENT, "NOW": TIMESTAMP, "CURDATE": DATE}
_TEXTS = {"STARTSWITH": ("", "%"), "ENDSWITH": ("%", ""), "CONTAINS": ("%", "%")}
_CASTS = {**SQL_TYPES, "TO_DATE": DATE, "TO_TIMESTAMP": TIMESTAMP}
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
_NO_CASTS = {"BYTE", "SHORT", "INTEGER", "LONG", "REAL", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ"}  # types, but no functions


def call(name: str, arguments: Sequence[Operand], zone: Zone, now: int | None) -> Operand | None:
    """The operand that a call becomes; None for a function that is not in the language.

    Args:
        name: The function's name, in upper case.
        now: The moment of the load, in microseconds since 1970; None where it may not be used.

    Raises:
        PredicateError: Arguments of a number, kind or type that the function does not take here.
    """
    if name in _MOMENTS:
        _count(name, arguments, 0)
        return _moment(name, zone, now)
    if name in ("ISNULL", "ISNOTNULL"):
        _count(name, arguments, 1)
        result = null_test(arguments[0])
        return tree.negation(result) if name == "ISNOTNULL" else result
    if name in ("COALESCE", "IFNULL", "NVL"):
        return _coalesce(arguments, zone)
    scalars = [a for a in arguments if isinstance(a, Scalar)]
    if name not in _HANDLERS:
        return None
    if len(scalars) < len(arguments):
        raise PredicateError(f"{name.lower()}() takes columns and literals, not conditions")
    count, function = _HANDLERS[name]
    _count(name, arguments, count)
    return function(scalars, zone)


def condition(operand: Operand, zone: Zone) -> tree.Expression:
    """An operand that stands for a condition; raises PredicateError for one that is not BOOLEAN."""
    if isinstance(operand, tree.Literal):
        if operand.type not in (BOOLEAN, VOID):
            kind = spark_name(operand.type)
            raise PredicateError(f"a condition is needed here, not the {kind} literal {operand}")
        assert operand.value is None or isinstance(operand.value, bool)
        return tree.Constant(operand.value)
    if isinstance(operand, Scalar):
        if operand.type != BOOLEAN:
            raise PredicateError(f"a condition is needed here, not a column of type {spark_name(operand.type)}")
        return coercion.compare("=", operand, tree.Literal(True, BOOLEAN), zone)
    return operand


def compare(op: str, left: Operand, right: Operand, zone: Zone) -> tree.Expression:
    """As ``coercion.compare``, and of a condition with TRUE or FALSE."""
    if isinstance(left, Scalar) and isinstance(right, Scalar):
        return coercion.compare(op, left, right, zone)
    tested, other = (right, left) if isinstance(left, Scalar) else (left, right)
    if isinstance(other, tree.Literal) and isinstance(other.value, bool) and not isinstance(tested, Scalar):
        same = tested if other.value else tree.negation(tested)
        if op in ("=", "<>", "<=>"):
            return coercion.is_true(same) if op == "<=>" else same if op == "=" else tree.negation(same)
    if isinstance(left, tree.Constant) and isinstance(right, tree.Constant):
        return coercion.compare(op, tree.Literal(left.value, BOOLEAN), tree.Literal(right.value, BOOLEAN), zone)
    raise PredicateError("a condition is compared with TRUE or FALSE only; combine them with AND, OR and NOT")


def membership(value: Operand, items: Sequence[Operand], zone: Zone) -> tree.Expression:
    """``value IN (items)``; raises PredicateError as ``coercion.membership``, and for conditions."""
    scalars = [item for item in items if isinstance(item, Scalar)]
    if not isinstance(value, Scalar) or len(scalars) < len(items):
        raise PredicateError("IN takes columns and literals; compare conditions with AND, OR and NOT")
    return coercion.membership(value, scalars, zone)


def null_test(operand: Operand) -> tree.Expression:
    """``operand IS NULL``."""
    if isinstance(operand, Scalar):
        return coercion.is_null(operand)
    return tree.Constant(operand.value is None) if isinstance(operand, tree.Constant) else tree.IsNull(operand)


def _count(name: str, arguments: Sequence[Operand], count: int) -> None:
    if len(arguments) != count:
        raise PredicateError(f"{name.lower()}() takes {count} argument{'s' * (count != 1)} here, not {len(arguments)}")


def _moment(name: str, zone: Zone, now: int | None) -> tree.Literal:
    if now is None:
        raise PredicateError(
            f"{name.lower()}() means another moment in each batch of a stream; write the date or timestamp itself"
        )
    kind = _MOMENTS[name]
    if kind == TIMESTAMP:
        return CastLiteral(now, TIMESTAMP)
    local = zone.to_local(now)
    return CastLiteral(local // DAY if kind == DATE else local, kind)


def _coalesce(arguments: Sequence[Operand], zone: Zone) -> Operand:
    if not arguments:
        raise PredicateError("coalesce() takes a column, and then literals")
    scalars = [a for a in arguments if isinstance(a, Scalar)]
    if len(scalars) == len(arguments):
        return coercion.coalesce(scalars, zone)
    condition, *defaults = arguments
    if isinstance(condition, Scalar) or not all(
        isinstance(default, tree.Literal) and default.type in (BOOLEAN, VOID) for default in defaults
    ):
        raise PredicateError("coalesce of conditions takes one condition, and then TRUE or FALSE")
    values = [default.value for default in defaults if isinstance(default, tree.Literal) and default.value is not None]
    if not values:
        return condition
    return tree.disjunction([condition, null_test(condition)]) if values[0] else coercion.is_true(condition)


def _cast_call(name: str, arguments: Sequence[Scalar], zone: Zone) -> Scalar:
    (operand,) = arguments
    if isinstance(operand, coercion.Coalesce):
        raise PredicateError(f"{name.lower()}() of coalesce() is not part of the language of where")
    return cast_operand(operand, _CASTS[name], zone)


def _text_test(name: str, arguments: Sequence[Scalar], zone: Zone) -> tree.Expression:
    """``startswith``, ``endswith`` and ``contains``, as the LIKE that means the same."""
    before, after = _TEXTS[name]
    operand, part = arguments
    if isinstance(part, tree.Literal) and isinstance(part.value, str):
        part = tree.Literal(before + escaped(part.value) + after, part.type)
    return like(operand, part, name=f"{name.lower()}()")


def like(value: Operand, pattern: Operand, escape: str = "\\", *, name: str = "LIKE") -> tree.Expression:
    """``value LIKE pattern ESCAPE escape``, which messages call ``name``; raises PredicateError for what is no such test here."""
    if not isinstance(value, tree.Column) or (value.type != STRING and not char_length(value.type)):
        raise PredicateError(f"{name} is evaluated on STRING columns only")
    if not isinstance(pattern, tree.Literal) or pattern.type not in (STRING, VOID):
        raise PredicateError(f"the pattern of {name} must be a string literal")
    if not isinstance(pattern.value, str):
        return tree.UNKNOWN
    return tree.Like(value, standard_pattern(pattern.value, escape))


def _year(arguments: Sequence[Scalar], zone: Zone) -> Scalar:
    (operand,) = arguments
    if isinstance(operand, tree.Literal):
        value = _date(operand, zone).value
        return CastLiteral(None if value is None else month_of(int(value)) // 12 + 1970, INTEGER)
    days = upcast(_of_column("year", operand), DATE, zone)
    return days.then(INTEGER, lambda year: first_of_month((year - 1970) * 12))


def _date_trunc(arguments: Sequence[Scalar], zone: Zone) -> Scalar:
    text, operand = _unit(arguments[0]), _of_column("date_trunc", arguments[1])
    unit = _UNITS.get(text.upper(), "")
    if not unit or operand.type != TIMESTAMP:
        raise PredicateError(
            f"date_trunc takes a unit from YEAR to MICROSECOND and a TIMESTAMP, not {text[:50]!r} and {spark_name(operand.type)}"
        )
    if unit in _CLOCK_UNITS:
        if not zone.is_fixed:
            raise PredicateError(f"hours and less of the zone {zone.name} are not truncated here; compare timestamps")
        size = _CLOCK_UNITS[unit]
        return identity(operand).then(TIMESTAMP, lambda key: key + -zone.to_local(key) % size)

    def first(key: int) -> int:
        starts = (start_of_unit(zone.to_local(key) // DAY, unit, later) for later in (0, 1))
        return next(instant for instant in (midnight(day, zone) for day in starts) if instant >= key)

    return identity(operand).then(TIMESTAMP, first)


def _trunc(arguments: Sequence[Scalar], zone: Zone) -> Scalar:
    operand, text = _of_column("trunc", arguments[0]), _unit(arguments[1])
    unit = _UNITS.get(text.upper(), "")
    if unit not in _BY_DAYS:
        raise PredicateError(f"{text[:50]!r} is not a unit of trunc: YEAR, QUARTER, MONTH, WEEK")

    def first(day: int) -> int:
        start = start_of_unit(day, unit)
        return start if start == day else start_of_unit(day, unit, 1)

    return upcast(operand, DATE, zone).then(DATE, first)


def _unit(unit: Scalar) -> str:
    if not isinstance(unit, tree.Literal) or not isinstance(unit.value, str):
        raise PredicateError("the unit must be a string literal, as in 'MONTH'")
    return unit.value


def _of_column(name: str, operand: Scalar) -> tree.Column | Monotone:
    if isinstance(operand, tree.Column | Monotone):
        return operand
    raise PredicateError(f"{name}() takes a column here")


def _date(operand: Scalar, zone: Zone) -> tree.Literal:
    if isinstance(operand, tree.Literal) and operand.type in (DATE, STRING, VOID):
        return cast(operand, DATE, zone)
    raise PredicateError(f"a date literal is needed here, not {spark_name(operand.type)}")


def _whole(operand: Scalar) -> int | None:
    if not isinstance(operand, tree.Literal) or operand.type not in (*BITS, VOID) or operand.type == LONG:
        raise PredicateError("an INT literal is needed here")
    return None if operand.value is None else int(operand.value)


def _make_date(arguments: Sequence[Scalar], zone: Zone) -> Scalar:
    numbers = [_whole(a) for a in arguments]
    if None in numbers:
        return CastLiteral(None, DATE)
    year, month, day = (n for n in numbers if n is not None)
    if 0 < month < 13 and 0 < day < 32 and abs(year) < 1_000_000:
        of_all = (year - 1970) * 12 + month - 1
        days = first_of_month(of_all) + day - 1
        if month_of(days) == of_all:
            return CastLiteral(days, DATE)
    raise PredicateError(f"make_date({year}, {month}, {day}) is no date")


def _moved_date(unit: DataType, sign: int) -> Callable[[Sequence[Scalar], Zone], Scalar]:
    def moved(arguments: Sequence[Scalar], zone: Zone) -> Scalar:
        date, amount = _date(arguments[0], zone), _whole(arguments[1])
        if date.value is None or amount is None:
            return CastLiteral(None, DATE)
        return CastLiteral(later(date, sign * amount, unit, zone).value, DATE)

    return moved


#: The functions of columns and literals: how many arguments each takes, and what it becomes.
_HANDLERS: dict[str, tuple[int, Callable[[Sequence[Scalar], Zone], Operand]]] = {
    **{name: (2, partial(_text_test, name)) for name in _TEXTS},
    **{name: (1, partial(_cast_call, name)) for name in _CASTS if name not in _NO_CASTS},
    "YEAR": (1, _year),
    "DATE_TRUNC": (2, _date_trunc),
    "TRUNC": (2, _trunc),
    "MAKE_DATE": (3, _make_date),
    "DATE_ADD": (2, _moved_date(INTEGER, 1)),
    "DATEADD": (2, _moved_date(INTEGER, 1)),
    "DATE_SUB": (2, _moved_date(INTEGER, -1)),
    "ADD_MONTHS": (2, _moved_date(INTERVAL_MONTH, 1)),
}
