"""Finds the version that was committed before or after a moment, and when the newest versions were."""

from __future__ import annotations

from delta_sharing_spark.deltalog.commit_times import CommitTimes
from delta_sharing_spark.deltalog.paths import LogStore
from delta_sharing_spark.deltalog.replay import load_head


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
    """The newest versions and their timestamps in milliseconds, at most ``most``, the newest last.

    Raises:
        LogError: The log cannot be read.
    """
    times, newest = _times(store, table)
    return {version: times.time(version) for version in range(max(times.first(), newest - most + 1), newest + 1)}


def _times(store: LogStore, table: str) -> tuple[CommitTimes, int]:
    head = load_head(store, table=table)
    return CommitTimes(store, head.version, head.metadata, table), head.version
