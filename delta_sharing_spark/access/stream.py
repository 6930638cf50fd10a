"""Positions in a table's history, and how far a batch of a stream goes from one.

A position ``(version, index)`` says that everything before file ``index`` of ``version`` was read; with ``snapshot`` the
files are those of the whole table at that version, else those the version added. The end of a version is the position
``(version + 1, 0)``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from delta_sharing_spark.access.load import Load
from delta_sharing_spark.access.planning import spec_of
from delta_sharing_spark.access.stream_schema import SchemaPolicy, policy_of
from delta_sharing_spark.access.stream_source import Identity, StreamSource, UrlSource, VersionFiles, open_source
from delta_sharing_spark.errors import OptionError, StreamError, VersionError
from delta_sharing_spark.scan.plan import Access, FileTask, ReadSpec
from delta_sharing_spark.schema.types import Struct

_log = logging.getLogger(__name__)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SHORTEST_POLL = 10.0


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """See the module's docstring."""

    version: int
    index: int = 0
    snapshot: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one batch takes at most; None is without bound. Bytes are a soft bound: one file always fits."""

    files: int | None = None
    bytes: int | None = None


@dataclass(slots=True)
class _Batch:
    """Files between two positions, grouped by the access that reads them."""

    start: Position
    end: Position
    parts: list[tuple[list[FileTask], Access]]


class StreamPlanner:
    """Where a stream can go from a position, and what lies between two.

    Args:
        load: The resolved load.
        source: Its versions.
        policy: The stream's schema, fixed at its start, and what may differ from it.
        clock: Injectable.
    """

    def __init__(
        self,
        load: Load,
        source: StreamSource,
        policy: SchemaPolicy,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load, self.source, self._policy, self._clock = load, source, policy, clock
        self._table = str(load.table)
        self._interval = _poll_interval(load)
        self._latest: int | None = None
        self._polled_at = 0.0
        self._frozen: int | None = None
        self._planned: _Batch | None = None
        self._block: tuple[int, int, list[VersionFiles], Access] | None = None
        self._snapshot: tuple[VersionFiles, Access] | None = None

    def first(self) -> Position:
        """Where a new stream begins, by its options: resolved now, and written into the first end offset."""
        options = self._load.options
        start = options.starting_version
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
        if options.starting_timestamp is not None:
            return Position(self.source.at_or_after(self._load))
        return Position(self._newest(), 0, True)

    def freeze(self) -> None:
        """From now on nothing newer than the newest version exists (Trigger.AvailableNow)."""
        self._frozen = self._poll()

    def advance(self, start: Position, limits: Limits) -> Position:
        """The end of the next batch from ``start``: ``start`` itself where there is nothing new.

        Raises:
            StreamError: The server went back in version, or a version does what the stream cannot follow.
        """
        target = self._target(start)
        parts: list[tuple[list[FileTask], Access]] = []
        position, taken = start, _Taken(limits)
        if position.snapshot:
            tasks, access = self._snapshot_of(position.version)
            count = taken.take(tasks[position.index :], whole=False)
            parts.append((tasks[position.index : position.index + count], access))
            at = position.index + count
            position = Position(position.version + 1) if at >= len(tasks) else replace(position, index=at)
            if not position.snapshot:
                self._snapshot = None
        while not position.snapshot and position.version <= target and not taken.full:
            position, more = self._advance_block(position, target, taken, parts, begun=position != start)
            if not more:
                break
        self._planned = _Batch(start, position, parts)
        return position

    def files(self, start: Position, end: Position) -> Iterator[tuple[list[FileTask], Access]]:
        """The files between two positions, as planned a moment ago, or asked for again where the stream restarted."""
        planned = self._planned
        if planned is not None and (planned.start, planned.end) == (start, end):
            yield from planned.parts
            return
        if start == end:
            return
        if end < start or (end.snapshot and not start.snapshot):
            raise StreamError(
                f"the stream of {self._table} was asked for a batch from {start} back to {end}; "
                f"the checkpoint is damaged: start the stream anew with another checkpoint"
            )
        yield from self._again(start, end)

    def _again(self, start: Position, end: Position) -> Iterator[tuple[list[FileTask], Access]]:
        position = start
        if position.snapshot:
            tasks, access = self._snapshot_of(position.version)
            within = end.snapshot and end.version == position.version
            yield tasks[position.index : end.index if within else None], access
            if within:
                return
            position = Position(position.version + 1)
        last = end.version if end.index else end.version - 1
        while position.version <= last:
            stop = min(last, position.version + self._load.options.max_versions_per_rpc - 1)
            versions, access = self._versions(position.version, stop)
            for files in versions:
                if files.shape is not None:
                    self._policy.check(files.shape, files.version, self._table)
                tasks = self._admitted(files)
                first = position.index if files.version == position.version else 0
                until = end.index if files.version == end.version else None
                yield tasks[first:until], access
            position = Position(stop + 1)

    def continue_as(self, identity: Identity, position: Position) -> None:
        """Go on in the response format that an offset in the middle of a version was written under."""
        if (position.index or position.snapshot) and isinstance(self.source, UrlSource):
            self.source.continue_as(identity)

    def forget(self, committed: Position) -> None:
        """Let go of a batch that was committed. Spark commits one when the next is planned already: that one stays."""
        if self._planned is not None and self._planned.start != committed:
            self._planned = None

    def _advance_block(
        self,
        position: Position,
        target: int,
        taken: _Taken,
        parts: list[tuple[list[FileTask], Access]],
        *,
        begun: bool,
    ) -> tuple[Position, bool]:
        """Take from one block of versions; also, whether the batch may go on behind it.

        A batch ends before a version that the stream cannot read on through, so that all before it is delivered; the
        next one, which begins there, fails.
        """
        block = self._block
        if block is not None and block[0] <= position.version <= block[1]:
            stop = min(target, block[1])
        else:
            stop = min(target, position.version + self._load.options.max_versions_per_rpc - 1)
        versions, access = self._versions(position.version, stop)
        for files in versions:
            here = Position(files.version) if files.version > position.version else position
            try:
                self._checked(files)
            except StreamError as error:
                if begun or here != position:
                    _log.warning("the stream's batch ends here, for the next one will fail: %s", error)
                    return here, False
                raise
            tasks = self._admitted(files)
            first = position.index if files.version == position.version else 0
            rest = tasks[first:]
            count = taken.take(rest, whole=self._load.options.read_change_feed)
            if count:
                parts.append((rest[:count], access))
            if count < len(rest):
                return Position(files.version, first + count), False
            if taken.full:
                return Position(files.version + 1), False
        return Position(stop + 1), True

    def _checked(self, files: VersionFiles) -> None:
        if files.shape is not None:
            self._policy.check(files.shape, files.version, self._table)
        self._admitted(files)

    def _versions(self, start: int, stop: int) -> tuple[list[VersionFiles], Access]:
        block = self._block
        if block is not None and block[0] <= start and stop <= block[1] and self._lasts(block[2], block[3]):
            return [v for v in block[2] if start <= v.version <= stop], block[3]
        self._block = None  # the old one is let go before the new one is read
        versions, access = self.source.versions(start, stop)
        self._block = (start, stop, versions, access)
        return versions, access

    def _snapshot_of(self, version: int) -> tuple[list[FileTask], Access]:
        kept = self._snapshot
        if kept is None or kept[0].version != version or not self._lasts([kept[0]], kept[1]):
            kept = self._snapshot = self.source.snapshot(version)
            if kept[0].shape is not None:
                self._policy.check(kept[0].shape, version, self._table)
        return kept[0].tasks, kept[1]

    def _lasts(self, versions: list[VersionFiles], access: Access) -> bool:
        some = next((task for files in versions for task in files.tasks), None)
        return some is None or self.source.lasts(some, access)

    def _admitted(self, files: VersionFiles) -> list[FileTask]:
        """The files of a version that a table stream emits, by what its options permit."""
        options = self._load.options
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
        """The newest version to read: frozen, or as the server said, asked no more often than the interval."""
        newest = self._frozen if self._frozen is not None else self._latest
        if newest is None or (
            self._frozen is None and newest < position.version and self._clock() - self._polled_at >= self._interval
        ):
            newest = self._poll()
        # A version that was begun, or whose snapshot is read, exists; else the one before it does.
        seen = position.version if position.index or position.snapshot else position.version - 1
        if newest < seen:
            raise StreamError(
                f"the stream of {self._table} has read version {seen}, and the server now says that {newest} is the "
                f"newest: the table was replaced or restored; start the stream anew with another checkpoint"
            )
        return newest

    def _newest(self) -> int:
        return self._frozen if self._frozen is not None else self._poll()

    def _poll(self) -> int:
        newest = self._latest = self.source.latest()
        self._polled_at = self._clock()
        return newest


def open_stream(load: Load, wanted: Struct | None = None, *, given: bool = False) -> tuple[ReadSpec, StreamPlanner]:
    """A resolved load as a stream: how its files are read, and which they are.

    Args:
        load: From ``resolve``, with the options of a stream.
        wanted: The columns that the stream was started with; None for those of the load.
        given: Whether the user gave them, so that others of the table are left out on purpose.

    Raises:
        SchemaError: ``wanted`` does not fit the table.
        OptionError: ``pollInterval`` is too short for the server.
    """
    spec = spec_of(load, wanted)
    return spec, StreamPlanner(load, open_source(load), policy_of(load, spec.schema, given=given))


class _Taken:
    """How much a batch has taken of its limits."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._files = self._bytes = 0

    @property
    def full(self) -> bool:
        limits = self._limits
        return (limits.files is not None and self._files >= limits.files) or (
            limits.bytes is not None and self._bytes >= limits.bytes
        )

    def take(self, tasks: list[FileTask], *, whole: bool) -> int:
        """How many of ``tasks`` still fit. ``whole``: all or, unless nothing was taken yet, none (a commit is not split)."""
        if whole:
            size = sum(t.size for t in tasks)
            limits = self._limits
            over = (limits.files is not None and self._files + len(tasks) > limits.files) or (
                limits.bytes is not None and self._bytes + size > limits.bytes
            )
            if over and self._files:
                return 0
            self._files += len(tasks)
            self._bytes += size
            return len(tasks)
        for count, task in enumerate(tasks):
            if self.full:
                return count
            self._files += 1
            self._bytes += task.size
        return len(tasks)


def _poll_interval(load: Load) -> float:
    interval = load.options.poll_interval
    host = (urlsplit(load.profile.endpoint).hostname or "").lower()
    if interval < _SHORTEST_POLL and host not in _LOOPBACK:
        raise OptionError(
            f"the option 'pollInterval' is {interval:g} s, the least is {_SHORTEST_POLL:g} s for a server that is not on this machine"
        )
    return interval
