"""Polars' own decoder gives the rows that pyarrow gives, bit for bit; what it cannot read, pyarrow reads, with its errors."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from delta_sharing_spark.errors import ConversionError, CorruptFileError, NullInRequiredError
from delta_sharing_spark.parquet.own_file import OwnSchema
from delta_sharing_spark.scan import pace, row_decoder, split_reader
from delta_sharing_spark.scan.plan import FileSlice, FileTask, Split
from delta_sharing_spark.scan.split_reader import read_split
from delta_sharing_spark.schema.arrow import arrow_schema
from delta_sharing_spark.schema.types import Array, DataType, Field, Primitive, Struct
from delta_sharing_spark.schema.types import Decimal as DecimalType
from unit.scan.local_access import LocalAccess, parquet, spec_of, vector_of

pl = pytest.importorskip("polars")
polars_decoder = pytest.importorskip("delta_sharing_spark.frames.polars_decoder")

_INTEGERS = {"byte": 8, "short": 16, "integer": 32, "long": 64, "date": 32, "timestamp": 64, "timestamp_ntz": 64}
_WORDS = ["", "a", "é", "東京", "😀" * 5, "\0", "more than twelve bytes", "z" * 300]


def _column(random: Random, kind: str, rows: int) -> tuple[Field, pa.Array]:
    """A column of a type of Delta's, as files hold it; few or many values, of any bits, some NULL."""
    draw = np.random.default_rng(random.getrandbits(32))
    hidden = draw.random(rows) < random.choice([0, 0, 0.2, 0.9, 1])
    some = draw.integers(0, random.choice([1, 5, max(rows, 1)]), rows) % max(rows, 1)
    if kind.startswith("decimal"):
        precision = random.randint(1, 38)
        scale = random.randint(0, precision)
        numbers = [random.randint(1 - 10**precision, 10**precision - 1) for _ in range(rows)]
        exact = [Decimal(numbers[i]).scaleb(-scale) if len(str(numbers[i])) < 28 else None for i in some]
        arrow = pa.array(
            [None if no else one for no, one in zip(hidden, exact, strict=True)], pa.decimal128(precision, scale)
        )
        return Field("", DecimalType(precision, scale), nullable=True), arrow
    if kind == "boolean":
        arrow = pa.array(some % 2 == 1, mask=hidden)
    elif kind in ("float", "double"):
        bits = (
            draw.integers(0, 1 << 32, rows, np.uint32)
            if kind == "float"
            else draw.integers(0, 1 << 63, rows, np.uint64)
        )
        arrow = pa.array(bits[some].view(np.float32 if kind == "float" else np.float64), mask=hidden)
    elif kind in _INTEGERS:
        width = _INTEGERS[kind]
        numbers = draw.integers(-(1 << (width - 1)), (1 << (width - 1)) - 1, rows, f"int{width}", endpoint=True)
        times = {"date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us")}
        arrow = pa.array(numbers[some], mask=hidden)
        arrow = arrow.cast(times[kind]) if kind in times else arrow
    else:
        texts = [random.choice(_WORDS) + str(random.getrandbits(16)) * random.randint(0, 1) for _ in range(rows)]
        raw = [text if kind == "string" else text.encode() + bytes([random.getrandbits(8)]) for text in texts]
        arrow = pa.array([None if no else raw[i] for no, i in zip(hidden, some, strict=True)], getattr(pa, kind)())
    return Field("", Primitive(kind), nullable=True), arrow


_KINDS = [*_INTEGERS, "boolean", "float", "double", "string", "binary", "decimal", "decimal"]


def _table(random: Random) -> tuple[Struct, pa.Table, dict[str, Any]]:
    rows = random.choice([0, 1, 7, 1000])
    drawn = [_column(random, kind, rows) for kind in random.sample(_KINDS, random.randint(1, 6))]
    fields = tuple(replace(field, name=f"c{i}") for i, (field, _) in enumerate(drawn))
    columns = [pa.field(f"c{i}", c.type, nullable=c.null_count > 0 or i % 2 == 0) for i, (_, c) in enumerate(drawn)]
    how = {
        "compression": random.choice(["none", "snappy", "zstd", "gzip", "brotli", "lz4"]),
        "data_page_version": random.choice(["1.0", "2.0"]),
        "use_dictionary": random.random() < 0.6,
        "data_page_size": random.choice([100, 5000, 1 << 20]),
        "dictionary_pagesize_limit": random.choice([50, 1 << 20]),
        "write_page_checksum": random.random() < 0.5,
        "row_group_size": random.choice([300, 1 << 20]),
        "store_decimal_as_integer": random.random() < 0.5,
        "write_page_index": random.random() < 0.5,
    }
    return Struct(fields), pa.table([c for _, c in drawn], schema=pa.schema(columns)), how


def _split(data: bytes, schema: Struct, **how: Any) -> Split:
    vectors = how.pop("vectors", {})
    task = FileTask("f.parquet", "f.parquet", len(data), deletion_vector=how.pop("vector", None))
    access = LocalAccess({"f.parquet": data}, vectors)
    return Split(0, spec_of(schema, **how), (FileSlice(task),), access)


def _frame(split: Split) -> Any:
    frames = list(polars_decoder.read_frames(split))
    return pl.concat(frames) if frames else None


def _by_arrow(split: Split) -> pa.Table:
    return pa.Table.from_batches(read_split(split), arrow_schema(split.spec.schema))


def _bits(table: pa.Table) -> pa.Table:
    """Floats as integers: a NaN equals itself, and one zero is not the other."""
    floats = {pa.float32(): pa.uint32(), pa.float64(): pa.uint64()}
    return pa.table({n: c.combine_chunks().view(floats[c.type]) if c.type in floats else c for n, c in zip(table.column_names, table.columns, strict=True)})  # fmt: skip


def _plain(frame: Any, schema: pa.Schema) -> pa.Table:
    return frame.to_arrow().cast(schema)


@pytest.fixture
def decoded_by_arrow(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The row groups that pyarrow decoded."""
    groups: list[int] = []
    real = row_decoder.read_row_group

    def noted(group: Any, *rest: Any) -> Any:
        groups.append(group.index)
        return real(group, *rest)

    monkeypatch.setattr(row_decoder, "read_row_group", noted)
    return groups


@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 30))
def test_the_rows_are_those_of_pyarrow_bit_for_bit(seed: int) -> None:
    schema, table, how = _table(Random(seed))
    split = _split(parquet(table, store_schema=False, **how), schema)
    exact, frame = _by_arrow(split), _frame(split)
    if frame is None:
        assert not exact.num_rows
        return
    assert frame.schema == pl.DataFrame(exact.schema.empty_table()).schema
    assert _bits(_plain(frame, exact.schema)).equals(_bits(exact))


_RARE: dict[str, tuple[DataType, Callable[[], bytes]]] = {
    "unsigned": (Primitive("long"), lambda: parquet(pa.table({"c": pa.array([1, 2**32 - 1], pa.uint32())}))),
    "milliseconds": (Primitive("timestamp"), lambda: parquet(pa.table({"c": pa.array([1, 2], pa.timestamp("ms", "UTC"))}), coerce_timestamps="ms")),
    "96 bits": (Primitive("timestamp"), lambda: parquet(pa.table({"c": pa.array([1, None], pa.timestamp("us"))}), use_deprecated_int96_timestamps=True)),
    "wider": (Primitive("long"), lambda: parquet(pa.table({"c": pa.array([1, None], pa.int32())}))),
    "of fixed length": (Primitive("binary"), lambda: parquet(pa.table({"c": pa.array([b"ab", None], pa.binary(2))}))),
    "nested": (Array(Primitive("integer"), contains_null=True), lambda: parquet(pa.table({"c": pa.array([[1], None], pa.list_(pa.int32()))}))),
    "gzip": (Primitive("integer"), lambda: parquet(pa.table({"c": pa.array([1, None], pa.int32())}), compression="gzip")),
    "prefixes": (Primitive("string"), lambda: parquet(pa.table({"c": ["ab", "abc"]}), use_dictionary=False, column_encoding={"c": "DELTA_BYTE_ARRAY"})),
}  # fmt: skip


@pytest.mark.parametrize("case", _RARE)
def test_pyarrow_reads_what_is_not_proven(case: str, decoded_by_arrow: list[int]) -> None:
    kind, write = _RARE[case]
    split = _split(write(), Struct((Field("c", kind),)))
    frame = _frame(split)
    assert decoded_by_arrow == [0]
    assert frame["c"].to_list() == pl.from_arrow(_by_arrow(split))["c"].to_list()


_ONE = Struct((Field("c", Primitive("long")), Field("t", Primitive("string"))))
_ROWS = pa.table({"c": pa.array(range(1000), pa.int64()), "t": [f"text {i % 77}" * 3 for i in range(1000)]})


def test_polars_reads_the_usual_file_in_the_mapped_order_and_without_deleted_rows(decoded_by_arrow: list[int]) -> None:
    vector, data = vector_of("v", [0, 5, 999])
    schema = Struct((Field("t", Primitive("string")), Field("x", Primitive("date")), Field("c", Primitive("long"))))
    spec = {"vector": vector, "vectors": {"v": data}, "partition_columns": ()}
    split = _split(parquet(_ROWS, row_group_size=300), schema, **spec)
    frame = _frame(split)
    assert not decoded_by_arrow
    assert frame.equals(pl.from_arrow(_by_arrow(split)))
    assert (frame.height, frame.columns, frame["x"].null_count()) == (997, ["t", "x", "c"], 997)


@pytest.mark.parametrize(
    "fails", [pl.exceptions.PanicException("panic"), pl.exceptions.ComputeError("no"), MemoryError()]
)
def test_pyarrow_reads_what_polars_ends_over(
    fails: BaseException, decoded_by_arrow: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise fails

    monkeypatch.setattr(pl, "read_parquet", fail)
    assert _frame(_split(parquet(_ROWS, row_group_size=500), _ONE)).equals(pl.from_arrow(_ROWS))
    assert decoded_by_arrow == [0, 1]


def test_pyarrow_decodes_where_memory_is_refused(decoded_by_arrow: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Polars would end the process, and pyarrow raises an error."""
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1 << 40 if kind == resource.RLIMIT_AS else -1, -1))
    assert _frame(_split(parquet(_ROWS), _ONE)).equals(pl.from_arrow(_ROWS))
    assert decoded_by_arrow == [0]


def test_a_row_group_that_takes_more_than_the_budget_is_read_in_batches(decoded_by_arrow: list[int]) -> None:
    """A few bytes in the file, 16 MB decoded."""
    rows = 2_000_000
    data = parquet(pa.table({"c": pa.nulls(rows, pa.int64()), "t": pa.nulls(rows, pa.string())}))
    assert len(data) < 10_000
    split = _split(data, _ONE, fetch_ahead=4 << 20)
    assert _frame(split).null_count().row(0) == (rows, rows)
    assert decoded_by_arrow == [0, 1]


def test_values_that_are_refused_are_refused_by_their_names() -> None:
    schema = Struct((Field("c", Primitive("long"), nullable=False),))
    with pytest.raises(NullInRequiredError, match="NULL in column 'c'"):
        _frame(_split(parquet(pa.table({"c": pa.array([1, None], pa.int64())})), schema))
    data = parquet(pa.table({"t": ["good", "BAD!"]}), compression="none", use_dictionary=False, write_statistics=False)
    text = Struct((Field("t", Primitive("string")),))
    with pytest.raises(ConversionError, match="column t: a string is not UTF-8"):
        _frame(_split(data.replace(b"BAD!", b"BA\xff\xfe"), text))


@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 30))
@example(0)
def test_a_changed_byte_of_a_page_with_a_checksum_is_seen(seed: int) -> None:
    random = Random(seed)
    schema, table, how = _table(random)
    if not table.num_rows:
        return
    how |= {"write_page_checksum": True, "row_group_size": 1 << 20}
    data = bytearray(parquet(table, store_schema=False, **how))
    chunks = pq.read_metadata(pa.BufferReader(bytes(data))).row_group(0)
    last = chunks.column(chunks.num_columns - 1)
    end = last.data_page_offset + last.total_compressed_size
    place = random.randrange(4, min(end, len(data)))
    data[place] ^= 1 << random.randrange(8)
    split = _split(bytes(data), schema)
    try:
        exact = _by_arrow(split)
    except CorruptFileError:
        # What a header says wrong, and Polars need not know, leaves the rows as they were.
        exact = table.cast(arrow_schema(schema))
        with suppress(CorruptFileError):
            assert _bits(_plain(_frame(split), exact.schema)).equals(_bits(exact))
        return
    assert _bits(_plain(_frame(split), exact.schema)).equals(_bits(exact))


@pytest.mark.parametrize("is_read_by_polars", [True, False])
def test_bytes_that_came_in_parts_are_fetched_once_whoever_decodes_them(
    is_read_by_polars: bool, decoded_by_arrow: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LEAST", "MOST"):
        monkeypatch.setattr(pace, name, 1000)
    monkeypatch.setattr(pace, "WHOLE_FILE", 0)
    monkeypatch.setattr(pace, "_ALWAYS_WHOLE", 0)
    split_reader._habits.clear()
    pace._paces.clear()
    if not is_read_by_polars:
        monkeypatch.setattr(OwnSchema, "decoded_bytes", lambda *_: 1 << 60)
    table = pa.table({"c": np.arange(9000), "t": [f"text {i}" for i in range(9000)]})
    split = _split(parquet(table, row_group_size=5000, compression="none", use_dictionary=False), _ONE)
    assert _frame(split).equals(pl.from_arrow(table))
    assert decoded_by_arrow == ([] if is_read_by_polars else [0, 1])
    assert isinstance(split.access, LocalAccess)
    reads = split.access.reads["f.parquet"]
    footer = next(i for i, (_, end) in enumerate(reads) if end == split.slices[0].task.size)
    ranges = sorted(reads[footer + 1 :])
    assert len(ranges) > 100
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(ranges))
