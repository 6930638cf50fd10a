"""Writes column chunks of ours, which stand behind a file's data: deleted rows, texts that are all the same, NULLs.

A deletion vector becomes a column that is NULL for the rows that stay, so that Spark filters it as any other column, vectorised
and pruned. What is the same in all rows of a file of a change feed, and is no partition value, becomes one as well.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from delta_sharing_spark.parquet.file_columns import Leaf
from delta_sharing_spark.parquet.file_footer import DeletedRows
from delta_sharing_spark.parquet.schema_match import BOOLEAN, BYTE_ARRAY
from delta_sharing_spark.parquet.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    Struct,
    ThriftList,
    append_varint,
    write_struct,
)

#: Rows in one page of a deletion column.
_PAGE_ROWS = 1 << 16
#: The first byte of a column chunk, and its ``ColumnChunk``.
Described = tuple[int, bytes]


class OwnColumns:
    """Writes column chunks of ours, to stand behind a file's data from the byte ``start`` on.

    Attributes:
        bytes: What was written.
    """

    def __init__(self, start: int) -> None:
        self._start = start
        self.bytes = bytearray()

    def marks(self, deleted: DeletedRows | None, first_row: int, rows: int, name: str) -> Described:
        """Append a row group's column of deleted rows: TRUE where a row is deleted, NULL where it stays.

        Args:
            deleted: Which rows are; None where none is.
            first_row: The row group's first row in its file.
        """
        begin, pages, gone = len(self.bytes), [], 0
        for page_row in range(0, rows, _PAGE_ROWS):
            count = min(_PAGE_ROWS, rows - page_row)
            mask = np.zeros(count, np.bool_) if deleted is None else deleted(first_row + page_row, count)
            begins, size = self._page(_page(mask), count)
            pages.append((begins, size, page_row))
            gone += int(np.count_nonzero(mask))
        described = self._described(begin, rows, BOOLEAN, [name.encode()], rows - gone)
        if gone:
            described[12][1].update({5: (BINARY, b"\x01"), 6: (BINARY, b"\x01")})
        index = write_struct(
            {1: (LIST, ThriftList(STRUCT, [{1: (I64, o), 2: (I32, n), 3: (I64, r)} for o, n, r in pages]))}
        )
        place: Struct = {4: (I64, self._start + len(self.bytes)), 5: (I32, len(index))}
        self.bytes += index
        return self._chunk(described, place)

    def nulls(self, rows: int, leaf: Leaf) -> Described:
        """Append a row group's chunk of a column that its file lacks."""
        begin = len(self.bytes)
        self._page(_levels(rows, leaf.levels, is_null=True), rows)
        return self._chunk(self._described(begin, rows, int(leaf.element.raw[1][1]), leaf.path, rows))

    def constant(self, rows: int, value: str, leaf: Leaf) -> Described:
        """Append a row group's chunk of a column of texts that are all the same, a dictionary of one."""
        begin, text = len(self.bytes), value.encode()
        word = len(text).to_bytes(4, "little") + text
        header = {1: (I32, 2), 2: (I32, len(word)), 3: (I32, len(word)), 7: (STRUCT, {1: (I32, 1), 2: (I32, 0)})}
        self.bytes += write_struct(header) + word
        indices = bytearray(b"\x01")  # of one bit each, one run of the first
        append_varint(indices, rows << 1)
        data, _ = self._page(_levels(rows, leaf.levels, is_null=False) + bytes(indices) + b"\0", rows, encoding=8)
        described = self._described(begin, rows, BYTE_ARRAY, leaf.path, 0)
        described |= {2: (LIST, ThriftList(I32, [0, 3, 8])), 9: (I64, data), 11: (I64, self._start + begin)}
        described[12][1].update({5: (BINARY, text), 6: (BINARY, text)})
        return self._chunk(described)

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

    def _described(self, begin: int, rows: int, physical: int, path: Sequence[bytes], nulls: int) -> Struct:
        """The ``ColumnMetaData`` of the chunk that was written from ``begin`` on."""
        length = len(self.bytes) - begin
        return {
            1: (I32, physical),
            2: (LIST, ThriftList(I32, [0, 3])),
            3: (LIST, ThriftList(BINARY, list(path))),
            4: (I32, 0),
            5: (I64, rows),
            6: (I64, length),
            7: (I64, length),
            9: (I64, self._start + begin),
            12: (STRUCT, {3: (I64, nulls)}),
        }

    @staticmethod
    def _chunk(described: Struct, place: Struct | None = None) -> Described:
        start = min(described[9][1], described.get(11, described[9])[1])
        return start, write_struct({2: (I64, 0), 3: (STRUCT, described), **(place or {})})


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
