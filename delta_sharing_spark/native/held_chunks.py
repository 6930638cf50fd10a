"""Holds the column chunks of one plan's files: those that are fetched ahead of Spark, and those it has read, as long as there is room."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from delta_sharing_spark.native.budget import Budget
from delta_sharing_spark.native.files import ShownFile
from delta_sharing_spark.native.layout import Chunk
from delta_sharing_spark.scan.pace import Pace
from delta_sharing_spark.scan.read_ahead import BufferedRanges
from delta_sharing_spark.storage.ranges import Range, cut

_PIECE, _PIECES = 4 << 20, 4
#: Bytes of a request where there is no room for a window.
_NARROW = 1 << 20
#: Row groups of a plan whose chunks are held.
_GROUPS = 64

#: A row group: the file's number in the plan, and its own in the file.
GroupKey = tuple[int, int]


@dataclass(slots=True)
class _Group:
    """The chunks of a row group that are held or being fetched, and the columns of those that Spark has not read."""

    held: BufferedRanges
    unread: set[bytes] = field(default_factory=set)


class HeldChunks:
    """The column chunks of one plan's files. Safe to call from several threads.

    Args:
        budget: Bounds what all plans hold.
        pace: How the storage answers.
    """

    def __init__(self, budget: Budget, pace: Pace) -> None:
        self._budget, self._pace = budget, pace
        self._lock = threading.Lock()
        self._groups: OrderedDict[GroupKey, _Group] = OrderedDict()

    def find(self, key: GroupKey, chunk: Chunk) -> BufferedRanges | None:
        """The buffer that holds a chunk, or that it is being fetched into."""
        with self._lock:
            group = self._groups.get(key)
            return group.held if group is not None and not group.held.missing([chunk.range]) else None

    def may_hold(self, chunk: Chunk) -> bool:
        """Whether a chunk is not too large to be held."""
        return chunk.range.length <= min(_PIECE * _PIECES, self._budget.group_bytes)

    def fetch(self, key: GroupKey, shown: ShownFile, chunks: Sequence[Chunk]) -> BufferedRanges | None:
        """Begin to fetch a chunk, and with it those of the others that are not held.

        None if there is no room for them now, or the first is too large to be held.
        """
        if not self.may_hold(chunks[0]):
            return None
        with self._lock:
            group = self._groups.get(key) or _Group(BufferedRanges(shown.source, self._budget.fetchers, self._pace))
            missing = [chunk for chunk in chunks if chunk is chunks[0] or group.held.missing([chunk.range])]
            wanted = self._pace.merged(chunk.range for chunk in missing)
            if not self._budget.admit(group.held, sum(part.length for part in wanted)):
                return None
            self._groups[key] = group
            before = group.held.held_bytes
            group.held.add(wanted)
            group.unread.update(chunk.column for chunk in missing)
            self._groups.move_to_end(key)
            while len(self._groups) > _GROUPS:
                self._drop(next(iter(self._groups)))
            self._budget.add(self, key, group.held.held_bytes - before)
            return group.held

    def fetch_ahead(self, key: GroupKey, shown: ShownFile, chunks: Sequence[Chunk]) -> None:
        """Begin to fetch chunks of a row group of which the first is not held, as many as are fetched together, if there is room."""
        if chunks and not self._budget.is_full and self.find(key, chunks[0]) is None:
            self.fetch(key, shown, self.together(chunks))

    def together(self, chunks: Sequence[Chunk]) -> Sequence[Chunk]:
        """The first of a row group's chunks, up to the bytes that are fetched at once."""
        sizes = itertools.accumulate(chunk.range.length for chunk in chunks)
        return chunks[: max(1, sum(size <= self._budget.group_bytes for size in sizes))]

    def windowed(self, shown: ShownFile, requested: Range) -> Iterator[memoryview]:
        """Bytes that are too many to be held, piece by piece, of which a few are fetched ahead where room is found in time."""
        coming: deque[Future[memoryview]] = deque()
        window = min(_PIECE * _PIECES, self._budget.group_bytes)
        if not self._budget.admit_in_time(coming, window):
            yield from (shown.read(piece.start, piece.end) for piece in cut(requested, _NARROW))
            return
        waiting = deque(cut(requested, window // _PIECES))
        try:
            while waiting or coming:
                while waiting and len(coming) < _PIECES:
                    piece = waiting.popleft()
                    coming.append(self._budget.fetchers.submit(shown.read, piece.start, piece.end))
                yield coming.popleft().result()
        finally:
            for future in coming:
                future.cancel()

    def was_read(self, key: GroupKey, column: bytes) -> None:
        """Note that Spark has read a chunk: once it has read all of a row group, they may go before those to be read."""
        with self._lock:
            group = self._groups.get(key)
            if group is not None:
                group.unread.discard(column)
                if group.unread:
                    self._budget.touch(self, key)
                else:
                    self._budget.keep(self, key)

    def drop(self, key: GroupKey) -> None:
        """Release the chunks of a row group; reads of it go on."""
        with self._lock:
            self._drop(key)

    def close(self) -> None:
        """Release all."""
        with self._lock:
            for key in list(self._groups):
                self._drop(key)

    def _drop(self, key: GroupKey) -> None:
        if self._groups.pop(key, None) is not None:
            self._budget.remove(self, key)
