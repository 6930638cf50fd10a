"""One load, resolved: which table, at which version, in which access mode, with which schema.

The Spark data source, ``SharingClient`` and the command line resolve the same way, once; ``planning`` goes on from here.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from delta_sharing_spark.access.negotiate import Decision, negotiate, with_fallback
from delta_sharing_spark.access.settings import formats_of, iso, millis, storage_of, transport_of, who
from delta_sharing_spark.access.shape import TableShape, shape_in_log, shape_of, with_change_columns
from delta_sharing_spark.access.versions import (
    REFUSALS,
    head_as_of,
    last_in_log,
    last_version,
    refused_travel,
)
from delta_sharing_spark.errors import NotFoundError, RequestRefusedError
from delta_sharing_spark.options import ReadOptions
from delta_sharing_spark.predicates.tree import Expression, conjunction
from delta_sharing_spark.schema.project import select
from delta_sharing_spark.schema.types import Struct
from delta_sharing_spark.sharing.actions import Metadata, Protocol, Table, TableSnapshotHead
from delta_sharing_spark.sharing.address import TableName, parse_table_name
from delta_sharing_spark.sharing.profile import Profile
from delta_sharing_spark.sharing.rest import SharingRest
from delta_sharing_spark.sharing.transport import TransportSettings

if TYPE_CHECKING:
    from delta_sharing_spark.access.directory import DirectoryTable
    from delta_sharing_spark.deltalog.paths import LogStore

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Negotiated:
    """A table that the sharing server has described, and the access mode that was chosen.

    Attributes:
        options: What the user asked for.
        profile, settings, table: Whom to ask, how, for what.
        head: What the sharing server said of the table.
        decision: The access mode, why, and what to fall back to.
    """

    options: ReadOptions = field(repr=False)
    profile: Profile = field(repr=False)
    settings: TransportSettings = field(repr=False)
    table: TableName
    head: TableSnapshotHead = field(repr=False)
    decision: Decision

    @property
    def rest(self) -> SharingRest:
        return SharingRest(self.profile, self.settings)

    def directory(self) -> DirectoryTable:
        """The table's directory; raises as ``open_directory``."""
        from delta_sharing_spark.access.directory import open_directory

        return open_directory(
            self.profile,
            self.settings,
            self.table,
            self.head,
            settings=storage_of(self.options),
            carry_profile=self.options.carry_profile,
            replaceable=self.decision.fallback is not None,
        )


@dataclass(frozen=True, slots=True)
class Load(Negotiated):
    """A resolved load; pickles to the planning worker, and no further.

    Attributes:
        shape: The table's shape at the version loaded.
        version: The version that directory mode is pinned to; None in url mode unless the user chose one.
        columns: The table's columns and, for a change feed, the change columns.
        output: The columns that the load has.
        predicate: The parsed ``where``.
        pushed: Filters of the one query that the load serves (``pushdown=query``); prunes, filters no row.
    """

    shape: TableShape = field(repr=False)
    version: int | None
    columns: Struct = field(repr=False)
    output: Struct
    predicate: Expression | None = None
    pushed: Expression | None = None

    @property
    def prune(self) -> Expression | None:
        """What files and row groups may be skipped by."""
        # A limit counts rows before Spark's filters do: pruning by them would give other rows.
        parts = [p for p in (self.predicate, self.pushed if self.options.limit is None else None) if p is not None]
        return conjunction(parts) if parts else None


def resolve(options: ReadOptions, profile: Profile | None = None) -> Load:
    """Ask for the table's metadata and decide how to read it: one request, and the log's head in directory mode.

    Args:
        options: The load's options.
        profile: Whose eyes to see with, instead of what the options say; ``path`` is then a bare table name.

    Raises:
        ConfigError: The address, the profile, an option or ``where`` is wrong.
        ServerError, NetworkError: The sharing server refuses or does not answer.
        AccessModeError: No access mode fits.
        TableError: The table cannot be read right; an unknown column.
    """
    if profile is None:
        profile, table = who(options)
    else:
        table = parse_table_name(options.path)
    settings = transport_of(options)
    rest = SharingRest(profile, settings)
    head, decision = _negotiated(rest, table, options)
    negotiated = Negotiated(options, profile, settings, table, head, decision)

    def by_directory() -> Load:
        return _by_directory(negotiated)

    def by_url() -> Load:
        seen = head_as_of(rest, table, options, head)
        shape = shape_of(seen.protocol, seen.metadata, str(table))
        if options.read_change_feed and shape.mapping != "none":
            shape = _shape_at_end(rest, table, options, seen, shape)
        in_url_mode = replace(negotiated, head=seen, decision=replace(decision, mode="url"))
        return _finished(in_url_mode, shape, options.version_as_of)

    return with_fallback(decision, by_directory, by_url, table=str(table))


def _negotiated(rest: SharingRest, table: TableName, options: ReadOptions) -> tuple[TableSnapshotHead, Decision]:
    travels = options.version_as_of is not None or options.timestamp_as_of is not None
    try:
        head = rest.metadata(
            table, version=options.version_as_of, timestamp=iso(options.timestamp_as_of), formats=formats_of(options)
        )
        return head, _decide(head, table, options)
    except REFUSALS as refusal:
        newest = _newest(rest, table, options) if travels else None
        if newest is not None:
            cause = refused_travel(table, options, newest.version, refusal)
            if options.access_mode == "url" or "dir" not in (newest.metadata.access_modes or ()):
                raise cause from refusal
            return newest, _decide(newest, table, options, url_refusal=str(cause))
        if isinstance(refusal, NotFoundError):
            raise
        head = _listed(rest, table, refusal)
        return head, _decide(head, table, options, url_refusal=str(refusal))


def _newest(rest: SharingRest, table: TableName, options: ReadOptions) -> TableSnapshotHead | None:
    """The newest head; None if the server refuses the table whatever its version."""
    try:
        return rest.metadata(table, formats=formats_of(options))
    except REFUSALS:
        return None


def _decide(
    head: TableSnapshotHead, table: TableName, options: ReadOptions, url_refusal: str | None = None
) -> Decision:
    metadata = head.metadata
    return negotiate(
        metadata.access_modes,
        options.access_mode,
        table=str(table),
        num_files=metadata.num_files,
        location=metadata.location,
        url_refusal=url_refusal,
    )


def _listed(rest: SharingRest, table: TableName, refusal: RequestRefusedError) -> TableSnapshotHead:
    """What the listing says of a table whose metadata the server refuses (its features): enough for directory mode.

    Raises:
        RequestRefusedError: The refusal, where directory mode is not on offer.
    """
    try:
        entry: Table | None = next(
            (t for t in rest.list_tables(table.share, table.schema) if t.name.lower() == table.table.lower()), None
        )
    except NotFoundError:
        entry = None
    if entry is None or "dir" not in entry.access_modes or not entry.location:
        raise refusal
    metadata = Metadata(
        "",
        "",
        (),
        location=entry.location,
        auxiliary_locations=entry.auxiliary_locations,
        access_modes=entry.access_modes,
    )
    return TableSnapshotHead(None, "delta", Protocol(1), metadata)


def _by_directory(negotiated: Negotiated) -> Load:
    options, table, directory = negotiated.options, str(negotiated.table), negotiated.directory()
    snapshot = directory.snapshot(version=options.version_as_of, timestamp_ms=millis(options.timestamp_as_of))
    shape = shape_in_log(snapshot.protocol, snapshot.metadata, table)
    if options.read_change_feed and shape.mapping != "none":
        shape = _shape_at_end_of_log(directory.store, options, snapshot.version, shape, table)
    return _finished(negotiated, shape, snapshot.version)


def _shape_at_end(
    rest: SharingRest, table: TableName, options: ReadOptions, newest: TableSnapshotHead, shape: TableShape
) -> TableShape:
    """The shape of a change feed of mapped columns: that of its range's last version, as in Delta Lake.

    Without column mapping a feed has the newest schema, as there.
    """
    end = last_version(rest, table, options, newest.version)
    if end is None or end < 0 or end == newest.version:
        return shape
    asked = replace(options, version_as_of=end)
    try:
        head = rest.metadata(table, version=end, formats=formats_of(options))
    except REFUSALS as refusal:
        raise refused_travel(table, asked, newest.version, refusal) from refusal
    head = head_as_of(rest, table, asked, head)
    return shape_of(head.protocol, head.metadata, str(table))


def _shape_at_end_of_log(
    store: LogStore, options: ReadOptions, newest: int, shape: TableShape, table: str
) -> TableShape:
    """The same by the log."""
    from delta_sharing_spark.deltalog.replay import load_head

    end = last_in_log(store, options, newest, table)
    if end == newest:
        return shape
    head = load_head(store, version=end, table=table)
    return shape_in_log(head.protocol, head.metadata, table)


def _finished(negotiated: Negotiated, shape: TableShape, version: int | None) -> Load:
    options = negotiated.options
    columns = with_change_columns(shape.schema, options) if options.read_change_feed else shape.schema
    output = columns if options.columns is None else select(columns, options.columns, str(negotiated.table))
    predicate = None
    if options.where is not None:
        from delta_sharing_spark.predicates.sql import parse_where

        predicate = parse_where(options.where, columns, time_zone=options.time_zone)
    return Load(
        options,
        negotiated.profile,
        negotiated.settings,
        negotiated.table,
        negotiated.head,
        negotiated.decision,
        shape,
        version,
        columns,
        output,
        predicate,
    )
