"""Holds the shape of a table: its schema, and what maps its columns to those of its files; compares shapes of several versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from delta_sharing_spark.errors import SchemaError, TableChangedError
from delta_sharing_spark.options.declared import ReadOptions
from delta_sharing_spark.scan.plan import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from delta_sharing_spark.schema.features import check_type_changes
from delta_sharing_spark.schema.table_records import Metadata, Protocol
from delta_sharing_spark.schema.types import (
    TYPE_CHANGES,
    Field,
    FieldsByName,
    Primitive,
    Struct,
    inner_fields,
    without_mapping,
)


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


def shape_of(protocol: Protocol, metadata: Metadata, table: str) -> TableShape:
    """The shape of a table as the sharing server or its log describes it; the protocol passes the gate first.

    Raises:
        UnsupportedFeatureError: A reader feature or a type that this reader does not know, by its name.
        ResponseError: A schema that is malformed.
    """
    protocol.check(table)
    schema = metadata.schema(table)
    if TYPE_CHANGES in metadata.schema_string:
        check_type_changes(schema, table=table)
    mapping = metadata.mapping(protocol, table)
    if mapping == "none":
        schema = without_mapping(schema)
    vectors = "deletionVectors" in protocol.reader_features
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
                why = f"column {old.name!r} changed from {_described(old)} to {_described(new)}"
            elif new.physical_name != old.physical_name:
                why = f"column {old.name!r} was replaced"
            if why:
                break
    if why:
        raise TableChangedError(f"table {table} has changed since it was loaded: {why}; load it again")


def check_readable(feed: TableShape, earlier: TableShape, version: int | None, table: str) -> None:
    """Refuse a version whose values would be missing from the feed's columns, or stand in others.

    A column that the version lacks is NULL in its rows, one that the feed lacks is left out, and types are compared
    file by file. A version with another id is read where its columns are all in the feed: a MERGE of delta-rs
    that adds columns or fields gives the table another id.

    Raises:
        TableChangedError: The version is another table's.
        SchemaError: Names version and column.
    """
    when = "the newest version" if version is None else f"version {version}"
    same_files = (feed.mapping, feed.partition_columns) == (earlier.mapping, earlier.partition_columns)
    is_other = bool(feed.id and earlier.id and feed.id != earlier.id)
    if is_other and not (same_files and _holds(feed.schema.fields, earlier.schema.fields)):
        raise TableChangedError(
            f"table {table} was replaced by another table as of {when}; load it again, or start at a later version"
        )
    columns = {column.physical_name: column for column in feed.schema.fields}
    for column in earlier.schema.fields:
        source, namesake = columns.get(column.physical_name), feed.schema.find(column.name)
        why = None
        if feed.mapping == "none" != earlier.mapping and source is not namesake:
            why = "files hold it by another name there (the column mapping was taken off)"
        elif source is not None and (column.name in earlier.partition_columns) != (
            source.name in feed.partition_columns
        ):
            why = "it is a partition column in one and not in the other"
        if why is not None:
            raise SchemaError(
                f"{when} of {table} has column {column.name!r} otherwise than the change feed that is read: {why}; "
                f"start at a later version",
                column=column.name,
                version=version,
            )


def _holds(now: Sequence[Field], earlier: Sequence[Field]) -> bool:
    """Whether every earlier field is still there as it was, but for fields that were added within it."""
    types = {(new.name, new.physical_name): new.type for new in now}
    for old in earlier:
        kind, inner = types.get((old.name, old.physical_name)), inner_fields(old.type)
        if kind is None or not (_holds(inner_fields(kind), inner) if inner else kind == old.type):
            return False
    return True


def _described(field_: Field) -> str:
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
