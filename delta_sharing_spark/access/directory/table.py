"""Opens a table in directory mode: its own log lists its files."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from delta_sharing_spark.access.contract import (
    AsOf,
    FileListing,
    FilePruner,
    OpenTable,
    StreamIdentity,
    TableState,
    VersionFiles,
    VersionListing,
    as_insert,
    last_version,
    range_of_versions,
)
from delta_sharing_spark.access.directory.open import open_directory
from delta_sharing_spark.access.resolved_scan import NegotiatedTable, ResolvedScan, shape_of
from delta_sharing_spark.access.settings import storage_settings
from delta_sharing_spark.deltalog.add_batch import AddBatch
from delta_sharing_spark.deltalog.arrow_bridge import bools, integers
from delta_sharing_spark.deltalog.locate_segment import find_segment
from delta_sharing_spark.deltalog.replay import Head, commit_times, version_at_or_after, version_at_or_before
from delta_sharing_spark.options import ReadOptions
from delta_sharing_spark.scan.plan import FileSlice, FileTask
from delta_sharing_spark.scan.splits import Bin, cut_bins
from delta_sharing_spark.schema.instants import to_millis


class DirectoryTable(OpenTable):
    """A table in directory mode (``OpenTable``). The log is the authority; it is listed once, and each of its files fetched once, per load.

    Opening it finds the directory readable; raises as ``open_directory``.
    """

    mode = "dir"

    def __init__(self, negotiated: NegotiatedTable) -> None:
        self._directory = open_directory(
            negotiated.profile,
            negotiated.settings,
            negotiated.table,
            negotiated.head,
            settings=storage_settings(negotiated.options),
            carry_profile=negotiated.options.carry_profile,
            has_fallback=negotiated.decision.fallback is not None,
            first_version=_first_version(negotiated.options),
        )
        self._log, self._table = self._directory.log, self._directory.table
        #: Of the last version of a range: the next range need not search the log for its own.
        self._head: Head | None = None

    def describe(self, as_of: AsOf) -> TableState:
        """See ``OpenTable.describe``; the log's small actions alone are read.

        Raises:
            TableChangedError: The log is of another table than the server's, or behind what the server said.
        """
        head = self._directory.head_at(
            version=as_of.version, timestamp_ms=None if as_of.moment is None else to_millis(as_of.moment)
        )
        return TableState(head.version, shape_of(head.protocol, head.metadata, self._table))

    def newest_version(self) -> int:
        """See ``OpenTable.newest_version``; by the names of the log's files."""
        self._log.refresh()
        return find_segment(self._log, None, self._table).version

    def version_at_or_after(self, moment: datetime) -> int:
        return version_at_or_after(self._log, to_millis(moment), table=self._table)

    def version_at_or_before(self, moment: datetime) -> int | None:
        return version_at_or_before(self._log, to_millis(moment), table=self._table, allow_after_newest=True)

    def commit_times(self, most: int) -> Mapping[int, int | None]:
        return commit_times(self._log, most, table=self._table)

    def snapshot(self, scan: ResolvedScan, pruner: FilePruner) -> FileListing:
        """See ``OpenTable.snapshot``; the files stay columns, and no object is built for one that is skipped."""
        snapshot = self._directory.snapshot(version=scan.version)
        batches, listed = [], 0
        rows: int | None = 0
        for batch in snapshot.adds(with_stats=True, stats_columns=pruner.stats_columns):
            listed += batch.num_rows
            kept = pruner.remaining_rows(batch)
            if kept.num_rows:
                self._directory.check(kept)
                batches.append(kept.without_stats())
            if scan.rows_needed is not None and rows is not None:
                here = TaskColumns([kept]).live_rows()
                rows = None if here is None else rows + here
                if rows is not None and rows >= scan.rows_needed:
                    break
        tasks = TaskColumns(batches)
        return FileListing(tasks, self._directory.renewed_access(tasks), snapshot.version, listed)

    def changes(self, scan: ResolvedScan) -> VersionListing:
        """See ``OpenTable.changes``; versions are read as they are iterated."""
        options, newest = scan.options, scan.version
        assert newest is not None, "the log tells its version"
        start = options.starting_version
        if not isinstance(start, int):
            assert options.starting_timestamp is not None, "a batch feed has a start"
            start = self.version_at_or_after(options.starting_timestamp)
        between = options.starting_timestamp is not None and options.ending_timestamp is not None
        last = last_version(self, options, newest)
        versions = range_of_versions(start, last, newest, self._table, between_moments=between)
        feed = self._commits(versions[0], versions[-1], feed=True) if versions else iter(())
        return self._listing(scan, feed)

    def versions(
        self, scan: ResolvedScan, first: int, last: int, identity: StreamIdentity | None = None
    ) -> VersionListing:
        self._log.list_from_version(first)
        return self._listing(scan, self._commits(first, last, feed=scan.options.read_change_feed))

    def all_files(self, scan: ResolvedScan, version: int, identity: StreamIdentity | None = None) -> VersionListing:
        snapshot = self._directory.snapshot(version=version)
        tasks = list(self._directory.tasks(snapshot, keep_stats=scan.prune is not None))
        if scan.options.read_change_feed:
            tasks = [as_insert(task, version, snapshot.timestamp_ms) for task in tasks]
        shape = shape_of(snapshot.protocol, snapshot.metadata, self._table)
        return self._listing(scan, iter([VersionFiles(version, tasks, shape=shape)]))

    def stream_identity(self, scan: ResolvedScan) -> StreamIdentity:
        """See ``OpenTable.stream_identity``: ids are paths in the log."""
        return StreamIdentity(scan.shape.id, self.mode, "log", "path")

    def _listing(self, scan: ResolvedScan, versions: Iterator[VersionFiles]) -> VersionListing:
        return VersionListing(versions, self._directory.renewed_access(), self.stream_identity(scan))

    def _commits(self, first: int, last: int, *, feed: bool) -> Iterator[VersionFiles]:
        """The files of each version, with the table's shape where a commit begins the range or changes it."""
        from delta_sharing_spark.deltalog.commit_feed import load_commits

        for commit in load_commits(self._log, first, last, feed=feed, table=self._table, before=self._head):
            tasks = list(self._directory.checked(commit.tasks))
            self._head = commit.head
            is_told = commit.has_new_head or commit.version == first
            shape = shape_of(commit.head.protocol, commit.head.metadata, self._table) if is_told else None
            yield VersionFiles(commit.version, tasks, commit.removes, shape)


def _first_version(options: ReadOptions) -> int | None:
    """See ``open_directory``."""
    if options.version_as_of is not None:
        return options.version_as_of
    if options.timestamp_as_of or options.starting_timestamp or options.ending_timestamp:
        return 0
    return options.starting_version if isinstance(options.starting_version, int) else None


class TaskColumns(Sequence[FileTask]):
    """The tasks of a snapshot's files (``contract.PlannedFiles``), built when they are asked for."""

    def __init__(self, batches: Sequence[AddBatch]) -> None:
        self._batches = list(batches)
        self._starts = [0]
        for batch in self._batches:
            self._starts.append(self._starts[-1] + batch.num_rows)

    @property
    def total_bytes(self) -> int:
        return int(self._sizes().sum())

    def bins(self, max_bytes: int) -> list[Sequence[FileSlice]]:
        """Splits over the files in their order, as ``scan.splits.pack`` cuts them."""
        return [LazySlices(self, bin_) for bin_ in cut_bins(self._sizes(), max_bytes)]

    def _sizes(self) -> npt.NDArray[np.int64]:
        """Bytes of each file."""
        sizes = [np.where(bools(batch.sizes.is_valid()), integers(batch.sizes), 0) for batch in self._batches]
        return np.concatenate(sizes) if sizes else np.zeros(0, np.int64)

    def live_rows(self) -> int | None:
        total = 0
        for batch in self._batches:
            rows = batch.num_records()
            if rows.null_count:
                return None
            total += pc.sum(rows).as_py() or 0
            if batch.vectors is not None:
                total -= pc.sum(pc.struct_field(batch.vectors, "cardinality")).as_py() or 0
        return total

    def part(self, first: int, last: int) -> Iterator[FileTask]:
        """The tasks ``first`` to ``last``, the latter excluded."""
        part = bisect.bisect_right(self._starts, first) - 1
        while first < last:
            start = self._starts[part]
            stop = min(last, self._starts[part + 1])
            yield from self._batches[part].slice(first - start, stop - first).tasks()
            first, part = stop, part + 1

    def __len__(self) -> int:
        return self._starts[-1]

    def __iter__(self) -> Iterator[FileTask]:
        return self.part(0, len(self))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return list(self)[index]
        position = range(len(self))[index]
        return next(self.part(position, position + 1))


class LazySlices(Sequence[FileSlice]):
    """The slices of one split. Pickled, they are a plain tuple: what a task gets has no columns behind it."""

    def __init__(self, tasks: TaskColumns, bin_: Bin) -> None:
        self._tasks = tasks
        self._bin = bin_

    def __iter__(self) -> Iterator[FileSlice]:
        pieces = self._bin
        tasks = self._tasks.part(pieces.first, pieces.last)
        for task, (start, end) in zip(tasks, pieces.ranges(), strict=True):
            yield FileSlice(task, start, end)

    def __len__(self) -> int:
        return self._bin.last - self._bin.first

    def __getitem__(self, index: Any) -> Any:
        return tuple(self)[index]

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (list(self),)
