"""Describes the files that a version is replayed from: one complete checkpoint, if any, and every commit after it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice

from delta_sharing_spark.deltalog.paths import commit_name, in_log
from delta_sharing_spark.errors import CredentialError, LogError, VersionError
from delta_sharing_spark.network.parallel_calls import CallingThreads

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
    """A commit, or a compaction of commits, of which ``last`` is the last; ``data`` is set if its bytes were read already."""

    path: str
    last: int
    size: int = 0
    data: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Segment:
    """The files that a snapshot of ``version`` is replayed from, commits oldest first."""

    version: int
    checkpoint: CheckpointFiles | None
    commits: tuple[CommitFile, ...]


@dataclass(frozen=True, slots=True)
class Hint:
    """The content of ``_last_checkpoint``, which may be wrong; ``parts`` is 0 but for a multi-part checkpoint, and ``v2_name`` a
    file's name with a uuid."""

    version: int
    parts: int
    v2_name: str | None


def read_all(
    threads: CallingThreads, read: Callable[[str], bytes], paths: Sequence[str], largest: int = 0
) -> Iterator[bytes]:
    """Read files in their order, several at a time, never many bytes ahead of the caller.

    The first files are asked for at once; how many depends on ``largest``, the bytes of the largest file, or 0 if that is unknown.
    """
    rest = iter(paths)
    pending: deque[Future[bytes]] = deque()

    def ask(size: int) -> None:
        ahead = max(1, min(2 * READERS, _AHEAD_BYTES // max(size, 1)))
        pending.extend(threads.submit(read, path) for path in islice(rest, max(0, ahead - len(pending))))

    def received(size: int) -> Iterator[bytes]:
        while pending:
            data = pending.popleft().result()
            yield data
            size = max(len(data), size * 3 // 4)
            ask(size)

    ask(largest or _AHEAD_BYTES // 2)
    return received(largest)


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


def refused(table: str, path: str) -> CredentialError:
    """The error of a file of the log that is there and may not be read."""
    return CredentialError(
        f"the storage refuses to read {path} of {table} with the credential of the table's location; ask the provider "
        f"whether the credential covers it, or use accessMode=url",
        file=path,
    )


def not_yet(table: str, version: int, newest: int) -> VersionError:
    """The error of a version above the newest."""
    return VersionError(
        f"version {version} of {table} does not exist: the newest is {newest}; ask for a version up to {newest}"
    )
