"""Plans a snapshot as Parquet files by partition: names and sizes, and the table's files behind them."""

from __future__ import annotations

import copy
import hashlib
import itertools
import pickle
import re
import secrets
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa

from delta_sharing_spark.access.open import TableOpener
from delta_sharing_spark.access.plan import ScanPlan, spec_of
from delta_sharing_spark.access.planned_files import FileBatches, live_rows
from delta_sharing_spark.access.resolved_scan import ResolvedScan
from delta_sharing_spark.errors import DeltaSharingError
from delta_sharing_spark.native.files import FileShape, FileView, NotedAccess, show_file, show_together
from delta_sharing_spark.native.rewriting import rewriting_spec
from delta_sharing_spark.native.scan_columns import ScanColumns, ScanNames, leaves_of
from delta_sharing_spark.network.process_end import OpenResources
from delta_sharing_spark.parquet.decoding import OLDEST, Release
from delta_sharing_spark.parquet.layout import lay_out_rows
from delta_sharing_spark.scan.file_constants import constants_of
from delta_sharing_spark.scan.pace import WHOLE_FILE, pace_of
from delta_sharing_spark.scan.plan import (
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    Access,
    FileAccess,
    FileSlice,
    FileTask,
    Split,
)
from delta_sharing_spark.scan.split_reader import read_split
from delta_sharing_spark.schema.types import DataType, Primitive, Struct, inner_fields, spark_schema_json
from delta_sharing_spark.storage.ranges import ByteSource, MemorySource

#: Files of at most so many bytes are shown together as one: each costs Spark five requests, 3 to 5 ms.
SMALL_FILE = 4 << 20
#: Bytes and column chunks of files that are shown as one: each task that reads a part parses the whole footer, 30 us a chunk.
_JOINED_BYTES, _JOINED_CHUNKS = 8 << 20, 2_000
#: Rows that are only counted weigh as little as this in Spark's division into tasks.
_ROWS_COUNTED_AS_A_BYTE = 64
#: Bytes fetched for a footer that nothing is known of, in all and for each column.
_TAIL, _TAIL_OF_COLUMN = 2 << 10, 320
_VOID = Primitive("void")
#: Files among which one of another partition is looked for.
_LOOKED_BACK = 32
#: Rows that a scan needs of which no column is read: only their number, in each partition or of all together.
COUNTED, COUNTED_TOGETHER = -1, -2
_FILE = re.compile(r"part-(\d{6,})-([0-9a-f]{16})\.parquet")
#: The digests of the members of each virtual file of a listing, in order.
Joined = tuple[tuple[int, ...], ...]


class StepAsideError(Exception):
    """The native lane cannot read this load; the text says why, for the log and for ``explain``."""


class UncountedError(Exception):
    """Statistics do not tell the rows of a file."""


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file of the plan.

    Attributes:
        task: The file.
        access: What reads it.
        partition: Its partition's number.
        digest: What tells it from others.
        limit: How many of its rows belong to the load, the first that are not deleted; None for all.
    """

    task: FileTask
    access: FileAccess
    partition: int
    digest: int
    limit: int | None = None

    @property
    def live_rows(self) -> int | None:
        """Rows of it that are the load's; None where statistics do not tell."""
        rows = live_rows(self.task)
        return rows if self.limit is None or rows is None else min(self.limit, rows)


@dataclass(frozen=True, slots=True)
class VirtualFile:
    """A file as Spark is shown it: one of the table's, or small ones of one partition.

    Attributes:
        members: The table's files.
        size: The bytes that it is listed with, which its tasks share.
        digest: What tells it from others.
        rows: The rows of its members, where it is made of them alone, for queries that read no column; else None.
    """

    members: tuple[PlannedFile, ...]
    size: int
    digest: int
    rows: int | None = None

    @staticmethod
    def of(members: Sequence[PlannedFile]) -> VirtualFile:
        """The file of some of the table's."""
        digest = members[0].digest
        if len(members) > 1:
            digest = _short_digest(b"".join(member.digest.to_bytes(8, "big") for member in members))
        return VirtualFile(tuple(members), sum(member.task.size for member in members), digest)

    @property
    def bytes_if_whole(self) -> int:
        """The bytes that are held of it where it is fetched whole; 0 where it is too large for that."""
        return self.size if len(self.members) > 1 or self.size <= WHOLE_FILE else 0

    @property
    def partition(self) -> int:
        """The number of its partition."""
        return self.members[0].partition

    def name(self, number: int) -> str:
        """Its name as the file ``number`` of a plan."""
        return f"part-{number:06}-{self.digest:016x}.parquet"

    def described(self) -> str:
        """The table's files that it is, for an error."""
        first, last = self.members[0].task.id, self.members[-1].task.id
        return first if len(self.members) == 1 else f"{first}, or another of {len(self.members)} up to {last},"


class LoadColumns:
    """The columns of a load as Spark's reader is shown them, before its files are known; free of Spark.

    Args:
        release: Spark's; its reader decodes more or less.

    Attributes:
        columns: The columns read from files, by the table's names.
        partition_columns: The partition columns, and those of a change feed that are the same for all rows of a version.
        deletion_column: A name, which no column of the table has, of the column for deleted rows.
        may_have_vectors: Whether Spark is to leave rows of files out: those of deletion vectors, those beyond a limit.
        scans: Names the scans of the load by the columns that they read.
    """

    def __init__(self, load: ResolvedScan, release: Release = OLDEST) -> None:
        self.release = release
        self.table = str(load.table)
        self.spec = spec_of(load)
        self.output = load.output
        self.predicate = load.predicate
        full = self.spec.full_schema
        apart = {*self.spec.partition_columns, *((COMMIT_VERSION, COMMIT_TIMESTAMP) if self.spec.change_feed else ())}
        self.partition_columns = tuple(f for f in full.fields if f.name in apart)
        self.columns = Struct(tuple(f for f in full.fields if f.name not in apart and f.type != _VOID))
        self.deletion_column = _free_name("deleted_row", full)
        self.may_have_vectors = load.shape.may_have_vectors or load.options.limit is not None
        self.scans = ScanNames([*leaves_of(spark_schema_json(self.columns)), self.deletion_column.encode()])

    @cached_property
    def all_columns(self) -> ScanColumns:
        """What a scan reads whose columns are not known: all of them."""
        return ScanColumns(frozenset(name.encode() for name in self.columns.names))


class NativePlan:
    """The directory of the files of one listing; free of Spark. Safe to call from several threads.

    Args:
        planned: Its planned files.
        shown: Its columns, made anew by default.
        token: The plan's id in paths; not a secret. A new one by default.
        joined: Which files to show as one, as an earlier listing of the same rows did; small ones by default.
        counts: ``COUNTED`` for a scan that reads no column, for which a file of each partition has just its number of rows;
            ``COUNTED_TOGETHER`` where one file has that of all. UncountedError is raised where statistics do not tell it.

    Attributes:
        files: The files as Spark is shown them.
        by_partition: The numbers of a partition's files, the largest first, by the partition's number.
        partitions: The values of the partition columns, by a partition's number.
        planned: The planned files; None in a process that the plan was sent to.
        version: The table's version; None where the server does not tell.
        has_failed: Whether a file of it could not be read.
    """

    has_failed = False

    def __init__(
        self,
        load: ResolvedScan,
        planned: ScanPlan,
        shown: LoadColumns | None = None,
        token: str | None = None,
        joined: Joined | None = None,
        *,
        counts: int | None = None,
    ) -> None:
        self.shown = shown or LoadColumns(load)
        self.table = self.shown.table
        self.version = planned.report.version
        self.planned: ScanPlan | None = planned
        self.report = planned.report
        self.token = token or secrets.token_hex(16)
        self.partition_columns = self.shown.partition_columns
        self.shape = FileShape(
            rewriting_spec(planned.spec, self.shown.columns),
            self.shown.deletion_column,
            self.shown.release,
            leaves_deleted_rows=self.shown.may_have_vectors,
            checks_rows=load.options.limit is not None,
        )
        self.partitions: list[tuple[pa.Scalar, ...]] = []
        self._numbers: dict[object, int] = {}
        leaves = _leaves(self.shown.columns)
        if counts is not None:
            self._arrange(self._counted(planned, together=counts == COUNTED_TOGETHER))
        else:
            files = self._planned(planned)
            most = max(1, _JOINED_CHUNKS // (1 + leaves))
            self._arrange(_joined(files, most) if joined is None else _joined_as(files, joined, most))
        self._numbers = {}
        self._by_digest: dict[int, int] | None = None
        self.pace = pace_of(
            self.table, self.files[0].members[0].task.location if self.files else "", _TAIL + _TAIL_OF_COLUMN * leaves
        )

    def packed(self) -> bytes:
        """What another process needs to serve the plan, compressed: not the partitions' values."""
        plan = copy.copy(self)
        plan.has_failed, plan.partitions, plan._by_digest, plan.planned = False, [], None, None
        return zlib.compress(pickle.dumps(plan, pickle.HIGHEST_PROTOCOL), 1)

    @staticmethod
    def unpacked(packed: bytes) -> NativePlan:
        """The plan that this package has packed."""
        plan: NativePlan = pickle.loads(zlib.decompress(packed))  # noqa: S301
        return plan

    def _arrange(self, files: list[VirtualFile]) -> None:
        """Put files into their partitions."""
        self.files = files
        self.by_partition: dict[int, list[int]] = {}
        for number, file in enumerate(files):
            self.by_partition.setdefault(file.partition, []).append(number)
        for numbers in self.by_partition.values():
            numbers.sort(key=lambda n: -files[n].size)
        #: In the order in which Spark opens them, if it opens all; and the place of each in it, and in its partition.
        numbers = [number for numbers in self.by_partition.values() for number in numbers]
        self._order = sorted(numbers, key=lambda n: -files[n].size)
        self._rank = {number: rank for rank, number in enumerate(self._order)}
        self._place = {number: place for numbers in self.by_partition.values() for place, number in enumerate(numbers)}

    def _planned(self, planned: ScanPlan) -> list[PlannedFile]:
        """The files of a plan as far as its limit goes; raises StepAsideError where this lane cannot read them."""
        files: list[PlannedFile] = []
        for split in planned.splits:
            access = _file_access(split.access, self.report.mode)
            # A large file comes with its first slice.
            files += [self._file(piece.task, access) for piece in split.slices if not piece.start]
        return files if planned.spec.limit is None else _limited(files, planned.spec.limit)

    def _file(self, task: FileTask, access: FileAccess) -> PlannedFile:
        """A file in its partition, whose values are those of its first file."""
        spec = self.shown.spec
        values = task.partition_values if spec.partition_columns else {}
        text = (
            None if values is None else tuple(sorted(values.items())),
            (task.commit_version, task.commit_timestamp) if spec.change_feed else None,
        )
        number = self._numbers.get(text)
        if number is None:
            constants = constants_of(task, replace(spec, full_schema=Struct(self.partition_columns)))
            number = self._numbers[text] = len(self.partitions)
            self.partitions.append(tuple(constants[f.name] for f in self.partition_columns))
        return PlannedFile(task, access, number, _digest(task))

    def _counted(self, planned: ScanPlan, *, together: bool) -> list[VirtualFile]:
        """A file for each partition, or for all together, that has just its number of rows.

        Raises:
            UncountedError: Statistics do not tell it.
        """
        first: dict[int, PlannedFile] = {}
        rows: dict[int, int] = {}
        for file, count in self._counts(planned):
            if count is None:
                raise UncountedError
            number = 0 if together else file.partition
            first.setdefault(number, file)
            rows[number] = rows.get(number, 0) + count
        if together and rows:
            self.partitions = [tuple(pa.scalar(None, scalar.type) for scalar in self.partitions[0])]
        files = []
        for number, count in rows.items():
            digest = _short_digest(repr((self.partitions[number], count)).encode())
            size = max(64, count // _ROWS_COUNTED_AS_A_BYTE)
            files += [VirtualFile((first[number],), size, digest, count)] if count else []
        return files

    def _counts(self, planned: ScanPlan) -> Iterator[tuple[PlannedFile, int | None]]:
        """Files, and how many rows they or all of their partition have; no object is made of a file that is one of many."""
        if not isinstance(planned.files, FileBatches):
            for file in self._planned(planned):
                yield file, file.live_rows
            return
        access = _file_access(planned.access.restricted_to(()), self.report.mode)
        for task, count in planned.files.rows_by_partition():
            yield self._file(task, access), count

    @property
    def joined(self) -> Joined:
        """Which files are shown as one, to show another listing of the same rows alike."""
        return tuple(tuple(member.digest for member in file.members) for file in self.files)

    def number_of(self, name: str) -> int | None:
        """The file that a name of this listing, or of an earlier one of the same rows, is of; None if there is none."""
        match = _FILE.fullmatch(name)
        if match is None:
            return None
        number, digest = int(match[1]), int(match[2], 16)
        if number < len(self.files) and self.files[number].digest == digest:
            return number
        if self._by_digest is None:
            self._by_digest = {file.digest: number for number, file in enumerate(self.files)}
        return self._by_digest.get(digest)

    def show(
        self,
        number: int,
        sources: OpenResources[ByteSource],
        pool: Executor,
        columns: ScanColumns | None = None,
        *,
        may_rewrite: bool = True,
    ) -> FileView:
        """Make a file ready to be served.

        Args:
            sources: Where what is opened for it is noted.
            pool: Fetches the footers of small files; none of its threads waits for another.
            columns: What the scan reads that opens it; all where it is not told.
            may_rewrite: Whether files may be rewritten.

        Raises:
            DeltaSharingError, NotNativeError: As ``show_file``.
        """
        rows = self.files[number].rows
        if rows is not None:
            layout = lay_out_rows(rows, self.shape.deletion_column, self.files[number].size)
            return FileView(MemorySource("counted rows", b"PAR1"), layout, memoryview(b"PAR1"))
        files = [(member.task, NotedAccess(member.access, sources)) for member in self.files[number].members]
        columns = columns or self.shown.all_columns
        if len(files) > 1:
            return show_together(files, self.shape, pool, self.pace, columns, may_rewrite=may_rewrite)
        limit = self.files[number].members[0].limit
        return show_file(*files[0], self.shape, self.pace, columns, limit, may_rewrite=may_rewrite)

    def damaged(self, number: int) -> DeltaSharingError | None:
        """What is wrong with one of the small files that are shown as one, as the Python source finds it; None if nothing is."""
        members = self.files[number].members
        for member in members if len(members) > 1 else ():
            batches = read_split(Split(0, self.shape.spec, (FileSlice(member.task),), member.access))
            try:
                deque(batches, maxlen=0)
            except DeltaSharingError as error:
                error.name_table(self.table)
                return error
            finally:
                batches.close()
        return None

    def after(self, number: int, *, of_all: bool) -> Iterator[int]:
        """The files that Spark will likely open after this one, for it takes the largest first.

        Args:
            of_all: Whether those of other partitions too, which Spark may leave out by what it joins the table with.
        """
        if of_all:
            return itertools.islice(self._order, self._rank[number] + 1, None)
        return itertools.islice(self.by_partition[self.files[number].partition], self._place[number] + 1, None)

    def before(self, number: int) -> int | None:
        """The file of another partition that Spark opens just before this one, if it leaves out none."""
        rank, partition = self._rank[number], self.files[number].partition
        earlier = self._order[max(0, rank - _LOOKED_BACK) : rank]
        return next((other for other in reversed(earlier) if self.files[other].partition != partition), None)


def _file_access(access: Access, mode: str) -> FileAccess:
    if not isinstance(access, FileAccess):
        raise StepAsideError(f"access mode {mode} gives rows, and this lane reads files")
    return access


def _limited(files: Sequence[PlannedFile], limit: int) -> list[PlannedFile]:
    """The files of a load with a limit, in its order, as far as the limit goes; the last one may be cut.

    Raises:
        StepAsideError: Statistics do not tell the rows of a file.
    """
    limited = []
    for file in files:
        rows = file.live_rows
        if rows is None:
            raise StepAsideError(
                f"the load has a limit, and the statistics of {file.task.id} do not tell its rows: the Python source counts them"
            )
        if rows and limit:
            cut = limit if limit < rows else None
            limited.append(file if cut is None else replace(file, limit=cut, digest=_digest(file.task, cut)))
            limit -= min(rows, limit)
    return limited


def _joined(files: Sequence[PlannedFile], most: int) -> list[VirtualFile]:
    """Small files of one partition as one, at most so many; the others each as it is."""
    virtual: list[VirtualFile] = []
    open_ones: dict[int, tuple[list[PlannedFile], int]] = {}
    for file in files:
        if file.task.size > SMALL_FILE or file.limit is not None:
            virtual.append(VirtualFile.of([file]))
            continue
        members, size = open_ones.get(file.partition, ([], 0))
        if members and (size + file.task.size > _JOINED_BYTES or len(members) >= most):
            virtual.append(VirtualFile.of(members))
            members, size = [], 0
        members.append(file)
        open_ones[file.partition] = members, size + file.task.size
    return virtual + [VirtualFile.of(members) for members, _ in open_ones.values()]


def _joined_as(files: Sequence[PlannedFile], joined: Joined, most: int) -> list[VirtualFile]:
    """The virtual files of an earlier listing, as far as their files are listed; the other files as ``_joined``."""
    by_digest = {file.digest: file for file in files}
    virtual = []
    for digests in joined:
        if all(digest in by_digest for digest in digests):
            virtual.append(VirtualFile.of([by_digest.pop(digest) for digest in digests]))
    return virtual + _joined(list(by_digest.values()), most)


def _digest(task: FileTask, limit: int | None = None) -> int:
    """What tells a file from others, and which of its rows are read; URLs differ from answer to answer."""
    vectors = [(v.unique_id, v.offset) for v in (task.deletion_vector, task.excluded) if v is not None]
    change = task.invert_deletion_vector, task.change_type, task.commit_version
    deletes = [delete.location for delete in task.deletes]
    return _short_digest(repr((task.id, vectors, deletes, change, limit)).encode())


def _short_digest(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


def _free_name(name: str, schema: Struct) -> str:
    lowered = {field.name.lower() for field in schema.fields}
    while name in lowered:
        name += "_"
    return name


def renewing_here(load: ResolvedScan, opener: TableOpener | None) -> tuple[ResolvedScan, TableOpener | None]:
    """The load as this process renews it: the sharing token stays here, whatever executors may carry."""
    if load.options.carry_profile is True:
        return load, opener
    return replace(load, options=replace(load.options, carry_profile=True)), None


def why_not(load: ResolvedScan) -> str | None:
    """Why the native lane cannot read a load, as far as that is known before planning; None where it can."""
    options = load.options
    if options.gateway is not None:
        return "a Flight gateway gives rows, and this lane reads files"
    if options.limit is not None and load.row_limit.rows_listed is None:
        return "a load with a limit of the rows that fulfil a condition is read by the Python source, in order"
    for column in load.columns.fields:
        if column.type != _VOID and (inside := _unreadable(column.type)):
            return f"column {column.name!r} holds {inside}, which Spark's reader does not read"
    if any(f.name.lower() == "_metadata" for f in load.columns.fields):
        return "it has a column _metadata, which Spark's reader has too"
    return None


def _leaves(kind: DataType) -> int:
    """The columns of a file that a column of a type is stored in."""
    return sum(_leaves(inner.type) for inner in inner_fields(kind)) or 1


def _unreadable(kind: DataType) -> str | None:
    if kind == _VOID:
        return "a nested void"
    if kind == Struct(()):
        return "a struct without fields"
    return next((why for inner in inner_fields(kind) if (why := _unreadable(inner.type))), None)
