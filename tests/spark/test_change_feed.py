"""The change data feed as a Spark DataFrame: what the table's builder knows, whatever is asked of it, in both modes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import delta_sharing_spark
from delta_sharing_spark.testing.tables import DeltaTableBuilder

MODES = ("url", "dir")
SCHEMA = pa.schema({"id": pa.int64(), "part": pa.string(), "n": pa.int32()})
PROPERTIES = {
    "delta.enableChangeDataFeed": "true",
    "delta.enableDeletionVectors": "true",
    "delta.columnMapping.mode": "name",
}


@pytest.fixture(params=["python", "auto"])
def load(request: pytest.FixtureRequest, spark: Any, spark_mode: str) -> Iterator[Callable[..., Any]]:
    """``spark.read.format("deltaSharing")`` as the Python source reads it, and by the native lane."""
    if request.param == "auto" and spark_mode != "classic":
        pytest.skip("on Connect the server plans")
    delta_sharing_spark.register(spark, engine=request.param)

    def read(address: str, **options: Any) -> Any:
        frame = spark.read.format("deltaSharing").options(**options).load(address)
        if request.param == "auto" and "limit" not in options:
            assert "SharedTableIndex" in frame._jdf.queryExecution().toString()
        return frame

    yield read
    delta_sharing_spark.register(spark, engine="python")


@pytest.fixture
def table(tmp_path: Path) -> DeltaTableBuilder:
    """Versions: 1 append, 2 delete by vectors, 3 update, 4 rename, 5 append."""
    rows = [{"id": i, "part": "ab"[i % 2], "n": i * i} for i in range(20)]
    built = DeltaTableBuilder(tmp_path / "feed", SCHEMA, ["part"], PROPERTIES).append(rows, files=2)
    built.delete(pc.field("id") < 3, deletion_vectors=True)
    built.update(pc.field("id") > 17, lambda rows: rows.set_column(2, "n", pc.negate(rows["n"])))
    return built.rename_column("n", "square").append([{"id": 30, "part": "a", "square": 900}])


def texts(rows: list[Any]) -> list[str]:
    return sorted(repr([row[name] for name in sorted(row)]) for row in rows)


@pytest.mark.parametrize("mode", [MODES[0], pytest.param(MODES[1], marks=pytest.mark.connect)])
def test_a_feed_is_a_frame(share: Any, load: Any, table: DeltaTableBuilder, mode: str) -> None:
    address = share(table, access_modes=MODES)
    feed = load(address, accessMode=mode, readChangeFeed="true", startingVersion="0")
    expected = table.expected_changes().to_pylist()
    assert feed.columns == ["id", "part", "square", "_change_type", "_commit_version", "_commit_timestamp"]
    assert dict(feed.dtypes)["_commit_timestamp"] == "timestamp"
    assert texts(feed.toArrow().to_pylist()) == texts(expected)
    assert feed.count() == len(expected)
    kinds = {row["_change_type"]: row["count"] for row in feed.groupBy("_change_type").count().collect()}
    assert kinds == {"insert": 21, "delete": 3, "update_preimage": 2, "update_postimage": 2}
    assert feed.filter("_change_type = 'delete' and part = 'b'").select("id").collect() == [(1,)]


@pytest.mark.parametrize("mode", MODES)
def test_what_narrows_a_feed(share: Any, load: Any, table: DeltaTableBuilder, mode: str) -> None:
    address = share(table, access_modes=MODES)
    asked = {"accessMode": mode, "readChangeFeed": "true", "startingVersion": "0"}
    first = load(address, **asked, endingVersion="3", commitTimestampType="long", columns="_commit_timestamp,n")
    assert first.dtypes == [("_commit_timestamp", "bigint"), ("n", "int")]  # the name of then
    assert first.count() == table.expected_changes(0, 3).num_rows
    pushed = load(address, **asked, pushdown="query").filter("_change_type like 'update%' and id = 18 and square < 0")
    assert [row["_change_type"] for row in pushed.collect()] == ["update_postimage"]
    chosen = load(address, **asked, where="_commit_version = 5", limit="5")
    assert [(row["id"], row["square"]) for row in chosen.collect()] == [(30, 900)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("first", "last"), [("4", "4"), ("6", "6"), ("6", "9")])
def test_an_empty_range_is_an_empty_frame(
    share: Any, load: Any, table: DeltaTableBuilder, mode: str, first: str, last: str
) -> None:
    address = share(table, access_modes=MODES)
    whole = load(address, accessMode=mode, readChangeFeed="true", startingVersion="0")
    feed = load(address, accessMode=mode, readChangeFeed="true", startingVersion=first, endingVersion=last)
    assert feed.dtypes == whole.dtypes
    assert feed.collect() == []


@pytest.mark.parametrize("mode", MODES)
def test_a_range_that_is_not_there_is_said_in_one_line(
    share: Any, load: Any, table: DeltaTableBuilder, mode: str
) -> None:
    address = share(table, access_modes=MODES)
    with pytest.raises(Exception, match=r"VersionError: version 9 of \S+ does not exist: the newest is 5; start at 6"):
        load(address, accessMode=mode, readChangeFeed="true", startingVersion="9").collect()
