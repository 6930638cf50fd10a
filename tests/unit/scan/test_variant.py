"""Variants, shredded in every way, put together again; PySpark's own decoder says what the bytes mean."""

from __future__ import annotations

import datetime
import decimal
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import VariantVal

from delta_sharing_spark.errors import CorruptFileError, SchemaError, UnsupportedFeatureError
from delta_sharing_spark.scan.variant import (
    Dictionary,
    assemble_variant,
    encode_array,
    encode_binary,
    encode_object,
    encode_string,
    object_fields,
    primitive_header,
)
from delta_sharing_spark.schema.arrow import arrow_type
from delta_sharing_spark.schema.types import Array, Field, Primitive, Struct
from support.drawing import cases
from unit.scan.local_access import parquet, read_one

VARIANT = Primitive("variant")
MISSING = object()


def metadata_of(names: list[str]) -> bytes:
    """A dictionary of ``names``, sorted."""
    names = sorted(set(names))
    data = [n.encode() for n in names]
    offsets = [sum(map(len, data[:i])) for i in range(len(data) + 1)]
    width = max(1, (max(offsets[-1], len(names)).bit_length() + 7) // 8)
    numbers = [len(names), *offsets]
    return (
        bytes([1 | 1 << 4 | (width - 1) << 6]) + b"".join(n.to_bytes(width, "little") for n in numbers) + b"".join(data)
    )


def names_in(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [*value, *(n for v in value.values() for n in names_in(v))]
    return [n for v in value for n in names_in(v)] if isinstance(value, list) else []


def encode(value: Any, dictionary: Dictionary) -> bytes:
    match value:
        case None:
            return b"\x00"
        case bool():
            return bytes([primitive_header(1 if value else 2)])
        case int():
            return bytes([primitive_header(6)]) + value.to_bytes(8, "little", signed=True)
        case str():
            return encode_string(value.encode())
        case bytes():
            return encode_binary(value)
        case list():
            return encode_array([encode(v, dictionary) for v in value])
        case dict():
            names = sorted(value)
            return encode_object([dictionary.id(n) for n in names], [encode(value[n], dictionary) for n in names])
    raise AssertionError(value)


# Shredding schemas: "int", "string", "bool"; ["list", element]; {"name": field}; None leaves values whole.
SCALARS = {"int": (int, pa.int64()), "string": (str, pa.string()), "bool": (bool, pa.bool_())}


def group_type(shred: Any, *, metadata: bool = False) -> pa.StructType:
    fields = [pa.field("metadata", pa.binary(), nullable=False)] if metadata else []
    fields.append(pa.field("value", pa.binary()))
    if shred is not None:
        fields.append(pa.field("typed_value", typed_type(shred)))
    return pa.struct(fields)


def typed_type(shred: Any) -> pa.DataType:
    if isinstance(shred, dict):
        return pa.struct([pa.field(n, group_type(s), nullable=False) for n, s in shred.items()])
    if isinstance(shred, list):
        return pa.list_(pa.field("element", group_type(shred[1]), nullable=False))
    return SCALARS[shred][1]


def shredded(value: Any, shred: Any, dictionary: Dictionary) -> dict[str, Any]:
    """How a writer stores ``value`` under ``shred``."""
    if value is MISSING:
        return {"value": None, "typed_value": None}
    if isinstance(shred, dict) and isinstance(value, dict):
        rest = {n: v for n, v in value.items() if n not in shred}
        typed = {n: shredded(value.get(n, MISSING), s, dictionary) for n, s in shred.items()}
        return {"value": encode(rest, dictionary) if rest else None, "typed_value": typed}
    if isinstance(shred, list) and isinstance(value, list):
        return {"value": None, "typed_value": [shredded(v, shred[1], dictionary) for v in value]}
    if isinstance(shred, str) and type(value) is SCALARS[shred][0]:
        return {"value": None, "typed_value": value}
    return {"value": encode(value, dictionary), "typed_value": None}


def column(values: list[Any], shred: Any) -> pa.StructArray:
    rows = []
    for value in values:
        if value is MISSING:
            rows.append(None)
            continue
        metadata = metadata_of(names_in(value))
        rows.append({"metadata": metadata, **shredded(value, shred, Dictionary(metadata))})
    return pa.array(rows, group_type(shred, metadata=True))


def assembled(array: pa.Array) -> list[Any]:
    got = assemble_variant(array, arrow_type(VARIANT), path="v", file="f")
    got.validate(full=True)
    assert got.type.equals(arrow_type(VARIANT), check_metadata=True)
    return [None if r is None else VariantVal(r["value"], r["metadata"]) for r in got.to_pylist()]


def meanings(array: pa.Array) -> list[Any]:
    return [MISSING if v is None else json.loads(v.toJson()) for v in assembled(array)]


NAMES = st.sampled_from(["a", "b", "c", "ä", "\U0001f600", "\uffee", "x" * 70, ""])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 62), 1 << 62) | st.text(max_size=70),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=12,
)
SHREDS = st.recursive(
    st.sampled_from(["int", "string", "bool"]) | st.none(),
    lambda inner: st.dictionaries(NAMES, inner, min_size=1, max_size=4) | inner.map(lambda s: ["list", s]),
    max_leaves=6,
)


@cases(200)
@given(st.lists(VALUES | st.just(MISSING), min_size=1, max_size=6), SHREDS, st.integers(0, 2))
def test_shredded_values_come_back(values: list[Any], shred: Any, start: int) -> None:
    array = column(values, shred)
    assert meanings(array) == values
    assert meanings(array.slice(start)) == values[start:]


@cases(30)
@given(st.lists(VALUES, min_size=1, max_size=4), SHREDS)
def test_shredded_values_come_back_from_parquet(values: list[Any], shred: Any) -> None:
    array = column(values, shred)
    nested = pa.ListArray.from_arrays([0, 0, len(values)], array)
    data = parquet(pa.table({"l": nested, "v": pa.array([*array.to_pylist()[:1], None], array.type)}))
    schema = Struct((Field("v", VARIANT), Field("l", Array(VARIANT))))
    got = read_one(data, schema)
    assert got.column("v")[1].as_py() is None
    rows = [VariantVal(r["value"], r["metadata"]) for r in got.column("l")[1].as_py()]
    assert [json.loads(r.toJson()) for r in rows] == values
    assert json.loads(VariantVal(**got.column("v")[0].as_py()).toJson()) == values[0]


@pytest.mark.parametrize("value", [{"a": 1, "b": [1, {"c": None}], "s": "x" * 80}, [], {}, "text", None, 1.5])
def test_unshredded_bytes_are_passed_on_as_they_are(value: Any) -> None:
    theirs = VariantVal.parseJson(json.dumps(value))
    array = pa.array([{"metadata": theirs.metadata, "value": theirs.value}])
    (got,) = assembled(array)
    assert (got.value, got.metadata) == (theirs.value, theirs.metadata)


UTC = datetime.timezone.utc
PRIMITIVES = [
    (True, pa.bool_(), "true"),
    (False, pa.bool_(), "false"),
    (-128, pa.int8(), "-128"),
    (-300, pa.int16(), "-300"),
    (70_000, pa.int32(), "70000"),
    (-(1 << 63), pa.int64(), str(-(1 << 63))),
    (1.5, pa.float32(), "1.5"),
    (-2.25e300, pa.float64(), "-2.25e+300"),
    (decimal.Decimal("-1.25"), pa.decimal128(9, 2), "-1.25"),
    (decimal.Decimal("-123456789012.34"), pa.decimal128(18, 2), "-123456789012.34"),
    (decimal.Decimal("12345678901234567890.5"), pa.decimal128(38, 1), "12345678901234567890.5"),
    (decimal.Decimal("7.5"), pa.decimal32(5, 1), "7.5"),
    (datetime.date(1969, 12, 31), pa.date32(), '"1969-12-31"'),
    (
        datetime.datetime(2024, 1, 2, 3, 4, 5, 678901, UTC),
        pa.timestamp("us", "UTC"),
        '"2024-01-02 03:04:05.678901+00:00"',
    ),
    (datetime.datetime(1960, 1, 2, 3, 4, 5), pa.timestamp("us"), '"1960-01-02 03:04:05"'),
    (b"\x00\xff", pa.binary(), '"AP8="'),
    (b"\x00\xff", pa.large_binary(), '"AP8="'),
    ("y" * 63, pa.string(), '"' + "y" * 63 + '"'),
    ("é" * 40, pa.string(), '"' + "é" * 40 + '"'),
    ("z", pa.string_view(), '"z"'),
]


@pytest.mark.parametrize("is_sliced", [False, True], ids=["", "sliced"])
@pytest.mark.parametrize(("value", "kind", "text"), PRIMITIVES, ids=lambda v: str(v)[:24])
def test_shredded_primitive(value: Any, kind: pa.DataType, text: str, is_sliced: bool) -> None:
    empty = metadata_of([])
    rows = [{"metadata": empty, "typed_value": value}, {"metadata": empty, "value": b"\x00"}, {"metadata": empty}, None]
    group = pa.struct([("typed_value", kind), ("metadata", pa.binary()), ("value", pa.binary())])
    array = pa.array([None, *rows], group).slice(1) if is_sliced else pa.array(rows, group)
    first, null, missing, none = assembled(array)
    assert first.toJson() == text.encode("ascii", "backslashreplace").decode().replace("\\x", "\\u00")
    # A value that is missing where one is required reads as Variant null (VariantShredding.md, "Value Shredding").
    assert null.value == missing.value == b"\x00"
    assert none is None


@pytest.mark.parametrize(
    ("kind", "value", "head", "data"),
    [
        (pa.timestamp("ns", "UTC"), -1, 18, (-1).to_bytes(8, "little", signed=True)),
        (pa.timestamp("ns"), 5, 19, (5).to_bytes(8, "little")),
        (pa.time64("us"), 5, 17, (5).to_bytes(8, "little")),
        (pa.binary(16), bytes(range(16)), 20, bytes(range(16))),
    ],
)
def test_shredded_primitives_that_pyspark_does_not_decode(
    kind: pa.DataType, value: Any, head: int, data: bytes
) -> None:
    array = pa.StructArray.from_arrays(
        [pa.array([metadata_of([])], pa.binary()), pa.array([value], kind)], names=["metadata", "typed_value"]
    )
    (got,) = assembled(array)
    assert got.value == bytes([head << 2]) + data


def test_uuid_of_parquet_is_a_variants_uuid() -> None:
    raw = bytes(range(16))
    group = pa.StructArray.from_arrays(
        [pa.array([metadata_of([])], pa.binary()), pa.array([raw], pa.uuid())], names=["metadata", "typed_value"]
    )
    got = read_one(parquet(pa.table({"v": group})), Struct((Field("v", VARIANT),)))
    assert got.column("v")[0].as_py()["value"] == bytes([20 << 2]) + raw


def test_large_objects_arrays_and_dictionaries() -> None:
    wide = {f"field_{i:04}": i for i in range(700)}
    values = [wide, [*range(70_000)], {"s": "x" * 70_000, "t": wide}]
    shred = {f"field_{i:04}": "int" for i in range(0, 700, 2)}
    assert meanings(column(values, shred)) == values
    assert meanings(column(values, ["list", "int"])) == values


def test_fields_of_an_object_in_any_order_of_values() -> None:
    metadata = metadata_of(["a", "b", "c"])
    # Fields a, b, c at offsets 2, 1, 0: values may lie in any order.
    value = bytes([2, 3, 0, 1, 2, 2, 1, 0, 3]) + b"\x04\x08\x00"
    fields = object_fields(value, Dictionary(metadata))
    assert fields == [("a", b"\x00"), ("b", b"\x08"), ("c", b"\x04")]


def test_metadata_may_lack_a_shredded_name_that_no_value_has() -> None:
    group = group_type({"a": "int"}, metadata=True)
    typed = {"a": {"value": None, "typed_value": None}}
    assert meanings(pa.array([{"metadata": metadata_of([]), "typed_value": typed}], group)) == [{}]


OBJECT = group_type({"a": "int"}, metadata=True)
A1 = {"a": {"value": None, "typed_value": 1}}
DAMAGED = {
    "both shredded and whole": (pa.struct([("metadata", pa.binary()), ("value", pa.binary()), ("typed_value", pa.int64())]),
                                {"metadata": metadata_of([]), "value": b"\x00", "typed_value": 1}),
    "field twice": (OBJECT, {"metadata": metadata_of(["a"]), "value": encode({"a": 2}, Dictionary(metadata_of(["a"]))), "typed_value": A1}),
    "not an object": (OBJECT, {"metadata": metadata_of(["a"]), "value": encode_string(b"s"), "typed_value": A1}),
    "name unknown": (OBJECT, {"metadata": metadata_of(["b"]), "value": None, "typed_value": A1}),
    "truncated object": (OBJECT, {"metadata": metadata_of(["a", "b"]), "value": b"\x02\x09", "typed_value": A1}),
    "field id beyond": (OBJECT, {"metadata": metadata_of(["a"]), "value": bytes([2, 1, 7, 0, 1, 0]), "typed_value": A1}),
    "metadata version": (OBJECT, {"metadata": b"\x02\x00\x00", "value": None, "typed_value": A1}),
    "metadata truncated": (OBJECT, {"metadata": b"\x01\x09", "value": None, "typed_value": A1}),
    "no metadata": (OBJECT, {"metadata": None, "value": None, "typed_value": A1}),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_contradictions_are_errors(name: str) -> None:
    kind, row = DAMAGED[name]
    kind = pa.struct([pa.field(f.name, f.type) for f in kind])
    with pytest.raises(CorruptFileError, match=r"file f: column 'v'.*damaged"):
        assemble_variant(pa.array([row], kind), arrow_type(VARIANT), path="v", file="f")


@pytest.mark.parametrize(
    "kind", [pa.uint32(), pa.timestamp("ms"), pa.binary(5), pa.struct([("a", pa.int32())]), pa.list_(pa.int32())]
)
def test_unlisted_shredding_is_refused(kind: pa.DataType) -> None:
    typed = (
        pa.array([{"a": 1}], kind)
        if pa.types.is_struct(kind)
        else pa.array([[1]], kind)
        if pa.types.is_list(kind)
        else pa.nulls(1, kind)
    )
    if typed.null_count:
        typed = pa.concat_arrays([pa.array([b"12345" if pa.types.is_fixed_size_binary(kind) else 1], kind)])
    array = pa.StructArray.from_arrays(
        [pa.array([metadata_of(["a"])], pa.binary()), typed], names=["metadata", "typed_value"]
    )
    with pytest.raises(UnsupportedFeatureError, match="shredded to"):
        assemble_variant(array, arrow_type(VARIANT), path="v", file="f")


def test_a_struct_that_is_no_variant_is_refused() -> None:
    with pytest.raises(SchemaError, match="variant"):
        read_one(parquet(pa.table({"v": pa.array([{"x": 1}])})), Struct((Field("v", VARIANT),)))


def test_file_without_the_variant_column_gives_nulls() -> None:
    got = read_one(parquet(pa.table({"x": pa.array([1, 2])})), Struct((Field("v", VARIANT),)))
    assert got.column("v").to_pylist() == [None, None]


def test_parquet_keeps_no_group_required(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Some writers leave shredded groups optional; a NULL group is a missing field."""
    field = pa.struct([("value", pa.binary()), ("typed_value", pa.int64())])
    group = pa.struct([("metadata", pa.binary()), ("value", pa.binary()), ("typed_value", pa.struct([("a", field)]))])
    rows = [
        {"metadata": metadata_of(["a"]), "typed_value": {"a": None}},
        {"metadata": metadata_of(["a"]), "typed_value": A1},
    ]
    pq.write_table(pa.table({"v": pa.array(rows, group)}), tmp_path / "f.parquet")
    got = read_one((tmp_path / "f.parquet").read_bytes(), Struct((Field("v", VARIANT),)))
    assert [json.loads(VariantVal(**v).toJson()) for v in got.column("v").to_pylist()] == [{}, {"a": 1}]


def annotated(data: bytes, name: str) -> bytes:
    """The file with its group ``name`` annotated as VARIANT(1), which pyarrow does not write: the footer's thrift patched."""
    size = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - size : -8]
    # After name and num_children.
    offset = footer.index(bytes([0x18, len(name)]) + name.encode() + b"\x15") + len(name) + 4
    assert footer[offset] == 0, "the schema element ends here"
    # Field 10 (logicalType), a union whose field 16 is a struct whose field 1 (i8) is the specification's version.
    footer = footer[:offset] + b"\x5c\x0c\x20\x13\x01\x00\x00" + footer[offset:]
    return data[: -8 - size] + footer + len(footer).to_bytes(4, "little") + b"PAR1"


@pytest.mark.parametrize("shred", [None, "int", {"a": "int"}, ["list", "string"]])
def test_groups_annotated_as_variant(shred: Any) -> None:
    values = [1, {"a": 1, "b": "x"}, ["s", 2], None]
    plain = parquet(pa.table({"events": column(values, shred)}), store_schema=False)
    data = annotated(plain, "events")
    assert "Variant" in str(pq.read_metadata(pa.BufferReader(data)).schema)
    got = read_one(data, Struct((Field("events", VARIANT),)))
    assert [json.loads(VariantVal(**v).toJson()) for v in got.column("events").to_pylist()] == values
