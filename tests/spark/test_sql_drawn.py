"""``client.sql`` on drawn queries, against the same queries over the whole tables as Parquet files.

The same queries each time; ``nox -s fuzz-sql`` draws others (``--drawn-queries=N --drawn-seed=S``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from drawn_queries import Queries, tables
from parquet_twins import create_twin
from pyspark.errors import PySparkException

from delta_sharing_spark import SharingClient
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder


def answer(frame: Any) -> tuple[list[str], list[str]] | str:
    """Columns and sorted rows; the class of the error where executing fails."""
    try:
        return frame.columns, sorted(repr(tuple(row)) for row in frame.collect())
    except PySparkException as error:
        return str(error.getCondition())


@pytest.mark.timeout(6 * 3600)  # nox -s fuzz-sql draws a thousand
def test_drawn_queries_answer_as_over_whole_tables(
    spark: Any, server: SharingServer, profile: str, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    count, seed = pytestconfig.getoption("--drawn-queries"), pytestconfig.getoption("--drawn-seed")
    spark.sql("CREATE DATABASE IF NOT EXISTS drawn")
    for name, rows in tables(seed).items():
        table = DeltaTableBuilder(tmp_path / name, rows.schema)
        for start in range(0, rows.num_rows, 10):
            table.append(rows.slice(start, 10))
        server.add_table(f"odd.names.{name}", table.path)
        create_twin(spark, "drawn", name, rows, tmp_path)
    client, queries = SharingClient(profile), Queries(seed)
    compared = refused = 0
    wrong = []
    try:
        while compared < count:
            text = queries.query()
            try:
                expected = spark.sql(text.replace("@", "spark_catalog.drawn"))
            except PySparkException:
                refused += 1
                assert refused < 20 + 2 * count, "most drawn queries are no queries"
                continue
            compared += 1
            # A query that fails for some of the whole table's rows may succeed on the rows that it needs, never the reverse.
            whole, found = answer(expected), answer(client.sql(spark, text.replace("@", "odd.names")))
            if whole != found and not (isinstance(whole, str) and not isinstance(found, str)):
                wrong.append((text, whole, found))
    finally:
        spark.sql("DROP DATABASE drawn CASCADE")
    assert not wrong, f"{len(wrong)} of {compared} (seed {seed}): {wrong[0]}"
