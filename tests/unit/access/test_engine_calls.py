"""The reader as engines to come will call it: columns pruned, limits pushed, in the shapes of Spark's and Sail's changes."""

from __future__ import annotations

import datetime
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from delta_sharing_spark import SharingClient
from delta_sharing_spark.access.plan import plan
from delta_sharing_spark.errors import ConfigError, SchemaError
from delta_sharing_spark.predicates.sql import parse_where
from delta_sharing_spark.spark.datasource import DeltaSharingDataSource
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support.drawing import cases

PLACE = pa.struct([("street", pa.string()), ("city", pa.string())])
SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string()), ("s", pa.string()), ("place", PLACE)])
NAMES = SCHEMA.names


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SharingServer, str, DeltaTableBuilder]]:
    directory = tmp_path_factory.mktemp("engine")
    table = DeltaTableBuilder(
        directory / "t", SCHEMA, partition_by=["part"], properties={"delta.enableChangeDataFeed": "true"}
    )
    for start in range(0, 300, 100):
        table.append(
            [
                {"id": i, "part": f"p{i % 2}", "s": f"row {i}", "place": {"street": f"s{i}", "city": f"c{i % 7}"}}
                for i in range(start, start + 100)
            ]
        )
    table.delete(lambda t: pc.less(t["id"], 10))
    with SharingServer() as server:
        server.add_table("s.d.t", table.path, access_modes=("url", "dir"))
        yield server, f"{server.write_profile(directory / 'p.share')}#s.d.t", table


class Engine:
    """Makes a reader as a planning worker does, and reads what it plans as tasks do."""

    def __init__(self, path: str, **options: str) -> None:
        source = DeltaSharingDataSource({"path": path, **options})
        self.schema = source.schema()
        self.reader: Any = pickle.loads(pickle.dumps(source)).reader(self.schema)

    def batches(self) -> list[pa.RecordBatch]:
        read = pickle.loads(pickle.dumps(self.reader)).read
        return [batch for split in pickle.loads(pickle.dumps(self.reader.partitions())) for batch in read(split)]

    def rows(self) -> list[dict[str, Any]]:
        return sorted((row for batch in self.batches() for row in batch.to_pylist()), key=str)


@cases(15)
@given(
    names=st.lists(st.sampled_from(NAMES), unique=True),
    arrow=st.booleans(),
    where=st.sampled_from([None, "part = 'p1' AND id > 150", "place.city = 'c3'"]),
    mode=st.sampled_from(["url", "dir"]),
)
def test_columns_come_in_the_order_asked_for_and_none_counts(
    names: list[str], arrow: bool, where: str | None, mode: str, made: Any
) -> None:
    """As a projection of all columns would be; ``where`` reads its own columns without handing them over."""
    _, path, table = made
    options = {"accessMode": mode} | ({} if where is None else {"where": where})
    engine = Engine(path, **options)
    required = StructType([engine.schema[name] for name in names])
    shape = to_arrow_schema(required, timezone="UTC")
    assert engine.reader.pruneColumns(shape if arrow else required) == (None if arrow else required)
    expected = table.expected().to_pylist()
    if where is not None:
        keep = {"part": lambda r: r["part"] == "p1" and r["id"] > 150, "place": lambda r: r["place"]["city"] == "c3"}
        expected = [row for row in expected if keep[where.partition(" ")[0].partition(".")[0]](row)]
    batches = engine.batches()
    assert all(batch.schema.equals(shape) for batch in batches)
    assert sum(batch.num_rows for batch in batches) == len(expected)
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert sorted(rows, key=str) == sorted(({name: row[name] for name in names} for row in expected), key=str)


def test_no_column_is_fetched_that_nobody_asked_for(made: Any) -> None:
    server, path, _ = made

    def fetched(names: list[str] | None) -> int:
        engine = Engine(path, maxSplitBytes="1k")
        if names is not None:
            engine.reader.pruneColumns(StructType([engine.schema[name] for name in names]))
        partitions = engine.reader.partitions()
        before = server.bytes_sent()
        for partition in partitions:
            list(engine.reader.read(partition))
        return int(server.bytes_sent() - before)

    assert fetched([]) <= fetched(["part"]) <= fetched(["id"]) <= fetched(None)


def test_fields_of_a_struct_are_pruned_by_sparks_shape(made: Any) -> None:
    engine = Engine(made[1])
    required = StructType(
        [StructField("place", StructType([StructField("city", StringType())])), StructField("id", LongType())]
    )
    assert engine.reader.pruneColumns(required) is required
    assert engine.rows()[0] == {"place": {"city": "c0"}, "id": 105}


def test_a_change_feed_is_pruned_as_well(made: Any) -> None:
    engine = Engine(made[1], readChangeFeed="true", startingVersion="4")
    engine.reader.pruneColumns(pa.schema([("_change_type", pa.string()), ("id", pa.int64())]))
    assert engine.rows() == [{"_change_type": "delete", "id": i} for i in range(10)]


def test_a_column_that_is_not_there_is_an_error(made: Any) -> None:
    with pytest.raises(SchemaError, match=r"'nope'.*id, part, s, place"):
        Engine(made[1]).reader.pruneColumns(pa.schema([("nope", pa.string())]))
    engine = Engine(made[1])
    engine.reader.pruneColumns(StructType([StructField("nope", StringType())]))
    with pytest.raises(SchemaError, match="nope"):
        engine.reader.partitions()


@pytest.mark.parametrize("limit", [0, 1, 7, 95, 1000])
def test_a_limit_is_read_and_no_more(limit: int, made: Any) -> None:
    engine = Engine(made[1])
    assert engine.reader.pushLimit(limit) is True
    assert sum(batch.num_rows for batch in engine.batches()) == min(limit, 290)
    engine = Engine(made[1], limit="5", where="id >= 20")
    assert engine.reader.pushLimit(limit) is True
    rows = engine.rows()
    assert len(rows) == min(limit, 5)
    assert all(row["id"] >= 20 for row in rows)


def test_a_limit_that_would_lose_rows_or_time_is_not_taken(made: Any) -> None:
    """An engine that still filters needs all rows; one task alone is slower at many of them."""
    assert Engine(made[1]).reader.pushLimit(10_000_000) is False
    filters: list[Any] = [datasource.EqualTo(("id",), 250)]
    before, after = Engine(made[1], pushdown="query"), Engine(made[1], pushdown="query")
    assert list(before.reader.pushFilters(filters)) == filters
    assert before.reader.pushLimit(3) is False
    assert after.reader.pushLimit(3) is True
    after.reader.pushFilters(filters)
    found = [[row["id"] for row in engine.rows() if row["id"] == 250] for engine in (before, after)]
    assert found == [[250], [250]]


@pytest.mark.parametrize("prune", [False, True])
def test_filters_columns_and_a_limit_in_the_engines_order(prune: bool, made: Any) -> None:
    """The filter's own column is pruned away: it was parsed against the load's columns, and still skips files."""
    engine = Engine(made[1], pushdown="query")
    engine.reader.pushFilters([datasource.GreaterThan(("id",), 205)])
    if prune:
        engine.reader.pruneColumns(StructType([StructField("s", StringType())]))
    rows = engine.rows()
    assert {f"row {i}" for i in range(206, 300)} <= {row["s"] for row in rows}
    assert len(rows) <= 100, "two files of three are skipped"


def test_released_sparks_see_a_reader_as_before(made: Any) -> None:
    """They compare ``pushFilters`` with their own; a task's copy of the reader holds nothing, whatever was pushed."""
    engine = Engine(made[1])
    base: Callable[..., Any] = datasource.DataSourceReader.pushFilters
    assert engine.reader.pushFilters.__func__ is base
    engine.reader.pushLimit(3)
    engine.reader.pruneColumns(StructType([]))
    assert vars(pickle.loads(pickle.dumps(engine.reader))) == {}


@pytest.mark.parametrize(
    ("told", "at"),
    [
        ({"spark.sql.execution.id": "7", "spark.sql.session.timeZone": "Asia/Kathmandu"}, "06:15"),
        ({"spark.sql.session.timeZone": "Asia/Kathmandu"}, "06:15"),
        ({}, None),
    ],
    ids=["query", "stream", "df.rdd"],
)
def test_a_task_that_is_not_told_the_sessions_zone_refuses_what_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: dict[str, str], at: str | None
) -> None:
    """Tasks of df.rdd are told nothing of the session, and a zone that is the JVM's."""
    utc = datetime.timezone.utc
    table = DeltaTableBuilder(
        tmp_path / "p", pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))]), ["at"]
    )
    table.append([{"id": 1, "at": datetime.datetime(2026, 3, 8, 12, tzinfo=utc)}])
    monkeypatch.setattr(TaskContext, "get", lambda: SimpleNamespace(getLocalProperty=told.get))
    with SharingServer({"s.d.p": table.path}) as server:
        engine = Engine(f"{server.write_profile(tmp_path / 'p.share')}#s.d.p")
        runner_conf = {"spark.sql.session.timeZone": "Asia/Tokyo"}  # as the worker's main function has it
        read = {"runner_conf": runner_conf, "rows": engine.rows}
        run = compile("def main(runner_conf, rows):\n    return rows()\n", "pyspark/worker.py", "exec")
        worker: dict[str, Any] = {}
        exec(run, worker)
        if at is None:
            with pytest.raises(
                ConfigError, match=r"s\.d\.p: .*tells none to df\.rdd.*register\(spark\) before the load"
            ):
                worker["main"](**read)
        else:
            (row,) = worker["main"](**read)
            assert row["at"].astimezone(utc).strftime("%H:%M") == at


@pytest.mark.parametrize("mode", ["url", "dir"])
@pytest.mark.parametrize("options", [{}, {"where": "id >= 0"}, {"limit": "250"}], ids=["all", "where", "limit"])
def test_rows_that_are_enough_end_a_listing_where_each_of_them_counts(
    made: tuple[SharingServer, str, DeltaTableBuilder], mode: str, options: dict[str, str]
) -> None:
    """Not those of a condition, of which a file may have none, nor of a limit, which says itself which they are."""
    server, _, _ = made
    scan = SharingClient(server.profile(), accessMode=mode, **options).table("s.d.t").scan().resolved()
    assert plan(replace(scan, rows_needed=5)).report.files == (plan(scan).report.files if options else 1) > 0
    pushed = parse_where("id < 100", scan.columns)
    assert (replace(scan, pushed=pushed).prune == scan.predicate) == ("limit" in options)
