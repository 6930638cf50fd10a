"""Hands the settings of a session to its loads by the Python data source, which Spark tells nothing of them.

In a process that called ``register``, a function stands for ``load`` of PySpark's four readers (batch and stream, classic and
Connect): it adds the session's options (:mod:`session_settings`) to a load of a registered format, and changes no other.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from delta_sharing_spark.access.recipient import Recipient
from delta_sharing_spark.errors.tracebacks import short_traceback
from delta_sharing_spark.options.parsing import log_stream_options
from delta_sharing_spark.sharing.address import parse_address
from delta_sharing_spark.spark.session_settings import session_options
from delta_sharing_spark.spark.statement import is_connect
from delta_sharing_spark.storage.profile_files import only_spark_reads

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
        log_stream_options(given)
    reader.options(**session_options(reader._client if connect else reader._spark, given, is_stream=is_stream))
    address = path if isinstance(path, str) else next((v for k, v in given.items() if k.lower() == "path"), "")
    profile = address.rpartition("#")[0]
    if not only_spark_reads(profile):
        return path
    # The worker that loads has no Hadoop: it is given what the profile says.
    table = parse_address(address).table
    reader.options(**Recipient(profile).options_for(table))
    return None


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
