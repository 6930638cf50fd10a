"""Schemas of tables whose columns are not mapped (Delta protocol, "Column Mapping")."""

from __future__ import annotations

from delta_sharing_spark.schema.types import COLUMN_MAPPING_ID, COLUMN_MAPPING_NAME, Array, DataType, Field, Map, Struct


def without_mapping(schema: Struct) -> Struct:
    """The schema without physical names and ids, for a table whose columns are not mapped."""
    stripped = _stripped(schema)
    assert isinstance(stripped, Struct)
    return stripped


def _stripped(data_type: DataType) -> DataType:
    match data_type:
        case Struct(fields):
            return Struct(tuple(Field(f.name, _stripped(f.type), f.nullable, _kept(f)) for f in fields))
        case Array(element, contains_null):
            return Array(_stripped(element), contains_null)
        case Map(key, value, value_contains_null):
            return Map(_stripped(key), _stripped(value), value_contains_null)
        case _:
            return data_type


def _kept(field: Field) -> dict[str, object]:
    return {k: v for k, v in field.metadata.items() if k not in (COLUMN_MAPPING_NAME, COLUMN_MAPPING_ID)}
