"""Holds a batch of add actions in columns, and makes file tasks of those that pruning leaves."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_sharing_spark.deltalog.actions import VECTOR_TYPE, vector_from
from delta_sharing_spark.deltalog.paths import decode_uri, join
from delta_sharing_spark.errors import LogError
from delta_sharing_spark.scan.plan import (
    MAX_FILE_BYTES,
    MAX_FILE_ROWS,
    DeletionVector,
    FileTask,
    TaskColumns,
    rows_in_stats,
)
from delta_sharing_spark.schema import arrow_bridge as columns
from delta_sharing_spark.schema.typed_json import decode_json

if TYPE_CHECKING:
    from delta_sharing_spark.predicates.file_statistics import FileStatistics, StatisticsReader

_IS_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
#: Physical names of partition columns to the keys of their values: ``schema.partition_values.partition_keys``.
PartitionKeys: TypeAlias = Mapping[str, Sequence[str]]
#: Fields of a batch that are no column.
_NO_COLUMNS = ("root", "partition_values", "with_stats")
#: Types of columns of statistics that need not be put as JSON has them.
_AS_THEY_ARE = (pa.types.is_signed_integer, pa.types.is_date32, pa.types.is_boolean)
_NUM_RECORDS = r'^\s*\{\s*"numRecords"\s*:\s*(?P<rows>\d{1,18})\s*[,}]'


@dataclass(frozen=True, slots=True)
class AddBatch:
    """Columns over the same live files (``add`` actions), of equal length.

    Attributes:
        root: The table's location.
        paths: Decoded paths, relative to the root or absolute (string).
        sizes: Bytes of each file (int64).
        partition_values: Physical name of each partition column to its serialized values (string; null and ``""``
            are NULL), for the partition columns of the snapshot.
        modified: ``modificationTime`` in milliseconds (int64, nullable).
        stats: Statistics as JSON (string, nullable); None if they were not read or lie in ``stats_parsed``.
        stats_parsed: Statistics as a checkpoint keeps them in columns (struct); None if there are none.
        vectors: Deletion vector descriptors (struct, nullable); None if no file of the batch has one.
        records: Rows of each file, set when ``without_stats`` dropped the statistics.
        with_stats: Whether ``columns_at`` gives tasks their statistics.
    """

    root: str = field(repr=False)
    paths: pa.StringArray = field(repr=False)
    sizes: pa.Int64Array = field(repr=False)
    partition_values: Mapping[str, pa.StringArray] = field(repr=False)
    modified: pa.Int64Array = field(repr=False)
    stats: pa.StringArray | None = field(repr=False, default=None)
    stats_parsed: pa.StructArray | None = field(repr=False, default=None)
    vectors: pa.StructArray | None = field(repr=False, default=None)
    records: pa.Int64Array | None = field(repr=False, default=None)
    with_stats: bool = False

    @property
    def num_rows(self) -> int:
        return len(self.paths)

    @property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return pc.sum(self.sizes).as_py() or 0

    def filter(self, keep: npt.NDArray[np.bool_] | pa.BooleanArray) -> AddBatch:
        """The files for which ``keep`` is true (null is false)."""
        mask = keep if isinstance(keep, pa.Array) else columns.mask(keep)
        return self if mask.true_count == self.num_rows else self._with_each(lambda column: column.filter(mask))

    def slice(self, start: int, length: int) -> AddBatch:
        """``length`` files from ``start``, without a copy."""
        return self._with_each(lambda column: column.slice(start, length))

    def _with_each(self, change: Callable[[Any], Any]) -> AddBatch:
        """The files with every column changed alike."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NO_COLUMNS}
        changed = {name: change(column) for name, column in values.items() if column is not None}
        partition_values = {name: change(column) for name, column in self.partition_values.items()}
        return replace(self, partition_values=partition_values, **changed)

    def without_stats(self) -> AddBatch:
        """The files without their statistics, but for the number of rows."""
        return replace(self, stats=None, stats_parsed=None, records=self.num_records())

    def num_records(self) -> pa.Int64Array:
        """Physical rows of each file by its statistics (int64, nullable), deleted rows included."""
        if self.records is not None:
            return self.records
        counts = self._stated_records()
        rows = columns.integers(counts)
        plausible = (rows >= 0) & (rows <= MAX_FILE_ROWS)
        if self.vectors is not None:  # nor can more rows be deleted than there are
            marked = pc.struct_field(self.vectors, "cardinality")
            plausible &= (rows >= columns.integers(marked)) | columns.bools(marked.is_null())
        plausible |= columns.bools(counts.is_null())
        if plausible.all():
            return counts
        return pc.if_else(columns.mask(plausible), counts, pa.nulls(len(counts), counts.type))

    def _stated_records(self) -> pa.Int64Array:
        if self.stats_parsed is not None and self.stats_parsed.type.get_field_index("numRecords") >= 0:
            return pc.cast(pc.struct_field(self.stats_parsed, "numRecords"), pa.int64())
        if self.stats is None:
            return pa.nulls(self.num_rows, pa.int64())
        counts = pc.cast(pc.struct_field(pc.extract_regex(self.stats, _NUM_RECORDS), "rows"), pa.int64())
        odd = np.flatnonzero(columns.bools(pc.and_(counts.is_null(), self.stats.is_valid())))
        if not len(odd):
            return counts
        rows = counts.to_pylist()
        for index in odd.tolist():
            rows[index] = rows_in_stats(self.stats[index].as_py())
        return columns.int64s(rows)

    def file_sizes(self) -> npt.NDArray[np.int64]:
        """Bytes of each file."""
        return np.where(columns.bools(self.sizes.is_valid()), columns.integers(self.sizes), 0)

    def file_rows(self) -> npt.NDArray[np.int64]:
        """Rows of each file that are not deleted; -1 where statistics do not tell."""
        counts = self.num_records()
        rows = columns.integers(counts)
        if self.vectors is not None:
            marked = pc.struct_field(self.vectors, "cardinality")
            rows = rows - np.where(columns.bools(marked.is_valid()), columns.integers(marked), 0)
        return np.where(columns.bools(counts.is_valid()), rows, -1)

    def file_partitions(self) -> tuple[npt.NDArray[np.int64], Sequence[dict[str, str | None]]]:
        """The number of each file's partition, and partition values by such a number."""
        names, numbers = tuple(self.partition_values), dict[tuple[str | None, ...], int]()
        if not names:
            return np.zeros(self.num_rows, np.int64), [{}]
        of_files = zip(*(column.to_pylist() for column in self.partition_values.values()), strict=True)
        of_each = np.fromiter((numbers.setdefault(one, len(numbers)) for one in of_files), np.int64, self.num_rows)
        return of_each, [dict(zip(names, values, strict=True)) for values in numbers]

    def columns_at(self, places: npt.NDArray[np.int64]) -> TaskColumns:
        """See ``planned_files.FileBatch``; raises LogError for a malformed vector."""
        first, last = int(places[0]), int(places[-1]) + 1
        if last - first == len(places):
            chosen = self.slice(first, last - first)
        else:
            indices = columns.int64s(places.tolist())
            chosen = self._with_each(lambda column: column.take(indices))
        return chosen._columns(keep_stats=self.with_stats)

    def vector(self, index: int) -> DeletionVector | None:
        """One file's deletion vector, located; raises LogError for a malformed descriptor."""
        if self.vectors is None:
            return None
        tree = self.vectors[index].as_py()
        return None if tree is None else vector_from(tree, self.root, self.paths[index].as_py())

    def tasks(self, *, keep_stats: bool = False) -> Iterator[FileTask]:
        """A task for each file, in order, with its statistics as JSON only if asked; raises LogError for a malformed vector."""
        return self._columns(keep_stats=keep_stats).tasks()

    def _columns(self, *, keep_stats: bool) -> TaskColumns:
        paths, root = self.paths.to_pylist(), self.root
        marked = [] if self.vectors is None else np.flatnonzero(columns.bools(self.vectors.is_valid())).tolist()
        partitions, values = self.file_partitions()
        return TaskColumns(
            paths,
            [join(root, path) if _needs_join(path) else f"{root}/{path}" for path in paths],
            self.sizes.to_pylist(),
            self.num_records().to_pylist(),
            partitions.tolist(),
            values,
            {index: vector for index in marked if (vector := self.vector(index)) is not None},
            stats=self.stats_texts() if keep_stats else None,
        )

    def stats_texts(self) -> Sequence[str | None]:
        """The statistics as JSON of each file; None without.

        Where the log has only ``stats_parsed``, dates are ``yyyy-MM-dd``, timestamps ISO 8601 (with ``Z`` if zoned), and decimals
        exact numbers. Nulls, NaN and binary values are left out, as writers of JSON do.
        """
        if self.stats is not None:
            texts: list[str | None] = self.stats.to_pylist()
            return texts
        if self.stats_parsed is None:
            return [None] * self.num_rows
        return [None if tree is None else dump(tree) for tree in _values(self.stats_parsed)]

    def of(self, reader: StatisticsReader, places: npt.NDArray[np.int64]) -> FileStatistics:
        """See ``file_skipping.Statistics``."""
        column = self.stats if self.stats is not None else self.stats_parsed
        if column is None:
            return reader.of_texts([None] * len(places))
        if len(places) < self.num_rows:
            column = column.take(columns.int64s(places.tolist()))
        if self.stats is not None:
            return reader.of_texts(column.to_pylist())

        def values(part: str, path: Sequence[str]) -> Sequence[Any] | pa.Array:
            field = column
            for name in (part, *path):
                if not pa.types.is_struct(field.type) or field.type.get_field_index(name) < 0:
                    return [None] * len(places)
                field = pc.struct_field(field, name)
            return field if any(is_kind(field.type) for is_kind in _AS_THEY_ARE) else _decoded(field)

        return reader.of_values(columns.bools(column.is_valid()), values)


def _needs_join(path: str) -> bool:
    """Whether a path must be parsed to be joined with the root, instead of appended to it with a slash."""
    return ":" in path or path.startswith("/") or "./" in path or path.endswith("..")


def from_struct(
    add: pa.StructArray, root: str, partition_columns: PartitionKeys, *, stats: pa.StringArray | None
) -> AddBatch:
    """A batch from valid ``add`` structs, of a checkpoint (partition values are a map) or of commits (a struct).

    Raises:
        LogError: A file without path, size or (of a partitioned table) partition values, or of a size that cannot be.
        pyarrow.ArrowException: A column of another type than the protocol says.
    """
    names = {f.name for f in add.type}

    def column(name: str, kind: pa.DataType) -> Any:
        if name not in names:
            return pa.nulls(len(add), kind)
        return cast_alike(add.field(name), kind)

    values = add.field("partitionValues") if "partitionValues" in names else None
    paths, sizes = column("path", pa.string()), column("size", pa.int64())
    if paths.null_count:
        raise _malformed(root, "a file without a path")
    bounds = pc.min_max(sizes).as_py()
    if sizes.null_count or (len(sizes) and not 0 <= bounds["min"] <= bounds["max"] <= MAX_FILE_BYTES):
        raise _malformed(root, f"a file without a size, or with one that is not 0 to {MAX_FILE_BYTES} bytes")
    if partition_columns and (values is None or values.null_count):
        raise _malformed(root, "a file without partitionValues, and the table is partitioned")
    return AddBatch(
        root=root,
        paths=decode_paths(paths),
        sizes=sizes,
        partition_values={name: _partition_column(values, keys, len(add)) for name, keys in partition_columns.items()},
        modified=column("modificationTime", pa.int64()),
        stats=stats,
        stats_parsed=add.field("stats_parsed") if "stats_parsed" in names else None,
        vectors=normalize_vectors(_cast_vectors(add.field("deletionVector"))) if "deletionVector" in names else None,
    )


def cast_alike(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast text of any width to text, and integers of any width to integers.

    Raises:
        pyarrow.ArrowInvalid: An array of another kind, or a number that does not fit.
    """
    if array.type == kind or pa.types.is_null(array.type):
        return array if array.type == kind else pa.nulls(len(array), kind)
    alike = _IS_TEXT if kind == pa.string() else (pa.types.is_integer,)
    if not any(is_kind(array.type) for is_kind in alike):
        raise pa.ArrowInvalid(f"a column is {array.type} instead of {kind}")
    return pc.cast(array, kind)


def _malformed(root: str, why: str) -> LogError:
    return LogError(f"the log of {root} is corrupt: it has {why}; ask the provider to repair the table")


def _cast_vectors(vectors: pa.Array) -> pa.StructArray:
    """Descriptors with exactly the fields of the protocol.

    Raises:
        pyarrow.ArrowException: They are no structs, or a field is of another type.
    """
    if not pa.types.is_struct(vectors.type):
        raise pa.ArrowInvalid(f"deletion vectors are {vectors.type}, not structs")
    if vectors.type == VECTOR_TYPE:
        return vectors
    names = {f.name for f in vectors.type}
    fields = [
        cast_alike(pc.struct_field(vectors, f.name), f.type) if f.name in names else pa.nulls(len(vectors), f.type)
        for f in VECTOR_TYPE
    ]
    return pa.StructArray.from_arrays(fields, fields=list(VECTOR_TYPE), mask=vectors.is_null())


def decode_paths(paths: pa.StringArray) -> pa.StringArray:
    """Percent-decode the paths that need it."""
    if not columns.has_byte(paths, b"%"):
        return paths
    return columns.strings([None if text is None else decode_uri(text) for text in paths.to_pylist()])


def _partition_column(values: pa.Array | None, keys: Sequence[str], length: int) -> pa.StringArray:
    """The values of one partition column: of each file that of the first of ``keys`` that it has."""
    if values is None:
        return pa.nulls(length, pa.string())
    first, *others = keys
    if pa.types.is_map(values.type):
        column = columns.map_values(values, first)
    elif pa.types.is_struct(values.type):
        index = values.type.get_field_index(first)
        column = pa.nulls(length, pa.string()) if index < 0 else values.field(index)
    else:
        raise pa.ArrowInvalid(f"partitionValues are {values.type}, not a map")
    return pc.coalesce(column, _partition_column(values, others, length)) if others and column.null_count else column


def normalize_vectors(vectors: pa.StructArray) -> pa.StructArray | None:
    """Vectors whose fields are null where the struct is; None if there are no vectors."""
    if not len(vectors) or vectors.null_count == len(vectors):
        return None
    present = vectors.field("storageType").is_valid()
    if present.true_count == 0:
        return None
    if present.true_count == len(vectors) or vectors.null_count:
        return vectors
    return pc.if_else(present, vectors, pa.nulls(1, vectors.type)[0])


class NumberText(str):
    """A number that is written as it stands."""

    __slots__ = ()


def _decoded(array: pa.Array) -> list[Any]:
    """The values of an array as the JSON of statistics has them."""
    return [decode_json(str(value)) if isinstance(value, NumberText) else value for value in _values(array)]


def _values(array: pa.Array) -> list[Any]:
    kind = array.type
    if pa.types.is_struct(kind):
        names = [f.name for f in kind]
        columns = [_values(array.field(i)) for i in range(len(names))]
        valid = array.is_valid().to_pylist()
        rows = zip(*columns, strict=True) if columns else ((),) * len(array)
        return [
            {n: v for n, v in zip(names, row, strict=True) if v is not None} if ok else None
            for ok, row in zip(valid, rows, strict=True)
        ]
    if pa.types.is_timestamp(kind):
        zone = "Z" if kind.tz else ""
        text = pc.cast(pc.cast(array, pa.timestamp("us")), pa.string()).to_pylist()
        return [None if t is None else t.replace(" ", "T") + zone for t in text]
    if pa.types.is_date(kind):
        dates: list[Any] = pc.cast(array, pa.string()).to_pylist()
        return dates
    if pa.types.is_decimal(kind):
        return [None if v is None else NumberText(format(v, "f")) for v in array.to_pylist()]
    if pa.types.is_floating(kind):
        return [None if v is None or math.isnan(v) or math.isinf(v) else v for v in array.to_pylist()]
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_string(kind):
        values: list[Any] = array.to_pylist()
        return values
    return [None] * len(array)


def dump(value: Any) -> str:
    """Compact JSON in which exact numbers stay exact."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k, ensure_ascii=False)}:{dump(v)}" for k, v in value.items()) + "}"
    return str(value) if isinstance(value, NumberText) else json.dumps(value, ensure_ascii=False)
