"""Recipients without a secret under Spark, by option on classic sessions; and a stream's progress.

On Connect they are whoever runs the server: faults/test_secrets_in_spark.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_sharing_spark.spark.streaming import ADMISSION_CONTROL
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support import HANGS
from support.openid_provider import OpenIdProvider

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def provider() -> Iterator[OpenIdProvider]:
    with OpenIdProvider() as running:
        yield running


@pytest.fixture
def sharing(provider: OpenIdProvider, tmp_path: Path) -> Iterator[SharingServer]:
    with SharingServer() as server:
        server.identity.token, server.identity.check_token = None, provider.accepts
        table = DeltaTableBuilder(tmp_path / "t", SCHEMA)
        for start in range(0, 40, 10):
            table.append([{"id": i} for i in range(start, start + 10)])
        server.add_table("s.d.t", table.path)
        yield server


@pytest.mark.connect
def test_a_token_file_that_rotates_serves_batches_and_streams_on_classic(
    spark: Any, spark_mode: str, sharing: SharingServer, provider: OpenIdProvider, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    options = {"bearerTokenFile": str(token), "identityEndpoint": sharing.endpoint}

    def rotate() -> None:
        provider.revoke_all()
        token.write_text(provider.issue())

    rotate()
    read = spark.read.format("deltaSharing").options(**options)
    if spark_mode == "connect":
        with pytest.raises(Exception, match="on Spark Connect it would run, read or sign in as the server"):
            read.load("s.d.t").count()
        return
    frame = read.load("s.d.t")
    assert frame.count() == 40
    rotate()
    sharing.expire_urls()
    if ADMISSION_CONTROL:  # Spark 4.0 plans each action anew
        with pytest.raises(Exception, match="the identity lives on the driver only"):
            frame.count()  # planned with the token before
    assert read.load("s.d.t").count() == 40
    options["pollInterval"] = "100ms"
    if ADMISSION_CONTROL:  # before, Trigger.AvailableNow is one batch, which a bound would cut short
        options["maxFilesPerTrigger"] = "1"
    stream = spark.readStream.format("deltaSharing").options(**options).load("s.d.t")
    batches = []

    def take(batch: Any, number: int) -> None:
        batches.append(batch.count())
        rotate()

    query = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = query.trigger(availableNow=True).start()
    assert query.awaitTermination(HANGS)
    assert query.exception() is None
    assert sum(batches) == 40
    source = query.recentProgress[-1]["sources"][0]
    if ADMISSION_CONTROL:
        assert len(batches) == 4
        assert json.loads(json.dumps(source["latestOffset"])) == source["endOffset"]
        first = query.recentProgress[0]["sources"][0]
        assert first["latestOffset"] == source["latestOffset"] != first["endOffset"]
