"""The embedded server as the reference server's two engines: what it refuses and answers late, and that clients cope."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_sharing_spark import SharingClient
from delta_sharing_spark.access.url.snapshot_listing import LISTINGS
from delta_sharing_spark.errors import DeltaSharingError, VersionError
from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.sharing.queries import Query
from delta_sharing_spark.testing.server import ServerSettings, SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder

SCHEMA = pa.schema([("n", pa.int64()), ("x", pa.float64()), ("p", pa.string())])
START = datetime(2026, 1, 1, tzinfo=timezone.utc)
#: Commit times in milliseconds after START: two of them a millisecond apart.
TIMES = (0, 1000, 2000, 2001, 5000)
TICK = timedelta(milliseconds=1)


@dataclass
class Clock:
    left: list[int]

    def __call__(self) -> int:
        return int(START.timestamp() * 1000) + (self.left.pop(0) if len(self.left) > 1 else self.left[0])


def rows(start: int, end: int) -> list[dict[str, object]]:
    return [{"n": i, "x": float(i), "p": "ab"[i % 2]} for i in range(start, end)]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tables")
    vectors = DeltaTableBuilder(root / "vectors", SCHEMA, ("p",), {"delta.enableDeletionVectors": "true"})
    vectors.append(rows(0, 20)).delete(pc.field("n") == 3, deletion_vectors=True)
    mapped = DeltaTableBuilder(root / "mapped", SCHEMA, ("p",), {"delta.columnMapping.mode": "name"}).append(
        rows(0, 20)
    )
    # The builder asks its clock once for the table's creation.
    feed = DeltaTableBuilder(
        root / "feed", SCHEMA, (), {"delta.enableChangeDataFeed": "true"}, clock=Clock([TIMES[0], *TIMES])
    )
    for n in range(1, len(TIMES)):
        feed.append(rows(n, n + 1))
    return {"vectors": vectors.path, "mapped": mapped.path, "feed": feed.path}


@pytest.fixture(params=["protocol", "reference"])
def server(request: pytest.FixtureRequest, tables: dict[str, Path]) -> Iterator[SharingServer]:
    with SharingServer(settings=ServerSettings(engine=request.param)) as running:
        for name, path in tables.items():
            running.add_table(f"sh.sc.{name}", path)
        yield running


@pytest.fixture
def client(server: SharingServer) -> SharingClient:
    return SharingClient(server.profile())


@pytest.mark.parametrize(
    ("query", "refused"),
    [
        (Query(), False),
        (Query(version=2), False),
        (Query(limit_hint=1, json_predicate_hints="{}", include_refresh_token=True), False),
        (Query(starting_version=0), True),
    ],
)
@pytest.mark.parametrize("table", ["vectors", "mapped"])
def test_features_need_the_new_engine(
    server: SharingServer, client: SharingClient, table: str, query: Query, refused: bool
) -> None:
    name = TableName("sh", "sc", table)
    if refused and server.settings.engine == "reference":
        with pytest.raises(DeltaSharingError, match="too new for this version of Delta Standalone"):
            client.rest.query(name, query)
    else:
        assert list(client.rest.query(name, query if table == "vectors" else Query()).blocks())


@pytest.mark.parametrize("options", [{}, {"maxFilesPerRequest": 1}, {"serverHints": "sql"}, {"serverHints": "both"}])
@pytest.mark.parametrize(
    ("table", "where", "expected"),
    [("vectors", None, 19), ("mapped", None, 20), ("vectors", "p = 'a' AND n >= 10", 5), ("mapped", "p = 'a' AND n >= 10", 5)],
)  # fmt: skip
def test_every_option_reads_every_table(
    server: SharingServer, client: SharingClient, table: str, where: str | None, expected: int, options: dict[str, Any]
) -> None:
    """An option that the server cannot answer a table with costs a request, never the table."""
    scan = client.table(f"sh.sc.{table}").scan(where=where, **options)
    LISTINGS.clear()
    explained = scan.explain()
    assert scan.to_arrow().num_rows == expected
    refused = server.settings.engine == "reference" and (
        "maxFilesPerRequest" in options or ("serverHints" in options and where is not None)
    )
    assert ("because the server refuses the usual query" in explained) == refused


@pytest.mark.parametrize("where", ["p = 'a'", "n >= 100", "p = 'a' AND n < 100"])
def test_hints_still_cut_files(client: SharingClient, where: str) -> None:
    report = client.table("sh.sc.vectors").scan(where=where).plan().report
    assert set(report.sent) == {"jsonPredicateHints"}
    assert report.listed < 2


def expected_version(moment: datetime) -> int | None:
    after = (moment - START) / TICK
    return next((version for version, time in enumerate(TIMES) if time >= after), None)


@pytest.mark.parametrize("offset", [-5000, -1, 0, 1, 999, 1000, 1001, 1999, 2000, 2001, 2002, 4999, 5000, 5001, 9000])
def test_first_version_at_or_after_a_moment(client: SharingClient, offset: int) -> None:
    """Exact to the millisecond, whichever way the server counts."""
    moment = START + offset * TICK
    expected = expected_version(moment)
    table = client.table("sh.sc.feed")
    if expected is None:
        with pytest.raises(DeltaSharingError):
            table.version(moment)
    else:
        assert table.version(moment) == expected


@pytest.mark.parametrize("offset", [-5000, -1, 0, 1, 1000, 2000, 2001, 4999, 5000])
def test_feed_from_a_moment(client: SharingClient, offset: int) -> None:
    moment = START + offset * TICK
    feed = client.table("sh.sc.feed").changes(starting_timestamp=moment).to_arrow()
    expected = expected_version(moment)
    assert expected is not None
    assert sorted(set(feed["_commit_version"].to_pylist())) == list(range(max(1, expected), len(TIMES)))


def test_feed_after_the_newest_commit_is_an_error(client: SharingClient) -> None:
    with pytest.raises(VersionError):
        client.table("sh.sc.feed").changes(starting_timestamp=START + 6000 * TICK).to_arrow()


def test_nan_bounds_are_compared_by_ieee(tmp_path: Path) -> None:
    """A hint on a FLOAT column must keep a file whose maximum is NaN, though no comparison with it is true."""
    table = DeltaTableBuilder(tmp_path, SCHEMA).append(
        [{"n": 1, "x": 1.5, "p": "a"}, {"n": 2, "x": float("nan"), "p": "a"}]
    )
    (commit,) = (tmp_path / "_delta_log").glob("*1.json")
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    for line in lines:
        if "add" in line:
            stats = json.loads(line["add"]["stats"])
            stats["minValues"]["x"], stats["maxValues"]["x"] = 1.5, "NaN"
            line["add"]["stats"] = json.dumps(stats)
    commit.write_text("\n".join(map(json.dumps, lines)))
    with SharingServer(settings=ServerSettings(engine="reference")) as running:
        running.add_table("sh.sc.t", table.path)
        scan = SharingClient(running.profile()).table("sh.sc.t")
        counts = {"x = 1.5": 1, "x >= 1.0": 2, "x > 2.0": 1, "x <= 2.0": 1, "x < 2.0": 1}
        assert {where: scan.scan(where=where).to_arrow().num_rows for where in counts} == counts
