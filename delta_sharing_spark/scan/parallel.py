"""Reads splits in parallel without Spark: their batches come in order, and only a few of each split are read ahead."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress

import pyarrow as pa

from delta_sharing_spark.scan.plan import Split
from delta_sharing_spark.scan.split_reader import RunningReaders, read_split

_READY = 4
#: Seconds between two calls of ``check_cancelled`` while the consumer waits for a batch.
_LOOK_EVERY = 0.5


class _ConsumerGone(Exception):
    """The consumer went away."""


class _Worker(threading.Thread):
    """Reads one split into a short queue; None marks its end."""

    def __init__(
        self,
        split: Split,
        stop: threading.Event,
        readers: RunningReaders,
        ready: int,
        begin_others: Callable[[], None],
    ) -> None:
        super().__init__(name=f"delta-sharing-split-{split.index}", daemon=True)
        self._split, self._readers = split, readers
        self._stop_reading = stop
        self._begin_others = begin_others
        self._has_ended = False
        self.ready: queue.Queue[pa.RecordBatch | BaseException | None] = queue.Queue(ready)

    def run(self) -> None:
        with self._readers.watching():
            self._read()
        self._has_ended = True
        self._begin_others()
        if self._stop_reading.is_set():
            # The batches that were not taken are freed, but the allocator would keep their pages, tens of megabytes, for later.
            pa.default_memory_pool().release_unused()

    def _read(self) -> None:
        batches = read_split(self._split)
        try:
            for batch in batches:
                self._put(batch)
            self._put(None)
        except _ConsumerGone:
            pass
        except BaseException as error:  # handed to the consumer's thread, which raises it
            with suppress(_ConsumerGone):
                self._put(error)
        finally:
            batches.close()

    def take(self, check_cancelled: Callable[[], None] | None) -> pa.RecordBatch | BaseException | None:
        """Wait for the next item, and call ``check_cancelled`` meanwhile."""
        while True:
            try:
                return self.ready.get(timeout=None if check_cancelled is None else _LOOK_EVERY)
            except queue.Empty:
                assert check_cancelled is not None
                check_cancelled()

    def is_over(self) -> bool:
        """Whether the split was read and none of its batches waits."""
        return self._has_ended and self.ready.qsize() <= 1

    def _put(self, item: pa.RecordBatch | BaseException | None) -> None:
        while not self._stop_reading.is_set():
            try:
                self.ready.put(item, timeout=0.1)
                return
            except queue.Full:
                continue
        raise _ConsumerGone


def read_splits(
    splits: Sequence[Split],
    workers: int,
    progress: Callable[[int], None] | None = None,
    check_cancelled: Callable[[], None] | None = None,
    ready: int = _READY,
) -> Generator[pa.RecordBatch, None, None]:
    """The rows of ``splits``, split by split, of which up to ``workers`` are read at the same time.

    Args:
        splits: From a plan.
        workers: How many splits are read at the same time.
        progress: Called with the index of each split that is done.
        check_cancelled: Called twice a second while the consumer waits; what it raises ends the reads.
        ready: How many batches of a split are read ahead of the consumer.

    Raises:
        As ``read_split``, for the first split that fails.
    """
    stop, readers = threading.Event(), RunningReaders()
    over: queue.SimpleQueue[None] = queue.SimpleQueue()

    def close() -> None:
        over.get()
        stop.set()
        readers.close()

    waiting = iter(splits)
    running: deque[_Worker] = deque()
    beginning = threading.Lock()

    def begin() -> None:
        # A split may hold no row group, as the second half of a file that has only one: it takes no other's place.
        with beginning:
            while sum(not worker.is_over() for worker in running) < workers and not stop.is_set():
                if (split := next(waiting, None)) is None:
                    return
                running.append(worker := _Worker(split, stop, readers, ready, begin))
                try:
                    worker.start()
                except RuntimeError as error:  # no more threads: perhaps in another worker's, so the consumer is told
                    worker.ready.put(error)

    try:
        threading.Thread(target=close, name="delta-sharing-closing", daemon=True).start()
        while True:
            begin()
            if not running:
                return
            worker = running[0]
            if (item := worker.take(check_cancelled)) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
                continue
            with beginning:
                running.popleft()
            if progress is not None:
                progress(worker._split.index)
    finally:
        # Perhaps in the garbage collector, within any thread that holds any lock: this queue alone may be used there.
        over.put(None)
