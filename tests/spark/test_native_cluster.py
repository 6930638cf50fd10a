"""The native lane where executors are processes of their own; and what is left of it when their session stops."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder

_SESSION = """
import logging, sys, threading, time
from pyspark.sql import SparkSession
from delta_sharing_spark import SharingClient

logging.basicConfig(level=logging.INFO)
profile, token = sys.argv[1:]
spark = (
    SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.sql.shuffle.partitions", "2").getOrCreate()
)
scan = SharingClient(profile).table("s.d.t").scan()
auto = scan.explain(spark).splitlines()[-1]
assert "Python data source" in auto and "engine='native' would send all bytes through the driver" in auto, auto
frame = scan.to_spark(spark, engine="native")
assert frame.inputFiles()[0].startswith("webhdfs://127.0.0.1:"), frame.inputFiles()
assert frame.count() == 3000
assert frame.where("id % 7 = 0").groupBy("city").count().collect() != []
assert token not in frame._jdf.queryExecution().toString()
named = lambda: [thread.name for thread in threading.enumerate() if thread.name.startswith("delta-sharing")]
assert named()
spark.stop()
until = time.monotonic() + 60
while named() and time.monotonic() < until:
    time.sleep(0.05)
assert not named(), named()
print("all is well")
"""


def test_local_cluster(tmp_path: Path, spark_mode: str) -> None:
    if spark_mode == "connect":
        pytest.skip("a session of its own, classic")
    schema = pa.schema({"id": pa.int64(), "city": pa.string()})
    rows = [{"id": i, "city": ("Lisbon", None)[i % 2]} for i in range(3000)]
    table = DeltaTableBuilder(tmp_path / "t", schema, ["city"]).append(rows, files=2)
    with SharingServer({"s.d.t": table.path}) as server:
        profile = str(server.write_profile(tmp_path / "config.share"))
        token = server.profile()["bearerToken"]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SPARK_")}
        ran = subprocess.run(
            [sys.executable, "-c", _SESSION, profile, token],
            env=environment, capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
    assert "all is well" in ran.stdout, ran.stdout + ran.stderr[-4000:]
