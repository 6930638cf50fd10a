"""Reads a log's deletion vector descriptors (Delta protocol, "Deletion Vector Descriptor Schema")."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, TypeGuard

from delta_sharing_spark.deltalog.paths import decode_uri, join
from delta_sharing_spark.errors import LogError
from delta_sharing_spark.scan.deletion_vector import z85_decode
from delta_sharing_spark.scan.plan import MAX_FILE_BYTES, MAX_FILE_ROWS, MAX_VECTOR_BYTES, DeletionVector

_UUID_CHARACTERS = 20
_FIELDS = ("storageType", "pathOrInlineDv", "offset", "sizeInBytes", "cardinality")


def unique_id(storage: str, path_or_inline: str, offset: int | None) -> str:
    """The id that makes a logical file together with its path (Delta protocol, "Deletion Vector Descriptor Schema")."""
    return f"{storage}{path_or_inline}" if offset is None else f"{storage}{path_or_inline}@{offset}"


def relative_vector_path(path_or_inline: str) -> str:
    """The path of a vector with storage ``u`` below the table's root; raises ValueError where the text does not end in a uuid."""
    if len(path_or_inline) < _UUID_CHARACTERS:
        raise ValueError(f"{len(path_or_inline)} characters hold no uuid of {_UUID_CHARACTERS}")
    prefix, encoded = path_or_inline[:-_UUID_CHARACTERS], path_or_inline[-_UUID_CHARACTERS:]
    name = f"deletion_vector_{uuid.UUID(bytes=z85_decode(encoded))}.bin"
    return f"{prefix}/{name}" if prefix else name


def vector_from(descriptor: Mapping[str, Any], root: str, file: str) -> DeletionVector:
    """A descriptor of the log as a plan carries it: its storage is ``i``, or ``p`` with an absolute location.

    Args:
        root: The table's location, where a path of storage ``u`` starts.
        file: The data file, for errors.

    Raises:
        LogError: A descriptor that is incomplete, of wrong types or sizes, or of an unknown storage type.
    """
    storage, path_or_inline, offset, size, cardinality = map(descriptor.get, _FIELDS)
    if not isinstance(storage, str) or not isinstance(path_or_inline, str):
        raise _bad_descriptor(file, "storageType and pathOrInlineDv must both be there, as text")
    if not _is_count(size, MAX_VECTOR_BYTES) or not _is_count(cardinality, MAX_FILE_ROWS):
        raise _bad_descriptor(
            file,
            f"sizeInBytes must be 0 to {MAX_VECTOR_BYTES} and cardinality 0 to {MAX_FILE_ROWS}, they are "
            f"{str(size)[:50]} and {str(cardinality)[:50]}",
        )
    if offset is not None and not _is_count(offset, MAX_FILE_BYTES):
        raise _bad_descriptor(file, f"its offset is {str(offset)[:50]}")
    name = unique_id(storage, path_or_inline, offset)
    if storage == "i":
        return DeletionVector("i", path_or_inline, offset, size, cardinality, name)
    if storage == "p":
        return DeletionVector("p", join(root, decode_uri(path_or_inline)), offset, size, cardinality, name)
    if storage == "u":
        try:
            location = join(root, relative_vector_path(path_or_inline))
        except ValueError as error:
            raise _bad_descriptor(file, f"its path {path_or_inline!r} holds no uuid ({error})") from error
        return DeletionVector("p", location, offset, size, cardinality, name)
    raise _bad_descriptor(file, f"the storage type {storage!r} is unknown")


def _is_count(value: object, most: int) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= most


def _bad_descriptor(file: str, why: str) -> LogError:
    return LogError(
        f"the deletion vector of {file} cannot be located: {why}; ask the provider to check the table's log", file=file
    )
