"""The golden tables with a change data feed: the rows the Rust kernel finds in their logs, in every mode and format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.deltalog.replay import load_head
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.server.table_logs import LocalLogStore
from support.rust_kernel import kernel_changes
from unit.changes.feed_tables import WAYS

GOLDEN = Path(__file__).parents[3].parent / "shared" / "golden" / "cdf"
pytestmark = pytest.mark.skipif(not GOLDEN.is_dir(), reason=f"no golden tables at {GOLDEN}")

TABLES = {path.parent.name: path.parent for path in sorted(GOLDEN.glob("*/_delta_log"))}


@pytest.fixture(scope="module")
def client() -> Iterator[SharingClient]:
    with SharingServer() as running:
        for name, path in TABLES.items():
            running.add_table(f"golden.cdf.{name}", path, access_modes=("url", "dir"))
        yield SharingClient(running.profile())


def texts(rows: pa.Table) -> list[str]:
    # Times are those of unpacking, equal for several versions: Delta Lake and we let them grow, the kernel does not.
    columns = sorted(set(rows.column_names) - {"_commit_timestamp"})
    return sorted(repr([row[name] for name in columns]) for row in rows.to_pylist())


@pytest.mark.parametrize("name", TABLES)
def test_golden_feeds(client: SharingClient, name: str) -> None:
    newest = load_head(LocalLogStore(TABLES[name]), gate=False).version
    ranges = [(0, newest), *((version, version) for version in range(newest + 1))]
    expected = {bounds: texts(kernel_changes(TABLES[name], *bounds)) for bounds in ranges}
    assert any(expected.values())
    ways = ["url-delta", "dir"] if "dv" in name else [*WAYS]
    changes = client.table(f"golden.cdf.{name}").changes
    found = {way: {bounds: texts(changes(*bounds, **WAYS[way]).to_arrow()) for bounds in ranges} for way in ways}
    assert found == dict.fromkeys(ways, expected)
