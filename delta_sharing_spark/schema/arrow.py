"""Converts Delta types to the exact Arrow schema that Spark compares the first batch with.

The rules mirror PySpark's ``to_arrow_schema(schema, timezone="UTC")``, nullability included; a test holds them
together. They stand here again because executors must not depend on a Spark version's private function.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from delta_sharing_spark.schema.types import Array, DataType, Decimal, Map, Primitive, Struct

_PRIMITIVES: dict[str, pa.DataType] = {
    "string": pa.string(), "long": pa.int64(), "integer": pa.int32(), "short": pa.int16(), "byte": pa.int8(),
    "float": pa.float32(), "double": pa.float64(), "boolean": pa.bool_(), "binary": pa.binary(), "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"), "timestamp_ntz": pa.timestamp("us"), "void": pa.null(),
    # Spark wants value before metadata, whatever order the files have (Parquet says metadata first).
    "variant": pa.struct([
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
    ]),
}  # fmt: skip


def arrow_type(data_type: DataType) -> pa.DataType:
    """The Arrow type of a Delta type, as Spark expects it from a data source."""
    match data_type:
        case Primitive(name):
            return _PRIMITIVES[name]
        case Decimal(precision, scale):
            return pa.decimal128(precision, scale)
        case Array(element, contains_null):
            return pa.list_(pa.field("element", arrow_type(element), nullable=contains_null))
        case Map(key, value, value_contains_null):
            return pa.map_(
                pa.field("key", arrow_type(key), nullable=False),
                pa.field("value", arrow_type(value), nullable=value_contains_null),
            )
        case Struct(fields):
            return pa.struct([pa.field(f.name, arrow_type(f.type), nullable=f.nullable) for f in fields])


def arrow_schema(schema: Struct) -> pa.Schema:
    """The Arrow schema of a table's (projected) schema; field order and nullability are the schema's."""
    return pa.schema(list(arrow_type(schema)))


def with_other_values(data_type: pa.DataType, other: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """A type with ``other`` of each type that is not nested in its place, at any depth."""

    def changed(field: pa.Field) -> pa.Field:
        return field.with_type(with_other_values(field.type, other))

    if pa.types.is_struct(data_type):
        return pa.struct([changed(field) for field in data_type])
    if pa.types.is_map(data_type):
        return pa.map_(changed(data_type.key_field), changed(data_type.item_field))
    return pa.list_(changed(data_type.value_field)) if pa.types.is_list(data_type) else other(data_type)
