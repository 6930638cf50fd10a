"""Which files cannot hold a row that passes, by partition values and by the log's statistics."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from delta_sharing_spark.predicates.bounds import bounded, lower, upper
from delta_sharing_spark.predicates.coercion import key
from delta_sharing_spark.predicates.literals import BINARY, BOOLEAN, DOUBLE, FLOAT
from delta_sharing_spark.predicates.outcomes import (
    ALL_NULL,
    NOTHING_KNOWN,
    F,
    Facts,
    N,
    T,
    compile_outcome,
    exactly,
    helps,
)
from delta_sharing_spark.predicates.tree import Column, Compare, Expression, columns, conjuncts
from delta_sharing_spark.schema.partition_values import partition_value
from delta_sharing_spark.schema.types import DataType, Decimal, Field, Struct

#: Why a file is not read: 0 keeps it.
KEEP, BY_PARTITION, BY_STATISTICS = 0, 1, 2
_CACHED = 65_536
#: Stands for a partition value that the plan lacks: the reader says what is wrong with such a file.
_MISSING = "\0missing"
_EPOCH_DAYS = date(1970, 1, 1).toordinal()


class FileSkipping:
    """A predicate compiled once against a table's schema, asked of many files.

    Args:
        expression: A bound tree from ``parse_where``.
        schema: The table's whole schema with its column mapping (statistics and partition values go by physical names).
        partition_columns: Logical names of the partition columns.
        time_zone: The zone of partition timestamps that name none, as in ``ReadSpec``.
    """

    def __init__(
        self, expression: Expression, schema: Struct, partition_columns: Sequence[str], *, time_zone: str = "UTC"
    ) -> None:
        self._zone = time_zone
        partitions = {name.lower() for name in partition_columns}
        paths: dict[tuple[str, ...], Column] = {c.path: c for c in columns(expression)}
        self._partition: list[tuple[int, tuple[str, str], DataType]] = []
        self._data: list[tuple[int, tuple[str, ...], DataType, bool]] = []
        for slot, (path, column) in enumerate(paths.items()):
            fields = _fields(path, schema)
            if len(path) == 1 and path[0].lower() in partitions:
                self._partition.append((slot, (fields[0].physical_name, fields[0].name), column.type))
            else:
                physical = tuple(f.physical_name for f in fields)
                readable = bounded(column.type) and not (
                    column.type == DOUBLE and "delta.typeChanges" in fields[-1].metadata
                )
                self._data.append((slot, physical, column.type, readable))
        self._slots = len(paths)
        self._outcome = compile_outcome(expression, {path: slot for slot, path in enumerate(paths)})
        self._expression = expression
        self._partition_names = frozenset(path for path in paths if len(path) == 1 and path[0].lower() in partitions)
        self._verdicts: dict[tuple[str | None, ...], tuple[int, list[Facts]]] = {}
        self._undecided = bool(self._data)

    @property
    def stats_columns(self) -> frozenset[str]:
        """Physical names of the top-level columns whose statistics are looked at."""
        return frozenset(physical[0] for _, physical, _, _ in self._data)

    @property
    def decided(self) -> bool:
        """Whether partition values alone decided every file asked about so far: all rows of those kept pass."""
        return not self._undecided

    def unhelpful(self) -> tuple[Expression, ...]:
        """The conjuncts by which no file can be skipped: they only filter rows."""

        def prunable(column: Column) -> bool:
            return column.path in self._partition_names or column.type not in (BOOLEAN, BINARY)

        return tuple(c for c in conjuncts(self._expression) if not helps(c, prunable) or self._open_above(c))

    def may_match(self, partition_values: Mapping[str, str | None], stats: str | None) -> bool:
        """Whether the file may hold a row that passes; never False for one that does.

        Args:
            partition_values: By physical or logical names, as the log serializes them; one that is missing may be anything.
            stats: The JSON of the file's statistics, or None.
        """
        return self.reason(partition_values, stats) == KEEP

    def reason(self, partition_values: Mapping[str, str | None], stats: str | None) -> int:
        """``KEEP``, or by which facts the file is skipped: ``BY_PARTITION`` or ``BY_STATISTICS``."""
        bits, facts = self._by_partition(tuple(_value(partition_values, names) for _, names, _ in self._partition))
        if not bits & T:
            return BY_PARTITION
        if bits == T or not self._data or not stats:
            return KEEP
        return KEEP if self._by_statistics(stats, facts) & T else BY_STATISTICS

    def reasons(
        self,
        count: int,
        partition_values: Mapping[str, pa.Array | Sequence[str | None]],
        stats: Callable[[int], str | None] | pa.Array | None,
    ) -> npt.NDArray[np.uint8]:
        """:meth:`reason` for ``count`` files in columns.

        Args:
            count: The number of files.
            partition_values: Physical or logical name of each partition column to one serialized value a file.
            stats: The JSON of each file, as a string array or by index; None if there is none.
        """
        result = np.zeros(count, np.uint8)
        found = [_column(partition_values, names, count) for _, names, _ in self._partition]
        keys: Sequence[tuple[str | None, ...]] = list(zip(*found, strict=True)) if found else [()] * count
        verdicts = {k: self._by_partition(k) for k in set(keys)}
        return self._reasons_by_statistics(result, [verdicts[k] for k in keys], stats)

    def _reasons_by_statistics(
        self, result: npt.NDArray[np.uint8], verdicts: Sequence[tuple[int, list[Facts]]], stats: Any
    ) -> npt.NDArray[np.uint8]:
        texts = _strings(stats) if stats is not None and not callable(stats) else None
        gone = self._outside()
        for index, (bits, facts) in enumerate(verdicts):
            if not bits & T:
                result[index] = BY_PARTITION
            elif bits != T and self._data and stats is not None:
                text = texts[index] if texts is not None else stats(index)
                if text and ((gone is not None and gone(text)) or not self._by_statistics(text, facts) & T):
                    result[index] = BY_STATISTICS
        return result

    def _outside(self) -> Callable[[str], bool] | None:
        from delta_sharing_spark.predicates.ranges import outside

        paths = enumerate(dict.fromkeys(c.path for c in columns(self._expression)))
        names = {slot: physical[0] for slot, physical, _, readable in self._data if readable and len(physical) == 1}
        return outside(self._expression, {path: names[slot] for slot, path in paths if slot in names})

    def _by_partition(self, texts: tuple[str | None, ...]) -> tuple[int, list[Facts]]:
        verdict = self._verdicts.get(texts)
        if verdict is None:
            facts = [NOTHING_KNOWN] * self._slots
            for (slot, _, kind), text in zip(self._partition, texts, strict=True):
                facts[slot] = self._partition_facts(text, kind)
            verdict = self._outcome(facts), facts
            self._undecided |= bool(verdict[0] & T) and verdict[0] != T
            if len(self._verdicts) >= _CACHED:
                self._verdicts.clear()
            self._verdicts[texts] = verdict
        return verdict

    def _partition_facts(self, text: str | None, kind: DataType) -> Facts:
        try:
            if text == _MISSING:
                return NOTHING_KNOWN
            value = partition_value(text, kind, time_zone=self._zone)
            if value is None:
                return ALL_NULL
            if isinstance(value, date):
                return exactly(value.toordinal() - _EPOCH_DAYS)
            if isinstance(kind, Decimal):
                exact = Fraction(value) * 10**kind.scale
                return exactly(exact.numerator) if exact.denominator == 1 else NOTHING_KNOWN
            return exactly(key(value, kind))
        except (ValueError, OverflowError, ArithmeticError):
            return NOTHING_KNOWN  # the reader reports the value, should the file be read

    def _by_statistics(self, text: str, known: list[Facts]) -> int:
        try:
            stats = json.loads(text)
        except (ValueError, RecursionError):
            return T | F | N
        if not isinstance(stats, dict):
            return T | F | N
        rows = stats.get("numRecords")
        nulls, low, high = stats.get("nullCount"), stats.get("minValues"), stats.get("maxValues")
        facts = list(known)
        for slot, path, kind, readable in self._data:
            count = _at(nulls, path)
            counted = type(count) is int
            has_values = not (counted and type(rows) is int and rows > 0 and count == rows)
            has_nulls = not counted or count != 0
            if readable and has_values:
                facts[slot] = Facts(has_nulls, True, lower(_at(low, path), kind), *upper(_at(high, path), kind))
            else:
                facts[slot] = Facts(has_nulls, has_values)
        return self._outcome(facts)

    def _open_above(self, expression: Expression) -> bool:
        """``float > x`` on statistics, in which NaN, the greatest, does not show."""
        match expression:
            case Compare(op, column, _):
                return op in (">", ">=") and column.type in (FLOAT, DOUBLE) and column.path not in self._partition_names
        return False


def may_match(
    expression: Expression,
    partition_values: Mapping[str, str | None],
    stats: str | None,
    schema: Struct,
    partition_columns: Sequence[str],
    *,
    time_zone: str = "UTC",
) -> bool:
    """:meth:`FileSkipping.may_match` for one file; compile a :class:`FileSkipping` for many."""
    return FileSkipping(expression, schema, partition_columns, time_zone=time_zone).may_match(partition_values, stats)


def _fields(path: tuple[str, ...], schema: Struct) -> list[Field]:
    fields: list[Field] = []
    kind: DataType = schema
    for name in path:
        assert isinstance(kind, Struct)
        found = kind.find(name)
        assert found is not None, f"{path} was bound to another schema"
        fields.append(found)
        kind = found.type
    return fields


def _at(tree: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        if not isinstance(tree, dict):
            return None
        tree = tree.get(name)
    return tree


def _value(values: Mapping[str, str | None], names: tuple[str, str]) -> str | None:
    for name in names:
        if name in values:
            return values[name]
    return _MISSING


def _column(values: Mapping[str, Any], names: tuple[str, str], count: int) -> list[str | None]:
    for name in names:
        if name in values:
            return _strings(values[name])
    return [_MISSING] * count


def _strings(values: Any) -> list[str | None]:
    plain: list[str | None] = values.to_pylist() if isinstance(values, pa.Array | pa.ChunkedArray) else list(values)
    return plain
