"""Where the reference Python client and ours are asked for the same: hints, changes, and a line that ends it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_sharing_spark import SharingClient
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder

delta_sharing = pytest.importorskip("delta_sharing", reason="its pins clash with the others': nox -s reference-client")
pytestmark = pytest.mark.filterwarnings("ignore")  # its own, of pandas and of sockets left open

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string()), ("day", pa.string())])


def _rows(start: int, end: int) -> list[dict[str, object]]:
    return [{"n": i, "text": None if i % 5 == 0 else f"v{i}", "day": "ab"[i % 2]} for i in range(start, end)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharingServer]:
    feed = {"delta.enableChangeDataFeed": "true"}
    vectors = {"delta.enableDeletionVectors": "true"}
    plain = DeltaTableBuilder(tmp_path_factory.mktemp("plain"), SCHEMA, ("day",), feed)
    plain.append(_rows(0, 60), files=3).append(_rows(60, 100)).delete(lambda rows: pc.less(rows["n"], 10))
    deleted = DeltaTableBuilder(tmp_path_factory.mktemp("deleted"), SCHEMA, (), vectors)
    deleted.append(_rows(0, 100), files=2).delete(lambda rows: pc.less(rows["n"], 10), deletion_vectors=True)
    with SharingServer() as running:
        running.add_table("sh.sc.plain", plain.path)
        running.add_table("sh.sc.deleted", deleted.path)
        yield running
        assert not running.failures


@pytest.fixture(scope="module")
def profile(server: SharingServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    return server.write_profile(tmp_path_factory.mktemp("profile") / "p.share")


def test_it_limits_and_takes_hints(server: SharingServer, profile: str) -> None:
    url = f"{profile}#sh.sc.plain"
    assert len(delta_sharing.load_as_pandas(url, limit=7)) == 7
    day = {"op": "column", "name": "day", "valueType": "string"}
    literal = {"op": "literal", "value": "a", "valueType": "string"}
    hint = json.dumps({"op": "equal", "children": [day, literal]})
    assert set(delta_sharing.load_as_pandas(url, jsonPredicateHints=hint)["day"]) == {"a"}


def test_it_reads_changes(profile: str) -> None:
    theirs = delta_sharing.load_table_changes_as_pandas(f"{profile}#sh.sc.plain", starting_version=2)
    ours = SharingClient(profile).table("sh.sc.plain").changes(2).to_pandas()
    keys = ["n", "_change_type", "_commit_version"]
    assert sorted(theirs[keys].itertuples(index=False, name=None)) == sorted(
        ours[keys].itertuples(index=False, name=None)
    )


def test_a_line_that_only_it_cannot_read(server: SharingServer, profile: str) -> None:
    """``endStreamAction`` that a server volunteers ends the reference client with a KeyError; ours reads on."""
    server.settings.rewrite, before = (lambda line: line), server.settings.rewrite
    server.settings.page_size = 1
    try:
        assert SharingClient(profile).table("sh.sc.plain").scan().to_arrow().num_rows == 90
        with pytest.raises(KeyError):
            delta_sharing.load_as_pandas(f"{profile}#sh.sc.plain")
    finally:
        server.settings.rewrite, server.settings.page_size = before, None
