"""A shared table behind a gateway, in both access modes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as flight
import pytest

from delta_sharing_spark import SharingClient
from delta_sharing_spark.flight.gateway import FlightGateway
from delta_sharing_spark.flight.settings import GatewaySettings
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from unit.flight.calling import TOKEN, Caller

SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string()), ("day", pa.string())])


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files over two days, ten rows deleted by vectors, with a change feed; versions 0 to 3."""
    properties = {"delta.enableChangeDataFeed": "true", "delta.enableDeletionVectors": "true"}
    rows = [{"id": i, "note": f"n{i}", "day": "ab"[i % 2]} for i in range(100)]
    table = DeltaTableBuilder(tmp_path_factory.mktemp("flown"), SCHEMA, ("day",), properties)
    table.append(rows[:60], files=2).append(rows[60:], files=2)
    table.delete(lambda batch: pc.less(batch["id"], 10), deletion_vectors=True)
    return Path(table.path)


@pytest.fixture(scope="session")
def server(built: Path) -> Iterator[SharingServer]:
    with SharingServer() as running:
        for name in ("sh.sc.t", "sh.sc.other", "sh2.sc.t"):
            running.add_table(name, built, access_modes=("url", "dir"))
        yield running
        assert not running.failures


@pytest.fixture(params=["url", "dir"])
def client(request: pytest.FixtureRequest, server: SharingServer) -> SharingClient:
    return SharingClient(server.profile(), accessMode=request.param, maxSplitBytes="1k")


@pytest.fixture
def gateway(client: SharingClient) -> Iterator[FlightGateway]:
    with FlightGateway(client, GatewaySettings(tokens=(TOKEN, "another"))) as running:
        yield running


@pytest.fixture
def caller(gateway: FlightGateway) -> Iterator[Caller]:
    with flight.connect(gateway.uri) as connection:
        yield Caller(connection, TOKEN)
