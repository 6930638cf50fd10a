"""A load is of the version that it found, whatever is committed before its files are listed, where its server lists versions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_sharing_spark import SharingClient
from delta_sharing_spark.flight.gateway import FlightGateway
from delta_sharing_spark.flight.settings import GatewaySettings
from delta_sharing_spark.schema.types import Field, Primitive
from delta_sharing_spark.spark.datasource import DeltaSharingDataSource
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder

SCHEMA = pa.schema([("id", pa.int64())])
NAME = "s.d.t"


@pytest.fixture
def table(tmp_path: Path) -> DeltaTableBuilder:
    return DeltaTableBuilder(tmp_path / "t", SCHEMA).append([{"id": 1}]).append([{"id": 2}, {"id": 3}])


@pytest.fixture(params=["url", "dir", "flight"])
def client(request: pytest.FixtureRequest, table: DeltaTableBuilder, history: bool) -> Iterator[SharingClient]:
    with SharingServer() as server, ExitStack() as gateways:
        server.add_table(NAME, table.path, access_modes=("url", "dir"), history=history)
        behind = SharingClient(server.profile(), accessMode="url" if request.param == "flight" else request.param)
        if request.param != "flight":
            yield behind
        else:
            gateway = gateways.enter_context(FlightGateway(behind, GatewaySettings(tokens=("token",))))
            yield SharingClient.over(gateway.uri, "token")


def by_scan(client: SharingClient, between: Callable[[], object]) -> list[int]:
    scan = client.table(NAME).scan()
    assert scan.resolved().version == 2
    between()
    return sorted(scan.to_arrow()["id"].to_pylist())


def by_the_data_source(client: SharingClient, between: Callable[[], object]) -> list[int]:
    """As Spark calls it: ``schema`` at the load, ``partitions`` at the first action."""
    options = client.load_options(client.table(NAME).name, {})
    if client.profile.bearer_token is not None:
        options |= {"endpoint": client.profile.endpoint, "bearerToken": client.profile.bearer_token}
    source = DeltaSharingDataSource(options)
    schema = source.schema()
    between()
    reader = source.reader(schema)
    rows: list[dict[str, Any]] = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            rows += batch.to_pylist()
    return sorted(row["id"] for row in rows)


@pytest.mark.parametrize("history", [True])
@pytest.mark.parametrize("read", [by_scan, by_the_data_source])
@pytest.mark.parametrize("change", ["append", "delete", "add a column"])
def test_a_load_is_of_the_version_that_it_found(
    client: SharingClient, table: DeltaTableBuilder, read: Any, change: str
) -> None:
    changes: dict[str, Callable[[], object]] = {
        "append": lambda: table.append([{"id": 4}]),
        "delete": lambda: table.delete(lambda rows: pa.compute.equal(rows["id"], 1)),
        "add a column": lambda: table.add_column(Field("more", Primitive("string"))).append([{"id": 4, "more": "x"}]),
    }
    assert read(client, changes[change]) == [1, 2, 3]


@pytest.mark.parametrize("history", [False])
@pytest.mark.parametrize("read", [by_scan, by_the_data_source])
def test_a_server_that_lists_its_newest_version_alone_is_read_at_that_with_a_warning(
    client: SharingClient, table: DeltaTableBuilder, read: Any, caplog: pytest.LogCaptureFixture
) -> None:
    is_listed = client.options.get("accessMode") == "dir"
    with caplog.at_level(logging.WARNING, "delta_sharing_spark"):
        assert read(client, lambda: table.append([{"id": 4}])) == ([1, 2, 3] if is_listed else [1, 2, 3, 4])
    assert ("was loaded at version 2 and is read at 3" in caplog.text) != is_listed
