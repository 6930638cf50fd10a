"""Lays out the files of a plan as Spark sees them, over the byte sources of the plan's access.

Only this module and ``plan.py`` use the access contract (splits, tasks, sources).
"""

from __future__ import annotations

import bisect
import itertools
import logging
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from delta_sharing_spark.errors import CorruptFileError
from delta_sharing_spark.native.file_footer import Constants, DeletedRows, FileFooter, FooterReader
from delta_sharing_spark.native.layout import DifferentLayoutsError, Layout, Span, lay_out, lay_out_together
from delta_sharing_spark.native.scan_columns import ScanColumns
from delta_sharing_spark.native.schema_match import NotNativeError
from delta_sharing_spark.network.process_end import OpenOnes
from delta_sharing_spark.scan.filter_rows import RowSelection, read_row_selection
from delta_sharing_spark.scan.footer import read_footer
from delta_sharing_spark.scan.pace import SPARE, WHOLE_FILE, Pace
from delta_sharing_spark.scan.plan import CHANGE_TYPE, DeletionVector, FileAccess, FileSlice, FileTask, ReadSpec, Split
from delta_sharing_spark.scan.read_ahead import BufferedRanges, OwnThread
from delta_sharing_spark.scan.split_reader import read_split
from delta_sharing_spark.schema.types import Struct, without_mapping
from delta_sharing_spark.storage.local_files import LocalSource
from delta_sharing_spark.storage.ranges import ByteSource, MemorySource, Range

_log = logging.getLogger(__name__)

#: Bytes of decoded rows in a row group of a rewritten file.
_ROW_GROUP_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class ShownFile:
    """A file as it is served: its layout and the source of its bytes.

    ``whole`` holds all bytes of a small file; ``reason`` says why the Python source rewrote the file, if it did.
    ``held_bytes`` are what the source holds in memory.
    """

    source: ByteSource
    layout: Layout
    whole: memoryview | None = field(default=None, repr=False)
    reason: str | None = None
    held_bytes: int = 0

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
    sources: OpenOnes[ByteSource]

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
    a limit was counted.
    """

    spec: ReadSpec
    deletion_column: str
    leaves_deleted_rows: bool = True
    checks_rows: bool = False
    footers: FooterReader = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "footers", FooterReader(self.spec.schema, self.spec.mapping))


def show_file(
    task: FileTask,
    access: FileAccess,
    shape: FileShape,
    pace: Pace,
    columns: ScanColumns,
    limit: int | None = None,
    *,
    may_rewrite: bool = True,
) -> ShownFile:
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
        return _shown_rewritten([(task, access)], limited, str(reason))
    held = _held_bytes(file)
    whole = file.source.read(0, held) if held else None
    return ShownFile(file.source, lay_out(file.footer, shape.deletion_column), whole, held_bytes=held)


def show_together(
    files: Sequence[tuple[FileTask, FileAccess]],
    shape: FileShape,
    pool: Executor,
    pace: Pace,
    columns: ScanColumns,
    *,
    may_rewrite: bool = True,
) -> ShownFile:
    """Show small files to Spark's reader as one. Those that it would not read exactly are rewritten, all if they differ.

    Args:
        files: The files, and what reads each.
        pool: Its threads fetch the footers.
        shape, pace, columns, may_rewrite: As for ``show_file``.

    Raises:
        DeltaSharingError, NotNativeError: As ``show_file``.
    """

    def show(task: FileTask, access: FileAccess) -> _MemberFile:
        return _member_file(task, access, shape, pace, columns, may_rewrite=may_rewrite)

    if not (columns.part_of_files or shape.spec.is_projected):
        columns.part_of_files = float(all(name.encode() in columns for name in shape.spec.schema.names))
    is_told = columns.part_of_files or all(pace.is_worth_whole(task.size, 0.0, SPARE) for task, _ in files)
    members = [] if is_told else [show(*files[0])]  # it tells of the others
    told = len(members)
    members += _all_at_once(files[told:], show, pool, pace)
    length, footers = sum(task.size for task, _ in files), [member.footer for member in members]
    is_held = all(map(_held_bytes, members[told:]))
    try:
        layout, spans = lay_out_together(
            footers, shape.deletion_column, length, columns.__contains__, is_fetched=is_held
        )
    except DifferentLayoutsError as reason:
        if not may_rewrite:
            raise NotNativeError(str(reason)) from None
        return _shown_rewritten(files, shape, str(reason))
    if not is_held:
        source = _JoinedSource(f"{len(files)} files", spans, members, pace)
        return ShownFile(source, layout, held_bytes=sum(map(_held_bytes, members)))
    pieces = (members[span.member].source.read(span.source.start, span.source.length) for span in spans)
    joined = MemorySource(f"{len(files)} files", b"".join((b"PAR1", *pieces)))
    return ShownFile(joined, layout, memoryview(joined.data), held_bytes=joined.size)


@dataclass(frozen=True, slots=True)
class _MemberFile:
    """A file whose footer and deletion vector were fetched: how it is laid out, and where its bytes come from."""

    footer: FileFooter
    source: ByteSource


def _opened(
    task: FileTask,
    access: FileAccess,
    shape: FileShape,
    pace: Pace,
    columns: ScanColumns,
    limit: int | None = None,
    *,
    may_move: bool = False,
) -> _MemberFile:
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
    paced = BufferedRanges(source, OwnThread(), pace)
    footer = read_footer(paced, spec.table, tail_bytes, checks_later=True)
    pace.learn_footer(footer.size)
    rows = footer.metadata.num_rows
    if shape.checks_rows and rows != task.rows:
        raise CorruptFileError(
            f"file {task.id} of {spec.table} has {rows} rows and its statistics tell {task.rows}, by which the limit of "
            f"the load was counted; load the table with engine='python', and ask the provider to check the statistics",
            file=task.id,
        )
    kept = read_row_selection(task, rows, access.open_vector)
    deleted = None if kept is None and limit is None else _deleted(kept, rows, limit, shape)
    shown = shape.footers.read(footer, source.size, deleted, _constants(task, spec), may_move=may_move)
    for chunk in (chunk for group in shown.groups for chunk in group.chunks):
        if not 4 <= chunk.start <= chunk.end <= shown.data_end:
            raise CorruptFileError(
                f"file {task.id} of {spec.table} has a column chunk at bytes {chunk.start} to {chunk.end}, "
                f"and its data end at {shown.data_end}; ask the provider to check it",
                file=task.id,
            )
    if task.size <= WHOLE_FILE:
        wanted = [number for number, leaf in enumerate(shown.columns.leaves) if leaf.column in columns]
        chunks = [group.chunks[number] for group in shown.groups for number in wanted]
        columns.part_of_files = (footer.size + sum(chunk.end - chunk.start for chunk in chunks)) / source.size
    return _MemberFile(shown, source if footer.file_bytes is None else MemorySource(task.id, footer.file_bytes))


def _held_bytes(file: _MemberFile) -> int:
    """The bytes in memory of a file that was fetched whole; 0 of another."""
    return file.source.size if isinstance(file.source, MemorySource) else 0


def _member_file(
    task: FileTask, access: FileAccess, shape: FileShape, pace: Pace, columns: ScanColumns, *, may_rewrite: bool
) -> _MemberFile:
    try:
        return _opened(task, access, shape, pace, columns, may_move=True)
    except NotNativeError as reason:
        if not may_rewrite:
            raise
        rewritten, footer = _rewritten([(task, access)], shape.spec, str(reason), may_move=True)
        return _MemberFile(footer, rewritten)


def _all_at_once(
    files: Sequence[tuple[FileTask, FileAccess]],
    show: Callable[[FileTask, FileAccess], _MemberFile],
    pool: Executor,
    pace: Pace,
) -> list[_MemberFile]:
    """``show`` of each file, by as many threads as the storage's pace is worth: each takes a file as soon as it has done one."""
    waiting, members = iter(range(len(files))), dict[int, _MemberFile]()

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


class _JoinedSource:
    """A ``ByteSource`` over files that are shown as one."""

    def __init__(self, name: str, spans: Sequence[Span], members: Sequence[_MemberFile], pace: Pace) -> None:
        self.name = name
        self.size = spans[-1].end if spans else 4
        self._spans, self._members, self._pace = spans, members, pace
        self._starts = [span.start for span in spans]

    def read(self, start: int, length: int) -> memoryview:
        """See ``ByteSource.read``: pieces of one file that lie near each other are one request."""
        end = start + length
        joined = [memoryview(b"PAR1")[start:end]]
        pieces: list[tuple[int, Range]] = []
        for span in self._spans[max(0, bisect.bisect_right(self._starts, start) - 1) :]:
            if span.start >= end:
                break
            by = span.source.start - span.start
            piece = Range(max(start, span.start) + by, min(end, span.end) + by)
            if piece.length > 0:
                pieces.append((span.member, piece))
        if len(pieces) == 1 and start >= 4:
            member, piece = pieces[0]
            return self._members[member].source.read(piece.start, piece.length)
        for member, parts in itertools.groupby(pieces, itemgetter(0)):
            wanted = [part for _, part in parts]
            read = self._members[member].source.read
            fetched = {whole: read(whole.start, whole.length) for whole in self._pace.merged(wanted)}
            for part in wanted:
                whole = next(whole for whole in fetched if whole.start <= part.start < whole.end)
                joined.append(fetched[whole][part.start - whole.start : part.end - whole.start])
        return memoryview(b"".join(joined))

    def close(self) -> None:
        for member in self._members:
            member.source.close()


def _constants(task: FileTask, spec: ReadSpec) -> Constants:
    """The kind of change of all rows of a file, where the file has no column that tells it."""
    if task.change_type is None or not spec.change_feed or CHANGE_TYPE not in spec.schema.names:
        return {}
    return {CHANGE_TYPE: task.change_type}


def _deleted(kept: RowSelection | None, rows: int, limit: int | None, shape: FileShape) -> DeletedRows:
    """What tells which rows ``kept`` leaves out, and those beyond a limit; raises NotNativeError if Spark does not filter by it."""
    if not shape.leaves_deleted_rows:
        raise NotNativeError("it has deleted rows, and the table's protocol does not allow any")
    end = rows if limit is None else int(np.flatnonzero(_mask(kept, 0, rows))[limit - 1]) + 1

    def deleted(first: int, count: int) -> npt.NDArray[np.bool_]:
        gone = ~_mask(kept, first, count)
        gone[max(0, end - first) :] = True
        return gone

    return deleted


def _mask(kept: RowSelection | None, first: int, count: int) -> npt.NDArray[np.bool_]:
    if kept is None:
        return np.ones(count, np.bool_)
    mask: npt.NDArray[np.bool_] = kept.mask(first, count).to_numpy(zero_copy_only=False)
    return mask


def _shown_rewritten(files: Sequence[tuple[FileTask, FileAccess]], shape: FileShape, reason: str) -> ShownFile:
    source, footer = _rewritten(files, shape.spec, reason)
    layout = lay_out(footer, shape.deletion_column, sum(task.size for task, _ in files))
    return ShownFile(source, layout, None, reason)


def _rewritten(
    files: Sequence[tuple[FileTask, FileAccess]], spec: ReadSpec, reason: str, *, may_move: bool = False
) -> tuple[ByteSource, FileFooter]:
    """Write the rows that the Python source reads to a Parquet file on local disk, which has no name; returns it and its footer."""
    names = files[0][0].id if len(files) == 1 else f"{files[0][0].id} and {len(files) - 1} more"
    _log.info("file %s of %s is rewritten for Spark's reader: %s", names, spec.table, reason)
    out = tempfile.TemporaryFile(prefix="delta-sharing-")  # noqa: SIM115 - lives as long as the file is shown
    try:
        _write_rows(out, files, spec)
        source = LocalSource(out, files[0][0].id)
        footer = read_footer(source, spec.table)
        footers = FooterReader(without_mapping(spec.schema), "none")
        return source, footers.read(footer, source.size, may_move=may_move)
    except BaseException:
        out.close()
        raise


def _write_rows(out: IO[bytes], files: Sequence[tuple[FileTask, FileAccess]], spec: ReadSpec) -> None:
    import pyarrow.parquet as pq

    from delta_sharing_spark.schema.arrow import arrow_schema

    schema = arrow_schema(spec.schema)
    with pq.ParquetWriter(out, schema, compression="snappy", store_schema=False, version="2.6") as writer:
        waiting: list[Any] = []
        size = 0
        for task, access in files:
            batches = read_split(Split(0, spec, (FileSlice(task),), access))
            try:
                for batch in batches:
                    waiting.append(batch)
                    size += batch.nbytes
                    if size >= _ROW_GROUP_BYTES:
                        _write(writer, waiting, schema)
                        waiting, size = [], 0
            finally:
                batches.close()
        _write(writer, waiting, schema)


def _write(writer: Any, batches: list[Any], schema: Any) -> None:
    import pyarrow as pa

    if batches:
        writer.write_table(pa.Table.from_batches(batches, schema), row_group_size=1 << 30)


def rewriting_spec(spec: ReadSpec, columns: Struct) -> ReadSpec:
    """``spec`` for a rewrite: ``columns`` of files only, and no row left out but those of deletion vectors."""
    return replace(
        spec, schema=columns, full_schema=columns, partition_columns=(), predicate=None, prune=None, limit=None
    )
