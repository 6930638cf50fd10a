"""Who goes away while a storage is silent: a reader that is closed, and a process that is interrupted or ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support.buckets import BucketServer

READ = """
import json, sys
from delta_sharing_spark import SharingClient
client = SharingClient(json.loads(sys.argv[1]), storageEndpoint=sys.argv[2], readTimeout="100s")
reader = client.table(sys.argv[3]).scan().to_record_batch_reader(workers=2)
print("reading", flush=True)
"""
ENDS = {
    "interrupted": "reader.read_all()",
    "over": "import threading, time; threading.Thread(target=reader.read_all, daemon=True).start(); time.sleep(1)",
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", ["sh.sc.url", "sh.sc.dir"])
def test_a_process_does_not_wait_for_a_silent_storage(tmp_path: Path, end: str, name: str) -> None:
    """Two seconds on a quiet machine, in both modes (benchmarks/leaks.py); here far less than the silence."""
    table = DeltaTableBuilder(tmp_path / "t", pa.schema([("n", pa.int64())]))
    table.append([{"n": n} for n in range(40)], files=4)
    with BucketServer({"sh.sc.url": table.path}) as server:
        server.add_bucket_table("sh.sc.dir", table.path)
        silent = server.faults.add("data", r"\.parquet", times=None, stall=90, stall_at=10)
        command = [sys.executable, "-c", READ + ENDS[end], json.dumps(server.profile()), server.storage_endpoint, name]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        killer = threading.Timer(60, process.kill)
        killer.start()
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"reading\n", process.communicate()[1]
            while not silent.hits and process.poll() is None:
                time.sleep(0.05)
            time.sleep(0.3)
            begin = time.monotonic()
            if end == "interrupted":
                process.send_signal(signal.SIGINT)
            process.communicate()
        finally:
            killer.cancel()
        assert process.returncode != -signal.SIGKILL
        assert time.monotonic() - begin < 20
