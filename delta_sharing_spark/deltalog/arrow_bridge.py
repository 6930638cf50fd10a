"""Converts between Arrow, numpy and Python without pandas.

``pa.array``, ``pa.scalar`` and ``np.asarray`` of an Arrow array import pandas, which costs more time than planning a table of
a hundred thousand files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_INTEGERS = {pa.int64(): np.int64, pa.int32(): np.int32}


def bools(array: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    """A boolean array without nulls as numpy."""
    assert array.null_count == 0
    bits = np.frombuffer(array.buffers()[1] or b"", np.uint8)
    start, stop = array.offset, array.offset + len(array)
    return np.unpackbits(bits[start // 8 : (stop + 7) // 8], bitorder="little")[start % 8 :][: len(array)].view(
        np.bool_
    )


def mask(values: npt.NDArray[np.bool_]) -> pa.BooleanArray:
    """A numpy mask as an Arrow array."""
    return pa.Array.from_buffers(
        pa.bool_(), len(values), [None, pa.py_buffer(np.packbits(values, bitorder="little"))], null_count=0
    )


def integers(array: pa.Array) -> npt.NDArray[np.int64]:
    """An int32 or int64 array as numpy; values of nulls are arbitrary."""
    dtype = _INTEGERS[array.type]
    values = np.frombuffer(array.buffers()[1] or b"", dtype)[array.offset : array.offset + len(array)]
    return values.astype(np.int64, copy=False)


def strings(texts: Sequence[str | None]) -> pa.StringArray:
    """A string array."""
    encoded = [b"" if text is None else text.encode() for text in texts]
    valid = np.fromiter((text is not None for text in texts), np.bool_, len(texts))
    offsets = np.fromiter(accumulate(map(len, encoded), initial=0), np.int64, len(encoded) + 1)
    large = offsets[-1] >= 1 << 31
    return pa.Array.from_buffers(
        pa.large_string() if large else pa.string(),
        len(encoded),
        [
            None if valid.all() else mask(valid).buffers()[1],
            pa.py_buffer(offsets if large else offsets.astype(np.int32)),
            pa.py_buffer(b"".join(encoded)),
        ],
    )


def int64s(values: Sequence[int | None]) -> pa.Int64Array:
    """An array of integers."""
    valid = np.fromiter((value is not None for value in values), np.bool_, len(values))
    numbers = np.fromiter((value or 0 for value in values), np.int64, len(values))
    bits = None if valid.all() else mask(valid).buffers()[1]
    return pa.Array.from_buffers(pa.int64(), len(values), [bits, pa.py_buffer(numbers)])


def scalar(text: str) -> pa.StringScalar:
    """A string as an Arrow scalar."""
    return strings([text])[0]


def has_byte(array: pa.StringArray, byte: bytes) -> bool:
    """Whether an array's buffer, unused bytes included, holds an ASCII character."""
    offsets, data = array.buffers()[1:]
    if data is None or not len(array):
        return False
    bounds = np.frombuffer(offsets, np.int32)[[array.offset, array.offset + len(array)]]
    return bool((np.frombuffer(data, np.uint8)[bounds[0] : bounds[1]] == byte[0]).any())


def map_values(maps: pa.MapArray, key: str) -> pa.StringArray:
    """The value of one key in each map of strings; null where it is missing.

    Maps of one length that hold their keys in one order, as partition values do, cost a comparison and a slice.
    """
    key_scalar, rows = scalar(key), len(maps)
    if rows and not maps.null_count:
        offsets = integers(maps.offsets)
        first, entries = int(offsets[0]), int(offsets[-1] - offsets[0])
        width = entries // rows
        if width and (np.diff(offsets) == width).all():
            keys, items = maps.keys.slice(first, entries), maps.items.slice(first, entries)
            for place in range(width):
                if keys[place].as_py() != key:
                    continue
                if width > 1:
                    every = pa.Array.from_buffers(
                        pa.int64(), rows, [None, pa.py_buffer(np.arange(place, entries, width, dtype=np.int64))]
                    )
                    keys, items = keys.take(every), items.take(every)
                if pc.equal(keys, key_scalar).true_count == rows:
                    return pc.cast(items, pa.string())
                break
    return pc.cast(pc.map_lookup(maps, key_scalar, "first"), pa.string())


def release_unused() -> None:
    """Return memory that Arrow keeps for reuse to the system: it would keep several times what a log needs."""
    pa.default_memory_pool().release_unused()


@dataclass(frozen=True, slots=True)
class PackedStrings:
    """A string array whose text is compressed: paths and statistics are most of a log, and much alike."""

    length: int
    null_count: int
    validity: pa.Buffer | None
    offsets: pa.Buffer
    data: pa.Buffer
    size: int
    codec: str | None

    @classmethod
    def pack(cls, array: pa.StringArray) -> PackedStrings:
        if array.offset:
            array = pa.concat_arrays([array])
        validity, offsets, data = array.buffers()
        data = pa.py_buffer(b"") if data is None else data
        codec = "zstd" if data.size and pa.Codec.is_available("zstd") else None
        packed = data if codec is None else pa.py_buffer(pa.Codec(codec, 1).compress(data, asbytes=True))
        return cls(len(array), array.null_count, validity, offsets, packed, data.size, codec)

    def unpack(self) -> pa.StringArray:
        data = self.data if self.codec is None else pa.Codec(self.codec).decompress(self.data, self.size)
        return pa.Array.from_buffers(
            pa.string(), self.length, [self.validity, self.offsets, data], null_count=self.null_count
        )
