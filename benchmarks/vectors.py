"""What deletion vectors cost: a table with 1 % of its rows deleted, against the same table without.

    python benchmarks/vectors.py                    3,000,000 rows x 5 columns in 6 files
    python benchmarks/vectors.py --rows 300000 --runs 3

``spark`` is what a user waits for: ``load()`` into a sink that keeps nothing, on one core, by url from an embedded server
and by directory. ``scan`` reads the local files in this process (plan, decode, mask); ``loopback`` reads by url. Runs are
interleaved; figures are medians. The project's promise is at most 10 % more.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.testing.interpreter import worker_python
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder

TABLES = ("whole", "deleted")
WAYS = {"scan": {"accessMode": "dir"}, "loopback": {"accessMode": "url", "responseFormat": "delta"}}


def table(rows: int) -> pa.Table:
    """``rows`` rows of five mixed columns, the same each time."""
    draw = np.random.default_rng(7)
    return pa.table(
        {
            "id": pa.array(np.arange(rows)),
            "n": pa.array(draw.integers(0, 1_000_000, rows)),
            "ratio": pa.array(draw.random(rows)),
            "city": pa.array(draw.choice(np.array([f"city {i}" for i in range(500)]), rows)),
            "note": pa.array(np.char.mod("note %d", draw.integers(0, rows, rows))),
        }
    )


def write(path: Path, data: pa.Table, files: int, share: float) -> None:
    """The table, with a random ``share`` of its rows deleted by vectors (none at 0)."""
    builder = DeltaTableBuilder(path, data.schema, properties={"delta.enableDeletionVectors": "true"})
    builder.append(data, files=files)
    if share:
        draw = np.random.default_rng(11)
        gone = pa.array(draw.choice(data.num_rows, int(data.num_rows * share), replace=False))
        builder.delete(lambda rows: pc.is_in(rows["id"], value_set=gone), deletion_vectors=True)


def compare(way: str, runs: int, read: Callable[[str], None]) -> None:
    """Print what reading the table with deleted rows costs over reading the whole one."""
    times: dict[str, list[float]] = {name: [] for name in TABLES}
    for run in range(runs + 1):
        for name in TABLES if run % 2 else TABLES[::-1]:
            start = time.perf_counter()
            read(name)
            if run:  # the first warms the files and the imports
                times[name].append(time.perf_counter() - start)
    whole, deleted = (statistics.median(times[name]) for name in TABLES)
    best = min(times["deleted"]) / min(times["whole"])
    print(
        f"{way:10} whole {whole:.3f} s; deleted {deleted:.3f} s; {100 * (deleted / whole - 1):+.1f} % "
        f"(of the best runs {100 * (best - 1):+.1f} %)",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--files", type=int, default=6)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--share", type=float, default=0.01)
    arguments = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", worker_python(sys.executable))
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as folder, SharingServer() as server:
        data = table(arguments.rows)
        for name in TABLES:
            write(Path(folder) / name, data, arguments.files, arguments.share if name == "deleted" else 0)
            server.add_table(f"s.s.{name}", Path(folder) / name, access_modes=("url", "dir"))
        del data
        profile = server.write_profile(Path(folder) / "profile.share")
        for mode in ("url", "dir"):
            reader = spark.read.format("deltaSharing").option("accessMode", mode)
            compare(
                f"spark {mode}",
                arguments.runs,
                lambda name, reader=reader: (
                    reader.load(f"{profile}#s.s.{name}").write.format("noop").mode("overwrite").save()
                ),
            )
        client = SharingClient(server.profile())
        for way, options in WAYS.items():

            def read(name: str, options: dict[str, str] = options) -> None:
                for _ in client.table(f"s.s.{name}").scan(**options).to_record_batch_reader(workers=1):
                    pass

            compare(way, arguments.runs, read)


if __name__ == "__main__":
    main()
