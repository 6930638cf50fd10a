"""Tables as Parquet files in Spark's own catalog: the oracle of queries over the shared ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def create_twin(spark: Any, database: str, name: str, rows: pa.Table, root: Path) -> None:
    """``spark_catalog.database.name`` over one file under ``root``."""
    path = root / f"{name}_parquet"
    path.mkdir()
    pq.write_table(rows, path / "0.parquet")
    spark.sql(f"CREATE TABLE {database}.{name} USING parquet LOCATION '{path}'")
