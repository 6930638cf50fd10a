"""Deletion vectors: from a descriptor of the log to the rows that are gone (Delta protocol, "Deletion Vectors").

Rows are physical positions in the data file, whatever row groups are read. They stay a compressed bitmap
(``pyroaring.BitMap64``); a mask is made for the rows at hand only.
"""

from __future__ import annotations

import struct
import uuid
import zlib
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import numpy.typing as npt

from delta_sharing_spark.deltalog.paths import decode_uri, join
from delta_sharing_spark.errors import CorruptFileError, LogError
from delta_sharing_spark.scan.plan import MAX_FILE_BYTES, MAX_FILE_ROWS, MAX_VECTOR_BYTES, DeletionVector

if TYPE_CHECKING:
    from pyroaring import BitMap64

#: First byte of a deletion vector file.
FILE_VERSION = 1
_MAGIC = 1681511377

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_Z85_VALUES = {character: value for value, character in enumerate(_Z85)}
_UUID_CHARACTERS = 20


def z85_decode(text: str) -> bytes:
    """Decode Z85 (ZeroMQ RFC 32); five characters are four bytes.

    The last group may be short, as delta-rs writes it: one to three leading ``#`` stand for as many missing bytes
    (no group of four bytes starts so).

    Raises:
        ValueError: A character outside the alphabet, a broken group, or a group above 32 bits.
    """
    if len(text) % 5:
        raise ValueError(f"{len(text)} characters are not groups of five")
    out = bytearray()
    for start in range(0, len(text), 5):
        group = text[start : start + 5]
        length = 4
        if group[0] == "#" and start + 5 == len(text):
            stripped = group.lstrip("#")
            length, group = max(4 - (5 - len(stripped)), 1), group[min(5 - len(stripped), 3) :]
        value = 0
        for character in group:
            digit = _Z85_VALUES.get(character)
            if digit is None:
                raise ValueError(f"{character!r} is not a Z85 character")
            value = value * 85 + digit
        if value >= 1 << (8 * length):
            raise ValueError(f"the group at {start} is above {8 * length} bits")
        out += value.to_bytes(length, "big")
    return bytes(out)


def z85_encode(data: bytes) -> str:
    """Encode bytes, a multiple of four, in Z85."""
    if len(data) % 4:
        raise ValueError(f"{len(data)} bytes are not groups of four")
    out: list[str] = []
    for (value,) in struct.iter_unpack(">I", data):
        group = []
        for _ in range(5):
            value, digit = divmod(value, 85)
            group.append(_Z85[digit])
        out += reversed(group)
    return "".join(out)


def unique_id(storage: str, path_or_inline: str, offset: int | None) -> str:
    """The id that makes a logical file together with its path (Delta protocol, "Deletion Vector Descriptor Schema")."""
    return f"{storage}{path_or_inline}" if offset is None else f"{storage}{path_or_inline}@{offset}"


def relative_vector_path(path_or_inline: str) -> str:
    """The path below the table's root of a vector with storage ``u``: ``<prefix>/deletion_vector_<uuid>.bin``.

    Raises:
        ValueError: The text does not end in an encoded uuid.
    """
    if len(path_or_inline) < _UUID_CHARACTERS:
        raise ValueError(f"{len(path_or_inline)} characters hold no uuid of {_UUID_CHARACTERS}")
    prefix, encoded = path_or_inline[:-_UUID_CHARACTERS], path_or_inline[-_UUID_CHARACTERS:]
    name = f"deletion_vector_{uuid.UUID(bytes=z85_decode(encoded))}.bin"
    return f"{prefix}/{name}" if prefix else name


def vector_from_descriptor(
    storage: object,
    path_or_inline: object,
    offset: object,
    size: object,
    cardinality: object,
    *,
    root: str,
    file: str = "a file",
) -> DeletionVector:
    """A descriptor of the log as a plan carries it.

    Args:
        storage: ``storageType``: ``u``, ``p`` or ``i``.
        path_or_inline: ``pathOrInlineDv``.
        offset: Bytes into the vector's file, None if the descriptor has none.
        size: ``sizeInBytes`` of the payload.
        cardinality: Rows that the vector marks.
        root: The table's location, where ``u`` starts.
        file: The data file, for errors.

    Returns:
        A vector whose storage is ``i``, or ``p`` with an absolute location: ``u`` is resolved here.

    Raises:
        LogError: A descriptor that is incomplete, of wrong types or sizes, or of an unknown storage type.
    """
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


def decode(framed: bytes | memoryview, vector: DeletionVector, *, file: str = "a file") -> BitMap64:
    """The rows a vector in a file marks.

    Args:
        framed: The vector's size (int32, big-endian), payload and CRC-32; bytes after them are ignored.
        vector: Its descriptor.
        file: The data file, for errors.

    Returns:
        Positions of deleted rows.

    Raises:
        CorruptFileError: Size, checksum, magic number, bitmap or row count are not what the descriptor says.
    """
    if len(framed) < vector.frame.length:
        raise _corrupt(vector, file, f"{len(framed)} bytes were read, {vector.frame.length} are needed")
    (size,) = struct.unpack_from(">i", framed)
    if size != vector.size:
        raise _corrupt(vector, file, f"it says {size} bytes, the log {vector.size}")
    payload = memoryview(framed)[4 : 4 + size]
    (checksum,) = struct.unpack_from(">I", framed, 4 + size)
    if zlib.crc32(payload) != checksum:
        raise _corrupt(vector, file, "its checksum does not fit its bytes")
    return _decode_payload(payload, vector, file)


def decode_inline(vector: DeletionVector, *, file: str = "a file") -> BitMap64:
    """The rows of a vector that stands in the log itself (storage ``i``). Raises as :func:`decode`."""
    try:
        payload = z85_decode(vector.path)
    except ValueError as error:
        raise _corrupt(vector, file, f"its text is not Z85 ({error})") from error
    if not 0 <= len(payload) - vector.size < 4:
        raise _corrupt(vector, file, f"it holds {len(payload)} bytes, the log says {vector.size}")
    return _decode_payload(memoryview(payload)[: vector.size], vector, file)


def _decode_payload(payload: memoryview, vector: DeletionVector, file: str) -> BitMap64:
    if len(payload) < 12:
        raise _corrupt(vector, file, f"{len(payload)} bytes hold no bitmap")
    (magic,) = struct.unpack_from("<i", payload)
    if magic != _MAGIC:
        raise _corrupt(vector, file, f"its format is {magic}, and only {_MAGIC} (portable Roaring) is known")
    from pyroaring import BitMap64

    try:
        rows = BitMap64.deserialize(bytes(payload[4:]))
    except (ValueError, IndexError) as error:
        raise _corrupt(vector, file, f"its bitmap is broken ({error})") from error
    if len(rows) != vector.cardinality:
        raise _corrupt(vector, file, f"it marks {len(rows)} rows, the log says {vector.cardinality}")
    return rows


def _corrupt(vector: DeletionVector, file: str, why: str) -> CorruptFileError:
    return CorruptFileError(
        f"the deletion vector {_short(vector.unique_id)} of {file} is corrupt: {why}; reload the DataFrame, and if it "
        f"happens again ask the provider to check the table",
        file=file,
    )


def _short(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:50]}..."


def encode(positions: Any) -> bytes:
    """The payload of a vector over ``positions`` (an iterable of row numbers): what :func:`decode` reads inside its frame."""
    from pyroaring import BitMap64

    rows = BitMap64(positions)
    rows.run_optimize()
    return struct.pack("<i", _MAGIC) + bytes(rows.serialize())


def frame(payload: bytes) -> bytes:
    """A payload as it lies in a file: size, payload, CRC-32."""
    return struct.pack(">i", len(payload)) + payload + struct.pack(">I", zlib.crc32(payload))


def select_mask(
    start_row: int, n_rows: int, rows: BitMap64 | None, *, invert: bool = False, excluded: BitMap64 | None = None
) -> npt.NDArray[np.bool_]:
    """Which of the rows ``start_row`` to ``start_row + n_rows`` of a file stay: a mask of that length.

    Costs in proportion to the range and what is marked in it, not to the file.

    Args:
        start_row: Position in the file.
        n_rows: How many rows.
        rows: Rows that leave; with ``invert`` only those stay.
        invert: See ``rows``.
        excluded: Rows that leave in any case.
    """
    mask = np.ones(n_rows, dtype=np.bool_)
    if n_rows and rows is not None:
        mask[_marked(rows, start_row, n_rows)] = False
        if invert:
            np.logical_not(mask, out=mask)
    if n_rows and excluded is not None:
        mask[_marked(excluded, start_row, n_rows)] = False
    return mask


def _marked(rows: BitMap64, start_row: int, n_rows: int) -> npt.NDArray[np.int64]:
    """Marked rows in the range, as positions from its start."""
    from pyroaring import BitMap64

    inside = rows & BitMap64(range(start_row, start_row + n_rows))
    return np.asarray(inside.to_array(), dtype=np.uint64).astype(np.int64) - start_row
