"""Holds a resolved load as plain data, which pickles to the planning worker: the shape and mode of its table, and the scan of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from delta_sharing_spark.errors import SchemaError, TableChangedError
from delta_sharing_spark.network.settings import NetworkSettings
from delta_sharing_spark.options import ReadOptions
from delta_sharing_spark.predicates.tree import Expression, conjunction
from delta_sharing_spark.scan.plan import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from delta_sharing_spark.schema.features import TYPE_CHANGES, check_protocol, check_type_changes, mapping_mode
from delta_sharing_spark.schema.types import Field, FieldsByName, Primitive, Struct, parse_schema, without_mapping
from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.sharing.profile import Profile
from delta_sharing_spark.sharing.wire_records import Metadata, Protocol, TableSnapshotHead

if TYPE_CHECKING:
    from delta_sharing_spark.deltalog import actions


@dataclass(frozen=True, slots=True)
class TableShape:
    """The schema of a table, with what maps its columns to those of its files.

    Attributes:
        id: The table's id; another one means another table.
        schema: Its columns, with physical names only where columns are mapped.
        partition_columns: Logical names.
        mapping: Column mapping mode.
        may_have_vectors: Whether its protocol allows its files to have deletion vectors.
    """

    id: str
    schema: Struct
    partition_columns: tuple[str, ...]
    mapping: str
    may_have_vectors: bool = False


def shape_of(protocol: Protocol | actions.Protocol, metadata: Metadata | actions.Metadata, table: str) -> TableShape:
    """The shape of a table as the sharing server or its log describes it; the protocol passes the gate first.

    Raises:
        UnsupportedFeatureError: A reader feature or a type that this reader does not know, by its name.
        ResponseError: A schema that is malformed.
    """
    check_protocol(protocol.min_reader_version, protocol.reader_features or None, table=table)
    schema = parse_schema(metadata.schema_string, table)
    if TYPE_CHANGES in metadata.schema_string:
        check_type_changes(schema, table=table)
    mapping = mapping_mode(metadata.configuration, protocol.min_reader_version, protocol.reader_features, table=table)
    if mapping == "none":
        schema = without_mapping(schema)
    vectors = "deletionVectors" in (protocol.reader_features or ())
    return TableShape(metadata.id, schema, metadata.partition_columns, mapping, vectors)


def check_same(loaded: TableShape, now: TableShape, table: str) -> None:
    """Compare the table that a query returns with the one that was loaded; columns that were only added do no harm.

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
        fields = FieldsByName(now.schema)
        for old in loaded.schema.fields:
            new = fields.find(old.name)
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


def check_readable(feed: TableShape, earlier: TableShape, version: int | None, table: str) -> None:
    """Refuse a version whose values would be missing from the feed's columns, or stand in others.

    A column that the version lacks is NULL in its rows, one that the feed lacks is left out, and types are compared
    file by file.

    Raises:
        TableChangedError: The version is another table's.
        SchemaError: Names version and column.
    """
    when = "the newest version" if version is None else f"version {version}"
    if feed.id and earlier.id and feed.id != earlier.id:
        raise TableChangedError(f"table {table} was replaced by another table as of {when}; load it again")
    columns = {column.physical_name: column for column in feed.schema.fields}
    for column in earlier.schema.fields:
        known, namesake = columns.get(column.physical_name), feed.schema.find(column.name)
        why = None
        if known is None:
            if namesake is not None and feed.mapping != earlier.mapping:
                why = "files hold it by another name there (the column mapping differs)"
        elif (column.name in earlier.partition_columns) != (known.name in feed.partition_columns):
            why = "it is a partition column in one and not in the other"
        if why is not None:
            raise SchemaError(
                f"{when} of {table} has column {column.name!r} otherwise than the change feed that is read: {why}; "
                f"start at a later version",
                column=column.name,
                version=version,
            )


def _shown(field_: Field) -> str:
    return f"{field_.type}{'' if field_.nullable else ' NOT NULL'}"


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


Mode = Literal["url", "dir", "flight"]


@dataclass(frozen=True, slots=True)
class Decision:
    """The mode of one load.

    Attributes:
        mode: ``"url"``, ``"dir"`` or ``"flight"``.
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
    """

    shape: TableShape = field(repr=False)
    version: int | None
    columns: Struct = field(repr=False)
    output: Struct
    predicate: Expression | None = None
    pushed: Expression | None = None
    is_pinned: bool = False
    rows_needed: int | None = None

    @property
    def prune(self) -> Expression | None:
        """The conditions that files and row groups may be skipped by; None if there are none."""
        # A limit counts rows before Spark's filters do: pruning by them would give other rows.
        parts = [p for p in (self.predicate, self.pushed if self.options.limit is None else None) if p is not None]
        return conjunction(parts) if parts else None
