"""Walks the row groups of a Parquet footer, and cuts the descriptions of column chunks for the footer that Spark is shown.

What Spark may be shown of a chunk stays as it is in bytes, but for its path and its places. So a value that nobody asks for
is passed over, never decoded. Bytes that end by themselves mean the same wherever they stand: those that a column's chunks
have in common are walked once and compared from then on.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from delta_sharing_spark.parquet.decoding import Release, undecoded
from delta_sharing_spark.parquet.file_columns import Beginning, FileColumns, Leaf, Unread
from delta_sharing_spark.parquet.schema_match import BYTE_ARRAY, DOUBLE, FIXED, FLOAT, INT96, NotNativeError
from delta_sharing_spark.parquet.thrift import (
    I64,
    LIST,
    STRUCT,
    field_head,
    list_head,
    read_struct,
    read_varint,
    skip,
    unzigzag,
    write_head,
    write_number,
)
from delta_sharing_spark.schema.parquet_writers import bounds_byte_arrays, counts_nulls

PARQUET_MR = b"parquet-mr"
#: Fields of ``ColumnChunk`` (parquet.thrift): the metadata, and the offset index and column index with their lengths.
_FILE_PATH, _METADATA, _OFFSET_INDEX, _INDEXES, _ENCRYPTION = 1, 3, frozenset((4, 5)), frozenset((4, 5, 6, 7)), 8
_NONE, _TEXTS = frozenset[int](), frozenset((BYTE_ARRAY, FIXED))
#: Fields of ``ColumnMetaData``.
_CODEC, _LENGTH, _DATA, _DICTIONARY, _STATISTICS, _BLOOM, _SIZES = 4, 7, 9, 11, 12, (14, 15), 16
_PLACES = frozenset((_LENGTH, _DATA, _DICTIONARY))
_FIRST_PAGE = write_head(_DICTIONARY, I64, _DATA)
#: A ``ColumnChunk`` up to its metadata: no file offset.
_BEGIN = write_head(2, I64, 0) + write_number(0) + write_head(_METADATA, STRUCT, 2)
_head = lru_cache(maxsize=1024)(write_head)


class CutChunk(NamedTuple):
    """A column chunk: its bytes ``[start, end)`` in the file, its NULLs where a column is NOT NULL, and its description around its places."""

    start: int
    end: int
    nulls: int
    data: int
    dictionary: int
    head: bytes
    tail: bytes

    def described(self, by: int = 0) -> bytes:
        """Its ``ColumnChunk`` where it stands ``by`` bytes further on."""
        dictionary = _FIRST_PAGE + write_number(self.dictionary + by) if self.dictionary > 0 else b""
        return self.head + write_number(self.data + by) + dictionary + self.tail

    def moved(self, by: int) -> CutChunk:
        """The chunk ``by`` bytes further on."""
        dictionary = self.dictionary + by if self.dictionary > 0 else 0
        return self._replace(start=self.start + by, end=self.end + by, data=self.data + by, dictionary=dictionary)


class RowGroup(NamedTuple):
    """A row group: its rows, its bytes before they were compressed, and the chunks of ``FileColumns.leaves``."""

    rows: int
    bytes: int
    chunks: tuple[CutChunk, ...]


@lru_cache(maxsize=64)
def _unshown(created_by: bytes) -> frozenset[int]:
    """The physical types by whose statistics Spark would skip rows. NaN is greater than any number, the order of
    timestamps of 96 bits differs by writer, and some statistics a writer got wrong."""
    writer = created_by.decode(errors="replace")
    if not counts_nulls(writer):
        return frozenset(range(8))
    floats = () if created_by.startswith(PARQUET_MR) else (FLOAT, DOUBLE)
    return frozenset((INT96, *floats, *(() if bounds_byte_arrays(writer) else (BYTE_ARRAY, FIXED))))


class Walker:
    """Walks one footer.

    Args:
        raw: Its bytes.
        columns: Those of the file.
        created_by: What wrote it.
        may_move: Whether chunks are to be shown elsewhere than they are: then without indexes and Bloom filters.
        release: Spark's.

    Raises (every method):
        NotNativeError: Chunks lie in another file, are encrypted, or are not those of the schema.
        ValueError, IndexError, KeyError: The bytes are no footer.
    """

    def __init__(self, raw: bytes, columns: FileColumns, created_by: bytes, may_move: bool, release: Release) -> None:
        self._raw, self._columns, self._may_move, self._release = raw, columns, may_move, release
        self._unread: set[Unread] = set()
        self._unshown = _unshown(created_by)
        self._dropped = _BLOOM if may_move else ()

    def unread(self) -> frozenset[Unread]:
        """The columns, among the chunks that were walked, that Spark's reader cannot decode."""
        return frozenset(self._unread)

    def groups(self, offset: int) -> tuple[tuple[RowGroup, ...], int]:
        """The row groups of a footer whose schema ends at ``offset``, and where they end."""
        raw = self._raw
        number, _, offset = field_head(raw, offset, 2)
        if number != 3:
            raise ValueError("a footer tells its rows after its schema")
        number, kind, offset = field_head(raw, skip(raw, offset, I64), 3)
        if number != 4 or kind != LIST:
            raise ValueError("a footer tells its row groups after its rows")
        groups = []
        _, size, offset = list_head(raw, offset)
        for _ in range(size):
            group, offset = self._group(offset)
            if group.rows:  # one without rows may say of its chunks that they begin at 0
                groups.append(group)
        return tuple(groups), offset

    def _group(self, offset: int) -> tuple[RowGroup, int]:
        raw = self._raw
        chunks: list[CutChunk] = []
        number, kind, offset = field_head(raw, offset, 0)
        if number != 1 or kind != LIST:
            raise ValueError("a row group begins with its columns")
        kind, size, offset = list_head(raw, offset)
        if size != self._columns.count or kind != STRUCT:
            raise NotNativeError("a row group has not the columns of its schema")
        for leaf in self._columns.in_file:
            if leaf is None:
                offset = skip(raw, offset, STRUCT)
            else:
                chunk, offset = self._chunk(offset, leaf)
                chunks.append(chunk)
        numbers = {}
        number, kind, offset = field_head(raw, offset, 1)
        while number:
            if number in (2, 3):
                numbers[number] = _number(raw, offset)
            offset = skip(raw, offset, kind)
            number, kind, offset = field_head(raw, offset, number)
        return RowGroup(numbers[3], numbers[2], tuple(chunks)), offset

    def _chunk(self, offset: int, leaf: Leaf) -> tuple[CutChunk, int]:
        """A ``ColumnChunk``, and where it ends. Fields ascend, which ``field_head`` checks, so each is there once."""
        raw, number = self._raw, 0
        while True:
            byte = raw[offset]
            if byte > 15:
                number, kind, offset = number + (byte >> 4), byte & 15, offset + 1
            else:
                number, kind, offset = field_head(raw, offset, number)
            if number == _METADATA:
                break
            if number in (0, _FILE_PATH):
                raise NotNativeError("column chunks lie in another file, or are encrypted")
            offset = skip(raw, offset, kind)
        beginning = self._columns.beginnings.get(leaf.number)
        if beginning is None or not raw.startswith(beginning.stored, offset):
            beginning = self._columns.beginnings[leaf.number] = self._beginning(offset, leaf)
        if beginning.unread is not None:
            self._unread.add(beginning.unread)
        offset = sizes = offset + len(beginning.stored)
        before = number = _CODEC
        length = data = -1
        unshown, moved = self._unshown, _TEXTS if self._may_move else _NONE
        dictionary = nulls = 0
        head = b""
        while True:
            here, before = offset, number
            byte = raw[offset]
            if byte > 15:
                number, kind, offset = number + (byte >> 4), byte & 15, offset + 1
            else:
                number, kind, offset = field_head(raw, offset, number)
            if not 0 < number <= _DICTIONARY:
                break
            if kind != I64:
                offset = skip(raw, offset, kind)
            elif number in _PLACES:
                value, offset = read_varint(raw, offset)
                value = (value >> 1) ^ -(value & 1)
                if number == _LENGTH:
                    length = value
                elif number == _DATA:
                    head, data = b"".join((beginning.shown, raw[sizes:here], _head(_DATA, I64, before))), value
                else:
                    dictionary = value
            else:
                while raw[offset] > 0x7F:
                    offset += 1
                offset += 1
        if length < 0 or data < 0:
            raise ValueError("a column chunk tells its length and its place")
        # Some writers leave a dictionary offset of 0, or put it after the data pages.
        start = min(data, dictionary) if dictionary > 0 else data
        last = _DICTIONARY if dictionary > 0 else _DATA
        # What is shown of the rest is one piece, but where a field is left out.
        tail, run, end = list[bytes](), here, here
        alike = self._columns.alike[leaf.number]
        while number:
            begin = offset
            if number == _STATISTICS and kind == STRUCT:
                nulls = 0 if leaf.required is None else _nulls(raw, offset)
                is_copied = leaf.physical not in unshown and (leaf.physical not in moved or self._is_trusted(offset))
                offset = skip(raw, offset, kind)
            else:
                is_copied = number <= _SIZES and number not in self._dropped
                as_before = alike.get(number << 4 | kind, b"")
                if as_before and raw.startswith(as_before, offset):
                    offset += len(as_before)
                else:
                    offset = skip(raw, offset, kind)
                    # Of others there may be any number; what goes beyond the end is not whole.
                    if number <= _SIZES and offset < len(raw):
                        alike[number << 4 | kind] = raw[begin:offset]
            if is_copied and before != last:
                tail += raw[run:end], _head(number, kind, last)
                run = begin
            if is_copied:
                last, end = number, offset
            before = number
            byte = raw[offset]
            if byte > 15:
                number, kind, offset = number + (byte >> 4), byte & 15, offset + 1
            else:
                number, kind, offset = field_head(raw, offset, number)
        tail += raw[run:end], b"\0"
        if raw[offset]:
            offset = self._indexes(offset, leaf, tail)
        tail.append(b"\0")
        return CutChunk(start, start + length, nulls, data, dictionary, head, b"".join(tail)), offset + 1

    def _beginning(self, offset: int, leaf: Leaf) -> Beginning:
        """Walk the fields of a ``ColumnMetaData`` up to the codec, each of which the format requires."""
        raw, begin = self._raw, offset
        ends = []
        number, codec_at = 0, 0
        for field in range(1, _CODEC + 1):
            number, kind, codec_at = field_head(raw, offset, number)
            if number != field:
                raise ValueError(f"column metadata lacks its field {field}")
            offset = skip(raw, codec_at, kind)
            ends.append(offset)
        kinds, reason = raw[begin : ends[1]], undecoded(raw[begin : ends[1]], _number(raw, codec_at), self._release)
        unread = None if reason is None else Unread(leaf.column, leaf.path[0].decode(), reason)
        beginning = b"".join((_BEGIN, kinds, leaf.written_path, raw[ends[2] : offset]))
        return Beginning(raw[begin:offset], beginning, unread)

    def _indexes(self, offset: int, leaf: Leaf, tail: list[bytes]) -> int:
        """Walk a ``ColumnChunk`` behind its metadata, append what is shown of it to ``tail``, and return where its stop stands."""
        raw = self._raw
        numbers = _NONE if self._may_move else _OFFSET_INDEX if leaf.physical in self._unshown else _INDEXES
        last = number = _METADATA
        while byte := raw[offset]:
            if byte > 15:
                number, kind, begin = number + (byte >> 4), byte & 15, offset + 1
            else:
                number, kind, begin = field_head(raw, offset, number)
            if number == _ENCRYPTION:
                raise NotNativeError("column chunks lie in another file, or are encrypted")
            offset = skip(raw, begin, kind)
            if number in numbers:
                tail += _head(number, kind, last), raw[begin:offset]
                last = number
        return offset

    def _is_trusted(self, statistics: int) -> bool:
        """Whether Spark may see statistics of texts: the older minimum and maximum of these depend on what wrote them."""
        return field_head(self._raw, statistics, 0)[0] not in (1, 2)


def _nulls(raw: bytes, statistics: int) -> int:
    """The NULLs that statistics tell of."""
    return int(read_struct(raw, offset=statistics)[0].get(3, (0, 0))[1])


def _number(raw: bytes, offset: int) -> int:
    return unzigzag(read_varint(raw, offset)[0])
