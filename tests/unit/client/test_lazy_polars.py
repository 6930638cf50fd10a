"""Lazy Polars over a share: what a query needs is pushed down, and its rows are those of the frame in memory."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_sharing_spark import SharingClient
from delta_sharing_spark.access import load
from delta_sharing_spark.access.url.snapshot_listing import LISTINGS
from delta_sharing_spark.frames.lazy_polars import condition_of
from delta_sharing_spark.network.parallel_calls import in_parallel
from delta_sharing_spark.schema.types import Field, Primitive, Struct, parse_type
from delta_sharing_spark.table import SharedTable
from delta_sharing_spark.testing.sample import share_sample
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support.drawing import cases
from support.refusals import not_refused

pl = pytest.importorskip("polars")
UTC = dt.timezone.utc


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharingServer]:
    with SharingServer() as running:
        share_sample(running, tmp_path_factory.mktemp("sample"), trips=3000)
        yield running


@pytest.fixture(scope="module")
def trips(server: SharingServer) -> SharedTable:
    return SharingClient(server.profile(), accessMode="dir").table("demo.city.trips")


@pytest.fixture(scope="module")
def types(server: SharingServer) -> SharedTable:
    return SharingClient(server.profile()).table("demo.city.types")


def test_columns_conditions_and_limits_are_pushed_down(trips: SharedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[dict[str, str], str | None]] = []
    real = type(trips.scan())._frames

    def note(scan: object, *, is_filtered: bool) -> object:
        predicate = scan.resolved().predicate  # type: ignore[attr-defined]
        read.append((dict(scan.options), None if predicate is None else str(predicate)))  # type: ignore[attr-defined]
        return real(scan, is_filtered=is_filtered)  # type: ignore[arg-type]

    monkeypatch.setattr("delta_sharing_spark.table.Scan._frames", note)
    lazy = trips.lazy()
    start = dt.datetime(2025, 3, 1, tzinfo=UTC)
    values_read = lazy.filter((pl.col("city") == "Lisbon") & (pl.col("started") < start)).select("trip").collect()
    assert values_read.width == 1
    options, condition = read[-1]
    assert options["columns"].split(",") == ["`trip`", "`city`", "`started`"]
    assert condition == "`city` = 'Lisbon' AND `started` < TIMESTAMP '2025-03-01 00:00:00Z'"
    assert trips.scan(where=condition).plan().report.files == 1
    # A part that `where` cannot say stays with Polars.
    lazy.filter((pl.col("trip") < 50) & (pl.col("city").str.to_uppercase() == "LISBON")).collect()
    assert read[-1] == ({}, "`trip` < 50L")
    trips.where("fare > 20").lazy().filter(pl.col("trip") < 50).collect()
    assert read[-1] == ({"where": "fare > 20"}, "`fare` > 20.00BD AND `trip` < 50L")
    lazy.filter(pl.col("city").str.to_uppercase() == "LISBON").collect()
    assert read[-1] == ({}, None)
    trips.scan(limit=10).lazy().filter(pl.col("trip") > 5).collect()
    assert read[-1] == ({"limit": "10"}, None)


def _comparisons(column: str, values: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    operators = st.sampled_from(["__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "eq_missing"])
    compared = st.builds(lambda op, value: getattr(pl.col(column), op)(value), operators, values)
    among = st.lists(st.one_of(values, st.none()), max_size=4).map(
        lambda values_read: pl.col(column).is_in(values_read)
    )
    between = st.builds(
        lambda low, high, closed: pl.col(column).is_between(low, high, closed=closed),
        values, values, st.sampled_from(["both", "left", "right", "none"]),
    )  # fmt: skip
    return st.one_of(compared, among, between, st.just(pl.col(column).is_null()), st.just(pl.col(column).is_not_null()))


_ATOMS = st.one_of(
    _comparisons("trip", st.integers(-5, 3005)),
    _comparisons("seconds", st.sampled_from([0, 60, 3600, 7199, 10_000, 2**40])),
    _comparisons("kilometres", st.sampled_from([0.0, -0.0, 1.5, 10.25, float("nan"), float("inf")])),
    _comparisons("city", st.sampled_from(["Lisbon", "東京", "", "Lis'bon", "Lis\\bon"])),
    _comparisons("fare", st.sampled_from([Decimal("13.28"), Decimal("100.5"), Decimal("20")])),
    _comparisons("rating", st.sampled_from([1.0, 3.0, 4.5])),
    _comparisons("started", st.sampled_from([dt.datetime(2025, 3, 1, tzinfo=UTC), dt.datetime(2025, 9, 1, 5, 6, 7, 8, UTC)])),
    st.sampled_from([pl.col("fare") > 20, pl.col("fare") <= 99.5, pl.col("member"), ~pl.col("member"), pl.col("member") == False]),  # noqa: E712
)  # fmt: skip
_PREDICATES = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda two: two[0] & two[1]),
        st.tuples(inner, inner).map(lambda two: two[0] | two[1]),
        inner.map(lambda one: ~one),
    ),
    max_leaves=5,
)


@cases(40)
@given(predicate=_PREDICATES)
def test_a_lazy_query_gives_the_rows_of_the_frame_in_memory(trips: SharedTable, predicate: object) -> None:
    whole = _whole(trips)
    try:
        expected = whole.filter(predicate).sort("trip")
    except pl.exceptions.PolarsError:
        return  # types that Polars does not compare
    assert _lazy(trips).filter(predicate).collect().sort("trip").equals(expected)


def test_a_limit_counts_before_a_later_condition_and_after_an_earlier_one(trips: SharedTable) -> None:
    lazy = trips.lazy()
    assert lazy.filter(pl.col("trip") >= 100).head(5).collect()["trip"].min() >= 100
    assert lazy.head(5).filter(pl.col("trip") < 0).collect().height == 0
    assert lazy.head(5).collect().height == 5
    assert lazy.slice(10, 5).collect().height == 5
    assert lazy.tail(4).collect().height == 4
    assert lazy.select(pl.len()).collect().item() == 3000


@pytest.mark.parametrize(("mode", "history"), [("url", False), ("url", True), ("dir", False)])
def test_a_lazy_frame_and_a_count_are_of_the_table_that_they_were_made_of(
    tmp_path: Path, mode: str, history: bool
) -> None:
    """Two columns exchange their names: a query that named one of them read the other one's values."""
    schema = Struct((Field("a", Primitive("string")), Field("b", Primitive("string"))))
    table = DeltaTableBuilder(tmp_path / "t", schema, properties={"delta.columnMapping.mode": "name"})
    table.append([{"a": "x", "b": "y"}])
    with SharingServer() as server:
        server.add_table("sh.sc.t", table.path, access_modes=("url", "dir"), history=history)
        shared = SharingClient(server.profile(), accessMode=mode).table("sh.sc.t")
        lazy, scan = shared.lazy(), shared.where("a = 'x'")
        queries = (lazy, lazy.select("a"), lazy.filter(pl.col("a") == "x"))
        assert [query.collect().height for query in queries] == [scan.count()] * 3
        table.rename_column("a", "c").rename_column("b", "a").rename_column("c", "b")
        # The version that the frame was made of can be read, by its listing at least.
        assert [(query.collect()["a"].to_list(), scan.count()) for query in queries] == [(["x"], 1)] * 3
        LISTINGS.clear()
        if mode == "url" and not history:
            reads = (*(query.collect for query in queries), scan.count)
            assert not_refused(Exception, r"sh\.sc\.t has changed since it was loaded", *reads) == []


def test_a_lazy_query_and_a_count_are_in_the_zone_that_their_scan_was_resolved_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Spark session is active in some threads only: a query of some columns, which Polars reads in its own, was in UTC."""
    table = DeltaTableBuilder(tmp_path / "t", pa.schema([("id", pa.int64()), ("ts", pa.timestamp("us", "UTC"))]))
    table.append([{"id": i, "ts": dt.datetime(2024, 1, 1, i, tzinfo=dt.timezone.utc)} for i in range(24)])
    zones = {threading.current_thread(): "America/New_York"}
    monkeypatch.setattr(load, "active_zone", lambda: zones.get(threading.current_thread()))
    with SharingServer() as server:
        server.add_table("sh.sc.t", table.path)
        scan = SharingClient(server.profile()).table("sh.sc.t").where("ts >= '2024-01-01 10:00:00'")
        lazy = scan.lazy()
        assert scan.to_arrow()["id"].to_pylist() == list(range(15, 24))
        queries = (lazy, lazy.select("id"), lazy.filter(pl.col("id") > 0))
        assert [query.collect()["id"].to_list() for query in queries] == [list(range(15, 24))] * 3
        assert in_parallel([scan.count] * 2) == [9, 9]


def test_a_lazy_frame_of_chosen_columns_is_queried(tmp_path: Path) -> None:
    types = {
        "i": "long",
        "a.b": "long",
        "n": Struct((Field("q", Primitive("long")), Field("r", Primitive("long")))),
        "o": "long",
    }
    schema = Struct(tuple(Field(k, Primitive(v) if isinstance(v, str) else v) for k, v in types.items()))
    table = DeltaTableBuilder(tmp_path / "t", schema, properties={"delta.columnMapping.mode": "name"})
    table.append([{"i": 1, "a.b": 2, "n": {"q": 3, "r": 4}, "o": 5}])
    with SharingServer() as server:
        server.add_table("sh.sc.t", table.path)
        scan = SharingClient(server.profile()).table("sh.sc.t").scan(columns=["I", "a.b", "n.r"])
        lazy, whole = scan.lazy(), scan.to_polars()
        assert whole.rows() == [(1, 2, {"r": 4})]
        selections = (["i"], ["a.b"], ["n"], ["n", "i"])
        assert [n for n in selections if not lazy.select(n).collect().equals(whole.select(n))] == []
        assert lazy.filter(pl.col("i") == 1).select("n").collect().equals(whole.select("n"))
        assert scan.select("`i`").to_arrow().column_names == ["i"]


@pytest.mark.parametrize("where", [None, "trip < 0"])
def test_a_condition_that_polars_refuses_is_refused_where_there_are_no_rows(
    trips: SharedTable, where: str | None
) -> None:
    with pytest.raises(pl.exceptions.PolarsError, match="could not evaluate"):
        trips.scan(where=where).lazy().filter(pl.col("started") > dt.datetime(2025, 3, 1)).collect()


@pytest.mark.parametrize(("name", "size"), [("trips", 700), ("types", 1)])
def test_pages_of_a_lazy_frame_are_the_whole(request: pytest.FixtureRequest, name: str, size: int) -> None:
    lazy = request.getfixturevalue(name).lazy()
    whole = lazy.collect()
    pages = [lazy.slice(start, size) for start in range(0, whole.height, size)]
    assert pl.concat(pages).collect().equals(whole)
    assert lazy.with_row_index().head(size).collect().equals(whole.with_row_index().head(size))


def test_every_type_goes_over(types: SharedTable) -> None:
    whole, lazy = types.to_polars(), types.lazy()
    assert lazy.collect_schema() == whole.schema
    assert lazy.filter(pl.col("a_struct").struct.field("name") == "Ginza").collect().height == 1
    assert lazy.filter(pl.col("a_long") > 2**62).select("an_array").collect().height == 1


@pytest.mark.parametrize(
    "name",
    ["a_boolean", "a_byte", "a_short", "an_integer", "a_long", "a_float", "a_double", "a_decimal", "a_string", "a_binary",
     "a_date", "a_timestamp", "a_timestamp_ntz"],
)  # fmt: skip
def test_conditions_on_every_type(types: SharedTable, name: str) -> None:
    whole, lazy, column = types.to_polars(), types.lazy(), pl.col(name)
    conditions = [c for value in whole[name].drop_nulls() for c in (column == value, column > value, column <= value)]
    assert [str(c) for c in conditions if not lazy.filter(c).collect().equals(whole.filter(c))] == []


def long(value: int | None) -> pl.Expr:
    return pl.lit(value, pl.Int64)


@pytest.mark.parametrize(
    ("predicate", "where"),
    [
        (pl.col("m") == Decimal("2345678901234567890123456789012345678.9"), "`m` = 2345678901234567890123456789012345678.9BD"),
        (pl.col("m").is_in([Decimal("-2345678901234567890123456789012345678.9")]), "`m` = -2345678901234567890123456789012345678.9BD"),
        (pl.col("n") == long(2**63 - 1), "`n` = 9223372036854775807L"),
        (pl.col("n") == long(None), None),
        (pl.col("n") == pl.lit(1, pl.Int32), None),
        (pl.col("x") == pl.lit(float("nan"), pl.Float64), None),
        (pl.col("n") == long(1) + 1, None),
        (pl.col("n").is_in([]), None),
        (pl.col("n").is_in([1, None, 2]), "`n` IN (1L, 2L)"),
        (pl.col("t") < dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC), "`t` < TIMESTAMP '9999-12-31 23:59:59.999999Z'"),
        (pl.col("t") < pl.lit(pl.Series([10**18]).cast(pl.Datetime("us", "UTC"))), None),
        ((pl.col("n") == long(1)) & (pl.col("c") == "a"), "`n` = 1L"),
        (reduce(lambda e, i: e | (pl.col("n") == long(i)) if i % 2 else e & (pl.col("n") == long(i)), range(70), pl.col("n") == long(7))
         & (pl.col("n") == long(8)), "`n` = 8L"),
        (pl.col("n").map_batches(lambda values: values > 1, pl.Boolean), None),
    ],
)  # fmt: skip
def test_literals_are_exact_or_left_to_polars(predicate: Any, where: str | None) -> None:
    kinds = {"m": "decimal(38,1)", "n": "long", "x": "double", "t": "timestamp"}
    char = Field("c", parse_type("string", "t", "c"), metadata={"__CHAR_VARCHAR_TYPE_STRING": "char(5)"})
    schema = Struct((*(Field(name, parse_type(kind, "t", name)) for name, kind in kinds.items()), char))
    condition = condition_of(predicate, schema)
    assert (None if condition is None else str(condition)) == where


_frames: dict[str, object] = {}


def _whole(table: SharedTable) -> object:
    return _frames.setdefault(f"whole {id(table)}", table.to_polars())


def _lazy(table: SharedTable) -> object:
    return _frames.setdefault(f"lazy {id(table)}", table.lazy())
