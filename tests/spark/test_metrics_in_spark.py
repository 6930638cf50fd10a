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
from support import INTERPRETED

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

profile, settings = map(json.loads, sys.argv[1:3])
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config(map=settings).getOrCreate()
for engine in sys.stdin:
    frame = SharingClient(profile).table("s.d.t").scan(where="n >= 20").to_spark(spark, engine=engine.strip())
    print(os.getpid(), frame.agg({"n": "sum"}).first()[0], flush=True)
"""


def test_driver_and_workers_count(tmp_path: Path) -> None:
    built = DeltaTableBuilder(tmp_path / "t", pa.schema([("n", pa.int64())]))
    built.append([{"n": n} for n in range(40)], files=4)
    (tmp_path / "counting.py").write_text(_HOOK)
    counted = tmp_path / "counted"
    with SharingServer({"s.d.t": built.path}) as server:
        server.settings.predicate_hints = "ignore"
        command = [sys.executable, "-c", _READS, json.dumps(server.profile()), json.dumps(dict(INTERPRETED))]
        variables = {ENVIRONMENT: "counting:record", "PYTHONPATH": str(tmp_path), "COUNTED": str(counted)}
        with (
            (tmp_path / "errors").open("w+") as errors,
            subprocess.Popen(
                command,
                env=os.environ | variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            ) as reads,
        ):
            assert reads.stdin is not None
            assert reads.stdout is not None

            def is_read_by_driver(engine: str) -> bool:
                server.reset_metrics()
                reads.stdin.write(f"{engine}\n")
                reads.stdin.flush()
                answer = reads.stdout.readline()
                assert answer, errors.seek(0) or errors.read()[-3000:]
                driver, rows = map(int, answer.split())
                assert rows == sum(range(20, 40))
                totals: Counter[str] = Counter()
                readers: set[int] = set()
                for process, name, value, table in map(json.loads, counted.read_text().splitlines()):
                    assert table == "s.d.t"
                    totals[name] += value
                    readers |= {process} if name == "deltasharing.bytes" else set()
                counted.unlink()
                assert totals["deltasharing.requests"] == server.count()
                assert totals["deltasharing.bytes"] == server.bytes_sent("data")
                assert totals["deltasharing.files.listed"] >= totals["deltasharing.files.skipped"] >= 2
                return driver in readers

            assert [is_read_by_driver(engine) for engine in ("python", "native")] == [False, True]
