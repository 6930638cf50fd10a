"""Decides what is fetched next, by whose threads, and in how much memory; presents fetched ranges as a file to pyarrow.

Whoever reads asks in one of three ways:

- ``FetchQueue`` opens files one after the other, ahead of their reader, and fetches their row groups: splits, checkpoints. A
  file costs the bytes that its opening asks for, a row group the bytes that are held of it, both until they are decoded.
  What does not fit the budget waits, but for the row group that is read next.
- ``CallsInOrder`` makes calls whose results come in order, so many ahead: commits, downloads, files of places, and column
  chunks larger than a gateway may hold.
- ``BufferedRanges`` fetches ranges that another chooses, each byte once: the gateway's, which learns from Spark's requests
  what comes next. ``native.budget`` bounds what all of its plans hold.

**How many requests are under way.** A storage answers after ``latency`` seconds and sends ``rate`` bytes a second over
one connection. ``n`` requests of ``size`` bytes each keep it busy when ``n * size / (latency + size / rate)`` bytes a
second are what the network carries or the decoder takes. So:

- Ranges of large files are cut in requests that last 0.05 s (4 to 32 MiB), and 16 of them are under way: more would
  wait for the processor. A far storage, which answers after 20 ms or more, is asked for 1 MiB or more at once, and 48
  requests are under way. At 40 ms and 30 MB/s a connection, all of a row group of 40 MB is there after 0.09 s. By 16
  requests of 4 MiB that took 0.18 s, in which nobody decodes.
- Small files are one request each, that mostly waits. While one is decoded, in about 0.5 ms, another has to arrive. So
  ``latency / 0.0005`` requests are under way, 48 at most. It is one, in the reader's own thread, where a storage answers
  within 2 ms.
- Files are opened ahead of the one that is read, 8 large ones: each takes one request for its footer.
- Of commits 16 are under way, or as many as have 2 MiB; of downloads 8 pieces of 8 MiB, 210 MB/s at 40 ms and 30 MB/s.
- A gateway fetches by 48 threads, for plans and places, and small files ahead by 96 more where their storage is far.
- Of splits, checkpoints and gateways at most 128 together, over all readers of a process, are to one storage
  (``pace.Connections``). Commits, downloads and places add the few that are named above.

What a storage's latency and rate are, ``Pace`` learns from each answer, once for all readers of a table in a process.

**Breaking off.** The threads of a ``DaemonPool`` end with it, and so do their requests. Closing a queue closes its pool. It
waits for nobody, and is safe in the garbage collector.
"""

from __future__ import annotations

import bisect
import itertools
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Executor, Future, wait
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from delta_sharing_spark.network.connections import ReadCancelled
from delta_sharing_spark.network.parallel_calls import DaemonPool, result_of
from delta_sharing_spark.scan.pace import LEAST, MOST_CONNECTIONS, Pace, Prefetch
from delta_sharing_spark.storage.ranges import ByteSource, Range, SeekableFile, coalesce, cut

_LEAST_WINDOW = 16 << 10
#: Large files whose footers are fetched ahead of the one being decoded.
OPENED_AHEAD = 8
#: Seconds that others wait for a first answer, which tells how many to ask for at once.
_GLIMPSE = 0.01


_F = TypeVar("_F")
_O = TypeVar("_O", bound="OpenFile[Any]")
_G = TypeVar("_G", bound="Fetched")
_H = TypeVar("_H")
_R = TypeVar("_R")


class InlineExecutor(Executor):
    """Calls in the thread that asks, as is cheapest where a storage answers before another thread has begun."""

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Make a call; returns its result."""
        result: Future[Any] = Future()
        try:
            result.set_result(call(*arguments, **named))
        except Exception as error:  # raised where the result is taken
            result.set_exception(error)
        try:
            return result
        finally:
            del result  # an error holds this frame


class BufferedRanges:
    """A ``ByteSource`` that holds ranges of another, each byte of which is fetched once, in requests as large as ``pace`` has them.

    One thread at a time adds ranges; others may read meanwhile.
    """

    def __init__(self, source: ByteSource, pool: Executor, pace: Pace) -> None:
        self.name, self.size = source.name, source.size
        self._read, self._pool, self._pace = partial(pace.read, source), pool, pace
        #: Pieces in order, none of which overlaps another, and their starts.
        self._plan: tuple[list[Range], list[int]] = ([], [])
        self._futures: dict[int, Future[memoryview]] = {}

    @property
    def held_bytes(self) -> int:
        """Bytes that are held, or will be once they are fetched."""
        return sum(piece.length for piece in self._plan[0])

    def missing(self, wanted: Iterable[Range]) -> list[Range]:
        """What is neither held nor being fetched of some ranges."""
        return [part for whole in coalesce(wanted, 0) for part in self._missing(whole)]

    def add(self, wanted: Iterable[Range], pool: Executor | None = None) -> None:
        """Begin to fetch what is not held of some ranges, by the threads of ``pool`` if that is given."""
        pool = pool or self._pool
        # Who asks by itself has one request under way: a small file is not cut.
        most = max(LEAST if isinstance(pool, InlineExecutor) else 0, self._pace.request_bytes)
        added = [piece for part in self.missing(wanted) for piece in cut(part, most)]
        for piece in added:
            self._futures[piece.start] = pool.submit(self._read, piece.start, piece.length)
        pieces = sorted([*self._plan[0], *added]) if self._plan[0] else added
        self._plan = pieces, [piece.start for piece in pieces]

    def _missing(self, wanted: Range) -> list[Range]:
        missing, position = [], wanted.start
        pieces, starts = self._plan
        for piece in pieces[max(0, bisect.bisect_right(starts, position) - 1) :]:
            if piece.start >= wanted.end:
                break
            if piece.start > position:
                missing.append(Range(position, piece.start))
            position = max(position, piece.end)
        return missing if position >= wanted.end else [*missing, Range(position, wanted.end)]

    def _data(self, piece: Range) -> memoryview:
        return self._futures[piece.start].result()

    def read(self, start: int, length: int) -> memoryview:
        """Bytes of the planned ranges without a request of their own; others are read directly."""
        views = self.views(start, length)
        if len(views) == 1:
            return views[0]
        joined = np.empty(length, dtype=np.uint8).data
        position = 0
        for view in views:
            joined[position : position + len(view)] = view
            position += len(view)
        return joined

    def views(self, start: int, length: int) -> list[memoryview]:
        """What ``read`` reads, in as many parts as it was fetched."""
        pieces, starts = self._plan
        views, position, end = list[memoryview](), start, start + length
        for place in range(max(0, bisect.bisect_right(starts, start) - 1), len(pieces)):
            piece = pieces[place]
            if piece.start >= end:
                break
            if piece.end <= position:
                continue
            if piece.start > position:
                views.append(self._read(position, piece.start - position))
                position = piece.start
            stop = min(end, piece.end)
            views.append(self._data(piece)[position - piece.start : stop - piece.start])
            position = stop
        if position < end:
            views.append(self._read(position, end - position))
        return views

    def hold(self, ranges: Sequence[Range], views: Sequence[memoryview]) -> None:
        """Hold the bytes of some ranges, in order, that were read from here and are held anyhow, in the place of all others."""
        futures: dict[int, Future[memoryview]] = {part.start: Future() for part in ranges}
        for future, view in zip(futures.values(), views, strict=True):
            future.set_result(view)
        self._futures, self._plan = futures, (list(ranges), [part.start for part in ranges])

    def close(self) -> None:
        for future in list(self._futures.values()):
            future.cancel()
        self._futures, self._plan = {}, ([], [])


class SlidingRanges(BufferedRanges):
    """Holds of each of ``chunks``, which are read side by side, the part that is read and the next one: ``budget`` bytes in all.

    Parts are as long as their chunk is beside the others, so that all come to their end together.
    """

    def __init__(self, source: ByteSource, pool: Executor, pace: Pace, chunks: Sequence[Range], budget: int) -> None:
        super().__init__(source, pool, pace)
        chunks = coalesce(chunks, -1)  # those of a damaged footer may overlap
        total = sum(chunk.length for chunk in chunks)
        cuts = [cut(chunk, max(_LEAST_WINDOW, chunk.length * budget // (2 * total))) for chunk in chunks]
        pieces = [piece for parts in cuts for piece in parts]
        self._plan = pieces, [piece.start for piece in pieces]
        #: Of each piece, those of its chunk, and its place among them.
        self._places = {piece.start: (parts, place) for parts in cuts for place, piece in enumerate(parts)}
        for parts in cuts:
            self._begin(parts[0])

    def _begin(self, piece: Range) -> None:
        if piece.start not in self._futures:
            self._futures[piece.start] = self._pool.submit(self._read, piece.start, piece.length)

    def _data(self, piece: Range) -> memoryview:
        parts, place = self._places[piece.start]
        for passed in parts[:place]:
            if (future := self._futures.pop(passed.start, None)) is not None:
                future.cancel()
        for coming in parts[place : place + 2]:
            self._begin(coming)
        return super()._data(piece)


class RangeFile(SeekableFile):
    """Presents fetched ranges as the seekable file that pyarrow reads from."""

    def __init__(self, ranges: BufferedRanges, size: int) -> None:
        super().__init__(size)
        self._ranges = ranges

    def read(self, length: int | None = -1) -> memoryview:
        length = self._available(length)
        data = self._ranges.read(self._position, length) if length else memoryview(b"")
        self._position += length
        return data


class CallsInOrder(Generic[_R]):
    """The results of calls in their order, with those that follow under way; the first ones begin at once. An iterator.

    Args:
        calls: Each is taken when it may begin.
        pool: Makes them.
        ahead: How many may be under way, or done and not taken, by now.

    Raises (by ``next``):
        ReadCancelled: The reader of this thread went away.
        Exception: What a call raises.
    """

    def __init__(self, calls: Iterable[Callable[[], _R]], pool: Executor, ahead: Callable[[], int]) -> None:
        self._calls, self._pool, self._ahead = iter(calls), pool, ahead
        self._coming: deque[Future[_R]] = deque()
        self._begin()

    def _begin(self) -> None:
        for call in itertools.islice(self._calls, max(0, self._ahead() - len(self._coming))):
            self._coming.append(self._pool.submit(call))

    def __iter__(self) -> CallsInOrder[_R]:
        return self

    def __next__(self) -> _R:
        self._begin()
        if not self._coming:
            raise StopIteration
        try:
            return result_of(self._coming[0])
        finally:
            if self._coming[0].done():  # else its caller was interrupted, and ``close`` waits for it
                self._coming.popleft()

    def close(self, patience: float = 0.0) -> None:
        """Begin no more, and wait so many seconds for those under way, which the caller broke off."""
        self._calls = iter(())
        wait([call for call in self._coming if not call.cancel()], patience)
        self._coming.clear()


class Fetched(Protocol):
    """A row group: what is fetched of it is held from ``fetch`` to ``close``, ``cost`` bytes of it at most."""

    cost: int

    def fetch(self, pool: Executor, pace: Pace) -> None:
        """Begin to fetch it."""

    def close(self) -> None:
        """Let go of it."""


class OpenFile(Protocol[_H]):
    """A file whose footer was read.

    Attributes:
        groups: Its row groups, none of which has been fetched yet.
        reserved_bytes: What its opening cost.
        is_held: Whether all its bytes came with it, and stay until its last row group was read.
    """

    groups: list[_H]
    reserved_bytes: int

    @property
    def is_held(self) -> bool:
        """See the class."""

    def close(self) -> None:
        """Let go of the file."""


class FetchQueue(Generic[_F, _O, _G]):
    """The row groups of files, in order, with what follows fetched meanwhile. One thread reads; any may close it.

    Args:
        name: What is read, for an error.
        files: Asked for one by one.
        prefetch: What is asked of a file before its footer is known.
        open_file: Begins to open a file by the first executor, and to fetch ranges by the second one.
        budget: Bytes that are held or asked for, at most, unless a single row group has more.
        pace: How the storage answers.
        is_small: Whether files mostly are one request.
        is_tentative: Whether the reader may have enough with the first rows: one row group alone is fetched until ``go_on``,
            or until a file has none.
    """

    def __init__(
        self,
        name: str,
        files: Iterable[_F],
        prefetch: Callable[[_F], Prefetch],
        open_file: Callable[[_F, Prefetch, Executor, Executor], Future[_O]],
        budget: int,
        pace: Pace,
        *,
        is_small: bool = False,
        is_tentative: bool = False,
    ) -> None:
        self._name, self._budget, self._pace, self._is_small = name, budget, pace, is_small
        self._is_tentative = is_tentative
        self._prefetch, self._open_file = prefetch, open_file
        #: Files opened ahead of the one being decoded, at most.
        self._most = MOST_CONNECTIONS if is_small else OPENED_AHEAD
        self.pool = DaemonPool(self._most, "delta-sharing-fetch")
        self._lock = threading.Lock()
        self._waiting = iter(files)
        self._following = next(self._waiting, None)
        self._opening: deque[Future[_O]] = deque()
        self._fetching: deque[tuple[_O, _G]] = deque()
        self._in_flight = 0
        self.is_closed = self._is_due = False
        self._failure: Exception | None = None

    def row_groups(self) -> Generator[tuple[_O, _G], None, None]:
        """Each row group with its file; it is let go when the next one is asked for.

        Raises:
            ReadCancelled: The queue was closed.
            Exception: What opening a file raises.
        """
        while True:
            self._fill(waits=True)
            with self._lock:
                fetching = self._fetching[0] if self._fetching else None
                opening = self._opening[0] if self._opening else None
            if self.is_closed:
                raise ReadCancelled(f"{self._name}: reading it was broken off")
            if self._failure is not None:
                raise self._failure
            if fetching is not None:
                yield fetching
                with self._lock:
                    self._end(*fetching)
                del fetching
            elif opening is not None:
                result_of(opening)
            else:
                return

    @property
    def has_more(self) -> bool:
        """Whether anything follows the row group that is being read."""
        with self._lock:
            is_last = len(self._fetching) < 2 and not any(opened.groups for opened, _ in self._fetching)
            return self._following is not None or bool(self._opening) or not is_last

    def go_on(self) -> None:
        """Fetch ahead from now on, as far as the budget goes."""
        self._is_tentative = False
        self._fill(waits=True)

    def close(self) -> None:
        """Break off all fetches: threads end as soon as they notice. Safe in the garbage collector."""
        # Without the lock: perhaps within the thread that holds it.
        self.is_closed = True
        for future in list(self._opening):  # another thread may be adding to them
            future.cancel()
        for _, group in list(self._fetching):
            group.close()
        self._opening.clear()
        self._fetching.clear()
        self.pool.close()

    def _fill(self, _: object = None, *, waits: bool = False) -> None:
        """Begin all that may begin now; called when a file was opened, and by the consumer, who waits for others that do."""
        self._is_due = True
        while self._is_due and not self.is_closed and self._lock.acquire(blocking=waits):
            opened: list[Future[_O]] = []
            try:
                self._is_due = False
                opened = self._begin()
            except Exception as error:
                if not self.is_closed:
                    self._failure = error
            finally:
                self._lock.release()
            for future in opened:  # the first may be there already
                future.add_done_callback(self._fill)

    def _begin(self) -> list[Future[_O]]:
        """Begin fetching row groups, in order, until the budget is used or the next footer is still on its way.

        Returns:
            The files that are being opened since.
        """
        begun = self._open_ahead()
        while self._opening and self._opening[0].done() and self._opening[0].exception() is None:
            opened = self._opening[0].result()
            while opened.groups:
                group = opened.groups[0]
                if self._fetching and (self._is_tentative or self._in_flight + group.cost > self._budget):
                    return begun
                group.fetch(self.pool, self._pace)
                self._in_flight += group.cost
                self._fetching.append((opened, opened.groups.pop(0)))
            self._opening.popleft()
            is_over = not self._fetching or self._fetching[-1][0] is not opened
            if is_over or not opened.is_held:
                self._release(opened)
            if is_over:
                opened.close()
                self._is_tentative = False  # it has nothing for the reader, and others may be so too
            begun += self._open_ahead()
        return begun

    def _open_ahead(self) -> list[Future[_O]]:
        """Open the next files, a few at once, as far as the budget goes: small ones are fetched whole with it."""
        pace, begun = self._pace, list[Future[_O]]()
        self.pool.at_once = self._most if self._is_small else pace.connections
        if self._is_small and not self._opening and not self._fetching:
            # One connection is best to a near storage: a new one costs more than a small file. The first answer waits
            # for its connection, so that the second one tells more.
            for most in (1, 2):
                if pace.answers < most and all(future.done() for future in begun):
                    begun += self._open_files(most, self.pool)
                    wait(begun, _GLIMPSE)
        at_once = pace.files_at_once(self._most) if self._is_small else self._most
        return begun + self._open_files(at_once, InlineExecutor() if at_once == 1 else self.pool)

    def _open_files(self, at_once: int, files: Executor) -> list[Future[_O]]:
        begun = []
        ranges: Executor = InlineExecutor() if at_once < self._most else self.pool
        most = 1 if self._is_tentative else at_once
        while self._following is not None and len(self._opening) < most:
            if most == 1 and self._fetching:
                break  # else all files that the budget allows would be read before the first row
            prefetch = self._prefetch(self._following)
            if (self._opening or self._fetching) and self._in_flight + prefetch.cost > self._budget:
                break
            self._in_flight += prefetch.cost
            begun.append(self._open_file(self._following, prefetch, files, ranges))
            self._opening.append(begun[-1])
            self._following = next(self._waiting, None)
        return begun

    def _end(self, opened: _O, group: _G) -> None:
        """Let go of a row group that was decoded, and of its file with the last one."""
        self._fetching.popleft()
        group.close()
        self._in_flight -= group.cost
        if not opened.groups and (not self._fetching or self._fetching[0][0] is not opened):
            self._release(opened)
            opened.close()

    def _release(self, opened: _O) -> None:
        self._in_flight -= opened.reserved_bytes
        opened.reserved_bytes = 0
