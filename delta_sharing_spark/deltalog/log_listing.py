"""Chooses from a listing of the log the files that make a version."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter

from delta_sharing_spark.deltalog.paths import LogEntry, in_log, parse_name
from delta_sharing_spark.deltalog.segment import CheckpointFiles, CommitFile, Segment, hole, no_log, not_yet
from delta_sharing_spark.errors import LogError, VersionError


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
                self.checkpoints[name.version] = CheckpointFiles(name.version, name.kind, (in_log(entry.name),))
        for (version, count), named in parts.items():
            if len(named) == count and set(named) == set(range(1, count + 1)):
                paths = tuple(in_log(named[part]) for part in range(1, count + 1))
                self.checkpoints.setdefault(version, CheckpointFiles(version, "multipart", paths))

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
            commits.append(CommitFile(in_log(entry.name), start, last, entry.size, entry.modified_ms))
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
