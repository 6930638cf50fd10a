"""Reads what a footer and a dictionary's page tell of a column chunk's values, from their bytes."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from delta_sharing_spark.parquet.thrift import (
    BINARY,
    I32,
    I64,
    STRUCT,
    append_varint,
    field_head,
    read_struct,
    read_varint,
    skip,
    unzigzag,
    zigzag,
)

#: Of ``ColumnMetaData``: numbers stand between the first and the last.
_DATA_PAGE_OFFSET, _INDEX_PAGE_OFFSET, _DICTIONARY_PAGE_OFFSET, _STATISTICS = 9, 10, 11, 12
#: Of ``Statistics``; the first two are deprecated: their order is known for signed numbers only.
_OLD_MAX, _OLD_MIN, _NULL_COUNT, _MAX, _MIN = 1, 2, 3, 5, 6
_NUMBERS = {"INT32": struct.Struct("<i"), "INT64": struct.Struct("<q"), "FLOAT": struct.Struct("<f"), "DOUBLE": struct.Struct("<d"), "BOOLEAN": struct.Struct("<?")}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChunkStatistics:
    """Statistics of one column chunk, by the names that pyarrow gives them.

    ``min_raw`` and ``max_raw`` are values of the physical type; they mean something where ``has_min_max`` is true.
    """

    has_null_count: bool
    null_count: int | None
    has_min_max: bool
    min_raw: Any = None
    max_raw: Any = None


def find_statistics(
    footer: bytes, chunk: Any, physical_type: str, start: int = 0
) -> tuple[ChunkStatistics | None, int]:
    """The statistics of a chunk, None if it has none that can be read; and their offset in the footer.

    pyarrow decodes statistics where no error can be raised: bytes of a wrong length end the process. Here a chunk's metadata
    is found in the footer by the numbers that pyarrow tells of it: its count of values, sizes and page offset stand in
    a row. The few fields after them are read one by one (parquet.thrift, ``ColumnMetaData`` and ``Statistics``). What
    does not read as the format says tells nothing.

    Args:
        footer: The file's footer.
        chunk: ``pyarrow.parquet.ColumnChunkMetaData``, of which only numbers are asked.
        physical_type: The column's physical type.
        start: Where to look first: chunks of one column follow each other in the order of row groups.
    """
    sizes = (chunk.num_values, chunk.total_uncompressed_size, chunk.total_compressed_size)
    # Fields 5, 6 and 7, and right after them 9, as every writer leaves out 8 (key_value_metadata).
    needle = bytearray()
    for tag, number in (*((0x16, size) for size in sizes), (0x26, chunk.data_page_offset)):
        needle.append(tag)
        append_varint(needle, zigzag(number))
    position = footer.find(needle, start)
    if position < 0 and start:
        position = footer.find(needle)
    if position < 0:
        return None, start
    end = position + len(needle)
    try:
        fields, _ = read_struct(footer, _STATISTICS, end, _DATA_PAGE_OFFSET)
        statistics = fields.pop(_STATISTICS)
        if any(
            number not in (_INDEX_PAGE_OFFSET, _DICTIONARY_PAGE_OFFSET) or kind != I64
            for number, (kind, _) in fields.items()
        ):
            return None, end  # these bytes are something else
        return _decoded(statistics, physical_type), end
    except (KeyError, ValueError, struct.error):
        return None, end


def _decoded(field: tuple[int, Any], physical_type: str) -> ChunkStatistics:
    if field[0] != STRUCT:
        raise ValueError("statistics are a struct")
    values = {number: value for number, (kind, value) in field[1].items() if kind in (I32, I64, BINARY)}
    nulls = values.get(_NULL_COUNT)
    counted = isinstance(nulls, int) and nulls >= 0
    number = _NUMBERS.get(physical_type)
    low, high = values.get(_MIN), values.get(_MAX)
    if low is None and high is None and number is not None:
        low, high = values.get(_OLD_MIN), values.get(_OLD_MAX)
    if physical_type == "INT96" or not isinstance(low, bytes) or not isinstance(high, bytes):
        return ChunkStatistics(counted, nulls if counted else None, False)
    if number is not None:
        (low,), (high,) = number.unpack(low), number.unpack(high)
    return ChunkStatistics(counted, nulls if counted else None, True, low, high)


#: Of ``PageHeader`` and ``DictionaryPageHeader`` (parquet.thrift).
_UNCOMPRESSED_SIZE, _DICTIONARY_HEADER, _NUM_VALUES = 2, 7, 1


def dictionary_page(header: bytes) -> tuple[int, int]:
    """The number of values in a dictionary, and its bytes before they were compressed, by the header of its page.

    Raises:
        ValueError, IndexError: These are no such header.
    """
    size, offset = 0, 0
    number, kind, offset = field_head(header, 0, 0)
    while 0 < number < _DICTIONARY_HEADER:
        if number == _UNCOMPRESSED_SIZE and kind == I32:
            size = unzigzag(read_varint(header, offset)[0])
        number, kind, offset = field_head(header, skip(header, offset, kind), number)
    if number != _DICTIONARY_HEADER or kind != STRUCT:
        raise ValueError("it is no dictionary")
    number, kind, offset = field_head(header, offset, 0)
    if number != _NUM_VALUES or kind != I32:
        raise ValueError("it has no number of values")
    return unzigzag(read_varint(header, offset)[0]), size
