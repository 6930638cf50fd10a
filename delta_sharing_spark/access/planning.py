"""A resolved load to splits: its files listed, counted and packed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from delta_sharing_spark.access.changes import changes_by_directory, changes_by_url
from delta_sharing_spark.access.listing import Listed, PlanReport, snapshot_by_directory, snapshot_by_url
from delta_sharing_spark.access.load import Load
from delta_sharing_spark.access.negotiate import with_fallback
from delta_sharing_spark.access.task_columns import TaskColumns, pack_columns
from delta_sharing_spark.access.url import UrlAccess
from delta_sharing_spark.predicates.tree import referenced_columns
from delta_sharing_spark.scan.plan import Access, FileSlice, FileTask, ReadSpec, Split
from delta_sharing_spark.scan.splits import order, pack
from delta_sharing_spark.schema.project import merge, requested, select_paths
from delta_sharing_spark.schema.types import Struct

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """Splits, and how they came about. ``exact_rows`` is the count of rows if statistics tell it exactly."""

    spec: ReadSpec
    splits: list[Split]
    report: PlanReport
    exact_rows: int | None = None


def plan(load: Load, wanted: Struct | None = None) -> ScanPlan:
    """List the files of a load and cut them into splits.

    Args:
        load: From ``resolve``.
        wanted: A schema the user gave, instead of the load's output.

    Raises:
        TableChangedError: The table is no longer the one that was resolved.
        SchemaError: ``wanted`` does not fit the table.
        ServerError, NetworkError, LogError, CredentialError: The files cannot be listed.
    """
    spec = spec_of(load, wanted)

    feed = load.options.read_change_feed

    def by_directory() -> ScanPlan:
        return _planned(changes_by_directory(load) if feed else snapshot_by_directory(load), load, spec)

    def by_url() -> ScanPlan:
        return _planned(changes_by_url(load) if feed else _limited_by_url(load), load, spec)

    return with_fallback(load.decision, by_directory, by_url, table=str(load.table))


def spec_of(load: Load, wanted: Struct | None = None) -> ReadSpec:
    """How the rows of a load are read."""
    table, options = str(load.table), load.options
    output = load.output if wanted is None else requested(load.columns, wanted, table)
    full = output
    if load.predicate is not None:
        full = merge(output, select_paths(load.columns, referenced_columns(load.predicate)))
    partitioned = {name.lower() for name in load.shape.partition_columns}
    fields = [field for field in load.shape.schema.fields if field.name.lower() in partitioned]
    return ReadSpec(
        table=table,
        schema=output,
        full_schema=full,
        partition_columns=tuple(f.name for f in full.fields if f.name.lower() in partitioned),
        partition_names=frozenset(name.lower() for f in fields for name in (f.name, f.physical_name)),
        mapping=load.shape.mapping,
        predicate=load.predicate,
        prune=load.prune,
        limit=options.limit,
        change_feed=options.read_change_feed,
        time_zone=options.time_zone,
        commit_timestamp_long=options.commit_timestamp_type == "long",
        projected=len(full.fields) < len(load.columns.fields),
        fetch_ahead=max(8 << 20, options.memory_budget),
    )


def _limited_by_url(load: Load) -> Listed:
    """A snapshot's files; with a limit and no filter the server is told, and asked again if it told too few files."""
    limit = load.options.limit
    if limit is None or load.predicate is not None:
        return snapshot_by_url(load)
    listed = snapshot_by_url(load, limit_hint=limit)
    live = _live_rows(listed.tasks)
    return listed if live is not None and live >= limit else snapshot_by_url(load)


def _live_rows(tasks: Sequence[FileTask]) -> int | None:
    """Rows of all files; None where statistics do not tell of one."""
    total = 0
    for task in tasks:
        rows = live_rows(task)
        if rows is None:
            return None
        total += rows
    return total


def live_rows(task: FileTask) -> int | None:
    """Rows of a file that are not deleted; None where statistics do not tell."""
    if task.rows is None or task.invert_deletion_vector:
        return None
    return task.rows - (task.deletion_vector.cardinality if task.deletion_vector else 0)


def _planned(listed: Listed, load: Load, spec: ReadSpec) -> ScanPlan:
    limit, report = load.options.limit, listed.report
    bins: list[Sequence[FileSlice]]
    if limit is not None:
        # One task alone can count to an exact limit and stop; it gets no more files than are known to be needed.
        ordered = sorted(listed.tasks, key=order)
        chosen = _first_files(ordered, limit) if load.predicate is None else ordered
        bins = [tuple(FileSlice(task) for task in chosen)] if chosen and limit else []
        report.bytes = sum(task.size for task in ordered)
    elif isinstance(listed.tasks, TaskColumns):
        bins = pack_columns(listed.tasks, load.options.max_split_bytes)
        report.bytes = int(listed.tasks.sizes.sum())
    else:
        bins = list(pack(listed.tasks, load.options.max_split_bytes))
        report.bytes = sum(task.size for task in listed.tasks)
    report.files = len(listed.tasks)
    splits = [Split(i, spec, slices, carried(listed.access, slices, load)) for i, slices in enumerate(bins)]
    _log.info("planned %d files (%d bytes) of %s in %d splits", report.files, report.bytes, spec.table, len(splits))
    return ScanPlan(spec, splits, report, _exact_rows(listed.tasks, limit) if _whole(load, report) else None)


def _whole(load: Load, report: PlanReport) -> bool:
    """Whether every row of the files that are left passes ``where``."""
    if load.prune is None:
        return True
    return load.pushed is None and report.skipping is not None and report.skipping.decided


def _exact_rows(tasks: Sequence[FileTask], limit: int | None) -> int | None:
    total = tasks.live_rows() if isinstance(tasks, TaskColumns) else _live_rows(tasks)
    return total if total is None or limit is None else min(total, limit)


def carried(access: Access, slices: Iterable[FileSlice], load: Load) -> Access:
    """What one split needs of an access: the tokens of its own files' locations, or its files for one renewal.

    With ``cacheDir`` the bytes go through a cache on the executor.
    """
    options = load.options
    if isinstance(access, UrlAccess):
        access = access.carrying(slices)
    else:
        from delta_sharing_spark.access.carriage import DirectoryAccess

        if isinstance(access, DirectoryAccess) and len(access.tokens) > 1:
            access = access.carrying(piece.task for piece in slices)
    if options.cache_dir is None:
        return access
    from delta_sharing_spark.access.cached import CachedAccess
    from delta_sharing_spark.storage.cache import CacheSettings

    table_id = load.shape.id or f"{load.profile.endpoint}#{load.table}"
    return CachedAccess(access, CacheSettings(options.cache_dir, options.cache_max_bytes, table_id))


def _first_files(tasks: list[FileTask], limit: int) -> list[FileTask]:
    chosen, known = [], 0
    for task in tasks:
        chosen.append(task)
        rows = live_rows(task)
        if rows is None:
            return tasks
        known += rows
        if known >= limit:
            break
    return chosen
