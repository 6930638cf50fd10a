"""A hook that the environment names counts in the driver and in Spark's workers, by both ways of reading."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa

from delta_sharing_spark.metrics import ENVIRONMENT
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support import HANGS, INTERPRETED

#: One line for each increment, with the process: appended, so that those of several processes are whole.
_HOOK = """
import json, os
def record(name, value, attributes):
    with open(os.environ["COUNTED"], "a") as file:
        file.write(json.dumps([os.getpid(), name, value, attributes["table"]]) + "\\n")
"""
_READS = """
import json, os, sys
from pyspark.sql import SparkSession
from delta_sharing_spark import SharingClient

profile, settings, engine = json.loads(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config(map=settings).getOrCreate()
frame = SharingClient(profile).table("s.d.t").scan(where="n >= 20").to_spark(spark, engine=engine)
print(os.getpid(), frame.agg({"n": "sum"}).first()[0])
"""


def test_driver_and_workers_count(tmp_path: Path) -> None:
    built = DeltaTableBuilder(tmp_path / "t", pa.schema([("n", pa.int64())]))
    built.append([{"n": n} for n in range(40)], files=4)
    (tmp_path / "counting.py").write_text(_HOOK)
    with SharingServer({"s.d.t": built.path}) as server:
        server.settings.predicate_hints = "ignore"
        for engine in ("python", "native"):
            counted = tmp_path / engine
            server.reset_metrics()
            ran = subprocess.run(
                [sys.executable, "-c", _READS, json.dumps(server.profile()), json.dumps(dict(INTERPRETED)), engine],
                env={
                    **os.environ,
                    ENVIRONMENT: "counting:record",
                    "PYTHONPATH": str(tmp_path),
                    "COUNTED": str(counted),
                },
                capture_output=True,
                text=True,
                timeout=HANGS,
                check=False,
            )
            assert ran.returncode == 0, ran.stderr[-3000:]
            driver, rows = ran.stdout.split()[-2:]
            assert int(rows) == sum(range(20, 40))
            totals: Counter[str] = Counter()
            readers: set[int] = set()
            for process, name, value, table in map(json.loads, counted.read_text().splitlines()):
                assert table == "s.d.t"
                totals[name] += value
                readers |= {process} if name == "deltasharing.bytes" else set()
            assert totals["deltasharing.requests"] == server.count()
            assert totals["deltasharing.bytes"] == server.bytes_sent("data")
            assert totals["deltasharing.files.listed"] >= totals["deltasharing.files.skipped"] >= 2
            assert (int(driver) in readers) == (engine == "native")
