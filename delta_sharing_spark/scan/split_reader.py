"""Reads the files of a split as record batches: in order, without deleted rows, conformed to the schema, filtered, limited."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from delta_sharing_spark.errors import CorruptFileError, DeltaSharingError
from delta_sharing_spark.network.connections import ReadCancelled
from delta_sharing_spark.network.open_ones import CLOSED_AT_EXIT, OpenOnes
from delta_sharing_spark.scan.column_resolution import Context, leaves_of
from delta_sharing_spark.scan.filter_rows import first_rows, keep_rows
from delta_sharing_spark.scan.footer import TAIL, Footer, read_footer
from delta_sharing_spark.scan.plan import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    DeletionVector,
    FileSlice,
    FileTask,
    ReadSpec,
    Split,
)
from delta_sharing_spark.scan.row_group_pruning import row_group_filter
from delta_sharing_spark.scan.row_group_reader import RowGroup, plan_row_group, read_row_group
from delta_sharing_spark.scan.row_masks import RowSelection, read_row_selection
from delta_sharing_spark.scan.transform import Columns, conform, plan_columns
from delta_sharing_spark.schema.arrow import arrow_schema
from delta_sharing_spark.schema.mapping import without_mapping
from delta_sharing_spark.schema.partition_values import partition_scalar
from delta_sharing_spark.schema.types import Field, Struct
from delta_sharing_spark.storage.ranges import ByteSource

if TYPE_CHECKING:
    from delta_sharing_spark.scan.file_access import FileAccess

#: Requests under way at once, and slices opened ahead of the one being decoded.
CONNECTIONS = 8
#: Files of at most this many bytes are one GET when all their columns are wanted, or a projection of some.
WHOLE_FILE, WHOLE_FILE_PROJECTED = 4 << 20, 256 << 10


@dataclass(slots=True)
class _OpenSlice:
    """A slice whose footer and deletion vectors were read."""

    task: FileTask
    source: ByteSource
    footer: Footer
    constants: Mapping[str, pa.Scalar]
    context: Context
    groups: list[RowGroup]
    selection: RowSelection | None
    reserved_bytes: int
    columns: Columns | None = field(default=None)


def read_split(split: Split) -> Generator[pa.RecordBatch, None, None]:
    """The rows of one split, as its access reads them (``Access.rows``)."""
    return split.access.rows(split)


def read_files(split: Split, access: FileAccess) -> Generator[pa.RecordBatch, None, None]:
    """The rows of the split's files, in the order of files and row groups; raises as ``Access.rows``."""
    reader = _SplitReader(split, access)
    try:
        yield from first_rows(reader.batches(), split.spec.limit)
    except DeltaSharingError as error:
        error.name_table(split.spec.table)
        raise
    finally:
        reader.close()


class RunningReaders(OpenOnes["_SplitReader"]):
    """The readers of one consumer, to be closed when it goes away: their threads may wait for bytes.

    A generator cannot be closed while another thread runs it; its reader can.
    """

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Within this context, readers that the thread begins are added."""
        before = _CONSUMER.set(self)
        try:
            yield
        finally:
            _CONSUMER.reset(before)


_CONSUMER: ContextVar[RunningReaders | None] = ContextVar("consumer", default=None)


class _SplitReader:
    """The pipeline of one split: slices opened ahead, row groups fetched ahead, one decoded at a time."""

    def __init__(self, split: Split, access: FileAccess) -> None:
        self._access = access
        spec = self._spec = split.spec
        self._full_schema = self._schema = arrow_schema(spec.full_schema)
        self._projection: Columns | None = None
        if spec.predicate is not None and spec.full_schema != spec.schema:
            # Filtered batches have logical names, whatever the files called the columns.
            self._logical_schema, self._schema = without_mapping(spec.schema), arrow_schema(spec.schema)
            self._logical_context = Context(spec.table, "", "none")
            self._projection = plan_columns(self._full_schema, self._logical_schema, {}, self._logical_context)
        self._pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="delta-sharing-fetch")
        self._waiting: Iterator[FileSlice] = iter(split.slices)
        self._following: FileSlice | None = next(self._waiting, None)
        self._opening: deque[Future[_OpenSlice]] = deque()
        self._fetching: deque[tuple[_OpenSlice, RowGroup]] = deque()
        self._in_flight = 0
        self._is_closed = False
        self._sources: OpenOnes[ByteSource] = OpenOnes()
        CLOSED_AT_EXIT.add(self)
        consumer = _CONSUMER.get()
        if consumer is not None:
            consumer.add(self)

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """All rows, whatever the limit; batches may be empty.

        Raises:
            DeltaSharingError: The rows cannot be read.
            ReadCancelled: The reader was closed, perhaps by another thread in the middle of any line here.
        """
        try:
            yield from self._read_all()
        except Exception:
            if self._is_closed:
                raise ReadCancelled(f"{self._spec.table}: reading it was broken off") from None
            raise

    def _read_all(self) -> Generator[pa.RecordBatch, None, None]:
        self._fill()
        while self._fetching:
            opened, group = self._fetching[0]
            yield from self._decode(opened, group)
            self._fetching.popleft()
            group.close()
            self._in_flight -= group.cost
            if not self._fetching or self._fetching[0][0] is not opened:
                self._done_with(opened)
            self._fill()

    def close(self) -> None:
        """Break off all fetches: threads end as soon as they notice, sockets in use are closed."""
        self._is_closed = True
        for future in list(self._opening):  # another thread may be adding to them
            future.cancel()
        for _, group in list(self._fetching):
            group.close()
        self._fetching.clear()
        self._sources.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _fill(self) -> None:
        """Begin fetching row groups, in order, until the budget is used or the next footer is still on its way."""
        while True:
            self._open_ahead()
            if not self._opening or (self._fetching and not self._opening[0].done()):
                return
            opened = self._opening[0].result()
            while opened.groups:
                group = opened.groups[0]
                if self._fetching and self._in_flight + group.cost > self._spec.fetch_ahead:
                    return
                group.fetch(self._pool)
                self._in_flight += group.cost
                self._fetching.append((opened, opened.groups.pop(0)))
            self._opening.popleft()
            if opened.footer.file_bytes is None or not self._fetching or self._fetching[-1][0] is not opened:
                self._in_flight -= opened.reserved_bytes
                opened.reserved_bytes = 0
                if not self._fetching or self._fetching[-1][0] is not opened:
                    self._done_with(opened)

    def _open_ahead(self) -> None:
        """Open the next files, a few at once, as far as the budget goes: small ones are fetched whole with it."""
        while self._following is not None and len(self._opening) < CONNECTIONS:
            reserved = min(self._following.task.size, max(self._whole_below(self._following), TAIL))
            if (self._opening or self._fetching) and self._in_flight + reserved > self._spec.fetch_ahead:
                return
            self._in_flight += reserved
            self._opening.append(self._pool.submit(self._open, self._following, reserved))
            self._following = next(self._waiting, None)

    def _whole_below(self, part: FileSlice) -> int:
        limit = WHOLE_FILE_PROJECTED if self._spec.is_projected else WHOLE_FILE
        return limit if part.task.size <= limit else 0

    def _done_with(self, opened: _OpenSlice) -> None:
        self._in_flight -= opened.reserved_bytes
        opened.reserved_bytes = 0
        opened.source.close()

    def _open_vector(self, task: FileTask, vector: DeletionVector) -> ByteSource:
        return self._sources.add(self._access.open_vector(task, vector))

    def _open(self, part: FileSlice, reserved: int) -> _OpenSlice:
        spec, task = self._spec, part.task
        context = Context(spec.table, task.id, spec.mapping)
        constants = constants_of(task, spec)
        from_file = Struct(tuple(f for f in spec.full_schema.fields if f.name not in constants))
        source = self._sources.add(self._access.open(task))
        footer = read_footer(source, spec.table, self._whole_below(part))
        leaves = leaves_of(footer.schema, from_file, context)
        may_match = row_group_filter(spec, footer, constants, context)
        groups = [
            plan_row_group(source, footer, i, leaves, spec.fetch_ahead // 2)
            for i in footer.row_groups_in(part.start, part.end)
            if may_match is None or may_match(i)
        ]
        selection = read_row_selection(task, footer.metadata.num_rows, self._open_vector) if groups else None
        return _OpenSlice(task, source, footer, constants, context, groups, selection, reserved)

    def _decode(self, opened: _OpenSlice, group: RowGroup) -> Iterator[pa.RecordBatch]:
        schema, keep = (
            self._spec.full_schema,
            None if opened.selection is None else opened.selection.mask(group.first_row, group.rows),
        )
        row = 0
        for batch in read_row_group(group, self._spec.table):
            count = batch.num_rows
            if keep is not None:
                batch = keep_rows(batch, keep.slice(row, count))
            row += count
            if batch.num_rows == 0:
                continue
            if opened.columns is None:
                opened.columns = plan_columns(batch.schema, schema, opened.constants, opened.context)
            yield self._filtered(conform(batch, opened.columns, schema, self._full_schema, opened.context))

    def _filtered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        spec = self._spec
        if spec.predicate is None:
            return batch
        from delta_sharing_spark.predicates.evaluate import evaluate

        batch = keep_rows(batch, evaluate(spec.predicate, batch))
        if self._projection is None:
            return batch
        return conform(batch, self._projection, self._logical_schema, self._schema, self._logical_context)


def constants_of(task: FileTask, spec: ReadSpec) -> dict[str, pa.Scalar]:
    """The columns of ``spec`` that have the same value in every row of a file, by logical name."""
    constants: dict[str, pa.Scalar] = {}
    for column in spec.full_schema.fields:
        if column.name in spec.partition_columns:
            text = _partition_text(task, column, spec.partition_names)
            constants[column.name] = partition_scalar(
                text, column.type, column=column.name, file=task.id, time_zone=spec.time_zone
            )
        elif spec.change_feed and column.name == CHANGE_TYPE and task.change_type is not None:
            constants[column.name] = pa.scalar(task.change_type, pa.string())
        elif spec.change_feed and column.name == COMMIT_VERSION:
            constants[column.name] = pa.scalar(task.commit_version, pa.int64())
        elif spec.change_feed and column.name == COMMIT_TIMESTAMP:
            constants[column.name] = _commit_timestamp(task, spec)
    return constants


def _partition_text(task: FileTask, column: Field, known: frozenset[str]) -> str | None:
    """The serialized value; servers key it by the physical name (delta format, the log) or by the logical one.

    Delta Lake leaves a NULL out where it copies a file's action. Beside a name that is not a partition column's, it may
    be that name the value stands under.

    Raises:
        CorruptFileError: The file has no value for the column at all.
    """
    values = task.partition_values
    if values is not None:
        for name in (column.physical_name, column.name):
            if name in values:
                return values[name]
        lowered = column.physical_name.lower()
        close = [v for k, v in values.items() if k.lower() == lowered]
        if len(close) == 1:
            return close[0]
        if not close and all(name.lower() in known for name in values):
            return None
    raise CorruptFileError(
        f"file {task.id} has no value for the partition column {column.name!r}; ask the provider to check the table's log",
        file=task.id,
        column=column.name,
    )


def _commit_timestamp(task: FileTask, spec: ReadSpec) -> pa.Scalar:
    millis = task.commit_timestamp
    if spec.commit_timestamp_long:
        return pa.scalar(millis, pa.int64())
    return pa.scalar(None if millis is None else millis * 1000, pa.timestamp("us", tz="UTC"))
