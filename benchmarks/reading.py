"""Rows outside Spark beside the parts they are made of: this client, a plain download and decode, Polars, DuckDB.

    python benchmarks/reading.py                                large, wide and small files, over loopback
    python benchmarks/reading.py --scale 0.5 --networks loopback 0.04,30e6 --runs 3

``parts`` downloads every file by ``http.client`` in four threads, decodes each row group from memory by pyarrow, and keeps
the rows, as all others do; Polars reads the same presigned URLs. Each run is a process of its own; the clock starts after its
imports and, for all but this client, after its files are listed. Contenders take turns; figures are medians of seconds,
seconds of processor time, and the most memory above what the imports took. Requests and MB are those of this client.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from scan import write_table
from served import Served

_HEAD = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
profile, name, columns = sys.argv[1], sys.argv[2], sys.argv[3].split(",") if sys.argv[3] else None
from delta_sharing_spark import SharingClient
table = SharingClient(profile).table(name)
def most():
    "KiB that this process has held: ru_maxrss begins with what its parent held."
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
def urls():
    return sorted({part.task.location for split in table.scan(columns=columns).plan().splits for part in split.slices})
"""
_TAIL = """
base = most()
began, burnt = time.perf_counter(), time.process_time()
rows = run()
print(json.dumps([time.perf_counter() - began, time.process_time() - burnt,
                  (most() - base) / 1024, rows]))
"""
_PARTS = """
import http.client, pyarrow as pa, pyarrow.parquet as pq
from concurrent.futures import ThreadPoolExecutor
from threading import local
from urllib.parse import urlsplit
found, kept = urls(), local()
def get(url):
    parts = urlsplit(url)
    if not hasattr(kept, "connection"):
        kept.connection = http.client.HTTPConnection(parts.netloc)
    kept.connection.request("GET", f"{parts.path}?{parts.query}")
    answer = kept.connection.getresponse()
    data = bytearray(int(answer.headers["content-length"]))
    view = memoryview(data)
    while view:
        view = view[answer.readinto(view):]
    file = pq.ParquetFile(pa.BufferReader(data))
    return [file.read_row_group(i, columns=columns, use_threads=False) for i in range(file.num_row_groups)]
def run():
    with ThreadPoolExecutor(4) as pool:
        return pa.concat_tables([part for parts in pool.map(get, found) for part in parts]).num_rows
"""
SCRIPTS = {
    "to_arrow": "import pyarrow\ndef run(): return table.scan(columns=columns).to_arrow().num_rows",
    "to_polars": "import polars\ndef run(): return table.scan(columns=columns).to_polars().height",
    "parts": _PARTS,
    "polars": "import polars\nfound = urls()\ndef run(): return polars.read_parquet(found, columns=columns).height",
    "duckdb": """
import duckdb
found, connection = urls(), duckdb.connect()
connection.execute("INSTALL httpfs; LOAD httpfs")
def run(): return connection.read_parquet(found).project(", ".join(columns or ["*"])).arrow().read_all().num_rows
""",
}
#: Three columns of each table.
NARROW = {"large": "id,city,price", "wide": "c00,c20,c40", "small": "id,city,price"}


def write_wide(path: Path, files: int, rows: int) -> None:
    """Fifty columns, half of them numbers, half of them short texts."""
    from delta_sharing_spark.testing.tables import DeltaTableBuilder, FileStyle

    names = [f"c{n:02}" for n in range(50)]
    schema = pa.schema([(name, pa.int64() if n % 2 == 0 else pa.string()) for n, name in enumerate(names)])
    made = DeltaTableBuilder(path, schema, style=FileStyle(keep_rows=False, row_group_size=250_000))
    for number in range(files):
        draw = np.random.default_rng(number)
        words = pa.array([f"{n:07x} word" for n in draw.integers(0, 1 << 28, 20_000)])
        columns = [
            pa.array(draw.integers(0, 1 << 40, rows))
            if n % 2 == 0
            else words.take(pa.array(draw.integers(0, 20_000, rows)))
            for n in range(50)
        ]
        made.append(pa.table(columns, schema=schema))


def write_tables(directory: Path, scale: float) -> dict[str, Path]:
    """``large``: 8 files of 9 columns, 498 MB at scale 1; ``wide``: 8 of 50 columns; ``small``: 400 of 240 kB.

    A directory that holds them stays as it is.
    """
    tables = {name: directory / name for name in NARROW}
    if tables["small"].is_dir():
        return tables
    files = max(1, round(8 * scale))
    write_table(tables["large"], 1_500_000 * files, files, 1_000_000)
    write_wide(tables["wide"], files, 250_000)
    small = max(1, round(400 * scale))
    write_table(tables["small"], 8_000 * small, small, 8_000, commits=min(small, 20))
    return tables


def run(script: str, profile: Path, table: str, columns: str) -> list[float]:
    command = [sys.executable, "-c", _HEAD + script + _TAIL, str(profile), f"bench.file.{table}", columns]
    # As users have it; else each process would compile this package within its time.
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    result: list[float] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(server: Served, profile: Path, arguments: argparse.Namespace) -> None:
    """One table of text for the network as it is."""
    print(f"{'':24}" + "".join(f"{name:>26}" for name in arguments.contenders) + "   requests      MB")
    for table in arguments.tables:
        for columns in ("", NARROW[table]):
            taken: dict[str, list[Any]] = {name: [] for name in arguments.contenders}
            sent = [0, 0]
            for turn in range(arguments.runs + (arguments.runs > 1)):
                for name in arguments.contenders:
                    server.served()
                    result = run(SCRIPTS[name], profile, table, columns)
                    if name == "to_arrow":
                        sent = server.served().get("data", [0, 0])
                    if turn or arguments.runs == 1:
                        taken[name].append(result)
            assert len({rows for results in taken.values() for *_, rows in results}) == 1, "rows differ"
            cells = ""
            for results in taken.values():
                seconds, cpu, peak = (statistics.median(one[i] for one in results) for i in range(3))
                cells += f"{seconds:7.2f} s, cpu{cpu:5.2f},{peak:5.0f} MiB"
            print(
                f"{table + (', 3 columns' if columns else ''):24}{cells}{sent[0]:11,}{sent[1] / 1e6:8.1f}", flush=True
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--tables", nargs="*", default=list(NARROW))
    parser.add_argument("--networks", nargs="*", default=["loopback"], help="or seconds of latency, bytes a second")
    parser.add_argument(
        "--contenders", nargs="*", default=["to_arrow", "to_polars", "parts", "polars"], choices=SCRIPTS
    )
    parser.add_argument("--keep", type=Path, help="a directory for the tables, used again where it holds them")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="delta-sharing-bench-") as temporary:
        directory = arguments.keep or Path(temporary)
        tables = write_tables(directory, arguments.scale)
        server = Served(tables)
        try:
            profile = Path(temporary) / "bench.share"
            profile.write_text(server.profile)
            for network in arguments.networks:
                if network != "loopback":
                    server.shape(*map(float, network.split(",")))
                size = sum(file.stat().st_size for path in tables.values() for file in path.glob("*.parquet")) / 1e6
                print(f"\nscale {arguments.scale}, {size:,.0f} MB, medians of {arguments.runs}, {network}")
                measure(server, profile, arguments)
        finally:
            server.close()


if __name__ == "__main__":
    main()
