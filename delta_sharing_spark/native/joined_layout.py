"""Lays out several small files as the one Parquet file that Spark is shown: their column chunks one after another, one footer.

The columns that the scan reads come first, so that a reader goes through them in one answer. Encodings belong to
column chunks and may differ; page indexes and Bloom filters, which small files hardly need, are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from delta_sharing_spark.native.layout import (
    SOUND_WRITER,
    Chunk,
    Constants,
    DeletedRows,
    Layout,
    OwnColumns,
    chunk_start,
    constant_element,
    created_by_parquet_mr,
    kept_chunks,
    leaf_paths,
    row_group,
    shown_column,
    shown_elements,
    without,
    write_footer,
)
from delta_sharing_spark.native.schema_match import (
    BYTE_ARRAY,
    FIXED,
    INT96,
    OPTIONAL,
    REPEATED,
    Element,
    NotNativeError,
    match_columns,
    schema_tree,
)
from delta_sharing_spark.scan.thrift import I32, I64, STRUCT, read_struct
from delta_sharing_spark.scan.thrift import Struct as ThriftStruct
from delta_sharing_spark.schema.types import Struct
from delta_sharing_spark.storage.ranges import Range

#: Releases of the reference implementation that wrote wrong statistics, or pages that depend on the one before.
_SOUND_SINCE = (1, 8)
_RELEASE = re.compile(rb"parquet-mr version (\d+)\.(\d+)")
#: What places in ``ColumnChunk`` and ``ColumnMetaData`` stand for indexes and Bloom filters.
_INDEXES, _BLOOM_FILTERS = (4, 5, 6, 7), (10, 14, 15)
_TYPE_ORDER: ThriftStruct = {1: (STRUCT, {})}


class DifferentLayoutsError(Exception):
    """Files store a column differently, so that no one footer describes them; the text says which."""


@dataclass(frozen=True, slots=True)
class Member:
    """One file of those that are shown as one: its footer, and the tree of its columns as Spark is shown them.

    Attributes:
        metadata: The footer.
        root: Its schema, matched with the table's.
        chunks: The column chunks that hold columns of the table.
        data_end: Where its footer begins.
        deleted: The rows of its deletion vector; None where it has none.
        constants: Columns that are not read from the file, and their value.
    """

    metadata: ThriftStruct
    root: Element
    chunks: tuple[Chunk, ...]
    data_end: int
    deleted: DeletedRows | None
    constants: Constants = field(default_factory=dict)

    @property
    def created_by(self) -> bytes:
        """What wrote it."""
        return bytes(self.metadata.get(6, (0, b""))[1])


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of a member, and where they begin in the joined file."""

    start: int
    member: int
    source: Range

    @property
    def end(self) -> int:
        return self.start + self.source.length


def read_member(
    footer: bytes, size: int, schema: Struct, mapping: str, deleted: DeletedRows | None, constants: Constants
) -> Member:
    """Read the footer of a file that is to be shown with others; arguments and errors are those of ``lay_out``."""
    try:
        metadata, _ = read_struct(footer)
        root = schema_tree(metadata[2][1].items)
        match_columns(root, without(schema, constants), mapping)
        chunks = tuple(kept_chunks(metadata, root))
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise NotNativeError(f"its footer is of an unknown form ({type(error).__name__})") from error
    return Member(metadata, root, chunks, size - len(footer) - 8, deleted, constants)


def lay_out_together(
    members: Sequence[Member], deletion_column: str, length_listed: int, wanted: Callable[[bytes], bool]
) -> tuple[Layout, tuple[Span, ...]]:
    """Make the layout in which files are shown to Spark as one, and say where its bytes come from.

    Args:
        members: The files, in their order.
        deletion_column: The name of the column of deleted rows.
        length_listed: The length that Spark was told when it listed the file: it gives each task a part of that.
        wanted: Whether a column is read by the scan, by its path.

    Raises:
        DifferentLayoutsError: Two files store a column differently.
    """
    columns = _columns(members)
    first = members[0].root
    root = Element({**first.raw, 5: (I32, 0)}, list(columns.values()), is_kept=True, name=first.name)
    leaves = [_Leaf(path, element, levels) for path, element, levels in _leaves(root.children, (), (0, 0))]
    spans, placed = _placed(members, wanted)
    data_end = spans[-1].end if spans else 4
    own = OwnColumns(data_end)
    has_marks = not leaves or any(member.deleted is not None for member in members)
    is_mixed = len({member.created_by for member in members}) > 1
    total = sum(len(member.metadata[4][1].items) for member in members)
    groups: list[ThriftStruct] = []
    for number, member in enumerate(members):
        here, first_row = _leaf_numbers(member.root), 0
        keeps_statistics = created_by_parquet_mr(member.metadata)
        for place, group in enumerate(member.metadata[4][1].items):
            rows, described = group[3][1], []
            for leaf in leaves:
                constant = member.constants.get(leaf.path[0].decode())
                if constant is not None:
                    described.append(own.constant(rows, constant, list(leaf.path), leaf.levels))
                    continue
                if leaf.path not in here:
                    physical = int(leaf.element.raw[1][1])
                    described.append(own.nulls(rows, physical, list(leaf.path), leaf.levels))
                    continue
                old = group[1][1].items[here[leaf.path]]
                column = shown_column(old, list(leaf.path), leaf.element, keeps_statistics)
                described.append(_moved(column, placed[number, place, b".".join(leaf.path)], is_mixed))
            if has_marks:
                described.append(own.marks(member.deleted, first_row, rows, deletion_column))
            first_row += rows
            groups.append(row_group(group, described, int((len(groups) + 0.5) * length_listed / total)))
    created_by = members[0].created_by
    if is_mixed or (
        any(leaf.element.value(1) == INT96 for leaf in leaves) and not created_by.startswith(b"parquet-mr")
    ):
        created_by = SOUND_WRITER
    orders = None
    if all(7 in member.metadata for member in members):
        orders = [_TYPE_ORDER] * (len(leaves) + has_marks)
    elements = shown_elements(root, deletion_column if has_marks else None)
    rows = sum(member.metadata[3][1] for member in members)
    footer = write_footer(members[0].metadata[1], elements, rows, groups, created_by, orders)
    return Layout(data_end, bytes(own.bytes + footer), _shown_chunks(members, placed)), spans


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A column of the joined file: its path, what describes it, its largest repetition and definition level."""

    path: tuple[bytes, ...]
    element: Element
    levels: tuple[int, int]


def is_sound(member: Member) -> bool:
    """Whether Spark's reader corrects nothing by the name of what wrote a file, so that it can bear another's."""
    release = _RELEASE.match(member.created_by)
    if release is not None:
        return (int(release[1]), int(release[2])) >= _SOUND_SINCE
    return bool(member.created_by) and not member.created_by.startswith(b"parquet-mr")


def _columns(members: Sequence[Member]) -> dict[str, Element]:
    """The columns of all members, by name, as the first that has each describes it."""
    if len({member.created_by for member in members}) > 1 and not all(map(is_sound, members)):
        raise DifferentLayoutsError("they come from writers that Spark reads differently")
    columns: dict[str, Element] = {}
    signatures: dict[str, object] = {}
    for member in members:
        for element in member.root.children:
            if not element.is_kept:
                continue
            signature = _signature(element)
            if signatures.setdefault(element.name, signature) != signature:
                raise DifferentLayoutsError(f"they store column {element.name!r} in different ways")
            columns.setdefault(element.name, element)
    for name in (name for member in members for name in member.constants):
        columns.setdefault(name, constant_element(name))
    return columns


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


def _leaves(
    elements: Sequence[Element], path: tuple[bytes, ...], levels: tuple[int, int]
) -> Iterator[tuple[tuple[bytes, ...], Element, tuple[int, int]]]:
    for element in elements:
        if not element.is_kept:
            continue
        repetition = element.value(3)
        here = levels[0] + (repetition == REPEATED), levels[1] + (repetition in (OPTIONAL, REPEATED))
        below = (*path, element.name.encode())
        if element.children:
            yield from _leaves(element.children, below, here)
        else:
            yield below, element, here


def _leaf_numbers(root: Element) -> dict[tuple[bytes, ...], int]:
    """The numbers of a file's kept columns, by their paths."""
    paths = leaf_paths(root)
    return {tuple(paths[leaf.leaf]): leaf.leaf for leaf in root.leaves() if leaf.is_kept}


#: Where a chunk begins in the joined file, by its member, its row group there, and its column.
_Places = dict[tuple[int, int, bytes], int]


def _placed(members: Sequence[Member], wanted: Callable[[bytes], bool]) -> tuple[tuple[Span, ...], _Places]:
    spans: list[Span] = []
    placed: _Places = {}
    position = 4
    known: dict[bytes, bool] = {}
    for is_first in (True, False):
        for number, member in enumerate(members):
            for chunk in sorted(member.chunks, key=lambda c: (c.row_group, c.range.start)):
                if chunk.column not in known:
                    known[chunk.column] = wanted(chunk.column)
                if known[chunk.column] is not is_first:
                    continue
                placed[number, chunk.row_group, chunk.column] = position
                last = spans[-1] if spans else None
                if last is not None and last.member == number and last.source.end == chunk.range.start:
                    spans[-1] = Span(last.start, number, Range(last.source.start, chunk.range.end))
                elif chunk.range.length:
                    spans.append(Span(position, number, chunk.range))
                position += chunk.range.length
    return tuple(spans), placed


def _moved(column: ThriftStruct, start: int, is_mixed: bool) -> ThriftStruct:
    """A chunk's description where it begins at ``start``, without indexes."""
    described = dict(column[3][1])
    by = start - chunk_start(described)
    described[9] = (I64, described[9][1] + by)
    dictionary = described.pop(11, (0, 0))[1]
    if dictionary > 0:
        described[11] = (I64, dictionary + by)
    for place in _BLOOM_FILTERS:
        described.pop(place, None)
    if is_mixed and described[1][1] in (BYTE_ARRAY, FIXED) and 12 in described:
        # The older minimum and maximum depend on what wrote them.
        statistics = {place: item for place, item in described[12][1].items() if place not in (1, 2)}
        described[12] = (STRUCT, statistics)
    changed = {place: item for place, item in column.items() if place not in _INDEXES}
    return {**changed, 2: (I64, 0), 3: (STRUCT, described)}


def _shown_chunks(members: Sequence[Member], placed: _Places) -> tuple[Chunk, ...]:
    chunks, first = [], 0
    for number, member in enumerate(members):
        for chunk in member.chunks:
            start = placed[number, chunk.row_group, chunk.column]
            shown = Range(start, start + chunk.range.length)
            chunks.append(replace(chunk, range=shown, row_group=first + chunk.row_group, member=number))
        first += len(member.metadata[4][1].items)
    return tuple(sorted(chunks, key=lambda chunk: (chunk.range.start, chunk.range.end)))
