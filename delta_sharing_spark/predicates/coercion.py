"""Rewrites comparisons, which mean what Spark's ANSI type coercion makes of them, to values of the column's own type.

Spark compares ``column op literal`` in a common type, casting the column up. Every such cast is monotone, so the rows that pass form a range of the column's own values. Its ends are
computed once, and what is left compares without any cast. ``bigint_column = 9007199254740993D`` so becomes the range that rounds to it. ``year`` and truncation
are monotone too, and compare in the same way.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce

from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.predicates import tree
from delta_sharing_spark.predicates.literals import cast
from delta_sharing_spark.predicates.padding import char_length, compare_padded, membership_padded
from delta_sharing_spark.predicates.scalar_types import (
    BITS,
    DATE,
    DOUBLE,
    FLOAT,
    SCALARS,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VOID,
    CastLiteral,
    as_decimal,
    common_type,
    domain,
    first_key,
    float_key,
    float_value,
    from_key,
    key,
    near_float32_key,
    spark_name,
)
from delta_sharing_spark.predicates.times import DAY, Zone
from delta_sharing_spark.predicates.tree import Column
from delta_sharing_spark.schema.types import DataType, Decimal

#: The least key of one type whose image is at or above a key of another; beyond the type's keys if there is none.
FirstKey = Callable[[int], int]

FLIPPED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


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
        return lambda key: midnight(key, zone)
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


def midnight(days: int, zone: Zone) -> int:
    """The first instant of a day, where the clock does not pass that midnight twice."""
    if not zone.passes_once(days * DAY):
        raise PredicateError(
            f"the clock of {zone.name} passes midnight twice on that day; compare the column with timestamps"
        )
    return zone.start_of_day(days)


@dataclass(frozen=True, slots=True)
class Coalesce:
    """``coalesce(operand, default)`` in their common type; the default is not NULL."""

    operand: tree.Column | Monotone
    default: tree.Literal
    type: DataType

    @property
    def column(self) -> tree.Column:
        """The column that is replaced where it is NULL."""
        return self.operand if isinstance(self.operand, tree.Column) else self.operand.column


#: What compares: a column, a function of one, or a literal.
Scalar = tree.Column | Monotone | Coalesce | tree.Literal


def coalesce(operands: Sequence[Scalar], zone: Zone) -> Scalar:
    """``coalesce(operands)``: a column or a function of one, then literals; raises PredicateError for other operands or types."""
    present = [operand for operand in operands if not (isinstance(operand, tree.Literal) and operand.value is None)]
    common = reduce(common_type, (operand.type for operand in operands))
    if STRING in {operand.type for operand in present} and common != STRING:
        raise PredicateError("coalesce of a string and another type is not part of the language of where")
    if not present:
        return tree.Literal(None, common)
    first, default = present[0], present[1] if len(present) > 1 else None
    if isinstance(first, tree.Literal):
        return cast_operand(first, common, zone)
    if isinstance(first, Coalesce) or not isinstance(default, tree.Literal | None):
        raise PredicateError("coalesce takes a column, and then literals")
    operand = cast_operand(first, common, zone)
    assert isinstance(operand, tree.Column | Monotone)
    return operand if default is None else Coalesce(operand, cast(default, common, zone), common)


def cast_operand(operand: tree.Column | Monotone | tree.Literal, target: DataType, zone: Zone) -> Scalar:
    """``CAST(operand AS target)``; raises PredicateError where Spark does, or where a column's values might not fit."""
    if isinstance(operand, tree.Literal):
        return CastLiteral(cast(operand, target, zone).value, target)
    return operand if operand.type == target else upcast(operand, target, zone)


def is_null(operand: Scalar) -> tree.Expression:
    """``operand IS NULL``."""
    match operand:
        case tree.Literal(value):
            return tree.Constant(value is None)
        case Coalesce():
            return tree.FALSE
        case Monotone(column):
            return tree.IsNull(column)
    return tree.IsNull(operand)


def compare(op: str, left: Scalar, right: Scalar, zone: Zone, common: DataType | None = None) -> tree.Expression:
    """``left op right`` with ``op`` one of ``= <> < <= > >= <=>``.

    Args:
        common: The type in which a literal is compared, where a list has one for all its values.

    Raises:
        PredicateError: Types that do not compare, a malformed string, or a comparison that would cast a column's
            rows in a way that can fail.
    """
    if op == "<>":
        return tree.negation(compare("=", left, right, zone))
    if op == "<=>":
        return _null_safe(left, right, zone)
    if isinstance(left, tree.Literal):
        if isinstance(right, tree.Literal):
            return _compare_literals(op, left, right, common or common_type(left.type, right.type), zone)
        return compare(FLIPPED[op], right, left, zone, common)
    if char_length(left.type) or char_length(right.type):
        if not isinstance(left, tree.Column) or not isinstance(right, tree.Column | tree.Literal):
            raise PredicateError("a CHAR column is compared with strings and columns only")
        return compare_padded(op, left, right)
    if not isinstance(right, tree.Literal):
        if isinstance(left, tree.Column) and isinstance(right, tree.Column):
            return _compare_columns(op, left, right)
        raise PredicateError("a function of a column is compared with literals only")
    common = common or _literal_common(left, right)
    if right.value is None:
        return tree.UNKNOWN
    beyond = _beyond_long(op, left, right)
    return beyond or _compare_in(op, left, right, common, zone)


def _compare_in(
    op: str, left: tree.Column | Monotone | Coalesce, literal: tree.Literal, common: DataType, zone: Zone
) -> tree.Expression:
    if not isinstance(left, Coalesce):
        return compare_in(op, left, literal, common, zone)
    of_default = _compare_literals(op, left.default, literal, common, zone)
    of_value = compare_in(op, left.operand, literal, common, zone)
    return tree.disjunction([of_value, tree.IsNull(left.column)]) if of_default == tree.TRUE else is_true(of_value)


def _literal_common(operand: tree.Column | Monotone | Coalesce, literal: tree.Literal) -> DataType:
    kind = literal.type
    if isinstance(operand.type, Decimal) and kind in BITS and not isinstance(literal, CastLiteral):
        kind = Decimal(len(str(abs(int(literal.value or 0)))), 0)  # Spark gives an integer literal just its digits
    return common_type(operand.type, kind)


def _beyond_long(op: str, operand: tree.Column | Monotone | Coalesce, literal: tree.Literal) -> tree.Expression | None:
    """Spark answers integer against a decimal literal beyond 64 bits without looking at the row, NULL or not."""
    cast_by_user = isinstance(literal, CastLiteral)
    if operand.type not in BITS or not isinstance(literal.value, decimal.Decimal) or op == "=" or cast_by_user:
        return None
    value = Fraction(literal.value)
    if -(1 << 63) <= value < 1 << 63:
        return None
    if isinstance(operand, Monotone):
        raise PredicateError(f"{literal} is beyond what {spark_name(operand.type)} holds; leave the comparison out")
    return tree.Constant((value > 0) == (op in ("<", "<=")))


def _null_safe(left: Scalar, right: Scalar, zone: Zone) -> tree.Expression:
    nulls = [is_null(operand) for operand in (left, right)]
    if tree.TRUE in nulls:
        common_type(left.type, right.type)
        return nulls[1] if nulls[0] == tree.TRUE else nulls[0]
    equal = is_true(compare("=", left, right, zone))
    return equal if tree.FALSE in nulls else tree.disjunction([equal, tree.conjunction(nulls)])


def is_true(operand: tree.Expression) -> tree.Expression:
    """``operand IS TRUE``."""
    if isinstance(operand, tree.Constant):
        return tree.Constant(bool(operand.value))
    return operand if isinstance(operand, tree.IsNull | tree.IsTrue) else tree.IsTrue(operand)


def always(column: tree.Column) -> tree.Expression:
    """TRUE, but unknown where the column is NULL."""
    return tree.disjunction([tree.negation(tree.IsNull(column)), tree.UNKNOWN])


def never(column: tree.Column) -> tree.Expression:
    """FALSE, but unknown where the column is NULL."""
    return tree.conjunction([tree.IsNull(column), tree.UNKNOWN])


def membership(value: Scalar, items: Sequence[Scalar], zone: Zone) -> tree.Expression:
    """``value IN (items)``: all compared in one common type, as Spark does; raises PredicateError as for :func:`compare`."""
    if any(char_length(operand.type) for operand in (value, *items)):
        texts = [item for item in items if isinstance(item, tree.Literal)]
        if not isinstance(value, tree.Column) or len(texts) < len(items) or not char_length(value.type):
            raise PredicateError("a CHAR column is tested by IN against a list of strings only")
        return membership_padded(value, texts)
    kinds = {operand.type for operand in (value, *items)} - {VOID}
    if STRING in kinds and len(kinds) > 2:
        raise PredicateError(
            f"IN mixes strings with {' and '.join(sorted(spark_name(k) for k in kinds - {STRING}))}; write all values"
            f" in the column's type"
        )
    common = reduce(common_type, (operand.type for operand in (value, *items)))
    if isinstance(value, tree.Literal):
        return tree.disjunction([compare("=", item, value, zone, common) for item in items])
    operand: tree.Column | Monotone | Coalesce = value
    if isinstance(value, tree.Column) and value.type not in (common, STRING) and common != STRING:
        operand = upcast(value, common, zone)  # once for all literals
    equals: dict[tree.Column, dict[tree.Literal, None]] = {}
    others: dict[tree.Expression, None] = {}
    for item in items:
        equal = compare("=", operand if isinstance(item, tree.Literal) else value, item, zone, common)
        if isinstance(equal, tree.Compare) and equal.op == "=":
            equals.setdefault(equal.column, {})[equal.literal] = None
        else:
            others[equal] = None
    alternatives: list[tree.Expression] = []
    for column, literals in equals.items():
        chosen = tuple(literals)
        alternatives.append(tree.Compare("=", column, chosen[0]) if len(chosen) == 1 else tree.In(column, chosen))
        others.pop(never(column), None)
    return tree.disjunction([*alternatives, *others])


def compare_in(
    op: str, operand: tree.Column | Monotone, literal: tree.Literal, common: DataType, zone: Zone
) -> tree.Expression:
    """``CAST(operand AS common) op CAST(literal AS common)``, rewritten to the column's own type."""
    column = operand if isinstance(operand, tree.Column) else operand.column
    if not isinstance(column.type, Decimal) and column.type not in SCALARS:
        raise PredicateError(f"a column of type {spark_name(column.type)} does not compare; test it with IS [NOT] NULL")
    target = cast(literal, common, zone)
    if operand is column and column.type == common:
        return tree.Compare(op, column, target)
    if column.type == STRING:
        raise PredicateError(
            f"comparing the STRING column {column} with a literal of type {spark_name(literal.type)} would cast every row;"
            f" write the literal as a string"
        )
    return in_range(column, *key_range(op, upcast(operand, common, zone), key(target.value, common)))


def in_range(column: tree.Column, low: int | None, high: int | None) -> tree.Expression:
    """``column`` is between two keys; None is unbounded."""
    least, greatest = domain(column.type)
    low = None if low is not None and low <= least else low
    high = None if high is not None and high >= greatest else high
    if (low is not None and low > (greatest if high is None else high)) or (high is not None and high < least):
        return never(column)

    def bound(sign: str, end: int) -> tree.Expression:
        return tree.Compare(sign, column, tree.Literal(from_key(end, column.type), column.type))

    if low is not None and low == high:
        return bound("=", low)
    ends = [bound(sign, end) for sign, end in ((">=", low), ("<=", high)) if end is not None]
    return tree.conjunction(ends) if ends else always(column)


def _compare_columns(op: str, left: tree.Column, right: tree.Column) -> tree.Expression:
    kinds = (left.type, right.type)
    decimals = all(isinstance(kind, Decimal) for kind in kinds)
    if not decimals and not all(kind in SCALARS for kind in kinds):
        raise PredicateError(
            f"columns of type {spark_name(left.type)} and {spark_name(right.type)} do not compare here"
        )
    if left.type != right.type and not decimals and not all(kind in BITS for kind in kinds):
        raise PredicateError(
            f"the columns {left} ({spark_name(left.type)}) and {right} ({spark_name(right.type)}) are of different types;"
            f" only columns of one type are compared here"
        )
    common_type(left.type, right.type)
    return tree.CompareColumns(op, left, right)


def _compare_literals(
    op: str, left: tree.Literal, right: tree.Literal, common: DataType, zone: Zone
) -> tree.Expression:
    if left.value is None or right.value is None:
        return tree.UNKNOWN
    a, b = key(cast(left, common, zone).value, common), key(cast(right, common, zone).value, common)
    return tree.Constant({"=": a == b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[op])
