"""``register(spark)``: batch loads of the format are DataFrames of the native lane."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.readwriter import DataFrameReader

import delta_sharing_spark
from delta_sharing_spark.errors import ConfigError, DeltaSharingError, OptionError
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support.refusals import not_refused

SCHEMA = pa.schema(
    {"id": pa.int64(), "part": pa.string(), "s": pa.struct({"x": pa.int32(), "t": pa.string()}), "day": pa.date32()}
)
VECTORS = {"delta.enableDeletionVectors": "true", "delta.columnMapping.mode": "name"}
MODES = ("url", "dir")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharingServer]:
    root = tmp_path_factory.mktemp("format")
    days = itertools.count(1_704_067_200_000, 86_400_000)
    built = DeltaTableBuilder(root / "t", SCHEMA, ["part"], VECTORS, clock=lambda: next(days))
    for first in range(0, 60, 20):
        built.append([{"id": i, "part": "ab"[i % 2], "s": {"x": i, "t": f"t{i}"}} for i in range(first, first + 20)])
    built.delete(lambda t: pc.equal(pc.bit_wise_and(t["id"], 3), 3), deletion_vectors=True)
    with SharingServer() as server:
        server.add_table("format.d.t", built.path, access_modes=MODES)
        yield server


@pytest.fixture
def address(shared: SharingServer, tmp_path: Path) -> str:
    return f"{shared.write_profile(tmp_path / 'config.share')}#format.d.t"


@pytest.fixture
def automatic(spark: Any) -> Iterator[Any]:
    """The session, whose loads of the format take the lane."""
    delta_sharing_spark.register(spark, engine="python")
    own = DataFrameReader.load
    delta_sharing_spark.register(spark)
    yield spark
    delta_sharing_spark.register(spark, engine="python")
    assert DataFrameReader.load is own


def is_lane(frame: Any) -> bool:
    return "SharedTableIndex" in frame._jdf.queryExecution().analyzed().toString() or any(
        path.startswith("webhdfs:") for path in frame.inputFiles()
    )


def texts(frame: Any) -> list[str]:
    return sorted(map(repr, frame.collect()))


LOADS: list[dict[str, str]] = [
    {},
    {"accessMode": "dir"},
    {"where": "id > 10 AND part = 'a'", "columns": "s.x,id"},
    {"versionAsOf": "2", "accessMode": "url"},
    {"timestampAsOf": "2024-01-03T00:00Z"},
    {"limit": "13", "accessMode": "url"},
    {"limit": "13", "accessMode": "dir", "columns": "part"},
    {"pushdown": "query", "responseFormat": "delta"},
]
GIVEN = ["id long", "`part` string, ID long", "s struct<t: string>, id long NOT NULL", "day date"]


@pytest.mark.parametrize("options", LOADS, ids=str)
def test_options(spark: Any, automatic: Any, address: str, options: dict[str, str]) -> None:
    lane = automatic.read.format("deltaSharing").options(**options).load(address)
    delta_sharing_spark.register(spark, engine="python")
    python = spark.read.format("deltaSharing").options(**options).load(address)
    assert is_lane(lane)
    assert not is_lane(python)
    assert lane.dtypes == python.dtypes

    def answers(frame: Any) -> list[Any]:
        counted = frame.where(frame[frame.columns[0]].isNotNull()).groupBy().count()
        return [texts(query) for query in (frame, counted, frame.limit(0))]

    assert answers(lane) == answers(python)


@pytest.mark.parametrize("schema", GIVEN)
def test_a_schema_that_the_user_gives(spark: Any, automatic: Any, address: str, schema: str) -> None:
    lane = automatic.read.schema(schema).load(address, format="DELTASHARING", where="id > 5")
    delta_sharing_spark.register(spark, engine="python")
    python = spark.read.schema(schema).format("deltaSharing").option("where", "id > 5").load(address)
    assert lane.dtypes == python.dtypes
    assert texts(lane) == texts(python)
    assert is_lane(lane) == ("ID" not in schema)


def test_what_is_not_a_batch_load_of_this_format_stays_as_it_is(
    automatic: Any, address: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    automatic.range(3).write.parquet(str(tmp_path / "p"))
    assert automatic.read.load([str(tmp_path / "p")]).count() == 3
    assert automatic.read.format("parquet").schema("id long").load(str(tmp_path / "p")).count() == 3
    automatic.sql(f"CREATE TEMPORARY VIEW by_sql USING deltaSharing OPTIONS (path '{address}')")
    assert not is_lane(automatic.table("by_sql"))
    automatic.catalog.dropTempView("by_sql")
    stream = automatic.readStream.format("deltaSharing").load(address)
    loaded: list[Any] = []
    with caplog.at_level("INFO", "delta_sharing_spark.spark"):
        query = (
            stream.writeStream.trigger(availableNow=True)
            .option("checkpointLocation", str(tmp_path / "c"))
            .foreachBatch(lambda f, _: loaded.append(f.sparkSession.read.format("deltaSharing").load(address)))
            .start()
        )
        query.awaitTermination()
    assert loaded
    assert all(map(is_lane, loaded)), "a session that Spark cloned reads as the one it is cloned from"
    assert "format.d.t: native lane" in caplog.text
    with caplog.at_level("INFO", "delta_sharing_spark.spark"):
        limited = automatic.read.format("deltaSharing").options(limit="3", where="id > 1").load(address)
    assert not is_lane(limited)
    assert "Python data source (a load with a limit" in caplog.text
    assert limited.count() == 3


def test_credentials_in_options_and_no_path(automatic: Any, shared: SharingServer) -> None:
    profile = {k: str(v) for k, v in json.loads(json.dumps(shared.profile())).items()}
    frame = automatic.read.format("deltaSharing").options(**profile, path="format.d.t").load()
    assert is_lane(frame)
    assert frame.count() == 45
    assert profile["bearerToken"] not in frame._jdf.queryExecution().toString()


def test_errors_are_one_line(automatic: Any, address: str) -> None:
    reader = automatic.read.format("deltaSharing")
    with pytest.raises(OptionError, match="unknown option 'wher'; did you mean 'where'"):
        reader.option("wher", "id > 1").load(address)
    with pytest.raises(DeltaSharingError, match=r"format\.d\.u"):
        automatic.read.format("deltaSharing").load(address.replace("d.t", "d.u"))
    with pytest.raises(DeltaSharingError, match="no column 'idd'; did you mean 'id'"):
        automatic.read.format("deltaSharing").schema("idd long").load(address)
    with pytest.raises(Exception, match="path"):
        automatic.read.format("deltaSharing").load()


def test_another_name_and_undoing(spark: Any, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own: Callable[..., Any] = DataFrameReader.load
    with pytest.raises(OptionError, match="engine='fast' is not known"):
        delta_sharing_spark.register(spark, engine="fast")
    delta_sharing_spark.register(spark, "shared_by_lane", engine="native")
    try:
        assert re.search("PySpark|Loads data", DataFrameReader.load.__doc__ or "")
        assert is_lane(spark.read.format("shared_by_lane").load(address))
        assert not is_lane(spark.read.format("deltaSharing").load(address))
        delta_sharing_spark.register(spark)
        assert is_lane(spark.read.format("deltaSharing").load(address))
    finally:
        delta_sharing_spark.register(spark, "shared_by_lane", engine="python")
        assert not is_lane(spark.read.format("shared_by_lane").load(address))
        delta_sharing_spark.register(spark, engine="python")
    assert DataFrameReader.load is own
    assert not is_lane(spark.read.format("deltaSharing").load(address))


@pytest.mark.connect
def test_writes_are_refused_where_the_format_is_named(spark: Any, tmp_path: Path) -> None:
    delta_sharing_spark.register(spark, engine="python")
    frame, rows = spark.range(3), spark.readStream.format("rate").load()
    writes = (
        lambda: frame.write.format("DeltaSharing"),
        lambda: frame.write.mode("append").save(str(tmp_path / "t"), format="deltaSharing"),
        lambda: frame.writeTo("written").using("deltaSharing"),
        lambda: rows.writeStream.format("deltaSharing"),
    )
    assert not_refused(ConfigError, r"^Delta Sharing is read-only: .* write to a table of your own", *writes) == []
    frame.write.format("parquet").save(str(tmp_path / "p"))
    assert spark.read.parquet(str(tmp_path / "p")).count() == 3


def test_a_session_that_takes_no_setting_keeps_the_python_source(
    spark: Any, address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(self: Any, key: str, *_: Any) -> None:
        raise AnalysisException(f"[CONFIG_NOT_AVAILABLE] Configuration {key} is not available")

    monkeypatch.setattr(type(spark.conf), "set", refused)
    with caplog.at_level("INFO", "delta_sharing_spark.spark"):
        delta_sharing_spark.register(spark)
    assert "spark.deltasharing.engine" in caplog.text
    assert "the Python data source reads" in caplog.text
    assert not is_lane(spark.read.format("deltaSharing").load(address))
    with pytest.raises(AnalysisException, match="CONFIG_NOT_AVAILABLE"):
        delta_sharing_spark.register(spark, engine="native")
    monkeypatch.setattr(type(spark.conf), "unset", refused)
    delta_sharing_spark.register(spark, engine="python")


@pytest.mark.connect_only
def test_a_connect_server_in_this_process(
    spark: Any, load: Callable[..., Any], share: Callable[..., Any], tmp_path: Path
) -> None:
    built = DeltaTableBuilder(tmp_path / "t", SCHEMA).append([{"id": i, "part": "ab"[i % 2]} for i in range(20)])
    address = share(built)
    delta_sharing_spark.register(spark)
    try:
        lane = load(address)
        assert all(path.startswith("webhdfs:") for path in lane.inputFiles())
        assert lane.where("id > 15").count() == 4
        assert load(address, where="id > 1", limit="3").inputFiles() == [], "the Python source reads"
    finally:
        delta_sharing_spark.register(spark, engine="python")
    assert load(address).inputFiles() == []
