"""Chooses what to ask a storage for, by how it has answered: how many bytes at once, what lies between, how much of a file's end."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import NamedTuple

from delta_sharing_spark.network.connections import check_reader
from delta_sharing_spark.network.process_cache import ProcessCache
from delta_sharing_spark.network.urls import url_or_none
from delta_sharing_spark.parquet.footer import TAIL
from delta_sharing_spark.storage.ranges import ByteSource, Range, coalesce

#: Bytes of a request, at least, at least of a far storage, and at most.
LEAST, LEAST_OF_FAR, MOST = 4 << 20, 1 << 20, 32 << 20
#: Seconds that a request should last: a reader may wait for so long more than if it came in small parts.
_LASTING = 0.05
#: Seconds of the processor that a request costs at both ends, however few bytes it is for.
_WORK = 0.0003
#: Requests for more bytes tell how fast a storage is, those for fewer how long it takes to begin; between these two, about both.
_BRIEF, _TELLING = 64 << 10, 1 << 20
#: Part of a rate that is still believed after a slower request: those under way together slow each other down.
_KEPT = 0.75
#: Bytes between two ranges that are fetched rather than asked around, at least, at most, and before anything is known.
_LEAST_GAP, _MOST_GAP, _FIRST_GAP = 4 << 10, 32 << 20, 256 << 10
#: Of the bytes that are wanted, the part that may be fetched besides: never as many again.
_UNWANTED = 0.9
#: Bytes of a later request for a footer, at least and at most.
_LEAST_TAIL, _LONGEST_TAIL = 8 << 10, 1 << 20
#: Bytes of a file that may be fetched besides those wanted where that saves a request, whatever is wanted.
SPARE = 256 << 10
#: Files of at most so many bytes are one request if that is worth it, and of a few always: another request costs more than they do.
WHOLE_FILE, _ALWAYS_WHOLE = 4 << 20, 64 << 10
#: By how much of a file's size its bytes may lie elsewhere than those of a file like it: before two were seen, and at
#: most. And by how many bytes always.
_FIRST_SLACK, _MOST_SLACK, _LEAST_SLACK = 1 / 64, 1 / 4, 64
#: Seconds until an answer below which it is not worth waiting for in another thread; those between two requests of a busy reader.
_NEAR, _BETWEEN = 0.002, 0.0005
#: Seconds until an answer from which on a storage is far.
_FAR = 0.02
#: Requests of one reader under way at once: for much each, and for little each, which mostly wait.
CONNECTIONS, MOST_CONNECTIONS = 16, 48
#: Requests of all readers of a process to one storage under way at once; seconds between two looks of one that waits.
OF_STORAGE, _LOOK = 128, 0.2


class Connections:
    """Bounds the requests of this process to one storage: who would have one more under way waits for another to end.

    Pickled, it becomes that of the process that unpickles it.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        # A queue: an exception of a signal handler may leave a semaphore locked.
        self._free: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(OF_STORAGE):
            self._free.put(None)
        self._holders = threading.local()

    def __reduce__(self) -> tuple[Callable[[str], Connections], tuple[str]]:
        return connections_to, (self._location,)

    @contextmanager
    def one(self) -> Iterator[None]:
        """Within this context the thread has a request under way; raises ReadCancelled where its reader goes away meanwhile."""
        if getattr(self._holders, "is_one", False):  # a source that reads another one would wait for itself
            yield
            return
        while True:
            with suppress(queue.Empty):
                self._free.get(timeout=_LOOK)
                break
            check_reader()
        self._holders.is_one = True
        try:
            yield
        finally:
            self._holders.is_one = False
            self._free.put(None)


class Pace:
    """How a storage answers requests for the files of one table.

    Over a slow connection several small requests at a time are faster, and a request costs what could have come meanwhile.
    Where the storage is near, a request of 4 MiB takes as much of the processor as its bytes. Threads that update it
    together may lose a measurement, and no more. How far a storage is, the soonest of some hundred answers tells: others
    wait for a busy machine, and more threads would make them wait longer.

    Args:
        first_tail: Bytes of the first request for a footer before one was seen, where something tells of them.
        connections: Those to the storage; by default of this reader's own.

    Attributes:
        request_bytes: How much to ask for at once: what comes in ``_LASTING`` seconds, within bounds.
        gap: Bytes that come while a request of their own would wait for its answer.
        answers: How many requests were learned from.
    """

    def __init__(self, first_tail: int | None = None, connections: Connections | None = None) -> None:
        self._connections = connections or Connections("")
        self.request_bytes, self.gap = LEAST, _FIRST_GAP
        self._rate = self._latency = self._begins = self._soonest = 0.0
        self._footer_bytes, self._first_tail = 0, first_tail
        self.answers = 0

    def read(self, source: ByteSource, start: int, length: int) -> memoryview:
        """``source.read(start, length)``, and learn from how long it takes, if it takes a request."""
        with self._connections.one():
            requests = getattr(source, "requests_made", -1)  # of a source behind a cache on disk
            began = time.monotonic()
            data = source.read(start, length)
            if length and (requests < 0 or requests != source.requests_made):  # type: ignore[attr-defined]
                self.learn(length, time.monotonic() - began)
            return data

    def learn(self, length: int, seconds: float) -> None:
        """Note that a request for ``length`` bytes took so many seconds."""
        seconds = max(seconds, 1e-6)
        self.answers += 1
        if length < _TELLING:
            self._latency = min(seconds, self._latency * 1.25 or seconds)
            self._soonest = min(seconds, self._soonest * 1.01 or seconds)
        if length <= _BRIEF:
            self._begins = min(seconds, self._begins * 1.25 or seconds)
        begins = self._begins or self._latency
        if length >= _TELLING or (length > _BRIEF and self._begins):
            self._rate = max(length / max(seconds - begins, seconds / 8), self._rate * _KEPT)
        # Whoever waits for a far storage waits least if all of it is asked for at once.
        self.request_bytes = min(MOST, max(LEAST_OF_FAR if self.is_far else LEAST, int(self._rate * _LASTING)))
        if self._rate and begins:
            self.gap = min(_MOST_GAP, max(_LEAST_GAP, int(self._rate * (begins + _WORK))))

    def learn_footer(self, size: int) -> None:
        """Note the size of a file's footer."""
        self._footer_bytes = max(size, int(self._footer_bytes * 0.9))

    @property
    def spare(self) -> int:
        """Bytes of a file that may be fetched besides those wanted, however few these are, to save a request: none of a near storage."""
        return SPARE if self._soonest >= _NEAR else 0

    @property
    def is_far(self) -> bool:
        """Whether requests mostly wait, so that many more may be under way than a processor could take in."""
        return self._latency >= _FAR

    @property
    def connections(self) -> int:
        """How many requests of one reader may be under way for large files."""
        return MOST_CONNECTIONS if self.is_far else CONNECTIONS

    @property
    def is_instant(self) -> bool:
        """Whether answers come sooner than a reader is done with a small file, though they may wait for busy threads of this process."""
        return 0 < self._soonest < _BETWEEN

    def files_at_once(self, most: int) -> int:
        """How many small files to ask for at once, so that there is always one to decode.

        With 1, no other thread is worth it; with fewer than ``most``, none for each range of a file.
        """
        return 1 if 0 < self._soonest < _NEAR else min(most, int(self._soonest / _BETWEEN) or most)

    def tail_bytes(self, size: int) -> int:
        """Bytes of the first request for the footer of a file: the largest one seen lately and a quarter."""
        if self._footer_bytes:
            return min(_LONGEST_TAIL, size, self._footer_bytes * 5 // 4 + 512)
        return min(TAIL, size, self._first_tail or max(_LEAST_TAIL, size // 8))

    def is_worth_whole(self, size: int, wanted: float, spare: int = 0) -> bool:
        """Whether a file is fetched whole, as is cheaper than its footer first.

        Args:
            size: Its bytes.
            wanted: The part of its bytes that is wanted; 0 if it is not known.
            spare: Bytes that may be fetched besides, however few are wanted; by default less than what is wanted.
        """
        if size <= _ALWAYS_WHOLE:
            return True
        unwanted = size * (1 - wanted)
        return size <= WHOLE_FILE and unwanted <= min(self.gap, max(spare, _UNWANTED * size * wanted))

    def merged(self, wanted: Iterable[Range], spare: float | None = None) -> list[Range]:
        """The ranges to ask for: those wanted, and what lies between them where a request of its own would cost more.

        Args:
            wanted: In any order.
            spare: Bytes that may be fetched besides; by default less than what is wanted.
        """
        ranges = coalesce(wanted, 0)
        allowed = _UNWANTED * sum(part.length for part in ranges) if spare is None else spare
        bridged = 0
        for gap in sorted(after.start - before.end for before, after in itertools.pairwise(ranges)):
            allowed -= gap
            if gap > self.gap or allowed < 0:
                # Of gaps that are alike some would fit, none is bridged.
                return coalesce(ranges, bridged if gap > bridged else bridged - 1)
            bridged = gap
        return coalesce(ranges, bridged)


#: By table and host.
_paces: ProcessCache[tuple[str, str], Pace] = ProcessCache(64)
_connections: ProcessCache[str, Connections] = ProcessCache(64)


def pace_of(table: str, location: str, first_tail: int | None = None) -> Pace:
    """How a storage has answered this process for a table's files; arguments as for ``Pace``, and where one of the files lies."""
    return _paces.get_or_make((table, _host_of(location)), lambda: Pace(first_tail, connections_to(location)))


def connections_to(location: str) -> Connections:
    """The connections of this process to the storage of a file or a table; all disks of this machine are one."""
    host = _host_of(location)
    return _connections.get_or_make(host, lambda: Connections(f"https://{host}" if host else ""))


def _host_of(location: str) -> str:
    url = url_or_none(location)
    return "" if url is None else url.authority


class Prefetch(NamedTuple):
    """What is asked of a small file before its footer is known.

    Attributes:
        ranges: In order; the last one holds the file's end.
        spared: Bytes that were left for other files; negative if it took of theirs.
        is_by_history: Whether there is more to it than the file's end.
    """

    ranges: list[Range]
    spared: float = 0.0
    is_by_history: bool = False

    @property
    def cost(self) -> int:
        """Bytes that are asked for."""
        return sum(part.length for part in self.ranges)


class LayoutHistory:
    """Where the wanted bytes of a table's small files of one row group lie: about where they lay in the last one.

    Over all files, less than twice what is wanted is fetched: what one file did not take of that may go to another.
    Threads that update it together may lose one file's share.

    Attributes:
        wanted: The part of a file's bytes that is wanted; 0 until it is known.
    """

    def __init__(self, pace: Pace) -> None:
        self.wanted = self._spare = 0.0
        self._pace, self._footer_bytes = pace, 0
        #: Beginnings and ends as parts of what comes before the footer, and how far they may be off.
        self._places: list[tuple[float, float]] = []
        self._slack = _FIRST_SLACK

    def prefetch(self, size: int, *, footer_only: bool) -> Prefetch:
        """What to ask for of a file of ``size`` bytes."""
        pace = self._pace
        tail = Range(size - pace.tail_bytes(size), size)
        if footer_only or not self._places:
            return Prefetch([tail])
        data, slack = size - self._footer_bytes, int(self._slack * size) + _LEAST_SLACK
        parts = [Range(int(start * data), int(end * data)) for start, end in self._places]
        wanted = sum(part.length for part in parts) + self._footer_bytes
        asked = coalesce([tail, *(Range(max(4, a - slack), min(tail.start, b + slack)) for a, b in parts)], 0)
        spare = (1 + _UNWANTED) * wanted - sum(part.length for part in asked) + self._spare
        if spare < 0:
            return Prefetch([tail])
        asked = pace.merged(asked, spare)
        return Prefetch(asked, (1 + _UNWANTED) * wanted - sum(part.length for part in asked), True)

    def take(self, prefetch: Prefetch) -> None:
        """Note that a prefetch is asked for."""
        self._spare += prefetch.spared

    def learn(self, size: int, footer_bytes: int, chunks: Iterable[Range], prefetch: Prefetch, fetched: int) -> None:
        """Note where the wanted bytes of a file were, and how many were ``fetched`` of it in all."""
        wanted, data = coalesce(chunks, 0), max(1, size - footer_bytes)
        places = [(part.start / data, part.end / data) for part in wanted]
        if self._places:
            is_alike = len(places) == len(self._places)
            off = (
                max(abs(a - b) for a, b in zip(chain(*places), chain(*self._places), strict=True)) if is_alike else 1.0
            )
            self._slack = max(min(2 * off, _MOST_SLACK), 0.8 * self._slack)
        self._places, self._footer_bytes = places, footer_bytes
        needed = sum(part.length for part in wanted) + footer_bytes
        self._spare = min(needed, self._spare + (1 + _UNWANTED) * needed - fetched - prefetch.spared)

    def waste(self, prefetch: Prefetch) -> None:
        """Note that a file was another one than the prefetch was made for."""
        self._spare -= prefetch.cost + prefetch.spared
