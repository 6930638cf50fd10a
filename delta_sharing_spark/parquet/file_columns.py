"""The columns of a Parquet file that hold columns of a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from delta_sharing_spark.parquet.schema_match import BYTE_ARRAY, OPTIONAL, REPEATED, Element
from delta_sharing_spark.parquet.thrift import (
    BINARY,
    I32,
    LIST,
    STRUCT,
    Struct,
    write_head,
    write_list_head,
    write_text,
)


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
        raw: Struct = {1: (I32, BYTE_ARRAY), 3: (I32, OPTIONAL), 4: (BINARY, text), 6: (I32, 0)}
        raw[10] = (STRUCT, {1: (STRUCT, {})})
        return Leaf(-1, (text,), Element(raw, leaf=0, is_read=True, name=name), (0, 1))


class Unread(NamedTuple):
    """A column of a file that Spark's reader cannot decode: its path, the name of the table's column, and why."""

    column: bytes
    name: str
    reason: str


class Beginning(NamedTuple):
    """What a column's chunks have in common: the fields of ``ColumnMetaData`` up to the codec.

    Attributes:
        stored: As they stand in the file.
        shown: A ``ColumnChunk`` up to there, as Spark is shown it.
        unread: Why Spark's reader cannot decode the column; None if it can.
    """

    stored: bytes
    shown: bytes
    unread: Unread | None


@dataclass(frozen=True, slots=True)
class FileColumns:
    """The columns of all files of one schema.

    Attributes:
        version: The field of the format's version.
        root: The schema, matched with the table's.
        count: Columns in the file.
        leaves: Those that hold columns of the table, in the order of the file.
        in_file: All of the file; None for those that hold nothing of the table.
        beginnings, alike: By a column's number, what its chunks have in common in bytes: see ``walker``.
    """

    version: tuple[int, object]
    root: Element
    count: int
    leaves: tuple[Leaf, ...]
    in_file: tuple[Leaf | None, ...] = field(init=False, repr=False, compare=False)
    beginnings: dict[int, Beginning] = field(default_factory=dict, repr=False, compare=False)
    alike: defaultdict[int, dict[int, bytes]] = field(
        default_factory=lambda: defaultdict(dict), repr=False, compare=False
    )

    def __post_init__(self) -> None:
        leaves = {leaf.number: leaf for leaf in self.leaves}
        object.__setattr__(self, "in_file", tuple(map(leaves.get, range(self.count))))


def leaves_of(root: Element) -> Iterator[Leaf]:
    """The columns of a file that hold columns of the table."""

    def walk(
        element: Element, path: tuple[bytes, ...], levels: tuple[int, int], required: str | None
    ) -> Iterator[Leaf]:
        if not element.is_read:
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
