"""Defines what an access mode offers of a shared table, whichever way its files are reached.

``open.py`` negotiates a mode and opens the table by it; what resolves a load, ``plan.py`` and ``stream/`` work with an ``OpenTable``
and name no mode. Another way to reach a table is one more subclass of ``OpenTable`` and one more line in ``open.MODES``.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol, TypeVar

from delta_sharing_spark.access.planned_files import PlannedFiles
from delta_sharing_spark.access.pruning import FilePruner
from delta_sharing_spark.access.resolved_scan import ResolvedScan
from delta_sharing_spark.access.table_shape import TableShape
from delta_sharing_spark.errors import AccessModeError, DeltaSharingError, VersionError
from delta_sharing_spark.options.declared import ReadOptions
from delta_sharing_spark.scan.plan import Access, FileTask

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class NotPinnedError(VersionError):
    """The server does not list the files of a version that was not asked for by the user (``ResolvedScan.is_pinned``)."""


@dataclass(frozen=True, slots=True)
class AsOf:
    """Which version of a table: a number, the last one at or before a moment, or (neither) the newest."""

    version: int | None = None
    moment: datetime | None = None


@dataclass(frozen=True, slots=True)
class TableState:
    """A table at one version.

    Attributes:
        version: The version; None where the server does not tell it.
        shape: Schema, partition columns and column mapping.
    """

    version: int | None
    shape: TableShape


class SplitAccess(Protocol):
    """The access to all files of a listing, from which each split takes what its own files need."""

    def restricted_to(self, tasks: Sequence[FileTask]) -> Access:
        """The same access with only those URLs, tokens or tickets that these files need."""

    def outlasts_planning(self, task: FileTask) -> bool:
        """Whether executors can still read a file that was listed earlier: its access is valid, or they can renew it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingFacts:
    """How the files of a snapshot were listed.

    Attributes:
        version: The version listed; None where the server does not tell it.
        listed: How many files there were before pruning.
        sent: The hints that the server was sent to prune by, by the protocol's names; None where it takes none.
        fallback: Why the files were in the end asked for without ``sent``, if they were.
        total_files: The files of the version, where the listing tells it.
        listing_bytes: The bytes that the listing takes in this process, for other queries of the version; 0 where it does not stay.
        is_repeated: Whether an earlier listing answered, with no request.
    """

    version: int | None = None
    listed: int = 0
    sent: Mapping[str, str] | None = None
    fallback: str | None = None
    total_files: int | None = None
    listing_bytes: int = 0
    is_repeated: bool = False


@dataclass(frozen=True, slots=True)
class FileListing(ListingFacts):
    """The files of a snapshot.

    Attributes:
        files: Those that pruning left.
        access: How to read them.
        rows: Rows of all files that are not deleted, where more than the files tells it.
    """

    files: PlannedFiles
    access: SplitAccess
    rows: int | None = None


@dataclass(slots=True)
class VersionFiles:
    """The files of one version of a change feed or a stream.

    Attributes:
        version: The version.
        tasks: Files to read: those of its change feed, or those that it adds.
        removes: How many files it removes (streams of a table).
        shape: The table's shape from this version on, where it is known: at the start of a range, and where it changed.
    """

    version: int
    tasks: Sequence[FileTask] = field(default_factory=list)
    removes: int = 0
    shape: TableShape | None = None


@dataclass(frozen=True, slots=True)
class StreamIdentity:
    """What the order of files within a version depends on; a stream goes on in the middle of a version only if it is equal.

    Attributes:
        table_id: The table's id; another one means another table.
        mode: The access mode.
        format, hash: The response format, and the hash of file ids where the server says which it used.
    """

    table_id: str
    mode: str
    format: str
    hash: str | None

    def is_ordered_as(self, other: StreamIdentity) -> bool:
        """Whether files have one order by both; the table's id is looked at apart."""
        own, others = ((i.mode, i.hash, i.format if i.hash is None else None) for i in (self, other))
        return own == others


@dataclass(frozen=True, slots=True)
class VersionListing:
    """Files version by version.

    Attributes:
        versions: In ascending order; those without files may be left out. Iterated once.
        access: How to read them.
        identity: What the order of files within a version depended on.
    """

    versions: Iterable[VersionFiles]
    access: SplitAccess
    identity: StreamIdentity


class OpenTable(ABC):
    """A shared table that one access mode has opened; lives in one process.

    Every method may ask the sharing server or the storage and raises what these raise: ServerError, NetworkError, CredentialError,
    ResponseError, LogError. It raises VersionError for a version that is not there or not shared.

    Attributes:
        mode: The access mode's name, in ``explain`` and in stream offsets.
    """

    mode: str

    @abstractmethod
    def describe(self, as_of: AsOf) -> TableState:
        """The table at a version; raises UnsupportedFeatureError where that asks for more than this reader does."""

    @abstractmethod
    def newest_version(self) -> int:
        """The newest version, looked for now."""

    def version_at_or_after(self, moment: datetime) -> int:
        """The first version committed at or after a moment."""
        raise AccessModeError(f"access mode {self.mode} does not find versions by time; give a version")

    def version_at_or_before(self, moment: datetime) -> int | None:
        """The last version committed at or before a moment; None if that is the newest, -1 if there is none."""
        raise AccessModeError(f"access mode {self.mode} does not find versions by time; give a version")

    def commit_times(self, most: int) -> Mapping[int, int | None]:
        """The newest versions, at most ``most``, each with its timestamp in milliseconds where that is told; the newest last."""
        raise AccessModeError(f"access mode {self.mode} tells no times of versions; changes() has _commit_timestamp")

    @abstractmethod
    def snapshot(self, scan: ResolvedScan, pruner: FilePruner) -> FileListing:
        """The files of the snapshot that was resolved, those left out that ``pruner`` skips.

        Raises:
            TableChangedError: The table is no longer the one that was resolved.
            NotPinnedError: The scan is pinned, and the server lists its newest version alone.
        """

    def forget_listing(self) -> None:  # noqa: B027 (most modes hold none)
        """List a snapshot anew the next time: files of it could not be read."""

    @abstractmethod
    def changes(self, scan: ResolvedScan) -> VersionListing:
        """The files of the change data feed over the range that the scan's options name, with their change columns."""

    @abstractmethod
    def versions(
        self, scan: ResolvedScan, first: int, last: int, identity: StreamIdentity | None = None
    ) -> VersionListing:
        """What the versions ``first`` to ``last``, both included, add; with ``readChangeFeed`` their change files.

        Args:
            first, last: Versions that exist.
            identity: What the files were ordered by so far; None if none were asked for.
        """

    @abstractmethod
    def all_files(self, scan: ResolvedScan, version: int, identity: StreamIdentity | None = None) -> VersionListing:
        """All files of a version, with which a stream begins; with ``readChangeFeed`` each of its rows is an insert."""

    def stream_identity(self, scan: ResolvedScan) -> StreamIdentity:
        """What the order of files will depend on, before any were asked for."""
        return StreamIdentity(scan.shape.id, self.mode, self.mode, None)


def as_loaded(
    scan: ResolvedScan,
    listed: int | None,
    list_pinned: Callable[[], _T],
    refusals: tuple[type[DeltaSharingError], ...],
) -> _T | None:
    """The listing of the version that a load found; None where the one at hand is as good.

    A listing names no version at first: servers that list the newest alone refuse one, and so do none as long as nothing is committed.

    Args:
        scan: The load, of no version that its user chose.
        listed: The version that was listed; None where the server does not tell it.
        list_pinned: Lists the load's version.
        refusals: Its errors where the server lists its newest version alone, which is then read, as a warning says.
    """
    if scan.version is None or listed is None or listed == scan.version:
        return None
    try:
        return list_pinned()
    except refusals as refusal:
        why = str(refusal).partition(";")[0]
        _log.warning("%s was loaded at version %d and is read at %d: %s", scan.table, scan.version, listed, why)
        return None


def as_insert(task: FileTask, version: int, timestamp_ms: int | None) -> FileTask:
    """A file of a change stream's first snapshot: its rows are inserts of that version."""
    return replace(task, change_type="insert", commit_version=version, commit_timestamp=timestamp_ms)


def last_version(table: OpenTable, options: ReadOptions, newest: int | None) -> int | None:
    """The last version of a feed's range; None means the newest, -1 that the range ends before the table's first version. Raises VersionError."""
    end = options.ending_version
    start = options.starting_version
    if newest is not None and isinstance(start, int) and start > newest:
        return newest  # it begins with a version that is not there yet: the feed is empty, wherever it ends
    if options.ending_timestamp is not None:
        end = table.version_at_or_before(options.ending_timestamp)
    if end is None or newest is None:
        return newest if end is None else end
    return min(end, newest)


def range_of_versions(start: int, end: int | None, newest: int, table: str, options: ReadOptions) -> range:
    """The versions of a change data feed.

    Args:
        start: The first version; the one after the newest makes an empty range.
        end: The last version; None, or one after the newest, means the newest.
        options: Those of the feed: between two moments there may be no version.

    Raises:
        VersionError: The range starts after the newest version, or ends before it starts.
    """
    if start > newest + 1:
        raise VersionError(
            f"version {start} of {table} does not exist: the newest is {newest}; start at {newest + 1} or before"
        )
    last = newest if end is None else min(end, newest)
    between_moments = options.starting_timestamp is not None and options.ending_timestamp is not None
    if last < start and not (last == start - 1 and (between_moments or start > newest)):
        raise VersionError(
            f"the change feed of {table} would start at version {start} and end at version {last}; "
            f"give an end that is not before the start"
        )
    return range(start, last + 1)
