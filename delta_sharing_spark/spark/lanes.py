"""Chooses how Spark reads a shared table: by its own Parquet reader (the native lane), or by the Python data source."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from delta_sharing_spark.errors import ConfigError, OptionError
from delta_sharing_spark.native.plan import NativePlan, StepAsideError, native_plan, plan_native, why_not
from delta_sharing_spark.network.parallel_calls import in_parallel
from delta_sharing_spark.predicates.sql import parse_where
from delta_sharing_spark.spark.inline_secrets import warn_of_inline_secrets
from delta_sharing_spark.spark.native import (
    Note,
    Opened,
    Reach,
    asks_for_files,
    native_frame,
    planned_frame,
    reach_of,
    start_gateways,
    why_no_gateways,
)
from delta_sharing_spark.spark.register import load_by_python, register_source
from delta_sharing_spark.table_scan import ENGINES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from delta_sharing_spark.access.plan import ScanPlan
    from delta_sharing_spark.access.resolved_scan import ResolvedScan
    from delta_sharing_spark.client import SharingClient
    from delta_sharing_spark.table_scan import Scan

_log = logging.getLogger(__name__)

#: Up to so many files of a table are all shown to Spark, which costs less than planning a query twice.
MANY_FILES = 100
#: Of Spark's latest scans, those that an explanation tells.
_SCANS_EXPLAINED = 5


def frame_of(scan: Scan, spark: SparkSession, engine: str | None = None) -> DataFrame:
    """A scan as a DataFrame, read by ``engine``, the client's by default.

    Where the native lane cannot read the table or the session, the Python source reads; the log says why.

    Raises:
        OptionError: An unknown engine.
        ConfigError: ``native`` was asked for, and no executor can reach this process.
        DeltaSharingError: The table cannot be loaded.
    """
    client = scan.table.client
    frame = lane_frame(spark, str(scan.table), engine or client.engine, scan.opened, client.note_listing)
    return python_frame(scan, spark) if frame is None else frame


def lane_frame(
    spark: SparkSession, table: str, engine: str, opened: Callable[[], Opened], note: Note
) -> DataFrame | None:
    """A load as a DataFrame of the native lane; None where the Python source is to read it, which the log explains.

    Args:
        spark: A classic or Connect session.
        table: How the log and errors name the table.
        engine: The engine asked for.
        opened: Opens and resolves the load.
        note: Is told of each listing.

    Raises:
        OptionError: An unknown engine.
        ConfigError: ``native`` was asked for, and no executor can reach this process.
        DeltaSharingError: The table cannot be loaded.
    """
    why: str | None = "engine='python'"
    if checked_engine(engine) != "python":
        reach = reach_of(spark)
        start_gateways(reach)
        try:
            load = opened() if reach.is_possible else None
            why = _unfit(reach, engine, f"read {table}")
            if load is not None and why is None:
                return native_frame(spark, load, reach, note)
        except StepAsideError as reason:
            why = str(reason)
    _log.log(logging.WARNING if engine == "native" else logging.INFO, "table %s: Python data source (%s)", table, why)
    return None


def native_frames(
    spark: SparkSession, scans: Sequence[Scan], engine: str, conditions: Callable[[], Sequence[str | None]]
) -> list[DataFrame] | None:
    """The scans of one query as DataFrames of the native lane; None where the session or one of them cannot use it.

    Args:
        spark: A classic or Connect session.
        scans: The scans that the query reads.
        engine: The engine asked for.
        conditions: Gives the condition that every row the query needs of each scan fulfils. It is called where a scan has many
            files, to leave out some; Spark's own reader prunes everything else by itself.

    Raises:
        OptionError: An unknown engine.
        ConfigError: ``native`` was asked for, and no executor can reach this process.
        DeltaSharingError: A table cannot be loaded.
    """
    if checked_engine(engine) == "python":
        return None
    reach = reach_of(spark)
    why = _unfit(reach, engine, "read")
    if why is None:
        try:
            return _frames_of_query(spark, scans, reach, conditions)
        except StepAsideError as reason:
            why = str(reason)
    _log.log(logging.WARNING if engine == "native" else logging.INFO, "query: Python data source (%s)", why)
    return None


def _frames_of_query(
    spark: SparkSession,
    scans: Sequence[Scan],
    reach: Reach,
    conditions: Callable[[], Sequence[str | None]],
) -> list[DataFrame]:
    if asks_for_files(spark):
        return [_frame_of_query(spark, scan, reach) for scan in scans]
    frames: dict[tuple[str, str | None], DataFrame] = {}
    query_frames = []
    for load, condition, plan in _plans_of_query(scans, conditions, is_read_here=reach.cluster is None):
        if (load, condition) not in frames:
            frames[load, condition] = planned_frame(spark, plan, reach)
        query_frames.append(frames[load, condition])
    return query_frames


def _frame_of_query(spark: SparkSession, scan: Scan, reach: Reach) -> DataFrame:
    """One of a query's scans, which Spark asks the files of; an error names the table."""
    try:
        return native_frame(spark, scan.opened(), reach, scan.table.client.note_listing)
    except StepAsideError as reason:
        raise StepAsideError(f"{scan.table}: {reason}") from None


def _plans_of_query(
    scans: Sequence[Scan], conditions: Callable[[], Sequence[str | None]], *, is_read_here: bool = True
) -> Iterator[tuple[str, str | None, NativePlan]]:
    """What tells each scan's load from others, the condition by which files are left out, if there is one, and its plan."""
    loads = [repr((str(scan.table), sorted(scan.options.items()))) for scan in scans]
    whole = _plans(dict(zip(loads, scans, strict=True)), is_read_here)
    pruned: dict[tuple[str, str], NativePlan] = {}
    for place, (load, scan) in enumerate(zip(loads, scans, strict=True)):
        plan, condition = whole[load], None
        if isinstance(plan, StepAsideError) or plan.report.files > MANY_FILES:
            condition = conditions()[place]
        if condition is not None:
            if (load, condition) not in pruned:
                pruned[load, condition] = _pruned(scan, condition, is_read_here)
            plan = pruned[load, condition]
        if isinstance(plan, StepAsideError):
            raise plan
        yield load, condition, plan


def _plans(scans: Mapping[str, Scan], is_read_here: bool) -> dict[str, NativePlan | StepAsideError]:
    """The plans of scans with all their files, made at the same time; an error where a scan has too many."""
    calls = [partial(_whole, scan, is_read_here) for scan in scans.values()]
    return dict(zip(scans, in_parallel(calls), strict=True))


def _whole(scan: Scan, is_read_here: bool) -> NativePlan | StepAsideError:
    load = scan.resolved()
    try:
        return _plan(scan, load, is_read_here)
    except StepAsideError as reason:
        if why_not(load) is not None:
            raise
        return reason


def _pruned(scan: Scan, condition: str, is_read_here: bool) -> NativePlan:
    """A scan's plan without the files in which no row can fulfil a condition."""
    load = scan.resolved()
    pushed = parse_where(condition, load.columns, time_zone=load.options.time_zone)
    return _plan(scan, replace(load, pushed=pushed), is_read_here)


def _plan(scan: Scan, load: ResolvedScan, is_read_here: bool) -> NativePlan:
    """The plan of a load of a scan; an error names the scan's table."""
    try:
        return plan_native(load, scan.opened()[0], is_read_here=is_read_here)
    except StepAsideError as reason:
        raise StepAsideError(f"{scan.table}: {reason}") from None


def python_frame(scan: Scan, spark: SparkSession) -> DataFrame:
    """A scan as a DataFrame of the Python data source."""
    register_source(spark)
    options = {**scan.table.client.options_for(scan.table.name), **scan.options}
    warn_of_inline_secrets(spark, options)
    path = options.pop("path")
    return load_by_python(spark.read.format("deltaSharing").options(**options), path)


def explain_engine(scan: Scan, spark: SparkSession, planned: ScanPlan, engine: str | None = None) -> str:
    """The lane that a scan, whose plan is ``planned``, takes in a session, and why not the other."""

    def attempt() -> None:
        if (why := why_not(scan.resolved())) is not None:
            raise StepAsideError(why)
        if asks_for_files(spark):
            return
        native_plan(scan.resolved(), planned)

    return _explained(spark, engine or scan.table.client.engine, attempt)


def explain_scans(client: SharingClient, tables: Collection[str]) -> Iterator[str]:
    """What Spark's latest scans of some tables were answered, a line each."""
    latest = [scan for scan in client.last_scans() if scan.table in tables]
    yield from (f"scan       {scan}" for scan in latest[-_SCANS_EXPLAINED:])


def explain_engines(spark: SparkSession, scans: Sequence[Scan], conditions: Sequence[str | None], engine: str) -> str:
    """The lane that a query over scans takes in a session, in one line; ``conditions`` as for ``native_frames``."""

    def attempt() -> None:
        if not asks_for_files(spark):
            list(_plans_of_query(scans, lambda: conditions))
            return
        for scan in scans:
            if (why := why_not(scan.resolved())) is not None:
                raise StepAsideError(f"{scan.table}: {why}")

    line = _explained(spark, engine, attempt)
    if not line.startswith("native"):
        return line
    if asks_for_files(spark):
        return f"{line}, which asks for the files of each scan with its own filters"
    return f"{line}, which prunes; conditions leave out files where a table has more than {MANY_FILES}"


def _explained(spark: SparkSession, engine: str, attempt: Callable[[], None]) -> str:
    """The lane, and why not the other; ``attempt`` plans for the native lane."""
    if checked_engine(engine) == "python":
        return "Python data source: engine='python'"
    reach = reach_of(spark)
    why = _unfit(reach, engine, "read")
    if why is None:
        try:
            attempt()
            return f"native lane, Spark's own Parquet reader: {reach.reason}"
        except StepAsideError as reason:
            why = str(reason)
    return f"Python data source: {why}"


def checked_engine(engine: str) -> str:
    """``engine``, if there is such a one.

    Raises:
        OptionError: There is no such engine.
    """
    if engine not in ENGINES:
        raise OptionError(f"engine={engine!r} is not known; use one of {', '.join(ENGINES)}")
    return engine


def _unfit(reach: Reach, engine: str, what: str) -> str | None:
    """Why a session does not use the native lane; None where it does.

    Raises:
        ConfigError: ``native`` was asked for, or no lane can read, for Spark's executors lack the package.
    """
    why = why_no_gateways(reach) if reach.is_possible else reach.reason
    if why is not None and engine == "native":
        raise ConfigError(f"engine='native' cannot {what} in this session: {why}; use engine='auto' or 'python'")
    return why
