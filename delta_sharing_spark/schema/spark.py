"""Makes the schema that Spark is given: a table's schema without the metadata that Spark would act upon."""

from __future__ import annotations

from typing import Any

from delta_sharing_spark.schema.types import Struct, schema_to_json, with_metadata

# A default that Spark cannot resolve breaks the load; the others belong to writers.
_STRIPPED = frozenset({"CURRENT_DEFAULT", "EXISTS_DEFAULT"})


def spark_schema_json(schema: Struct) -> dict[str, Any]:
    """``schema`` as the JSON tree that ``StructType.fromJson`` takes.

    ``delta.*`` and default-value metadata is left out at every level; comments stay, and so do the
    char/varchar and collation marks, which change how Spark pads and compares.
    """
    return schema_to_json(with_metadata(schema, lambda key: not key.startswith("delta.") and key not in _STRIPPED))
