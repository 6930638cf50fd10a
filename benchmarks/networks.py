"""Each way over a near and a slow network, from the first read of a process on: seconds, requests, bytes, processor, memory.

    python benchmarks/networks.py                                  three tables, five ways, loopback and slow
    python benchmarks/networks.py --scale 0.1 --turns 1 --tables wide --ways lane --networks slow
    python benchmarks/networks.py --first-read                     what a first read is spent on, step by step (first_read.py)

``slow`` is 40 ms before an answer and 30 MB/s a connection; others are given as seconds and bytes a second (``0.1,10e6``).
Two ways read the local files, and tell what the others cannot be faster than by: ``local`` is ``spark.read.parquet``, the
lane's own reader; ``floor`` is a Python data source of a few lines (``scan.FloorSource``), whose first read is Spark's own as well.

Each way reads each table in a process of its own. Where Spark reads, it has read a local Parquet file and run one
``mapInPandas`` before. ``under way`` are requests for data at once, the most and the mean from the first to the last: they tell
on a busy machine too what seconds tell on a quiet one. Seconds and ``under way`` are those of the first turn of all queries and of the
best later one. Requests and bytes are the first turn's, for the lane holds what it has read; MiB are those of the reading Python process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import first_read
from gate import QUERIES, ask, processor_seconds
from reading import NARROW, write_tables
from scan import session
from served import BANDWIDTH, LATENCY, Served

WAYS = ("lane", "local", "python", "floor", "to_arrow")
#: Queries that are asked of the client, which aggregates nothing.
BY_CLIENT = QUERIES[:2]


def reader(way: str, table: str, profile: Path, files: Path) -> Callable[[str], object]:
    """What asks one query, by its title; ``files`` is the table's directory."""
    from delta_sharing_spark import SharingClient

    selected = SharingClient(str(profile)).table(f"bench.file.{table}")
    if way == "to_arrow":
        import pyarrow  # noqa: F401 - as a user has it

        narrow = NARROW[table].split(",")
        return lambda title: selected.scan(columns=None if title == QUERIES[0] else narrow).to_arrow().num_rows
    spark = session()
    with tempfile.TemporaryDirectory() as directory:
        spark.range(1000).write.parquet(f"{directory}/warm")
        spark.read.parquet(f"{directory}/warm").mapInPandas(lambda frames: frames, "id long").count()
    if way in ("local", "floor"):
        local = spark.read.parquet(str(files))
        if way == "floor":
            schema = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in local.schema)
            local = spark.read.format("floor").options(path=str(files), schema=schema).load()
        return lambda title: ask(title, table, local)
    engine = "native" if way == "lane" else "python"
    return lambda title: ask(title, table, selected.scan().to_spark(spark, engine=engine))


def answer(way: str, table: str, profile: Path, files: Path) -> None:
    """Ask each query whose title comes by standard input; tell its seconds, processor seconds and the peak memory in MiB."""
    run = reader(way, table, profile, files)
    print("ready", flush=True)
    for line in sys.stdin:
        burnt, began = processor_seconds(), time.perf_counter()
        run(line.strip())
        seconds, cpu = time.perf_counter() - began, processor_seconds() - burnt
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps([seconds, cpu, peak]), flush=True)


def measure(way: str, table: str, server: Served, profile: Path, turns: int, files: Path) -> None:
    """Print a line for each query."""
    size = sum(file.stat().st_size for file in files.glob("*.parquet"))
    command = [sys.executable, __file__, "--answer", way, table, str(profile), str(files)]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    titles = BY_CLIENT if way == "to_arrow" else QUERIES
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        while process.stdout.readline().strip() != "ready":
            if process.poll() is not None:
                raise RuntimeError(f"{way} cannot read {table}")
        results: dict[str, list[list[float]]] = {title: [] for title in titles}
        for _ in range(turns):
            for title in titles:
                server.served()
                process.stdin.write(f"{title}\n")
                process.stdin.flush()
                while not (line := process.stdout.readline()).startswith("["):
                    if process.poll() is not None:
                        raise RuntimeError(f"{way} cannot read {table}")
                most, mean = server.under_way()
                requests, sent = server.served().get("data", [0, 0])
                results[title].append([*json.loads(line), requests, sent, most, mean])
        process.stdin.close()
    for title, of_turns in results.items():
        first, best = of_turns[0], min(of_turns[1:] or of_turns)
        (_, cpu, peak, *_), (_, _, _, requests, sent, _, _) = best, first
        part = f"{sent / size:.3f}" if title == QUERIES[0] else ""
        print(
            f"{table:6} {way:9} {title:14} {first[0]:7.2f} {best[0]:7.2f} s {cpu:7.2f} cpu {peak:6.0f} MiB {requests:6.0f} requests "
            f"{sent / 1e6:8.1f} MB {part:6} under way {first[5]:3.0f}, {first[6]:5.1f}; {best[5]:3.0f}, {best[6]:5.1f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--tables", nargs="*", default=list(NARROW), choices=list(NARROW))
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=WAYS)
    parser.add_argument("--networks", nargs="*", default=["loopback", "slow"])
    parser.add_argument("--first-read", action="store_true", help="tell what a first read is spent on instead")
    parser.add_argument("--keep", type=Path, help="a directory for the tables, used again where it holds them")
    parser.add_argument("--answer", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.answer:
        way, table, *paths = arguments.answer
        answer(way, table, *map(Path, paths))
        return
    with tempfile.TemporaryDirectory(prefix="delta-sharing-bench-") as temporary:
        directory = arguments.keep or Path(temporary)
        tables = write_tables(directory, arguments.scale)
        server = Served(tables)
        try:
            profile = Path(temporary) / "bench.share"
            profile.write_text(server.profile)
            for network in arguments.networks:
                if network != "loopback":
                    shape: Any = (LATENCY, BANDWIDTH) if network == "slow" else map(float, network.split(","))
                    server.shape(*shape)
                of = "a first read" if arguments.first_read else f"first and best seconds of {arguments.turns} turns"
                print(f"\n{network}, scale {arguments.scale}: {of}", flush=True)
                for table in arguments.tables:
                    if arguments.first_read:
                        for way in first_read.STEPS:
                            first_read.tell(way, table, server, profile)
                        continue
                    for way in arguments.ways:
                        measure(way, table, server, profile, arguments.turns, tables[table])
        finally:
            server.close()


if __name__ == "__main__":
    main()
