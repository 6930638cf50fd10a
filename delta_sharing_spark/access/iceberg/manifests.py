"""Reads manifest lists and manifests (Iceberg, "Manifests"): Avro files, decoded by fastavro."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from delta_sharing_spark._version import install_line
from delta_sharing_spark.access.iceberg.metadata import PartitionField
from delta_sharing_spark.errors import ConfigError, CorruptFileError, UnsupportedFeatureError

#: Contents of manifests and of the files they list.
DATA, POSITIONS, EQUALITY = 0, 1, 2
_ADDED, _DELETED = 1, 2
#: Field ids of the columns of position delete files.
FILE_PATH_ID, POSITION_ID = 2147483546, 2147483545
_MOST_RECORDS = 50_000_000
#: Stands for a value that a manifest does not have.
MISSING = object()


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest of a snapshot, as its list describes it."""

    path: str
    length: int | None
    spec_id: int
    content: int
    sequence: int
    partitions: tuple[Mapping[str, Any], ...] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Entry:
    """A live file of a manifest.

    Attributes:
        path, format, size, rows: The file.
        content: ``DATA``, ``POSITIONS`` or ``EQUALITY``.
        spec_id, partition: The partition spec, and the values of its fields by id, or by name where the manifest has no ids.
        sequence: Its data sequence number, inherited where the entry has none.
        tree: The other fields of the Avro record.
    """

    path: str
    format: str
    size: int
    rows: int
    content: int
    spec_id: int
    partition: Mapping[int | str, Any] = field(repr=False)
    sequence: int = 0
    tree: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def partition_value(self, part: PartitionField) -> Any:
        """The value of a field of the partition, as Avro's decoder gives it; ``MISSING`` where the manifest has none.

        Avro's names are not those of the spec where these have other characters.
        """
        return self.partition.get(part.id, self.partition.get(part.name, MISSING))


def read_manifest_list(data: bytes | memoryview, path: str) -> list[Manifest]:
    """The manifests of a snapshot; raises CorruptFileError where the list is malformed."""
    return [_manifest(record, path) for record in _records(data, path)]


def _manifest(record: Mapping[str, Any], path: str) -> Manifest:
    partitions, length = record.get("partitions"), record.get("manifest_length")
    _refuse_encrypted(record.get("key_metadata"), path)
    try:
        return Manifest(
            _text(record["manifest_path"]),
            _count(length) if length is not None else None,
            _count(record.get("partition_spec_id") or 0),
            _count(record.get("content") or 0),
            _count(record.get("sequence_number") or 0),
            None if partitions is None else tuple(partitions),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise corrupt(path, f"an entry is malformed ({type(error).__name__})") from None


def read_manifest(data: bytes | memoryview, manifest: Manifest) -> Iterator[Entry]:
    """The live files of a manifest.

    Raises:
        CorruptFileError: It is malformed.
        UnsupportedFeatureError: A file is encrypted.
    """
    for record in _records(data, manifest.path):
        try:
            entry = _entry(record, manifest)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise corrupt(manifest.path, f"an entry is malformed ({type(error).__name__})") from None
        if entry is not None:
            _refuse_encrypted(entry.tree.get("key_metadata"), entry.path)
            yield entry


def _entry(record: Mapping[str, Any], manifest: Manifest) -> Entry | None:
    status = _count(record["status"])
    if status == _DELETED:
        return None
    file, partition = record["data_file"], record["data_file"].get("partition") or {}
    if not isinstance(partition, dict):
        raise TypeError("a partition is a record")
    sequence = record.get("sequence_number")
    if sequence is None:
        if status != _ADDED and manifest.sequence != 0:
            raise ValueError("only an added file inherits its sequence number")
        sequence = manifest.sequence
    content = _count(file.get("content") or 0)
    if (content == DATA) != (manifest.content == DATA) or content > EQUALITY:
        raise ValueError("a file's content is not its manifest's")
    return Entry(
        _text(file["file_path"]),
        _text(file["file_format"]).upper(),
        _count(file["file_size_in_bytes"]),
        _count(file["record_count"]),
        content,
        manifest.spec_id,
        partition,
        _count(sequence),
        file,
    )


def _refuse_encrypted(key: object, path: str) -> None:
    if key is not None:
        raise UnsupportedFeatureError(
            f"file {path} is encrypted, which this reader does not read; ask the provider to share a table that is not",
            features=("encryption",),
        )


def _records(data: bytes | memoryview, path: str) -> Iterator[dict[str, Any]]:
    fastavro = _fastavro()
    try:
        # All fields are decoded: to pass over some by a schema to read by costs fastavro more than it saves.
        reader = fastavro.reader(io.BytesIO(data))
        if not _is_bounded(reader.writer_schema):
            raise corrupt(path, "it holds lists of nothing")
        ids = _partition_ids(reader.writer_schema)
        for number, record in enumerate(reader):
            if number >= _MOST_RECORDS or not isinstance(record, dict):
                raise corrupt(path, "its records are none of a manifest")
            if ids:
                file = record["data_file"]
                file["partition"] = {ids[name]: value for name, value in file["partition"].items()}
            yield record
    except (CorruptFileError, UnsupportedFeatureError, GeneratorExit):
        raise
    except Exception as error:  # fastavro raises whatever damaged bytes lead it to
        raise corrupt(path, f"it is no Avro file that can be read ({type(error).__name__})") from None


def _partition_ids(schema: Any) -> dict[str, int]:
    """The ids of a manifest's partition fields by their names in Avro; none where one has no id, or in a manifest list."""
    for name in ("data_file", "partition"):
        inner = [one.get("type") for one in schema.get("fields", ()) if one.get("name") == name]
        schema = inner[0] if inner and isinstance(inner[0], dict) else {}
    ids = {one["name"]: one.get("field-id") for one in schema.get("fields", ())}
    return ids if all(type(number) is int for number in ids.values()) else {}


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError:
        raise ConfigError(
            f"Iceberg tables are read by fastavro, which is not installed: {install_line('iceberg')}"
        ) from None
    return fastavro


def _is_bounded(schema: Any) -> bool:
    """Whether each item of each list takes bytes: a list of nothing could have any length."""
    if isinstance(schema, list):
        return all(map(_is_bounded, schema))
    if not isinstance(schema, dict):
        return True
    if schema.get("type") == "array":
        return _takes_bytes(schema["items"]) and _is_bounded(schema["items"])
    parts = [schema.get("values"), *(one.get("type") for one in schema.get("fields", ()))]
    inner = schema.get("type")
    return all(map(_is_bounded, [*parts, inner if isinstance(inner, dict | list) else None]))


def _takes_bytes(schema: Any) -> bool:
    if isinstance(schema, list):
        return True  # which of a union it is takes a byte
    if not isinstance(schema, dict):
        return bool(schema != "null")
    if schema.get("type") == "record":
        return any(_takes_bytes(one["type"]) for one in schema["fields"])
    return schema.get("type") not in ("null",) and schema.get("size") != 0


def corrupt(path: str, why: str) -> CorruptFileError:
    """The error of a manifest or a manifest list that cannot be read."""
    return CorruptFileError(
        f"file {path} is a damaged part of an Iceberg table: {why}; load the table again, and ask the provider to check it",
        file=path,
    )


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise TypeError("not a count")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError("not a text")
    value.encode()  # raises ValueError for half a character
    return value
