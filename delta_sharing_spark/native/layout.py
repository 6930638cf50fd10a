"""Lays out the Parquet file that Spark is shown for a data file: the file's own column chunks under a footer of ours.

The chunks keep their places and bytes. In the footer columns bear the table's names, columns that are not the table's
are left out, and so is what would make Spark read other values: the writer's calendar marks, and statistics of
floating-point columns by writers that leave NaN out of them. A deletion vector becomes a column of our own behind the
data, NULL for the rows that are left, so that Spark filters them as any other column, vectorised and pruned. What is the same in all rows of a file
of a change feed, and is no partition value, becomes such a column as well.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from delta_sharing_spark.native.schema_match import (
    BOOLEAN,
    BYTE_ARRAY,
    DOUBLE,
    FLOAT,
    INT96,
    OPTIONAL,
    Element,
    NotNativeError,
    match_columns,
    schema_tree,
)
from delta_sharing_spark.scan.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    ThriftList,
    read_struct,
    write_struct,
)
from delta_sharing_spark.scan.thrift import Struct as ThriftStruct
from delta_sharing_spark.scan.varint import append_varint
from delta_sharing_spark.schema.types import Struct
from delta_sharing_spark.storage.ranges import Range

#: Rows in one page of a deletion column.
_PAGE_ROWS = 1 << 16
#: Rows in one row group of a file of which no column is read.
_COUNTED_ROWS = 1 << 20
_MAGIC = b"PAR1"
_PARQUET_MR = b"parquet-mr"
#: A writer by whose name Spark corrects nothing.
SOUND_WRITER = b"parquet-mr version 1.12.0 (build 0)"
#: ColumnOrder.TYPE_ORDER of parquet.thrift.
_TYPE_ORDER: ThriftStruct = {1: (STRUCT, {})}
_NO_CONSTANTS: Mapping[str, str] = MappingProxyType({})
_SPARK_VERSION, _SPARK_LEGACY = b"org.apache.spark.version", b"org.apache.spark.legacy"

#: Texts that are the same in all rows of a file, by their columns.
Constants = Mapping[str, str]

#: Which rows of a file are deleted: first row and count to a mask that is true where a row is.
DeletedRows = Callable[[int, int], npt.NDArray[np.bool_]]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A column chunk of a row group, and its byte range in the file.

    ``column`` is its path in the schema. ``null_in`` is the name of its NOT NULL column if it holds NULLs all the same.
    ``member`` is the number of its file among those that are shown as one.
    """

    range: Range
    row_group: int
    column: bytes
    null_in: str | None = None
    member: int = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """A file as Spark sees it.

    Attributes:
        data_end: Where the file's own bytes end, which keep their offsets.
        tail: The bytes after them: columns of ours, then the footer.
        chunks: The column chunks that Spark may ask for, ordered by their first byte.
    """

    data_end: int
    tail: bytes = field(repr=False)
    chunks: tuple[Chunk, ...] = field(repr=False)
    _of_group: dict[int, list[Chunk]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        for chunk in self.chunks:
            self._of_group.setdefault(chunk.row_group, []).append(chunk)

    def of_group(self, row_group: int) -> list[Chunk]:
        """The chunks of a row group, in the order of their bytes."""
        return self._of_group.get(row_group, [])

    @property
    def length(self) -> int:
        return self.data_end + len(self.tail)

    @property
    def has_nulls(self) -> bool:
        """Whether a column that is declared NOT NULL has a NULL."""
        return any(chunk.null_in is not None for chunk in self.chunks)

    def chunk_from(self, offset: int) -> int:
        """The number of the first chunk that begins at or after ``offset``."""
        return bisect.bisect_left(self.chunks, offset, key=lambda chunk: chunk.range.start)


def lay_out(
    footer: bytes,
    size: int,
    schema: Struct,
    mapping: str,
    *,
    deleted: DeletedRows | None = None,
    deletion_column: str,
    constants: Constants = _NO_CONSTANTS,
    length_planned: int | None = None,
) -> Layout:
    """Make the layout in which a file is shown to Spark.

    Args:
        footer: The file's footer, without its length and magic.
        schema: The table's columns that are read from files.
        deleted: The rows of its deletion vector; None where it has none.
        deletion_column: The name, in lower case, of the column of deleted rows; no other column may have it.
        constants: Columns of ``schema`` that are not read from the file, and their value.
        length_planned: The length that Spark was told when it listed the file, if that was another file's.

    Raises:
        NotNativeError: Spark's reader would not read it as exactly as the Python source does.
    """
    try:
        head, _ = read_struct(footer, last_field=2)
        root = schema_tree(head[2][1].items)
        match_columns(root, without(schema, constants), mapping)
        data_end = size - len(footer) - 8
        metadata, _ = read_struct(footer)
        if (
            deleted is None
            and length_planned is None
            and not constants
            and _is_shown_as_is(footer, root, schema, deletion_column)
        ):
            tail = footer + len(footer).to_bytes(4, "little") + _MAGIC
            return Layout(data_end, tail, tuple(kept_chunks(metadata, root)))
        return _rewritten(metadata, root, data_end, deleted, deletion_column, constants, length_planned)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise NotNativeError(f"its footer is of an unknown form ({type(error).__name__})") from error


def _is_shown_as_is(footer: bytes, root: Element, schema: Struct, deletion_column: str) -> bool:
    """Whether nothing of the footer has to be changed."""
    names = {column.name.lower() for column in schema.fields} | {deletion_column}
    for element in root.children:
        if not element.is_kept and element.name.lower() in names:
            return False
    renamed = any(e.is_kept and e.name != e.original_name for e in _elements(root))
    if renamed or not any(e.is_kept for e in root.children) or _SPARK_LEGACY in footer:
        return False
    mark = footer.find(_SPARK_VERSION)
    if mark >= 0 and footer[mark + len(_SPARK_VERSION) + 2 : mark + len(_SPARK_VERSION) + 3] not in (b"3", b"4", b"5"):
        return False
    return _PARQUET_MR in footer[-256:] or not any(
        leaf.is_kept and leaf.value(1) in (FLOAT, DOUBLE, INT96) for leaf in root.leaves()
    )


def _elements(element: Element) -> list[Element]:
    return [element, *(e for child in element.children for e in _elements(child))]


def kept_chunks(metadata: ThriftStruct, root: Element) -> list[Chunk]:
    """The kept column chunks of a footer, before it is changed, by their first byte.

    Raises:
        NotNativeError: Spark's reader cannot be shown the chunks.
    """
    leaves = list(root.leaves())
    paths = leaf_paths(root)
    kept = [leaf.leaf for leaf in leaves if leaf.is_kept]
    required = {
        child.leaf: child.column.name
        for child in root.children
        if child.column is not None and not child.column.nullable and child.leaf >= 0 and child.value(3) == OPTIONAL
    }
    chunks = []
    for number, group in enumerate(metadata[4][1].items):
        columns = group[1][1].items
        if len(columns) != len(leaves):
            raise NotNativeError("a row group has not the columns of its schema")
        for leaf in kept:
            column = columns[leaf]
            if 1 in column or 8 in column or 3 not in column:
                raise NotNativeError("column chunks lie in another file, or are encrypted")
            described = column[3][1]
            start = chunk_start(described)
            statistics = described.get(12, (0, {}))[1]
            nulls = statistics.get(3, (0, 0))[1]
            null_in = required.get(leaf) if nulls else None
            chunks.append(Chunk(Range(start, start + described[7][1]), number, b".".join(paths[leaf]), null_in))
    return sorted(chunks, key=lambda chunk: chunk.range.start)


def chunk_start(described: ThriftStruct) -> int:
    """The first byte of a column chunk, by its ``ColumnMetaData``."""
    data, dictionary = described[9][1], described.get(11, (0, 0))[1]
    # Some writers leave a dictionary offset of 0, or put it after the data pages.
    return int(min(data, dictionary) if dictionary > 0 else data)


def _rewritten(
    metadata: ThriftStruct,
    root: Element,
    data_end: int,
    deleted: DeletedRows | None,
    deletion_column: str,
    constants: Constants,
    length_planned: int | None,
) -> Layout:
    chunks = kept_chunks(metadata, root)
    leaves = list(root.leaves())
    kept = [leaf for leaf in leaves if leaf.is_kept]
    paths = leaf_paths(root)
    keeps_statistics = created_by_parquet_mr(metadata)
    # A row group has to have a column, for Spark to count its rows.
    own = OwnColumns(data_end)
    has_marks = deleted is not None or not (kept or constants)
    groups, first_row, total = [], 0, len(metadata[4][1].items)
    starts: dict[int, int] = {}
    for chunk in chunks:
        starts[chunk.row_group] = min(chunk.range.start, starts.get(chunk.row_group, chunk.range.start))
    for number, group in enumerate(metadata[4][1].items):
        rows = group[3][1]
        columns = [
            shown_column(group[1][1].items[leaf.leaf], paths[leaf.leaf], leaf, keeps_statistics) for leaf in kept
        ]
        columns += [own.constant(rows, value, [name.encode()], (0, 1)) for name, value in constants.items()]
        if has_marks:
            columns.append(own.marks(deleted, first_row, rows, deletion_column))
        first_row += rows
        if length_planned is None:
            middle = starts.get(number, min(4 + number, data_end - 1))
        else:
            middle = int((number + 0.5) * length_planned / total)
        groups.append(row_group(group, columns, middle))
    created_by = bytes(metadata.get(6, (0, b""))[1])
    if any(leaf.value(1) == INT96 for leaf in kept) and not keeps_statistics:
        # spark.sql.parquet.int96TimestampConversion shifts the timestamps of other writers.
        created_by = SOUND_WRITER
    orders = None
    if 7 in metadata:
        orders = [metadata[7][1].items[leaf.leaf] for leaf in kept] + [_TYPE_ORDER] * (len(constants) + has_marks)
    root.children += [constant_element(name) for name in constants]
    elements = shown_elements(root, deletion_column if has_marks else None)
    tail = own.bytes + write_footer(metadata[1], elements, metadata[3][1], groups, created_by, orders)
    return Layout(data_end, bytes(tail), tuple(chunks))


def without(schema: Struct, constants: Constants) -> Struct:
    """The columns of a schema that are read from the file."""
    return Struct(tuple(field for field in schema.fields if field.name not in constants)) if constants else schema


def constant_element(name: str) -> Element:
    """The element of a column of texts that is no file's own."""
    raw: ThriftStruct = {
        1: (I32, BYTE_ARRAY),
        3: (I32, OPTIONAL),
        4: (BINARY, name.encode()),
        6: (I32, 0),
        10: (STRUCT, {1: (STRUCT, {})}),
    }
    return Element(raw, is_kept=True, name=name)


def lay_out_rows(rows: int, deletion_column: str, length_listed: int) -> Layout:
    """Make the layout of a file of so many rows, none of them deleted, for queries that read no column of it."""
    own, groups = OwnColumns(4), []
    count = -(-rows // _COUNTED_ROWS)
    for number in range(count):
        here = min(_COUNTED_ROWS, rows - number * _COUNTED_ROWS)
        column = own.nulls(here, BOOLEAN, [deletion_column.encode()], (0, 1))
        group: ThriftStruct = {2: (I64, column[3][1][6][1]), 3: (I64, here)}
        groups.append(row_group(group, [column], int((number + 0.5) * length_listed / count)))
    root = Element({4: (BINARY, b"spark_schema"), 5: (I32, 0)}, name="spark_schema")
    footer = write_footer((I32, 1), shown_elements(root, deletion_column), rows, groups, SOUND_WRITER, [_TYPE_ORDER])
    return Layout(4, bytes(own.bytes + footer), ())


def row_group(group: ThriftStruct, columns: list[ThriftStruct], middle: int) -> ThriftStruct:
    """A row group of ``columns``, which belongs to the task whose part of the listed length holds the byte ``middle``.

    Spark takes for its middle: the start of its first column, and half of its size.
    """
    start = chunk_start(columns[0][3][1])
    return {1: (LIST, ThriftList(STRUCT, columns)), 2: group[2], 3: group[3], 6: (I64, 2 * (middle - start))}


def write_footer(
    version: tuple[int, object],
    elements: list[ThriftStruct],
    rows: int,
    groups: list[ThriftStruct],
    created_by: bytes,
    orders: list[ThriftStruct] | None,
) -> bytes:
    """A footer, its length, and the magic."""
    footer: ThriftStruct = {
        1: version,
        2: (LIST, ThriftList(STRUCT, elements)),
        3: (I64, rows),
        4: (LIST, ThriftList(STRUCT, groups)),
        6: (BINARY, created_by),
    }
    if orders is not None:
        footer[7] = (LIST, ThriftList(STRUCT, orders))
    written = write_struct(footer)
    return written + len(written).to_bytes(4, "little") + _MAGIC


def created_by_parquet_mr(metadata: ThriftStruct) -> bool:
    """Whether the reference implementation wrote a file: it leaves out statistics of columns that hold a NaN."""
    return bytes(metadata.get(6, (0, b""))[1]).startswith(_PARQUET_MR)


def leaf_paths(root: Element) -> dict[int, list[bytes]]:
    """The shown path of each leaf, by the number of its column in the file."""
    paths: dict[int, list[bytes]] = {}

    def walk(element: Element, path: list[bytes]) -> None:
        path = [*path, element.name.encode()]
        if element.leaf >= 0:
            paths[element.leaf] = path
        for child in element.children:
            walk(child, path)

    for child in root.children:
        walk(child, [])
    return paths


def shown_elements(root: Element, deletion_column: str | None) -> list[ThriftStruct]:
    """The kept elements as the footer's flat list, under their new names and without field ids."""
    flat: list[ThriftStruct] = []

    def put(element: Element) -> int:
        if not element.is_kept and element is not root:
            return 0
        raw = {number: item for number, item in element.raw.items() if number != 9}
        raw[4] = (BINARY, element.name.encode())
        flat.append(raw)
        count = sum(put(child) for child in element.children)
        if element.children:
            raw[5] = (I32, count)
        return 1

    put(root)
    if deletion_column is not None:
        flat[0][5] = (I32, flat[0].get(5, (I32, 0))[1] + 1)
        flat.append({1: (I32, BOOLEAN), 3: (I32, OPTIONAL), 4: (BINARY, deletion_column.encode())})
    return flat


def shown_column(column: ThriftStruct, path: list[bytes], leaf: Element, keeps_statistics: bool) -> ThriftStruct:
    """A chunk's description under its shown path."""
    described = dict(column[3][1])
    described[3] = (LIST, ThriftList(BINARY, path))
    changed = {**column, 3: (STRUCT, described)}
    if leaf.value(1) in (FLOAT, DOUBLE) and not keeps_statistics:
        # Statistics without the NaN that a column holds: Spark would skip rows that are greater than any number.
        described.pop(12, None)
        for index in (6, 7):
            changed.pop(index, None)
    return changed


class OwnColumns:
    """Writes column chunks of ours, to stand behind a file's data from the byte ``start`` on.

    Attributes:
        bytes: What was written.
    """

    def __init__(self, start: int) -> None:
        self._start = start
        self.bytes = bytearray()

    def marks(self, deleted: DeletedRows | None, first_row: int, rows: int, name: str) -> ThriftStruct:
        """Append a row group's column of deleted rows: TRUE where a row is deleted, NULL where it stays.

        Args:
            deleted: Which rows are; None where none is.
            first_row: The row group's first row in its file.
        """
        begin, pages, gone = len(self.bytes), [], 0
        for page_row in range(0, rows, _PAGE_ROWS):
            count = min(_PAGE_ROWS, rows - page_row)
            mask = np.zeros(count, np.bool_) if deleted is None else deleted(first_row + page_row, count)
            place, size = self._page(_page(mask), count)
            pages.append((place, size, page_row))
            gone += int(np.count_nonzero(mask))
        chunk = self._chunk(begin, rows, BOOLEAN, [name.encode()], rows - gone)
        if gone:
            chunk[3][1][12][1].update({5: (BINARY, b"\x01"), 6: (BINARY, b"\x01")})
        index = write_struct(
            {1: (LIST, ThriftList(STRUCT, [{1: (I64, o), 2: (I32, n), 3: (I64, r)} for o, n, r in pages]))}
        )
        chunk |= {4: (I64, self._start + len(self.bytes)), 5: (I32, len(index))}
        self.bytes += index
        return chunk

    def nulls(self, rows: int, physical: int, path: list[bytes], levels: tuple[int, int]) -> ThriftStruct:
        """Append a row group's chunk of a column that its file lacks.

        Args:
            physical: The column's physical type.
            levels: Its largest repetition and definition level.
        """
        begin = len(self.bytes)
        self._page(_levels(rows, levels, is_null=True), rows)
        return self._chunk(begin, rows, physical, path, rows)

    def constant(self, rows: int, value: str, path: list[bytes], levels: tuple[int, int]) -> ThriftStruct:
        """Append a row group's chunk of a column of texts that are all the same, a dictionary of one; arguments as for ``nulls``."""
        begin, text = len(self.bytes), value.encode()
        word = len(text).to_bytes(4, "little") + text
        header = {1: (I32, 2), 2: (I32, len(word)), 3: (I32, len(word)), 7: (STRUCT, {1: (I32, 1), 2: (I32, 0)})}
        self.bytes += write_struct(header) + word
        indices = bytearray(b"\x01")  # of one bit each, one run of the first
        append_varint(indices, rows << 1)
        data, _ = self._page(_levels(rows, levels, is_null=False) + bytes(indices) + b"\0", rows, encoding=8)
        chunk = self._chunk(begin, rows, BYTE_ARRAY, path, 0)
        described = chunk[3][1]
        described |= {2: (LIST, ThriftList(I32, [0, 3, 8])), 9: (I64, data), 11: (I64, self._start + begin)}
        described[12][1].update({5: (BINARY, text), 6: (BINARY, text)})
        return chunk

    def _page(self, body: bytes, values: int, encoding: int = 0) -> tuple[int, int]:
        """Append a data page; returns where it begins, and its bytes."""
        header = write_struct(
            {
                1: (I32, 0),
                2: (I32, len(body)),
                3: (I32, len(body)),
                5: (STRUCT, {1: (I32, values), 2: (I32, encoding), 3: (I32, 3), 4: (I32, 3)}),
            }
        )
        place = self._start + len(self.bytes)
        self.bytes += header + body
        return place, len(header) + len(body)

    def _chunk(self, begin: int, rows: int, physical: int, path: list[bytes], nulls: int) -> ThriftStruct:
        """The description of the chunk that was written from ``begin`` on."""
        length = len(self.bytes) - begin
        described: ThriftStruct = {
            1: (I32, physical),
            2: (LIST, ThriftList(I32, [0, 3])),
            3: (LIST, ThriftList(BINARY, path)),
            4: (I32, 0),
            5: (I64, rows),
            6: (I64, length),
            7: (I64, length),
            9: (I64, self._start + begin),
            12: (STRUCT, {3: (I64, nulls)}),
        }
        return {2: (I64, 0), 3: (STRUCT, described)}


def _levels(rows: int, levels: tuple[int, int], *, is_null: bool) -> bytes:
    """Repetition and definition levels of a page: of each a run, of zeros or, for values that are there, of the largest one."""
    body = bytearray()
    for place, level in enumerate(levels):
        if level:
            run = bytearray()
            append_varint(run, rows << 1)
            run += (0 if is_null or place == 0 else level).to_bytes(-(-level.bit_length() // 8), "little")
            body += len(run).to_bytes(4, "little") + run
    return bytes(body)


def _page(mask: npt.NDArray[np.bool_]) -> bytes:
    """A data page of optional booleans: definition levels of one bit, then a set bit for each row that has a value."""
    gone = int(np.count_nonzero(mask))
    levels = bytearray()
    if gone in (0, len(mask)):
        append_varint(levels, len(mask) << 1)
        levels.append(1 if gone else 0)
    else:
        append_varint(levels, -(-len(mask) // 8) << 1 | 1)
        levels += np.packbits(mask, bitorder="little").tobytes()
    return len(levels).to_bytes(4, "little") + bytes(levels) + b"\xff" * -(-gone // 8)
