"""Reads and writes the Variant binary encoding (Parquet format, "Variant Binary Encoding"), as far as reassembling needs it.

A variant is two byte strings: ``metadata``, a dictionary of field names, and ``value``, whose objects name their fields
by positions in that dictionary. Every nested value is contiguous, so objects and arrays are built from encoded parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

#: Variant null: basic type 0, primitive type 0.
NULL = b"\x00"
TRUE, FALSE = b"\x04", b"\x08"
_OBJECT, _ARRAY = 2, 3
_MAX_SHORT_STRING = 63
_STRING, _BINARY = 16, 15
_VERSION = 1


class MalformedVariant(ValueError):
    """Bytes that are not a variant, or parts that do not make one."""


def primitive_header(type_id: int) -> int:
    """The first byte of a primitive of ``type_id`` ("Variant primitive types")."""
    return type_id << 2


class Dictionary:
    """The field names of one variant's metadata, parsed when they are first asked for."""

    __slots__ = ("_ids", "_metadata", "_names")

    def __init__(self, metadata: bytes) -> None:
        self._metadata = metadata
        self._names: list[str] | None = None
        self._ids: dict[str, int] | None = None

    @property
    def names(self) -> list[str]:
        """Field names by id.

        Raises:
            MalformedVariant: The metadata is not what the specification says.
        """
        if self._names is None:
            self._names = _names(self._metadata)
        return self._names

    def id(self, name: str) -> int:
        """The id of a field's name.

        Raises:
            MalformedVariant: The metadata lacks the name.
        """
        if self._ids is None:
            # The first of equal names: dictionaries that are not sorted may repeat one.
            self._ids = {name: i for i, name in reversed(list(enumerate(self.names)))}
        field_id = self._ids.get(name)
        if field_id is None:
            raise MalformedVariant(f"its metadata lacks the field name {name!r}")
        return field_id


def _names(metadata: bytes) -> list[str]:
    if not metadata or metadata[0] & 0x0F != _VERSION:
        raise MalformedVariant("its metadata is not of version 1")
    width = (metadata[0] >> 6) + 1
    size = _unsigned(metadata, 1, width)
    first = 1 + width * (size + 2)
    if first > len(metadata):
        raise MalformedVariant("its metadata is truncated")
    offsets = [_unsigned(metadata, 1 + width * (i + 1), width) for i in range(size + 1)]
    if first + offsets[-1] > len(metadata) or any(b < a for a, b in pairwise(offsets)):
        raise MalformedVariant("the offsets of its metadata are not in order")
    try:
        return [metadata[first + a : first + b].decode("utf-8") for a, b in pairwise(offsets)]
    except UnicodeDecodeError:
        raise MalformedVariant("a field name of its metadata is not UTF-8") from None


def object_fields(value: bytes, dictionary: Dictionary) -> list[tuple[str, bytes]]:
    """The fields of an encoded object, by name, each with its encoded value.

    Raises:
        MalformedVariant: ``value`` is not an object, or its parts lie outside of it.
    """
    if not value or value[0] & 3 != _OBJECT:
        raise MalformedVariant("a value beside shredded fields is not an object")
    header = value[0] >> 2
    offset_width, id_width = (header & 3) + 1, (header >> 2 & 3) + 1
    size_width = 4 if header >> 4 & 1 else 1
    count = _unsigned(value, 1, size_width)
    ids_at = 1 + size_width
    offsets_at = ids_at + count * id_width
    values_at = offsets_at + (count + 1) * offset_width
    if values_at > len(value):
        raise MalformedVariant("an object is truncated")
    names = dictionary.names
    # Values may lie in any order: each ends where the next higher offset begins.
    starts = [_unsigned(value, offsets_at + i * offset_width, offset_width) for i in range(count)]
    end = _unsigned(value, offsets_at + count * offset_width, offset_width)
    if values_at + end > len(value) or any(s > end for s in starts):
        raise MalformedVariant("an object's offsets lie outside of it")
    ends = dict(zip(ordered := sorted(set(starts)), [*ordered[1:], end], strict=True))
    fields = []
    for i, start in enumerate(starts):
        field_id = _unsigned(value, ids_at + i * id_width, id_width)
        if field_id >= len(names):
            raise MalformedVariant(f"an object names field {field_id} of {len(names)}")
        fields.append((names[field_id], value[values_at + start : values_at + ends[start]]))
    return fields


def encode_object(ids: Sequence[int], values: Sequence[bytes]) -> bytes:
    """An object of encoded ``values``, whose fields have ``ids`` and come in the order of their names."""
    count = len(ids)
    offsets = _offsets(values)
    id_width, offset_width = _width(max(ids, default=0)), _width(offsets[-1])
    large = count > 255
    header = (large << 4 | (id_width - 1) << 2 | (offset_width - 1)) << 2 | _OBJECT
    if id_width == offset_width == 1 and not large:
        return bytes((header, count, *ids, *offsets)) + b"".join(values)
    size = count.to_bytes(4 if large else 1, "little")
    return b"".join((bytes((header,)), size, _packed(ids, id_width), _packed(offsets, offset_width), *values))


def encode_array(values: Sequence[bytes]) -> bytes:
    """An array of encoded ``values``."""
    count = len(values)
    offsets = _offsets(values)
    width = _width(offsets[-1])
    large = count > 255
    header = (large << 2 | (width - 1)) << 2 | _ARRAY
    return b"".join((bytes((header,)), count.to_bytes(4 if large else 1, "little"), _packed(offsets, width), *values))


def encode_string(text: bytes) -> bytes:
    """A string, given as UTF-8."""
    size = len(text)
    if size <= _MAX_SHORT_STRING:
        return bytes((size << 2 | 1,)) + text
    return bytes((primitive_header(_STRING),)) + size.to_bytes(4, "little") + text


def encode_binary(data: bytes) -> bytes:
    """A binary value."""
    return bytes((primitive_header(_BINARY),)) + len(data).to_bytes(4, "little") + data


def _offsets(values: Sequence[bytes]) -> list[int]:
    offsets, offset = [0], 0
    for value in values:
        offset += len(value)
        offsets.append(offset)
    return offsets


def _width(largest: int) -> int:
    """Bytes that hold ``largest``, unsigned; at most 4."""
    width = max(1, (largest.bit_length() + 7) // 8)
    if width > 4:
        raise MalformedVariant("a value is larger than 4 GiB")
    return width


def _packed(numbers: Sequence[int], width: int) -> bytes:
    return bytes(numbers) if width == 1 else b"".join(n.to_bytes(width, "little") for n in numbers)


def _unsigned(data: bytes, offset: int, width: int) -> int:
    piece = data[offset : offset + width]
    if len(piece) != width:
        raise MalformedVariant("it is truncated")
    return int.from_bytes(piece, "little")
