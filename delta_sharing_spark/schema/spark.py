"""The schema Spark is given: a table's schema without the metadata that Spark would act upon."""

from __future__ import annotations

from typing import Any

from delta_sharing_spark.schema.types import Array, DataType, Field, Map, Struct, schema_to_json

# A default that Spark cannot resolve breaks the load; the others belong to writers.
_STRIPPED = frozenset({"CURRENT_DEFAULT", "EXISTS_DEFAULT"})


def spark_schema_json(schema: Struct) -> dict[str, Any]:
    """``schema`` as the JSON tree that ``StructType.fromJson`` takes.

    ``delta.*`` and default-value metadata is left out at every level; comments stay, and so do the
    char/varchar and collation marks, which change how Spark pads and compares.
    """
    stripped = _strip(schema)
    assert isinstance(stripped, Struct)
    return schema_to_json(stripped)


def _strip(data_type: DataType) -> DataType:
    match data_type:
        case Struct(fields):
            return Struct(tuple(Field(f.name, _strip(f.type), f.nullable, _kept(f)) for f in fields))
        case Array(element, contains_null):
            return Array(_strip(element), contains_null)
        case Map(key, value, value_contains_null):
            return Map(_strip(key), _strip(value), value_contains_null)
        case _:
            return data_type


def _kept(field: Field) -> dict[str, Any]:
    return {k: v for k, v in field.metadata.items() if not k.startswith("delta.") and k not in _STRIPPED}
