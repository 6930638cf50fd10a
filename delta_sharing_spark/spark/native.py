"""Makes DataFrames of the native lane, and paths of assets: Spark's own readers, which read from the gateway in this process."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import QueryExecutionException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from delta_sharing_spark.access.load import ScanListing
from delta_sharing_spark.access.open import TableOpener
from delta_sharing_spark.access.resolved_scan import ResolvedScan
from delta_sharing_spark.errors import ConfigError
from delta_sharing_spark.native.encrypted_channel import why_no_certificate
from delta_sharing_spark.native.gateway import Gateway, GatewayClosedError
from delta_sharing_spark.native.machines import ClusterGateway
from delta_sharing_spark.native.plan import LoadColumns, StepAsideError, why_not
from delta_sharing_spark.native.table_index import TableIndex
from delta_sharing_spark.parquet.decoding import release_of
from delta_sharing_spark.predicates import tree
from delta_sharing_spark.schema.types import (
    Primitive,
    Struct,
    backquoted,
)
from delta_sharing_spark.spark.file_index import (
    end_listings_at_interrupts,
    index_relation,
    jvm_session,
    needs_deletion_column,
    why_no_index,
)
from delta_sharing_spark.spark.gateway_starts import GatewayStarts
from delta_sharing_spark.spark.patches import CONNECT_ERROR, JAVA_ANSWER
from delta_sharing_spark.spark.session_settings import checked_session, is_connect
from delta_sharing_spark.spark.spark_types import as_spark_has
from delta_sharing_spark.spark.table_frames import FIELD_ID, reshaped
from delta_sharing_spark.storage.place import Place

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
}
#: How Spark's client of WebHDFS asks a gateway. A JVM makes one client for all that it reads of a gateway, tables and other places.
_CLIENT_OPTIONS = {
    # An answer that breaks off is asked for again, from where it ended: only then can the cause be told.
    "dfs.http.client.retry.policy.enabled": "true",
    "dfs.http.client.retry.policy.spec": "50,2",
    "dfs.webhdfs.socket.connect-timeout": "60s",
    "dfs.webhdfs.socket.read-timeout": "900s",
}
#: Dictionaries and Bloom filters tell 0.0 from -0.0, which Spark's comparison does not: rows would be skipped.
_WITH_FLOATS = {"parquet.filter.dictionary.enabled": "false", "parquet.filter.bloom.enabled": "false"}
#: Names the field of the header that Spark's client of WebHDFS sends with each request; the field's name proves the key.
_WITH_KEY = {
    "dfs.webhdfs.rest-csrf.enabled": "true",
    "dfs.webhdfs.rest-csrf.methods-to-ignore": "NONE",
    "ipc.client.fallback-to-simple-auth-allowed": "true",
}
#: Settings of Spark's for clusters, and their defaults.
_PORT, _MEMORY, _DRIVER_BYTES = (
    ("spark.deltasharing.gateway.port", "0"),
    ("spark.deltasharing.gateway.memory", "256m"),
    ("spark.deltasharing.gateway.driverBytes", "256m"),
)
#: Settings by which Spark encrypts what it sends; files that pass the driver would go in clear.
_ENCRYPTING = ("spark.network.crypto.enabled", "spark.authenticate.enableSaslEncryption", "spark.ssl.rpc.enabled")

#: Exceptions of Java within one another that are looked at.
_DEEPEST = 20
#: A load, and what it was resolved over.
Opened = tuple[TableOpener, ResolvedScan]
#: Is told of each listing.
Note = Callable[[ScanListing], None]
_Answer = TypeVar("_Answer")

#: The gateway of this machine, and those of applications on clusters, by their ids.
_gateways: dict[str, Gateway] = {}
_starts: weakref.WeakKeyDictionary[Gateway, GatewayStarts] = weakref.WeakKeyDictionary()
_gateways_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Reach:
    """Whether a session's executors reach gateways.

    Attributes:
        reason: Why they can or cannot.
        is_possible: Whether they can.
        cluster: The application's context, where its executors are not in the driver's process.
    """

    reason: str
    is_possible: bool = True
    cluster: SparkContext | None = None


def reach_of(spark: SparkSession) -> Reach:
    """What a session's executors can reach."""
    context = SparkContext._active_spark_context
    if is_connect(spark):
        if context is None or context._jsc is None or "SPARK_LOCAL_REMOTE" not in os.environ:
            return Reach("the Spark Connect server is another process, which does not reach this one's loopback", False)
    else:
        context = spark.sparkContext
    master = str(context.master)
    if master.startswith("local") and not master.startswith("local-cluster"):
        return Reach(f"the executors run on this machine ({master})")
    if is_connect(spark):
        return Reach(f"Spark Connect's server runs executors elsewhere ({master})", False)
    if (why := why_no_certificate()) is not None:
        _log_once(why)
        return Reach(why, False)
    return Reach(f"each machine of the executors has a gateway ({master})", cluster=context)


@lru_cache(maxsize=1)
def _log_once(why: str) -> None:
    _log.warning("the Python source reads on this cluster: %s", why)


def start_gateways(reach: Reach) -> None:
    """Begin to start the gateways of a cluster, in the background.

    Raises:
        ConfigError: The driver's gateway cannot be bound as the session's settings say.
    """
    if reach.cluster is not None:
        gateway_of(reach)


def why_no_gateways(reach: Reach) -> str | None:
    """Which machines of a cluster have no gateway, and what they lack, once all have been tried; None where all have one.

    Raises:
        ConfigError: The package is missing on all of them; the driver's gateway cannot be bound.
    """
    return None if reach.cluster is None else _starts[gateway_of(reach)].why_not()


def native_frame(spark: SparkSession, opened: Opened, reach: Reach, note: Note) -> DataFrame:
    """A load as a DataFrame that Spark's own reader reads, and of which each query asks for the files with its own filters.

    Raises:
        StepAsideError: The native lane cannot read the load, or not in this session.
        DeltaSharingError: The load cannot be planned.
    """
    opener, load = opened[0], as_spark_has(opened[1])
    if (why := why_not_in(spark, load)) is not None:
        raise StepAsideError(why)
    try:
        jvm, session = jvm_session(spark)
        hadoop = session.sessionState().newHadoopConfWithOptions(jvm.PythonUtils.toScalaMap(_READER_OPTIONS))
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass("webhdfs", hadoop)
    except Exception as error:
        raise StepAsideError(f"the session cannot read WebHDFS ({_in_a_line(error)})") from error
    raise_causes(is_connect(spark))

    def opened_by(gateway: Gateway) -> TableIndex:
        index = TableIndex(
            load, opener, gateway, is_read_here=reach.cluster is None, release=release_of(str(spark.version))
        )
        return gateway.open(index, end_of(spark))

    gateway, index = _served(reach, opened_by)
    index.begin()
    load_columns = index.shown
    has_floats = any(name in str(load_columns.columns) for name in ("float", "double"))
    options = {**_READER_OPTIONS, **(_WITH_FLOATS if has_floats else {}), **client_options(gateway)}
    relation = index_relation(spark, index, gateway, options, note)
    _log.info("table %s: native lane, files are asked for by each query (%s)", load_columns.table, reach.reason)
    return loaded(relation, load_columns)


def loaded(relation: DataFrame, load_columns: LoadColumns) -> DataFrame:
    """The columns and rows of a load, of the relation of its index."""
    frame = _rows(relation, load_columns)
    if load_columns.predicate is not None:
        frame = frame.where(tree.sql_of(load_columns.predicate, tree.quote_bytes))
    return _output(frame, load_columns)


def why_not_in(spark: SparkSession, load: ResolvedScan) -> str | None:
    """Why the native lane does not read a load in a session whose executors reach it; None where it does."""
    if (why := why_no_index(spark)) is not None:
        return f"the session does not ask for the files of its queries: {why}"
    return why_not(load)


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


def raise_causes(is_connected: bool) -> None:
    """Have PySpark raise a ``QueryExecutionException`` with the lane's own words where a failed read ends a query.

    PySpark has no class for such an error of Java's, and would print sixty lines of it; over Connect it names a file of the
    gateway's, above a hundred lines. This wraps the function by which PySpark itself turns Java's exceptions, or a Connect server's,
    into its own. PySpark replaces the first with each new session, hence the call with each load.
    """
    if is_connected:
        CONNECT_ERROR.apply(_raising_connect_causes)
    else:
        JAVA_ANSWER.apply(_raising_causes)


def _raising_causes(get_return_value: Callable[..., Any]) -> Callable[..., Any]:
    def answer(*arguments: Any, **named: Any) -> Any:
        end_listings_at_interrupts()
        try:
            return get_return_value(*arguments, **named)
        except Py4JJavaError as error:
            messages: list[str] = []
            exception = error.java_exception
            while exception is not None and len(messages) < _DEEPEST:
                messages.append(str(exception.getMessage()))
                exception = exception.getCause()
            cause = _error_in(messages)
            if cause is None:
                raise
        raise QueryExecutionException(cause)

    return answer


def _raising_connect_causes(convert_exception: Callable[..., Exception]) -> Callable[..., Exception]:
    def convert(info: Any, message: str, response: Any, *more: Any) -> Exception:
        """Of an exception with its message, and the server's answer with those beneath it."""
        messages = [message] if response is None else [error.message for error in response.errors]
        cause = _error_in(messages)
        return convert_exception(info, message, response, *more) if cause is None else QueryExecutionException(cause)

    return convert


def client_options(gateway: Gateway) -> dict[str, str]:
    """Settings of Spark's client for a gateway, with those by which it proves the key that the gateway may ask for."""
    if gateway.key_field is None:
        return _CLIENT_OPTIONS
    return {**_CLIENT_OPTIONS, **_WITH_KEY, "dfs.webhdfs.rest-csrf.custom-header": gateway.key_field}


def _rows(frame: DataFrame, load_columns: LoadColumns) -> DataFrame:
    """The table's rows with all columns that the load needs: deleted rows left out, voids filled in."""
    full, has_deletion_column = load_columns.spec.full_schema, needs_deletion_column(load_columns)
    if has_deletion_column:
        frame = frame.where(F.col(backquoted(load_columns.deletion_column)).isNull())
    if frame.columns == list(full.names):
        # Each column that is named costs calls into the JVM.
        return frame
    if frame.columns == [*full.names, load_columns.deletion_column]:
        return frame.drop(load_columns.deletion_column)
    readable = Struct(tuple(field for field in full.fields if field.type != Primitive("void")))
    return frame.select(*reshaped(readable, full))


def _output(frame: DataFrame, load_columns: LoadColumns) -> DataFrame:
    """The columns of the load, with their metadata."""
    full, output = load_columns.spec.full_schema, load_columns.output
    have, want = ([(field.name, field.type) for field in schema.fields] for schema in (full, output))
    if have == want and not any(FIELD_ID in field.metadata for field in output.fields):
        return frame
    return frame.select(*reshaped(full, output))


def end_of(spark: SparkSession) -> Callable[[], bool]:
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


def gateway_of(reach: Reach) -> Gateway:
    """What serves a session's executors, or sends them on to what does.

    Raises:
        ConfigError: The driver's gateway of a cluster cannot be bound as the session's settings say.
    """
    context = reach.cluster
    name = "" if context is None else str(context.applicationId)
    with _gateways_lock:
        gateway = _gateways.get(name)
        if gateway is None or gateway.is_closed:
            if gateway is not None:
                gateway.wait_until_ended()
            gateway = Gateway() if context is None else _cluster_gateway(context)
            _gateways[name] = gateway
        return gateway


def _served(reach: Reach, serve: Callable[[Gateway], _Answer]) -> tuple[Gateway, _Answer]:
    """A gateway and what ``serve`` has it serve: another one where it ended meanwhile, with the last of what it served before.

    Raises:
        ConfigError: As ``gateway_of``.
    """
    while True:
        gateway = gateway_of(reach)
        with suppress(GatewayClosedError):
            return gateway, serve(gateway)


def _cluster_gateway(context: SparkContext) -> ClusterGateway:
    conf = context.getConf()
    host = str(conf.get("spark.driver.host", "") or "")
    bind, port = str(conf.get("spark.driver.bindAddress", None) or host), str(conf.get(*_PORT))
    size = context._jvm.org.apache.spark.network.util.JavaUtils.byteStringAsBytes  # type: ignore[union-attr]
    memory, driver_bytes = (int(size(str(conf.get(*setting)))) for setting in (_MEMORY, _DRIVER_BYTES))
    if any(conf.get(setting, "false") == "true" for setting in _ENCRYPTING):
        driver_bytes = 0
    try:
        gateway = ClusterGateway(bind=bind, host=host, port=int(port), driver_bytes=driver_bytes)
    except OSError as error:
        raise ConfigError(
            f"the native lane's gateway in the driver cannot bind {bind}:{port} ({error}); set {_PORT[0]} to a free port, "
            f"spark.driver.bindAddress to an address of the driver's machine, or use engine='python'"
        ) from error
    gateway_starts = GatewayStarts(context, gateway, memory)
    _starts[gateway] = gateway_starts
    return gateway


#: Without it Spark asks for the hosts of each file, which on one machine are all the same.
_LOCALITY = "spark.sql.sources.ignoreDataLocality"


def spark_path(place: Place, pattern: str, spark: SparkSession | None = None) -> str:
    """A path that ``spark.read.csv``, ``json``, ``text``, ``binaryFile`` and ``parquet`` open, without a credential in it.

    Args:
        pattern: A file, a directory, or a pattern of Hadoop's; all by default.
        spark: A classic session; the active one by default.

    Raises:
        ConfigError: There is no session, it is one of Spark Connect, or a machine of its cluster has no gateway.
        AddressError: ``pattern`` is no path within the place.
    """
    below = place.checked(pattern)
    session: Any = spark or SparkSession.getActiveSession()
    if session is None:
        raise ConfigError(f"no Spark session is active to read {place.name}; give spark_path one as spark=")
    if is_connect(checked_session(session)):
        raise ConfigError(
            f"spark_path of {place.name} needs a classic session: over Spark Connect the server is another process; download the "
            f"files to where it reads, or read them by fs()"
        )
    reach = reach_of(session)
    if (why := why_no_gateways(reach)) is not None:
        raise ConfigError(
            f"spark_path of {place.name} needs a gateway on each machine ({why}); download the files to where they read, or read "
            f"them by fs()"
        )
    raise_causes(is_connected=False)
    gateway, root = _served(reach, lambda gateway: gateway.share(place, end_of(session)))
    for setting, value in {_LOCALITY: "true", **client_options(gateway)}.items():
        session.conf.set(setting, value)
    return f"{root}/{below}".rstrip("/")
