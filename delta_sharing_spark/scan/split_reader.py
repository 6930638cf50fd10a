"""Reads the files of a split as record batches: in order, without deleted rows, conformed to the schema, filtered, limited."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Executor, Future
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import pyarrow as pa

from delta_sharing_spark.errors import BrokenOffError, DeltaSharingError, out_of_memory
from delta_sharing_spark.network.connections import ReadCancelled
from delta_sharing_spark.network.process_cache import ProcessCache
from delta_sharing_spark.network.process_end import Closable, OpenResources, closed_at_exit, stay_at_end
from delta_sharing_spark.parquet.footer import Footer, read_footer
from delta_sharing_spark.scan.column_resolution import Context, leaves_of, mapping_of
from delta_sharing_spark.scan.delete_files import deleted_rows
from delta_sharing_spark.scan.fetching import OPENED_AHEAD, BufferedRanges, FetchQueue, InlineExecutor
from delta_sharing_spark.scan.file_constants import constants_of
from delta_sharing_spark.scan.filter_rows import first_rows, read_row_selection
from delta_sharing_spark.scan.initial_values import fallbacks_of, nested_fallbacks_of
from delta_sharing_spark.scan.pace import (
    WHOLE_FILE,
    LayoutHistory,
    Pace,
    Prefetch,
    pace_of,
)
from delta_sharing_spark.scan.plan import DeletionVector, FileAccess, FileSlice, FileTask, ReadSpec, RowAccess, Split
from delta_sharing_spark.scan.row_decoder import Layout, OpenSlice, RowDecoder
from delta_sharing_spark.scan.row_group_reader import RowGroup, plan_row_group, row_group_filter
from delta_sharing_spark.schema.types import Struct, is_logical
from delta_sharing_spark.storage.ranges import ByteSource, Range

if TYPE_CHECKING:
    from pyroaring import BitMap64

_B = TypeVar("_B")


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
    layouts: list[Layout] = field(default_factory=list)

    def layout(
        self,
        schema: pa.Schema,
        is_converted: bool,
        constants: frozenset[str | tuple[int, pa.Scalar]],
        leaves: Callable[[], list[int]],
    ) -> Layout:
        """The layout of a file of a schema, and of a calendar or clock of its own; threads that make the same one anew lose only what they made."""
        schema = schema.remove_metadata()
        for candidate in self.layouts:
            is_alike = candidate.constants == constants and candidate.is_converted == is_converted
            if is_alike and candidate.schema.equals(schema, check_metadata=True):
                return candidate
        made = Layout(schema, is_converted, constants, leaves())
        self.layouts = [made, *self.layouts[: _LAYOUTS - 1]]
        return made


#: Of the layouts kept.
_LAYOUTS = 8
#: Seconds, at least and at most, in which Spark, which tells a Python source no limit, ends a task that has enough rows.
_MOMENTS = 0.05, 0.25
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


def read_split(split: Split, *, is_tentative: bool = False) -> Generator[pa.RecordBatch, None, None]:
    """The rows of the split, as batches of exactly the schema of ``split.spec.schema``, in the order of files and row groups.

    A repeated call repeats the rows in order. Closing the generator early ends what is being fetched.

    Args:
        is_tentative: Whether the reader may have enough with the first rows: see ``SplitReader``.

    Raises:
        FileError: A file is gone, damaged, or has a NULL where none may be.
        SchemaError: A file's column cannot become the declared one.
        NetworkError, CredentialError, TableChangedError: The way to the rows fails.
        BrokenOffError: Its reader was closed by another thread, or the process is ending.
    """
    if isinstance(split.access, FileAccess):
        return _read_files(split, split.access, is_tentative)
    return _read_rows(split, split.access)


def _read_rows(split: Split, access: RowAccess) -> Generator[pa.RecordBatch, None, None]:
    with _broken_off(), contextlib.closing(access.rows(split)) as batches:
        yield from batches


def _read_files(split: Split, access: FileAccess, is_tentative: bool) -> Generator[pa.RecordBatch, None, None]:
    batches = decoded(split, access, RowDecoder(split.spec).batches, is_tentative=is_tentative)
    yield from first_rows(batches, split.spec.limit)


def decoded(
    split: Split,
    access: FileAccess,
    decode: Callable[[OpenSlice, RowGroup], Iterator[_B]],
    *,
    is_tentative: bool = False,
) -> Generator[_B, None, None]:
    """What ``decode`` makes of each row group of a split, whatever its limit; raises as ``read_split``."""
    reader = SplitReader(split, access, is_tentative=is_tentative)
    try:
        with _broken_off():
            yield from reader.decoded(decode)
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


#: A file's bytes and its footer.
_OpenFile: TypeAlias = tuple[ByteSource, Footer]


@dataclass(slots=True)
class _SharedFile:
    """A file that several splits read; who holds the lock is opening it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    opened: _OpenFile | None = None


#: Files that stay open for other splits, as slices of one are read one after the other; bytes of a footer that is held for them.
_SHARED_FILES, _SHARED_FOOTER = 16, 4 << 20


class RunningReaders(OpenResources[Closable]):
    """The readers of one consumer, to be closed when it goes away: their threads may wait for bytes.

    A generator cannot be closed while another thread runs it; its reader can. What they read is of one scan: a large file that is
    cut into several of its splits is opened once, and its footer read once.
    """

    def __init__(self) -> None:
        super().__init__()
        self._files: OrderedDict[tuple[str, str], _SharedFile] = OrderedDict()

    def shared(self, task: FileTask, access: FileAccess, read: Callable[[ByteSource], Footer]) -> _OpenFile:
        """The file of a task, as the first of its splits opened it; raises as ``access.open`` and ``read``."""
        with self._lock:
            file = self._files.setdefault((task.id, task.location), _SharedFile())
            self._files.move_to_end((task.id, task.location))
            if len(self._files) > _SHARED_FILES:
                self._files.popitem(last=False)
        with file.lock:
            if file.opened is not None:
                return file.opened
            source = access.open(task)
            self.add(source)  # it is closed with the readers
            footer = read(source)
            if footer.size <= _SHARED_FOOTER:
                file.opened = source, footer
            return source, footer

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
    closed_at_exit(reader)
    return reader


class SplitReader:
    """The pipeline of one split: slices opened ahead, row groups fetched ahead, one decoded at a time.

    Args:
        is_tentative: Whether the reader may have enough with the first rows, and says so by going away. Only their row group is
            fetched until they were taken and a moment has passed.
    """

    def __init__(self, split: Split, access: FileAccess, *, is_tentative: bool = False) -> None:
        self._access, self._is_tentative, self._began = access, is_tentative, time.monotonic()
        spec = self._spec = split.spec
        self._habits = _habits_of(split)
        self._queue: FetchQueue[FileSlice, OpenSlice, RowGroup] = FetchQueue(
            spec.table,
            split.slices,
            self._prefetch,
            self._begin_to_open,
            spec.fetch_ahead,
            self._habits.pace,
            is_small=all(part.task.size <= WHOLE_FILE for part in split.slices[:2]),
            is_tentative=is_tentative,
        )
        self._sources: OpenResources[ByteSource] = OpenResources()
        self._consumer = _CONSUMER.get()
        closed_with_consumer(self)

    def decoded(self, decode: Callable[[OpenSlice, RowGroup], Iterator[_B]]) -> Generator[_B, None, None]:
        """What ``decode`` makes of each row group, which may be nothing.

        Raises:
            DeltaSharingError: The rows cannot be read.
            ReadCancelled: The reader was closed, perhaps by another thread in the middle of any line here.
        """
        try:
            for opened, group in self._queue.row_groups():
                rows = decode(opened, group)
                yield from self._first(rows) if self._is_tentative else rows
                del opened, group, rows  # what comes next may be waited for
        except Exception:
            if self._queue.is_closed:
                raise ReadCancelled(f"{self._spec.table}: reading it was broken off") from None
            raise

    def _first(self, rows: Iterator[_B]) -> Iterator[_B]:
        """Hand on the rows of the first row group, and have the next ones fetched a moment after its first rows were taken.

        The moment is about as long as the first rows took: what is slow here is slow at their reader.
        """
        until: float | None = None
        for part in rows:
            took = time.monotonic() - self._began
            yield part
            until = until or time.monotonic() + min(_MOMENTS[1], max(_MOMENTS[0], took))
            if self._is_tentative and time.monotonic() > until:
                self._go_on()
        if self._is_tentative:
            if until is not None and self._queue.has_more:
                time.sleep(max(0.0, until - time.monotonic()))
            self._go_on()  # also where the row group had no rows for the reader: the others are not fetched one by one

    def _go_on(self) -> None:
        self._is_tentative = False
        self._queue.go_on()

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
    ) -> Future[OpenSlice]:
        self._habits.history.take(prefetch)
        return files.submit(self._open, part, prefetch, ranges)

    def _open_vector(self, task: FileTask, vector: DeletionVector) -> ByteSource:
        return self._sources.add(self._access.open_vector(task, vector))

    def _open(self, part: FileSlice, prefetch: Prefetch, ranges: Executor) -> OpenSlice:
        spec, task, habits = self._spec, part.task, self._habits
        constants = constants_of(task, spec)
        fetched: BufferedRanges | None = None

        def read(source: ByteSource) -> Footer:
            nonlocal fetched
            fetched = BufferedRanges(source, ranges, habits.pace)
            *others, last = prefetch.ranges
            fetched.add(others)
            fetched.add([last], InlineExecutor())
            return read_footer(fetched, spec.table, last.length, checks_later=True)

        consumer = self._consumer if part.is_cut and task.size > WHOLE_FILE else None
        if consumer is not None:
            source, footer = consumer.shared(task, self._access, read)
        else:
            source = self._sources.add(self._access.open(task))
            footer = read(source)
        habits.pace.learn_footer(footer.size)
        julian = footer.julian(spec.time_zone)
        mapping = mapping_of(spec.full_schema, footer.schema, spec.mapping)
        context = Context(spec.table, task.id, mapping, julian, footer.has_int96_bytes)
        constants |= fallbacks_of(task, spec.full_schema, footer.schema, context)
        within = nested_fallbacks_of(task, spec.full_schema, footer.schema, context)
        context = replace(context, fallbacks=within)

        def leaves() -> list[int]:
            from_file = Struct(tuple(f for f in spec.full_schema.fields if f.name not in constants))
            return leaves_of(footer.schema, from_file, context)

        layout = habits.layout(
            footer.schema,
            julian is not None or footer.has_int96_bytes,
            frozenset(constants) | frozenset(within.items()),
            leaves,
        )
        may_match = row_group_filter(spec, footer, constants, context)
        indices = [i for i in footer.row_groups_in(part.start, part.end) if may_match is None or may_match(i)]
        groups = [plan_row_group(source, footer, i, layout.leaves, spec.fetch_ahead, habits.pace) for i in indices]
        if not groups:
            habits.history.wanted = 0.0  # footers tell more files from the rest
        elif spec.is_projected and not habits.history.wanted and task.size:
            needed = [footer.chunks(i, layout.leaves) for i in range(len(footer.first_rows))]
            habits.history.wanted = sum(chunk.length for chunks in needed for chunk in chunks) / task.size
        if footer.file_bytes is None and fetched is not None:
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
        return OpenSlice(
            source, footer, constants, context, layout, groups, selection, prefetch.cost, consumer is not None
        )


def rows_of_delete_files(task: FileTask, spec: ReadSpec, access: FileAccess) -> BitMap64 | None:
    """Rows of a file that its delete files name; None where it has none. Raises as ``read_split``."""

    def read(file: FileTask, schema: Struct) -> Generator[pa.RecordBatch, None, None]:
        columns = ReadSpec(spec.table, schema, schema, mapping="id", time_zone=spec.time_zone, is_projected=True)
        return read_split(Split(0, columns, (FileSlice(file),), access))

    return deleted_rows(task, read)
