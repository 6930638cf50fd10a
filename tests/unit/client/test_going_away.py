"""Who goes away while a storage is silent: a reader that is closed, and a process that is interrupted or ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support import HANGS, killed_after
from support.buckets import BucketServer

BEGIN = """
import json, sys, threading, time, urllib.request
from delta_sharing_spark import SharingClient
client = SharingClient(json.loads(sys.argv[1]), storageEndpoint=sys.argv[2], readTimeout="100s")
scan = client.table(sys.argv[3]).scan()
"""
#: What waits for the storage, and the files that it is silent about.
READS = {
    "rows": (
        """
reader = scan.to_record_batch_reader(workers=2)
print("reading", flush=True)
read = reader.read_all
""",
        ("data", r"\.parquet"),
    ),
    # Polars calls from a thread of its own, and takes the signal.
    "lazy": (
        """
read = scan.lazy().select("n").collect
print("reading", flush=True)
""",
        ("data", r"\.parquet"),
    ),
    # The newest commit is read alone, those before it several at a time.
    "log": (
        """
read = scan.to_arrow
print("reading", flush=True)
""",
        ("log", r"0[2-5]\.json"),
    ),
    "gateway": (
        """
from delta_sharing_spark.native.gateway import Gateway
from delta_sharing_spark.native.plan import NativePlan
plan = NativePlan(scan.resolved(), scan.plan())
gateway = Gateway()
address = gateway.add(plan, lambda: False).replace("webhdfs:", "http:").replace(plan.token, "webhdfs/v1/" + plan.token)
read = lambda: urllib.request.urlopen(f"{address}/{plan.files[0].name(0)}?op=GETFILESTATUS").read()
print("reading", flush=True)
""",
        ("data", r"\.parquet"),
    ),
}
ENDS = {
    "interrupted": "read()",
    "over": "threading.Thread(target=read, daemon=True).start(); time.sleep(1)",
}
CASES = [
    ("sh.sc.url", "rows"),
    ("sh.sc.dir", "rows"),
    ("sh.sc.url", "lazy"),
    ("sh.sc.dir", "log"),
    ("sh.sc.url", "gateway"),
    ("sh.sc.dir", "gateway"),
]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(("name", "what"), CASES)
def test_a_process_does_not_wait_for_a_silent_storage(tmp_path: Path, end: str, name: str, what: str) -> None:
    """Two seconds on a quiet machine, in both modes (benchmarks/leaks.py); here far less than the silence."""
    table = DeltaTableBuilder(tmp_path / "t", pa.schema([("n", pa.int64())]))
    for _ in range(8):
        table.append([{"n": n} for n in range(40)], files=4)
    reading, (kind, files) = READS[what]
    with BucketServer({"sh.sc.url": table.path}) as server:
        server.add_bucket_table("sh.sc.dir", table.path)
        silent = server.faults.add(kind, files, times=None, stall=90, stall_at=10)
        code = BEGIN + reading + ENDS[end]
        command = [sys.executable, "-c", code, json.dumps(server.profile()), server.storage_endpoint, name]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"reading\n", process.communicate()[1]
        with killed_after(process, 60):
            while not silent.hits and process.poll() is None:
                time.sleep(0.05)
            time.sleep(0.3)
            if end == "interrupted":
                process.send_signal(signal.SIGINT)
            process.communicate()
        assert process.returncode != -signal.SIGKILL, "it waits for the silence to end"


FORKED = """
import os, sys
from delta_sharing_spark.network.process_end import CLOSED_AT_EXIT
class Read:
    def __init__(self, whose):
        self.close = lambda: print(f"closed {whose}", flush=True)
reads = CLOSED_AT_EXIT.add(Read("the parent's"))
if not (child := os.fork()):
    own = CLOSED_AT_EXIT.add(Read("the child's"))
    sys.exit()
os.waitpid(child, 0)
print("parent", flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_forked_process_that_ends_leaves_its_parents_reads_alone() -> None:
    """It closed them, and waited without end where a thread of the parent's was beginning a fetch as it forked."""
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=HANGS, check=True)
    assert done.stdout.splitlines() == ["closed the child's", "parent", "closed the parent's"]
