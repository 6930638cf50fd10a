"""Fetches byte ranges ahead of the decoder by a few threads; they look like a file to pyarrow."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from delta_sharing_spark.storage.ranges import Range, SeekableFile, coalesce, cut

#: Gaps of at most this are read over rather than asked for separately.
GAP = 256 << 10
_LEAST_WINDOW = 16 << 10

#: As ``ByteSource.read``.
Read = Callable[[int, int], memoryview]


class BufferedRanges:
    """Holds all of ``ranges``, whose fetching by ``ByteSource.read`` begins at once, at most ``piece`` bytes a request."""

    def __init__(
        self, read: Read, ranges: Sequence[Range], pool: ThreadPoolExecutor, piece: int, gap: int = GAP
    ) -> None:
        self._read, self._pool = read, pool
        self._pieces = [part for whole in coalesce(ranges, gap) for part in cut(whole, piece)]
        self._starts = [p.start for p in self._pieces]
        self._futures: dict[int, Future[memoryview]] = {}
        for index in range(len(self._pieces)):
            self._begin(index)

    @property
    def size(self) -> int:
        """Bytes that are held, or will be once they are fetched."""
        return sum(p.length for p in self._pieces)

    def _begin(self, index: int) -> None:
        if index not in self._futures:
            piece = self._pieces[index]
            self._futures[index] = self._pool.submit(self._read, piece.start, piece.length)

    def _data(self, index: int) -> memoryview:
        return self._futures[index].result()

    def read(self, start: int, length: int) -> memoryview:
        """Bytes of the planned ranges without a request of their own; others are read directly."""
        first = bisect.bisect_right(self._starts, start) - 1
        if first < 0 or start >= self._pieces[first].end:
            return self._read(start, length)
        end = start + length
        if end <= self._pieces[first].end:
            position = start - self._pieces[first].start
            return self._data(first)[position : position + length]
        return self._join(first, start, end)

    def _join(self, first: int, start: int, end: int) -> memoryview:
        joined = np.empty(end - start, dtype=np.uint8).data
        position, index = start, first
        while position < end:
            if index < len(self._pieces) and self._pieces[index].start <= position:
                piece = self._pieces[index]
                stop = min(end, piece.end)
                joined[position - start : stop - start] = self._data(index)[position - piece.start : stop - piece.start]
                index += 1
            else:
                stop = min(end, self._starts[index]) if index < len(self._pieces) else end
                joined[position - start : stop - start] = self._read(position, stop - position)
            position = stop
        return joined

    def close(self) -> None:
        for future in list(self._futures.values()):
            future.cancel()
        self._futures, self._pieces, self._starts = {}, [], []


class SlidingRanges(BufferedRanges):
    """Holds of each of ``chunks``, which are read side by side, the part that is read and the next one: ``budget`` bytes in all.

    Parts are as long as their chunk is beside the others, so that all come to their end together.
    """

    def __init__(self, read: Read, chunks: Sequence[Range], pool: ThreadPoolExecutor, budget: int) -> None:
        super().__init__(read, (), pool, 1)
        total = sum(chunk.length for chunk in chunks)
        #: Of each piece, the first one of its chunk.
        self._firsts: list[int] = []
        for chunk in sorted(chunks):
            first = len(self._pieces)
            self._pieces += cut(chunk, max(_LEAST_WINDOW, chunk.length * budget // (2 * total)))
            self._firsts += [first] * (len(self._pieces) - first)
        self._starts = [piece.start for piece in self._pieces]
        for first in dict.fromkeys(self._firsts):
            self._begin(first)

    def _data(self, index: int) -> memoryview:
        first = self._firsts[index]
        for passed in range(first, index):
            if (future := self._futures.pop(passed, None)) is not None:
                future.cancel()
        self._begin(index)
        if index + 1 < len(self._pieces) and self._firsts[index + 1] == first:
            self._begin(index + 1)
        return super()._data(index)


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
