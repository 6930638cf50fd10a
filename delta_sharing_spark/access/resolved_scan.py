"""Holds a load as it is negotiated and resolved: plain data, which pickles to the planning worker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from delta_sharing_spark.access.table_shape import TableShape
from delta_sharing_spark.network.http import NetworkSettings
from delta_sharing_spark.options.declared import ReadOptions
from delta_sharing_spark.predicates.tree import Expression, all_of
from delta_sharing_spark.schema.types import Struct
from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.sharing.profile import Profile
from delta_sharing_spark.sharing.wire_records import TableSnapshotHead

Mode = Literal["url", "dir", "flight", "iceberg"]


@dataclass(frozen=True, slots=True)
class Decision:
    """The mode of one load.

    Attributes:
        mode: ``"url"``, ``"dir"``, ``"flight"`` or ``"iceberg"``.
        reason: Why, for the log.
        fallback: The other mode, where it may be tried if this one turns out not to work; else None.
    """

    mode: Mode
    reason: str
    fallback: Mode | None = None


@dataclass(frozen=True, slots=True)
class NegotiatedTable:
    """A table that the sharing server has described, and the access mode that was chosen.

    Attributes:
        options: What the user asked for.
        profile, settings, table: The sharing server and recipient, how requests are sent, the table's name.
        head: What the sharing server states about the table.
        decision: The access mode, why, and what to fall back to.
    """

    options: ReadOptions = field(repr=False)
    profile: Profile = field(repr=False)
    settings: NetworkSettings = field(repr=False)
    table: TableName
    head: TableSnapshotHead = field(repr=False)
    decision: Decision


@dataclass(frozen=True, slots=True)
class RowLimit:
    """The limits of a load that is listed for a query: how they combine, and who may act by them.

    A load's own limit is of the rows that fulfil its ``where``; which rows they are follows from the load alone. So a condition of a query
    must not skip anything of such a load: other rows would be among its first ones. A query's limit says that so many rows of a load
    are enough, whichever they are. Files are left out for a limit where each of their rows counts: not where the load has a ``where``. A
    split applies its load's own limit, and no other.

    Attributes:
        own: The load's own; None for all its rows.
        enough: So many of these are enough for the query; None for all.
        first: So many of the first of these are enough; None for all.
        is_filtered: Whether the load has a ``where``.
    """

    own: int | None
    enough: int | None
    first: int | None
    is_filtered: bool

    @property
    def lets_conditions_skip(self) -> bool:
        """Whether a condition of the query may skip files and row groups."""
        return self.own is None

    @property
    def any_rows(self) -> int | None:
        """So many rows are enough, whichever they are; None where all are needed, or the load says which they are."""
        return None if self.is_filtered or self.own is not None else self.enough

    @property
    def first_listed(self) -> int | None:
        """Listing may end with the files that hold so many rows, in the order of the listing; None where all files are needed."""
        return self.any_rows if self.first is None or self.is_filtered or self.own is not None else self.first

    @property
    def rows_listed(self) -> int | None:
        """So many rows may be asked for where files are listed; None where all files are needed."""
        return None if self.is_filtered else self.own if self.own is not None else self.enough


def smaller_limit(first: int | None, second: int | None) -> int | None:
    """The limit that two limits are together; None is no limit."""
    return min((rows for rows in (first, second) if rows is not None), default=None)


def has_limit(options: Iterable[str]) -> bool:
    """Whether a load with options of these names has a limit of its own."""
    return "limit" in map(str.lower, options)


@dataclass(frozen=True, slots=True)
class ResolvedScan(NegotiatedTable):
    """A load whose table, version, columns and conditions are known.

    Attributes:
        shape: The table's shape at the version loaded; of a change feed at the end of its range.
        version: The version loaded, the newest at that time for a change feed; None where the server does not tell.
        columns: The table's columns and, for a change feed, the change columns.
        output: The columns that the load has.
        predicate: The parsed ``where``.
        pushed: Filters of the one query that the load serves (``pushdown=query``); prunes, filters no row.
        is_pinned: Whether the server is asked for ``version``, that all listings of the load be of one version.
        rows_needed: So many of its rows are enough, whichever they are: listing may end with the files that hold them.
        first_rows: So many of its first rows are enough: listing may end, and no server is asked to choose the files.
    """

    shape: TableShape = field(repr=False)
    version: int | None
    columns: Struct = field(repr=False)
    output: Struct
    predicate: Expression | None = None
    pushed: Expression | None = None
    is_pinned: bool = False
    rows_needed: int | None = None
    first_rows: int | None = None

    @property
    def prune(self) -> Expression | None:
        """The conditions that files and row groups may be skipped by; None if there are none."""
        return all_of(self.predicate, self.pushed if self.row_limit.lets_conditions_skip else None)

    @property
    def row_limit(self) -> RowLimit:
        """Its limits."""
        return RowLimit(self.options.limit, self.rows_needed, self.first_rows, self.predicate is not None)
