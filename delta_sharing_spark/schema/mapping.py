"""Column mapping modes (Delta protocol, "Column Mapping"): which one is in effect, and schemas where none is."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from delta_sharing_spark.errors import UnsupportedFeatureError
from delta_sharing_spark.features import allows_column_mapping
from delta_sharing_spark.schema.types import COLUMN_MAPPING_ID, COLUMN_MAPPING_NAME, Array, DataType, Field, Map, Struct

MODE = "delta.columnMapping.mode"
MODES = ("none", "name", "id")


def mapping_mode(
    configuration: Mapping[str, str], min_reader_version: int, reader_features: Collection[str], table: str
) -> str:
    """``"none"``, ``"name"`` or ``"id"``; the property counts only where the protocol supports the feature.

    Raises:
        UnsupportedFeatureError: A mode that this reader does not know.
    """
    mode = configuration.get(MODE, "none").lower()
    if mode not in MODES:
        raise UnsupportedFeatureError(
            f"{table} maps its columns in the mode {mode!r}, this reader knows name and id; upgrade delta-sharing-spark",
            features=("columnMapping",),
        )
    return mode if allows_column_mapping(min_reader_version, reader_features) else "none"


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
