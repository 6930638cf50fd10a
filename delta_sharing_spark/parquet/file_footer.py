"""Reads a data file's footer for the one that Spark is shown: its columns matched with the table's, its chunks' descriptions cut.

What Spark may be shown of a chunk stays as it is in bytes, but for its path and its places; so a footer is cut, not read.
The schema is read once for all files that have the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from delta_sharing_spark.parquet.decoding import OLDEST, Release, undecoded
from delta_sharing_spark.parquet.footer import Footer
from delta_sharing_spark.parquet.schema_match import (
    BYTE_ARRAY,
    DOUBLE,
    FIXED,
    FLOAT,
    INT96,
    OPTIONAL,
    REPEATED,
    Element,
    NotNativeError,
    match_columns,
    schema_tree,
)
from delta_sharing_spark.parquet.thrift import (
    BINARY,
    BOOL_FALSE,
    BOOL_TRUE,
    I32,
    I64,
    LIST,
    STRUCT,
    Place,
    field_head,
    field_places,
    list_head,
    read_struct,
    read_varint,
    skip,
    unzigzag,
    write_head,
    write_list_head,
    write_number,
    write_text,
)
from delta_sharing_spark.parquet.thrift import Struct as ThriftStruct
from delta_sharing_spark.schema.parquet_writers import bounds_byte_arrays, counts_nulls
from delta_sharing_spark.schema.types import Struct

_PARQUET_MR = b"parquet-mr"
#: Schemas of files, and ends of footers, that are known at once: files of one writer share them.
_KNOWN = 64
#: In ``ColumnChunk``: no file offset, then the metadata; and in these the place of the data and of the dictionary.
_BEGIN = write_head(2, I64, 0) + write_number(0) + write_head(3, STRUCT, 2)
_DATA, _DICTIONARY = write_head(9, I64, 7), write_head(11, I64, 9)
#: Fields of ``ColumnMetaData`` after the places, and of ``ColumnChunk`` after the metadata.
_STATISTICS, _BLOOM_FILTER, _AFTER_PLACES = 12, {14, 15}, frozenset((12, 13, 14, 15, 16))
_OFFSET_INDEX, _INDEXES = frozenset((4, 5)), frozenset((4, 5, 6, 7))

#: Texts that are the same in all rows of a file, by their columns.
Constants = Mapping[str, str]
NO_CONSTANTS: Constants = MappingProxyType({})
#: Which rows of a file are deleted: first row and count to a mask that is true where a row is.
DeletedRows = Callable[[int, int], npt.NDArray[np.bool_]]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column of a file that holds one of the table's, or a part of one.

    Attributes:
        number: Its number in the file.
        path: Its shown path.
        element: What describes it in the schema.
        levels: Its largest repetition and definition level.
        required: The name of the table's NOT NULL column that it is, where the file lets it be NULL.
        column: Its path as one name.
        physical: Its physical type.
        written_path: Its path as a footer has it, with its field's head.
    """

    number: int
    path: tuple[bytes, ...]
    element: Element
    levels: tuple[int, int]
    required: str | None = None
    column: bytes = field(init=False)
    physical: int = field(init=False)
    written_path: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "column", b".".join(self.path))
        object.__setattr__(self, "physical", self.element.value(1))
        heads = write_head(3, LIST, 2), write_list_head(BINARY, len(self.path))
        object.__setattr__(self, "written_path", b"".join((*heads, *map(write_text, self.path))))

    @staticmethod
    def of_texts(name: str) -> Leaf:
        """A column of texts that is no file's own."""
        text = name.encode()
        raw: ThriftStruct = {1: (I32, BYTE_ARRAY), 3: (I32, OPTIONAL), 4: (BINARY, text), 6: (I32, 0)}
        raw[10] = (STRUCT, {1: (STRUCT, {})})
        return Leaf(-1, (text,), Element(raw, leaf=0, is_kept=True, name=name), (0, 1))


@dataclass(frozen=True, slots=True)
class FileColumns:
    """The columns of all files of one schema.

    Attributes:
        version: The field of the format's version.
        root: The schema, matched with the table's.
        count: Columns in the file.
        leaves: Those that hold columns of the table.
    """

    version: tuple[int, object]
    root: Element
    count: int
    leaves: tuple[Leaf, ...]


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
        dictionary = _DICTIONARY + write_number(self.dictionary + by) if self.dictionary > 0 else b""
        return self.head + write_number(self.data + by) + dictionary + self.tail

    def moved(self, by: int) -> CutChunk:
        """The chunk ``by`` bytes further on."""
        dictionary = self.dictionary + by if self.dictionary > 0 else 0
        return self._replace(start=self.start + by, end=self.end + by, data=self.data + by, dictionary=dictionary)


class Unread(NamedTuple):
    """A column of a file that Spark's reader cannot decode: its path, the name of the table's column, and why."""

    column: bytes
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group: its rows, its bytes before they were compressed, and the chunks of ``FileColumns.leaves``."""

    rows: int
    bytes: int
    chunks: tuple[CutChunk, ...]


@dataclass(frozen=True, slots=True)
class FileFooter:
    """A data file's footer.

    Attributes:
        columns: Its columns.
        groups: Its row groups.
        created_by: What wrote it.
        orders: The order of the values of each column in the file; None where it tells none.
        data_end: Where its own bytes begin in the file.
        deleted: The rows of the file's deletion vector; None where it has none.
        constants: Columns that are not read from the file, and their value.
        marks: The pairs by which Spark's reader knows that old dates count by the Julian calendar.
        unread: Columns that Spark's reader cannot decode.
    """

    columns: FileColumns
    groups: tuple[RowGroup, ...]
    created_by: bytes
    orders: tuple[ThriftStruct, ...] | None
    data_end: int
    deleted: DeletedRows | None
    constants: Constants
    marks: tuple[tuple[bytes, bytes], ...] = ()
    unread: frozenset[Unread] = frozenset()

    @property
    def is_of_parquet_mr(self) -> bool:
        """Whether the reference implementation wrote it: it leaves out statistics of columns that hold a NaN."""
        return self.created_by.startswith(_PARQUET_MR)


class FooterReader:
    """Reads footers of files of one table. Safe to call from several threads.

    Args:
        schema: The table's columns that are read from files.
        mapping: How they are found in a file (Delta protocol, "Column Mapping").
        release: Spark's, by which its reader decodes more or less.
    """

    def __init__(self, schema: Struct, mapping: str, release: Release = OLDEST) -> None:
        self._schema, self._mapping, self._release = schema, mapping, release
        self._columns: tuple[tuple[bytes, tuple[str, ...], FileColumns], ...] = ()
        self._orders: tuple[tuple[bytes, tuple[ThriftStruct, ...] | None], ...] = ()

    def read(
        self,
        footer: Footer,
        size: int,
        deleted: DeletedRows | None = None,
        constants: Constants = NO_CONSTANTS,
        *,
        may_move: bool = False,
    ) -> FileFooter:
        """Read the footer of a file of ``size`` bytes.

        Args:
            deleted: The rows of its deletion vector; None where it has none.
            constants: Columns that are not read from the file, and their value.
            may_move: Whether its chunks are to be shown elsewhere than they are: then without indexes and Bloom filters, which
                name places and which small files hardly need.

        Raises:
            NotNativeError: Spark's reader would not read the file as exactly as the Python source does.
        """
        raw, created_by = footer.raw[:-8], footer.metadata.created_by.encode()
        julian = footer.julian(None)
        try:
            head, columns = self._matched(raw, tuple(constants))
            cut = _Cut(raw, columns, created_by, may_move, self._release)
            groups, end = cut.groups(head)
            orders = self._ends(raw[end:])
            if orders is not None and len(orders) != columns.count:
                raise ValueError("a footer tells the order of each column")
            marks = julian.marks if julian is not None and julian.is_for(self._schema) else ()
            unread = cut.unread()
            if marks and unread:
                # Those that are written anew count by the calendar of today.
                raise NotNativeError(f"its old dates are Julian, and it has {next(iter(unread)).reason}")
            end = size - len(footer.raw)
            return FileFooter(columns, groups, created_by, orders, end, deleted, constants, marks, unread)
        except (KeyError, ValueError, TypeError, AttributeError, IndexError, RecursionError) as error:
            raise NotNativeError(f"its footer is of an unknown form ({type(error).__name__})") from error

    def _matched(self, raw: bytes, constants: tuple[str, ...]) -> tuple[int, FileColumns]:
        """Where the schema ends that a footer begins with, and its columns."""
        for head, names, columns in self._columns:
            if names == constants and raw.startswith(head):
                return len(head), columns
        fields, end = read_struct(raw, last_field=2)
        root = schema_tree(fields[2][1].items)
        schema = Struct(tuple(f for f in self._schema.fields if f.name not in constants))
        match_columns(root, schema, self._mapping)
        columns = FileColumns(fields[1], root, sum(1 for _ in root.leaves()), tuple(leaves_of(root)))
        self._columns = (*self._columns[1 - _KNOWN :], (raw[:end], constants, columns))
        return end, columns

    def _ends(self, tail: bytes) -> tuple[ThriftStruct, ...] | None:
        """The orders of values that a footer ends with."""
        for known, orders in self._orders:
            if known == tail:
                return orders
        fields, _ = read_struct(tail, before=4)
        orders = tuple(fields[7][1].items) if 7 in fields else None
        self._orders = (*self._orders[1 - _KNOWN :], (tail, orders))
        return orders


def leaves_of(root: Element) -> Iterator[Leaf]:
    """The columns of a file that hold columns of the table."""

    def walk(
        element: Element, path: tuple[bytes, ...], levels: tuple[int, int], required: str | None
    ) -> Iterator[Leaf]:
        if not element.is_kept:
            return
        repetition = element.value(3)
        levels = levels[0] + (repetition == REPEATED), levels[1] + (repetition in (OPTIONAL, REPEATED))
        path = (*path, element.name.encode())
        if element.leaf >= 0:
            yield Leaf(element.leaf, path, element, levels, required)
        for child in element.children:
            yield from walk(child, path, levels, None)

    for child in root.children:
        column = child.column
        is_required = column is not None and not column.nullable and child.leaf >= 0 and child.value(3) == OPTIONAL
        yield from walk(child, (), (0, 0), column.name if column is not None and is_required else None)


@cache
def _usual_chunk() -> re.Pattern[bytes]:
    """Matches a ``ColumnChunk`` of the form that most writers give it: ``field_places`` takes five times as long.

    Its groups are what stands before the path, what stands between it and the places, the last of which is the chunk's length,
    the places of the data and of a dictionary, the statistics, and what follows these. A byte tells of each value how it goes on,
    so that there is one way to match at most. Chunks with texts of more than 127 bytes, Bloom filters, key-value metadata, a
    dictionary at 0 or a file of their own are not matched.
    """

    def heads(*kinds: int) -> str:
        return "[" + "".join(re.escape(chr(step << 4 | kind)) for step in range(1, 16) for kind in kinds) + "]"

    def texts(longest: int) -> str:
        return "(?:" + "|".join(f"{re.escape(chr(size))}.{{{size}}}" for size in range(longest + 1)) + ")"

    def lists(kind: int, element: str, longest: int) -> str:
        each = (f"{re.escape(chr(size << 4 | kind))}(?:{element}){{{size}}}" for size in range(longest + 1))
        return "(?:" + "|".join(each) + ")"

    n = r"[\x80-\xff]*[\x00-\x7f]"
    values = rf"(?:{heads(I32, I64)}{n}|{heads(BINARY)}{texts(127)}|{heads(BOOL_TRUE, BOOL_FALSE)})*\x00"
    pages = lists(STRUCT, rf"(?:\x15{n}){{3}}\x00", 6)
    levels = rf"(?:\x16{n})?(?:{heads(LIST)}{lists(I64, n, 8)})*\x00"
    begins = rf"(?:\x26{n}\x1c|\x3c)(\x15{n}\x19{lists(I32, n, 8)})\x19{lists(BINARY, texts(63), 4)}"
    sizes = rf"(\x15{n}\x16{n}\x16{n}\x16({n}))\x26({n})(?:\x26((?!\x00){n}))?"
    ends = rf"(?:[\x1c\x3c]({values}))?((?:[\x19\x29\x49]{pages}(?:\x3c{levels})?)?\x00)(?:{heads(I32, I64)}{n})*\x00"
    return re.compile((begins + sizes + ends).encode("latin-1"), re.DOTALL)


@lru_cache(maxsize=64)
def _unshown(created_by: bytes) -> frozenset[int]:
    """The physical types by whose statistics Spark would skip rows: of NaN, which is greater than any number, of timestamps of
    96 bits, whose order differs by writer, or that a writer got wrong."""
    writer = created_by.decode(errors="replace")
    if not counts_nulls(writer):
        return frozenset(range(8))
    floats = () if created_by.startswith(_PARQUET_MR) else (FLOAT, DOUBLE)
    return frozenset((INT96, *floats, *(() if bounds_byte_arrays(writer) else (BYTE_ARRAY, FIXED))))


class _Cut:
    """Cuts the descriptions of one footer's chunks."""

    def __init__(self, raw: bytes, columns: FileColumns, created_by: bytes, may_move: bool, release: Release) -> None:
        self._raw, self._columns, self._may_move, self._release = raw, columns, may_move, release
        self._unread: dict[bytes, Unread] = {}
        self._unshown = _unshown(created_by)
        self._by_number = {leaf.number: leaf for leaf in columns.leaves}
        self._usual = _usual_chunk()
        self._kept = _AFTER_PLACES - _BLOOM_FILTER if may_move else _AFTER_PLACES
        self._indexes = frozenset[int]() if may_move else _INDEXES

    def unread(self) -> frozenset[Unread]:
        """The columns, among the chunks that were cut, that Spark's reader cannot decode."""
        return frozenset(self._unread.values())

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
        chunks: dict[int, CutChunk] = {}
        number, kind, offset = field_head(raw, offset, 0)
        if number != 1 or kind != LIST:
            raise ValueError("a row group begins with its columns")
        kind, size, offset = list_head(raw, offset)
        if size != self._columns.count or kind != STRUCT:
            raise NotNativeError("a row group has not the columns of its schema")
        for column in range(size):
            leaf = self._by_number.get(column)
            if leaf is None:
                offset = skip(raw, offset, STRUCT)
            else:
                chunks[column], offset = self._chunk(offset, leaf)
        numbers = {}
        number, kind, offset = field_head(raw, offset, 1)
        while number:
            if number in (2, 3):
                numbers[number] = _number(raw, offset)
            offset = skip(raw, offset, kind)
            number, kind, offset = field_head(raw, offset, number)
        in_order = tuple(chunks[leaf.number] for leaf in self._columns.leaves)
        return RowGroup(numbers[3], numbers[2], in_order), offset

    def _chunk(self, offset: int, leaf: Leaf) -> tuple[CutChunk, int]:
        raw = self._raw
        usual = self._usual.match(raw, offset) if self._may_move else None
        if usual is not None:
            return self._usual_one(usual, leaf), usual.end()
        metadata: dict[int, Place] = {}
        around, begin = {}, 0
        number, kind, offset = field_head(raw, offset, 0)
        while number:
            if number == 3 and kind == STRUCT:
                begin = offset
                metadata, end = field_places(raw, offset)
            else:
                end = skip(raw, offset, kind)
            around[number] = kind, offset, end
            number, kind, offset = field_head(raw, end, number)
        if not metadata or 1 in around or 8 in around:
            raise NotNativeError("column chunks lie in another file, or are encrypted")
        data, length = _number(raw, metadata[9][1]), _number(raw, metadata[7][1])
        # Some writers leave a dictionary offset of 0, or put it after the data pages.
        dictionary = _number(raw, metadata[11][1]) if metadata.get(11, (0,))[0] == I64 else 0
        start = min(data, dictionary) if dictionary > 0 else data
        nulls, kept, indexes = 0, self._kept, self._indexes
        kind, statistics, _ = metadata.get(_STATISTICS, (0, 0, 0))
        if kind == STRUCT:
            nulls = _nulls(raw, statistics, leaf)
            if not self._may_show(field_head(raw, statistics, 0)[0], leaf):
                kept = kept - {_STATISTICS}
        if leaf.physical in self._unshown:
            indexes = indexes & _OFFSET_INDEX
        self._look_at(raw[begin : metadata[2][2]], _number(raw, metadata[4][1]), leaf)
        before = 8 if 8 in metadata else 7
        head = raw[begin : metadata[2][2]], leaf.written_path, raw[metadata[3][2] : metadata[before][2]]
        tail = self._fields(metadata, kept, 11 if dictionary > 0 else 9) + self._fields(around, indexes, 3)
        head_bytes = b"".join((_BEGIN, *head, write_head(9, I64, before)))
        return CutChunk(start, start + length, nulls, data, dictionary, head_bytes, tail), offset

    def _usual_one(self, usual: re.Match[bytes], leaf: Leaf) -> CutChunk:
        """A chunk of the usual form, without indexes."""
        before, between, length_, data_, dictionary_, statistics, others = usual.groups()
        self._look_at(before, _number(between, 1), leaf)
        data, dictionary = _number(data_, 0), _number(dictionary_, 0) if dictionary_ else 0
        start = min(data, dictionary) if dictionary > 0 else data
        nulls, places_end = 0, usual.end(4) if dictionary <= 0 else usual.end(5)
        tail = self._raw[places_end : usual.end(7)]
        if statistics is not None:
            nulls = _nulls(statistics, 0, leaf)
            if not self._may_show(statistics[0] >> 4, leaf):
                tail = others if len(others) == 1 else write_head(13, LIST, 11 if dictionary else 9) + others[1:]
        head = b"".join((_BEGIN, before, leaf.written_path, between, _DATA))
        return CutChunk(start, start + _number(length_, 0), nulls, data, dictionary, head, tail + b"\0")

    def _look_at(self, stored: bytes, codec: int, leaf: Leaf) -> None:
        """Note a column that Spark's reader cannot decode, by the fields of its type and encodings, and its codec."""
        reason = undecoded(stored, codec, self._release)
        if reason is not None:
            self._unread[leaf.column] = Unread(leaf.column, leaf.path[0].decode(), reason)

    def _may_show(self, first: int, leaf: Leaf) -> bool:
        """Whether Spark may see statistics of a column whose field ``first`` is the first one."""
        if leaf.physical in self._unshown:
            return False
        # The older minimum and maximum of texts depend on what wrote them.
        return not (self._may_move and first in (1, 2) and leaf.physical in (BYTE_ARRAY, FIXED))

    def _fields(self, places: Mapping[int, Place], kept: frozenset[int], last: int) -> bytes:
        """The end of a struct after its field ``last``: those of its fields that are kept."""
        out = []
        for number, (kind, begin, end) in places.items():
            if number in kept:
                out += [write_head(number, kind, last), self._raw[begin:end]]
                last = number
        return b"".join((*out, b"\0"))


def _nulls(raw: bytes, statistics: int, leaf: Leaf) -> int:
    """The NULLs that statistics tell of a column that the table declares NOT NULL."""
    return 0 if leaf.required is None else int(read_struct(raw, offset=statistics)[0].get(3, (0, 0))[1])


def _number(raw: bytes, offset: int) -> int:
    return unzigzag(read_varint(raw, offset)[0])
