"""TPC-H by ``client.sql``, beside the plain data source (whole tables) and native Parquet, and the bytes each fetched.

    python benchmarks/tpch.py --scale 0.1
    python benchmarks/tpch.py --scale 1 --queries 1 6 14 19

Answers are compared exactly with those over the local Parquet files. Bytes are what the sharing server's data URLs sent.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from tpch_data import tables
from tpch_queries import QUERIES


def timed(run: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    answer = run().toArrow().to_pylist()
    return time.perf_counter() - start, answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--files", type=int, default=8, help="files of each large table, sorted by date or key")
    parser.add_argument("--queries", type=int, nargs="*", default=list(QUERIES))
    options = parser.parse_args()

    from pyspark.sql import SparkSession

    from delta_sharing_spark import SharingClient
    from delta_sharing_spark.spark.register import register
    from delta_sharing_spark.testing.datafiles import FileStyle
    from delta_sharing_spark.testing.server import SharingServer
    from delta_sharing_spark.testing.tables import DeltaTableBuilder

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
            whole = spark.read.format("deltaSharing").load(f"{profile}#tpch.sf.{name}")
            whole.createOrReplaceTempView(f"whole_{name}")
        print(f"scale {options.scale:g}: seconds, and MB fetched")
        print(f"{'':5}{'client.sql':>12}{'whole':>9}{'native':>9}{'client.sql':>13}{'whole':>9}  same")
        totals = [0.0] * 5
        for number in options.queries:
            text = QUERIES[number]
            native, expected = timed(lambda t=text: spark.sql(t.replace("tpch.sf.", "native_")))
            server.reset_metrics()
            plain, _ = timed(lambda t=text: spark.sql(t.replace("tpch.sf.", "whole_")))
            plain_bytes = server.bytes_sent("data")
            server.reset_metrics()
            ours, answer = timed(lambda t=text: client.sql(spark, t))
            row = [ours, plain, native, server.bytes_sent("data") / 1e6, plain_bytes / 1e6]
            totals = [a + b for a, b in zip(totals, row, strict=True)]
            print(_line(f"Q{number}", row), " yes" if answer == expected else " NO", flush=True)
        print(_line("all", totals))
    spark.stop()


def _line(title: str, row: list[float]) -> str:
    return f"{title:5}{row[0]:12.2f}{row[1]:9.2f}{row[2]:9.2f}{row[3]:13.2f}{row[4]:9.2f}"


if __name__ == "__main__":
    main()
