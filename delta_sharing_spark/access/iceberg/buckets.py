"""Narrows a condition to the rows of some buckets of a partition (Iceberg, "Bucket Transform Details" and "Appendix B: 32-bit Hash")."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from delta_sharing_spark.predicates import tree
from delta_sharing_spark.predicates.scalar_types import key
from delta_sharing_spark.predicates.tree import Compare, Expression, In, IsNull, IsTrue, Literal, Not
from delta_sharing_spark.schema.types import Decimal, Primitive

_WHOLE = frozenset(map(Primitive, ("integer", "long", "date", "timestamp", "timestamp_ntz")))
_TEXT, _BYTES = Primitive("string"), Primitive("binary")
_MASK = 0xFFFFFFFF


class Buckets:
    """A field of a partition spec that is a column's bucket.

    Args:
        expression: The condition that is narrowed.
        path: The column's.
        is_uuid: Whether Iceberg has the column as ``uuid``, which is a text here.
        count: The number of buckets.
    """

    def __init__(self, expression: Expression, path: tuple[str, ...], is_uuid: bool, count: int) -> None:
        self._path, self.count = path, count
        self._literals: dict[int, Mapping[int | None, Sequence[Literal]]] = {}
        self._note(expression, is_uuid)

    def within(self, expression: Expression, buckets: Collection[int]) -> Expression:
        """The condition over rows of these buckets, which have no NULL in the column: no other bucket's value is theirs."""
        match expression:
            case tree.And(operands):
                return tree.conjunction([self.within(one, buckets) for one in operands])
            case tree.Or(operands):
                return tree.disjunction([self.within(one, buckets) for one in operands])
            case Not(operand):
                return tree.negation(self.within(operand, buckets))
            case IsTrue(operand):
                return IsTrue(self.within(operand, buckets))
            case IsNull(operand) if not isinstance(operand, tree.Column):
                return IsNull(self.within(operand, buckets))
            case Compare(_, column) | In(column) if (by_bucket := self._literals.get(id(expression))) is not None:
                literals = [one for bucket in (None, *buckets) for one in by_bucket.get(bucket, ())]
                return In(column, tuple(literals)) if literals else tree.FALSE
        return expression

    def _note(self, expression: Expression, is_uuid: bool) -> None:
        """Note the buckets of the values that a condition compares the column with; of None those that have none."""
        match expression:
            case Compare("=", column, literal) if column.path == self._path:
                literals: Sequence[Literal] = (literal,)
            case In(column, literals) if column.path == self._path:
                pass
            case _:
                for inner in tree.operands(expression):
                    self._note(inner, is_uuid)
                return
        by_bucket: dict[int | None, list[Literal]] = {}
        for literal in literals:
            by_bucket.setdefault(bucket_of(literal, is_uuid, self.count), []).append(literal)
        self._literals[id(expression)] = by_bucket


def bucket_of(literal: Literal, is_uuid: bool, count: int) -> int | None:
    """The bucket of a value; None where the specification hashes none of its type."""
    data = _hashed(literal, is_uuid)
    return None if data is None else (murmur3(data) & 0x7FFFFFFF) % count


def _hashed(literal: Literal, is_uuid: bool) -> bytes | None:
    """The bytes of a value that are hashed."""
    value, kind = literal.value, literal.type
    if isinstance(value, str) and kind == _TEXT:
        try:
            return UUID(value).bytes if is_uuid else value.encode()
        except ValueError:  # no UUID, or half a character
            return None
    if isinstance(kind, Decimal):
        number = int(key(value, kind))
        return number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True)
    if kind in _WHOLE and isinstance(value, int):
        return value.to_bytes(8, "little", signed=True)
    return value if isinstance(value, bytes) and kind == _BYTES else None


def murmur3(data: bytes) -> int:
    """The 32-bit hash of MurmurHash3 (x86) of bytes, with the seed 0, as an unsigned number.

    >>> hex(murmur3(b"iceberg"))
    '0x481f22d9'
    """
    state, length = 0, len(data)
    for start in range(0, length, 4):
        block = int.from_bytes(data[start : start + 4], "little") * 0xCC9E2D51 & _MASK
        state ^= (block << 15 | block >> 17) * 0x1B873593 & _MASK
        if start + 4 <= length:
            state = ((state << 13 | state >> 19) & _MASK) * 5 + 0xE6546B64 & _MASK
    state ^= length
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    return state ^ state >> 16
