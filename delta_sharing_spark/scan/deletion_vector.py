"""Decodes and encodes deletion vectors (Delta protocol, "Deletion Vector Format").

Rows are physical positions in the data file, whatever row groups are read. They stay a compressed bitmap
(``pyroaring.BitMap64``); a mask is made for the rows at hand only.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from delta_sharing_spark.errors import CorruptFileError
from delta_sharing_spark.scan.plan import DeletionVector

if TYPE_CHECKING:
    from pyroaring import BitMap64

MAGIC = 1681511377

Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_Z85_VALUES = {character: value for value, character in enumerate(Z85)}


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


def decode(framed: bytes | memoryview, vector: DeletionVector, *, file: str = "a file") -> BitMap64:
    """Decode a vector that lies in a file.

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
    if magic != MAGIC:
        raise _corrupt(vector, file, f"its format is {magic}, and only {MAGIC} (portable Roaring) is known")
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


def select_mask(
    start_row: int, n_rows: int, rows: BitMap64 | None, *, invert: bool = False, excluded: BitMap64 | None = None
) -> npt.NDArray[np.bool_]:
    """A mask of the rows ``start_row`` to ``start_row + n_rows`` of a file: which of them stay.

    Costs in proportion to the range and what is marked in it, not to the file.

    Args:
        start_row: Position in the file.
        n_rows: How many rows.
        rows: Rows to leave out; with ``invert`` only those stay.
        invert: See ``rows``.
        excluded: Rows to leave out in any case.
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
