"""Reads what a predicate looks at of many files' statistics (Delta protocol, "Per-file Statistics"), into arrays."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from operator import attrgetter
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from delta_sharing_spark.predicates.key_columns import (
    Bools,
    Integers,
    KeyColumn,
    Values,
    is_there,
    keys_of,
    no_keys,
    whole_numbers,
)
from delta_sharing_spark.predicates.scalar_types import BITS, BOOLEAN, FLOATS, STRING, domain
from delta_sharing_spark.predicates.three_valued import ALL_NULL, ColumnBounds, is_scalar
from delta_sharing_spark.schema.arrow_bridge import int64s, strings
from delta_sharing_spark.schema.typed_json import lines_of, records_together, statistics_lines, statistics_object
from delta_sharing_spark.schema.types import DataType

ROWS, NULLS, LOW, HIGH = "numRecords", "nullCount", "minValues", "maxValues"
#: What msgspec renames no field to.
_NOT_RENAMED = re.compile(r'["\\\x00-\x1f]')
#: Physical names of a column or nested field, its type, and whether its bounds are read.
StatisticsColumn: TypeAlias = tuple[tuple[str, ...], DataType, bool]
_Long: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
#: The form that bounds of a type mostly have, and what makes an array of them.
_FORMS: Mapping[DataType | None, tuple[Any, Callable[[Sequence[Any]], pa.Array]]] = {
    **dict.fromkeys(BITS, (_Long | None, int64s)),
    STRING: (str | None, strings),
}


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """What the statistics of some files tell of a column, by file.

    Attributes:
        kind: The column's type, if its bounds are read.
        has_nulls: Whether a NULL may be in it.
        is_all_null: Whether it holds nothing else.
        is_odd: Whether the bounds contradict each other, so that they tell nothing.
        low, high: The bounds; of floats ``high`` is that of all values but NaN.
    """

    kind: DataType | None
    has_nulls: Bools
    is_all_null: Bools
    is_odd: Bools
    low: KeyColumn
    high: KeyColumn

    def bounds_at(self, place: int) -> ColumnBounds:
        """The bounds in a file."""
        if self.is_all_null[place]:
            return ALL_NULL
        has_nulls = bool(self.has_nulls[place])
        if self.is_odd[place]:
            return ColumnBounds(has_nulls)
        high = self.high.at(place)
        greatest = domain(self.kind)[1] if self.kind in FLOATS and self.kind is not None else high
        return ColumnBounds(has_nulls, True, self.low.at(place), greatest, high)

    def classes(self, splits: Sequence[Any], *, by_value: bool) -> list[tuple[Integers, int]]:
        """Numbers of each file, and how many there may be: where they are equal, bounds lie alike among some keys in order.

        Args:
            by_value: Whether bounds that are the same value are told from others between the same keys.
        """
        states = np.where(self.is_all_null, 4, 2 * self.is_odd + self.has_nulls)
        if self.kind is None:
            return [(states, 5)]
        most = 2 * len(splits) + 2
        low, high = (bound.ranks(splits) for bound in (self.low, self.high))
        parts = [(states, 5), (low, most), (high, most)]
        if by_value:
            alike = (low == high) & (low > 0) & ~self.low.above(self.high) & ~self.high.above(self.low)
            values = self.low.numbers(alike)
            parts.append((values, int(values.max(initial=0)) + 1))
        return parts

    @property
    def nbytes(self) -> int:
        """About the bytes that it takes."""
        return int(3 * len(self.has_nulls) + self.low.keys.nbytes + self.high.keys.nbytes)

    def take(self, places: Integers) -> ColumnStatistics:
        """The same of the files at some places."""
        return ColumnStatistics(
            self.kind,
            self.has_nulls[places],
            self.is_all_null[places],
            self.is_odd[places],
            self.low.take(places),
            self.high.take(places),
        )


@dataclass(frozen=True, slots=True)
class FileStatistics:
    """The statistics of some files: which files have any, and what they tell of columns."""

    is_there: Bools
    columns: Sequence[ColumnStatistics]


def column_statistics(
    kind: DataType, rows: Callable[[], Values], nulls: Values, lows: Values, highs: Values, *, is_read: bool
) -> ColumnStatistics:
    """What statistics tell of a column; where they contradict themselves, they tell nothing.

    Args:
        kind: The column's type. Of arrays, maps and structs some writers count what is NULL within.
        rows: Gives the numbers of rows.
        nulls: The numbers of NULLs.
        is_read: Whether the bounds are read; if they are not, they still tell that there is a value.
    """
    is_bounded = is_there(lows) | is_there(highs)
    of_nulls, is_counted = _counts(nulls)
    is_all_null = np.zeros_like(is_bounded)
    if is_scalar(kind) and not is_bounded.all():
        of_rows, has_rows = _counts(rows())
        is_all_null = ~is_bounded & has_rows & is_counted & (of_rows > 0) & (of_rows == of_nulls)
    has_nulls = ~is_counted | (of_nulls != 0)
    if is_read and kind != BOOLEAN:
        has_nulls |= (
            ~is_bounded
        )  # delta-rs writes 0 for a file that it takes over, and whose footer tells neither bounds nor a count
    if not is_read:
        nothing = no_keys(len(has_nulls))
        return ColumnStatistics(None, has_nulls, is_all_null, np.zeros_like(has_nulls), nothing, nothing)
    low, high = keys_of(lows, kind, is_upper=False), keys_of(highs, kind, is_upper=True)
    return ColumnStatistics(kind, has_nulls, is_all_null, low.above(high), low, high)


def _counts(values: Values) -> tuple[Integers, Bools]:
    """Numbers, and of which files the statistics tell them; those that are none, or beyond 64 bits, count as missing."""
    with suppress(OverflowError):
        if (numbers := whole_numbers(values)) is not None:
            return numbers
    listed = [value if type(value) is int and abs(value) < 1 << 63 else None for value in values]
    return whole_numbers(listed) or _counts([])


class StatisticsReader:
    """Reads what statistics tell of some columns.

    Attributes:
        columns: The columns.
    """

    def __init__(self, columns: Sequence[StatisticsColumn]) -> None:
        self.columns = tuple(columns)
        self._narrowed: dict[tuple[StatisticsColumn, ...], StatisticsReader] = {}
        kinds: dict[str, DataType | None] = {}
        for path, kind, _ in columns:
            kinds[path[0]] = None if path[1:] or path[0] in kinds else kind
        self._attributes = {name: f"column_{number}" for number, name in enumerate(sorted(kinds))}
        is_decoded = not any(map(_NOT_RENAMED.search, kinds))
        renamed = {attribute: name for name, attribute in self._attributes.items()} if is_decoded else None

        def of_columns(form_of: Callable[[DataType | None], Any]) -> Any:
            fields = [(self._attributes[name], form_of(kind), None) for name, kind in kinds.items()]
            return msgspec.defstruct("OfColumns", fields, rename=renamed, gc=False)

        def record(*forms: tuple[str, Any]) -> Any:
            sides = [(part, kind, msgspec.field(default_factory=kind)) for part, kind in forms]
            return msgspec.defstruct("Statistics", [(ROWS, Any, None), *sides], gc=False)

        self._of_columns = of_columns(lambda _: Any)
        self._record = record(*((part, self._of_columns) for part in (NULLS, LOW, HIGH)))
        self._decode = msgspec.json.Decoder(self._record if is_decoded else Any).decode
        # Of many files msgspec checks the forms that integers and strings mostly have.
        counts, bounds = of_columns(lambda _: _Long | None), of_columns(lambda kind: _FORMS.get(kind, (Any,))[0])
        together = record((NULLS, counts), (LOW, bounds), (HIGH, bounds)) | None
        self._decode_lines = msgspec.json.Decoder(together).decode_lines if is_decoded else None
        self._arrays = {
            (side, name): _FORMS[kind][1] for name, kind in kinds.items() if kind in _FORMS for side in (LOW, HIGH)
        }
        self._arrays |= {(NULLS, name): int64s for name in kinds}

    def narrowed_to(self, columns: tuple[StatisticsColumn, ...]) -> StatisticsReader:
        """The reader of some of the columns."""
        if columns == self.columns:
            return self
        reader = self._narrowed.get(columns)
        if reader is None:
            reader = self._narrowed[columns] = StatisticsReader(columns)
        return reader

    def of_texts(self, texts: Sequence[str | None]) -> FileStatistics:
        """The statistics in JSON; a file's that are missing or cannot be read tell nothing."""
        return self.of_lines(statistics_lines(texts), len(texts))

    def of_lines(self, lines: bytes, count: int) -> FileStatistics:
        """The same of ``count`` files' ``statistics_lines``."""
        together = records_together(lines, count, self._decode_lines)
        records = [self._read(text) for text in lines_of(lines)] if together is None else together
        present = is_there(records)
        if not present.all():
            missing = self._record()
            records = [missing if record is None else record for record in records]

        def values(part: str, path: Sequence[str]) -> Values:
            if not path:
                return list(map(attrgetter(part), records))
            of_files = list(map(attrgetter(f"{part}.{self._attributes[path[0]]}"), records))
            if together is not None and (array := self._arrays.get((part, path[0]))) is not None:
                return array(of_files)
            for name in path[1:]:
                of_files = [value.get(name) if isinstance(value, dict) else None for value in of_files]
            return of_files

        return self.of_values(present, values)

    def of_values(self, is_present: Bools, values: Callable[[str, Sequence[str]], Values]) -> FileStatistics:
        """The statistics of files, of which ``values`` gives a part of a column; of ``ROWS``, which is of none, the path is empty."""
        if not len(is_present):
            return FileStatistics(
                is_present, [column_statistics(k, list, [], [], [], is_read=r) for _, k, r in self.columns]
            )
        rows = cache(partial(values, ROWS, ()))
        columns = [
            column_statistics(kind, rows, *(values(part, path) for part in (NULLS, LOW, HIGH)), is_read=is_read)
            for path, kind, is_read in self.columns
        ]
        return FileStatistics(is_present, columns)

    def _read(self, text: str) -> Any:
        # Writers may put NaN, halves of surrogate pairs, or a field of another form beside the ones that are looked at.
        tree = statistics_object(text, self._decode)
        if not isinstance(tree, dict):
            return tree
        nothing = self._of_columns()
        parts = (tree.get(name) for name in (NULLS, LOW, HIGH))
        sides = (
            self._of_columns(*map(part.get, self._attributes)) if isinstance(part, dict) else nothing for part in parts
        )
        return self._record(tree.get(ROWS), *sides)
