"""The reference Python client reads the embedded server, and finds the rows that this client finds.

Its dependency pins clash with ours, so it runs in an environment of its own (``nox -s reference-client``), without Spark.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder

delta_sharing = pytest.importorskip(
    "delta_sharing", reason="the reference client is installed by nox -s reference-client"
)

SCHEMA = pa.schema([("id", pa.int64()), ("city", pa.string()), ("n", pa.int32())])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharingServer]:
    root = tmp_path_factory.mktemp("tables")
    plain = DeltaTableBuilder(root / "plain", SCHEMA, ["city"], {"delta.enableChangeDataFeed": "true"})
    plain.append([{"id": i, "city": "ab"[i % 2], "n": i} for i in range(10)])
    plain.delete(pc.field("id") == 3)
    plain.append([{"id": i, "city": "c", "n": None} for i in range(10, 13)])
    properties = {"delta.enableDeletionVectors": "true", "delta.columnMapping.mode": "name"}
    vectors = DeltaTableBuilder(root / "vectors", SCHEMA, properties=properties)
    vectors.append([{"id": i, "city": "x", "n": i} for i in range(10)], files=2)
    vectors.delete(pc.field("id") == 1, deletion_vectors=True)
    with SharingServer({"s": {"default": {"plain": plain.path, "vectors": vectors.path}}}) as running:
        yield running
        assert list(running.failures) == []


@pytest.fixture(scope="module")
def profile(server: SharingServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    return server.write_profile(tmp_path_factory.mktemp("profile") / "p.share")


def rows(frame: Any) -> list[tuple[Any, ...]]:
    """Rows of a pandas frame, with its missing values as None, in one order."""
    rows_read = pa.Table.from_pandas(frame, preserve_index=False).to_pylist()
    return sorted((tuple(row[name] for name in sorted(row)) for row in rows_read), key=repr)


def ours(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[name] for name in sorted(row)) for row in table.to_pylist()), key=repr)


def test_browsing(server: SharingServer, profile: str) -> None:
    reference, client = delta_sharing.SharingClient(profile), SharingClient(profile)
    assert [s.name for s in reference.list_shares()] == [s.name for s in client.list_shares()]
    assert [t.name for t in reference.list_all_tables()] == ["plain", "vectors"]


@pytest.mark.parametrize("table", ["plain", "vectors"])
@pytest.mark.parametrize("version", [None, 1])
def test_a_snapshot(server: SharingServer, profile: str, table: str, version: int | None) -> None:
    formats = {"use_delta_format": True} if table == "vectors" else {}
    frame = delta_sharing.load_as_pandas(f"{profile}#s.default.{table}", version=version, **formats)
    rows_read = SharingClient(profile).table(f"s.default.{table}").scan(version=version).to_arrow()
    assert rows_read.num_rows > 0
    assert rows(frame) == ours(rows_read)


def test_changes(server: SharingServer, profile: str) -> None:
    frame = delta_sharing.load_table_changes_as_pandas(f"{profile}#s.default.plain", starting_version=1)
    rows_read = SharingClient(profile).table("s.default.plain").changes(starting_version=1).to_arrow()
    times = pc.cast(pc.cast(rows_read["_commit_timestamp"], pa.timestamp("ms", "UTC")), pa.int64())
    rows_read = rows_read.set_column(rows_read.schema.get_field_index("_commit_timestamp"), "_commit_timestamp", times)
    assert rows_read.num_rows > 10
    assert rows(frame) == ours(rows_read)


def test_metadata(server: SharingServer, profile: str) -> None:
    address = f"{profile}#s.default.plain"
    assert delta_sharing.get_table_version(address) == SharingClient(profile).table("s.default.plain").version()
    names = [field["name"] for field in json.loads(delta_sharing.get_table_metadata(address).schema_string)["fields"]]
    assert names == SCHEMA.names
