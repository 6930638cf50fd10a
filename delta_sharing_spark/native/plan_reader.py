"""Answers Spark's Parquet reader, whose requests say where it begins to read and never how far.

The footer tells where the column chunk ends that begins there; the path tells which columns the scan reads. The chunks of
these are fetched by parallel ranges, those of the next row group or file ahead of need. Memory is bounded: fetched
chunks by ``budget.AHEAD_BYTES``, those kept once read by ``budget.KEPT_BYTES``, a chunk too large for that by a window
of a few pieces. All together are bounded by ``budget.Bounds.held``: who would pass it waits.
"""

from __future__ import annotations

import bisect
import itertools
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial

from delta_sharing_spark.errors import NullInRequiredError
from delta_sharing_spark.native.answers import WAITS, Pause, Pieces
from delta_sharing_spark.native.budget import PATIENCE, Budget, Group
from delta_sharing_spark.native.files import FileView
from delta_sharing_spark.native.plan import NativePlan
from delta_sharing_spark.native.scan_columns import ScanColumns
from delta_sharing_spark.network.process_end import OpenResources
from delta_sharing_spark.parquet.file_columns import Unread
from delta_sharing_spark.parquet.layout import Chunk
from delta_sharing_spark.parquet.schema_match import NotNativeError
from delta_sharing_spark.scan.fetching import BufferedRanges, CallsInOrder
from delta_sharing_spark.scan.pace import Pace
from delta_sharing_spark.storage.ranges import ByteSource, Range, cut

_PIECE, _PIECES = 4 << 20, 4
#: Bytes of a request where there is no room for a window.
_NARROW = 1 << 20

#: A row group: what tells its file from others of the plan as it is shown (``FileView.key``), and its number in the file.
GroupKey = tuple[int, int]


class HeldChunks:
    """The column chunks of one plan's files. Safe to call from several threads.

    Args:
        budget: Bounds what all plans hold.
        pace: How the storage answers.
    """

    def __init__(self, budget: Budget, pace: Pace) -> None:
        self._budget, self._pace = budget, pace
        #: Under the budget's lock.
        self._groups: dict[GroupKey, Group] = {}

    def find(self, key: GroupKey, chunk: Chunk) -> BufferedRanges | None:
        """The buffer that holds a chunk, or that it is being fetched into."""
        with self._budget.lock:
            group = self._groups.get(key)
            return group.held if group is not None and not group.held.missing([chunk.range]) else None

    def may_hold(self, chunk: Chunk) -> bool:
        """Whether a chunk is not too large to be held."""
        return chunk.range.length <= min(_PIECE * _PIECES, self._budget.group_bytes)

    def fetch(self, key: GroupKey, view: FileView, chunks: Sequence[Chunk]) -> BufferedRanges | None:
        """Begin to fetch a chunk, and with it those of the others that are not held.

        None if there is no room for them now, or the first is too large to be held.
        """
        if not self.may_hold(chunks[0]):
            return None
        with self._budget.lock:
            group = self._groups.get(key) or Group(
                BufferedRanges(view.source, self._budget.fetchers, self._pace), partial(self._groups.pop, key, None)
            )
            missing = [chunk for chunk in chunks if chunk is chunks[0] or group.held.missing([chunk.range])]
            wanted = self._pace.merged(chunk.range for chunk in missing)
            if not self._budget.admit(group.held, sum(part.length for part in wanted)):
                return None
            self._groups[key] = group
            before = group.held.held_bytes
            group.held.add(wanted)
            group.unread.update(chunk.column for chunk in missing)
            self._budget.add(group, group.held.held_bytes - before)
            return group.held

    def fetch_ahead(self, key: GroupKey, view: FileView, chunks: Sequence[Chunk]) -> None:
        """Begin to fetch those chunks of a row group that are not held, as many as are fetched together, if there is room."""
        with self._budget.lock:
            group = self._groups.get(key)
        if group is not None and chunks:
            # They are fetched in their order: where the last one is held all are.
            held = group.held
            first = bisect.bisect_left(chunks, True, key=lambda chunk: bool(held.missing([chunk.range])))
            chunks = chunks[first:]
        if chunks and chunks[0].range.length <= (room := self._budget.room_ahead):
            self.fetch(key, view, self.together(chunks, room))

    def together(self, chunks: Sequence[Chunk], room: int = sys.maxsize) -> Sequence[Chunk]:
        """The first of a row group's chunks, up to ``room`` and the bytes that are fetched at once; one at least."""
        sizes = itertools.accumulate(chunk.range.length for chunk in chunks)
        return chunks[: max(1, sum(size <= min(room, self._budget.group_bytes) for size in sizes))]

    def windowed(self, view: FileView, requested: Range) -> Iterator[memoryview]:
        """Bytes that are too many to be held, piece by piece, of which a few are fetched ahead where room is found in time."""
        window = min(_PIECE * _PIECES, self._budget.group_bytes)
        room = set[int]()  # stands for the window
        if not self._budget.admit_in_time(room, window):
            yield from (view.read(piece.start, piece.end) for piece in cut(requested, _NARROW))
            return
        reads = (partial(view.read, *piece) for piece in cut(requested, window // _PIECES))
        with closing(CallsInOrder(reads, self._budget.fetchers, lambda: _PIECES)) as pieces:
            yield from pieces

    def was_read(self, key: GroupKey, column: bytes) -> None:
        """Note that Spark has read a chunk: once it has read all of a row group, they may go before those to be read."""
        with self._budget.lock:
            if (group := self._groups.get(key)) is not None:
                self._budget.was_read(group, column)

    def close(self) -> None:
        """Release all."""
        with self._budget.lock:
            for group in list(self._groups.values()):
                self._budget.drop(group)


#: Files whose footers are fetched ahead, at least and at most.
_FEWEST, _MOST = 2, 32
#: Seconds for which a file that could not be reached is not tried again.
_FOR = 10.0
#: Tasks that are assumed to run at the same time.
AT_ONCE = max(2, os.cpu_count() or 2)
_SENT = 1 << 20
#: Bytes of a small file that are sent without asking which of them a reader wants: that would cost more.
_SENT_WHOLE = 64 << 10
#: Bytes that are sent to a reader that may need no more: it may decode what it has before it closes the connection.
_TASTE = 4 << 10
#: Bytes of row groups that are fetched ahead of the one that is read, and how many: those of small files are many.
_AHEAD, _GROUPS_AHEAD = 8 << 20, 16


class FileViews:
    """The files of one plan as they are served, by number. Safe to call from several threads."""

    def __init__(self, plan: NativePlan, budget: Budget) -> None:
        self._plan = plan
        self._budget = budget
        self._lock = threading.Lock()
        self._views: dict[int, Future[FileView]] = {}
        #: The keys of files some of whose columns were rewritten, by the file and these columns.
        self._rewritten: dict[tuple[int, frozenset[Unread]], int] = {}
        self._sources: OpenResources[ByteSource] = OpenResources()
        self._ahead: set[int] = set()
        #: Files that were asked for in this pass of Spark's tasks over them.
        self._asked: set[int] = set()
        self._window = _FEWEST
        #: Small files are opened by two threads at a time, one while the other waits, unless all mostly wait: more would wait for each other.
        self._turns = threading.Semaphore(2)

    def get(self, number: int, columns: ScanColumns | None = None) -> FileView:
        """A file as it is served, for a scan of ``columns`` (None where nobody told them); waits for its footer.

        Raises:
            DeltaSharingError: As ``show_file``.
        """
        with self._lock:
            is_first = number not in self._views or number not in self._asked
            future = self._show(number, columns)
            if number in self._ahead:
                self._ahead.discard(number)
                # Where Spark waits for it, it should have been begun earlier; of a near storage it waits for this process.
                most = max(AT_ONCE, self._plan.pace.files_at_once(_MOST))
                self._window = min(most, self._window + 1 if future.done() else self._window * 2)
            self._budget.use(self, number)
            if is_first:
                if number in self._asked:  # another pass begins
                    self._asked.clear()
                self._asked.add(number)
                self._show_ahead(number, columns)
        try:
            view = self._result(number, future)
        except NotNativeError:  # it was fetched ahead, and nothing is rewritten ahead
            with self._lock:
                future = self._show(number, columns)
            view = self._result(number, future)
        unread = view.unread_of(columns or self._plan.shown.all_columns)
        if not unread:
            return view
        with self._lock:
            key = self._rewritten.setdefault((number, unread), len(self._plan.files) + len(self._rewritten))
            if key not in self._views:
                self._views[key] = self._budget.openers.submit(self._with_rewritten, key, view, unread)
            future = self._views[key]
            self._budget.use(self, key)
        return self._result(key, future)

    def _result(self, key: int, future: Future[FileView]) -> FileView:
        """What ``future`` makes; where it fails, the next try asks anew."""
        try:
            return future.result()
        except BaseException:
            with self._lock:
                if self._views.get(key) is future:
                    del self._views[key]
            raise

    def _with_rewritten(self, key: int, view: FileView, unread: frozenset[Unread]) -> FileView:
        assert view.rewritten is not None
        anew = replace(view.rewritten(unread), key=key)
        self._budget.hold(self, key, anew)
        return anew

    def ready(self, number: int) -> FileView | None:
        """A file whose footer was fetched, and could be read; None otherwise."""
        future = self._views.get(number)
        if future is None or not future.done() or future.cancelled() or future.exception() is not None:
            return None
        return future.result()

    def following(self, number: int) -> Iterator[int]:
        """The files that Spark will likely open next; those of other partitions where it did not leave out the one before."""
        return self._plan.after(number, of_all=self._plan.before(number) in self._asked)

    def forget(self, number: int) -> None:
        """Release a file's footer, by its ``key``; reads of the file go on."""
        with self._lock:
            self._views.pop(number, None)

    def close(self) -> None:
        """Release everything; reads under way are broken off."""
        with self._lock:
            self._views = {}
        self._sources.close()
        self._budget.forget(self)

    def _show(self, number: int, columns: ScanColumns | None, *, is_ahead: bool = False) -> Future[FileView]:
        future = self._views.get(number)
        if future is None:
            future = self._views[number] = self._budget.openers.submit(self._opened, number, columns, not is_ahead)
        return future

    def _show_ahead(self, number: int, columns: ScanColumns | None) -> None:
        if len(self._ahead) > 2 * self._window:
            self._ahead.clear()  # Spark reads other files than was expected
            self._window = _FEWEST
        size = 0
        for _, other in zip(range(self._window), self.following(number), strict=False):
            if other in self._asked:
                continue  # another task has read it
            file = self._plan.files[other]
            size += file.bytes_if_whole if self.ready(other) is None else 0
            if size and not self._budget.has_room_for(size):
                break
            if other not in self._views:
                self._ahead.add(other)
                self._show(other, columns, is_ahead=True)

    def _opened(self, number: int, columns: ScanColumns | None, may_rewrite: bool) -> FileView:
        file, budget = self._plan.files[number], self._budget
        size = 2 * file.bytes_if_whole
        arriving: set[int] = set()  # stands for the small files that are fetched, and for all as one
        budget.admit_in_time(arriving, size) or budget.admit(arriving, size, at_all=True)
        takes_turns = len(file.members) > 1 and not self._plan.pace.is_far
        with self._turns if takes_turns else nullcontext():
            pool = budget.fetchers if may_rewrite else budget.fetchers_ahead(self._plan.pace)
            view = self._plan.show(number, self._sources, pool, columns, may_rewrite=may_rewrite)
        if view.whole is not None:
            budget.admit(view.whole, len(view.whole), at_all=True)
        view = replace(view, key=number)
        self._budget.hold(self, number, view)
        return view


class Failures:
    """Why files could not be reached, by the number or the path of each."""

    def __init__(self) -> None:
        self._causes: dict[int | str, tuple[float, str]] = {}

    def note(self, file: int | str, cause: str) -> None:
        """Note that a file could not be reached for as long as it may be tried."""
        self._causes[file] = time.monotonic() + _FOR, cause

    def of(self, file: int | str | None) -> str | None:
        """Why a file could not be reached a moment ago; None if it may be tried."""
        until, cause = self._causes.get(-1 if file is None else file, (0.0, ""))
        return cause if time.monotonic() < until else None


#: Where nobody told which columns the reader wants; at the end of a row group, after which it may want another; after a few bytes more.
UNKNOWN, ENOUGH, TASTED = Pause(0.02, 0.05), Pause(0.05, 0.3), Pause(0.0, 0.3)
#: Where the reader needs no more: Spark usually closes the connection once it has decoded the columns that were sent.
LEAVES = Pause(2.0, 2.0)


class FilePass:
    """One pass of Spark's tasks over a plan's files; it is over when a file that was read is opened again."""

    def __init__(self) -> None:
        #: Files that were opened, in that order, and whether columns of them were read after it.
        self._opened: dict[int, bool] = {}
        self._expected: set[int] = set()

    def opened(self, number: int) -> None:
        """Note that the footer of a file was read."""
        if self._opened.get(number):
            self._opened.clear()
            self._expected.clear()
        self._opened.setdefault(number, False)
        self._expected.discard(number)

    def read(self, number: int) -> None:
        """Note that columns of a file are being read."""
        if number in self._opened:
            self._opened[number] = True

    def next(self, following: Iterable[int]) -> int | None:
        """The first of the files ``following`` that was not opened; each is told once.

        None before a file was read to its end, and where as many as tasks at once are still to be opened. None also
        where Spark opens files that it does not read on, as their footers say that no row fits.
        """
        over = list(self._opened.values())[:-AT_ONCE]
        if not over or not all(over) or len(self._expected) >= AT_ONCE:
            return None
        upcoming = next((n for n in following if n not in self._opened and n not in self._expected), None)
        if upcoming is not None:
            self._expected.add(upcoming)
        return upcoming


class PlanReader:
    """Reads one plan's files, and fetches ahead what Spark will read next.

    Attributes:
        plan: The plan.
        files: Its files as they are served.
        failures: Why some could not be reached.
    """

    def __init__(self, plan: NativePlan, budget: Budget) -> None:
        self.plan = plan
        self._budget = budget
        self._lock = threading.Lock()
        self.files = FileViews(plan, budget)
        self._chunks = HeldChunks(budget, plan.pace)
        self._pass = FilePass()
        self.failures = Failures()
        #: Whether a reader asked for a column that its scan does not name; from then on no scan's columns are relied on.
        self._is_misled = False

    def read(self, number: int, offset: int, columns: ScanColumns | None = None) -> Pieces:
        """The file's bytes from ``offset`` to its end, or until the state that is sent to a pause is that the reader has left.

        Args:
            offset: Where the reader begins.
            columns: What its scan reads; None where nobody told.

        Raises:
            DeltaSharingError: The bytes cannot be read; NullInRequiredError for a chunk with a NULL in a NOT NULL column.
        """
        view = self.files.get(number, columns)
        try:
            yield from self._read(number, view, offset, None if self._is_misled else columns)
        finally:
            if offset < view.layout.data_end:
                self._budget.spend(self.files, view.key)

    def _read(self, number: int, view: FileView, offset: int, columns: ScanColumns | None) -> Pieces:
        layout = view.layout
        if view.whole is not None and layout.length - offset <= _SENT_WHOLE and not layout.has_nulls:
            yield memoryview(b"".join((view.whole[: layout.data_end], layout.tail)))[offset:]
            return
        if offset >= layout.data_end:
            with self._lock:
                self._pass.opened(number)
            yield memoryview(layout.tail)[offset - layout.data_end :]
            return
        if offset < 4:
            yield memoryview(b"PAR1")[offset:]
            if ((yield ENOUGH if columns is None else LEAVES) or WAITS).has_closed:
                return
            offset = 4
        if view.whole is not None:
            yield from self._whole(number, view, offset)
            offset = max(offset, layout.data_end)
        pause: Pause | None = None
        follows = False
        while offset < layout.data_end:
            index = layout.chunk_from(offset)
            chunk = layout.chunks[index] if index < len(layout.chunks) else None
            if chunk is not None and chunk.range.start == offset and chunk.range.length:
                start = offset
                if pause is not None and chunk.null_in is None:
                    start = min(offset + _TASTE, chunk.range.end)
                    yield view.read(offset, start)
                    state = (yield TASTED) or WAITS
                    if state.has_closed:
                        return
                    if pause is LEAVES and state.has_read_all:
                        self._is_misled, columns = True, None
                yield from self._chunk(number, view, chunk, start, columns, follows=follows)
                follows = True
                offset = chunk.range.end
                pause = self._next(view, chunk, columns)
            else:
                end = layout.data_end if chunk is None else min(layout.data_end, chunk.range.start)
                end = min(end, offset + _SENT) if end > offset else min(layout.data_end, offset + _SENT)
                yield view.read(offset, end)
                pause, offset = UNKNOWN, end
            if pause is not None and ((yield pause) or WAITS).has_closed:
                return
        yield memoryview(layout.tail)[offset - layout.data_end :]

    def _whole(self, number: int, view: FileView, offset: int) -> Iterator[memoryview]:
        """The rest of a file that is in memory, up to its first chunk with a NULL in a NOT NULL column."""
        assert view.whole is not None
        chunks = view.layout.chunks
        bad = next((c for c in chunks[view.layout.chunk_from(offset) :] if c.null_in is not None), None)
        end = view.layout.data_end if bad is None else bad.range.start
        if offset < end:
            yield view.whole[offset:end]
        if bad is not None:
            raise self._null_in(number, bad)

    def _null_in(self, number: int, chunk: Chunk) -> NullInRequiredError:
        file = self.plan.files[number].members[chunk.member].task.id
        return NullInRequiredError(
            f"file {file} of {self.plan.table} has a NULL in column {chunk.null_in!r}, which the table declares NOT NULL; "
            f"ask the provider to repair the file, or leave the column out with the option 'columns'",
            file=file,
            column=chunk.null_in,
        )

    def _chunk(
        self, number: int, view: FileView, chunk: Chunk, start: int, columns: ScanColumns | None, *, follows: bool
    ) -> Iterator[memoryview]:
        """A chunk's bytes from ``start``; ``follows`` is whether the same reader has read the one before."""
        if chunk.null_in is not None:
            raise self._null_in(number, chunk)
        until = time.monotonic() + PATIENCE
        while (buffer := self._expect(number, view, chunk, columns, follows)) is None and self._chunks.may_hold(chunk):
            if not self._budget.wait_for_room(chunk.range.length, until):
                break
        if buffer is None:
            yield from self._chunks.windowed(view, Range(start, chunk.range.end))
            return
        # Nothing is left of a small chunk whose first bytes were all of it.
        for piece in cut(Range(start, chunk.range.end), _SENT):
            yield buffer.read(piece.start, piece.length)
        self._chunks.was_read((view.key, chunk.row_group), chunk.column)

    def _expect(
        self, number: int, view: FileView, chunk: Chunk, columns: ScanColumns | None, follows: bool
    ) -> BufferedRanges | None:
        """The buffer of a chunk, fetched with those after it that the scan reads; None if it is too large, or there is no room."""
        key = (view.key, chunk.row_group)
        wanted = [chunk]
        if columns is not None:
            wanted = [c for c in view.layout.of_group(chunk.row_group) if c is chunk or c.column in columns]
        with self._lock:
            self._pass.read(number)
            buffer = self._chunks.find(key, chunk)
            # A reader that comes to another chunk first looks at its dictionary, by which it may leave out the row group.
            is_begun = buffer is not None or follows or wanted[0] is chunk
            if buffer is None:
                together = self._chunks.together(wanted[wanted.index(chunk) :]) if is_begun else [chunk]
                buffer = self._chunks.fetch(key, view, together)
                buffer = buffer or self._chunks.fetch(key, view, [chunk])
            if buffer is not None and columns is not None and is_begun:
                self._chunks.fetch_ahead(key, view, wanted[wanted.index(chunk) + 1 :])
                self._fetch_next(number, chunk.row_group, view, columns)
            return buffer

    def _next(self, view: FileView, chunk: Chunk, columns: ScanColumns | None) -> Pause | None:
        """The pause to yield after a chunk; None to go on at once."""
        layout = view.layout
        index = layout.chunk_from(chunk.range.end)
        after = layout.chunks[index] if index < len(layout.chunks) else None
        if after is None or after.range.start != chunk.range.end:
            return ENOUGH if columns is None else LEAVES
        if after.row_group != chunk.row_group:
            # Of files that are shown as one, the next one: it has been fetched if the query reads the same columns of it.
            return ENOUGH if self._chunks.find((view.key, after.row_group), after) is None else None
        if columns is None:
            return UNKNOWN
        return None if after.column in columns else LEAVES

    def _fetch_next(self, number: int, row_group: int, view: FileView, columns: ScanColumns) -> None:
        """Fetch the same columns of the next row group, or of the file that Spark reads next."""
        size, group = 0, row_group + 1
        while following := view.layout.of_group(group):
            following = [c for c in following if c.column in columns]
            size += sum(c.range.length for c in following)
            if group > row_group + 1 and (size > _AHEAD or group > row_group + _GROUPS_AHEAD):
                return
            self._chunks.fetch_ahead((view.key, group), view, following)
            group += 1
        if group == row_group + 1:
            other = self._pass.next(self.files.following(number))
            ahead = None if other is None else self.files.ready(other)
            if other is not None and ahead is not None and ahead.whole is None and not ahead.unread_of(columns):
                first = [c for c in ahead.layout.of_group(0) if c.column in columns]
                self._chunks.fetch_ahead((ahead.key, 0), ahead, first)

    def close(self) -> None:
        """Release everything; reads under way are broken off."""
        self._chunks.close()
        self.files.close()
