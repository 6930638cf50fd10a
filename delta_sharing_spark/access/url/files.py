"""Makes file tasks of the sharing server's file lines: of a snapshot as they arrive, of a feed version by version."""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from delta_sharing_spark.access.contract import VersionFiles
from delta_sharing_spark.access.pruning import FilePruner
from delta_sharing_spark.access.table_shape import TableShape, shape_of
from delta_sharing_spark.access.url.file_columns import FileColumns, PackedStatistics
from delta_sharing_spark.access.url.signed_urls import earliest, url_term
from delta_sharing_spark.errors import UnsupportedFeatureError
from delta_sharing_spark.predicates.skip_reason import SkipReason
from delta_sharing_spark.scan.change_feed import ChangedFile, change_files
from delta_sharing_spark.scan.plan import UNKNOWN_ROWS, FileTask, TaskColumns
from delta_sharing_spark.schema.features import MAPPING_MODE
from delta_sharing_spark.schema.table_records import Metadata, Protocol
from delta_sharing_spark.schema.typed_json import statistics_lines
from delta_sharing_spark.schema.types import COLUMN_MAPPING_NAME, DataType, inner_fields, parse_schema
from delta_sharing_spark.sharing.query import QueryResponse
from delta_sharing_spark.sharing.wire_lines import FileBlock
from delta_sharing_spark.sharing.wire_records import TableSnapshotHead, broken

if TYPE_CHECKING:
    from delta_sharing_spark.access.url.access import UrlAccess

#: Bytes of the number of a file's partition.
_NUMBERS_BYTES = 4
#: Files that are chosen from together, so that what a choice costs beside them is small.
_CHOSEN_TOGETHER = 4096
#: Files of a page that are fewer than one of so many are copied from it.
_FEW = 8


class SnapshotFiles:
    """Takes in the files of a page of a snapshot as they arrive, in columns, and chooses those that are not skipped.

    All of them stay, with their statistics, for other conditions, until they take more than ``most_bytes``: then only the chosen ones.

    Args:
        pruner: Skips files.
        rows_needed: So many rows are enough, whichever they are; None for all.
        with_stats: Whether tasks have their statistics, as long as these are here.
        with_times: Whether tasks have the timestamps of their lines.

    Attributes:
        listed: How many files came.
        is_whole: Whether all of them are still here.
        nbytes: About the bytes that they take.
    """

    def __init__(
        self,
        table: str,
        pruner: FilePruner,
        rows_needed: int | None = None,
        most_bytes: float = 0,
        *,
        with_stats: bool = False,
        with_times: bool = False,
    ) -> None:
        self._with_stats, self._with_times = with_stats, with_times
        #: When files were committed, in milliseconds since the epoch; where tasks have it.
        self._commit_times: list[int | None] = []
        self._table, self._pruner, self._needed, self._most_bytes = table, pruner, rows_needed, most_bytes
        self._counted = 0
        #: Partition values of the blocks that came last, and their numbers here.
        self._shared: tuple[Sequence[Mapping[str, str | None] | None], array[int]] = (), array("q")
        self._columns = FileColumns()
        #: The number of each file's partition.
        self._partitions = array("i")
        #: Rows of files that are here without their statistics, deleted ones included.
        self._rows = array("q")
        #: Deleted rows by a file's place.
        self._deleted: dict[int, int] = {}
        self._values: list[Mapping[str, str | None] | None] = []
        self._numbers: dict[object, int] = {}
        #: What the pruner calls each of the values.
        self._of_pruner = array("q")
        #: Consecutive files' statistics, as long as all are here, and the lines of the last files', who are not chosen from yet.
        self._statistics: list[tuple[range, PackedStatistics]] = []
        self._lines: list[bytes] = []
        self._selection: list[npt.NDArray[np.int64]] = []
        #: Hashes of the ids of all files that came, where not all are here.
        self._hashes = array("q")
        self._skipped: Counter[SkipReason] = Counter()
        self.listed = 0
        self.is_whole = most_bytes > 0

    def append(self, block: FileBlock) -> None:
        """Take in some files; raises ResponseError where they are not data files'."""
        if block.kind != "add":
            raise broken(f"the server listed a {block.kind!r} line in a snapshot of {self._table}")
        self.listed += len(block)
        hashes = np.fromiter(map(hash, block.ids), np.int64, len(block))
        numbers = self._numbers_of(block)
        lines = statistics_lines(block.stats)
        if self.is_whole:
            self._take(block, hashes, numbers)
            self._lines.append(lines)
            if len(self._columns) - self._chosen_from >= _CHOSEN_TOGETHER:
                self._choose()
            return
        self._hashes.frombytes(hashes.tobytes())
        statistics = PackedStatistics(lines, len(block))
        places = self._places(numbers, statistics)
        rows = statistics.rows_at(places)
        if self._needed is not None:
            deleted = np.array(
                [block.vectors[place].cardinality if place in block.vectors else 0 for place in places.tolist()]
            )
            self._counted += int(_live(rows, deleted).clip(0).sum())
        self._rows.extend(rows.tolist())
        if len(places) < len(block):
            block, numbers, hashes = block.take(places.tolist()), numbers[places], hashes[places]
        self._selection.append(np.arange(len(block)) + len(self._columns))
        self._take(block, hashes, numbers)

    def _take(self, block: FileBlock, hashes: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]) -> None:
        """Keep what is not statistics of some files."""
        for place, vector in block.vectors.items():
            self._deleted[len(self._columns) + place] = vector.cardinality
        self._columns.append(block, hashes)
        self._partitions.frombytes(numbers.astype(np.int32).tobytes())
        if self._with_times:
            self._commit_times.extend(block.timestamps)

    @property
    def _chosen_from(self) -> int:
        """The place of the first file that is not chosen from yet."""
        return self._statistics[-1][0].stop if self._statistics else 0

    def _choose(self) -> None:
        """Choose from the last files, and let go of those that are not chosen where all would be too many bytes."""
        start, stop = self._chosen_from, len(self._columns)
        if start < stop and self.is_whole:
            statistics = PackedStatistics(b"\n".join(self._lines), stop - start)
            self._lines = []
            self._selection.append(start + self._places(self._numbers_at(np.arange(start, stop)), statistics))
            statistics.pack()
            self._statistics.append((range(start, stop), statistics))
            self._most_bytes -= statistics.nbytes
            if self._columns.nbytes + _NUMBERS_BYTES * len(self._partitions) > self._most_bytes:
                self._shed()

    def _places(self, numbers: npt.NDArray[np.int64], statistics: PackedStatistics) -> npt.NDArray[np.int64]:
        return _places(self._pruner, np.array(self._of_pruner, np.int64)[numbers], statistics, self._skipped)

    def _numbers_at(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The numbers of the partitions of the files at some places."""
        return np.frombuffer(self._partitions, np.int32)[places].astype(np.int64)

    @property
    def nbytes(self) -> int:
        statistics = sum(part.nbytes for _, part in self._statistics)
        return self._columns.nbytes + _NUMBERS_BYTES * len(self._partitions) + statistics

    @property
    def is_full(self) -> bool:
        """Whether the statistics of the files that came tell of as many rows as are needed."""
        return self._needed is not None and self._counted >= self._needed

    def _numbers_of(self, block: FileBlock) -> npt.NDArray[np.int64]:
        """The number of the partition of each of a block's files."""
        values, own = self._shared
        if values is not block.partition_values:
            values, own = self._shared = block.partition_values, array("q")
        own.extend(map(self._number, values[len(own) :]))
        return np.frombuffer(own, np.int64)[block.partitions]

    def _number(self, values: Mapping[str, str | None] | None) -> int:
        key = None if values is None else tuple(values.items())
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._values)
            self._values.append(values)
            self._of_pruner.append(self._pruner.partition_number(values))
        return number

    def _shed(self) -> None:
        """Let go of the files that are not chosen."""
        chosen = self._copied(self._chosen())
        self.is_whole = False
        self._hashes = array("q", self._columns.hashes.tobytes())
        self._statistics, self._lines = [], []
        self._columns, self._rows, self._partitions, self._deleted = (
            chosen._columns,
            chosen._rows,
            chosen._partitions,
            chosen._deleted,
        )
        self._selection = [np.arange(len(self._rows))]

    def _chosen(self) -> npt.NDArray[np.int64]:
        self._choose()
        return np.concatenate(self._selection) if self._selection else np.zeros(0, np.int64)

    def _copied(self, places: npt.NDArray[np.int64]) -> SnapshotFiles:
        """The files at some places, apart from the others."""
        copy, listed = SnapshotFiles(self._table, self._pruner), places.tolist()
        copy._columns = self._columns.take(listed)
        copy._rows = array("q", self._rows_at(places).tobytes())
        copy._partitions = array("i", [self._partitions[place] for place in listed])
        copy._deleted = {new: self._deleted[old] for new, old in enumerate(listed) if old in self._deleted}
        copy._values = self._values
        return copy

    @property
    def hashes(self) -> npt.NDArray[np.int64]:
        """A hash of the id of each file that came, also of those that were skipped."""
        return self._columns.hashes if self.is_whole else np.array(self._hashes, np.int64)

    def dues(self, access: UrlAccess) -> Iterator[float]:
        """When URLs of the page are due for renewal: the earliest that the answer tells of all, and that of a URL."""
        if len(self._partitions):
            task = next(self._columns_at(np.arange(1)).tasks())
            end = earliest(access.ends(task), self._columns.earliest_end)
            yield url_term(task.location, end, access.planned_at).renew_at

    def ids_of(self, hashes: Collection[int]) -> Iterator[str]:
        """The ids of the files here that have one of some hashes."""
        places = np.flatnonzero(np.isin(self._columns.hashes, list(hashes))).tolist()
        return (row.id for row in self._columns.rows(places))

    def selection(self) -> FileSelection:
        """The files that were chosen as they came; what was skipped is counted."""
        chosen = self._chosen()
        for reason, files in self._skipped.items():
            self._pruner.count(reason, files)
        return self._selection_at(chosen)

    def selection_by(self, pruner: FilePruner) -> FileSelection:
        """The files that another pruner does not skip, of all that came."""
        assert self.is_whole, "those that were skipped are gone"
        of_pruner = np.array(list(map(pruner.partition_number, self._values)), np.int64)
        numbers, skipped = of_pruner[np.array(self._partitions)], Counter[SkipReason]()
        places = [
            of.start + _places(pruner, numbers[of.start : of.stop], statistics, skipped)
            for of, statistics in self._statistics
        ]
        for reason, files in skipped.items():
            pruner.count(reason, files)
        return self._selection_at(np.concatenate(places) if places else np.zeros(0, np.int64))

    def _selection_at(self, places: npt.NDArray[np.int64]) -> FileSelection:
        """Few files are copied, so that a plan holds no more than it needs."""
        if len(places) * _FEW < len(self._partitions):
            return FileSelection(self._copied(places), np.arange(len(places)))
        return FileSelection(self, places)

    def _rows_at(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Rows of files at some places, which grow, deleted ones included; -1 where statistics do not tell."""
        if not self.is_whole:
            return np.array(self._rows, np.int64)[places]
        parts = [statistics.rows_at(within) for statistics, within in self._parts(places)]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def _live_rows(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The same of rows that are not deleted."""
        rows = self._rows_at(places)
        if not self._deleted:
            return rows
        return _live(rows, np.array([self._deleted.get(place, 0) for place in places.tolist()], np.int64))

    def _parts(self, places: npt.NDArray[np.int64]) -> Iterator[tuple[PackedStatistics, npt.NDArray[np.int64]]]:
        """The statistics of files at some places, which grow, and the places among these."""
        if not len(places):
            return
        first = bisect_right(self._statistics, int(places[0]), key=lambda part: part[0].start) - 1
        for of, statistics in itertools.islice(self._statistics, first, None):
            within = places[slice(*np.searchsorted(places, [of.start, of.stop]).tolist())]
            if len(within):
                yield statistics, within - of.start
            if of.stop > places[-1]:
                return

    def _columns_at(self, places: npt.NDArray[np.int64]) -> TaskColumns:
        used, partitions = np.unique(self._numbers_at(places), return_inverse=True)
        texts, times = None, None
        if self._with_stats and self.is_whole:
            texts = [text for part, within in self._parts(places) for text in part.texts_at(within)]
        if self._with_times:
            times = [self._commit_times[place] for place in places.tolist()]
        values = [self._values[number] for number in used.tolist()]
        return self._columns.tasks_at(
            places, self._rows_at(places), partitions.tolist(), values, timestamps=times, stats=texts
        )


def _live(rows: npt.NDArray[np.int64], deleted: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Rows that are not deleted; -1 where they are not known."""
    return np.where(rows < 0, rows, np.maximum(rows - deleted, UNKNOWN_ROWS))


class FileSelection:
    """Files of a page at some places, in columns (``planned_files.FileBatch``)."""

    __slots__ = ("_page", "_places")

    def __init__(self, page: SnapshotFiles, places: npt.NDArray[np.int64]) -> None:
        self._page, self._places = page, places

    @property
    def num_rows(self) -> int:
        return len(self._places)

    def file_sizes(self) -> npt.NDArray[np.int64]:
        return self._page._columns.sizes[self._places]

    def file_rows(self) -> npt.NDArray[np.int64]:
        return self._page._live_rows(self._places)

    def file_partitions(self) -> tuple[npt.NDArray[np.int64], Sequence[Mapping[str, str | None] | None]]:
        return self._page._numbers_at(self._places), self._page._values

    def columns_at(self, places: npt.NDArray[np.int64]) -> TaskColumns:
        return self._page._columns_at(self._places[places])


def _places(
    pruner: FilePruner,
    numbers: npt.NDArray[np.int64],
    statistics: PackedStatistics,
    skipped: Counter[SkipReason],
) -> npt.NDArray[np.int64]:
    """The places of the files that are not skipped; the others are added to ``skipped``."""
    reasons = pruner.reasons(numbers, statistics)
    if reasons is None:
        return np.arange(len(numbers))
    places = np.flatnonzero(reasons == SkipReason.KEEP)
    if len(places) < len(numbers):
        for reason in SkipReason:
            skipped[reason] += int(np.count_nonzero(reasons == reason)) if reason else 0
    return places


def check_each_once(pages: Sequence[SnapshotFiles], table: str) -> None:
    """Raises ResponseError where a file is listed more than once, on one page or on several."""
    hashes = np.sort(np.concatenate([page.hashes for page in pages] or [np.zeros(0, np.int64)]))
    repeated = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
    if repeated:
        names = (f"file {file_id}" for page in pages for file_id in page.ids_of(repeated))
        raise broken(f"the server listed {next(names, 'a file that the query leaves out')} of {table} twice")


def files_by_version(
    blocks: Iterable[FileBlock], first: int | None, last: int | None, table: str, *, feed: bool
) -> dict[int, VersionFiles]:
    """The files of each version of an answer: those of its changes, or those that it adds, and how many it removes.

    ``dataChange=false`` is no change.

    Args:
        first, last: The versions that were asked for, both included; None is no bound. A server may not know a bound that it is told.
        feed: Whether the answer is a change feed's.

    Raises:
        ResponseError: A file names no version, one is added or removed twice in a version, or a line is none of a table's files.
    """
    by_version: dict[int, dict[str, dict[str, FileTask]]] = {}
    for block in blocks:
        for place, task in enumerate(block.tasks()):
            version = task.commit_version
            if version is None:
                raise broken(f"the server's change feed of {table} has a file without a version")
            if (first is not None and version < first) or (last is not None and version > last):
                continue
            if block.kind == "cdf" and not feed:
                raise broken(f"the server listed a {block.kind!r} line among the files of {table}")
            if place not in block.unchanged or block.kind == "cdf":
                by_id = by_version.setdefault(version, {}).setdefault(block.kind, {})
                if by_id.setdefault(task.id, task) is not task:
                    raise broken(f"the server lists file {task.id} of {table} twice in version {version}")
    return {
        version: VersionFiles(version, _tasks_of(kinds, feed=feed), len(kinds.get("remove", ())))
        for version, kinds in sorted(by_version.items())
    }


def _tasks_of(kinds: dict[str, dict[str, FileTask]], *, feed: bool) -> list[FileTask]:
    """What is read of a version: its change files, or of no feed the files that it adds."""
    if not feed:
        return list(kinds.get("add", {}).values())
    adds, removes, changed = (
        {name: _changed(task) for name, task in kinds.get(kind, {}).items()} for kind in ("add", "remove", "cdf")
    )
    return list(change_files(adds, removes, tuple(changed.values())))


def _changed(task: FileTask) -> ChangedFile:
    return ChangedFile(lambda: task.deletion_vector, lambda: task)


def shape_of_head(head: TableSnapshotHead, table: str, *, is_newest: bool) -> TableShape:
    """The shape that an answer tells; raises as ``shape_of_answer``, whose arguments these are."""
    return shape_of_answer(head.response_format, head.protocol, head.metadata, table, is_newest=is_newest)


def shape_of_answer(
    response_format: str, protocol: Protocol, metadata: Metadata, table: str, *, is_newest: bool = False
) -> TableShape:
    """The shape that an answer tells in a response format.

    Args:
        is_newest: Whether the newest version was asked for, by which a server chooses the format.

    Raises:
        UnsupportedFeatureError: As ``shape_of``, or the table needs what the format cannot say.
        ResponseError: As ``shape_of``.
    """
    if response_format == "parquet":
        check_parquet(_beyond_parquet(metadata, table, is_newest=is_newest), table)
    return shape_of(protocol, metadata, table)


def check_parquet(features: Iterable[str], table: str) -> None:
    """Raise UnsupportedFeatureError for an answer in the parquet format of a table that needs features which that cannot express."""
    if features := tuple(features):
        raise UnsupportedFeatureError(
            f"the sharing server answers for {table} in the parquet format, which cannot express {' and '.join(features)}: rows "
            f"would be wrong; set responseFormat to delta, read it with accessMode=dir if that is offered, or ask the provider "
            f"for a server that answers in the delta format",
            features=features,
        )


def features_beyond_parquet(head: TableSnapshotHead, table: str) -> Iterator[str]:
    """The features of a table that decide over its rows and that the parquet format cannot express."""
    if head.response_format == "parquet":
        yield from _beyond_parquet(head.metadata, table, is_newest=False)
        return
    shape = shape_of(head.protocol, head.metadata, table)
    if shape.mapping != "none" and _is_renamed(shape.schema):
        yield "columnMapping"
    if shape.may_have_vectors:
        yield "deletionVectors"


def _beyond_parquet(metadata: Metadata, table: str, *, is_newest: bool) -> Iterator[str]:
    configuration = metadata.configuration
    if configuration.get(MAPPING_MODE, "none").lower() != "none" and _is_renamed(
        parse_schema(metadata.schema_string, table)
    ):
        yield "columnMapping"
    # Of the newest version a server knows that no file has any.
    if not is_newest and configuration.get("delta.enableDeletionVectors", "").lower() == "true":
        yield "deletionVectors"


def _is_renamed(data_type: DataType) -> bool:
    """Whether files name a column of a type otherwise than the table."""
    return any(
        field.metadata.get(COLUMN_MAPPING_NAME, field.name) != field.name or _is_renamed(field.type)
        for field in inner_fields(data_type)
    )


def shapes_of(response: QueryResponse, table: str) -> Iterator[tuple[int | None, TableShape]]:
    """A table's shape where an answer begins, and at each version that changed it; raises as ``shape_of_answer``.

    The first is the newest, whatever its version, where the server tells no history.

    Args:
        response: Read to its end.
    """
    answered, protocol, metadata = response.head.response_format, response.head.protocol, response.head.metadata
    yield metadata.version, shape_of_answer(answered, protocol, metadata, table)
    changes: list[tuple[int, Protocol | Metadata]] = [*response.historical_protocols, *response.historical_metadata]
    for version, group in groupby(sorted(changes, key=lambda change: change[0]), key=lambda change: change[0]):
        for _, changed in group:
            if isinstance(changed, Protocol):
                protocol = changed
            else:
                metadata = changed
        yield version, shape_of_answer(answered, protocol, metadata, table)


def with_shapes(
    by_version: dict[int, VersionFiles], shapes: Sequence[tuple[int | None, TableShape]], first: int, last: int | None
) -> list[VersionFiles]:
    """Versions ``first`` to ``last`` in order, with the shapes of an answer.

    The first shape is the head's, at the range's start; a server that tells the newest stops a stream sooner, never later.
    """
    for version, shape in shapes[1:]:
        if version is not None and version >= first and (last is None or version <= last):
            by_version.setdefault(version, VersionFiles(version)).shape = shape
    files = by_version.setdefault(first, VersionFiles(first))
    files.shape = files.shape or shapes[0][1]
    return [by_version[version] for version in sorted(by_version)]
