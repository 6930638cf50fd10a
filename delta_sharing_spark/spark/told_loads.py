"""Hands the settings of a session to its loads by the Python data source, which Spark tells nothing of them.

In a process that called ``register``, a function stands for ``load`` of PySpark's four readers (batch and stream, classic and
Connect): it adds the session's options (:mod:`session_settings`) to a load of a registered format, and changes no other. Another
stands for ``SparkSession.sql``, for Spark itself takes ``FROM format.`path` `` of its own file formats alone.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from delta_sharing_spark.access.recipient import Recipient
from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.errors.tracebacks import short_traceback
from delta_sharing_spark.options.parsing import warn_of_stream_options
from delta_sharing_spark.sharing.address import TableName, parse_address
from delta_sharing_spark.spark.datasource import DeltaSharingDataSource
from delta_sharing_spark.spark.session_settings import session_options
from delta_sharing_spark.spark.statement import is_connect
from delta_sharing_spark.spark.table_names import table_references, tokens_of, with_frames
from delta_sharing_spark.storage.profile_files import only_spark_reads

#: What every text with an address holds.
_ADDRESS = re.compile(r"deltasharing`?\s*\.\s*`", re.IGNORECASE)

_lock = threading.Lock()
#: The formats that were registered, in lower case.
_formats: set[str] = set()
#: The modules of readers whose ``load`` is replaced.
_told: set[str] = set()


def tell_loads(spark: Any, name: str) -> None:
    """Let loads of a format in this process know the settings of their sessions, of the kind that ``spark`` is."""
    package = "pyspark.sql.connect" if is_connect(spark) else "pyspark.sql"
    with _lock:
        _formats.add(name.lower())
        if package not in _told:
            _told.add(package)
            for module, reader in (("readwriter", "DataFrameReader"), ("streaming.readwriter", "DataStreamReader")):
                kind = getattr(import_module(f"{package}.{module}"), reader)
                kind.load = _telling(kind.load, is_stream=reader == "DataStreamReader")
            session = import_module(f"{package}.session").SparkSession
            session.sql = _with_addresses(session.sql)


def _telling(load: Callable[..., Any], *, is_stream: bool) -> Callable[..., Any]:
    @functools.wraps(load)
    def told(self: Any, path: Any = None, format: str | None = None, schema: Any = None, **options: Any) -> Any:
        if format is not None:
            self.format(format)
        if schema is not None:
            self.schema(schema)
        self.options(**options)
        return load(self, _tell(self, path, is_stream))

    return told


@short_traceback
def _tell(reader: Any, path: Any, is_stream: bool) -> Any:
    """Give a reader of a registered format what its session knows; returns the path that is left to load."""
    connect = type(reader).__module__.startswith("pyspark.sql.connect")
    source, given = (reader._format, reader._options) if connect else _written(reader, is_stream)
    if str(source).lower() not in _formats:
        return path
    if not is_stream:
        warn_of_stream_options(given)
    reader.options(**session_options(reader._client if connect else reader._spark, given, is_stream=is_stream))
    address = path if isinstance(path, str) else next((v for k, v in given.items() if k.lower() == "path"), "")
    profile = address.rpartition("#")[0]
    if not only_spark_reads(profile):
        return path
    # The worker that loads has no Hadoop: it is given what the profile says.
    table = parse_address(address).table
    reader.options(**Recipient(profile).options_for(table))
    return None


#: How a statement begins that reads tables when it is run; what a view reads must be there whenever the view is read.
_READ_AT_ONCE = ("SELECT", "WITH", "FROM", "(", "TABLE", "INSERT", "EXPLAIN")


def _with_addresses(sql: Callable[..., Any]) -> Callable[..., Any]:
    """PySpark's ``SparkSession.sql``, for texts that name tables by their addresses: deltaSharing.`profile#share.schema.table`."""

    @functools.wraps(sql)
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
        travel = {"versionAsOf": mention.version, "timestampAsOf": mention.timestamp}
        reader = spark.read.format(DeltaSharingDataSource.name())
        reader.options(**{name: value for name, value in travel.items() if value is not None})
        frames[f"t{number}"] = reader.load(f"{mention.profile}#{TableName(*mention.name)}")
    return with_frames(text, tokens, mentions, list(frames)) if frames else text, frames


def _written(reader: Any, is_stream: bool) -> tuple[str | None, Mapping[str, str]]:
    """The format and the options that a classic reader was given; no format where Spark does not show a stream's."""
    jreader = reader._jreader
    if not is_stream:
        source, options = jreader.source(), jreader.extraOptions()
    else:
        try:
            source, options = (_private(jreader, name) for name in ("source", "extraOptions"))
        except Py4JError:
            return None, {}
    convert = reader._spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava
    return str(source), {str(name): str(value) for name, value in convert(options).items()}


def _private(jreader: Any, name: str) -> Any:
    field = jreader.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(jreader)
