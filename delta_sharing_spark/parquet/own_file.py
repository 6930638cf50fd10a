"""Writes a Parquet file of some column chunks of one row group, in memory, for a decoder that is to see no footer but ours.

Its columns have numbers for names, no statistics, and the types that this module writes. So whatever a provider's footer
holds, the other decoder parses none of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from delta_sharing_spark.parquet.pages import check_pages
from delta_sharing_spark.parquet.thrift import (
    BINARY,
    BOOL_TRUE,
    BYTE,
    I32,
    I64,
    LIST,
    STRUCT,
    Struct,
    ThriftList,
    write_fields,
    write_head,
    write_list_head,
    write_number,
    write_struct,
)
from delta_sharing_spark.storage.ranges import Range

_MAGIC = b"PAR1"
#: What stands before the numbers of a ``ColumnMetaData``: codec, values, both sizes, the places of data and dictionary.
_NUMBERS = (
    write_head(4, I32, 3),
    *(write_head(field, I64, field - 1) for field in (5, 6, 7)),
    write_head(9, I64, 7),
    write_head(11, I64, 9),
)
#: Physical types, and codecs by pyarrow's names: its LZ4 may be either of two, and Polars checks no checksum of GZIP.
_TYPES = {"BOOLEAN": 0, "INT32": 1, "INT64": 2, "FLOAT": 4, "DOUBLE": 5, "BYTE_ARRAY": 6, "FIXED_LEN_BYTE_ARRAY": 7}
_CODECS = {"UNCOMPRESSED": 0, "SNAPPY": 1, "BROTLI": 4, "ZSTD": 6}
#: Encodings: PLAIN, PLAIN_DICTIONARY and RLE_DICTIONARY; and by physical type RLE, DELTA_BINARY_PACKED, BYTE_STREAM_SPLIT.
_USUAL = frozenset((0, 2, 8))
_ENCODINGS = {
    "BOOLEAN": _USUAL | {3},
    "INT32": _USUAL | {5, 9},
    "INT64": _USUAL | {5, 9},
    "FLOAT": _USUAL | {9},
    "DOUBLE": _USUAL | {9},
    "BYTE_ARRAY": _USUAL | {6},  # the differences of DELTA_BYTE_ARRAY repeat text without bound
}
#: Bytes of the largest decimal, and of the view that a text of any length has.
_DECIMAL, _VIEW = 16, 16
_TIMES: tuple[int, Struct] = (STRUCT, {2: (STRUCT, {})})
#: Arrow's types: the physical type that holds each, and its logical type.
_STORED: dict[pa.DataType, tuple[str, Struct]] = {
    pa.bool_(): ("BOOLEAN", {}),
    pa.int8(): ("INT32", {10: (STRUCT, {1: (BYTE, 8), 2: (BOOL_TRUE, True)})}),
    pa.int16(): ("INT32", {10: (STRUCT, {1: (BYTE, 16), 2: (BOOL_TRUE, True)})}),
    pa.int32(): ("INT32", {}),
    pa.int64(): ("INT64", {}),
    pa.float32(): ("FLOAT", {}),
    pa.float64(): ("DOUBLE", {}),
    pa.date32(): ("INT32", {6: (STRUCT, {})}),
    pa.timestamp("us", "UTC"): ("INT64", {8: (STRUCT, {1: (BOOL_TRUE, True), 2: _TIMES})}),
    pa.timestamp("us"): ("INT64", {8: (STRUCT, {1: (BOOL_TRUE, False), 2: _TIMES})}),
    pa.string(): ("BYTE_ARRAY", {1: (STRUCT, {})}),
    pa.binary(): ("BYTE_ARRAY", {}),
}


@dataclass(frozen=True, slots=True)
class OwnColumn:
    """A column of an own file.

    Attributes:
        described: Its ``SchemaElement``.
        head: Its ``ColumnChunk`` up to the codec (parquet.thrift).
        encodings: Those that its pages may have.
        width: Bytes of a decoded value, besides those of texts.
        is_text: Whether values are of any length.
    """

    described: bytes
    head: bytes
    encodings: frozenset[int]
    width: int
    is_text: bool


def own_column(number: int, kind: pa.DataType, stored: Any) -> OwnColumn | None:
    """The column of a number, whose values are of a type; None where it is not written here.

    Args:
        number: Its number in the file.
        kind: The type that pyarrow reads it as, without an Arrow schema.
        stored: ``pyarrow.parquet.ColumnSchema``.
    """
    physical, logical = stored.physical_type, Struct()
    if stored.max_repetition_level or stored.max_definition_level > 1 or physical not in _TYPES:
        return None
    if pt.is_decimal128(kind) and physical in ("INT32", "INT64", "FIXED_LEN_BYTE_ARRAY"):
        logical = {5: (STRUCT, {1: (I32, kind.scale), 2: (I32, kind.precision)})}
    elif kind not in _STORED or _STORED[kind][0] != physical:
        return None
    else:
        logical = _STORED[kind][1]
    element: Struct = {1: (I32, _TYPES[physical]), 3: (I32, stored.max_definition_level), 4: (BINARY, b"%d" % number)}
    if physical == "FIXED_LEN_BYTE_ARRAY":
        if not 0 < stored.length <= _DECIMAL:
            return None
        element[2] = I32, stored.length
    if logical:
        element[10] = STRUCT, logical
    metadata: Struct = {
        1: (I32, _TYPES[physical]),
        2: (LIST, ThriftList(I32, [0])),
        3: (LIST, ThriftList(BINARY, [b"%d" % number])),
    }
    head = write_fields({2: (I64, 0), 3: (STRUCT, metadata)})[:-1]
    is_text = physical == "BYTE_ARRAY"
    width = _VIEW if is_text else max(1, kind.bit_width // 8)
    encodings = _ENCODINGS.get(physical, _USUAL)
    return OwnColumn(write_struct(element), head, encodings, width, is_text)


@dataclass(frozen=True, slots=True)
class OwnFile:
    """A file in memory.

    Attributes:
        data: Its bytes.
        chunks: Where those of each column stand in them.
    """

    data: bytes
    chunks: list[Range]


@dataclass(frozen=True)
class OwnSchema:
    """The columns of files that are written alike."""

    columns: tuple[OwnColumn, ...]

    @cached_property
    def head(self) -> bytes:
        """A ``FileMetaData`` up to its schema."""
        count = len(self.columns)
        root = write_struct({4: (BINARY, b"schema"), 5: (I32, count)})
        elements = write_list_head(STRUCT, count + 1), root, *(column.described for column in self.columns)
        return b"".join((write_fields({1: (I32, 2)}), write_head(2, LIST, 1), *elements))

    def write(self, chunks: Sequence[Any], parts: Sequence[Sequence[memoryview]], rows: int) -> OwnFile | None:
        """The file of a row group; None where a chunk has a codec that is not written here.

        Args:
            chunks: ``pyarrow.parquet.ColumnChunkMetaData`` of each column.
            parts: The bytes of each, in parts.
            rows: Those of the row group.
        """
        described, places, position, total = list[bytes](), list[Range](), len(_MAGIC), 0
        for column, chunk, views in zip(self.columns, chunks, parts, strict=True):
            codec, length = _CODECS.get(chunk.compression), sum(map(len, views))
            if codec is None:
                return None
            begins, dictionary = [position], chunk.dictionary_page_offset
            if dictionary is not None and 0 < dictionary < chunk.data_page_offset:
                begins = [position + chunk.data_page_offset - dictionary, position]
            numbers = codec, chunk.num_values, chunk.total_uncompressed_size, length, *begins
            described += column.head, *(head + write_number(one) for head, one in zip(_NUMBERS, numbers, strict=False))
            described.append(b"\0\0")
            places.append(Range(position, position := position + length))
            total += max(0, chunk.total_uncompressed_size)
        count = write_number(rows)
        group = write_head(1, LIST, 0), write_list_head(STRUCT, len(chunks)), *described
        sizes = write_head(2, I64, 1), write_number(total), write_head(3, I64, 2), count, b"\0"
        groups = write_head(3, I64, 2), count, write_head(4, LIST, 3), write_list_head(STRUCT, 1), *group, *sizes
        footer = b"".join((self.head, *groups, b"\0"))
        data = (view for views in parts for view in views)
        return OwnFile(b"".join((_MAGIC, *data, footer, len(footer).to_bytes(4, "little"), _MAGIC)), places)

    def decoded_bytes(self, file: OwnFile, rows: int) -> int:
        """Check the pages of a file that ``write`` wrote; returns how many bytes its columns take decoded, or only decompressed.

        Raises:
            ValueError, IndexError: As ``check_pages``.
        """
        decoded = decompressed = 0
        for column, chunk in zip(self.columns, file.chunks, strict=True):
            pages = check_pages(file.data, chunk, rows, column.encodings)
            decompressed += pages
            decoded += rows * column.width + (pages if column.is_text else 0)
        return max(decoded, decompressed)
