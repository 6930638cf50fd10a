"""Lays out the Parquet file that Spark is shown for a data file, or for several small ones: their column chunks under a footer of ours.

The chunks keep their bytes, and of a file alone their places; of several, those of the columns that the scan reads come first,
so that a reader goes through them in one answer. Encodings belong to column chunks and may differ. In the footer columns bear
the table's names, columns that are not the table's are left out, and so is what would make Spark read other values: the writer's
calendar marks, and statistics of floating-point columns by writers that leave NaN out of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from delta_sharing_spark.native.file_footer import FileColumns, FileFooter, Leaf, leaves_of
from delta_sharing_spark.native.layout import (
    SOUND_WRITER,
    TYPE_ORDER,
    Chunk,
    Layout,
    OwnColumns,
    row_group,
    shown_elements,
    write_footer,
)
from delta_sharing_spark.native.schema_match import INT96, OPTIONAL, Element
from delta_sharing_spark.scan.thrift import I32
from delta_sharing_spark.scan.thrift import Struct as ThriftStruct
from delta_sharing_spark.storage.ranges import Range

#: Releases of the reference implementation that wrote wrong statistics, or pages that depend on the one before.
_SOUND_SINCE = (1, 8)
_RELEASE = re.compile(rb"parquet-mr version (\d+)\.(\d+)")


class DifferentLayoutsError(Exception):
    """Files store a column differently, so that no one footer describes them; the text says which."""


class Span(NamedTuple):
    """Bytes of one of the files, and where they begin in the joined file."""

    start: int
    member: int
    source: Range

    @property
    def end(self) -> int:
        return self.start + self.source.length


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
    places = {id(known): {leaf.path: n for n, leaf in enumerate(known.leaves)} for known in _distinct(members)}
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
    footer = write_footer(members[0].columns.version, elements, rows, groups, created_by, orders)
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
    columns: dict[str, Element] = {}
    signatures: dict[str, object] = {}
    for known in _distinct(members):
        for element in known.root.children:
            if not element.is_kept:
                continue
            signature = _signature(element)
            if signatures.setdefault(element.name, signature) != signature:
                raise DifferentLayoutsError(f"they store column {element.name!r} in different ways")
            columns.setdefault(element.name, element)
    for member in {id(member.columns): member for member in members}.values():
        held = {element.name for element in member.columns.root.children if element.is_kept} | member.constants.keys()
        for name in columns.keys() - held:
            if columns[name].value(3) != OPTIONAL:  # its pages have no place for a NULL
                raise DifferentLayoutsError(f"some lack column {name!r}, which cannot be NULL in the others")
    for name in (name for member in members for name in member.constants):
        if name not in columns:
            columns[name] = Leaf.of_texts(name).element
    first = members[0].columns.root
    root = Element({**first.raw, 5: (I32, 0)}, list(columns.values()), is_kept=True, name=first.name)
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
    kept = tuple(_signature(child) for child in element.children if child.is_kept)
    return element.name, element.value(3), element.value(1), element.value(2), unit, kept


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
