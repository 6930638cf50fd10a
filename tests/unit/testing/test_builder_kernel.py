"""Tables that deltalake does not read, against the Rust kernel: widened types, and the change feed with vectors."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support.rust_kernel import kernel_changes, kernel_rows
from unit.changes.feed_tables import FEEDS, VECTORS, ids, table

#: The kernel reads no feed over versions of different columns.
CASES: dict[str, Callable[[Path], DeltaTableBuilder]] = {
    name: FEEDS[name]
    for name in ("change files", "inferred", "partitioned", "partitions without NULLs", "several row groups", "vectors",
                 "vectors in partitions", "vectors rewritten", "compacted", "properties set", "times in commits", "checkpointed")
} | {
    "vectors to the end": lambda p: (
        table(p, VECTORS).delete(ids(3), deletion_vectors=True).delete(pc.field("id") >= 0, deletion_vectors=True)
    ),
    "vectors after compaction": lambda p: table(p, VECTORS).optimize().delete(ids(3), deletion_vectors=True),
}  # fmt: skip


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
    built = DeltaTableBuilder(tmp_path, schema, properties={"delta.enableTypeWidening": "true"})
    built.append([{"b": -3, "i": 7, "f": 0.5, "d": Decimal("9.25"), "s": {"x": 1}}, {"b": None}])
    for path, kind in {"b": "long", "i": "double", "f": "double", "d": "decimal(12,3)", "s.x": "integer"}.items():
        built.widen(path, kind)
    built.append([{"b": 1 << 40, "i": 0.25, "f": 1e300, "d": Decimal("1.125"), "s": {"x": 1 << 20}}])
    assert texts(kernel_rows(tmp_path)) == texts(built.expected())


@pytest.mark.parametrize("case", CASES)
def test_change_feed(tmp_path: Path, case: str) -> None:
    built = CASES[case](tmp_path / "t")
    assert texts(kernel_changes(built.path, 0, built.version)) == texts(built.expected_changes())
    assert texts(kernel_rows(built.path)) == texts(built.expected())
