"""Computes the truth values that a predicate may take over rows of which only bounds are known.

Each part of the tree has the set of truth values it may take, three bits: true, false, unknown. The sets are
never too small, whatever stands around a part, so NOT, ``IS NULL`` of conditions and wide bounds need no
special care. Rows may be skipped exactly when *true* is not in the set of the whole.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from delta_sharing_spark.predicates import tree
from delta_sharing_spark.predicates.like import ANY, like_matcher, like_parts, like_prefix
from delta_sharing_spark.predicates.scalar_types import SCALARS, key
from delta_sharing_spark.schema.types import DataType, Decimal, Primitive

#: The truth values that a condition may take over some rows, as bits of a set. AND is the least of two, OR the greatest.
FALSE, UNKNOWN, TRUE = 1, 2, 4


class ColumnBounds(NamedTuple):
    """The bounds of a column's values in some rows, as keys (``keys.key``); None is unbounded.

    Attributes:
        has_nulls: Whether a NULL may be among them.
        has_values: Whether anything but NULL may be among them.
        low, high: Keys that no value is below or above; they need not occur.
        high_number: The same as ``high`` for values other than NaN, which statistics often leave out.
    """

    has_nulls: bool = True
    has_values: bool = True
    low: Any = None
    high: Any = None
    high_number: Any = None


UNBOUNDED = ColumnBounds()
ALL_NULL = ColumnBounds(True, False)

BoundsOf = Callable[[Sequence[ColumnBounds]], ColumnBounds]
PossibleValues = Callable[[Sequence[ColumnBounds]], int]


def constant_bounds(key: Any) -> ColumnBounds:
    """The bounds of a column with one known value in every row."""
    return ColumnBounds(False, True, key, key, key)


def bounds_of_statistics(
    kind: DataType, rows: Any, nulls: Any, is_bounded: bool, low: Any = None, high: Any = None, high_number: Any = None
) -> ColumnBounds:
    """The bounds of a column that statistics tell of; where they contradict themselves, they tell nothing.

    Args:
        kind: The column's type. Of arrays, maps and structs some writers count what is NULL within.
        rows, nulls: The numbers of rows and of NULLs; something else than an integer where they are not told.
        is_bounded: Whether the statistics name a bound, be it one that is not read here: so there is a value.
        low, high, high_number: The keys that are read.
    """
    has_nulls = type(nulls) is not int or nulls != 0
    if is_scalar(kind) and not is_bounded and type(rows) is type(nulls) is int and 0 < rows == nulls:
        return ALL_NULL
    if low is not None and high_number is not None and low > high_number:
        return ColumnBounds(has_nulls)
    return ColumnBounds(has_nulls, True, low, high, high_number)


def is_scalar(kind: DataType) -> bool:
    return kind in SCALARS or isinstance(kind, Decimal)


#: The values of each set.
_MEMBERS = [[value for value in (FALSE, UNKNOWN, TRUE) if bits & value] for bits in range(8)]
_AND, _OR = ([[sum({join(x, y) for x in a for y in b}) for b in _MEMBERS] for a in _MEMBERS] for join in (min, max))
_NOT = [sum(TRUE * FALSE // value for value in values) for values in _MEMBERS]
_IS_NULL = [sum({TRUE if value == UNKNOWN else FALSE for value in values}) for values in _MEMBERS]
_IS_TRUE = [sum({TRUE if value == TRUE else FALSE for value in values}) for values in _MEMBERS]


def compile_possible_values(expression: tree.Expression, slots: Mapping[tuple[str, ...], int]) -> PossibleValues:
    """Compile a predicate to a function from the bounds of columns, listed by ``slots``, to the truth values that rows may give."""
    match expression:
        case tree.Constant(value):
            bits = UNKNOWN if value is None else TRUE if value else FALSE
            return lambda bounds: bits
        case tree.Compare(op, column, literal):
            split = key(literal.value, literal.type)
            if op == "=":
                return _member(slots[column.path], [split])
            constant = constant_bounds(split)
            return _ordered(op, itemgetter(slots[column.path]), lambda _: constant)
        case tree.In(column, literals):
            return _member(slots[column.path], sorted({key(v.value, v.type) for v in literals}))
        case tree.Like(column, pattern):
            return _like(slots[column.path], pattern)
        case tree.CompareColumns(op, left, right):
            return _ordered(op, _in_scale(left, right, slots[left.path]), _in_scale(right, left, slots[right.path]))
        case tree.IsNull(tree.Column(path)):
            slot = slots[path]
            return lambda bounds: (TRUE if bounds[slot].has_nulls else 0) | (FALSE if bounds[slot].has_values else 0)
        case tree.IsNull(operand):
            assert not isinstance(operand, tree.Column)
            inner = compile_possible_values(operand, slots)
            return lambda bounds: _IS_NULL[inner(bounds)]
        case tree.IsTrue(operand) | tree.Not(operand):
            inner = compile_possible_values(operand, slots)
            table = _NOT if isinstance(expression, tree.Not) else _IS_TRUE
            return lambda bounds: table[inner(bounds)]
        case tree.And(operands) | tree.Or(operands):
            parts = [compile_possible_values(o, slots) for o in operands]
            return _joined(parts, _AND, FALSE) if isinstance(expression, tree.And) else _joined(parts, _OR, TRUE)
    raise TypeError(f"not a node of a where: {expression!r}")


def _joined(parts: list[PossibleValues], table: list[list[int]], absorbing: int) -> PossibleValues:
    first, rest = parts[0], parts[1:]

    def joined(bounds: Sequence[ColumnBounds]) -> int:
        bits = first(bounds)
        for part in rest:
            if bits == absorbing:
                break
            bits = table[bits][part(bounds)]
        return bits

    return joined


def _ordered(op: str, left: BoundsOf, right: BoundsOf) -> PossibleValues:
    """The truth values of a comparison of two columns, or of a column with a value that is both its bounds."""
    if op in (">", ">="):
        left, right = right, left

    def ordered(bounds: Sequence[ColumnBounds]) -> int:
        a, b = left(bounds), right(bounds)
        bits = UNKNOWN if a.has_nulls or b.has_nulls else 0
        if not (a.has_values and b.has_values):
            return bits
        # Whether nothing is known of where a value of the one begins and one of the other ends.
        a_open, b_open = a.low is None or b.high is None, b.low is None or a.high is None
        if op == "=":
            true = (a_open or a.low <= b.high) and (b_open or b.low <= a.high)
            false = a_open or a.low < b.high or b_open or b.low < a.high
        elif op in ("<", ">"):
            true, false = a_open or a.low < b.high, b_open or b.low <= a.high
        else:
            true, false = a_open or a.low <= b.high, b_open or b.low < a.high
        return bits | (TRUE if true else 0) | (FALSE if false else 0)

    return ordered


def _in_scale(column: tree.Column, other: tree.Column, slot: int) -> BoundsOf:
    """The bounds of a column, in the greater scale of two decimals."""
    kinds = column.type, other.type
    if not (isinstance(kinds[0], Decimal) and isinstance(kinds[1], Decimal)) or kinds[0].scale >= kinds[1].scale:
        return itemgetter(slot)
    factor = 10 ** (kinds[1].scale - kinds[0].scale)

    def scaled(bounds: Sequence[ColumnBounds]) -> ColumnBounds:
        low, high = (None if end is None else end * factor for end in (bounds[slot].low, bounds[slot].high))
        return bounds[slot]._replace(low=low, high=high)

    return scaled


def _member(slot: int, ordered: list[Any]) -> PossibleValues:
    """The truth values of ``column IN (keys)``; the keys are in order, each once."""
    members = set(ordered)

    def member(bounds: Sequence[ColumnBounds]) -> int:
        nulls, values, low, high, number = bounds[slot]
        bits = UNKNOWN if nulls else 0
        if values:
            first = 0 if low is None else bisect_left(ordered, low)
            if first < len(ordered) and (
                number is None or ordered[first] <= number or (high is not None and ordered[-1] == high)
            ):
                bits |= TRUE
            if low is None or low != high or low not in members:
                bits |= FALSE
        return bits

    return member


def _like(slot: int, pattern: str) -> PossibleValues:
    prefix = like_prefix(pattern)[0].encode()
    beyond = prefix + b"\xff"  # above every string that begins so: UTF-8 has no such byte
    matches = like_matcher(pattern)
    everything = like_parts(pattern) == [ANY]

    def like(bounds: Sequence[ColumnBounds]) -> int:
        nulls, values, low, high, _ = bounds[slot]
        bits = UNKNOWN if nulls else 0
        if not values:
            return bits
        if everything:
            return bits | TRUE
        if low is not None and low == high:
            return bits | (TRUE if matches(low.decode("utf-8", "replace")) else FALSE)
        possible = (low is None or low < beyond) and (high is None or high >= prefix)
        return bits | FALSE | (TRUE if possible else 0)

    return like


def split_keys(expression: tree.Expression) -> dict[tuple[str, ...], tuple[list[Any], bool]] | None:
    """Keys of each column in order: two files alike whose bounds lie alike among these. None where columns are compared with each other.

    With them stands whether bounds that are one value also have to be of the same value to be alike.
    """
    keys: dict[tuple[str, ...], set[Any]] = {}
    by_value: set[tuple[str, ...]] = set()
    for part in tree.leaves(expression):
        match part:
            case tree.CompareColumns():
                return None
            case tree.Compare(_, column, literal):
                keys.setdefault(column.path, set()).add(key(literal.value, literal.type))
            case tree.In(column, literals):
                keys.setdefault(column.path, set()).update(key(v.value, v.type) for v in literals)
            case tree.Like(column, pattern):
                prefix = like_prefix(pattern)[0].encode()
                keys.setdefault(column.path, set()).update((prefix, prefix + b"\xff"))
                by_value.add(column.path)
    return {
        column.path: (sorted(keys.get(column.path, ())), column.path in by_value) for column in tree.columns(expression)
    }


def may_exclude(
    expression: tree.Expression, has_bounds_of: Callable[[tree.Column], bool], is_negated: bool = False
) -> bool:
    """Whether bounds could ever show that no row passes; ``has_bounds_of`` tells for which columns bounds are kept."""
    match expression:
        case tree.And(operands) | tree.Or(operands):
            parts = [may_exclude(o, has_bounds_of, is_negated) for o in operands]
            return any(parts) if isinstance(expression, tree.And) != is_negated else all(parts)
        case tree.Not(operand):
            return may_exclude(operand, has_bounds_of, not is_negated)
        case tree.IsTrue(operand):
            return may_exclude(operand, has_bounds_of, is_negated)
        case tree.IsNull(operand):
            if not isinstance(operand, tree.Column) or (is_negated and not is_scalar(operand.type)):
                return False
            return has_bounds_of(tree.Column(operand.path, Primitive("long")))
        case tree.Like(column, pattern):
            return has_bounds_of(column) and like_prefix(pattern)[0] != ""
        case tree.Compare(_, column, _) | tree.In(column, _):
            return has_bounds_of(column)
        case tree.CompareColumns(_, left, right):
            return has_bounds_of(left) and has_bounds_of(right)
        case tree.Constant(value):
            return value is None or value == is_negated
