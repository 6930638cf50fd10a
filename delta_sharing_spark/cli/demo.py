"""Runs the demonstration: a sharing server on loopback with a sample share, read by Spark as a user would."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from pyspark.sql import DataFrame, SparkSession

from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.errors import ConfigError
from delta_sharing_spark.schema.markup import counted, seconds_text, size_text, text_table
from delta_sharing_spark.spark.format_loads import register
from delta_sharing_spark.testing.interpreter import worker_python
from delta_sharing_spark.testing.sample import SampleTable, share_sample
from delta_sharing_spark.testing.server import SharingServer

OLDEST_JAVA = 17
#: Of one column and the files of a month, which only Spark's own reader is told.
_QUERY = "SELECT city, sum(fare) AS fares FROM {table} WHERE started >= '2025-12-01' GROUP BY city ORDER BY city"


def run(out: TextIO, *, trips: int) -> None:
    """Write the sample, share it and read it; narrate each step on ``out``.

    Raises:
        ConfigError: There is no Java that Spark runs on.
        DeltaSharingError: Reading failed; Spark's own exceptions pass through.
    """
    check_java()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="delta-sharing-demo-") as directory, SharingServer() as server:
        _say(out, f"Writing a sample share ({trips:,} trips) ...")
        tables = share_sample(server, Path(directory) / "tables", trips=trips)
        profile = server.write_profile(Path(directory) / "demo.share")
        _say(
            out,
            f"A sharing server runs at {server.endpoint} until the demonstration ends; its profile is\n\n  {profile}\n",
        )
        for table in tables:
            _say(out, f"  {table}: {table.rows:,} rows. {table.comment}.")
        _say(out, "\nStarting Spark, which takes some seconds ...")
        with _spark(Path(directory) / "spark.log") as spark:
            _tour(out, spark, server, profile, {table.name: table for table in tables})
    _say(out, f"Done in {time.monotonic() - began:.0f} s.\n{_NEXT}")


_NEXT = """
What to do next:
  delta-sharing-spark serve                        keeps such a server up, and prints what to paste
  delta-sharing-spark ls <profile>                 looks into a share, yours or the sample
  delta_sharing_spark.register(spark), then
  spark.read.format("deltaSharing").load("<profile>#<share>.<schema>.<table>")
  docs/python.md: pandas, Polars and DuckDB without Spark; docs/streaming.md: streams"""


def _tour(
    out: TextIO, spark: SparkSession, server: SharingServer, profile: str, tables: dict[str, SampleTable]
) -> None:
    def read(table: str, **options: object) -> DataFrame:
        # PySpark makes a text of any value; its types name a few.
        return spark.read.format("deltaSharing").options(**options).load(f"{profile}#{tables[table]}")  # type: ignore[arg-type]

    _say(out, f'\n1. A table: spark.read.format("deltaSharing").load("<profile>#{tables["stations"]}")')
    read("stations").show(truncate=False)

    _say(out, "2. Nested, with nulls at each level")
    read("customers").select("customer", "address.geo.latitude", "phones", "preferences", "rides").show(5, False)

    _say(out, f"3. One query, read in both ways: {_QUERY.format(table='trips')}")
    _say(out, "   The native lane is Spark's own Parquet reader, which reads through a gateway in this Python.")
    lanes = []
    for lane in ("Python data source", "native lane"):
        if lane == "native lane":
            line = "register(spark)"
            register(spark)
        else:
            line = 'register(spark, engine="python")'
            register(spark, engine="python")
        began = time.monotonic()
        server.reset_metrics()
        read("trips").createOrReplaceTempView("trips")
        answer = spark.sql(_QUERY.format(table="trips"))
        answer.show() if lane == "native lane" else answer.collect()
        fetched = len({request.path for request in server.requests if request.kind == "data"})
        took = size_text(server.bytes_sent()), seconds_text(time.monotonic() - began)
        lanes.append([line, lane, f"{fetched} of {_files(tables['trips'])[0]}", *took])
    table = text_table(["line", "who reads", "files", "fetched", "took"], lanes)
    _say(out, "   " + table.replace("\n", "\n   ") + "\n")

    _say(out, f'4. All tables as views: client.register(spark), then spark.sql("{_QUERY.format(table="city_trips")}")')
    client = SharingClient(profile)
    client.register(spark)
    spark.sql(_QUERY.format(table="city_trips")).show()
    _say(out, f"   What that read, by client.last_scans():\n   {client.last_scans()[-1]}\n")

    where = "started >= '2025-12-01' AND city = 'Lisbon'"
    columns = ["city", "fare", "kilometres"]
    register(spark, engine="python")
    _say(out, "5. The Python data source, as where no gateway runs, is told by options what is needed:")
    _say(out, f"""   .option("columns", "{",".join(columns)}").option("where", "{where}")""")
    _aggregate(out, server, read("trips", columns=",".join(columns), where=where), tables["trips"])
    _say(out, "   What client.table(...).scan(columns=..., where=...).explain() says of it:\n")
    explained = client.table(str(tables["trips"])).scan(columns=columns, where=where).explain()
    _say(out, "   " + explained.replace("\n", "\n   ") + "\n")

    _say(out, "6. The same with .option('accessMode', 'dir'): from the table's directory, with temporary credentials")
    _aggregate(out, server, read("trips", columns=",".join(columns), where=where, accessMode="dir"), tables["trips"])
    register(spark)

    _say(out, "7. Time travel: .option('versionAsOf', 1), or .option('timestampAsOf', '2026-02-15')")
    read("bicycles", versionAsOf=1).groupBy("state").count().show()
    _say(out, "   and the newest version")
    read("bicycles").groupBy("state").count().show()

    _say(out, "8. What changed: .option('readChangeFeed', True).option('startingVersion', 2)")
    feed = read("bicycles", readChangeFeed=True, startingVersion=2)
    feed.orderBy("_commit_version", "bicycle", "_change_type").show(truncate=False)


def _aggregate(out: TextIO, server: SharingServer, trips: DataFrame, table: SampleTable) -> None:
    server.reset_metrics()
    began = time.monotonic()
    trips.createOrReplaceTempView("trips")
    query = "SELECT city, count(*) AS trips, sum(fare) AS fares, round(avg(kilometres), 3) AS kilometres FROM trips"
    trips.sparkSession.sql(f"{query} GROUP BY city ORDER BY city").show()
    files, total = _files(table)
    fetched = {request.path for request in server.requests if request.kind == "data"}
    took = f"   {seconds_text(time.monotonic() - began)}"
    if fetched:
        _say(
            out,
            f"{took}: {len(fetched)} of {counted(files, 'file')}, {size_text(server.bytes_sent())} of {size_text(total)} "
            f"fetched in {counted(server.count('data'), 'request')}.\n",
        )
    else:
        _say(
            out,
            f"{took}: no file came through the server, {counted(server.count('credentials'), 'request')} for credentials; "
            f"the table's {counted(files, 'file')} lie in its directory.\n",
        )


def _files(table: SampleTable) -> tuple[int, int]:
    """How many data files a sample has, and their bytes."""
    files = [path for path in Path(table.path).rglob("*.parquet") if "_delta_log" not in path.parts]
    return len(files), sum(path.stat().st_size for path in files)


@contextmanager
def _spark(log: Path) -> Iterator[SparkSession]:
    """A local session whose workers run this interpreter; its JVM's output is shown if something fails."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = worker_python()
    warnings.filterwarnings("ignore", module="pyspark")
    sys.stderr.flush()
    terminal = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        session = _session()
        try:
            yield session
        finally:
            session.stop()
    except BaseException:
        os.dup2(terminal, 2)
        sys.stderr.write(log.read_text(encoding="utf-8", errors="replace"))
        raise
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)


def _session() -> SparkSession:
    builder: SparkSession.Builder = SparkSession.builder
    return (
        builder.master("local[*]")
        .appName("delta-sharing-spark demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )


def check_java() -> None:
    """Raise ConfigError where there is no Java for Spark, or it is too old; the message has the line that installs one."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    version = _java_version(java) if java else None
    if version is not None and version >= OLDEST_JAVA:
        return
    if Path("/etc/debian_version").exists():
        line = "sudo apt-get update && sudo apt-get install -y openjdk-17-jre-headless"
    elif sys.platform == "darwin":
        line = "brew install openjdk@17"
    elif shutil.which("dnf"):
        line = "sudo dnf install -y java-17-openjdk-headless"
    else:
        line = "install a Java 17 and set JAVA_HOME to it"
    which = "none was found" if version is None else f"{java} is Java {version}"
    raise ConfigError(f"Spark needs Java {OLDEST_JAVA} or newer and {which}. Run: {line}")


def _java_version(java: str) -> int | None:
    """The major version that a Java says it has; None if it does not run."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(match[1]) if match else None


def _say(out: TextIO, line: str) -> None:
    out.write(line + "\n")
    out.flush()
