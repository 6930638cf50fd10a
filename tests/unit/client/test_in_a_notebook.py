"""What an analyst types first: counts, a few rows, versions with their times, completion, decimals, wrong names."""

from __future__ import annotations

import decimal
import re
from collections.abc import Iterator
from datetime import datetime, timezone
from html import escape
from pathlib import Path

import pyarrow as pa
import pytest

from delta_sharing_spark import SharingClient, load_as_arrow, load_as_pandas
from delta_sharing_spark.access.directory.access import TOKENS
from delta_sharing_spark.display import Explanation
from delta_sharing_spark.errors import ConfigError, OptionError
from delta_sharing_spark.schema.markup import size_text
from delta_sharing_spark.table import SharedTable
from delta_sharing_spark.testing.sample import BICYCLE_DAYS, share_sample
from delta_sharing_spark.testing.server import SharingServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharingServer]:
    with SharingServer() as running:
        share_sample(running, tmp_path_factory.mktemp("sample"), trips=2_000)
        yield running


@pytest.fixture(scope="module")
def trips(server: SharingServer) -> SharedTable:
    return SharingClient(server.profile()).table("demo.city.trips")


def test_a_table_is_asked_as_a_scan_is(trips: SharedTable) -> None:
    assert trips.count() == 2_000
    assert list(trips.select("city", "fare").limit(3).to_pandas().columns) == ["city", "fare"]
    lisbon = trips.where("city = 'Lisbon'")
    assert lisbon.count() == trips.scan(where="city = 'Lisbon'").count() < 2_000
    assert lisbon.where("fare > 10").to_arrow().equals(trips.scan(where="city = 'Lisbon' AND fare > 10").to_arrow())
    assert len(trips.limit(3).to_pandas()) == len(trips.head(3)) == 3
    assert repr(trips.explain()) == str(trips.explain())
    assert "\n" in repr(trips.explain())


def test_cards_of_a_notebook(server: SharingServer, trips: SharedTable) -> None:
    metadata = trips.metadata
    card = trips._repr_html_()
    assert f"demo.city.trips, version {trips.version()}, {size_text(metadata.size)}, {metadata.num_files} files" in card
    assert metadata.description
    assert escape(metadata.description) in card
    assert server.endpoint in trips.client._repr_html_()
    assert "demo" in trips.client._repr_html_()
    explained = trips.scan(where="city = '<b>'").explain()._repr_html_()
    assert re.search(r"<td[^>]*>where</td><td[^>]*>`city` = &#x27;&lt;b&gt;&#x27;</td>", explained)
    assert "<b>" not in explained
    assert "<pre>" not in explained
    assert (
        Explanation("engine     x\nscanned  files\n-------")
        ._repr_html_()
        .endswith("<pre>scanned  files\n-------</pre>")
    )


@pytest.mark.parametrize("name", ["limit", "columns", "where", "version", "timestamp"])
def test_to_pandas_points_to_what_chooses(name: str, trips: SharedTable) -> None:
    with pytest.raises(ConfigError, match=rf"takes no {name}, .* trips\.scan\({name}=\.\.\.\)\.to_pandas\(\)"):
        trips.to_pandas(**{name: 5})


@pytest.mark.parametrize("options", [{}, {"accessMode": "url"}, {"accessMode": "dir"}])
def test_versions_have_their_times(options: dict[str, str], server: SharingServer) -> None:
    bicycles = SharingClient(server.profile(), **options).table("demo.city.bicycles")
    noons = [datetime.fromisoformat(f"{day}T12:00:00+00:00").astimezone(timezone.utc) for day in BICYCLE_DAYS]
    told = bicycles.versions()
    assert [version.version for version in told] == [0, 1, 2, 3]
    if options.get("accessMode") == "url":  # version 0 has no files
        noons[0] = None
    assert [version.committed for version in told] == noons
    assert [version.version for version in bicycles.versions(2)] == [2, 3]
    assert repr(told).splitlines()[0].split() == ["version", "committed"]


def test_versions_are_asked_of_the_server_where_the_log_cannot_be_read(server: SharingServer) -> None:
    """Rows came by their URLs, and the versions were an error."""
    TOKENS.clear()
    refusal = server.faults.add("credentials", times=None, status=403)
    server.reset_metrics()
    try:
        told = SharingClient(server.profile()).table("demo.city.bicycles").versions()
    finally:
        server.faults.remove(refusal)
    assert (refusal.hits, server.count("metadata")) == (1, 1)
    assert [(version.version, version.committed is None) for version in told] == [(n, n == 0) for n in range(4)]


def test_completion_shows_what_is_for_people(server: SharingServer, trips: SharedTable) -> None:
    client = trips.client
    assert client["demo.city.trips"] == trips
    assert "demo.city.trips" in client._ipython_key_completions_()
    for_people = {"table", "sql", "register"}, {"scan", "count", "versions"}, {"select", "to_pandas", "explain"}
    others = {"rest", "scans", "load_options"}, {"client", "snapshot_head"}, {"opened", "plan", "options"}
    names = [set(dir(thing)) for thing in (client, trips, trips.scan())]
    assert [there - shown for there, shown in zip(for_people, names, strict=True)] == [set()] * 3
    assert [hidden & shown for hidden, shown in zip(others, names, strict=True)] == [set()] * 3


def test_decimals_as_wanted(trips: SharedTable, server: SharingServer) -> None:
    scan = trips.limit(500)
    exact = scan.to_pandas()["fare"]
    assert isinstance(exact[0], decimal.Decimal)
    assert list(scan.to_pandas(decimals="floats")["fare"]) == [float(fare) for fare in exact]
    arrow = scan.to_pandas(decimals="arrow")["fare"]
    assert arrow.dtype.pyarrow_dtype == pa.decimal128(8, 2)
    assert list(arrow) == list(exact)
    nested = SharingClient(server.profile()).table("demo.city.customers").select("customer", "rides")
    rides = [ride for rides in nested.to_pandas(decimals="floats")["rides"] if rides is not None for ride in rides]
    assert {type(ride["fare"]) for ride in rides} == {float}
    with pytest.raises(ConfigError, match="'objects', 'floats' or 'arrow'"):
        trips.to_pandas(decimals="float")  # type: ignore[arg-type]


def test_one_call_takes_a_client_s_options(server: SharingServer, tmp_path: Path) -> None:
    address = server.write_profile(tmp_path / "p.share") + "#demo.city.stations"
    server.reset_metrics()
    assert len(load_as_pandas(address, accessMode="dir")) == load_as_arrow(address, accessMode="url").num_rows
    assert server.count("credentials") == 1
    with pytest.raises(OptionError, match="accessMode"):
        load_as_pandas(address, acessMode="dir")  # type: ignore[call-arg]
