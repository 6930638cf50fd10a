"""Reads and writes Thrift's compact protocol, in which Parquet footers are written, without a schema.

A struct is a dict of field id to ``(type, value)``, in the order of the bytes; a list is a :class:`ThriftList`. Fields
that nobody here knows survive. A footer's many structs of the same form are not read but walked over by ``field_head`` and
``skip``. Its unsigned numbers have seven bits a byte, as in Parquet and protobuf.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

#: By how many bits the bytes of a number of 64 bits are shifted, from the second one on.
_SHIFTS = tuple(range(7, 70, 7))


def append_varint(out: bytearray, number: int) -> None:
    """Append an unsigned number to ``out``."""
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """The number at ``position``, and the position behind it.

    Raises:
        IndexError: The bytes end within the number.
        ValueError: The number has more than 64 bits.
    """
    number = data[position]
    if number < 0x80:
        return number, position + 1
    number &= 0x7F
    for shift in _SHIFTS:
        position += 1
        byte = data[position]
        if byte < 0x80:
            return number | byte << shift, position + 1
        number |= (byte & 0x7F) << shift
    raise ValueError("a number of more than 64 bits")


def zigzag(number: int) -> int:
    """A signed number of 64 bits as an unsigned one: small where its magnitude is."""
    return (number << 1) ^ (number >> 63)


def unzigzag(number: int) -> int:
    """The signed number that ``zigzag`` made ``number`` of."""
    return (number >> 1) ^ -(number & 1)


BOOL_TRUE, BOOL_FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
_NUMBERS = frozenset((I16, I32, I64))
#: Bytes of the values of types of one size; a struct's booleans are in their field's head.
_SIZES = {BOOL_TRUE: 0, BOOL_FALSE: 0, BYTE: 1, DOUBLE: 8}

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
        last, kind, offset = field_head(data, offset, last)
        if not last:
            return fields, offset
        value, offset = _value(data, offset, kind)
        fields[last] = (kind, value)
        if last == last_field:
            return fields, offset


def _value(data: bytes, offset: int, kind: int) -> tuple[Any, int]:
    if kind in _NUMBERS:
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
    kind, size, offset = list_head(data, offset)
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


def field_head(data: bytes, offset: int, before: int) -> tuple[int, int, int]:
    """The number and the type of the field at ``offset``, which follows field ``before``, and where its value begins.

    Number 0 is the end of the struct. Numbers ascend, as every writer leaves them; raises ValueError where they do not, and
    IndexError where the bytes end.
    """
    head = data[offset]
    if head == 0:
        return 0, 0, offset + 1
    if head > 15:
        return before + (head >> 4), head & 15, offset + 1
    number, offset = _signed(data, offset + 1)
    if number <= before:
        raise ValueError(f"field {number} follows field {before}")
    return number, head, offset


def list_head(data: bytes, offset: int) -> tuple[int, int, int]:
    """The type and the number of a list's elements, and where the first begins."""
    head = data[offset]
    if head >> 4 < 15:
        return head & 15, head >> 4, offset + 1
    size, offset = read_varint(data, offset + 1)
    return head & 15, size, offset


def skip(data: bytes, offset: int, kind: int) -> int:
    """The offset behind the value of type ``kind`` at ``offset``; errors as ``field_head``."""
    if kind in _NUMBERS:
        while data[offset] > 0x7F:
            offset += 1
        return offset + 1
    if kind == BINARY:
        length, offset = read_varint(data, offset)
        return offset + length
    if kind == STRUCT:
        number = 0
        while head := data[offset]:
            if head > 15:
                number, kind, offset = number + (head >> 4), head & 15, offset + 1
            else:
                number, kind, offset = field_head(data, offset, number)
            if kind in _NUMBERS:  # here and not by a call, for most fields are
                while data[offset] > 0x7F:
                    offset += 1
                offset += 1
            elif kind == BINARY and data[offset] < 0x80:
                offset += data[offset] + 1
            elif kind > BOOL_FALSE:
                offset = skip(data, offset, kind)
        return offset + 1
    if kind in (LIST, SET):
        kind, size, offset = list_head(data, offset)
        if size > len(data):
            raise ValueError(f"a Thrift list claims {size} elements")
        if kind in (BOOL_TRUE, BOOL_FALSE):
            return offset + size
        if kind in _NUMBERS:
            for _ in range(size):
                while data[offset] > 0x7F:
                    offset += 1
                offset += 1
            return offset
        for _ in range(size):
            offset = skip(data, offset, kind)
        return offset
    if kind in _SIZES:
        return offset + _SIZES[kind]
    raise ValueError(f"a Thrift type {kind} has no place in a Parquet footer")


def write_struct(value: Struct, last: int = 0) -> bytes:
    """The bytes of a struct, or of those fields of it that follow field ``last``."""
    return write_fields(value, last) + b"\0"


def write_fields(value: Struct, last: int = 0) -> bytes:
    """The bytes of a struct's fields that follow field ``last``, without the struct's end."""
    out = bytearray()
    for number, (kind, item) in sorted(value.items()):
        if kind in (BOOL_TRUE, BOOL_FALSE):
            kind = BOOL_TRUE if item else BOOL_FALSE
        out += write_head(number, kind, last)
        last = number
        _put_value(out, kind, item)
    return bytes(out)


def write_head(number: int, kind: int, last: int) -> bytes:
    """What stands before the value of a field that follows field ``last``."""
    step = number - last
    return bytes((step << 4 | kind,)) if 0 < step < 16 else bytes((kind,)) + write_number(number)


def write_list_head(kind: int, size: int) -> bytes:
    """What stands before the elements of a list."""
    if size < 15:
        return bytes((size << 4 | kind,))
    out = bytearray((0xF0 | kind,))
    append_varint(out, size)
    return bytes(out)


def write_number(number: int) -> bytes:
    """The bytes of a signed number."""
    out = bytearray()
    append_varint(out, zigzag(number))
    return bytes(out)


def write_text(text: bytes) -> bytes:
    """The bytes of a text."""
    out = bytearray()
    append_varint(out, len(text))
    return bytes(out + text)


def _put_value(out: bytearray, kind: int, item: Any) -> None:
    if kind in _NUMBERS:
        out += write_number(item)
    elif kind == BINARY:
        out += write_text(item)
    elif kind == STRUCT:
        out += write_struct(item)
    elif kind in (LIST, SET):
        out += write_list_head(item.kind, len(item.items))
        for element in item.items:
            if item.kind in (BOOL_TRUE, BOOL_FALSE):
                out.append(BOOL_TRUE if element else BOOL_FALSE)
            else:
                _put_value(out, item.kind, element)
    elif kind == BYTE:
        out.append(item)
    elif kind == DOUBLE:
        out += struct.pack("<d", item)
