"""Logs written by hand for the tests, and a model of what they mean."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from delta_sharing_spark.deltalog.paths import LogStore, commit_name, in_log
from delta_sharing_spark.deltalog.replay import Snapshot, read_snapshot
from delta_sharing_spark.storage.locations import StoredObject
from delta_sharing_spark.storage.ranges import ByteSource, MemorySource

ROOT = "s3://bucket/table"
SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": "id", "type": "long", "nullable": True, "metadata": {}},
            {"name": "p", "type": "string", "nullable": True, "metadata": {}},
        ],
    }
)
VECTOR = pa.struct(
    [
        ("storageType", pa.string()),
        ("pathOrInlineDv", pa.string()),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
        ("maxRowIndex", pa.int64()),
    ]
)
STRINGS = pa.map_(pa.string(), pa.string())
ADD = pa.struct(
    [
        pa.field("path", pa.string(), nullable=False),
        ("partitionValues", STRINGS),
        ("size", pa.int64()),
        ("modificationTime", pa.int64()),
        ("dataChange", pa.bool_()),
        ("stats", pa.string()),
        ("deletionVector", VECTOR),
    ]
)
REMOVE = pa.struct([("path", pa.string()), ("deletionTimestamp", pa.int64()), ("deletionVector", VECTOR)])
METADATA = pa.struct(
    [
        ("id", pa.string()),
        ("format", pa.struct([("provider", pa.string()), ("options", STRINGS)])),
        ("schemaString", pa.string()),
        ("partitionColumns", pa.list_(pa.string())),
        ("configuration", STRINGS),
    ]
)
PROTOCOL = pa.struct(
    [
        ("minReaderVersion", pa.int32()),
        ("minWriterVersion", pa.int32()),
        ("readerFeatures", pa.list_(pa.string())),
        ("writerFeatures", pa.list_(pa.string())),
    ]
)
SIDECAR = pa.struct([("path", pa.string()), ("sizeInBytes", pa.int64()), ("modificationTime", pa.int64())])


def protocol(reader: int = 3, features: list[str] | None = None) -> dict[str, Any]:
    tree: dict[str, Any] = {"minReaderVersion": reader, "minWriterVersion": 7}
    if reader == 3 or features is not None:
        tree["readerFeatures"] = ["deletionVectors", "v2Checkpoint"] if features is None else features
        tree["writerFeatures"] = tree["readerFeatures"]
    return {"protocol": tree}


def metadata(partitions: tuple[str, ...] = ("p",), schema: str = SCHEMA, **configuration: str) -> dict[str, Any]:
    return {
        "metaData": {
            "id": "table-id",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema,
            "partitionColumns": list(partitions),
            "configuration": {key.replace("__", "."): value for key, value in configuration.items()},
        }
    }


def vector(number: int | None) -> dict[str, Any] | None:
    if number is None:
        return None
    tree = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "sizeInBytes": 40, "cardinality": 2}
    return tree if number == 0 else {**tree, "offset": number}


def add(path: str, *, dv: int | None = None, size: int = 10, p: str | None = "x", **more: Any) -> dict[str, Any]:
    tree = {"path": path, "partitionValues": {"p": p}, "size": size, "modificationTime": 7, "dataChange": True, **more}
    if dv is not None:
        tree["deletionVector"] = vector(dv)
    return {"add": tree}


def remove(path: str, *, dv: int | None = None, **more: Any) -> dict[str, Any]:
    tree = {"path": path, "deletionTimestamp": 9, "dataChange": True, **more}
    if dv is not None:
        tree["deletionVector"] = vector(dv)
    return {"remove": tree}


def lines(actions: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(action) + "\n" for action in actions).encode()


class MemoryLogStore:
    """A log held in memory, relative path to bytes. ``listing=False`` plays GET-only storage."""

    def __init__(
        self,
        files: dict[str, bytes],
        root: str = "s3://bucket/table",
        *,
        listing: bool = True,
        known_version: int | None = None,
    ) -> None:
        self.files, self.root, self.listing, self.known_version = files, root, listing, known_version

    def read(self, path: str) -> bytes:
        try:
            return self.files[path.removeprefix(self.root + "/")]
        except KeyError:
            raise FileNotFoundError(path) from None

    def open(self, path: str, size: int | None = None) -> ByteSource:
        return MemorySource(path, self.read(path))

    def list_from(self, relative_dir: str, start_name: str) -> list[StoredObject] | None:
        if not self.listing:
            return None
        prefix = relative_dir + "/"
        names = sorted(p[len(prefix) :] for p in self.files if p.startswith(prefix) and "/" not in p[len(prefix) :])
        return [StoredObject(n, len(self.files[prefix + n]), 0) for n in names if n >= start_name]

    def info(self, path: str) -> StoredObject:
        return StoredObject(path, len(self.read(path)), 0)


class TimedStore(MemoryLogStore):
    """A log in memory whose files have times, and whose absent keys may be refused instead."""

    def __init__(
        self,
        files: dict[str, bytes],
        *,
        listing: bool = True,
        refuses: bool = False,
        known_version: int | None = None,
    ) -> None:
        super().__init__(files, ROOT, listing=listing, known_version=known_version)
        self.times: dict[str, int] = {}
        self.refuses, self.reads = refuses, []  # type: ignore[var-annotated]

    def read(self, path: str) -> bytes:
        self.reads.append(path)
        try:
            return super().read(path)
        except FileNotFoundError:
            if self.refuses:
                raise PermissionError(path) from None
            raise

    def list_from(self, relative_dir: str, start_name: str) -> list[StoredObject] | None:
        entries = super().list_from(relative_dir, start_name)
        return entries and [StoredObject(e.name, e.size, self.times.get(e.name, 0)) for e in entries]

    def info(self, path: str) -> StoredObject:
        return super().info(path)._replace(modified_ms=self.times.get(path.rpartition("/")[2], 0))


def log(*commits: list[dict[str, Any]], **options: Any) -> TimedStore:
    """A table of these commits; protocol and metadata are put before the first unless it brings them."""
    first = list(commits[0]) if commits else []
    if not any("protocol" in action for action in first):
        first = [protocol(), metadata(), *first]
    store = TimedStore({}, **options)
    for version, actions in enumerate([first, *commits[1:]]):
        store.files[in_log(commit_name(version))] = lines(actions)
    return store


def parquet(
    rows: list[dict[str, Any]],
    drop: tuple[str, ...] = (),
    add_type: pa.DataType = ADD,
    pairs: dict[str, str] | None = None,
) -> bytes:
    """Checkpoint rows (one action each) as a Parquet file, with some pairs in its footer."""
    types = {"add": add_type, "remove": REMOVE, "metaData": METADATA, "protocol": PROTOCOL, "sidecar": SIDECAR}
    columns = {
        name: pa.array([_maps(row.get(name)) for row in rows], kind) for name, kind in types.items() if name not in drop
    }
    out = io.BytesIO()
    pq.write_table(pa.table(columns).replace_schema_metadata(pairs), out, row_group_size=max(1, len(rows) // 2))
    return out.getvalue()


def _maps(tree: Any) -> Any:
    """Maps as Arrow takes them."""
    if not isinstance(tree, dict):
        return tree
    pairs = {"partitionValues", "configuration", "options"}
    return {k: list(v.items()) if k in pairs and isinstance(v, dict) else _maps(v) for k, v in tree.items()}


def write_checkpoint(store: MemoryLogStore, version: int, actions: list[dict[str, Any]], kind: str) -> None:
    """A checkpoint of these actions: ``classic``, ``multipart``, ``v2json``, ``v2parquet``, with ``-inline`` or sidecars."""
    small = [a for a in actions if "protocol" in a or "metaData" in a]
    files = [a for a in actions if a not in small]
    name = f"{version:020d}.checkpoint"
    if kind == "classic":
        store.files[in_log(f"{name}.parquet")] = parquet(files + small)
    elif kind == "multipart":
        half = len(files) // 2
        for part, rows in enumerate([small + files[:half], files[half:] or [{}]], 1):
            store.files[in_log(f"{name}.{part:010d}.0000000002.parquet")] = parquet(rows)
    else:
        head: list[dict[str, Any]] = [{"checkpointMetadata": {"version": version}}, *small]
        if kind.endswith("-inline"):
            head += files
        else:
            half = len(files) // 2
            for number, rows in enumerate([files[:half], files[half:]]):
                sidecar = f"{version}-{number}.parquet"
                store.files[f"_delta_log/_sidecars/{sidecar}"] = parquet(rows, drop=("metaData", "protocol", "sidecar"))
                size = len(store.files[f"_delta_log/_sidecars/{sidecar}"])
                head.append({"sidecar": {"path": sidecar, "sizeInBytes": size, "modificationTime": 1}})
        uuid = "80a083e8-7026-4e79-81be-64bd76c43a11"
        if kind.startswith("v2json"):
            store.files[in_log(f"{name}.{uuid}.json")] = lines(head)
        else:
            store.files[in_log(f"{name}.{uuid}.parquet")] = parquet(head)


def load_snapshot(store: LogStore, **options: Any) -> Snapshot:
    """A version of a table, by its log."""
    return read_snapshot(store, lambda snapshot: snapshot, **options)
