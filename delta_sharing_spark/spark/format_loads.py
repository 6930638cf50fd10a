"""Registers the format ``deltaSharing`` with sessions, and stands in for the methods of PySpark that load it.

In a process that called ``register``, a function stands for ``load`` of PySpark's four readers (batch and stream, classic
and Connect), and changes loads of registered formats alone. It adds what the session's settings mean
(:mod:`session_settings`), of which Spark tells the Python data source nothing. Where the session asks for another engine, a
batch load is a DataFrame of the native lane where that fits. On a Connect server that is another process, actions on it
read what they need (:mod:`connect_loads`). The engine is a setting of the session, so that sessions which Spark clones from
it (``foreachBatch``) have it too. Another function stands for ``SparkSession.sql``: Spark itself takes ``FROM format.`path`
`` of its own file formats alone.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from delta_sharing_spark.access.load import Recipient, checked_engine
from delta_sharing_spark.access.open import TableOpener, negotiated_table, resolve_opened
from delta_sharing_spark.access.resolved_scan import ResolvedScan
from delta_sharing_spark.errors import ConfigError, PredicateError, short_traceback
from delta_sharing_spark.native.plan import StepAsideError
from delta_sharing_spark.options.declared import naming, parse_options, warn_of_stream_options
from delta_sharing_spark.schema.projections import merge, requested
from delta_sharing_spark.schema.types import parse_schema
from delta_sharing_spark.sharing.address import TableName, parse_address
from delta_sharing_spark.spark import patches
from delta_sharing_spark.spark.datasource import DeltaSharingDataSource
from delta_sharing_spark.spark.entrances import READ_ONLY
from delta_sharing_spark.spark.lanes import lane_frame
from delta_sharing_spark.spark.native import Opened, reach_of, start_gateways
from delta_sharing_spark.spark.register import register_source
from delta_sharing_spark.spark.session_settings import is_connect, refuse_identity_options, session_options
from delta_sharing_spark.spark.table_names import TIME_TRAVEL, table_references, tokens_of, with_frames
from delta_sharing_spark.storage.user_files import only_spark_reads

_Load = Callable[..., Any]
_log = logging.getLogger(__name__)

#: What every text with an address holds.
_ADDRESS = re.compile(r"deltasharing`?\s*\.\s*`", re.IGNORECASE)
#: How a statement begins that reads tables when it is run; what a view reads must be there whenever the view is read.
_READ_AT_ONCE = ("SELECT", "WITH", "FROM", "(", "TABLE", "INSERT", "EXPLAIN")
_lock = threading.Lock()
#: The formats that were registered, and those of the sessions that ask for another engine than Python, in lower case.
_formats: set[str] = set()
_asking: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()


@short_traceback
def register(spark: SparkSession, name: str | None = None, engine: str = "auto") -> None:
    """Register the data source with a session, and choose how the session reads it.

    From then on its loads know the session's time zone and settings of the JVM connector (``spark.delta.sharing.*``), and
    ``spark.sql`` reads tables by their addresses: ``SELECT * FROM deltaSharing.`profile#share.schema.table` ``.
    A Connect server runs data sources in its own Python: where that lacks this package, it is sent along.

    Args:
        name: Another name for ``format(...)``, where a JVM source already owns ``deltaSharing``.
        engine: ``"auto"``: batch loads of this format, in this Python process, are DataFrames of the native lane (Spark's own
            Parquet reader) where it fits, as by ``Scan.to_spark``. On a Connect server that is another process they are the
            Python data source's, of which each action reads what it needs. ``"native"``: of the native lane or an error.
            ``"python"``: of the Python data source, which takes the others back.

    Raises:
        OptionError: An unknown engine.
        ConfigError: The Connect server lacks a package that ours needs; says what to install there. ``"native"`` is asked
            for where no executor can reach this process.
    """
    if checked_engine(engine) == "native" and not (reach := reach_of(spark)).is_possible:
        raise ConfigError(
            f"register(spark, engine='native') cannot read in this session: {reach.reason}; leave engine out"
        )
    register_source(spark, name)
    _stand_in(spark, name or DeltaSharingDataSource.name())
    _choose_engine(spark, name or DeltaSharingDataSource.name(), engine)


def _stand_in(spark: Any, name: str) -> None:
    """Stand in for PySpark's methods, of the kind of session that ``spark`` is, for a format."""
    connected = is_connect(spark)
    with _lock:
        _formats.add(name.lower())
        patches.LOAD.apply(partial(_loading, is_stream=False), is_connect=connected)
        patches.STREAM_LOAD.apply(partial(_loading, is_stream=True), is_connect=connected)
        for writer in patches.WRITERS:
            writer.apply(_refusing, is_connect=connected)
        patches.SQL.apply(_with_addresses, is_connect=connected)


def _refusing(naming: Callable[..., Any]) -> Callable[..., Any]:
    """PySpark's method of a writer that names its format, which refuses ours where it is named and not when rows are there."""

    @short_traceback
    def refusing(self: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(source, str) and source.lower() in _formats:
            raise ConfigError(READ_ONLY)
        return naming(self, source, *args, **kwargs)

    return refusing


def _choose_engine(spark: SparkSession, name: str, engine: str) -> None:
    """Choose how a session reads the batch loads of a format from now on."""
    with _lock:
        names = _asking.setdefault(spark, set())
        if engine == "python":
            with suppress(PySparkException):  # a server that takes no such setting has none
                spark.conf.unset(_setting(name))
            names.discard(name.lower())
        else:
            try:
                spark.conf.set(_setting(name), engine)
            except PySparkException as refused:  # servers that let sessions set what they list, and nothing else
                if engine != "auto":
                    raise
                _log.info("the session takes no setting %s (%s): the Python data source reads", _setting(name), refused)
                return
            names.add(name.lower())
            start_gateways(reach_of(spark))  # in the background, for the loads that come
        if is_connect(spark):
            from delta_sharing_spark.spark import connect_loads

            is_asked = any(names for session, names in _asking.items() if is_connect(session))
            (connect_loads.look_at_actions if is_asked else connect_loads.leave_actions)()


def _setting(name: str) -> str:
    """The session's setting that holds the engine of a format."""
    return f"spark.{name.lower()}.engine"


def _loading(load: _Load, *, is_stream: bool) -> _Load:
    """PySpark's ``load`` of a reader, for loads of registered formats."""

    def by_python(reader: Any, path: Any) -> Any:
        return load(reader, _tell(reader, path, is_stream))

    def loading(self: Any, path: Any = None, format: str | None = None, schema: Any = None, **options: Any) -> Any:
        if format is not None:
            self.format(format)
        if schema is not None:
            self.schema(schema)
        self.options(**options)
        if is_stream or not any(_asking.values()) or not (path is None or isinstance(path, str)):
            return by_python(self, path)
        spark, source, own_options = _state_of(self, is_stream=False)
        engine = spark.conf.get(_setting(source), None) if any(source in names for names in _asking.values()) else None
        if engine in (None, "python"):
            return by_python(self, path)
        frame = _lane_frame(self, spark, engine, path, own_options)
        if frame is None:
            frame = by_python(self, path)
            if is_connect(spark) and not reach_of(spark).is_possible:
                from delta_sharing_spark.spark import connect_loads

                frame = connect_loads.narrowing(frame)
        return frame

    return loading


def _state_of(reader: Any, *, is_stream: bool) -> tuple[Any, str, dict[str, str]]:
    """The session of a reader, its format in lower case, and the options it was given; no format where Spark shows no stream's."""
    if not hasattr(reader, "_jreader"):
        return reader._client, str(reader._format).lower(), dict(reader._options)
    spark, jreader = reader._spark, reader._jreader
    try:
        if is_stream:
            source, options = (
                patches.private_field(jreader, field) for field in (patches.STREAM_SOURCE, patches.STREAM_OPTIONS)
            )
        else:
            source, options = jreader.source(), jreader.extraOptions()
    except Py4JError:
        if is_stream:
            return spark, "", {}
        raise
    convert = spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava
    return spark, str(source).lower(), {str(name): str(value) for name, value in convert(options).items()}


@short_traceback
def _tell(reader: Any, path: Any, is_stream: bool) -> Any:
    """Give a reader of a registered format what its session knows; returns the path that is left to load."""
    spark, source, own_options = _state_of(reader, is_stream=is_stream)
    if source not in _formats:
        return path
    if not is_stream:
        warn_of_stream_options(own_options)
    reader.options(**session_options(spark, own_options, is_stream=is_stream))
    address = path if isinstance(path, str) else next((v for k, v in own_options.items() if k.lower() == "path"), "")
    profile = address.rpartition("#")[0]
    if not only_spark_reads(profile):
        return path
    # The worker that loads has no Hadoop: it is given what the profile says.
    reader.options(**Recipient(profile).options_for(parse_address(address).table))
    return None


@short_traceback
def _lane_frame(reader: Any, spark: Any, engine: str, path: str | None, options: dict[str, str]) -> DataFrame | None:
    """A load by the native lane; None where it is to be PySpark's own."""
    schema = None
    if not is_connect(spark):
        user_schema = reader._jreader.userSpecifiedSchema()
        schema = str(user_schema.get().json()) if user_schema.isDefined() else None
    elif reader._schema or not reach_of(spark).is_possible:
        return None
    if path is not None and options.setdefault("path", path) != path:
        return None  # Spark refuses two paths
    refuse_identity_options(options)
    parsed = parse_options({**session_options(spark, options), **options})

    def opened() -> Opened:
        opener = TableOpener(negotiated_table(parsed))
        load = resolve_opened(opener)
        return opener, load if schema is None else _with_schema(load, schema)

    table = str(parse_address(parsed.path).table)
    return lane_frame(spark, table, engine, opened, lambda listing: None)  # no client is there to be told


def _with_schema(load: ResolvedScan, schema: str) -> ResolvedScan:
    """The load with the columns of a schema that the user gave.

    Raises:
        SchemaError: The schema does not fit the table.
        StepAsideError: It spells a name otherwise than the table, and the load has a condition on the table's names.
    """
    table = str(load.table)
    output = requested(load.columns, parse_schema(schema, table), table)
    if load.predicate is not None and merge(load.columns, output) != load.columns:
        raise StepAsideError("the given schema spells names otherwise than the table, and the load has a where")
    return replace(load, output=output)


def _with_addresses(sql: Callable[..., Any]) -> Callable[..., Any]:
    """PySpark's ``SparkSession.sql``, for texts that name tables by their addresses: deltaSharing.`profile#share.schema.table`."""

    def read(self: Any, sqlQuery: str, args: Any = None, **kwargs: Any) -> Any:
        is_ours = DeltaSharingDataSource.name().lower() in _formats  # else a JVM source may have this name
        if kwargs or not is_ours or not isinstance(sqlQuery, str) or not _ADDRESS.search(sqlQuery):
            return sql(self, sqlQuery, args, **kwargs)
        text, frames = _over_frames(self, sqlQuery)
        return sql(self, text, args, **frames)

    return read


@short_traceback
def _over_frames(spark: Any, text: str) -> tuple[str, dict[str, Any]]:
    """A statement with its addresses replaced by the names of frames in braces, and the frames: loads of this session.

    Raises:
        PredicateError: The statement makes something that is read later, such as a view.
    """
    tokens = tokens_of(text)
    mentions = [mention for mention in table_references(text, tokens) if mention.profile is not None]
    words = [token.word for token in tokens]
    if mentions and words[0] not in _READ_AT_ONCE and not (words[0] == "CREATE" and "TABLE" in words[:4]):
        raise PredicateError(
            "a table is named by its address in queries, INSERT and CREATE TABLE ... AS; else make a view of it: CREATE TEMPORARY VIEW "
            "name USING deltaSharing OPTIONS (path 'profile#share.schema.table')",
            position=mentions[0].start,
        )
    frames = {}
    for number, mention in enumerate(mentions):
        reader = spark.read.format(DeltaSharingDataSource.name()).options(**mention.travel)
        with naming(TIME_TRAVEL):
            frames[f"t{number}"] = reader.load(f"{mention.profile}#{TableName(*mention.name)}")
    return with_frames(text, tokens, mentions, list(frames)) if frames else text, frames
