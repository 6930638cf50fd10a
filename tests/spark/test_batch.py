"""What a user sees of a batch load, on classic Spark and on Connect alike."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceReader

from delta_sharing_spark.schema.types import Array, Decimal, Field, Map, Primitive, Struct
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder, FileStyle
from support.refusals import not_refused

LONG, TEXT = Primitive("long"), Primitive("string")


def numbers(path: Path, rows: int = 40, files: int = 4, **arguments: Any) -> DeltaTableBuilder:
    """``a`` counts 0 to 3, ``b`` the rows; one file for each value of ``a``."""
    table = DeltaTableBuilder(path, pa.schema([("a", pa.int64()), ("b", pa.int64()), ("s", pa.string())]), **arguments)
    for a in range(files):
        per = rows // files
        bs = list(range(a * per, (a + 1) * per))
        table.append(pa.table({"a": [a] * per, "b": bs, "s": [f"row {b}" for b in bs]}))
    return table


def values(frame: Any) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, frame.collect()), key=repr)


@pytest.mark.connect
def test_every_type_comes_back_as_it_was_written(tmp_path: Path, share: Any, load: Any) -> None:
    schema = Struct(
        (
            Field("string", TEXT),
            Field("long", LONG, nullable=False),
            Field("integer", Primitive("integer")),
            Field("short", Primitive("short")),
            Field("byte", Primitive("byte")),
            Field("float", Primitive("float")),
            Field("double", Primitive("double")),
            Field("boolean", Primitive("boolean")),
            Field("binary", Primitive("binary")),
            Field("date", Primitive("date")),
            Field("timestamp", Primitive("timestamp")),
            Field("narrow", Decimal(5, 2)),
            Field("middle", Decimal(18, 6)),
            Field("wide", Decimal(38, 18)),
            Field("nested", Struct((Field("x", LONG), Field("y", Array(TEXT))))),
            Field("list", Array(Struct((Field("k", TEXT),)))),
            Field("map", Map(TEXT, LONG)),
        )
    )
    row = {
        "string": "ü",
        "long": -(2**63),
        "integer": 2**31 - 1,
        "short": -(2**15),
        "byte": 127,
        "float": 1.5,
        "double": -0.1,
        "boolean": True,
        "binary": b"\x00\xff",
        "date": datetime.date(1969, 12, 31),
        "timestamp": datetime.datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=datetime.timezone.utc),
        "narrow": decimal.Decimal("-999.99"),
        "middle": decimal.Decimal("123456789012.345678"),
        "wide": decimal.Decimal("12345678901234567890.123456789012345678"),
        "nested": {"x": 1, "y": ["a", None]},
        "list": [{"k": "v"}, None],
        "map": {"a": 1, "b": None},
    }
    nothing = dict.fromkeys(row) | {"long": 1}
    table = DeltaTableBuilder(tmp_path / "types", schema).append([row, nothing])
    frame = load(share(table))
    assert [f.nullable for f in frame.schema if f.name == "long"] == [False]
    first, second = sorted(frame.collect(), key=lambda r: r["long"])
    record = first.asDict(recursive=True)
    record["timestamp"] = row["timestamp"]  # compared below: a driver shows it in its own zone
    assert record == {**row, "binary": bytearray(row["binary"])}
    assert second.asDict() == nothing
    assert frame.where("timestamp = timestamp'2024-02-29 23:59:59.999999Z'").count() == 1


def test_a_load_is_one_metadata_and_one_query_request(tmp_path: Path, share: Any, load: Any, server: Any) -> None:
    address = share(numbers(tmp_path / "requests"))
    server.reset_metrics()
    assert load(address).count() == 40
    assert (server.count("metadata"), server.count("query")) == (1, 1)


def test_columns_and_schema_narrow_what_is_fetched(
    tmp_path: Path, share: Any, load: Any, spark: Any, server: Any
) -> None:
    table = DeltaTableBuilder(tmp_path / "wide", pa.schema([(f"c{i}", pa.int64()) for i in range(20)]))
    noise = [(i * 2654435761) % 2**32 for i in range(50_000)]
    table.append(pa.table({f"c{i}": noise for i in range(20)}))
    address = share(table)
    whole = sum(file.stat().st_size for file in table.path.glob("*.parquet"))

    def summed(frame: Any) -> tuple[int, bool]:
        server.reset_metrics()
        total = frame.agg({frame.columns[0]: "sum"}).collect()[0][0]
        return total, server.bytes_sent("data") < whole * 0.2

    assert summed(load(address, columns="c3, c7")) == (sum(noise), True)
    by_schema = spark.read.format("deltaSharing").schema("C7 long, c3 bigint").load(address)
    assert summed(by_schema) == (sum(noise), True)
    assert load(address, columns="c3, c7").columns == ["c3", "c7"]


def test_a_nested_field_is_a_column_to_choose(tmp_path: Path, share: Any, load: Any, spark: Any) -> None:
    schema = Struct((Field("id", LONG), Field("s", Struct((Field("x", LONG), Field("y", TEXT))))))
    table = DeltaTableBuilder(tmp_path / "nested", schema).append(
        [{"id": 1, "s": {"x": 2, "y": "z"}}, {"id": 2, "s": None}]
    )
    address = share(table)
    rows = load(address, columns="s.y,id").orderBy("id").collect()
    assert [r.asDict(recursive=True) for r in rows] == [{"s": {"y": "z"}, "id": 1}, {"s": None, "id": 2}]
    user_frame = spark.read.format("deltaSharing").schema("s struct<x: bigint>").load(address)
    assert sorted(repr(r.s) for r in user_frame.collect()) == ["None", "Row(x=2)"]


@pytest.mark.parametrize("limit", [0, 1, 15, 40, 99])
def test_limit_is_exact_and_repeats(tmp_path: Path, share: Any, load: Any, limit: int) -> None:
    address = share(numbers(tmp_path / f"limit{limit}"))
    first, again = values(load(address, limit=limit)), values(load(address, limit=limit))
    assert len(first) == min(limit, 40)
    assert first == again


@pytest.mark.parametrize("conf", ["false", "true"])
@pytest.mark.parametrize("pushdown", ["off", "query"])
def test_a_frame_that_is_reused_stays_exact(
    tmp_path: Path, share: Any, load: Any, spark: Any, conf: str, pushdown: str
) -> None:
    address = share(numbers(tmp_path / f"reuse_{conf}_{pushdown}"))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", conf)
    try:
        if pushdown == "query":
            # The user's word that a frame serves one query: each of these is loaded for its own.
            assert load(address, pushdown="query").where("a = 1").count() == 10
            assert load(address, pushdown="query").count() == 40
            assert load(address, pushdown="query").where("b >= 35 AND s IS NOT NULL AND a IN (2, 3)").count() == 5
            return
        frame = load(address)
        assert frame.where("a = 1").count() == 10
        assert frame.count() == 40
        assert frame.where("a = 1").union(frame.where("a = 2")).count() == 20
        left, right = frame.where("a = 1").alias("l"), frame.where("b < 15").alias("r")
        assert left.join(right, on="b").count() == 5
        frame.createOrReplaceTempView("reused")
        assert spark.sql("SELECT * FROM reused WHERE a = 3").count() == 10
        assert spark.sql("SELECT * FROM reused").count() == 40
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_pushed_filters_skip_files(tmp_path: Path, share: Any, load: Any, spark: Any, server: Any) -> None:
    if not hasattr(DataSourceReader, "pushFilters"):
        pytest.skip("Spark offers filters to Python data sources from 4.1 on")
    address = share(numbers(tmp_path / "pushed"))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        server.reset_metrics()
        assert load(address, pushdown="query").where("a = 2").count() == 10
        assert server.count("data") == 1
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_an_empty_table_has_columns_and_no_rows(tmp_path: Path, share: Any, load: Any) -> None:
    frame = load(share(DeltaTableBuilder(tmp_path / "empty", pa.schema([("id", pa.int64())]))))
    assert (frame.columns, frame.count(), frame.collect()) == (["id"], 0, [])


def test_a_null_that_may_not_be_is_an_error(tmp_path: Path, share: Any, load: Any) -> None:
    schema = Struct((Field("id", LONG, nullable=False),))
    table = DeltaTableBuilder(tmp_path / "required", schema, style=FileStyle(required=False))
    table.append_physical(pa.table({"id": pa.array([1, None], pa.int64())}))
    frame = load(share(table))
    # `id IS NULL` alone never reaches a reader: Spark answers it from the declared nullability. Whatever reads, fails.
    reads = (frame.count, frame.collect, frame.where("id > 0").count)
    assert not_refused(Exception, "has a NULL in column 'id', which the table declares NOT NULL", *reads) == []


def test_defaults_and_delta_metadata_do_not_reach_spark(tmp_path: Path, share: Any, load: Any) -> None:
    metadata = {"CURRENT_DEFAULT": "no_such_function()", "delta.x": 1, "comment": "kept"}
    table = DeltaTableBuilder(tmp_path / "defaults", Struct((Field("id", LONG, metadata=metadata),)))
    frame = load(share(table.append([{"id": 1}])))
    assert frame.schema["id"].metadata == {"comment": "kept"}
    assert frame.count() == 1


def test_a_thousand_columns(tmp_path: Path, share: Any, load: Any) -> None:
    table = DeltaTableBuilder(tmp_path / "thousand", pa.schema([(f"c{i}", pa.int32()) for i in range(1000)]))
    table.append(pa.table({f"c{i}": pa.array([i, None], pa.int32()) for i in range(1000)}))
    rows = sorted(load(share(table)).collect(), key=lambda r: r.c0 is None)
    assert list(rows[0]) == list(range(1000))
    assert set(rows[1]) == {None}


def test_one_large_file_is_read_by_several_tasks_each_row_once(tmp_path: Path, share: Any, load: Any) -> None:
    table = DeltaTableBuilder(tmp_path / "large", pa.schema([("id", pa.int64())]), style=FileStyle(row_group_size=1000))
    table.append(pa.table({"id": list(range(50_000))}))
    frame = load(share(table), maxSplitBytes="64k")
    assert frame.rdd.getNumPartitions() > 3
    assert frame.selectExpr("count(*)", "count(DISTINCT id)", "sum(id)").collect()[0][:] == (
        50_000,
        50_000,
        sum(range(50_000)),
    )


@pytest.mark.connect
def test_a_kept_frame_is_of_the_version_that_was_loaded(tmp_path: Path, share: Any, load: Any) -> None:
    table = numbers(tmp_path / "changed", properties={"delta.columnMapping.mode": "name"})
    kept = load(share(table))
    assert kept.columns == ["a", "b", "s"]  # resolves the load, on Connect too
    rows = kept.count()
    table.drop_column("s").append([{"a": 1000, "b": 1000}])
    assert len(kept.collect()) == rows


BAD: list[tuple[str, dict[str, str], str]] = [
    ("{profile}#share.spark.nothing", {}, "404"),
    ("{profile}#share.nothing", {}, "does not name a table"),
    ("{profile}.missing#a.b.c", {}, "does not exist"),
    ("{table}", {"colums": "a"}, "did you mean 'columns'|'columns'"),
    ("{table}", {"columns": "aa"}, "has no column 'aa'; did you mean 'a'"),
    ("{table}", {"where": "upper(s) = 'X'"}, "upper"),
    ("{table}", {"accessMode": "ftp"}, "auto"),
    ("{table}", {"versionAsOf": "1", "timestampAsOf": "2024-01-01"}, "either provide 'versionAsOf' or 'timestampAsOf'"),
    ("{table}", {"versionAsOf": "99"}, "99"),
    ("{table}", {"readChangeFeed": "true"}, "No startingVersion or startingTimestamp provided"),
    ("{table}", {"readChangeFeed": "true", "startingVersion": "latest"}, "'latest' is for streams"),
    ("{table}", {"startingVersion": "1"}, "'startingVersion' needs readChangeFeed=true"),
    ("{table}", {"accessMode": "dir"}, "accessMode=dir was asked for"),
]


@pytest.mark.parametrize(
    ("address", "options", "says"),
    [  # over Connect an error takes another way, which is one for all
        pytest.param(*bad, id=f"{bad[0]} {bad[1]}", marks=pytest.mark.connect if place % 6 == 0 else ())
        for place, bad in enumerate(BAD)
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    tmp_path: Path, share: Any, load: Any, profile: str, address: str, options: dict[str, str], says: str
) -> None:
    good = share(numbers(tmp_path / "good"))
    with pytest.raises(Exception, match=says):
        load(address.format(profile=profile, table=good), **options).collect()


def test_a_wrong_token_is_said_to_be_wrong(tmp_path: Path, share: Any, load: Any, server: SharingServer) -> None:
    good = share(numbers(tmp_path / "token"))
    name = good.rpartition("#")[2]
    with pytest.raises(Exception, match=r"401.*ask the provider for a new profile") as caught:
        load(
            name, endpoint=server.endpoint, bearerToken="wrong-token-0123456789", shareCredentialsVersion="1"
        ).collect()
    assert "wrong-token-0123456789" not in str(caught.value)


@pytest.mark.connect
def test_registered_under_another_name(tmp_path: Path, share: Callable[..., str], spark: Any) -> None:
    import delta_sharing_spark

    address = share(numbers(tmp_path / "named"))
    delta_sharing_spark.register(spark, name="sharedDelta", engine="python")
    assert spark.read.format("sharedDelta").load(address).count() == 40
