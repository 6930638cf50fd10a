"""The native lane on a cluster of two machines, each a network namespace, beside local Parquet files and the Python source.

    python benchmarks/two_machines.py DIRECTORY               four queries over 4,000,000 rows x 9 columns in 8 files
    python benchmarks/two_machines.py DIRECTORY --network     the same over 40 ms and 30 MB/s a connection
    python benchmarks/two_machines.py DIRECTORY --tpch        TPC-H at scale 0.1

Linux, as root. Tables are made in the directory where they are missing. Each machine has one core for one executor. ``file`` is
``spark.read.parquet`` on the files, which both machines see; ``lane`` and ``python`` are ``to_spark(engine=...)`` from a server in a
process of its own, loaded outside the clock. Each query is run three times by each way (``python``: twice): seconds, and the megabytes
that the storage sent. The first run has nothing held; TPC-H's sums are of first and second runs,
of ``python`` of the first.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from native import TITLES, query
from scan import write_table
from served import BANDWIDTH, LATENCY, Served
from tpch_data import tables
from tpch_queries import QUERIES

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from cluster import HERE, MACHINES, NAMESPACES, java_class, machines, wait_for
from delta_sharing_spark import SharingClient
from delta_sharing_spark.testing.tables import DeltaTableBuilder, FileStyle

WAYS = ("file", "lane", "python")


def make(root: Path) -> list[str]:
    """Write the tables that are missing; the names of TPC-H's."""
    if not (root / "long").exists():
        write_table(root / "long", 4_000_000, 8, 500_000)
    made = tables(0.1)
    for name, rows in made.items():
        if not (root / name).exists():
            built = DeltaTableBuilder(root / name, rows.schema, style=FileStyle(keep_rows=False))
            built.append(rows, files=8 if rows.num_rows > 10_000 else 1)
    return list(made)


@contextmanager
def cluster() -> Iterator[Any]:
    """A session on the two machines."""
    from pyspark.sql import SparkSession

    started = []
    with machines(), tempfile.TemporaryDirectory() as directory:
        log = (Path(directory) / "log").open("ab")
        environment = {key: value for key, value in os.environ.items() if not key.startswith("SPARK_")}
        environment |= {"SPARK_NO_DAEMONIZE": "1", "SPARK_LOCAL_DIRS": directory}

        def begin(address: str, command: list[str]) -> None:
            own = {**environment, "SPARK_LOCAL_IP": address}
            started.append(subprocess.Popen(command, env=own, stdout=log, stderr=log))

        try:
            begin(HERE, java_class("master.Master", "--host", HERE, "--port", "7077", "--webui-port", "0"))
            time.sleep(5)
            for name in MACHINES:
                options = (
                    f"--host {NAMESPACES[name]} --cores 1 --memory 1g --webui-port 0 --work-dir {directory}/{name}"
                )
                worker = java_class("worker.Worker", f"spark://{HERE}:7077", *options.split())
                begin(NAMESPACES[name], ["ip", "netns", "exec", name, *worker])
            os.environ["SPARK_LOCAL_IP"] = HERE
            builder = SparkSession.builder.master(f"spark://{HERE}:7077").config("spark.ui.enabled", "false")
            builder = builder.config("spark.driver.host", HERE).config("spark.driver.bindAddress", HERE)
            builder = builder.config("spark.executor.cores", "1").config("spark.executor.memory", "800m")
            builder = builder.config("spark.sql.shuffle.partitions", "4").config("spark.sql.session.timeZone", "UTC")
            spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
            spark.sparkContext.setLogLevel("ERROR")
            wait_for("executors", lambda: spark._jsc.sc().statusStore().executorList(True).size() > 2)
            yield spark
            spark.stop()
        finally:
            for process in started:
                process.kill()


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--network", action="store_true")
    parser.add_argument("--tpch", action="store_true")
    parser.add_argument("--only", action="store_true", help="make the tables alone")
    arguments = parser.parse_args()
    root = arguments.directory.absolute()
    root.mkdir(exist_ok=True)
    names = make(root)
    if arguments.only:
        return
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    with cluster() as spark:
        served = Served({name: root / name for name in ("long", *names)}, seen_at=HERE)
        profile = json.loads(served.profile)
        client = SharingClient(profile, accessMode="url", allowedDataHosts=HERE)

        def load(way: str, name: str) -> Any:
            if way == "file":
                return spark.read.parquet(f"file://{root}/{name}/*.parquet")
            engine = "native" if way == "lane" else "python"
            return client.table(f"bench.file.{name}").to_spark(spark, engine=engine)

        spark.range(1000).repartition(4).count()
        python = timed(lambda: spark.sparkContext.parallelize([0, 1], 2).map(str).collect())
        print(
            f"first Python workers {python:.1f} s, then the first load {timed(lambda: load('lane', 'long')):.1f} s",
            flush=True,
        )
        if arguments.network:
            served.shape(LATENCY, BANDWIDTH)
        if arguments.tpch:
            compare_tpch(spark, load, names)
        for title in TITLES[:4] if not arguments.tpch else ():
            told = [f"{title:<18}"]
            for way in WAYS:
                frame = load(way, "long")
                served.served()
                for _ in range(2 if way == "python" else 3):
                    seconds = timed(partial(query, title, frame))
                    sent = served.served().get("data", [0, 0])[1] / 1e6
                    told.append(f"{seconds:6.2f}" + (f" ({sent:5.1f} MB)" if way != "file" else ""))
                told.append("|")
            print(*told, flush=True)
        served.close()


def compare_tpch(spark: Any, load: Callable[[str, str], Any], names: list[str]) -> None:
    """The sums of 22 queries by each way, over views that stand from the start."""
    for way in WAYS:
        for name in names:
            load(way, name).createOrReplaceTempView(f"{way}_{name}")
    sums = {way: [0.0, 0.0] for way in WAYS}
    for text in QUERIES.values():
        for run in range(2):
            for way in WAYS if not run else WAYS[:2]:
                sums[way][run] += timed(lambda: spark.sql(text.replace("tpch.sf.", f"{way}_")).toArrow())  # noqa: B023
    print({way: [round(seconds, 1) for seconds in runs] for way, runs in sums.items()}, flush=True)


if __name__ == "__main__":
    main()
