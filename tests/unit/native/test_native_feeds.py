"""What the gateway serves of a change data feed is what the Python source reads, whatever the table went through."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from conformance.canonical import row_texts
from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.native import gateway as gateways
from delta_sharing_spark.native.plan import COUNTED
from delta_sharing_spark.native.table_index import TableIndex
from delta_sharing_spark.predicates.sql import parse_where
from delta_sharing_spark.table import Scan
from delta_sharing_spark.testing.server import SharingServer
from unit.changes.feed_tables import FEEDS, WAYS, moment, ways
from unit.native.reading import rows_of, served


@pytest.fixture(scope="module")
def feeds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[SharingClient, list[str], int]]]:
    root = tmp_path_factory.mktemp("feeds")
    with SharingServer() as server:
        shared = {}
        for number, (name, build) in enumerate(FEEDS.items()):
            built = build(root / str(number))
            server.add_table(f"s.d.t{number}", built.path, access_modes=("url", "dir"))
            shared[name] = SharingClient(server.profile(), retryTimeout="1s"), ways(built), built.version
        yield shared


def check(scan: Scan) -> None:
    with served(scan) as (_, plan, address):
        expected = scan.to_arrow()
        shown = rows_of(plan, address)
        assert shown.schema.names == expected.schema.names
        assert row_texts(shown) == row_texts(expected)


@pytest.mark.parametrize("joined", [True, False], ids=["joined", "alone"])
@pytest.mark.parametrize("name", FEEDS)
def test_rows(
    feeds: dict[str, tuple[SharingClient, list[str], int]], name: str, joined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not joined:
        monkeypatch.setattr("delta_sharing_spark.native.plan.SMALL_FILE", 0)
    client, named, newest = feeds[name]
    number = list(FEEDS).index(name)
    table = client.table(f"s.d.t{number}")
    check(table.changes(0, **WAYS[named[(number + joined) % len(named)]]))
    if not joined:
        return
    check(table.changes(2, columns=["_change_type", "id"], **WAYS[named[newest % len(named)]]))
    check(table.changes(1, newest - 1, commitTimestampType="long"))
    check(table.changes(1, columns=["_commit_version"]))


@pytest.mark.parametrize(
    "bounds",
    [{"starting_version": 0}, {"starting_timestamp": moment(0), "ending_timestamp": moment(3)}],
    ids=["versions", "timestamps"],
)
@pytest.mark.parametrize("way", WAYS)
def test_listings_of_a_feed(
    feeds: dict[str, tuple[SharingClient, list[str], int]], way: str, bounds: dict[str, Any]
) -> None:
    """Filters leave files out, counts need statistics of all, and an end by the clock is looked up once."""
    client, named, _ = feeds["change files"]
    number = list(FEEDS).index("change files")
    if way not in named:
        pytest.skip("a server does not share it so")
    running = gateways.Gateway()
    try:
        opener, load = client.table(f"s.d.t{number}").changes(**bounds, **WAYS[way]).opened()
        index = running.open(TableIndex(load, opener, running), lambda: False)
        index.begin()
        native, listing = index.listed((), (None, None))
        assert listing.files == native.report.files > 2
        few = index.listed((), (parse_where("id >= 20", load.columns), None))[1].files
        assert few == listing.files if "ending_timestamp" in bounds else few < listing.files
        assert index.listed((), (None, COUNTED))[1].is_counted is False, "change files have no statistics"
        assert index.size_in_bytes() == listing.bytes
        kinds = {str(v) for values in native.partitions for v in values}
        assert pa.scalar(1).as_py() in {int(v) for v in kinds if v.isdigit()}
    finally:
        running.close()
