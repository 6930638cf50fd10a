"""One process with several Spark sessions, one after the other, and its end while queries are under way: in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa

from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support import INTERPRETED, killed_after

_SESSIONS = """
import concurrent.futures.thread, json, os, sys, threading, time
from pyspark.sql import SparkSession
from delta_sharing_spark import SharingClient, register

profile, settings = map(json.loads, sys.argv[1:3])
table = SharingClient(profile).table("s.d.t")

def session():
    builder = SparkSession.builder.master("local[8]").config("spark.ui.enabled", "false").config(map=settings)
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark

def tell(*words):
    os.write(1, f"{' '.join(map(str, words))}\\n".encode())

earlier = []
for number in range(3):
    spark = session()
    frame = table.scan(where="n >= 10").to_spark(spark, engine="native")
    tell("session", number, frame.count(), frame.where("n < 12").count(), len(frame.inputFiles()) > 0)
    assert "webhdfs" in frame.inputFiles()[0]
    earlier.append(frame)
    if number < 2:
        spark.stop()
try:
    table.scan(limit=3, where="n > 1").to_spark(spark, engine="native")
except Exception as error:
    tell("aside", type(error).__name__, error)
"""
#: By the Python source, in an environment that was not activated.
_WORKERS = """
register(spark)
tell("python", table.scan().to_spark(spark, engine="python").count())
address = table.client.options_for(table.name)
path = address.pop("path")
stream = spark.readStream.format("deltaSharing").options(**address).load(path)
query = stream.writeStream.format("memory").queryName("streamed").trigger(availableNow=True).start()
query.awaitTermination()
tell("stream", spark.table("streamed").count())
"""
#: Threads that read when the main one ends, before the storage answers, and daemons that nobody waits for.
_END = """
tell("gate")
while not os.path.exists(sys.argv[3]):
    time.sleep(0.01)
def tell_end():
    while not concurrent.futures.thread._shutdown:
        time.sleep(0.01)
    tell("main has ended")

def read(kind, engine):
    tell(kind, engine, table.scan(where="n >= 5").to_spark(spark, engine=engine).where("n > 9").count())

threading.Thread(target=tell_end, daemon=True).start()
pool = concurrent.futures.ThreadPoolExecutor(8)
for engine in ("native", "python"):
    threading.Thread(target=read, args=("thread", engine)).start()
    pool.submit(read, "pool", engine)
"""


def _run(code: str, server: SharingServer, flag: str) -> subprocess.Popen[str]:
    others = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    others["PATH"] = os.pathsep.join(
        directory for directory in others["PATH"].split(os.pathsep) if directory != os.path.dirname(sys.executable)
    )
    command = [sys.executable, "-c", code, json.dumps(server.profile()), json.dumps(dict(INTERPRETED)), flag]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=others)


def test_three_sessions_by_the_lane_and_threads_that_outlive_the_main_one(tmp_path: Path) -> None:
    built = DeltaTableBuilder(tmp_path / "t", pa.schema([("n", pa.int64())]))
    built.append([{"n": n} for n in range(40)], files=4)
    go_on = threading.Event()
    with (
        SharingServer({"s.d.t": built.path}) as server,
        _run(_SESSIONS + _WORKERS + _END, server, str(tmp_path / "go")) as process,
    ):
        lines = []
        assert process.stdout is not None
        try:
            with killed_after(process, 250):
                for line in process.stdout:
                    lines.append(line.rstrip("\n"))
                    if line == "gate\n":
                        server.faults.add("data", times=None, call=lambda: go_on.wait(200))
                        (tmp_path / "go").touch()
                    elif line == "main has ended\n":
                        go_on.set()
        finally:
            go_on.set()
        err = process.stderr.read() if process.stderr is not None else ""
    assert process.wait() == 0, err
    assert lines[:3] == [f"session {number} 30 2 True" for number in range(3)]
    assert lines[3].startswith("aside ConfigError engine='native' cannot read table s.d.t: ")
    assert lines[4:8] == ["python 40", "stream 40", "gate", "main has ended"]
    assert sorted(lines[8:]) == sorted(
        f"{kind} {engine} 30" for kind in ("thread", "pool") for engine in ("native", "python")
    )
