"""What files store and what tables declare: every physical encoding and every widening, to Spark's exact type."""

from __future__ import annotations

import datetime
import decimal
import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_sharing_spark.errors import CorruptFileError, NullInRequiredError, SchemaError
from delta_sharing_spark.parquet.thrift import read_struct, write_struct
from delta_sharing_spark.scan.column_resolution import Context, SourceFields, find_source, leaves_of
from delta_sharing_spark.scan.transform import conform, plan_columns
from delta_sharing_spark.schema.arrow import arrow_schema, arrow_type
from delta_sharing_spark.schema.types import Array, DataType, Decimal, Field, Map, Primitive, Struct
from support.drawing import cases
from unit.scan.local_access import parquet, read_one

P, D = Primitive, decimal.Decimal
UTC = datetime.timezone.utc
MICROS = 1_000_000


def instant(*fields: int) -> datetime.datetime:
    return datetime.datetime(*fields)  # type: ignore[arg-type]


def zoned(*fields: int) -> datetime.datetime:
    return datetime.datetime(*fields, tzinfo=UTC)  # type: ignore[misc, arg-type]


def one(array: pa.Array, declared: DataType, **how: Any) -> list[Any]:
    got = read_one(parquet(pa.table({"c": array}), **how), Struct((Field("c", declared),)))
    return got.column("c").to_pylist()


# --- type widening: every change of the Delta protocol, "Type Widening" ----------------------------------------

INTS = {"byte": (pa.int8(), 8), "short": (pa.int16(), 16), "integer": (pa.int32(), 32), "long": (pa.int64(), 64)}
WIDENINGS: list[tuple[pa.DataType, list[Any], DataType, list[Any]]] = []
for _name, (_arrow, _bits) in INTS.items():
    _low, _high = -(1 << (_bits - 1)), (1 << (_bits - 1)) - 1
    for _target, (_, _wide) in INTS.items():
        if _wide >= _bits:
            WIDENINGS.append((_arrow, [_low, None, _high], P(_target), [_low, None, _high]))
    if _bits < 64:
        WIDENINGS.append((_arrow, [_low, None, _high], P("double"), [float(_low), None, float(_high)]))
    for _decimal in [Decimal(10 if _bits < 64 else 20, 0), Decimal(25, 5), Decimal(38, 0), Decimal(38, 18)]:
        WIDENINGS.append((_arrow, [_low, None, _high], _decimal, [D(_low), None, D(_high)]))
WIDENINGS += [
    (pa.float32(), [1.1, None, float("inf")], P("double"), [float(np.float32(1.1)), None, float("inf")]),
    (pa.date32(), [datetime.date(1, 1, 1), None], P("timestamp_ntz"), [instant(1, 1, 1), None]),
    (pa.date32(), [datetime.date(9999, 12, 31)], P("timestamp_ntz"), [instant(9999, 12, 31)]),
    (pa.decimal128(5, 2), [D("-999.99"), None], Decimal(10, 2), [D("-999.99"), None]),
    (pa.decimal128(5, 2), [D("999.99"), None], Decimal(12, 6), [D("999.990000"), None]),
    (pa.decimal128(18, 0), [D(10**18 - 1)], Decimal(38, 20), [D(10**18 - 1)]),
    (pa.decimal128(10, 2), [D("1.25")], Decimal(38, 2), [D("1.25")]),
]


@pytest.mark.parametrize(("source", "values", "target", "expected"), WIDENINGS, ids=str)
@pytest.mark.parametrize("dictionary", [False, True])
def test_widening(
    source: pa.DataType, values: list[Any], target: DataType, expected: list[Any], dictionary: bool
) -> None:
    assert one(pa.array(values, source), target, use_dictionary=dictionary) == expected


@pytest.mark.parametrize(("source", "values", "target", "expected"), WIDENINGS[::5], ids=str)
def test_widening_of_nested_leaves(
    source: pa.DataType, values: list[Any], target: DataType, expected: list[Any]
) -> None:
    table = pa.table(
        {
            "l": pa.array([values, None], pa.list_(source)),
            "s": pa.array([{"x": values[0]}, None], pa.struct([("x", source)])),
            "m": pa.array([[("k", values[0])], None], pa.map_(pa.string(), source)),
        }
    )
    schema = Struct(
        (
            Field("l", Array(target)),
            Field("s", Struct((Field("x", target),))),
            Field("m", Map(P("string"), target)),
        )
    )
    got = read_one(parquet(table), schema).to_pylist()
    assert got == [
        {"l": expected, "s": {"x": expected[0]}, "m": [("k", expected[0])]},
        {"l": None, "s": None, "m": None},
    ]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (pa.int64(), P("double")),
        (pa.int32(), P("float")),
        (pa.int32(), Decimal(9, 0)),
        (pa.int64(), Decimal(19, 1)),
        (pa.float64(), P("float")),
        (pa.float32(), Decimal(38, 10)),
        (pa.decimal128(10, 2), Decimal(10, 1)),
        (pa.decimal128(10, 2), Decimal(10, 3)),
        (pa.decimal128(10, 2), P("double")),
        (pa.decimal128(10, 0), P("long")),
        (pa.date32(), P("timestamp")),
        (pa.timestamp("us"), P("date")),
        (pa.string(), P("integer")),
        (pa.string(), P("date")),
        (pa.int32(), P("string")),
        (pa.int32(), P("boolean")),
        (pa.bool_(), P("integer")),
        (pa.int32(), P("date")),
        (pa.int64(), P("timestamp")),
        (pa.time64("us"), P("long")),
        (pa.list_(pa.int32()), P("integer")),
        (pa.int32(), Array(P("integer"))),
        (pa.struct([("x", pa.int32())]), P("string")),
        (pa.struct([("x", pa.int32())]), Map(P("string"), P("integer"))),
        (pa.int32(), P("void")),
    ],
    ids=str,
)
def test_what_loses_something_is_refused_by_column_and_file(source: pa.DataType, target: DataType) -> None:
    with pytest.raises(SchemaError, match=r"f\.parquet of s\.d\.t: column 'c' is stored as"):
        one(pa.nulls(2, source), target)


@pytest.mark.parametrize(
    ("source", "target", "bits"),
    [
        (pa.int32(), P("byte"), 8),
        (pa.int32(), P("short"), 16),
        (pa.int64(), P("integer"), 32),
        (pa.uint8(), P("byte"), 8),
        (pa.uint64(), P("long"), 64),
    ],
)
def test_wider_integers_are_read_where_each_value_fits(source: pa.DataType, target: DataType, bits: int) -> None:
    """Hive's and Impala's TINYINT and SMALLINT are INT32 without a mark."""
    most = (1 << (bits - 1)) - 1
    assert one(pa.array([0, most, None], source), target) == [0, most, None]
    with pytest.raises(CorruptFileError, match=rf"f\.parquet of s\.d\.t: a value of column 'c' does not fit {target}"):
        one(pa.array([most + 1], source), target)


# --- timestamps -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "America/New_York", "+05:30"])
@pytest.mark.parametrize("target", ["timestamp", "timestamp_ntz"])
@pytest.mark.parametrize("store_schema", [True, False])
def test_timestamps_of_every_unit_count_from_the_epoch(
    unit: str, zone: str | None, target: str, store_schema: bool
) -> None:
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    seconds = [0, 1_600_000_000, -1, -9_000_000_000]
    array = pa.array([s * per_second for s in seconds] + [None], pa.int64()).cast(pa.timestamp(unit, zone))
    data = parquet(pa.table({"c": array}), store_schema=store_schema)
    got = read_one(data, Struct((Field("c", P(target)),))).column("c")
    assert got.cast(pa.int64()).to_pylist() == [*(s * MICROS for s in seconds), None]


def test_nanoseconds_are_cut_towards_the_past() -> None:
    nanos = [-1, -1000, -1001, 999, 1999, None, (1 << 63) - 1, -(1 << 63)]
    array = pa.array(nanos, pa.timestamp("ns"))
    got = read_one(parquet(pa.table({"c": array})), Struct((Field("c", P("timestamp_ntz")),))).column("c")
    assert got.cast(pa.int64()).to_pylist() == [None if n is None else n // 1000 for n in nanos]


def test_milliseconds_beyond_the_range_of_microseconds_are_an_error() -> None:
    array = pa.array([1 << 62], pa.timestamp("ms"))
    with pytest.raises(CorruptFileError, match="column 'c' does not fit"):
        one(array, P("timestamp"))


def int96(values: list[datetime.datetime], pairs: dict[str, str] | None = None) -> bytes:
    """A file of one INT96 column, with some pairs in its footer; pyarrow writes those from nanoseconds, which end in 2262, so the values are patched in."""
    table = pa.table({"c": pa.array(range(len(values)), pa.timestamp("us"))}).replace_schema_metadata(pairs)
    data = parquet(table, use_deprecated_int96_timestamps=True, compression="none", use_dictionary=False)
    for i, value in enumerate(values):
        old = (i * 1000).to_bytes(8, "little") + (2_440_588).to_bytes(4, "little")
        delta = value - instant(1970, 1, 1)
        nanos = (delta.seconds * MICROS + delta.microseconds) * 1000
        assert data.count(old) >= 1
        data = data.replace(old, nanos.to_bytes(8, "little") + (delta.days + 2_440_588).to_bytes(4, "little"))
    return data


@pytest.mark.parametrize(("target", "make"), [("timestamp", zoned), ("timestamp_ntz", instant)])
def test_int96_in_all_years(target: str, make: Any) -> None:
    moments = [(9999, 12, 31, 23, 59, 59, 999999), (1, 1, 1), (1677, 1, 1, 1), (2262, 5, 1), (1969, 12, 31, 23, 59)]
    data = int96([instant(*m) for m in moments])
    got = read_one(data, Struct((Field("c", P(target)),))).column("c").to_pylist()
    assert got == [make(*m) for m in moments]


# --- decimals, bytes and what ARROW:schema restores ---------------------------------------------------------------


@pytest.mark.parametrize(("precision", "scale"), [(1, 0), (9, 2), (10, 3), (18, 18), (19, 4), (38, 10)])
@pytest.mark.parametrize("integers", [True, False])
@pytest.mark.parametrize("small", [False, True])
def test_decimals_in_every_physical_encoding(precision: int, scale: int, integers: bool, small: bool) -> None:
    top = D(10**precision - 1).scaleb(-scale, decimal.Context(prec=50))
    array = pa.array([top, top.copy_negate(), D(0), None], pa.decimal128(precision, scale))
    if small and precision <= 18:
        array = array.cast(pa.decimal32(precision, scale) if precision <= 9 else pa.decimal64(precision, scale))
    assert one(array, Decimal(precision, scale), store_decimal_as_integer=integers) == [
        top,
        top.copy_negate(),
        D(0),
        None,
    ]


TEXT = ["", "ä\U0001f600", None, "x" * 300]
BYTES = [b"", b"\x00\xff", None]


@pytest.mark.parametrize(
    ("array", "declared", "expected"),
    [
        (pa.array(TEXT, pa.large_string()), P("string"), TEXT),
        (pa.array(TEXT, pa.string_view()), P("string"), TEXT),
        (pa.array(TEXT).dictionary_encode(), P("string"), TEXT),
        (pa.array(TEXT, pa.large_string()).dictionary_encode(), P("string"), TEXT),
        (pa.array([t and t.encode() for t in TEXT], pa.binary()), P("string"), TEXT),
        (pa.array(TEXT), P("binary"), [t if t is None else t.encode() for t in TEXT]),
        (pa.array(BYTES, pa.large_binary()), P("binary"), BYTES),
        (pa.array(BYTES, pa.binary_view()), P("binary"), BYTES),
        (pa.array([b"ab", None], pa.binary(2)), P("binary"), [b"ab", None]),
        (pa.array([b"0123456789abcdef", None], pa.uuid()), P("binary"), [b"0123456789abcdef", None]),
        (pa.array(['{"a":1}'], pa.json_()), P("string"), ['{"a":1}']),
        (pa.array([255, None], pa.uint8()), P("short"), [255, None]),
        (pa.array([65535], pa.uint16()), P("integer"), [65535]),
        (pa.array([(1 << 32) - 1], pa.uint32()), P("long"), [(1 << 32) - 1]),
        (pa.array([(1 << 64) - 1], pa.uint64()), Decimal(20, 0), [D((1 << 64) - 1)]),
        (pa.array(np.array([1.5], np.float16)), P("float"), [1.5]),
        (pa.array([True, None, False]), P("boolean"), [True, None, False]),
        (pa.nulls(2), P("void"), [None, None]),
        (pa.nulls(2), P("long"), [None, None]),
        (pa.nulls(2), Array(Struct((Field("x", P("string")),))), [None, None]),
        (pa.array([1, 2]).dictionary_encode(), P("long"), [1, 2]),
    ],
    ids=str,
)
def test_physical_encodings(array: pa.Array, declared: DataType, expected: list[Any]) -> None:
    assert one(array, declared) == expected


@pytest.mark.parametrize("make", [pa.list_, pa.large_list, lambda t: pa.list_(t, 2)])
@pytest.mark.parametrize("required", [False, True])
def test_lists_of_every_kind(make: Any, required: bool) -> None:
    rows = [[1, 2], None, [3, 4]]
    declared = Array(P("long"), contains_null=not required)
    assert one(pa.array(rows, make(pa.int32())), declared) == rows


def test_binary_that_is_no_text_is_an_error_in_a_string_column() -> None:
    with pytest.raises(CorruptFileError, match="does not fit string"):
        one(pa.array([b"\xff"]), P("string"))


def patched_footer(data: bytes, *changes: tuple[bytes, bytes]) -> bytes:
    size = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - size : -8]
    for old, new in changes:
        assert footer.count(old) == 1, old
        footer = footer.replace(old, new)
    return data[: -8 - size] + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def test_a_parquet_type_that_an_old_pyarrow_refuses_asks_for_a_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(file: Any) -> None:  # as pyarrow 19 does a variant's annotation
        raise OSError("Metadata contains Thrift LogicalType that is not recognized")

    monkeypatch.setattr("delta_sharing_spark.parquet.footer._parsed", refusing)
    with pytest.raises(CorruptFileError, match=r"f\.parquet of s\.d\.t .* upgrade pyarrow$"):
        one(pa.array(["a"]), P("string"))


@pytest.mark.parametrize("name", ["element", "array", "c_tuple"])
def test_two_level_lists_of_old_writers(name: str) -> None:
    """``optional group c (LIST) { repeated int32 element; }``: the levels of a three-level list of required elements."""
    rows = [[1, 2], [], None, [3]]
    table = pa.table({"c": pa.array(rows, pa.list_(pa.field("element", pa.int32(), nullable=False)))})
    text = bytes([len(name)]) + name.encode()
    data = patched_footer(
        parquet(table, store_schema=False, write_statistics=False),
        (b"\x19\x4c", b"\x19\x3c"),  # three schema elements instead of four
        (b"\x35\x04\x18\x04list\x15\x02\x00", b""),  # without the repeated group
        (b"\x25\x00\x18\x07element", b"\x25\x04\x18" + text),  # whose element is repeated itself
        (b"\x38\x01c\x04list\x07element", b"\x28\x01c" + text),
    )
    assert "repeated int32" in str(pq.read_metadata(pa.BufferReader(data)).schema)
    assert read_one(data, Struct((Field("c", Array(P("long"))),))).column("c").to_pylist() == rows
    struct = Struct((Field("c", Array(P("long"))), Field("d", P("string"))))
    assert read_one(data, struct).column("c").to_pylist() == rows


@pytest.mark.parametrize("compliant", [True, False])
def test_old_names_of_list_elements(compliant: bool) -> None:
    data = parquet(pa.table({"c": [[1, 2], None]}), store_schema=False, use_compliant_nested_type=compliant)
    assert read_one(data, Struct((Field("c", Array(P("long"))),))).column("c").to_pylist() == [[1, 2], None]


# --- matching: names, case, ids, nested ------------------------------------------------------------------------------


def test_names_match_without_case_and_exact_ones_first() -> None:
    data = parquet(pa.table({"ID": [1], "Name": [2], "name": [3]}))
    got = read_one(data, Struct((Field("id", P("long")), Field("name", P("long")))))
    assert got.to_pylist() == [{"id": 1, "name": 3}]
    with pytest.raises(CorruptFileError, match="several columns named 'NAME' that differ by case"):
        read_one(data, Struct((Field("NAME", P("long")),)))


def mapped(name: str, physical: str, number: int, kind: DataType) -> Field:
    return Field(name, kind, True, {"delta.columnMapping.physicalName": physical, "delta.columnMapping.id": number})


def with_id(name: str, kind: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})


@pytest.mark.parametrize("mode", ["name", "id"])
def test_column_mapping_at_every_level(mode: str) -> None:
    # In id mode the file's names are of no account: here they are swapped on purpose.
    a, b = ("p-a", "p-b") if mode == "name" else ("p-b", "p-a")
    inner = pa.struct([with_id(a, pa.int32(), 5), with_id(b, pa.string(), 6)])
    schema = pa.schema(
        [
            with_id("p-l" if mode == "name" else "x", pa.list_(inner), 1),
            with_id("p-m" if mode == "name" else "y", pa.map_(pa.string(), inner), 2),
            with_id("p-s" if mode == "name" else "z", inner, 3),
        ]
    )
    row = {a: 1, b: "x"}
    table = pa.table(
        [
            pa.array([[row]], schema.field(0).type),
            pa.array([[("k", row)]], schema.field(1).type),
            pa.array([row], inner),
        ],
        schema,
    )
    fields = Struct(
        (mapped("bee", "p-b", 6, P("string")), mapped("gone", "p-g", 9, P("long")), mapped("a", "p-a", 5, P("integer")))
    )
    declared = Struct(
        (
            mapped("S", "p-s", 3, fields),
            mapped("M", "p-m", 2, Map(P("string"), fields)),
            mapped("L", "p-l", 1, Array(fields)),
        )
    )
    value = {"bee": "x", "gone": None, "a": 1}
    got = read_one(parquet(table), declared, mapping=mode)
    assert got.to_pylist() == [{"S": value, "M": [("k", value)], "L": [value]}]


@pytest.mark.parametrize("mode", ["name", "id"])
def test_a_mapped_column_is_never_found_by_its_logical_name(mode: str) -> None:
    data = parquet(pa.table([pa.array([1])], pa.schema([with_id("a", pa.int64(), 7)])))
    got = read_one(data, Struct((mapped("a", "p-a", 1, P("long")),)), mapping=mode)
    assert got.to_pylist() == [{"a": None}]


def test_a_file_without_ids_is_refused_where_columns_are_found_by_id() -> None:
    """Every column of it would be NULL, with no word."""
    data = parquet(pa.table({"p-a": [1]}))
    declared = Struct((mapped("a", "p-a", 1, P("long")),))
    with pytest.raises(CorruptFileError, match=r"f\.parquet of s\.d\.t has no field ids beside 'p-a'"):
        read_one(data, declared, mapping="id")
    assert read_one(data, declared, mapping="name").to_pylist() == [{"a": 1}]
    assert read_one(data, Struct(()), mapping="id").num_columns == 0


@pytest.mark.parametrize("wrap", [pa.list_, lambda kind: pa.map_(pa.string(), kind), lambda kind: kind], ids=str)
def test_a_struct_without_ids_is_refused_where_columns_are_found_by_id(wrap: Any) -> None:
    """Each field of it would be NULL in every row, though the columns at the top have ids."""
    kind = wrap(pa.struct([("p-a", pa.int64())]))
    inner: DataType = Struct((mapped("a", "p-a", 2, P("long")),))
    declared = (
        inner if pa.types.is_struct(kind) else Array(inner) if pa.types.is_list(kind) else Map(P("string"), inner)
    )
    data = parquet(pa.table([pa.nulls(1, kind)], pa.schema([with_id("p-s", kind, 1)])))
    with pytest.raises(CorruptFileError, match="has no field ids beside 'p-a'"):
        read_one(data, Struct((mapped("s", "p-s", 1, declared),)), mapping="id")


@pytest.mark.parametrize(("mode", "names"), [("none", ["a", "a"]), ("name", ["p-a", "p-a"]), ("id", ["x", "y"])])
def test_a_column_that_a_file_has_twice_is_refused(mode: str, names: list[str]) -> None:
    ids = [7, 7] if mode == "id" else [1, 2]
    fields = [with_id(name, pa.int64(), number) for name, number in zip(names, ids, strict=True)]
    data = parquet(pa.table([pa.array([1]), pa.array([2])], pa.schema(fields)))
    column = Field("a", P("long")) if mode == "none" else mapped("a", "p-a", 7, P("long"))
    with pytest.raises(CorruptFileError, match=r"has several columns (named|with the field id)"):
        read_one(data, Struct((column,)), mapping=mode)


def test_struct_none_of_whose_wanted_fields_are_in_the_file_keeps_its_nulls() -> None:
    kind = pa.struct([("old", pa.int32()), ("older", pa.string())])
    table = pa.table(
        {
            "s": pa.array([{"old": 1}, None, {"old": None}], kind),
            "l": pa.array([[{"old": 1}, None], None, []], pa.list_(kind)),
            "m": pa.array([[("k", {"old": 1})], None, []], pa.map_(pa.string(), kind)),
        }
    )
    new = Struct((Field("new", P("long")),))
    schema = Struct((Field("s", new), Field("l", Array(new)), Field("m", Map(P("string"), new))))
    assert read_one(parquet(table), schema).to_pylist() == [
        {"s": {"new": None}, "l": [{"new": None}, None], "m": [("k", {"new": None})]},
        {"s": None, "l": None, "m": None},
        {"s": {"new": None}, "l": [], "m": []},
    ]


# --- NULL where none may be -----------------------------------------------------------------------------------------

REQUIRED = Struct((Field("x", P("long"), nullable=False),))


@pytest.mark.parametrize(
    ("rows", "kind", "declared", "nullable", "path"),
    [
        ([1, None], pa.int64(), P("long"), False, "c"),
        ([{"x": None}], pa.struct([("x", pa.int64())]), REQUIRED, True, "c.x"),
        ([{"y": 1}], pa.struct([("y", pa.int64())]), REQUIRED, True, "c.x"),
        ([[1, None]], pa.list_(pa.int64()), Array(P("long"), False), True, "c.element"),
        ([[("k", None)]], pa.map_(pa.string(), pa.int64()), Map(P("string"), P("long"), False), True, "c.value"),
        ([[{"x": None}]], pa.list_(pa.struct([("x", pa.int64())])), Array(REQUIRED), True, "c.element.x"),
    ],
)  # fmt: skip
def test_null_in_not_null_names_file_and_column(
    rows: list[Any], kind: pa.DataType, declared: DataType, nullable: bool, path: str
) -> None:
    data = parquet(pa.table({"c": pa.array(rows, kind)}))
    with pytest.raises(NullInRequiredError, match=rf"f\.parquet.*NULL in column '{path}'") as caught:
        read_one(data, Struct((Field("c", declared, nullable),)))
    assert (caught.value.file, caught.value.column) == ("f.parquet", path)


def test_not_null_column_that_the_file_lacks_is_an_error() -> None:
    with pytest.raises(NullInRequiredError):
        read_one(parquet(pa.table({"a": [1]})), Struct((Field("c", P("long"), nullable=False),)))


def test_required_fields_under_null_parents_are_no_error() -> None:
    inner = pa.struct([("x", pa.int64())])
    table = pa.table({"s": pa.array([None, {"x": 1}], inner), "l": pa.array([None, [None, {"x": 2}]], pa.list_(inner))})
    got = read_one(parquet(table), Struct((Field("s", REQUIRED), Field("l", Array(REQUIRED)))))
    assert got.to_pylist() == [{"s": None, "l": None}, {"s": {"x": 1}, "l": [None, {"x": 2}]}]


# --- the transform alone: slices, hypothesis, speed -------------------------------------------------------------------

SCALARS: dict[str, tuple[st.SearchStrategy[Any], pa.DataType]] = {
    "long": (st.integers(-(1 << 31), (1 << 31) - 1), pa.int32()),
    "string": (st.text(max_size=5), pa.large_string()),
    "boolean": (st.booleans(), pa.bool_()),
    "double": (st.floats(width=32, allow_nan=False), pa.float32()),
}


@st.composite
def typed_rows(draw: Any, depth: int = 3) -> tuple[DataType, pa.DataType, st.SearchStrategy[Any]]:
    """A wanted type, how a file stores it, and its values (NULLs everywhere)."""
    kind = draw(st.sampled_from(["scalar", "list", "map", "struct"] if depth else ["scalar"]))
    if kind == "scalar":
        name = draw(st.sampled_from(sorted(SCALARS)))
        values, arrow = SCALARS[name]
        return P(name), arrow, st.none() | values
    if kind == "list":
        declared, arrow, values = draw(typed_rows(depth - 1))
        make = draw(st.sampled_from([pa.list_, pa.large_list]))
        return Array(declared), make(arrow), st.none() | st.lists(values, max_size=3)
    if kind == "map":
        declared, arrow, values = draw(typed_rows(depth - 1))
        entries = st.lists(st.tuples(st.text(max_size=2), values), max_size=3)
        return Map(P("string"), declared), pa.map_(pa.string(), arrow), st.none() | entries
    parts = [draw(typed_rows(depth - 1)) for _ in range(draw(st.integers(1, 3)))]
    names = [f"f{i}" for i in range(len(parts))]
    return (
        Struct(tuple(Field(n, p[0]) for n, p in zip(names, parts, strict=True))),
        pa.struct([(n, p[1]) for n, p in zip(names, parts, strict=True)]),
        st.none() | st.fixed_dictionaries({n: p[2] for n, p in zip(names, parts, strict=True)}),
    )


@cases(150)
@given(st.data())
def test_conform_keeps_values_of_any_slice(data: st.DataObject) -> None:
    declared, arrow, values = data.draw(typed_rows())
    rows = data.draw(st.lists(values, max_size=6))
    start, length = data.draw(st.integers(0, len(rows))), data.draw(st.integers(0, 6))
    array = pa.array(rows, arrow)
    schema = Struct((Field("c", declared), Field("new", P("long"))))
    context = Context("t", "f", "none")
    batch = pa.RecordBatch.from_arrays([array], ["c"]).slice(start, length)
    got = conform(batch, plan_columns(batch.schema, schema, {}, context), schema, arrow_schema(schema), context)
    got.validate(full=True)
    assert got.schema.equals(arrow_schema(schema), check_metadata=True)
    assert got.column(0).type.equals(arrow_type(declared))
    assert got.column(0).to_pylist() == rows[start : start + length]
    assert got.column(1).to_pylist() == [None] * got.num_rows


@cases(60)
@given(st.data())
def test_rows_of_any_type_come_back_from_parquet(data: st.DataObject) -> None:
    declared, arrow, values = data.draw(typed_rows(2))
    rows = data.draw(st.lists(values, min_size=1, max_size=6))
    file = parquet(pa.table({"c": pa.array(rows, arrow)}), row_group_size=2, store_schema=data.draw(st.booleans()))
    assert read_one(file, Struct((Field("c", declared),))).column("c").to_pylist() == rows


def test_a_thousand_columns_are_matched_once_not_squared() -> None:
    names = [f"column_{i}" for i in range(3000)]
    source = pa.schema([(n, pa.int32()) for n in names])
    declared = Struct(tuple(Field(n.upper(), P("long")) for n in names))
    context = Context("t", "f", "none")
    assert leaves_of(source, declared, context) == list(range(3000))
    sources = SourceFields(source)
    looked_up = [find_source(f, sources, context) for f in declared.fields]
    assert looked_up == list(range(3000))
    assert sources.by_folded_name("COLUMN_7") == [7]


@pytest.mark.parametrize("rows", [0, 3])
def test_files_without_any_wanted_column(rows: int) -> None:
    data = parquet(pa.table({"a": pa.array(range(rows), pa.int64())}))
    assert read_one(data, Struct((Field("b", P("string")),))).to_pylist() == [{"b": None}] * rows
    assert read_one(data, Struct(())).num_columns == 0


def test_empty_row_groups() -> None:
    sink = io.BytesIO()
    schema = pa.schema([("a", pa.int64())])
    with pq.ParquetWriter(sink, schema) as writer:
        for values in ([], [1, 2], [], [3], []):
            writer.write_table(pa.table({"a": pa.array(values, pa.int64())}), row_group_size=10)
    got = read_one(sink.getvalue(), Struct((Field("a", P("long")),)))
    assert got.column("a").to_pylist() == [1, 2, 3]


@pytest.mark.parametrize("use_dictionary", [True, False])
@pytest.mark.parametrize(
    ("writer", "is_old"),
    [("parquet-cpp-arrow version 22.0.0", True), ("parquet-cpp version 1.5.1", True), (None, False)],
)
def test_int96_of_arrow_before_23_whose_clocks_run_backwards_before_1970(
    use_dictionary: bool, writer: str | None, is_old: bool
) -> None:
    """pyarrow takes such a time for one 584 years later; Spark does not."""
    moments = [
        instant(1969, 12, 31, 12, 0, 0, 1),
        instant(1700, 5, 5, 1),
        instant(1969, 12, 31),
        instant(2024, 2, 29, 23, 59),
        None,
    ]
    kind = pa.timestamp("us")
    table = pa.table({"c": pa.array(moments, kind), "l": pa.array([[m] for m in moments], pa.list_(kind))})
    how: Any = {"use_deprecated_int96_timestamps": True, "use_dictionary": use_dictionary, "compression": "none"}
    data = parquet(table, **how)
    for moment in moments[:3] if is_old else ():  # those before 1970
        micros = (moment - instant(1970, 1, 1)) // datetime.timedelta(microseconds=1)
        day, rest = divmod(micros, 86_400 * MICROS)
        sound, old = ((clock * 1000).to_bytes(8, "little", signed=True) + (d + 2_440_588).to_bytes(4, "little")
            for clock, d in ((rest, day), (rest - 86_400 * MICROS, day + 1)))  # fmt: skip
        assert sound in data
        data = data if rest == 0 else data.replace(sound, old)
    if writer is not None:
        own = pq.read_metadata(io.BytesIO(data)).created_by.encode()
        data = data.replace(own, writer.encode().ljust(len(own)))
    declared = Struct((Field("c", P("timestamp")), Field("l", Array(P("timestamp_ntz")))))
    got = read_one(data, declared).to_pylist()
    assert got == [{"c": m and m.replace(tzinfo=UTC), "l": [m]} for m in moments]


def test_twelve_bytes_are_no_timestamp_but_in_such_files() -> None:
    with pytest.raises(SchemaError, match="is stored as fixed_size_binary"):
        one(pa.array([b"x" * 12], pa.binary(12)), P("timestamp"))


def with_nullable_keys(entries: list[Any]) -> bytes:
    """A file of maps whose keys may be NULL, as Presto and Athena wrote them, which pyarrow neither writes nor reads.

    It is made of a list of required structs, whose levels are the same, by another schema.
    """
    pair = pa.struct([("key", pa.string()), ("value", pa.int64())])
    table = pa.table({"i": range(len(entries)), "m": pa.array(entries, pa.list_(pa.field("element", pair, False)))})
    data = parquet(table, compression="none", store_schema=False)
    size = int.from_bytes(data[-8:-4], "little")
    fields, _ = read_struct(data[-8 - size :])
    root, number, outer, repeated, _, key, value = fields[2][1].items
    outer |= {6: (5, 1), 10: (12, {2: (12, {})})}
    repeated |= {4: (8, b"key_value"), 5: (5, 2), 6: (5, 2)}
    fields[2][1].items[:] = [root, number, outer, repeated, key, value]
    for group in fields[4][1].items:
        for chunk in group[1][1].items[1:]:
            path = chunk[3][1][3][1].items
            path[:] = [b"m", b"key_value", path[-1]]
    footer = write_struct(fields)
    return data[: -8 - size] + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def test_maps_whose_keys_may_be_null() -> None:
    rows = [[{"key": "a", "value": 1}, {"key": "b", "value": None}], [], None, [{"key": "", "value": 2}]]
    data = with_nullable_keys(rows)
    with pytest.raises(pa.ArrowInvalid, match="Map keys must be"):
        pq.read_metadata(io.BytesIO(data)).schema.to_arrow_schema()
    declared = Struct((Field("i", P("long")), Field("m", Map(P("string"), P("long")))))
    expected = [None if row is None else [(pair["key"], pair["value"]) for pair in row] for row in rows]
    assert read_one(data, declared)["m"].to_pylist() == expected
    assert read_one(data, Struct(declared.fields[:1]))["i"].to_pylist() == [0, 1, 2, 3]
    with pytest.raises(NullInRequiredError, match=r"column 'm\.key'"):
        read_one(with_nullable_keys([[{"key": None, "value": 1}]]), declared)
