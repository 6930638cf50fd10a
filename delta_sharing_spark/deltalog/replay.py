"""Replays a version of a table from its log: protocol, metadata and live files (Delta protocol, "Action Reconciliation").

Where a checkpoint is damaged, the version is replayed from an earlier one or from the commits, if they are there. A clean-up removes a
checkpoint with the commits before it, and may leave commits before the next checkpoint. Their versions cannot be replayed. But the
commits can be read, by a feed or a stream that has all before them: ``head_at`` tells their protocol and metadata.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeAlias, TypeVar

import pyarrow as pa

from delta_sharing_spark.deltalog.actions import (
    PARSED_BYTES,
    find_actions,
    metadata_from,
    parse_file_actions,
    protocol_from,
    split_lines,
)
from delta_sharing_spark.deltalog.add_batch import AddBatch
from delta_sharing_spark.deltalog.checkpoint import Checkpoint
from delta_sharing_spark.deltalog.checksum import Checksum, read_checksum
from delta_sharing_spark.deltalog.commit_reconciliation import CommitTail
from delta_sharing_spark.deltalog.commit_times import CommitTimes
from delta_sharing_spark.deltalog.log_store import CachedLogStore
from delta_sharing_spark.deltalog.paths import LOG_DIR, LogStore, commit_name, in_log, read_if_there
from delta_sharing_spark.deltalog.segment import (
    READERS,
    CheckpointFiles,
    LogListing,
    Segment,
    find_segment,
    read_all,
    refused,
)
from delta_sharing_spark.errors import LogError, VersionError
from delta_sharing_spark.network.connection_failures import forget_frames
from delta_sharing_spark.network.parallel_calls import DaemonPool, in_parallel, result_of
from delta_sharing_spark.network.process_cache import ProcessCache
from delta_sharing_spark.scan.fetching import CallsInOrder
from delta_sharing_spark.scan.plan import FileTask
from delta_sharing_spark.schema import features
from delta_sharing_spark.schema.table_records import Metadata, Protocol
from delta_sharing_spark.schema.types import Struct

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
#: Names and contents of commits, or of parts of one.
_Group: TypeAlias = list[tuple[str, bytes]]


@contextmanager
def _of_checkpoint(version: int, table: str) -> Iterator[None]:
    """Raises errors of a log as those of its checkpoint."""
    try:
        yield
    except LogError as error:
        if error.in_checkpoint:
            raise
        raise LogError(
            f"the checkpoint of version {version} of {table} cannot be read: {error}",
            file=error.file,
            in_checkpoint=True,
        ) from error


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
        self,
        store: LogStore,
        head: Head,
        checkpoint: Checkpoint | None,
        tail: CommitTail,
        table: str,
        checksum: Checksum | None = None,
    ) -> None:
        self.root, self.table, self.version = store.root, table, head.version
        self.protocol, self.metadata = head.protocol, head.metadata
        self.mapping = head.metadata.mapping(head.protocol, table)
        self._store, self._checkpoint, self._tail, self._checksum = store, checkpoint, tail, checksum

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
        """The live files in batches, read from the checkpoint as they are asked for; may be called again.

        Raises:
            LogError: At the end also where the checkpoint has other files than the log says beside it; ``read_snapshot`` then
                does without it.

        Args:
            with_stats: Whether to read statistics (``AddBatch.num_records`` needs them).
            stats_columns: Physical names of the top-level columns whose statistics are read, where the log keeps
                them in columns; None for all.
        """
        keys = self.metadata.partition_keys(self.mapping, self.table)
        checkpoint, checksum = self._checkpoint, self._checksum
        files = size = 0
        for batch in self._tail.adds(keys, with_stats=with_stats):
            files, size = files + batch.num_rows, size + batch.total_bytes
            yield batch
        if checkpoint is None:
            return
        with _of_checkpoint(checkpoint.version, self.table):
            if checksum is not None and checksum.version == checkpoint.version != self.version:
                files = size = 0  # it counts the checkpoint's alone
            for batch in checkpoint.adds(keys, with_stats=with_stats, stats_columns=stats_columns):
                remaining = self._tail.without_superseded(batch)
                counted = batch if checksum is not None and checksum.version == checkpoint.version else remaining
                files, size = files + counted.num_rows, size + counted.total_bytes
                if remaining.num_rows:
                    yield remaining
            if checksum is not None:
                checksum.check_files(files, size, checkpoint)

    def tasks(self, *, keep_stats: bool = False) -> Iterator[FileTask]:
        """A task for every live file; with ``keep_stats`` it carries its statistics."""
        for batch in self.adds():
            yield from batch.tasks(keep_stats=keep_stats)


def read_snapshot(
    store: LogStore,
    read: Callable[[Snapshot], _T],
    *,
    version: int | None = None,
    table: str = "the table",
    gate: bool = True,
) -> _T:
    """What ``read`` makes of a version; it is called again where a checkpoint turns out to be damaged while it reads.

    The version is then replayed from an earlier checkpoint or from the commits, which a warning says.

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

    def of_segment(segment: Segment) -> _T:
        head, checkpoint, tail, checksum = _load(store, segment, table, gate, has_files=True)
        assert tail is not None
        tail.finish()
        return read(Snapshot(store, head, checkpoint, tail, table, checksum))

    return _past_damage(store, version, table, of_segment)


@dataclass(frozen=True, slots=True)
class Head:
    """A version's protocol and metadata, without its files."""

    version: int
    protocol: Protocol
    metadata: Metadata


def load_head(store: LogStore, *, version: int | None = None, table: str = "the table", gate: bool = True) -> Head:
    """Protocol and metadata of a version, the newest by default, without its files. Raises as :func:`read_snapshot`."""
    return _past_damage(store, version, table, lambda segment: _load(store, segment, table, gate, has_files=False)[0])


#: Damaged checkpoints that were warned of, by their table's location.
_WARNED: ProcessCache[tuple[str, CheckpointFiles], bool] = ProcessCache(256)


def _past_damage(store: LogStore, version: int | None, table: str, read: Callable[[Segment], _T]) -> _T:
    """What ``read`` makes of a version's files: without the checkpoints that it finds damaged, and once more from a new listing where
    a listed commit has vanished meanwhile."""
    if version is not None and version < 0:
        raise VersionError(f"version {version} of {table} cannot exist; versions start at 0")
    damaged = store.damaged if isinstance(store, CachedLogStore) else {}
    vanished: str | None = None
    damage: LogError | None = None
    while True:
        try:
            segment = find_segment(store, version, table, damaged)
        except (LogError, VersionError) as error:
            if not damaged:
                raise
            base = find_segment(store, version, table).checkpoint  # raises the same where the damage is not the cause
            raise (error if base is None else damaged.get(base, error)) from None
        for files, why in list(damaged.items()):
            if files.version <= segment.version and not _WARNED.get((store.root, files)):
                _WARNED.put((store.root, files), True)
                base = segment.checkpoint
                way = "its commits" if base is None else f"the checkpoint {base.paths[0]} and the commits after it"
                _log.warning("%s; until then version %d is replayed from %s", why, segment.version, way)
        try:
            return read(segment)
        except _FileVanished as gone:
            if vanished is not None:
                raise LogError(
                    f"{gone.path} of {table} was listed and is not there: the log is being cleaned up while it is read; "
                    f"try again, or ask for a later version",
                    file=gone.path,
                ) from None
            vanished = gone.path
            _log.info("%s of %s went while its log was read", vanished, table)
        except LogError as error:
            if not error.in_checkpoint or segment.checkpoint is None or segment.checkpoint in damaged:
                raise error if damage is None else damage from error
            forget_frames(error)
            damage = damaged[segment.checkpoint] = error
            version = segment.version


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

    def head(self, version: int) -> Head:
        if self._protocol is None or self._metadata is None:
            missing = "protocol" if self._protocol is None else "metaData"
            raise LogError(
                f"the log of {self._table} has no {missing} action up to version {version}; "
                f"ask the provider to repair the table"
            )
        return Head(version, self._protocol, self._metadata)


def _load(
    store: LogStore, segment: Segment, table: str, gate: bool, has_files: bool
) -> tuple[Head, Checkpoint | None, CommitTail | None, Checksum | None]:
    """The small actions, the checkpoint and, with ``has_files``, the files of the commits, which are fetched beside the checkpoint."""
    with DaemonPool(READERS + 1) as threads:
        reading = threads.submit(partial(read_checksum, store, segment)) if segment.checksums else None
        contents = _contents(threads, store, segment, table)
        checkpoint, state = None, _State(None, table)
        if segment.checkpoint is not None:
            with _of_checkpoint(segment.checkpoint.version, table):
                checkpoint = _checkpoint(store, segment.checkpoint, table)
                state = _State(checkpoint, table)
        tail = CommitTail(store.root, has_checkpoint=checkpoint is not None) if has_files else None
        groups = _groups(state.taking(contents))
        if tail is None:
            deque(groups, 0)
        else:  # Arrow parses what follows beside
            for group, table in CallsInOrder(
                (partial(_parsed, g, state.partitions) for g in groups), threads, lambda: 2
            ):
                tail.append(group, table)
        checksum = None if reading is None else result_of(reading)
        head = state.head(segment.version)
        if checksum is not None and checkpoint is not None:
            with _of_checkpoint(checkpoint.version, table):
                source = head if checksum.version == head.version else checkpoint
                checksum.check_head(source.protocol, source.metadata, checkpoint)
    if gate:
        head.protocol.check(table)
        head.metadata.check(table)
    return head, checkpoint, tail, checksum


def _checkpoint(store: LogStore, files: CheckpointFiles, table: str) -> Checkpoint:
    """A checkpoint; the one that was read last, if the store has kept it."""
    if isinstance(store, CachedLogStore):
        return store.checkpoints.get_or_make(files, lambda: Checkpoint(store, files, table))
    return Checkpoint(store, files, table)


def _groups(contents: Iterable[tuple[str, bytes]]) -> Iterator[_Group]:
    """A segment's commits, oldest first, in groups of bounded size; a long commit is cut into several."""
    group: _Group = []
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


def _parsed(group: _Group, partitions: Collection[str]) -> tuple[_Group, pa.Table]:
    return group, parse_file_actions(group, partitions)


def _contents(threads: DaemonPool, store: LogStore, segment: Segment, table: str) -> Iterable[tuple[str, bytes]]:
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


def times_of(store: LogStore, table: str = "the table") -> CommitTimes:
    """When the table's versions were committed. Raises as :func:`read_snapshot`."""
    head = load_head(store, table=table)
    return CommitTimes(store, head.version, head.metadata, table)


def head_at(store: LogStore, version: int, table: str) -> Head:
    """Protocol and metadata of a version whose commit is there.

    They are those of the log up to it. Where that is gone, they are those of a later version, if no commit between has others, or those
    that its own commit or the last one before it has.

    Raises:
        VersionError: The version's commit is not there, or none of these tells.
        LogError: The log cannot be read.
    """
    try:
        return load_head(store, version=version, table=table)
    except (VersionError, LogError) as error:
        newest = find_segment(store, None, table).version
        if version > newest:
            raise
        if read_if_there(store, in_log(commit_name(version))) is None:
            raise gone(store, version, table) from error
        unread = error
    protocol, metadata, changed_at = _as_later(store, version, newest, table)
    earlier = version
    while (protocol is None or metadata is None) and (
        data := read_if_there(store, in_log(commit_name(earlier)))
    ) is not None:
        own_protocol, own_metadata = _own(data, earlier)
        protocol, metadata, earlier = protocol or own_protocol, metadata or own_metadata, earlier - 1
    if protocol is None or metadata is None:
        raise VersionError(
            f"version {version} of {table} cannot be read: its log was cleaned up before version {earlier + 1}, and what the columns were "
            f"until version {changed_at} changed them is not known; ask the provider to keep the log for longer, and read the table anew "
            f"from a snapshot"
        ) from unread
    protocol.check(table)
    metadata.check(table)
    return Head(version, protocol, metadata)


def _as_later(
    store: LogStore, version: int, newest: int, table: str
) -> tuple[Protocol | None, Metadata | None, int | None]:
    """What a version has in common with the next one that can be replayed; and the first version that changed some of it."""
    entries = store.list_from(LOG_DIR, f"{version:020d}.")
    replayable = min(LogListing(entries).checkpoints if entries else (), default=newest)
    head = load_head(store, version=replayable, table=table)
    protocol: Protocol | None = head.protocol
    metadata: Metadata | None = head.metadata
    changed_at: int | None = None
    versions = range(version + 1, replayable + 1)
    for later, data in zip(
        versions,
        in_parallel([partial(read_if_there, store, in_log(commit_name(later))) for later in versions]),
        strict=True,
    ):
        own_protocol, own_metadata = (None, None) if data is None else _own(data, later)
        if data is None or own_protocol is not None:
            protocol = None
        if data is None or own_metadata is not None:
            metadata = None
        if protocol is None or metadata is None:
            changed_at = later if changed_at is None else changed_at
    return protocol, metadata, changed_at


def _own(data: bytes, version: int) -> tuple[Protocol | None, Metadata | None]:
    """The protocol and the metadata that a commit has itself."""
    path = in_log(commit_name(version))
    protocols = [protocol_from(tree, path) for tree in find_actions(data, "protocol", path)]
    metadata = [metadata_from(tree, path) for tree in find_actions(data, "metaData", path)]
    return protocols[-1] if protocols else None, metadata[-1] if metadata else None


def gone(store: LogStore, version: int, table: str) -> VersionError:
    """The error of a version whose commit is not there any more."""
    remaining = LogListing(store.list_from(LOG_DIR, f"{version:020d}.") or ()).commits
    begin = f", whose commits begin with version {min(remaining)}" if remaining else ""
    return VersionError(
        f"version {version} of {table} is no longer in its log{begin}: {in_log(commit_name(version))} cannot be read, and what it "
        f"changed cannot be told; read the table anew from a snapshot"
    )
