"""Holds the files of one answer in columns: ids, URLs and deletion vectors compressed, about a hundred bytes a file.

URLs of one answer differ in little but path and signature. A million of them must not become objects, be it to plan a load or to
renew URLs in a task.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt

from delta_sharing_spark.scan.plan import DeletionVector
from delta_sharing_spark.schema.arrow_bridge import compressed, decompressed
from delta_sharing_spark.sharing.wire_lines import FileBlock

#: Files compressed together: whoever looks for one decompresses these.
_TOGETHER = 256
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
        self.nbytes = 0

    def append(self, block: FileBlock) -> None:
        """Take in the files of a block; statistics and partition values are not kept."""
        self._hashes.extend(map(hash, block.ids))
        self._sizes.extend(block.sizes)
        self._expires.extend([UNKNOWN if millis is None else millis for millis in block.expirations])
        start = 0
        while start < len(block):
            taken = min(len(block) - start, _TOGETHER - len(self._last.ids))
            at = len(self._last.ids) - start
            for place in [place for place in block.vectors if start <= place < start + taken] if block.vectors else ():
                self._last.vectors[place + at] = block.vectors[place]
            self._last.ids += block.ids[start : start + taken]
            self._last.urls += block.urls[start : start + taken]
            start += taken
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
        return _decode(decompressed(*self._packed[number]))

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Bytes of each file."""
        return np.array(self._sizes, np.int64)

    def rows(self, first: int, last: int) -> Iterator[FileRow]:
        """The files ``first`` to ``last``, the latter excluded."""
        while first < last:
            number, start = divmod(first, _TOGETHER)
            texts = self._texts(number)
            stop = min(last - number * _TOGETHER, _TOGETHER)
            for place in range(start, stop):
                expires = self._expires[first]
                yield FileRow(
                    texts.ids[place],
                    texts.urls[place],
                    self._sizes[first],
                    None if expires == UNKNOWN else expires,
                    texts.vectors.get(place),
                )
                first += 1

    def find(self, file_id: str) -> list[FileRow]:
        """The files of an id: none, one, or several lines of a change feed."""
        if not self._hashes:
            return []
        places = np.flatnonzero(np.frombuffer(self._hashes, dtype=np.int64) == hash(file_id)).tolist()
        return [row for place in places for row in self.rows(place, place + 1) if row.id == file_id]

    def holds(self, file_ids: set[str]) -> set[str]:
        """Which of these ids are (in all likelihood) among the files."""
        if len(file_ids) * 50 > len(self._hashes):
            hashes = set(self._hashes)
            return {file_id for file_id in file_ids if hash(file_id) in hashes}
        return {file_id for file_id in file_ids if self.find(file_id)}
