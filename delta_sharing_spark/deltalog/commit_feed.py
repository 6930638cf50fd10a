"""Reads single commits: their change data feed, or the files they add and remove, for streams of the table.

Delta protocol, "Add CDC File" and "Change Data Files"; reference: each commit's change files if it has any, else its
adds as inserts and its removes as deletes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from delta_sharing_spark.deltalog.actions import (
    CHANGE_DATA_FEED,
    FileAction,
    action_of,
    file_action,
    metadata_from,
    parse_lines,
    protocol_from,
    vector_from,
    whole_count,
)
from delta_sharing_spark.deltalog.commit_times import CommitTimes, in_commit_since
from delta_sharing_spark.deltalog.paths import LogStore, commit_name, decode_uri, in_log, join, read_if_there
from delta_sharing_spark.deltalog.replay import Head, gone, head_at, load_head
from delta_sharing_spark.deltalog.segment import READERS, read_all
from delta_sharing_spark.errors import LogError, VersionError
from delta_sharing_spark.network.parallel_calls import DaemonPool
from delta_sharing_spark.scan.change_feed import ChangedFile, change_files
from delta_sharing_spark.scan.plan import MAX_FILE_BYTES, MAX_MILLIS, DeletionVector, FileTask, rows_in_stats


@dataclass(frozen=True, slots=True)
class CommitFiles:
    """The files of one commit whose rows are read.

    Attributes:
        version: The version.
        head: Protocol and metadata in effect at the version.
        has_new_head: Whether the commit has a protocol or metadata action of its own.
        tasks: The files it added (``dataChange`` true); of a change feed those whose rows are changes, with their change
            columns: where ``change_type`` is None, the file has the column itself.
        removes: How many files it removed; 0 in a change feed.
        timestamp_ms: When it was committed, in milliseconds since the epoch; 0 where no change feed is read.
    """

    version: int
    head: Head
    has_new_head: bool
    tasks: list[FileTask]
    removes: int
    timestamp_ms: int


def load_commits(
    store: LogStore,
    start: int,
    end: int | None = None,
    *,
    feed: bool = False,
    table: str = "the table",
    before: Head | None = None,
) -> Iterator[CommitFiles]:
    """The commits of a range of versions, both ends included.

    Args:
        store: The table's storage.
        start: The first version, not negative; the one after the newest gives nothing.
        end: The last version, not before the first; None, or one after the newest, means the newest.
        feed: Whether their change data feed is read, instead of the files that they added, as for a stream of the table.
        table: How errors name the table.
        before: The head that an earlier range ended with; used if it is of the version before ``start``.

    Raises:
        VersionError: Versions that are not in the log, or for which no change data was recorded.
        LogError: A hole, or a corrupt commit.
        UnsupportedFeatureError: The table asks for more than this reader does, at any version of the range.
    """
    newest = load_head(store, table=table, gate=False)  # versions before one that asks for more can be read
    if start == newest.version + 1:
        return
    versions = range(start, (newest.version if end is None else min(end, newest.version)) + 1)
    head = before if before is not None and before.version == start - 1 else None
    head = head or head_at(store, start, table)
    times = CommitTimes(store, newest.version, newest.metadata, table, start=start)
    paths = [in_log(commit_name(version)) for version in versions]
    with DaemonPool(READERS) as threads:
        for version, data in zip(versions, read_all(threads, partial(_read, store, table), paths), strict=True):
            commit = _Commit(store, version, data, head, table)
            if commit.protocol is not None:
                commit.protocol.check(table)
            if commit.metadata is not None:
                commit.metadata.check(table)
            head = commit.head
            if feed:
                if not head.metadata.is_enabled(CHANGE_DATA_FEED):
                    raise VersionError(
                        f"no change data was recorded for version {version} of {table}: {CHANGE_DATA_FEED} is off there"
                    )
                since = in_commit_since(head.metadata)
                if since is not None and version >= since and commit.in_commit is not None:
                    commit.time = commit.in_commit
                else:
                    commit.time = times.time(version)
            tasks = commit.changes() if feed else [commit.task(tree) for tree in commit.adds]
            has_new_head = commit.protocol is not None or commit.metadata is not None
            yield CommitFiles(version, head, has_new_head, tasks, 0 if feed else len(commit.removes), commit.time)


def _read(store: LogStore, table: str, path: str) -> bytes:
    if (data := read_if_there(store, path)) is None:
        raise gone(store, int(path.rpartition("/")[2].partition(".")[0]), table)
    return data


def changed_no_row(commit_info: Mapping[str, Any]) -> bool:
    """Whether a commit is a MERGE whose metrics count no changed row: files it rewrote are no changes, as in Delta Lake."""
    metrics = commit_info.get("operationMetrics")
    return (
        commit_info.get("operation") == "MERGE"
        and isinstance(metrics, dict)
        and all(metrics.get(f"numTargetRows{done}") == "0" for done in ("Inserted", "Updated", "Deleted"))
    )


class _Commit:
    """One parsed commit; ``before`` is the protocol and metadata before it."""

    def __init__(self, store: LogStore, version: int, data: bytes, before: Head, table: str) -> None:
        self.version, self.time = version, 0
        self._store, self._table, self._path = store, table, path = store, table, in_log(commit_name(version))
        files: dict[str, list[FileAction]] = {"add": [], "remove": [], "cdc": []}
        others: dict[str, list[dict[str, Any]]] = {"metaData": [], "protocol": [], "commitInfo": [{}]}
        for tree in parse_lines(data, path):
            for kind, actions in files.items():
                if (action := file_action(tree, kind, path)) is not None:
                    actions.append(action)
            for kind, trees in others.items():
                if (other := action_of(tree, kind, path)) is not None:
                    trees.append(other)
        self.adds, self.removes = ([a for a in files[kind] if self._changes_data(a)] for kind in ("add", "remove"))
        self.cdc, info = files["cdc"], others["commitInfo"][-1]
        self.metadata = [None, *(metadata_from(action, path) for action in others["metaData"])][-1]
        self.protocol = [None, *(protocol_from(action, path) for action in others["protocol"])][-1]
        self.head = Head(version, self.protocol or before.protocol, self.metadata or before.metadata)
        stamp = info.get("inCommitTimestamp")
        self.in_commit = stamp if type(stamp) is int and abs(stamp) <= MAX_MILLIS else None
        self._is_idle_merge = changed_no_row(info)

    def _changes_data(self, action: FileAction) -> bool:
        if not isinstance(action.data_change, bool):
            raise self._corrupt("an add or remove does not say whether it changes data")
        return action.data_change

    def changes(self) -> list[FileTask]:
        """The commit's change feed."""
        if self._is_idle_merge and not self.cdc:
            return []
        cdc = map(self._changed, self.cdc)
        return list(change_files(self._by_path(self.adds), self._by_path(self.removes), list(cdc)))

    def _changed(self, action: FileAction) -> ChangedFile:
        return ChangedFile(partial(self._vector, action), partial(self.task, action))

    def _by_path(self, actions: list[FileAction]) -> dict[str, ChangedFile]:
        files: dict[str, ChangedFile] = {}
        for action in actions:
            path = join(self._store.root, decode_uri(action.path))
            if path in files:
                raise self._corrupt(f"{path} is added or removed twice")
            files[path] = self._changed(action)
        return files

    def task(self, action: FileAction) -> FileTask:
        """The task of a file of this commit."""
        path = decode_uri(action.path)
        location = join(self._store.root, path)
        stats = action.stats if isinstance(action.stats, str) else None
        return FileTask(
            id=path,
            location=location,
            size=self._size(action, location),
            partition_values=self._partition_values(action),
            rows=rows_in_stats(stats),
            deletion_vector=self._vector(action),
            commit_version=self.version,
            commit_timestamp=self.time,
            stats=stats,
        )

    def _vector(self, action: FileAction) -> DeletionVector | None:
        tree = action.deletion_vector
        return None if tree is None else vector_from(tree, self._store.root, decode_uri(action.path))

    def _size(self, action: FileAction, location: str) -> int:
        if action.size is not None:
            with suppress(TypeError, ValueError, OverflowError):
                if 0 <= (count := whole_count(action.size)) <= MAX_FILE_BYTES:
                    return count
            raise self._corrupt(f"{action.path} has the size {str(action.size)[:50]}")
        try:
            return self._store.info(location).size  # a remove need not say
        except (FileNotFoundError, PermissionError):
            raise self._corrupt(f"{action.path} has no size, and its file is gone") from None

    def _partition_values(self, action: FileAction) -> dict[str, str | None]:
        metadata, values = self.head.metadata, action.partition_values
        keys = metadata.partition_keys(metadata.mapping(self.head.protocol, self._table), self._table)
        if keys and values is None:
            raise self._corrupt(f"{action.path} has no partition values, and the table is partitioned")
        of_file = values or {}
        return {column: next((of_file[key] for key in keys[column] if key in of_file), None) for column in keys}

    def _corrupt(self, why: str) -> LogError:
        return LogError(
            f"commit {self.version} of {self._table} ({self._path}) is corrupt: {why}; ask the provider to repair the table",
            file=self._path,
        )
