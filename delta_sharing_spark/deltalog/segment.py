"""Finds the files that a version is replayed from: one complete checkpoint, if any, and every commit after it.

Where the storage permits a listing, the versions just before the one wanted are listed first: they mostly have a checkpoint. Where
they have none, or the version is unknown, ``_last_checkpoint`` tells where to look; it is a hint, and never trusted beyond that.

Where the credential may not list, only names that can be told are asked for: commits, checkpoints of one file by their
version, and the checkpoint that ``_last_checkpoint`` names. Other checkpoints have names that cannot be guessed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from delta_sharing_spark.deltalog.paths import (
    LAST_CHECKPOINT,
    LISTED_BEFORE,
    LOG_DIR,
    LogStore,
    checkpoint_names,
    checksum_name,
    commit_name,
    in_log,
    parse_name,
)
from delta_sharing_spark.errors import CredentialError, LogError, VersionError
from delta_sharing_spark.network.parallel_calls import DaemonPool, in_parallel
from delta_sharing_spark.scan.fetching import CallsInOrder
from delta_sharing_spark.storage.answers import action_of, reason_of
from delta_sharing_spark.storage.locations import StoredObject

#: Commits that are read at once.
READERS = 8
#: Bytes of commits read ahead of their parsing.
_AHEAD_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """A complete checkpoint: its version, and its paths relative to the root."""

    version: int
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CommitFile:
    """A commit."""

    path: str
    version: int
    size: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """The files that a snapshot of ``version`` is replayed from, commits oldest first.

    Attributes:
        checksums: Files that say how many files the version or its checkpoint has, by which a checkpoint is checked; the best
            first. Where the log cannot be listed, they may be absent.
    """

    version: int
    checkpoint: CheckpointFiles | None
    commits: tuple[CommitFile, ...]
    checksums: tuple[str, ...] = ()


def read_all(
    threads: DaemonPool, read: Callable[[str], bytes], paths: Sequence[str], largest: int = 0
) -> Iterator[bytes]:
    """Read commits in their order, several at a time, never many bytes ahead of the caller.

    The first files are asked for at once; how many depends on ``largest``, the bytes of the largest file, or 0 if that is unknown.

    Raises:
        LogError: A commit is empty. Delta on Spark reads it as one that changed nothing. But every writer says at least
        who wrote. So it is an upload that broke off, and nobody can tell what it added or removed.
    """
    size = largest

    def ahead() -> int:
        return max(1, min(2 * READERS, _AHEAD_BYTES // (size or _AHEAD_BYTES // 2)))

    def received() -> Iterator[bytes]:
        nonlocal size
        for path, data in zip(paths, commits, strict=True):
            if not data or data.isspace():
                raise LogError(
                    f"the commit {path} is empty, and what it changed is not known; if the table is being written, try again, else "
                    f"ask the provider to repair its log, or read a version before it",
                    file=path,
                )
            yield data
            size = max(len(data), size * 3 // 4)

    commits = CallsInOrder((partial(read, path) for path in paths), threads, ahead)
    return received()


def no_log(table: str) -> LogError:
    """The error of a location without a log."""
    return LogError(
        f"{table} has no Delta log: no commit and no checkpoint lies in _delta_log; check the table's location with the "
        f"provider",
        has_no_log=True,
    )


def hole(table: str, missing: int, last: int) -> LogError:
    """The error of a log that lacks a commit before its last."""
    return LogError(
        f"the log of {table} has a hole: versions are not contiguous, {commit_name(missing)} is missing before version "
        f"{last}; ask the provider to repair the table, or read a version before {missing}",
        file=in_log(commit_name(missing)),
    )


def refused(table: str, path: str, refusal: PermissionError) -> CredentialError:
    """The error of a file of the log that is there and may not be read."""
    action = action_of(refusal, "ask the provider whether the credential covers it")
    return CredentialError(
        f"the storage refuses to read {path} of {table} with the credential of the table's location ({reason_of(refusal)}); "
        f"{action}, or use accessMode=url if the server offers it",
        file=path,
    )


def not_yet(table: str, version: int, newest: int) -> VersionError:
    """The error of a version above the newest."""
    return VersionError(
        f"version {version} of {table} does not exist: the newest is {newest}; ask for a version up to {newest}"
    )


_log = logging.getLogger(__name__)


def find_segment(
    store: LogStore, version: int | None, table: str, damaged: Collection[CheckpointFiles] = ()
) -> Segment:
    """The files of a version.

    Args:
        store: The table's storage.
        version: None for the newest.
        table: How errors name the table.
        damaged: Checkpoints that are done without.

    Raises:
        LogError: There is no log, or it has a hole.
        VersionError: The version is not there yet, or no longer.
        CredentialError: The storage refuses to read the log.
    """
    target = store.known_version if version is None else version
    entries = [] if target is None else list_before(store, target)
    listing = LogListing(entries or (), damaged)
    if entries is not None and target is not None and (target <= LISTED_BEFORE or listing.has_checkpoint(version)):
        return listing.segment(version, table)
    hint, refusal = _read_hint(store)
    hint = None if hint in damaged else hint
    usable = hint if hint is not None and (version is None or version >= hint.version) else None
    if entries is not None:
        entries = store.list_from(LOG_DIR, f"{usable.version if usable else 0:020d}.")
    if entries is None:
        return UnlistedLog(store, table, refusal, damaged).segment(hint, version)
    listing = LogListing(entries, damaged)
    if usable is not None and not listing.has_checkpoint(version):
        _log.info("_last_checkpoint of %s names version %d, which is not there; listing the log", table, usable.version)
        listing = LogListing(store.list_from(LOG_DIR, f"{0:020d}.") or [], damaged)
    return listing.segment(version, table)


def list_before(store: LogStore, version: int) -> list[StoredObject] | None:
    """The log from a little before a version on, None where listing is not permitted: the first request for a version."""
    return store.list_from(LOG_DIR, f"{max(0, version - LISTED_BEFORE):020d}.")


def _read_hint(store: LogStore) -> tuple[CheckpointFiles | None, PermissionError | None]:
    """The checkpoint that ``_last_checkpoint`` names, perhaps wrongly, None if it is missing or malformed; and the storage's refusal
    to read it, if it did."""
    try:
        data = store.read(LAST_CHECKPOINT)
    except FileNotFoundError:
        return None, None
    except PermissionError as refusal:  # a credential that cannot list is refused what does not exist
        return None, refusal
    try:
        tree = json.loads(data)
        version, parts = tree["version"], tree.get("parts") or 0
        v2 = tree.get("v2Checkpoint") or {}
        name = v2.get("path")
        if type(version) is not int or type(parts) is not int or version < 0 or not 0 <= parts < 1 << 20:
            raise ValueError("version and parts are not counts")
        named = parse_name(name) if isinstance(name, str) else None
        names = [str(name)] if named and named.kind in {"v2", "classic"} else checkpoint_names(version, parts)
        return CheckpointFiles(version, tuple(map(in_log, names))), None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        _log.warning("_last_checkpoint of %s is corrupt (%s); reading the log without it", store.root, error)
        return None, None


class LogListing:
    """A listed log, sorted into commits and complete checkpoints.

    Log compactions are not read: the protocol leaves that to readers. The commits that they stand for are read side by
    side, and some writers do not reconcile them.

    Args:
        entries: The files of the log, or its end.
        damaged: Checkpoints that are done without; their versions exist.
    """

    def __init__(self, entries: Iterable[StoredObject], damaged: Collection[CheckpointFiles] = ()) -> None:
        self.commits: dict[int, StoredObject] = {}
        self.checkpoints: dict[int, CheckpointFiles] = {}
        self._beside: set[str] = set()
        self._damaged = damaged
        parts: dict[tuple[int, int], dict[int, str]] = {}
        for entry in entries:
            name = parse_name(entry.name)
            if name is None:
                if entry.name.endswith(".crc") or in_log(entry.name) == LAST_CHECKPOINT:
                    self._beside.add(in_log(entry.name))
            elif name.kind == "commit":
                self.commits[name.version] = entry
            elif name.kind == "multipart":
                parts.setdefault((name.version, name.parts), {})[name.part] = entry.name
            else:
                self._add(CheckpointFiles(name.version, (in_log(entry.name),)), is_preferred=name.kind == "v2")
        for (version, count), named in parts.items():
            if len(named) == count and set(named) == set(range(1, count + 1)):
                self._add(CheckpointFiles(version, tuple(in_log(named[part]) for part in range(1, count + 1))))

    def _add(self, files: CheckpointFiles, *, is_preferred: bool = False) -> None:
        if files not in self._damaged and (is_preferred or files.version not in self.checkpoints):
            self.checkpoints[files.version] = files

    def has_checkpoint(self, version: int | None) -> bool:
        return any(version is None or v <= version for v in self.checkpoints)

    def segment(self, version: int | None, table: str) -> Segment:
        versions = self.commits.keys() | self.checkpoints.keys() | {files.version for files in self._damaged}
        if not versions:
            raise no_log(table)
        newest = max(versions)
        target = newest if version is None else version
        if target > newest:
            raise not_yet(table, target, newest)
        base = max((v for v in self.checkpoints if v <= target), default=None)
        start = 0 if base is None else base + 1
        commits = []
        for number in range(start, target + 1):
            entry = self.commits.get(number)
            if entry is None:
                if base is None and not any(v < number for v in versions):
                    raise self._gone(table, target, version)
                raise hole(table, number, target)
            commits.append(CommitFile(in_log(entry.name), number, entry.size))
        if base is None:
            return Segment(target, None, tuple(commits))
        checksums = [in_log(checksum_name(target)), in_log(checksum_name(base)), LAST_CHECKPOINT]
        there = tuple(path for path in dict.fromkeys(checksums) if path in self._beside)
        return Segment(target, self.checkpoints[base], tuple(commits), there)

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


#: Files asked for at once.
_WINDOW = 16
#: Missing commits in a row that make the end of a log; fewer are a hole.
_MARGIN = 8
#: Commits between a hint and the version wanted that are read without looking for a newer checkpoint.
_NEAR = 32


class UnlistedLog:
    """The files of a version, found by their names.

    Args:
        store: The table's storage.
        table: How errors name it.
        hint_refusal: The storage's refusal of ``_last_checkpoint``, if it did, which may mean that it is absent.
        damaged: Checkpoints that are done without.
    """

    def __init__(
        self,
        store: LogStore,
        table: str,
        hint_refusal: PermissionError | None,
        damaged: Collection[CheckpointFiles] = (),
    ) -> None:
        self.store, self.table, self._damaged = store, table, damaged
        #: The last one since the credential was confirmed.
        self._refusal = hint_refusal
        self._existing: str | None = LAST_CHECKPOINT if hint_refusal is None else None

    def segment(self, hint: CheckpointFiles | None, version: int | None) -> Segment:
        """The files of a version, None for the newest.

        The search goes down from the version, or from one that the store knows to exist, to the first checkpoint. It
        tries each version's checkpoint and its commit, which is needed anyway. So at most one request per commit is in
        vain. Then it goes up to the newest version.

        Raises:
            LogError: There is no log, it has a hole, or its checkpoint has a name that cannot be guessed.
            VersionError: The version is not there yet, or no longer.
            CredentialError: The storage refuses to read the log.
        """
        base = self._if_complete(hint) if hint is not None and (version is None or hint.version <= version) else None
        top = self.store.known_version if version is None else version
        if base is not None and (top is None or top - base.version <= _NEAR):
            commits = self._up(base.version + 1, version)
        else:
            base_and_commits = None
            if top is not None:
                try:
                    base_and_commits = self._down(top, base, hint)
                except LogError:
                    if version is not None:
                        raise
                    # What is known may be late, and a version after it have the checkpoint.
            if base_and_commits is None:
                newest = self._newest(base, hint)
                if newest is None:
                    raise self._nothing()
                if version is not None:
                    raise self._gone(version) if version <= newest else not_yet(self.table, version, newest)
                top = newest
                base_and_commits = self._down(newest, base, hint)
            assert top is not None
            if base_and_commits is None:
                raise hole(self.table, top, top)
            base, commits = base_and_commits
            if version is None:
                commits += self._up(top + 1, None)
        newest = commits[-1].version if commits else base.version if base is not None else -1
        if version is not None and newest < version:
            raise not_yet(self.table, version, newest)
        if base is None:
            return Segment(newest, None, tuple(commits))
        is_hinted = hint is not None and hint.version == base.version
        checksum = LAST_CHECKPOINT if is_hinted else in_log(checksum_name(base.version))
        return Segment(newest, base, tuple(commits), (checksum,))

    def _down(
        self, top: int, base: CheckpointFiles | None, hint: CheckpointFiles | None
    ) -> tuple[CheckpointFiles | None, list[CommitFile]] | None:
        """The newest checkpoint at or below ``top``, at least ``base``, and the commits above it up to ``top``.

        None: version ``top`` has neither commit nor checkpoint.
        """
        commits: list[CommitFile] = []
        lowest = 0 if base is None else base.version + 1
        newest = top
        while newest >= lowest:
            versions = range(newest, max(lowest - 1, newest - _WINDOW), -1)
            classic = [CheckpointFiles(v, (in_log(checkpoint_names(v)[0]),)) for v in versions]
            there = self._exist([files.paths[0] for files in classic])
            checkpoints = [exists and files not in self._damaged for files, exists in zip(classic, there, strict=True)]
            above = checkpoints.index(True) if True in checkpoints else len(versions)
            window = self._commits(versions[:above])
            self._confirm()
            if None in window:
                missing = window.index(None)
                if versions[missing] == top:
                    return None
                raise self._broken(versions[missing], top, any(window[missing:]), hint)
            commits += [commit for commit in window if commit is not None]
            if above < len(versions):
                base = classic[above]
                break
            newest = versions[-1] - 1
        return base, commits[::-1]

    def _up(self, start: int, version: int | None) -> list[CommitFile]:
        """Commits from ``start`` up to ``version`` or the newest."""
        commits: list[CommitFile] = []
        while version is None or start <= version:
            stop = start + _WINDOW if version is None else min(start + _WINDOW, version + 1)
            window = self._commits(range(start, stop))
            there = [commit for commit in window if commit is not None]
            commits += there
            if len(there) < len(window):
                missing = start + window.index(None)
                later = [commit.version for commit in there if commit.version > missing]
                if stop - missing < _MARGIN and not later:
                    more = range(stop, missing + _MARGIN)
                    later = [v for v, exists in zip(more, self._exist_commits(more), strict=True) if exists]
                self._confirm()
                if later:
                    raise hole(self.table, missing, later[-1])
                break
            self._confirm()
            start = stop
        return commits

    def _newest(self, base: CheckpointFiles | None, hint: CheckpointFiles | None) -> int | None:
        """The newest version, by doubling steps and then halving ones; None if no version to start from is there."""
        hints = (self.store.known_version, None if hint is None else hint.version, 0)
        starts = [v for v in hints if v is not None]
        low = max((v for v, exists in zip(starts, self._exist_commits(starts), strict=True) if exists), default=None)
        if base is not None:
            low = max(base.version, low or 0)
        self._confirm()
        if low is None:
            return None
        high: int | None = None
        while high is None or high - low > 1:
            if high is None:
                versions = [low + (1 << step) for step in range(_WINDOW)]
            else:
                versions = sorted({low + max(1, (high - low) * step // _WINDOW) for step in range(1, _WINDOW)})
            exist = self._exist_commits(versions)
            self._confirm()
            reached = exist.index(False) if False in exist else len(exist)
            if any(exist[reached:]):
                raise hole(self.table, versions[reached], max(v for v, e in zip(versions, exist, strict=True) if e))
            low = versions[reached - 1] if reached else low
            high = versions[reached] if reached < len(versions) else high
        return low

    def _if_complete(self, hint: CheckpointFiles) -> CheckpointFiles | None:
        is_complete = all(self._exist(hint.paths))
        self._confirm()
        if is_complete:
            return hint
        _log.info("_last_checkpoint of %s names version %d, which is not there", self.table, hint.version)
        return None

    def _commits(self, versions: Sequence[int]) -> list[CommitFile | None]:
        """The commits of versions, None for an absent one; the store keeps their bytes, as long as those are few."""

        def commit(version: int) -> CommitFile | None:
            path = in_log(commit_name(version))
            data = self._ask_store(self.store.read, path)
            return None if data is None else CommitFile(path, version, len(data))

        return in_parallel([partial(commit, version) for version in versions])

    def _ask_store(self, ask: Callable[[str], bytes], path: str) -> bytes | None:
        """What is read of a file; None if absent: a refusal means absent as long as something known still reads."""
        try:
            data = ask(path)
        except FileNotFoundError:
            return None
        except PermissionError as refusal:
            self._refusal = refusal
            return None
        self._existing = path
        return data

    def _nothing_of(self, path: str) -> bytes:
        """No bytes of a file that is there."""
        self.store.info(path)
        return b""

    def _exist(self, paths: Sequence[str]) -> list[bool]:
        return [
            data is not None for data in in_parallel([partial(self._ask_store, self._nothing_of, p) for p in paths])
        ]

    def _exist_commits(self, versions: Sequence[int]) -> list[bool]:
        return self._exist([in_log(commit_name(v)) for v in versions])

    def _confirm(self) -> None:
        """After refusals: the credential still reads what is known to exist, so what was refused is absent.

        Raises:
            CredentialError: It does not, or nothing is known to exist.
        """
        refusal, self._refusal = self._refusal, None
        if refusal is None:
            return
        if self._existing is not None:
            try:
                self.store.info(self._existing)
            except (PermissionError, FileNotFoundError):
                pass  # nor does the known object: the credential is the cause
            else:
                return
        action = action_of(refusal, "check that the credential covers the table's location")
        raise CredentialError(
            f"the storage refuses to read the log of {self.table}: no object of it could be read ({reason_of(refusal)}); "
            f"{action}, or use accessMode=url if the server offers it"
        )

    def _broken(self, missing: int, top: int, has_lower_commits: bool, hint: CheckpointFiles | None) -> LogError:
        """The error of a commit that is missing on the way down."""
        below = range(missing - 1, max(-1, missing - 1 - _WINDOW), -1)
        if has_lower_commits or any(self._exist_commits(below)):
            return hole(self.table, missing, top)
        if hint is None:
            hints = "is missing or corrupt"
        elif hint.version > top:
            hints = f"names version {hint.version}, which is later"
        else:
            hints = f"names version {hint.version}, which is not there"
        return LogError(
            f"the log of {self.table} cannot be read up to version {top} without listing: its commits begin with version "
            f"{missing + 1}, and none of the versions from there on has a checkpoint of one file "
            f"({checkpoint_names(top)[0]} and so on down); others have names that only a listing or _last_checkpoint "
            f"tells, and that {hints}; ask the provider to let the credential list _delta_log or to checkpoint the table "
            f"again, or use accessMode=url if the server offers it",
            file=in_log(commit_name(missing)),
        )

    def _gone(self, version: int) -> VersionError:
        return VersionError(
            f"version {version} of {self.table} cannot be read without listing: neither its commit nor a checkpoint "
            f"{checkpoint_names(version)[0]} is there; ask for a later version, or the provider to let the credential list "
            f"_delta_log"
        )

    def _nothing(self) -> LogError:
        version = self.store.known_version
        if version is None:
            return no_log(self.table)
        return LogError(
            f"the log of {self.table} cannot be read without listing: of _delta_log neither a usable _last_checkpoint is "
            f"there, nor commit 0, nor commit or checkpoint {version}, the version that the sharing server names; ask the "
            f"provider to let the credential list _delta_log, or use accessMode=url if the server offers it"
        )
