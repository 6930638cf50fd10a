"""Decides which change of a table's schema a stream can read on through, and which must stop it."""

from __future__ import annotations

from dataclasses import dataclass

from delta_sharing_spark.access.resolved_scan import ResolvedScan
from delta_sharing_spark.access.table_shape import TableShape
from delta_sharing_spark.errors import StreamError
from delta_sharing_spark.scan.plan import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from delta_sharing_spark.schema.features import widens
from delta_sharing_spark.schema.types import Array, DataType, Field, FieldsByName, Map, Struct, inner_fields

_ADVICE = "restart the stream to read with the new schema; if that does not help, start it anew with another checkpoint"


@dataclass(frozen=True, slots=True)
class SchemaPolicy:
    """A stream's schema, and how the table's may differ from it at a version.

    Columns are told by their physical names. Up to the version of the stream's schema, a column that is not there yet
    reads as NULL, and one that had another name is read under the stream's. After it, a column that was dropped or
    renamed is an error. A narrower type is widened. A column that the stream lacks is data that would be
    left out: an error, unless the stream chose not to read such columns or ``allowAddedColumns`` is set. Another type
    or physical column, other partition columns and a NOT NULL that was given up are always errors.

    Attributes:
        schema: The stream's columns, without change columns, with physical names where columns are mapped.
        partitions: Physical names of the table's partition columns, as the stream reads it.
        since: The version that the schema is of; None if unknown: then every version counts as before it.
        chosen: Paths of the structs of which the user chose some fields; ``""`` is the table itself.
        allow_added: The option ``allowAddedColumns``.
    """

    schema: Struct
    partitions: frozenset[str]
    since: int | None
    chosen: frozenset[str]
    allow_added: bool

    def check(self, now: TableShape, version: int, table: str) -> None:
        """Compare the table at a version; raises StreamError, which names version, column and change, and says what to do."""
        differing = self.partitions ^ _physical_partitions(now)
        if differing:
            names = {f.physical_name: f.name for f in now.schema.fields}
            column = min(names.get(name, name) for name in differing)
            raise _incompatible(version, table, column, "the partition columns differ")
        _Comparison(self, version, table).structs(self.schema, now.schema, "")


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Compares the stream's schema with the table's at one version."""

    policy: SchemaPolicy
    version: int
    table: str

    @property
    def _after(self) -> bool:
        return self.policy.since is not None and self.version > self.policy.since

    def structs(self, stream: Struct, now: Struct, path: str) -> None:
        mine = {f.physical_name: f for f in stream.fields}
        names = {f.name.lower(): f for f in stream.fields}
        for field in now.fields:
            column = f"{path}.{field.name}" if path else field.name
            own = mine.pop(field.physical_name, None)
            if own is not None:
                self._field(own, field, column)
            elif (namesake := names.get(field.name.lower())) is None:
                self._beside(path, column)
            elif namesake.name == field.name:
                raise self._stop(column, "another column has its name")
            else:
                raise self._stop(column, f"it is spelled {field.name!r}, in the stream {namesake.name!r}")
        for missing in mine.values() if self._after else ():
            raise self._stop(f"{path}.{missing.name}" if path else missing.name, "it was dropped")

    def _beside(self, path: str, column: str) -> None:
        """Judge a column of the table that the stream does not have."""
        if self.policy.allow_added or path in self.policy.chosen:
            return
        when = "it was added" if self._after else "it was dropped later, or added while the stream started"
        advice = _ADVICE if self._after else "start the stream anew with another checkpoint"
        raise _incompatible(
            self.version,
            self.table,
            column,
            f"{when}, and the stream does not read it",
            f"{advice}, or set allowAddedColumns=true to read on without it",
        )

    def _field(self, own: Field, field: Field, column: str) -> None:
        if self._after and field.name.lower() != own.name.lower():
            raise self._stop(own.name, f"it was renamed to {field.name!r}")
        if field.nullable and not own.nullable:
            raise self._stop(column, "it allows NULL")
        self._type(own.type, field.type, column)

    def _type(self, own: DataType, now: DataType, column: str) -> None:
        match own, now:
            case Struct(), Struct():
                self.structs(own, now, column)
            case (Array(), Array()) | (Map(), Map()):
                for mine, field in zip(inner_fields(own), inner_fields(now), strict=True):
                    self._field(mine, field, f"{column}.{field.name}")
            case _:
                # A version before a column was widened reads with the type that it has now.
                if own != now and not widens(str(now), str(own)):
                    raise self._stop(column, f"its type is {now}, the stream reads {own}")

    def _stop(self, column: str, change: str) -> StreamError:
        return _incompatible(self.version, self.table, column, change)


def policy_of(scan: ResolvedScan, schema: Struct, *, columns_chosen: bool) -> SchemaPolicy:
    """The policy of a stream of these columns, those of changes included; ``columns_chosen`` as for ``open_stream``."""
    feed = (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP) if scan.options.read_change_feed else ()
    own = Struct(tuple(f for f in schema.fields if f.name not in feed))
    chosen = _chosen_structs(own, scan.shape.schema, columns_chosen=columns_chosen or scan.options.columns is not None)
    partitions = _physical_partitions(scan.shape)
    return SchemaPolicy(own, partitions, scan.version, chosen, scan.options.allow_added_columns)


def _physical_partitions(shape: TableShape) -> frozenset[str]:
    """The partition columns' physical names: those of a renamed column stay."""
    names = {f.name: f.physical_name for f in shape.schema.fields}
    return frozenset(names.get(name, name) for name in shape.partition_columns)


def _chosen_structs(stream: Struct, table: Struct, *, columns_chosen: bool) -> frozenset[str]:
    """Paths of the structs of which a stream reads only the fields that its user chose, by the table at the stream's start."""
    if not columns_chosen:
        return frozenset()
    names = {""}
    columns = FieldsByName(table)
    for field in stream.fields:
        other = columns.find(field.name)
        if other is not None:
            _collect(field.type, other.type, other.name, names)
    return frozenset(names)


def _collect(stream: DataType, table: DataType, path: str, names: set[str]) -> None:
    match stream, table:
        case Struct(), Struct():
            if len(stream.fields) < len(table.fields):
                names.add(path)
            fields = FieldsByName(table)
            for field in stream.fields:
                other = fields.find(field.name)
                if other is not None:
                    _collect(field.type, other.type, f"{path}.{other.name}", names)
        case (Array(), Array()) | (Map(), Map()):
            for mine, inner in zip(inner_fields(stream), inner_fields(table), strict=True):
                _collect(mine.type, inner.type, f"{path}.{inner.name}", names)


def _incompatible(version: int, table: str, column: str, change: str, advice: str = _ADVICE) -> StreamError:
    return StreamError(
        f"version {version} of {table} has column {column!r} otherwise than the stream: {change}; {advice}",
        version=version,
        column=column,
    )
