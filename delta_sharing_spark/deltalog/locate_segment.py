"""Finds the files that a version is replayed from, by a listing where the storage permits one.

The versions just before the one wanted are listed first: they mostly have a checkpoint. Where they have none, or the
version is unknown, ``_last_checkpoint`` tells where to look; it is a hint, and never trusted beyond that.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from operator import itemgetter

from delta_sharing_spark.deltalog.paths import (
    LAST_CHECKPOINT,
    LISTED_BEFORE,
    LOG_DIR,
    LogEntry,
    LogStore,
    in_log,
    parse_name,
)
from delta_sharing_spark.deltalog.segment import CheckpointFiles, CommitFile, Hint, Segment, hole, no_log, not_yet
from delta_sharing_spark.deltalog.unlisted_log import UnlistedLog
from delta_sharing_spark.errors import LogError, VersionError

_log = logging.getLogger(__name__)


def find_segment(store: LogStore, version: int | None, table: str) -> Segment:
    """The files of a version.

    Args:
        store: The table's storage.
        version: None for the newest.
        table: How errors name the table.

    Raises:
        LogError: There is no log, or it has a hole.
        VersionError: The version is not there yet, or no longer.
        CredentialError: The storage refuses to read the log.
    """
    wanted = store.known_version if version is None else version
    entries = [] if wanted is None else list_before(store, wanted)
    listing = LogListing(entries or ())
    if entries is not None and wanted is not None and (wanted <= LISTED_BEFORE or listing.has_checkpoint(version)):
        return listing.segment(version, table)
    hint, refused = _read_hint(store)
    usable = hint if hint is not None and (version is None or version >= hint.version) else None
    if entries is not None:
        entries = store.list_from(LOG_DIR, f"{usable.version if usable else 0:020d}.")
    if entries is None:
        return UnlistedLog(store, table, refused).segment(hint, version)
    listing = LogListing(entries)
    if usable is not None and not listing.has_checkpoint(version):
        _log.info("_last_checkpoint of %s names version %d, which is not there; listing the log", table, usable.version)
        listing = LogListing(store.list_from(LOG_DIR, f"{0:020d}.") or [])
    return listing.segment(version, table)


def list_before(store: LogStore, version: int) -> list[LogEntry] | None:
    """The log from a little before a version on, None where listing is not permitted: the first request for a version."""
    return store.list_from(LOG_DIR, f"{max(0, version - LISTED_BEFORE):020d}.")


def _read_hint(store: LogStore) -> tuple[Hint | None, bool]:
    """The hint, None if it is missing or malformed; and whether the storage refused to read it."""
    try:
        data = store.read(LAST_CHECKPOINT)
    except FileNotFoundError:
        return None, False
    except PermissionError:  # a credential that cannot list is refused what does not exist
        return None, True
    try:
        tree = json.loads(data)
        version, parts = tree["version"], tree.get("parts") or 0
        v2 = tree.get("v2Checkpoint") or {}
        name = v2.get("path")
        if type(version) is not int or type(parts) is not int or version < 0 or not 0 <= parts < 1 << 20:
            raise ValueError("version and parts are not counts")
        named = parse_name(name) if isinstance(name, str) else None
        return Hint(version, parts, name if named and named.kind in {"v2", "classic"} else None), False
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        _log.warning("_last_checkpoint of %s is corrupt (%s); reading the log without it", store.root, error)
        return None, False


class LogListing:
    """A listed log, sorted into commits, compactions and complete checkpoints."""

    def __init__(self, entries: Iterable[LogEntry]) -> None:
        self.commits: dict[int, LogEntry] = {}
        self.compacted: dict[int, list[tuple[int, LogEntry]]] = {}
        self.checkpoints: dict[int, CheckpointFiles] = {}
        parts: dict[tuple[int, int], dict[int, str]] = {}
        for entry in entries:
            name = parse_name(entry.name)
            if name is None:
                continue
            if name.kind == "commit":
                self.commits[name.version] = entry
            elif name.kind == "compacted":
                if name.last > name.version and entry.size:
                    self.compacted.setdefault(name.version, []).append((name.last, entry))
            elif entry.size == 0:
                continue  # a checkpoint that is being written
            elif name.kind == "multipart":
                parts.setdefault((name.version, name.parts), {})[name.part] = entry.name
            elif name.kind == "v2" or name.version not in self.checkpoints:
                self.checkpoints[name.version] = CheckpointFiles(name.version, (in_log(entry.name),))
        for (version, count), named in parts.items():
            if len(named) == count and set(named) == set(range(1, count + 1)):
                paths = tuple(in_log(named[part]) for part in range(1, count + 1))
                self.checkpoints.setdefault(version, CheckpointFiles(version, paths))

    def has_checkpoint(self, version: int | None) -> bool:
        return any(version is None or v <= version for v in self.checkpoints)

    def segment(self, version: int | None, table: str) -> Segment:
        known = self.commits.keys() | self.checkpoints.keys()
        if not known:
            raise no_log(table)
        newest = max(known)
        target = newest if version is None else version
        if target > newest:
            raise not_yet(table, target, newest)
        base = max((v for v in self.checkpoints if v <= target), default=None)
        start = 0 if base is None else base + 1
        commits = []
        while start <= target:
            compaction = max(
                ((last, e) for last, e in self.compacted.get(start, ()) if last <= target),
                default=None,
                key=itemgetter(0),
            )
            if compaction is not None:
                last, entry = compaction
            elif start in self.commits:
                last, entry = start, self.commits[start]
            elif base is None and not any(v < start for v in known):
                raise self._gone(table, target, version)
            else:
                raise hole(table, start, target)
            commits.append(CommitFile(in_log(entry.name), last, entry.size))
            start = last + 1
        return Segment(target, None if base is None else self.checkpoints[base], tuple(commits))

    def _gone(self, table: str, target: int, version: int | None) -> LogError | VersionError:
        first = min(self.checkpoints, default=None)
        if version is not None and first is not None:
            return VersionError(
                f"version {target} of {table} is no longer in its log: the earliest that can be read is {first}; "
                f"ask for version {first} or later"
            )
        oldest = min(self.commits, default=0)
        return LogError(
            f"the log of {table} is incomplete: it starts with commit {oldest} and has no complete checkpoint before it; "
            f"ask the provider to repair the table"
        )
