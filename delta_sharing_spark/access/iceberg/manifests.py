"""Reads manifest lists and manifests (Iceberg, "Manifests"): which files a snapshot has."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from delta_sharing_spark.access.iceberg.avro import AvroFile, corrupt
from delta_sharing_spark.access.iceberg.metadata import PartitionField
from delta_sharing_spark.errors import UnsupportedFeatureError

#: Contents of manifests and of the files they list.
DATA, POSITIONS, EQUALITY = 0, 1, 2
_ADDED, _DELETED = 1, 2
#: How many live files a manifest has; writers of version 1 have the longer names.
_COUNTS = tuple(f"{status}_{kind}_count" for status in ("added", "existing") for kind in ("files", "data_files"))
#: Maps by field ids in the record of a file.
LOWER, UPPER, NULLS = "lower_bounds", "upper_bounds", "null_value_counts"
#: Stands for a value that a manifest does not have.
MISSING = object()


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest of a snapshot, as its list describes it.

    Attributes:
        spec_id: Its partition spec; None where the manifest itself tells it.
        partitions: Summaries of the partitions of its files.
        files: The number of live files, 0 where it is not told.
    """

    path: str
    length: int | None
    spec_id: int | None
    content: int
    sequence: int
    partitions: tuple[Mapping[str, Any], ...] | None = field(default=None, repr=False)
    files: int = 0


class Entry(msgspec.Struct, frozen=True):
    """A live file of a manifest.

    Attributes:
        path, format, size, rows: The file.
        content: ``DATA``, ``POSITIONS`` or ``EQUALITY``.
        spec_id, partition: The partition spec, and the values of its fields by id, or by name where the manifest has no ids.
        sequence: Its data sequence number, inherited where the entry has none.
        tree: The fields of the Avro record, bounds and counts of the columns that were asked for.
    """

    path: str
    format: str
    size: int
    rows: int
    content: int
    spec_id: int
    partition: Mapping[int | str, Any]
    sequence: int = 0
    tree: Mapping[str, Any] = {}

    def of_field(self, name: str, field_id: int) -> Any:
        """What the manifest has of a field in a map by field ids; None where it has nothing."""
        values = self.tree.get(name)
        return values.get(field_id) if isinstance(values, dict) else None

    def partition_value(self, part: PartitionField) -> Any:
        """The value of a field of the partition, as Avro's decoder gives it; ``MISSING`` where the manifest has none.

        Avro's names are not those of the spec where these have other characters.
        """
        return self.partition.get(part.id, self.partition.get(part.name, MISSING))


def read_manifest_list(data: bytes | memoryview, path: str) -> list[Manifest]:
    """The manifests of a snapshot; raises CorruptFileError where the list is malformed."""
    return [_manifest(record, path) for record in AvroFile(data, path)]


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
            sum(_count(record[name] or 0) for name in _COUNTS if name in record),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise corrupt(path, f"an entry is malformed ({type(error).__name__})") from None


def read_manifest(data: bytes | memoryview, manifest: Manifest, fields: Collection[int]) -> Iterator[Entry]:
    """The live files of a manifest.

    Args:
        fields: The fields whose bounds and counts of NULLs are decoded, by id.

    Raises:
        CorruptFileError: It is malformed.
        UnsupportedFeatureError: A file is encrypted.
    """
    file = AvroFile(data, manifest.path, dict.fromkeys((LOWER, UPPER, NULLS), fields))
    ids = _partition_ids(file.schema)
    try:
        spec_id = manifest.spec_id
        if spec_id is None:
            spec_id = int(file.metadata["partition-spec-id"])
    except (KeyError, ValueError):
        raise corrupt(manifest.path, "it does not tell its partition spec, and its table has several") from None
    for record in file:
        try:
            entry = _entry(record, manifest, spec_id, ids)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise corrupt(manifest.path, f"an entry is malformed ({type(error).__name__})") from None
        if entry is not None:
            yield entry


def _entry(record: Mapping[str, Any], manifest: Manifest, spec_id: int, ids: Mapping[str, int]) -> Entry | None:
    status = record["status"]
    if type(status) is not int or not 0 <= status <= _DELETED:
        raise ValueError("a status that there is none of")
    if status == _DELETED:
        return None
    file = record["data_file"]
    partition = file.get("partition") or {}
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
    path = _text(file["file_path"])
    _refuse_encrypted(file.get("key_metadata"), path)
    return Entry(
        path,
        _text(file["file_format"]).upper(),
        _count(file["file_size_in_bytes"]),
        _count(file["record_count"]),
        content,
        spec_id,
        {ids[name]: value for name, value in partition.items()} if ids else partition,
        _count(sequence),
        file,
    )


def _partition_ids(schema: Any) -> dict[str, int]:
    """The ids of a manifest's partition fields by their names in Avro; none where one has no id."""
    for name in ("data_file", "partition"):
        inner = [one.get("type") for one in schema.get("fields", ()) if one.get("name") == name]
        schema = inner[0] if inner and isinstance(inner[0], dict) else {}
    ids = {one["name"]: one.get("field-id") for one in schema.get("fields", ())}
    return ids if all(type(number) is int for number in ids.values()) else {}


def _refuse_encrypted(key: object, path: str) -> None:
    if key is not None:
        raise UnsupportedFeatureError(
            f"file {path} is encrypted, which this reader does not read; ask the provider to share a table that is not",
            features=("encryption",),
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
