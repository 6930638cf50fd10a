"""The demonstration: a sharing server on loopback with a sample share, read by Spark as a user would."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import TextIO

from pyspark.sql import DataFrame, SparkSession

from delta_sharing_spark.testing.interpreter import worker_python
from delta_sharing_spark.testing.sample import SampleTable, write_sample
from delta_sharing_spark.testing.server import SharingServer


def run(out: TextIO, *, trips: int) -> None:
    """Write the sample, share it, read it, and say on ``out`` what was done.

    Args:
        out: Where the narration goes; Spark shows rows on standard output.
        trips: Rows of the large table.

    Raises:
        DeltaSharingError: Reading failed; Spark's own exceptions pass through.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="delta sharing démo ") as directory, SharingServer() as server:
        tables = write_sample(Path(directory) / "tables", trips=trips)
        for table in tables:
            server.add_table(str(table), table.path, access_modes=("url", "dir"), comment=table.comment)
        profile = server.write_profile(Path(directory) / "demo.share")
        _say(out, f"A sharing server runs at {server.endpoint}; its profile is {profile}.")
        for table in tables:
            _say(out, f"  {table}: {table.rows:,} rows. {table.comment}.")
        spark = _session()
        try:
            _tour(out, spark, server, profile, tables)
        finally:
            spark.stop()
    _say(out, f"\nDone in {time.monotonic() - began:.0f} s. `delta-sharing-spark serve` keeps such a server up.")


def _tour(out: TextIO, spark: SparkSession, server: SharingServer, profile: str, tables: list[SampleTable]) -> None:
    stations, trips, customers = (f"{profile}#{table}" for table in tables)

    _say(out, f'\nspark.read.format("deltaSharing").load("<profile>#{tables[0]}")')
    read = spark.read.format("deltaSharing").load(stations)
    read.printSchema()
    read.show(truncate=False)

    _say(out, f"{tables[2]}: nested, with nulls at each level")
    nested = spark.read.format("deltaSharing").load(customers)
    nested.printSchema()
    nested.select("customer", "address.geo.latitude", "phones", "preferences", "rides").show(5, truncate=False)

    _say(out, f"{tables[1]}: an aggregate by partition, over every column")
    _aggregate(out, server, spark.read.format("deltaSharing").load(trips), tables[1])

    _say(out, "The same with .option('columns', 'city,fare,kilometres'): only their bytes are fetched")
    narrow = spark.read.format("deltaSharing").option("columns", "city,fare,kilometres").load(trips)
    _aggregate(out, server, narrow, tables[1])

    _say(out, "The same with .option('accessMode', 'dir'): from the table's directory, with temporary credentials")
    direct = spark.read.format("deltaSharing").option("accessMode", "dir").option("columns", "city,fare,kilometres")
    _aggregate(out, server, direct.load(trips), tables[1])


def _aggregate(out: TextIO, server: SharingServer, trips: DataFrame, table: SampleTable) -> None:
    server.reset_metrics()
    began = time.monotonic()
    trips.createOrReplaceTempView("trips")
    query = "SELECT city, count(*) AS trips, sum(fare) AS fares, round(avg(kilometres), 3) AS kilometres FROM trips"
    trips.sparkSession.sql(f"{query} GROUP BY city ORDER BY city").show()
    files = [path for path in Path(table.path).rglob("*.parquet") if "_delta_log" not in path.parts]
    total = sum(path.stat().st_size for path in files) / 1e6
    fetched = {request.path for request in server.requests if request.kind == "data"}
    took = f"{time.monotonic() - began:.1f} s"
    if fetched:
        _say(
            out,
            f"{table.rows:,} rows in {took}: {len(fetched)} of {len(files)} files, {server.bytes_sent() / 1e6:.1f} MB of "
            f"{total:.1f} MB fetched in {server.count('data')} requests.\n",
        )
    else:
        asked = server.count("credentials")
        _say(
            out,
            f"{table.rows:,} rows in {took}: no file came through the server, {asked} request(s) for credentials; the "
            f"table's {len(files)} files lie in its directory.\n",
        )


def _session() -> SparkSession:
    """A local session whose workers run this interpreter."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = worker_python()
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


def _say(out: TextIO, line: str) -> None:
    out.write(line + "\n")
    out.flush()
