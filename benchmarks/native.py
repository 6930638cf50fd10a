"""Spark's own reader over a share (the native lane) beside local Parquet files, the Python source and the JVM connector.

    python benchmarks/native.py                          12,000,000 rows x 9 columns, and 200 columns; TPC-H at scale 1
    python benchmarks/native.py --rows 500000 --runs 1 --scale 0.05
    python benchmarks/native.py --network                over 40 ms and 30 MB/s a connection, beside the Python source

``file`` is ``spark.read.parquet`` on the local files, ``native`` and ``python`` are ``to_spark(engine=...)`` in url mode
from an embedded server in a process of its own; ``python+`` is told the columns and conditions by ``scan``. All contenders
run in turn in one session, once to warm up; figures are medians, in seconds, and ratios to ``file``. DataFrames are loaded
outside the clock but for ``load``. With ``JVM_PEER`` naming a directory whose ``jars/`` hold the JVM connector, it is the
last contender: run this with a Spark of the version that the jars are made for; ``--jvm key=value`` sets its settings.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from scan import write_table
from served import Served
from tpch_data import tables
from tpch_queries import QUERIES

from delta_sharing_spark import SharingClient
from delta_sharing_spark.testing.interpreter import worker_python
from delta_sharing_spark.testing.tables import DeltaTableBuilder, FileStyle

LATENCY, BANDWIDTH = 0.04, 30e6
JVM_FORMAT = "io.delta.sharing.spark.DeltaSharingDataSource"


def write_wide(path: Path, rows: int) -> None:
    """200 columns of numbers."""
    schema = pa.schema({f"c{i}": pa.int64() for i in range(200)})
    draw = np.random.default_rng(5)
    built = DeltaTableBuilder(path, schema, style=FileStyle(keep_rows=False, row_group_size=max(1, rows // 4)))
    for _ in range(4):
        built.append(pa.table({name: draw.integers(0, 1 << 40, rows // 4) for name in schema.names}, schema))


def scan_everything(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


QUERIES_OF_WIDE: dict[str, Callable[[Any], Any]] = {
    "two of 200 columns": lambda f: f.selectExpr("sum(c17)", "max(c123)").collect(),
}
QUERIES_OF_LONG: dict[str, Callable[[Any], Any]] = {
    "full scan": scan_everything,
    "three columns": lambda f: f.groupBy("city").agg({"price": "sum", "id": "max"}).collect(),
    "count": lambda f: f.count(),
    "selective filter": lambda f: f.where("day = date'2022-01-15' and customer < 1000").collect(),
}


def session(driver_memory: str) -> Any:
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    builder = builder.master("local[*]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.session.timeZone", "UTC").config("spark.driver.memory", driver_memory)
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.sql.shuffle.partitions", "4")
    jars = sorted(Path(os.environ["JVM_PEER"], "jars").glob("*.jar")) if os.environ.get("JVM_PEER") else []
    if jars:
        builder = builder.config("spark.jars", ",".join(map(str, jars)))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


class Contenders:
    """Each way to a table of the benchmark, loaded."""

    def __init__(self, spark: Any, served: Served, root: Path, network: bool) -> None:
        self._spark, self._root, self._network = spark, root, network
        self._profile = root / "config.share"
        self._profile.write_text(served.profile)
        self._client = SharingClient(str(self._profile), accessMode="url")

    def of(self, name: str, columns: list[str] | None = None, where: str | None = None) -> dict[str, Any]:
        table = self._client.table(f"bench.file.{name}")
        found: dict[str, Any] = {}
        if not self._network:
            found["file"] = self._spark.read.parquet(str(self._root / name / "*.parquet"))
        began = time.perf_counter()
        found["native"] = table.scan().to_spark(self._spark, engine="native")
        print(f"  {name}: loaded by the native lane in {time.perf_counter() - began:.2f} s")
        found["python"] = table.scan().to_spark(self._spark, engine="python")
        if columns or where:
            found["python+"] = table.scan(columns=columns, where=where).to_spark(self._spark, engine="python")
        if os.environ.get("JVM_PEER"):
            found["jvm"] = self._spark.read.format(JVM_FORMAT).load(f"{self._profile}#bench.file.{name}")
        return found


#: What ``python+`` is told.
TOLD: dict[str, tuple[list[str] | None, str | None]] = {
    "two of 200 columns": (["c17", "c123"], None),
    "three columns": (["city", "price", "id"], None),
    "selective filter": (None, "day = date'2022-01-15' and customer < 1000"),
}


def compare(contenders: Contenders, table: str, queries: dict[str, Callable[[Any], Any]], runs: int) -> None:
    for title, query in queries.items():
        frames = contenders.of(table, *TOLD.get(title, (None, None)))
        for frame in frames.values():
            query(frame)
        seconds: dict[str, list[float]] = {name: [] for name in frames}
        for turn in range(runs):
            names = list(frames)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                began = time.perf_counter()
                query(frames[name])
                seconds[name].append(time.perf_counter() - began)
        report(title, seconds)


def report(title: str, seconds: dict[str, list[float]]) -> None:
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    base = medians.get("file", medians["native"])
    shown = "".join(f"{name:>9} {value:7.2f} s {value / base:5.2f}" for name, value in medians.items())
    print(f"  {title:<20}{shown}", flush=True)


def compare_tpch(spark: Any, contenders: Contenders, root: Path, runs: int) -> None:
    """All 22 queries over views of each contender, the sum of their medians."""
    names = [
        path.name for path in root.iterdir() if (path / "_delta_log").is_dir() and path.name not in ("long", "wide")
    ]
    frames = {name: contenders.of(name) for name in names}
    ways = list(next(iter(frames.values())))
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for number, text in QUERIES.items():
        times: dict[str, list[float]] = {way: [] for way in ways}
        answers: dict[str, Any] = {}
        for turn in range(runs + 1):
            for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
                for name in names:
                    frames[name][way].createOrReplaceTempView(f"tpch_sf_{name}")
                began = time.perf_counter()
                answers[way] = spark.sql(text.replace("tpch.sf.", "tpch_sf_")).toArrow().to_pylist()
                if turn:
                    times[way].append(time.perf_counter() - began)
        if any(answer != answers[ways[0]] for answer in answers.values()):
            print(f"  query {number}: the answers differ")
        for way in ways:
            seconds[way].append(statistics.median(times[way]))
    report("TPC-H, 22 queries", {way: [sum(values)] for way, values in seconds.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=12_000_000)
    parser.add_argument("--wide", type=int, default=400_000, help="rows of the table of 200 columns")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="of TPC-H; 0 leaves it out")
    parser.add_argument("--network", action="store_true", help=f"{LATENCY * 1000:.0f} ms, {BANDWIDTH / 1e6:.0f} MB/s")
    parser.add_argument("--memory", default="4g", help="of Spark's driver")
    parser.add_argument("--jvm", nargs="*", default=[], metavar="KEY=VALUE", help="settings of the JVM connector")
    options = parser.parse_args()
    import sys

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = worker_python(sys.executable)
    with tempfile.TemporaryDirectory(prefix="native-") as directory:
        root = Path(directory)
        write_table(root / "long", options.rows, 8, 500_000)
        write_wide(root / "wide", options.wide)
        if options.scale:
            for name, rows in tables(options.scale).items():
                built = DeltaTableBuilder(root / name, rows.schema, style=FileStyle(keep_rows=False))
                built.append(rows, files=8 if rows.num_rows > 10_000 else 1)
        spark = session(options.memory)
        for setting in options.jvm:
            spark.conf.set(*setting.split("=", 1))
        shared = {path.name: path for path in root.iterdir() if (path / "_delta_log").is_dir()}
        served = Served(shared)
        try:
            if options.network:
                served.shape(LATENCY, BANDWIDTH)
            contenders = Contenders(spark, served, root, options.network)
            print(
                f"Spark {spark.version}, {os.cpu_count()} cores, medians of {options.runs}: seconds, ratio to the first"
            )
            compare(contenders, "long", QUERIES_OF_LONG, options.runs)
            compare(contenders, "wide", QUERIES_OF_WIDE, options.runs)
            if options.scale:
                compare_tpch(spark, contenders, root, options.runs)
        finally:
            served.close()
            spark.stop()


if __name__ == "__main__":
    main()
