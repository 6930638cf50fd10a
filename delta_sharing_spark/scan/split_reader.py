"""Reads the files of a split as record batches: in order, without deleted rows, conformed to the schema, filtered, limited."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from delta_sharing_spark.errors import BrokenOffError, CorruptFileError, DeltaSharingError, out_of_memory
from delta_sharing_spark.network.connections import ReadCancelled
from delta_sharing_spark.network.process_cache import ProcessCache
from delta_sharing_spark.network.process_end import CLOSED_AT_EXIT, Closable, OpenResources, stay_at_end
from delta_sharing_spark.parquet.footer import Footer, read_footer
from delta_sharing_spark.scan.column_resolution import Context, leaves_of, mapping_of
from delta_sharing_spark.scan.delete_files import deleted_rows
from delta_sharing_spark.scan.fetching import OPENED_AHEAD, BufferedRanges, FetchQueue, InlineExecutor
from delta_sharing_spark.scan.filter_rows import RowSelection, first_rows, keep_rows, read_row_selection
from delta_sharing_spark.scan.initial_values import fallbacks_of
from delta_sharing_spark.scan.pace import (
    WHOLE_FILE,
    LayoutHistory,
    Pace,
    Prefetch,
    pace_of,
)
from delta_sharing_spark.scan.plan import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    DeletionVector,
    FileAccess,
    FileSlice,
    FileTask,
    ReadSpec,
    RowAccess,
    Split,
)
from delta_sharing_spark.scan.row_group_reader import (
    RowGroup,
    plan_row_group,
    read_row_group,
    row_group_filter,
    size_of,
)
from delta_sharing_spark.scan.transform import Columns, conform, plan_columns
from delta_sharing_spark.schema.arrow import arrow_schema
from delta_sharing_spark.schema.arrow_bridge import scalar
from delta_sharing_spark.schema.partition_values import partition_scalar
from delta_sharing_spark.schema.types import Field, Struct, is_logical, logical_schema
from delta_sharing_spark.storage.ranges import ByteSource, Range

if TYPE_CHECKING:
    from pyroaring import BitMap64

#: The most bytes and rows of a batch that the reader hands on; its consumer holds several.
_BATCH_BYTES, _BATCH_ROWS = 8 << 20, 32768


@dataclass(slots=True)
class _Layout:
    """What the files of one schema have in common: where their columns lie, how they become the table's, how wide rows are."""

    schema: pa.Schema
    is_converted: bool
    constants: frozenset[str]
    leaves: list[int]
    columns: Columns | None = None
    row_bytes: float = 0.0


@dataclass(slots=True)
class _Habits:
    """What earlier reads of the same columns of a table showed.

    Attributes:
        pace: How the storage answers.
        history: Where the bytes lay that were read.
        layouts: Of the files read last.
    """

    pace: Pace
    history: LayoutHistory
    layouts: list[_Layout] = field(default_factory=list)

    def layout(
        self, schema: pa.Schema, is_converted: bool, constants: frozenset[str], leaves: Callable[[], list[int]]
    ) -> _Layout:
        """The layout of a file of a schema, and of a calendar or clock of its own; threads that make the same one anew lose only what they made."""
        schema = schema.remove_metadata()
        for candidate in self.layouts:
            is_alike = candidate.constants == constants and candidate.is_converted == is_converted
            if is_alike and candidate.schema.equals(schema, check_metadata=True):
                return candidate
        made = _Layout(schema, is_converted, constants, leaves())
        self.layouts = [made, *self.layouts[: _LAYOUTS - 1]]
        return made


#: Of the layouts kept.
_LAYOUTS = 8
_habits: ProcessCache[tuple[Pace, str, Struct | str, frozenset[str]], _Habits] = ProcessCache(64)


def _habits_of(split: Split) -> _Habits:
    spec = split.spec
    pace = pace_of(spec.table, split.slices[0].task.location if split.slices else "")
    # Columns that look alike may be others in files: schemas are equal whatever their metadata.
    columns = spec.full_schema if is_logical(spec.full_schema) else repr(spec.full_schema)
    key = pace, spec.mapping, columns, frozenset(spec.partition_columns)
    return _habits.get_or_make(key, lambda: _Habits(pace, LayoutHistory(pace)))


def is_waiting(split: Split) -> bool:
    """Whether a reader of this split mostly waits: the storage is far, and the split has few files to ask for at once."""
    return 0 < len(split.slices) < OPENED_AHEAD // 2 and _habits_of(split).pace.is_far


@dataclass(slots=True)
class _OpenSlice:
    """A slice whose footer and deletion vectors were read: see ``OpenFile``."""

    source: ByteSource
    footer: Footer
    constants: Mapping[str, pa.Scalar]
    context: Context
    layout: _Layout
    groups: list[RowGroup]
    selection: RowSelection | None
    reserved_bytes: int

    @property
    def is_held(self) -> bool:
        """Whether the file came whole."""
        return self.footer.file_bytes is not None

    def close(self) -> None:
        """Close its source."""
        self.source.close()


def read_split(split: Split) -> Generator[pa.RecordBatch, None, None]:
    """The rows of the split, as batches of exactly the schema of ``split.spec.schema``, in the order of files and row groups.

    A repeated call repeats the rows in order. Closing the generator early ends what is being fetched.

    Raises:
        FileError: A file is gone, damaged, or has a NULL where none may be.
        SchemaError: A file's column cannot become the declared one.
        NetworkError, CredentialError, TableChangedError: The way to the rows fails.
        BrokenOffError: Its reader was closed by another thread, or the process is ending.
    """
    return _read_files(split, split.access) if isinstance(split.access, FileAccess) else _read_rows(split, split.access)


def _read_rows(split: Split, access: RowAccess) -> Generator[pa.RecordBatch, None, None]:
    with _broken_off(), contextlib.closing(access.rows(split)) as batches:
        yield from batches


def _read_files(split: Split, access: FileAccess) -> Generator[pa.RecordBatch, None, None]:
    reader = _SplitReader(split, access)
    try:
        with _broken_off():
            yield from first_rows(reader.batches(), split.spec.limit)
    except DeltaSharingError as error:
        error.name_table(split.spec.table)
        raise
    except (MemoryError, RuntimeError) as error:
        # A thread that cannot be started is what a limit of memory ends in first: its stack is room that is asked for at once.
        if isinstance(error, RuntimeError) and "start new thread" not in str(error):
            raise
        raise out_of_memory(split.spec.table, error) from None
    finally:
        reader.close()


@contextlib.contextmanager
def _broken_off() -> Iterator[None]:
    """Raises ``ReadCancelled`` as an error that a user may meet."""
    try:
        yield
    except ReadCancelled as error:
        stay_at_end()
        raise BrokenOffError(f"{error}; read it again") from None


class RunningReaders(OpenResources[Closable]):
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
_R = TypeVar("_R", bound=Closable)


def closed_with_consumer(reader: _R) -> _R:
    """Have what reads a split closed when the consumer of this thread goes away, or the process ends."""
    consumer = _CONSUMER.get()
    if consumer is not None:
        consumer.add(reader)
    CLOSED_AT_EXIT.add(reader)
    return reader


class _SplitReader:
    """The pipeline of one split: slices opened ahead, row groups fetched ahead, one decoded at a time."""

    def __init__(self, split: Split, access: FileAccess) -> None:
        self._access = access
        spec = self._spec = split.spec
        self._full_schema = self._schema = arrow_schema(spec.full_schema)
        self._projection: Columns | None = None
        if spec.predicate is not None and spec.full_schema != spec.schema:
            # Filtered batches have logical names, whatever the files called the columns.
            self._logical_schema, self._schema = logical_schema(spec.schema), arrow_schema(spec.schema)
            self._logical_context = Context(spec.table, "", "none")
            self._projection = plan_columns(self._full_schema, self._logical_schema, {}, self._logical_context)
        self._habits = _habits_of(split)
        self._queue: FetchQueue[FileSlice, _OpenSlice, RowGroup] = FetchQueue(
            spec.table,
            split.slices,
            self._prefetch,
            self._begin_to_open,
            spec.fetch_ahead,
            self._habits.pace,
            is_small=all(part.task.size <= WHOLE_FILE for part in split.slices[:2]),
        )
        self._sources: OpenResources[ByteSource] = OpenResources()
        closed_with_consumer(self)

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """All rows, whatever the limit; batches may be empty.

        Raises:
            DeltaSharingError: The rows cannot be read.
            ReadCancelled: The reader was closed, perhaps by another thread in the middle of any line here.
        """
        try:
            for opened, group in self._queue.row_groups():
                yield from self._decode(opened, group)
                del opened, group  # what comes next may be waited for
        except Exception:
            if self._queue.is_closed:
                raise ReadCancelled(f"{self._spec.table}: reading it was broken off") from None
            raise

    def close(self) -> None:
        """Break off all fetches: threads end as soon as they notice, sockets in use are closed."""
        self._queue.close()
        self._sources.close()

    def _prefetch(self, part: FileSlice) -> Prefetch:
        spec, history, size = self._spec, self._habits.history, part.task.size
        wanted = history.wanted if spec.is_projected else 1.0
        spare = self._habits.pace.spare if wanted and spec.limit is None else 0
        if size <= spec.fetch_ahead and self._habits.pace.is_worth_whole(size, wanted, spare):
            return Prefetch([Range(0, size)])
        # Where row groups or files may be left out by what the footers say, nothing else is fetched before them.
        is_filtered = spec.predicate is not None or spec.limit is not None
        return history.prefetch(size, footer_only=is_filtered or size > min(WHOLE_FILE, spec.fetch_ahead))

    def _begin_to_open(
        self, part: FileSlice, prefetch: Prefetch, files: Executor, ranges: Executor
    ) -> Future[_OpenSlice]:
        self._habits.history.take(prefetch)
        return files.submit(self._open, part, prefetch, ranges)

    def _open_vector(self, task: FileTask, vector: DeletionVector) -> ByteSource:
        return self._sources.add(self._access.open_vector(task, vector))

    def _open(self, part: FileSlice, prefetch: Prefetch, ranges: Executor) -> _OpenSlice:
        spec, task, habits = self._spec, part.task, self._habits
        constants = constants_of(task, spec)
        source = self._sources.add(self._access.open(task))
        fetched = BufferedRanges(source, ranges, habits.pace)
        *others, last = prefetch.ranges
        fetched.add(others)
        fetched.add([last], InlineExecutor())
        footer = read_footer(fetched, spec.table, last.length, checks_later=True)
        habits.pace.learn_footer(footer.size)
        julian = footer.julian(spec.time_zone)
        mapping = mapping_of(spec.full_schema, footer.schema, spec.mapping)
        context = Context(spec.table, task.id, mapping, julian, footer.has_int96_bytes)
        constants |= fallbacks_of(task, spec.full_schema, footer.schema, context)

        def leaves() -> list[int]:
            from_file = Struct(tuple(f for f in spec.full_schema.fields if f.name not in constants))
            return leaves_of(footer.schema, from_file, context)

        layout = habits.layout(
            footer.schema, julian is not None or footer.has_int96_bytes, frozenset(constants), leaves
        )
        may_match = row_group_filter(spec, footer, constants, context)
        indices = [i for i in footer.row_groups_in(part.start, part.end) if may_match is None or may_match(i)]
        groups = [plan_row_group(source, footer, i, layout.leaves, spec.fetch_ahead, habits.pace) for i in indices]
        if not groups:
            habits.history.wanted = 0.0  # footers tell more files from the rest
        elif spec.is_projected and not habits.history.wanted and task.size:
            needed = [footer.chunks(i, layout.leaves) for i in range(len(footer.first_rows))]
            habits.history.wanted = sum(chunk.length for chunks in needed for chunk in chunks) / task.size
        if footer.file_bytes is None:
            if len(groups) == 1 == len(footer.first_rows) and not groups[0].slides:
                group, chunks = groups[0], footer.chunks(groups[0].index, layout.leaves)
                group.fetched, group.ranges = (
                    fetched,
                    fetched.missing(chunks if prefetch.is_by_history else group.ranges),
                )
                group.cost = fetched.held_bytes + sum(part.length for part in group.ranges)
                if task.size <= WHOLE_FILE:
                    habits.history.learn(task.size, footer.size, chunks, prefetch, group.cost)
                if isinstance(ranges, InlineExecutor):
                    fetched.add(group.ranges)
            else:
                habits.history.waste(prefetch)
                fetched.close()
        selection = None
        if groups:
            deleted = rows_of_delete_files(task, spec, self._access) if task.deletes else None
            selection = read_row_selection(task, footer.metadata.num_rows, self._open_vector, deleted)
        return _OpenSlice(source, footer, constants, context, layout, groups, selection, prefetch.cost)

    def _decode(self, opened: _OpenSlice, group: RowGroup) -> Iterator[pa.RecordBatch]:
        spec, layout = self._spec, opened.layout
        keep = None if opened.selection is None else opened.selection.mask(group.first_row, group.rows)
        limit = spec.limit if spec.predicate is None else None
        row = 0
        for batch in read_row_group(group, spec.table, spec.fetch_ahead // 2, layout.row_bytes, limit):
            count = batch.num_rows
            if count:
                layout.row_bytes = max(layout.row_bytes, size_of(batch) / count)
            if keep is not None:
                batch = keep_rows(batch, keep.slice(row, count))
            row += count
            if batch.num_rows == 0:
                continue
            if layout.columns is None:
                layout.columns = plan_columns(batch.schema, spec.full_schema, layout.constants, opened.context)
            batch = conform(
                batch, layout.columns, spec.full_schema, self._full_schema, opened.context, opened.constants
            )
            yield from _parts(self._filtered(batch))

    def _filtered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        spec = self._spec
        if spec.predicate is None:
            return batch
        from delta_sharing_spark.predicates.evaluate import evaluate

        batch = keep_rows(batch, evaluate(spec.predicate, batch))
        if self._projection is None:
            return batch
        return conform(batch, self._projection, self._logical_schema, self._schema, self._logical_context)


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in parts that are cheap to hold and to hand on; they share its memory."""
    step = max(1, min(_BATCH_ROWS, batch.num_rows * _BATCH_BYTES // max(1, size_of(batch))))
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def rows_of_delete_files(task: FileTask, spec: ReadSpec, access: FileAccess) -> BitMap64 | None:
    """Rows of a file that its delete files name; None where it has none. Raises as ``read_split``."""

    def read(file: FileTask, schema: Struct) -> Generator[pa.RecordBatch, None, None]:
        columns = ReadSpec(spec.table, schema, schema, mapping="id", time_zone=spec.time_zone, is_projected=True)
        return read_split(Split(0, columns, (FileSlice(file),), access))

    return deleted_rows(task, spec.table, read)


def constants_of(task: FileTask, spec: ReadSpec) -> dict[str, pa.Scalar]:
    """The columns of ``spec`` that have the same value in every row of a file, by logical name."""
    constants: dict[str, pa.Scalar] = {}
    for column in spec.full_schema.fields:
        if column.name in spec.partition_columns:
            text = _partition_text(task, column, spec.partition_keys)
            constants[column.name] = partition_scalar(
                text, column.type, column=column.name, file=task.id, time_zone=spec.time_zone
            )
        elif spec.change_feed and column.name == CHANGE_TYPE and task.change_type is not None:
            constants[column.name] = scalar(task.change_type)
        elif spec.change_feed and column.name == COMMIT_VERSION:
            constants[column.name] = scalar(task.commit_version, pa.int64())
        elif spec.change_feed and column.name == COMMIT_TIMESTAMP:
            constants[column.name] = _commit_timestamp(task, spec)
    return constants


def _partition_text(task: FileTask, column: Field, keys: Mapping[str, tuple[str, ...]]) -> str | None:
    """The serialized value, under one of the column's ``keys``, letter case aside if it must be.

    Delta Lake leaves a NULL out where it copies a file's action. Beside a name that is not a partition column's, it may
    be that name the value stands under.

    Raises:
        CorruptFileError: The file has no value for the column at all.
    """
    values = task.partition_values
    if values is not None:
        for key in keys[column.physical_name]:
            if key in values:
                return values[key]
        lowered = column.physical_name.lower()
        close = [v for k, v in values.items() if k.lower() == lowered]
        if len(close) == 1:
            return close[0]
        names = {key.lower() for all_of_one in keys.values() for key in all_of_one}
        if not close and all(name.lower() in names for name in values):
            return None
    raise CorruptFileError(
        f"file {task.id} has no value for the partition column {column.name!r}; ask the provider to check the table's log",
        file=task.id,
        column=column.name,
    )


def _commit_timestamp(task: FileTask, spec: ReadSpec) -> pa.Scalar:
    millis = task.commit_timestamp
    if spec.commit_timestamp_long:
        return scalar(millis, pa.int64())
    return scalar(None if millis is None else millis * 1000, pa.timestamp("us", tz="UTC"))
