"""A resolved load to splits: files listed by the server or by the log, pruned, packed."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

from delta_sharing_spark.access.changes import change_tasks
from delta_sharing_spark.access.load import Load, check_same, shape_of
from delta_sharing_spark.access.negotiate import with_fallback
from delta_sharing_spark.access.renewal import Recipe
from delta_sharing_spark.access.settings import formats_of, http_policy_of, iso, millis, storage_of
from delta_sharing_spark.access.url import UrlAccess, plan_tasks
from delta_sharing_spark.predicates.tree import referenced_columns
from delta_sharing_spark.scan.plan import Access, FileSlice, FileTask, ReadSpec, Split
from delta_sharing_spark.scan.splits import pack
from delta_sharing_spark.schema.project import merge, requested, select_paths
from delta_sharing_spark.schema.types import Struct
from delta_sharing_spark.sharing.actions import FileRecord
from delta_sharing_spark.sharing.rest import ChangesQuery, Query, QueryResponse

if TYPE_CHECKING:
    from delta_sharing_spark.access.directory import DirectoryTable

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class PlanReport:
    """What planning did, for ``explain`` and logs.

    Attributes:
        mode, reason: The access mode and why.
        version: The version read, where known.
        sent: The hints sent to the server, by name.
        listed: Files that the server or the log listed.
        skipped: Files left out here, by rule.
        files, bytes: What is left to read (whole files; projection and row groups make it less).
        unhelpful: Parts of ``where`` that no file could be skipped by.
    """

    mode: str
    reason: str
    version: int | None = None
    sent: dict[str, str] = field(default_factory=dict)
    listed: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    files: int = 0
    bytes: int = 0
    unhelpful: tuple[str, ...] = ()


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
        return (_changes_by_directory(load) if feed else _snapshot_by_directory(load)).plan(load, spec)

    def by_url() -> ScanPlan:
        return _changes_by_url(load).plan(load, spec) if feed else _plan_url(load, spec)

    return with_fallback(load.decision, by_directory, by_url, table=str(load.table))


def spec_of(load: Load, wanted: Struct | None = None) -> ReadSpec:
    """How the rows of a load are read."""
    table, options = str(load.table), load.options
    output = load.output if wanted is None else requested(load.columns, wanted, table)
    full = output
    if load.predicate is not None:
        full = merge(output, select_paths(load.columns, referenced_columns(load.predicate)))
    partitioned = {name.lower() for name in load.shape.partition_columns}
    return ReadSpec(
        table=table,
        schema=output,
        full_schema=full,
        partition_columns=tuple(f.name for f in full.fields if f.name.lower() in partitioned),
        mapping=load.shape.mapping,
        predicate=load.predicate,
        limit=options.limit,
        change_feed=options.read_change_feed,
        time_zone=options.time_zone,
        commit_timestamp_long=options.commit_timestamp_type == "long",
        projected=len(full.fields) < len(load.columns.fields),
        fetch_ahead=max(8 << 20, options.memory_budget // 4),
    )


def _plan_url(load: Load, spec: ReadSpec) -> ScanPlan:
    hinted = load.options.limit is not None and load.predicate is None
    found = _snapshot_by_url(load, hinted)
    limit = load.options.limit
    if hinted and limit is not None and not _enough(found.tasks, limit):
        # A hint may have left out files whose rows were needed: too few are known to be live.
        found = _snapshot_by_url(load, False)
    return found.plan(load, spec)


def _enough(tasks: list[FileTask], limit: int) -> bool:
    live = 0
    for task in tasks:
        rows = live_rows(task)
        if rows is None:
            return False
        live += rows
    return live >= limit


def live_rows(task: FileTask) -> int | None:
    """Rows of a file that are not deleted; None where statistics do not tell."""
    if task.rows is None or task.invert_deletion_vector:
        return None
    return task.rows - (task.deletion_vector.cardinality if task.deletion_vector else 0)


@dataclass(slots=True)
class _Found:
    """Files that are left after pruning, and the access that reads them."""

    tasks: list[FileTask]
    access: Access
    report: PlanReport

    def plan(self, load: Load, spec: ReadSpec) -> ScanPlan:
        tasks = sorted(self.tasks, key=lambda t: (t.commit_version or 0, t.id, t.change_type or ""))
        limit = load.options.limit
        bins: list[tuple[FileSlice, ...]]
        if limit is None:
            bins = pack(tasks, load.options.max_split_bytes)
        else:
            # One task alone can count to an exact limit and stop; it gets no more files than are known to be needed.
            chosen = _first_files(tasks, limit) if load.predicate is None else tasks
            bins = [tuple(FileSlice(task) for task in chosen)] if chosen and limit else []
        report = self.report
        report.files, report.bytes = len(tasks), sum(t.size for t in tasks)
        splits = [Split(i, spec, slices, carried(self.access, slices)) for i, slices in enumerate(bins)]
        _log.info("planned %d files (%d bytes) of %s in %d splits", report.files, report.bytes, spec.table, len(splits))
        return ScanPlan(spec, splits, report, _exact_rows(tasks, load))


def carried(access: Access, slices: Iterable[FileSlice]) -> Access:
    """What one split needs of an access: in directory mode, only the tokens of its own files' locations."""
    from delta_sharing_spark.access.carriage import DirectoryAccess

    if isinstance(access, DirectoryAccess):
        return access.carrying(piece.task for piece in slices)
    return access


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


def _exact_rows(tasks: list[FileTask], load: Load) -> int | None:
    if load.predicate is not None:
        return None
    total = 0
    for task in tasks:
        rows = live_rows(task)
        if rows is None:
            return None
        total += rows
    return total if load.options.limit is None else min(total, load.options.limit)


def _snapshot_by_url(load: Load, hinted: bool) -> _Found:
    options = load.options
    table = str(load.table)
    report = PlanReport("url", load.decision.reason)
    travelled = options.version_as_of is not None or options.timestamp_as_of is not None
    query = Query(
        version=options.version_as_of,
        timestamp=iso(options.timestamp_as_of),
        limit_hint=options.limit if hinted else None,
        max_files=options.max_files_per_request,
        include_refresh_token=not travelled,
        idempotency_key=str(uuid.uuid4()) if options.async_query else None,
    )
    query = _with_hints(query, load, report)
    response = load.rest.query(load.table, query, formats=formats_of(options))
    report.version = response.head.version
    check_same(load.shape, shape_of(response.head.protocol, response.head.metadata, table), table)
    tasks = list(_pruned(load, report, plan_tasks(_counted(response.records(), report), table)))
    return _Found(_expiring(tasks, response), url_access(load, _again(query, response), response), report)


def _changes_by_url(load: Load) -> _Found:
    options, table = load.options, str(load.table)
    report = PlanReport("url", load.decision.reason)
    newest = load.head.version
    if newest is not None and options.starting_version == newest + 1:
        return _Found([], url_access(load, None, None), report)
    query = ChangesQuery(
        starting_version=_numbered(options.starting_version),
        starting_timestamp=iso(options.starting_timestamp),
        ending_version=options.ending_version,
        ending_timestamp=iso(options.ending_timestamp),
        max_files=options.max_files_per_request,
    )
    response = load.rest.changes(load.table, query, formats=formats_of(options))
    check_same(load.shape, shape_of(response.head.protocol, response.head.metadata, table), table)
    tasks = list(_pruned(load, report, change_tasks(_counted(response.records(), report), table)))
    return _Found(_expiring(tasks, response), url_access(load, query, response), report)


def _numbered(version: int | str | None) -> int | None:
    return version if isinstance(version, int) else None


def _expiring(tasks: list[FileTask], response: QueryResponse) -> list[FileTask]:
    """Tasks with the answer's earliest expiry, where their own lines name none."""
    earliest = response.min_url_expiration
    if not earliest:
        return tasks
    return [t if t.expires_at is not None else replace(t, expires_at=earliest / 1000) for t in tasks]


def url_access(load: Load, query: Query | ChangesQuery | None, response: QueryResponse | None) -> UrlAccess:
    """The access of splits in url mode; ``query`` is what executors repeat to renew URLs."""
    recipe = None
    if query is not None and response is not None and load.options.carry_profile:
        pinned = isinstance(query, ChangesQuery) or any(
            at is not None for at in (query.version, query.timestamp, query.starting_version, query.refresh_token)
        )
        recipe = Recipe(
            key=uuid.uuid4().hex,
            table=load.table,
            table_id=response.head.metadata.id,
            profile=load.profile,
            settings=load.settings,
            query=query,
            pinned=pinned,
            formats=(response.head.response_format,),
        )
    return UrlAccess(load.settings, http_policy_of(load.options), recipe)


def _counted(records: Iterator[FileRecord], report: PlanReport) -> Iterator[FileRecord]:
    for record in records:
        report.listed += 1
        yield record


def _with_hints(query: Query, load: Load, report: PlanReport) -> Query:
    if query.limit_hint is not None:
        report.sent["limitHint"] = str(query.limit_hint)
    if load.predicate is None:
        return query
    from delta_sharing_spark.predicates.hints import json_hints, sql_hints

    partition_columns = load.shape.partition_columns
    tree = json_hints(load.predicate, load.shape.schema, partition_columns)
    texts = tuple(sql_hints(load.predicate, partition_columns))
    if tree:
        report.sent["jsonPredicateHints"] = tree
    if texts:
        report.sent["predicateHints"] = " AND ".join(texts)
    return replace(query, json_predicate_hints=tree, predicate_hints=texts)


def _pruned(load: Load, report: PlanReport, tasks: Iterable[FileTask]) -> Iterator[FileTask]:
    """Tasks whose rows may pass ``where``, without their statistics."""
    if load.predicate is None:
        for task in tasks:
            yield replace(task, stats=None) if task.stats else task
        return
    from delta_sharing_spark.predicates.skipping import BY_PARTITION, KEEP, FileSkipping

    skipping = FileSkipping(
        load.predicate, load.columns, load.shape.partition_columns, time_zone=load.options.time_zone
    )
    report.unhelpful = tuple(str(part) for part in skipping.unhelpful())
    keys = _physical_keys(load)
    for task in tasks:
        reason = skipping.reason(keys(task), task.stats)
        if reason == KEEP:
            yield replace(task, stats=None)
        else:
            rule = "partition values" if reason == BY_PARTITION else "statistics"
            report.skipped[rule] = report.skipped.get(rule, 0) + 1


def prune_for_split(load: Load, tasks: Iterable[FileTask]) -> list[FileTask]:
    """Tasks of a stream's batch whose rows may pass ``where``, without their statistics."""
    return list(_pruned(load, PlanReport(load.decision.mode, ""), tasks))


def _physical_keys(load: Load) -> Callable[[FileTask], dict[str, str | None]]:
    """Partition values by physical name; the parquet format keys them by logical ones."""
    names = {f.name: f.physical_name for f in load.shape.schema.fields if f.name in load.shape.partition_columns}
    return lambda task: {names.get(k, k): v for k, v in task.partition_values.items()}


def _again(query: Query, response: QueryResponse) -> Query:
    """The query as executors repeat it: by refresh token, else the version the user chose, else as it was."""
    again = replace(query, include_refresh_token=False, limit_hint=None, idempotency_key=None)
    return replace(again, refresh_token=response.refresh_token) if response.refresh_token else again


def _snapshot_by_directory(load: Load) -> _Found:
    directory = _open(load)
    snapshot = directory.snapshot(version=load.version)
    report = PlanReport("dir", load.decision.reason, version=snapshot.version)
    tasks = directory.tasks(snapshot, keep_stats=load.predicate is not None)
    found = list(_pruned(load, report, tasks))
    report.listed = len(found) + sum(report.skipped.values())
    return _Found(found, directory.access, report)


def _changes_by_directory(load: Load) -> _Found:
    from delta_sharing_spark.deltalog.changes import load_changes
    from delta_sharing_spark.deltalog.history import version_at_or_after, version_at_or_before

    options, table, directory = load.options, str(load.table), _open(load)
    report = PlanReport("dir", load.decision.reason, version=load.version)
    start = _numbered(options.starting_version)
    if start is None:
        start = version_at_or_after(directory.store, _required_millis(options.starting_timestamp), table=table)
    end = options.ending_version
    if options.ending_timestamp is not None:
        end = version_at_or_before(
            directory.store, _required_millis(options.ending_timestamp), table=table, allow_after_newest=True
        )
    commits = load_changes(directory.store, start, end, table=table)
    tasks = directory.checked(task for commit in commits for task in commit.tasks)
    found = list(_pruned(load, report, tasks))
    report.listed = len(found) + sum(report.skipped.values())
    return _Found(found, directory.access, report)


def _required_millis(moment: datetime | None) -> int:
    number = millis(moment)
    assert number is not None
    return number


def _open(load: Load) -> DirectoryTable:
    from delta_sharing_spark.access.directory import open_directory

    return open_directory(
        load.profile,
        load.settings,
        load.table,
        load.head,
        settings=storage_of(load.options),
        carry_profile=load.options.carry_profile,
    )
