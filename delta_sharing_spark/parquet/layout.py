"""Lays out the Parquet file that Spark is shown for a data file, or for several small ones: their column chunks under a footer of ours.

The chunks keep their bytes, and of a file alone their places. Of several, those of the columns that the scan reads come
first, so that a reader goes through them in one answer. Encodings belong to column chunks and may differ. In the footer
columns bear the table's names, and columns that are not the table's are left out. So is what would make Spark read
other values: the writer's calendar marks, and statistics of floating-point columns by writers that leave NaN out of
them.

Columns of ours (``own_columns``) stand behind the data.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from delta_sharing_spark.parquet.file_columns import FileColumns, Leaf, leaves_of
from delta_sharing_spark.parquet.file_footer import FileFooter
from delta_sharing_spark.parquet.own_columns import Described, OwnColumns
from delta_sharing_spark.parquet.schema_match import BOOLEAN, INT96, OPTIONAL, Element
from delta_sharing_spark.parquet.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    ThriftList,
    write_fields,
    write_head,
    write_list_head,
    write_struct,
)
from delta_sharing_spark.parquet.thrift import Struct as ThriftStruct
from delta_sharing_spark.storage.ranges import Range

#: Rows in one row group of a file of which no column is read.
_COUNTED_ROWS = 1 << 20
MAGIC = b"PAR1"
#: A writer by whose name Spark corrects nothing.
SOUND_WRITER = b"parquet-mr version 1.12.0 (build 0)"
#: ColumnOrder.TYPE_ORDER of parquet.thrift.
TYPE_ORDER: ThriftStruct = {1: (STRUCT, {})}


class Chunk(NamedTuple):
    """A column chunk of a row group, and its byte range in the file.

    ``column`` is its path in the schema. ``null_in`` is the name of its NOT NULL column if it holds NULLs all the same.
    ``member`` is the number of its file among those that are shown as one.
    """

    range: Range
    row_group: int
    column: bytes
    null_in: str | None = None
    member: int = 0


class Span(NamedTuple):
    """Bytes of one of the sources, and where they begin in the joined file."""

    start: int
    member: int
    source: Range

    @property
    def end(self) -> int:
        return self.start + self.source.length


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


def lay_out_rows(rows: int, deletion_column: str, length_listed: int) -> Layout:
    """Make the layout of a file of so many rows, none of them deleted, for queries that read no column of it."""
    own, groups = OwnColumns(4), []
    count = -(-rows // _COUNTED_ROWS)
    leaf = Leaf(-1, (deletion_column.encode(),), Element({1: (I32, BOOLEAN)}), (0, 1))
    for number in range(count):
        here, before = min(_COUNTED_ROWS, rows - number * _COUNTED_ROWS), len(own.bytes)
        column = own.nulls(here, leaf)
        groups.append(row_group(here, len(own.bytes) - before, [column], int((number + 0.5) * length_listed / count)))
    root = Element({4: (BINARY, b"spark_schema"), 5: (I32, 0)}, name="spark_schema")
    elements = shown_elements(root, deletion_column)
    footer = write_footer((I32, 1), elements, rows, groups, SOUND_WRITER, [TYPE_ORDER])
    return Layout(4, bytes(own.bytes + footer), ())


def row_group(rows: int, size: int, columns: Sequence[Described], middle: int) -> bytes:
    """A row group of ``size`` bytes, which belongs to the task whose part of the listed length holds the byte ``middle``.

    Spark takes for its middle: the start of its first column, and half of its size.
    """
    start, _ = columns[0]
    return b"".join(
        (
            write_head(1, LIST, 0),
            write_list_head(STRUCT, len(columns)),
            *(column for _, column in columns),
            write_struct({2: (I64, size), 3: (I64, rows), 6: (I64, 2 * (middle - start))}, 1),
        )
    )


def write_footer(
    version: tuple[int, object],
    elements: list[ThriftStruct],
    rows: int,
    groups: list[bytes],
    created_by: bytes,
    orders: list[ThriftStruct] | None,
    marks: Sequence[tuple[bytes, bytes]] = (),
) -> bytes:
    """A footer, its length, and the magic."""
    pairs: list[ThriftStruct] = [{1: (BINARY, key), 2: (BINARY, value)} for key, value in marks]
    marks_field: ThriftStruct = {5: (LIST, ThriftList(STRUCT, pairs))} if pairs else {}
    written = b"".join(
        (
            write_fields({1: version, 2: (LIST, ThriftList(STRUCT, elements)), 3: (I64, rows)}),
            write_head(4, LIST, 3),
            write_list_head(STRUCT, len(groups)),
            *groups,
            write_fields({**marks_field, 6: (BINARY, created_by)}, 4),
            b"" if orders is None else write_fields({7: (LIST, ThriftList(STRUCT, orders))}, 6),
            b"\0",
        )
    )
    return written + len(written).to_bytes(4, "little") + MAGIC


def shown_elements(root: Element, deletion_column: str | None) -> list[ThriftStruct]:
    """The kept elements as the footer's flat list, under their new names and without field ids, and the column of deleted rows."""
    flat: list[ThriftStruct] = []

    def put(element: Element) -> int:
        if not element.is_read and element is not root:
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
        flat.append({1: (I32, BOOLEAN), 3: (I32, OPTIONAL), 4: (BINARY, deletion_column.encode())})
        flat[0][5] = (I32, flat[0].get(5, (I32, 0))[1] + 1)
    return flat


#: Releases of the reference implementation that wrote wrong statistics, or pages that depend on the one before.
_SOUND_SINCE = (1, 8)
_RELEASE = re.compile(rb"parquet-mr version (\d+)\.(\d+)")


class DifferentLayoutsError(Exception):
    """Files store a column differently, so that no one footer describes them; the text says which."""


def lay_out(file: FileFooter, deletion_column: str, length_listed: int | None = None) -> Layout:
    """Make the layout in which a file is shown to Spark.

    Args:
        file: Its footer.
        deletion_column: The name, in lower case, of the column of deleted rows; no other column may have it.
        length_listed: The length that Spark was told when it listed the file, if that was another file's.
    """
    chunks = sorted(
        (
            Chunk(Range(cut.start, cut.end), number, leaf.column, leaf.required if cut.nulls else None)
            for number, group in enumerate(file.groups)
            for leaf, cut in zip(file.columns.leaves, group.chunks, strict=True)
        ),
        key=lambda chunk: chunk.range.start,
    )
    starts = [[[cut.start for cut in group.chunks] for group in file.groups]]
    return _layout([file], starts, file.data_end, tuple(chunks), deletion_column, length_listed)


def lay_out_together(
    members: Sequence[FileFooter],
    deletion_column: str,
    length_listed: int,
    wanted: Callable[[bytes], bool],
    *,
    is_fetched: bool = False,
) -> tuple[Layout, tuple[Span, ...]]:
    """Make the layout in which files are shown to Spark as one, and say where its bytes come from.

    Args:
        members: The files' footers, in their order, whose chunks may move.
        deletion_column: The name of the column of deleted rows.
        length_listed: The length that Spark was told when it listed the file: it gives each task a part of that.
        wanted: Whether a column is read by the scan, by its path.
        is_fetched: Whether all is in memory, so that of the chunks only those are told that nobody may read.

    Raises:
        DifferentLayoutsError: Two files store a column differently.
    """
    spans, chunks, starts = _placed(members, wanted, is_fetched)
    data_end = spans[-1].end if spans else 4
    return _layout(members, starts, data_end, chunks, deletion_column, length_listed), spans


def _layout(
    members: Sequence[FileFooter],
    starts: Sequence[Sequence[Sequence[int]]],
    data_end: int,
    chunks: tuple[Chunk, ...],
    deletion_column: str,
    length_listed: int | None,
) -> Layout:
    """The layout of files whose chunks ``starts`` places, by member, row group and column."""
    root, leaves = _columns(members)
    own = OwnColumns(data_end)
    # A row group has to have a column, for Spark to count its rows.
    has_marks = not leaves or any(member.deleted is not None for member in members)
    total = sum(len(member.groups) for member in members)
    places = {id(of_file): {leaf.path: n for n, leaf in enumerate(of_file.leaves)} for of_file in _distinct(members)}
    groups: list[bytes] = []
    for member, placed in zip(members, starts, strict=True):
        here, first_row = [places[id(member.columns)].get(leaf.path) for leaf in leaves], 0
        constants = [member.constants.get(leaf.path[0].decode()) for leaf in leaves]
        for group, begins in zip(member.groups, placed, strict=True):
            columns = []
            for leaf, constant, place in zip(leaves, constants, here, strict=True):
                if constant is not None:
                    columns.append(own.constant(group.rows, constant, leaf))
                elif place is None:
                    columns.append(own.nulls(group.rows, leaf))
                else:
                    start = begins[place]
                    columns.append((start, group.chunks[place].described(start - group.chunks[place].start)))
            if has_marks:
                columns.append(own.marks(member.deleted, first_row, group.rows, deletion_column))
            first_row += group.rows
            if length_listed is None:
                middle = min(begins, default=min(4 + len(groups), data_end - 1))
            else:
                middle = int((len(groups) + 0.5) * length_listed / total)
            groups.append(row_group(group.rows, group.bytes, columns, middle))
    created_by = members[0].created_by
    is_mixed = any(member.created_by != created_by for member in members)
    has_int96 = any(leaf.element.value(1) == INT96 for leaf in leaves)
    if is_mixed or (has_int96 and not members[0].is_of_parquet_mr):
        # spark.sql.parquet.int96TimestampConversion shifts the timestamps of other writers.
        created_by = SOUND_WRITER
    orders, special = None, _orders(members)
    if special is not None:
        orders = [*(special.get(leaf.path, TYPE_ORDER) for leaf in leaves), *[TYPE_ORDER] * has_marks]
    elements = shown_elements(root, deletion_column if has_marks else None)
    rows = sum(group.rows for member in members for group in member.groups)
    version, marks = members[0].columns.version, members[0].marks
    footer = write_footer(version, elements, rows, groups, created_by, orders, marks)
    return Layout(data_end, bytes(own.bytes + footer), chunks)


def is_sound(member: FileFooter) -> bool:
    """Whether Spark's reader corrects nothing by the name of what wrote a file, so that it can bear another's."""
    release = _RELEASE.match(member.created_by)
    if release is not None:
        return (int(release[1]), int(release[2])) >= _SOUND_SINCE
    return bool(member.created_by) and not member.is_of_parquet_mr


def _columns(members: Sequence[FileFooter]) -> tuple[Element, list[Leaf]]:
    """The schema of all members, each column as the first that has it describes it, and its columns."""
    if len({member.created_by for member in members}) > 1 and not all(map(is_sound, members)):
        raise DifferentLayoutsError("they come from writers that Spark reads differently")
    if len({member.marks for member in members}) > 1:
        raise DifferentLayoutsError("they count old dates by different calendars")
    columns: dict[str, Element] = {}
    signatures: dict[str, object] = {}
    for of_file in _distinct(members):
        for element in of_file.root.children:
            if not element.is_read:
                continue
            signature = _signature(element)
            if signatures.setdefault(element.name, signature) != signature:
                raise DifferentLayoutsError(f"they store column {element.name!r} in different ways")
            columns.setdefault(element.name, element)
    for member in {id(member.columns): member for member in members}.values():
        held = {element.name for element in member.columns.root.children if element.is_read} | member.constants.keys()
        for name in columns.keys() - held:
            if columns[name].value(3) != OPTIONAL:  # its pages have no place for a NULL
                raise DifferentLayoutsError(f"some lack column {name!r}, which cannot be NULL in the others")
    for name in (name for member in members for name in member.constants):
        if name not in columns:
            columns[name] = Leaf.of_texts(name).element
    first = members[0].columns.root
    root = Element({**first.raw, 5: (I32, 0)}, list(columns.values()), is_read=True, name=first.name)
    return root, list(leaves_of(root))


def _orders(members: Sequence[FileFooter]) -> dict[tuple[bytes, ...], ThriftStruct] | None:
    """The orders of columns' values that are not those of their types, by the columns' paths; None where a file tells none."""
    special: dict[tuple[bytes, ...], ThriftStruct] = {}
    for member in {(id(member.columns), id(member.orders)): member for member in members}.values():
        if member.orders is None:
            return None
        orders = ((leaf.path, member.orders[leaf.number]) for leaf in member.columns.leaves)
        special.update((path, order) for path, order in orders if order != TYPE_ORDER)
    return special


def _distinct(members: Sequence[FileFooter]) -> list[FileColumns]:
    return list({id(member.columns): member.columns for member in members}.values())


def _signature(element: Element) -> object:
    """What has to be equal in two files for the same description to hold for a column of both."""
    logical = element.logical
    # Whether a number of 64 bits counts milliseconds or microseconds; what else is annotated was matched with the table.
    unit = None
    if logical is not None:
        unit = tuple(logical[1].get(2, (0, {}))[1]) if isinstance(logical[1].get(2, (0, 0))[1], dict) else None
    if unit is None and element.value(6) in (9, 10):
        unit = (1,) if element.value(6) == 9 else (2,)
    inner = tuple(_signature(child) for child in element.children if child.is_read)
    return element.name, element.value(3), element.value(1), element.value(2), unit, inner


def _placed(
    members: Sequence[FileFooter], wanted: Callable[[bytes], bool], is_fetched: bool
) -> tuple[tuple[Span, ...], tuple[Chunk, ...], list[list[list[int]]]]:
    """The spans and the chunks of the joined file, and where the chunk of each member, row group and column begins."""
    spans: list[Span] = []
    chunks: list[Chunk] = []
    starts = [[[0] * len(group.chunks) for group in member.groups] for member in members]
    is_wanted = {id(c): [wanted(leaf.column) for leaf in c.leaves] for c in _distinct(members)}
    position = 4
    for is_first in (True, False):
        row_groups = 0
        for number, member in enumerate(members):
            leaves = member.columns.leaves
            now = [n for n, is_read in enumerate(is_wanted[id(member.columns)]) if is_read is is_first]
            for group, placed in zip(member.groups, starts[number], strict=True):
                for column in sorted(now, key=lambda n: group.chunks[n].start):
                    cut, leaf = group.chunks[column], leaves[column]
                    placed[column], end = position, position + cut.end - cut.start
                    null_in = leaf.required if cut.nulls else None
                    if not is_fetched or null_in is not None:
                        chunks.append(Chunk(Range(position, end), row_groups, leaf.column, null_in, number))
                    last = spans[-1] if spans else None
                    if last is not None and last.member == number and last.source.end == cut.start:
                        spans[-1] = Span(last.start, number, Range(last.source.start, cut.end))
                    elif end > position:
                        spans.append(Span(position, number, Range(cut.start, cut.end)))
                    position = end
                row_groups += 1
    return tuple(spans), tuple(chunks), starts
