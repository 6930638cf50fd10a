"""Makes DataFrames of the native lane: Spark's own Parquet reader, which reads from the gateway in this process."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from delta_sharing_spark.access.open import TableOpener
from delta_sharing_spark.access.resolved_scan import ResolvedScan
from delta_sharing_spark.native.expressions import condition_sql
from delta_sharing_spark.native.gateway import Gateway
from delta_sharing_spark.native.peers import is_own_process
from delta_sharing_spark.native.plan import LoadColumns, StepAsideError, why_not
from delta_sharing_spark.native.table_index import ScanListing, TableIndex
from delta_sharing_spark.schema.spark import spark_schema_json
from delta_sharing_spark.schema.types import Field, Primitive, Struct
from delta_sharing_spark.spark.file_index import index_relation, jvm_session, needs_deletion_column, why_no_index
from delta_sharing_spark.spark.native_errors import raise_causes
from delta_sharing_spark.spark.statement import is_connect

_log = logging.getLogger(__name__)

#: What would make Spark read the files otherwise than they are, whatever the session says.
_READER_OPTIONS = {
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "mergeSchema": "false",
    "recursiveFileLookup": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "parquet.page.verify-checksum.enabled": "true",
    # One OPEN for columns that lie side by side, not one for each.
    "parquet.hadoop.vectored.io.enabled": "false",
    # An answer that breaks off is asked for again, from where it ended: only then can the cause be told.
    "dfs.http.client.retry.policy.enabled": "true",
    "dfs.http.client.retry.policy.spec": "50,2",
    "dfs.webhdfs.socket.connect-timeout": "60s",
    "dfs.webhdfs.socket.read-timeout": "900s",
}
#: Dictionaries and Bloom filters tell 0.0 from -0.0, which Spark's comparison does not: rows would be skipped.
_WITH_FLOATS = {"parquet.filter.dictionary.enabled": "false", "parquet.filter.bloom.enabled": "false"}
_FIELD_ID = "parquet.field.id"
#: Seconds between two looks for new executors.
_EXECUTORS_KNOWN_FOR = 2.0

#: A load, and what it was resolved over.
Opened = tuple[TableOpener, ResolvedScan]
#: Is told of each listing.
Note = Callable[[ScanListing], None]

#: One gateway for each address; there is one address but for sessions on clusters.
_gateways: dict[str, Gateway] = {}
_gateways_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Reach:
    """Whether a session's executors reach a gateway in this process.

    Attributes:
        host: The address to bind; None where executors cannot reach one.
        reason: Why they can or cannot.
        is_local: Whether the executors are on this machine.
    """

    host: str | None
    reason: str
    is_local: bool = True


def reach_of(spark: SparkSession) -> Reach:
    """What a session's executors can reach."""
    context = SparkContext._active_spark_context
    if is_connect(spark):
        if context is None or context._jsc is None or "SPARK_LOCAL_REMOTE" not in os.environ:
            return Reach(None, "the Spark Connect server is another process, which does not reach this one's loopback")
    else:
        context = spark.sparkContext
    master = str(context.master)
    if master.startswith("local") and not master.startswith("local-cluster"):
        return Reach("127.0.0.1", f"the executors run on this machine ({master})")
    host = str(context.getConf().get("spark.driver.host", "") or "")
    return Reach(host or None, f"the executors are not in the driver's process ({master})", is_local=False)


def native_frame(spark: SparkSession, opened: Opened, reach: Reach, note: Note) -> DataFrame:
    """A load as a DataFrame that Spark's own reader reads, and of which each query asks for the files with its own filters.

    Args:
        spark: A classic or Connect session.
        opened: The load, and what it was resolved over.
        reach: What the session's executors reach.
        note: Is told of each listing.

    Raises:
        StepAsideError: The native lane cannot read the load, or not in this session.
        DeltaSharingError: The load cannot be planned.
    """
    if reach.host is None:
        raise StepAsideError(reach.reason)
    opener, load = opened
    if (why := why_not_in(spark, load)) is not None:
        raise StepAsideError(why)
    try:
        jvm, session = jvm_session(spark)
        hadoop = session.sessionState().newHadoopConfWithOptions(jvm.PythonUtils.toScalaMap(_READER_OPTIONS))
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass("webhdfs", hadoop)
    except Exception as error:
        raise StepAsideError(f"the session cannot read WebHDFS ({_in_a_line(error)})") from error
    gateway = _gateway(reach)
    if not is_connect(spark):
        raise_causes(_error_in)
    index = gateway.open(TableIndex(load, opener, gateway), _end_of(spark))
    index.begin()
    shown = index.shown
    condition = _condition_of(shown)
    data, options = _without_field_ids(shown.columns), _reader_options(shown)
    frame = index_relation(spark, index, gateway, data, options, note)
    frame = _rows(frame, shown)
    if condition is not None:
        frame = frame.where(F.expr(condition))
    _log.info("table %s: native lane, files are asked for by each query (%s)", shown.table, reach.reason)
    return _output(frame, shown)


def why_not_in(spark: SparkSession, load: ResolvedScan) -> str | None:
    """Why the native lane does not read a load in a session whose executors reach it; None where it does."""
    if (why := why_no_index(spark)) is not None:
        return f"the session does not ask for the files of its queries: {why}"
    return why_not(load)


def _condition_of(shown: LoadColumns) -> str | None:
    """The load's ``where`` for Spark.

    Raises:
        StepAsideError: It cannot be written so that every session reads it alike.
    """
    if shown.predicate is None:
        return None
    condition = condition_sql(shown.predicate)
    if condition is None:
        raise StepAsideError("its where cannot be written so that every session reads it alike")
    return condition


def _in_a_line(error: Exception) -> str:
    """An error of Spark in a line: that of the JVM, where Python's names only the call."""
    first, *others = str(error).strip().splitlines() or [""]
    if first.startswith("An error occurred while calling") and others:
        return others[0].lstrip(": ")[:300]
    return f"{type(error).__name__}: {first[:300]}"


def _error_in(messages: Sequence[str]) -> str | None:
    """As ``Gateway.error_in``, for all gateways."""
    with _gateways_lock:
        gateways = list(_gateways.values())
    return next((error for gateway in gateways if (error := gateway.error_in(messages)) is not None), None)


def _reader_options(shown: LoadColumns) -> dict[str, str]:
    has_floats = any(name in str(shown.columns) for name in ("float", "double"))
    return {**_READER_OPTIONS, **(_WITH_FLOATS if has_floats else {})}


def _rows(frame: DataFrame, shown: LoadColumns) -> DataFrame:
    """The table's rows with all columns that the load needs: deleted rows left out, voids filled in."""
    full, has_deletion_column = shown.spec.full_schema, needs_deletion_column(shown)
    if has_deletion_column:
        frame = frame.where(F.col(quoted(shown.deletion_column)).isNull())
    if frame.columns == list(full.names):
        # Each column that is named costs calls into the JVM.
        return frame
    if frame.columns == [*full.names, shown.deletion_column]:
        return frame.drop(shown.deletion_column)
    columns = []
    for field in full.fields:
        if field.type == Primitive("void"):
            columns.append(F.expr("cast(null as void)").alias(field.name, metadata=_metadata(field)))
        else:
            columns.append(F.col(quoted(field.name)))
    return frame.select(*columns)


def _output(frame: DataFrame, shown: LoadColumns) -> DataFrame:
    """The columns of the load, with their metadata."""
    loaded = {field.name: field.type for field in shown.spec.full_schema.fields}
    output = {field.name: field.type for field in shown.output.fields}
    if list(loaded.items()) == list(output.items()) and not any(_FIELD_ID in f.metadata for f in shown.output.fields):
        return frame
    return frame.select(*(_narrowed(field, shown) for field in shown.output.fields))


def _narrowed(field: Field, shown: LoadColumns) -> Any:
    """A column of the output; a struct is built anew if ``where`` needs more of its fields than the output has."""
    have = shown.spec.full_schema.find(field.name)
    assert have is not None
    column = F.col(quoted(field.name))
    if have.type == field.type:
        if _FIELD_ID in field.metadata:
            return column.alias(field.name, metadata=_metadata(field))
        return column
    return _struct(column, have.type, field.type).alias(field.name, metadata=_metadata(field))


def _struct(column: Any, have: Any, want: Any) -> Any:
    if not isinstance(want, Struct) or have == want:
        return column
    fields = []
    for inner in want.fields:
        known = have.find(inner.name)
        part = _struct(column.getField(inner.name), known.type, inner.type)
        fields.append(part.alias(inner.name, metadata=_metadata(inner)))
    return F.when(column.isNotNull(), F.struct(*fields))


def _metadata(field: Field) -> dict[str, Any]:
    described = spark_schema_json(Struct((field,)))["fields"][0]["metadata"]
    assert isinstance(described, dict)
    return described


def _without_field_ids(schema: Struct) -> Struct:
    """The schema without field ids, by which Spark would find columns in sessions so configured."""
    from delta_sharing_spark.schema.types import with_metadata

    return with_metadata(schema, lambda key: key != _FIELD_ID)


def quoted(name: str) -> str:
    """A column's name in backquotes."""
    return "`" + name.replace("`", "``") + "`"


def _end_of(spark: SparkSession) -> Callable[[], bool]:
    """Returns a test of whether a session has ended, which does not ask the JVM."""
    if is_connect(spark):
        return lambda: bool(spark.is_stopped) or _is_stopped(SparkContext._active_spark_context)  # type: ignore[attr-defined]
    context = spark.sparkContext
    return lambda: _is_stopped(context)


def _is_stopped(context: SparkContext | None) -> bool:
    """Whether a context was stopped, or its JVM has died."""
    if context is None or context._jsc is None:
        return True
    process = getattr(context._gateway, "proc", None)
    return process is not None and process.poll() is not None


def _gateway(reach: Reach) -> Gateway:
    assert reach.host is not None
    with _gateways_lock:
        gateway = _gateways.get(reach.host)
        if gateway is None or gateway.is_closed:
            admits = is_own_process if reach.is_local else ExecutorPeers()
            gateway = _gateways[reach.host] = Gateway(reach.host, admits)
        return gateway


class ExecutorPeers:
    """Admits the machines that this session's executors run on, and this user's processes on the driver's own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: frozenset[str] = frozenset()
        self._asked = 0.0

    def __call__(self, connection: socket.socket) -> bool:
        """Whether a connection is admitted; executors that were added later are looked up, every few seconds at most."""
        address = str(connection.getpeername()[0])
        if address == connection.getsockname()[0]:
            return is_own_process(connection)
        with self._lock:
            if address not in self._known and time.monotonic() - self._asked > _EXECUTORS_KNOWN_FOR:
                self._known, self._asked = _executor_addresses(), time.monotonic()
            return address in self._known


def _executor_addresses() -> frozenset[str]:
    context = SparkContext._active_spark_context
    if context is None or context._jsc is None:
        return frozenset()
    addresses: set[str] = set()
    for executor in context._jsc.sc().statusTracker().getExecutorInfos():
        with suppress(OSError):
            addresses.update(str(info[4][0]) for info in socket.getaddrinfo(executor.host(), None))
    return frozenset(addresses)
