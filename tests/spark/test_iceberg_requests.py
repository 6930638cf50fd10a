"""What Spark asks a storage for of an Iceberg table of many files, and what it refuses by name."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

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


WAYS: dict[str, Callable[[Any, SharedIceberg, str], Any]] = {
    "client": lambda spark, lake, where: lake.client().table("s.db.t").scan(where=where).to_arrow()["id"].to_pylist(),
    "python": lambda spark, lake, where: [
        row.id for row in lake.client().table("s.db.t").to_spark(spark, engine="python").where(where).collect()
    ],
    "native": lambda spark, lake, where: [
        row.id for row in lake.client().table("s.db.t").to_spark(spark, engine="native").where(where).collect()
    ],
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_filter_that_leaves_one_of_many_files(spark: Any, lake: SharedIceberg, way: str) -> None:
    if way == "python":
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    lake.reset_metrics()
    assert WAYS[way](spark, lake, "id = 1234") == [1234]
    opened = [request.path for request in lake.requests if request.kind in ("data", "log")]
    assert len(opened) <= 5, opened


@pytest.mark.parametrize("engine", ["client", "python", "native"])
def test_the_first_rows_cost_little_more_than_a_file(spark: Any, tmp_path: Path, engine: str) -> None:
    draw = random.Random(1)
    with SharedIceberg(tmp_path) as lake:
        for _ in range(8):
            lake.writer.insert([{1: n, 2: draw.randbytes(1 << 17).hex()} for n in range(8)])
        lake.writer.commit()
        size = max(file.stat().st_size for file in tmp_path.glob("t/data/*"))
        table = lake.client().table("s.db.t")
        rows = table.head(5) if engine == "client" else table.to_spark(spark, engine=engine).take(5)
        assert len(rows) == 5
        read = sum(request.bytes for request in lake.requests if request.path.endswith(".parquet"))
        assert read < 1.5 * size, read / size


@pytest.mark.connect
def test_streams_and_feeds_are_refused_by_name(spark: Any, lake: SharedIceberg, tmp_path: Path) -> None:
    path = f"{lake.write_profile(tmp_path / 'p.share')}#s.db.t"
    feed = {"readChangeFeed": "true", "startingVersion": "0"}
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: spark.read.format("deltaSharing").options(**feed).load(path).collect(), "readChangeFeed"),
        (lambda: started(spark.readStream.format("deltaSharing").load(path), tmp_path / "a"), "a stream"),
        (
            lambda: started(spark.readStream.format("deltaSharing").options(**feed).load(path), tmp_path / "b"),
            "readChangeFeed|a stream",
        ),
    ]
    for call, words in refused:
        with pytest.raises(Exception, match=f"({words}) of an Iceberg table is not read"):
            call()


def started(frame: Any, checkpoint: Path) -> None:
    query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
