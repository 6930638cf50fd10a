"""A stream that catches up: how fast 10,000 versions are planned, and in how much of the driver's memory.

Run: ``python benchmarks/streams.py [--versions 10000] [--files 1]``. The data files do not exist: planning reads none. In
url mode most of the time is the embedded server's; the reader's own is beside it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
import uuid
from pathlib import Path

import pyarrow as pa

from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder

TABLE = "share.bench.stream"
#: Versions between checkpoints.
CHECKPOINTS = 500


def make(path: Path, versions: int, files: int) -> DeltaTableBuilder:
    table = DeltaTableBuilder(path, pa.schema([("id", pa.int64())]))
    for version in range(versions):
        adds = [
            {
                "add": {
                    "path": f"part-{uuid.uuid4().hex}.parquet",
                    "partitionValues": {},
                    "size": 1_000_000,
                    "modificationTime": 1_700_000_000_000 + version,
                    "dataChange": True,
                    "stats": '{"numRecords":1000}',
                }
            }
            for _ in range(files)
        ]
        table.commit(adds)
        if table.version % CHECKPOINTS == 0:
            table.checkpoint()
    return table


#: Mode, versions, files, batches, seconds, CPU seconds, MiB.
Result = tuple[str, int, int, int, float, float, int]


def catch_up(profile: str, mode: str, results: multiprocessing.Queue[Result]) -> None:
    """Plan every batch of a stream from version 0 on, in a process of its own; ``results`` gets what it cost."""
    from delta_sharing_spark.access.open import TableOpener, negotiated_table, resolve_opened
    from delta_sharing_spark.access.stream.planner import Limits, Position, open_stream
    from delta_sharing_spark.options import parse_options

    options = {"path": f"{profile}#{TABLE}", "startingVersion": "0", "accessMode": mode, "pollInterval": "100ms"}
    opener = TableOpener(negotiated_table(parse_options(options, is_stream=True)))
    scan = resolve_opened(opener)
    base = _peak()
    planner = open_stream(opener, scan)
    planner.pin_newest()
    began, busy = time.perf_counter(), time.process_time()
    position, batches, files = Position(0), 0, 0
    while (end := planner.advance(position, Limits(files=1000))) != position:
        files += sum(len(tasks) for tasks, _ in planner.files(position, end))
        planner.forget(end)
        position, batches = end, batches + 1
    took, busy = time.perf_counter() - began, time.process_time() - busy
    results.put((mode, position.version, files, batches, took, busy, (_peak() - base) // 1024))


def _peak() -> int:
    """The process's peak memory, KiB: of its own life, where ``getrusage`` would still count its parent's."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(next(line for line in status.read_text().splitlines() if line.startswith("VmHWM")).split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--versions", type=int, default=10_000)
    parser.add_argument("--files", type=int, default=1, help="files a version adds")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, SharingServer() as server:
        table = make(Path(directory) / "table", arguments.versions, arguments.files)
        server.add_table(TABLE, table.path, access_modes=("url", "dir"), location=table.uri)
        profile = str(server.write_profile(Path(directory) / "bench.share"))
        print(f"{arguments.versions:,} versions of {arguments.files} file(s), 1,000 files a batch")
        print(
            f"{'mode':6}{'batches':>9}{'seconds':>9}{'reader CPU':>12}{'versions/s':>12}{'files/s':>10}{'MiB over base':>15}"
        )
        context = multiprocessing.get_context("spawn")
        for mode in ("url", "dir"):
            results = context.Queue()
            reader = context.Process(target=catch_up, args=(profile, mode, results))
            reader.start()
            name, versions, files, batches, took, busy, peak = results.get()
            reader.join()
            print(
                f"{name:6}{batches:>9}{took:>9.1f}{busy:>12.1f}{versions / took:>12,.0f}{files / took:>10,.0f}{peak:>15}"
            )


if __name__ == "__main__":
    main()
