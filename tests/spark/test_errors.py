"""What a mistake prints: Spark's own line, ours, and no frame of a worker."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from delta_sharing_spark import SharingClient
from delta_sharing_spark.errors import ConfigError, DeltaSharingError
from delta_sharing_spark.schema.types import Field, Primitive, Struct
from delta_sharing_spark.testing.tables import DeltaTableBuilder

pytestmark = pytest.mark.connect

SCHEMA = Struct((Field("id", Primitive("long")), Field("city", Primitive("string"))))


@pytest.fixture(scope="module")
def address(server: Any, profile: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    table = DeltaTableBuilder(tmp_path_factory.mktemp("errors") / "trips", SCHEMA)
    table.append([{"id": 1, "city": "Lisbon"}])
    server.add_table("share.errors.trips", table.path)
    return f"{profile}#share.errors.trips"


@pytest.fixture(scope="module")
def gone(server: Any, profile: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    table = DeltaTableBuilder(tmp_path_factory.mktemp("errors") / "gone", SCHEMA)
    table.append([{"id": 1, "city": "Lisbon"}])
    for file in Path(table.path).glob("*.parquet"):
        file.unlink()
    server.add_table("share.errors.gone", table.path)
    return f"{profile}#share.errors.gone"


def _message(spark: Any, action: Callable[[], object]) -> list[str]:
    """The lines of the error that ``action`` raises, without the Connect server's own stack trace."""
    with pytest.raises(PySparkException) as caught:
        action()
    return str(caught.value).split("\n\nJVM stacktrace:")[0].strip().splitlines()


MISTAKES: dict[str, tuple[Callable[[Any, str], object], str]] = {
    "an option, at load()": (
        lambda read, path: read.option("versionAsOff", "1").load(path).show(),
        "OptionError: share.errors.trips: unknown option 'versionasoff'; did you mean 'versionAsOf'?",
    ),
    "an option of another source": (
        lambda read, path: read.option("header", "true").load(path).show(),
        "OptionError: share.errors.trips: unknown option 'header'; https://delta-sharing-spark.github.io/delta-sharing-spark/options.html lists the known ones",
    ),
    "a table": (lambda read, path: read.load(path + "s").show(), "NotFoundError: "),
    "a condition": (
        lambda read, path: read.option("where", "city = ").load(path).show(),
        "PredicateError: share.errors.trips: where",
    ),
    "a condition, at planning": (
        lambda read, path: read.schema("id long").option("where", "city = ").load(path).show(),
        "PredicateError: share.errors.trips: where",
    ),
    "a version": (lambda read, path: read.option("versionAsOf", "9").load(path).show(), "VersionError: version 9 of"),
    "a type, at planning": (lambda read, path: read.schema("id string").load(path).show(), "SchemaError: column 'id'"),
    "no path": (lambda read, path: read.load().show(), "CREATE TEMPORARY VIEW"),
    "no path and a schema": (lambda read, path: read.schema("id long").load().show(), "CREATE TEMPORARY VIEW"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_prints_our_message_and_no_frame(spark: Any, address: str, mistake: str) -> None:
    action, ours = MISTAKES[mistake]
    lines = _message(spark, lambda: action(spark.read.format("deltaSharing"), address))
    assert len(lines) <= 2, lines
    assert ours in lines[0]


CLIENT_MISTAKES: dict[str, Callable[[SharingClient, Any], object]] = {
    "a table": lambda client, spark: client.table("share.errors.tripz").to_spark(spark),
    "a condition": lambda client, spark: client.table("share.errors.trips").scan(where="x = 1").to_spark(spark),
    "a table of a query": lambda client, spark: client.sql(spark, "SELECT * FROM share.errors.tripz").collect(),
    "a column of a query": lambda client, spark: client.sql(spark, "SELECT town FROM share.errors.trips").collect(),
    "a query": lambda client, spark: client.sql(spark, "SELEC id FROM share.errors.trips").collect(),
    "a view": lambda client, spark: client.register(spark, ["share.errors.tripz"]),
}


@pytest.mark.parametrize("mistake", CLIENT_MISTAKES)
def test_a_mistake_by_the_client_prints_no_frame_of_ours_nor_of_sparks(
    spark: Any, profile: str, address: str, mistake: str
) -> None:
    with pytest.raises((DeltaSharingError, PySparkException)) as caught:
        CLIENT_MISTAKES[mistake](SharingClient(profile), spark)
    frames = traceback.extract_tb(caught.value.__traceback__)
    ours = [frame for frame in frames if "delta_sharing_spark" in Path(frame.filename).parts]
    if "collect" not in [frame.name for frame in frames]:  # on Connect a query's columns are looked up when it runs
        assert ours == frames[-1:]
    assert len(ours) <= 1
    assert caught.value.__suppress_context__


def test_a_failure_of_a_task_prints_our_message_and_no_frame(spark: Any, gone: str) -> None:
    lines = _message(spark, lambda: spark.read.format("deltaSharing").load(gone).collect())
    assert len(lines) <= 4, lines
    assert any("FileGoneError: file" in line and "share.errors.gone" in line for line in lines[-2:])


def test_a_failure_of_a_stream_names_itself_in_its_first_line(spark: Any, address: str, tmp_path: Path) -> None:
    def run() -> None:
        stream = spark.readStream.format("deltaSharing").option("startingVersion", "7").load(address)
        sink = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
        sink.trigger(availableNow=True).start().awaitTermination()

    lines = _message(spark, run)
    assert "VersionError: startingVersion 7" in lines[0]
    assert not any(line.startswith("  File ") for line in lines)


TABLES = {
    "CREATE TABLE": lambda spark, path: spark.sql(f"CREATE TABLE shared_1 USING deltaSharing LOCATION '{path}'"),
    "CREATE TABLE with options": lambda spark, path: spark.sql(
        f"CREATE TABLE shared_2 USING deltaSharing OPTIONS (path '{path}')"
    ),
    "createTable": lambda spark, path: spark.catalog.createTable("shared_3", path=path, source="deltaSharing").show(),
}


@pytest.mark.parametrize("way", TABLES)
def test_a_table_of_the_catalogue_is_refused_for_a_view(spark: Any, address: str, way: str) -> None:
    (line, *_) = _message(spark, lambda: TABLES[way](spark, address))
    assert "CREATE TEMPORARY VIEW name USING deltaSharing OPTIONS (path '" in line
    assert "#share.errors.trips')" in line


def test_a_table_of_the_catalogue_with_columns_is_refused_when_it_is_read(spark: Any, address: str) -> None:
    spark.sql(f"CREATE TABLE shared_4 (id long) USING deltaSharing LOCATION '{address}'")
    try:
        (line, *_) = _message(spark, lambda: spark.table("shared_4").collect())
    finally:
        spark.sql("DROP TABLE shared_4")
    assert "CREATE TEMPORARY VIEW" in line


@pytest.mark.parametrize(
    "write",
    [
        lambda frame, path: frame.write.format("deltaSharing").mode("append").save(path),
        lambda frame, path: frame.write.format("deltaSharing").mode("overwrite").save(path),
        lambda frame, path: frame.write.format("deltaSharing").saveAsTable("shared_5"),
        lambda frame, path: frame.writeTo("shared_6").using("deltaSharing").create(),
    ],
)
def test_writing_is_refused_as_read_only(spark: Any, address: str, write: Any) -> None:
    # Where the format is named, once `register` was called in the process; else by Spark's own error of the write.
    with pytest.raises((ConfigError, PySparkException)) as caught:
        write(spark.range(1), address)
    assert "Delta Sharing is read-only" in str(caught.value).splitlines()[0]
