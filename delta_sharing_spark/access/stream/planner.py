"""Plans the batches of a stream: how far each goes from the position of the last one, and which files lie between."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from delta_sharing_spark.access.contract import OpenTable, SplitAccess, StreamIdentity, VersionFiles, VersionListing
from delta_sharing_spark.access.open import TableOpener
from delta_sharing_spark.access.plan import count_files, spec_of, splits_of
from delta_sharing_spark.access.planned_files import FileBatches, FileList, OrderedFiles
from delta_sharing_spark.access.pruning import FilePruner
from delta_sharing_spark.access.resolved_scan import ResolvedScan
from delta_sharing_spark.access.stream.schema_policy import SchemaPolicy, policy_of
from delta_sharing_spark.errors import DeltaSharingError, OptionError, StreamError, TableError, VersionError
from delta_sharing_spark.network.urls import is_on_loopback
from delta_sharing_spark.scan.plan import FileTask, ReadSpec, Split
from delta_sharing_spark.schema.types import Struct


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """How far a stream has read, as the module's docstring defines it."""

    version: int
    index: int = 0
    snapshot: bool = False

    @property
    def in_the_middle(self) -> bool:
        """Whether it counts files of a version, so that their order must stay."""
        return self.index > 0 or self.snapshot


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one batch takes at most; None means no bound. Bytes are a soft bound: one file always fits."""

    files: int | None = None
    bytes: int | None = None


#: The limits of a stream whose options bound neither files nor bytes.
DEFAULT_LIMITS = Limits(files=1000)


class BatchBudget:
    """How much a batch has taken of its limits."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._files = self._bytes = 0

    @property
    def is_full(self) -> bool:
        return self._passes(self._files + 1, self._bytes + 1)

    def _passes(self, files: int, size: int) -> bool:
        limits = self._limits
        return (limits.files is not None and files > limits.files) or (limits.bytes is not None and size > limits.bytes)

    def take(self, tasks: Sequence[FileTask], *, all_or_none: bool) -> int:
        """How many of ``tasks`` still fit; with ``all_or_none`` they are not split, and fit always if nothing was taken yet."""
        if all_or_none:
            size = sum(t.size for t in tasks)
            if self._files and self._passes(self._files + len(tasks), self._bytes + size):
                return 0
            self._files += len(tasks)
            self._bytes += size
            return len(tasks)
        for count, task in enumerate(tasks):
            if self.is_full:
                return count
            self._files += 1
            self._bytes += task.size
        return len(tasks)


_log = logging.getLogger(__name__)
_SHORTEST_POLL = 10.0
#: What a version does that a stream cannot read on through; all before it is delivered.
_OBSTACLES = (TableError, StreamError)


@dataclass(slots=True)
class _Batch:
    """Files between two positions, grouped by the access that reads them."""

    start: Position
    end: Position
    parts: list[tuple[Sequence[FileTask], SplitAccess]]


@dataclass(slots=True)
class _Block:
    """Versions ``first`` to ``last`` as listed, kept while batches go through them; a snapshot is one of its version."""

    first: int
    last: int
    versions: list[VersionFiles]
    access: SplitAccess
    snapshot: bool = False

    def covers(self, position: Position) -> bool:
        """Whether a position is in it, and executors can still read its files."""
        if self.snapshot != position.snapshot or not self.first <= position.version <= self.last:
            return False
        some = next((task for files in self.versions for task in files.tasks), None)
        return some is None or self.access.outlasts_planning(some)


class StreamPlanner:
    """Finds how far a stream can go from a position, and the files between two positions.

    Args:
        policy: The stream's schema, fixed at its start, and what may differ from it.
        clock: Seconds that only grow; tests give their own.

    Attributes:
        scan: The load that the stream is of.
        identity: What the order of files within a version depends on, as far as is known.
    """

    def __init__(
        self,
        scan: ResolvedScan,
        opener: TableOpener,
        spec: ReadSpec,
        policy: SchemaPolicy,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scan, self._opener, self._spec, self._policy, self._clock = scan, opener, spec, policy, clock
        self._table = str(scan.table)
        self._interval = _poll_interval(scan)
        self.identity: StreamIdentity = opener.run(lambda table: table.stream_identity(scan))
        self._is_ordered = False
        self._newest_seen: int | None = None
        self._polled_at = 0.0
        self._pinned_newest: int | None = None
        self._planned: _Batch | None = None
        self._block: _Block | None = None
        #: A version at or before which there is one that cannot be listed, as far as is known.
        self._obstacle: int | None = None

    def first(self) -> Position:
        """Where a new stream begins, by its options: resolved now, and written into the first end offset."""
        options = self.scan.options
        start, moment = options.starting_version, options.starting_timestamp
        if isinstance(start, int):
            newest = self._newest()
            if start > newest + 1:
                raise VersionError(
                    f"startingVersion {start} of {self._table} does not exist: the newest is {newest}; "
                    f"start at {newest + 1} or before"
                )
            return Position(start)
        if start == "latest":
            return Position(self._newest() + 1)
        if moment is not None:
            return Position(self._opener.run(lambda table: table.version_at_or_after(moment)))
        return Position(self._newest(), 0, True)

    def pin_newest(self) -> None:
        """From now on read nothing newer than the version that is the newest now (Trigger.AvailableNow)."""
        self._pinned_newest = self._poll()

    def end_of_newest(self) -> Position:
        """The position behind the newest version that the server is known to have; it is asked as often as for batches.

        An outage leaves what was known: this is told to people, and no batch depends on it.
        """
        if self._newest_seen is None or self._clock() - self._polled_at >= self._interval:
            try:
                self._poll()
            except DeltaSharingError as error:
                if self._newest_seen is None:
                    raise
                self._polled_at = self._clock()
                _log.warning("the newest version of %s is not known at present: %s", self._table, error)
        assert self._newest_seen is not None
        return Position(self._newest_seen + 1)

    def advance(self, start: Position, limits: Limits) -> Position:
        """The end of the next batch from ``start``: ``start`` itself where there is nothing new.

        Raises:
            StreamError: The server went back in version, or a version does what the stream cannot follow.
        """
        target = self._target(start)
        parts: list[tuple[Sequence[FileTask], SplitAccess]] = []
        end, budget, is_feed = Position(target + 1), BatchBudget(limits), self.scan.options.read_change_feed
        reached = start
        try:
            for here, files, access in self._walk(start, target):
                reached = here
                tasks = self._between(here, None, files)
                count = budget.take(tasks, all_or_none=is_feed and not here.snapshot)
                if count:
                    parts.append((tasks[:count], access))
                if count < len(tasks):
                    end = replace(here, index=here.index + count)
                    break
                reached = Position(here.version + 1)
                if budget.is_full:
                    end = reached
                    break
        except _OBSTACLES as error:
            if reached == start:
                raise
            # All before the version that the stream cannot read on through is delivered; the next batch begins with it.
            _log.warning("the stream's batch ends here, for the next one will fail: %s", error)
            end = reached
        if self._block is not None and self._block.snapshot != end.snapshot:
            self._block = None  # a snapshot that was read to its end
        self._planned = _Batch(start, end, parts)
        return end

    def splits(self, start: Position, end: Position) -> list[Split]:
        """The splits between two positions."""
        splits: list[Split] = []
        pruner, listed = FilePruner(self.scan), 0
        for tasks, access in self.files(start, end):
            listed += len(tasks)
            remaining = FileList(pruner.remaining(tasks))
            splits += splits_of(remaining, access, self.scan, self._spec, len(splits))
        count_files(self._table, listed, pruner.skipped)
        return splits

    def files(self, start: Position, end: Position) -> Iterator[tuple[Sequence[FileTask], SplitAccess]]:
        """The files between two positions, as planned a moment ago, or asked for again where the stream restarted.

        Raises:
            StreamError: The positions do not fit together, or count files that are not there.
        """
        planned = self._planned
        if planned is not None and (planned.start, planned.end) == (start, end):
            yield from planned.parts
            return
        if start == end:
            return
        if end < start or (end.snapshot and (not start.snapshot or end.version != start.version)):
            raise StreamError(
                f"the stream of {self._table} was asked for a batch from {start} back to {end}; "
                f"the checkpoint is damaged: start the stream anew with another checkpoint"
            )
        ends_inside = end.index > 0 and not end.snapshot
        is_last = False
        for here, files, access in self._walk(start, end.version if ends_inside else end.version - 1):
            is_last = (here.version, here.snapshot) == (end.version, end.snapshot)
            yield self._between(here, end if is_last else None, files), access
        if ends_inside and not is_last:  # the server lists nothing of that version any more
            self._between(Position(end.version), end, VersionFiles(end.version))

    def continue_as(self, identity: StreamIdentity, position: Position) -> None:
        """Keep the order of files of an offset in the middle of a version; called before any file is listed."""
        if position.in_the_middle and not self._is_ordered and identity.mode == self.identity.mode:
            self._is_ordered = True
            self.identity = replace(identity, table_id=self.identity.table_id)

    def forget(self, committed: Position) -> None:
        """Let go of a batch that was committed. Spark commits one when the next is planned already: that one stays."""
        if self._planned is not None and self._planned.start != committed:
            self._planned = None

    def _walk(self, position: Position, last: int) -> Iterator[tuple[Position, VersionFiles, SplitAccess]]:
        """What lies from a position to the version ``last``: each version's files, of which some may have been read, and where that is."""
        if position.snapshot:
            block = self._listed(position, last)
            for files in block.versions:
                yield position, files, block.access
            position = Position(position.version + 1)
        while position.version <= last:
            block = self._listed(position, last)
            stop = min(last, block.last)
            for files in block.versions:
                if position.version <= files.version <= stop:
                    here = position if files.version == position.version else Position(files.version)
                    yield here, files, block.access
            position = Position(stop + 1)

    def _listed(self, position: Position, last: int) -> _Block:
        """The versions from a position's own on, as many as are asked for at once, or the snapshot that it is in."""
        block, first = self._block, position.version
        if block is not None and block.covers(position):
            return block
        self._block = None  # the old one is let go before the new one is read
        stop = first if position.snapshot else min(last, first + self.scan.options.max_versions_per_rpc - 1)
        if self._obstacle is not None and self._obstacle < first:
            self._obstacle = None  # it could be listed after all
        while True:
            if self._obstacle is not None and self._obstacle <= stop:
                stop = (first + self._obstacle) // 2
            try:
                self._block = self._asked_for(position, stop)
            except _OBSTACLES as error:
                if stop == first:
                    raise self._at_obstacle(first, error) from error
                self._obstacle = stop  # what lies before the version that cannot be listed is found by halves
            else:
                return self._block

    def _asked_for(self, position: Position, stop: int) -> _Block:
        """The versions from a position's own to ``stop``, or the snapshot that it is in."""
        first = position.version

        def list_versions(table: OpenTable) -> _Block:
            order = self.identity if self._is_ordered else None
            if position.snapshot:
                listing = table.all_files(self.scan, first, order)
            else:
                listing = table.versions(self.scan, first, stop, order)
            return _Block(first, stop, self._prepared(listing, position), listing.access, position.snapshot)

        return self._opener.run(list_versions)

    def _at_obstacle(self, version: int, error: DeltaSharingError) -> DeltaSharingError:
        """The error of a version that cannot be listed: a later start would leave rows out, and is not advised."""
        if not isinstance(error, VersionError):
            return error
        return VersionError(
            f"the stream of {self._table} has read all before version {version}, and cannot go on: {error}; to have every row, start it "
            f"anew with another checkpoint, from the newest snapshot (a later startingVersion leaves rows out)"
        )

    def _prepared(self, listing: VersionListing, position: Position) -> list[VersionFiles]:
        """The versions of a listing, prepared for their batches: their files in order, and with statistics only if
        ``where`` will look at them.

        Raises:
            StreamError: Another table; or files that are ordered otherwise than the part that was read already.
        """
        versions, keep_stats = [], self.scan.prune is not None
        self._check_same_table(listing.identity.table_id, None)
        for files in listing.versions:
            if files.shape is not None:
                self._check_same_table(files.shape.id, files.version)
            if isinstance(files.tasks, FileBatches):  # a first listing may have a million files
                files.tasks = OrderedFiles(files.tasks)
            else:
                tasks = (
                    task if keep_stats or task.stats is None else replace(task, stats=None) for task in files.tasks
                )
                files.tasks = sorted(tasks, key=lambda task: (task.id, task.change_type or ""))
            versions.append(files)
        now, before = replace(listing.identity, table_id=self.identity.table_id), self.identity
        if self._is_ordered and position.in_the_middle and not now.is_ordered_as(before):
            raise StreamError(
                f"the server now orders the files of {self._table} otherwise: file ids by {_order_name(now)}, the stream's "
                f"by {_order_name(before)}; restart the stream with the options that it had, and if it does not go on, start it anew "
                f"with another checkpoint"
            )
        self._is_ordered, self.identity = True, now
        return versions

    def _check_same_table(self, table_id: str, version: int | None) -> None:
        if table_id and self.identity.table_id and table_id != self.identity.table_id:
            since = "since the stream started" if version is None else f"at version {version}"
            raise StreamError(
                f"table {self._table} was replaced by another table {since}; start the stream anew with another checkpoint"
            )

    def _between(self, start: Position, end: Position | None, files: VersionFiles) -> Sequence[FileTask]:
        """The files of a version that a stream emits, from a position in it to another, or to its end.

        Raises:
            StreamError: A position counts files that are not there, or not in the order of a change feed.
        """
        for place in (start, end):
            if place is None or not place.index:
                continue
            if self.scan.options.read_change_feed and not place.snapshot:
                raise StreamError(
                    f"the stream of {self._table} stopped in the middle of version {place.version}, read without readChangeFeed; "
                    f"leave that out until the version is read, then this checkpoint goes on with it"
                )
            if place.index >= len(files.tasks):
                raise StreamError(
                    f"the checkpoint of the stream of {self._table} counts {place.index} files as read of version {place.version}, "
                    f"which has {len(files.tasks)}; the checkpoint is damaged, or the version was changed: start the stream anew "
                    f"with another checkpoint"
                )
        return self._emitted(files)[start.index : None if end is None else end.index]

    def _emitted(self, files: VersionFiles) -> Sequence[FileTask]:
        """The files of a version that a stream emits, by its schema and what its options permit."""
        if files.shape is not None:
            self._policy.check(files.shape, files.version, self._table)
        options = self.scan.options
        if options.read_change_feed or not files.removes:
            return files.tasks
        if options.skip_change_commits:
            return []
        if files.tasks:
            if not options.ignore_changes:
                raise StreamError(
                    f"Detected a data update in the source table {self._table} at version {files.version}. This is currently "
                    f"not supported. To go on and leave such versions out, set the option 'skipChangeCommits' to 'true'; "
                    f"to read rewritten files again, set 'ignoreChanges'; to follow updates, set 'readChangeFeed'"
                )
        elif not options.ignore_deletes and not options.ignore_changes:
            raise StreamError(
                f"Detected deleted data from streaming source {self._table} at version {files.version}. This is currently not "
                f"supported. To ignore deletes, set the option 'ignoreDeletes' to 'true'; to follow them, set 'readChangeFeed'"
            )
        return files.tasks

    def _target(self, position: Position) -> int:
        """The newest version to read: pinned, or as the server said, asked no more often than the interval."""
        newest = self._pinned_newest if self._pinned_newest is not None else self._newest_seen
        if newest is None or (
            self._pinned_newest is None
            and newest < position.version
            and self._clock() - self._polled_at >= self._interval
        ):
            newest = self._poll()
        # A version that was begun, or whose snapshot is read, exists; else the one before it does.
        seen = position.version if position.in_the_middle else position.version - 1
        if newest < seen:
            raise StreamError(
                f"the stream of {self._table} has read version {seen}, and the server now says that {newest} is the "
                f"newest: the table was replaced or restored; start the stream anew with another checkpoint"
            )
        return newest

    def _newest(self) -> int:
        return self._pinned_newest if self._pinned_newest is not None else self._poll()

    def _poll(self) -> int:
        newest = self._newest_seen = self._opener.run(lambda table: table.newest_version())
        self._polled_at = self._clock()
        return newest


def open_stream(
    opener: TableOpener, scan: ResolvedScan, user_schema: Struct | None = None, *, columns_chosen: bool = False
) -> StreamPlanner:
    """Plan a resolved load as a stream, with the columns that it was started with; None for those of the load.

    Args:
        columns_chosen: Whether the user gave them, so that others of the table are left out on purpose.

    Raises:
        SchemaError: ``user_schema`` does not fit the table.
        OptionError: ``pollInterval`` is too short for the server.
    """
    spec = spec_of(scan, user_schema)
    return StreamPlanner(scan, opener, spec, policy_of(scan, spec.schema, columns_chosen=columns_chosen))


def _order_name(identity: StreamIdentity) -> str:
    return identity.hash or f"the {identity.format} format"


def _poll_interval(scan: ResolvedScan) -> float:
    interval = scan.options.poll_interval
    if interval < _SHORTEST_POLL and not is_on_loopback(scan.profile.endpoint):
        raise OptionError(
            f"the option 'pollInterval' is {interval:g} s, the least is {_SHORTEST_POLL:g} s for a server that is not on this machine"
        )
    return interval
