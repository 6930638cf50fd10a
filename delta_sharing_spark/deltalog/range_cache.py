"""Reads a large file of the log by ranges, and keeps small ones, so that no byte of a footer is fetched twice."""

from __future__ import annotations

import bisect
import io
import threading
from operator import itemgetter
from typing import BinaryIO

from delta_sharing_spark.storage.ranges import SeekableFile

#: Bytes that are kept of one file: its footer, its small actions, and its adds where they fit as well.
_KEPT_BYTES = 4 << 20
#: Bytes of the smallest request: small columns lie side by side, and are asked for one after the other.
_SMALLEST_REQUEST = 64 << 10


class RangeCache:
    """A file that stays open, with the ranges of it that were read first. Safe to call from several threads.

    The file is not opened anew for each reader, so that storage which knows versions of a file compares all answers.

    Attributes:
        size: Bytes of the file.
        kept_bytes: Bytes of the ranges that are kept.
        is_broken: Whether a read has failed; the file must then be opened anew.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._kept: list[tuple[int, bytes]] = []  # by their start; none overlaps another
        self.size = file.seek(0, io.SEEK_END)
        self.kept_bytes = 0
        self.is_broken = False

    def read(self, start: int, length: int) -> bytes:
        """The bytes from ``start``, ``length`` of them unless the file ends before; only missing ones are fetched."""
        place, end = start, min(start + length, self.size)
        pieces = []
        with self._lock:
            while place < end:
                piece = self._kept_at(place) or self._fetch(place, end)
                pieces.append(piece[: end - place])
                place += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _kept_at(self, place: int) -> bytes:
        """What is kept from ``place`` on without a gap."""
        index = bisect.bisect_right(self._kept, place, key=itemgetter(0)) - 1
        if index < 0:
            return b""
        start, data = self._kept[index]
        return data[place - start :]

    def _fetch(self, place: int, end: int) -> bytes:
        """The bytes from ``place`` to what is kept next or to ``end``, and more if they are few."""
        index = bisect.bisect_right(self._kept, place, key=itemgetter(0))
        limit = self._kept[index][0] if index < len(self._kept) else self.size
        end = min(limit, max(end, place + _SMALLEST_REQUEST))
        try:
            self._file.seek(place)
            data = self._file.read(end - place)
            if len(data) != end - place:
                raise OSError(f"it ends after {place + len(data)} of {self.size} bytes")
        except BaseException:
            self.is_broken = True
            raise
        if self.kept_bytes + len(data) <= _KEPT_BYTES:
            self._kept.insert(index, (place, data))
            self.kept_bytes += len(data)
        return data


class CachedFile(SeekableFile):
    """A reader's own position in a file whose ranges are kept."""

    def __init__(self, ranges: RangeCache) -> None:
        super().__init__(ranges.size)
        self._ranges = ranges

    def read(self, length: int = -1, /) -> bytes:
        data = self._ranges.read(self._position, self._available(length))
        self._position += len(data)
        return data
