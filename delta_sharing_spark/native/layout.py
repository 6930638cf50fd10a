"""Lays out the Parquet file that Spark is shown for a data file: the file's own column chunks under a footer of ours.

The chunks keep their places and bytes. In the footer columns bear the table's names, columns that are not the table's
are left out, and so is what Spark would read the file otherwise by: the writer's calendar marks, and statistics of
floating-point columns by writers that leave NaN out of them. A deletion vector becomes a column of our own behind the
data, NULL for the rows that are left, so that Spark filters them as any other column, vectorised and pruned.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from delta_sharing_spark.native.schema_match import (
    BOOLEAN,
    DOUBLE,
    FLOAT,
    INT96,
    OPTIONAL,
    Element,
    NotNativeError,
    match_columns,
    schema_tree,
)
from delta_sharing_spark.native.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    ThriftList,
    read_struct,
    write_struct,
)
from delta_sharing_spark.native.thrift import Struct as ThriftStruct
from delta_sharing_spark.schema.types import Struct
from delta_sharing_spark.storage.ranges import Range
from delta_sharing_spark.varint import append_varint

#: Rows in one page of a deletion column.
_PAGE_ROWS = 1 << 16
_MAGIC = b"PAR1"
_PARQUET_MR = b"parquet-mr"
_SPARK_VERSION, _SPARK_LEGACY = b"org.apache.spark.version", b"org.apache.spark.legacy"

#: Which rows of a file are deleted: first row and count to a mask that is true where a row is.
DeletedRows = Callable[[int, int], npt.NDArray[np.bool_]]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A column chunk of a row group, and its byte range in the file.

    ``column`` is its path in the schema. ``null_in`` is the name of its NOT NULL column if it holds NULLs all the same.
    """

    range: Range
    row_group: int
    column: bytes
    null_in: str | None = None


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
    hidden: frozenset[str] = frozenset(),
    length_planned: int | None = None,
) -> Layout:
    """Make the layout in which a file is shown to Spark.

    Args:
        footer: The file's footer, without its length and magic.
        size: Bytes of the file.
        schema: The table's columns that are read from files.
        mapping: Column mapping mode.
        deleted: The rows of its deletion vector; None where it has none.
        deletion_column: The name of the column of deleted rows.
        hidden: Names, in lower case, that no other column may have.
        length_planned: The length that Spark was told when it listed the file, if that was another file's.

    Raises:
        NotNativeError: Spark's reader would not read it as exactly as the Python source does.
    """
    try:
        head, _ = read_struct(footer, last_field=2)
        root = schema_tree(head[2][1].items)
        match_columns(root, schema, mapping)
        data_end = size - len(footer) - 8
        metadata, _ = read_struct(footer)
        if deleted is None and length_planned is None and _is_shown_as_is(footer, root, schema, hidden):
            tail = footer + len(footer).to_bytes(4, "little") + _MAGIC
            return Layout(data_end, tail, tuple(_chunks(metadata, root)))
        return _rewritten(metadata, root, data_end, deleted, deletion_column, length_planned)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise NotNativeError(f"its footer is of an unknown form ({type(error).__name__})") from error


def _is_shown_as_is(footer: bytes, root: Element, schema: Struct, hidden: frozenset[str]) -> bool:
    """Whether nothing of the footer has to be changed."""
    names = {column.name.lower() for column in schema.fields} | set(hidden)
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


def _chunks(metadata: ThriftStruct, root: Element) -> list[Chunk]:
    """The kept column chunks of a footer, before it is changed."""
    leaves = list(root.leaves())
    paths = _paths(root)
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
            start = _start(described)
            statistics = described.get(12, (0, {}))[1]
            nulls = statistics.get(3, (0, 0))[1]
            null_in = required.get(leaf) if nulls else None
            chunks.append(Chunk(Range(start, start + described[7][1]), number, b".".join(paths[leaf]), null_in))
    return sorted(chunks, key=lambda chunk: chunk.range.start)


def _start(described: ThriftStruct) -> int:
    data, dictionary = described[9][1], described.get(11, (0, 0))[1]
    # Some writers leave a dictionary offset of 0, or put it after the data pages.
    return int(min(data, dictionary) if dictionary > 0 else data)


def _rewritten(
    metadata: ThriftStruct,
    root: Element,
    data_end: int,
    deleted: DeletedRows | None,
    deletion_column: str,
    length_planned: int | None,
) -> Layout:
    chunks = _chunks(metadata, root)
    leaves = list(root.leaves())
    kept = [leaf for leaf in leaves if leaf.is_kept]
    paths = _paths(root)
    keeps_statistics = bytes(metadata.get(6, (0, b""))[1]).startswith(_PARQUET_MR)
    # A row group has to have a column, for Spark to count its rows.
    marks = _Marks(data_end, deleted) if deleted is not None or not kept else None
    groups, first_row, total = [], 0, len(metadata[4][1].items)
    starts: dict[int, int] = {}
    for chunk in chunks:
        starts[chunk.row_group] = min(chunk.range.start, starts.get(chunk.row_group, chunk.range.start))
    for number, group in enumerate(metadata[4][1].items):
        rows = group[3][1]
        columns = [_column(group[1][1].items[leaf.leaf], paths[leaf.leaf], leaf, keeps_statistics) for leaf in kept]
        if marks is not None:
            columns.append(marks.column(first_row, rows, deletion_column))
        first_row += rows
        # Spark reads a row group in the task whose part of the listed length holds this middle: start + size / 2.
        start = _start(columns[0][3][1])
        if length_planned is None:
            middle = starts.get(number, min(4 + number, data_end - 1))
        else:
            middle = int((number + 0.5) * length_planned / total)
        groups.append(
            {
                1: (LIST, ThriftList(STRUCT, columns)),
                2: group[2],
                3: group[3],
                6: (I64, 2 * (middle - start)),
            }
        )
    elements = _schema(root, deletion_column if marks is not None else None)
    changed: ThriftStruct = {
        1: metadata[1],
        2: (LIST, ThriftList(STRUCT, elements)),
        3: metadata[3],
        4: (LIST, ThriftList(STRUCT, groups)),
    }
    created_by = bytes(metadata.get(6, (0, b""))[1])
    if any(leaf.value(1) == INT96 for leaf in kept) and not created_by.startswith(_PARQUET_MR):
        # spark.sql.parquet.int96TimestampConversion shifts the timestamps of other writers.
        created_by = b"parquet-mr version 1.12.0 (build 0)"
    changed[6] = (BINARY, created_by)
    if 7 in metadata:
        orders = metadata[7][1].items
        order: ThriftStruct = {1: (STRUCT, {})}
        changed[7] = (
            LIST,
            ThriftList(STRUCT, [orders[leaf.leaf] for leaf in kept] + [order] * (marks is not None)),
        )
    tail = bytearray() if marks is None else marks.bytes
    written = write_struct(changed)
    tail += written + len(written).to_bytes(4, "little") + _MAGIC
    return Layout(data_end, bytes(tail), tuple(chunks))


def _paths(root: Element) -> dict[int, list[bytes]]:
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


def _schema(root: Element, deletion_column: str | None) -> list[ThriftStruct]:
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


def _column(column: ThriftStruct, path: list[bytes], leaf: Element, keeps_statistics: bool) -> ThriftStruct:
    described = dict(column[3][1])
    described[3] = (LIST, ThriftList(BINARY, path))
    changed = {**column, 3: (STRUCT, described)}
    if leaf.value(1) in (FLOAT, DOUBLE) and not keeps_statistics:
        # Statistics without the NaN that a column holds: Spark would skip rows that are greater than any number.
        described.pop(12, None)
        for index in (6, 7):
            changed.pop(index, None)
    return changed


class _Marks:
    """Writes the column of deleted rows, row group by row group: TRUE where a row is deleted, NULL where it stays."""

    def __init__(self, start: int, deleted: DeletedRows | None) -> None:
        self._start = start
        self._deleted = deleted
        self.bytes = bytearray()

    def column(self, first_row: int, rows: int, name: str) -> ThriftStruct:
        """Append the chunk of a row group; returns its description."""
        begin, pages, deleted = len(self.bytes), [], 0
        for page_row in range(0, rows, _PAGE_ROWS):
            count = min(_PAGE_ROWS, rows - page_row)
            mask = np.zeros(count, np.bool_) if self._deleted is None else self._deleted(first_row + page_row, count)
            body = _page(mask)
            header = write_struct(
                {
                    1: (I32, 0),
                    2: (I32, len(body)),
                    3: (I32, len(body)),
                    5: (STRUCT, {1: (I32, count), 2: (I32, 0), 3: (I32, 3), 4: (I32, 3)}),
                }
            )
            pages.append((self._start + len(self.bytes), len(header) + len(body), page_row))
            self.bytes += header + body
            deleted += int(np.count_nonzero(mask))
        length = len(self.bytes) - begin
        index = write_struct(
            {1: (LIST, ThriftList(STRUCT, [{1: (I64, o), 2: (I32, n), 3: (I64, r)} for o, n, r in pages]))}
        )
        index_start = self._start + len(self.bytes)
        self.bytes += index
        true = {5: (BINARY, b"\x01"), 6: (BINARY, b"\x01")} if deleted else {}
        described: ThriftStruct = {
            1: (I32, BOOLEAN),
            2: (LIST, ThriftList(I32, [0, 3])),
            3: (LIST, ThriftList(BINARY, [name.encode()])),
            4: (I32, 0),
            5: (I64, rows),
            6: (I64, length),
            7: (I64, length),
            9: (I64, self._start + begin),
            12: (STRUCT, {3: (I64, rows - deleted), **true}),
        }
        return {2: (I64, 0), 3: (STRUCT, described), 4: (I64, index_start), 5: (I32, len(index))}


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
