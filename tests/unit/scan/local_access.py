"""Access to files in memory or on local disk, which records what is asked for; and Parquet written in memory."""

from __future__ import annotations

import io
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from delta_sharing_spark.deltalog.paths import local_path
from delta_sharing_spark.scan.plan import DeletionVector, FileAccess, FileSlice, FileTask, ReadSpec, Split
from delta_sharing_spark.scan.split_reader import read_split
from delta_sharing_spark.schema.arrow import arrow_schema
from delta_sharing_spark.schema.partition_values import partition_keys
from delta_sharing_spark.schema.types import Struct
from delta_sharing_spark.storage.ranges import MemorySource, check_range
from delta_sharing_spark.testing.tables.rewrites import encode, frame


@dataclass(frozen=True, eq=False)
class Bytes(MemorySource):
    """It keeps which ranges were read, and refuses what is outside of it."""

    log: list[tuple[int, int]] = field(default_factory=list)

    def read(self, start: int, length: int) -> memoryview:
        check_range(self, start, length)
        self.log.append((start, start + length))
        return super().read(start, length)


class LocalAccess(FileAccess):
    """Files by task id, or by ``file:`` location; vectors in memory by unique id, or in files."""

    def __init__(self, files: Mapping[str, bytes] | None = None, vectors: Mapping[str, bytes] | None = None) -> None:
        self.files = dict(files or {})
        self.vectors = dict(vectors or {})
        self.reads: dict[str, list[tuple[int, int]]] = {}
        self._lock = threading.Lock()

    def open(self, task: FileTask) -> Bytes:
        data = self.files.get(task.id)
        if data is None:
            data = Path(local_path(task.location)).read_bytes()
        with self._lock:
            return Bytes(task.id, data, self.reads.setdefault(task.id, []))

    def open_vector(self, task: FileTask, vector: DeletionVector) -> Bytes:
        name = f"deletion vector {vector.unique_id}"
        if vector.unique_id in self.vectors:
            return Bytes(name, self.vectors[vector.unique_id])
        data = Path(local_path(vector.path)).read_bytes()
        return Bytes(name, data[vector.frame.start : vector.frame.end])


def parquet(table: pa.Table, **how: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **how)
    return sink.getvalue()


def vector_of(name: str, positions: list[int]) -> tuple[DeletionVector, bytes]:
    payload = encode(positions)
    return DeletionVector("u", name, 1, len(payload), len(set(positions)), name), frame(payload)


def spec_of(schema: Struct, **how: Any) -> ReadSpec:
    how.setdefault("partition_keys", partition_keys({f.name: f.physical_name for f in schema.fields}))
    return ReadSpec("s.d.t", schema, how.pop("full_schema", schema), **how)


def read(
    spec: ReadSpec, access: LocalAccess, tasks: list[FileTask] | None = None, slices: tuple[FileSlice, ...] = ()
) -> pa.Table:
    """The rows of a split, each batch checked against the promised schema."""
    if not slices:
        tasks = tasks or [FileTask(name, name, len(data)) for name, data in access.files.items()]
        slices = tuple(FileSlice(t) for t in tasks)
    expected = arrow_schema(spec.schema)
    batches = []
    for batch in read_split(Split(0, spec, slices, access)):
        batch.validate(full=True)
        assert batch.schema.equals(expected, check_metadata=True)
        batches.append(batch)
    return pa.Table.from_batches(batches, expected)


def read_one(data: bytes, schema: Struct, **how: Any) -> pa.Table:
    return read(spec_of(schema, **how), LocalAccess({"f.parquet": data}))
