"""Reads a split as its query's session has it: its time zone, and the proxy of the JVM connector's settings."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from delta_sharing_spark.errors import ConfigError
from delta_sharing_spark.scan.plan import Split
from delta_sharing_spark.schema.types import Primitive

ZONE = "spark.sql.session.timeZone"
#: The local property that Spark gives the tasks of each SQL query.
_EXECUTION = "spark.sql.execution.id"
#: What leads data through a proxy.
_PROXY = ("spark.delta.sharing.network.proxyHost", "spark.delta.sharing.network.proxyPort")


def in_session_of_task(split: Split) -> Split:
    """A split as a task of the Python data source reads it, which the load may have known nothing of the session for.

    Partition values that name no zone are in the session's, or raise ConfigError where Spark does not tell it. Data comes through
    the proxy of the JVM connector's settings, which is one of data alone there, too.
    """
    return _through_proxy(_in_zone(split))


def _through_proxy(split: Split) -> Split:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None or not any(map(context.getLocalProperty, _PROXY)):
        return split  # nothing of what follows is imported for it
    from delta_sharing_spark.access.cached_access import CachedAccess
    from delta_sharing_spark.access.url.access import UrlAccess
    from delta_sharing_spark.network.urls import host_of
    from delta_sharing_spark.spark.jvm_settings import proxy_of

    cache = split.access if isinstance(split.access, CachedAccess) else None
    access = split.access if cache is None else cache.inner
    if not isinstance(access, UrlAccess) or access.settings.proxy is not None:
        return split
    hosts = {host for piece in split.slices if (host := host_of(piece.task.location))}
    access = replace(access, settings=replace(access.settings, proxy=proxy_of(context.getLocalProperty, hosts)))
    return replace(split, access=access if cache is None else replace(cache, inner=access))


def _in_zone(split: Split) -> Split:
    spec = split.spec
    partitioned = [field for field in spec.full_schema.fields if field.name in spec.partition_columns]
    if spec.time_zone or not any(field.type == Primitive("timestamp") for field in partitioned):
        return split
    zone = _zone_of_task()
    if zone is None:
        raise ConfigError(
            f"{spec.table}: timestamps among its partition values may name no time zone, and Spark does not tell this task the "
            f"session's (it tells none to df.rdd, foreach, foreachPartition and toJSON); call delta_sharing_spark.register(spark) before "
            f"the load, or set the option timeZone"
        )
    return replace(split, spec=replace(spec, time_zone=zone))


def _zone_of_task() -> str | None:
    from pyspark import TaskContext

    context = TaskContext.get()
    zone = None if context is None else context.getLocalProperty(ZONE)
    if zone is not None:
        return str(zone)
    if context is None or context.getLocalProperty(_EXECUTION) is None:
        return None  # outside a query of SQL, as in df.rdd, Spark tells the zone of the JVM whatever the session's is
    # A session that sets no zone has its JVM's, which Spark hands to the worker's main function alone.
    frame: Any = sys._getframe()
    while frame is not None:
        conf = frame.f_locals.get("runner_conf")
        if conf is not None and frame.f_code.co_filename.endswith("worker.py"):
            return getattr(conf, "timezone", None) or conf.get(ZONE, None)
        frame = frame.f_back
    return None
