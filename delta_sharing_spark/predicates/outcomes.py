"""What a predicate can be over many rows of which only facts are known: nulls, values, bounds.

Each part of the tree is given the set of truth values it may take, three bits: true, false, unknown. The sets are
never too small, whatever stands around a part, so NOT, ``IS NULL`` of conditions and wide bounds need no special
care: rows may be skipped exactly when *true* is not in the set of the whole.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from delta_sharing_spark.predicates.coercion import key
from delta_sharing_spark.predicates.like import ANY, like_parts, like_prefix, python_regex
from delta_sharing_spark.predicates.tree import (
    And,
    Column,
    Compare,
    CompareColumns,
    Constant,
    Expression,
    In,
    IsNull,
    IsTrue,
    Like,
    Not,
    Or,
)  # fmt: skip
from delta_sharing_spark.schema.types import Decimal, Primitive

T, F, N = 1, 2, 4


class Facts(NamedTuple):
    """What is known of a column's values in some rows; bounds are keys (``coercion.key``), None is unbounded.

    Attributes:
        nulls: Whether a NULL may be among them.
        values: Whether anything but NULL may be among them.
        low, high: No value is below or above; they need not occur.
        high_number: The same as ``high`` for values other than NaN, which statistics often leave out.
    """

    nulls: bool = True
    values: bool = True
    low: Any = None
    high: Any = None
    high_number: Any = None


NOTHING_KNOWN = Facts()
ALL_NULL = Facts(True, False)

Outcome = Callable[[Sequence[Facts]], int]


def exactly(at: Any) -> Facts:
    """One known value in every row."""
    return Facts(False, True, at, at, at)


def _join(a: int, b: int, conjunction: bool) -> int:
    absorbing, neutral = (F, T) if conjunction else (T, F)
    result = (a | b) & absorbing if a and b else 0
    if a & b & neutral:
        result |= neutral
    if (a & N and b & (N | neutral)) or (b & N and a & neutral):
        result |= N
    return result


_AND = [[_join(a, b, True) for b in range(8)] for a in range(8)]
_OR = [[_join(a, b, False) for b in range(8)] for a in range(8)]
_NOT = [(b & N) | (F if b & T else 0) | (T if b & F else 0) for b in range(8)]


def compile_outcome(expression: Expression, slots: Mapping[tuple[str, ...], int]) -> Outcome:
    """A function from the facts of each column (by slot) to the truth values that rows may give.

    Args:
        expression: A bound tree.
        slots: The place in the list of facts of every column path.
    """
    match expression:
        case Constant(value):
            bits = N if value is None else T if value else F
            return lambda facts: bits
        case Compare(op, column, literal):
            return _compare(slots[column.path], op, key(literal.value, literal.type))
        case In(column, literals):
            return _membership(slots[column.path], [key(v.value, v.type) for v in literals], column)
        case Like(column, pattern, escape):
            return _like(slots[column.path], pattern, escape)
        case CompareColumns(op, left, right):
            return _columns(op, slots[left.path], slots[right.path], *_scales(left, right))
        case IsNull(Column(path)):
            slot = slots[path]
            return lambda facts: (T if facts[slot].nulls else 0) | (F if facts[slot].values else 0)
        case IsNull(operand):
            assert not isinstance(operand, Column)
            inner = compile_outcome(operand, slots)
            table = [(T if b & N else 0) | (F if b & (T | F) else 0) for b in range(8)]
            return lambda facts: table[inner(facts)]
        case IsTrue(operand):
            inner = compile_outcome(operand, slots)
            table = [(b & T) | (F if b & (F | N) else 0) for b in range(8)]
            return lambda facts: table[inner(facts)]
        case Not(operand):
            inner = compile_outcome(operand, slots)
            return lambda facts: _NOT[inner(facts)]
        case And(operands) | Or(operands):
            parts = [compile_outcome(o, slots) for o in operands]
            return _joined(parts, _AND if isinstance(expression, And) else _OR)
    raise TypeError(f"not a node of a where: {expression!r}")


def _joined(parts: list[Outcome], table: list[list[int]]) -> Outcome:
    first, rest = parts[0], parts[1:]

    def joined(facts: Sequence[Facts]) -> int:
        bits = first(facts)
        for part in rest:
            bits = table[bits][part(facts)]
        return bits

    return joined


def _compare(slot: int, op: str, at: Any) -> Outcome:
    def equal(facts: Sequence[Facts]) -> int:
        nulls, values, low, high, number = facts[slot]
        bits = N if nulls else 0
        if values:
            if (low is None or low <= at) and (number is None or number >= at or (high is not None and high == at)):
                bits |= T
            if low is None or high is None or low != at or high != at:
                bits |= F
        return bits

    def ordered(facts: Sequence[Facts]) -> int:
        nulls, values, low, high, _ = facts[slot]
        bits = N if nulls else 0
        if values:
            below = low is None or (low < at if strictly_below else low <= at)  # some value may lie below the split
            above = high is None or (high >= at if strictly_below else high > at)  # or above it
            bits |= ((T if less else F) if below else 0) | ((F if less else T) if above else 0)
        return bits

    less = op in ("<", "<=")
    strictly_below = op in ("<", ">=")
    return equal if op == "=" else ordered


def _membership(slot: int, keys: list[Any], column: Column) -> Outcome:
    ordered = sorted(set(keys))
    members = set(ordered)

    def member(facts: Sequence[Facts]) -> int:
        nulls, values, low, high, number = facts[slot]
        bits = N if nulls else 0
        if values:
            first = 0 if low is None else bisect_left(ordered, low)
            if first < len(ordered) and (
                number is None or ordered[first] <= number or (high is not None and ordered[-1] == high)
            ):
                bits |= T
            if low is None or low != high or low not in members:
                bits |= F
        return bits

    return member


def _like(slot: int, pattern: str, escape: str) -> Outcome:
    prefix = like_prefix(pattern, escape)[0].encode()
    beyond = prefix + b"\xff"  # above every string that begins so: UTF-8 has no such byte
    matches = python_regex(pattern, escape).fullmatch
    everything = like_parts(pattern, escape) == [ANY]

    def like(facts: Sequence[Facts]) -> int:
        nulls, values, low, high, _ = facts[slot]
        bits = N if nulls else 0
        if not values:
            return bits
        if everything:
            return bits | T
        if low is not None and low == high:
            return bits | (T if matches(low.decode("utf-8", "replace")) else F)
        possible = (low is None or low < beyond) and (high is None or high >= prefix)
        return bits | F | (T if possible else 0)

    return like


def _scales(left: Column, right: Column) -> tuple[int, int]:
    """Factors that bring the keys of two decimals to one scale."""
    if isinstance(left.type, Decimal) and isinstance(right.type, Decimal):
        scale = max(left.type.scale, right.type.scale)
        return int(10 ** (scale - left.type.scale)), int(10 ** (scale - right.type.scale))
    return 1, 1


def _columns(op: str, left: int, right: int, left_factor: int, right_factor: int) -> Outcome:
    if op in (">", ">="):
        left, right, left_factor, right_factor = right, left, right_factor, left_factor
        op = "<" if op == ">" else "<="
    scaled = left_factor != 1 or right_factor != 1

    def compare(facts: Sequence[Facts]) -> int:
        a, b = facts[left], facts[right]
        bits = N if a.nulls or b.nulls else 0
        if not (a.values and b.values):
            return bits
        a_low, a_high, b_low, b_high = a.low, a.high, b.low, b.high
        if scaled:
            a_low, a_high = (None if v is None else v * left_factor for v in (a_low, a_high))
            b_low, b_high = (None if v is None else v * right_factor for v in (b_low, b_high))
        if op == "=":
            apart = (a_high is not None and b_low is not None and a_high < b_low) or (
                b_high is not None and a_low is not None and b_high < a_low
            )
            same = a_low is not None and a_low == a_high and b_low == a_low and b_high == a_low
            return bits | (0 if apart else T) | (0 if same else F)
        true = a_low is None or b_high is None or (a_low < b_high if op == "<" else a_low <= b_high)
        false = a_high is None or b_low is None or (a_high >= b_low if op == "<" else a_high > b_low)
        return bits | (T if true else 0) | (F if false else 0)

    return compare


def helps(expression: Expression, prunable: Callable[[Column], bool], negated: bool = False) -> bool:
    """Whether facts could ever show that no row passes; ``prunable`` tells for which columns bounds are kept."""
    match expression:
        case And(operands) | Or(operands):
            found = [helps(o, prunable, negated) for o in operands]
            return any(found) if isinstance(expression, And) != negated else all(found)
        case Not(operand):
            return helps(operand, prunable, not negated)
        case IsTrue(operand):
            return helps(operand, prunable, negated)
        case IsNull(operand):
            return isinstance(operand, Column) and prunable(Column(operand.path, Primitive("long")))
        case Like(column, pattern, escape):
            return prunable(column) and like_prefix(pattern, escape)[0] != ""
        case Compare(_, column, _) | In(column, _):
            return prunable(column)
        case CompareColumns(_, left, right):
            return prunable(left) and prunable(right)
        case Constant(value):
            return value is None or value == negated
