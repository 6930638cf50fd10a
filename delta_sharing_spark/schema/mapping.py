"""Removes column mapping from schemas of tables whose columns are not mapped (Delta protocol, "Column Mapping")."""

from __future__ import annotations

from delta_sharing_spark.schema.types import COLUMN_MAPPING_ID, COLUMN_MAPPING_NAME, Struct, with_metadata


def without_mapping(schema: Struct) -> Struct:
    """The schema without physical names and ids, for a table whose columns are not mapped."""
    return with_metadata(schema, lambda key: key not in (COLUMN_MAPPING_NAME, COLUMN_MAPPING_ID))
