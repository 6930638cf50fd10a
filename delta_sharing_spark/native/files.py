"""Lays out the files of a plan as Spark sees them, over the byte sources of the plan's access.

Only this module and ``plan.py`` use the access contract (splits, tasks, sources).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from delta_sharing_spark.errors import CorruptFileError
from delta_sharing_spark.native.joined_source import JoinedSource
from delta_sharing_spark.native.rewriting import FetchedFile, rewrite_columns, rewrite_files
from delta_sharing_spark.native.scan_columns import ScanColumns
from delta_sharing_spark.network.process_end import OpenResources
from delta_sharing_spark.parquet.decoding import Release
from delta_sharing_spark.parquet.file_columns import Unread
from delta_sharing_spark.parquet.file_footer import Constants, DeletedRows, FooterReader
from delta_sharing_spark.parquet.footer import read_footer
from delta_sharing_spark.parquet.layout import DifferentLayoutsError, Layout, lay_out, lay_out_together
from delta_sharing_spark.parquet.schema_match import NotNativeError
from delta_sharing_spark.scan.column_resolution import Context, mapping_of
from delta_sharing_spark.scan.fetching import BufferedRanges, InlineExecutor
from delta_sharing_spark.scan.filter_rows import RowSelection, read_row_selection
from delta_sharing_spark.scan.initial_values import fallbacks_of
from delta_sharing_spark.scan.pace import SPARE, WHOLE_FILE, Pace
from delta_sharing_spark.scan.plan import CHANGE_TYPE, DeletionVector, FileAccess, FileTask, ReadSpec
from delta_sharing_spark.scan.split_reader import rows_of_delete_files
from delta_sharing_spark.storage.ranges import ByteSource, MemorySource


@dataclass(frozen=True, slots=True)
class FileView:
    """A file as it is served: its layout and the source of its bytes.

    ``whole`` holds all bytes of a small file; ``reason`` says why the Python source rewrote the file or columns of it, if it
    did. ``held_bytes`` are what the source holds in memory, ``disk_bytes`` on local disk. ``unread`` are the columns that
    Spark's reader cannot decode; ``rewritten`` shows the file with some of them rewritten. ``key`` tells it from others of its plan.
    """

    source: ByteSource
    layout: Layout
    whole: memoryview | None = field(default=None, repr=False)
    reason: str | None = None
    held_bytes: int = 0
    disk_bytes: int = 0
    unread: frozenset[Unread] = frozenset()
    rewritten: Callable[[frozenset[Unread]], FileView] | None = field(default=None, repr=False)
    key: int = 0

    def unread_of(self, columns: ScanColumns) -> frozenset[Unread]:
        """The columns that a scan reads and Spark's reader cannot decode."""
        return frozenset(unread for unread in self.unread if unread.column in columns)

    @property
    def memory_bytes(self) -> int:
        """The memory it takes, in bytes, about."""
        return 1000 + len(self.layout.tail) + 300 * len(self.layout.chunks) + self.held_bytes

    def read(self, start: int, end: int) -> memoryview:
        """Bytes ``[start, end)`` of the file's own data; raises DeltaSharingError as ``ByteSource.read``."""
        return self.source.read(start, end - start)


@dataclass(frozen=True, slots=True)
class NotedAccess(FileAccess):
    """Opens files by another access, and notes their sources, so that their reads can be broken off."""

    access: FileAccess
    sources: OpenResources[ByteSource]

    def open(self, task: FileTask) -> ByteSource:
        """See ``FileAccess.open``."""
        return self.sources.add(self.access.open(task))

    def open_vector(self, task: FileTask, vector: DeletionVector) -> ByteSource:
        """See ``FileAccess.open_vector``."""
        return self.sources.add(self.access.open_vector(task, vector))


@dataclass(frozen=True, slots=True)
class FileShape:
    """How all files of a plan are read, and the names of Spark's columns.

    ``leaves_deleted_rows`` is whether Spark filters by the column of deleted rows; where it does not, a file with deleted
    rows is rewritten without them. ``checks_rows`` is whether files must have the rows that their statistics tell, by which
    a limit was counted. ``release`` is Spark's.
    """

    spec: ReadSpec
    deletion_column: str
    release: Release
    leaves_deleted_rows: bool = True
    checks_rows: bool = False
    footers: FooterReader = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "footers", FooterReader(self.spec.schema, self.spec.mapping, self.release))


def show_file(
    task: FileTask,
    access: FileAccess,
    shape: FileShape,
    pace: Pace,
    columns: ScanColumns,
    limit: int | None = None,
    *,
    may_rewrite: bool = True,
) -> FileView:
    """Fetch a file's footer and deletion vector, and lay it out for Spark's reader, or rewrite it where that is needed.

    Args:
        task, access: The file, and what reads it.
        shape: How it is read.
        pace: How the storage answers.
        columns: What the scan reads.
        limit: So many of its rows are shown, the first that are not deleted; None for all.
        may_rewrite: Whether it may be rewritten.

    Raises:
        DeltaSharingError: As ``read_split``.
        NotNativeError: The file has to be rewritten, and ``may_rewrite`` is false.
    """
    try:
        file = _opened(task, access, shape, pace, columns, limit)
    except NotNativeError as reason:
        if not may_rewrite:
            raise
        limited = replace(shape, spec=replace(shape.spec, limit=limit))
        return _rewritten_view([(task, access)], limited, str(reason))
    return _view_alone(file, shape, pace)


def _view_alone(file: FetchedFile, shape: FileShape, pace: Pace) -> FileView:
    def rewritten(unread: frozenset[Unread]) -> FileView:
        anew = _view_alone(rewrite_columns(file, unread, shape.spec, pace), shape, pace)
        return replace(anew, reason=_reason(unread), held_bytes=file.held_bytes)

    held, unread, layout = file.held_bytes, file.footer.unread, lay_out(file.footer, shape.deletion_column)
    whole = file.source.read(0, held) if held else None
    return FileView(file.source, layout, whole, None, held, file.disk_bytes, unread, rewritten if unread else None)


def _reason(unread: frozenset[Unread]) -> str:
    return "; ".join(sorted(f"column {column.name!r} has {column.reason}" for column in unread))


def show_together(
    files: Sequence[tuple[FileTask, FileAccess]],
    shape: FileShape,
    pool: Executor,
    pace: Pace,
    columns: ScanColumns,
    *,
    may_rewrite: bool = True,
) -> FileView:
    """Show small files to Spark's reader as one. Those that it would not read exactly are rewritten, all if they differ.

    Args:
        files: The files, and what reads each.
        pool: Its threads fetch the footers.
        shape, pace, columns, may_rewrite: As for ``show_file``.

    Raises:
        DeltaSharingError, NotNativeError: As ``show_file``.
    """

    def show(task: FileTask, access: FileAccess) -> FetchedFile:
        return _member_file(task, access, shape, pace, columns, may_rewrite=may_rewrite)

    if not (columns.part_of_files or shape.spec.is_projected):
        columns.part_of_files = float(all(name.encode() in columns for name in shape.spec.schema.names))
    is_certain = columns.part_of_files or all(pace.is_worth_whole(task.size, 0.0, SPARE) for task, _ in files)
    members = [] if is_certain else [show(*files[0])]  # it tells of the others
    first_ones = len(members)
    members += _all_at_once(files[first_ones:], show, pool, pace)
    is_held = all(member.held_bytes for member in members[first_ones:])
    return _joined_view(members, shape, pace, columns, is_held=is_held, may_rewrite=may_rewrite)


def _joined_view(
    members: Sequence[FetchedFile],
    shape: FileShape,
    pace: Pace,
    columns: ScanColumns,
    *,
    is_held: bool,
    may_rewrite: bool,
) -> FileView:
    length, footers = sum(member.task.size for member in members), [member.footer for member in members]
    try:
        layout, spans = lay_out_together(
            footers, shape.deletion_column, length, columns.__contains__, is_fetched=is_held
        )
    except DifferentLayoutsError as reason:
        if not may_rewrite:
            raise NotNativeError(str(reason)) from None
        return _rewritten_view([(member.task, member.access) for member in members], shape, str(reason))

    def rewritten(unread: frozenset[Unread]) -> FileView:
        anew = [rewrite_columns(m, unread & m.footer.unread, shape.spec, pace) for m in members]
        return replace(
            _joined_view(anew, shape, pace, columns, is_held=False, may_rewrite=True), reason=_reason(unread)
        )

    unread = frozenset[Unread]().union(*(footer.unread for footer in footers))
    held, disk = (sum(getattr(m, where) for m in members) for where in ("held_bytes", "disk_bytes"))
    if not is_held:
        source = JoinedSource(f"{len(members)} files", spans, [member.source for member in members], pace)
        return FileView(source, layout, None, None, held, disk, unread, rewritten if unread else None)
    pieces = (members[span.member].source.read(span.source.start, span.source.length) for span in spans)
    joined = MemorySource(f"{len(members)} files", b"".join((b"PAR1", *pieces)))
    # Members that may have to be rewritten stay in memory beside what they make together.
    held = joined.size + (held if unread else 0)
    return FileView(joined, layout, memoryview(joined.data), None, held, disk, unread, rewritten if unread else None)


def _opened(
    task: FileTask,
    access: FileAccess,
    shape: FileShape,
    pace: Pace,
    columns: ScanColumns,
    limit: int | None = None,
    *,
    may_move: bool = False,
) -> FetchedFile:
    """Fetch a file's footer, or the whole file, and its deletion vector; learn which part of such files the scan reads.

    Args:
        may_move: As for ``FooterReader.read``.

    Raises:
        NotNativeError: As there, or rows are deleted and Spark does not filter by them.
        CorruptFileError: A column chunk does not lie within the file's data, or the rows are not those of the statistics.
    """
    source, spec = access.open(task), shape.spec
    is_whole = pace.is_worth_whole(task.size, columns.part_of_files, SPARE)
    tail_bytes = task.size if is_whole else pace.tail_bytes(task.size)
    paced = BufferedRanges(source, InlineExecutor(), pace)
    footer = read_footer(paced, spec.table, tail_bytes, checks_later=True)
    pace.learn_footer(footer.size)
    rows = footer.metadata.num_rows
    if shape.checks_rows and rows != task.rows:
        raise CorruptFileError(
            f"file {task.id} of {spec.table} has {rows} rows and its statistics tell {task.rows}, by which the limit of "
            f"the load was counted; load the table with engine='python', and ask the provider to check the statistics",
            file=task.id,
        )
    mapping = mapping_of(spec.schema, footer.schema, spec.mapping)
    absent = fallbacks_of(task, spec.schema, footer.schema, Context(spec.table, task.id, mapping))
    if absent:
        raise NotNativeError(f"it lacks {', '.join(map(repr, absent))}, for which another value than NULL stands in")
    selection = read_row_selection(task, rows, access.open_vector, rows_of_delete_files(task, spec, access))
    deleted = None if selection is None and limit is None else _deleted(selection, rows, limit, shape)
    content = shape.footers.read(footer, source.size, deleted, _constants(task, spec), may_move=may_move)
    for chunk in (chunk for group in content.groups for chunk in group.chunks):
        if not 4 <= chunk.start <= chunk.end <= content.data_end:
            raise CorruptFileError(
                f"file {task.id} of {spec.table} has a column chunk at bytes {chunk.start} to {chunk.end}, "
                f"and its data end at {content.data_end}; ask the provider to check it",
                file=task.id,
            )
    if task.size <= WHOLE_FILE:
        wanted = [number for number, leaf in enumerate(content.columns.leaves) if leaf.column in columns]
        chunks = [group.chunks[number] for group in content.groups for number in wanted]
        columns.part_of_files = (footer.size + sum(chunk.end - chunk.start for chunk in chunks)) / source.size
    source = source if footer.file_bytes is None else MemorySource(task.id, footer.file_bytes)
    return FetchedFile(task, access, content, source)


def _member_file(
    task: FileTask, access: FileAccess, shape: FileShape, pace: Pace, columns: ScanColumns, *, may_rewrite: bool
) -> FetchedFile:
    try:
        return _opened(task, access, shape, pace, columns, may_move=True)
    except NotNativeError as reason:
        if not may_rewrite:
            raise
        return rewrite_files([(task, access)], shape.spec, str(reason), may_move=True)


def _all_at_once(
    files: Sequence[tuple[FileTask, FileAccess]],
    show: Callable[[FileTask, FileAccess], FetchedFile],
    pool: Executor,
    pace: Pace,
) -> list[FetchedFile]:
    """``show`` of each file, by as many threads as the storage's pace is worth: each takes a file as soon as it has done one."""
    waiting, members = iter(range(len(files))), dict[int, FetchedFile]()

    def work() -> None:
        try:
            for number in waiting:
                members[number] = show(*files[number])
        except BaseException:
            deque(waiting, maxlen=0)  # the others end as well
            raise

    at_once = max(1 if pace.is_instant else 2, pace.files_at_once(len(files)))
    coming = deque(pool.submit(work) for _ in files[:at_once])
    # In order, and not by ``wait``, which does not see that a pool which is shut down cancels what it has not begun. No name
    # stays for a future that failed: its error would hold the files that were fetched.
    while coming:
        coming.popleft().result()
    return [members[number] for number in range(len(files))]


def _constants(task: FileTask, spec: ReadSpec) -> Constants:
    """The kind of change of all rows of a file, where the file has no column that tells it."""
    if task.change_type is None or not spec.change_feed or CHANGE_TYPE not in spec.schema.names:
        return {}
    return {CHANGE_TYPE: task.change_type}


def _deleted(selection: RowSelection | None, rows: int, limit: int | None, shape: FileShape) -> DeletedRows:
    """What tells which rows ``kept`` leaves out, and those beyond a limit; raises NotNativeError if Spark does not filter by it."""
    if not shape.leaves_deleted_rows:
        raise NotNativeError("it has deleted rows, and the table's protocol does not allow any")
    end = rows if limit is None else int(np.flatnonzero(_mask(selection, 0, rows))[limit - 1]) + 1

    def deleted(first: int, count: int) -> npt.NDArray[np.bool_]:
        gone = ~_mask(selection, first, count)
        gone[max(0, end - first) :] = True
        return gone

    return deleted


def _mask(selection: RowSelection | None, first: int, count: int) -> npt.NDArray[np.bool_]:
    if selection is None:
        return np.ones(count, np.bool_)
    mask: npt.NDArray[np.bool_] = selection.mask(first, count).to_numpy(zero_copy_only=False)
    return mask


def _rewritten_view(files: Sequence[tuple[FileTask, FileAccess]], shape: FileShape, reason: str) -> FileView:
    file = rewrite_files(files, shape.spec, reason)
    layout = lay_out(file.footer, shape.deletion_column, sum(task.size for task, _ in files))
    return FileView(file.source, layout, None, reason, disk_bytes=file.disk_bytes)
