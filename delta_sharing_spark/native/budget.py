"""Bounds the memory and disk that all plans of a gateway use together, and owns the threads that fetch for them."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from delta_sharing_spark.native.files import ShownFile

#: Requests under way at once, over all plans.
CONNECTIONS = 24
#: Bytes of chunks held that were fetched ahead, over all plans.
AHEAD_BYTES = 128 << 20
#: Bytes of chunks held once they were read, over all plans: Spark reads a filter's dictionary first, and a query may scan twice.
KEPT_BYTES = 32 << 20
#: Bytes of footers and whole small files held, over all plans: each task may read some that are shown as one file of 8 MiB.
_SHOWN_BYTES = max(96, 12 * (os.cpu_count() or 1)) << 20
#: Bytes of a process that holds nothing: its imports, its threads.
_OF_PROCESS = 112 << 20
#: Bytes of rewritten files on local disk, over all plans.
_REWRITTEN_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bytes that a gateway may hold, over all plans.

    Attributes:
        shown: Of footers and whole small files.
        ahead: Of chunks fetched ahead.
        kept: Of chunks held once they were read.
        rewritten: Of rewritten files on local disk.
    """

    shown: int = field(default_factory=lambda: _SHOWN_BYTES)
    ahead: int = field(default_factory=lambda: AHEAD_BYTES)
    kept: int = field(default_factory=lambda: KEPT_BYTES)
    rewritten: int = _REWRITTEN_BYTES

    @staticmethod
    def within(memory: int) -> Bounds:
        """Those of a process of its own, of which so many bytes of memory are all."""
        free = max(memory - _OF_PROCESS, 16 << 20)
        return Bounds(shown=free // 4, ahead=free // 3, kept=free // 12)


class FootersHolder(Protocol):
    """Holds a plan's footers, and is told to release them when the budget is exceeded."""

    def forget(self, number: int) -> None:
        """Release a file's footer."""


class ChunksHolder(Protocol):
    """Holds a plan's column chunks, and is told to release them when the budget is exceeded."""

    def drop(self, key: tuple[int, int]) -> None:
        """Release the chunks of a row group; ``key`` is the file's number and the row group's."""


class Budget:
    """Counts what all plans of a gateway hold, and releases the longest unused beyond the bounds; owns the fetching threads."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self.fetchers = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="delta-sharing-native-fetch")
        self.openers = ThreadPoolExecutor(CONNECTIONS // 2, thread_name_prefix="delta-sharing-native-open")
        self._lock = threading.Lock()
        self._shown: OrderedDict[tuple[FootersHolder, int], tuple[int, int]] = OrderedDict()
        self._chunks: OrderedDict[tuple[ChunksHolder, tuple[int, int]], int] = OrderedDict()
        self._kept: OrderedDict[tuple[ChunksHolder, tuple[int, int]], int] = OrderedDict()
        self._memory = self._disk = self._fetched = self._kept_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be fetched ahead."""
        return self._fetched >= self._bounds.ahead

    def has_room_for(self, size: int) -> bool:
        """Whether small files of so many bytes may be fetched ahead: what is being read must not be released for them."""
        return self._memory + size <= self._bounds.shown // 2

    def use(self, holder: FootersHolder, number: int) -> None:
        """Note that a file was asked for, so that it is released last."""
        with self._lock, suppress(KeyError):
            self._shown.move_to_end((holder, number))

    def hold(self, holder: FootersHolder, number: int, shown: ShownFile) -> None:
        """Add a file's footer, and release the longest unused beyond the bounds."""
        disk = shown.source.size if shown.reason is not None else 0
        gone = []
        with self._lock:
            self._shown[holder, number] = (shown.memory_bytes, disk)
            self._memory += shown.memory_bytes
            self._disk += disk
            while len(self._shown) > 1 and (self._memory > self._bounds.shown or self._disk > self._bounds.rewritten):
                key, (memory, used) = self._shown.popitem(last=False)
                self._memory -= memory
                self._disk -= used
                gone.append(key)
        for other, file in gone:
            other.forget(file)

    def add(self, holder: ChunksHolder, key: tuple[int, int], size: int) -> None:
        """Add chunks that are being fetched, and release the oldest unread ones beyond the bound."""
        gone = []
        with self._lock:
            kept = self._kept.pop((holder, key), 0)
            self._kept_bytes -= kept
            self._chunks[holder, key] = self._chunks.pop((holder, key), 0) + kept + size
            self._fetched += kept + size
            while self._fetched > self._bounds.ahead and len(self._chunks) > 1:
                oldest = next(iter(self._chunks))
                gone.append(oldest)
                self._fetched -= self._chunks.pop(oldest)
        self._release(gone)

    def keep(self, holder: ChunksHolder, key: tuple[int, int]) -> None:
        """Note that chunks were read, and release the oldest such beyond the bound."""
        gone = []
        with self._lock:
            size = self._chunks.pop((holder, key), 0)
            self._fetched -= size
            self._kept[holder, key] = self._kept.pop((holder, key), 0) + size
            self._kept_bytes += size
            while self._kept_bytes > self._bounds.kept:
                oldest, size = self._kept.popitem(last=False)
                self._kept_bytes -= size
                gone.append(oldest)
        self._release(gone)

    def _release(self, gone: list[tuple[ChunksHolder, tuple[int, int]]]) -> None:
        for holder, key in gone:
            self.fetchers.submit(holder.drop, key)  # not here: the caller holds its own lock

    def remove(self, holder: ChunksHolder, key: tuple[int, int]) -> None:
        """Remove chunks that are no longer held."""
        with self._lock:
            self._fetched -= self._chunks.pop((holder, key), 0)
            self._kept_bytes -= self._kept.pop((holder, key), 0)

    def forget(self, holder: FootersHolder) -> None:
        """Remove a released plan's footers."""
        with self._lock:
            for key in [k for k in self._shown if k[0] is holder]:
                memory, disk = self._shown.pop(key)
                self._memory -= memory
                self._disk -= disk

    def close(self) -> None:
        """End the threads."""
        for pool in (self.fetchers, self.openers):
            pool.shutdown(wait=False, cancel_futures=True)
