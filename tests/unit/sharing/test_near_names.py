"""A name that a server does not have: the error says which of the three it is, and what there is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.errors import NotFoundError
from delta_sharing_spark.schema.types import Field, Primitive, Struct
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SharingServer, SharingClient]]:
    path: Path = tmp_path_factory.mktemp("near") / "t"
    DeltaTableBuilder(path, Struct((Field("id", Primitive("long")),))).append([{"id": 1}])
    with SharingServer() as server:
        for name in ("demo.city.stations", "demo.city.trips", "sales.north.orders"):
            server.add_table(name, path)
        yield server, SharingClient(server.profile())


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("demo.city.statoins", "demo.city has no table 'statoins'; did you mean 'stations'?"),
        ("demo.city.zebras", "demo.city has no table 'zebras'; it has 'stations', 'trips'"),
        ("demo.ctiy.stations", "demo has no schema 'ctiy'; did you mean 'city'?"),
        ("dmo.city.stations", "the profile has no share 'dmo'; did you mean 'demo'?"),
        ("accounts.x.y", "the profile has no share 'accounts'; it has 'demo', 'sales'"),
    ],
)
def test_a_wrong_name_is_told_with_near_ones(
    running: tuple[SharingServer, SharingClient], name: str, hint: str
) -> None:
    server, client = running
    server.reset_metrics()
    with pytest.raises(NotFoundError) as missing:
        client.table(name).scan().to_arrow()
    assert str(missing.value).endswith(hint)
    assert missing.value.status == 404
    assert len(server.requests) <= 4


def test_the_version_of_a_wrong_name_is_told_with_near_ones(running: tuple[SharingServer, SharingClient]) -> None:
    _, client = running
    with pytest.raises(NotFoundError, match=r"has no table 'statoins'; did you mean 'stations'\?"):
        client.table("demo.city.statoins").version()
    with pytest.raises(NotFoundError, match="demo has no schema 'cty'; did you mean 'city'"):
        client.table("demo.cty.stations").changes(0).to_arrow()


def test_listings_tell_as_well(running: tuple[SharingServer, SharingClient]) -> None:
    _, client = running
    with pytest.raises(NotFoundError, match="the profile has no share 'dmo'; did you mean 'demo'"):
        client.list_schemas("dmo")
    with pytest.raises(NotFoundError, match="the profile has no share 'dmo'; did you mean 'demo'"):
        client.list_all_tables("dmo")
    with pytest.raises(NotFoundError, match="demo has no schema 'cty'; did you mean 'city'"):
        client.list_tables("demo.cty")


def test_an_explanation_that_fails_leaves_the_error(running: tuple[SharingServer, SharingClient]) -> None:
    server, client = running
    fault = server.faults.add("any", "/tables", times=None, status=500)
    fault.skip = 1  # the table's own 404
    with pytest.raises(NotFoundError) as missing:
        _ = client.table("demo.city.statoins").metadata
    server.faults.clear()
    assert fault.hits == 1
    assert "did you mean" not in str(missing.value)
