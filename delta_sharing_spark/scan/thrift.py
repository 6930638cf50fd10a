"""Reads and writes Thrift's compact protocol, in which Parquet footers are written, without a schema.

A struct is a dict of field id to ``(type, value)``, in the order of the bytes; a list is a :class:`ThriftList`. Fields
that nobody here knows survive.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from delta_sharing_spark.scan.varint import append_varint, read_varint, unzigzag, zigzag

BOOL_TRUE, BOOL_FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)

Struct = dict[int, tuple[int, Any]]


@dataclass(slots=True)
class ThriftList:
    """A list or set: the type of its elements, and the elements."""

    kind: int
    items: list[Any]


def read_struct(data: bytes, last_field: int | None = None, offset: int = 0, before: int = 0) -> tuple[Struct, int]:
    """Read a struct from ``offset`` on, where its field ``before`` ends, up to its field ``last_field`` if that is given.

    Returns it and the offset behind it.

    Raises:
        ValueError: The bytes are no such struct.
    """
    try:
        return _struct(data, offset, last_field, before)
    except (IndexError, struct.error, RecursionError) as error:
        raise ValueError(f"the bytes are no Thrift struct ({error})") from None


def _struct(data: bytes, offset: int, last_field: int | None = None, last: int = 0) -> tuple[Struct, int]:
    fields: Struct = {}
    while True:
        head = data[offset]
        offset += 1
        if head == 0:
            return fields, offset
        kind = head & 15
        if head >> 4:
            last += head >> 4
        else:
            last, offset = _signed(data, offset)
        value, offset = _value(data, offset, kind)
        fields[last] = (kind, value)
        if last == last_field:
            return fields, offset


def _value(data: bytes, offset: int, kind: int) -> tuple[Any, int]:
    if kind in (I32, I64, I16):
        return _signed(data, offset)
    if kind == BINARY:
        length, offset = read_varint(data, offset)
        if offset + length > len(data):
            raise IndexError("text beyond the end")
        return data[offset : offset + length], offset + length
    if kind == STRUCT:
        return _struct(data, offset)
    if kind in (BOOL_TRUE, BOOL_FALSE):
        return kind == BOOL_TRUE, offset
    if kind in (LIST, SET):
        return _list(data, offset)
    if kind == BYTE:
        return data[offset], offset + 1
    if kind == DOUBLE:
        return struct.unpack_from("<d", data, offset)[0], offset + 8
    raise ValueError(f"a Thrift type {kind} has no place in a Parquet footer")


def _list(data: bytes, offset: int) -> tuple[ThriftList, int]:
    head = data[offset]
    offset += 1
    kind, size = head & 15, head >> 4
    if size == 15:
        size, offset = read_varint(data, offset)
    if size > len(data):
        raise ValueError(f"a Thrift list claims {size} elements")
    items = []
    for _ in range(size):
        if kind in (BOOL_TRUE, BOOL_FALSE):
            item, offset = data[offset] == BOOL_TRUE, offset + 1
        else:
            item, offset = _value(data, offset, kind)
        items.append(item)
    return ThriftList(kind, items), offset


def _signed(data: bytes, offset: int) -> tuple[int, int]:
    number, offset = read_varint(data, offset)
    return unzigzag(number), offset


def write_struct(value: Struct) -> bytes:
    """The bytes of a struct."""
    out = bytearray()
    _put_struct(out, value)
    return bytes(out)


def _put_struct(out: bytearray, value: Struct) -> None:
    last = 0
    for number, (kind, item) in sorted(value.items()):
        if kind in (BOOL_TRUE, BOOL_FALSE):
            kind = BOOL_TRUE if item else BOOL_FALSE
        step = number - last
        if 0 < step < 16:
            out.append(step << 4 | kind)
        else:
            out.append(kind)
            _put_signed(out, number)
        last = number
        _put_value(out, kind, item)
    out.append(0)


def _put_value(out: bytearray, kind: int, item: Any) -> None:
    if kind in (I32, I64, I16):
        _put_signed(out, item)
    elif kind == BINARY:
        append_varint(out, len(item))
        out += item
    elif kind == STRUCT:
        _put_struct(out, item)
    elif kind in (LIST, SET):
        size = len(item.items)
        if size < 15:
            out.append(size << 4 | item.kind)
        else:
            out.append(0xF0 | item.kind)
            append_varint(out, size)
        for element in item.items:
            if item.kind in (BOOL_TRUE, BOOL_FALSE):
                out.append(BOOL_TRUE if element else BOOL_FALSE)
            else:
                _put_value(out, item.kind, element)
    elif kind == BYTE:
        out.append(item)
    elif kind == DOUBLE:
        out += struct.pack("<d", item)


def _put_signed(out: bytearray, number: int) -> None:
    append_varint(out, zigzag(number))
