"""Drawn histories of tables by Spark's Iceberg runtime, read by the client, the lane, the Python source and the format beside its own answers.

``--drawn-seed=7 --drawn-histories=1`` repeats the one of seed 7; what fails shows all of its steps.
"""

from __future__ import annotations

from datetime import timezone
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from delta_sharing_spark import SharingClient
from iceberg.histories import History
from support.iceberg_lake import IcebergLake

#: Steps after the first rows, and how many of them lie between two comparisons.
_STEPS, _BETWEEN = 12, 4
ENGINES = ("native", "python", "format")


def rows(table: pa.Table) -> list[str]:
    """Rows in any order; a NaN is equal to itself."""
    return sorted(map(repr, table.to_pylist()))


class Comparison:
    """One table beside Spark's own reader of it."""

    def __init__(self, spark: Any, lake: IcebergLake, history: History, draw: Random) -> None:
        self._spark, self._draw, self._history = spark, draw, history
        self._name = lake.share(history.folder)
        self._profile = lake.write_profile(history.folder / "p.share")
        self._table = SharingClient(lake.profile()).table(self._name)

    def _frame(self, engine: str, **options: Any) -> Any:
        if engine != "format":
            return self._table.scan(**options).to_spark(self._spark, engine=engine)
        reader = self._spark.read.format("deltaSharing").options(**options)
        return reader.load(f"{self._profile}#{self._name}")

    def _same(self, found: pa.Table, expected: pa.Table, *what: object) -> None:
        steps = ";\n".join(self._history.steps)
        assert found.column_names == expected.column_names, (what, steps)
        assert rows(found) == rows(expected), f"{what} after\n{steps}"

    def now(self) -> None:
        """The newest rows, whole and by conditions and columns, each by the client and by one way of Spark's."""
        table = self._spark.table(f"db.{self._history.name}")
        expected = table.toArrow()
        # Iceberg's own filters leave out files with a NaN that is greater than what is asked for, as Spark has it.
        own = self._spark.createDataFrame(expected, table.schema)
        self._same(self._table.to_arrow(), expected, "client")
        assert self._table.count() == expected.num_rows
        for engine in ENGINES:
            self._same(self._frame(engine).toArrow(), expected, engine)
        for _ in range(3):
            where, engine = self._history.condition(), self._draw.choice(ENGINES)
            columns = self._draw.sample(own.columns, self._draw.randint(1, len(own.columns)))
            left = own.where(where).select(columns).toArrow()
            self._same(self._table.scan(where=where, columns=columns).to_arrow(), left, "client", where, columns)
            self._same(self._frame(engine).where(where).select(columns).toArrow(), left, engine, where, columns)

    def earlier(self) -> None:
        """Some snapshots by their ids and moments, and each branch and tag."""
        name = f"db.{self._history.name}"
        snapshots = self._spark.sql(f"SELECT snapshot_id FROM {name}.snapshots").collect()
        for row in self._draw.sample(snapshots, min(5, len(snapshots))):
            query = f"SELECT * FROM {name} VERSION AS OF {row.snapshot_id}"
            self._as_of(query, versionAsOf=row.snapshot_id)
        moments = [row[0] for row in self._spark.sql(f"SELECT made_current_at FROM {name}.history").collect()]
        for moment in self._draw.sample(moments, min(2, len(moments))):
            text = f"{moment.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%S.%f}Z"
            self._as_of(f"SELECT * FROM {name} TIMESTAMP AS OF '{text}'", timestampAsOf=text)
        for (ref,) in self._spark.sql(f"SELECT name FROM {name}.refs").collect():
            self._as_of(f"SELECT * FROM {name} VERSION AS OF '{ref}'", ref=ref)

    def _as_of(self, query: str, **options: Any) -> None:
        expected, engine = self._spark.sql(query).toArrow(), self._draw.choice(ENGINES)
        self._same(self._table.scan(**options).to_arrow(), expected, "client", options)
        self._same(self._frame(engine, **options).toArrow(), expected, engine, options)


def test_a_history_is_read_as_iceberg_reads_it(spark: Any, lake: IcebergLake, lake_folder: Path, seed: int) -> None:
    draw, history = Random(seed), History(spark, lake_folder, f"h{seed}", seed)
    for _ in range(_STEPS // _BETWEEN):
        for _ in range(_BETWEEN):
            history.step()
        comparison = Comparison(spark, lake, history, draw)
        comparison.now()
    comparison.earlier()
    assert history.refused < _STEPS / 2, history.steps
    spark.sql(f"DROP TABLE db.{history.name} PURGE")
