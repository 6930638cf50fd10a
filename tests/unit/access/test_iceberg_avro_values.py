"""Values of drawn Avro schemas, beside fastavro's decoder; and bytes that are none of their schema."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from random import Random
from typing import Any
from uuid import UUID

import fastavro
import pytest
from hypothesis import given

from delta_sharing_spark.access.iceberg.avro_values import UnboundedValueError, decoder
from support.drawing import cases, drawn

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
Draw = Callable[[Random], Any]


def logical(kind: str, meaning: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": meaning, **more}


def moment(draw: Random) -> datetime:
    return EPOCH + timedelta(milliseconds=draw.randint(-(10**13), 10**13))


def integer(bits: int) -> Draw:
    return lambda draw: draw.choice([0, -1, 63, 64, -64, -65, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), draw.getrandbits(bits - 1)])  # fmt: skip


#: Types of one value, with values of them.
LEAVES: list[tuple[Any, Draw]] = [
    ("boolean", lambda draw: draw.random() < 0.5),
    ("int", integer(32)),
    ("long", integer(64)),
    ("float", lambda draw: draw.choice([0.5, -0.0, math.inf])),
    ("double", lambda draw: draw.random()),
    ("bytes", lambda draw: draw.randbytes(draw.choice([0, 1, 63, 64, 200]))),
    ("string", lambda draw: draw.choice(["", "a", "ü" * 40, "x" * 9000])),
    ({"type": "string"}, lambda draw: "y"),
    (logical("int", "date"), lambda draw: date(1, 1, 1) + timedelta(days=draw.randrange(3_652_059))),
    (logical("long", "timestamp-micros", **{"adjust-to-utc": True}), moment),
    (logical("long", "timestamp-millis"), moment),
    (logical("long", "local-timestamp-micros"), lambda draw: moment(draw).replace(tzinfo=None)),
    (logical("long", "time-micros"), lambda draw: moment(draw).time()),
    (logical("int", "time-millis"), lambda draw: moment(draw).time()),
    (logical("bytes", "decimal", precision=9, scale=2), lambda draw: Decimal(draw.randint(-(10**9) + 1, 10**9 - 1)).scaleb(-2)),
    (logical("string", "uuid"), lambda draw: UUID(int=draw.getrandbits(128))),
    (logical("long", "timestamp-nanos-of-another"), integer(64)),
]  # fmt: skip


def schema_of(draw: Random, names: list[str], depth: int) -> tuple[Any, Draw]:
    """A schema, and what draws its values."""
    kind = draw.choice(["leaf"] * 4 + ["union", "array", "map", "record", "fixed", "decimal", "enum"] * (depth > 0))
    names.append(name := f"n{len(names)}")
    match kind:
        case "union":
            inner, value = schema_of(draw, names, 0)
            return draw.choice(
                [["null", inner], [inner, "null"]]
            ), lambda draw: None if draw.random() < 0.3 else value(draw)
        case "array":
            inner, value = schema_of(draw, names, depth - 1)
            return {"type": "array", "items": inner}, lambda draw: [
                value(draw) for _ in range(draw.choice([0, 1, 3, 70]))
            ]
        case "map":
            inner, value = schema_of(draw, names, depth - 1)
            return {"type": "map", "values": inner}, lambda draw: {
                f"k{n}": value(draw) for n in range(draw.choice([0, 1, 3]))
            }
        case "record":
            fields = [(f"f{n}", *schema_of(draw, names, depth - 1)) for n in range(draw.randint(1, 4))]
            tree = {"type": "record", "name": name, "namespace": draw.choice(["a.b", ""]),
                    "fields": [{"name": one, "type": inner} for one, inner, _ in fields]}  # fmt: skip
            return tree, lambda draw: {one: value(draw) for one, _, value in fields}
        case "fixed":
            return {"type": "fixed", "name": name, "size": 5}, lambda draw: draw.randbytes(5)
        case "decimal":
            tree = logical("fixed", "decimal", name=name, size=9, precision=20, scale=4)
            return tree, lambda draw: Decimal(draw.randint(-(10**19), 10**19)).scaleb(-4)
        case "enum":
            return {"type": "enum", "name": name, "symbols": ["a", "b"]}, lambda draw: draw.choice("ab")
    return draw.choice(LEAVES)


def record_of(draw: Random) -> tuple[Any, list[Any]]:
    names: list[str] = []
    fields = [(f"f{n}", *schema_of(draw, names, 3)) for n in range(draw.randint(1, 8))]
    fields.append(("last", "int", integer(32)))
    schema = {"type": "record", "name": "top", "fields": [{"name": one, "type": kind} for one, kind, _ in fields]}
    return schema, [{one: value(draw) for one, _, value in fields} for _ in range(draw.randint(1, 4))]


def written(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


@cases(400)
@given(drawn(record_of))
def test_values(case: tuple[Any]) -> None:
    schema, values = case[0]
    data = b"".join(written(schema, value) for value in values)
    decode, at, other = decoder(schema, {}), 0, io.BytesIO(data)
    for _ in values:
        value, at = decode(data, at)
        assert value == fastavro.schemaless_reader(other, schema)
        assert at == other.tell()
    for cut in range(max(1, len(data) - 40), len(data)):  # what is cut is never taken for whole
        try:
            at = 0
            for _ in values:
                _, at = decode(data[:cut], at)
        except Exception:
            continue
        assert at > cut


def pairs(kind: str) -> dict[str, Any]:
    fields = [{"name": "key", "type": "int"}, {"name": "value", "type": kind}]
    return {"type": "array", "items": {"type": "record", "name": f"pair_of_{kind}", "fields": fields}}


PAIRS = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "sizes", "type": ["null", pairs("long")]},
        {"name": "lower", "type": ["null", pairs("bytes")]},
        {"name": "last", "type": "int"},
    ],
}
STORED = {5: b"five", 2147483546: b"x" * 100, -3: b"", 64: b"y" * 63, 63: b"z" * 64}
SIZES = {1: 7, 2: -1, 3: 1 << 62, 70: 300, 2147483546: 0}


@pytest.mark.parametrize("keys", [(), (5,), (63, 64, -3), (9,), (2147483546, 5, 1, 2, 3, 70)])
@pytest.mark.parametrize("is_null", [False, True])
def test_keys_that_are_wanted(keys: tuple[int, ...], is_null: bool) -> None:
    listed = [[{"key": key, "value": value} for key, value in one.items()] for one in (SIZES, STORED)]
    data = written(PAIRS, {"sizes": None if is_null else listed[0], "lower": listed[1], "last": 8})
    wanted = [{key: one[key] for key in one if key in keys} for one in (SIZES, STORED)]
    value = {"sizes": None if is_null else wanted[0], "lower": wanted[1], "last": 8}
    assert decoder(PAIRS, {"sizes": keys, "lower": keys})(data, 0) == (value, len(data))
    assert decoder(PAIRS, {"lower": keys})(data, 0) == ({**value, "sizes": None if is_null else {}}, len(data))


def zigzag(number: int) -> bytes:
    return written("long", number)


@pytest.mark.parametrize("items", ["int", pairs("long")["items"], pairs("bytes")["items"]])
def test_lists_of_several_blocks(items: Any) -> None:
    """A block may tell its bytes, which writers that cannot hold a list do."""
    value = {"int": 7}.get(str(items)) or {"key": 1, "value": 5 if "long" in str(items) else b"abc"}
    one = written(items, value)
    data = zigzag(-1) + zigzag(len(one)) + one + zigzag(2) + one * 2 + zigzag(0)
    schema = {"type": "record", "name": "r", "fields": [{"name": "x", "type": {"type": "array", "items": items}}]}
    if items == "int":
        assert decoder(schema, {})(data, 0) == ({"x": [7, 7, 7]}, len(data))
        return
    assert decoder(schema, {})(data, 0) == ({"x": {}}, len(data))
    with pytest.raises(ValueError, match="stands twice"):
        decoder(schema, {"x": (1,)})(data, 0)


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ("long", b"\xff" * 1_000_000),  # a number without end
        ("long", b"\xff" * 9 + b"\x02"),  # of 65 bits
        ("bytes", b"\x01"),  # of the length -1
        ("string", b"\x02\xff"),  # no UTF-8
        (["null", "int"], b"\x04"),  # a branch that there is none of
        (["null", "int"], b"\x01"),
        ({"type": "enum", "name": "e", "symbols": ["a"]}, b"\x02"),
        ({"type": "enum", "name": "e", "symbols": ["a"]}, b"\x01"),
        ({"type": "array", "items": {"type": "fixed", "name": "f", "size": 9}}, zigzag(1 << 60)),
        ({"type": "map", "values": "null"}, zigzag(1 << 60)),
        (pairs("long"), zigzag(1 << 60)),
        (pairs("long"), zigzag(3) + b"\x02\x02\x02"),
        (pairs("bytes"), zigzag(1) + b"\x02\x01\x00"),
        (logical("int", "date"), zigzag(1 << 30)),
        (logical("long", "timestamp-micros"), zigzag(1 << 62)),
        (logical("bytes", "decimal", precision=9, scale=2), zigzag(1_000_000) + b"\x7f" * 1_000_000),
        (logical("string", "uuid"), b"\x02x"),
    ],
)  # fmt: skip
def test_bytes_of_no_value(schema: Any, data: bytes) -> None:
    record = {"type": "record", "name": "r", "fields": [{"name": "x", "type": schema}]}
    with pytest.raises((ValueError, IndexError, KeyError, OverflowError)):
        decoder(record, {})(data, 0)


def test_names_of_types() -> None:
    """A name without a space is one of the namespace around it."""
    fixed = {"type": "fixed", "name": "pair", "size": 2}
    inner = {"type": "record", "name": "inner", "namespace": "a", "fields": [{"name": "x", "type": fixed}, {"name": "y", "type": "pair"}]}  # fmt: skip
    fields = [{"name": "one", "type": inner}, {"name": "two", "type": ["null", "a.pair"]}]
    schema = {"type": "record", "name": "r", "fields": fields}
    value = {"one": {"x": b"ab", "y": b"cd"}, "two": b"ef"}
    data = written(schema, value)
    assert decoder(schema, {})(data, 0) == (value, len(data))
    with pytest.raises(KeyError):
        decoder({"type": "record", "name": "r", "fields": [{"name": "x", "type": "another"}]}, {})
    with pytest.raises(ValueError, match="two types"):
        decoder({"type": "record", "name": "r", "fields": [{"name": "x", "type": fixed}, {"name": "y", "type": fixed}]}, {})  # fmt: skip
    with pytest.raises(UnboundedValueError, match="within itself"):
        decoder({"type": "record", "name": "r", "fields": [{"name": "x", "type": ["null", "r"]}]}, {})
