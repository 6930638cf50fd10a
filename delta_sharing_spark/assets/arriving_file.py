"""Puts a file together on disk from pieces that arrive in any order; what has arrived survives the process."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from delta_sharing_spark.errors import CorruptFileError, FileError
from delta_sharing_spark.network.connections import Canceller
from delta_sharing_spark.storage.objects import StoredObject
from delta_sharing_spark.storage.place import Place
from delta_sharing_spark.storage.ranges import Range, cut
from delta_sharing_spark.storage.transfer import FileVersion

#: Bytes of a piece, which is held in memory while it arrives.
PIECE = 8 << 20
#: Seconds between two notes of which pieces have arrived, each after they are on the disk.
_NOTED_EVERY = 2.0
_FLAGS = (
    os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
)


class ArrivingFile:
    """One file on its way to ``target``; until it is whole it lies beside it, under a hidden name.

    Safe to call from several threads.

    Args:
        place: Where it comes from.
        file: Which one.
        target: Where it goes; whatever is there is replaced at the end.

    Attributes:
        pieces: Its bytes, in ranges; one empty range where it has none.
    """

    def __init__(self, place: Place, file: StoredObject, target: Path) -> None:
        self.file, self.target = file, target
        self.pieces = cut(Range(0, file.size), PIECE) or [Range(0, 0)]
        hidden = hidden_name(target.name)
        self._part, self._journal = target.with_name(hidden), target.with_name(hidden + "-journal")
        self._place = place
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._version: FileVersion = place.version(file)
        self._done: set[int] = set()
        self._unnoted: list[int] = []
        self._noted = time.monotonic()
        self._has_changed = False

    def fetch(self, number: int, canceller: Canceller) -> int:
        """Let a piece arrive, unless it is there from an earlier download; returns its bytes.

        Raises:
            FileError: The disk is full, or the file cannot be written.
            DeltaSharingError: As ``Place.read``.
        """
        piece = self.pieces[number]
        with self._lock, self._told():
            if self._descriptor is None:
                self._begin()
            if number in self._done:
                return piece.length
        try:
            data = self._place.read(self.file.name, self._version, piece.start, piece.length, canceller)
        except CorruptFileError:
            self._has_changed = True
            raise
        with self._lock, self._told():
            assert self._descriptor is not None
            os.lseek(self._descriptor, piece.start, os.SEEK_SET)
            while data:
                data = data[os.write(self._descriptor, data) :]
            self._done.add(number)
            self._unnoted.append(number)
            if len(self._done) == len(self.pieces):
                self._finish()
            elif time.monotonic() - self._noted > _NOTED_EVERY:
                self._note()
        return piece.length

    def suspend(self) -> None:
        """Leave a file that is not whole: what has arrived of a large one is kept."""
        with self._lock, suppress(OSError):
            if self._descriptor is None:
                return
            if len(self.pieces) > 1 and not self._has_changed:
                self._note()
            else:  # what has arrived is of another version than what follows: the next download begins anew
                self._journal.unlink(missing_ok=True)
                self._part.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None

    def _begin(self) -> None:
        self._descriptor = os.open(self._part, _FLAGS, 0o666)
        _lock_alone(self._descriptor)
        is_begun = len(self.pieces) > 1 and os.fstat(self._descriptor).st_size == self.file.size
        self._done, etag = self._arrived_before() if is_begun else (set(), None)
        if not self._done:
            self._journal.unlink(missing_ok=True)
        self._version = self._place.version(self.file, etag)
        # A file that is not synchronised must not have its length before its bytes: a power cut would leave zeros.
        os.ftruncate(self._descriptor, self.file.size if len(self.pieces) > 1 else 0)

    def _arrived_before(self) -> tuple[set[int], str | None]:
        """The pieces that an earlier download of the same file has noted, and the file's ETag then."""
        try:
            text = self._journal.read_text(encoding="utf-8")
            head, *lines = text[: text.rindex("\n")].split("\n")  # a number that was cut off may be another one
            told = json.loads(head)
            if told["of"] == self._identity and isinstance(told["etag"], str):
                return {int(line) for line in lines if line.isdecimal()} & set(range(len(self.pieces))), told["etag"]
        except (OSError, ValueError, KeyError, TypeError):
            pass  # no journal, or none that tells for certain: it begins anew
        return set(), None

    @property
    def _identity(self) -> list[object]:
        return [str(self._place.root), self.file.name, self.file.size, self.file.modified_ms, PIECE]

    def _note(self) -> None:
        assert self._descriptor is not None
        if self._version.etag is None:
            return  # nothing would tell that the file is the same at the next download
        os.fsync(self._descriptor)
        if not self._journal.exists():
            head = json.dumps({"of": self._identity, "etag": self._version.etag})
            self._unnoted = sorted(self._done)
            self._journal.write_text(head + "\n", encoding="utf-8")
        with self._journal.open("a", encoding="utf-8") as journal:
            journal.writelines(f"{number}\n" for number in self._unnoted)
        self._unnoted, self._noted = [], time.monotonic()

    def _finish(self) -> None:
        assert self._descriptor is not None
        if len(self.pieces) > 1:
            os.fsync(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = None
        os.utime(self._part, ns=(self.file.modified_ms * 1_000_000,) * 2)
        os.replace(self._part, self.target)
        self._journal.unlink(missing_ok=True)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise FileError(
                    f"{self.target}: the disk is full; make room for {self.file.size:,} bytes and download again, which goes on "
                    f"from what has arrived",
                    file=self.file.name,
                ) from None
            raise FileError(
                f"{self.target} cannot be written: {error.strerror}; download to another directory", file=self.file.name
            ) from None


def hidden_name(name: str) -> str:
    """Under which name a file lies beside its place until it is whole; not longer than any other."""
    return f".{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:20]}.arriving"


def _lock_alone(descriptor: int) -> None:
    """Keep two downloads from writing one file, where the system has locks."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OSError(errno.EBUSY, "another download is writing it") from None
