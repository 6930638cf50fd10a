"""Spark's own reader over a share (the native lane) beside local Parquet files, the Python source and the JVM connector.

    python benchmarks/native.py                          4,000,000 rows x 9 columns, and 200 columns; TPC-H at scale 0.1
    python benchmarks/native.py --rows 200000 --wide 20000 --runs 1 --scale 0.02
    python benchmarks/native.py --network                also over 40 ms and 30 MB/s a connection

``file`` is ``spark.read.parquet`` on the local files; ``lane`` and ``python`` are ``to_spark(engine=...)`` in url mode from an
embedded server in a process of its own; ``python+`` is told the columns and conditions by ``scan``. They are loaded outside
the clock, ``load`` apart. ``lane+load`` loads a DataFrame anew in each run, as the JVM connector does in ``jvm`` (its
defaults) and ``tuned``, where JVM_PEER names the directory it was built into (``benchmarks/jvm.py``). TPC-H is the sum of the
22 queries' medians: ``file`` and ``lane`` over views that stand from the start, the others load the tables of each query:
``file+load`` by ``spark.read.parquet``, ``lane sql`` and ``python sql`` by ``client.sql``, ``new client`` as ``lane sql`` by a
client that has read nothing before. All run in turn after a first time that does not count; figures are medians, in seconds, and
in brackets times of the first. What a frame of the lane has read stays in memory up to 32 MiB: small queries of ``lane`` fetch
nothing from their second run on, those of ``lane+load`` all.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jvm import TUNED, JvmPeer, peer_home
from scan import write_table
from served import BANDWIDTH, LATENCY, Served
from tpch_data import tables
from tpch_queries import QUERIES

from delta_sharing_spark import SharingClient
from delta_sharing_spark.testing.interpreter import worker_python
from delta_sharing_spark.testing.tables import DeltaTableBuilder, FileStyle

FILTER = "day = date'2022-01-15' and customer < 1000"
TITLES = ("full scan", "three columns", "count", "selective filter", "two of 200 columns")
#: What ``python+`` is told.
TOLD: dict[str, dict[str, Any]] = {
    "three columns": {"columns": ["city", "price", "id"]},
    "selective filter": {"where": FILTER},
    "two of 200 columns": {"columns": ["c17", "c123"]},
}
#: How the JVM connector's process is asked for the same.
PEER_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "full scan": ("full scan", {}),
    "three columns": ("3 columns agg", {"columns": ["city", "price", "id"]}),
    "count": ("count", {}),
    "selective filter": ("selective where", {"where": FILTER, "sum": "id"}),
    "two of 200 columns": ("3 columns agg", {"group": "1", "columns": ["1", "c17", "c123"]}),
}

Run = Callable[[], object]


def query(title: str, frame: Any) -> None:
    """Run one of the queries."""
    from pyspark.sql import functions as F

    if title == "full scan":
        frame.write.format("noop").mode("overwrite").save()
    elif title == "count":
        frame.count()
    elif title == "selective filter":
        frame.where(FILTER).agg({"id": "sum"}).collect()
    elif title == "three columns":
        frame.groupBy("city").agg({"price": "sum", "id": "sum"}).collect()
    else:
        frame.groupBy(F.expr("1")).agg({"c17": "sum", "c123": "sum"}).collect()


def write_wide(path: Path, rows: int) -> None:
    """200 columns of numbers."""
    schema = pa.schema({f"c{i}": pa.int64() for i in range(200)})
    draw = np.random.default_rng(5)
    built = DeltaTableBuilder(path, schema, style=FileStyle(keep_rows=False, row_group_size=max(1, rows // 4)))
    for _ in range(4):
        built.append(pa.table({name: draw.integers(0, 1 << 40, rows // 4) for name in schema.names}, schema))


def session(driver_memory: str) -> Any:
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    builder = builder.master("local[*]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.session.timeZone", "UTC").config("spark.driver.memory", driver_memory)
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.sql.shuffle.partitions", "4")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


class Contenders:
    """Each way to a table of the benchmark."""

    def __init__(self, spark: Any, served: Served, root: Path, peer: JvmPeer | None) -> None:
        self.spark, self.peer = spark, peer
        self._root = root
        self._profile = root / "config.share"
        self._profile.write_text(served.profile)
        self.client = self.new_client()

    def new_client(self) -> SharingClient:
        return SharingClient(str(self._profile), accessMode="url")

    def load(self, way: str, name: str, told: Mapping[str, Any] | None = None) -> Any:
        if way == "file":
            return self.spark.read.parquet(str(self._root / name / "*.parquet"))
        scan = self.client.table(f"bench.file.{name}").scan(**(told or {}))
        return scan.to_spark(self.spark, engine="python" if way.startswith("python") else "native")

    def of(self, title: str, *, network: bool = False) -> dict[str, Run]:
        """Each way to answer a query; over the network without local files and the JVM connector."""
        name = "wide" if title == TITLES[-1] else "long"
        ways = [*(() if network else ("file",)), "lane", "python", *(["python+"] if title in TOLD else [])]
        queries: dict[str, Run] = {
            way: partial(query, title, self.load(way, name, TOLD.get(title) if way == "python+" else None))
            for way in ways
        }
        if self.peer is not None or network:
            queries["lane+load"] = lambda: query(title, self.load("lane", name))
        if self.peer is not None and not network:
            case, asked = PEER_CASES[title]
            address = f"{self._profile}#bench.file.{name}"
            queries["jvm"] = partial(self._by_peer, case, address, asked, {})
            queries["tuned"] = partial(self._by_peer, case, address, asked, TUNED)
        return queries

    def _by_peer(self, case: str, address: str, asked: Mapping[str, Any], settings: Mapping[str, str]) -> float:
        """Seconds of the JVM connector; not a number where it fails, which is told."""
        assert self.peer is not None
        try:
            return self.peer.run(case, address, asked, settings)
        except RuntimeError as error:
            print(error, file=sys.stderr)
            return float("nan")


def measure(ways: Mapping[str, Run], runs: int) -> dict[str, float]:
    """Medians of each way, run in turn."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(runs + 1):
        names = list(ways)
        for way in names[turn % len(names) :] + names[: turn % len(names)]:
            began = time.perf_counter()
            told = ways[way]()  # the JVM connector's process tells its own time
            spent = told if isinstance(told, float) else time.perf_counter() - began
            if turn:
                seconds[way].append(spent)
    return {way: statistics.median(values) for way, values in seconds.items()}


def head(title: str, ways: Sequence[str]) -> None:
    """The first line of a table."""
    print(f"{title:<20}" + "".join(f"{way:>15}" for way in ways), flush=True)


def row(title: str, ways: Sequence[str], medians: Mapping[str, float]) -> None:
    """Seconds, and times of the first way."""
    base = next(iter(medians.values()))
    cells = (f"{medians[way]:7.2f} ({medians[way] / base:.2f})" if way in medians else "" for way in ways)
    print(f"{title:<20}" + "".join(f"{cell:>15}" for cell in cells), flush=True)


def compare_tpch(contenders: Contenders, names: list[str], runs: int, chosen: Sequence[str]) -> dict[str, float]:
    """The sums of the medians of all 22 queries, by each chosen way."""
    spark, client = contenders.spark, contenders.client
    for way in ("file", "lane"):
        for name in names:
            contenders.load(way, name).createOrReplaceTempView(f"{way}_{name}")
    sums: dict[str, float] = {}
    for number, text in QUERIES.items():
        answers: dict[str, Any] = {}

        def over_views(way: str, text: str = text, answers: dict[str, Any] = answers) -> None:
            answers[way] = spark.sql(text.replace("tpch.sf.", f"{way}_")).toArrow().to_pylist()

        def over_loads(text: str = text, answers: dict[str, Any] = answers) -> None:
            loads = {name: contenders.load("file", name) for name in names if f"tpch.sf.{name}" in text}
            over = re.sub(r"tpch\.sf\.(\w+)", r"{\1}", text)
            answers["file+load"] = spark.sql(over, **loads).toArrow().to_pylist()

        def by_client(client: SharingClient, engine: str, text: str = text, answers: dict[str, Any] = answers) -> None:
            frame = client.sql(spark, text.replace("tpch.sf.", "bench.file."), engine=engine)
            answers[engine] = frame.toArrow().to_pylist()

        ways: dict[str, Run] = {
            "file": partial(over_views, "file"),
            "lane": partial(over_views, "lane"),
            "file+load": over_loads,
            "lane sql": partial(by_client, client, "native"),
            "new client": lambda: by_client(contenders.new_client(), "native"),
            "python sql": partial(by_client, client, "python"),
        }
        medians = measure({way: run for way, run in ways.items() if way in chosen or not chosen}, runs)
        if any(answer != next(iter(answers.values())) for answer in answers.values()):
            print(f"  query {number}: the answers differ")
        for way, spent in medians.items():
            sums[way] = sums.get(way, 0.0) + spent
    return sums


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--wide", type=int, default=100_000, help="rows of the table of 200 columns")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--scale", type=float, default=0.1, help="of TPC-H; 0 leaves it out")
    parser.add_argument(
        "--tpch", nargs="*", default=(), metavar="WAY", help="the ways of TPC-H; all of them by default"
    )
    parser.add_argument("--network", action="store_true", help=f"{LATENCY * 1000:.0f} ms, {BANDWIDTH / 1e6:.0f} MB/s")
    parser.add_argument("--memory", default="3g", help="of Spark's driver")
    arguments = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = worker_python(sys.executable)
    with tempfile.TemporaryDirectory(prefix="native-") as directory:
        root = Path(directory)
        write_table(root / "long", arguments.rows, 8, 500_000)
        write_wide(root / "wide", arguments.wide)
        tpch = tables(arguments.scale) if arguments.scale else {}
        for name, rows in tpch.items():
            built = DeltaTableBuilder(root / name, rows.schema, style=FileStyle(keep_rows=False))
            built.append(rows, files=8 if rows.num_rows > 10_000 else 1)
        home = peer_home()
        peer = JvmPeer(home) if home is not None else None
        served = Served({name: root / name for name in ("long", "wide", *tpch)})
        spark = session(arguments.memory)
        try:
            contenders = Contenders(spark, served, root, peer)
            print(
                f"Spark {spark.version}, {os.cpu_count()} cores, {arguments.rows:,} rows x 9, {arguments.wide:,} x 200, ",
                end="",
            )
            print(
                f"medians of {arguments.runs}: seconds (times of the first); JVM connector: {'yes' if peer else 'not built'}"
            )
            ways = ["file", "lane", "python", "python+", *(["lane+load", "jvm", "tuned"] if peer else [])]
            head("", ways)
            row("load", ways, measure({w: partial(contenders.load, w, "long") for w in ways[:3]}, arguments.runs))
            for title in TITLES:
                row(title, ways, measure(contenders.of(title), arguments.runs))
            if tpch:
                totals = compare_tpch(contenders, list(tpch), arguments.runs, arguments.tpch)
                print()
                head(f"TPC-H, scale {arguments.scale:g}", list(totals))
                row("22 queries", list(totals), totals)
            if arguments.network:
                served.shape(LATENCY, BANDWIDTH)
                print(f"\nover {LATENCY * 1000:.0f} ms and {BANDWIDTH / 1e6:.0f} MB/s a connection")
                ways = ["lane", "lane+load", "python", "python+"]
                head("", ways)
                for title in TITLES:
                    row(title, ways, measure(contenders.of(title, network=True), arguments.runs))
        finally:
            spark.stop()
            served.close()
            if peer is not None:
                peer.close()


if __name__ == "__main__":
    main()
