"""Reads splits in parallel without Spark: their batches come in order, and some bytes of each split are read ahead."""

from __future__ import annotations

import itertools
import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from delta_sharing_spark.errors import BrokenOffError
from delta_sharing_spark.network.connections import check_reader
from delta_sharing_spark.network.process_end import awaiting, closed_at_exit, start, start_thread
from delta_sharing_spark.scan.plan import Split
from delta_sharing_spark.scan.row_group_reader import decoding_pool, size_of
from delta_sharing_spark.scan.split_reader import RunningReaders, is_waiting, read_split

if TYPE_CHECKING:
    import polars as pl

#: Bytes of a split's batches that are held for the consumer; the batch that exceeds them is held as well.
_READY_BYTES = 16 << 20
_LEAST_BUDGET, _MOST_BUDGET = 256 << 20, 1 << 30
#: Splits whose readers mostly wait that take one worker's place, each with as large a part of its budget.
_WAITING = 4
#: Splits that have begun before the consumer took the first of them, at most: most of one huge row group's are empty.
_MOST_BEGUN = 1024
#: Seconds after which a consumer that waits for a batch looks whether it was cancelled.
_LOOK_EVERY = 0.5


def default_budget() -> int:
    """Bytes that all reads of one scan may hold fetched where no Spark bounds them: an eighth of what is free, within bounds."""
    return max(_LEAST_BUDGET, min(_MOST_BUDGET, _free_bytes() // 8))


def _free_bytes() -> int:
    """Memory that is free on this machine, or in its container; 0 where nothing tells."""
    free = 0
    with suppress(OSError, ValueError, IndexError):
        meminfo = Path("/proc/meminfo").read_text(encoding="ascii")
        free = int(meminfo.split("MemAvailable:")[1].split()[0]) << 10
    with suppress(OSError, ValueError):
        limit, used = (
            int(Path(f"/sys/fs/cgroup/memory.{name}").read_text(encoding="ascii")) for name in ("max", "current")
        )
        free = min(free, limit - used)
    return free


class _ConsumerGone(Exception):
    """The consumer went away."""


#: A batch, the error that ended the split, or None for its end.
_Item: TypeAlias = "pa.RecordBatch | pl.DataFrame | BaseException | None"
#: Reads a split.
Reads: TypeAlias = "Callable[[Split], Generator[Any, None, None]]"


class _ReadyBatches:
    """The batches of one split that were read and not taken, held to some bytes; last its error, or None for its end.

    By queues alone: an exception of a signal handler leaves no lock of theirs taken, as it may leave a condition's.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        #: Bytes that the worker has put, and those that the consumer has taken.
        self._put = self._taken = 0
        self._items: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()

    def put(self, batch: pa.RecordBatch | pl.DataFrame, is_over: Callable[[], bool]) -> None:
        """Add a batch, once there is room for it.

        Raises:
            _ConsumerGone: ``is_over`` says that nobody takes it.
        """
        while not is_over():
            if self._put - self._taken < self._limit:
                self._put += size_of(batch)
                self._items.put(batch)
                return
            with suppress(queue.Empty):
                self._room.get(timeout=0.1)
        raise _ConsumerGone

    def end(self, error: BaseException | None = None) -> None:
        """Add what comes last, for which there is always room."""
        self._items.put(error)

    def take(self, timeout: float) -> _Item:
        """Wait for the next item.

        Raises:
            queue.Empty: There was none for ``timeout`` seconds.
        """
        item = self._items.get(timeout=timeout)
        if item is not None and not isinstance(item, BaseException):
            self._taken += size_of(item)
            self._room.put(None)
        return item

    def __len__(self) -> int:
        return self._items.qsize()


class _Consumer:
    """Tells ``over`` that the rows are wanted no more: when it is closed, or nothing holds it, wherever an interrupt came."""

    def __init__(self, over: queue.SimpleQueue[None]) -> None:
        self._over = over
        weakref.finalize(self, over.put, None).atexit = False

    def close(self) -> None:
        """See the class."""
        # Perhaps in the garbage collector, within any thread that holds any lock: this queue alone may be used there.
        self._over.put(None)


class _Worker(threading.Thread):
    """Reads one split, in one of ``parts`` of a worker's place."""

    def __init__(
        self,
        split: Split,
        read: Reads,
        stop: threading.Event,
        readers: RunningReaders,
        ready_bytes: int,
        begin_others: Callable[[], None],
        parts: int,
    ) -> None:
        super().__init__(name=f"delta-sharing-split-{split.index}", daemon=True)
        if parts > 1:
            split = replace(split, spec=replace(split.spec, fetch_ahead=split.spec.fetch_ahead // parts))
        self._split, self._read_split, self._readers, self._process = split, read, readers, os.getpid()
        self._stop_reading = stop
        self._begin_others = begin_others
        self._has_ended = False
        #: Whether the consumer reads the split: the process is ending, and starts no thread any more.
        self.is_for_consumer = False
        self.ready, self.place = _ReadyBatches(ready_bytes // parts), 1 / parts

    def begin(self) -> None:
        """Start the thread, or leave the split to the consumer where no thread can be started."""
        try:
            if not start(self):
                self.is_for_consumer = self._has_ended = True
        except RuntimeError as error:  # no more threads: perhaps in another worker's, so the consumer is told
            self.ready.end(error)

    def run(self) -> None:
        with self._readers.watching():
            self._read()
        self._has_ended = True
        self._begin_others()
        if self._stop_reading.is_set():
            # The batches that were not taken are freed, but the allocator would keep their pages, tens of megabytes, for later.
            for pool in (decoding_pool(), pa.default_memory_pool()):  # decoded rows, and what was made of them
                pool.release_unused()

    def _read(self) -> None:
        batches = self._read_split(self._split)
        try:
            for batch in batches:
                self.ready.put(batch, self._stop_reading.is_set)
            self.ready.end()
        except _ConsumerGone:
            self.ready.end(self._broken_off("reading it was broken off; read it again"))
        except BaseException as error:  # handed to the consumer's thread, which raises it
            self.ready.end(error)
        finally:
            batches.close()

    def rows(self) -> Generator[Any, None, None]:
        """The rows of the split, read by the consumer."""
        return self._read_split(self._split)

    def take(self, check_cancelled: Callable[[], None] | None) -> _Item:
        """Wait for the next item, and call ``check_cancelled`` meanwhile.

        Raises:
            BrokenOffError: The thread is another process's, from which this one was forked.
        """
        while True:
            # In steps: a wait without end does not see a Ctrl-C that comes as it begins, and on Windows sees none.
            with awaiting(), suppress(queue.Empty):
                return self.ready.take(_LOOK_EVERY)
            check_reader()
            if self._process != os.getpid():
                raise self._broken_off("this process was forked from the one that reads it; begin the read here")
            if check_cancelled is not None:
                check_cancelled()

    def _broken_off(self, why: str) -> BrokenOffError:
        return BrokenOffError(f"{self._split.spec.table}: {why}")

    def is_over(self) -> bool:
        """Whether the split was read and none of its batches waits."""
        return self._has_ended and len(self.ready) <= 1


def read_splits(
    splits: Sequence[Split],
    workers: int,
    progress: Callable[[int], None] | None = None,
    check_cancelled: Callable[[], None] | None = None,
    ready_bytes: int = _READY_BYTES,
    read: Reads | None = None,
) -> Generator[Any, None, None]:
    """The rows of ``splits``, split by split, of which up to ``workers`` are read at the same time.

    Args:
        splits: From a plan.
        workers: How many splits are read at the same time. If there are several, four splits of a far storage take the place of one.
        progress: Called with the index of each split that is done.
        check_cancelled: Called twice a second while the consumer waits; what it raises ends the reads.
        ready_bytes: Bytes of a split's batches that are read ahead of the consumer; one batch more is held.
        read: Reads a split; None for ``read_split``.

    Raises:
        As ``read_split``, for the first split that fails.
    """
    stop, readers = threading.Event(), RunningReaders()
    over: queue.SimpleQueue[None] = queue.SimpleQueue()

    def close() -> None:
        over.get()
        stop.set()
        readers.close()

    coming = iter(splits)  # each is built when it is come to
    waiting = deque(itertools.islice(coming, 1))
    running: deque[_Worker] = deque()
    beginning, has_room = threading.Lock(), threading.Event()

    def begin() -> None:
        """Begin as many splits as there is room for."""
        # A split without row groups (the second half of a file that has only one) does not count against the limit of workers.
        while waiting and len(running) < _MOST_BEGUN and not stop.is_set():
            room = workers - sum(worker.place for worker in running if not worker.is_over())
            if room <= 0:
                return
            parts = _WAITING if workers > 1 and is_waiting(waiting[0]) else 1
            if room < 1 / parts:
                return
            running.append(
                worker := _Worker(
                    waiting.popleft(), read or read_split, stop, readers, ready_bytes, begin_others, parts
                )
            )
            waiting.extend(itertools.islice(coming, 1))
            worker.begin()

    def begin_others() -> None:
        """What a worker does that has ended: it begins others, or leaves that to whoever is beginning some now."""
        # Those of empty splits would else wait for their turn, a thread each.
        has_room.set()
        while has_room.is_set() and beginning.acquire(blocking=False):
            has_room.clear()
            try:
                begin()
            finally:
                beginning.release()

    consumer = closed_at_exit(_Consumer(over))
    try:
        start_thread(close, "delta-sharing-closing")
        while True:
            with beginning:
                begin()
            begin_others()
            if not running:
                return
            worker = running[0]
            if worker.is_for_consumer:
                yield from worker.rows()
            elif (item := worker.take(check_cancelled)) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
                continue
            with beginning:
                running.popleft()
            if progress is not None:
                progress(worker._split.index)
    finally:
        consumer.close()
