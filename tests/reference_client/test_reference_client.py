"""The reference Python client reads the embedded server: what we serve is the protocol, not our idea of it.

``nox -s reference-client`` installs it apart, for its pins hold others back; elsewhere this suite is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from delta_sharing_spark import SharingClient
from delta_sharing_spark.testing.sample import share_sample
from delta_sharing_spark.testing.server import SharingServer

delta_sharing = pytest.importorskip("delta_sharing", reason="the reference client is not installed here")

pytestmark = pytest.mark.filterwarnings("ignore")  # of the reference client's own
TABLES = ("stations", "trips", "customers")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharingServer]:
    with SharingServer() as running:
        share_sample(running, tmp_path_factory.mktemp("sample"), trips=2000)
        yield running
        assert not running.failures


@pytest.fixture(scope="module")
def profile(server: SharingServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    return server.write_profile(tmp_path_factory.mktemp("profile") / "p.share")


def test_it_lists_what_we_list(profile: str) -> None:
    theirs = {(t.share, t.schema, t.name) for t in delta_sharing.SharingClient(profile).list_all_tables()}
    ours = {(t.share, t.schema, t.name) for t in SharingClient(profile).list_all_tables()}
    assert theirs == ours == {("demo", "city", name) for name in (*TABLES, "bicycles", "types")}


@pytest.mark.parametrize("delta_format", [False, True], ids=["parquet", "delta"])
@pytest.mark.parametrize("name", TABLES)
def test_it_reads_the_rows_we_read(profile: str, name: str, delta_format: bool) -> None:
    theirs = delta_sharing.load_as_pandas(f"{profile}#demo.city.{name}", use_delta_format=delta_format)
    ours = SharingClient(profile).table(f"demo.city.{name}").scan().to_pandas()
    key = ours.columns[0]
    assert list(theirs.columns) == list(ours.columns)
    assert len(theirs) == len(ours)
    for column in ours.columns:
        got, expected = (_values(frame.sort_values(key)[column]) for frame in (theirs, ours))
        assert got == expected, column


def test_it_asks_for_versions_and_metadata(profile: str) -> None:
    url = f"{profile}#demo.city.trips"
    assert delta_sharing.get_table_version(url) == SharingClient(profile).table("demo.city.trips").version()
    assert delta_sharing.get_table_metadata(url).partition_columns == ["city"]


def test_it_limits(profile: str) -> None:
    assert len(delta_sharing.load_as_pandas(f"{profile}#demo.city.trips", limit=7)) == 7


def _values(column: Any) -> list[str]:
    """Values as text that does not depend on how each client spells nulls, zones and containers."""
    return [_plain(value) for value in column.tolist()]


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return str(sorted((k, _plain(v)) for k, v in value.items()))
    if isinstance(value, list | tuple) or (hasattr(value, "tolist") and getattr(value, "ndim", 0)):
        items = [_plain(v) for v in value]
        pairs = bool(items) and all(isinstance(v, tuple) for v in value)
        return str(sorted(items)) if pairs else str(items)
    if value is None or value != value:
        return "null"
    return str(value).removesuffix("+00:00")
