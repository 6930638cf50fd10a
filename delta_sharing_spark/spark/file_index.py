"""Hands Spark a ``FileIndex`` of a shared table, so that each query's own filters and limit tell which files are listed.

``SharedTableIndex.java`` is the index; Spark's own compiler, Janino, compiles it in the driver's JVM. For a listing it calls the
one function of ``_lister`` here, by Py4J's callback server. That server asks nobody for a password. So what is called
answers processes of this user alone, and has nothing else to call. It never raises: no Python traceback stands in a Java one.
"""

from __future__ import annotations

import decimal
import json
import logging
import re
import secrets
import struct
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import FrameType
from typing import Any

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from delta_sharing_spark.access.load import ScanListing
from delta_sharing_spark.access.resolved_scan import ResolvedScan
from delta_sharing_spark.errors import DeltaSharingError, NetworkError
from delta_sharing_spark.native.gateway import Gateway
from delta_sharing_spark.native.machines import preferred_hosts
from delta_sharing_spark.native.peers import is_own_process
from delta_sharing_spark.native.plan import LoadColumns, NativePlan
from delta_sharing_spark.native.table_index import TableIndex
from delta_sharing_spark.network.connections import Canceller, ReadCancelled
from delta_sharing_spark.predicates.tree import TRUE, Expression
from delta_sharing_spark.schema.types import DataType, Decimal, Struct, spark_schema_json, with_metadata
from delta_sharing_spark.spark.patches import INTERRUPT
from delta_sharing_spark.spark.plan_conditions import elements, read_filters, sql_text
from delta_sharing_spark.spark.session_settings import is_connect
from delta_sharing_spark.spark.table_frames import FIELD_ID

_log = logging.getLogger(__name__)

#: Kinds of answers, as SharedTableIndex.java reads them.
_FAILURE, _LISTING, _SIZE = b"\0", b"\1", b"\2"
#: Columns that ``_metadata`` has too: a filter on one of these names may be about the file, not the table's column.
_METADATA = frozenset({"file_path", "file_name", "file_size", "file_block_start", "file_block_length", "file_modification_time",
                       "row_index"})  # fmt: skip
#: Of a table whose size no server tells; Spark broadcasts none of it.
_UNKNOWN_SIZE = 1 << 60
_REFUSED = "a process of another user asked for the files of a shared table, and was refused"

#: Conjuncts of a scan as objects of the JVM, and what SharedTableIndex.java writes of the rows and columns that it needs, to
#: the bytes of an answer.
Lister = Callable[[Sequence[Any] | None, str | None], bytes]


@dataclass(frozen=True, slots=True)
class _Session:
    """What makes indexes in a Spark application, or why nothing does."""

    factory: Any = None
    why_not: str | None = None


_sessions: weakref.WeakKeyDictionary[SparkContext, _Session] = weakref.WeakKeyDictionary()
#: By the Py4J gateway of a JVM, what makes indexes there.
_factories: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
_sessions_lock = threading.Lock()

#: By Connect session, names of frames in the server to which nothing here refers any more.
_ended: weakref.WeakKeyDictionary[Any, deque[str]] = weakref.WeakKeyDictionary()

#: Listings under way, which an interrupt of the main thread ends.
_under_way: set[Canceller] = set()


def why_no_index(spark: SparkSession) -> str | None:
    """Why a session cannot ask an index of ours; None where it can. One try for each application finds out."""
    return _session(spark).why_not


def jvm_session(spark: Any) -> tuple[Any, Any]:
    """The JVM of this process' application, and the session there that a session of Python's, classic or of a server here, stands for."""
    if not is_connect(spark):
        return spark._jvm, spark._jsparkSession
    return _context(spark)._jvm, _holder(spark).session()


def _holder(spark: Any) -> Any:
    """What the Connect server in this process holds of a session."""
    jvm: Any = _context(spark)._jvm
    service = jvm.org.apache.spark.sql.connect.service.SparkConnectService
    return service.getOrCreateIsolatedSession(spark.client._user_id or "", spark.session_id, jvm.scala.Option.empty())


def _context(spark: Any) -> SparkContext:
    context = SparkContext._active_spark_context if is_connect(spark) else spark.sparkContext
    assert context is not None
    return context


def _frame(spark: Any, dataset: Any) -> DataFrame:
    """A dataset of the JVM's as a DataFrame. A Connect server is told which ones have ended when the next one is made."""
    if not is_connect(spark):
        return DataFrame(dataset, spark)
    from pyspark.sql.connect.dataframe import DataFrame as ConnectFrame

    name, ended = f"delta-sharing-{uuid.uuid4()}", _ended.setdefault(spark, deque())
    holder = _holder(spark)
    with suppress(IndexError):  # none is left
        while True:
            holder.removeCachedDataFrame(ended.popleft())
    holder.cacheDataFrameById(name, dataset)
    return ConnectFrame(_served_relation()(name, spark, ended), spark)


@cache
def _served_relation() -> Any:
    """The class of a frame by its name in the server; Connect is imported only where it is used.

    PySpark's own class sends the server a request when the garbage collector finds it, in the middle of whatever the thread does.
    It waits for the answer, and one was seen never to come. This one notes the name.
    """
    from pyspark.sql.connect.plan import CachedRemoteRelation

    class ServedRelation(CachedRemoteRelation):
        def __init__(self, name: str, spark: Any, ended: deque[str]) -> None:
            super().__init__(name, spark)
            self._ended = ended

        def __del__(self) -> None:
            self._ended.append(self._relation_id)

    return ServedRelation


def index_relation(
    spark: SparkSession,
    index: TableIndex,
    gateway: Gateway,
    options: dict[str, str],
    note: Callable[[ScanListing], None],
) -> DataFrame:
    """The rows of a load as a relation over its index: its columns, that of deleted rows, its partition columns.

    Args:
        spark: A session that can ask an index.
        options: Of Spark's Parquet reader.
    """
    end_listings_at_interrupts()
    load_columns = index.shown
    identity = f"{index.identity} {gateway.port}"
    version = "" if index.load.version is None else f"@v{index.load.version}"
    name = f"deltaSharing {load_columns.table}{version}"  # what plans and Spark's UI call its scans
    named = identity, name, gateway.address_of(index.token)
    answer = _answering(index, gateway, note)
    return _frame(spark, _relation(spark, _session(spark).factory, answer, named, load_columns, options))


def planning_relation(spark: SparkSession, load_columns: LoadColumns, root: str, size: int | None) -> DataFrame:
    """A relation as ``index_relation`` makes it, for a classic session to plan over: who executes it fails.

    Args:
        root: What its index calls the place of its files.
        size: The bytes of the table's files; None where they are not known.
    """

    def answer(filters: Sequence[Any] | None, needs: str | None) -> bytes:
        if filters is None:
            return _SIZE + struct.pack(">q", _UNKNOWN_SIZE if size is None else size)
        return _FAILURE + b"this relation is there to plan over"

    named = root, f"deltaSharing {load_columns.table}", root
    return _frame(spark, _relation(spark, _session(spark).factory, answer, named, load_columns, {}))


def needs_deletion_column(load_columns: LoadColumns) -> bool:
    """Whether Spark reads the column that marks deleted rows; a relation needs at least one column."""
    return load_columns.may_have_vectors or not load_columns.columns.fields


def _relation(
    spark: Any,
    factory: Any,
    answer: Lister,
    named: tuple[str, str, str],
    load_columns: LoadColumns | None,
    options: dict[str, str],
) -> Any:
    """The relation of an index as a dataset of the JVM's; its one column ``a`` marks deleted rows where there are no columns of a load."""
    jvm, session = jvm_session(spark)
    sources = jvm.org.apache.spark.sql.execution.datasources
    deletion_column = (
        "a" if load_columns is None else load_columns.deletion_column if needs_deletion_column(load_columns) else ""
    )
    # Without field ids, by which Spark would find columns in sessions so configured.
    columns = Struct(()) if load_columns is None else with_metadata(load_columns.columns, lambda key: key != FIELD_ID)
    data = _java_schema(jvm, columns)
    partitions = _java_schema(jvm, Struct(() if load_columns is None else load_columns.partition_columns))
    if deletion_column:
        data = data.add(deletion_column, "boolean", True)
    index = factory.of(_lister(_context(spark), answer), *named, partitions, deletion_column, int(time.time() * 1000))
    relation = sources.HadoopFsRelation(
        index, partitions, data, jvm.scala.Option.empty(), index.format(), jvm.PythonUtils.toScalaMap(options), session
    )
    return session.baseRelationToDataFrame(relation)


def _java_schema(jvm: Any, schema: Struct) -> Any:
    """A schema of the JVM, all of it nullable: Spark would leave out checks for NULL otherwise, and files may hold some."""
    return jvm.org.apache.spark.sql.types.DataType.fromJson(json.dumps(spark_schema_json(schema))).asNullable()


def _answering(index: TableIndex, gateway: Gateway, note: Callable[[ScanListing], None]) -> Lister:
    """Answers for one load."""
    name = f"the listing of {index.shown.table}"

    def answer(filters: Sequence[Any] | None, needs: str | None) -> bytes:
        canceller = Canceller(name)
        _under_way.add(canceller)
        try:
            with canceller.watching():
                if filters is None or needs is None:
                    return _SIZE + struct.pack(">q", index.size_in_bytes())
                rows, required = json.loads(needs)
                asked = scan_question(list(filters), rows, index.load, index.shown)
                plan, record = index.listed(asked.filters, (asked.condition, asked.rows), lambda _: canceller.check())
                note(record)
                return _encoded(plan, plan.shown.scans.name(required), gateway.hosts)
        except DeltaSharingError as error:
            if not isinstance(error, NetworkError) or not canceller.is_broken:
                error.name_table(index.shown.table)
                return _FAILURE + gateway.remember(error).encode()
            return _FAILURE + b"the query was interrupted"
        except ReadCancelled:
            return _FAILURE + b"the query was interrupted"
        except Exception as error:
            _log.exception("the files of %s could not be listed", index.shown.table)
            failure = DeltaSharingError(
                f"the files of {index.shown.table} could not be listed ({type(error).__name__}); load the table with "
                f"engine='python', and report it"
            )
            return _FAILURE + gateway.remember(failure).encode()
        finally:
            _under_way.discard(canceller)

    return answer


@dataclass(frozen=True, slots=True)
class ScanQuestion:
    """What a scan asks an index.

    Attributes:
        filters: Spark's filters, as SQL.
        condition: What files are left out by; None where nothing leaves any out.
        rows: So many rows are enough; None for all, COUNTED or COUNTED_TOGETHER where they are only counted.
        unused: Filters that leave out nothing, with the reasons.
    """

    filters: tuple[str, ...]
    condition: Expression | None
    rows: int | None
    unused: tuple[str, ...]


def scan_question(
    filters: Sequence[Any], rows: int | None, load: ResolvedScan, load_columns: LoadColumns
) -> ScanQuestion:
    """The question of a scan.

    Args:
        filters: Its conjuncts, as objects of the JVM.
        rows: The rows that its query needs, as SharedTableIndex.java counts them.
    """
    own = f"isnull({load_columns.deletion_column}#"
    about_columns: list[Any] = []
    others: list[Any] = []
    for java in filters:
        if not str(java.toString()).startswith(own):
            (others if _METADATA & set(_names(java)) else about_columns).append(java)
    reading = read_filters(about_columns, load.columns, load.options.time_zone)
    if load_columns.predicate is not None or (rows is not None and rows < 0 and not load.options.count_by_statistics):
        rows = None
    condition = None if reading.condition == TRUE else reading.condition
    texts = [sql_text(java) for java in others]
    unused = (*reading.unused, *(f"{text}: it may be about the file" for text in texts))
    return ScanQuestion((*reading.texts, *texts), condition, rows, unused)


def _names(java: Any) -> list[str]:
    """The names, in lower case, of the columns that an expression reads."""
    return [str(name.name()).lower() for name in elements(java.references().toSeq())]


def _encoded(plan: NativePlan, scan: str, hosts: Sequence[str]) -> bytes:
    """A listing for a scan of a name, as SharedTableIndex.java reads it; each file prefers one of the hosts."""
    preferred = preferred_hosts(plan.files, hosts)
    types = [field.type for field in plan.partition_columns]
    path = f"{plan.token}/{scan}".encode()
    parts = [_LISTING, struct.pack(">i", len(hosts))]
    parts += [struct.pack(">H", len(host)) + host.encode() for host in hosts]
    parts.append(struct.pack(">H", len(path)) + path + struct.pack(">i", len(plan.by_partition)))
    for partition, numbers in plan.by_partition.items():
        row = unsafe_row(plan.partitions[partition], types)
        parts.append(struct.pack(">i", len(row)) + row + struct.pack(">i", len(numbers)))
        for number in numbers:
            file = plan.files[number]
            parts.append(struct.pack(">iQqh", number, file.digest, file.size, preferred[number]))
    return b"".join(parts)


def _lister(context: SparkContext, answer: Lister) -> object:
    """What is handed to the JVM: an object with one method, which answers this user's processes alone.

    Any process on the machine can have Py4J call any attribute of it, by name. So it has none but that method.
    """
    client = context._gateway._gateway_client  # type: ignore[union-attr]

    def apply(filters: Sequence[Any] | None, needs: str | None) -> bytes:
        asker = _asker(client)
        if asker is None or not is_own_process(asker):
            _log.warning("%s", _REFUSED)
            return _FAILURE + _REFUSED.encode()
        return answer(filters, needs)

    class Java:
        implements = ("java.util.function.BiFunction",)

    class SharedTableLister:
        def __getattribute__(self, name: str) -> Any:
            if name == "apply":
                return apply
            if name == "Java":
                return Java
            if name == "__class__":
                return object  # asked by isinstance()
            raise AttributeError("it answers questions for files, and nothing else")

    return SharedTableLister()


def _asker(client: Any) -> Any:
    """The socket of the callback that this thread answers; None where Py4J does not tell."""
    connection_of = getattr(client, "get_thread_connection", None)
    connection = threading.current_thread() if connection_of is None else connection_of()
    return getattr(connection, "socket", None)


def _session(spark: SparkSession) -> _Session:
    context = _context(spark)
    with _sessions_lock:
        session = _sessions.get(context)
        if session is None:
            try:
                session = _Session(_tried(spark))
            except Exception as error:  # whatever a session of another make does, there is another way to read
                session = _Session(why_not=f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}")
                _log.info("this session does not ask for its files: %s", session.why_not)
            _sessions[context] = session
        return session


def _tried(spark: Any) -> Any:
    """What makes indexes in a session's JVM, once one of no table has listed a file through all of it."""
    from pyspark.java_gateway import ensure_callback_server_started

    gateway: Any = _context(spark)._gateway
    jvm, _ = jvm_session(spark)
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    factory = _compiled(gateway, jvm)
    asked: list[int] = []

    def answer(filters: Sequence[Any] | None, needs: str | None) -> bytes:
        if filters is None:
            return _SIZE + struct.pack(">q", 7)
        asked.append(len(filters))
        return _LISTING + struct.pack(">iH", 0, 1) + b"t" + struct.pack(">iiiiQqh", 1, 0, 1, 5, 6, 7, -1)

    named = "tried", "tried", "webhdfs://127.0.0.1:1/tried"
    dataset = _relation(spark, factory, answer, named, None, {})
    relation = dataset.queryExecution().analyzed().relation()
    if relation.location().sizeInBytes() != 7 or len(dataset.where("a is null").inputFiles()) != 1 or not asked:
        raise RuntimeError("the session does not ask for its files")
    dataset.queryExecution().executedPlan()
    return factory


def _compiled(gateway: Any, jvm: Any) -> Any:
    """What makes indexes, compiled once for a JVM, which outlives its applications and may outlive this process.

    Py4J keeps methods by the names of their classes, and those of a class of the same name are refused: the name is drawn.
    """
    factory = _factories.get(gateway)
    if factory is None:
        name = f"SharedTableIndex_{secrets.token_hex(8)}"
        source = files("delta_sharing_spark.spark").joinpath("SharedTableIndex.java").read_text(encoding="utf-8")
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader())
        compiler.cook(re.sub(r'(?<!")\bSharedTableIndex\b', name, source))
        made = compiler.getClassLoader().loadClass(name).getConstructors()[0]
        factory = _factories[gateway] = made.newInstance(gateway.new_array(jvm.java.lang.Object, 0))
    return factory


def end_listings_at_interrupts() -> None:
    """Let Ctrl-C end listings, which other threads make for Spark; called by the main thread before it waits for a query."""
    INTERRUPT.apply(_ending_listings)


def _ending_listings(before: Callable[..., Any]) -> Callable[..., Any]:
    """A handler of SIGINT that ends the listings under way, and goes on with the one that it stands before."""

    def end(number: int, frame: FrameType | None) -> Any:
        for canceller in list(_under_way):
            canceller.break_off()
        try:
            return before(number, frame)
        except Exception:  # PySpark's own of 4.0 fails where Py4J's connection is in use
            raise KeyboardInterrupt from None

    return end


#: How numbers of a type lie in the first bytes of their eight, in this machine's order, which is the JVM's.
_FIXED = {"boolean": "=?7x", "byte": "=b7x", "short": "=h6x", "integer": "=i4x", "long": "=q", "date": "=i4x",
          "timestamp": "=q", "timestamp_ntz": "=q", "float": "=f4x", "double": "=d"}  # fmt: skip
#: Digits of decimals that lie in eight bytes, and bytes that are kept for longer ones.
_SHORT_DECIMAL, _LONG_DECIMAL_BYTES = 18, 16


def unsafe_row(values: Sequence[pa.Scalar], types: Sequence[DataType]) -> bytes:
    """A row of scalar values.

    Args:
        values: One of each column, as ``schema.partition_values`` reads them.
    """
    words = (len(types) + 63) // 64
    nulls = [0] * words
    fixed, variable = bytearray(), bytearray()
    start = 8 * (words + len(types))
    for place, (scalar, kind) in enumerate(zip(values, types, strict=True)):
        if not scalar.is_valid:
            nulls[place // 64] |= 1 << place % 64
            fixed += bytes(8)
            continue
        content = _fixed(scalar, kind)
        if isinstance(content, bytes):
            fixed += content
            continue
        reference, padded = content
        fixed += struct.pack("=q", start + len(variable) << 32 | len(reference))
        variable += reference + bytes(padded - len(reference))
    return struct.pack(f"={words}Q", *nulls) + bytes(fixed) + bytes(variable)


def _fixed(scalar: pa.Scalar, kind: DataType) -> bytes | tuple[bytes, int]:
    """The eight bytes of a value, or the bytes that they point to and how many are kept for these."""
    if isinstance(kind, Decimal):
        sign, digits, exponent = scalar.as_py().as_tuple()
        unscaled = int(decimal.Decimal((sign, digits, 0))) * 10 ** (int(exponent) + kind.scale)
        if kind.precision <= _SHORT_DECIMAL:
            return struct.pack("=q", unscaled)
        return unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True), _LONG_DECIMAL_BYTES
    name = str(kind)
    if name in _FIXED:
        is_count = pa.types.is_timestamp(scalar.type) or pa.types.is_date(scalar.type)
        return struct.pack(_FIXED[name], scalar.value if is_count else scalar.as_py())
    value = scalar.as_py()
    data = value.encode() if isinstance(value, str) else bytes(value)
    return data, -(-len(data) // 8) * 8
