"""The native lane where executors are processes of their own; and what is left of it when their session stops."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from delta_sharing_spark._version import install_line
from delta_sharing_spark.errors import ConfigError
from delta_sharing_spark.native.encrypted_channel import why_no_certificate
from delta_sharing_spark.native.machines import ClusterGateway
from delta_sharing_spark.spark import gateway_starts, lanes, native
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support import HANGS, INTERPRETED
from support.iceberg_lake import STORED, IcebergLake

_SESSION = """
import json, logging, os, shutil, signal, sys, threading, time
from pathlib import Path
import pyarrow.parquet as pq
import pyspark
from pyspark.sql import SparkSession
from delta_sharing_spark import SharingClient, register
from delta_sharing_spark.spark import gateway_starts, native

gateway_starts.PATIENCE = 200.0  # a busy machine starts two JVMs and their Python workers
logging.basicConfig(level=logging.INFO)
profile, settings, answers = sys.argv[1:]
spark = (
    SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.port", "0")
    .config(map=json.loads(settings)).config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.sql.shuffle.partitions", "2").config("spark.executor.extraJavaOptions", os.environ["SPARK_SUBMIT_OPTS"])
    .getOrCreate()
)
table = SharingClient(profile).table("s.d.t")
frame = table.to_spark(spark)
assert frame.inputFiles()[0].startswith("webhdfs://127.0.0.1:"), frame.inputFiles()
assert frame.count() == 3000
assert sorted(row.id for row in frame.where("id % 7 = 0").collect()) == list(range(0, 3000, 7))
assert "each machine of the executors has a gateway" in table.scan().explain(spark)
(gateway,) = native._gateways.values()
(machine,) = gateway.machines()
assert gateway.bytes_sent == 0
assert frame._jdf.queryExecution().toRdd().getNumPartitions() >= 2, "a slot idles"
lines = spark.read.text(SharingClient(profile).volume("s.d.v").spark_path("many", spark))
assert (lines.count(), lines.where("value = '7'").count(), gateway.bytes_sent) == (3000, 3, 0)
assert gateway.key_field not in spark.sql("SET").toPandas().to_string()

for answer in (path for path in Path(answers).glob("*.parquet") if "@" not in path.stem):
    read = SharingClient(profile).table("s.db." + answer.stem).scan().to_spark(spark, engine="native").toArrow()
    assert sorted(map(repr, read.to_pylist())) == sorted(map(repr, pq.ParquetFile(answer).read().to_pylist())), answer
assert gateway.bytes_sent == 0

def processes():
    told = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (directory / "cmdline").read_bytes().split(b"\\0")
            parent = (directory / "environ").read_bytes()
        except OSError:
            continue
        if b"delta_sharing_spark.native.machine_gateway" in arguments and profile.encode() in parent:
            told[int(directory.name)] = directory
    return told

def wait_for(what, condition):
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.05)

(own,) = processes()
os.kill(own, signal.SIGKILL)
assert sorted(row.id for row in frame.collect()) == list(range(3000))
wait_for("another gateway", gateway.machines)
register(spark)
assert spark.read.format("deltaSharing").load(profile + "#s.d.t").groupBy("city").count().count() == 2
shutil.rmtree(Path(pyspark.__file__).parent / "work" / spark.sparkContext.applicationId, ignore_errors=True)
named = lambda: [thread.name for thread in threading.enumerate() if thread.name.startswith("delta-sharing")]
assert named()
spark.stop()
wait_for(named(), lambda: not named())
wait_for("the gateway's end", lambda: not processes())
print("all is well")
"""


@pytest.mark.skipif(not Path("/proc").exists(), reason="no /proc")
def test_local_cluster(tmp_path: Path) -> None:
    """Rows are exact, of Iceberg tables too, and no byte of a file passes the driver; a gateway that is killed is made up for;
    nothing is left.
    """
    schema = pa.schema({"id": pa.int64(), "city": pa.string()})
    rows = [{"id": i, "city": ("Lisbon", None)[i % 2]} for i in range(3000)]
    table = DeltaTableBuilder(tmp_path / "t", schema, ["city"]).append(rows, files=2)
    (tmp_path / "v" / "many").mkdir(parents=True)
    for number in range(3):
        (tmp_path / "v" / "many" / f"{number}.txt").write_text("".join(f"{line}\n" for line in range(1000)))
    with IcebergLake() as server:
        server.add_table("s.d.t", table.path)
        server.add_volume("s.d.v", str(tmp_path / "v"))
        profile = str(server.write_profile(tmp_path / "config.share"))
        environment = {k: v for k, v in os.environ.items() if k == "SPARK_SUBMIT_OPTS" or not k.startswith("SPARK_")}
        environment |= {"PYSPARK_PYTHON": sys.executable, "DELTA_SHARING_OF_THIS_TEST": profile}
        ran = subprocess.run(
            [sys.executable, "-c", _SESSION, profile, json.dumps(INTERPRETED), str(STORED / "answers")],
            env=environment, capture_output=True, text=True, timeout=HANGS, check=False,
        )  # fmt: skip
    assert "all is well" in ran.stdout, ran.stdout + ran.stderr[:3000] + ran.stderr[-4000:]


def test_without_a_certificate_the_python_source_reads(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the driver's Python lacks what draws one, a cluster has no lane: the log and the error say what to install."""
    monkeypatch.setitem(sys.modules, "cryptography", None)
    for cached in (why_no_certificate, native._log_once):
        cached.cache_clear()
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(master="spark://one:7077"))
    try:
        reaches = [native.reach_of(session) for _ in range(3)]
        with pytest.raises(
            ConfigError, match=r"engine='native' cannot read t in this session: .*\[cluster\]' .*; leave engine out"
        ):
            lanes._unfit(reaches[0], "native", "read t")
    finally:
        why_no_certificate.cache_clear()
    assert not any(reach.is_possible for reach in reaches)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(
        "the Python source reads on this cluster: the driver's Python lacks the package cryptography ("
    )
    assert line.endswith(f"run: {install_line('cluster')}")


def test_an_application_keeps_no_executor_for_its_gateways(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without executors a job has Spark ask for one; once gateways have served, they may all leave, and loads wait for none."""
    monkeypatch.setattr(gateway_starts, "_LOOK", 0.02)
    seen: dict[str, str] = {}
    begun: list[str] = []
    looks: list[float] = []

    def wait_for(happened: Callable[[], object]) -> None:
        until = time.monotonic() + HANGS
        while not happened():
            assert time.monotonic() < until
            time.sleep(0.02)

    def wait_for_looks() -> None:
        now = time.monotonic()
        wait_for(lambda: sum(look > now for look in looks) > 2)

    class Starts(gateway_starts.GatewayStarts):
        def _executors(self) -> dict[str, str]:
            looks.append(time.monotonic())
            return dict(seen)

        def _run(self, hosts: list[str], places: list[list[str]]) -> list[dict[str, Any]]:
            begun.extend(hosts)
            if hosts == [""]:  # a later start must not bring back an executor that has left
                seen["1"] = "one"
            return [{"name": "one", "identity": "its loopback", "hosts": ["one"]}]

    gateway = ClusterGateway(bind="127.0.0.1", host="127.0.0.1", port=0, driver_bytes=0)
    try:
        context: Any = SimpleNamespace(getConf=lambda: {"spark.dynamicAllocation.enabled": "true"})
        starts = Starts(context, gateway, 1 << 28)
        wait_for(lambda: starts._has_served)
        assert begun[0] == ""
        seen.clear()
        wait_for_looks()
        begun.clear()
        assert starts.why_not() is None
        wait_for_looks()
        assert begun == []
    finally:
        gateway.close()
