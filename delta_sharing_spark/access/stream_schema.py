"""Which change of a table's schema a stream can read on through, and which must stop it."""

from __future__ import annotations

from delta_sharing_spark.access.load import TableShape
from delta_sharing_spark.errors import StreamError
from delta_sharing_spark.schema.types import Array, DataType, Field, Map, Struct

_ADVICE = "restart the stream to read with the new schema; if that does not help, start it anew with another checkpoint"


def check_shape(stream: Struct, now: TableShape, version: int, table: str, *, whole: bool, allow_added: bool) -> None:
    """Compare the schema a stream was started with to the table's at a version.

    A column that the version lacks reads as NULL (older versions have fewer columns). A column that the stream lacks is
    data that would be left out: an error, unless the stream names its columns or ``allowAddedColumns`` is set. Another
    type, a NOT NULL column that allows NULL now, or a name that differs by case is always an error.

    Args:
        stream: The stream's columns, without change columns.
        now: The table at ``version``.
        whole: Whether the stream is meant to read all columns.
        allow_added: The option ``allowAddedColumns``.

    Raises:
        StreamError: Names version, column and change, and says what to do.
    """
    _check_struct(stream, now.schema, "", version, table, whole and not allow_added)


def _check_struct(stream: Struct, now: Struct, path: str, version: int, table: str, strict: bool) -> None:
    mine = {f.name: f for f in stream.fields}
    folded = {name.lower(): name for name in mine}
    for field in now.fields:
        known = mine.get(field.name)
        column = f"{path}.{field.name}" if path else field.name
        if known is not None:
            _check_field(known, field, column, version, table, strict)
        elif not strict:
            continue
        elif field.name.lower() in folded:
            raise _incompatible(version, table, column, f"it is now spelled {field.name!r}")
        else:
            raise _incompatible(
                version, table, column, "it was added", "or set allowAddedColumns=true to read on without it"
            )


def _check_field(known: Field, field: Field, column: str, version: int, table: str, strict: bool) -> None:
    if field.nullable and not known.nullable:
        raise _incompatible(version, table, column, "it allows NULL now")
    _check_type(known.type, field.type, column, version, table, strict)


def _check_type(known: DataType, now: DataType, column: str, version: int, table: str, strict: bool) -> None:
    match known, now:
        case Struct(), Struct():
            _check_struct(known, now, column, version, table, strict)
        case Array(), Array():
            _check_type(known.element, now.element, f"{column}.element", version, table, strict)
        case Map(), Map():
            _check_type(known.key, now.key, f"{column}.key", version, table, strict)
            _check_type(known.value, now.value, f"{column}.value", version, table, strict)
        case _:
            if known != now:
                raise _incompatible(version, table, column, f"its type is {now}, the stream reads {known}")


def _incompatible(version: int, table: str, column: str, change: str, more: str = "") -> StreamError:
    return StreamError(
        f"version {version} of {table} changed column {column!r}: {change}; {_ADVICE}{', ' + more if more else ''}",
        version=version,
        column=column,
    )
