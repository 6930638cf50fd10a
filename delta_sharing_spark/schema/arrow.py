"""Converts Delta types to the exact Arrow schema that Spark compares the first batch with.

The rules mirror PySpark's ``to_arrow_schema(schema, timezone="UTC")``, nullability included; a test holds them
together. They stand here again because executors must not depend on a Spark version's private function.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pyarrow as pa

from delta_sharing_spark.schema.types import Array, DataType, Decimal, Map, Primitive, Spatial, Struct, Unreadable

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
        case Spatial():
            return pa.binary()
        case Unreadable(name):
            raise ValueError(f"the type {name!r} is not read, and no load has a column of it")
        case Array(element, contains_null):
            return pa.list_(_field("element", element, contains_null))
        case Map(key, value, value_contains_null):
            return pa.map_(_field("key", key, False), _field("value", value, value_contains_null))
        case Struct(fields):
            return pa.struct([_field(f.name, f.type, f.nullable) for f in fields])


def _field(name: str, data_type: DataType, nullable: bool) -> pa.Field:
    metadata = _geoarrow(data_type) if isinstance(data_type, Spatial) else None
    return pa.field(name, arrow_type(data_type), nullable, metadata)


def _geoarrow(data_type: Spatial) -> dict[str, str]:
    """The metadata by which GeoPandas, DuckDB and others know well-known binary (GeoArrow, "Extension metadata")."""
    authority, _, code = data_type.crs.partition(":")
    system = {"crs": data_type.crs, "crs_type": "authority_code"}
    if authority.upper() == "SRID":
        system = {"crs": code, "crs_type": "srid"} if code != "0" else {}
    edges = {} if data_type.algorithm is None else {"edges": data_type.algorithm.lower()}
    return {"ARROW:extension:name": "geoarrow.wkb", "ARROW:extension:metadata": json.dumps({**system, **edges})}


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
