"""Tells when the versions of a table were committed (Delta protocol, "In-Commit Timestamps").

A version that keeps its own timestamp has it in its ``commitInfo``. Any other has its commit file's modification time,
moved up where needed so that time grows with versions, as Delta Lake does.
"""

from __future__ import annotations

import bisect
import re
from functools import cached_property

from delta_sharing_spark.deltalog.actions import IN_COMMIT_TIMESTAMPS, find_actions
from delta_sharing_spark.deltalog.paths import LOG_DIR, LogStore, commit_name, in_log, parse_name, read_if_there
from delta_sharing_spark.errors import LogError, VersionError
from delta_sharing_spark.scan.plan import MAX_MILLIS
from delta_sharing_spark.schema.instants import show_millis
from delta_sharing_spark.schema.table_records import Metadata
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
            if (data := read_if_there(self._store, path)) is None:
                raise self._unknown(version)
            return in_commit_timestamp(data, path, self._table)
        try:
            modified = (
                self._store.info(path).modified_ms
                if self._times_by_listing is None
                else self._times_by_listing.get(version)
            )
        except (FileNotFoundError, PermissionError):
            modified = None
        if modified is None:
            raise self._unknown(version) from None
        return modified

    def at_or_before(self, timestamp_ms: int, *, may_be_late: bool = False) -> int:
        """The last version committed at or before a timestamp (time travel, a range's end).

        Args:
            timestamp_ms: Milliseconds since the epoch.
            may_be_late: Whether one after the newest version means that version.

        Raises:
            VersionError: It lies before the first version there, or after the newest.
        """
        low, high = self._search_range(timestamp_ms)
        first = self.time(low)
        if timestamp_ms < first:
            raise VersionError(
                f"{show_millis(timestamp_ms)} is before the earliest version of {self._table} that is available: version {low} "
                f"of {show_millis(first)}; ask for that time or later"
            )
        version = low + bisect.bisect_right(range(low, high + 1), timestamp_ms, key=self.time) - 1
        if version == self._newest and not may_be_late and timestamp_ms > self.time(version):
            raise self._too_late(timestamp_ms)
        return version

    def at_or_after(self, timestamp_ms: int) -> int:
        """The first version there that was committed at or after a timestamp (a range's start); raises VersionError where none was."""
        try:
            version = self.at_or_before(timestamp_ms, may_be_late=True)
        except VersionError:
            return self.first()
        if self.time(version) >= timestamp_ms:
            return version
        if version == self._newest:
            raise self._too_late(timestamp_ms)
        return version + 1

    def _too_late(self, timestamp_ms: int) -> VersionError:
        return VersionError(
            f"{show_millis(timestamp_ms)} is after the newest version of {self._table}: version {self._newest} of "
            f"{show_millis(self.time(self._newest))}; ask for that time or earlier"
        )

    def of_newest(self, most: int) -> dict[int, int]:
        """The newest versions, at most ``most``, and their timestamps in milliseconds, the newest last."""
        versions = range(max(self.first(), self._newest - most + 1), self._newest + 1)
        return {version: self.time(version) for version in versions}

    def first(self) -> int:
        """The earliest version whose commit is there, with all commits after it."""
        if self._times_by_listing is not None:
            first = self._newest
            while first - 1 in self._times_by_listing:
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
    def _times_by_listing(self) -> dict[int, int] | None:
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
