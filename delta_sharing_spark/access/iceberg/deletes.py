"""Tells which delete files hold for which data files (Iceberg, "Scan Planning")."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from datetime import date
from decimal import Decimal
from typing import Any
from uuid import UUID

from delta_sharing_spark.access.iceberg.avro import corrupt
from delta_sharing_spark.access.iceberg.column_bounds import number_of
from delta_sharing_spark.access.iceberg.manifests import LOWER, POSITIONS, UPPER, Entry
from delta_sharing_spark.access.iceberg.metadata import PartitionField
from delta_sharing_spark.errors import UnsupportedFeatureError
from delta_sharing_spark.scan.delete_files import PATH_ID
from delta_sharing_spark.scan.plan import MAX_VECTOR_BYTES, DeleteFile, DeletionVector
from delta_sharing_spark.schema.types import Field

#: Of a vector in a Puffin file: its size before it, its checksum after.
_FRAME_BYTES = 8
#: A spec's id, and the values of its fields.
_Partition = tuple[int, tuple[Hashable, ...]]


def _comparable(value: Any) -> Hashable:
    """A partition's value in the form in which it equals itself: writers have days as dates or as numbers, and NaN is no exception."""
    match value:
        case None | int() | str() | bytes():
            return value
        case date():
            return number_of(value)
        case UUID():
            return value.bytes
        case Decimal():
            return str(value.normalize())
    return repr(value)


class DeleteIndex:
    """The delete files of a snapshot, by what they hold for.

    Args:
        entries: Those of all delete manifests.
        keys_of: The columns of an equality delete by the ids of its fields; raises where one cannot be a key.
        spec_of: The fields of a partition spec by its id; equality deletes of one that has none hold for every file.
        namespace: See ``DeleteFile``.
    """

    def __init__(
        self,
        entries: Iterable[Entry],
        keys_of: Callable[[Sequence[int], str], tuple[Field, ...]],
        spec_of: Callable[[int], Sequence[PartitionField]],
        namespace: str,
    ) -> None:
        self._spec_of, self._namespace = spec_of, namespace
        self._vectors: dict[str, tuple[int, DeletionVector]] = {}
        self._by_path: dict[str, list[tuple[int, DeleteFile]]] = {}
        self._positions: dict[_Partition, list[tuple[int, DeleteFile, bytes | None, bytes | None]]] = {}
        self._equality: dict[_Partition | None, list[tuple[int, DeleteFile]]] = {}
        self._is_empty = True
        for entry in entries:
            self._is_empty = False
            if entry.content == POSITIONS and entry.format == "PUFFIN":
                self._add_vector(entry)
                continue
            require_parquet(entry)
            if entry.content == POSITIONS:
                self._add_positions(entry)
                continue
            ids = entry.tree.get("equality_ids")
            if not isinstance(ids, list) or not ids:
                raise corrupt(entry.path, "an equality delete names no columns")
            delete = DeleteFile(entry.path, entry.size, keys_of(ids, entry.path), namespace)
            key = self._partition(entry) if spec_of(entry.spec_id) else None
            self._equality.setdefault(key, []).append((entry.sequence, delete))

    def _add_vector(self, entry: Entry) -> None:
        path, offset, size = map(entry.tree.get, ("referenced_data_file", "content_offset", "content_size_in_bytes"))
        if (
            not (isinstance(path, str) and isinstance(offset, int) and isinstance(size, int))
            or offset < 0
            or not _FRAME_BYTES < size <= MAX_VECTOR_BYTES
        ):
            raise corrupt(entry.path, "a deletion vector does not tell its file or its place")
        path = _spelled(path)
        if path in self._vectors:
            raise corrupt(entry.path, f"file {path} has two deletion vectors")
        vector = DeletionVector("p", entry.path, offset, size - _FRAME_BYTES, entry.rows, f"{entry.path}@{offset}")
        self._vectors[path] = entry.sequence, vector

    def _add_positions(self, entry: Entry) -> None:
        delete, path = DeleteFile(entry.path, entry.size, (), self._namespace), entry.tree.get("referenced_data_file")
        values = (entry.of_field(name, PATH_ID) for name in (LOWER, UPPER))
        lower, upper = (value if isinstance(value, bytes) else None for value in values)
        if path is None and lower is not None and lower == upper:
            path = lower.decode("utf-8", "replace")
        if isinstance(path, str):
            self._by_path.setdefault(_spelled(path), []).append((entry.sequence, delete))
            return
        if lower is not None and lower.startswith(b"file:"):
            lower = upper = None  # local paths are spelled in two ways, which order otherwise
        self._positions.setdefault(self._partition(entry), []).append((entry.sequence, delete, lower, upper))

    def _partition(self, entry: Entry) -> _Partition:
        """What is equal for files of one partition: the spec, and its values."""
        return entry.spec_id, tuple(_comparable(entry.partition_value(part)) for part in self._spec_of(entry.spec_id))

    def of(self, entry: Entry) -> tuple[DeletionVector | None, tuple[DeleteFile, ...]]:
        """The vector and the delete files that hold for a data file."""
        if self._is_empty:
            return None, ()
        path = _spelled(entry.path)
        key, name, sequence = self._partition(entry), path.encode(), entry.sequence
        deletes = [
            delete
            for own in (self._equality.get(None, ()), self._equality.get(key, ()))
            for deleted, delete in own
            if sequence < deleted
        ]
        at, vector = self._vectors.get(path, (0, None))
        if vector is not None and sequence <= at:
            return vector, tuple(deletes)  # it holds what earlier position deletes say
        deletes += [delete for deleted, delete in self._by_path.get(path, ()) if sequence <= deleted]
        deletes += [
            delete
            for deleted, delete, lower, upper in self._positions.get(key, ())
            if sequence <= deleted and (lower is None or lower <= name) and (upper is None or name <= upper)
        ]
        return None, tuple(deletes)


def _spelled(path: str) -> str:
    """One spelling of a path: some writers have local ones as ``file:/x`` beside ``file:///x``."""
    return "file:///" + path[5:].lstrip("/") if path.startswith("file:") else path


def require_parquet(entry: Entry) -> None:
    """Raises UnsupportedFeatureError for a file of another format."""
    if entry.format != "PARQUET":
        raise UnsupportedFeatureError(
            f"file {entry.path} of the Iceberg table is of the format {entry.format[:20]}, and this reader reads Parquet; ask the "
            f"provider to rewrite the table as Parquet",
            features=(entry.format[:20],),
        )
