"""Represents a scan of a shared table, and reads it with or without Spark."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import TYPE_CHECKING

from delta_sharing_spark.access.open import TableOpener, negotiated_table
from delta_sharing_spark.access.plan import ScanPlan, plan
from delta_sharing_spark.access.resolve import resolve_opened
from delta_sharing_spark.access.resolved_scan import ResolvedScan
from delta_sharing_spark.display import Explanation, explanation, planning_progress, scan_html
from delta_sharing_spark.errors import OptionError
from delta_sharing_spark.errors.tracebacks import short_tracebacks
from delta_sharing_spark.frames.row_source import RowSource
from delta_sharing_spark.options import ReadOptions, parse_options, redacted_options
from delta_sharing_spark.schema.types import Struct

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from delta_sharing_spark.sharing.address import TableName
    from delta_sharing_spark.table import SharedTable

#: Bytes of a split outside Spark: small enough to read one middling file on several cores.
_SPLIT_BYTES = "16m"

#: How Spark reads a table, see ``Scan.to_spark``.
ENGINES = ("auto", "native", "python")


@short_tracebacks
@dataclass
class Scan(RowSource):
    """A selection of a table's columns and rows; reading begins with one of the ``to_`` methods.

    Attributes:
        table: The table.
        options: The load's options, as Spark would be given them.
        prune: A condition by which files and row groups are skipped and no row is filtered; outside Spark only.

    Raises:
        OptionError: An unknown option or value, or two that contradict each other.
    """

    table: SharedTable
    options: Mapping[str, str]
    prune: str | None = None
    _resolved: tuple[TableOpener, ResolvedScan] | None = field(default=None, repr=False)
    _read_options: ReadOptions | None = field(default=None, repr=False)
    _inside: Scan | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._parsed()

    def __dir__(self) -> Iterable[str]:
        hidden = ("limited", "opened", "options", "plan", "prune", "resolved", "table")
        return [name for name in super().__dir__() if name not in hidden]

    def __repr__(self) -> str:
        return f"Scan({str(self.table)!r}, {redacted_options(self.options)})"

    def _repr_html_(self) -> str:
        return scan_html(str(self.table), redacted_options(self.options), self.schema)

    def resolved(self) -> ResolvedScan:
        """The resolved scan: one metadata request, the first time."""
        return self.opened()[1]

    def opened(self) -> tuple[TableOpener, ResolvedScan]:
        """The table, opened once for this scan, and the resolved scan of it."""
        if self._resolved is None:
            options = self._parse(active_zone())
            opener = TableOpener(negotiated_table(options, self.table.client.profile))
            resolved = resolve_opened(opener)
            if self.prune is not None:
                from delta_sharing_spark.predicates.sql import parse_where

                resolved = replace(resolved, pushed=parse_where(self.prune, resolved.columns))
            self._resolved = opener, resolved
        return self._resolved

    def in_session(self, spark: SparkSession) -> Scan:
        """The same scan with what a session's settings mean: its zone, and settings of the JVM connector."""
        from delta_sharing_spark.spark.session_settings import in_session

        table = replace(self.table, client=in_session(self.table.client, spark))
        if table.client.options == self.table.client.options:
            return self
        if self._inside is None or self._inside.table.client.options != table.client.options:
            self._inside = Scan(table, self.options, self.prune)
        return self._inside

    def _parsed(self) -> ReadOptions:
        """The options, whose moments need no zone yet: ``to_spark`` will know the session's."""
        if self._read_options is None:
            self._read_options = self._parse("UTC")
        return self._read_options

    def _parse(self, zone: str | None) -> ReadOptions:
        options = self.table.client.load_options(self.table.name, self.options)
        names = {name.lower() for name in options}
        if "maxsplitbytes" not in names:
            options["maxSplitBytes"] = _SPLIT_BYTES
        if zone is not None and "timezone" not in names:
            options["timeZone"] = zone
        parsed = parse_options(options)
        # Outside Spark conditions and partition values that name no zone are in UTC, as other readers without a session have it.
        return parsed if parsed.time_zone else replace(parsed, time_zone="UTC")

    def select(self, *columns: str | Sequence[str]) -> Scan:
        """The same scan with these columns only, in this order: names, or one list of names.

        Raises:
            OptionError: No list of names, or a column that an earlier ``select`` or ``columns`` left out.
        """
        names = column_names(columns[0] if len(columns) == 1 and not isinstance(columns[0], str) else columns)
        before = self._parsed().columns
        if before is not None:
            kept = {name.lower() for name in before}
            for column in names:
                if not {column.lower(), column.lower().partition(".")[0]} & kept:
                    raise OptionError(
                        f"this scan has no column {column!r}, it was left out before: {', '.join(before)}"
                    )
        return self._with("columns", ",".join(quoted_column(name) for name in names))

    def filter(self, condition: str) -> Scan:
        """The same scan with only the rows that also fulfil a SQL condition.

        Raises:
            OptionError: The condition is no text, or the scan has a limit, which would then count filtered rows.
        """
        if not isinstance(condition, str):
            raise OptionError(f'a condition is a text of SQL, not {str(condition)[:100]}; write filter("a > 1")')
        if self.limited:
            raise OptionError("filter() after limit() would change which rows are counted; call filter() first")
        before = self._option("where")
        # Each on lines of its own: either may end in a comment.
        return self._with("where", condition if before is None else f"({before}\n) AND ({condition}\n)")

    def where(self, condition: str) -> Scan:
        """As ``filter``."""
        return self.filter(condition)

    def limit(self, rows: int) -> Scan:
        """The same scan with at most so many rows.

        Raises:
            OptionError: ``rows`` is not a number of rows.
        """
        fewer = self._with("limit", option_text(rows))
        before = self._option("limit")
        return self if before is not None and int(before) <= rows else fewer

    @property
    def limited(self) -> bool:
        """Whether the scan has a limit."""
        return self._option("limit") is not None

    def _option(self, name: str) -> str | None:
        return next((value for key, value in self.options.items() if key.lower() == name.lower()), None)

    def _with(self, name: str, value: str) -> Scan:
        others = {key: text for key, text in self.options.items() if key.lower() != name.lower()}
        return Scan(self.table, {**others, name: value}, self.prune)

    @property
    def schema(self) -> Struct:
        """The columns of the result."""
        return self.resolved().output

    def plan(self) -> ScanPlan:
        """List and prune the files; a terminal or notebook shows a count of them if that takes long."""
        opener, scan = self.opened()
        with planning_progress(str(self.table)) as listed:
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
        """Record batches as they arrive, read in parallel and bounded in memory; reading begins with the first.

        Args:
            workers: Splits under way at once; the number of cores (at most 8) by default.
        """
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

        return lazy_frame(self)

    def _table_name(self) -> TableName:
        return self.table.name

    def count(self) -> int:
        """The number of rows: from metadata alone where that is exact, else by reading as little as possible."""
        planned = self.plan()
        if planned.exact_rows is not None:
            return planned.exact_rows
        cheapest = self._narrowest()
        narrow = {**self.options, "columns": quoted_column(cheapest)} if cheapest is not None else self.options
        return sum(batch.num_rows for batch in Scan(self.table, narrow)._batches(None))

    def _narrowest(self) -> str | None:
        shape = self.resolved().shape
        return cheapest_column(shape.schema, shape.partition_columns)

    def _batches(self, workers: int | None) -> Iterator[pa.RecordBatch]:
        yield from _read(self.plan(), workers)


def _read(planned: ScanPlan, workers: int | None) -> Iterator[pa.RecordBatch]:
    """The rows of a plan, with a bar of progress on a terminal or in a notebook."""
    from delta_sharing_spark.display import Progress
    from delta_sharing_spark.scan.parallel import read_splits

    with Progress(planned) as progress:
        workers = workers or min(8, os.cpu_count() or 1)
        for batch in read_splits(planned.splits, workers, progress=progress.finish_split):
            progress.add_rows(batch.num_rows)
            yield batch


def cheapest_column(schema: Struct, partition_columns: Sequence[str] = ()) -> str | None:
    """The column that is cheapest to count rows by: a partition column, else a narrow one; None if there is none."""
    if partition_columns:
        return partition_columns[0]
    widths = {"boolean": 0, "byte": 1, "short": 2, "integer": 3, "date": 3, "float": 4, "long": 5, "double": 5}
    cheapest = min(schema.fields, key=lambda f: widths.get(str(f.type), 9), default=None)
    return cheapest.name if cheapest else None


def quoted_column(column: str) -> str:
    """A column's name as the option ``columns`` takes it; a name that is already in backquotes stays as it is."""
    if re.fullmatch(r"`(?:[^`]|``)+`(?:\.`(?:[^`]|``)+`)*", column):
        return column
    return "`" + column.replace("`", "``") + "`" if re.search(r"[^\w.]", column) else column


def active_zone() -> str | None:
    """The zone of the Spark session that is active in this thread, as far as there is one."""
    if "pyspark.sql" not in sys.modules:
        return None
    from delta_sharing_spark.spark.session_settings import active_zone as zone

    return zone()


def option_text(value: object) -> str:
    """A Python value as the option's text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    return str(value)


def column_names(columns: object) -> list[str]:
    """A list of the column names that a user gave.

    Raises:
        OptionError: ``columns`` is no list of names.
    """
    if isinstance(columns, str):
        raise OptionError(f"columns is a list of names, not a text; write columns=[{columns!r}]")
    names: list[object] = list(columns) if isinstance(columns, Iterable) else [columns]
    texts = [name for name in names if isinstance(name, str)]
    if not isinstance(columns, Iterable) or len(texts) < len(names):
        raise OptionError(f"columns={str(columns)[:100]} is not a list of names; write columns=['a', 'b']")
    return texts
