"""Reads deletion vectors of the delta response format, whose files are presigned URLs."""

from __future__ import annotations

from delta_sharing_spark.deltalog.vector_descriptor import unique_id
from delta_sharing_spark.errors import ResponseError
from delta_sharing_spark.scan.plan import DeletionVector
from delta_sharing_spark.sharing.wire_records import FileRecord


def vector_of(record: FileRecord, table: str) -> DeletionVector | None:
    """The deletion vector of a line in delta format; its path is a presigned URL unless it is inline."""
    raw = record.deletion_vector
    if raw is None:
        return None
    if raw.storage_type not in ("i", "p", "u"):
        raise ResponseError(
            f"file {record.id} of {table} has a deletion vector of the unknown storage type {raw.storage_type!r}; "
            f"upgrade delta-sharing-spark"
        )
    # One version may remove a file with one vector and add it with another: both keep their own name.
    name = record.deletion_vector_file_id or f"{record.id}/{record.kind}/{record.version}"
    return DeletionVector(
        storage=raw.storage_type,
        path=raw.path_or_inline_dv,
        offset=raw.offset,
        size=raw.size_in_bytes,
        cardinality=raw.cardinality,
        unique_id=unique_id("i", raw.path_or_inline_dv, None) if raw.storage_type == "i" else f"{name}@{raw.offset}",
        file_id=record.deletion_vector_file_id,
    )
