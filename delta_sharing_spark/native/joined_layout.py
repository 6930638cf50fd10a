"""Lays out several small files as the one Parquet file that Spark is shown: their column chunks one after another, one footer.

The columns that the scan reads come first, so that a reader goes through them in one answer. Encodings belong to
column chunks and may differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
from delta_sharing_spark.native.schema_match import INT96, Element
from delta_sharing_spark.scan.thrift import I32
from delta_sharing_spark.storage.ranges import Range

#: Releases of the reference implementation that wrote wrong statistics, or pages that depend on the one before.
_SOUND_SINCE = (1, 8)
_RELEASE = re.compile(rb"parquet-mr version (\d+)\.(\d+)")


class DifferentLayoutsError(Exception):
    """Files store a column differently, so that no one footer describes them; the text says which."""


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of one of the files, and where they begin in the joined file."""

    start: int
    member: int
    source: Range

    @property
    def end(self) -> int:
        return self.start + self.source.length


def lay_out_together(
    members: Sequence[FileFooter], deletion_column: str, length_listed: int, wanted: Callable[[bytes], bool]
) -> tuple[Layout, tuple[Span, ...]]:
    """Make the layout in which files are shown to Spark as one, and say where its bytes come from.

    Args:
        members: The files' footers, in their order, whose chunks may move.
        deletion_column: The name of the column of deleted rows.
        length_listed: The length that Spark was told when it listed the file: it gives each task a part of that.
        wanted: Whether a column is read by the scan, by its path.

    Raises:
        DifferentLayoutsError: Two files store a column differently.
    """
    root, leaves = _columns(members)
    spans, chunks, starts = _placed(members, wanted)
    data_end = spans[-1].end if spans else 4
    own = OwnColumns(data_end)
    has_marks = not leaves or any(member.deleted is not None for member in members)
    total = sum(len(member.groups) for member in members)
    places = {id(m.columns): {leaf.path: n for n, leaf in enumerate(m.columns.leaves)} for m in members}
    groups: list[bytes] = []
    for member, placed in zip(members, starts, strict=True):
        here, first_row = [places[id(member.columns)].get(leaf.path) for leaf in leaves], 0
        constants = [member.constants.get(leaf.path[0].decode()) for leaf in leaves]
        for group, moved in zip(member.groups, placed, strict=True):
            columns = []
            for leaf, constant, place in zip(leaves, constants, here, strict=True):
                if constant is not None:
                    columns.append(own.constant(group.rows, constant, leaf))
                elif place is None:
                    columns.append(own.nulls(group.rows, leaf))
                else:
                    start = moved[place]
                    columns.append((start, group.chunks[place].described(start - group.chunks[place].start)))
            if has_marks:
                columns.append(own.marks(member.deleted, first_row, group.rows, deletion_column))
            first_row += group.rows
            middle = int((len(groups) + 0.5) * length_listed / total)
            groups.append(row_group(group.rows, group.bytes, columns, middle))
    created_by = members[0].created_by
    is_mixed = any(member.created_by != created_by for member in members)
    has_int96 = any(leaf.element.value(1) == INT96 for leaf in leaves)
    if is_mixed or (has_int96 and not members[0].is_of_parquet_mr):
        created_by = SOUND_WRITER
    orders = None
    if all(member.orders is not None for member in members):
        orders = [TYPE_ORDER] * (len(leaves) + has_marks)
    elements = shown_elements(root, (), deletion_column if has_marks else None)
    rows = sum(group.rows for member in members for group in member.groups)
    footer = write_footer(members[0].columns.version, elements, rows, groups, created_by, orders)
    return Layout(data_end, bytes(own.bytes + footer), chunks), spans


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
    for name in (name for member in members for name in member.constants):
        if name not in columns:
            columns[name] = Leaf.of_texts(name).element
    first = members[0].columns.root
    root = Element({**first.raw, 5: (I32, 0)}, list(columns.values()), is_kept=True, name=first.name)
    return root, list(leaves_of(root))


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
    members: Sequence[FileFooter], wanted: Callable[[bytes], bool]
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
                    chunks.append(Chunk(Range(position, end), row_groups, leaf.column, null_in, number))
                    last = spans[-1] if spans else None
                    if last is not None and last.member == number and last.source.end == cut.start:
                        spans[-1] = Span(last.start, number, Range(last.source.start, cut.end))
                    elif end > position:
                        spans.append(Span(position, number, Range(cut.start, cut.end)))
                    position = end
                row_groups += 1
    return tuple(spans), tuple(chunks), starts
