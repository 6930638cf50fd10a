"""Reads a large file of the log by ranges, and keeps small ones, so that no byte of a footer is fetched twice."""

from __future__ import annotations

import bisect
import threading
from operator import itemgetter

from delta_sharing_spark.storage.ranges import ByteSource

#: Bytes that are kept of one file: its footer, its small actions, and its adds where they fit as well.
_KEPT_BYTES = 4 << 20
#: Bytes of the smallest request: small columns lie side by side, and are asked for one after the other.
_SMALLEST_REQUEST = 64 << 10


class RangeCache:
    """A ``ByteSource`` that stays open, with the ranges of it that were read first.

    The file is not opened anew for each reader, so that storage which knows versions of a file compares all answers.

    Attributes:
        name, size: Of the file.
        kept_bytes: Bytes of the ranges that are kept.
        is_broken: Whether a read has failed; the file must then be opened anew.
    """

    def __init__(self, source: ByteSource) -> None:
        self.name, self.size = source.name, source.size
        self._source = source
        self._lock = threading.Lock()
        self._kept: list[tuple[int, memoryview]] = []  # by their start; none overlaps another
        self.kept_bytes = 0
        self.is_broken = False

    def read(self, start: int, length: int) -> memoryview:
        """See ``ByteSource.read``; only missing bytes are fetched."""
        place, end = start, start + length
        pieces = []
        while place < end:
            piece = (self._kept_at(place) or self._fetch(place, end))[: end - place]
            pieces.append(piece)
            place += len(piece)
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def close(self) -> None:
        """Do nothing: other readers have the file."""

    def _kept_at(self, place: int) -> memoryview | None:
        """What is kept from ``place`` on without a gap."""
        with self._lock:
            index = bisect.bisect_right(self._kept, place, key=itemgetter(0)) - 1
            start, data = self._kept[index] if index >= 0 else (0, memoryview(b""))
        return data[place - start :] if place < start + len(data) else None

    def _fetch(self, place: int, end: int) -> memoryview:
        """The bytes from ``place`` to what is kept next or to ``end``, and more if they are few."""
        with self._lock:
            limit = self._next(place)
        end = min(limit, max(end, place + _SMALLEST_REQUEST))
        try:
            data = self._source.read(place, end - place)
            if len(data) != end - place:
                raise OSError(f"it ends after {place + len(data)} of {self.size} bytes")
        except BaseException:
            self.is_broken = True
            raise
        with self._lock:  # meanwhile, another thread may have fetched the same
            index = bisect.bisect_left(self._kept, place, key=itemgetter(0))
            before_ends = self._kept[index - 1][0] + len(self._kept[index - 1][1]) if index else 0
            if self.kept_bytes + len(data) <= _KEPT_BYTES and before_ends <= place and end <= self._next(place):
                self._kept.insert(index, (place, data))
                self.kept_bytes += len(data)
        return data

    def _next(self, place: int) -> int:
        """Where what is kept after ``place`` begins."""
        index = bisect.bisect_left(self._kept, place, key=itemgetter(0))
        return self._kept[index][0] if index < len(self._kept) else self.size
