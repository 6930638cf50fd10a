"""Through Spark: a DataFrame that outlives its URLs and credentials, faults under tasks, and where secrets might show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder

pytestmark = pytest.mark.spark


@pytest.fixture
def address(server: SharingServer, tmp_path: Path) -> str:
    return f"{server.write_profile(tmp_path / 'c.share')}#s.d.t"


def answers(frame: Any) -> list[Any]:
    return [tuple(row) for row in frame.select("id", "text").orderBy("id").collect()]


@pytest.mark.parametrize("mode", ["url", "dir"])
def test_a_dataframe_outlives_its_urls_and_credentials(
    spark: Any,
    server: SharingServer,
    table: DeltaTableBuilder,
    address: str,
    mode: str,
    note: Callable[[str], None],
    expected: Any,
) -> None:
    server.add_table("s.d.t", table.path, access_modes=(mode,))
    server.settings.credential_ttl = 8.0
    frame = spark.read.format("deltaSharing").option("maxSplitBytes", "200k").load(address)
    wanted = [tuple(row.values()) for row in expected.to_pylist()]
    assert answers(frame) == wanted
    for _ in range(2):
        if mode == "dir":
            import time

            time.sleep(8.1)
        server.expire_urls()
        server.reset_metrics()
        assert answers(frame) == wanted
        kind = "query" if mode == "url" else "credentials"
        note(
            f"a DataFrame kept while everything expires ({mode}): same rows, {server.count(kind)} renewal requests, "
            f"{server.bytes_sent(kind)} bytes, {frame.rdd.getNumPartitions() if hasattr(frame, 'rdd') and mode == 'url' else 'n'} tasks"
        )
        assert 1 <= server.count(kind) <= 4, "at most one for each of the two workers, and those that replaced them"


def test_faults_under_tasks(spark: Any, server: SharingServer, address: str, expected: Any) -> None:
    frame = spark.read.format("deltaSharing").option("maxSplitBytes", "200k").load(address)
    wanted = [tuple(row.values()) for row in expected.to_pylist()]
    server.faults.add("data", times=4, reset=True, truncate=500)
    server.faults.add("data", skip=3, times=2, status=503, retry_after="0")
    server.faults.add("data", skip=9, call=server.expire_urls)
    assert answers(frame) == wanted
    server.faults.clear()
    server.faults.add("data", times=None, corrupt=700)
    with pytest.raises(Exception, match=r"CorruptFileError.*damaged"):
        answers(frame)


_JOB = """
    import logging, sys
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    from pyspark.sql import SparkSession
    builder = SparkSession.builder
    builder = builder.remote("local[2]") if sys.argv[2] == "connect" else builder.master("local[2]")
    spark = (
        builder.config("spark.eventLog.enabled", "true").config("spark.eventLog.dir", "file://" + sys.argv[3])
        .config("spark.eventLog.compress", "false").config("spark.ui.enabled", "false")
        .config("spark.local.dir", sys.argv[3] + "/local").config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    frame = spark.read.format("deltaSharing").load(sys.argv[1])
    frame.explain(True)
    print("ROWS", frame.count())
    print(repr(frame))
    try:
        spark.read.format("deltaSharing").load(sys.argv[1].replace(".t", ".broken")).count()
    except Exception as error:
        print("FAILED", type(error).__name__, str(error)[-2000:])
    spark.stop()
"""


@pytest.mark.parametrize("mode", ["classic", "connect"])
def test_no_secret_shows(
    mode: str,
    server: SharingServer,
    table: DeltaTableBuilder,
    address: str,
    tmp_path: Path,
    note: Callable[[str], None],
) -> None:
    """After a run that succeeds and one that fails: plan, event log, logs of driver and executors, files left behind."""
    server.add_table("s.d.broken", table.path)
    server.faults.add("data", skip=60, times=None, corrupt=700)
    logs = tmp_path / "events"
    logs.mkdir()
    (tmp_path / "job.py").write_text(textwrap.dedent(_JOB))
    done = subprocess.run(
        [sys.executable, str(tmp_path / "job.py"), address, mode, str(logs)],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "TMPDIR": str(logs)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "ROWS 11976" in done.stdout
    texts = {"output": done.stdout, "log": done.stderr}
    for path in logs.rglob("*"):
        if path.is_file():
            texts[str(path.relative_to(logs))] = path.read_bytes().decode("latin-1")
    assert any("SparkListenerApplicationStart" in text for text in texts.values()), "there is an event log"
    for secret in (
        server.token,
        "X-Amz-Signature=",
        json.loads(Path(address.split("#")[0]).read_text())["bearerToken"],
    ):
        assert not [name for name, text in texts.items() if secret in text], "a secret shows"
    note(f"secrets ({mode}): none in {len(texts)} texts of {sum(map(len, texts.values()))} characters")


def test_what_is_pickled_into_tasks_holds_no_option(server: SharingServer) -> None:
    from pyspark import cloudpickle

    from delta_sharing_spark.spark.datasource import DeltaSharingDataSource

    options = {"endpoint": server.endpoint, "bearerToken": server.token, "path": "s.d.t"}
    source = DeltaSharingDataSource(options)
    schema = source.schema()
    reader = source.reader(schema)
    reader.partitions()
    for piece in (source, reader, reader.read):
        assert server.token.encode() not in cloudpickle.dumps(piece)
    streaming = DeltaSharingDataSource(options)
    streaming.schema()
    streaming.streamReader(schema)
    assert server.token.encode() not in cloudpickle.dumps(streaming)
