"""Fetches byte ranges ahead of the decoder by a few threads; they look like a file to pyarrow."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

import numpy as np

from delta_sharing_spark.scan.pace import Pace
from delta_sharing_spark.storage.ranges import ByteSource, Range, SeekableFile, coalesce, cut

_LEAST_WINDOW = 16 << 10


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
        added = [piece for part in self.missing(wanted) for piece in cut(part, self._pace.request_bytes)]
        for piece in added:
            self._futures[piece.start] = (pool or self._pool).submit(self._read, piece.start, piece.length)
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
        pieces, starts = self._plan
        first = bisect.bisect_right(starts, start) - 1
        end = start + length
        if first >= 0 and end <= pieces[first].end:
            position = start - pieces[first].start
            return self._data(pieces[first])[position : position + length]
        if (first < 0 or start >= pieces[first].end) and (first + 1 == len(pieces) or end <= starts[first + 1]):
            return self._read(start, length)
        joined = np.empty(length, dtype=np.uint8).data
        position = start
        for piece in pieces[max(0, first) :]:
            if piece.end <= position:
                continue
            if piece.start >= end:
                break
            if piece.start > position:
                joined[position - start : piece.start - start] = self._read(position, piece.start - position)
                position = piece.start
            stop = min(end, piece.end)
            joined[position - start : stop - start] = self._data(piece)[position - piece.start : stop - piece.start]
            position = stop
        if position < end:
            joined[position - start :] = self._read(position, end - position)
        return joined

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
