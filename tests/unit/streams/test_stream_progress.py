"""How far behind a stream is, as its progress tells, and streams whose recipient's token rotates while they run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_sharing_spark.errors import UnauthenticatedError
from delta_sharing_spark.sharing import auth
from delta_sharing_spark.spark import streaming
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support.openid_provider import OpenIdProvider
from unit.streams.spark_loop import Checkpoint, Run

SCHEMA = pa.schema([("id", pa.int64())])
Share = Callable[..., dict[str, str]]


def rows(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": i} for i in range(first, first + count)]


@pytest.mark.skipif(not streaming.ADMISSION_CONTROL, reason="Spark 4.2 brought reportLatestOffset")
def test_progress_names_the_servers_newest_version(
    tmp_path: Path, share: Share, server: SharingServer, caplog: pytest.LogCaptureFixture
) -> None:
    table = DeltaTableBuilder(tmp_path / "t", SCHEMA)
    for version in range(5):
        table.append(rows(version * 10, 10))
    options = {**share(table), "startingVersion": "1", "maxFilesPerTrigger": "1", "retryTimeout": "100ms"}
    run = Run(Checkpoint(), options, available_now=False)
    assert run.reader.reportLatestOffset() is None, "nothing is known yet, and nothing is asked"
    behind = []
    for _ in range(3):
        run.step()
        latest = json.loads(json.dumps(run.reader.reportLatestOffset()))
        behind.append(latest["version"] - run.checkpoint.last["version"])
        moved = {"version": 0, "tableVersion": 0, "reservoirVersion": 0}
        assert {**latest, **moved} == {**run.checkpoint.last, **moved}
    assert behind == [4, 3, 2]
    table.append(rows(50, 10)).append(rows(60, 10))
    time.sleep(0.002)
    assert run.reader.reportLatestOffset()["version"] == 8, "told while the stream is still at older versions"
    server.identity.token, token = None, server.identity.token
    time.sleep(0.002)  # of an interval of one millisecond
    assert run.reader.reportLatestOffset()["version"] == 8, "an outage ends no stream for the sake of a number"
    assert "the newest version of s.d.t is not known at present" in caplog.text
    server.identity.token = token
    run.drain()
    assert run.checkpoint.ids == list(range(70))
    assert run.reader.reportLatestOffset() == run.checkpoint.last


def test_the_newest_version_is_asked_for_once_in_an_interval(
    tmp_path: Path, share: Share, server: SharingServer
) -> None:
    options = {**share(DeltaTableBuilder(tmp_path / "t", SCHEMA).append(rows(0, 10))), "pollInterval": "1h"}
    run = Run(Checkpoint(), options, available_now=False).drain()
    if streaming.ADMISSION_CONTROL:
        asked = server.count("version")
        assert {str(run.reader.reportLatestOffset()) for _ in range(20)} == {str(run.checkpoint.last)}
        assert server.count("version") == asked


def test_a_token_that_rotates_between_and_within_batches(tmp_path: Path, server: SharingServer, share: Share) -> None:
    """The driver reads the file again; a task whose token ended before its URLs were renewed says where the identity lives."""
    table = DeltaTableBuilder(tmp_path / "t", SCHEMA)
    for version in range(4):
        table.append(rows(version * 10, 10))
    with OpenIdProvider() as provider:
        server.identity.token, server.identity.check_token = None, provider.accepts
        path, keyless = tmp_path / "token", tmp_path / "keyless.share"

        def rotate() -> None:
            provider.revoke_all()
            path.write_text(provider.issue())

        keyless.write_text(json.dumps({"shareCredentialsVersion": 1, "endpoint": server.endpoint}))
        options = {**share(table), "path": f"{keyless}#s.d.t", "startingVersion": "0", "maxFilesPerTrigger": "1"}
        options |= {"bearerTokenFile": str(path), "identityEndpoint": server.endpoint}
        rotate()
        checkpoint = Checkpoint()
        run = Run(checkpoint, options, available_now=False)
        while run.step(between=rotate):
            pass
        assert checkpoint.ids == list(range(40)), "what a task holds serves its own batch"
        table.append(rows(40, 10))

        def end() -> None:
            rotate()
            server.expire_urls()
            auth._tokens.clear()  # the task is in another process

        if streaming.ADMISSION_CONTROL:
            with pytest.raises(UnauthenticatedError, match="the identity lives on the driver only"):
                run.step(between=end)
            Run(checkpoint, options, available_now=False).drain()
            assert checkpoint.ids == list(range(50)), "the batch is planned anew, with the token of now"


@pytest.mark.parametrize("mode", ["url", "dir"])
def test_what_ended_is_asked_for_anew_where_only_the_driver_can_renew(
    mode: str, tmp_path: Path, server: SharingServer, share: Share
) -> None:
    """Batches go through versions that were listed at once, and the token that was carried then has ended by now."""
    table = DeltaTableBuilder(tmp_path / "t", SCHEMA)
    for version in range(3):
        table.append(rows(version * 10, 10))
    server.settings.url_ttl = server.settings.credential_ttl = 0.3
    with OpenIdProvider() as provider:
        server.identity.token, server.identity.check_token = None, provider.accepts
        path, keyless = tmp_path / "token", tmp_path / "keyless.share"
        keyless.write_text(json.dumps({"shareCredentialsVersion": 1, "endpoint": server.endpoint}))
        path.write_text(provider.issue())
        options = {**share(table), "path": f"{keyless}#s.d.t", "startingVersion": "0", "maxFilesPerTrigger": "1"}
        options |= {"bearerTokenFile": str(path), "identityEndpoint": server.endpoint, "accessMode": mode}
        checkpoint = Checkpoint()
        run = Run(checkpoint, options, available_now=False)
        while run.step():
            provider.revoke_all()
            path.write_text(provider.issue())
            time.sleep(0.3)
        assert checkpoint.ids == list(range(30))
