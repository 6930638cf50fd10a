"""Deletion vectors: the protocol's framing, its known vectors, and what corruption does."""

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from delta_sharing_spark.deltalog.actions import vector_from
from delta_sharing_spark.errors import CorruptFileError, LogError
from delta_sharing_spark.scan import deletion_vector as dv
from delta_sharing_spark.scan.plan import DeletionVector
from delta_sharing_spark.testing.tables.rewrites import FILE_VERSION, encode, frame, z85_encode
from support.drawing import cases

KERNEL = "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"


FIELDS = ("storageType", "pathOrInlineDv", "offset", "sizeInBytes", "cardinality")


def located(*values: object) -> DeletionVector:
    return vector_from(dict(zip(FIELDS, values, strict=True)), "s3://b/t", "data.parquet")


def inline(text: str, size: int, cardinality: int) -> DeletionVector:
    return located("i", text, None, size, cardinality)


def stored(payload: bytes, cardinality: int, offset: int | None = 1) -> DeletionVector:
    return DeletionVector("p", "s3://b/t/x.bin", offset, len(payload), cardinality, "px")


@pytest.mark.parametrize(
    ("text", "size", "rows"),
    [
        (KERNEL, 44, [3, 4, 7, 11, 18, 29]),
        ("^Bg9^0rr910000000000iXQKl0rr91000005c8Xg##093", 34, [3]),
        ("^Bg9^0rr910000000000iXQKl0rr91000315c8Xg000f5", 36, [0, 5]),
    ],
)
def test_inline_vectors_of_other_writers(text, size, rows):
    assert list(dv.decode_inline(inline(text, size, len(rows)))) == rows


def test_the_specs_outdated_inline_example_is_refused_by_its_format():
    with pytest.raises(CorruptFileError, match="format is"):
        dv.decode_inline(inline("wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L", 40, 6))


def test_descriptor_paths():
    u = located("u", "ab^-aqEH.-t@S}K{vb[*k^", 4, 40, 6)
    assert (u.storage, u.path) == ("p", "s3://b/t/ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin")
    assert u.unique_id == "uab^-aqEH.-t@S}K{vb[*k^@4"
    bare = located("u", "^-aqEH.-t@S}K{vb[*k^", None, 40, 6)
    assert bare.path == "s3://b/t/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    assert bare.unique_id == "u^-aqEH.-t@S}K{vb[*k^"
    p = located("p", "s3://other/a%20b/%2525.bin", 1, 40, 6)
    assert p.path == "s3://other/a b/%25.bin"


@pytest.mark.parametrize(
    "descriptor",
    [
        ("u", "short", 1, 40, 1),
        ("u", "\u00e9" * 20, 1, 40, 1),
        ("x", "whatever", 1, 40, 1),
        ("p", "s3://b/x", 1, None, 1),
        (None, "s3://b/x", 1, 3, 1),
        ("p", "s3://b/x", -1, 3, 1),
    ],
)
def test_bad_descriptors_name_the_file(descriptor):
    with pytest.raises(LogError, match=r"data\.parquet") as raised:
        located(*descriptor)
    assert raised.value.file == "data.parquet"


def test_several_vectors_in_one_file_with_and_without_offset():
    sets = [[0, 5], [1], list(range(100, 70_000)), [2**33 + 1]]
    blob, places = bytearray([FILE_VERSION]), []
    for rows in sets:
        payload = encode(rows)
        places.append((len(blob), len(payload)))
        blob += frame(payload)
    for (offset, size), rows in zip(places, sets, strict=True):
        vector = DeletionVector("p", "x", offset, size, len(rows), "px")
        assert list(dv.decode(bytes(blob[vector.frame.start : vector.frame.end]), vector)) == rows
    first = DeletionVector("p", "x", None, places[0][1], 2, "px")
    assert list(dv.decode(bytes(blob[first.frame.start : first.frame.end]), first)) == sets[0]


def corruptions():
    payload = encode([1, 2, 3])
    good = frame(payload)
    flipped = bytearray(good)
    flipped[10] ^= 1
    wrong_magic = struct.pack("<i", 7) + payload[4:]
    cut = payload[:-1]
    yield "checksum", bytes(flipped), stored(payload, 3)
    yield "bytes were read", good[:-1], stored(payload, 3)
    yield "bytes were read", b"", stored(payload, 3)
    yield "the log", struct.pack(">i", len(payload) - 1) + good[4:], stored(payload, 3)
    yield "format", frame(wrong_magic), stored(payload, 3)
    yield "bitmap is broken", frame(cut), stored(cut, 3)
    yield "marks 3 rows", good, stored(payload, 4)
    yield "no bitmap", frame(b"abc"), stored(b"abc", 1)


@pytest.mark.parametrize(("why", "framed", "vector"), list(corruptions()))
def test_corruption_is_an_error_never_fewer_rows(why, framed, vector):
    with pytest.raises(CorruptFileError, match=why) as raised:
        dv.decode(framed, vector, file="f.parquet")
    assert raised.value.file == "f.parquet"


@pytest.mark.parametrize(("text", "size"), [(KERNEL[:-1], 44), ("é" * 5, 4), (KERNEL, 39), (KERNEL, 45), ("#####", 4)])
def test_bad_inline_text(text, size):
    with pytest.raises(CorruptFileError):
        dv.decode_inline(inline(text, size, 6))


@given(st.binary(max_size=64).filter(lambda b: len(b) % 4 == 0))
def test_z85_round_trip(data):
    assert dv.z85_decode(z85_encode(data)) == data


ROWS = st.sets(st.integers(0, 5000) | st.integers(2**32 - 3, 2**32 + 3), max_size=60)


@cases(60)
@given(ROWS, ROWS, st.integers(0, 5000), st.integers(0, 400), st.booleans())
def test_masks_agree_with_a_set(rows, excluded, start, count, invert):
    payload = encode(rows)
    bitmap = dv.decode(frame(payload), stored(payload, len(rows)))
    positions = range(start, start + count)
    assert dv.select_mask(start, count, bitmap).tolist() == [r not in rows for r in positions]
    mask = dv.select_mask(start, count, bitmap, invert=invert, excluded=BitMap64(excluded))
    assert mask.tolist() == [((r in rows) == invert) and r not in excluded for r in positions]
    assert mask.dtype == np.bool_


@cases(60)
@given(st.binary(max_size=80), st.integers(0, 100))
def test_arbitrary_payloads_never_pass_or_crash_unnamed(data, cardinality):
    payload = encode([])[:4] + data
    try:
        rows = dv.decode(frame(payload), stored(payload, cardinality))
    except CorruptFileError:
        return
    assert len(rows) == cardinality


def test_inline_padding_is_trimmed():
    payload = encode([9])
    padded = payload + b"\0" * (-len(payload) % 4)
    assert list(dv.decode_inline(inline(z85_encode(padded), len(payload), 1))) == [9]
    assert zlib.crc32(payload) == struct.unpack(">I", frame(payload)[-4:])[0]
