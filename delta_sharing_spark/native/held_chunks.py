"""Holds the column chunks of one plan's files: those that are fetched ahead of Spark, and those it has read, as long as there is room."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from delta_sharing_spark.native.budget import Budget
from delta_sharing_spark.native.files import ShownFile
from delta_sharing_spark.native.layout import Chunk
from delta_sharing_spark.scan.pace import Pace
from delta_sharing_spark.scan.read_ahead import BufferedRanges
from delta_sharing_spark.storage.ranges import Range, cut

#: Of one row group.
GROUP_BYTES = 48 << 20
_PIECE, _PIECES = 4 << 20, 4
#: Row groups of a plan whose chunks are held.
_GROUPS = 64

#: A row group: the file's number in the plan, and its own in the file.
GroupKey = tuple[int, int]


@dataclass(slots=True)
class _Group:
    """The chunks of a row group that are held or being fetched."""

    buffers: list[BufferedRanges] = field(default_factory=list)
    covered: list[Range] = field(default_factory=list)
    unread: set[bytes] = field(default_factory=set)

    def find(self, requested: Range) -> BufferedRanges | None:
        for buffer, covered in zip(self.buffers, self.covered, strict=True):
            if covered.start <= requested.start and requested.end <= covered.end:
                return buffer
        return None


class HeldChunks:
    """The column chunks of one plan's files. Safe to call from several threads.

    Args:
        budget: Bounds what all plans hold.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._lock = threading.Lock()
        self._groups: OrderedDict[GroupKey, _Group] = OrderedDict()
        self._pace = Pace()

    def find(self, key: GroupKey, chunk: Chunk) -> BufferedRanges | None:
        """The buffer that holds a chunk, or that it is being fetched into."""
        with self._lock:
            group = self._groups.get(key)
            return None if group is None else group.find(chunk.range)

    def fetch(self, key: GroupKey, shown: ShownFile, chunks: Sequence[Chunk]) -> BufferedRanges | None:
        """Begin to fetch a chunk, and with it those of the others that are not held; None if the first is too large to be held."""
        if chunks[0].range.length > _PIECE * _PIECES:
            return None
        with self._lock:
            group = self._groups.setdefault(key, _Group())
            missing = [chunk for chunk in chunks if chunk is chunks[0] or group.find(chunk.range) is None]
            read, ranges = partial(self._pace.read, shown.source), [chunk.range for chunk in missing]
            buffer = BufferedRanges(read, ranges, self._budget.fetchers, self._pace.request_bytes)
            for chunk in missing:
                group.buffers.append(buffer)
                group.covered.append(chunk.range)
                group.unread.add(chunk.column)
            self._groups.move_to_end(key)
            while len(self._groups) > _GROUPS:
                self._drop(next(iter(self._groups)))
            self._budget.add(self, key, buffer.size)
            return buffer

    def fetch_ahead(self, key: GroupKey, shown: ShownFile, chunks: Sequence[Chunk]) -> None:
        """Begin to fetch chunks of a row group of which nothing is held, if there is room."""
        size = sum(chunk.range.length for chunk in chunks)
        if chunks and size <= GROUP_BYTES and key not in self._groups and not self._budget.is_full:
            self.fetch(key, shown, chunks)

    def windowed(self, shown: ShownFile, requested: Range) -> Iterator[memoryview]:
        """Bytes that are too many to be held, piece by piece, of which a few are fetched ahead."""
        waiting = deque(cut(requested, _PIECE))
        coming: deque[Future[memoryview]] = deque()
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
                if not group.unread:
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
