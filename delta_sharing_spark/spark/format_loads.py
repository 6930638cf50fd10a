"""Lets batch loads of the format ``deltaSharing`` be DataFrames of the native lane, in the sessions that ask for it.

PySpark's ``DataFrameReader.load`` is the one place through which ``spark.read.format(...).load()`` and
``spark.read.load(...)`` pass, and the reader knows format, options and schema before Spark asks the data source for
anything. While a session asks for another engine, a function here stands for it. The engine is a setting of the session,
so that sessions which Spark clones from it (``foreachBatch``) have it too. On a Connect server that is another process,
actions on such loads read what they need instead (:mod:`connect_loads`).
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession

from delta_sharing_spark.access.recipient import checked_engine
from delta_sharing_spark.errors import ConfigError
from delta_sharing_spark.errors.tracebacks import short_traceback
from delta_sharing_spark.spark.datasource import DeltaSharingDataSource
from delta_sharing_spark.spark.inline_secrets import refuse_identity_options
from delta_sharing_spark.spark.lanes import lane_frame
from delta_sharing_spark.spark.native import reach_of, start_gateways
from delta_sharing_spark.spark.register import OWN_LOAD, register_source
from delta_sharing_spark.spark.session_settings import session_options
from delta_sharing_spark.spark.statement import is_connect
from delta_sharing_spark.spark.told_loads import tell_loads

if TYPE_CHECKING:
    from delta_sharing_spark.access.recipient import ScanListing
    from delta_sharing_spark.access.resolved_scan import ResolvedScan
    from delta_sharing_spark.spark.native import Opened


_Load = Callable[..., DataFrame]

_lock = threading.Lock()
#: The sessions whose loads are looked at, and the names of their formats, in lower case.
_asking: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()


@short_traceback
def register(spark: SparkSession, name: str | None = None, engine: str | None = None) -> None:
    """Register the data source with a session, and choose how the session reads it.

    From then on its loads know the session's time zone and settings of the JVM connector (``spark.delta.sharing.*``), and
    ``spark.sql`` reads tables by their addresses: ``SELECT * FROM deltaSharing.`profile#share.schema.table` ``.
    A Connect server runs data sources in its own Python: where that lacks this package, it is sent along.

    Args:
        name: Another name for ``format(...)``, where a JVM source already owns ``deltaSharing``.
        engine: ``"auto"`` or ``"native"``: batch loads of this format, in this Python process, are DataFrames of the
            native lane where it fits, as by ``Scan.to_spark``; with ``"auto"`` on a Connect server that is another process,
            they are the Python source's, of which each action reads what it needs. ``"python"`` takes that back. None
            leaves it as it is.

    Raises:
        OptionError: An unknown engine.
        ConfigError: The Connect server lacks a package that ours needs; says what to install there. ``"native"`` is asked
            for where no executor can reach this process.
    """
    if engine is not None and checked_engine(engine) == "native" and not (reach := reach_of(spark)).is_possible:
        raise ConfigError(
            f"register(spark, engine='native') cannot read in this session: {reach.reason}; use engine='auto'"
        )
    register_source(spark, name)
    tell_loads(spark, name or DeltaSharingDataSource.name())
    if engine is not None:
        _choose_engine(spark, name or DeltaSharingDataSource.name(), engine)


def _choose_engine(spark: SparkSession, name: str, engine: str) -> None:
    """Choose how a session reads the batch loads of a format from now on."""
    reader: Any = type(spark.read)
    with _lock:
        names = _asking.setdefault(spark, set())
        if engine == "python":
            spark.conf.unset(_setting(name))
            names.discard(name.lower())
        else:
            spark.conf.set(_setting(name), engine)
            names.add(name.lower())
            start_gateways(reach_of(spark))  # in the background, for the loads that come
        is_asked = any(names for session, names in _asking.items() if type(session) is type(spark))
        own = getattr(reader.load, OWN_LOAD, None)
        if is_asked and own is None:
            reader.load = _looking(reader.load)
        elif not is_asked and own is not None:
            reader.load = own
        if is_connect(spark):
            from delta_sharing_spark.spark import connect_loads

            (connect_loads.look_at_actions if is_asked else connect_loads.leave_actions)()


def _setting(name: str) -> str:
    """The session's setting that holds the engine of a format."""
    return f"spark.{name.lower()}.engine"


def _looking(load: _Load) -> _Load:
    """PySpark's ``DataFrameReader.load``, which first looks whether the native lane is asked for."""

    @functools.wraps(load)
    def looked(self: Any, path: Any = None, format: str | None = None, schema: Any = None, **options: Any) -> DataFrame:
        if format is not None:
            self.format(format)
        if schema is not None:
            self.schema(schema)
        self.options(**options)
        engine, spark = _engine_of(self)
        if engine == "python" or not (path is None or isinstance(path, str)):
            return load(self, path)
        frame = _lane_frame(self, spark, engine, path)
        if frame is not None:
            return frame
        frame = load(self, path)
        if is_connect(spark) and not reach_of(spark).is_possible:
            from delta_sharing_spark.spark import connect_loads

            frame = connect_loads.narrowing(frame)
        return frame

    setattr(looked, OWN_LOAD, load)
    return looked


def _engine_of(reader: Any) -> tuple[str, SparkSession]:
    """The engine that a session asks for the reader's format, and the session."""
    if hasattr(reader, "_jreader"):
        spark, source = reader._spark, str(reader._jreader.source())
    else:
        spark, source = reader._client, str(reader._format)
    is_asked = any(source.lower() in names for names in _asking.values())
    return (spark.conf.get(_setting(source), None) or "python") if is_asked else "python", spark


def _lane_frame(reader: Any, spark: Any, engine: str, path: str | None) -> DataFrame | None:
    """A load by the native lane; None where it is to be PySpark's own."""
    schema = None
    if not is_connect(spark):
        convert = spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava
        options = {str(name): str(value) for name, value in convert(reader._jreader.extraOptions()).items()}
        given = reader._jreader.userSpecifiedSchema()
        schema = json.loads(given.get().json()) if given.isDefined() else None
    elif reader._schema or not reach_of(spark).is_possible:
        return None
    else:
        options = dict(reader._options)
    if path is not None and options.setdefault("path", path) != path:
        return None  # Spark refuses two paths
    return _by_lane(spark, engine, options, schema)


@short_traceback
def _by_lane(
    spark: SparkSession, engine: str, options: Mapping[str, str], schema: Mapping[str, Any] | None
) -> DataFrame | None:
    from delta_sharing_spark.access.open import TableOpener, negotiated_table, resolve_opened
    from delta_sharing_spark.options import parse_options
    from delta_sharing_spark.sharing.address import parse_address

    refuse_identity_options(options)
    parsed = parse_options({**session_options(spark, options), **options})

    def opened() -> Opened:
        opener = TableOpener(negotiated_table(parsed))
        load = resolve_opened(opener)
        return opener, load if schema is None else _as_given(load, schema)

    return lane_frame(spark, str(parse_address(parsed.path).table), engine, opened, _note)


def _as_given(load: ResolvedScan, schema: Mapping[str, Any]) -> ResolvedScan:
    """The load with the columns of a schema that the user gave.

    Raises:
        SchemaError: The schema does not fit the table.
        StepAsideError: It spells a name otherwise than the table, and the load has a condition on the table's names.
    """
    from delta_sharing_spark.native.plan import StepAsideError
    from delta_sharing_spark.schema.project import requested
    from delta_sharing_spark.schema.types import Struct, parse_type

    table = str(load.table)
    given = parse_type(schema, table, "")
    assert isinstance(given, Struct)
    output = requested(load.columns, given, table)
    if load.predicate is not None and not _names(output) <= _names(load.columns):
        raise StepAsideError("the given schema spells names otherwise than the table, and the load has a where")
    return replace(load, output=output)


def _names(kind: object) -> set[str]:
    from delta_sharing_spark.schema.types import Array, Map, Struct

    match kind:
        case Struct(fields):
            return {name for field in fields for name in (field.name, *_names(field.type))}
        case Array(element, _):
            return _names(element)
        case Map(key, value, _):
            return _names(key) | _names(value)
    return set()


def _note(scan: ScanListing) -> None:
    """Such loads have no client to tell; the log tells each listing."""
