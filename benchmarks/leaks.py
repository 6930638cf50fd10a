"""What reads leave behind: descriptors, threads and memory after many loads and after abandoned readers, and how soon a
process ends that is interrupted while its storage is silent; ``python benchmarks/leaks.py``. Linux."""

from __future__ import annotations

import argparse
import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
from served import Served

from delta_sharing_spark import SharingClient
from delta_sharing_spark.testing.tables import DeltaTableBuilder, FileStyle

_READ = """
import sys, threading
from delta_sharing_spark import SharingClient
client = SharingClient(sys.argv[1], accessMode=sys.argv[3])
reader = client.table(sys.argv[2]).scan().to_record_batch_reader(workers=2)
print(len(reader.read_next_batch()), flush=True)
reader.read_all()
"""


def state() -> str:
    """Descriptors, threads and resident memory of this process."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    return f"{len(os.listdir('/proc/self/fd'))} descriptors, {threading.active_count()} threads, {resident >> 10} MiB"


def resident_mib() -> float:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def loads(profile: str, name: str, threads: int, each: int) -> None:
    """So many threads load and read a small table so many times, by directory."""

    def some(count: int) -> None:
        for _ in range(count):
            client = SharingClient(profile, accessMode="dir")
            assert client.table(name).scan().to_arrow().num_rows == 1000

    some(5)
    before = state()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(some, [each] * threads))
    time.sleep(1)
    print(f"{threads} threads x {each} loads by directory: before {before}; after {state()}")


def abandoned(profile: str, name: str, mode: str, count: int) -> None:
    """So many readers of large files, dropped after their first batch."""

    def one() -> None:
        reader = SharingClient(profile, accessMode=mode).table(name).scan().to_record_batch_reader(workers=2)
        reader.read_next_batch()

    for _ in range(5):
        one()
    before, text = resident_mib(), state()
    for _ in range(count):
        one()
    time.sleep(1)
    print(f"{count} abandoned readers, {mode}: {resident_mib() - before:+.0f} MiB; before {text}; after {state()}")


def interrupted(profile: str, name: str, mode: str, served: Served) -> None:
    """Seconds from Ctrl-C to the end of a process whose storage has fallen silent."""
    served.shape(0.0, 1.0)  # a byte a second is silence enough
    process = subprocess.Popen(
        [sys.executable, "-c", _READ.replace("print(len(reader.read_next_batch()), flush=True)", 'print("", flush=True)'), profile, name, mode],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(3)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.wait(60)
    print(f"interrupted before a silent storage, {mode}: ended after {time.monotonic() - began:.1f} s")
    served.shape(0.0, 1e12)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--loads", type=int, default=200)
    parser.add_argument("--readers", type=int, default=100)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        small = DeltaTableBuilder(directory / "small", pa.schema([("id", pa.int64())]))
        small.append(pa.table({"id": range(1000)}), files=2)
        style = FileStyle(row_group_size=100_000, keep_rows=False, parquet={"compression": "none"})
        large = DeltaTableBuilder(directory / "large", pa.schema([("id", pa.int64()), ("s", pa.string())]), style=style)
        for number in range(4):
            ids = range(number * 500_000, (number + 1) * 500_000)
            large.append(pa.table({"id": ids, "s": [f"row {i}" for i in ids]}))
        served = Served({"small": directory / "small", "large": directory / "large"})
        profile = directory / "c.share"
        profile.write_text(served.profile)
        try:
            loads(str(profile), "bench.file.small", arguments.threads, arguments.loads)
            for mode in ("url", "dir"):
                abandoned(str(profile), "bench.file.large", mode, arguments.readers)
            interrupted(str(profile), "bench.file.large", "url", served)
        finally:
            served.close()


if __name__ == "__main__":
    main()
