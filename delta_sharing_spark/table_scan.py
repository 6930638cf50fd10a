"""Represents a scan of a shared table, and reads it with or without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from delta_sharing_spark.access.load import WORKERS, Load, cheapest_column
from delta_sharing_spark.access.plan import ScanPlan, plan
from delta_sharing_spark.display import Explanation, Progress, counting, explanation, scan_html
from delta_sharing_spark.errors.tracebacks import short_tracebacks
from delta_sharing_spark.frames.row_source import RowSource
from delta_sharing_spark.options import redacted_options
from delta_sharing_spark.options.values import quoted_column
from delta_sharing_spark.sharing.address import TableName

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


@short_tracebacks
class Scan(Load, RowSource):
    """A selection of a table's columns and rows (``Load``); reading begins with one of the ``to_`` methods."""

    def __dir__(self) -> Iterable[str]:
        hidden = ("as_read_by", "limited", "opened", "options", "plan", "prune", "resolved", "table")
        return [name for name in super().__dir__() if name not in hidden]

    def __repr__(self) -> str:
        return f"Scan({str(self.table)!r}, {redacted_options(self.options)})"

    def _repr_html_(self) -> str:
        return scan_html(str(self.table), redacted_options(self.options), self.schema)

    def in_session(self, spark: SparkSession) -> Scan:
        """The same scan with what a session's settings mean: its zone, and settings of the JVM connector."""
        from delta_sharing_spark.spark.session_settings import in_session

        return self.as_read_by(in_session(self.table.client, spark))

    def plan(self) -> ScanPlan:
        """List and prune the files; a terminal or notebook shows a count of them if that takes long."""
        opener, scan = self.opened()
        with counting(f"{self.table}: planning", " files") as listed:
            return plan(scan, opener=opener, listed=listed)

    def explain(self, spark: SparkSession | None = None, engine: str | None = None) -> str:
        """Explain what was sent, what is read, what is skipped by which rule, and which parts of ``where`` skip nothing.

        With a session, also which lane ``to_spark`` takes in it, why not the other, and what Spark's latest scans of the
        table were answered.
        """
        inside = self if spark is None else self.in_session(spark)
        planned = inside.plan()
        text = Explanation(explanation(planned, inside.resolved()))
        if spark is None:
            return text
        from delta_sharing_spark.spark.lanes import explain_engine, explain_scans

        scans = explain_scans(self.table.client, [str(self.table)])
        return Explanation("\n".join((text, f"engine     {explain_engine(inside, spark, planned, engine)}", *scans)))

    def to_spark(self, spark: SparkSession, engine: str | None = None) -> DataFrame:
        """A Spark DataFrame; it is Spark that reads.

        Args:
            spark: A classic or Connect session.
            engine: ``"native"``: Spark's own Parquet reader, by a gateway in this process; ``"python"``: the Python data
                source; ``"auto"``: native where the executors run on this machine. The client's by default.

        Raises:
            OptionError: An unknown engine.
            DeltaSharingError: The table cannot be loaded.
        """
        from delta_sharing_spark.spark.lanes import frame_of

        return frame_of(self.in_session(spark), spark, engine)

    def to_record_batch_reader(self, workers: int | None = None) -> pa.RecordBatchReader:
        """See ``RowSource.to_record_batch_reader``."""
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self.arrow_schema(), self._batches(workers))

    def _sized_reader(self) -> tuple[pa.RecordBatchReader, int | None]:
        import pyarrow as pa

        planned = self.plan()
        return pa.RecordBatchReader.from_batches(self.arrow_schema(), _read(planned, None)), planned.exact_rows

    def arrow_schema(self) -> pa.Schema:
        """The columns of the result in Arrow's types."""
        from delta_sharing_spark.schema.arrow import arrow_schema

        return arrow_schema(self.schema)

    def lazy(self) -> pl.LazyFrame:
        """A lazy Polars frame over the scan.

        Polars hands it the columns, the conditions and the row limit of a query. What of the conditions ``where`` can say
        exactly skips files and row groups; Polars applies all of them to the rows that are read.

        Raises:
            ConfigError: Polars is missing.
        """
        from delta_sharing_spark.frames.lazy_polars import lazy_frame

        return lazy_frame(self, Scan.to_record_batch_reader)

    def _table_name(self) -> TableName:
        return self.table.name

    def count(self) -> int:
        """The number of rows: from metadata alone where that is exact, else by reading as little as possible."""
        planned = self.plan()
        if planned.exact_rows is not None:
            return planned.exact_rows
        shape = self.resolved().shape
        cheapest = cheapest_column(shape.schema, shape.partition_columns)
        narrow = {**self.options, "columns": quoted_column(cheapest)} if cheapest is not None else self.options
        return sum(batch.num_rows for batch in Scan(self.table, narrow)._batches(None))

    def _batches(self, workers: int | None) -> Iterator[pa.RecordBatch]:
        yield from _read(self.plan(), workers)


def _read(planned: ScanPlan, workers: int | None) -> Iterator[pa.RecordBatch]:
    """The rows of a plan, with a bar of progress on a terminal or in a notebook."""
    from delta_sharing_spark.scan.parallel import read_splits

    with Progress(planned) as progress:
        for batch in read_splits(planned.splits, workers or WORKERS, progress=progress.finish_split):
            progress.add_rows(batch.num_rows)
            yield batch
