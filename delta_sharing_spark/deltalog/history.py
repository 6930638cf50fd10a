"""Versions and timestamps (Delta protocol, "In-Commit Timestamps")."""

from __future__ import annotations

from delta_sharing_spark.deltalog.actions import IN_COMMIT_TIMESTAMPS, Metadata
from delta_sharing_spark.deltalog.commits import find_actions
from delta_sharing_spark.deltalog.paths import LogStore, commit_name, in_log
from delta_sharing_spark.errors import LogError

_ENABLED_VERSION = "delta.inCommitTimestampEnablementVersion"


def in_commit_since(metadata: Metadata) -> int | None:
    """The first version that keeps its own timestamp, None if the table does not keep any."""
    if not metadata.enabled(IN_COMMIT_TIMESTAMPS):
        return None
    text = metadata.configuration.get(_ENABLED_VERSION)
    return int(text) if text is not None and text.isdecimal() else 0


def commit_timestamp(store: LogStore, version: int, metadata: Metadata, table: str) -> int:
    path = in_log(commit_name(version))
    try:
        since = in_commit_since(metadata)
        if since is not None and version >= since:
            for info in find_actions(store.read(path), "commitInfo", path):
                stamp = info.get("inCommitTimestamp")
                if isinstance(stamp, int):
                    return stamp
            raise LogError(f"{path} of {table} has no inCommitTimestamp, which the table requires", file=path)
        modified = store.modified(path)
    except FileNotFoundError:
        modified = None
    if modified is None:
        raise LogError(f"the time of version {version} of {table} is unknown: {path} is gone", file=path)
    return modified


def version_at(store: LogStore, timestamp_ms: int, *, table: str) -> int:
    raise NotImplementedError
