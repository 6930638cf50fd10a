"""Reads a log from a storage, and keeps what one load has listed and read of it: each step sees the same log and fetches nothing twice.

Of a large checkpoint it keeps what was read of it but its files: protocol, metadata, footers.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from copy import copy
from typing import TypeVar

from delta_sharing_spark.deltalog.checkpoint import Checkpoint
from delta_sharing_spark.deltalog.paths import (
    LAST_CHECKPOINT,
    LISTED_BEFORE,
    LOG_DIR,
    LogStore,
    commit_name,
    in_log,
    join,
    parse_name,
)
from delta_sharing_spark.deltalog.segment import CheckpointFiles
from delta_sharing_spark.errors import CorruptFileError, LogError
from delta_sharing_spark.network.process_cache import ProcessCache
from delta_sharing_spark.storage.answers import is_sure
from delta_sharing_spark.storage.clouds.registry import parse_location
from delta_sharing_spark.storage.locations import Location, StoredObject
from delta_sharing_spark.storage.objects import Storage, object_reader
from delta_sharing_spark.storage.range_reader import Lease, renewing
from delta_sharing_spark.storage.ranges import ByteSource, MemorySource

#: Bytes of commits and small checkpoints that are kept; beyond, the oldest are fetched once more.
_KEPT_BYTES = 64 << 20
#: Files of the log up to this size are fetched whole, and kept.
_WHOLE_BYTES = 4 << 20

_T = TypeVar("_T")


class StorageLogStore:
    """A log in a storage (``deltalog.paths.LogStore``).

    A refusal has two meanings: the credential has ended, or it may not list and the object does not exist. Where the
    storage does not say which, they are told apart by reading the canary, an object known to exist, after the refusal.
    A credential that has ended is renewed, once for each request of the log.

    Args:
        root: The table's location.
        version: A version that exists by the sharing server's word, or None.

    Attributes:
        lease_for: Gives the lease of a location; to be set before the first request.
    """

    lease_for: Callable[[Location], Lease[Storage]]

    def __init__(self, root: Location, version: int | None) -> None:
        self.root = str(root)
        self.known_version = version
        self._canary = None if version is None else in_log(commit_name(version))
        #: By credential, when a read of the canary began that succeeded.
        self._proven: dict[str, float] = {}
        self._ended: str | None = None
        self._is_renewed_blindly = self._has_read = False
        self._lock, self._probing = threading.Lock(), threading.Lock()

    def read(self, path: str) -> bytes:
        location = self._location_of(path)
        data = self._run(location, path, lambda storage: storage.get(location, what=path))
        with self._lock:
            self._canary, self._has_read = path, True
        return bytes(data)

    def open(self, path: str, size: int | None = None) -> ByteSource:
        """See ``LogStore.open``: reads by range, so that columns of a checkpoint need not be fetched whole."""
        location = self._location_of(path)
        size = self.info(path).size if size is None else size
        return object_reader(self.lease_for(location), location, name=path, size=size, is_data=False)

    def list_from(self, relative_dir: str, start_name: str) -> list[StoredObject] | None:
        location = self._location_of(relative_dir)
        try:
            return self._run(
                location,
                relative_dir,
                lambda storage: storage.list_from(location, start_name, what=f"listing {relative_dir}"),
            )
        except PermissionError:
            return None
        except FileNotFoundError:
            return []

    def info(self, path: str) -> StoredObject:
        location = self._location_of(path)
        return self._run(location, path, lambda storage: storage.info(location, what=path))

    def _location_of(self, path: str) -> Location:
        return parse_location(join(self.root, path))

    def _run(self, location: Location, path: str, action: Callable[[Storage], _T]) -> _T:
        def check(storage: Storage, refusal: PermissionError, refusals: int) -> None:
            if self._is_about_the_object(storage, refusal):
                raise refusal
            if refusals > 1 and not self._has_read and not is_sure(refusal):
                # What was said to exist does not read with a fresh credential either: it is the scope, or was a mistake.
                with self._lock:
                    self._canary, self._is_renewed_blindly = None, True
                raise refusal

        return renewing(self.lease_for(location), path, action, check)

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


class CachedLogStore:
    """Another ``LogStore`` behind a cache, which shows one view of the log: the same listing until ``refresh``.

    Args:
        store: Where the log lies.
        kept_bytes: The bound on what is kept.

    Attributes:
        checkpoints: The checkpoint that was read last: most versions that are read later begin with it as well.
        hinted: By version of a checkpoint, how many files and actions ``_last_checkpoint`` said that it has.
        damaged: Checkpoints that could not be read, and why: what is read later does without them.
    """

    def __init__(self, store: LogStore, *, kept_bytes: int = _KEPT_BYTES) -> None:
        self._store, self._bound = store, kept_bytes
        self.root = store.root
        self.known_version = store.known_version
        self._lock = threading.Lock()
        self._files: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        self.checkpoints: ProcessCache[CheckpointFiles, Checkpoint] = ProcessCache(1)
        self.hinted: ProcessCache[int, tuple[int | None, int | None]] = ProcessCache(4)
        self.damaged: dict[CheckpointFiles, LogError] = {}
        self._absent: dict[str, OSError] = {}
        self._listings: dict[str, tuple[str, list[StoredObject] | None]] = {}
        self._infos: dict[str, StoredObject] = {}
        self._first_version: int | None = None

    def refresh(self) -> None:
        """List the log anew at the next call, to see versions committed since. Files are kept, for they never change."""
        with self._lock:
            names = (parse_name(entry.name) for entry in reversed(self._listings.get(LOG_DIR, ("", None))[1] or ()))
            # What is listed next begins near what was the newest.
            self.known_version = next((name.version for name in names if name is not None), self.known_version)
            self._absent.clear()
            self._listings.clear()
            self._infos.clear()
            self._drop(LAST_CHECKPOINT)

    def list_from_version(self, version: int) -> None:
        """Make listings begin before this version: from the one before it on, versions will be asked for with their times."""
        self._first_version = max(0, version - 1 - LISTED_BEFORE)

    def read(self, path: str) -> bytes:
        """See ``LogStore.read``."""
        with self._lock:
            content = self._files.get(path)
            if content is not None:
                self._files.move_to_end(path)
                return content
            self._check_present(path)
        data = self._asked(self._store.read, path)
        with self._lock:
            self._keep(path, data)
        return data

    def open(self, path: str, size: int | None = None) -> ByteSource:
        """See ``LogStore.open``; a small file is fetched whole, and once."""
        with self._lock:
            size = self._infos[path].size if path in self._infos else size
        if size is not None and size <= min(_WHOLE_BYTES, self._bound):
            return MemorySource(path, self.read(path))
        return self._store.open(path, size)

    def list_from(self, relative_dir: str, start_name: str) -> list[StoredObject] | None:
        """See ``LogStore.list_from``."""
        with self._lock:
            listing = self._listings.get(relative_dir)
        if listing is None or (start_name < listing[0] and listing[1] is not None):
            start = start_name
            if relative_dir == LOG_DIR and self._first_version is not None:
                start = min(start, f"{self._first_version:020d}.")
            entries = self._store.list_from(relative_dir, start)
            listing = (start, entries)
            with self._lock:
                self._listings[relative_dir] = listing
                self._infos.update((f"{relative_dir}/{entry.name}", entry) for entry in entries or ())
        return None if listing[1] is None else [entry for entry in listing[1] if entry.name >= start_name]

    def info(self, path: str) -> StoredObject:
        """See ``LogStore.info``."""
        with self._lock:
            if path in self._infos:
                return self._infos[path]
            self._check_present(path)
        info = self._asked(self._store.info, path)
        if path.startswith(LOG_DIR):
            with self._lock:
                self._infos[path] = info
        return info

    def _check_present(self, path: str) -> None:
        absent = self._absent.get(path)
        if absent is not None:
            raise copy(absent)

    def _asked(self, ask: Callable[[str], _T], path: str) -> _T:
        """What the storage answers of a file; that it has none is kept."""
        try:
            return ask(path)
        except (FileNotFoundError, PermissionError) as absent:
            with self._lock:
                if path in self._infos:  # the log is being cleaned up: what looks again must see what is left
                    self._listings.clear()
                    self._infos.clear()
                elif path.startswith(LOG_DIR):
                    self._absent[path] = copy(absent)
            raise

    def _keep(self, path: str, data: bytes) -> None:
        self._drop(path)
        if len(data) > self._bound:
            return
        self._files[path] = data
        self._bytes += len(data)
        while self._bytes > self._bound:
            _, dropped = self._files.popitem(last=False)
            self._bytes -= len(dropped)

    def _drop(self, path: str) -> None:
        dropped = self._files.pop(path, None)
        self._bytes -= 0 if dropped is None else len(dropped)
