"""Which change of a table's schema a stream can read on through, and which must stop it."""

from __future__ import annotations

from dataclasses import dataclass

from delta_sharing_spark.access.load import TableShape
from delta_sharing_spark.errors import StreamError
from delta_sharing_spark.schema.types import Array, DataType, Field, Map, Struct

_ADVICE = "restart the stream to read with the new schema; if that does not help, start it anew with another checkpoint"


@dataclass(frozen=True, slots=True)
class SchemaPolicy:
    """A stream's schema, and what the table may have beside it at a version.

    A column that a version lacks reads as NULL (older versions have fewer columns), and a narrower type is widened. A
    column that the stream lacks is data that would be left out: an error, unless the stream chose not to read such
    columns or ``allowAddedColumns`` is set. Another type or physical column, other partition columns, a NOT NULL column
    that allows NULL now, or a name that differs by case is always an error.

    Attributes:
        schema: The stream's columns, without change columns, with physical names where columns are mapped.
        partition_columns: The table's, as the stream reads it.
        chosen: Paths of structs of which the stream was told which fields to read; ``""`` is the table itself.
        allow_added: The option ``allowAddedColumns``.
    """

    schema: Struct
    partition_columns: tuple[str, ...]
    chosen: frozenset[str]
    allow_added: bool

    def check(self, now: TableShape, version: int, table: str) -> None:
        """Compare the table at a version.

        Raises:
            StreamError: Names version, column and change, and says what to do.
        """
        changed = set(self.partition_columns) ^ set(now.partition_columns)
        if changed:
            raise _incompatible(version, table, sorted(changed)[0], "the partition columns differ")
        self._struct(self.schema, now.schema, "", version, table)

    def _struct(self, stream: Struct, now: Struct, path: str, version: int, table: str) -> None:
        mine = {f.name: f for f in stream.fields}
        folded = {name.lower() for name in mine}
        for field in now.fields:
            known = mine.get(field.name)
            column = f"{path}.{field.name}" if path else field.name
            if known is not None:
                self._field(known, field, column, version, table)
            elif field.name.lower() in folded:
                raise _incompatible(version, table, column, f"it is spelled {field.name!r}, otherwise in the stream")
            elif not self.allow_added and path not in self.chosen:
                raise _incompatible(
                    version,
                    table,
                    column,
                    "it was added (or dropped since), and the stream does not read it",
                    "or set allowAddedColumns=true to read on without it",
                )

    def _field(self, known: Field, field: Field, column: str, version: int, table: str) -> None:
        if field.physical_name != known.physical_name:
            raise _incompatible(version, table, column, "another column has its name")
        if field.nullable and not known.nullable:
            raise _incompatible(version, table, column, "it allows NULL")
        self._type(known.type, field.type, column, version, table)

    def _type(self, known: DataType, now: DataType, column: str, version: int, table: str) -> None:
        match known, now:
            case Struct(), Struct():
                self._struct(known, now, column, version, table)
            case Array(), Array():
                self._type(known.element, now.element, f"{column}.element", version, table)
            case Map(), Map():
                self._type(known.key, now.key, f"{column}.key", version, table)
                self._type(known.value, now.value, f"{column}.value", version, table)
            case _:
                if known != now and not _widens(now, known):
                    raise _incompatible(version, table, column, f"its type is {now}, the stream reads {known}")


def chosen_structs(stream: Struct, table: Struct, *, chosen: bool) -> frozenset[str]:
    """Paths of the structs of which a stream reads some fields only, as it was told.

    Args:
        stream, table: The stream's columns and the table's, at the stream's start.
        chosen: Whether the stream was told which columns to read at all.
    """
    if not chosen:
        return frozenset()
    found = {""}
    for field in stream.fields:
        other = table.find(field.name)
        if other is not None:
            _collect(field.type, other.type, field.name, found)
    return frozenset(found)


def _collect(stream: DataType, table: DataType, path: str, found: set[str]) -> None:
    match stream, table:
        case Struct(), Struct():
            if len(stream.fields) < len(table.fields):
                found.add(path)
            for field in stream.fields:
                other = table.find(field.name)
                if other is not None:
                    _collect(field.type, other.type, f"{path}.{field.name}", found)
        case Array(), Array():
            _collect(stream.element, table.element, f"{path}.element", found)
        case Map(), Map():
            _collect(stream.key, table.key, f"{path}.key", found)
            _collect(stream.value, table.value, f"{path}.value", found)
        case _:
            return


def _widens(narrow: DataType, wide: DataType) -> bool:
    """Whether a version before a column was widened reads with the type it has now."""
    if isinstance(narrow, Struct | Array | Map) or isinstance(wide, Struct | Array | Map):
        return False
    from delta_sharing_spark.features import widens

    return widens(str(narrow), str(wide))


def _incompatible(version: int, table: str, column: str, change: str, more: str = "") -> StreamError:
    return StreamError(
        f"version {version} of {table} has column {column!r} otherwise than the stream: {change}; "
        f"{_ADVICE}{', ' + more if more else ''}",
        version=version,
        column=column,
    )
