"""Through Spark: a DataFrame that outlives its URLs and credentials, and faults under tasks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support.buckets import BucketServer

pytestmark = pytest.mark.spark

_QUICK = {"retryTimeout": "3s"}


@pytest.fixture
def address(server: SharingServer, tmp_path: Path) -> str:
    return f"{server.write_profile(tmp_path / 'c.share')}#s.d.t"


def answers(frame: Any) -> list[Any]:
    return [tuple(row) for row in frame.select("id", "text").orderBy("id").collect()]


def noting_workers(directory: str) -> type:
    """A source ``notingWorkers`` whose tasks leave their process's id in a directory. Workers get the class by value."""
    from delta_sharing_spark.spark.batch import DeltaSharingReader
    from delta_sharing_spark.spark.datasource import DeltaSharingDataSource

    class Reader(DeltaSharingReader):
        def read(self, partition: Any) -> Any:
            open(f"{directory}/{os.getpid()}", "w").close()
            return super().read(partition)

    class Source(DeltaSharingDataSource):
        @classmethod
        def name(cls) -> str:
            return "notingWorkers"

        def reader(self, schema: Any) -> Any:
            made = super().reader(schema)
            made.__class__ = Reader
            return made

    return Source


@pytest.mark.parametrize("how", ["refused", "late"])
@pytest.mark.parametrize("mode", ["url", "dir"])
def test_a_dataframe_outlives_its_urls_and_credentials(
    spark: Any,
    server: BucketServer,
    address: str,
    mode: str,
    how: str,
    note: Callable[[str], None],
    expected: Any,
    tmp_path: Path,
) -> None:
    """Used again when all that its plan holds has ended: each worker process asks once at most, whatever its tasks."""
    workers = tmp_path / "workers"
    workers.mkdir()
    spark.dataSource.register(noting_workers(str(workers)))
    reader = spark.read.format("notingWorkers").option("maxSplitBytes", "80k")
    table = address if mode == "url" else address.replace("#s.d.t", "#s.d.dir")
    frame = reader.option("storageEndpoint", server.storage_endpoint).load(table)
    wanted = [tuple(row.values()) for row in expected.to_pylist()]
    if how == "late":
        server.settings.url_ttl = server.settings.credential_ttl = 3.0
    assert answers(frame) == wanted
    kind = "query" if mode == "url" else "credentials"
    if how == "late":
        ends = 3.0 + max(request.ended for request in server.requests if request.kind == kind)
        while time.monotonic() <= ends:
            time.sleep(0.05)
        server.settings.url_ttl = server.settings.credential_ttl = 3600.0
    for _ in range(2 if how == "refused" else 1):
        if how == "refused":
            server.expire_urls()
            server.expire_credentials()
        server.reset_metrics()
        for worker in workers.iterdir():
            worker.unlink()
        assert answers(frame) == wanted
        processes = len(list(workers.iterdir()))
        note(
            f"a DataFrame kept while everything expires ({mode}, {how}): same rows, {processes} worker processes, "
            f"{server.count(kind)} renewal requests of {server.bytes_sent(kind)} bytes"
        )
        assert 1 <= server.count(kind) <= processes, "a worker process asked more than once"
        if how == "late":
            assert all(request.status < 400 for request in server.requests), "nothing was used until it was refused"


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


@pytest.mark.parametrize("history", [True, False])
def test_commit_between_plan_and_renewal(spark: Any, server: SharingServer, tmp_path: Path, history: bool) -> None:
    """A server that ignores what version a refresh token is of: the plan's rows, or the error of a changed table."""
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    table = DeltaTableBuilder(tmp_path / "t", schema, (), {"delta.enableDeletionVectors": "true"})
    table.append([{"id": i, "text": f"t{i}"} for i in range(40)], files=4)
    server.settings.engine = "reference"
    server.add_table("s.d.changing", table.path)
    address = f"{server.write_profile(tmp_path / 'c.share')}#s.d.changing"
    frame = spark.read.format("deltaSharing").options(**_QUICK).load(address)
    wanted = answers(frame)
    table.optimize()
    server.add_table("s.d.changing", table.path, history=history)
    server.expire_urls()
    if history:
        assert answers(frame) == wanted
    else:
        with pytest.raises(Exception, match="load it again"):
            answers(frame)
