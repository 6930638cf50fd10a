"""Plans a snapshot as a directory of Parquet files: names, sizes and partition numbers, and the files behind them."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from delta_sharing_spark.access.open import TableOpener
from delta_sharing_spark.access.plan import ScanPlan, plan
from delta_sharing_spark.access.resolved_scan import ResolvedScan
from delta_sharing_spark.native.files import FileShape, NotedAccess, ShownFile, rewriting_spec, show_file
from delta_sharing_spark.native.visits import Queries
from delta_sharing_spark.network.open_ones import OpenOnes
from delta_sharing_spark.scan.file_access import FileAccess
from delta_sharing_spark.scan.footer import TAIL
from delta_sharing_spark.scan.plan import FileTask
from delta_sharing_spark.scan.split_reader import constants_of
from delta_sharing_spark.schema.types import Array, DataType, Map, Primitive, Struct
from delta_sharing_spark.storage.ranges import ByteSource

#: Beyond these Spark takes longer to list a directory than the Python source takes to plan (docs/native.md).
MAX_FILES, MAX_PARTITIONS = 20_000, 2_000
#: More files than these, of fewer bytes each on average, are read faster by the Python source: each costs five requests of
#: Spark's, about 5 ms on two cores; the Python source takes half of that, and gains where a file has more to be left out.
MOST_SMALL_FILES, SMALL_FILE = 200, 512 << 10
#: Bytes fetched for a footer that nothing is known of, in all and for each column; and at most.
_TAIL, _TAIL_OF_COLUMN, _LONGEST_TAIL = 2 << 10, 320, 1 << 20
_VOID = Primitive("void")
_FILE = re.compile(r"part-(\d{6,})\.parquet")


class StepAsideError(Exception):
    """The native lane cannot read this load; the text says why, for the log and for ``explain``."""


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file of the plan: its task, the access that reads it, and its partition's number."""

    task: FileTask
    access: FileAccess
    partition: int


class NativePlan:
    """The directory of one load's files; free of Spark. Safe to call from several threads.

    Args:
        load: The resolved load.
        planned: Its planned files.

    Attributes:
        token: The plan's id in paths; not a secret.
        columns: The columns read from files, by the table's names.
        partitions: The values of the partition columns, by a partition's number.
        partition_column, deletion_column: Names, which no column of the table has, of the columns for the partition's
            number and for deleted rows.
        version: The table's version; None where the server does not tell.
        queries: The queries that read it, where Spark tells what their scans read.
        has_failed: Whether a file of it could not be read.
    """

    queries: Queries | None = None
    has_failed = False

    def __init__(self, load: ResolvedScan, planned: ScanPlan) -> None:
        spec = planned.spec
        self.table = spec.table
        self.version = load.version
        self.spec = spec
        self.output = load.output
        self.predicate = load.predicate
        self.report = planned.report
        self.token = secrets.token_hex(16)
        self.partition_columns = tuple(f for f in spec.full_schema.fields if f.name in spec.partition_columns)
        self.columns = Struct(
            tuple(f for f in spec.full_schema.fields if f.name not in spec.partition_columns and f.type != _VOID)
        )
        self.partition_column = _free_name("partition_number", spec.full_schema)
        self.deletion_column = _free_name("deleted_row", spec.full_schema)
        self.shape = FileShape(
            rewriting_spec(spec, self.columns),
            self.deletion_column,
            frozenset({self.partition_column, self.deletion_column}),
        )
        self.partitions: list[tuple[pa.Scalar, ...]] = []
        self.files = self._numbered(planned)
        self._footer_bytes = 0
        self.has_vectors = any(f.task.deletion_vector is not None for f in self.files)
        #: Directory to the numbers of its files.
        self.directories: dict[str, list[int]] = {"": []}
        for number, file in enumerate(self.files):
            self.directories.setdefault(self._directory_of(file), []).append(number)
        for numbers in self.directories.values():
            numbers.sort(key=lambda n: -self.files[n].task.size)
        self._place = {number: place for numbers in self.directories.values() for place, number in enumerate(numbers)}

    def _numbered(self, planned: ScanPlan) -> list[PlannedFile]:
        files: list[PlannedFile] = []
        by_text: dict[tuple[tuple[str, str | None], ...] | None, int] = {}
        spec = replace(self.spec, full_schema=Struct(self.partition_columns))
        for split in planned.splits:
            access = split.access
            if not isinstance(access, FileAccess):
                raise StepAsideError(f"access mode {self.report.mode} gives rows, and this lane reads files")
            for piece in split.slices:
                if piece.start:
                    continue  # the file came with its first slice
                task = piece.task
                values = task.partition_values if self.partition_columns else {}
                text = None if values is None else tuple(sorted(values.items()))
                number = by_text.get(text)
                if number is None:
                    constants = constants_of(task, spec)
                    number = by_text[text] = len(self.partitions)
                    self.partitions.append(tuple(constants[f.name] for f in self.partition_columns))
                files.append(PlannedFile(task, access, number))
        return files

    def _directory_of(self, file: PlannedFile) -> str:
        return f"{self.partition_column}={file.partition}" if self.partition_columns else ""

    def reads_as(self, other: NativePlan) -> bool:
        """Whether a newer plan has the same files of the same version, and nothing of this one has failed since."""
        return (
            not self.has_failed
            and self.version is not None
            and (self.version, self.spec, self.output, self.report.mode)
            == (other.version, other.spec, other.output, other.report.mode)
            and self.predicate is None
            and other.predicate is None
            and [_identity(file.task) for file in self.files] == [_identity(file.task) for file in other.files]
        )

    def path_of(self, number: int) -> str:
        """A file's path below the plan's root."""
        directory = self._directory_of(self.files[number])
        return f"{directory}/{file_name(number)}" if directory else file_name(number)

    def number_of(self, path: str) -> int | None:
        """The file at a path; None if there is none."""
        match = _FILE.fullmatch(path.rpartition("/")[2])
        number = int(match[1]) if match else -1
        return number if 0 <= number < len(self.files) and self.path_of(number) == path else None

    def listed(self, path: str) -> Iterator[tuple[str, int | None]]:
        """The entries of a directory: names, and bytes of files; a file lists itself."""
        if self.number_of(path) is not None:
            yield "", self.files[int(self.number_of(path) or 0)].task.size
            return
        if path == "":
            yield from ((name, None) for name in self.directories if name)
        yield from ((file_name(number), self.files[number].task.size) for number in self.directories.get(path, ()))

    def show(self, number: int, sources: OpenOnes[ByteSource], *, may_rewrite: bool = True) -> ShownFile:
        """Make a file ready to be served; what is opened for it is noted in ``sources``. Raises as ``show_file``."""
        file = self.files[number]
        access = NotedAccess(file.access, sources)
        shown = show_file(file.task, access, self.shape, may_rewrite=may_rewrite, tail_bytes=self._tail_bytes)
        self._footer_bytes = max(self._footer_bytes, shown.footer_bytes)
        return shown

    @property
    def _tail_bytes(self) -> int:
        """Of the first request for a footer: the largest one seen and a quarter; at first as many as its columns suggest."""
        if self._footer_bytes:
            return min(_LONGEST_TAIL, self._footer_bytes * 5 // 4 + 512)
        return min(TAIL, _TAIL + _TAIL_OF_COLUMN * sum(map(_leaves, (f.type for f in self.columns.fields))))

    def after(self, number: int) -> Iterator[int]:
        """The files that Spark will likely open after this one, for it takes the largest first.

        Only those of the same partition: others may have been pruned.
        """
        numbers = self.directories[self._directory_of(self.files[number])]
        for place in range(self._place[number] + 1, len(numbers)):
            yield numbers[place]


def _identity(task: FileTask) -> tuple[object, ...]:
    """What tells a file from others, and the rows that are deleted in it; URLs differ from answer to answer."""
    vector = task.deletion_vector
    deleted = None if vector is None else (vector.unique_id, vector.offset, vector.size, vector.cardinality)
    return task.id, task.size, task.partition_values, deleted


def file_name(number: int) -> str:
    """The name of the file ``number`` of a plan."""
    return f"part-{number:06}.parquet"


def _free_name(name: str, schema: Struct) -> str:
    known = {field.name.lower() for field in schema.fields}
    while name in known:
        name += "_"
    return name


def plan_native(load: ResolvedScan, opener: TableOpener | None = None, *, unless_slower: bool = False) -> NativePlan:
    """Plan a load for Spark's own reader.

    Args:
        load: The resolved load.
        opener: What it was resolved over, so that the table is not opened again.
        unless_slower: Whether to step aside where the Python source reads faster.

    Raises:
        StepAsideError: The native lane cannot read the load, or is slower.
        DeltaSharingError: As ``plan``.
    """
    why = why_not(load)
    if why is not None:
        raise StepAsideError(why)
    if load.options.carry_profile is not True:
        # The sharing token stays in this process, which renews what it serves, whatever executors may carry.
        load, opener = replace(load, options=replace(load.options, carry_profile=True)), None
    return native_plan(load, plan(load, opener=opener), unless_slower=unless_slower)


def native_plan(load: ResolvedScan, planned: ScanPlan, *, unless_slower: bool = False) -> NativePlan:
    """The plan for Spark's own reader of a load that was planned.

    Args:
        load: The resolved load.
        planned: The load's plan.
        unless_slower: Whether to step aside where the Python source reads faster.

    Raises:
        StepAsideError: There are too many files or partitions, or files so small that the native lane is slower.
    """
    files, size = planned.report.files, planned.report.bytes
    if files > MAX_FILES:
        raise StepAsideError(f"it has {files} files to read, more than {MAX_FILES}, and Spark lists each")
    if unless_slower and files > MOST_SMALL_FILES and size < files * SMALL_FILE:
        raise StepAsideError(
            f"it has {files} files to read, of {max(1, size // files >> 10)} KiB on average, which Spark's reader opens slowly"
        )
    native = NativePlan(load, planned)
    if len(native.partitions) > MAX_PARTITIONS and native.partition_columns:
        raise StepAsideError(
            f"it has {len(native.partitions)} partitions to read, more than {MAX_PARTITIONS}, and Spark lists each"
        )
    return native


def why_not(load: ResolvedScan) -> str | None:
    """Why the native lane cannot read a load, as far as that is known before planning; None where it can."""
    options = load.options
    if options.read_change_feed:
        return "a change data feed is read by the Python source"
    if options.limit is not None:
        return "a load with a limit is read by the Python source, in order"
    for column in load.columns.fields:
        if column.type != _VOID and (inside := _unreadable(column.type)):
            return f"column {column.name!r} holds {inside}, which Spark's reader does not read"
    if any(f.name.lower() == "_metadata" for f in load.columns.fields):
        return "it has a column _metadata, which Spark's reader has too"
    return None


def _leaves(kind: DataType) -> int:
    """The columns of a file that a column of a type is stored in."""
    match kind:
        case Struct(fields):
            return sum(_leaves(field.type) for field in fields)
        case Array(element, _):
            return _leaves(element)
        case Map(key, value, _):
            return _leaves(key) + _leaves(value)
        case _:
            return 1


def _unreadable(kind: DataType) -> str | None:
    match kind:
        case Primitive("void"):
            return "a nested void"
        case Struct(fields):
            if not fields:
                return "a struct without fields"
            return next((why for f in fields if (why := _unreadable(f.type))), None)
        case Array(element, _):
            return _unreadable(element)
        case Map(key, value, _):
            return _unreadable(key) or _unreadable(value)
        case _:
            return None
