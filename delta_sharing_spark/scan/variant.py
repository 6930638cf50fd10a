"""Reads variants from Parquet into Spark's order of value and metadata, and puts shredded values together again.

Parquet format, "Variant Shredding". A shredded group has a ``typed_value`` beside (or instead of) its ``value``; objects
and arrays nest such groups. Columns are encoded whole, from the leaves up: each step turns a column of encoded parts
into a column of encoded values, so that only objects and arrays cost Python work by row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from delta_sharing_spark.errors import CorruptFileError, UnsupportedFeatureError
from delta_sharing_spark.scan.casts import is_bytes, is_text
from delta_sharing_spark.scan.column_resolution import is_list
from delta_sharing_spark.scan.variant_encoding import (
    FALSE,
    NULL,
    TRUE,
    Dictionary,
    MalformedVariant,
    encode_array,
    encode_binary,
    encode_object,
    encode_string,
    object_fields,
    primitive_header,
)

#: Encoded values, one a row; None where there is none ("missing", which is not Variant null).
_Encoded = list[bytes | None]
_Mask = npt.NDArray[np.bool_]


class _UnknownShredding(Exception):
    """A ``typed_value`` of a type that the specification does not have."""


def is_variant(data_type: pa.DataType) -> bool:
    """Whether an Arrow type is how Parquet stores a variant, shredded or not."""
    if not pa.types.is_struct(data_type):
        return False
    names = {data_type.field(i).name for i in range(data_type.num_fields)}
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
    known: dict[bytes, Dictionary] = {}
    rows = []
    for raw in metadata.to_pylist():
        raw = raw or b""
        dictionary = known.get(raw)
        if dictionary is None:
            dictionary = known[raw] = Dictionary(raw)
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
    parts = {}
    for i in range(array.type.num_fields):
        child = array.field(i)
        parts[array.type.field(i).name] = child
    return parts


def _as_binary(array: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if not (is_bytes(array.type) or is_text(array.type)):
        raise MalformedVariant(f"a part of it is stored as {array.type}, not as binary")
    return array if pa.types.is_binary(array.type) else array.cast(pa.binary())
