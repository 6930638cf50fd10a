"""Rows as pandas, Polars and DuckDB take them: whatever reads Arrow's C stream reads a table or a scan."""

from __future__ import annotations

import decimal
import io
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import pandas_compat

from delta_sharing_spark import (
    SharingClient,
    load_as_pandas,
    load_table_changes_as_pandas,
    scan_share,
)
from delta_sharing_spark.errors import ConfigError, ConversionError, OptionError
from delta_sharing_spark.frames import export, pandas_frames
from delta_sharing_spark.frames.export import write_batches
from delta_sharing_spark.frames.pandas_frames import DecimalObjects, to_pandas
from delta_sharing_spark.table import Scan, SharedTable
from delta_sharing_spark.testing.sample import share_sample
from delta_sharing_spark.testing.server import SharingServer
from support.drawing import cases, drawn, one_of

duckdb = pytest.importorskip("duckdb")
pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharingServer]:
    with SharingServer() as running:
        share_sample(running, tmp_path_factory.mktemp("sample"), trips=4000)
        yield running


@pytest.fixture(scope="module")
def trips(server: SharingServer) -> SharedTable:
    return SharingClient(server.profile()).table("demo.city.trips")


def test_a_scan_speaks_arrows_c_stream(trips: SharedTable) -> None:
    scan = trips.scan(columns=["trip", "city", "fare"], where="city = 'Lisbon'")
    rows = scan.to_arrow()
    assert 0 < rows.num_rows < 4000
    assert pa.table(scan).equals(rows)
    assert pa.schema(scan) == rows.schema
    assert polars.DataFrame(scan).equals(polars.from_arrow(rows))
    assert scan.to_polars().equals(polars.from_arrow(rows))
    assert duckdb.sql("SELECT count(*), max(trip) FROM scan").fetchall() == [
        (rows.num_rows, max(rows.column("trip").to_pylist()))
    ]
    assert duckdb.sql("SELECT count(*) FROM trips").fetchall() == [(4000,)]


def test_duckdb_reads_a_registered_scan_again_for_each_query(trips: SharedTable) -> None:
    with duckdb.connect() as connection:
        relation = trips.scan(where="trip < 10").to_duckdb(connection, "few")
        assert relation.aggregate("count(*)").fetchall() == [(10,)]
        assert connection.sql("SELECT count(*) FROM few a JOIN few b USING (trip)").fetchall() == [(10,)]
        assert trips.to_duckdb(connection).count("*").fetchall() == [(4000,)]
        assert connection.sql("SELECT count(*) FROM trips").fetchall() == [(4000,)]


def test_a_table_is_a_source_of_its_newest_rows(trips: SharedTable) -> None:
    assert len(trips.head(3)) == 3
    assert tuple(trips.head().columns) == trips.schema.names
    assert len(trips.to_pandas()) == trips.to_arrow().num_rows == trips.to_polars().height == 4000


def test_scans_are_refined(trips: SharedTable) -> None:
    scan = trips.scan().filter("trip < 100 -- a comment").filter("trip >= 90 OR trip = 5").select("trip", "city")
    assert scan.to_arrow().column_names == ["trip", "city"]
    assert sorted(scan.to_arrow().column("trip").to_pylist()) == [5, *range(90, 100)]
    assert scan.select("trip").limit(7).limit(9).to_arrow().shape == (7, 1)
    assert trips.scan().select("fare", "trip").to_arrow().column_names == ["fare", "trip"]
    assert trips.scan().select(["fare", "trip"]).to_arrow().column_names == ["fare", "trip"]


@pytest.mark.parametrize(
    ("refine", "match"),
    [
        (lambda scan: scan.select(1), None),
        (lambda scan: scan.select(["trip", None]), None),
        (lambda scan: scan.filter(None), None),
        (lambda scan: scan.limit(5).limit("x"), None),
        (lambda scan: scan.limit(3).filter("trip = 1"), "call filter\\(\\) first"),
        (lambda scan: scan.select("fare"), "has no column 'fare', it was left out before: trip, city"),
    ],
    ids=["number", "none among names", "no condition", "no number", "filter after limit", "column left out"],
)
def test_refinements_that_are_refused(trips: SharedTable, refine: Callable[[Any], object], match: str | None) -> None:
    with pytest.raises(OptionError, match=match):
        refine(trips.scan(["trip", "city"]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"colums": ["a"]}, "unknown option 'colums'; did you mean 'columns'"),
        ({"limit": -1}, "Invalid value '-1' for option 'limit'"),
        ({"version": 1, "timestamp": "2026-01-01"}, "Please either provide"),
        ({"accessMode": "directory"}, "did you mean 'dir'"),
    ],
)
def test_wrong_options_are_refused_by_scan_itself(trips: SharedTable, options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        trips.scan(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("table", ["trips", "types", "customers"])
def test_to_pandas_gives_what_pyarrow_gives(server: SharingServer, table: str) -> None:
    source = SharingClient(server.profile()).table(f"demo.city.{table}")
    pandas.testing.assert_frame_equal(source.to_pandas(), source.to_arrow().to_pandas())
    by_arrow = source.to_pandas(dtype_backend="pyarrow")
    assert {type(t) for t in by_arrow.dtypes} == {pandas.ArrowDtype}
    pandas.testing.assert_frame_equal(by_arrow, source.to_pandas(types_mapper=pandas.ArrowDtype))


@pytest.mark.parametrize("distinct", [1, 5, 25_000])
@pytest.mark.parametrize("null", [False, True])
def test_objects_are_shared_and_stay_the_same(distinct: int, null: bool) -> None:
    """Decimals and dates: repeated or not, with nulls or not, in several chunks."""
    numbers = np.arange(30_000) % distinct
    mask = numbers % 3 == 0 if null else None
    decimals = pa.array(numbers, mask=mask).cast(pa.decimal128(20, 0))
    dates = pa.array((numbers % 20_000).astype(np.int32), mask=mask).cast(pa.date32())
    table = pa.table({"d": decimals, "n": numbers, "t": dates, "e": pa.array(["x"] * 30_000)})
    table = pa.concat_tables([table.slice(0, 12_000), table.slice(12_000)])
    expected = table.to_pandas()
    pandas.testing.assert_frame_equal(to_pandas(table.to_reader(300)), expected)
    pandas.testing.assert_frame_equal(
        to_pandas((nothing := pa.table({"d": decimals[:0]})).to_reader()), nothing.to_pandas()
    )


@pytest.mark.parametrize("count", [6000, 900, 0])
@pytest.mark.parametrize("objects", [False, True])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_strings_are_arrows_whether_objects_or_not(
    monkeypatch: pytest.MonkeyPatch, objects: bool, kind: pa.DataType, count: int
) -> None:
    """Repeated, then seldom, with NULLs, empty ones and none at all; before pandas 3 all are objects."""

    class PandasBefore3:
        def __getattr__(self, name: str) -> Any:
            return getattr(as_it_is, name)

        def uses_string_dtype(self) -> bool:
            return False

    as_it_is = pandas_compat._pandas_api
    if objects:
        monkeypatch.setattr(pandas_compat, "_pandas_api", PandasBefore3())
    monkeypatch.setattr(pandas_frames, "_TEXT_ROWS", 1000)
    numbers = np.arange(6000)
    texts = [f"é{n % 50}" * (n % 3) if n < 3500 else f"t{n}" for n in numbers]
    mask = (numbers % 7 == 0) | ((numbers > 2000) & (numbers < 3100))
    table = pa.table({"s": pa.array(texts, kind, mask=mask), "n": numbers, "u": pa.array(map(str, numbers), kind)})
    rows = table[:count]
    frame = to_pandas(rows.to_reader(300), count)
    pandas.testing.assert_frame_equal(frame, rows.to_pandas())
    if objects:
        assert {str(frame[name].dtype) for name in "su"} == {"object"}
        assert frame["s"][mask[:count]].isna().all()
    if objects and count == 900:
        assert len({id(value) for value in frame["s"] if value}) == 100, "equal strings are one object"


def test_options_of_pyarrow_hold_for_every_batch() -> None:
    """Strings, lists and structs of several batches, some columns as categories, dates as numbers."""
    texts = pa.array([None if i % 7 == 0 else f"t{i % 5}" for i in range(1000)])
    lists = pa.array([None if i % 9 == 0 else list(range(i % 4)) for i in range(1000)])
    structs = pa.array([{"a": i, "b": {"c": str(i)}} for i in range(1000)])
    days = pa.array(np.arange(1000, dtype=np.int32)).cast(pa.date32())
    maps = pa.array([[("k", i)] for i in range(1000)], pa.map_(pa.string(), pa.int64()))
    table = pa.table({"x": texts, "y": texts, "l": lists, "s": structs, "d": days, "m": maps})
    options: dict[str, Any]
    for options in (
        {},
        {"categories": ["y"]},
        {"date_as_object": False, "maps_as_pydicts": "strict"},
        {"split_blocks": True},
    ):
        pandas.testing.assert_frame_equal(to_pandas(table.to_reader(100), **options), table.to_pandas(**options))


def test_a_batch_that_cannot_be_converted_fails_wherever_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    add = pandas_frames._Numbers.add

    def fail_at_the_last(self: Any, values: pa.Array) -> None:
        if len(values) == 1:
            raise OverflowError("as the test wants")
        add(self, values)

    monkeypatch.setattr(pandas_frames._Numbers, "add", fail_at_the_last)
    table = pa.table({"n": range(31), "s": [[1]] * 31})
    with pytest.raises(ConversionError, match=r"table s\.d\.t, column n: .* as the test wants"):
        to_pandas(table.to_reader(10), table="s.d.t")


def test_an_error_that_is_kept_keeps_no_reading_under_way(trips: SharedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook keeps the last one: the threads, connections and memory of the reading stayed with it."""
    far = pa.table({"n": range(30), "t": pa.array([2**62] * 30, pa.timestamp("us"))})
    ended = []

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            yield from far.to_batches(10)
        finally:
            ended.append(True)

    monkeypatch.setattr(Scan, "_sized_batches", lambda self: (far.schema, batches(), None))
    with pytest.raises(ConversionError, match="column t") as kept:
        trips.to_pandas(timestamp_as_object=True)
    assert (ended, kept.type) == ([True], ConversionError)


def test_what_an_option_of_pyarrow_cannot_convert_is_told_by_table_and_column() -> None:
    far = pa.table({"n": [1], "t": pa.array([2**55], pa.timestamp("us", "UTC"))})
    with pytest.raises(ConversionError, match=r"table s\.d\.t, column t: .* out of bounds .* to_arrow"):
        to_pandas(far.to_reader(), table="s.d.t", coerce_temporal_nanoseconds=True)


def test_errors_of_arrow_that_are_no_errors_of_values_name_table_and_column() -> None:
    twice = pa.table({"n": [1], "m": pa.MapArray.from_arrays([0, 2], pa.array(["k", "k"]), pa.array([1, 2]))})
    with pytest.raises(ConversionError, match=r"table s\.d\.t, column m: .* duplicate keys.* to_arrow"):
        to_pandas(twice.to_reader(), table="s.d.t", maps_as_pydicts="strict")
    with pytest.raises(ConfigError, match=r"to_pandas\(\) of table s\.d\.t: .* zero copy .* change its arguments"):
        to_pandas(twice.to_reader(), table="s.d.t", zero_copy_only=True)


@pytest.mark.parametrize("step", ["add", "series"])
def test_a_process_without_memory_does_not_blame_a_column(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise pa.ArrowMemoryError("malloc of size 64 failed")

    monkeypatch.setattr(pandas_frames._Numbers, step, fail)
    with pytest.raises(MemoryError, match="malloc of size 64 failed"):
        to_pandas(pa.table({"i": [1, 2]}).to_reader(), table="s.d.t")


def test_a_struct_without_fields_is_written_as_text_alone() -> None:
    rows = pa.table({"n": [1, 2], "s": pa.array([{}, None], pa.struct([]))})
    written = {"csv": io.BytesIO(), "json": io.BytesIO()}
    assert [write_batches(rows.to_reader(), out, format) for format, out in written.items()] == [2, 2]
    assert {format: out.getvalue() for format, out in written.items()} == {
        "csv": b'"n","s"\n1,"{}"\n2,\n',
        "json": b'{"n": 1, "s": {}}\n{"n": 2, "s": null}\n',
    }
    with pytest.raises(ConversionError, match=r"table s\.d\.t: .*'s'.*--columns"):
        write_batches(rows.to_reader(), io.BytesIO(), "parquet", "s.d.t")


@pytest.mark.parametrize(("size", "groups"), [(7, [301, 301, 301, 97]), (500, [500, 500]), (150, [300, 300, 300, 100])])
def test_a_parquet_file_has_row_groups_of_many_batches(
    monkeypatch: pytest.MonkeyPatch, size: int, groups: list[int]
) -> None:
    """A batch of each of 5,000 small files was a row group: 5,000 of them, in a hundred times the bytes and the time."""
    rows = pa.table({"n": range(1000), "s": ["x"] * 1000})
    monkeypatch.setattr(export, "_GROUP_ROWS", 300)
    out = io.BytesIO()
    assert write_batches(rows.to_reader(size), out, "parquet") == 1000
    file = pq.ParquetFile(out)
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == groups
    assert file.read().equals(rows)


def test_nullable_integers_stay_exact(server: SharingServer) -> None:
    types = SharingClient(server.profile()).table("demo.city.types").to_pandas(dtype_backend="numpy_nullable")
    assert str(types["a_long"].dtype) == "Int64"
    assert types["a_long"].tolist()[:2] == [7_000_000_000, 2**63 - 1]


@pytest.mark.parametrize(
    ("library", "method"),
    [("pandas", "to_pandas"), ("polars", "to_polars"), ("duckdb", "to_duckdb"), ("polars", "lazy")],
)
def test_a_missing_library_names_its_extra(
    trips: SharedTable, monkeypatch: pytest.MonkeyPatch, library: str, method: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match=rf"{method}\(\) needs {library}, .*install .*\[{library}\]'"):
        getattr(trips, method)()


@pytest.mark.parametrize("wrong", [{"nonsense": 1}, {"dtype_backend": "arrow"}])
def test_wrong_arguments_of_to_pandas_are_named(trips: SharedTable, wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        trips.to_pandas(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("hints", ["city = 'Lisbon'", {"op": "equal"}], ids=["SQL", "object"])
def test_hints_that_are_not_json(server: SharingServer, tmp_path: Path, hints: Any) -> None:
    with pytest.raises(OptionError, match="is not JSON"):
        load_as_pandas(f"{server.write_profile(tmp_path / 'p.share')}#demo.city.trips", jsonPredicateHints=hints)


def test_keywords_of_the_reference_client(server: SharingServer, tmp_path: object) -> None:
    profile = server.write_profile(f"{tmp_path}/p.share")
    url = f"{profile}#demo.city.trips"
    hints = (
        '{"op": "and", "children": [{"op": "equal", "children": [{"op": "column", "name": "city", "valueType": "string"},'
        ' {"op": "literal", "value": "Lisbon", "valueType": "string"}]}, {"op": "unheard of", "children": []}]}'
    )
    whole = load_as_pandas(url, None, None, None, None, True, True)
    pruned = load_as_pandas(url, jsonPredicateHints=hints)
    assert set(pruned["city"]) == {"Lisbon"}
    assert len(pruned) == (whole["city"] == "Lisbon").sum()
    by_trip = hints.replace('"city", "valueType": "string"', '"trip", "valueType": "long"')
    some = load_as_pandas(
        url, jsonPredicateHints=by_trip.replace('"Lisbon", "valueType": "string"', '"7", "valueType": "long"')
    )
    assert 7 in set(some["trip"])
    assert 1 < len(some) < len(whole), "files are skipped, rows are not filtered"
    server.reset_metrics()
    assert len(load_as_pandas(url, limit=3, use_delta_format=False)) == 3
    assert "responseformat=parquet" in str(server.requests[0].headers).lower()
    assert len(load_table_changes_as_pandas(f"{profile}#demo.city.bicycles", 1, use_delta_format=True)) == 20
    assert scan_share(url, where="trip < 5").select("trip").collect().height == 5


@given(
    st.integers(1, 38).flatmap(
        lambda digits: st.tuples(
            st.just(digits),
            st.integers(0, digits),
            st.lists(st.none() | st.integers(-(10**digits) + 1, 10**digits - 1), min_size=3),
        )
    )
)
def test_decimals_are_arrows_to_the_last_zero(case: tuple[int, int, list[int | None]]) -> None:
    """Sign, digits and exponent are compared, for 1.5 equals 1.50; a user's context that rounds and refuses changes none."""
    precision, scale, numbers = case
    with decimal.localcontext(decimal.Context(prec=100)):
        values = [None if n is None else decimal.Decimal(n).scaleb(-scale) for n in numbers]
    column = pa.array(values, pa.decimal128(precision, scale))
    table = pa.table({"d": pa.chunked_array([column.slice(1), column])})
    with decimal.localcontext(decimal.Context(prec=2, traps=[decimal.Inexact])):
        frame = to_pandas(table.to_reader())
    assert [value and value.as_tuple() for value in frame["d"]] == [
        value and value.as_tuple() for value in [*values[1:], *values]
    ]


@given(
    st.integers(1, 18),
    st.lists(
        st.tuples(st.integers(-(10**18) + 1, 10**18 - 1), st.sampled_from([1, 97, 16_384, 10**6, 10**13])), max_size=2
    ),
    st.booleans(),
)
@cases(20)
def test_decimals_of_long_batches_are_arrows(digits: int, batches: list[tuple[int, int]], null: bool) -> None:
    """Batches of numbers near each other and far apart, moving up and down, to the largest that there are."""
    most = 10**digits - 1
    scaled = pa.decimal128(digits, digits // 2)
    objects = DecimalObjects(scaled.scale)
    rows = np.arange(-9_000, 9_000)
    moved = [(first + (step << 11), step) for first, step in batches]
    for first, step in [*batches, *moved, (most, 1), (-most, 1), (0, 7)]:
        numbers = pa.array(np.clip(first + step * rows, -most, most), mask=rows % 5 == 0 if null else None)
        whole = numbers.cast(pa.decimal128(19, 0))
        values = pa.Array.from_buffers(scaled, len(whole), whole.buffers(), whole.null_count)
        made = objects.of(values).tolist()
        assert list(map(str, made)) == list(map(str, values.to_pylist()))
        assert {type(value) for value in made} <= {decimal.Decimal, type(None)}


def any_integer(bits: int) -> Callable[[Random], int]:
    ends = (-(2 ** (bits - 1)), -1, 0, 2 ** (bits - 1) - 1)
    return lambda random: random.choice([*ends, random.getrandbits(bits) - 2 ** (bits - 1)])


def any_float(width: int) -> Callable[[Random], float]:
    kind = {32: "f", 64: "d"}[width]
    some = (0.0, -0.0, 1.5, float("nan"), float("inf"), float("-inf"))
    return lambda random: random.choice([*some, *struct.unpack(kind, random.randbytes(width // 8))])


_COLUMNS: list[tuple[pa.DataType, Callable[[Random], Any]]] = [
    (pa.int8(), any_integer(8)),
    (pa.int32(), any_integer(32)),
    (pa.int64(), any_integer(64)),
    (pa.float32(), any_float(32)),
    (pa.float64(), any_float(64)),
    (pa.bool_(), one_of(False, True)),
    (pa.timestamp("us"), any_integer(62)),
    (pa.timestamp("us", "UTC"), any_integer(62)),
    (pa.string(), one_of("", "a", "Zürich", "東京", "\0", "a longer one")),
    (pa.binary(), lambda random: random.randbytes(random.randint(0, 5))),
    (pa.date32(), lambda random: random.randint(-700_000, 2_900_000)),
    (pa.null(), lambda _: None),
]
_SCHEMA = pa.schema([(f"c{i}", kind) for i, (kind, _) in enumerate(_COLUMNS)])


def some_batches(random: Random) -> list[pa.RecordBatch]:
    """Up to four of up to three rows; nulls come in any column of a batch or in none."""

    def column(size: int, kind: pa.DataType, value: Callable[[Random], Any]) -> pa.Array:
        nulls = random.choice([0, 0.5, 1])
        return pa.array([None if random.random() < nulls else value(random) for _ in range(size)], kind)

    sizes = [random.randint(0, 3) for _ in range(random.randint(0, 4))]
    return [pa.record_batch([column(size, *of) for of in _COLUMNS], schema=_SCHEMA) for size in sizes]


@given(drawn(some_batches, one_of(None, 0, 1, 5, 12, 10**15, 10**30)))
def test_batches_give_the_frame_of_the_whole_table(case: tuple[list[pa.RecordBatch], int | None]) -> None:
    """Nulls change the types of integers and booleans; so does a table without rows.

    The number of rows that the metadata promises may be wrong, and more than any memory holds.
    """
    batches, promised = case
    table = pa.Table.from_batches(batches, _SCHEMA)
    frame = to_pandas(pa.RecordBatchReader.from_batches(_SCHEMA, batches), promised)
    pandas.testing.assert_frame_equal(frame, table.to_pandas())
    frame["c2"] = 7  # the memory is the frame's own
    frame.loc[frame.index[:1], "c4"] = 0.5
