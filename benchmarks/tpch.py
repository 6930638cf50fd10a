"""TPC-H by ``client.sql``, beside the plain data source (whole tables) and native Parquet, and the bytes each fetched.

    python benchmarks/tpch.py                           scale 0.1, all queries
    python benchmarks/tpch.py --scale 1 --queries 1 6 14 19

Each contender runs each query in turn, and the turn rotates: each comes first, second and last equally often. Times are
medians, with the loads of both ways over the share; the native tables stand in the catalog from the start. Answers are
compared exactly with those over the local Parquet files. Bytes are what the sharing server's data URLs sent.
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tpch_data import tables
from tpch_queries import QUERIES

_TABLE = re.compile(r"\btpch\.sf\.(\w+)")


def timed(run: Callable[[str], Any], text: str) -> tuple[float, list[dict[str, Any]]]:
    start = time.perf_counter()
    answer = run(text).toArrow().to_pylist()
    return time.perf_counter() - start, answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--files", type=int, default=8, help="files of each large table, sorted by date or key")
    parser.add_argument("--queries", type=int, nargs="*", default=list(QUERIES))
    parser.add_argument("--rounds", type=int, default=3, help="a multiple of three, so that no contender is favoured")
    options = parser.parse_args()

    from pyspark.sql import SparkSession

    from delta_sharing_spark import SharingClient
    from delta_sharing_spark.spark.register import register
    from delta_sharing_spark.testing.server import SharingServer
    from delta_sharing_spark.testing.tables import DeltaTableBuilder, FileStyle

    spark = (
        SparkSession.builder.master("local[*]")  # type: ignore[attr-defined]
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "3g")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    with tempfile.TemporaryDirectory(prefix="tpch-") as directory, SharingServer() as server:
        root = Path(directory)
        profile = str(root / "config.share")
        server.write_profile(profile)
        client = SharingClient(profile)
        for name, rows in tables(options.scale).items():
            files = options.files if rows.num_rows > 10_000 else 1
            table = DeltaTableBuilder(root / name, rows.schema, style=FileStyle(keep_rows=False))
            table.append(rows, files=files)
            server.add_table(f"tpch.sf.{name}", table.path)
            spark.read.parquet(str(root / name / "*.parquet")).createOrReplaceTempView(f"native_{name}")

        def whole(text: str) -> Any:
            for name in set(_TABLE.findall(text)):
                frame = spark.read.format("deltaSharing").load(f"{profile}#tpch.sf.{name}")
                frame.createOrReplaceTempView(f"whole_{name}")
            return spark.sql(_TABLE.sub(r"whole_\1", text))

        contenders: dict[str, Callable[[str], Any]] = {
            "client.sql": lambda text: client.sql(spark, text),
            "whole": whole,
            "native": lambda text: spark.sql(_TABLE.sub(r"native_\1", text)),
        }
        for run in contenders.values():
            timed(run, QUERIES[3])
        started = time.perf_counter()
        print(f"scale {options.scale:g}, {options.rounds} rounds: seconds, and MB fetched")
        print(f"{'':5}{'client.sql':>12}{'whole':>9}{'native':>9}{'client.sql':>13}{'whole':>9}  same")
        totals = [0.0] * 5
        for place, number in enumerate(options.queries):
            text = QUERIES[number]
            seconds: dict[str, list[float]] = {name: [] for name in contenders}
            fetched: dict[str, float] = {}
            answers: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in contenders}
            for turn in range(options.rounds):
                for at in range(len(contenders)):
                    name = list(contenders)[(place + turn + at) % len(contenders)]
                    server.reset_metrics()
                    took, answer = timed(contenders[name], text)
                    seconds[name].append(took)
                    fetched[name] = server.bytes_sent("data") / 1e6
                    answers[name].append(answer)
            row = [*(statistics.median(seconds[n]) for n in contenders), fetched["client.sql"], fetched["whole"]]
            totals = [a + b for a, b in zip(totals, row, strict=True)]
            same = all(answer == answers["native"][0] for answer in answers["client.sql"])
            print(_line(f"Q{number}", row), " yes" if same else " NO", flush=True)
        print(_line("all", totals), f"  in {time.perf_counter() - started:.0f} s")
    spark.stop()


def _line(title: str, row: list[float]) -> str:
    return f"{title:5}{row[0]:12.2f}{row[1]:9.2f}{row[2]:9.2f}{row[3]:13.2f}{row[4]:9.2f}"


if __name__ == "__main__":
    main()
