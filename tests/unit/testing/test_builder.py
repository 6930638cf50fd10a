"""The builder's tables as other readers see them: the Rust kernel's row for row, this package's log replay."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from delta_sharing_spark.deltalog.commit_feed import load_commits
from delta_sharing_spark.deltalog.replay import read_snapshot
from delta_sharing_spark.schema.types import Field, Primitive
from delta_sharing_spark.testing.server.table_logs import LocalLogStore
from delta_sharing_spark.testing.tables import DeltaTableBuilder, FileStyle

deltalake = pytest.importorskip("deltalake")

ROWS = pa.table(
    {
        "id": pa.array(range(10), pa.int64()),
        "part": pa.array(["a", "b é", "%x:/ #?", "=", None] * 2),
        "nested": pa.array([{"x": i, "list": [i, None]} for i in range(10)]),
        "map": pa.array([[("k", i)] if i % 3 else None for i in range(10)], pa.map_(pa.string(), pa.int32())),
        "when": pa.array([datetime.datetime(2024, 5, 1, 12, i, tzinfo=datetime.timezone.utc) for i in range(10)]),
        "amount": pa.array([Decimal(i).scaleb(-2) for i in range(10)], pa.decimal128(8, 2)),
    }
)
VECTORS = {"delta.enableDeletionVectors": "true"}
Build = Callable[[DeltaTableBuilder], Any]


def by_kernel(path: Path) -> list[str]:
    """Rows as deltalake reads them, as texts in order."""
    reader = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(path)))
    return rows_of(pa.table(reader.execute("select * from t").read_all()))


def rows_of(table: pa.Table) -> list[str]:
    table = table.select(sorted(table.column_names))
    return sorted(repr(list(row.values())) for row in table.to_pylist())


CASES: dict[str, tuple[dict[str, str], Build]] = {
    "plain": ({}, lambda b: b),
    "several appends": ({}, lambda b: b.append(ROWS, files=3).append(ROWS.slice(0, 0))),
    "overwrite": ({}, lambda b: b.overwrite(ROWS.slice(2, 3))),
    "delete by rewriting": ({}, lambda b: b.delete(pc.field("id") < 4)),
    "update by rewriting": ({}, lambda b: b.update(pc.field("id") == 5, plus_hundred)),
    "optimize": ({}, lambda b: b.append(ROWS).optimize()),
    "vectors in a file": (VECTORS, lambda b: b.delete(pc.field("id") == 3, deletion_vectors=True)),
    "vectors twice": (VECTORS, lambda b: delete_twice(b, storage="u")),
    "vectors inline": (VECTORS, lambda b: delete_twice(b, storage="i")),
    "vectors by absolute path": (VECTORS, lambda b: delete_twice(b, storage="p")),
    "vectors in a directory": (VECTORS, lambda b: delete_twice(b, storage="u", prefix="ab")),
    "vector files without offsets": (VECTORS, lambda b: delete_twice(b, storage="u", offsets=False)),
    "vectors dropped": (VECTORS, lambda b: delete_twice(b).undelete()),
    "update by vectors": (VECTORS, lambda b: b.update(pc.field("id") > 6, plus_hundred, deletion_vectors=True)),
    "renamed columns": (
        {"delta.columnMapping.mode": "name"},
        lambda b: b.rename_column("id", "key").rename_column("nested.x", "z").append([{"key": 5}]),
    ),
    "renamed by id": ({"delta.columnMapping.mode": "id"}, lambda b: b.rename_column("id", "key")),
    "dropped column": ({"delta.columnMapping.mode": "name"}, lambda b: b.drop_column("map").append([{"id": 5}])),
    "mapping switched on": ({}, lambda b: b.set_properties(**{"delta.columnMapping.mode": "name"}).append(ROWS)),
    "added column": ({}, lambda b: b.add_column(Field("new", Primitive("string"))).append([{"new": "x"}])),
    "added nested field": ({}, lambda b: b.add_column(Field("y", Primitive("double")), parent="nested").append(ROWS)),
    "in-commit timestamps": ({"delta.enableInCommitTimestamps": "true"}, lambda b: b.append(ROWS)),
    "absolute paths": ({}, lambda b: b.append(ROWS, style=FileStyle(location=b.path.parent / "else where"))),
    "no statistics": ({}, lambda b: b.append(ROWS, style=FileStyle(stats=False))),
    "partition columns in files": ({}, lambda b: b.append(ROWS, style=FileStyle(materialize_partitions=True))),
    "classic checkpoint": ({}, lambda b: b.append(ROWS).checkpoint().expire_log(2).append(ROWS)),
    "multi-part checkpoint": ({}, lambda b: b.append(ROWS).checkpoint("multipart", parts=3).expire_log(2)),
    "parsed statistics only": ({}, lambda b: b.checkpoint(stats_json=False, stats_parsed=True).expire_log(1)),
    "v2 checkpoint, parquet": ({"delta.checkpointPolicy": "v2"}, lambda b: b.checkpoint("v2-parquet").expire_log(1)),
    "v2 checkpoint, json": ({"delta.checkpointPolicy": "v2"}, lambda b: b.checkpoint("v2-json").expire_log(1)),
    "v2 checkpoint, classic name": ({"delta.checkpointPolicy": "v2"}, lambda b: b.checkpoint("v2-classic")),
    "v2 checkpoint, no sidecar": ({"delta.checkpointPolicy": "v2"}, lambda b: b.checkpoint("v2-json", sidecars=0)),
    "log compaction": ({}, lambda b: b.append(ROWS).delete(pc.field("id") == 1).compact_log(1, 3)),
}


def delete_twice(builder: DeltaTableBuilder, **style: Any) -> DeltaTableBuilder:
    builder.delete(pc.field("id") == 3, deletion_vectors=True, **style)
    return builder.delete(pc.field("id") < 5, deletion_vectors=True, **style)


def plus_hundred(rows: pa.Table) -> pa.Table:
    return rows.set_column(0, "id", pc.add(rows["id"], 100))


@pytest.mark.parametrize("partitioned", [False, True], ids=["flat", "partitioned"])
@pytest.mark.parametrize("case", CASES)
def test_kernel_reads_what_the_builder_expects(tmp_path: Path, case: str, partitioned: bool) -> None:
    properties, build = CASES[case]
    builder = DeltaTableBuilder(tmp_path / "a table", ROWS.schema, ["part"] if partitioned else [], properties)
    builder.append(ROWS, files=2)
    build(builder)
    assert by_kernel(builder.path) == rows_of(builder.expected())
    snapshot = read_snapshot(LocalLogStore(builder.path), lambda snapshot: snapshot)
    assert (snapshot.version, snapshot.schema) == (builder.version, builder.schema)
    tasks = list(snapshot.tasks())
    if case != "no statistics":
        deleted = [t.deletion_vector.cardinality if t.deletion_vector else 0 for t in tasks]
        assert sum(t.rows or 0 for t in tasks) - sum(deleted) == builder.expected().num_rows
    assert all(Path(t.location.removeprefix("file://")).stat().st_size == t.size for t in tasks)


def test_several_vectors_share_a_file(tmp_path: Path) -> None:
    builder = DeltaTableBuilder(tmp_path, ROWS.schema, properties=VECTORS).append(ROWS, files=5)
    builder.delete(lambda rows: pc.equal(pc.bit_wise_and(rows["id"], 1), 0), deletion_vectors=True)
    descriptors = [f.add["deletionVector"] for f in builder.files]
    assert len({d["pathOrInlineDv"] for d in descriptors}) == 1
    assert len({d["offset"] for d in descriptors}) == len(descriptors) == 5
    assert by_kernel(tmp_path) == rows_of(builder.expected())
    builder.delete(pc.field("id") >= 0, deletion_vectors=True)
    assert (builder.files, builder.expected().num_rows) == ((), 0)


def test_earlier_versions(tmp_path: Path) -> None:
    builder = DeltaTableBuilder(tmp_path, ROWS.schema).append(ROWS).append(ROWS).delete(pc.field("id") > 2)

    def read_back(version: int) -> pa.Table:
        reader = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(tmp_path), version=version))
        return pa.table(reader.execute("select * from t").read_all())

    versions = range(4)
    assert [rows_of(read_back(v)) for v in versions] == [rows_of(builder.expected(v)) for v in versions]


def test_widened_types(tmp_path: Path) -> None:
    schema = pa.schema({"n": pa.int8(), "d": pa.decimal128(5, 2), "l": pa.list_(pa.int16())})
    builder = DeltaTableBuilder(tmp_path, schema, properties={"delta.enableTypeWidening": "true"})
    builder.append([{"n": 1, "d": Decimal("1.25"), "l": [3]}])
    builder.widen("n", "integer").widen("d", "decimal(12,3)").widen("l.element", "integer")
    builder.append([{"n": 1 << 20, "d": Decimal("123456.125"), "l": [1 << 20]}])
    assert builder.protocol.reader_features == ("typeWidening",)
    changes = {f.name: f.metadata["delta.typeChanges"] for f in builder.schema.fields}
    assert changes["n"] == [{"toType": "integer", "fromType": "byte"}]
    assert changes["l"] == [{"toType": "integer", "fromType": "short", "fieldPath": "element"}]
    assert [r["n"] for r in builder.expected().to_pylist()] == [1, 1 << 20]
    types = {pq.read_schema(f).field("n").type for f in tmp_path.glob("*.parquet")}
    assert types == {pa.int8(), pa.int32()}


def test_change_files(tmp_path: Path) -> None:
    builder = DeltaTableBuilder(tmp_path, ROWS.schema, properties={"delta.enableChangeDataFeed": "true"})
    builder.append(ROWS).update(pc.field("id") == 5, plus_hundred).delete(pc.field("id") == 6)
    read_back = [
        [t.change_type for t in commit.tasks] for commit in load_commits(LocalLogStore(tmp_path), 0, feed=True)
    ]
    assert read_back == [[], ["insert"], [None], [None]]
    table = deltalake.DeltaTable(str(tmp_path))
    feed = pa.table(table.load_cdf(starting_version=0, ending_version=3).read_all())
    expected = builder.expected_changes()
    columns = ["id", "_change_type", "_commit_version"]
    assert rows_of(feed.select(columns)) == rows_of(expected.select(columns))


def test_commit_times_follow_the_clock(tmp_path: Path) -> None:
    times = iter([1_700_000_000_000 + 1000 * n for n in range(10)])
    builder = DeltaTableBuilder(tmp_path, ROWS.schema, clock=lambda: next(times)).append(ROWS).append(ROWS)
    store = LocalLogStore(tmp_path)
    assert [read_snapshot(store, lambda snapshot: snapshot, version=v).timestamp_ms for v in range(3)] == [
        1_700_000_001_000,
        1_700_000_002_000,
        1_700_000_003_000,
    ]
    assert builder.version == 2


@pytest.mark.parametrize(
    ("properties", "options", "readers", "min_reader"),
    [
        ({}, {}, None, 1),
        ({"delta.columnMapping.mode": "name"}, {"legacy_mapping": True}, None, 2),
        ({"delta.columnMapping.mode": "name"}, {}, ("columnMapping",), 3),
        ({}, {"features": ["someday"]}, ("someday",), 3),
        (VECTORS | {"delta.checkpointPolicy": "v2"}, {}, ("deletionVectors", "v2Checkpoint"), 3),
    ],
)
def test_protocol(
    tmp_path: Path, properties: dict[str, str], options: Any, readers: tuple[str, ...] | None, min_reader: int
) -> None:
    builder = DeltaTableBuilder(tmp_path, ROWS.schema, properties=properties, **options)
    lines = (tmp_path / "_delta_log" / f"{0:020d}.json").read_text(encoding="utf-8").splitlines()
    protocol = next(json.loads(line)["protocol"] for line in lines if "protocol" in json.loads(line))
    assert protocol["minReaderVersion"] == min_reader
    assert tuple(protocol.get("readerFeatures", ())) == (readers or ())
    assert builder.protocol.min_reader_version == min_reader


def test_file_style(tmp_path: Path) -> None:
    style = FileStyle(row_group_size=2, parquet={"write_page_checksum": True, "compression": "zstd"})
    builder = DeltaTableBuilder(tmp_path, ROWS.schema, style=style).append(ROWS)
    (path,) = tmp_path.glob("*.parquet")
    metadata = pq.ParquetFile(path).metadata
    assert (metadata.num_row_groups, metadata.row_group(0).column(0).compression) == (5, "ZSTD")
    assert pq.read_table(path, page_checksum_verification=True).num_rows == builder.expected().num_rows == 10
