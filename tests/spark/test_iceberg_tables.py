"""Iceberg tables in Spark, by the native lane, the Python source and the format, beside the answers of Spark's own Iceberg reader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from delta_sharing_spark import SharingClient
from support.iceberg_lake import STORED, IcebergLake

pytestmark = pytest.mark.spark

TABLES = sorted(path.stem for path in (STORED / "answers").glob("*.parquet") if "@" not in path.stem)


def rows(frame: Any) -> list[str]:
    return sorted(map(repr, frame.toArrow().to_pylist()))


def answer(name: str) -> list[str]:
    """What Spark's own reader said."""
    return sorted(map(repr, pq.ParquetFile(STORED / "answers" / f"{name}.parquet").read().to_pylist()))


@pytest.fixture(scope="module")
def lake() -> Iterator[IcebergLake]:
    with IcebergLake() as running:
        yield running
        assert not running.failures


@pytest.mark.parametrize("name", TABLES)
def test_every_table_by_the_client(lake: IcebergLake, name: str) -> None:
    rows_read = SharingClient(lake.profile()).table(f"s.db.{name}").scan().to_arrow()
    assert sorted(map(repr, rows_read.to_pylist())) == answer(name)


@pytest.mark.parametrize("engine", ["native", "python"])
@pytest.mark.parametrize("name", TABLES)
def test_every_table_in_both_lanes(spark: Any, lake: IcebergLake, name: str, engine: str) -> None:
    scan = SharingClient(lake.profile()).table(f"s.db.{name}").scan()
    assert rows(scan.to_spark(spark, engine=engine)) == answer(name)


@pytest.mark.connect
@pytest.mark.parametrize("name", TABLES)
def test_every_table_by_the_format(spark: Any, lake: IcebergLake, tmp_path: Path, name: str) -> None:
    profile = lake.write_profile(tmp_path / "p.share")
    assert rows(spark.read.format("deltaSharing").load(f"{profile}#s.db.{name}")) == answer(name)


@pytest.mark.parametrize("engine", ["native", "python"])
def test_conditions_over_defaults_and_partition_values(spark: Any, engine: str) -> None:
    """What stands in for a column that files lack is what conditions see."""
    with IcebergLake() as lake:
        client = SharingClient(lake.profile())
        frame = client.table("s.db.everything").scan().to_spark(spark, engine=engine)
        counts = [frame.where(text).count() for text in ("num = 5", "num > 5", "s.inner = 17", "dflt IS NULL")]
        assert counts == [33, 1, 33, 1]
        frame = client.table("s.db.imported").scan().to_spark(spark, engine=engine)
        assert [frame.where(text).count() for text in ("piece = 1", "piece IS NULL", "more IS NULL")] == [3, 0, 6]
