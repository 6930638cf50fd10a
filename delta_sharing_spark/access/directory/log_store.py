"""Reads a table's log from cloud storage, with credentials that may not list, or that expire."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import BinaryIO, TypeVar, cast

from delta_sharing_spark.deltalog.paths import LogEntry, commit_name, in_log, join
from delta_sharing_spark.errors import FileGoneError
from delta_sharing_spark.storage.filesystems import Storage
from delta_sharing_spark.storage.fsspec_source import FsspecSource, SourceFile, StorageLease
from delta_sharing_spark.storage.locations import Location, parse_location

T = TypeVar("T")

#: Seconds for which a read of the canary proves the credential: probing a log past its end is refused many times in a row.
_CANARY_SECONDS = 5.0


class StorageLogStore:
    """A log in a storage (``deltalog.paths.LogStore``).

    A refusal has two meanings: the credential is late, or it may not list and the object does not exist. They are
    told apart by reading the canary, an object known to exist; only if that is refused as well is the credential renewed, once.

    Args:
        lease_for: Gives the lease of a location.
        root: The table's location.
        version: A version that exists by the sharing server's word, or None.
    """

    def __init__(self, lease_for: Callable[[Location], StorageLease], root: Location, version: int | None) -> None:
        self._root = root
        self.root = str(root)
        self._lease_for = lease_for
        self.known_version = version
        self._canary = None if version is None else in_log(commit_name(version))
        self._canary_read_at = float("-inf")
        self._lock = threading.Lock()

    def read(self, path: str) -> bytes:
        """See ``LogStore.read``."""
        location = self._location_of(path)
        data = self._run(location, path, lambda storage: storage.get(location, what=path))
        self._note(path)
        return bytes(data)

    def open(self, path: str) -> BinaryIO:
        """See ``LogStore.open``: reads by range, so that columns of a checkpoint need not be fetched whole."""
        location = self._location_of(path)
        listed = self._run(location, path, lambda storage: storage.info(location, what=path))
        source = FsspecSource(self._lease_for(location), location, name=path, size=listed.size)
        return cast("BinaryIO", SourceFile(source))

    def list_from(self, relative_dir: str, start_name: str) -> list[LogEntry] | None:
        """See ``LogStore.list_from``."""
        location = self._location_of(relative_dir)
        try:
            listed = self._run(
                location,
                relative_dir,
                lambda storage: storage.list_from(location, start_name, what=f"listing {relative_dir}"),
            )
        except PermissionError:
            return None
        except FileNotFoundError:
            return []
        return [LogEntry(*one) for one in listed]

    def size(self, path: str) -> int | None:
        """See ``LogStore.size``."""
        location = self._location_of(path)
        return self._run(location, path, lambda storage: storage.info(location, what=path)).size

    def modified(self, path: str) -> int | None:
        """See ``LogStore.modified``."""
        location = self._location_of(path)
        return self._run(location, path, lambda storage: storage.info(location, what=path)).modified_ms

    def _location_of(self, path: str) -> Location:
        return parse_location(join(self.root, path))

    def _note(self, path: str) -> None:
        with self._lock:
            self._canary = path
            self._canary_read_at = time.monotonic()

    def _run(self, location: Location, path: str, action: Callable[[Storage], T]) -> T:
        lease = self._lease_for(location)
        storage = lease.storage()
        try:
            return action(storage)
        except PermissionError:
            if self._credential_works(storage):
                raise
        try:
            lease.refused(storage, path, 1)
        except FileGoneError:
            raise PermissionError(path) from None
        try:
            return action(lease.storage())
        except PermissionError:
            with self._lock:
                self._canary = None  # what was said to exist does not read with a fresh credential either
            raise

    def _credential_works(self, storage: Storage) -> bool:
        """Whether a refusal was about the object: the canary can be read, or there is none to try."""
        with self._lock:
            canary, read_at = self._canary, self._canary_read_at
        if canary is None:
            return True
        if time.monotonic() - read_at < _CANARY_SECONDS:
            return True
        try:
            storage.get(self._location_of(canary), 0, 1, what=canary)
        except (PermissionError, FileNotFoundError):
            return False
        with self._lock:
            self._canary_read_at = time.monotonic()
        return True
