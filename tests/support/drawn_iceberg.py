"""Writes Iceberg tables file by file, as no single engine does, and knows the rows that a reader must see (Iceberg, "Scan Planning")."""

from __future__ import annotations

import io
import json
import struct
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from delta_sharing_spark.testing.tables.rewrites import encode, frame

FILE_PATH, POSITION = 2147483546, 2147483545
_ID = b"PARQUET:field_id"
_ARROW = {
    "int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(), "string": pa.string(),
    "date": pa.date32(), "boolean": pa.bool_(), "decimal(5, 2)": pa.decimal128(5, 2), "decimal(9, 2)": pa.decimal128(9, 2),
}  # fmt: skip
_AVRO = {
    "int": "int", "long": "long", "float": "float", "double": "double", "string": "string", "boolean": "boolean",
    "date": {"type": "int", "logicalType": "date"},
    "decimal(5, 2)": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2},
    "decimal(9, 2)": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
}  # fmt: skip
#: Equality of keys as Iceberg has it: NULL and NaN equal themselves.
_NAN, _NO_STRUCT = object(), object()


@dataclass(slots=True)
class Column:
    """A column of the table: ``kind`` is a primitive type, or for a struct its fields."""

    id: int
    name: str
    kind: str | list[Column]
    default: Any = None

    def tree(self) -> dict[str, Any]:
        kind: Any = self.kind
        if isinstance(kind, list):
            kind = {"type": "struct", "fields": [one.tree() for one in kind]}
        tree = {"id": self.id, "name": self.name, "required": False, "type": kind}
        return tree if self.default is None else {**tree, "initial-default": as_json(self.default)}

    def read(self, row: Mapping[int, Any], identity: Mapping[int, Any]) -> Any:
        """The column of a row, where values stand by field id."""
        if isinstance(self.kind, list):
            inner = row.get(self.id, None)
            return None if inner is None else {one.name: one.read(inner, identity) for one in self.kind}
        return row[self.id] if self.id in row else identity.get(self.id, self.default)


@dataclass(slots=True)
class DataFile:
    """A data file and its rows, by field id."""

    path: str
    rows: list[dict[int, Any]]
    spec_id: int
    partition: tuple[Any, ...]
    sequence: int
    record: dict[str, Any]
    is_alive: list[bool] = field(default_factory=list)


class IcebergWriter:
    """An Iceberg table below a local directory; each ``commit`` makes a snapshot.

    Args:
        location: Where readers find the directory; by default where it is.

    Attributes:
        columns: The current schema.
        specs: Partition specs; each field is a source's id and ``identity`` or ``bucket[4]`` and so on.
        files: Data files of the current snapshot.
    """

    def __init__(
        self,
        directory: Path,
        columns: list[Column],
        version: int = 2,
        *,
        by_names: bool = False,
        location: str | None = None,
    ) -> None:
        self.location = directory.as_uri() if location is None else location
        self.directory, self.columns, self.version, self.by_names = directory, columns, version, by_names
        (directory / "metadata").mkdir(parents=True)
        (directory / "data").mkdir()
        self.specs: list[list[tuple[int, str]]] = [[]]
        self.files: list[DataFile] = []
        self._schemas: list[list[dict[str, Any]]] = []
        self._sequence = 0
        self._snapshots: list[dict[str, Any]] = []
        self._manifests: list[dict[str, Any]] = []
        self._data: list[tuple[DataFile, int]] = []
        self._deletes: list[dict[str, Any]] = []
        self._types: dict[int, str] = {}
        self._names: dict[int, set[str]] = {}
        self.metadata_path = directory / "metadata" / "v.metadata.json"

    @property
    def next_sequence(self) -> int:
        """The number of the snapshot that the next commit makes."""
        return self._sequence + 1

    def insert(
        self,
        rows: list[dict[int, Any]],
        spec_id: int = 0,
        partition: tuple[Any, ...] = (),
        *,
        lacks: Iterable[int] = (),
        metrics: str = "full",
    ) -> DataFile:
        """Write a data file of rows of one partition.

        Args:
            lacks: Columns and fields of structs that the file does not hold.
            metrics: ``full``, ``truncated``, ``counts`` or ``none``.
        """
        left_out = set(lacks)
        rows = [_without(row, left_out) for row in rows]
        columns = _columns_without(self.columns, left_out)
        path = self._write_parquet("data", columns, rows, with_ids=not self.by_names)
        record = self._record(path, 0, len(rows), spec_id, partition)
        record |= _statistics(columns, rows, metrics)
        file = DataFile(path, rows, spec_id, partition, self.next_sequence, record, [True] * len(rows))
        self.files.append(file)
        self._data.append((file, 1))
        return file

    def delete_positions(self, places: Sequence[tuple[DataFile, int]], *, says_path: bool = False) -> None:
        """Delete rows by a position delete file; its data files are of one partition."""
        ordered = sorted(((file.path, position) for file, position in places))
        own = [Column(FILE_PATH, "file_path", "string"), Column(POSITION, "pos", "long")]
        rows = [{FILE_PATH: path, POSITION: position} for path, position in ordered]
        first = places[0][0]
        path = self._write_parquet("deletes", own, rows)
        record = self._record(path, 1, len(rows), first.spec_id, first.partition) | _statistics(own, rows, "full")
        if says_path and len({path for path, _ in ordered}) == 1:
            record |= {"referenced_data_file": ordered[0][0], "lower_bounds": None, "upper_bounds": None}
        self._deletes.append(record)
        for file, position in places:
            file.is_alive[position] = False

    def delete_vector(self, file: DataFile, positions: Iterable[int]) -> None:
        """Delete rows by a vector, which replaces the file's earlier one: all deleted rows stand in it."""
        for position in positions:
            file.is_alive[position] = False
        self._drop_vector(file)
        gone = [place for place, is_alive in enumerate(file.is_alive) if not is_alive]
        blob = frame(encode(gone))
        path = self.directory / "data" / f"{uuid.uuid4()}.puffin"
        path.write_bytes(b"PFA1" + blob)
        record = self._record(self._uri(path), 1, len(gone), file.spec_id, file.partition)
        record |= {"file_format": "PUFFIN", "referenced_data_file": file.path, "content_offset": 4,
                   "content_size_in_bytes": len(blob)}  # fmt: skip
        self._deletes.append(record)

    def _uri(self, path: Path) -> str:
        return f"{self.location}/{path.relative_to(self.directory).as_posix()}"

    def _drop_vector(self, file: DataFile) -> None:
        for manifest in self._manifests:
            manifest["entries"] = [
                entry for entry in manifest["entries"]
                if not (entry["data_file"]["file_format"] == "PUFFIN" and entry["data_file"]["referenced_data_file"] == file.path)
            ]  # fmt: skip

    def delete_equal(
        self,
        keys: Sequence[tuple[Column, ...]],
        rows: list[dict[int, Any]],
        spec_id: int = 0,
        partition: tuple[Any, ...] = (),
    ) -> None:
        """Delete the rows of older data files whose keys equal those of a row: of all, or of one partition.

        Args:
            keys: Each is a column, or the fields from a column down to one within structs.
        """
        path = self._write_parquet("deletes", _columns_of(keys), rows)
        record = self._record(path, 2, len(rows), spec_id, partition)
        self._deletes.append(record | {"equality_ids": [one[-1].id for one in keys]})
        gone = {tuple(_key(_at(one, row, {})) for one in keys) for row in rows}
        for file in self.files:
            is_global = not self.specs[spec_id]
            if file.sequence >= self.next_sequence or not (
                is_global or (file.spec_id, file.partition) == (spec_id, partition)
            ):
                continue
            identity = self._identity(file)
            for place, row in enumerate(file.rows):
                if tuple(_key(_at(one, row, identity)) for one in keys) in gone:
                    file.is_alive[place] = False

    def rows(self) -> list[dict[str, Any]]:
        """The rows that a reader of the current snapshot must see."""
        return [
            {one.name: one.read(row, self._identity(file)) for one in self.columns}
            for file in self.files
            for row, is_alive in zip(file.rows, file.is_alive, strict=True)
            if is_alive
        ]

    def commit(self) -> None:
        """Make a snapshot of what was written since the last one."""
        self._sequence += 1
        for content, entries in ((0, [(one.record, one.spec_id) for one, _ in self._data]),
                                 (1, [(one, one.pop("spec")) for one in self._deletes])):  # fmt: skip
            for spec_id in sorted({spec for _, spec in entries}):
                listed = [
                    {"status": 1, "snapshot_id": self._sequence, "sequence_number": None, "data_file": record}
                    for record, spec in entries
                    if spec == spec_id
                ]
                self._manifests.append({"entries": listed, "content": content, "spec": spec_id, "sequence": self._sequence})  # fmt: skip
        self._data, self._deletes = [], []
        tree = [one.tree() for one in self.columns]
        if tree not in self._schemas:
            self._schemas.append(tree)
        self._note_names(self.columns)
        self._snapshots.append(
            {
                "snapshot-id": self._sequence,
                "timestamp-ms": 1_700_000_000_000 + self._sequence,
                "sequence-number": self._sequence,
                "manifest-list": self._write_list(),
                "schema-id": self._schemas.index(tree),
                "summary": {"operation": "append"},
            }
        )
        properties = {}
        if self.by_names:
            names = [{"field-id": number, "names": sorted(names)} for number, names in self._names.items()]
            properties["schema.name-mapping.default"] = json.dumps(names)
        document = {
            "format-version": self.version,
            "table-uuid": str(uuid.UUID(int=1)),
            "location": self.location,
            "last-sequence-number": self._sequence,
            "schemas": [{"type": "struct", "schema-id": n, "fields": one} for n, one in enumerate(self._schemas)],
            "current-schema-id": self._schemas.index(tree),
            "partition-specs": [
                {"spec-id": n, "fields": [
                    {"field-id": 1000 + 10 * n + place, "source-id": source, "transform": transform, "name": f"p{place}"}
                    for place, (source, transform) in enumerate(spec)
                ]} for n, spec in enumerate(self.specs)
            ],
            "default-spec-id": len(self.specs) - 1,
            "properties": properties,
            "current-snapshot-id": self._sequence,
            "snapshots": self._snapshots,
            "snapshot-log": [{"snapshot-id": one["snapshot-id"], "timestamp-ms": one["timestamp-ms"]} for one in self._snapshots],
        }  # fmt: skip
        self.metadata_path.write_text(json.dumps(document))

    def _note_names(self, columns: Iterable[Column]) -> None:
        for one in columns:
            self._names.setdefault(one.id, set()).add(one.name)
            if isinstance(one.kind, list):
                self._note_names(one.kind)

    def _identity(self, file: DataFile) -> dict[int, Any]:
        parts = zip(self.specs[file.spec_id], file.partition, strict=True)
        return {source: value for (source, transform), value in parts if transform == "identity"}

    def _record(self, path: str, content: int, rows: int, spec_id: int, partition: tuple[Any, ...]) -> dict[str, Any]:
        size = (self.directory / path.removeprefix(self.location + "/")).stat().st_size
        names = {f"p{place}": value for place, value in enumerate(partition)}
        record = {
            "content": content, "file_path": path, "file_format": "PARQUET", "partition": names, "record_count": rows,
            "file_size_in_bytes": size,
        }  # fmt: skip
        return record if content == 0 else {**record, "spec": spec_id}

    def _write_parquet(
        self, kind: str, columns: list[Column], rows: list[dict[int, Any]], *, with_ids: bool = True
    ) -> str:
        self._note_names(columns if kind == "data" else ())
        fields = [_arrow_field(one, with_ids) for one in columns]
        arrays = [pa.array([_named(one, row.get(one.id)) for row in rows], f.type) for one, f in zip(columns, fields, strict=True)]  # fmt: skip
        path = self.directory / "data" / f"{kind}-{uuid.uuid4()}.parquet"
        pq.write_table(pa.Table.from_arrays(arrays, schema=pa.schema(fields)), path, row_group_size=4)
        return self._uri(path)

    def _write_list(self) -> str:
        records = []
        for manifest in self._manifests:
            if not manifest["entries"]:
                continue
            path = self.directory / "metadata" / f"{uuid.uuid4()}.avro"
            path.write_bytes(self._manifest(manifest))
            records.append(
                {"manifest_path": self._uri(path), "manifest_length": path.stat().st_size, "partition_spec_id": manifest["spec"],
                 "content": manifest["content"], "sequence_number": manifest["sequence"],
                 "added_files_count": len(manifest["entries"]), "existing_files_count": 0,
                 "partitions": self._summaries(manifest)}
            )  # fmt: skip
        path = self.directory / "metadata" / f"snap-{uuid.uuid4()}.avro"
        path.write_bytes(_avro(_LIST, records))
        return self._uri(path)

    def _kind_of(self, source: int, transform: str) -> str:
        if transform != "identity":
            return "int"
        return str(next(one.kind for one in self._all_columns() if one.id == source))

    def _all_columns(self) -> Iterable[Column]:
        yield from (path[-1] for path in _paths(self.columns))
        for schema in reversed(self._schemas):
            yield from (Column(one["id"], one["name"], one["type"]) for one in schema if isinstance(one["type"], str))

    def _manifest(self, manifest: dict[str, Any]) -> bytes:
        spec_id = manifest["spec"]
        parts = [
            {"name": f"p{place}", "field-id": 1000 + 10 * spec_id + place,
             "type": ["null", _AVRO[self._kind_of(source, transform)]], "default": None}
            for place, (source, transform) in enumerate(self.specs[spec_id])
        ]  # fmt: skip
        return _avro(_manifest_schema(parts), manifest["entries"])

    def _summaries(self, manifest: dict[str, Any]) -> list[dict[str, Any]]:
        summaries = []
        for place, (source, transform) in enumerate(self.specs[manifest["spec"]]):
            values = [one["data_file"]["partition"][f"p{place}"] for one in manifest["entries"]]
            there = [value for value in values if value is not None]
            kind = self._kind_of(source, transform)
            summaries.append(
                {"contains_null": len(there) < len(values), "contains_nan": None,
                 "lower_bound": bound(min(there), kind) if there else None,
                 "upper_bound": bound(max(there), kind) if there else None}
            )  # fmt: skip
        return summaries


def as_json(value: Any) -> Any:
    """A default value (Iceberg, "JSON single-value serialization")."""
    return str(value) if isinstance(value, Decimal | date) else value


def bound(value: Any, kind: str) -> bytes:
    """A bound (Iceberg, "Binary single-value serialization")."""
    if kind == "string":
        return str(value).encode()
    if kind.startswith("decimal"):
        unscaled = int(value.scaleb(2))
        return unscaled.to_bytes((unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1, "big", signed=True)
    if kind == "date":
        value = (value - date(1970, 1, 1)).days
    formats = {"int": "<i", "date": "<i", "long": "<q", "float": "<f", "double": "<d", "boolean": "<?"}
    return struct.pack(formats[kind], value)


def _paths(columns: Iterable[Column]) -> Iterable[tuple[Column, ...]]:
    """The fields down to each that is no struct."""
    for one in columns:
        yield from [(one, inner) for inner in one.kind] if isinstance(one.kind, list) else [(one,)]


def _statistics(columns: Iterable[Column], rows: list[dict[int, Any]], metrics: str) -> dict[str, Any]:
    names = ("null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for path in _paths(columns) if metrics != "none" else ():
        one, structs = path[-1], [row.get(path[0].id) for row in rows]
        values = structs if len(path) == 1 else [(struct or {}).get(one.id) for struct in structs]
        if len(path) > 1 and metrics == "truncated":  # some writers do not count what is NULL with its struct
            values = [value for struct, value in zip(structs, values, strict=True) if struct is not None]
        there = [value for value in values if value is not None and value == value]
        tells: list[Any] = [values.count(None), sum(value != value for value in values), None, None]
        if metrics != "counts" and there:
            low, high = min(there), max(there)
            if metrics == "truncated" and isinstance(low, str) and len(high) > 1:
                low, high = low[:1], high[:1] + "\U0010ffff"
            tells[2:] = bound(low, one.kind), bound(high, one.kind)
        for name, value in zip(names, tells, strict=True):
            if value is not None:
                found[name].append({"key": one.id, "value": value})
    return dict(found)


def _key(value: Any) -> Any:
    if isinstance(value, float):
        return _NAN if value != value else struct.pack("<d", value)
    return value


def _without(row: Mapping[int, Any], lacks: set[int]) -> dict[int, Any]:
    return {
        number: _without(value, lacks) if isinstance(value, dict) else value
        for number, value in row.items()
        if number not in lacks
    }


def _columns_without(columns: Iterable[Column], lacks: set[int]) -> list[Column]:
    return [
        replace(one, kind=_columns_without(one.kind, lacks)) if isinstance(one.kind, list) else one
        for one in columns
        if one.id not in lacks
    ]


def _columns_of(paths: Iterable[tuple[Column, ...]]) -> list[Column]:
    """The columns that paths lead to, structs with those fields alone."""
    found: dict[int, Column] = {}
    for first, *inner in paths:
        one = found.setdefault(first.id, replace(first, kind=[]) if inner else first)
        if inner:
            one.kind = [*one.kind, *_columns_of([tuple(inner)])]  # type: ignore[misc]
    return list(found.values())


def _at(path: tuple[Column, ...], row: Any, identity: Mapping[int, Any]) -> Any:
    """A row's value at a path; of a struct that is NULL another one than NULL, as Iceberg's own reader has it."""
    for one in path[:-1]:
        row = row.get(one.id)
        if row is None:
            return _NO_STRUCT
    return path[-1].read(row, identity)


def _named(column: Column, value: Any) -> Any:
    if isinstance(column.kind, list) and value is not None:
        return {one.name: _named(one, value.get(one.id)) for one in column.kind}
    return value


def _arrow_field(column: Column, with_ids: bool) -> pa.Field:
    if isinstance(column.kind, list):
        kind: pa.DataType = pa.struct([_arrow_field(one, with_ids) for one in column.kind])
    else:
        kind = _ARROW[column.kind]
    return pa.field(column.name, kind, metadata={_ID: str(column.id)} if with_ids else None)


def _avro(schema: Any, records: list[dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, schema, records, codec="deflate")
    return out.getvalue()


def _map(name: str, value: str) -> dict[str, Any]:
    entry = {"type": "record", "name": f"e_{name}", "fields": [{"name": "key", "type": "int"}, {"name": "value", "type": value}]}  # fmt: skip
    return {"name": name, "type": ["null", {"type": "array", "items": entry}], "default": None}


def _optional(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": ["null", kind], "default": None}


_LIST = {
    "type": "record", "name": "manifest_file",
    "fields": [
        {"name": "manifest_path", "type": "string"}, {"name": "manifest_length", "type": "long"},
        {"name": "partition_spec_id", "type": "int"}, {"name": "content", "type": "int"}, {"name": "sequence_number", "type": "long"},
        {"name": "added_files_count", "type": "int"}, {"name": "existing_files_count", "type": "int"},
        _optional("partitions", {"type": "array", "items": {"type": "record", "name": "r508", "fields": [
            {"name": "contains_null", "type": "boolean"}, _optional("contains_nan", "boolean"),
            _optional("lower_bound", "bytes"), _optional("upper_bound", "bytes")]}}),
    ],
}  # fmt: skip


def _manifest_schema(parts: list[dict[str, Any]]) -> dict[str, Any]:
    file = {
        "type": "record", "name": "r2",
        "fields": [
            {"name": "content", "type": "int"}, {"name": "file_path", "type": "string"}, {"name": "file_format", "type": "string"},
            {"name": "partition", "type": {"type": "record", "name": "r102", "fields": parts}},
            {"name": "record_count", "type": "long"}, {"name": "file_size_in_bytes", "type": "long"},
            *(_map(name, "long") for name in ("null_value_counts", "nan_value_counts")),
            *(_map(name, "bytes") for name in ("lower_bounds", "upper_bounds")),
            _optional("equality_ids", {"type": "array", "items": "int"}), _optional("referenced_data_file", "string"),
            _optional("content_offset", "long"), _optional("content_size_in_bytes", "long"),
        ],
    }  # fmt: skip
    return {
        "type": "record", "name": "manifest_entry",
        "fields": [{"name": "status", "type": "int"}, _optional("snapshot_id", "long"), _optional("sequence_number", "long"),
                   {"name": "data_file", "type": file}],
    }  # fmt: skip


FIRST_DAY = date(2020, 1, 1)


def day(number: int) -> date:
    return FIRST_DAY + timedelta(days=number)
