"""The files of a load: asked of the sharing server, or read from the log, and pruned by ``where``."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from delta_sharing_spark.access.load import Load
from delta_sharing_spark.access.renewal import Recipe
from delta_sharing_spark.access.settings import formats_of, http_policy_of, iso
from delta_sharing_spark.access.shape import check_same, shape_of
from delta_sharing_spark.access.url import SnapshotFiles, UrlAccess
from delta_sharing_spark.scan.plan import Access, FileTask
from delta_sharing_spark.sharing.actions import FileRecord
from delta_sharing_spark.sharing.rest import ChangesQuery, Query, QueryResponse

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from delta_sharing_spark.deltalog.adds import AddBatch
    from delta_sharing_spark.deltalog.replay import Prune
    from delta_sharing_spark.predicates.skipping import FileSkipping


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
        skipping: What left files out.
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
    skipping: FileSkipping | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Listed:
    """Files that are left after pruning, the access that reads them, and how they came about."""

    tasks: Sequence[FileTask]
    access: Access
    report: PlanReport


def snapshot_by_url(load: Load, limit_hint: int | None = None) -> Listed:
    """The files of a snapshot, as the server lists them and ``where`` leaves them."""
    options = load.options
    table = str(load.table)
    report = PlanReport("url", load.decision.reason)
    travelled = options.version_as_of is not None or options.timestamp_as_of is not None
    query = Query(
        version=options.version_as_of,
        timestamp=iso(options.timestamp_as_of),
        limit_hint=limit_hint,
        max_files=options.max_files_per_request,
        include_refresh_token=not travelled,
        idempotency_key=str(uuid.uuid4()) if options.async_query else None,
    )
    query = _with_hints(query, load, report)
    skipping = None if load.prune is None else _skipping(load, report)

    def reason(record: FileRecord) -> int:
        assert skipping is not None
        return skipping.reason(record.partition_values, record.stats)

    def collect() -> SnapshotFiles:
        return SnapshotFiles(table, None if skipping is None else reason)

    response = load.rest.query(load.table, query, formats=formats_of(options), collect=collect)
    report.version = response.head.version
    check_same(load.shape, shape_of(response.head.protocol, response.head.metadata, table), table)
    found = collect()
    for page in response.pages():
        found.extend(page)
    report.listed = len(found.ids)
    for code, count in found.skipped.items():
        _note_skipped(report, code, count)
    return Listed(found.tasks, url_access(load, _again(query), response, files=report.listed), report)


def url_access(
    load: Load, query: Query | ChangesQuery | None, response: QueryResponse | None, files: int = 0
) -> UrlAccess:
    """The access of splits in url mode; ``query`` is what executors repeat to renew URLs.

    Args:
        load, query: What was asked.
        response: The answer, read to its end.
        files: How many files it listed, where that is known.
    """
    recipe, ends = None, response.min_url_expiration if response is not None else None
    if query is not None and response is not None and load.options.carry_profile:
        head = response.head
        pinned = isinstance(query, ChangesQuery) or any(
            at is not None for at in (query.version, query.timestamp, query.starting_version)
        )
        partitions = load.shape.partition_columns
        recipe = Recipe(
            key=uuid.uuid4().hex,
            table=load.table,
            table_id=head.metadata.id,
            profile=load.profile,
            settings=load.settings,
            query=query,
            pinned=pinned,
            formats=(head.response_format,),
            refresh_token=response.refresh_token,
            version=head.version,
            files=files,
            partitions=tuple(f for f in load.shape.schema.fields if f.name in partitions),
        )
    planned_at = time.time() if response is None else response.received_at
    return UrlAccess(load.settings, http_policy_of(load.options), recipe, planned_at, ends / 1000 if ends else None)


def _with_hints(query: Query, load: Load, report: PlanReport) -> Query:
    if query.limit_hint is not None:
        report.sent["limitHint"] = str(query.limit_hint)
    condition = load.prune
    if condition is None:
        return query
    from delta_sharing_spark.predicates.hints import json_hints, sql_hints

    partition_columns = load.shape.partition_columns
    tree = json_hints(condition, load.shape.schema, partition_columns)
    texts = tuple(sql_hints(condition, partition_columns))
    if tree:
        report.sent["jsonPredicateHints"] = tree
    if texts:
        report.sent["predicateHints"] = " AND ".join(texts)
    return replace(query, json_predicate_hints=tree, predicate_hints=texts)


def pruned(load: Load, report: PlanReport, tasks: Iterable[FileTask]) -> Iterator[FileTask]:
    """Tasks whose rows may pass ``where``, without their statistics."""
    if load.prune is None:
        for task in tasks:
            yield replace(task, stats=None) if task.stats else task
        return
    skipping = _skipping(load, report)
    for task in tasks:
        reason = skipping.reason(task.partition_values, task.stats)
        if reason:
            _note_skipped(report, reason, 1)
        else:
            yield replace(task, stats=None)


def _note_skipped(report: PlanReport, reason: int, count: int) -> None:
    from delta_sharing_spark.predicates.skipping import BY_PARTITION

    rule = "partition values" if reason == BY_PARTITION else "statistics"
    report.skipped[rule] = report.skipped.get(rule, 0) + count


def _skipping(load: Load, report: PlanReport) -> FileSkipping:
    from delta_sharing_spark.predicates.skipping import FileSkipping

    condition = load.prune
    assert condition is not None
    skipping = FileSkipping(condition, load.columns, load.shape.partition_columns, time_zone=load.options.time_zone)
    report.skipping = skipping
    report.unhelpful = tuple(str(part) for part in skipping.unhelpful())
    return skipping


def prune_for_split(load: Load, tasks: Iterable[FileTask]) -> list[FileTask]:
    """Tasks of a stream's batch whose rows may pass ``where``, without their statistics."""
    return list(pruned(load, PlanReport(load.decision.mode, ""), tasks))


def _again(query: Query) -> Query:
    """The query as executors repeat it: whole, whatever the limit, and answered at once."""
    return replace(query, include_refresh_token=False, limit_hint=None, idempotency_key=None)


def snapshot_by_directory(load: Load) -> Listed:
    """The files of a snapshot by the log, pruned in columns: no object is built for a file that is skipped."""
    from delta_sharing_spark.access.task_columns import TaskColumns

    directory = load.directory()
    snapshot = directory.snapshot(version=load.version)
    report = PlanReport("dir", load.decision.reason, version=snapshot.version)
    prune, stats_columns = _columnar_prune(load, report)
    batches = []
    for batch in snapshot.adds(stats=True, stats_columns=stats_columns):
        report.listed += batch.num_rows
        kept = batch if prune is None else batch.filter(prune(batch))
        if kept.num_rows:
            directory.check(kept)
            batches.append(kept.counted())
    return Listed(TaskColumns(batches), directory.access, report)


def _columnar_prune(load: Load, report: PlanReport) -> tuple[Prune | None, Collection[str] | None]:
    """The mask of files whose rows may pass ``where``, and the columns whose statistics it looks at."""
    if load.prune is None:
        return None, ()
    import numpy as np

    from delta_sharing_spark.predicates.skipping import BY_PARTITION, BY_STATISTICS, KEEP

    skipping = _skipping(load, report)

    def prune(batch: AddBatch) -> npt.NDArray[np.bool_]:
        reasons = skipping.reasons(batch.num_rows, batch.partition_values, batch.stats_texts, batch.stats_parsed)
        for code in (BY_PARTITION, BY_STATISTICS):
            count = int(np.count_nonzero(reasons == code))
            if count:
                _note_skipped(report, code, count)
        return reasons == KEEP

    return prune, skipping.stats_columns
