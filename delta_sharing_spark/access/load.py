"""One load, resolved: which table, at which version, in which access mode, with which schema.

The Spark data source, ``SharingClient`` and the command line resolve the same way, once; ``planning`` goes on from here.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from delta_sharing_spark.access.negotiate import Decision, negotiate, with_fallback
from delta_sharing_spark.access.settings import formats_of, iso, millis, storage_of, transport_of, who
from delta_sharing_spark.access.versions import (
    REFUSALS,
    Refusal,
    head_as_of,
    last_in_log,
    last_version,
    refused_travel,
)
from delta_sharing_spark.errors import NotFoundError, RequestRefusedError, TableChangedError, VersionError
from delta_sharing_spark.features import check_protocol, check_type_changes, mapping_mode
from delta_sharing_spark.options import ReadOptions
from delta_sharing_spark.predicates.tree import Expression, conjunction
from delta_sharing_spark.scan.plan import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from delta_sharing_spark.schema.mapping import without_mapping
from delta_sharing_spark.schema.project import select
from delta_sharing_spark.schema.types import Field, Primitive, Struct, parse_schema
from delta_sharing_spark.sharing.actions import Metadata, Protocol, Table, TableSnapshotHead
from delta_sharing_spark.sharing.address import TableName, parse_table_name
from delta_sharing_spark.sharing.profile import Profile
from delta_sharing_spark.sharing.rest import SharingRest
from delta_sharing_spark.sharing.transport import TransportSettings

if TYPE_CHECKING:
    from delta_sharing_spark.deltalog.actions import Metadata as LogMetadata
    from delta_sharing_spark.deltalog.actions import Protocol as LogProtocol
    from delta_sharing_spark.deltalog.paths import LogStore

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TableShape:
    """What of a table decides how its rows look.

    Attributes:
        id: The table's id; another one means another table.
        schema: Its columns, with physical names only where columns are mapped.
        partition_columns: Logical names.
        mapping: Column mapping mode.
    """

    id: str
    schema: Struct
    partition_columns: tuple[str, ...]
    mapping: str


@dataclass(frozen=True, slots=True)
class Load:
    """A resolved load; pickles to the planning worker, and no further.

    Attributes:
        options: What the user asked for.
        profile, settings, table: Whom to ask, how, for what.
        head: What the sharing server said of the table.
        decision: The access mode, why, and what to fall back to.
        shape: The table's shape at the version loaded.
        version: The version that directory mode is pinned to; None in url mode unless the user chose one.
        columns: The table's columns and, for a change feed, the change columns.
        output: The columns that the load has.
        predicate: The parsed ``where``.
        pushed: Filters of the one query that the load serves (``pushdown=query``); prunes, filters no row.
    """

    options: ReadOptions = field(repr=False)
    profile: Profile = field(repr=False)
    settings: TransportSettings = field(repr=False)
    table: TableName
    head: TableSnapshotHead = field(repr=False)
    decision: Decision
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

    @property
    def rest(self) -> SharingRest:
        return SharingRest(self.profile, self.settings)


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

    def by_directory() -> Load:
        return _by_directory(options, profile, settings, table, head, decision)

    def by_url() -> Load:
        seen = head_as_of(rest, table, options, head)
        shape = shape_of(seen.protocol, seen.metadata, str(table))
        if options.read_change_feed and shape.mapping != "none":
            shape = _shape_at_end(rest, table, options, seen, shape)
        pinned = options.version_as_of
        return _finished(options, profile, settings, table, seen, replace(decision, mode="url"), shape, pinned)

    return with_fallback(decision, by_directory, by_url, table=str(table))


def shape_of(protocol: Protocol, metadata: Metadata, table: str) -> TableShape:
    """The shape of a table as the sharing server describes it; the protocol passes the gate first.

    Raises:
        UnsupportedFeatureError: A reader feature or a type that this reader does not know, by its name.
        ResponseError: A schema that is malformed.
    """
    check_protocol(protocol.min_reader_version, protocol.reader_features or None, table=table)
    schema = parse_schema(metadata.schema_string, table)
    check_type_changes(schema, table=table)
    mapping = mapping_mode(metadata.configuration, protocol.min_reader_version, protocol.reader_features, table=table)
    if mapping == "none":
        schema = without_mapping(schema)
    return TableShape(metadata.id, schema, metadata.partition_columns, mapping)


def shape_in_log(protocol: LogProtocol, metadata: LogMetadata, table: str) -> TableShape:
    """The shape of a table by its log, whose protocol has passed the gate.

    Raises:
        LogError, UnsupportedFeatureError: A schema that is malformed, or of types that this reader does not know.
    """
    schema, mapping = metadata.schema(table), metadata.mapping(protocol, table)
    if mapping == "none":
        schema = without_mapping(schema)
    return TableShape(metadata.id, schema, metadata.partition_columns, mapping)


def check_same(loaded: TableShape, now: TableShape, table: str) -> None:
    """Compare what a query returns with what was loaded; columns that were only added do no harm.

    Raises:
        TableChangedError: The rows would not be what the DataFrame promises.
    """
    why = None
    if loaded.id and now.id and loaded.id != now.id:
        why = "it was replaced by another table"
    elif loaded.partition_columns != now.partition_columns:
        why = "its partition columns changed"
    elif loaded.mapping != now.mapping:
        why = "its column mapping changed"
    else:
        for old in loaded.schema.fields:
            new = now.schema.find(old.name)
            if new is None:
                why = f"column {old.name!r} was dropped"
            elif new.type != old.type or (new.nullable and not old.nullable):
                why = f"column {old.name!r} changed from {_shown(old)} to {_shown(new)}"
            elif new.physical_name != old.physical_name:
                why = f"column {old.name!r} was replaced"
            if why:
                break
    if why:
        raise TableChangedError(f"table {table} has changed since it was loaded: {why}; load it again")


def _shown(field_: Field) -> str:
    return f"{field_.type}{'' if field_.nullable else ' NOT NULL'}"


def _negotiated(rest: SharingRest, table: TableName, options: ReadOptions) -> tuple[TableSnapshotHead, Decision]:
    try:
        head = rest.metadata(
            table, version=options.version_as_of, timestamp=iso(options.timestamp_as_of), formats=formats_of(options)
        )
    except REFUSALS as refusal:
        cause: VersionError | Refusal = refusal
        if options.version_as_of is not None or options.timestamp_as_of is not None:
            cause = refused_travel(rest, table, options, refusal)
            if isinstance(cause, VersionError) and options.access_mode == "url":
                raise cause from refusal
        if isinstance(cause, NotFoundError):
            raise
        head = _listed(rest, table, cause)
        return head, _decide(head, table, options, url_refusal=str(cause))
    return head, _decide(head, table, options)


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


def _listed(rest: SharingRest, table: TableName, refusal: VersionError | RequestRefusedError) -> TableSnapshotHead:
    """What the listing says of a table whose metadata the server refuses (its features, its history): enough for
    directory mode.

    Raises:
        VersionError, RequestRefusedError: The refusal, where directory mode is not on offer.
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


def _by_directory(
    options: ReadOptions,
    profile: Profile,
    settings: TransportSettings,
    table: TableName,
    head: TableSnapshotHead,
    decision: Decision,
) -> Load:
    from delta_sharing_spark.access.directory import open_directory

    directory = open_directory(
        profile,
        settings,
        table,
        head,
        settings=storage_of(options),
        carry_profile=options.carry_profile,
        replaceable=decision.fallback is not None,
    )
    snapshot = directory.snapshot(version=options.version_as_of, timestamp_ms=millis(options.timestamp_as_of))
    shape = shape_in_log(snapshot.protocol, snapshot.metadata, str(table))
    if options.read_change_feed and shape.mapping != "none":
        shape = _shape_at_end_of_log(directory.store, options, snapshot.version, shape, str(table))
    return _finished(options, profile, settings, table, head, decision, shape, snapshot.version)


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
        raise refused_travel(rest, table, asked, refusal) from refusal
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


def _finished(
    options: ReadOptions,
    profile: Profile,
    settings: TransportSettings,
    table: TableName,
    head: TableSnapshotHead,
    decision: Decision,
    shape: TableShape,
    version: int | None,
) -> Load:
    columns = with_change_columns(shape.schema, options) if options.read_change_feed else shape.schema
    output = columns if options.columns is None else select(columns, options.columns, str(table))
    predicate = None
    if options.where is not None:
        from delta_sharing_spark.predicates.sql import parse_where

        predicate = parse_where(options.where, columns, time_zone=options.time_zone)
    return Load(options, profile, settings, table, head, decision, shape, version, columns, output, predicate)


def with_change_columns(schema: Struct, options: ReadOptions) -> Struct:
    """A table's columns and those of its change data feed."""
    moment = "long" if options.commit_timestamp_type == "long" else "timestamp"
    return Struct(
        (
            *schema.fields,
            Field(CHANGE_TYPE, Primitive("string")),
            Field(COMMIT_VERSION, Primitive("long")),
            Field(COMMIT_TIMESTAMP, Primitive(moment)),
        )
    )
