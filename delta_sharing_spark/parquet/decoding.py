"""Tells which column chunks Spark's Parquet reader cannot decode, by codec, encoding, type and release of Spark.

Both of its readers have to decode a chunk, the vectorised one and the other: a session chooses between them.
``tests/spark/test_parquet_encodings.py`` holds the table against the Spark that runs.
"""

from __future__ import annotations

import re
from functools import lru_cache

from delta_sharing_spark.parquet.thrift import read_struct

#: Major and minor version of Spark.
Release = tuple[int, int]
OLDEST: Release = (4, 0)

_CODECS = ("UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW")
_ENCODINGS = {
    0: "PLAIN", 2: "PLAIN_DICTIONARY", 3: "RLE", 4: "BIT_PACKED", 5: "DELTA_BINARY_PACKED", 6: "DELTA_LENGTH_BYTE_ARRAY",
    7: "DELTA_BYTE_ARRAY", 8: "RLE_DICTIONARY", 9: "BYTE_STREAM_SPLIT",
}  # fmt: skip
_TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
#: Those that every Spark decodes; of the encodings, for all types that have them.
_DECODED_CODECS = frozenset((0, 1, 2, 5, 6, 7))
_DECODED_ENCODINGS = frozenset((0, 2, 3, 4, 5, 6, 7, 8))
_BYTE_STREAM_SPLIT, _SPLIT_SINCE = 9, (4, 3)


def release_of(version: str) -> Release:
    """The release that Spark's version is of; the oldest for a version of an unknown form."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else OLDEST


@lru_cache(maxsize=4096)
def undecoded(stored: bytes, codec: int, release: Release) -> str | None:
    """What of a column chunk Spark's reader cannot decode; None if it can decode all.

    Args:
        stored: The fields ``type`` and ``encodings`` of its ``ColumnMetaData``, in Thrift's compact protocol.
        codec: Its ``codec``.
        release: Spark's.

    Raises:
        KeyError, IndexError, ValueError: ``stored`` is of another form.
    """
    if codec not in _DECODED_CODECS:
        return f"the codec {_CODECS[codec] if 0 <= codec < len(_CODECS) else codec}"
    fields, _ = read_struct(stored + b"\0")
    physical, encodings = fields[1][1], fields[2][1].items
    for encoding in encodings:
        is_split = encoding == _BYTE_STREAM_SPLIT and release >= _SPLIT_SINCE
        if encoding not in _DECODED_ENCODINGS and not is_split:
            return f"the encoding {_ENCODINGS.get(encoding, encoding)} of {_TYPES[physical]}"
    return None
