"""Evaluates a ``where`` on Arrow batches exactly, in three-valued logic as Spark does."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from delta_sharing_spark.predicates import tree
from delta_sharing_spark.predicates.like import ANY, like_parts, like_regex
from delta_sharing_spark.predicates.padding import char_length
from delta_sharing_spark.predicates.scalar_types import FLOATS
from delta_sharing_spark.schema.arrow_bridge import array_of, scalar

_FUNCTIONS = {"=": "equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}


def evaluate(expression: tree.Expression, batch: pa.RecordBatch | pa.Table) -> pa.BooleanArray | pa.ChunkedArray:
    """Which rows pass: true, false, or null for unknown (a caller keeps the true ones only).

    Args:
        expression: A bound tree from ``parse_where``.
        batch: Columns by their logical names, in the Arrow types that Spark's types have (dictionary-encoded and
            ``large_`` forms too); partition columns are columns like any other.

    Returns:
        One value for each row of ``batch``; a ChunkedArray for a Table.
    """
    from pyarrow import compute as pc

    return _Evaluation(batch, pc).run(expression)


class _Evaluation:
    """The evaluation over one batch, from which each column and nested field is taken once."""

    def __init__(self, batch: pa.RecordBatch | pa.Table, pc: Any) -> None:
        self._batch = batch
        self._pc = pc
        self._columns: dict[tuple[tuple[str, ...], int], Any] = {}

    def run(self, node: tree.Expression) -> Any:
        pc = self._pc
        match node:
            case tree.Constant(value):
                return self._constant(value)
            case tree.Compare(op, column, literal):
                return self._compare(op, self._column(column, _width(literal)), literal)
            case tree.CompareColumns(op, left, right):
                return self._compare_columns(op, left, right)
            case tree.In(column, literals):
                return self._membership(column, literals)
            case tree.Like(column, pattern):
                return self._like(self._column(column), pattern)
            case tree.IsNull(operand):
                inner = self._column(operand) if isinstance(operand, tree.Column) else self.run(operand)
                return pc.is_null(inner)
            case tree.IsTrue(operand):
                return pc.fill_null(self.run(operand), False)
            case tree.Not(operand):
                return pc.invert(self.run(operand))
            case tree.And(operands) | tree.Or(operands):
                join = pc.and_kleene if isinstance(node, tree.And) else pc.or_kleene
                result = self.run(operands[0])
                for operand in operands[1:]:
                    result = join(result, self.run(operand))
                return result
        raise TypeError(f"not a node of a where: {node!r}")

    def _constant(self, value: bool | None) -> Any:
        values = pa.nulls(self._batch.num_rows, pa.bool_())
        if value is not None:
            values = self._pc.fill_null(values, value)
        return pa.chunked_array([values], pa.bool_()) if isinstance(self._batch, pa.Table) else values

    def _column(self, column: tree.Column, width: int = 0) -> Any:
        """The values of a column; those of CHAR are padded to its length, and brought to ``width`` characters where that is more."""
        length = char_length(column.type)
        width = max(width, length) if length else 0
        values = self._columns.get((column.path, width))
        if values is None:
            values = self._batch.column(column.path[0])
            for part in column.path[1:]:
                values = self._pc.struct_field(values, [part])
            if pa.types.is_dictionary(values.type):
                values = self._pc.cast(values, values.type.value_type)
            if width:
                values = self._pc.utf8_rpad(values, width, " ")
            if width > length:  # Spark's rpad cuts a value that is longer
                values = self._pc.utf8_slice_codeunits(values, 0, width)
            self._columns[column.path, width] = values
        return values

    def _compare(self, op: str, values: Any, literal: tree.Literal) -> Any:
        pc = self._pc
        if isinstance(literal.value, float):
            if literal.value != literal.value:  # NaN is above all numbers, as true is above false
                return getattr(pc, _FUNCTIONS[op])(pc.is_nan(values), scalar(True, pa.bool_()))
            result = getattr(pc, _FUNCTIONS[op])(values, scalar(literal.value, values.type))
            return pc.or_(result, pc.is_nan(values)) if op in (">", ">=") else result
        return getattr(pc, _FUNCTIONS[op])(values, _values((literal,), values.type)[0])

    def _compare_columns(self, op: str, left: tree.Column, right: tree.Column) -> Any:
        pc = self._pc
        lengths = char_length(left.type), char_length(right.type)
        width = max(lengths) if all(lengths) else 0  # a STRING beside it is not padded
        a, b = self._column(left, width), self._column(right, width)
        if left.type not in FLOATS:
            return getattr(pc, _FUNCTIONS[op])(a, b)
        if op == "=":
            return pc.or_(pc.equal(a, b), pc.and_(pc.is_nan(a), pc.is_nan(b)))
        if op in (">", "<="):
            a, b = b, a
        is_less = pc.or_(pc.less(a, b), pc.and_(pc.is_nan(b), pc.invert(pc.is_nan(a))))
        return is_less if op in ("<", ">") else pc.invert(is_less)

    def _membership(self, column: tree.Column, literals: tuple[tree.Literal, ...]) -> Any:
        pc = self._pc
        values = self._column(column, _width(literals[0]))
        if column.type in FLOATS:
            zero = scalar(0.0, values.type)  # added to -0.0 it makes 0.0: values are hashed by their bits
            sought = [v.value + 0.0 for v in literals if isinstance(v.value, float)]
            numbers = array_of([v for v in sought if v == v], values.type)
            result = pc.is_in(pc.add(values, zero), value_set=numbers)
            if len(numbers) < len(sought):
                result = pc.or_(result, pc.fill_null(pc.is_nan(values), scalar(False, pa.bool_())))
        else:
            result = pc.is_in(values, value_set=_values(literals, values.type))
        return pc.if_else(pc.is_valid(values), result, scalar(None, pa.bool_()))

    def _like(self, values: Any, pattern: str) -> Any:
        pc = self._pc
        match like_parts(pattern):
            case [str(text)]:
                return pc.equal(values, scalar(text, values.type))
            case [str(text), last] if last == ANY:
                return pc.starts_with(values, text)
            case [first, str(text)] if first == ANY:
                return pc.ends_with(values, text)
            case [first, str(text), last] if first == ANY and last == ANY:
                return pc.match_substring(values, text)
        return pc.match_substring_regex(values, like_regex(pattern))


def _width(literal: tree.Literal) -> int:
    """The characters of a text, to which a CHAR column is padded beside it; 0 for another value."""
    return len(literal.value) if isinstance(literal.value, str) else 0


def _values(literals: tuple[tree.Literal, ...], kind: pa.DataType) -> pa.Array:
    """The literals as an array of the column's Arrow type; dates and timestamps are counts since 1970."""
    plain = [v.value for v in literals]
    if pa.types.is_date32(kind):
        return array_of(plain, kind)
    if pa.types.is_timestamp(kind):
        return array_of(plain, pa.timestamp("us", kind.tz)).cast(kind)
    return array_of(plain, kind)
