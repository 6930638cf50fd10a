"""Skips files that cannot hold a row that passes, by partition values and by the log's statistics (Delta protocol, "Per-file Statistics").

Many files are alike to a predicate: their bounds lie alike among the values that it names. One of each kind is looked at.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from delta_sharing_spark.predicates.file_statistics import FileStatistics, StatisticsColumn, StatisticsReader
from delta_sharing_spark.predicates.key_columns import Integers
from delta_sharing_spark.predicates.padding import char_length
from delta_sharing_spark.predicates.scalar_types import BINARY, BOOLEAN, DOUBLE, FLOATS, key
from delta_sharing_spark.predicates.skip_reason import SkipReason
from delta_sharing_spark.predicates.statistic_keys import has_bounds
from delta_sharing_spark.predicates.three_valued import (
    ALL_NULL,
    TRUE,
    UNBOUNDED,
    ColumnBounds,
    compile_possible_values,
    constant_bounds,
    may_exclude,
    split_keys,
)
from delta_sharing_spark.predicates.tree import Column, Compare, Expression, columns, conjuncts
from delta_sharing_spark.schema.arrow_bridge import bools, integers
from delta_sharing_spark.schema.partition_values import partition_keys, partition_value
from delta_sharing_spark.schema.types import DataType, Struct, fields_along

#: What a file's partition values are skipped by.
PartitionKey: TypeAlias = "tuple[str | None, ...]"
#: Numbers of kinds of files stay below this.
_MOST_KINDS = 1 << 62
#: Stands for a partition value that the plan lacks: the reader says what is wrong with such a file.
_MISSING = "\0missing"


class Statistics(Protocol):
    """The statistics of some files."""

    def of(self, reader: StatisticsReader, places: Integers, /) -> FileStatistics:
        """What a reader finds in those of the files at some places, which grow."""


class TextStatistics:
    """Statistics in JSON, of each file or None (``Statistics``)."""

    def __init__(self, texts: Sequence[str | None]) -> None:
        self._texts = texts

    def of(self, reader: StatisticsReader, places: Integers) -> FileStatistics:
        texts = self._texts
        return reader.of_texts(texts if len(places) == len(texts) else [texts[place] for place in places.tolist()])


class FileSkipping:
    """A predicate, compiled once against a table's schema and applied to many files.

    Args:
        expression: A bound tree from ``parse_where``.
        schema: The table's whole schema with its column mapping (statistics and partition values go by physical names).
        time_zone: The zone of partition timestamps that name none, as in ``ReadSpec``.

    Attributes:
        reader: Reads what is looked at of files' statistics.
    """

    def __init__(
        self, expression: Expression, schema: Struct, partition_columns: Sequence[str], *, time_zone: str | None = "UTC"
    ) -> None:
        self._zone = time_zone
        partitions = {name.lower() for name in partition_columns}
        paths: dict[tuple[str, ...], Column] = {c.path: c for c in columns(expression)}
        keys = partition_keys({f.name: f.physical_name for f in schema.fields if f.name.lower() in partitions})
        self._partition: list[tuple[int, tuple[str, ...], DataType]] = []
        #: The places of the columns of ``reader`` among those of the predicate.
        self._data: list[int] = []
        read: list[StatisticsColumn] = []
        for slot, (path, column) in enumerate(paths.items()):
            fields = fields_along(schema, path)
            assert fields is not None, f"{path} was bound to another schema"
            if len(path) == 1 and path[0].lower() in partitions:
                self._partition.append((slot, keys[fields[0].physical_name], column.type))
            else:
                was_float = column.type == DOUBLE and fields[-1].was_another_type
                self._data.append(slot)
                physical = tuple(f.physical_name for f in fields)
                read.append((physical, column.type, has_bounds(column.type) and not was_float))
        self._slots = len(paths)
        self._possible_values = compile_possible_values(expression, {path: slot for slot, path in enumerate(paths)})
        splits = split_keys(expression)
        self._splits = None if splits is None else [splits[path] for path in paths]
        self._expression = expression
        self._partition_names = frozenset(path for path in paths if len(path) == 1 and path[0].lower() in partitions)
        self.reader = StatisticsReader(read)
        #: Numbers of partition values, and by these the truth values that rows may give, and a number of values that are alike.
        self._numbers: dict[PartitionKey, int] = {}
        self._bits, self._kinds = array("q"), array("q")
        #: The bounds of values that are alike.
        self._bounds: list[list[ColumnBounds]] = []
        self._alike_values: dict[object, int] = {}
        self._has_undecided = bool(self._data)

    @property
    def stats_columns(self) -> frozenset[str]:
        """Physical names of the top-level columns whose statistics are looked at."""
        return frozenset(physical[0] for physical, _, _ in self.reader.columns)

    @property
    def is_decided(self) -> bool:
        """Whether partition values alone decided every file so far, so that all rows of the remaining files pass."""
        return not self._has_undecided

    def non_pruning_conjuncts(self) -> tuple[Expression, ...]:
        """The conjuncts by which no file can be skipped: they only filter rows."""

        def has_bounds_of(column: Column) -> bool:
            if char_length(column.type):
                return False
            return column.path in self._partition_names or column.type not in (BOOLEAN, BINARY)

        return tuple(c for c in conjuncts(self._expression) if not may_exclude(c, has_bounds_of) or self._open_above(c))

    def reasons(
        self, count: int, partition_values: Mapping[str, pa.StringArray], statistics: Statistics
    ) -> npt.NDArray[np.uint8]:
        """Why each of ``count`` files can be skipped.

        Args:
            partition_values: Physical or logical name of each partition column to one value a file, as the log serializes them. One that
                is missing may be anything.
            statistics: Asked for once, of the files that partition values do not decide.
        """
        columns = [_under(partition_values, names, None) for _, names, _ in self._partition]
        dictionaries = (column.dictionary_encode() for column in columns if column is not None)
        values = (
            (np.where(bools(one.is_valid()), integers(one.indices), -1) + 1, len(one.dictionary) + 1)
            for one in dictionaries
        )
        first, kinds = _first_of_each(np.zeros(count, np.int64), 1, values)
        rows = (
            tuple(_MISSING if column is None else column[place].as_py() for column in columns)
            for place in first.tolist()
        )
        return self.reasons_of(np.fromiter(map(self._number, rows), np.int64, len(first))[kinds], statistics)

    def partition_number(self, partition_values: Mapping[str, str | None]) -> int:
        """A number of partition values by physical or logical names, for ``reasons_of``."""
        return self._number(tuple(_under(partition_values, names, _MISSING) for _, names, _ in self._partition))

    def reasons_of(self, numbers: npt.NDArray[np.integer[Any]], statistics: Statistics) -> npt.NDArray[np.uint8]:
        """:meth:`reasons` of files with the ``partition_number`` of each."""
        result = np.zeros(len(numbers), np.uint8)
        bits = np.array(self._bits, np.int64)[numbers]
        result[bits & TRUE == 0] = SkipReason.PARTITION_VALUES
        places = np.flatnonzero((bits & TRUE != 0) & (bits != TRUE))
        if not self._data or not len(places):
            return result
        of_files = statistics.of(self.reader, places)
        of_values = np.array(self._kinds, np.int64)[numbers[places]]
        first, kinds = self._alike(of_values, of_files)
        may_pass = np.fromiter(
            (self._may_pass(self._bounds[of_values[place]], of_files, place) for place in first.tolist()),
            bool,
            len(first),
        )
        result[places[of_files.is_there & ~may_pass[kinds]]] = SkipReason.STATISTICS
        return result

    def _alike(self, kinds: Integers, statistics: FileStatistics) -> tuple[Integers, Integers]:
        """Places of files no two of which are alike, and for each file the number of the one that it is like."""
        if self._splits is None:
            places = np.arange(len(kinds))
            return places, places
        splits = [self._splits[slot] for slot in self._data]
        parts = (
            part
            for column, (keys, by_value) in zip(statistics.columns, splits, strict=True)
            for part in column.classes(keys, by_value=by_value)
        )
        return _first_of_each(kinds, len(self._alike_values), parts)

    def _may_pass(self, of_partition: Sequence[ColumnBounds], statistics: FileStatistics, place: int) -> bool:
        """Whether a row of a file may pass, by the bounds of its partition values and its statistics."""
        bounds = list(of_partition)
        for slot, column in zip(self._data, statistics.columns, strict=True):
            bounds[slot] = column.bounds_at(place)
        return bool(self._possible_values(bounds) & TRUE)

    def _number(self, texts: PartitionKey) -> int:
        number = self._numbers.get(texts)
        if number is None:
            number = self._numbers[texts] = len(self._numbers)
            bounds = [UNBOUNDED] * self._slots
            for (slot, _, kind), text in zip(self._partition, texts, strict=True):
                bounds[slot] = self._partition_bounds(text, kind)
            bits = self._possible_values(bounds)
            alike = tuple(self._kind_of(slot, bounds[slot]) for slot, _, _ in self._partition)
            self._bits.append(bits)
            self._kinds.append(self._alike_values.setdefault(alike, len(self._alike_values)))
            if len(self._bounds) < len(self._alike_values):
                self._bounds.append(bounds)
            self._has_undecided |= bool(bits & TRUE) and bits != TRUE
        return number

    def _kind_of(self, slot: int, bounds: ColumnBounds) -> object:
        """What is equal for partition values that are alike."""
        if self._splits is None or self._splits[slot][1] or bounds.low is None:
            return bounds
        splits = self._splits[slot][0]
        first = bisect_left(splits, bounds.low)
        return first, first < len(splits) and splits[first] == bounds.low

    def _partition_bounds(self, text: str | None, kind: DataType) -> ColumnBounds:
        if text == _MISSING:
            return UNBOUNDED
        try:
            value = partition_value(text, kind, time_zone=self._zone)
            return ALL_NULL if value is None else constant_bounds(key(value, kind))
        except (ValueError, OverflowError):
            return UNBOUNDED  # the reader reports the value, should the file be read

    def _open_above(self, part: Expression) -> bool:
        """Whether this is ``float > x``, which statistics cannot exclude: they do not show NaN, the greatest value."""
        if not isinstance(part, Compare) or part.op not in (">", ">="):
            return False
        return part.column.type in FLOATS and part.column.path not in self._partition_names


def _first_of_each(kinds: Integers, total: int, parts: Iterable[tuple[Integers, int]]) -> tuple[Integers, Integers]:
    """The first place of each kind of files, and for each file the number of its kind.

    Args:
        kinds: Numbers below ``total``, of each file.
        parts: More numbers of each file, and what they are below: files are of one kind where all are equal.
    """
    for numbers, count in parts:
        if total * count >= _MOST_KINDS:
            kinds = np.unique(kinds, return_inverse=True)[1]
            total = len(kinds)
        kinds, total = kinds * count + numbers, total * count
    _, first, kinds = np.unique(kinds, return_index=True, return_inverse=True)
    return first, kinds


def _under(values: Mapping[str, Any], names: tuple[str, ...], default: Any) -> Any:
    """The value under the first of some names that is there."""
    return next((values[name] for name in names if name in values), default)
