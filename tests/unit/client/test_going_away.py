"""Who goes away while a storage is silent: a reader that is closed, and a process that is interrupted or ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder

READ = """
import os, sys
import delta_sharing_spark.access.url.access as access
from delta_sharing_spark import SharingClient
make = access.HttpSource
access.HttpSource = lambda session, lease, **how: make(session, type("Silent", (), {"url": lambda s: sys.argv[2]})(), **how)
reader = SharingClient(sys.argv[1]).table("sh.sc.t").scan().to_record_batch_reader(workers=2)
print("reading", flush=True)
"""
ENDS = {
    "interrupted": "reader.read_all()",
    "over": "import threading, time; threading.Thread(target=reader.read_all, daemon=True).start(); time.sleep(1)",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_process_does_not_wait_for_a_silent_storage(tmp_path: Path, end: str) -> None:
    table = DeltaTableBuilder(tmp_path / "t", pa.schema([("n", pa.int64())]))
    table.append([{"n": n} for n in range(40)], files=4)
    with socket.create_server(("127.0.0.1", 0)) as silent, SharingServer() as server:
        server.add_table("sh.sc.t", table.path)
        server.write_profile(tmp_path / "p.share")
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/f"
        command = [sys.executable, "-c", READ + ENDS[end], str(tmp_path / "p.share"), url]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        killer = threading.Timer(30, process.kill)
        killer.start()
        assert process.stdout is not None
        assert process.stdout.readline() == b"reading\n", process.communicate()[1]
        with silent.accept()[0]:
            time.sleep(0.3)
            begin = time.monotonic()
            if end == "interrupted":
                process.send_signal(signal.SIGINT)
            process.communicate()
            killer.cancel()
    assert process.returncode != -signal.SIGKILL
    assert time.monotonic() - begin < 10
