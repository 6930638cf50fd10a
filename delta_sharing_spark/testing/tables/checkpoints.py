"""Checkpoints of every kind, ``_last_checkpoint`` and log compaction (Delta protocol, "Checkpoints")."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from delta_sharing_spark.deltalog.actions import VECTOR_TYPE
from delta_sharing_spark.deltalog.paths import LAST_CHECKPOINT, LOG_DIR, SIDECAR_DIR, checkpoint_names
from delta_sharing_spark.schema.arrow import arrow_type
from delta_sharing_spark.schema.partition_values import partition_value
from delta_sharing_spark.schema.types import Decimal, Field, Primitive, Struct

Action = dict[str, Any]

_STRINGS = pa.map_(pa.string(), pa.string())
_FORMAT = pa.struct([("provider", pa.string()), ("options", _STRINGS)])
#: The columns of a checkpoint and their fields, in Delta's order.
_COLUMNS: dict[str, list[tuple[str, pa.DataType]]] = {
    "txn": [("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())],
    "add": [
        ("path", pa.string()), ("partitionValues", _STRINGS), ("size", pa.int64()), ("modificationTime", pa.int64()),
        ("dataChange", pa.bool_()), ("stats", pa.string()), ("tags", _STRINGS), ("deletionVector", VECTOR_TYPE),
        ("baseRowId", pa.int64()), ("defaultRowCommitVersion", pa.int64()),
    ],
    "remove": [
        ("path", pa.string()), ("deletionTimestamp", pa.int64()), ("dataChange", pa.bool_()),
        ("extendedFileMetadata", pa.bool_()), ("partitionValues", _STRINGS), ("size", pa.int64()),
        ("deletionVector", VECTOR_TYPE),
    ],
    "metaData": [
        ("id", pa.string()), ("name", pa.string()), ("description", pa.string()), ("format", _FORMAT),
        ("schemaString", pa.string()), ("partitionColumns", pa.list_(pa.string())), ("configuration", _STRINGS),
        ("createdTime", pa.int64()),
    ],
    "protocol": [
        ("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32()),
        ("readerFeatures", pa.list_(pa.string())), ("writerFeatures", pa.list_(pa.string())),
    ],
    "checkpointMetadata": [("version", pa.int64()), ("tags", _STRINGS)],
    "sidecar": [
        ("path", pa.string()), ("sizeInBytes", pa.int64()), ("modificationTime", pa.int64()), ("tags", _STRINGS),
    ],
}  # fmt: skip


def reconcile(commits: Iterable[Sequence[Mapping[str, Any]]]) -> list[Action]:
    """The actions that stand after a run of commits: the last protocol and metadata, one action for each file."""
    heads: dict[str, Action] = {}
    files: dict[tuple[str, str], Action] = {}
    for actions in commits:
        for action in actions:
            for kind, body in action.items():
                if kind in ("protocol", "metaData"):
                    heads[kind] = {kind: body}
                elif kind == "txn":
                    heads[f"txn {body['appId']}"] = {kind: body}
                elif kind in ("add", "remove"):
                    files[_key(body)] = {kind: {**body, "dataChange": False}}
    return [*heads.values(), *files.values()]


def _key(body: Mapping[str, Any]) -> tuple[str, str]:
    vector = body.get("deletionVector")
    if not vector:
        return body["path"], ""
    return body["path"], f"{vector['storageType']}{vector['pathOrInlineDv']}@{vector.get('offset')}"


def write_compaction(root: Path, commits: Mapping[int, Sequence[Mapping[str, Any]]], start: int, end: int) -> Path:
    """``<start>.<end>.compacted.json`` of the commits in that range, both ends included."""
    actions = reconcile(commits[v] for v in range(start, end + 1))
    path = root / LOG_DIR / f"{start:020d}.{end:020d}.compacted.json"
    path.write_text("".join(json.dumps(a, ensure_ascii=False) + "\n" for a in actions), encoding="utf-8")
    return path


def write_checkpoint(
    root: Path,
    version: int,
    commits: Mapping[int, Sequence[Mapping[str, Any]]],
    schema: Struct,
    kind: str = "classic",
    *,
    parts: int = 2,
    sidecars: int = 2,
    stats_json: bool = True,
    stats_parsed: bool = False,
    row_group_size: int | None = None,
) -> list[Path]:
    """A checkpoint of ``version``, and ``_last_checkpoint``.

    Args:
        commits: Every version's actions up to it.
        schema: The table's, for ``stats_parsed``.
        kind: ``"classic"``, ``"multipart"``, ``"v2-json"``, ``"v2-parquet"`` or ``"v2-classic"``.
        parts: Of a multi-part checkpoint.
        sidecars: Of a V2 checkpoint; 0 keeps file actions in it.
        stats_json, stats_parsed: Which form of statistics it has.
        row_group_size: Rows of a row group.

    Returns:
        The files of the checkpoint, sidecars included.
    """
    actions = reconcile(commits[v] for v in range(version + 1))
    shape = _Shape(schema, stats_json, stats_parsed, row_group_size)
    log = root / LOG_DIR
    if kind == "classic":
        paths = [shape.write(log / checkpoint_names(version)[0], actions)]
    elif kind == "multipart":
        names = checkpoint_names(version, parts)
        paths = [shape.write(log / name, actions[i::parts]) for i, name in enumerate(names)]
    elif kind in ("v2-json", "v2-parquet", "v2-classic"):
        paths = _write_v2(root, version, actions, kind, sidecars, shape)
    else:
        raise ValueError(f"unknown kind of checkpoint {kind!r}")
    hint = {"version": version, "size": len(actions), **({"parts": parts} if kind == "multipart" else {})}
    (root / LAST_CHECKPOINT).write_text(json.dumps(hint), encoding="utf-8")
    return paths


def _write_v2(root: Path, version: int, actions: list[Action], kind: str, sidecars: int, shape: _Shape) -> list[Path]:
    files = [a for a in actions if "add" in a or "remove" in a]
    top: list[Action] = [{"checkpointMetadata": {"version": version}}]
    top += [a for a in actions if not ("add" in a or "remove" in a)]
    paths = []
    if not sidecars:
        top += files
    for index in range(sidecars):
        path = root / SIDECAR_DIR / f"{uuid.uuid4()}.parquet"
        path.parent.mkdir(exist_ok=True)
        paths.append(shape.write(path, files[index::sidecars], only_files=True))
        stat = path.stat()
        body = {"path": path.name, "sizeInBytes": stat.st_size, "modificationTime": int(stat.st_mtime * 1000)}
        top.append({"sidecar": body})
    log = root / LOG_DIR
    if kind == "v2-json":
        target = log / f"{version:020d}.checkpoint.{uuid.uuid4()}.json"
        target.write_text("".join(json.dumps(a, ensure_ascii=False) + "\n" for a in top), encoding="utf-8")
        return [target, *paths]
    name = f"{version:020d}.checkpoint.{uuid.uuid4()}.parquet" if kind == "v2-parquet" else checkpoint_names(version)[0]
    return [shape.write(log / name, top), *paths]


class _Shape:
    """How a checkpoint's Parquet files look."""

    def __init__(self, schema: Struct, stats_json: bool, stats_parsed: bool, row_group_size: int | None) -> None:
        self._schema, self._json, self._parsed, self._rows = schema, stats_json, stats_parsed, row_group_size

    def write(self, path: Path, actions: Sequence[Action], *, only_files: bool = False) -> Path:
        is_v2 = any("checkpointMetadata" in action for action in actions)
        kinds = ("add", "remove") if only_files else tuple(_COLUMNS) if is_v2 else tuple(_COLUMNS)[:5]
        columns = {kind: self._column(actions, kind, _COLUMNS[kind]) for kind in kinds}
        pq.write_table(pa.table(columns), path, row_group_size=self._rows, store_schema=False)
        return path

    def _column(self, actions: Sequence[Action], kind: str, fields: list[tuple[str, pa.DataType]]) -> pa.Array:
        if kind != "add":
            return pa.array([action.get(kind) for action in actions], pa.struct(fields))
        kinds = [f for f in fields if self._json or f[0] != "stats"]
        adds = pa.array([action.get("add") for action in actions], pa.struct(kinds))
        if not self._parsed:
            return adds
        texts = [a["add"].get("stats") if "add" in a else None for a in actions]
        parsed = parsed_stats(texts, self._schema)
        children = [*(adds.field(i) for i in range(adds.type.num_fields)), parsed]
        return pa.StructArray.from_arrays(
            children, fields=[*adds.type, pa.field("stats_parsed", parsed.type)], mask=adds.is_null()
        )


_SKIPPED = frozenset({"binary", "boolean", "void", "variant"})


def parsed_stats(texts: Sequence[str | None], schema: Struct) -> pa.Array:
    """A struct array of the statistics of each file, typed after the table's schema (physical names)."""
    trees = [None if text is None else json.loads(text, parse_float=str) for text in texts]
    bounds = _bounds_type(schema)
    ends = ("minValues", "maxValues")
    fields = [("numRecords", pa.int64()), *((end, bounds) for end in ends), ("nullCount", _nulls_type(schema))]
    rows = [
        None if t is None else {"nullCount": {}, **t, **{end: _bounds(t.get(end) or {}, schema) for end in ends}}
        for t in trees
    ]
    return pa.array(rows, pa.struct([*fields, ("tightBounds", pa.bool_())]))


def _has_bounds(field: Field) -> bool:
    kind = field.type
    return isinstance(kind, (Struct, Decimal)) or (isinstance(kind, Primitive) and kind.name not in _SKIPPED)


def _bounds_type(schema: Struct) -> pa.DataType:
    fields = [(f.physical_name, f.type) for f in schema.fields if _has_bounds(f)]
    return pa.struct([(n, _bounds_type(kind) if isinstance(kind, Struct) else arrow_type(kind)) for n, kind in fields])


def _nulls_type(schema: Struct) -> pa.DataType:
    return pa.struct(
        [(f.physical_name, _nulls_type(f.type) if isinstance(f.type, Struct) else pa.int64()) for f in schema.fields]
    )


def _bounds(tree: dict[str, Any], schema: Struct) -> dict[str, Any]:
    held = ((f, tree.get(f.physical_name)) for f in schema.fields if _has_bounds(f))
    return {
        f.physical_name: _bounds(v, f.type) if isinstance(f.type, Struct) else partition_value(str(v), f.type)
        for f, v in held
        if v is not None
    }
