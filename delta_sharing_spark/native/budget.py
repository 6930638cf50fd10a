"""Bounds the memory and disk that all plans of a gateway use together, and owns the threads that fetch for them."""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from delta_sharing_spark.native.files import FileView
from delta_sharing_spark.network.parallel_calls import DaemonPool
from delta_sharing_spark.scan.fetching import BufferedRanges
from delta_sharing_spark.scan.pace import Pace

#: Requests under way at once, over all plans; and to storages that are far besides, which are mostly waited for.
CONNECTIONS, FAR_CONNECTIONS = 48, 96
#: Bytes of chunks held ahead of their readers, over all plans: what is fetched together of a row group that is being read is not ahead.
AHEAD_BYTES = 128 << 20
#: Bytes of chunks held once they were read, over all plans: Spark reads a filter's dictionary first, and a query may scan twice.
KEPT_BYTES = 32 << 20
#: Bytes of footers and whole small files held, over all plans: each task may read some that are shown as one file of 8 MiB.
_SHOWN_BYTES = max(96, 12 * (os.cpu_count() or 1)) << 20
#: Bytes of column chunks and small files in memory, over all plans, those that a reader is being sent among them.
_HELD_BYTES = 1 << 30
#: Bytes of the chunks of a row group that are fetched together, at most.
GROUP_BYTES = 48 << 20
#: Bytes of a process that holds nothing: its imports, its threads.
_OF_PROCESS = 112 << 20
#: Seconds after which chunks that their reader has not asked for again are released for one that waits for room, and for what is
#: fetched ahead. What is released too early is fetched twice. Seconds between two checks.
_IDLE, _ABANDONED, _LOOK = 3.0, 10.0, 0.5
#: Seconds that a reader waits for room. After them it is sent small pieces, for which none is needed.
PATIENCE = 30.0
#: Row groups whose chunks are held once they were read, over all plans.
_MOST_KEPT = 64
#: Bytes of rewritten files on local disk, over all plans.
_REWRITTEN_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bytes that a gateway may hold, over all plans.

    Attributes:
        shown: Of footers and whole small files.
        ahead: Of chunks fetched ahead of their readers.
        kept: Of chunks held once they were read.
        held: Of chunks and small files in memory in all; who would pass it waits.
        rewritten: Of rewritten files on local disk.
    """

    shown: int = field(default_factory=lambda: _SHOWN_BYTES)
    ahead: int = field(default_factory=lambda: AHEAD_BYTES)
    kept: int = field(default_factory=lambda: KEPT_BYTES)
    held: int = _HELD_BYTES
    rewritten: int = _REWRITTEN_BYTES

    @staticmethod
    def within(memory: int) -> Bounds:
        """The bounds within a process of its own, which may use so many bytes of memory in all."""
        free = max(memory - _OF_PROCESS, 16 << 20)
        return Bounds(shown=free // 4, ahead=free // 4, kept=free // 12, held=free * 5 // 8)


class FootersHolder(Protocol):
    """Holds a plan's footers, and is told to release them when the budget is exceeded."""

    def forget(self, number: int) -> None:
        """Release a file's footer."""


@dataclass(slots=True, eq=False)
class Group:
    """The column chunks of a row group that are held, or being fetched.

    Attributes:
        held: The buffer that holds them.
        forget: Removes them from their plan; called under the budget's lock.
        unread: The columns of those that Spark has not read.
        size: Their bytes.
        last: When one was last asked for or read (``time.monotonic``).
        is_begun: Whether one was read.
    """

    held: BufferedRanges
    forget: Callable[[], object]
    unread: set[bytes] = field(default_factory=set)
    size: int = 0
    last: float = 0.0
    is_begun: bool = False


class Budget:
    """Counts what all plans of a gateway hold, and releases the longest unused beyond the bounds; owns the fetching threads.

    Attributes:
        group_bytes: Bytes of the chunks of a row group that are fetched together, at most.
        lock: Held by whoever looks at the groups of a plan, or changes them.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self.group_bytes = min(GROUP_BYTES, bounds.held // 8)
        #: Bytes in memory: what was released here may still be sent to a reader.
        self._held = 0
        self._room = threading.Condition(threading.RLock())
        self.fetchers = DaemonPool(CONNECTIONS, "delta-sharing-native-fetch")
        self._far_fetchers = DaemonPool(FAR_CONNECTIONS, "delta-sharing-native-fetch")
        self.openers = DaemonPool(CONNECTIONS // 2, "delta-sharing-native-open")
        self.lock = threading.RLock()
        self._views: OrderedDict[tuple[FootersHolder, int], tuple[int, int]] = OrderedDict()
        #: Row groups whose chunks were not all read, and those whose chunks were: the longest unused first.
        self._coming: dict[Group, None] = {}
        self._complete: dict[Group, None] = {}
        #: The shown files whose reader was sent what it wanted, and their bytes in memory.
        self._spent: dict[tuple[FootersHolder, int], int] = {}
        self._memory = self._memory_spent = self._disk = 0

    def fetchers_ahead(self, pace: Pace) -> DaemonPool:
        """The threads that fetch small files ahead. A far storage has threads of its own, so that no file that a reader waits for queues behind them."""
        return self._far_fetchers if pace.is_far else self.fetchers

    @property
    def fetched_bytes(self) -> int:
        """Bytes of chunks that were not all read."""
        with self.lock:
            return sum(group.size for group in self._coming)

    @property
    def room_ahead(self) -> int:
        """Bytes of chunks that may still be fetched ahead; negative where others already take more."""
        with self.lock:
            return min(self._bounds.ahead - self._ahead(), self._bounds.held // 2 - self._held)

    def _ahead(self) -> int:
        """Bytes of chunks, but for those of a row group that a reader has begun, as many as are fetched together."""
        return sum(max(0, group.size - self.group_bytes * group.is_begun) for group in self._coming)

    def admit(self, holder: object, size: int, *, at_all: bool = False) -> bool:
        """Count bytes as held for as long as ``holder`` lives, if there is room for them; with ``at_all`` even if there is none.

        Where nothing is held there is room for any number.
        """
        with self._room:
            if size and self._held and self._held + size > self._bounds.held and not at_all:
                return False
            self._held += size
        weakref.finalize(holder, self._free, size).atexit = False
        return True

    def _free(self, size: int) -> None:
        with self._room:
            self._held -= size
            self._room.notify_all()

    def admit_in_time(self, holder: object, size: int) -> bool:
        """As ``admit``; waits for room."""
        return self.admit(holder, size) or (
            self.wait_for_room(size, time.monotonic() + PATIENCE) and self.admit(holder, size)
        )

    def wait_for_room(self, size: int, until: float) -> bool:
        """Wait until so many bytes may be held, at most until a moment; chunks whose readers stay away are released meanwhile."""
        self._drop_all(self._complete)
        while (remaining := until - time.monotonic()) > 0:
            with self._room:
                if self._room.wait_for(lambda: self._held + size <= self._bounds.held, min(remaining, _LOOK)):
                    return True
            self._release_idle(_IDLE, 1)
        return False

    def _release_idle(self, seconds: float, most: int | None = None) -> None:
        """Release the row groups whose reader has not come back for so long, the longest first."""
        before = time.monotonic() - seconds
        with self.lock:
            idle = itertools.takewhile(lambda group: group.last < before, self._coming)
            self._drop_all(itertools.islice(idle, most))

    def _drop_all(self, groups: Iterable[Group]) -> None:
        """Release groups; a name for one would hold it, in whoever waits for room."""
        with self.lock:
            for group in list(groups):
                self.drop(group)

    def has_room_for(self, size: int) -> bool:
        """Whether small files of so many bytes may be fetched ahead: what is being read must not be released for them."""
        unread = self._memory - self._memory_spent
        return unread + size <= self._bounds.shown // 2 and self._held + 2 * size <= self._bounds.held // 2

    def use(self, holder: FootersHolder, number: int) -> None:
        """Note that a file was asked for, so that it is released last."""
        with self.lock, suppress(KeyError):
            self._views.move_to_end((holder, number))
            self._unspend((holder, number))

    def spend(self, holder: FootersHolder, number: int) -> None:
        """Note that a reader was sent what it wanted of a file, and others may be fetched ahead."""
        key = holder, number
        with self.lock:
            if key in self._views and key not in self._spent:
                self._spent[key] = self._views[key][0]
                self._memory_spent += self._spent[key]

    def _unspend(self, key: tuple[FootersHolder, int]) -> None:
        self._memory_spent -= self._spent.pop(key, 0)

    def _remove_view(self, key: tuple[FootersHolder, int]) -> None:
        memory, disk = self._views.pop(key)
        self._unspend(key)
        self._memory -= memory
        self._disk -= disk

    def hold(self, holder: FootersHolder, number: int, view: FileView) -> None:
        """Add a file's footer. Beyond the bounds, files that readers were sent are released first, then the longest unused."""
        disk, gone = view.disk_bytes, []
        with self.lock:
            self._views[holder, number] = (view.memory_bytes, disk)
            self._memory += view.memory_bytes
            self._disk += disk
            while len(self._views) > 1 and (self._memory > self._bounds.shown or self._disk > self._bounds.rewritten):
                unused = next(iter(self._views))
                key = next(iter(self._spent), unused) if self._memory > self._bounds.shown else unused
                self._remove_view(key)
                gone.append(key)
        for other, file in gone:
            other.forget(file)

    def add(self, group: Group, size: int) -> None:
        """Add bytes of a group that are being fetched; beyond the bound, the oldest whose readers stay away are released."""
        with self.lock:
            group.size += size
            self._complete.pop(group, None)
            self._use(group)
            if self._ahead() > self._bounds.ahead:
                self._release_idle(_ABANDONED)

    def _use(self, group: Group) -> None:
        self._coming.pop(group, None)
        group.last = time.monotonic()
        self._coming[group] = None

    def was_read(self, group: Group, column: bytes) -> None:
        """Note that a chunk was read. Of those that were all read the oldest are released beyond the bound."""
        with self.lock:
            group.unread.discard(column)
            group.is_begun = True
            if group.unread:
                self._use(group)
                return
            self._coming.pop(group, None)
            self._complete[group] = self._complete.pop(group, None)
            while self._complete and (
                sum(one.size for one in self._complete) > self._bounds.kept or len(self._complete) > _MOST_KEPT
            ):
                self.drop(next(iter(self._complete)))

    def drop(self, group: Group) -> None:
        """Release a group; reads of it go on."""
        with self.lock:
            self._coming.pop(group, None)
            self._complete.pop(group, None)
            group.forget()

    def forget(self, holder: FootersHolder) -> None:
        """Remove a released plan's footers."""
        with self.lock:
            for key in [k for k in self._views if k[0] is holder]:
                self._remove_view(key)

    def close(self) -> None:
        """End the threads."""
        for pool in (self.fetchers, self._far_fetchers, self.openers):
            pool.shutdown()
