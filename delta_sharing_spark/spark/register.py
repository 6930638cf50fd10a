"""Registers the data source with sessions that do not find it, and sends the package to Connect servers that lack it."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.errors import AnalysisException, PySparkRuntimeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource

from delta_sharing_spark._version import install_line
from delta_sharing_spark.errors import ConfigError
from delta_sharing_spark.network.process_cache import ProcessCache
from delta_sharing_spark.spark.datasource import DeltaSharingDataSource
from delta_sharing_spark.spark.patches import own, run_workers_by
from delta_sharing_spark.spark.session_settings import checked_session, is_connect

_log = logging.getLogger(__name__)

#: What the package imports: a server that lacks one of these cannot be helped by shipping our own modules.
_REQUIRED = ("pyarrow", "numpy", "requests", "fsspec", "pyroaring")
_PACKAGES = ("delta_sharing_spark", "pyspark_delta_sharing")
_SESSIONS = 64

#: The names that were registered with a session, for as long as it lives.
_registered: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()
#: Ids of Connect sessions whose server can import the package.
_provided: ProcessCache[str, bool] = ProcessCache(_SESSIONS)


def use_own_python(spark: Any) -> None:
    """Have Spark's workers on this machine run the Python of this process, where nobody chose one: that of an environment that was
    not activated is not what ``python3`` finds. For workers elsewhere the log says what to set."""
    chosen = "PYSPARK_PYTHON" in os.environ or is_connect(spark)
    if chosen or not sys.executable or spark.sparkContext.getConf().get("spark.pyspark.python", None):
        return
    context = spark.sparkContext
    if context.master.startswith("local") and not context.master.startswith("local-cluster"):
        run_workers_by(context, sys.executable)
    elif os.path.dirname(shutil.which(context.pythonExec) or "") != os.path.dirname(sys.executable):
        _log.warning(
            "Spark's workers run the %s of their machines, which may lack delta-sharing-spark; set PYSPARK_PYTHON to an interpreter "
            "that has it",
            context.pythonExec,
        )


def register_source(spark: SparkSession, name: str | None = None) -> None:
    """Register the data source with a session, as ``format_loads.register`` does."""
    names = _registered.setdefault(checked_session(spark), set())
    if (name or "") in names:
        return  # Spark would log, each time, that one source replaces another
    use_own_python(spark)
    if is_connect(spark):
        _provide(spark)
    source: type[DataSource] = DeltaSharingDataSource
    if name is not None:
        source = type(
            f"DeltaSharingDataSource_{name}", (DeltaSharingDataSource,), {"name": classmethod(lambda cls: name)}
        )
    try:
        spark.dataSource.register(source)
    except AnalysisException as refused:
        # Spark 4.0 lets nobody replace a source that it has found by itself: this one, unless it is another name.
        if name is not None or refused.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
    names.add(name or "")


def load_by_python(reader: Any, path: str) -> DataFrame:
    """Load by the Python data source, whatever engine the session asks for (``format_loads``)."""
    frame: DataFrame = own(type(reader).load)(reader, path)
    return frame


def active_session() -> SparkSession:
    """The session that is active in this thread, else the process's default one; raises ConfigError where there is none."""
    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        raise ConfigError("no Spark session is active; create one, or pass it as spark=") from None


def _provide(spark: Any) -> None:
    """Make sure, once for each session, that the server's Python can import the package."""
    if spark.session_id in _provided:
        return
    missing, sent = _missing(spark), ""
    if any(name in _PACKAGES for name in missing):
        _ship(spark)
        missing, sent = _missing(spark), " after the package was sent"
    if missing:
        raise ConfigError(
            f"the Spark Connect server's Python lacks {', '.join(missing)}{sent}, which delta-sharing-spark needs; "
            f"run there: {install_line()}"
        )
    _provided.put(spark.session_id, True)


def _missing(spark: Any) -> list[str]:
    """The packages that the server's Python cannot find."""
    spark.dataSource.register(_probe())
    names = spark.read.format("deltaSharingProbe").load().columns
    return [name for name in names if name != "ready"]


def _probe() -> type[DataSource]:
    """A data source whose columns name what is missing. Pickled by value: the server cannot import it from here."""
    required = (*_REQUIRED, *_PACKAGES)

    def source_name(cls: type) -> str:
        return "deltaSharingProbe"

    def schema(self: DataSource) -> str:
        from importlib.util import find_spec

        missing = [package for package in required if find_spec(package) is None]
        return ", ".join(f"{package} int" for package in missing or ["ready"])

    members = {"name": classmethod(source_name), "schema": schema, "__module__": "__main__"}
    for member in (source_name, schema):
        member.__module__ = "__main__"
    return type("DeltaSharingProbe", (DataSource,), members)


def _ship(spark: Any) -> None:
    """Send this package's modules to the server, for this session."""
    root = Path(__file__).parents[2]
    _log.info("the Spark Connect server lacks delta-sharing-spark; sending it")
    with tempfile.TemporaryDirectory() as directory:
        archive = Path(directory) / "delta_sharing_spark_modules.zip"
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
            for package in _PACKAGES:
                for module in sorted((root / package).rglob("*.py")):
                    zipped.write(module, module.relative_to(root))
        spark.addArtifacts(str(archive), pyfile=True)
