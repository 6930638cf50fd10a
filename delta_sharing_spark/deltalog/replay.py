"""Replays a version of a table from its log: protocol, metadata and live files (Delta protocol, "Action Reconciliation"), and the time
of its commit ("In-Commit Timestamps").

A version that keeps its own timestamp has it in its ``commitInfo``. Any other has its commit file's modification time,
moved up where needed so that time grows with versions, as Delta Lake does.
"""

from __future__ import annotations

import bisect
import logging
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from delta_sharing_spark.deltalog.actions import (
    IN_COMMIT_TIMESTAMPS,
    PARSED_BYTES,
    Metadata,
    Protocol,
    find_actions,
    metadata_from,
    protocol_from,
    split_lines,
)
from delta_sharing_spark.deltalog.add_batch import AddBatch
from delta_sharing_spark.deltalog.checkpoint import Checkpoint
from delta_sharing_spark.deltalog.commit_reconciliation import CommitTail
from delta_sharing_spark.deltalog.log_store import CachedLogStore
from delta_sharing_spark.deltalog.paths import LOG_DIR, LogStore, commit_name, in_log, parse_name
from delta_sharing_spark.deltalog.segment import READERS, CheckpointFiles, Segment, find_segment, read_all, refused
from delta_sharing_spark.errors import LogError, VersionError
from delta_sharing_spark.network.parallel_calls import CallingThreads
from delta_sharing_spark.scan.plan import MAX_MILLIS, FileTask
from delta_sharing_spark.schema import features
from delta_sharing_spark.schema.instants import show_millis
from delta_sharing_spark.schema.types import Struct
from delta_sharing_spark.storage.locations import StoredObject

_ENABLED_VERSION = "delta.inCommitTimestampEnablementVersion"
_ENABLED_TIMESTAMP = "delta.inCommitTimestampEnablementTimestamp"
#: How far before a range modification times are taken into account, as in Delta Lake.
_MONOTONIC_START = 100


def in_commit_since(metadata: Metadata) -> int | None:
    """The first version that keeps its own timestamp, None if the table keeps none."""
    return _number(metadata, _ENABLED_VERSION) or 0 if metadata.is_enabled(IN_COMMIT_TIMESTAMPS) else None


def _number(metadata: Metadata, key: str) -> int | None:
    text = metadata.configuration.get(key, "")
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def in_commit_timestamp(data: bytes, path: str, table: str) -> int:
    """The timestamp in a commit; raises LogError where it has none."""
    for info in find_actions(data, "commitInfo", path):
        stamp = info.get("inCommitTimestamp")
        if type(stamp) is int and abs(stamp) <= MAX_MILLIS:
            return stamp
    raise LogError(
        f"{path} of {table} has no inCommitTimestamp, although the table keeps timestamps in its commits; "
        f"ask the provider to repair the table",
        file=path,
    )


class CommitTimes:
    """Timestamps of the versions up to ``newest``.

    Args:
        store: The table's storage.
        newest: The newest version.
        metadata: The metadata in effect at the newest version.
        table: How errors name the table.
        start: Only versions from here on will be asked for.
    """

    def __init__(self, store: LogStore, newest: int, metadata: Metadata, table: str, *, start: int = 0) -> None:
        self._store, self._newest, self._metadata, self._table = store, newest, metadata, table
        self._since = in_commit_since(metadata)
        self._start = start

    def time(self, version: int) -> int:
        """A version's timestamp in milliseconds; raises LogError where its commit file is gone, or lacks it."""
        path = in_log(commit_name(version))
        if self._since is not None and version >= self._since:
            try:
                return in_commit_timestamp(self._store.read(path), path, self._table)
            except (FileNotFoundError, PermissionError):
                raise self._unknown(version) from None
        try:
            modified = self._store.info(path).modified_ms if self._listed is None else self._listed.get(version)
        except (FileNotFoundError, PermissionError):
            modified = None
        if modified is None:
            raise self._unknown(version) from None
        return modified

    def at_or_before(self, timestamp_ms: int) -> int:
        """The last version committed at or before a timestamp; raises VersionError where that lies before the first one there."""
        low, high = self._search_range(timestamp_ms)
        first = self.time(low)
        if timestamp_ms < first:
            raise VersionError(
                f"{show_millis(timestamp_ms)} is before the earliest version of {self._table} that is available: version {low} "
                f"of {show_millis(first)}; ask for that time or later"
            )
        return low + bisect.bisect_right(range(low, high + 1), timestamp_ms, key=self.time) - 1

    def at_or_after(self, timestamp_ms: int) -> int:
        """The first version there that was committed at or after a timestamp; raises VersionError where none was."""
        try:
            version = self.at_or_before(timestamp_ms)
        except VersionError:
            return self.first()
        if self.time(version) >= timestamp_ms:
            return version
        if version == self._newest:
            raise self.too_late(timestamp_ms)
        return version + 1

    def too_late(self, timestamp_ms: int) -> VersionError:
        """The error of a timestamp after the newest version."""
        return VersionError(
            f"{show_millis(timestamp_ms)} is after the newest version of {self._table}: version {self._newest} of "
            f"{show_millis(self.time(self._newest))}; ask for that time or earlier"
        )

    def first(self) -> int:
        """The earliest version whose commit is there, with all commits after it."""
        if self._listed is not None:
            first = self._newest
            while first - 1 in self._listed:
                first -= 1
            return first

        def exists(version: int) -> bool:
            try:
                self._store.info(in_log(commit_name(version)))
            except (FileNotFoundError, PermissionError):
                return False
            return True

        return bisect.bisect_left(range(self._newest), True, key=exists)

    def _search_range(self, timestamp_ms: int) -> tuple[int, int]:
        """The versions to search: those before in-commit timestamps began, or those since, by the protocol's rule."""
        first = self.first()
        if self._since is None or first >= self._since:
            return first, self._newest
        enabled = _number(self._metadata, _ENABLED_TIMESTAMP)
        if timestamp_ms >= (self.time(self._since) if enabled is None else enabled):
            return self._since, self._newest
        return first, self._since - 1

    @cached_property
    def _listed(self) -> dict[int, int] | None:
        """Modification times by the listing, made to grow with versions; None where the log cannot be listed."""
        entries = self._store.list_from(LOG_DIR, f"{max(0, self._start - _MONOTONIC_START):020d}.")
        return None if entries is None else _monotonic(entries, self._newest)

    def _unknown(self, version: int) -> LogError:
        path = in_log(commit_name(version))
        return LogError(
            f"the time of version {version} of {self._table} is unknown: {path} cannot be read; ask by version instead",
            file=path,
        )


def _monotonic(entries: list[StoredObject], newest: int) -> dict[int, int]:
    times: dict[int, int] = {}
    last: int | None = None
    for entry in entries:
        name = parse_name(entry.name)
        if name is None or name.kind != "commit" or name.version > newest:
            continue
        last = entry.modified_ms if last is None else max(entry.modified_ms, last + 1)
        times[name.version] = last
    return times


_log = logging.getLogger(__name__)


class Snapshot:
    """One version of a table.

    Attributes:
        root: The table's location.
        table: How errors name it.
        version: The version.
        protocol, metadata: Those in effect at the version; this reader can do what the protocol asks for.
        mapping: Column mapping mode: ``"none"``, ``"name"`` or ``"id"``.
    """

    def __init__(
        self, store: LogStore, head: Head, checkpoint: Checkpoint | None, tail: CommitTail, table: str
    ) -> None:
        self.root, self.table, self.version = store.root, table, head.version
        self.protocol, self.metadata = head.protocol, head.metadata
        self.mapping = head.metadata.mapping(head.protocol, table)
        self._store, self._checkpoint, self._tail = store, checkpoint, tail

    def __repr__(self) -> str:
        return f"Snapshot({self.table!r}, version={self.version})"

    @cached_property
    def schema(self) -> Struct:
        """The table's schema; raises as :func:`delta_sharing_spark.schema.types.parse_schema`."""
        return self.metadata.schema(self.table)

    @cached_property
    def timestamp_ms(self) -> int:
        """When the version was committed, milliseconds since the epoch; raises LogError where the commit is needed for it and gone."""
        times = CommitTimes(self._store, self.version, self.metadata, self.table, start=self.version)
        return times.time(self.version)

    def adds(self, *, with_stats: bool = True, stats_columns: Collection[str] | None = None) -> Iterator[AddBatch]:
        """The live files in batches, read from the checkpoint as they are asked for; may be called again. Raises LogError.

        Args:
            with_stats: Whether to read statistics (``AddBatch.num_records`` needs them).
            stats_columns: Physical names of the top-level columns whose statistics are read, where the log keeps
                them in columns; None for all.
        """
        keys = self.metadata.partition_keys(self.mapping, self.table)
        yield from self._tail.adds(keys, with_stats=with_stats)
        if self._checkpoint is not None:
            for batch in self._checkpoint.adds(keys, with_stats=with_stats, stats_columns=stats_columns):
                kept = self._tail.without_superseded(batch)
                if kept.num_rows:
                    yield kept

    def tasks(self, *, keep_stats: bool = False) -> Iterator[FileTask]:
        """A task for every live file; with ``keep_stats`` it carries its statistics."""
        for batch in self.adds():
            yield from batch.tasks(keep_stats=keep_stats)


def load_snapshot(
    store: LogStore, *, version: int | None = None, table: str = "the table", gate: bool = True
) -> Snapshot:
    """Load a version of a table.

    Args:
        store: The table's storage.
        version: The version; None means the newest.
        table: How errors name the table.
        gate: Whether a protocol that asks for more than this reader does is refused; the embedded server passes any on.

    Raises:
        LogError: No log, a hole, or a corrupt or missing file, by its name.
        VersionError: The version is not in the log.
        UnsupportedFeatureError: The table asks for more than this reader does.
        CredentialError: The storage refuses to read the log.
    """
    if version is not None and version < 0:
        raise VersionError(f"version {version} of {table} cannot exist; versions start at 0")
    head, checkpoint, tail = _retry_once_if_vanished(store, version, table, gate, has_files=True)
    assert tail is not None
    tail.finish()
    return Snapshot(store, head, checkpoint, tail, table)


@dataclass(frozen=True, slots=True)
class Head:
    """A version's protocol and metadata, without its files."""

    version: int
    protocol: Protocol
    metadata: Metadata


def load_head(store: LogStore, *, version: int | None = None, table: str = "the table", gate: bool = True) -> Head:
    """Protocol and metadata of a version, the newest by default, without its files. Raises as :func:`load_snapshot`."""
    return _retry_once_if_vanished(store, version, table, gate, has_files=False)[0]


def _retry_once_if_vanished(
    store: LogStore, version: int | None, table: str, gate: bool, *, has_files: bool
) -> tuple[Head, Checkpoint | None, CommitTail | None]:
    """Load a version, and once more from a new listing if a listed file has vanished meanwhile."""
    for _ in range(2):
        try:
            return _load(store, find_segment(store, version, table), table, gate, has_files)
        except _FileVanished as gone:
            vanished = gone.path
            _log.info("%s of %s went while its log was read", vanished, table)
    raise LogError(
        f"{vanished} of {table} was listed and is not there: the log is being cleaned up while it is read; "
        f"try again, or ask for a later version",
        file=vanished,
    )


class _FileVanished(Exception):
    """A listed commit that could not be read."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class _State:
    """Protocol and metadata after the actions replayed so far."""

    def __init__(self, checkpoint: Checkpoint | None, table: str) -> None:
        self._table = table
        self._protocol = None if checkpoint is None else checkpoint.protocol
        self._metadata: Metadata | None = None
        self.partitions: set[str] = set()
        if checkpoint is not None:
            self._note(checkpoint.metadata)

    def taking(self, commits: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
        """The same commits, of each of which these actions are known before its files are parsed: they may stand behind them."""
        for path, data in commits:
            for tree in find_actions(data, "protocol", path):
                self._protocol = protocol_from(tree, path)
            for tree in find_actions(data, "metaData", path):
                self._note(metadata_from(tree, path))
            yield path, data

    def _note(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self.partitions.update(metadata.partition_columns)
        if metadata.configuration.get(features.MAPPING_MODE, "none") != "none":  # the protocol may not be known yet
            self.partitions.update(metadata.physical_partition_columns("name", self._table).values())

    def head(self, version: int, gate: bool) -> Head:
        if self._protocol is None or self._metadata is None:
            missing = "protocol" if self._protocol is None else "metaData"
            raise LogError(
                f"the log of {self._table} has no {missing} action up to version {version}; "
                f"ask the provider to repair the table"
            )
        if gate:
            self._protocol.check(self._table)
            self._metadata.check(self._table)
        return Head(version, self._protocol, self._metadata)


def _load(
    store: LogStore, segment: Segment, table: str, gate: bool, has_files: bool
) -> tuple[Head, Checkpoint | None, CommitTail | None]:
    """The small actions, the checkpoint and, with ``has_files``, the files of the commits, which are fetched beside the checkpoint."""
    with CallingThreads(READERS) as threads:
        contents = _contents(threads, store, segment, table)
        checkpoint = None if segment.checkpoint is None else _checkpoint(store, segment.checkpoint, table)
        state = _State(checkpoint, table)
        tail = CommitTail(store.root, has_checkpoint=checkpoint is not None) if has_files else None
        for group in _groups(state.taking(contents)):
            if tail is not None:
                tail.append(group, state.partitions)
    return state.head(segment.version, gate), checkpoint, tail


def _checkpoint(store: LogStore, files: CheckpointFiles, table: str) -> Checkpoint:
    """A checkpoint; the one that was read last, if the store has kept it."""
    if isinstance(store, CachedLogStore):
        return store.checkpoints.get_or_make(files, lambda: Checkpoint(store, files, table))
    return Checkpoint(store, files, table)


def _groups(contents: Iterable[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    """A segment's commits, oldest first, in groups of bounded size; a long commit is cut into several."""
    group: list[tuple[str, bytes]] = []
    size = 0
    for path, data in contents:
        for piece in split_lines(data, PARSED_BYTES):
            if group and size + len(piece) > PARSED_BYTES:
                yield group
                group, size = [], 0
            group.append((path, piece))
            size += len(piece)
    if group:
        yield group


def _contents(threads: CallingThreads, store: LogStore, segment: Segment, table: str) -> Iterable[tuple[str, bytes]]:
    def read(path: str) -> bytes:
        try:
            return store.read(path)
        except FileNotFoundError:
            raise _FileVanished(path) from None
        except PermissionError as refusal:
            raise refused(table, path, refusal) from None

    paths = [commit.path for commit in segment.commits]
    largest = max((commit.size for commit in segment.commits), default=0)
    return zip(paths, read_all(threads, read, paths, largest), strict=True)


def version_at_or_before(
    store: LogStore, timestamp_ms: int, *, table: str = "the table", allow_after_newest: bool = False
) -> int:
    """The last version committed at or before a timestamp (time travel, a range's end).

    Args:
        store: The table's storage.
        timestamp_ms: Milliseconds since the epoch.
        table: How errors name the table.
        allow_after_newest: Whether a timestamp after the newest version means that version.

    Raises:
        VersionError: It lies before the first version available, or after the newest.
        LogError: The log cannot be read.
    """
    times, newest = _times(store, table)
    version = times.at_or_before(timestamp_ms)
    if version == newest and not allow_after_newest and timestamp_ms > times.time(newest):
        raise times.too_late(timestamp_ms)
    return version


def version_at_or_after(store: LogStore, timestamp_ms: int, *, table: str = "the table") -> int:
    """The first version committed at or after a timestamp (a range's start).

    Raises:
        VersionError: It lies after the newest version.
        LogError: The log cannot be read.
    """
    return _times(store, table)[0].at_or_after(timestamp_ms)


def commit_times(store: LogStore, most: int, *, table: str = "the table") -> dict[int, int]:
    """The newest versions, at most ``most``, and their timestamps in milliseconds, the newest last; raises as ``load_head``."""
    times, newest = _times(store, table)
    return {version: times.time(version) for version in range(max(times.first(), newest - most + 1), newest + 1)}


def _times(store: LogStore, table: str) -> tuple[CommitTimes, int]:
    head = load_head(store, table=table)
    return CommitTimes(store, head.version, head.metadata, table), head.version
