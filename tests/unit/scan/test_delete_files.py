"""Rows that delete files name, beside a plain comparison of drawn keys."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_sharing_spark.scan.delete_files import deleted_rows
from delta_sharing_spark.scan.plan import DeleteFile, FileTask
from delta_sharing_spark.schema.arrow import arrow_schema
from delta_sharing_spark.schema.types import Decimal, Field, Primitive, Struct

KINDS = {
    "integer": st.integers(-3, 3), "string": st.sampled_from(["", "a", "b", "\u00e9"]), "boolean": st.booleans(),
    "double": st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf]), "float": st.sampled_from([0.0, -0.0, 2.5, math.nan]),
}  # fmt: skip
TEXTS = iter(range(1 << 30))


@st.composite
def drawn(draw: st.DrawFn) -> tuple[Struct, list[tuple[Any, ...]], list[list[tuple[Any, ...]]]]:
    kinds = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3))
    keys = Struct(tuple(Field(f"_{number}", Primitive(kind)) for number, kind in enumerate(kinds)))
    row = st.tuples(*(st.none() | KINDS[kind] for kind in kinds))
    return keys, draw(st.lists(row, max_size=30)), draw(st.lists(st.lists(row, max_size=6), min_size=1, max_size=3))


def test_keys_within_structs() -> None:
    """A struct that is NULL equals no struct of NULLs, as in Iceberg's own reader (1.12 was tried)."""
    struct = Struct((Field("x", Primitive("integer")), Field("y", Primitive("string"))))
    keys = Struct((Field("s", struct), Field("k", Primitive("integer"))))
    rows = [
        ({"x": x, "y": y} if is_there else None, k) for is_there in (True, False) for x in (None, 1, 2) for y in (None, "a") for k in (None, 5)
    ]  # fmt: skip
    batch = table(keys, rows)
    for row in rows:
        name = f"file:///{next(TEXTS)}"
        files = {"d": table(keys, [row]), "data": batch}

        def read(task: FileTask, schema: Struct, files: dict[str, pa.RecordBatch] = files) -> Iterator[pa.RecordBatch]:
            assert schema == keys
            yield files[task.location.rpartition("/")[2]]

        delete = DeleteFile(f"{name}/d", 1, keys.fields)
        found = deleted_rows(FileTask("data", f"{name}/data", 1, deletes=(delete,)), read)
        assert sorted(found or ()) == [at for at, other in enumerate(rows) if other == row]


def same(a: Any, b: Any) -> bool:
    """As Iceberg compares keys: NULL and NaN equal themselves, and 0.0 is not -0.0."""
    if isinstance(a, float) and isinstance(b, float):
        return (a != a and b != b) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return (a is None and b is None) or (a is not None and b is not None and bool(a == b))


def table(keys: Struct, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = [[row[place] for row in rows] for place in range(len(keys.fields))]
    return pa.RecordBatch.from_pydict(dict(zip(keys.names, columns, strict=True)), arrow_schema(keys))


@given(drawn(), st.integers(1, 7))
@settings(deadline=None)
def test_rows_with_equal_keys_are_deleted(
    case: tuple[Struct, list[tuple[Any, ...]], list[list[tuple[Any, ...]]]], step: int
) -> None:
    keys, rows, deletes = case
    name = f"file:///{next(TEXTS)}"
    files = {f"{name}/d{number}": table(keys, gone) for number, gone in enumerate(deletes)}
    files[f"{name}/data"] = table(keys, rows)

    def read(task: FileTask, schema: Struct) -> Iterator[pa.RecordBatch]:
        assert schema == keys
        batch = files[task.location]
        for start in range(0, batch.num_rows, step):
            yield batch.slice(start, step)

    named = tuple(DeleteFile(path, 1, keys.fields) for path in files if not path.endswith("data"))
    found = deleted_rows(FileTask("data", f"{name}/data", 1, deletes=named), read)
    gone = [row for one in deletes for row in one]
    expected = [at for at, row in enumerate(rows) if any(all(map(same, row, other)) for other in gone)]
    assert sorted(found or ()) == expected


def test_positions_are_those_of_the_own_file_and_read_once() -> None:
    reads: list[str] = []
    positions = pa.RecordBatch.from_pydict(
        {"file_path": ["file:/lake/a", "file:///lake/b", "file:///lake/a"], "pos": pa.array([3, 4, 5], pa.int64())}
    )

    def read(task: FileTask, schema: Struct) -> Iterator[pa.RecordBatch]:
        reads.append(task.location)
        yield positions

    delete = DeleteFile(f"file:///{next(TEXTS)}", 1)
    rows = {
        name: sorted(deleted_rows(FileTask(name, f"file:///lake/{name}", 1, deletes=(delete,)), read) or ())
        for name in ("a", "b", "c")
    }
    assert rows == {"a": [3, 5], "b": [4], "c": []}
    assert len(reads) == 1


def test_decimal_keys() -> None:
    from decimal import Decimal as Number

    keys = Struct((Field("_1", Decimal(9, 2)),))
    batch = table(keys, [(Number("1.10"),), (None,), (Number("-2.00"),)])

    def read(task: FileTask, schema: Struct) -> Iterator[pa.RecordBatch]:
        yield batch if task.location.endswith("data") else batch.slice(1)

    delete = DeleteFile(f"file:///{next(TEXTS)}", 1, keys.fields)
    assert sorted(deleted_rows(FileTask("d", "file:///x/data", 1, deletes=(delete,)), read) or ()) == [1, 2]
