"""Represents a load: which table, as which recipient, with which options. It is narrowed by condition, columns and limit, and opened once."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from delta_sharing_spark.access.open import TableOpener, negotiated_table, resolve_opened
from delta_sharing_spark.access.recipient import Recipient, RecipientTable
from delta_sharing_spark.access.resolved_scan import ResolvedScan
from delta_sharing_spark.errors import OptionError
from delta_sharing_spark.errors.tracebacks import short_tracebacks
from delta_sharing_spark.options import ReadOptions, parse_options
from delta_sharing_spark.options.values import option_text, quoted_column
from delta_sharing_spark.schema.types import Struct

if TYPE_CHECKING:
    from typing_extensions import Self

#: Bytes of a split outside Spark: small enough to read one middling file on several cores.
_SPLIT_BYTES = "16m"
#: Splits under way at once outside Spark.
WORKERS = min(8, os.cpu_count() or 1)


@short_tracebacks
@dataclass
class Load:
    """A selection of a table's columns and rows.

    Attributes:
        table: The table.
        options: The load's options, as Spark would be given them.
        prune: A condition by which files and row groups are skipped and no row is filtered; outside Spark only.

    Raises:
        OptionError: An unknown option or value, or two that contradict each other.
    """

    table: RecipientTable
    options: Mapping[str, str]
    prune: str | None = None
    _resolved: tuple[TableOpener, ResolvedScan] | None = field(default=None, repr=False)
    _read_options: ReadOptions | None = field(default=None, repr=False)
    _inside: Self | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._parsed()

    def resolved(self) -> ResolvedScan:
        """The resolved scan: one metadata request, the first time."""
        return self.opened()[1]

    def opened(self) -> tuple[TableOpener, ResolvedScan]:
        """The table, opened once for this load, and the resolved scan of it."""
        if self._resolved is None:
            options = self._parse(active_zone())
            opener = TableOpener(negotiated_table(options, self.table.client.profile))
            resolved = resolve_opened(opener)
            if self.prune is not None:
                from delta_sharing_spark.predicates.sql import parse_where

                resolved = replace(resolved, pushed=parse_where(self.prune, resolved.columns))
            self._resolved = opener, resolved
        return self._resolved

    @property
    def schema(self) -> Struct:
        """The columns of the result."""
        return self.resolved().output

    def as_read_by(self, client: Recipient) -> Self:
        """The same load with another recipient's options; it is the same object for the same ones."""
        if client.options == self.table.client.options:
            return self
        if self._inside is None or self._inside.table.client.options != client.options:
            self._inside = type(self)(replace(self.table, client=client), self.options, self.prune)
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
        if "memorybudget" not in names:
            from delta_sharing_spark.scan.parallel import default_budget

            options["memoryBudget"] = str(default_budget() // WORKERS)
        if zone is not None and "timezone" not in names:
            options["timeZone"] = zone
        parsed = parse_options(options)
        # Outside Spark conditions and partition values that name no zone are in UTC, as other readers without a session have it.
        return parsed if parsed.time_zone else replace(parsed, time_zone="UTC")

    def select(self, *columns: str | Sequence[str]) -> Self:
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

    def filter(self, condition: str) -> Self:
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

    def where(self, condition: str) -> Self:
        """As ``filter``."""
        return self.filter(condition)

    def limit(self, rows: int) -> Self:
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

    def _with(self, name: str, value: str) -> Self:
        others = {key: text for key, text in self.options.items() if key.lower() != name.lower()}
        return type(self)(self.table, {**others, name: value}, self.prune)


def cheapest_column(schema: Struct, partition_columns: Sequence[str] = ()) -> str | None:
    """The column that is cheapest to count rows by: a partition column, else a narrow one; None if there is none."""
    if partition_columns:
        return partition_columns[0]
    widths = {"boolean": 0, "byte": 1, "short": 2, "integer": 3, "date": 3, "float": 4, "long": 5, "double": 5}
    cheapest = min(schema.fields, key=lambda f: widths.get(str(f.type), 9), default=None)
    return cheapest.name if cheapest else None


def active_zone() -> str | None:
    """The zone of the Spark session that is active in this thread; None where there is none."""
    pyspark: Any = sys.modules.get("pyspark.sql")
    session = None if pyspark is None else pyspark.SparkSession.getActiveSession()
    return None if session is None else str(session.conf.get("spark.sql.session.timeZone"))


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
