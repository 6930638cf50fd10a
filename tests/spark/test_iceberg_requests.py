"""What Spark asks a storage for of an Iceberg table of many files, and what it refuses by name."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import DataSourceReader

from support.shared_iceberg import SharedIceberg

pytestmark = pytest.mark.spark
FILES = 200


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedIceberg]:
    with SharedIceberg(tmp_path_factory.mktemp("lake")) as server:
        for number in range(FILES):
            server.writer.insert([{1: 10 * number + n, 2: f"{n}" * 50} for n in range(10)])
        server.writer.commit()
        yield server


@pytest.mark.parametrize("way", ["client", "python", "native"])
def test_a_filter_that_leaves_one_of_many_files(spark: Any, lake: SharedIceberg, way: str) -> None:
    table, where = lake.client().table("s.db.t"), "id = 1234"
    if way == "python" and not hasattr(DataSourceReader, "pushFilters"):
        pytest.skip("Spark offers filters to Python data sources from 4.1 on")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    lake.reset_metrics()
    try:
        if way == "client":
            ids = table.scan(where=where).to_arrow()["id"].to_pylist()
        else:
            frame = table.scan(pushdown="query").to_spark(spark, engine=way)
            ids = [row.id for row in frame.where(where).collect()]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert ids == [1234]
    opened = [request.path for request in lake.requests if request.kind in ("data", "log")]
    assert len(opened) <= 5, opened


@pytest.mark.parametrize("engine", ["client", "native", "python"])
def test_the_first_rows_cost_little_more_than_a_file(spark: Any, tmp_path: Path, engine: str) -> None:
    """Spark tells a Python source no limit: there the load has it."""
    draw = random.Random(1)
    with SharedIceberg(tmp_path) as lake:
        for _ in range(8):
            lake.writer.insert([{1: n, 2: draw.randbytes(1 << 17).hex()} for n in range(8)])
        lake.writer.commit()
        size = max(file.stat().st_size for file in tmp_path.glob("t/data/*"))
        table = lake.client().table("s.db.t")
        if engine == "client":
            rows: Any = table.head(5)
        elif engine == "native":
            rows = table.to_spark(spark, engine="native").take(5)
        else:
            rows = table.limit(5).to_spark(spark, engine="python").collect()
        assert len(rows) == 5
        read = sum(request.bytes for request in lake.requests if request.path.endswith(".parquet"))
        assert read < 1.5 * size, read / size


@pytest.mark.connect
def test_streams_and_feeds_are_refused_by_name(spark: Any, lake: SharedIceberg, tmp_path: Path) -> None:
    path = f"{lake.write_profile(tmp_path / 'p.share')}#s.db.t"
    feed = {"readChangeFeed": "true", "startingVersion": "0"}
    with pytest.raises(Exception, match="readChangeFeed of an Iceberg table is not read"):
        spark.read.format("deltaSharing").options(**feed).load(path).collect()
    with pytest.raises(Exception, match="a stream of an Iceberg table is not read"):
        started(spark.readStream.format("deltaSharing").load(path), tmp_path / "a")
    with pytest.raises(Exception, match=r"(readChangeFeed|a stream) of an Iceberg table is not read"):
        started(spark.readStream.format("deltaSharing").options(**feed).load(path), tmp_path / "b")


def started(frame: Any, checkpoint: Path) -> None:
    query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
