"""Tables between their logical shape and the one their files have: names, field ids, missing and widened columns."""

from __future__ import annotations

from collections.abc import Callable, Collection
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_sharing_spark.schema.arrow import arrow_schema, arrow_type
from delta_sharing_spark.schema.types import PRIMITIVES, Array, DataType, Decimal, Field, Map, Primitive, Struct

_FIELD_ID = b"PARQUET:field_id"

Naming = Callable[[Field], str]


logical_name: Naming = attrgetter("name")
physical_name: Naming = attrgetter("physical_name")


def table_of(data: pa.Table | pa.RecordBatch | list[dict[str, Any]], schema: Struct) -> pa.Table:
    """``data`` as a table of exactly the schema's logical columns; absent columns are null."""
    if isinstance(data, list):
        return pa.Table.from_pylist(data, schema=arrow_schema(schema))
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    return rename_columns(data, schema, logical_name, logical_name)


def to_physical(table: pa.Table, schema: Struct, *, field_ids: bool = False, required: bool = True) -> pa.Table:
    """A logical table under the physical names, as a data file has it; void columns stay (nulls)."""
    return rename_columns(table, schema, logical_name, physical_name, field_ids=field_ids, required=required)


def to_logical(table: pa.Table, schema: Struct) -> pa.Table:
    """Physical rows as the table's present schema shows them: renamed, cast, missing columns null."""
    return rename_columns(table, schema, physical_name, logical_name).cast(arrow_schema(schema))


def empty_is_null(table: pa.Table, columns: Collection[str]) -> pa.Table:
    """``table`` with ``""`` as null in those columns: what a partition column of it reads as."""
    for name in columns:
        position = table.schema.get_field_index(name)
        column = table.column(position)
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            empty = pc.equal(pc.binary_length(column), 0)
            table = table.set_column(position, name, pc.if_else(empty, pa.scalar(None, column.type), column))
    return table


def rename_columns(
    table: pa.Table, schema: Struct, source: Naming, target: Naming, *, field_ids: bool = False, required: bool = True
) -> pa.Table:
    """Rebuild ``table`` in the schema's order and types, finding columns by ``source`` and naming them by ``target``."""
    build = _Build(source, target, field_ids, required)
    held = {name: table.column(i).combine_chunks() for i, name in enumerate(table.column_names)}
    arrays, fields = build.columns(schema.fields, held, table.num_rows)
    return pa.table(arrays, schema=pa.schema(fields)) if fields else table.select([])


class _Build:
    def __init__(self, source: Naming, target: Naming, field_ids: bool, required: bool) -> None:
        self._source, self._target, self._ids, self._required = source, target, field_ids, required

    def field(self, field: Field, data_type: pa.DataType) -> pa.Field:
        metadata = None
        if self._ids and field.field_id is not None:
            metadata = {_FIELD_ID: str(field.field_id).encode()}
        nullable = field.nullable or not self._required
        return pa.field(self._target(field), data_type, nullable=nullable, metadata=metadata)

    def array(self, array: pa.Array, target: DataType) -> pa.Array:
        match target:
            case Struct(fields):
                return self._struct(_compact(array), fields)
            case Array(element, contains_null):
                array = _compact(array)
                values = self.array(array.values, element)
                inner = pa.field("element", values.type, nullable=contains_null or not self._required)
                return pa.ListArray.from_arrays(array.offsets, values, type=pa.list_(inner), mask=_mask(array))
            case Map(key, value, value_contains_null):
                array = _compact(array)
                keys, items = self.array(array.keys, key), self.array(array.items, value)
                kind = pa.map_(
                    pa.field("key", keys.type, nullable=False),
                    pa.field("value", items.type, nullable=value_contains_null or not self._required),
                )
                return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=_mask(array))
            case Primitive("variant"):
                return array  # a struct of binaries, shredded or not, as the caller made it
            case _:
                return array.cast(arrow_type(target))

    def columns(
        self, fields: tuple[Field, ...], held: dict[str, pa.Array], rows: int
    ) -> tuple[list[pa.Array], list[pa.Field]]:
        """The arrays of some fields, null where there is none, and their Arrow fields."""
        sources = [(f, held.get(self._source(f))) for f in fields]
        arrays = [self.array(pa.nulls(rows, arrow_type(f.type)) if a is None else a, f.type) for f, a in sources]
        return arrays, [self.field(f, array.type) for f, array in zip(fields, arrays, strict=True)]

    def _struct(self, array: pa.Array, fields: tuple[Field, ...]) -> pa.Array:
        held = {kind.name: array.field(i) for i, kind in enumerate(array.type)}
        children, kinds = self.columns(fields, held, len(array))
        if not children:
            return pa.array([None if v is None else {} for v in array.to_pylist()], pa.struct([]))
        return pa.StructArray.from_arrays(children, fields=kinds, mask=_mask(array))


def _mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _compact(array: pa.Array) -> pa.Array:
    """The same values without an offset into shared buffers, which the nested constructors refuse."""
    return array.take(pa.array(np.arange(len(array)))) if array.offset else array


def without(schema: Struct, names: Collection[str]) -> Struct:
    """The schema without those top-level columns, and without void ones: what a data file holds."""
    return Struct(tuple(f for f in schema.fields if f.name not in names and f.type != Primitive("void")))


def schema_from_arrow(schema: pa.Schema) -> Struct:
    """The Delta schema of an Arrow schema, with fields' comments; raises ValueError for a type that Delta does not have."""
    return Struct(tuple(_field_from(f) for f in schema))


def _field_from(field: pa.Field) -> Field:
    metadata = {k.decode(): v.decode() for k, v in (field.metadata or {}).items() if k == b"comment"}
    return Field(field.name, _type_from(field.type), field.nullable, metadata)


def _type_from(kind: pa.DataType) -> DataType:
    types = pa.types
    if types.is_decimal(kind):
        return Decimal(kind.precision, kind.scale)
    if types.is_struct(kind):
        return Struct(tuple(_field_from(f) for f in kind))
    if types.is_map(kind):
        return Map(_type_from(kind.key_type), _type_from(kind.item_type), kind.item_field.nullable)
    if types.is_list(kind) or types.is_large_list(kind):
        return Array(_type_from(kind.value_type), kind.value_field.nullable)
    if types.is_timestamp(kind):
        return Primitive("timestamp" if kind.tz else "timestamp_ntz")
    alias = {pa.large_string(): pa.string(), pa.date64(): pa.date32()}.get(kind, kind)
    name = next((name for name in PRIMITIVES if arrow_type(Primitive(name)) == alias), None)
    if name is None:
        raise ValueError(f"{kind} has no Delta type")
    return Primitive(name)
