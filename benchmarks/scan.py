"""A full scan, a narrow one and a tiny one, side by side: native Parquet, the engine's floor, the connector.

    python benchmarks/scan.py                       12,000,000 rows x 9 columns in 8 files
    python benchmarks/scan.py --rows 1000000 --runs 1

``native`` is ``spark.read.parquet`` on the local files; ``floor`` a Python data source that does nothing but yield
``ParquetFile.iter_batches`` from them, which is what Spark's API leaves possible; ``url``, ``s3`` and ``file`` are the
connector: over HTTP from an embedded server in a process of its own, by directory from the same server as a stand-in for
S3, and by directory from local files. Runs are interleaved; figures are medians. Memory is the high-water mark of Spark's Python workers over that of a worker that read a tiny table (Linux).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from served import Served

from delta_sharing_spark.testing.interpreter import worker_python

NARROW = ["id", "city", "price"]
#: Files of the table of small ones.
SMALL = 400
SCHEMA = "id long, customer int, price decimal(12,2), ratio double, city string, note string, at timestamp, day date, ok boolean"


# --- the table --------------------------------------------------------------------------------------------------------


def write_table(
    path: Path, rows: int, files: int, row_group: int, without: Sequence[str] = (), commits: int | None = None
) -> None:
    """A Delta table of nine mixed columns, the same rows each time; some columns can be left out.

    Args:
        path: The table's directory.
        rows, files, row_group: Rows of the table, its files, and rows of a row group.
        without: Columns that are left out.
        commits: A divisor of ``files``; one for each file by default. The rows depend on it.
    """
    from delta_sharing_spark.schema.types import Decimal, Field, Primitive, Struct
    from delta_sharing_spark.testing.tables import DeltaTableBuilder, FileStyle

    types = {
        "id": Primitive("long"),
        "customer": Primitive("integer"),
        "price": Decimal(12, 2),
        "ratio": Primitive("double"),
        "city": Primitive("string"),
        "note": Primitive("string"),
        "at": Primitive("timestamp"),
        "day": Primitive("date"),
        "ok": Primitive("boolean"),
    }
    schema = Struct(tuple(Field(name, kind) for name, kind in types.items() if name not in without))
    builder = DeltaTableBuilder(path, schema, style=FileStyle(keep_rows=False, row_group_size=row_group))
    commits = commits or files
    for number in range(commits):
        first, last = rows * number // commits, rows * (number + 1) // commits
        builder.append(_chunk(first, last - first).select(schema.names), files=files // commits)
    builder.checkpoint()


def _chunk(first: int, rows: int) -> pa.Table:
    draw = np.random.default_rng(first)
    ids = np.arange(first, first + rows, dtype=np.int64)
    cents = np.zeros((rows, 2), dtype="<i8")
    cents[:, 0] = draw.integers(1, 10_000_000, rows)
    cities = pa.array([f"City {n}" for n in range(100)])
    words = pa.array([f"{n:08x} a remark of some length" for n in draw.integers(0, 1 << 31, 50_000)])
    return pa.table(
        {
            "id": ids,
            "customer": draw.integers(0, 1_000_000, rows, dtype=np.int32),
            "price": pa.Array.from_buffers(pa.decimal128(12, 2), rows, [None, pa.py_buffer(cents)]),
            "ratio": pa.array(draw.random(rows), mask=draw.random(rows) < 0.05),
            "city": cities.take(pa.array(draw.integers(0, 100, rows))),
            "note": words.take(pa.array(draw.integers(0, 50_000, rows))),
            "at": pa.array(1_700_000_000_000_000 + ids * 1000).cast(pa.timestamp("us", "UTC")),
            "day": pa.array((ids // 100_000 + 19_000).astype(np.int32)).cast(pa.date32()),
            "ok": pa.array(draw.random(rows) < 0.5),
        }
    )


# --- the floor --------------------------------------------------------------------------------------------------------


class FloorSource(DataSource):
    """Local files and nothing else."""

    @classmethod
    def name(cls) -> str:
        return "floor"

    def schema(self) -> str:
        names = self.options.get("columns")
        if "schema" in self.options:
            return str(self.options["schema"])
        return SCHEMA if not names else ", ".join(c for c in SCHEMA.split(", ") if c.split()[0] in names.split(","))

    def reader(self, schema: Any) -> DataSourceReader:
        return FloorReader(self.options["path"], schema.names)


class FloorReader(DataSourceReader):
    def __init__(self, path: str, columns: list[str]) -> None:
        self.path, self.columns = path, columns

    def partitions(self) -> list[InputPartition]:
        paths = sorted(map(str, Path(self.path).glob("*.parquet")))
        together = max(1, len(paths) // 8)
        return [InputPartition(paths[i : i + together]) for i in range(0, len(paths), together)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for path in partition.value or ():
            yield from pq.ParquetFile(path).iter_batches(columns=self.columns)


# --- measuring --------------------------------------------------------------------------------------------------------


class WorkerMemory:
    """High-water marks of Spark's Python workers, in bytes: sampled, for a worker that ended tells nothing."""

    def __init__(self) -> None:
        self.peak = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> WorkerMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.05):
            for status in Path("/proc").glob("[0-9]*/status"):
                try:
                    # python -m pyspark.daemon, and its forks; the JVM's third argument is a class path.
                    if (status.parent / "cmdline").read_bytes().split(b"\0", 3)[2].startswith(b"pyspark."):
                        self.peak = max(self.peak, _high_water(status.read_text()))
                except (OSError, IndexError):
                    continue


def _high_water(status: str) -> int:
    return next((int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM")), 0)


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def interleaved(actions: dict[str, Callable[[], object]], runs: int) -> dict[str, float]:
    """Medians of each action's seconds, after one run that counts for nothing."""
    taken: dict[str, list[float]] = {name: [] for name in actions}
    for run in range(runs + 1):
        for name, action in actions.items():
            seconds = timed(action)
            if run:
                taken[name].append(seconds)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


_IMPORTS = """
import json, sys, time
import pyarrow, numpy, pyspark.sql.datasource, pyspark.sql.types
address = sys.argv[1]
def plan():
    from delta_sharing_spark.spark.datasource import DeltaSharingDataSource
    source = DeltaSharingDataSource({"path": address})
    source.reader(source.schema()).partitions()
began = time.perf_counter(); plan(); cold = time.perf_counter() - began
began = time.perf_counter(); plan(); warm = time.perf_counter() - began
print(json.dumps([cold, warm]))
"""


def import_seconds(address: str, runs: int) -> float:
    """What a bare worker imports to plan in url mode: the first plan's time less the second's."""
    taken = []
    for _ in range(max(3, runs)):
        done = subprocess.run([sys.executable, "-c", _IMPORTS, address], capture_output=True, text=True, check=True)
        cold, warm = json.loads(done.stdout)
        taken.append(cold - warm)
    return statistics.median(taken)


def session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = worker_python()
    builder: Any = SparkSession.builder
    spark: SparkSession = (
        builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.memory", "4g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    if __name__ != "__main__":
        cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import it
    spark.dataSource.register(FloorSource)
    return spark


def scanned(frame: Any) -> None:
    """Every row and column, handed to nobody."""
    frame.write.format("noop").mode("overwrite").save()


def measure(arguments: argparse.Namespace, directory: Path) -> dict[str, Any]:
    big, small, tiny = (directory / name for name in ("big", "small", "tiny"))
    write_table(big, arguments.rows, arguments.files, arguments.row_group)
    write_table(small, SMALL * 8000, SMALL, 8000, commits=20)
    write_table(tiny, 100, 1, 100)
    size = sum(path.stat().st_size for path in big.glob("*.parquet"))
    server = Served({"big": big, "small": small, "tiny": tiny})
    try:
        profile = directory / "bench.share"
        profile.write_text(server.profile)
        return {
            "rows": arguments.rows,
            "files": arguments.files,
            "bytes": size,
            **_measured(arguments, server, profile, big),
        }
    finally:
        server.close()


def _measured(arguments: argparse.Namespace, server: Served, profile: Path, big: Path) -> dict[str, Any]:
    spark = session()
    endpoint = json.loads(server.profile)["endpoint"].removesuffix("/delta-sharing")
    ways = {"url": ("url", "file"), "s3": ("dir", "s3"), "file": ("dir", "file")}

    def scan(way: str, table: str = "big", **options: str) -> None:
        mode, schema = ways[way]
        reader = spark.read.format("deltaSharing").option("accessMode", mode).options(**options)
        scanned(reader.option("storageEndpoint", endpoint).load(f"{profile}#bench.{schema}.{table}"))

    def floor(path: Path = big, **options: str) -> Any:
        return spark.read.format("floor").options(**options).load(str(path))

    def first_rows() -> None:
        spark.read.format("deltaSharing").load(f"{profile}#bench.file.tiny").collect()

    with WorkerMemory() as base:
        first_rows()
    with WorkerMemory() as peak:
        scan("url")
    sent: dict[str, dict[str, list[int]]] = {"big": {}, "small": {}}
    for table, counts in sent.items():
        for way in ("url", "s3"):
            server.served()
            scan(way, table)
            counts[way] = server.served()["data"]
    narrow = ",".join(NARROW)
    whole = interleaved(
        {
            "native": lambda: scanned(spark.read.parquet(str(big))),
            "floor": lambda: scanned(floor()),
            **{way: partial(scan, way) for way in ways},
        },
        arguments.runs,
    )
    server.served()
    few = interleaved(
        {
            "native": lambda: scanned(spark.read.parquet(str(big)).select(*NARROW)),
            "floor": lambda: scanned(floor(columns=narrow)),
            **{way: partial(scan, way, columns=narrow) for way in ways},
        },
        arguments.runs,
    )
    narrow_scans = server.served()
    small = big.parent / "small"
    little = interleaved(
        {
            "native": lambda: scanned(spark.read.parquet(str(small))),
            "floor": lambda: scanned(floor(small)),
            **{way: partial(scan, way, "small") for way in ways},
        },
        arguments.runs,
    )
    server.served()
    tiny = interleaved({"tiny": first_rows}, max(3, arguments.runs))["tiny"]
    asked = server.served()
    runs = max(3, arguments.runs) + 1
    spark.stop()
    return {
        "whole": whole,
        "narrow": few,
        "little": little,
        "served": sent,
        "fetched narrow": narrow_scans["data"][1] // (arguments.runs + 1) // 2,
        "needed narrow": _chunk_bytes(big),
        "worker base": base.peak,
        "worker peak": peak.peak,
        "tiny": tiny,
        "tiny requests": {kind: count / runs for kind, (count, _) in asked.items()},
        "imports": import_seconds(f"{profile}#bench.file.tiny", arguments.runs),
    }


def _chunk_bytes(path: Path) -> int:
    """Compressed bytes of the narrow scan's column chunks."""
    total = 0
    for file in path.glob("*.parquet"):
        metadata = pq.read_metadata(file)
        for group in range(metadata.num_row_groups):
            chunks = (metadata.row_group(group).column(i) for i in range(metadata.num_columns))
            total += sum(c.total_compressed_size for c in chunks if c.path_in_schema in NARROW)
    return total


def table_of(figures: dict[str, Any]) -> str:
    """The figures as one table of text."""
    mb, mib = 1e6, 1 << 20
    lines = [f"{figures['rows']:,} rows x 9 columns, {figures['bytes'] / mb:,.0f} MB in {figures['files']} files", ""]
    lines.append(
        f"{'':24}{'native':>9}{'floor':>9}{'url':>9}{'s3':>9}{'file':>9}{'floor/url':>11}{'s3/url':>9}{'file/url':>9}"
    )
    titles = ("every column, seconds", "3 of 9 columns, seconds", f"{SMALL} small files, seconds")
    for title, key in zip(titles, ("whole", "narrow", "little"), strict=True):
        s = figures[key]
        cells = "".join(f"{s[name]:9.2f}" for name in ("native", "floor", "url", "s3", "file"))
        others = "".join(f"{s[name] / s['url']:9.2f}" for name in ("s3", "file"))
        lines.append(f"{title:24}{cells}{s['floor'] / s['url']:11.2f}{others}")
    over = (figures["worker peak"] - figures["worker base"]) / mib
    asked = ", ".join(f"{count:g} {kind}" for kind, count in sorted(figures["tiny requests"].items()))
    lines += [
        "",
        *(
            f"fetched, every column    {sent / mb:,.1f} MB of {figures['bytes'] / mb:,.1f} MB, {asked} requests by {way}"
            for way, (asked, sent) in figures["served"]["big"].items()
        ),
        *(
            f"small files              {asked / SMALL:g} requests per file by {way}"
            for way, (asked, _) in figures["served"]["small"].items()
        ),
        f"fetched, 3 of 9          {figures['fetched narrow'] / mb:,.1f} MB for {figures['needed narrow'] / mb:,.1f} MB of column chunks",
        f"worker's peak memory     {over:,.0f} MiB over a base of {figures['worker base'] / mib:,.0f} MiB",
        f"imports of planning      {figures['imports'] * 1000:,.0f} ms over a bare worker",
        f"tiny table, warm         {figures['tiny']:.2f} s to load and collect; requests: {asked}",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=12_000_000)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--row-group", type=int, default=1_000_000, help="rows of a row group")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)  # pyspark's about pandas
    with tempfile.TemporaryDirectory(prefix="delta-sharing-bench-") as directory:
        figures = measure(arguments, Path(directory))
    print(json.dumps(figures, indent=2) if arguments.json else table_of(figures))


if __name__ == "__main__":
    main()
