"""One process with several Spark sessions, one after the other, and its end while queries are under way: in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa

from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support import INTERPRETED

_SESSIONS = """
import concurrent.futures.thread, json, os, sys, threading, time
from pyspark.sql import SparkSession
from delta_sharing_spark import SharingClient, register

profile, settings = map(json.loads, sys.argv[1:])
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
_END = """
register(spark)
table.server = None
def read(kind, engine):
    tell(kind, engine, table.scan(where="n >= 10").to_spark(spark, engine=engine).count())

for engine in ("native", "python"):
    threading.Thread(target=read, args=("thread", engine)).start()
    threading.Thread(target=lambda: (time.sleep(0), concurrent.futures.thread), daemon=True).start()
"""


def _run(code: str, server: SharingServer) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, json.dumps(server.profile()), json.dumps(dict(INTERPRETED))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))


def test_three_sessions_one_after_the_other_read_by_the_lane(tmp_path: Path) -> None:
    built = DeltaTableBuilder(tmp_path / "t", pa.schema([("n", pa.int64())]))
    built.append([{"n": n} for n in range(40)], files=4)
    with SharingServer({"s.d.t": built.path}) as server:
        process = _run(_SESSIONS, server)
        out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    lines = out.splitlines()
    assert lines[:3] == [f"session {number} 30 2 True" for number in range(3)]
    assert lines[3].startswith("aside ConfigError engine='native' cannot read table s.d.t: ")
