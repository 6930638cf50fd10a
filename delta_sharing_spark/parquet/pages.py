"""Walks over the pages of a column chunk: what their headers say fits together, and their checksums are right.

It is for a decoder that checks less than pyarrow does, or asks for memory by what a header claims.
"""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

from delta_sharing_spark.parquet.thrift import I32, STRUCT, field_head, read_varint, skip, unzigzag
from delta_sharing_spark.storage.ranges import Range

#: Types of pages, by the fields of ``PageHeader`` that describe them (parquet.thrift).
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_HEADERS = {5: _DATA, 7: _DICTIONARY, 8: _DATA_V2}
#: Encodings: those of a dictionary's values and of levels, and those whose values stand in the dictionary.
_PLAIN, _RLE, _IN_DICTIONARY = frozenset((0, 2)), 3, frozenset((2, 8))


class _Page(NamedTuple):
    """A page.

    Attributes:
        kind: Its type.
        decompressed: Its bytes before they were compressed.
        bytes: Where they stand.
        checksum: Of these bytes; None if it has none.
        numbers: The numbers that describe a page of its type, by their fields.
    """

    kind: int
    decompressed: int
    bytes: Range
    checksum: int | None
    numbers: dict[int, int]


def check_pages(data: bytes, chunk: Range, rows: int, encodings: frozenset[int]) -> int:
    """Check the pages of the chunk of a column that is in no other and repeats nothing.

    Args:
        data: Bytes that hold the chunk.
        chunk: Where it stands in them.
        rows: The rows of its row group.
        encodings: Those that its data may have.

    Returns:
        Bytes of its pages before they were compressed.

    Raises:
        ValueError, IndexError, KeyError, RecursionError: What a page says does not fit the rest, its checksum is wrong, or its
            encoding is another.
    """
    values = decompressed = 0
    has_dictionary, begin = False, chunk.start
    while values < rows:
        page = _page(data, begin)
        if page.decompressed < 0 or not page.bytes.start <= page.bytes.end <= chunk.end:
            raise ValueError("a page does not lie in its chunk")
        if page.checksum is not None and crc32(memoryview(data)[slice(*page.bytes)]) != page.checksum & 0xFFFFFFFF:
            raise ValueError("a wrong checksum")
        numbers, count = page.numbers, page.numbers[1]
        if page.kind == _DICTIONARY:
            if begin != chunk.start or numbers[2] not in _PLAIN or not 0 <= count <= page.decompressed:
                raise ValueError("a dictionary is not the first page, or of another form")
            has_dictionary = True
        else:
            encoding = numbers[2 if page.kind == _DATA else 4]
            if encoding not in encodings or (encoding in _IN_DICTIONARY and not has_dictionary):
                raise ValueError(f"the encoding {encoding}")
            if page.kind == _DATA:
                is_sound = numbers[3] == numbers[4] == _RLE
            else:
                is_sound = numbers[3] == count and 0 <= numbers[2] <= count and numbers[6] == 0 <= numbers[5]
            if not is_sound or count < 0:
                raise ValueError("levels of another form")
            values += count
        begin = page.bytes.end
        decompressed += page.decompressed
    if values != rows:
        raise ValueError("its pages hold more rows than the row group")
    return decompressed


def _page(data: bytes, offset: int) -> _Page:
    """The page whose header stands at an offset."""
    sizes, numbers, kind = dict[int, int](), dict[int, int](), -1
    number, form, offset = field_head(data, offset, 0)
    while number:
        if number <= 4:
            sizes[number], offset = _number(data, offset, form)
        elif number in _HEADERS and form == STRUCT and kind < 0:
            kind = _HEADERS[number]
            inner, form, offset = field_head(data, offset, 0)
            while inner:
                if form == I32:
                    numbers[inner], offset = _number(data, offset, form)
                else:
                    offset = skip(data, offset, form)
                inner, form, offset = field_head(data, offset, inner)
        else:
            raise ValueError("a page of another type")
        number, form, offset = field_head(data, offset, number)
    if sizes[1] != kind:
        raise ValueError("a page of another type than its header says")
    return _Page(kind, sizes[2], Range(offset, offset + sizes[3]), sizes.get(4), numbers)


def _number(data: bytes, offset: int, form: int) -> tuple[int, int]:
    if form != I32:
        raise ValueError("a number is of 32 bits")
    number, offset = read_varint(data, offset)
    return unzigzag(number), offset
