"""The logs of shared tables, replayed anew when they grow; what was replayed is kept within a bound."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from delta_sharing_spark.deltalog.actions import parse_lines, vector_from
from delta_sharing_spark.deltalog.commit_times import CommitTimes
from delta_sharing_spark.deltalog.log_store import StorageLogStore
from delta_sharing_spark.deltalog.paths import (
    LOG_DIR,
    commit_name,
    decode_uri,
    in_log,
    join,
    local_path,
    parse_name,
)
from delta_sharing_spark.deltalog.replay import Head, Snapshot, load_head, read_snapshot
from delta_sharing_spark.network.process_cache import ProcessCache
from delta_sharing_spark.scan.plan import DeletionVector
from delta_sharing_spark.schema.table_records import Metadata, Protocol
from delta_sharing_spark.storage.clouds.contract import NO_SECRET
from delta_sharing_spark.storage.clouds.registry import parse_location
from delta_sharing_spark.storage.objects import Storage
from delta_sharing_spark.storage.range_reader import StorageSettings
from delta_sharing_spark.testing.server.responses import not_found
from delta_sharing_spark.testing.server.settings import SharedTable

#: Snapshots kept, and the most files they list together.
_SNAPSHOTS, _FILES = 8, 400_000


@dataclass(frozen=True, slots=True)
class FileAction:
    """An ``add``, ``remove`` or ``cdc`` action with its file located.

    Attributes:
        kind: The action's name.
        body: As in the log, deletion vector included.
        path: Decoded path: what the file's id is made of.
        location: Local path of the file.
        vector: Its deletion vector, located.
        version, timestamp: Of its commit (milliseconds); None in a snapshot.
    """

    kind: str
    body: Mapping[str, Any] = field(repr=False)
    path: str
    location: str
    size: int
    vector: DeletionVector | None = None
    version: int | None = None
    timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class LoggedSnapshot:
    """A version with all its files; ``size`` in bytes."""

    version: int
    protocol: Protocol
    metadata: Metadata
    files: tuple[FileAction, ...] = field(repr=False)
    size: int


@dataclass(frozen=True, slots=True)
class LoggedCommit:
    """One commit's actions, in order."""

    version: int
    timestamp: int
    actions: list[dict[str, Any]] = field(repr=False)


class TableLogs:
    """Reads the logs of shared tables.

    Snapshots are kept by table, version and the identity of its newest commit file, so that a table that grows, or is
    replaced in the same place, is read anew: at most 8 of them, of 400,000 files together.
    """

    def __init__(self) -> None:
        self._snapshots: ProcessCache[tuple[Any, ...], LoggedSnapshot] = ProcessCache(
            _SNAPSHOTS, lambda snapshot: len(snapshot.files), _FILES
        )

    def latest(self, table: SharedTable) -> int:
        """The newest version, by a listing."""
        return self._newest(table)[0]

    def head(self, table: SharedTable, version: int | None = None) -> Head:
        """Protocol and metadata of a version, the newest by default."""
        return load_head(LocalLogStore(table.path), version=version, table=str(table), gate=False)

    def snapshot(self, table: SharedTable, version: int | None = None) -> LoggedSnapshot:
        """A version with its files, the newest by default."""
        newest, identity = self._newest(table)
        key = (table.path, newest if version is None else version, identity)
        loaded = self._snapshots.get(key)
        if loaded is None:
            loaded = self._load(table, key[1])
            self._snapshots.put(key, loaded)
        return loaded

    def commits(self, table: SharedTable, start: int, end: int) -> Iterator[LoggedCommit]:
        """The commits of a range, both ends included, oldest first."""
        store = LocalLogStore(table.path)
        times = self.times(table)
        for version in range(start, end + 1):
            path = in_log(commit_name(version))
            actions = list(parse_lines(store.read(path), path))
            yield LoggedCommit(version, times.time(version), actions)

    def times(self, table: SharedTable) -> CommitTimes:
        """When the table's versions were committed."""
        head = self.head(table)  # of whatever features
        return CommitTimes(LocalLogStore(table.path), head.version, head.metadata, str(table))

    def time(self, table: SharedTable, snapshot: LoggedSnapshot) -> int:
        """When a version was committed, in milliseconds; raises LogError where its commit is gone."""
        version, store = snapshot.version, LocalLogStore(table.path)
        return CommitTimes(store, version, snapshot.metadata, str(table), start=version).time(version)

    def _load(self, table: SharedTable, version: int) -> LoggedSnapshot:
        # The gate is the client's: a table of unknown features is passed on, so that it can refuse it by name.
        return read_snapshot(LocalLogStore(table.path), _logged, version=version, table=str(table), gate=False)

    def _newest(self, table: SharedTable) -> tuple[int, tuple[int, int, int]]:
        directory = os.path.join(table.path, LOG_DIR)
        try:
            named = [(parsed, name) for name in os.listdir(directory) if (parsed := parse_name(name)) is not None]
        except FileNotFoundError:
            named = []
        newest, _, name = max(
            ((one.version, one.kind == "commit", name) for one, name in named), default=(-1, False, "")
        )
        if newest < 0:
            raise not_found(f"table '{table}' has no Delta log")
        stat = os.stat(os.path.join(directory, name))
        return newest, (stat.st_ino, stat.st_mtime_ns, stat.st_size)


def _logged(snapshot: Snapshot) -> LoggedSnapshot:
    files = []
    for batch in snapshot.adds():
        vectors = [None] * batch.num_rows if batch.vectors is None else batch.vectors.to_pylist()
        rows = zip(batch.tasks(keep_stats=True), batch.modified.to_pylist(), vectors, strict=True)
        for task, modified, vector in rows:
            body: dict[str, Any] = {
                "path": task.id,
                "partitionValues": dict(task.partition_values or {}),
                "size": task.size,
                "modificationTime": modified or 0,
                "dataChange": True,
            }
            if task.stats is not None:
                body["stats"] = task.stats
            if vector is not None:
                body["deletionVector"] = {k: v for k, v in vector.items() if v is not None}
            location = local_path(task.location)
            files.append(FileAction("add", body, task.id, location, task.size, task.deletion_vector))
    size = sum(f.size for f in files)
    return LoggedSnapshot(snapshot.version, snapshot.protocol, snapshot.metadata, tuple(files), size)


def located(kind: str, body: Mapping[str, Any], table: SharedTable, commit: LoggedCommit) -> FileAction:
    """A file action of a commit, with its file located."""
    path = decode_uri(body["path"])
    location = local_path(join(table.root, path))
    vector = body.get("deletionVector")
    size = body.get("size")
    if size is None:
        size = os.path.getsize(location)  # a remove need not say
    vector = None if vector is None else vector_from(vector, table.root, path)
    return FileAction(kind, body, path, location, size, vector, commit.version, commit.timestamp)


class LocalLogStore(StorageLogStore):
    """A table on the local file system: ``file:`` URIs and plain paths."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        text = os.fspath(root)
        directory = local_path(text) if text.startswith("file:") else os.path.abspath(text)
        location = parse_location("file:///" + directory.replace(os.sep, "/").strip("/"))
        super().__init__(location, None)
        files = _Files(Storage(location, NO_SECRET, StorageSettings()))
        self.lease_for = lambda _: files


class _Files:
    """A ``Lease`` of local files, for which no other credential is."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def current(self) -> Storage:
        return self._storage

    def refused(self, source: Storage, name: str, refusal: PermissionError, refusals: int) -> None:
        raise refusal
