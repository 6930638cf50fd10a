"""Which files make a version: one complete checkpoint, if any, and every commit after it.

A listing is a short cut. Without one (a credential that may only GET) the commits are probed from the checkpoint that
``_last_checkpoint`` names, in windows; the hint is never trusted beyond that.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from delta_sharing_spark.deltalog.paths import (
    LAST_CHECKPOINT,
    LogEntry,
    LogStore,
    checkpoint_names,
    commit_name,
    in_log,
    parse_name,
)
from delta_sharing_spark.errors import CredentialError, LogError, VersionError

logger = logging.getLogger(__name__)

_READERS = 8
#: Bytes of commits read ahead of their parsing.
_AHEAD_BYTES = 2 << 20
#: Commits asked for at once when the log is probed: a hole is seen if a later commit lies in the same window.
_WINDOW = 16
#: How far below a version a checkpoint is looked for when nothing can be listed and the hint is of no use.
_CHECKPOINT_PROBES = 1024

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """A complete checkpoint: its version, kind (``classic``, ``multipart``, ``v2``) and paths relative to the root."""

    version: int
    kind: str
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CommitFile:
    """A commit, or a compaction of the commits ``first`` to ``last``. ``data`` is there if probing read it already."""

    path: str
    first: int
    last: int
    size: int = 0
    modified_ms: int | None = None
    data: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Segment:
    """What a snapshot of ``version`` is replayed from, commits oldest first."""

    version: int
    checkpoint: CheckpointFiles | None
    commits: tuple[CommitFile, ...]


@dataclass(frozen=True, slots=True)
class _Hint:
    version: int
    parts: int
    v2_name: str | None


def read_all(read: Callable[[str], bytes], paths: Sequence[str]) -> Iterator[bytes]:
    """Read files in their order, several at a time, never many bytes ahead of the caller."""
    if len(paths) <= 1:
        yield from map(read, paths)
        return
    with ThreadPoolExecutor(_READERS, thread_name_prefix="delta-log") as pool:
        pending: deque[Future[bytes]] = deque()
        ahead, size, rest = 2, 0, iter(paths)
        try:
            while True:
                while len(pending) < ahead and (path := next(rest, None)) is not None:
                    pending.append(pool.submit(read, path))
                if not pending:
                    return
                data = pending.popleft().result()
                size = max(len(data), size * 3 // 4)
                ahead = max(1, min(2 * _READERS, _AHEAD_BYTES // max(size, 1)))
                yield data
        finally:
            for future in pending:
                future.cancel()


def _parallel(function: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
    if len(items) <= 1:
        return list(map(function, items))
    with ThreadPoolExecutor(_READERS, thread_name_prefix="delta-log") as pool:
        return list(pool.map(function, items))


def find_segment(store: LogStore, version: int | None, table: str) -> Segment:
    """The files of a version.

    Args:
        store: Where the table lies.
        version: None for the newest.
        table: How errors name the table.

    Raises:
        LogError: There is no log, or it has a hole.
        VersionError: The version is not there yet, or no longer.
        CredentialError: The storage refuses to read the log.
    """
    hint, refused = _read_hint(store)
    usable = hint if hint is not None and (version is None or version >= hint.version) else None
    entries = store.list_from("_delta_log", f"{usable.version if usable else 0:020d}.")
    if entries is None:
        return _Probe(store, table, refused).segment(hint, version)
    found = _Listing(entries)
    if usable is not None and not found.has_checkpoint(version):
        logger.info(
            "_last_checkpoint of %s names version %d, which is not there; listing the log", table, usable.version
        )
        found = _Listing(store.list_from("_delta_log", f"{0:020d}.") or [])
    return found.segment(version, table)


def _read_hint(store: LogStore) -> tuple[_Hint | None, bool]:
    """The hint, None if missing or unreadable as such; and whether the storage refused it."""
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
        return _Hint(version, parts, name if named and named.kind in {"v2", "classic"} else None), False
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        logger.warning("_last_checkpoint of %s is corrupt (%s); reading the log without it", store.root, error)
        return None, False


class _Listing:
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
            raise _not_yet(table, target, newest)
        base = max((v for v in self.checkpoints if v <= target), default=None)
        start = 0 if base is None else base + 1
        commits = []
        while start <= target:
            compaction = max(
                ((last, e) for last, e in self.compacted.get(start, ()) if last <= target), default=None, key=_last
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


def _last(candidate: tuple[int, LogEntry]) -> int:
    return candidate[0]


class _Probe:
    """The log read by GET alone."""

    def __init__(self, store: LogStore, table: str, refused: bool) -> None:
        self.store, self.table = store, table
        self._refusals = refused
        self._known: str | None = None if refused else LAST_CHECKPOINT

    def segment(self, hint: _Hint | None, version: int | None) -> Segment:
        base = self._checkpoint_of(hint) if hint is not None and (version is None or hint.version <= version) else None
        if base is None and version is not None:
            base = self._checkpoint_below(version)
        commits, newest = self._commits(0 if base is None else base.version + 1, version)
        if base is None and not commits:
            raise self._nothing(hint)
        if newest is None:
            assert base is not None
            newest = base.version
        if version is not None and newest < version:
            raise _not_yet(self.table, version, newest)
        return Segment(newest, base, tuple(commits))

    def _get(self, path: str) -> bytes | None:
        """A file's bytes, None if absent; a refusal means absent as long as something known still reads."""
        try:
            return self.store.read(path)
        except FileNotFoundError:
            return None
        except PermissionError:
            self._refusals = True
            return None

    def _confirm(self) -> None:
        """After refusals: the credential still reads what is known to exist, so what was refused is absent.

        Raises:
            CredentialError: It does not, or nothing is known to exist.
        """
        if not self._refusals:
            return
        self._refusals = False
        if self._known is not None:
            try:
                self.store.size(self._known) if self._known.endswith(".parquet") else self.store.read(self._known)
            except (PermissionError, FileNotFoundError):
                pass  # nor does the known object: the credential is the cause
            else:
                return
        raise CredentialError(
            f"the storage refuses to read the log of {self.table}: no object of it could be read; check that the "
            f"credential covers the table's location, or ask for accessMode=url"
        )

    def _checkpoint_of(self, hint: _Hint) -> CheckpointFiles | None:
        if hint.v2_name is not None:
            names = [hint.v2_name]
            kind = "v2"
        else:
            names = checkpoint_names(hint.version, hint.parts)
            kind = "multipart" if hint.parts else "classic"
        paths = tuple(in_log(name) for name in names)
        if all(_parallel(self._exists, paths)):
            self._confirm()
            return CheckpointFiles(hint.version, kind, paths)
        self._confirm()
        logger.info("_last_checkpoint of %s names version %d, which is not there", self.table, hint.version)
        return None

    def _exists(self, path: str) -> bool:
        try:
            self.store.size(path)
        except FileNotFoundError:
            return False
        except PermissionError:
            self._refusals = True
            return False
        return True

    def _checkpoint_below(self, version: int) -> CheckpointFiles | None:
        """The newest classic checkpoint at or below a version, looked for by name."""
        for top in range(version, max(-1, version - _CHECKPOINT_PROBES), -_WINDOW):
            versions = range(top, max(-1, top - _WINDOW), -1)
            paths = [in_log(checkpoint_names(v)[0]) for v in versions]
            for path, found, candidate in zip(paths, _parallel(self._exists, paths), versions, strict=True):
                if found:
                    self._known = path
                    self._confirm()
                    return CheckpointFiles(candidate, "classic", (path,))
        return None

    def _commits(self, start: int, version: int | None) -> tuple[list[CommitFile], int | None]:
        """Commits from ``start`` up to ``version`` or the newest, and the last one's version."""
        commits: list[CommitFile] = []
        while version is None or start <= version:
            stop = start + _WINDOW if version is None else min(start + _WINDOW, version + 1)
            paths = [in_log(commit_name(v)) for v in range(start, stop)]
            found = _parallel(self._get, paths)
            there = [i for i, data in enumerate(found) if data is not None]
            if there:
                self._known = paths[there[0]]
            self._confirm()
            if there and there != list(range(len(there))):
                missing = next(i for i, data in enumerate(found) if data is None)
                raise hole(self.table, start + missing, start + there[-1])
            for index in there:
                data = found[index]
                assert data is not None
                commits.append(CommitFile(paths[index], start + index, start + index, len(data), None, data))
            if len(there) < len(paths):
                break
            start = stop
        return commits, commits[-1].last if commits else None

    def _nothing(self, hint: _Hint | None) -> LogError:
        if hint is None:
            return no_log(self.table)
        return LogError(
            f"the log of {self.table} cannot be read without listing: the checkpoint of version {hint.version} that "
            f"_last_checkpoint names is missing, and so is commit 0; ask the provider to repair the table, or to allow "
            f"listing of _delta_log"
        )


def no_log(table: str) -> LogError:
    return LogError(
        f"{table} has no Delta log: no commit and no checkpoint lies in _delta_log; check the table's location with the "
        f"provider"
    )


def hole(table: str, missing: int, last: int) -> LogError:
    """The error of a log that lacks a commit before its last."""
    return LogError(
        f"the log of {table} has a hole: versions are not contiguous, {commit_name(missing)} is missing before version "
        f"{last}; ask the provider to repair the table, or read a version before {missing}",
        file=in_log(commit_name(missing)),
    )


def _not_yet(table: str, version: int, newest: int) -> VersionError:
    return VersionError(
        f"version {version} of {table} does not exist: the newest is {newest}; ask for a version up to {newest}"
    )
