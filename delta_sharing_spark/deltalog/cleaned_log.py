"""Tells the protocol and metadata of a version in a log that was cleaned up before it.

A clean-up removes a checkpoint with the commits before it, and may leave commits before the next checkpoint. Their versions cannot be
replayed, but the commits can be read, by a feed or a stream that has all before them.
"""

from __future__ import annotations

from functools import partial

from delta_sharing_spark.deltalog.actions import find_actions, metadata_from, protocol_from
from delta_sharing_spark.deltalog.paths import LOG_DIR, LogStore, commit_name, in_log
from delta_sharing_spark.deltalog.replay import Head, load_head
from delta_sharing_spark.deltalog.segment import LogListing, find_segment
from delta_sharing_spark.errors import LogError, VersionError
from delta_sharing_spark.network.parallel_calls import in_parallel
from delta_sharing_spark.schema.table_records import Metadata, Protocol


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
        if _commit(store, version) is None:
            raise gone(store, version, table) from error
        unread = error
    protocol, metadata, changed_at = _as_later(store, version, newest, table)
    earlier = version
    while (protocol is None or metadata is None) and (data := _commit(store, earlier)) is not None:
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
    for later, data in zip(versions, in_parallel([partial(_commit, store, later) for later in versions]), strict=True):
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


def _commit(store: LogStore, version: int) -> bytes | None:
    """A commit; None where it is not there."""
    try:
        return store.read(in_log(commit_name(version)))
    except (FileNotFoundError, PermissionError):
        return None


def gone(store: LogStore, version: int, table: str) -> VersionError:
    """The error of a version whose commit is not there any more."""
    remaining = LogListing(store.list_from(LOG_DIR, f"{version:020d}.") or ()).commits
    begin = f", whose commits begin with version {min(remaining)}" if remaining else ""
    return VersionError(
        f"version {version} of {table} is no longer in its log{begin}: {in_log(commit_name(version))} cannot be read, and what it "
        f"changed cannot be told; read the table anew from a snapshot"
    )
