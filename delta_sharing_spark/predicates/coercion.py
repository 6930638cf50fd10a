"""Comparisons as Spark's ANSI type coercion means them, rewritten to values of the column's own type.

Spark compares ``column op literal`` in a common type, casting the column up. Every such cast is monotone, so the
rows that pass form a range of the column's own values: its ends are found by bisection over that type, once, and what
is left compares without any cast. ``bigint_column = 9007199254740993D`` so becomes the range that rounds to it.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import reduce
from typing import Any

from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.predicates.floats import float_key, float_keys, float_value
from delta_sharing_spark.predicates.literals import (
    BINARY,
    BITS,
    BOOLEAN,
    DATE,
    DAY,
    DOUBLE,
    FLOAT,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VOID,
    Zone,
    cast,
    from_unscaled,
    spark_name,
    unscaled,
)  # fmt: skip
from delta_sharing_spark.predicates.tree import (
    FALSE,
    TRUE,
    UNKNOWN,
    Column,
    Compare,
    CompareColumns,
    Constant,
    Expression,
    In,
    IsNull,
    IsTrue,
    Literal,
    Value,
    conjunction,
    disjunction,
    negation,
)  # fmt: skip
from delta_sharing_spark.schema.types import DataType, Decimal

FLIPPED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_RANK = {kind: rank for rank, kind in enumerate((*BITS, FLOAT, DOUBLE))}
_TIMES = (DATE, TIMESTAMP_NTZ, TIMESTAMP)
_DECIMAL_OF = {8: Decimal(3, 0), 16: Decimal(5, 0), 32: Decimal(10, 0), 64: Decimal(20, 0)}
_SCALARS = (BOOLEAN, STRING, BINARY, *_RANK, *_TIMES)

Operand = Column | Literal


class CastLiteral(Literal):
    """A literal under the user's own CAST, which Spark does not take for a literal where it treats those apart."""

    __slots__ = ()


def common_type(left: DataType, right: DataType) -> DataType:
    """The type in which Spark compares the two.

    Raises:
        PredicateError: Spark refuses the pair, or the comparison would round decimals.
    """
    if left == right or right == VOID:
        return left
    if left == VOID:
        return right
    if STRING in (left, right):
        other = right if left == STRING else left
        if other in BITS:
            return LONG
        if other in (FLOAT, DOUBLE) or isinstance(other, Decimal):
            return DOUBLE
        if other in _SCALARS:
            return other
    elif left in _TIMES and right in _TIMES:
        return max(left, right, key=_TIMES.index)
    elif left in _RANK and right in _RANK:
        wider = left if _RANK[left] > _RANK[right] else right
        return DOUBLE if wider == FLOAT else wider
    elif isinstance(left, Decimal) or isinstance(right, Decimal):
        if left in (FLOAT, DOUBLE) or right in (FLOAT, DOUBLE):
            return DOUBLE
        a, b = _as_decimal(left), _as_decimal(right)
        if a and b:
            scale = max(a.scale, b.scale)
            precision = max(a.precision - a.scale, b.precision - b.scale) + scale
            if precision > 38:
                raise PredicateError(
                    f"comparing {spark_name(left)} with {spark_name(right)} needs {precision} digits, and Spark would"
                    f" round the column to 38; write the literal with fewer digits, or in the column's type"
                )
            return Decimal(precision, scale)
    raise PredicateError(
        f"{spark_name(left)} and {spark_name(right)} do not compare; cast the literal to the column's type"
    )


def _as_decimal(kind: DataType) -> Decimal | None:
    return kind if isinstance(kind, Decimal) else _DECIMAL_OF[BITS[kind]] if kind in BITS else None


def compare(op: str, left: Operand, right: Operand, zone: Zone) -> Expression:
    """``left op right`` with ``op`` one of ``= <> < <= > >= <=>``.

    Raises:
        PredicateError: Types that do not compare, a malformed string, or a comparison that would cast a column's
            rows in a way that can fail.
    """
    if op == "<>":
        return negation(compare("=", left, right, zone))
    if op == "<=>":
        return _null_safe(left, right, zone)
    if isinstance(left, Literal) and isinstance(right, Column):
        return compare(FLIPPED[op], right, left, zone)
    if isinstance(left, Literal) and isinstance(right, Literal):
        return _compare_literals(op, left, right, zone)
    assert isinstance(left, Column)
    if isinstance(right, Column):
        return _compare_columns(op, left, right)
    if right.value is None:
        common_type(left.type, right.type)
        return UNKNOWN
    beyond = _beyond_long(op, left, right)
    return beyond or compare_in(op, left, right, _literal_common(left, right), zone)


def _literal_common(column: Column, literal: Literal) -> DataType:
    kind = literal.type
    if isinstance(column.type, Decimal) and kind in BITS:  # Spark gives an integer literal just its digits
        kind = Decimal(len(str(abs(int(literal.value or 0)))), 0)
    return common_type(column.type, kind)


def _beyond_long(op: str, column: Column, literal: Literal) -> Expression | None:
    """Spark answers integer against a decimal literal beyond 64 bits without looking at the row, NULL or not."""
    cast_by_user = isinstance(literal, CastLiteral)
    if column.type not in BITS or not isinstance(literal.value, decimal.Decimal) or op == "=" or cast_by_user:
        return None
    value = Fraction(literal.value)
    if -(1 << 63) <= value < 1 << 63:
        return None
    return Constant((value > 0) == (op in ("<", "<=")))


def _null_safe(left: Operand, right: Operand, zone: Zone) -> Expression:
    nulls: list[Expression] = []
    for operand in (left, right):
        if isinstance(operand, Literal):
            nulls.append(Constant(operand.value is None))
        else:
            nulls.append(IsNull(operand))
    if TRUE in nulls:
        common_type(left.type, right.type)
        return nulls[1] if nulls[0] == TRUE else nulls[0]
    equal = is_true(compare("=", left, right, zone))
    return equal if FALSE in nulls else disjunction([equal, conjunction(nulls)])


def is_true(operand: Expression) -> Expression:
    """``operand IS TRUE``."""
    if isinstance(operand, Constant):
        return Constant(bool(operand.value))
    return operand if isinstance(operand, IsNull | IsTrue) else IsTrue(operand)


def always(column: Column) -> Expression:
    """TRUE, but unknown where the column is NULL."""
    return disjunction([negation(IsNull(column)), UNKNOWN])


def never(column: Column) -> Expression:
    """FALSE, but unknown where the column is NULL."""
    return conjunction([IsNull(column), UNKNOWN])


def membership(value: Operand, items: Sequence[Operand], zone: Zone) -> Expression:
    """``value IN (items)``: all compared in one common type, as Spark does.

    Raises:
        PredicateError: As for :func:`compare`.
    """
    kinds = {operand.type for operand in (value, *items)} - {VOID}
    if STRING in kinds and len(kinds) > 2:
        raise PredicateError(
            f"IN mixes strings with {' and '.join(sorted(spark_name(k) for k in kinds - {STRING}))}; write all values"
            f" in the column's type"
        )
    common = reduce(common_type, (operand.type for operand in (value, *items)))
    literals: dict[Literal, None] = {}
    others: list[Expression] = []
    for item in items:
        if isinstance(value, Column) and isinstance(item, Literal) and item.value is not None:
            equal = compare_in("=", value, item, common, zone)
            if isinstance(equal, Compare):
                literals[equal.literal] = None
                continue
            if equal == never(value):
                others.append(equal)
                continue
        elif isinstance(value, Literal) and isinstance(item, Column) and value.value is not None:
            equal = compare_in("=", item, value, common, zone)
        elif isinstance(value, Literal) and isinstance(item, Literal):
            equal = compare("=", cast(value, common, zone), cast(item, common, zone), zone)
        else:
            equal = compare("=", value, item, zone)
        others.append(equal)
    found: list[Expression] = []
    if isinstance(value, Column) and literals:
        chosen = tuple(literals)
        found.append(Compare("=", value, chosen[0]) if len(chosen) == 1 else In(value, chosen))
        others = [o for o in others if o != never(value)]
    return disjunction([*found, *others])


def compare_in(op: str, column: Column, literal: Literal, common: DataType, zone: Zone) -> Expression:
    """``CAST(column AS common) op CAST(literal AS common)``, rewritten to the column's own type."""
    if not isinstance(column.type, Decimal) and column.type not in _SCALARS:
        raise PredicateError(f"a column of type {spark_name(column.type)} does not compare; test it with IS [NOT] NULL")
    target = cast(literal, common, zone)
    if column.type == common:
        return Compare(op, column, target)
    if column.type == STRING:
        raise PredicateError(
            f"comparing the STRING column {column} with a {spark_name(literal.type)} would cast every row;"
            f" write the literal as a string"
        )
    if column.type in _TIMES and not zone.is_utc and common == TIMESTAMP:
        raise PredicateError(
            f"comparing the {spark_name(column.type)} column {column} with a TIMESTAMP depends on the time zone"
            f" {zone.name}; write a {spark_name(column.type)} literal"
        )
    least, greatest = domain(column.type)
    image = _image(column.type, common)
    wanted = key(target.value, common)
    first = _first(least, greatest, lambda k: image(k) >= wanted)  # the least value that is not below the literal
    after = _first(least, greatest, lambda k: image(k) > wanted)  # the least value above it

    def bound(sign: str, at: int) -> Expression:
        return Compare(sign, column, Literal(from_key(at, column.type), column.type))

    if op in ("<", "<="):
        end = first if op == "<" else after
        return never(column) if end <= least else always(column) if end > greatest else bound("<=", end - 1)
    if op in (">", ">="):
        start = after if op == ">" else first
        return always(column) if start <= least else never(column) if start > greatest else bound(">=", start)
    if first >= after:
        return never(column)
    return bound("=", first) if after == first + 1 else conjunction([bound(">=", first), bound("<=", after - 1)])


def _compare_columns(op: str, left: Column, right: Column) -> Expression:
    kinds = (left.type, right.type)
    decimals = all(isinstance(kind, Decimal) for kind in kinds)
    if not decimals and not all(kind in _SCALARS for kind in kinds):
        raise PredicateError(
            f"columns of type {spark_name(left.type)} and {spark_name(right.type)} do not compare here"
        )
    if left.type != right.type and not decimals and not all(kind in BITS for kind in kinds):
        raise PredicateError(
            f"the columns {left} ({spark_name(left.type)}) and {right} ({spark_name(right.type)}) are of different types;"
            f" only columns of one type are compared here"
        )
    common_type(left.type, right.type)
    return CompareColumns(op, left, right)


def _compare_literals(op: str, left: Literal, right: Literal, zone: Zone) -> Expression:
    common = common_type(left.type, right.type)
    if left.value is None or right.value is None:
        return UNKNOWN
    a, b = key(cast(left, common, zone).value, common), key(cast(right, common, zone).value, common)
    return Constant({"=": a == b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[op])


def key(value: Value, kind: DataType) -> Any:
    """A value as something Python orders as Spark orders the type; integers (``from_key``) but for strings and binary."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return value
    if isinstance(value, decimal.Decimal):
        assert isinstance(kind, Decimal)
        return unscaled(value, kind.scale)
    if isinstance(value, float):
        return float_key(value, 32 if kind == FLOAT else 64)
    assert value is not None
    return int(value)


def from_key(at: int, kind: DataType) -> Value:
    """The value of an integer key."""
    if isinstance(kind, Decimal):
        return from_unscaled(at, kind.scale)
    if kind in (FLOAT, DOUBLE):
        return float_value(at, 32 if kind == FLOAT else 64)
    return bool(at) if kind == BOOLEAN else at


def domain(kind: DataType) -> tuple[int, int]:
    """The least and greatest key of a type."""
    if isinstance(kind, Decimal):
        return 1 - 10**kind.precision, 10**kind.precision - 1
    if kind in (FLOAT, DOUBLE):
        return float_keys(32 if kind == FLOAT else 64)
    if kind == BOOLEAN:
        return 0, 1
    bits = 32 if kind == DATE else 64 if kind in _TIMES else BITS[kind]
    return -(1 << bits - 1), (1 << bits - 1) - 1


def _image(kind: DataType, common: DataType) -> Callable[[int], int]:
    """The key in ``common`` of a key in ``kind``, as Spark's cast maps it."""
    if isinstance(kind, Decimal):
        divisor = 10**kind.scale
        if isinstance(common, Decimal):
            factor = 10 ** (common.scale - kind.scale)
            return lambda k: k * factor
        return lambda k: float_key(k / divisor, 64)
    if isinstance(common, Decimal):
        factor = 10**common.scale
        return lambda k: k * factor
    if kind == FLOAT:
        return lambda k: float_key(float_value(k, 32), 64)
    if common == DOUBLE:
        return lambda k: float_key(float(k), 64)
    if kind == DATE:
        return lambda k: k * DAY
    return lambda k: k


def _first(least: int, greatest: int, holds: Callable[[int], bool]) -> int:
    """The least key for which a monotone test holds; ``greatest + 1`` if for none."""
    low, high = least, greatest + 1
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
