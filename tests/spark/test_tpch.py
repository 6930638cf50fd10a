"""TPC-H's 22 queries by ``client.sql`` give exactly what Spark gives on the same tables as local Parquet files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from delta_sharing_spark import SharingClient
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from spark.parquet_twins import create_twin

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from tpch_data import tables
from tpch_queries import QUERIES


@pytest.fixture(scope="module")
def client(
    spark: Any, server: SharingServer, profile: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SharingClient]:
    root = tmp_path_factory.mktemp("tpch")
    spark.sql("CREATE DATABASE tpch")
    for name, rows in tables(0.002).items():
        server.add_table(f"tpch.sf.{name}", DeltaTableBuilder(root / name, rows.schema).append(rows, files=2).path)
        create_twin(spark, "tpch", name, rows, root)
    yield SharingClient(profile)
    spark.sql("DROP DATABASE tpch CASCADE")


@pytest.mark.parametrize("number", QUERIES)
def test_query(client: SharingClient, spark: Any, number: int) -> None:
    expected = spark.sql(QUERIES[number].replace("tpch.sf.", "spark_catalog.tpch.")).toArrow()
    answered = client.sql(spark, QUERIES[number]).toArrow()
    assert answered.to_pylist() == expected.to_pylist()
    assert answered.schema.names == expected.schema.names
    assert expected.num_rows > 0
    assert any(value is not None for value in expected.to_pylist()[0].values())
