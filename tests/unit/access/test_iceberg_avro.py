"""Reads Avro files of every codec, beside fastavro's own reader, and none that would become more than a machine holds."""

from __future__ import annotations

import bz2
import io
import json
import zlib
from collections.abc import Callable
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from delta_sharing_spark.access.iceberg import avro
from delta_sharing_spark.access.iceberg.avro import AvroFile
from delta_sharing_spark.errors import CorruptFileError
from support.refusals import not_refused

SYNC = b"0123456789abcdef"
LIST = {"type": "record", "name": "manifest_file", "fields": [{"name": "manifest_path", "type": "string"}, {"name": "n", "type": ["null", "long"]}]}  # fmt: skip


def deflated(data: bytes) -> bytes:
    stream = zlib.compressobj(9, wbits=-15)
    return stream.compress(data) + stream.flush()


def by_snappy(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec="snappy", asbytes=True)) + zlib.crc32(data).to_bytes(4, "big")


CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": deflated,
    "snappy": by_snappy,
    "zstandard": lambda data: bytes(pa.compress(data, codec="zstd", asbytes=True)),
    "bzip2": bz2.compress,
}


def written(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def container(schema: Any, blocks: list[tuple[int, bytes]], codec: str = "null", marker: bytes = SYNC) -> bytes:
    """An Avro file of blocks, each a number of records and the bytes of its codec."""
    meta = {"avro.codec": codec.encode(), "avro.schema": json.dumps(schema).encode()}
    head = b"Obj\x01" + written({"type": "map", "values": "bytes"}, meta) + SYNC
    return head + b"".join(written("long", count) + written("bytes", data) + marker for count, data in blocks)


@pytest.mark.parametrize("codec", CODECS)
def test_codecs(codec: str) -> None:
    records = [{"manifest_path": f"s3://lake/{n}", "n": None if n % 3 else n} for n in range(2000)]
    blocks = [records[:1], records[1:1500], records[1500:]]
    data = container(LIST, [(len(b), CODECS[codec](b"".join(written(LIST, one) for one in b))) for b in blocks], codec)
    assert list(AvroFile(data, "s3://lake/list.avro")) == records
    if codec in ("null", "deflate"):  # fastavro reads the others with packages of their own
        assert list(fastavro.reader(io.BytesIO(data))) == records
    reads = [lambda cut=cut: list(AvroFile(data[:-cut], "s3://lake/list.avro")) for cut in (1, 20, len(data) // 2)]
    assert not_refused(CorruptFileError, "is a damaged part of an Iceberg table", *reads) == []


@pytest.mark.parametrize("size", [(1 << 20) + 1, 1 << 26])
@pytest.mark.parametrize("codec", CODECS)
def test_a_block_that_expands_to_gigabytes_is_not_expanded(
    codec: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(avro, "_LARGEST_BLOCK", 1 << 20)
    data = container(LIST, [(1, CODECS[codec](bytes(size)))], codec)
    before = pa.total_allocated_bytes()
    with pytest.raises(CorruptFileError, match="it expands to more than"):
        list(AvroFile(data, "s3://lake/list.avro"))
    assert pa.total_allocated_bytes() - before < 1 << 22


def test_blocks_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro, "_LARGEST_FILE", 1000)
    block = (1, CODECS["deflate"](written(LIST, {"manifest_path": "x" * 600, "n": 1})))
    assert len(list(AvroFile(container(LIST, [block], "deflate"), "m"))) == 1
    with pytest.raises(CorruptFileError, match="it expands to more than"):
        list(AvroFile(container(LIST, [block, block], "deflate"), "m"))


def field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind}


EMPTY = {"type": "record", "name": "e", "fields": []}


def doubled(name: str, times: int) -> list[Any]:
    """Fields of types of nothing, each of which has the one before it twice."""
    types = [{"type": "record", "name": name, "fields": []}]
    for place in range(times):
        fields = [field(part, types[-1]["name"]) for part in "ab"]
        types.append({"type": "record", "name": f"{name}_{place}", "fields": fields})
    return [field(f"f{place}", kind) for place, kind in enumerate(types)]


#: Schemas by which a few bytes are a value without end.
DANGERS: list[tuple[list[Any], str]] = [
    ([field("x", {"type": "array", "items": "null"})], "lists of nothing"),
    ([field("x", EMPTY), field("y", {"type": "array", "items": "e"})], "of nothing more than once"),
    ([field("n", "long"), *doubled("r0", 40)], "of nothing more than once"),
    ([field("n", "long"), *(field(f"x{place}", "null") for place in range(65))], "parts are of nothing"),
    ([field("x", {"type": "array", "items": {"type": "fixed", "name": "f", "size": 0}})], "lists of nothing"),
    ([field("x", ["null", {"type": "map", "values": {"type": "array", "items": EMPTY}}])], "lists of nothing"),
    ([field("x", ["null", "manifest_file"])], "lies within itself"),
    ([field("x", {"type": "array", "items": "manifest_file"})], "lies within itself"),
    ([field("x", {"type": "record", "name": "r", "fields": [field("y", {"type": "map", "values": "manifest_file"})]})], "lies within itself"),
    ([], "records are of nothing"),
    ([field("x", EMPTY)], "records are of nothing"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "why"), DANGERS)
def test_schemas_of_values_without_end(fields: list[Any], why: str) -> None:
    """One that lies within itself ended the whole process: the decoder called itself for each byte."""
    schema = {"type": "record", "name": "manifest_file", "fields": fields}
    with pytest.raises(CorruptFileError, match=why):
        AvroFile(container(schema, [(1, b"\x02" * 3_000_000)]), "m")


@pytest.mark.parametrize(
    ("schema", "blocks", "codec", "why"),
    [
        (["null", LIST], [], "null", "can be read|its records are none"),
        ("string", [], "null", "can be read|its records are none"),
        (LIST, [], "lzma", "its codec 'lzma' is not read"),
        (LIST, [(-1, b"")], "null", "ValueError"),
        (LIST, [(1, written(LIST, {"manifest_path": "a", "n": 1}) * 2)], "null", "ValueError"),
        (LIST, [(1 << 60, written(LIST, {"manifest_path": "a", "n": 1}))], "null", "ValueError"),
        (LIST, [(1, by_snappy(written(LIST, {"manifest_path": "a", "n": 1}))[:-1] + b"!")], "snappy", "ValueError"),
        (LIST, [(1, b"\xff" * 9)], "snappy", "that can be read"),
    ],
)
def test_files_that_are_none(schema: Any, blocks: list[tuple[int, bytes]], codec: str, why: str) -> None:
    with pytest.raises(CorruptFileError, match=why) as raised:
        list(AvroFile(container(schema, blocks, codec), "m"))
    assert "\n" not in str(raised.value)


def test_a_type_that_two_fields_have_is_read() -> None:
    """Avro names the type of two UUIDs in a partition once."""
    fixed = {"type": "fixed", "name": "uuid_fixed", "size": 2}
    schema = {
        "type": "record",
        "name": "r",
        "fields": [field("a", fixed), field("b", {"type": "array", "items": "uuid_fixed"})],
    }
    record = {"a": b"ab", "b": [b"cd", b"ef"]}
    assert list(AvroFile(container(schema, [(1, written(schema, record))]), "m")) == [record]


def test_another_marker_is_another_file() -> None:
    block = (1, written(LIST, {"manifest_path": "a", "n": 1}))
    with pytest.raises(CorruptFileError):
        list(AvroFile(container(LIST, [block], marker=SYNC[::-1]), "m"))
