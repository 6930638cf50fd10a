"""Skips files that cannot hold a row that passes, by partition values and by the log's statistics (Delta protocol, "Per-file Statistics").

Writers truncate strings and timestamps, round floats and decimals, leave NaN out; each bound that is read here allows for that.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from itertools import repeat
from operator import ge, gt, le, lt
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_sharing_spark.predicates.file_statistics import EPOCH_DAYS, HIGH, LOW, StatisticsReader, days_of
from delta_sharing_spark.predicates.padding import char_length
from delta_sharing_spark.predicates.scalar_types import (
    BINARY,
    BITS,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    FLOATS,
    SCALARS,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    domain,
    float_key,
    key,
)
from delta_sharing_spark.predicates.skip_reason import SkipReason
from delta_sharing_spark.predicates.three_valued import (
    ALL_NULL,
    TRUE,
    UNBOUNDED,
    ColumnBounds,
    bounds_of_statistics,
    compile_possible_values,
    constant_bounds,
    may_exclude,
)
from delta_sharing_spark.predicates.times import DAY, MINUTE, WHOLE_MINUTES
from delta_sharing_spark.predicates.tree import Column, Compare, Expression, columns, conjuncts
from delta_sharing_spark.schema.arrow_bridge import bools, int64s
from delta_sharing_spark.schema.instants import local_micros, timestamp_micros
from delta_sharing_spark.schema.partition_values import partition_keys, partition_value
from delta_sharing_spark.schema.types import DataType, Decimal, Struct, fields_along

#: Characters that writers append to a truncated maximum, to keep it above what it was cut from.
_TIE_BREAKERS = "\ufffd\uffff\U0010ffff\x7f"
#: Shorter maxima than this are taken as they are; Delta keeps 32 characters.
_TRUNCATED = 31
_ZONED = re.compile(r"[T ].*(?:Z|[+-][0-9:]{2,8})$")
_SECONDS = re.compile(r"[+-][0-9]{2}:[0-9]{2}:[0-9]{2}$")
#: Numbers that JSON has no form for, as statistics name them.
_NAMED = ("NaN", "Infinity", "-Infinity")


def has_bounds(kind: DataType) -> bool:
    """Whether bounds of this type are read at all."""
    return isinstance(kind, Decimal) or (kind in SCALARS and kind != BINARY)


def lower(value: Any, kind: DataType) -> Any:
    """A key that no value is below, from ``minValues``; None if there is none that is certain."""
    key = _bound(value, kind, False)
    # A minimum of NaN may be a writer's that compares by IEEE: it says nothing of the numbers beside the NaN.
    return None if kind in FLOATS and key is not None and key >= domain(kind)[1] else key


def upper(value: Any, kind: DataType) -> tuple[Any, Any]:
    """Two keys from ``maxValues``: one that no value is above, one that no value but NaN is above; None where none is certain."""
    key = _bound(value, kind, True)
    if kind in FLOATS:
        nan = domain(kind)[1]
        return nan, None if key is None or key >= nan else key
    return key, key


def _bound(value: Any, kind: DataType, is_upper: bool) -> Any:
    if value is None:
        return None
    try:
        if kind == STRING:
            return _string(value, is_upper) if isinstance(value, str) else None
        if kind in BITS:
            return _integer(value)
        if kind == DATE:
            return days_of(value) if isinstance(value, str) else None
        if kind in (TIMESTAMP, TIMESTAMP_NTZ):
            return _timestamp(value, kind == TIMESTAMP_NTZ, is_upper) if isinstance(value, str) else None
        if kind in FLOATS:
            return _floating(value, 32 if kind == FLOAT else 64, is_upper)
        if isinstance(kind, Decimal):
            return _decimal(value, kind.scale, is_upper)
        return int(value) if kind == BOOLEAN and isinstance(value, bool) else None
    except (ValueError, OverflowError, ArithmeticError):
        return None  # a form we do not know bounds nothing: the file is kept


def _string(value: str, is_upper: bool) -> bytes:
    """The key of a bound; raises UnicodeEncodeError, a ValueError, where it holds half a surrogate pair."""
    if not is_upper:
        return value.encode()
    cut, units = value, value.encode("utf-16-le", "surrogatepass")
    if len(units) >= 2 * _TRUNCATED:
        cut = units[: 2 * _TRUNCATED].decode("utf-16-le", "ignore")
    cut = cut.rstrip(_TIE_BREAKERS)
    return cut.encode() + b"\xff" if cut != value else value.encode()


def _integer(value: Any) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return None


def _timestamp(value: str, is_ntz: bool, is_upper: bool) -> int:
    if len(value) in (23, 24) and value[10] == "T" and (value[-1] == "Z") == (len(value) == 24):
        if len(value) == 23 and not is_ntz:
            raise ValueError("a timestamp without its zone")
        wall = datetime.fromisoformat(value[:23])
        days = wall.toordinal() - EPOCH_DAYS
        micros = days * DAY + ((wall.hour * 60 + wall.minute) * 60 + wall.second) * 1_000_000 + wall.microsecond
    elif is_ntz or _ZONED.search(value):
        micros = local_micros(value) if is_ntz else timestamp_micros(value, "UTC")
    else:
        raise ValueError("a timestamp without its zone")
    # Writers drop microseconds. Delta up to 3.3 drops the seconds of an offset, which zones had until 1972.
    slack = MINUTE if not is_ntz and micros < WHOLE_MINUTES and not _SECONDS.search(value) else 0
    return micros + 1000 + slack if is_upper else micros - slack


def _floating(value: Any, bits: int, is_upper: bool) -> int | None:
    if isinstance(value, bool) or not (isinstance(value, int | float) or value in _NAMED):
        return None
    number = float(value)
    if bits == 64:
        return float_key(number, 64)
    return float_key(number, 32) + (1 if is_upper else -1)  # written through a decimal text, by writers of two widths


def _decimal(value: Any, scale: int, is_upper: bool) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str | decimal.Decimal):
        return None
    exact = Fraction(decimal.Decimal(repr(value) if isinstance(value, float) else value)) * 10**scale
    key = -(-exact.numerator // exact.denominator) if is_upper else exact.numerator // exact.denominator
    if abs(key) >= 10**15:  # a JSON number of more digits may have gone through a double, at either end
        slack = (abs(key) >> 50) + 1
        key += slack if is_upper else -slack
    return key


#: What a file's partition values are skipped by.
PartitionKey: TypeAlias = "tuple[str | None, ...]"
_CACHED = 65_536
#: Stands for a partition value that the plan lacks: the reader says what is wrong with such a file.
_MISSING = "\0missing"


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
        self._data: list[tuple[int, tuple[str, ...], DataType, bool]] = []
        for slot, (path, column) in enumerate(paths.items()):
            fields = fields_along(schema, path)
            assert fields is not None, f"{path} was bound to another schema"
            if len(path) == 1 and path[0].lower() in partitions:
                self._partition.append((slot, keys[fields[0].physical_name], column.type))
            else:
                physical = tuple(f.physical_name for f in fields)
                was_float = column.type == DOUBLE and fields[-1].was_another_type
                readable = has_bounds(column.type) and not was_float
                self._data.append((slot, physical, column.type, readable))
        self._slots = len(paths)
        self._possible_values = compile_possible_values(expression, {path: slot for slot, path in enumerate(paths)})
        self._expression = expression
        self._partition_names = frozenset(path for path in paths if len(path) == 1 and path[0].lower() in partitions)
        names = list(paths)
        ranged = {names[slot]: physical[0] for slot, physical, _, has in self._data if has and len(physical) == 1}
        self._exclusions = tuple(
            Exclusion(side, ranged[part.column.path], part.column.type == DATE, part.literal.value, excludes, function)
            for part in conjuncts(expression)
            if isinstance(part, Compare) and part.column.path in ranged
            if (part.column.type in BITS or part.column.type == DATE) and type(part.literal.value) is int
            for side, excludes, function in _EXCLUDES[part.op]
        )
        ranges = {exclusion.column: exclusion.is_date for exclusion in self._exclusions}
        self.reader = StatisticsReader(self.stats_columns, ranges)
        self._verdicts: dict[tuple[str | None, ...], tuple[int, list[ColumnBounds]]] = {}
        self._has_undecided = bool(self._data)

    @property
    def stats_columns(self) -> frozenset[str]:
        """Physical names of the top-level columns whose statistics are looked at."""
        return frozenset(physical[0] for _, physical, _, _ in self._data)

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

    def reason(self, partition_values: Mapping[str, str | None], stats: str | None) -> SkipReason:
        """Why a file can be skipped.

        Args:
            partition_values: By physical or logical names, as the log serializes them; one that is missing may be anything.
            stats: The JSON of the file's statistics, or None.
        """
        bits, bounds = self._by_partition(self.partition_key(partition_values))
        if not bits & TRUE:
            return SkipReason.PARTITION_VALUES
        must_read = bits == TRUE or not stats or self._by_statistics(stats, bounds)
        return SkipReason.KEEP if must_read else SkipReason.STATISTICS

    def reasons(
        self,
        count: int,
        partition_values: Mapping[str, pa.StringArray],
        stats: Callable[[list[int]], Sequence[str | None]] | None = None,
        parsed: pa.StructArray | None = None,
    ) -> npt.NDArray[np.uint8]:
        """:meth:`reason` for ``count`` files in columns.

        Args:
            partition_values: Physical or logical name of each partition column to one serialized value a file.
            stats: The JSON of the statistics of the files at some places; asked for once, of those not skipped before.
            parsed: The same statistics in columns, where the log keeps them so.
        """
        columns = [_under(partition_values, names, None) for _, names, _ in self._partition]
        columns_of_text = [[_MISSING] * count if column is None else column.to_pylist() for column in columns]
        rows: Iterable[tuple[str | None, ...]] = zip(*columns_of_text, strict=True) if columns else repeat((), count)
        numbers: dict[PartitionKey, int] = {}
        of_files = np.fromiter((numbers.setdefault(row, len(numbers)) for row in rows), np.int64, count)
        return self.reasons_of(list(numbers), of_files, stats, None if parsed is None else lambda: parsed)

    def partition_key(self, partition_values: Mapping[str, str | None]) -> PartitionKey:
        """The values that files are skipped by, of a file's partition values by physical or logical names."""
        return tuple(_under(partition_values, names, _MISSING) for _, names, _ in self._partition)

    def reasons_of(
        self,
        keys: Sequence[PartitionKey],
        numbers: npt.NDArray[np.integer[Any]],
        stats: Callable[[list[int]], Sequence[str | None]] | None = None,
        parsed: Callable[[], pa.StructArray] | None = None,
    ) -> npt.NDArray[np.uint8]:
        """:meth:`reasons` of files whose partition values are told by ``partition_key``.

        Args:
            keys: Different ones; they may be more than the files have.
            numbers: The place of each file's among them.
            stats: As for ``reasons``.
            parsed: The statistics of all files in columns; asked for where partition values do not decide. None: made of ``stats``.
        """
        result = np.zeros(len(numbers), np.uint8)
        used, inverse = np.unique(numbers, return_inverse=True)
        verdicts = [self._by_partition(keys[number]) for number in used.tolist()]
        bits = np.fromiter((bits for bits, _ in verdicts), np.int64, len(verdicts))[inverse]
        result[bits & TRUE == 0] = SkipReason.PARTITION_VALUES
        places = np.flatnonzero((bits & TRUE != 0) & (bits != TRUE))
        if stats is None or not self._data or not len(places):
            return result
        texts: Sequence[str | None] | None = None
        if parsed is not None:
            excluded = self._excluded(parsed())
            excluded = None if excluded is None else excluded[places]
        else:
            texts = stats(places.tolist()) if self._exclusions else None
            excluded = None if texts is None else self._excluded(self.reader.bounds(texts))
        if excluded is not None and excluded.any():
            result[places[excluded]] = SkipReason.STATISTICS
            places = places[~excluded]
            texts = None if texts is None else [texts[place] for place in np.flatnonzero(~excluded).tolist()]
        if not len(places):
            return result
        texts = stats(places.tolist()) if texts is None else texts
        for place, text in zip(places.tolist(), texts, strict=True):
            if text and not self._by_statistics(text, verdicts[inverse[place]][1]):
                result[place] = SkipReason.STATISTICS
        return result

    def _excluded(self, parsed: pa.StructArray) -> npt.NDArray[np.bool_] | None:
        """Of which files the statistics in columns show that no row passes; None where they show it of none."""
        masks = [mask for each in self._exclusions if (mask := each.among(parsed)) is not None]
        decided = [bools(pc.and_kleene(mask, mask.is_valid())) for mask in masks]
        return np.logical_or.reduce(decided) if decided else None

    def _by_partition(self, texts: PartitionKey) -> tuple[int, list[ColumnBounds]]:
        verdict = self._verdicts.get(texts)
        if verdict is None:
            bounds = [UNBOUNDED] * self._slots
            for (slot, _, kind), text in zip(self._partition, texts, strict=True):
                bounds[slot] = self._partition_bounds(text, kind)
            verdict = self._possible_values(bounds), bounds
            self._has_undecided |= bool(verdict[0] & TRUE) and verdict[0] != TRUE
            if len(self._verdicts) >= _CACHED:
                self._verdicts.clear()
            self._verdicts[texts] = verdict
        return verdict

    def _partition_bounds(self, text: str | None, kind: DataType) -> ColumnBounds:
        if text == _MISSING:
            return UNBOUNDED
        try:
            value = partition_value(text, kind, time_zone=self._zone)
            return ALL_NULL if value is None else constant_bounds(key(value, kind))
        except (ValueError, OverflowError):
            return UNBOUNDED  # the reader reports the value, should the file be read

    def _by_statistics(self, text: str, column_bounds: list[ColumnBounds]) -> bool:
        """Whether a row may pass, by the JSON of the file's statistics and the bounds of its partition values."""
        stats = self.reader.read(text) if self._data else None
        if stats is None:
            return True
        for exclusion in self._exclusions:
            if exclusion.excludes_file(stats, self.reader.attributes[exclusion.column]):
                return False
        bounds = list(column_bounds)
        for slot, path, kind, readable in self._data:
            least, greatest, count = (self._value(of, path) for of in (stats.low, stats.high, stats.nulls))
            keys = (lower(least, kind), *upper(greatest, kind)) if readable else ()
            is_bounded = least is not None or greatest is not None
            if count == 0 and not is_bounded and readable and kind != BOOLEAN:
                count = None  # delta-rs writes 0 for a file that it takes over, and whose footer tells neither bounds nor a count
            bounds[slot] = bounds_of_statistics(kind, stats.rows, count, is_bounded, *keys)
        return bool(self._possible_values(bounds) & TRUE)

    def _value(self, of_columns: Any, path: tuple[str, ...]) -> Any:
        """A value of a column in a part of the statistics; None where that part has none."""
        value = None if of_columns is None else getattr(of_columns, self.reader.attributes[path[0]])
        for name in path[1:]:
            value = value.get(name) if isinstance(value, dict) else None
        return value

    def _open_above(self, part: Expression) -> bool:
        """Whether this is ``float > x``, which statistics cannot exclude: they do not show NaN, the greatest value."""
        if not isinstance(part, Compare) or part.op not in (">", ">="):
            return False
        return part.column.type in FLOATS and part.column.path not in self._partition_names


def _under(values: Mapping[str, Any], names: tuple[str, ...], default: Any) -> Any:
    """The value under the first of some names that is there."""
    return next((values[name] for name in names if name in values), default)


_OTHER = {LOW: HIGH, HIGH: LOW}
#: The bounds by which no value of a file can compare so: as a test of one, and of a column of them.
_EXCLUDES: dict[str, list[tuple[str, Callable[[int, int], bool], str]]] = {
    "=": [(LOW, gt, "greater"), (HIGH, lt, "less")],
    "<": [(LOW, ge, "greater_equal")],
    "<=": [(LOW, gt, "greater")],
    ">": [(HIGH, le, "less_equal")],
    ">=": [(HIGH, lt, "less")],
}


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A bound of one column by which a file holds no row that passes; ``value`` is an integer, or days since 1970.

    Bounds of which the lower is above the upper show nothing.
    """

    bound: str
    column: str
    is_date: bool
    value: int
    excludes: Callable[[int, int], bool]
    function: str

    def excludes_file(self, stats: Any, attribute: str) -> bool:
        """Whether a file's statistics, as ``StatisticsReader`` reads them, show that no row passes; ``attribute`` is the column's there."""
        sides = (stats.low, stats.high) if self.bound == LOW else (stats.high, stats.low)
        bound: Any = getattr(sides[0], attribute, None)
        other: Any = getattr(sides[1], attribute, None)
        value = lower(bound, DATE) if self.is_date else bound
        if type(value) is not int or not self.excludes(value, self.value):
            return False
        # As texts, dates are in their order.
        return type(other) is not type(bound) or (bound <= other if self.bound == LOW else other <= bound)

    def among(self, stats: pa.StructArray) -> pa.BooleanArray | None:
        """The same for many files' statistics in columns (null: unknown); None if they lack the column."""
        bounds = self._column(stats, self.bound)
        if bounds is None:
            return None
        value = int64s([self.value])
        value = (value.cast(pa.int32()).view(bounds.type) if self.is_date else value)[0]
        outside = getattr(pc, self.function)(bounds, value)
        others = self._column(stats, _OTHER[self.bound])
        if others is None:
            return outside
        is_in_order = (pc.less_equal if self.bound == LOW else pc.greater_equal)(bounds, others)
        return pc.and_kleene(outside, pc.or_kleene(is_in_order, is_in_order.is_null()))

    def _column(self, stats: pa.StructArray, bound: str) -> pa.Array | None:
        kind: Any = stats.type
        for name in (bound, self.column):
            if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
                return None
            kind = kind.field(name).type
        is_read = pa.types.is_date32(kind) if self.is_date else pa.types.is_integer(kind)
        return pc.struct_field(stats, [bound, self.column]) if is_read else None
