"""Represents a shared table: its metadata, credentials of its storage for other engines, and scans, which users read."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from functools import partial
from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar

from delta_sharing_spark.access.asking import is_of_iceberg, storage_settings, transport_of
from delta_sharing_spark.access.load import (
    WORKERS,
    Load,
    RecipientTable,
    active_zone,
    cheapest_column,
    column_names,
    first_version_from,
)
from delta_sharing_spark.access.open import TableOpener, with_all_times
from delta_sharing_spark.access.plan import ScanPlan, plan
from delta_sharing_spark.access.table_shape import shape_of
from delta_sharing_spark.display import (
    Column,
    Explanation,
    Listing,
    Progress,
    TableVersion,
    counting,
    explanation,
    scan_html,
    schema_html,
    table_html,
)
from delta_sharing_spark.errors import (
    AccessModeError,
    OptionError,
    RequestRefusedError,
    UnreadableColumnError,
    UnsupportedFeatureError,
    short_tracebacks,
)
from delta_sharing_spark.frames.row_source import RowSource
from delta_sharing_spark.network.process_end import awaited
from delta_sharing_spark.options.declared import ARGUMENTS, check_arguments, naming, parse_options, redacted_options
from delta_sharing_spark.options.values import option_text, quoted_column
from delta_sharing_spark.scan.plan import FileAccess, ReadSpec, Split
from delta_sharing_spark.schema.instants import EPOCH
from delta_sharing_spark.schema.table_records import Metadata, Protocol
from delta_sharing_spark.schema.types import Decimal, Primitive, Struct
from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.sharing.wire_records import Table, TableSnapshotHead
from delta_sharing_spark.storage.range_reader import StorageSettings

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from typing_extensions import Unpack

    from delta_sharing_spark.access.directory.access import StorageToken
    from delta_sharing_spark.interop import EngineOptions
    from delta_sharing_spark.options.keywords import LoadOptions
    from delta_sharing_spark.storage.clouds.contract import Engine

_T = TypeVar("_T")
#: Types of any length.
_WIDE = ("string", "binary", "variant")


@short_tracebacks
class Scan(Load, RowSource):
    """A selection of a table's columns and rows (``Load``); reading begins with one of the ``to_`` methods."""

    def __dir__(self) -> Iterable[str]:
        hidden = ("as_read_by", "described", "hinted", "limited", "opened", "options", "plan", "resolved", "table")
        return [name for name in super().__dir__() if name not in hidden]

    def __repr__(self) -> str:
        return f"Scan({str(self.table)!r}, {redacted_options(self.options)})"

    def _repr_html_(self) -> str:
        return scan_html(str(self.table), redacted_options(self.options), self.schema)

    def in_session(self, spark: SparkSession) -> Scan:
        """The same scan with what a session's settings mean: its zone, and settings of the JVM connector."""
        from delta_sharing_spark.spark.session_settings import in_session

        return self.as_read_by(in_session(self.table.client, spark))

    def hinted(self, hints: str | None) -> Scan:
        """The same scan with ``jsonPredicateHints`` (``Load.hints``), where there are some."""
        return self if hints is None else Scan(self.table, self.options, hints)

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
        _, lane = explain_engine(spark, [inside], engine or self.table.client.engine, planned)
        return Explanation("\n".join((text, f"engine     {lane}", *scans)))

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

        workers = WORKERS if workers is None else _counted("workers", workers)
        return pa.RecordBatchReader.from_batches(self.arrow_schema(), self._batches(workers))

    def _sized_batches(self) -> tuple[pa.Schema, Generator[pa.RecordBatch, None, None], int | None]:
        planned = self.plan()
        return self.arrow_schema(), awaited(_read(planned, WORKERS)), planned.exact_rows

    def _frames(self, *, is_filtered: bool = True) -> Generator[pl.DataFrame, None, None]:
        from delta_sharing_spark.frames.polars_decoder import read_frames

        return awaited(_read(self.plan(), WORKERS, partial(read_frames, is_filtered=is_filtered)))

    def arrow_schema(self) -> pa.Schema:
        """The columns of the result in Arrow's types."""
        from delta_sharing_spark.schema.arrow import arrow_schema

        return arrow_schema(self.schema)

    def lazy(self) -> pl.LazyFrame:
        """A lazy Polars frame over the scan.

        Polars hands it the columns and the conditions of a query, and ends the reading at its row limit. What of the conditions
        ``where`` can say exactly skips files and row groups; Polars applies all of them to the rows that are read.

        Raises:
            ConfigError: Polars is missing.
        """
        from delta_sharing_spark.frames.lazy_polars import lazy_frame

        return lazy_frame(self, Scan._frames)

    def _table_name(self) -> TableName:
        return self.table.name

    def count(self) -> int:
        """The number of rows: from metadata alone where that is exact, else by reading as little as possible."""
        try:
            planned = self.plan()
        except UnreadableColumnError as refusal:
            if self.has_columns or not refusal.readable:
                raise
            return self.select(refusal.readable[0]).count()  # a count needs no column of the other types
        if planned.exact_rows is not None:
            return planned.exact_rows
        shape = self.resolved().shape
        cheapest = cheapest_column(shape.schema, shape.partition_columns)
        narrow = self if cheapest is None else self._with("columns", quoted_column(cheapest)).narrows(self)
        planned = narrow.plan()
        if isinstance(planned.access, FileAccess) and planned.spec.predicate is None and not _is_checked(planned.spec):
            planned = replace(planned, splits=[split.without_columns() for split in planned.splits])
        return sum(batch.num_rows for batch in _read(planned, WORKERS))

    def _batches(self, workers: int) -> Generator[pa.RecordBatch, None, None]:
        def planned() -> Generator[pa.RecordBatch, None, None]:
            yield from _read(self.plan(), workers)

        return awaited(planned())


def _is_checked(spec: ReadSpec) -> bool:
    """Whether a column that rows are counted by is NOT NULL, and so narrow that its check costs little, whatever a file holds."""
    narrow = (field for field in spec.full_schema.fields if isinstance(field.type, (Primitive, Decimal)))
    return any(not field.nullable and str(field.type) not in _WIDE for field in narrow)


def _counted(name: str, value: object) -> int:
    """A number that a user gave of something; raises OptionError where it is none of at least 1."""
    if not isinstance(value, SupportsIndex) or isinstance(value, bool) or index(value) < 1:
        raise OptionError(f"{name}={str(value)[:100]} is not a whole number of at least 1; give one, or leave it out")
    return index(value)


def _read(
    planned: ScanPlan, workers: int, read: Callable[[Split], Generator[Any, None, None]] | None = None
) -> Generator[Any, None, None]:
    """The rows of a plan, with a bar of progress on a terminal or in a notebook."""
    from delta_sharing_spark.scan.parallel import read_splits

    with Progress(planned) as progress:
        for batch in read_splits(planned.splits, workers, progress=progress.finish_split, read=read):
            progress.add_rows(len(batch))
            yield batch


Moment = datetime | date | str | int


@short_tracebacks
class SharedTable(RecipientTable, RowSource):
    """One shared table; as a source of rows, its newest version."""

    def version(self, starting_timestamp: Moment | None = None) -> int:
        """The newest version, or the earliest at or after a moment."""
        if starting_timestamp is None:
            return self._of_delta(lambda: self.client.rest.table_version(self.name))
        zone = {} if (session_zone := active_zone()) is None else {"timeZone": session_zone}
        with naming({"startingTimestamp": "starting_timestamp"}):
            return first_version_from(self.client, self.name, option_text(starting_timestamp), zone)

    def snapshot_head(self) -> TableSnapshotHead:
        """Version, protocol and metadata of the newest version: one request."""
        return self._of_delta(lambda: self.client.rest.metadata(self.name))

    def _of_delta(self, ask: Callable[[], _T]) -> _T:
        """What the sharing server says of the table; raises UnsupportedFeatureError where it says nothing of Iceberg tables."""
        try:
            return ask()
        except RequestRefusedError as refusal:
            if not is_of_iceberg(refusal):
                raise
            raise UnsupportedFeatureError(
                f"{self.name} is an Iceberg table, of which the sharing server tells no counted version, protocol, metadata or "
                f"location; its catalog tells schema, columns, versions() and rows",
                features=("iceberg",),
            ) from refusal

    def _head(self) -> TableSnapshotHead | None:
        """The same; None of an Iceberg table."""
        try:
            return self.snapshot_head()
        except UnsupportedFeatureError as refusal:
            if "iceberg" not in refusal.features:
                raise
            return None

    def __dir__(self) -> Iterable[str]:
        return [name for name in super().__dir__() if name not in ("client", "snapshot_head")]

    def versions(self, most: int = 20) -> Sequence[TableVersion]:
        """The newest versions with their times, as a list that prints as a table; the newest last.

        The table's own log tells them where the table is shared by directory and its storage can be read. Else the sharing
        server does, with the times of those versions that added or removed files.

        Args:
            most: How many at most.

        Raises:
            VersionError: The server does not share the table's history.
        """
        most = _counted("most", most)
        opener, _ = self.scan().opened()
        negotiated = with_all_times(opener.negotiated)
        if negotiated is not opener.negotiated:
            opener = TableOpener(negotiated)
        times = opener.run(lambda table: table.commit_times(most))
        return Listing(
            TableVersion(v, None if ms is None else EPOCH + timedelta(milliseconds=ms)) for v, ms in times.items()
        )

    def head(self, rows: int = 5) -> pd.DataFrame:
        """The first rows as a pandas DataFrame; ``limit(rows)`` gives them in other forms."""
        return self.limit(rows).to_pandas()

    def count(self) -> int:
        """The number of rows of the newest version, as ``Scan.count``."""
        return self.scan().count()

    def select(self, *columns: str | Sequence[str]) -> Scan:
        """A scan of these columns: names, or one list of names."""
        return self.scan().select(*columns)

    def where(self, condition: str) -> Scan:
        """A scan of the rows that fulfil a SQL condition."""
        return self.scan().where(condition)

    def limit(self, rows: int) -> Scan:
        """A scan of at most so many rows."""
        return self.scan().limit(rows)

    def explain(self) -> str:
        """What a scan of the newest version sends and reads, as ``Scan.explain``."""
        return self.scan().explain()

    @property
    def metadata(self) -> Metadata:
        """The newest metadata: description, location, access modes, properties."""
        return self.snapshot_head().metadata

    @property
    def protocol(self) -> Protocol:
        """The protocol of the newest version: what a reader of it must be able to do."""
        return self.snapshot_head().protocol

    @property
    def table(self) -> Table:
        """The table as a listing names it."""
        return Table(self.name.table, self.name.share, self.name.schema)

    @property
    def schema(self) -> Struct:
        """The newest schema; of an Iceberg table by its catalog."""
        head = self._head()
        return self.scan().schema if head is None else shape_of(head.protocol, head.metadata, str(self.name)).schema

    @property
    def columns(self) -> Sequence[Column]:
        """The columns of the newest schema, as a list that prints as a table: name, type, nullability and comment."""
        return Listing(Column(*row) for row in self.schema.rows())

    def _repr_html_(self) -> str:
        """The newest version's number, size, files, description and columns; a table that cannot be read is an error."""
        head = self._head()
        return (
            schema_html(self.schema, f"{self.name}, an Iceberg table")
            if head is None
            else table_html(str(self.name), head)
        )

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
        version: int | None = None,
        timestamp: Moment | None = None,
        **options: Unpack[LoadOptions],
    ) -> Scan:
        """A snapshot's rows.

        Args:
            columns: The columns, in this order; ``a.b`` is a nested field.
            where: A SQL boolean expression that every row fulfils, beside that of the client's options.
            limit: The maximum number of rows; that of the client's options counts if it is smaller.
            version, timestamp: The table as of then.
            **options: Further options of the load.

        Raises:
            OptionError: An unknown option or value, or two that contradict each other.
        """
        named = {"where": where, "limit": limit, "versionAsOf": version, "timestampAsOf": timestamp}
        check_arguments(options, ("columns", "where", "limit", "version", "timestamp"))
        return self._scan(columns, named, options)

    def snapshot(
        self,
        *,
        jsonPredicateHints: str | None = None,
        limit: int | None = None,
        version: int | None = None,
        timestamp: Moment | None = None,
        use_delta_format: bool | None = None,
    ) -> Scan:
        """A snapshot's rows, by the keywords of the reference client; ``scan`` has more.

        Args:
            jsonPredicateHints: Files that hold no matching row are skipped; rows are not filtered. ``scan(where=...)`` does both.
            limit: The maximum number of rows.
            version, timestamp: The table as of then.
            use_delta_format: Ask for the delta format, or for the parquet format; the server chooses if it is None.
        """
        scan = self.scan(limit=limit, version=version, timestamp=timestamp, **response_format(use_delta_format))
        return scan.hinted(jsonPredicateHints)

    def changes(
        self,
        starting_version: int | None = None,
        ending_version: int | None = None,
        starting_timestamp: Moment | None = None,
        ending_timestamp: Moment | None = None,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
        use_delta_format: bool | None = None,
        **options: Unpack[LoadOptions],
    ) -> Scan:
        """The change data feed of a range of versions or moments, both ends included; ``use_delta_format`` as in ``snapshot``."""
        named = {
            "readChangeFeed": True,
            "startingVersion": starting_version,
            "endingVersion": ending_version,
            "startingTimestamp": starting_timestamp,
            "endingTimestamp": ending_timestamp,
            "where": where,
            "limit": limit,
        }
        ends = ("starting_version", "ending_version", "starting_timestamp", "ending_timestamp")
        check_arguments(options, (*ends, "columns", "where", "limit"))
        return self._scan(columns, named, {**options, **response_format(use_delta_format)})

    def arrow_schema(self) -> pa.Schema:
        """The newest schema in Arrow's types."""
        return self.scan().arrow_schema()

    def to_record_batch_reader(self, workers: int | None = None) -> pa.RecordBatchReader:
        """The newest rows, as ``Scan.to_record_batch_reader``."""
        return self.scan().to_record_batch_reader(workers)

    def _sized_batches(self) -> tuple[pa.Schema, Generator[pa.RecordBatch, None, None], int | None]:
        return self.scan()._sized_batches()

    def _frames(self) -> Generator[pl.DataFrame, None, None]:
        return self.scan()._frames()

    def to_spark(self, spark: SparkSession, engine: str | None = None) -> DataFrame:
        """The newest version as a Spark DataFrame; raises as ``Scan.to_spark``, which names the engines."""
        return self.scan().to_spark(spark, engine)

    def lazy(self) -> pl.LazyFrame:
        """The newest version as a lazy Polars frame, as ``Scan.lazy``."""
        return self.scan().lazy()

    def _table_name(self) -> TableName:
        return self.name

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
        from delta_sharing_spark.interop import storage_options

        return storage_options(self._tokens(location)[0], self._storage(), engine=engine)

    def hadoop_conf(self, gcs_token_provider: str | None = None) -> EngineOptions:
        """Credentials of all the table's locations as Hadoop settings, for Delta Kernel and other JVM readers.

        Args:
            gcs_token_provider: The Java class that gives Google's connector its token, where the table lies in GCS.
        """
        from delta_sharing_spark.interop import hadoop_conf

        return hadoop_conf(self._tokens(None), self._storage(), gcs_token_provider=gcs_token_provider)

    def _tokens(self, location: str | None) -> tuple[StorageToken, ...]:
        from delta_sharing_spark.access.directory.table import table_tokens

        options = parse_options(self.client.load_options(self.name, {}), is_in_spark=False)
        if options.gateway is not None:
            raise AccessModeError(f"{self} is read through a Flight gateway, which gives no storage credentials away")
        return table_tokens(self.client.profile, transport_of(options), self.name, self.snapshot_head(), location)

    def _storage(self) -> StorageSettings:
        return storage_settings(parse_options(self.client.load_options(self.name, {}), is_in_spark=False))

    def _scan(self, columns: Sequence[str] | None, named: Mapping[str, object], options: Mapping[str, object]) -> Scan:
        texts = {name: option_text(value) for name, value in {**named, **options}.items() if value is not None}
        if columns is not None:
            texts["columns"] = ",".join(quoted_column(name) for name in column_names(columns))
        written = {name.lower() for name in options}
        with naming({option: argument for option, argument in ARGUMENTS.items() if option.lower() not in written}):
            return Scan(self, texts)


def response_format(use_delta_format: bool | None) -> LoadOptions:
    """The option that corresponds to the reference client's ``use_delta_format``."""
    if use_delta_format is None:
        return {}
    return {"responseFormat": "delta" if use_delta_format else "parquet"}
