"""Statistics in columns, as checkpoints may keep them (``stats_parsed``)."""

from __future__ import annotations

import decimal
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from delta_sharing_spark.schema.arrow import arrow_type
from delta_sharing_spark.schema.partition_values import partition_value
from delta_sharing_spark.schema.types import Decimal, Field, Primitive, Struct

_SKIPPED = frozenset({"binary", "boolean", "void", "variant"})


def parsed_stats(texts: Sequence[str | None], schema: Struct) -> pa.Array:
    """A struct array of the statistics of each file, typed after the table's schema (physical names)."""
    trees = [None if text is None else json.loads(text, parse_float=str) for text in texts]
    bounds = _bounds_type(schema)
    kind = pa.struct(
        [
            ("numRecords", pa.int64()),
            ("minValues", bounds),
            ("maxValues", bounds),
            ("nullCount", _nulls_type(schema)),
            ("tightBounds", pa.bool_()),
        ]
    )
    rows = [None if t is None else _row(t, schema) for t in trees]
    return pa.array(rows, kind)


def _row(tree: dict[str, Any], schema: Struct) -> dict[str, Any]:
    return {
        "numRecords": tree.get("numRecords"),
        "minValues": _bounds(tree.get("minValues") or {}, schema),
        "maxValues": _bounds(tree.get("maxValues") or {}, schema),
        "nullCount": tree.get("nullCount") or {},
        "tightBounds": tree.get("tightBounds"),
    }


def _has_bounds(field: Field) -> bool:
    return isinstance(field.type, Decimal) or (isinstance(field.type, Primitive) and field.type.name not in _SKIPPED)


def _bounds_type(schema: Struct) -> pa.DataType:
    fields = []
    for field in schema.fields:
        if isinstance(field.type, Struct):
            fields.append((field.physical_name, _bounds_type(field.type)))
        elif _has_bounds(field):
            fields.append((field.physical_name, arrow_type(field.type)))
    return pa.struct(fields)


def _nulls_type(schema: Struct) -> pa.DataType:
    return pa.struct(
        [(f.physical_name, _nulls_type(f.type) if isinstance(f.type, Struct) else pa.int64()) for f in schema.fields]
    )


def _bounds(tree: dict[str, Any], schema: Struct) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for field in schema.fields:
        value = tree.get(field.physical_name)
        if value is None:
            continue
        if isinstance(field.type, Struct):
            out[field.physical_name] = _bounds(value, field.type)
        elif isinstance(field.type, Decimal):
            out[field.physical_name] = decimal.Decimal(str(value))
        elif _has_bounds(field):
            out[field.physical_name] = partition_value(str(value), field.type)
    return out
