"""Tables that deltalake does not read, against the Rust kernel: widened types, and the change feed with vectors."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_sharing_spark.testing.tables import DeltaTableBuilder

kernel = pytest.importorskip("delta_kernel_rust_sharing_wrapper")

SCHEMA = pa.schema({"id": pa.int64(), "part": pa.string(), "n": pa.int32()})
FEED = {"delta.enableChangeDataFeed": "true"}
VECTORS = FEED | {"delta.enableDeletionVectors": "true"}


def ten(start: int = 0) -> list[dict[str, Any]]:
    return [{"id": i, "part": "ab"[i % 2], "n": i * i} for i in range(start, start + 10)]


def kernel_rows(path: Path) -> pa.Table:
    location = path.absolute().as_uri() + "/"
    interface = kernel.PythonInterface(location)
    snapshot = kernel.Table(location).snapshot(interface)
    return kernel.ScanBuilder(snapshot).build().execute(interface).read_all()


def kernel_changes(path: Path, start: int, end: int) -> pa.Table:
    location = path.absolute().as_uri() + "/"
    interface = kernel.PythonInterface(location)
    scan = kernel.TableChangesScanBuilder(kernel.Table(location), interface, start, end).build()
    return scan.execute(interface).read_all()


def texts(table: pa.Table) -> list[str]:
    table = table.select(sorted(table.column_names))
    return sorted(repr(list(row.values())) for row in table.to_pylist())


def test_widened_types(tmp_path: Path) -> None:
    """The kernel casts columns and struct fields; inside lists and maps it fails."""
    schema = pa.schema(
        {
            "b": pa.int8(),
            "i": pa.int32(),
            "f": pa.float32(),
            "d": pa.decimal128(5, 2),
            "s": pa.struct({"x": pa.int16()}),
        }
    )
    table = DeltaTableBuilder(tmp_path, schema, properties={"delta.enableTypeWidening": "true"})
    table.append([{"b": -3, "i": 7, "f": 0.5, "d": Decimal("9.25"), "s": {"x": 1}}, {"b": None}])
    for path, kind in {"b": "long", "i": "double", "f": "double", "d": "decimal(12,3)", "s.x": "integer"}.items():
        table.widen(path, kind)
    table.append([{"b": 1 << 40, "i": 0.25, "f": 1e300, "d": Decimal("1.125"), "s": {"x": 1 << 20}}])
    assert texts(kernel_rows(tmp_path)) == texts(table.expected())


FEEDS: dict[str, tuple[dict[str, str], Callable[[DeltaTableBuilder], Any]]] = {
    "rewritten": (FEED, lambda t: t.delete(pc.field("id") == 3).update(pc.field("n") > 50, doubled)),
    "without change files": (FEED, lambda t: t.delete(pc.field("id") == 3, change_files=False)),
    "whole files": (FEED, lambda t: t.delete(pc.field("part") == "a").overwrite(ten(5))),
    "vectors": (VECTORS, lambda t: t.delete(pc.field("id") == 3, deletion_vectors=True)),
    "vectors again": (
        VECTORS,
        lambda t: t.delete(pc.field("id") == 3, deletion_vectors=True).delete(
            pc.field("id") < 6, deletion_vectors=True
        ),
    ),
    "vectors to the end": (
        VECTORS,
        lambda t: t.delete(pc.field("id") == 3, deletion_vectors=True).delete(
            pc.field("id") >= 0, deletion_vectors=True
        ),
    ),
    "vectors, then rewritten": (
        VECTORS,
        lambda t: t.delete(pc.field("id") == 3, deletion_vectors=True).delete(pc.field("id") == 5),
    ),
    "restored": (VECTORS, lambda t: t.delete(pc.field("id") == 3, deletion_vectors=True).undelete()),
    "updated by vectors": (VECTORS, lambda t: t.update(pc.field("n") > 50, doubled, deletion_vectors=True)),
    "updated by vectors without change files": (
        VECTORS,
        lambda t: t.update(pc.field("n") > 50, doubled, deletion_vectors=True, change_files=False),
    ),
    "compacted": (FEED, lambda t: t.append(ten(20)).optimize()),
    "vectors after compaction": (VECTORS, lambda t: t.optimize().delete(pc.field("id") == 3, deletion_vectors=True)),
}


def doubled(rows: pa.Table) -> pa.Table:
    return rows.set_column(2, "n", pc.multiply(rows["n"], 2))


@pytest.mark.parametrize("partitioned", [False, True], ids=["flat", "partitioned"])
@pytest.mark.parametrize("case", FEEDS)
def test_change_feed(tmp_path: Path, case: str, partitioned: bool) -> None:
    properties, change = FEEDS[case]
    table = DeltaTableBuilder(tmp_path / "t", SCHEMA, ["part"] if partitioned else [], properties)
    table.append(ten(), files=2)
    change(table)
    changes = kernel_changes(table.path, 0, table.version)
    assert texts(changes) == texts(table.expected_changes())
    assert texts(kernel_rows(table.path)) == texts(table.expected())
