"""Reads variants from Parquet into Spark's order of value and metadata, and puts shredded values together again.

Parquet format, "Variant Shredding". A shredded group has a ``typed_value`` beside (or instead of) its ``value``; objects
and arrays nest such groups. Columns are encoded whole, from the leaves up. Each step turns a column of encoded parts
into a column of encoded values, so that only objects and arrays cost Python work by row.

A variant is two byte strings (Parquet format, "Variant Binary Encoding"): ``metadata``, a dictionary of field names, and
``value``, whose objects name their fields by positions in that dictionary. Every nested value is contiguous, so objects and
arrays are built from encoded parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from delta_sharing_spark.errors import CorruptFileError, UnsupportedFeatureError
from delta_sharing_spark.scan.casts import is_bytes, is_text
from delta_sharing_spark.scan.column_resolution import is_list

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


#: Encoded values, one a row; None where there is none ("missing", which is not Variant null).
_Encoded = list[bytes | None]
_Mask = npt.NDArray[np.bool_]


class _UnknownShredding(Exception):
    """A ``typed_value`` of a type that the specification does not have."""


def is_variant(data_type: pa.DataType) -> bool:
    """Whether an Arrow type is how Parquet stores a variant, shredded or not."""
    if not pa.types.is_struct(data_type):
        return False
    names = {field.name for field in data_type}
    return "metadata" in names and bool(names & {"value", "typed_value"})


def assemble_variant(array: pa.StructArray, target: pa.DataType, *, path: str, file: str) -> pa.Array:
    """A variant column of a file as ``target`` (``struct<value, metadata>``); a NULL struct is a NULL variant.

    Args:
        array: A struct of ``metadata`` and ``value`` and, where it is shredded, ``typed_value``, in any order.
        target: Spark's Arrow type of a variant.
        path: The column's name, for errors.
        file: The file's name, for errors.

    Raises:
        UnsupportedFeatureError: A value is shredded to a type that the specification does not have.
        CorruptFileError: The parts contradict each other, or are not variants.
    """
    parts = _parts(array)
    metadata = _as_binary(parts["metadata"])
    valid: _Mask = array.is_valid().to_numpy(zero_copy_only=False)
    try:
        if metadata.null_count and not metadata.is_valid().to_numpy(zero_copy_only=False)[valid].all():
            raise MalformedVariant("a variant has no metadata")
        value = _value(array, parts, metadata, valid)
    except _UnknownShredding as error:
        raise UnsupportedFeatureError(
            f"file {file}: column {path!r} is a variant that is shredded to {error}, which the Parquet format does not "
            f"list; leave the column out with the option 'columns', or upgrade delta-sharing-spark",
            features=("variantShredding",),
        ) from None
    except MalformedVariant as error:
        raise CorruptFileError(
            f"file {file}: column {path!r} holds a variant that is damaged: {error}; ask the provider to check the file",
            file=file,
            column=path,
        ) from None
    mask = None if valid.all() else pa.array(~valid)
    return pa.StructArray.from_arrays([value, metadata], fields=list(target), mask=mask)


def _value(array: pa.StructArray, parts: dict[str, pa.Array], metadata: pa.Array, valid: _Mask) -> pa.Array:
    whole = parts.get("value")
    typed = parts.get("typed_value")
    if whole is not None and (typed is None or typed.null_count == len(typed)):
        value = _as_binary(whole)
        if not value.null_count or value.is_valid().to_numpy(zero_copy_only=False)[valid].all():
            return value
    encoded = _group(array, _dictionaries(metadata), valid)
    # "If a Variant is missing in a context where a value is required, readers must return a Variant null."
    return pa.array([NULL if e is None else e for e in encoded], pa.binary())


def _dictionaries(metadata: pa.Array) -> list[Dictionary]:
    """One dictionary a row; rows with the same metadata (most) share theirs."""
    by_bytes: dict[bytes, Dictionary] = {}
    rows = []
    for raw in metadata.to_pylist():
        raw = raw or b""
        dictionary = by_bytes.get(raw)
        if dictionary is None:
            dictionary = by_bytes[raw] = Dictionary(raw)
        rows.append(dictionary)
    return rows


def _group(array: pa.StructArray, dictionaries: Sequence[Dictionary], selected: _Mask) -> _Encoded:
    """A group of ``value`` and ``typed_value``, encoded; rows outside ``selected`` are skipped."""
    parts = _parts(array)
    selected = selected & array.is_valid().to_numpy(zero_copy_only=False)
    values: _Encoded = [None] * len(array)
    if "value" in parts:
        values = [v if w else None for v, w in zip(_as_binary(parts["value"]).to_pylist(), selected, strict=True)]
    typed = parts.get("typed_value")
    if typed is None or typed.null_count == len(typed):
        return values
    selected = selected & typed.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_struct(typed.type):
        return _objects(typed, values, dictionaries, selected)
    encoded = _lists(typed, dictionaries, selected) if is_list(typed.type) else _primitives(typed)
    for row in np.flatnonzero(selected):
        if values[row] is not None:
            raise MalformedVariant("a value is there both shredded and whole")
        values[row] = encoded[row]
    return values


def _objects(typed: pa.StructArray, values: _Encoded, dictionaries: Sequence[Dictionary], selected: _Mask) -> _Encoded:
    parts = _parts(typed)
    names = sorted(parts)  # by code point, which is the order of UTF-8
    columns = [_group(_checked_group(parts[name]), dictionaries, selected) for name in names]
    shredded = frozenset(names)
    encoded = list(values)
    orders: dict[int, list[int]] = {}
    for row in np.flatnonzero(selected).tolist():
        dictionary = dictionaries[row]
        rest = values[row]
        if rest is not None:
            encoded[row] = _merged(object_fields(rest, dictionary), names, columns, row, dictionary, shredded)
            continue
        ids = orders.get(id(dictionary))
        if ids is None:
            ids = orders[id(dictionary)] = [_id_or_none(dictionary, name) for name in names]
        present = [(i, v) for i, column in zip(ids, columns, strict=True) if (v := column[row]) is not None]
        if any(i < 0 for i, _ in present):
            for name, column in zip(names, columns, strict=True):
                if column[row] is not None:
                    dictionary.id(name)
        encoded[row] = encode_object([i for i, _ in present], [v for _, v in present])
    return encoded


def _id_or_none(dictionary: Dictionary, name: str) -> int:
    """The id, or -1: a row whose metadata lacks a name is right as long as it lacks the field too."""
    try:
        return dictionary.id(name)
    except MalformedVariant:
        return -1


def _merged(
    rest: list[tuple[str, bytes]],
    names: list[str],
    columns: list[_Encoded],
    row: int,
    dictionary: Dictionary,
    shredded: frozenset[str],
) -> bytes:
    """A partially shredded object: its unshredded fields and its shredded ones, in the order of their names."""
    doubled = next((name for name, _ in rest if name in shredded), None)
    if doubled is not None:
        raise MalformedVariant(f"field {doubled!r} is there both shredded and whole")
    fields = [*rest, *((n, v) for n, c in zip(names, columns, strict=True) if (v := c[row]) is not None)]
    fields.sort(key=lambda field: field[0])
    return encode_object([dictionary.id(name) for name, _ in fields], [value for _, value in fields])


def _lists(typed: pa.Array, dictionaries: Sequence[Dictionary], selected: _Mask) -> _Encoded:
    if not pa.types.is_list(typed.type):
        typed = typed.cast(pa.list_(typed.type.value_field))
    offsets = typed.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    lengths = np.diff(offsets)
    elements = _checked_group(typed.values.slice(first, last - first))
    owners = np.repeat(np.arange(len(typed)), lengths)
    parts = _group(elements, [dictionaries[o] for o in owners.tolist()], np.repeat(selected, lengths))
    whole = [NULL if p is None else p for p in parts]
    encoded: _Encoded = [None] * len(typed)
    for row in np.flatnonzero(selected).tolist():
        encoded[row] = encode_array(whole[offsets[row] - first : offsets[row + 1] - first])
    return encoded


def _checked_group(array: pa.Array) -> pa.StructArray:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    names = set(_parts(array)) if pa.types.is_struct(array.type) else set()
    if not names or not names <= {"value", "typed_value"}:
        raise _UnknownShredding(f"{array.type} where a group of value and typed_value belongs")
    return array


#: Arrow types of one fixed width to the variant's primitive type and the width of its data.
_FIXED: dict[pa.DataType, tuple[int, int]] = {
    pa.int8(): (3, 1),
    pa.int16(): (4, 2),
    pa.int32(): (5, 4),
    pa.int64(): (6, 8),
    pa.float64(): (7, 8),
    pa.date32(): (11, 4),
    pa.float32(): (14, 4),
    pa.time64("us"): (17, 8),
}
_UUID = 20


def _primitives(typed: pa.Array) -> _Encoded:
    """A leaf column, encoded; NULL rows hold anything."""
    kind = typed.type
    if isinstance(typed, pa.ExtensionArray):
        typed = typed.storage
        kind = typed.type
    if pa.types.is_dictionary(kind):
        typed = typed.dictionary_decode()
        kind = typed.type
    if pa.types.is_boolean(kind):
        return [TRUE if v else FALSE for v in typed.to_pylist()]
    if is_text(kind):
        return [None if v is None else encode_string(v) for v in _as_binary(typed).to_pylist()]
    if pa.types.is_fixed_size_binary(kind):
        if kind.byte_width != 16:
            raise _UnknownShredding(str(kind))
        head = bytes((primitive_header(_UUID),))
        return [None if v is None else head + v for v in typed.to_pylist()]
    if is_bytes(kind):
        return [None if v is None else encode_binary(v) for v in _as_binary(typed).to_pylist()]
    if pa.types.is_decimal(kind):
        return _decimals(typed)
    fixed = _timestamp(kind) if pa.types.is_timestamp(kind) else _FIXED.get(kind)
    if fixed is None:
        raise _UnknownShredding(str(kind))
    type_id, width = fixed
    return _framed(bytes((primitive_header(type_id),)), _raw(typed, width))


def _timestamp(kind: pa.DataType) -> tuple[int, int] | None:
    ids = {("us", True): 12, ("us", False): 13, ("ns", True): 18, ("ns", False): 19}
    type_id = ids.get((kind.unit, kind.tz is not None))
    return None if type_id is None else (type_id, 8)


def _decimals(typed: pa.Array) -> _Encoded:
    """Decimals by their column's precision: 4, 8 or 16 bytes after the scale."""
    kind = typed.type
    if kind.precision > 38 or not 0 <= kind.scale <= 38:
        raise _UnknownShredding(str(kind))
    typed = typed.cast(pa.decimal128(kind.precision, kind.scale))
    type_id, width = (8, 4) if kind.precision <= 9 else (9, 8) if kind.precision <= 18 else (10, 16)
    # Little-endian two's complement: the low bytes are the value in a narrower type.
    return _framed(bytes((primitive_header(type_id), kind.scale)), _raw(typed, 16)[:, :width])


def _raw(typed: pa.Array, width: int) -> npt.NDArray[np.uint8]:
    """The values' bytes, one row each, little-endian."""
    data = typed.buffers()[1]
    flat = np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, dtype=np.uint8)
    return flat[typed.offset * width : (typed.offset + len(typed)) * width].reshape(len(typed), width)


def _framed(head: bytes, raw: npt.NDArray[np.uint8]) -> _Encoded:
    rows, width = raw.shape
    framed = np.empty((rows, len(head) + width), dtype=np.uint8)
    framed[:, : len(head)] = np.frombuffer(head, dtype=np.uint8)
    framed[:, len(head) :] = raw
    data, step = framed.tobytes(), len(head) + width
    return [data[offset : offset + step] for offset in range(0, rows * step, step)]


def _parts(array: pa.StructArray) -> dict[str, pa.Array]:
    """A struct's children by name: variants are read by name, never by position."""
    return {field.name: array.field(i) for i, field in enumerate(array.type)}


def _as_binary(array: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if not (is_bytes(array.type) or is_text(array.type)):
        raise MalformedVariant(f"a part of it is stored as {array.type}, not as binary")
    return array if pa.types.is_binary(array.type) else array.cast(pa.binary())
