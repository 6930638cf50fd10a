"""Defines what a load will read, as frozen data: file tasks, deletion vectors, the read specification, splits.

File tasks are packed into splits of about equal bytes: small files share one, a large file becomes several.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import msgspec
import numpy as np

from delta_sharing_spark.schema.typed_json import lines_of, records_together, statistics_lines, statistics_object
from delta_sharing_spark.schema.types import Field, Struct
from delta_sharing_spark.storage.ranges import ByteSource, Range

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from delta_sharing_spark.predicates.tree import Expression

#: Columns that a change data feed adds after the table's own.
CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = "_change_type", "_commit_version", "_commit_timestamp"

#: More than any storage keeps in one object, and than any file holds rows: what claims more is wrong.
MAX_FILE_BYTES, MAX_FILE_ROWS = 1 << 48, 1 << 40
#: Milliseconds since the epoch that, as microseconds, still fit 64 bits.
MAX_MILLIS = (1 << 63) // 1000 - 1
#: A bitmap of all the rows that a vector can mark (2^31) takes 256 MiB, and its containers their headers.
MAX_VECTOR_BYTES = 264 << 20
#: Of a deletion vector in a file: its size before the payload, its CRC after.
_FRAME_BYTES = 8
#: A deletion vector file begins with its format's version.
_VERSION_BYTE = 1


class _Statistics(msgspec.Struct, gc=False):
    numRecords: Any = None


class _Rows(msgspec.Struct, gc=False):
    """The same in the usual form."""

    numRecords: Annotated[int, msgspec.Meta(ge=0, le=MAX_FILE_ROWS)]


_decode_statistics = msgspec.json.Decoder(_Statistics).decode
_decode_rows = msgspec.json.Decoder(_Rows).decode_lines
#: How rows that statistics do not tell stand in an array.
UNKNOWN_ROWS = -1


def rows_in_stats(stats: str | None) -> int | None:
    """``numRecords`` of a file's statistics; None where statistics are missing, broken or cannot be, which is no error."""
    rows = int(rows_in_lines(statistics_lines([stats]), 1)[0]) if stats else UNKNOWN_ROWS
    return None if rows == UNKNOWN_ROWS else rows


def rows_in_lines(lines: bytes, count: int) -> npt.NDArray[np.int64]:
    """``numRecords`` of ``count`` files by their ``statistics_lines``; ``UNKNOWN_ROWS`` where ``rows_in_stats`` is None."""
    if (together := records_together(lines, count, _decode_rows)) is not None:
        return np.fromiter([record.numRecords for record in together], np.int64, count)
    return np.fromiter(map(_rows_in_line, lines_of(lines)), np.int64, count)


def _rows_in_line(line: str) -> int:
    tree = statistics_object(line, _decode_statistics)
    rows = tree.get("numRecords") if isinstance(tree, dict) else None if tree is None else tree.numRecords
    return rows if type(rows) is int and 0 <= rows <= MAX_FILE_ROWS else UNKNOWN_ROWS


@dataclass(frozen=True, slots=True)
class DeletionVector:
    """A descriptor of deleted rows (Delta protocol, "Deletion Vector Descriptor Schema").

    ``storage`` is ``"i"`` (``path`` is the Z85 payload), ``"u"`` (relative, resolved by the log's root) or
    ``"p"`` (``path`` is absolute: a storage path or a presigned URL). ``offset`` and ``size`` are bytes;
    ``size`` counts the payload only. ``unique_id`` names it in errors, caches and renewals, never its URL.
    """

    storage: str
    path: str = field(repr=False)
    offset: int | None
    size: int
    cardinality: int
    unique_id: str
    file_id: str | None = None

    @property
    def frame(self) -> Range:
        """Where size, payload and CRC lie in the file; without an offset, right after the file's version byte."""
        start = _VERSION_BYTE if self.offset is None else self.offset
        return Range(start, start + self.size + _FRAME_BYTES)


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A Parquet file that names deleted rows of data files (Iceberg, "Delete Formats").

    Attributes:
        location: An absolute storage path.
        size: Its bytes.
        keys: The columns, named with their ids, whose values it deletes (equality deletes); none where it names positions.
        namespace: A digest of the table and the recipient: another's file of the same location is another file.
    """

    location: str
    size: int
    keys: tuple[Field, ...] = ()
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class FileTask:
    """One data file to read, whichever access mode planned it.

    Attributes:
        id: The server's file id (url mode) or the decoded path in the log (dir mode): names the file in
            errors and matches it when the plan is renewed.
        location: A presigned URL or an absolute storage path with scheme. Secret in url mode.
        size: Bytes of the whole file, as planned.
        partition_values: Partition column (physical name) to serialized value; None and ``""`` are NULL. None for all
            where nothing tells them: a file of a partitioned table is then refused.
        rows: Physical rows if the statistics tell, deleted ones included.
        deletion_vector: Rows to leave out, or None.
        invert_deletion_vector: Keep only the rows the vector names (a change feed's deleted rows).
        excluded: With a change feed's vector pair: rows of this second vector are left out as well.
        change_type, commit_version, commit_timestamp: Constants of a change data feed (the timestamp in
            milliseconds since the epoch); ``change_type`` None on a feed means the file's own column.
        expires_at: Seconds since the epoch when ``location`` stops working, if known.
        stats: The statistics' JSON, kept only until pruning is done.
        deletes: Files that name more deleted rows.
        fallbacks: Values of columns that the file may lack, by field id: they stand in for it then (Iceberg's identity partitions).
    """

    id: str
    location: str = field(repr=False)
    size: int
    partition_values: Mapping[str, str | None] | None = field(default_factory=dict)
    rows: int | None = None
    deletion_vector: DeletionVector | None = None
    invert_deletion_vector: bool = False
    excluded: DeletionVector | None = None
    change_type: str | None = None
    commit_version: int | None = None
    commit_timestamp: int | None = None
    expires_at: float | None = None
    stats: str | None = field(default=None, repr=False)
    deletes: tuple[DeleteFile, ...] = ()
    fallbacks: Mapping[int, Any] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        """Without it, a dataclass with slots asks for its fields for each of a million tasks."""
        return FileTask, _values_of_task(self)


_values_of_task = attrgetter(*(one.name for one in fields(FileTask)))


@dataclass(frozen=True, slots=True)
class TaskColumns:
    """File tasks as columns, which pickle in a tenth of the time; the fields are those of ``FileTask``.

    Attributes:
        partitions: The place of each file's partition values among ``values``.
        vectors, deletes: By a file's place.
        expirations: ``expires_at`` of each file; None where it is known of none, as the following ones.
        timestamps: ``commit_timestamp`` of each file.
        fallbacks: Of each file.
        stats: Of each file.
    """

    ids: Sequence[str]
    locations: Sequence[str] = field(repr=False)
    sizes: Sequence[int]
    rows: Sequence[int | None]
    partitions: Sequence[int]
    values: Sequence[Mapping[str, str | None] | None]
    vectors: Mapping[int, DeletionVector]
    expirations: Sequence[float | None] | None = None
    timestamps: Sequence[int | None] | None = None
    deletes: Mapping[int, tuple[DeleteFile, ...]] = field(default_factory=dict)
    fallbacks: Sequence[Mapping[int, Any]] | None = None
    stats: Sequence[str | None] | None = field(default=None, repr=False)

    def tasks(self) -> Iterator[FileTask]:
        """A task for each file."""
        for place, file_id in enumerate(self.ids):
            yield FileTask(
                file_id,
                self.locations[place],
                self.sizes[place],
                partition_values=self.values[self.partitions[place]],
                rows=self.rows[place],
                deletion_vector=self.vectors.get(place),
                commit_timestamp=None if self.timestamps is None else self.timestamps[place],
                expires_at=None if self.expirations is None else self.expirations[place],
                stats=None if self.stats is None else self.stats[place],
                deletes=self.deletes.get(place, ()),
                fallbacks={} if self.fallbacks is None else self.fallbacks[place],
            )


@dataclass(frozen=True, slots=True)
class ReadSpec:
    """How the bytes of files become rows: the same for every file of a load, and free of secrets.

    Attributes:
        table: ``share.schema.table``, for errors.
        schema: The rows' schema, projected, in output order, with Delta's metadata (column mapping).
            Change columns of a feed stand in it where the load has them.
        full_schema: The columns of the table that ``predicate`` needs beyond ``schema`` plus those of ``schema``.
        partition_columns: Logical names of the partition columns in ``full_schema``.
        partition_keys: Physical names of all partition columns to the keys of their values, as
            ``schema.partition_values.partition_keys`` gives them: a column that is missing beside these alone is NULL.
        mapping: Column mapping mode: ``"none"``, ``"name"`` or ``"id"``.
        predicate: Applied exactly to every batch; None keeps all rows.
        prune: Row groups in which no row can pass it are not read; rows are filtered by ``predicate`` alone.
        limit: The maximum number of rows of one split; the face above cuts over splits.
        change_feed: Whether the rows carry change columns.
        time_zone: The zone that zone-less partition timestamps are read in; None where only the task can know it.
        is_projected: Whether ``full_schema`` leaves columns of the table out (decides how small files are fetched).
        fetch_ahead: Bytes a task may hold fetched and not yet decoded.
        commit_timestamp_long: Whether ``_commit_timestamp`` is given as the protocol's milliseconds (LONG) instead of TIMESTAMP.
    """

    table: str
    schema: Struct
    full_schema: Struct
    partition_columns: tuple[str, ...] = ()
    partition_keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    mapping: str = "none"
    predicate: Expression | None = None
    prune: Expression | None = None
    limit: int | None = None
    change_feed: bool = False
    time_zone: str | None = "UTC"
    commit_timestamp_long: bool = False
    is_projected: bool = False
    fetch_ahead: int = 64 << 20


@dataclass(frozen=True, slots=True)
class FileSlice:
    """The row groups of one file whose first byte lies in ``[start, end)``; ``end`` None is the file's end."""

    task: FileTask
    start: int = 0
    end: int | None = None

    @property
    def is_cut(self) -> bool:
        """Whether another slice has the rest of the file."""
        return self.start > 0 or self.end is not None

    def __reduce__(self) -> tuple[Any, ...]:
        return FileSlice, (self.task, self.start, self.end)


class RowAccess(Protocol):
    """Rows of a split from whoever has read its files. Picklable."""

    def rows(self, split: Split) -> Generator[pa.RecordBatch, None, None]:
        """See ``scan.split_reader.read_split``."""

    def ends(self, task: FileTask) -> float | None:
        """See ``FileAccess.ends``."""

    def renewed(self) -> RowAccess:
        """See ``FileAccess.renewed``."""


class FileAccess(ABC):
    """The bytes of a split's files. Picklable. A subclass asks for fresh URLs or credentials by itself when its own end."""

    __slots__ = ()

    @abstractmethod
    def open(self, task: FileTask) -> ByteSource:
        """A data file's bytes by range.

        Raises:
            FileGoneError, CredentialError, NetworkError, TableChangedError
        """

    @abstractmethod
    def open_vector(self, task: FileTask, vector: DeletionVector) -> ByteSource:
        """The ``frame`` of a vector that lies in a file (storage ``u`` or ``p``), and no more of that file."""

    def ends(self, task: FileTask) -> float | None:
        """When the access to a file ends unless it is renewed, in seconds since the epoch; None where nothing tells."""
        return task.expires_at

    def renewed(self) -> FileAccess:
        """The same access with credentials asked for now, where it holds some; URLs come with their files."""
        return self


#: How an executor reads a split.
Access = FileAccess | RowAccess


@dataclass(frozen=True, slots=True)
class Split:
    """What one task reads, with all it needs: slices, specification, access."""

    index: int
    spec: ReadSpec
    slices: Sequence[FileSlice]
    access: Access = field(repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of the files, or parts of files, that are read."""
        return sum((part.task.size if part.end is None else part.end) - part.start for part in self.slices)

    def without_columns(self) -> Split:
        """The same rows without any column: footers tell how many there are, and deletion vectors how many are left."""
        none = Struct(())
        return replace(self, spec=replace(self.spec, schema=none, full_schema=none, is_projected=True))


#: What opening a file costs, in bytes that could have been read meanwhile: keeps thousands of tiny files apart.
OPEN_COST = 256 << 10
#: More splits than this help nobody, and a size that a log or a server makes up could ask for any number of them:
#: slices and splits get larger instead.
MAX_SLICES_PER_FILE, MAX_SPLITS = 1 << 14, 1 << 17


@dataclass(frozen=True, slots=True)
class Bin:
    """One split: files ``first`` to ``last`` (excluded) in some order; the first and the last of them may be cut.

    ``start`` is where the first file begins to be read; ``end`` where the last one ends, None at its end.
    """

    first: int
    last: int
    start: int = 0
    end: int | None = None

    def ranges(self) -> Iterator[tuple[int, int | None]]:
        """The byte range of each file."""
        for index in range(self.first, self.last):
            yield self.start if index == self.first else 0, self.end if index == self.last - 1 else None


def cut_bins(sizes: npt.NDArray[np.int64], max_bytes: int) -> list[Bin]:
    """Cut files of ``sizes`` bytes, in their order, into bins of about equal cost, at most about ``max_bytes`` each.

    A file larger than ``max_bytes`` is cut into equal slices, a bin each; the files between large ones share bins.
    """
    bins: list[Bin] = []
    max_bytes = max(max_bytes, int(sizes.sum(dtype=np.float64)) // MAX_SPLITS)
    large = np.flatnonzero(sizes > max_bytes).tolist()
    start = 0
    for index in [*large, len(sizes)]:
        bins += _share(sizes[start:index], start, max_bytes)
        if index < len(sizes):
            bins += _cut_file(index, int(sizes[index]), max_bytes)
        start = index + 1
    return bins


def _share(sizes: npt.NDArray[np.int64], offset: int, max_bytes: int) -> list[Bin]:
    """Bins of whole files: with all costs laid end to end, each file goes to the bin that its middle lies in."""
    if not len(sizes):
        return []
    costs = sizes.astype(np.float64) + min(OPEN_COST, max_bytes // 4)  # sums of sizes may be above 64 bits
    total = int(costs.sum())
    count = min(len(sizes), -(-total // max_bytes))
    middles = np.cumsum(costs) - costs / 2
    owner = np.minimum((middles * count / total).astype(np.int64), count - 1)
    edges = [0, *(np.flatnonzero(np.diff(owner)) + 1).tolist(), len(sizes)]
    return [Bin(offset + a, offset + b) for a, b in itertools.pairwise(edges)]


def _cut_file(index: int, size: int, max_bytes: int) -> list[Bin]:
    count = min(-(-size // max_bytes), MAX_SLICES_PER_FILE)
    step = -(-size // count)
    return [Bin(index, index + 1, i * step, None if i == count - 1 else (i + 1) * step) for i in range(count)]


def pack(tasks: Iterable[FileTask], max_bytes: int) -> list[tuple[FileSlice, ...]]:
    """Slices of ``tasks`` in bins of about equal bytes, each at most about ``max_bytes``.

    The same tasks give the same bins, whatever order they come in: a retried task repeats its rows in order. A file's
    slices cover it without overlap, and a row group belongs to the slice that its first byte lies in.

    >>> [[(s.start, s.end) for s in bin] for bin in pack([FileTask("a", "", 250)], 100)]
    [[(0, 84)], [(84, 168)], [(168, None)]]
    """
    ordered = sorted(tasks, key=order)
    sizes = np.fromiter((task.size for task in ordered), dtype=np.int64, count=len(ordered))
    return [
        tuple(
            FileSlice(ordered[index], start, end)
            for index, (start, end) in zip(range(piece.first, piece.last), piece.ranges(), strict=True)
        )
        for piece in cut_bins(sizes, max_bytes)
    ]


def order(task: FileTask) -> tuple[int, str, str]:
    """The order tasks are read in: by version of a change feed, then by file."""
    return task.commit_version or 0, task.id, task.change_type or ""
