"""One text for a row, whoever read it: what the kept answers of Delta Lake hold and what readers are compared by."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa


def value_text(value: Any, kind: pa.DataType) -> str:
    """Equal texts are equal values: zones are UTC, a map's entries sorted, a variant is its JSON."""
    if value is None:
        return "null"
    if pa.types.is_struct(kind):
        names = [kind.field(i).name for i in range(kind.num_fields)]
        if sorted(names) == ["metadata", "value"] and all(is_bytes(kind.field(i).type) for i in range(2)):
            return variant_text(value["value"], value["metadata"])
        if names == ["srid", "wkb"]:  # a place on earth as Spark gives it
            return value_text(value["wkb"], kind.field("wkb").type)
        return "{" + ", ".join(f"{n}: {value_text(value[n], kind.field(n).type)}" for n in names) + "}"
    if pa.types.is_map(kind):
        entries = [f"{value_text(k, kind.key_type)}: {value_text(v, kind.item_type)}" for k, v in value]
        return "map(" + ", ".join(sorted(entries)) + ")"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return "[" + ", ".join(value_text(item, kind.value_type) for item in value) + "]"
    if isinstance(value, datetime):
        aware = value.tzinfo is not None
        return (value.astimezone(timezone.utc).replace(tzinfo=None) if aware else value).isoformat(" ") + "Z" * aware
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, float) and pa.types.is_float32(kind):
        return f"{value!r}f"
    return repr(value)


def is_bytes(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)


def variant_text(value: bytes, metadata: bytes) -> str:
    from pyspark.sql.types import VariantVal

    return "variant " + VariantVal(value, metadata).toJson()


def row_texts(table: pa.Table, columns: Sequence[str] | None = None) -> list[str]:
    """Every row as a text, sorted; columns by position, for Spark allows a name twice."""
    table = table if columns is None else table.select(list(columns))
    cells = [[value_text(value, column.type) for value in column.to_pylist()] for column in table.columns]
    names = table.column_names
    return sorted(
        ", ".join(f"{name}={cell}" for name, cell in zip(names, row, strict=True)) for row in zip(*cells, strict=True)
    )
