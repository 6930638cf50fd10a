"""Throughput over a slow network, and what a renewal costs; ``python benchmarks/network.py``.

The embedded server answers data requests with 40 ms of latency and 30 MB/s for each connection, from a process of its
own. Compared are one sequential connection, this client, and the reference Python client if an interpreter that has
``delta-sharing`` is named (``--reference /path/to/python``).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import requests
from served import BANDWIDTH, LATENCY

from delta_sharing_spark.access.url import access as url_access
from delta_sharing_spark.access.url.access import UrlAccess
from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.scan.plan import Split
from delta_sharing_spark.scan.split_reader import read_split
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder, FileStyle

_REFERENCE = """
import sys, time, delta_sharing
began = time.perf_counter()
rows = len(delta_sharing.load_as_pandas(sys.argv[1] + "#s.d.t"))
print(rows, time.perf_counter() - began)
"""


def write_table(path: Path, files: int, megabytes: int) -> int:
    """Files of random numbers, which no encoding makes smaller; returns their bytes."""
    draw = np.random.default_rng(1)
    rows = (megabytes << 20) // 32
    schema = pa.schema([(name, pa.int64()) for name in "abcd"])
    style = FileStyle(
        row_group_size=rows // 2, keep_rows=False, parquet={"compression": "none", "use_dictionary": False}
    )
    made = DeltaTableBuilder(path, schema, style=style)
    for _ in range(files):
        made.append(pa.table({name: draw.integers(0, 1 << 62, rows) for name in "abcd"}, schema))
    return sum(int(file.add["size"]) for file in made.files)


def write_large_table(path: Path, files: int) -> str:
    """A log of many files, of which one exists; returns its name."""
    schema = pa.schema([("id", pa.int64()), ("day", pa.string())])
    made = DeltaTableBuilder(path, schema, ["day"])
    made.append(pa.table({"id": range(1000), "day": ["day-0"] * 1000}, schema))
    real = dict(made.files[0].add)
    adds = []
    for number in range(1, files):
        day = f"day-{number % 365}"
        name = f"day={day}/part-{number:08}-c000.snappy.parquet"
        adds.append({"add": {**real, "path": name, "partitionValues": {"day": day}}})
    made.commit(adds)
    return str(real["path"])


def serve(pipe: Connection, root: str, names: list[str]) -> None:
    """A server in a process of its own, told what to do through a pipe."""
    with SharingServer({"s": {"d": {name: f"{root}/{name}" for name in names}}}) as server:
        pipe.send(server.profile())
        while (order := pipe.recv()) is not None:
            if order == "shape":
                server.faults.shape(LATENCY, BANDWIDTH)
            elif order == "expire":
                server.expire_urls()
                server.reset_metrics()
            pipe.send((server.count("query"), server.bytes_sent("query"), server.count("data")))


def sequential(profile: dict[str, Any]) -> float:
    """Seconds for all files, whole, one after the other over one connection."""
    splits = SharingClient(profile).table("s.d.t").scan().plan().splits
    tasks = {piece.task.id: piece.task for split in splits for piece in split.slices}
    began = time.perf_counter()
    with requests.Session() as session:
        for task in tasks.values():
            with session.get(task.location, stream=True, timeout=60) as response:
                while response.raw.read(1 << 20):
                    pass
    return time.perf_counter() - began


def connector(profile: dict[str, Any], workers: int) -> float:
    """Seconds for all rows as Arrow batches."""
    began = time.perf_counter()
    for _ in SharingClient(profile).table("s.d.t").scan().to_record_batch_reader(workers):
        pass
    return time.perf_counter() - began


def reference(profile: dict[str, Any], python: str) -> float:
    """Seconds of the reference client for the table as a pandas DataFrame."""
    with tempfile.NamedTemporaryFile("w", suffix=".share") as file:
        json.dump(profile, file)
        file.flush()
        done = subprocess.run(
            [python, "-c", _REFERENCE, file.name], capture_output=True, text=True, timeout=600, check=True
        )
    return float(done.stdout.split()[-1])


def show(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--megabytes", type=int, default=24, help="of each file")
    parser.add_argument("--listed", type=int, default=100_000, help="files of the table whose URLs are renewed")
    parser.add_argument("--reference", help="an interpreter with delta-sharing")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        size = write_table(Path(root, "t"), arguments.files, arguments.megabytes)
        real = write_large_table(Path(root, "large"), arguments.listed) if arguments.listed else ""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, root, ["t", *(["large"] if real else [])]))
        process.start()
        profile = ours.recv()
        try:
            throughput(profile, ours, size, arguments.reference)
            if real:
                renewal(profile, ours, arguments.listed)
        finally:
            ours.send(None)
            process.join()


def throughput(profile: dict[str, Any], server: Connection, size: int, python: str | None) -> None:
    server.send("shape")
    server.recv()
    show(
        f"{size / 1e6:.0f} MB, {LATENCY * 1000:.0f} ms, {BANDWIDTH / 1e6:.0f} MB/s per connection, {os.cpu_count()} cores"
    )
    base = sequential(profile)
    measured = {"one sequential connection (bytes only)": base}
    for workers in (1, 2):
        measured[f"this client, {workers} split{'s' if workers > 1 else ''} at once"] = connector(profile, workers)
    if python:
        measured["reference Python client (pandas)"] = reference(profile, python)
    for name, seconds in measured.items():
        show(f"  {name:<42} {seconds:6.2f} s  {size / 1e6 / seconds:6.1f} MB/s  {base / seconds:4.1f} x")


def renewal(profile: dict[str, Any], server: Connection, files: int) -> None:
    """One worker process whose split's URLs ended, on a table of many files."""
    began = time.perf_counter()
    scan = SharingClient(profile, maxSplitBytes="64m").table("s.d.large").scan(where="id >= 0")
    plan = scan.plan()
    show(f"renewal on a table of {files} files (planned in {time.perf_counter() - began:.1f} s)")
    location = next(
        (split, piece)
        for split in plan.splits
        for piece in split.slices
        if piece.task.partition_values.get("day") == "day-0" and _exists(piece.task.location)
    )
    split, piece = location
    assert isinstance(split.access, UrlAccess)
    alone = replace(split, slices=(piece,), access=split.access.restricted_to((piece.task,)))
    shared = replace(split, slices=(piece,))
    context = multiprocessing.get_context("spawn")
    for what, chosen in (("a split of one file (narrowed)", alone), (f"a split of {len(split.slices)} files", shared)):
        server.send("expire")
        server.recv()
        ours, theirs = context.Pipe()
        worker = context.Process(target=work, args=(theirs, chosen))
        worker.start()
        rows, seconds, kept, peak = ours.recv()
        worker.join()
        server.send("count")
        count, sent, _ = server.recv()
        show(
            f"  {what:<42} {count} request, {sent / 1e6:.1f} MB sent, {seconds:.2f} s, {kept / 1e6:.1f} MB kept, "
            f"peak +{peak} MiB, {rows} rows"
        )


def work(pipe: Connection, split: Split) -> None:
    """Read a split as a worker process does; tells rows, seconds, bytes kept of the answer, growth of memory in MiB."""
    before = _peak_kib()
    began = time.perf_counter()
    rows = sum(batch.num_rows for batch in read_split(split))
    seconds = time.perf_counter() - began
    peak = (_peak_kib() - before) >> 10
    pipe.send((rows, seconds, sum(load.nbytes for _, load in url_access._loads.items()), peak))


def _peak_kib() -> int:
    """The most memory that this process held; ``getrusage`` would count its parent's too."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    return 0


def _exists(url: str) -> bool:
    with requests.get(url, stream=True, timeout=30) as response:
        return response.ok


if __name__ == "__main__":
    main()
