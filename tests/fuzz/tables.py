"""What the surfaces damage: a small table with partitions, nesting and deletion vectors, its log in every form."""

from __future__ import annotations

import itertools
import random
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from delta_sharing_spark.deltalog.paths import local_path
from delta_sharing_spark.errors import CorruptFileError
from delta_sharing_spark.scan.plan import DeletionVector, FileAccess, FileSlice, FileTask, ReadSpec, Split
from delta_sharing_spark.scan.split_reader import read_split
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from unit.deltalog.logbuilder import MemoryLogStore
from unit.scan.local_access import Bytes

Rows = list[str]


def rows_of(batches: list[pa.RecordBatch]) -> Rows:
    """Rows in one order, each written out.

    Text whose bytes are not UTF-8 and times beyond the year 9999 are read as Spark reads them, as they are: Python alone
    cannot show them.
    """
    return sorted(repr(row) for batch in batches for row in _shown(batch).to_pylist())


def _shown(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in batch.columns]
    batch = pa.RecordBatch.from_arrays(columns, batch.schema.names)
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        if "UTF8" not in str(error):
            raise
        columns = [c.cast(pa.binary()) if pa.types.is_string(c.type) else c for c in batch.columns]
        batch = pa.RecordBatch.from_arrays(columns, batch.schema.names)
        batch.validate(full=True)
    return batch


def data(first: int, rows: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(first, first + rows), pa.int64()),
            "s": [None if i % 5 == 0 else f"text {i}" for i in range(first, first + rows)],
            "p": ["north" if i % 2 else "south" for i in range(first, first + rows)],
            "n": [{"a": i, "b": [i, None]} for i in range(first, first + rows)],
        }
    )


@lru_cache(maxsize=1)
def table(mapping: str = "name") -> DeltaTableBuilder:
    """Three versions: two appends, and a delete that leaves deletion vectors."""
    path = Path(tempfile.mkdtemp(prefix="fuzz-")) / "table"
    properties = {"delta.columnMapping.mode": mapping, "delta.enableDeletionVectors": "true"}
    properties["delta.enableChangeDataFeed"] = "true"
    built = DeltaTableBuilder(path, data(1, 1).schema, ["p"], properties)
    built.append(data(0, 12), files=2)
    built.append(data(12, 8))
    return built.delete(lambda rows: pa.compute.equal(rows["id"], 3), deletion_vectors=True)


def log_files(kind: str) -> dict[str, bytes]:
    """The log with a checkpoint of a kind (empty: none), by relative path."""
    built = table()
    made = []
    if kind:
        before = {p for p in built.path.rglob("*") if p.is_file()}
        built.checkpoint(kind)
        made = [p for p in built.path.rglob("*") if p.is_file() and p not in before]
    files = {
        str(p.relative_to(built.path)): p.read_bytes() for p in (built.path / "_delta_log").rglob("*") if p.is_file()
    }
    for path in made:
        path.unlink()
    return files


class Files(FileAccess):
    """A split's access to local files, or to bytes that stand for them."""

    def __init__(self, instead: dict[str, bytes] | None = None) -> None:
        self.instead = instead or {}

    def open(self, task: FileTask) -> Bytes:
        content = self.instead.get(task.location)
        source = Bytes(task.id, Path(_local(task.location)).read_bytes() if content is None else content)
        if source.size != task.size and content is None:
            raise CorruptFileError(f"file {task.id} has {source.size} bytes, {task.size} were planned", file=task.id)
        return source

    def open_vector(self, task: FileTask, vector: DeletionVector) -> Bytes:
        content = self.instead.get(vector.path)
        whole = Path(_local(vector.path)).read_bytes() if content is None else content
        return Bytes("vector", whole[vector.frame.start : vector.frame.end])

    def close(self) -> None: ...


def _local(location: str) -> str:
    path = local_path(location)
    if "\0" in path or max(map(len, path.encode(errors="replace").split(b"/"))) > 255 or not Path(path).is_file():
        raise CorruptFileError(f"no file {location[:100]!r}")
    return path


def read_tasks(spec: ReadSpec, tasks: list[FileTask], files: Files, slices: int = 1) -> Rows:
    """The rows of files, each read in some slices."""
    pieces = []
    for task in tasks:
        edges: list[Any] = [task.size * i // slices for i in range(slices)] + [None]
        pieces += [FileSlice(task, a, b) for a, b in itertools.pairwise(edges)]
    return rows_of(list(read_split(Split(0, spec, tuple(pieces), files))))


def store(files: dict[str, bytes], draw: random.Random | None = None) -> MemoryLogStore:
    listing = draw is None or draw.random() < 0.7
    return MemoryLogStore(dict(files), table().uri, listing=listing, known_version=None if listing else 3)
