"""Plans a resolved scan: lists its files, prunes them, and cuts them into splits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from delta_sharing_spark import metrics
from delta_sharing_spark.access.contract import FileListing, ListingFacts, OpenTable, SplitAccess
from delta_sharing_spark.access.open import TableOpener
from delta_sharing_spark.access.planned_files import FileList, LazySplits, PlannedFiles, TasksOfSlices, live_rows
from delta_sharing_spark.access.pruning import FilePruner
from delta_sharing_spark.access.resolved_scan import ResolvedScan, smaller_limit
from delta_sharing_spark.access.table_shape import check_readable
from delta_sharing_spark.predicates.tree import referenced_columns
from delta_sharing_spark.scan.plan import FileAccess, FileSlice, FileTask, ReadSpec, Split, order
from delta_sharing_spark.schema.partition_values import partition_keys
from delta_sharing_spark.schema.projections import check_types, merge, requested, select_paths
from delta_sharing_spark.schema.types import Struct

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport(ListingFacts):
    """What planning did, for ``explain`` and logs.

    Attributes:
        mode, reason: The access mode, and why it was chosen.
        skipped: Files left out here, by rule.
        files, bytes: Files left to read and their whole size; projection and row groups make a read smaller.
        unhelpful: Parts of ``where`` that no file could be skipped by.
    """

    mode: str
    reason: str
    skipped: Mapping[str, int]
    files: int
    bytes: int
    unhelpful: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """What a load reads.

    Attributes:
        spec: How it is read.
        files: The files that pruning left.
        access: How to read them.
        splits: The same files in splits; each is built when it is asked for.
        report: What planning did.
        exact_rows: The number of rows, if statistics tell it exactly.
    """

    spec: ReadSpec
    files: PlannedFiles
    access: SplitAccess
    splits: Sequence[Split]
    report: PlanReport
    exact_rows: int | None = None


#: A split of fewer bytes than a row group's header takes would only be one more of those that read nothing.
_LEAST_SPLIT_BYTES = 1 << 10


def plan(
    scan: ResolvedScan,
    user_schema: Struct | None = None,
    opener: TableOpener | None = None,
    listed: Callable[[int], None] | None = None,
) -> ScanPlan:
    """List the files of a scan and cut them into splits.

    Args:
        scan: From ``resolve``.
        user_schema: A schema the user gave, instead of the scan's output.
        opener: What the scan was resolved over, if that was in this process.
        listed: Called with the number of files listed since its last call.

    Raises:
        TableChangedError: The table is no longer the one that was resolved.
        SchemaError: ``user_schema`` does not fit the table.
        ServerError, NetworkError, LogError, CredentialError: The files cannot be listed.
    """
    spec = spec_of(scan, user_schema)
    opener = opener or TableOpener(scan)
    table, pruner, listing = opener.run(lambda table: _listed(table, FilePruner(scan, listed), scan))
    files, limit = listing.files, scan.row_limit
    if limit.any_rows is not None:
        files = FileList(_needed_for(limit.any_rows, files))
    chosen = files if limit.own is None else FileList(sorted(files, key=order))
    splits = splits_of(chosen, listing.access, scan, spec)
    report = PlanReport(
        mode=table.mode,
        reason=opener.negotiated.decision.reason,
        skipped=pruner.skipped,
        files=len(files),
        bytes=files.total_bytes,
        unhelpful=pruner.non_pruning_conjuncts(),
        **{f.name: getattr(listing, f.name) for f in fields(ListingFacts)},
    )
    _log.info("planned %d files (%d bytes) of %s in %d splits", report.files, report.bytes, spec.table, len(splits))
    count_files(spec.table, report.listed, report.skipped)
    rows = (files.live_rows() if listing.rows is None else listing.rows) if pruner.predicate_is_decided else None
    return ScanPlan(
        spec, chosen, listing.access, splits, report, None if rows is None else smaller_limit(rows, limit.own)
    )


def count_files(table: str, listed: int, skipped: Mapping[str, int]) -> None:
    """Count the files of a listing for metrics."""
    metrics.count(metrics.FILES_LISTED, listed, table=table)
    for rule, files in skipped.items():
        metrics.count(metrics.FILES_SKIPPED, files, table=table, rule=rule)


def _listed(table: OpenTable, pruner: FilePruner, scan: ResolvedScan) -> tuple[OpenTable, FilePruner, FileListing]:
    """The files of a snapshot or of a change data feed, pruned by a pruner of their own."""
    if not scan.options.read_change_feed:
        return table, pruner, table.snapshot(scan, pruner)
    feed = table.changes(scan)
    files, listed = FileList(), 0
    for version in feed.versions:
        if version.shape is not None:
            check_readable(scan.shape, version.shape, version.version, str(scan.table))
        listed += len(version.tasks)
        files += pruner.remaining(version.tasks)
    return table, pruner, FileListing(files, feed.access, version=scan.version, listed=listed, total_files=listed)


def spec_of(scan: ResolvedScan, user_schema: Struct | None = None) -> ReadSpec:
    """How the rows of a scan are read."""
    table, options = str(scan.table), scan.options
    output = scan.output if user_schema is None else requested(scan.columns, user_schema, table)
    full = output
    if scan.predicate is not None:
        full = merge(output, select_paths(scan.columns, referenced_columns(scan.predicate)))
    check_types(full, scan.columns, table)
    partitioned = {name.lower() for name in scan.shape.partition_columns}
    fields = [field for field in scan.shape.schema.fields if field.name.lower() in partitioned]
    return ReadSpec(
        table=table,
        schema=output,
        full_schema=full,
        partition_columns=tuple(f.name for f in full.fields if f.name.lower() in partitioned),
        partition_keys=partition_keys({f.name: f.physical_name for f in fields}),
        mapping=scan.shape.mapping,
        predicate=scan.predicate,
        prune=scan.prune,
        limit=scan.row_limit.own,
        change_feed=options.read_change_feed,
        time_zone=options.time_zone,
        commit_timestamp_long=options.commit_timestamp_type == "long",
        is_projected=len(full.fields) < len(scan.columns.fields),
        fetch_ahead=max(8 << 20, options.memory_budget),
    )


def splits_of(
    files: PlannedFiles, access: SplitAccess, scan: ResolvedScan, spec: ReadSpec, first_index: int = 0
) -> Sequence[Split]:
    """Cut the files of a batch or a stream into splits, balanced by bytes, each with what its files need of ``access``.

    Args:
        first_index: The number of the first split.
    """
    bins: Sequence[Sequence[FileSlice]]
    limit = scan.row_limit
    if limit.own is None:
        bins = files.bins(max(_LEAST_SPLIT_BYTES, scan.options.max_split_bytes))
        if not isinstance(access, FileAccess):  # whoever reads the rows reads them whole, in one task
            bins = [tuple(FileSlice(piece.task) for piece in slices) for slices in bins if not slices[0].start]
    else:
        # One task alone can count to an exact limit and stop; it gets no more files than are known to be needed.
        needed = files if limit.rows_listed is None else _needed_for(limit.rows_listed, files)
        bins = [tuple(FileSlice(task) for task in needed)] if len(files) and limit.own else []

    def make(place: int, slices: Sequence[FileSlice]) -> Split:
        own = access.restricted_to(TasksOfSlices(slices))
        if scan.options.cache_dir is not None:
            from delta_sharing_spark.access.cached_access import cached

            own = cached(own, scan)
        return Split(first_index + place, spec, slices, own)

    return LazySplits(bins, make)


def _needed_for(limit: int, files: Iterable[FileTask]) -> Iterable[FileTask]:
    """The first files that hold ``limit`` rows; all where statistics do not tell."""
    chosen, total = [], 0
    for task in files:
        chosen.append(task)
        rows = live_rows(task)
        if rows is None:
            return files
        total += rows
        if total >= limit:
            break
    return chosen
