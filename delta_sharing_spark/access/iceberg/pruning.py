"""Leaves out manifests and files by partitions (inclusive projection through transforms, Iceberg, "Partition Transforms") and bounds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal as Number
from functools import lru_cache
from typing import Any

from delta_sharing_spark.access.iceberg.buckets import Buckets
from delta_sharing_spark.access.iceberg.column_bounds import StoredBounds, decode_bound, number_of
from delta_sharing_spark.access.iceberg.manifests import Entry, Manifest
from delta_sharing_spark.access.iceberg.metadata import PartitionField
from delta_sharing_spark.access.iceberg.schema import UUID
from delta_sharing_spark.access.pruning import FilePruner
from delta_sharing_spark.access.resolved_scan import ResolvedScan
from delta_sharing_spark.predicates.scalar_types import key
from delta_sharing_spark.predicates.skip_reason import SkipReason
from delta_sharing_spark.predicates.three_valued import (
    ALL_NULL,
    TRUE,
    UNBOUNDED,
    ColumnBounds,
    PossibleValues,
    compile_possible_values,
)
from delta_sharing_spark.predicates.times import DAY
from delta_sharing_spark.predicates.tree import columns
from delta_sharing_spark.schema.instants import EPOCH_DAY
from delta_sharing_spark.schema.types import ICEBERG_TYPE, DataType, Decimal, Field, Primitive, fields_along

_TRUNCATE, _BUCKET = (re.compile(rf"{name}\[([0-9]{{1,9}})\]") for name in ("truncate", "bucket"))
#: Conditions that are held, each narrowed to some buckets.
_MOST_NARROWED = 4096
#: Partitions whose bounds are held.
_MOST_PARTITIONS = 1 << 16
_HOUR = DAY // 24
_INTEGERS = (Primitive("integer"), Primitive("long"), Primitive("date"))
_TIMES = (Primitive("timestamp"), Primitive("timestamp_ntz"))
_STRING, _DATE = Primitive("string"), Primitive("date")

#: From a partition's value to the first and the last key of its rows; None for what is open.
_Range = Callable[[int | bytes], "tuple[Any, Any]"]


class EntryPruner:
    """The conditions of a scan, applied to the partitions of manifests, and to the partitions and bounds of files."""

    def __init__(self, scan: ResolvedScan, specs: Mapping[int, Sequence[PartitionField]]) -> None:
        self._skipped: Counter[SkipReason] = Counter()
        self._possible: PossibleValues | None = None
        self._columns: list[tuple[int, StoredBounds]] = []
        self._verdicts: dict[tuple[Any, ...], tuple[PossibleValues, list[ColumnBounds], bool]] = {}
        self._fields: dict[int, list[tuple[int, PartitionField, int, DataType, _Range]]] = {}
        self._buckets: dict[int, list[tuple[int, PartitionField, int, Buckets]]] = {}
        if scan.prune is None:
            return
        self._condition = scan.prune
        self._places = {path: slot for slot, path in enumerate(dict.fromkeys(one.path for one in columns(scan.prune)))}
        self._possible = compile_possible_values(scan.prune, self._places)
        self._possible_within = lru_cache(_MOST_NARROWED)(self._compiled)
        compared: dict[int, tuple[tuple[str, ...], Field]] = {}
        for path in self._places:
            if (along := fields_along(scan.columns, path)) is not None and along[-1].field_id:
                compared[along[-1].field_id] = path, along[-1]
        for number, (path, field) in compared.items():
            # Of a UUID, which is a text here, bounds are bytes, and which is less depends on their writer.
            if not _is_uuid(field):
                stored = StoredBounds(number, field.type, is_nested=len(path) > 1)
                self._columns.append((self._places[path], stored))
        for spec_id, spec in specs.items():
            for place, part in enumerate(spec):
                if part.source_id not in compared:
                    continue
                path, field = compared[part.source_id]
                slot = self._places[path]
                if (match := _BUCKET.fullmatch(part.transform)) and int(match[1]):
                    buckets = Buckets(scan.prune, path, _is_uuid(field), int(match[1]))
                    self._buckets.setdefault(spec_id, []).append((place, part, slot, buckets))
                ranges = None if _is_uuid(field) else _ranges(part.transform, field.type)
                if ranges is not None:
                    self._fields.setdefault(spec_id, []).append((place, part, slot, field.type, ranges))

    @property
    def fields(self) -> Collection[int]:
        """The fields whose bounds are looked at, by id."""
        return [stored.field_id for _, stored in self._columns]

    def may_hold(self, manifest: Manifest) -> bool:
        """Whether a manifest may list a file with a row that passes, by the summaries of its partitions."""
        spec_id, summaries = manifest.spec_id, manifest.partitions
        if self._possible is None or spec_id is None or summaries is None:
            return True
        fields, buckets = self._fields.get(spec_id, ()), self._buckets.get(spec_id, ())
        if not (fields or buckets):
            return True
        bounds = [UNBOUNDED] * len(self._places)
        usable = [one if isinstance(one, dict) and not one.get("contains_nan") else {} for one in summaries]
        usable += [{}] * (1 + max((place for place, *_ in (*fields, *buckets)), default=0) - len(usable))
        for place, _, slot, kind, ranges in fields:
            summary = usable[place]
            width = kind if ranges is _same else _result_type(kind)
            low, high = (decode_bound(summary.get(name), width) for name in ("lower_bound", "upper_bound"))
            low, high = (value.encode() if isinstance(value, str) else value for value in (low, high))
            if isinstance(low, int | bytes) and isinstance(high, int | bytes) and low <= high:  # type: ignore[operator]
                bounds[slot] = _narrowed(
                    bounds[slot], ranges(low)[0], ranges(high)[1], summary.get("contains_null") is not False
                )
        within = []
        for place, _, _, one in buckets:
            low, high = (decode_bound(usable[place].get(name), _INTEGERS[0]) for name in ("lower_bound", "upper_bound"))
            # What is in no bucket is NULL, or unlike what the specification says.
            is_certain = usable[place].get("contains_null") is False and low is not None and high is not None
            within.append((low, high) if is_certain and 0 <= low <= high < one.count else None)
        return bool(self._possible_within(spec_id, tuple(within))(bounds) & TRUE)

    def _compiled(self, spec_id: int, within: Sequence[tuple[int, int] | None]) -> PossibleValues:
        """The condition over rows that are in these buckets, of each field that is one; None of all."""
        condition = self._condition
        for (_, _, _, buckets), bounds in zip(self._buckets.get(spec_id, ()), within, strict=True):
            if bounds is not None:
                condition = buckets.within(condition, range(bounds[0], bounds[1] + 1))
        return compile_possible_values(condition, self._places)

    def may_match(self, entry: Entry) -> bool:
        """Whether a file may hold a row that passes, by its partition and by the bounds of its columns."""
        if self._possible is None:
            return True
        possible, by_partition, is_possible = self._by_partition(entry)
        if not is_possible:
            self._skipped[SkipReason.PARTITION_VALUES] += 1
            return False
        bounds = list(by_partition)
        for slot, stored in self._columns:
            of_partition, of_column = bounds[slot], stored.of(entry)
            if of_partition is UNBOUNDED:
                bounds[slot] = of_column
            elif of_partition.has_values and of_column.has_values:
                bounds[slot] = _narrowed(of_column, of_partition.low, of_partition.high, of_partition.has_nulls)
        if not possible(bounds) & TRUE:
            self._skipped[SkipReason.STATISTICS] += 1
            return False
        return True

    def _by_partition(self, entry: Entry) -> tuple[PossibleValues, list[ColumnBounds], bool]:
        """The condition over the rows of a file's partition, their bounds, and whether one of them may pass."""
        key = entry.spec_id, *entry.partition.items()
        try:
            verdict = self._verdicts.get(key)
        except TypeError:  # no partition has such a value
            return self._verdict(entry)
        if verdict is None:
            if len(self._verdicts) >= _MOST_PARTITIONS:
                self._verdicts.clear()
            verdict = self._verdicts[key] = self._verdict(entry)
        return verdict

    def _verdict(self, entry: Entry) -> tuple[PossibleValues, list[ColumnBounds], bool]:
        bounds = [UNBOUNDED] * len(self._places)
        within: list[tuple[int, int] | None] = []
        for _, part, slot, buckets in self._buckets.get(entry.spec_id, ()):
            at = entry.partition_value(part)
            within.append((at, at) if type(at) is int and 0 <= at < buckets.count else None)
            if at is None:
                bounds[slot] = ALL_NULL
        for _, part, slot, kind, ranges in self._fields.get(entry.spec_id, ()):
            value = entry.partition_value(part)
            # A date's partition of a column that became a timestamp since counts days, not microseconds.
            is_other = ranges is _same and kind in _TIMES and not isinstance(value, datetime)
            if value is None:
                bounds[slot] = ALL_NULL
            elif (number := _key(value, kind)) is not None and not is_other:
                bounds[slot] = _narrowed(bounds[slot], *ranges(number), False)
        possible = self._possible_within(entry.spec_id, tuple(within))
        return possible, bounds, bool(possible(bounds) & TRUE)

    def count_into(self, pruner: FilePruner) -> None:
        """Count the files that were left out."""
        for reason, count in self._skipped.items():
            pruner.count(reason, count)


def _is_uuid(field: Field) -> bool:
    return bool(field.metadata.get(ICEBERG_TYPE) == UUID)


def _narrowed(bounds: ColumnBounds, low: Any, high: Any, has_nulls: bool) -> ColumnBounds:
    """Bounds that two fields of a spec tell of one column: the narrower of each."""
    lows = [one for one in (bounds.low, low) if one is not None]
    highs = [one for one in (bounds.high, high) if one is not None]
    lowest, highest = max(lows, default=None), min(highs, default=None)
    if lowest is not None and highest is not None and lowest > highest:
        return UNBOUNDED  # what contradicts itself tells nothing
    return ColumnBounds(bounds.has_nulls and has_nulls, True, lowest, highest, highest)


def _ranges(transform: str, kind: DataType) -> _Range | None:
    """The rows that a partition's value stands for; None for a transform that nothing is left out by."""
    if transform == "identity":
        return _same if kind in (*_INTEGERS, *_TIMES, _STRING) or isinstance(kind, Decimal) else None
    if (match := _TRUNCATE.fullmatch(transform)) and int(match[1]):
        width = int(match[1])
        if kind == _STRING:
            return lambda value: (value, bytes(value) + b"\xff" * 5)
        if kind in _INTEGERS[:2] or isinstance(kind, Decimal):
            return lambda value: (value, int(value) + width - 1)
        return None
    if kind in _TIMES or kind == _DATE:
        ranges = _TIME_RANGES[kind == _DATE].get(transform)
        return None if ranges is None else _rounded(ranges)
    return None


def _rounded(ranges: _Range) -> _Range:
    """The same for writers that rounded moments before 1970 up: a partition may hold what belongs to the one before."""

    def widened(value: Any) -> tuple[Any, Any]:
        return ranges(value - 1)[0] if value <= 0 else ranges(value)[0], ranges(value)[1]

    return widened


def _same(value: int | bytes) -> tuple[Any, Any]:
    return value, value


def _result_type(kind: DataType) -> DataType:
    """The type of the values in summaries: numbers of years, months, days or hours for times, else the column's."""
    return Primitive("integer") if kind in _TIMES or kind == _DATE else kind


def _year(value: Any) -> tuple[int | None, int | None]:
    return _months(value * 12, 12)


def _month(value: Any) -> tuple[int | None, int | None]:
    return _months(value, 1)


def _months(first: int, count: int) -> tuple[int | None, int | None]:
    """The first and the last day of some months, counted from 1970; None for what no calendar here has."""
    return _day_of_month(first), None if (after := _day_of_month(first + count)) is None else after - 1


def _day_of_month(months: int) -> int | None:
    year, month = divmod(months, 12)
    return date(1970 + year, month + 1, 1).toordinal() - EPOCH_DAY if 1 <= 1970 + year <= 9999 else None


def _in_micros(days: Callable[[Any], tuple[int | None, int | None]]) -> _Range:
    def ranges(value: Any) -> tuple[int | None, int | None]:
        first, last = days(value)
        return None if first is None else first * DAY, None if last is None else last * DAY + DAY - 1

    return ranges


def _hour(value: Any) -> tuple[int, int]:
    return value * _HOUR, value * _HOUR + _HOUR - 1


#: Of timestamps, and of dates.
_TIME_RANGES: tuple[Mapping[str, _Range], Mapping[str, _Range]] = (
    {"year": _in_micros(_year), "month": _in_micros(_month), "day": _in_micros(_same), "hour": _hour},
    {"year": _year, "month": _month, "day": _same},
)


def _key(value: object, kind: DataType) -> int | bytes | None:
    """A partition's value, as Avro's decoder gives it, as a key; None for one that tells nothing here, NULL among them."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, date):
        return number_of(value)
    if isinstance(value, Number) and isinstance(kind, Decimal):
        return int(key(value, kind))
    return value if type(value) is int else None
