"""Chooses how Spark reads a shared table: by its own Parquet reader (the native lane), or by the Python data source."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

from pyspark.sql import DataFrame, SparkSession

from delta_sharing_spark.access.load import Load, Recipient, checked_engine, narrowed
from delta_sharing_spark.access.plan import ScanPlan
from delta_sharing_spark.errors import ConfigError
from delta_sharing_spark.native.plan import NativePlan, StepAsideError
from delta_sharing_spark.options.declared import overridden
from delta_sharing_spark.schema.markup import seconds_text, size_text, text_table
from delta_sharing_spark.spark.native import (
    Note,
    Opened,
    Reach,
    native_frame,
    reach_of,
    start_gateways,
    why_no_gateways,
    why_not_in,
)
from delta_sharing_spark.spark.register import load_by_python, register_source, use_own_python
from delta_sharing_spark.spark.session_settings import is_connect, warn_of_inline_secrets
from delta_sharing_spark.spark.spark_types import with_places

_log = logging.getLogger(__name__)

#: Of Spark's latest scans, those that an explanation tells.
_SCANS_EXPLAINED = 5


def frame_of(scan: Load, spark: SparkSession, engine: str | None = None) -> DataFrame:
    """A scan as a DataFrame, read by ``engine``, the client's by default; raises as ``lane_frame``.

    With ``auto``, the Python source reads where the native lane cannot read the table or the session; the log says why.
    """
    client = scan.table.client
    frame = lane_frame(spark, str(scan.table), engine or client.engine, scan.opened, client.scans.append)
    return python_frame(scan, spark) if frame is None else frame


def lane_frame(
    spark: SparkSession, table: str, engine: str, opened: Callable[[], Opened], note: Note
) -> DataFrame | None:
    """A load as a DataFrame of the native lane; None where the Python source is to read it, which the log explains.

    Args:
        table: How the log and errors name the table.
        opened: Opens and resolves the load.

    Raises:
        OptionError: An unknown engine.
        ConfigError: ``native`` was asked for, and the lane cannot read the load, or not in this session.
        DeltaSharingError: The table cannot be loaded.
    """
    reach = _reach(spark, engine)
    start_gateways(reach)
    try:
        load = opened() if reach.is_possible else None
        why = _unfit(reach, engine, f"read {table}")
        if load is not None and why is None:
            return native_frame(spark, load, reach, note)
    except StepAsideError as reason:
        why = str(reason)
    note_python_source(engine, why, f"table {table}")
    return None


def lane_of_query(spark: SparkSession, engine: str) -> Callable[[Load], DataFrame] | None:
    """What makes the scans of one query DataFrames of the native lane, equal ones once; None where the session cannot use it.

    It raises StepAsideError where the lane cannot read a scan: all of the query is to be read by the Python source then.

    Raises:
        OptionError: An unknown engine.
        ConfigError: ``native`` was asked for, and no executor can reach this process.
    """
    reach = _reach(spark, engine)
    why = _unfit(reach, engine, "read")
    if why is not None:
        note_python_source(engine, why)
        return None
    frames: dict[str, DataFrame] = {}

    def frame(scan: Load) -> DataFrame:
        load = repr((str(scan.table), sorted(scan.options.items())))
        if load not in frames:
            try:
                frames[load] = native_frame(spark, scan.opened(), reach, scan.table.client.scans.append)
            except StepAsideError as reason:
                raise StepAsideError(f"{scan.table}: {reason}") from None
        return frames[load]

    return frame


def note_python_source(engine: str, why: object, what: str = "the query") -> None:
    """Log that the Python source reads a query, or a table.

    Raises:
        ConfigError: ``native`` was asked for.
    """
    if engine == "native":
        raise ConfigError(f"engine='native' cannot read {what}: {why}; leave engine out, or use engine='python'")
    _log.info("%s: Python data source (%s)", what, why)


def python_frame(scan: Load, spark: SparkSession, narrowing: Mapping[str, str] = MappingProxyType({})) -> DataFrame:
    """A scan as a DataFrame of the Python data source, with further options that narrow it."""
    register_source(spark)
    own = narrowed(scan.table.client.options_for(scan.table.name), scan.options)
    options = overridden(own, narrowing)  # whose condition holds those of all loads
    warn_of_inline_secrets(spark, options)
    path = options.pop("path")
    frame = load_by_python(spark.read.format("deltaSharing").options(**options), path)
    # A frame over Connect is not asked for its columns unless the table is known to need it: that costs requests.
    return with_places(frame, str(scan.table)) if not is_connect(spark) or scan.has_places else frame


def explain_engine(
    spark: SparkSession, scans: Sequence[Load], engine: str, planned: ScanPlan | None = None
) -> tuple[bool, str]:
    """Whether the native lane reads a query over scans in a session; and in words the lane that does, with why not the other.

    Args:
        planned: The plan of a scan by itself.
    """
    reach = _reach(spark, engine)
    if (why := _unfit(reach, engine, "read") or _why_not_all(spark, scans, planned)) is not None:
        return False, f"Python data source: {why}"
    return (
        True,
        f"native lane, Spark's own Parquet reader: {reach.reason}, which asks for the files of each scan with its own filters",
    )


def _why_not_all(spark: SparkSession, scans: Sequence[Load], planned: ScanPlan | None) -> str | None:
    for scan in scans:
        if (why := why_not_in(spark, scan.resolved())) is not None:
            return f"{scan.table}: {why}"
        if planned is not None:
            try:
                NativePlan(scan.resolved(), planned)
            except StepAsideError as reason:
                return str(reason)
    return None


def explain_scans(client: Recipient, tables: Collection[str]) -> Iterator[str]:
    """What Spark's latest scans of some tables were answered: a small table, and a line each with all there is to tell."""
    latest = [scan for scan in client.scans if scan.table in tables][-_SCANS_EXPLAINED:]
    if not latest:
        return
    rows = []
    for scan in latest:
        read = str(scan.files), str(scan.total_files or ""), size_text(scan.bytes), seconds_text(scan.seconds)
        rows.append([scan.table, *read, " AND ".join(scan.filters) or "none"])
    yield from text_table(["scanned", "files", "of", "size", "listed in", "filters"], rows).split("\n")
    yield from (f"scan       {scan}" for scan in latest)


def _reach(spark: SparkSession, engine: str) -> Reach:
    """What a session's executors reach for an engine: no gateway for ``python``."""
    use_own_python(spark)
    return Reach("engine='python'", False) if checked_engine(engine) == "python" else reach_of(spark)


def _unfit(reach: Reach, engine: str, what: str) -> str | None:
    """Why a session does not use the native lane; None where it does.

    Raises:
        ConfigError: ``native`` was asked for, or no lane can read, for Spark's executors lack the package.
    """
    why = why_no_gateways(reach) if reach.is_possible else reach.reason
    if why is not None and engine == "native":
        raise ConfigError(
            f"engine='native' cannot {what} in this session: {why}; leave engine out, or use engine='python'"
        )
    return why
