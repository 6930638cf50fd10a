"""Reads local files in the way that objects of a storage are read."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from delta_sharing_spark.errors import FileError
from delta_sharing_spark.storage.locations import Location, StoredObject


def read(location: Location, what: str, start: int = 0, end: int | None = None) -> bytes:
    """The bytes ``[start, end)`` of a file, as many of them as it has; all of it by default.

    Raises:
        FileNotFoundError, PermissionError
        FileError: It cannot be read.
    """
    with _in_our_words(what), open(location.path, "rb") as file:
        file.seek(start)
        return file.read(-1 if end is None else end - start)


def info(location: Location, what: str) -> StoredObject:
    """A file's size and modification time; raises as ``read``."""
    with _in_our_words(what):
        return StoredObject.of_file(location.key.rpartition("/")[2], os.stat(location.path))


def entries(directory: Location, start_name: str, what: str) -> list[StoredObject]:
    """The files right in a directory whose name is ``start_name`` or sorts after it, sorted; none where it does not exist."""
    try:
        with _in_our_words(what), os.scandir(directory.path) as directory_entries:
            files = [entry for entry in directory_entries if entry.name >= start_name and entry.is_file()]
            return sorted(StoredObject.of_file(entry.name, entry.stat()) for entry in files)
    except FileNotFoundError:
        return []


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


@contextmanager
def _in_our_words(what: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, PermissionError):
        raise
    except OSError as error:
        raise FileError(
            f"{what}: {os.strerror(error.errno or 0)} ({type(error).__name__}); look for the cause on this machine",
            file=what,
        ) from None
