"""Fetches byte ranges ahead of the decoder by a few threads, with a bound on the bytes in flight.

Two shapes of the same thing, both looking like a file to pyarrow. ``BufferedRanges`` holds all needed ranges of a row
group that fits the budget, fetched concurrently. ``WindowedRanges`` slides over the column chunks of a row group that
does not: a window being read and one ahead for each column, so memory follows the number of columns and not the file.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np

from delta_sharing_spark.storage.ranges import ByteSource, Range, SeekableFile, coalesce, cut

#: Gaps of at most this are read over rather than asked for separately.
GAP = 256 << 10
#: One request asks for at most this, so that several connections share a large range.
PIECE = 8 << 20

#: As ``ByteSource.read``.
Read = Callable[[int, int], memoryview]


class Ranges(Protocol):
    """Bytes of one file that are being fetched."""

    def read(self, start: int, length: int) -> memoryview: ...

    def close(self) -> None: ...


class BufferedRanges:
    """Holds all of ``ranges``, whose fetching by ``ByteSource.read`` begins at once, at most ``piece`` bytes a request."""

    def __init__(self, read: Read, ranges: Sequence[Range], pool: ThreadPoolExecutor, piece: int = PIECE) -> None:
        self._read = read
        self._pieces = [part for whole in coalesce(ranges, GAP) for part in cut(whole, piece)]
        self._starts = [p.start for p in self._pieces]
        self._futures: list[Future[memoryview]] = [pool.submit(read, p.start, p.length) for p in self._pieces]

    @property
    def size(self) -> int:
        """Bytes that are held, or will be once they are fetched."""
        return sum(p.length for p in self._pieces)

    def read(self, start: int, length: int) -> memoryview:
        """Bytes of the planned ranges without a request of their own; others are read directly."""
        first = bisect.bisect_right(self._starts, start) - 1
        if first < 0 or start >= self._pieces[first].end:
            return self._read(start, length)
        end = start + length
        if end <= self._pieces[first].end:
            position = start - self._pieces[first].start
            return self._futures[first].result()[position : position + length]
        return self._join(first, start, end)

    def _join(self, first: int, start: int, end: int) -> memoryview:
        joined = np.empty(end - start, dtype=np.uint8).data
        position, index = start, first
        while position < end:
            if index < len(self._pieces) and self._pieces[index].start <= position:
                piece = self._pieces[index]
                stop = min(end, piece.end)
                joined[position - start : stop - start] = self._futures[index].result()[
                    position - piece.start : stop - piece.start
                ]
                index += 1
            else:
                stop = min(end, self._starts[index]) if index < len(self._pieces) else end
                joined[position - start : stop - start] = self._read(position, stop - position)
            position = stop
        return joined

    def close(self) -> None:
        for future in self._futures:
            future.cancel()
        self._futures = []
        self._pieces = []
        self._starts = []


class _Window:
    """The windows of one column chunk: the one that is read, and the next one, which is being fetched."""

    __slots__ = ("ahead", "chunk", "data", "held")

    def __init__(self, chunk: Range) -> None:
        self.chunk = chunk
        self.held = Range(chunk.start, chunk.start)
        self.data: memoryview | None = None
        self.ahead: tuple[Range, Future[memoryview]] | None = None


class WindowedRanges:
    """Windows of ``window`` bytes over each of ``chunks``, one ahead each."""

    def __init__(self, source: ByteSource, chunks: Sequence[Range], window: int, pool: ThreadPoolExecutor) -> None:
        self._source = source
        self._window = window
        self._pool = pool
        self._windows = [_Window(c) for c in sorted(chunks)]
        self._starts = [w.chunk.start for w in self._windows]
        for w in self._windows:
            self._fetch_ahead(w, w.chunk.start)

    def read(self, start: int, length: int) -> memoryview:
        """Bytes of one chunk, from its windows; others are read directly."""
        index = bisect.bisect_right(self._starts, start) - 1
        if index < 0 or start + length > self._windows[index].chunk.end:
            return self._source.read(start, length)
        window = self._windows[index]
        end = start + length
        if window.data is not None and window.held.start <= start and end <= window.held.end:
            return window.data[start - window.held.start : end - window.held.start]
        return self._across(window, start, end)

    def _across(self, window: _Window, start: int, end: int) -> memoryview:
        """Read a range that begins in or after the held window and ends beyond it."""
        out = np.empty(end - start, dtype=np.uint8).data
        position = start
        while position < end:
            if window.data is not None and window.held.start <= position < window.held.end:
                stop = min(end, window.held.end)
                out[position - start : stop - start] = window.data[
                    position - window.held.start : stop - window.held.start
                ]
                position = stop
            else:
                self._advance(window, position)
        return out

    def _advance(self, window: _Window, position: int) -> None:
        ahead, window.ahead = window.ahead, None
        if ahead is not None and ahead[0].start <= position < ahead[0].end:
            window.data, window.held = ahead[1].result(), ahead[0]
        else:
            if ahead is not None:
                ahead[1].cancel()
            held = Range(position, min(position + self._window, window.chunk.end))
            window.data, window.held = self._source.read(held.start, held.length), held
        self._fetch_ahead(window, window.held.end)

    def _fetch_ahead(self, window: _Window, start: int) -> None:
        end = min(start + self._window, window.chunk.end)
        if start < end:
            window.ahead = Range(start, end), self._pool.submit(self._source.read, start, end - start)

    def close(self) -> None:
        for window in self._windows:
            if window.ahead is not None:
                window.ahead[1].cancel()
        self._windows = []
        self._starts = []


class RangeFile(SeekableFile):
    """Presents fetched ranges as the seekable file that pyarrow reads from."""

    def __init__(self, ranges: Ranges, size: int) -> None:
        super().__init__(size)
        self._ranges = ranges

    def read(self, length: int | None = -1) -> memoryview:
        length = self._available(length)
        data = self._ranges.read(self._position, length) if length else memoryview(b"")
        self._position += length
        return data
