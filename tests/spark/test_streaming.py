"""Streams as Spark runs them: snapshot and changes, restarts from a checkpoint, schema changes, a killed driver."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_sharing_spark.schema.types import Field, Primitive
from delta_sharing_spark.spark.streaming import ADMISSION_CONTROL
from delta_sharing_spark.testing.interpreter import worker_python
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support import HANGS, INTERPRETED, PRELOADED_WORKERS, SLOW_START

SCHEMA = pa.schema([("id", pa.int64()), ("s", pa.string())])


def rows(first: int, count: int) -> pa.Table:
    return pa.table({"id": list(range(first, first + count)), "s": [f"row {i}" for i in range(first, first + count)]})


@pytest.fixture
def stream(spark: Any, tmp_path: Path) -> Any:
    """Run a stream until nothing is left, from its checkpoint; returns all rows its sink has by now."""

    def run(address: str, name: str = "stream", schema: str | None = None, **options: str) -> list[Any]:
        reader = spark.readStream.format("deltaSharing").options(pollInterval="100ms", **options)
        if schema is not None:
            reader = reader.schema(schema)
        query = (
            reader.load(address)
            .writeStream.format("parquet")
            .option("path", str(tmp_path / name))
            .option("checkpointLocation", str(tmp_path / f"{name}-checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(HANGS)
            failure = query.exception()
            if failure is not None:
                raise failure
        except Exception as error:
            if SLOW_START in str(error):
                return run(address, name, schema, **options)
            raise
        finally:
            query.stop()
        written = tmp_path / name
        found: list[Any] = spark.read.parquet(str(written)).collect() if any(written.glob("*.parquet")) else []
        return found

    return run


@pytest.mark.parametrize("mode", [pytest.param("url", marks=pytest.mark.connect), "dir"])
def test_a_snapshot_then_what_is_appended(tmp_path: Path, share: Any, stream: Any, mode: str) -> None:
    table = DeltaTableBuilder(tmp_path / f"appended_{mode}", SCHEMA)
    for i in range(4):
        table.append(rows(i * 10, 10))
    address = share(table, access_modes=["url", "dir"], location=table.uri)
    options = {"accessMode": mode}
    if ADMISSION_CONTROL:  # before, Trigger.AvailableNow is one batch, which a bound would cut short
        options["maxFilesPerTrigger"] = "1"
    assert sorted(r.id for r in stream(address, **options)) == list(range(40))
    assert len(stream(address, **options)) == 40
    table.append(rows(40, 5)).append(rows(45, 5))
    assert sorted(r.id for r in stream(address, **options)) == list(range(50))


def test_from_a_version_and_from_the_latest(tmp_path: Path, share: Any, stream: Any) -> None:
    table = DeltaTableBuilder(tmp_path / "versions", SCHEMA).append(rows(0, 10)).append(rows(10, 10))
    address = share(table)
    assert sorted(r.id for r in stream(address, "from", startingVersion="2")) == list(range(10, 20))
    assert stream(address, "latest", startingVersion="latest") == []
    table.append(rows(20, 5))
    assert sorted(r.id for r in stream(address, "latest", startingVersion="latest")) == list(range(20, 25))


def test_a_change_stream(tmp_path: Path, share: Any, stream: Any) -> None:
    table = DeltaTableBuilder(tmp_path / "changes", SCHEMA, properties={"delta.enableChangeDataFeed": "true"})
    address = share(table.append(rows(0, 10)))
    first = stream(address, readChangeFeed="true")
    assert Counter((r._change_type, r._commit_version) for r in first) == {("insert", 1): 10}
    table.delete(lambda t: pc.less(t["id"], 3)).append(rows(10, 2))
    found = Counter((r._change_type, r._commit_version) for r in stream(address, readChangeFeed="true"))
    assert found == {("insert", 1): 10, ("delete", 2): 3, ("insert", 3): 2}


def test_deletes_stop_a_stream_unless_it_is_told(tmp_path: Path, share: Any, stream: Any) -> None:
    table = DeltaTableBuilder(tmp_path / "deletes", SCHEMA).append(rows(0, 10), files=2)
    address = share(table.delete(lambda t: pc.less(t["id"], 3)))
    if not ADMISSION_CONTROL:  # before, a run is one batch, which ends before the version that cannot be read
        assert len(stream(address, "strict", startingVersion="0")) == 10
    with pytest.raises(Exception, match=r"Detected a data update .* at version 2"):
        stream(address, "strict", startingVersion="0")
    assert len(stream(address, "skipping", startingVersion="0", skipChangeCommits="true")) == 10


def test_an_added_column_stops_a_stream_and_a_restart_picks_it_up(tmp_path: Path, share: Any, stream: Any) -> None:
    table = DeltaTableBuilder(tmp_path / "grown", SCHEMA).append(rows(0, 2))
    address = share(table)
    assert len(stream(address, "grown")) == 2
    assert len(stream(address, "named", schema="id bigint")) == 2
    table.add_column(Field("extra", Primitive("string")))
    table.append([{"id": 2, "s": "x", "extra": "new"}])
    assert sorted((r.id, getattr(r, "extra", None)) for r in stream(address, "grown"))[-1][0] == 2
    assert sorted(r.id for r in stream(address, "named", schema="id bigint")) == [0, 1, 2]


@pytest.mark.connect
def test_a_running_stream_stops_at_an_added_column(tmp_path: Path, share: Any, spark: Any) -> None:
    table = DeltaTableBuilder(tmp_path / "running", SCHEMA).append(rows(0, 2))
    frame = spark.readStream.format("deltaSharing").option("pollInterval", "100ms").load(share(table))
    writer = (
        frame.writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="200 milliseconds")
    )
    query = writer.start()
    try:
        until = time.monotonic() + HANGS
        while query.lastProgress is None:
            assert time.monotonic() < until
            if (failure := query.exception()) is not None:
                assert SLOW_START in str(failure)
                query = writer.start()
            time.sleep(0.1)
        table.add_column(Field("extra", Primitive("string"))).append([{"id": 2, "s": "x", "extra": "new"}])
        with pytest.raises(
            Exception, match=r"version 2 of .* has column 'extra' otherwise than the stream: it was added"
        ):
            query.awaitTermination(HANGS)
    finally:
        query.stop()


_DRIVER = f"""
import sys
from pyspark.sql import SparkSession
address, out = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config(map={INTERPRETED}).getOrCreate()
query = (spark.readStream.format("deltaSharing").option("pollInterval", "100ms").option("maxFilesPerTrigger", "2")
    .load(address).writeStream.format("parquet").option("path", out)
    .option("checkpointLocation", out + "-checkpoint").trigger(processingTime="0 seconds").start())
print("STARTED", flush=True)
query.awaitTermination()
"""


def test_a_driver_killed_at_any_moment_loses_and_doubles_nothing(
    tmp_path: Path, share: Any, stream: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Longer by hand: KILL_ROUNDS drivers are killed; KILL_SEED repeats the moments that a run printed."""
    seed = int(os.environ.get("KILL_SEED", random.SystemRandom().randrange(10**6)))
    draw, rounds = random.Random(seed), int(os.environ.get("KILL_ROUNDS", "1"))
    table = DeltaTableBuilder(tmp_path / "killed", SCHEMA)
    address = share(table)
    python = worker_python(sys.executable)
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "PYTHONPATH": PRELOADED_WORKERS,
    }
    command = [sys.executable, "-c", _DRIVER, address, str(tmp_path / "stream")]
    offsets, commits = tmp_path / "stream-checkpoint" / "offsets", tmp_path / "stream-checkpoint" / "commits"
    for _ in range(rounds):
        for _ in range(12):  # six batches
            table.append(rows(table.version * 10, 10))
        before = len(list(commits.glob("[0-9]*")))
        batches, moment = draw.randrange(6), draw.uniform(0, 1.5)
        driver = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"STARTED\n"
        deadline = time.monotonic() + HANGS
        # Spark itself refuses a checkpoint whose first offset was half written.
        while len(list(commits.glob("[0-9]*"))) < before + batches or not (offsets / "0").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(moment)
        assert driver.poll() is None, "the driver ended by itself"
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        driver.stdout.close()
        with capsys.disabled():
            sys.stderr.write(f"\n[KILL_SEED={seed}: killed {moment:.2f} s after {batches} batches]\n")
    table.append(rows(table.version * 10, 10))
    if not ADMISSION_CONTROL:  # before, a run is one batch: here the one that was begun
        stream(address)
    assert sorted(r.id for r in stream(address)) == list(range(table.version * 10))
