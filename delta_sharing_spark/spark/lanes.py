"""Which way a shared table comes into Spark: Spark's own Parquet reader (the native lane), or the Python data source."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from delta_sharing_spark.errors import ConfigError, OptionError
from delta_sharing_spark.native.plan import StepAsideError, why_not
from delta_sharing_spark.spark.inline_secrets import warn_of_inline_secrets
from delta_sharing_spark.spark.native import Reach, native_frame, reach_of
from delta_sharing_spark.spark.register import register
from delta_sharing_spark.table_scan import ENGINES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from delta_sharing_spark.table_scan import Scan

_log = logging.getLogger(__name__)


def frame_of(scan: Scan, spark: SparkSession, engine: str | None = None) -> DataFrame:
    """A scan as a DataFrame, by the engine asked for, the client's by default.

    Where the native lane does not fit the table or the session, the Python source reads; the log says why.

    Raises:
        OptionError: An unknown engine.
        ConfigError: ``native`` was asked for, and no executor can reach this process.
        DeltaSharingError: The table cannot be loaded.
    """
    engine = checked_engine(engine or scan.table.client.engine)
    why = "engine='python'"
    if engine != "python":
        reach = reach_of(spark)
        if engine == "native" and reach.host is None:
            raise ConfigError(
                f"engine='native' cannot read {scan.table} in this session: {reach.reason}; use engine='auto' or 'python'"
            )
        unfit = _unfit(reach, engine)
        if unfit is None:
            try:
                return native_frame(spark, scan, reach)[0]
            except StepAsideError as reason:
                unfit = str(reason)
        why = unfit
    _log.log(
        logging.WARNING if engine == "native" else logging.INFO, "table %s: Python data source (%s)", scan.table, why
    )
    return python_frame(scan, spark)


def native_frames(spark: SparkSession, scans: Sequence[Scan], engine: str) -> list[DataFrame] | None:
    """Scans as DataFrames of the native lane; None where it does not fit the session, or one of them.

    Raises:
        OptionError: An unknown engine.
        DeltaSharingError: A table cannot be loaded.
    """
    if checked_engine(engine) == "python":
        return None
    reach = reach_of(spark)
    why = _unfit(reach, engine)
    frames: dict[str, DataFrame] = {}
    try:
        for scan in scans if why is None else ():
            key = repr((str(scan.table), sorted(scan.options.items())))
            if key not in frames:
                frames[key] = native_frame(spark, scan, reach)[0]
    except StepAsideError as reason:
        why = f"{scan.table}: {reason}"
    if why is not None:
        _log.log(logging.WARNING if engine == "native" else logging.INFO, "query: Python data source (%s)", why)
        return None
    return [frames[repr((str(scan.table), sorted(scan.options.items())))] for scan in scans]


def python_frame(scan: Scan, spark: SparkSession) -> DataFrame:
    """A scan as a DataFrame of the Python data source."""
    register(spark)
    options = {**scan.table.client.options_for(scan.table.name), **scan.options}
    warn_of_inline_secrets(spark, options)
    path = options.pop("path")
    return spark.read.format("deltaSharing").options(**options).load(path)


def explain_engine(scan: Scan, spark: SparkSession, engine: str | None = None) -> str:
    """Which lane a scan takes in a session, and why not the other."""
    engine = checked_engine(engine or scan.table.client.engine)
    if engine == "python":
        return "Python data source: engine='python'"
    reach = reach_of(spark)
    why = _unfit(reach, engine) or why_not(scan.resolved())
    return f"Python data source: {why}" if why else f"native lane, Spark's own Parquet reader: {reach.reason}"


def checked_engine(engine: str) -> str:
    """The engine.

    Raises:
        OptionError: It is none.
    """
    if engine not in ENGINES:
        raise OptionError(f"engine={engine!r} is not known; use one of {', '.join(ENGINES)}")
    return engine


def _unfit(reach: Reach, engine: str) -> str | None:
    """Why a session does not take the native lane; None where it does."""
    if reach.host is None:
        return reach.reason
    if engine == "auto" and not reach.is_local:
        return f"{reach.reason}; engine='native' would send all bytes through the driver"
    return None
