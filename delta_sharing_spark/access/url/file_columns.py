"""Holds the files of one answer in columns: ids, URLs, deletion vectors and statistics compressed, some hundred bytes a file.

URLs of one answer differ in little but path and signature. A million of them must not become objects, be it to plan a load or to
renew URLs in a task.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from delta_sharing_spark.scan.plan import UNKNOWN_ROWS, DeletionVector, TaskColumns, rows_in_lines
from delta_sharing_spark.schema.arrow_bridge import compressed, decompressed
from delta_sharing_spark.schema.typed_json import lines_of, statistics_lines

if TYPE_CHECKING:
    from delta_sharing_spark.predicates.file_statistics import (
        ColumnStatistics,
        FileStatistics,
        StatisticsColumn,
        StatisticsReader,
    )
    from delta_sharing_spark.sharing.wire_lines import FileBlock

#: Files compressed together: whoever looks for one decompresses these.
_TOGETHER = 256
#: Where fewer than one of so many files are asked about, what is found of them does not stay.
_FEW = 4
#: How a number that an answer does not tell stands in a column.
UNKNOWN = -1


class _Texts(msgspec.Struct, array_like=True, gc=False):
    """What is text of some files; vectors stand by the file's place among these."""

    ids: list[str]
    urls: list[str]
    vectors: dict[int, DeletionVector]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Texts).decode


class FileRow(msgspec.Struct, gc=False):
    """A file of an answer. ``expires`` is in milliseconds since the epoch; None where the answer does not tell it."""

    id: str
    url: str
    size: int
    expires: int | None
    vector: DeletionVector | None


class FileColumns:
    """Files of an answer, appended block by block, and read again by their places or found by id.

    Attributes:
        nbytes: The bytes that the texts of all but the last few take.
    """

    is_full = False

    def __init__(self) -> None:
        self._hashes = array("q")
        self._sizes = array("q")
        self._expires = array("q")
        self._packed: list[tuple[bytes, int]] = []
        self._last = _Texts([], [], {})
        #: The texts that were decompressed last, and their number: splits share them.
        self._recent: tuple[int, _Texts] = -1, self._last
        self.nbytes = 0

    def append(self, block: FileBlock, hashes: npt.NDArray[np.int64] | None = None) -> None:
        """Take in the files of a block, the hashes of whose ids may be there already; statistics and partition values are not kept."""
        if hashes is None:
            hashes = np.fromiter(map(hash, block.ids), np.int64, len(block))
        self._hashes.frombytes(hashes.tobytes())
        self._sizes.frombytes(np.array(block.sizes, np.int64).tobytes())
        expires = block.expirations
        if None in expires:
            expires = [UNKNOWN if millis is None else millis for millis in expires]
        self._expires.frombytes(np.array(expires, np.int64).tobytes())
        start = 0
        while start < len(block):
            count = min(len(block) - start, _TOGETHER - len(self._last.ids))
            at = len(self._last.ids) - start
            for place in [place for place in block.vectors if start <= place < start + count] if block.vectors else ():
                self._last.vectors[place + at] = block.vectors[place]
            self._last.ids += block.ids[start : start + count]
            self._last.urls += block.urls[start : start + count]
            start += count
            if len(self._last.ids) == _TOGETHER:
                self._pack()

    def _pack(self) -> None:
        texts = _encode(self._last)
        packed = compressed(texts)
        self._packed.append((packed, len(texts)))
        self.nbytes += len(packed) + 24 * _TOGETHER
        self._last = _Texts([], [], {})

    def _texts(self, number: int) -> _Texts:
        if number == len(self._packed):
            return self._last
        recent, texts = self._recent
        if recent != number:
            texts = _decode(decompressed(*self._packed[number]))
            self._recent = number, texts
        return texts

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def hashes(self) -> npt.NDArray[np.int64]:
        """A hash of the id of each file."""
        return np.array(self._hashes, np.int64)

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Bytes of each file."""
        return np.array(self._sizes, np.int64)

    @property
    def earliest_end(self) -> float | None:
        """When the first URL ends by the answer, in seconds since the epoch; None where it tells no end."""
        expires = np.array(self._expires, np.int64)
        ends = expires[expires > 0]
        return float(ends.min()) / 1000 if len(ends) else None

    def rows(self, places: Iterable[int]) -> Iterator[FileRow]:
        """The files at some places, which mostly grow: neighbours are decompressed together."""
        number, texts = -1, self._last
        for place in places:
            if place // _TOGETHER != number:
                number = place // _TOGETHER
                texts = self._texts(number)
            index = place % _TOGETHER
            expires = self._expires[place]
            yield FileRow(
                texts.ids[index],
                texts.urls[index],
                self._sizes[place],
                None if expires == UNKNOWN else expires,
                texts.vectors.get(index),
            )

    def tasks_at(
        self,
        places: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
        partitions: Sequence[int],
        values: Sequence[Mapping[str, str | None] | None],
        **others: Any,
    ) -> TaskColumns:
        """The tasks of the files at some places, which grow, with what else is known of each."""
        ids: list[str] = []
        urls: list[str] = []
        vectors: dict[int, DeletionVector] = {}
        numbers = places // _TOGETHER
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(places)]
        for first, last in itertools.pairwise(edges):
            texts, indices = self._texts(int(numbers[first])), (places[first:last] % _TOGETHER).tolist()
            if texts.vectors:
                vectors |= {
                    first + i: texts.vectors[index] for i, index in enumerate(indices) if index in texts.vectors
                }
            ids += [texts.ids[index] for index in indices]
            urls += [texts.urls[index] for index in indices]
        expires = np.frombuffer(self._expires, np.int64)[places].tolist()
        return TaskColumns(
            ids,
            urls,
            np.frombuffer(self._sizes, np.int64)[places].tolist(),
            [None if count == UNKNOWN_ROWS else count for count in rows.tolist()],
            partitions,
            values,
            vectors,
            [None if millis in (0, UNKNOWN) else millis / 1000 for millis in expires],
            **others,
        )

    def take(self, places: Sequence[int]) -> FileColumns:
        """The files at some places, apart from the others."""
        copy = FileColumns()
        copy._hashes = array("q", [self._hashes[place] for place in places])
        for row in self.rows(places):
            copy._sizes.append(row.size)
            copy._expires.append(UNKNOWN if row.expires is None else row.expires)
            if row.vector is not None:
                copy._last.vectors[len(copy._last.ids)] = row.vector
            copy._last.ids.append(row.id)
            copy._last.urls.append(row.url)
            if len(copy._last.ids) == _TOGETHER:
                copy._pack()
        return copy

    def find(self, file_id: str) -> list[FileRow]:
        """The files of an id: none, one, or several lines of a change feed."""
        if not self._hashes:
            return []
        places = np.flatnonzero(np.frombuffer(self._hashes, dtype=np.int64) == hash(file_id)).tolist()
        return [row for row in self.rows(places) if row.id == file_id]

    def holds(self, file_ids: set[str]) -> set[str]:
        """Which of these ids are (in all likelihood) among the files."""
        if len(file_ids) * 50 > len(self._hashes):
            hashes = set(self._hashes)
            return {file_id for file_id in file_ids if hash(file_id) in hashes}
        return {file_id for file_id in file_ids if self.find(file_id)}


class PackedStatistics:
    """The statistics of some files, compressed; what was asked of them stays in arrays (``file_skipping.Statistics``).

    Args:
        lines: Their ``statistics_lines``.
        count: The number of files.

    Attributes:
        nbytes: Bytes that are held, once the texts are compressed.
    """

    __slots__ = ("_columns", "_count", "_is_there", "_lines", "_packed", "_rows", "_rows_were_asked_for")

    def __init__(self, lines: bytes, count: int) -> None:
        self._count = count
        self._lines: bytes | None = lines
        self._packed = b"", 0
        self._rows: npt.NDArray[np.int64] | None = None
        self._rows_were_asked_for = False
        #: Which files have any, once they were looked at, and what was found of columns.
        self._is_there: npt.NDArray[np.bool_] | None = None
        self._columns: dict[StatisticsColumn, ColumnStatistics] = {}

    def __len__(self) -> int:
        return self._count

    def pack(self) -> None:
        """Compress the texts, which were looked at."""
        data = self._text()
        self._packed, self._lines = (compressed(data), len(data)), None

    def _text(self) -> bytes:
        return self._lines if self._lines is not None else decompressed(*self._packed)

    @property
    def nbytes(self) -> int:
        rows = 0 if self._rows is None else self._rows.nbytes
        return len(self._packed[0]) + rows + sum(column.nbytes for column in self._columns.values())

    def texts_at(self, places: npt.NDArray[np.int64]) -> list[str | None]:
        """The statistics of files at some places in JSON; None for one without."""
        texts = lines_of(self._text())
        return [None if texts[place] == "null" else texts[place] for place in places.tolist()]

    def rows_at(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Rows of files at some places, deleted ones included; ``UNKNOWN_ROWS`` where the statistics do not tell them."""
        if self._rows is None:
            if len(places) * _FEW < self._count and not self._rows_were_asked_for:
                self._rows_were_asked_for = True  # splits ask for one after the other's
                return rows_in_lines(statistics_lines(self.texts_at(places)), len(places))
            self._rows = rows_in_lines(self._text(), self._count)
        return self._rows[places]

    def of(self, reader: StatisticsReader, places: npt.NDArray[np.int64]) -> FileStatistics:
        missing = tuple(column for column in reader.columns if column not in self._columns)
        if missing and len(places) * _FEW < self._count:
            return reader.of_texts(self.texts_at(places))
        if missing or self._is_there is None:
            statistics = reader.narrowed_to(missing).of_lines(self._text(), self._count)
            self._is_there = statistics.is_there
            self._columns.update(zip(missing, statistics.columns, strict=True))
        from delta_sharing_spark.predicates.file_statistics import FileStatistics

        columns = [self._columns[column] for column in reader.columns]
        if len(places) < self._count:
            columns = [column.take(places) for column in columns]
        return FileStatistics(self._is_there if len(places) == self._count else self._is_there[places], columns)
