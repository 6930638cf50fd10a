"""Reads a table's log from cloud storage, with credentials that may not list, or that expire."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from delta_sharing_spark.deltalog.paths import LogEntry, commit_name, in_log, join
from delta_sharing_spark.errors import CorruptFileError
from delta_sharing_spark.storage.answers import is_sure
from delta_sharing_spark.storage.locations import Location, parse_location
from delta_sharing_spark.storage.object_source import ObjectSource, StorageLease
from delta_sharing_spark.storage.objects import Storage

T = TypeVar("T")


class StorageLogStore:
    """A log in a storage (``deltalog.paths.LogStore``).

    A refusal has two meanings: the credential has ended, or it may not list and the object does not exist. Where the
    storage does not say which, they are told apart by reading the canary, an object known to exist, after the refusal.
    A credential that has ended is renewed, once for each request of the log.

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
        #: By credential, when a read of the canary began that succeeded.
        self._proven: dict[str, float] = {}
        self._ended: str | None = None
        self._is_renewed_blindly = self._has_read = False
        self._lock, self._probing = threading.Lock(), threading.Lock()

    def read(self, path: str) -> bytes:
        """See ``LogStore.read``."""
        location = self._location_of(path)
        data = self._run(location, path, lambda storage: storage.get(location, what=path))
        self._note(path)
        return bytes(data)

    def open(self, path: str, size: int | None = None) -> ObjectSource:
        """See ``LogStore.open``: reads by range, so that columns of a checkpoint need not be fetched whole."""
        location = self._location_of(path)
        listed = self._run(location, path, lambda storage: storage.info(location, what=path))
        return ObjectSource(self._lease_for(location), location, name=path, size=listed.size, is_data=False)

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
            self._canary, self._has_read = path, True

    def _run(self, location: Location, path: str, action: Callable[[Storage], T]) -> T:
        lease = self._lease_for(location)
        refusals = 0
        while True:
            storage = lease.storage()
            try:
                return action(storage)
            except PermissionError as refusal:
                if self._is_about_the_object(storage, refusal):
                    raise
                refusals += 1
                if refusals > 1 and not self._has_read and not is_sure(refusal):
                    # What was said to exist does not read with a fresh credential either: it is the scope, or was a mistake.
                    with self._lock:
                        self._canary, self._is_renewed_blindly = None, True
                    raise
                lease.refused(storage, location, path, refusal, refusals)

    def _is_about_the_object(self, storage: Storage, refusal: PermissionError) -> bool:
        """Whether the credential works nevertheless: the canary reads after the refusal, or a new credential told nothing."""
        refused_at, credential = time.monotonic(), storage.credential
        if is_sure(refusal):
            return False
        with self._probing:  # one read of the canary speaks for all refusals that came before it
            with self._lock:
                canary = self._canary
            if canary is None:
                tried, self._is_renewed_blindly = self._is_renewed_blindly, True
                return tried
            if credential == self._ended:
                return False
            if self._proven.get(credential, float("-inf")) < refused_at:
                began = time.monotonic()
                try:
                    storage.get(self._location_of(canary), 0, 1, what=canary)
                except PermissionError:
                    self._ended = credential
                    return False
                except (FileNotFoundError, CorruptFileError):
                    pass  # gone, or empty: the storage answers for it nevertheless
                self._proven = {credential: began}
        return True
