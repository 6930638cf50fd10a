"""Spark through a Flight gateway: batches, change feeds and streams, with nothing but the gateway's address and token."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_sharing_spark import SharingClient
from delta_sharing_spark.flight.gateway import FlightGateway
from delta_sharing_spark.flight.settings import GatewaySettings
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support import HANGS

SCHEMA = pa.schema([("id", pa.int64()), ("s", pa.string()), ("day", pa.string())])
TOKEN = "token-of-the-gateway"


@pytest.fixture
def table(tmp_path: Path) -> DeltaTableBuilder:
    properties = {"delta.enableChangeDataFeed": "true", "delta.enableDeletionVectors": "true"}
    return DeltaTableBuilder(tmp_path / "flown", SCHEMA, ("day",), properties).append(rows(0, 40), files=4)


def rows(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": i, "s": f"row {i}", "day": "ab"[i % 2]} for i in range(first, first + count)]


@pytest.fixture
def gateway(server: SharingServer, table: DeltaTableBuilder) -> Iterator[tuple[str, FlightGateway]]:
    """A gateway to the table, with tickets that expire while the test goes on."""
    name = f"share.spark.flown_{abs(hash(str(table.path))) % 10**9}"
    server.add_table(name, table.path, access_modes=("url", "dir"))
    client = SharingClient(server.profile(), accessMode="url")
    with FlightGateway(client, GatewaySettings(tokens=(TOKEN,), ticket_seconds=20.0)) as running:
        yield name, running


def test_batch_feed_and_stream(
    spark: Any, load: Any, tmp_path: Path, table: DeltaTableBuilder, gateway: tuple[str, FlightGateway]
) -> None:
    name, running = gateway
    through = {"gateway": running.uri, "gatewayTokenFile": str(tmp_path / "token"), "maxSplitBytes": "1k"}
    (tmp_path / "token").write_text(TOKEN)
    read = load(name, **through)
    assert sorted(r.id for r in read.where("day = 'a'").collect()) == list(range(0, 40, 2))
    narrow = load(name, **through, where="id >= 10 AND id < 20", columns="s,id")
    assert narrow.columns == ["s", "id"]
    assert sorted(r.id for r in narrow.collect()) == list(range(10, 20))
    assert load(name, **through, limit="7").count() == 7

    def streamed(feed: bool) -> list[Any]:
        options = {**through, "pollInterval": "100ms", **({"readChangeFeed": "true"} if feed else {})}
        sink = tmp_path / f"sink-{feed}"
        query = (
            spark.readStream.format("deltaSharing")
            .options(**options)
            .load(name)
            .writeStream.format("parquet")
            .option("path", str(sink))
            .option("checkpointLocation", f"{sink}-checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(HANGS)
        if query.exception() is not None:
            raise query.exception()
        return list(spark.read.parquet(str(sink)).collect())

    assert sorted(r.id for r in streamed(False)) == list(range(40))
    assert sorted((r.id, r._change_type) for r in streamed(True)) == [(i, "insert") for i in range(40)]
    table.append(rows(40, 10), files=2)
    assert sorted(r.id for r in streamed(False)) == list(range(50))
    table.delete(lambda batch: pc.less(batch["id"], 5), deletion_vectors=True)
    changes = [(r.id, r._change_type) for r in streamed(True)]
    assert sorted(changes) == sorted([*((i, "insert") for i in range(50)), *((i, "delete") for i in range(5))])
    feed = load(name, **through, readChangeFeed="true", startingVersion="1").select("id", "_change_type").collect()
    assert sorted(tuple(row) for row in feed) == sorted(changes)
    assert sorted(r.id for r in read.collect()) == list(range(40)), "a loaded DataFrame stays at its version"


def test_a_gateway_killed_under_a_task(
    spark: Any, load: Any, tmp_path: Path, server: SharingServer, profile: str, table: DeltaTableBuilder
) -> None:
    """Started again it is one more try; else one error that names it."""
    name = f"share.spark.killed_{abs(hash(str(table.path))) % 10**9}"
    server.add_table(name, table.path, access_modes=("url",))
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "key").write_text("0f" * 32)
    with socket.create_server(("127.0.0.1", 0)) as free:
        uri = f"grpc+tcp://127.0.0.1:{free.getsockname()[1]}"
    command = [
        sys.executable,
        "-c",
        "from delta_sharing_spark.cli.main import main; main()",
        "flight",
        profile,
        "--listen",
        uri,
    ]
    command += ["--token-file", str(tmp_path / "token"), "--ticket-key", str(tmp_path / "key")]

    def started() -> subprocess.Popen[str]:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert uri in process.stdout.readline()
        return process

    def killed_under(frame: Any) -> Any:
        silent = server.faults.add("data", times=None, stall=60.0)
        try:
            counting = pool.submit(frame.count)
            until = time.monotonic() + HANGS
            while not silent.hits and time.monotonic() < until:
                time.sleep(0.05)
            assert silent.hits
            running.kill()
            running.communicate()
        finally:
            server.faults.clear()
        return counting

    through = {"gateway": uri, "gatewayTokenFile": str(tmp_path / "token")}
    running = started()
    try:
        with ThreadPoolExecutor(1) as pool:
            frame, impatient = load(name, **through), load(name, **through, retryTimeout="1s")
            counting = killed_under(frame.where("s like 'row%'"))
            running = started()
            assert counting.result(HANGS) == 40
            counting = killed_under(impatient.where("s like 'row%'"))
            with pytest.raises(Exception, match=re.escape(uri)) as caught:
                counting.result(HANGS)
            assert "NetworkError" in str(caught.value)
            assert "Traceback" not in str(caught.value)
    finally:
        running.kill()
        running.wait()
