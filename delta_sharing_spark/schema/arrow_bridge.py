"""Converts between Arrow, numpy and Python without pandas.

``pa.array``, ``pa.scalar`` and ``np.asarray`` of an Arrow array import pandas, which costs more time than planning a table of
a hundred thousand files.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

#: A build of pyarrow may lack either; all have one of them.
_CODEC = "zstd" if pa.Codec.is_available("zstd") else "lz4"
_INTEGERS = {pa.int64(): np.int64, pa.int32(): np.int32}


def bools(array: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    """A boolean array without nulls as numpy."""
    assert array.null_count == 0
    return np.frombuffer(array.cast(pa.uint8()).buffers()[1] or b"", np.bool_, len(array))


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
    valid, present = None, cast("Sequence[str]", texts)
    try:
        together = "".join(present)
    except TypeError:
        valid = np.fromiter((text is not None for text in texts), np.bool_, len(texts))
        present = [text or "" for text in texts]
        together = "".join(present)
    data = together.encode()
    lengths = map(len, present) if len(data) == len(together) else (len(text.encode()) for text in present)
    return _texts(data, lengths, len(texts), pa.large_string() if len(data) >= 1 << 31 else pa.string(), valid)


def binaries(values: Sequence[bytes]) -> pa.BinaryArray:
    """An array of bytes."""
    data = b"".join(values)
    return _texts(data, map(len, values), len(values), pa.large_binary() if len(data) >= 1 << 31 else pa.binary())


def _texts(
    data: bytes, lengths: Iterable[int], count: int, kind: pa.DataType, valid: npt.NDArray[np.bool_] | None = None
) -> Any:
    """An array of pieces of ``data``; ``valid`` says which are not null."""
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(np.fromiter(lengths, np.int64, count), out=offsets[1:])
    is_large = kind in (pa.large_string(), pa.large_binary())
    bits = None if valid is None or valid.all() else mask(valid).buffers()[1]
    places = pa.py_buffer(offsets if is_large else offsets.astype(np.int32))
    return pa.Array.from_buffers(kind, count, [bits, places, pa.py_buffer(data)])


def int64s(values: Sequence[int | None]) -> pa.Int64Array:
    """An array of integers."""
    bits = None
    try:
        numbers = np.fromiter(values, np.int64, len(values))
    except TypeError:
        numbers = np.fromiter((value or 0 for value in values), np.int64, len(values))
        valid = np.fromiter((value is not None for value in values), np.bool_, len(values))
        bits = mask(valid).buffers()[1]
    return pa.Array.from_buffers(pa.int64(), len(values), [bits, pa.py_buffer(numbers)])


def numbers_like(array: pa.Array, numbers: npt.NDArray[np.integer[Any]], kind: pa.DataType) -> pa.Array:
    """Numbers as an array of a type of their width, null where another array is."""
    bits = array.is_valid().buffers()[1] if array.null_count else None
    return pa.Array.from_buffers(kind, len(array), [bits, pa.py_buffer(numbers)])


def array_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """``pa.array(values, kind)``; values of other types than numbers, booleans and strings import pandas.

    Raises:
        OverflowError, pa.ArrowInvalid, pa.ArrowTypeError: A value is none of that type.
    """
    types = set(map(type, values)) - {type(None)}
    if not types:
        return pa.nulls(len(values), kind)
    if types == {str} and kind == pa.string():
        return strings(values)
    is_count = pa.types.is_integer(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind)
    dtype = np.dtype(f"{'iu'[pa.types.is_unsigned_integer(kind)]}{kind.bit_width // 8}") if is_count else None
    if types == {int} and dtype is not None:
        size, is_signed = dtype.itemsize, dtype.kind == "i"
        data = b"".join((value or 0).to_bytes(size, sys.byteorder, signed=is_signed) for value in values)
    elif types == {float} and kind == pa.float64():
        data = np.fromiter((0.0 if value is None else value for value in values), np.float64, len(values)).tobytes()
    elif types == {bool} and kind == pa.bool_():
        data = np.packbits(np.fromiter(map(bool, values), np.bool_, len(values)), bitorder="little").tobytes()
    else:
        return pa.array(values, kind)
    valid = np.fromiter((value is not None for value in values), np.bool_, len(values))
    bits = None if valid.all() else mask(valid).buffers()[1]
    return pa.Array.from_buffers(kind, len(values), [bits, pa.py_buffer(data)])


def empty_table(schema: pa.Schema) -> pa.Table:
    """A table without rows; ``Schema.empty_table`` imports pandas, which takes 0.25 s."""
    return pa.Table.from_batches([], schema)


def scalar(value: Any, kind: pa.DataType | None = None) -> pa.Scalar:
    """``pa.scalar(value, kind)``, of a string where no type is given; see ``array_of``."""
    return array_of([value], kind or pa.string())[0]


def has_byte(array: pa.StringArray, byte: bytes) -> bool:
    """Whether an array's buffer, unused bytes included, holds an ASCII character."""
    offsets, data = array.buffers()[1:]
    if data is None or not len(array):
        return False
    bounds = np.frombuffer(offsets, np.int32)[[array.offset, array.offset + len(array)]]
    return bool((np.frombuffer(data, np.uint8)[bounds[0] : bounds[1]] == byte[0]).any())


def map_values(maps: pa.MapArray, key: str) -> pa.StringArray:
    """The value of one key in each map of strings; null where it is missing.

    Where each map has the key once, as partition values do, a filter finds the values in a tenth of Arrow's time.
    """
    import pyarrow.compute as pc

    offsets = integers(maps.offsets)
    if len(offsets) and not maps.null_count:
        keys, items = (part.slice(offsets[0], offsets[-1] - offsets[0]) for part in (maps.keys, maps.items))
        matches = pc.equal(keys, scalar(key))
        before = np.concatenate([[0], np.cumsum(bools(pc.and_kleene(matches, matches.is_valid())))])
        if (np.diff(before[offsets - offsets[0]]) == 1).all():
            return pc.cast(items.filter(matches), pa.string())
    return pc.cast(pc.map_lookup(maps, scalar(key), "first"), pa.string())


def release_unused() -> None:
    """Return memory that Arrow keeps for reuse to the system: it would keep several times what a log needs."""
    pa.default_memory_pool().release_unused()


def compressed(data: bytes) -> bytes:
    """Bytes, compressed fast."""
    return pa.compress(data, codec=_CODEC, asbytes=True)


def decompressed(data: bytes, size: int) -> bytes:
    """The ``size`` bytes that ``compressed`` was given."""
    return pa.decompress(data, size, codec=_CODEC, asbytes=True)


def packed(array: pa.StringArray) -> pa.Buffer:
    """A string array compressed: paths and statistics are most of a log, and much alike."""
    schema, out = pa.schema([("texts", array.type)]), pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=_CODEC, use_threads=False)  # each thread would keep memory of its own
    with pa.ipc.new_stream(out, schema, options=options) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays([array], schema=schema))
    return out.getvalue()


def unpacked(texts: pa.Buffer) -> pa.StringArray:
    """The array of ``packed``."""
    return pa.ipc.open_stream(texts, options=pa.ipc.IpcReadOptions(use_threads=False)).read_next_batch().column(0)
