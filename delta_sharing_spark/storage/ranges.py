"""Defines byte ranges and the source that every reader reads them from, and joins and cuts ranges into requests."""

from __future__ import annotations

import io
import os
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import IO, NamedTuple, Protocol

from delta_sharing_spark.errors import CorruptFileError

#: Of a source whose size no plan tells: larger than any.
UNKNOWN_SIZE = 1 << 62
#: Bytes of one read of such a source: a deletion vector of as many rows as a file may have.
_LARGEST_UNPLANNED = 512 << 20


class Range(NamedTuple):
    """Bytes ``[start, end)`` of a file."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start

    @property
    def header(self) -> str:
        """The value of HTTP's ``Range`` header."""
        return f"bytes={self.start}-{self.end - 1}"


class SeekableFile(io.RawIOBase):
    """The position of a seekable file of ``size`` bytes; a subclass reads from there."""

    def __init__(self, size: int) -> None:
        self._size, self._position = size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = max(0, offset + (0, self._position, self._size)[whence])
        return self._position

    def _available(self, length: int | None) -> int:
        """How many of ``length`` bytes, all if negative or None, follow the position."""
        rest = max(0, self._size - self._position)
        return rest if length is None or length < 0 else min(length, rest)


class ByteSource(Protocol):
    """A file's bytes by range, whatever the storage. Safe to call from several threads.

    Attributes:
        name: How errors name the file; never a URL with its query.
        size: Bytes of the whole file, as planned.
    """

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int: ...

    def read(self, start: int, length: int) -> memoryview:
        """Exactly ``length`` bytes from ``start``.

        Raises:
            FileGoneError: The storage no longer has the file.
            CorruptFileError: The file is not the one that was planned (size, ETag).
            CredentialError: Access was refused and could not be renewed.
            NetworkError: The retries are used up.
        """

    def close(self) -> None:
        """Release what the source holds."""


@dataclass(frozen=True)
class MemorySource:
    """A ``ByteSource`` of bytes that are held. Without slots: readers note the sources that they open, by weak references."""

    name: str
    data: bytes | memoryview = field(repr=False)

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, start: int, length: int) -> memoryview:
        """See ``ByteSource.read``."""
        return memoryview(self.data)[start : start + length]

    def close(self) -> None:
        """Do nothing."""


class LocalSource:
    """A ``ByteSource`` over an open local file, which is closed with its last reader."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self.name = name
        self._file = file
        self._lock = threading.Lock()
        self.size = file.seek(0, os.SEEK_END)
        # Readers of a plan outlive its place in the gateway: the file is closed when nobody has this source any more.
        weakref.finalize(self, file.close)

    def read(self, start: int, length: int) -> memoryview:
        """See ``ByteSource.read``."""
        with self._lock:
            self._file.seek(start)
            return memoryview(self._file.read(length))

    def close(self) -> None:
        """Do nothing: the file is closed with its last reader."""


def check_range(source: ByteSource, start: int, length: int) -> None:
    """Refuse to read what a file cannot hold, before anything is allocated for it.

    Raises:
        CorruptFileError: The range goes beyond the file's end, or beyond what one read may be.
    """
    has_size = source.size != UNKNOWN_SIZE
    if start < 0 or length < 0 or start + length > source.size or (not has_size and length > _LARGEST_UNPLANNED):
        size = (
            f"it has {source.size}" if has_size else f"at most {_LARGEST_UNPLANNED} are read of a file of unknown size"
        )
        raise CorruptFileError(
            f"file {source.name}: bytes {start} to {start + length} were asked for, but {size}; "
            f"the file is truncated or damaged: ask the provider to check it",
            file=source.name,
        )


class Part:
    """A range of another source as a source of its own, which closes the other one with it."""

    def __init__(self, source: ByteSource, within: Range) -> None:
        self.name, self.size = source.name, within.length
        self._source, self._start = source, within.start

    def read(self, start: int, length: int) -> memoryview:
        """See ``ByteSource.read``."""
        return self._source.read(self._start + start, length)

    def close(self) -> None:
        """See ``ByteSource.close``."""
        self._source.close()


def coalesce(ranges: Iterable[Range], gap: int) -> list[Range]:
    """Join ranges that overlap or lie at most ``gap`` bytes apart; the result is sorted and disjoint.

    >>> coalesce([Range(0, 10), Range(12, 20), Range(100, 110)], gap=4)
    [Range(start=0, end=20), Range(start=100, end=110)]
    """
    pieces: list[Range] = []
    for piece in sorted(r for r in ranges if r.end > r.start):
        if pieces and piece.start - pieces[-1].end <= gap:
            pieces[-1] = Range(pieces[-1].start, max(pieces[-1].end, piece.end))
        else:
            pieces.append(piece)
    return pieces


def cut(whole: Range, limit: int) -> list[Range]:
    """``whole`` as consecutive pieces of nearly equal size, at most ``limit`` bytes each; none of an empty range."""
    if not whole.length:
        return []
    count = -(-whole.length // limit)
    step = -(-whole.length // count)
    return [Range(start, min(start + step, whole.end)) for start in range(whole.start, whole.end, step)]
