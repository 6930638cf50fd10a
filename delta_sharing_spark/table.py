"""A shared table and a scan of it: what to read is said in Python, and read with or without Spark."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import TYPE_CHECKING

from delta_sharing_spark.access.load import Load, resolve
from delta_sharing_spark.access.planning import ScanPlan, plan
from delta_sharing_spark.access.shape import shape_of
from delta_sharing_spark.display import Column, Listing, columns_of, explanation, html_table
from delta_sharing_spark.errors import DeltaSharingError, OptionError
from delta_sharing_spark.options import parse_options, redacted_options
from delta_sharing_spark.schema.types import Struct
from delta_sharing_spark.sharing.actions import Metadata, TableSnapshotHead
from delta_sharing_spark.sharing.address import TableName

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from delta_sharing_spark.access.credentials import StorageToken
    from delta_sharing_spark.access.engines import Engine, EngineOptions
    from delta_sharing_spark.client import SharingClient
    from delta_sharing_spark.storage.faults import StorageSettings

Moment = datetime | date | str | int


@dataclass(frozen=True)
class SharedTable:
    """One shared table."""

    client: SharingClient = field(repr=False)
    name: TableName

    def __str__(self) -> str:
        return str(self.name)

    def version(self, at: Moment | None = None) -> int:
        """The newest version, or the earliest at or after a moment."""
        from delta_sharing_spark.access.settings import iso

        if at is None:
            return self.client.rest.table_version(self.name)
        options = parse_options({"path": str(self.name), "timestampAsOf": option_text(at), **self.client.options})
        return self.client.rest.table_version(self.name, iso(options.timestamp_as_of))

    def head(self) -> TableSnapshotHead:
        """Version, protocol and metadata of the newest version."""
        return self.client.rest.metadata(self.name)

    @property
    def metadata(self) -> Metadata:
        """The newest metadata: description, location, access modes, properties."""
        return self.head().metadata

    @property
    def schema(self) -> Struct:
        """The newest schema."""
        head = self.head()
        return shape_of(head.protocol, head.metadata, str(self.name)).schema

    @property
    def columns(self) -> Sequence[Column]:
        """The newest schema as a list that shows itself: name, type, nullability and comment of each column."""
        return Listing(columns_of(self.schema))

    def _repr_html_(self) -> str:
        """The table's columns; a notebook asks for this, so a failure is shown and not raised."""
        try:
            return html_table(columns_of(self.schema), caption=str(self.name))
        except DeltaSharingError as error:
            return html_table([], caption=f"{self.name}: {error}")

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
        version: int | None = None,
        timestamp: Moment | None = None,
        **options: object,
    ) -> Scan:
        """A snapshot's rows.

        Args:
            columns: The columns, in this order; ``a.b`` is a nested field.
            where: A SQL boolean expression that every row fulfils.
            limit: At most so many rows.
            version, timestamp: The table as of then.
            **options: Further options of the load.
        """
        given = {"where": where, "limit": limit, "versionAsOf": version, "timestampAsOf": timestamp}
        return self._scan(columns, given, options)

    def changes(
        self,
        starting_version: int | None = None,
        ending_version: int | None = None,
        starting_timestamp: Moment | None = None,
        ending_timestamp: Moment | None = None,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
        **options: object,
    ) -> Scan:
        """The change data feed of a range of versions or moments, both ends included."""
        given = {
            "readChangeFeed": True,
            "startingVersion": starting_version,
            "endingVersion": ending_version,
            "startingTimestamp": starting_timestamp,
            "endingTimestamp": ending_timestamp,
            "where": where,
            "limit": limit,
        }
        return self._scan(columns, given, options)

    def storage_options(self, engine: Engine = "fsspec", location: str | None = None) -> EngineOptions:
        """Temporary credentials of the table's location in the words of another engine.

        Args:
            engine: ``"fsspec"``, ``"deltalake"``, ``"polars"`` or ``"duckdb"``.
            location: One of the table's auxiliary locations instead of its root.

        Returns:
            Options with their ``location`` and ``expires``; they hold secrets, and their ``repr`` does not.

        Raises:
            CredentialError: The engine cannot take this kind of credential; says what can.
            AccessModeError: The table is not shared by directory.
        """
        from delta_sharing_spark.access.engines import storage_options

        return storage_options(self._tokens(location)[0], self._storage(), engine=engine)

    def hadoop_conf(self, gcs_token_provider: str | None = None) -> EngineOptions:
        """Credentials of all the table's locations as Hadoop settings, for Delta Kernel and other JVM readers.

        Args:
            gcs_token_provider: The Java class that gives Google's connector its token, where the table lies in GCS.
        """
        from delta_sharing_spark.access.engines import hadoop_conf

        return hadoop_conf(self._tokens(None), self._storage(), gcs_token_provider=gcs_token_provider)

    def _tokens(self, location: str | None) -> tuple[StorageToken, ...]:
        from delta_sharing_spark.access.directory import table_tokens

        rest = self.client.rest
        return table_tokens(self.client.profile, rest.settings, self.name, self.head(), location)

    def _storage(self) -> StorageSettings:
        from delta_sharing_spark.access.settings import storage_of

        return storage_of(parse_options(self.client.load_options(self.name, {})))

    def _scan(self, columns: Sequence[str] | None, given: Mapping[str, object], options: Mapping[str, object]) -> Scan:
        texts = {name: option_text(value) for name, value in {**given, **options}.items() if value is not None}
        if columns is not None:
            if isinstance(columns, str):
                raise OptionError(f"columns is a list of names, not a text; write columns=[{columns!r}]")
            texts["columns"] = ",".join(quoted_column(c) for c in columns)
        return Scan(self, texts)


@dataclass
class Scan:
    """What to read of a table; reading begins with one of the ``to_`` methods.

    Attributes:
        table: The table.
        options: The load's options, as Spark would be given them.
    """

    table: SharedTable
    options: Mapping[str, str]
    _load: Load | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        return f"Scan({str(self.table)!r}, {redacted_options(self.options)})"

    def load(self) -> Load:
        """The resolved load: one metadata request, the first time."""
        if self._load is None:
            client = self.table.client
            parsed = parse_options(client.load_options(self.table.name, self.options))
            self._load = resolve(parsed, client.profile)
        return self._load

    @property
    def schema(self) -> Struct:
        """The columns of the result."""
        return self.load().output

    def plan(self) -> ScanPlan:
        """List and prune the files."""
        return plan(self.load())

    def explain(self) -> str:
        """What was sent, what is read, what is skipped and by which rule, and which parts of ``where`` cannot help."""
        return explanation(self.plan(), self.load())

    def to_spark(self, spark: SparkSession) -> DataFrame:
        """A Spark DataFrame; it is Spark that reads."""
        from delta_sharing_spark.spark.inline_secrets import warn_of_inline_secrets
        from delta_sharing_spark.spark.register import register

        register(spark)
        options = {**self.table.client.options_for(self.table.name), **self.options}
        warn_of_inline_secrets(spark, options)
        path = options.pop("path")
        return spark.read.format("deltaSharing").options(**options).load(path)

    def to_record_batch_reader(self, workers: int | None = None) -> pa.RecordBatchReader:
        """Record batches as they arrive, read in parallel and bounded in memory.

        Args:
            workers: Splits under way at once; the number of cores (at most 8) by default.
        """
        import pyarrow as pa

        from delta_sharing_spark.schema.arrow import arrow_schema

        load = self.load()
        return pa.RecordBatchReader.from_batches(arrow_schema(load.output), self._batches(workers))

    def to_arrow(self) -> pa.Table:
        """All rows as an Arrow table."""
        return self.to_record_batch_reader().read_all()

    def to_pandas(self) -> pd.DataFrame:
        """All rows as a pandas DataFrame."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """All rows as a Polars DataFrame."""
        import polars as pl

        frame = pl.from_arrow(self.to_arrow())
        assert isinstance(frame, pl.DataFrame)
        return frame

    def count(self) -> int:
        """The number of rows: from metadata alone where that is exact, else by reading as little as possible."""
        planned = self.plan()
        if planned.exact_rows is not None:
            return planned.exact_rows
        cheapest = self._narrowest()
        narrow = {**self.options, "columns": quoted_column(cheapest)} if cheapest is not None else self.options
        return sum(batch.num_rows for batch in Scan(self.table, narrow)._batches(None))

    def _narrowest(self) -> str | None:
        shape = self.load().shape
        return cheapest_column(shape.schema, shape.partition_columns)

    def _batches(self, workers: int | None) -> Iterator[pa.RecordBatch]:
        from delta_sharing_spark.display import progress_of
        from delta_sharing_spark.scan.parallel import read_splits

        planned = self.plan()
        with progress_of(planned) as step:
            yield from read_splits(planned.splits, workers or min(8, os.cpu_count() or 1), progress=step)


def cheapest_column(schema: Struct, partition_columns: Sequence[str] = ()) -> str | None:
    """A column that costs little to count by: a partition column, else a narrow one; None if there is no column."""
    if partition_columns:
        return partition_columns[0]
    widths = {"boolean": 0, "byte": 1, "short": 2, "integer": 3, "date": 3, "float": 4, "long": 5, "double": 5}
    cheapest = min(schema.fields, key=lambda f: widths.get(str(f.type), 9), default=None)
    return cheapest.name if cheapest else None


def quoted_column(column: str) -> str:
    """A column's name as the option ``columns`` takes it; one that stands in backquotes already is left alone."""
    if len(column) > 1 and column[0] == column[-1] == "`":
        return column
    return "`" + column.replace("`", "``") + "`" if re.search(r"[^\w.]", column) else column


def option_text(value: object) -> str:
    """A Python value as the option's text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    return str(value)
