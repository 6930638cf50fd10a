"""Encodes deletion vectors (Delta protocol, "Deletion Vector Format"), as ``scan.deletion_vector`` decodes them."""

from __future__ import annotations

import struct
import zlib
from typing import Any

from delta_sharing_spark.scan.deletion_vector import MAGIC, Z85

#: First byte of a deletion vector file.
FILE_VERSION = 1


def z85_encode(data: bytes) -> str:
    """Encode bytes, a multiple of four, in Z85."""
    if len(data) % 4:
        raise ValueError(f"{len(data)} bytes are not groups of four")
    out: list[str] = []
    for (value,) in struct.iter_unpack(">I", data):
        group = []
        for _ in range(5):
            value, digit = divmod(value, 85)
            group.append(Z85[digit])
        out += reversed(group)
    return "".join(out)


def encode(positions: Any) -> bytes:
    """The payload of a vector over ``positions`` (an iterable of row numbers)."""
    from pyroaring import BitMap64

    rows = BitMap64(positions)
    rows.run_optimize()
    return struct.pack("<i", MAGIC) + bytes(rows.serialize())


def frame(payload: bytes) -> bytes:
    """A payload as it lies in a file: size, payload, CRC-32."""
    return struct.pack(">i", len(payload)) + payload + struct.pack(">I", zlib.crc32(payload))
