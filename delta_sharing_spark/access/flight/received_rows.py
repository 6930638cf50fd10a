"""Looks at the batches that a gateway sends before anything reads their values: Arrow follows whatever offsets they hold."""

from __future__ import annotations

import pyarrow as pa

from delta_sharing_spark.errors import ResponseError


def require_sound(batch: pa.RecordBatch, table: str, gateway: str) -> None:
    """Refuse a batch whose offsets, lengths or indices point elsewhere than into its own buffers.

    Text is looked at as bytes: whether it is UTF-8 costs eight times as much, and does not matter to Arrow.

    Raises:
        ResponseError: One does.
    """
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.view(_without_text(column.type)).validate(full=True)
        except pa.ArrowException as error:
            raise ResponseError(
                f"the Flight gateway {gateway} sent damaged rows of {table} (column {name!r}: {error}); check its version, "
                f"and what lies between"
            ) from None


def _without_text(kind: pa.DataType) -> pa.DataType:
    """The type of the same layout with binary values for text."""
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_large_string(kind):
        return pa.large_binary()
    if pa.types.is_struct(kind):
        return pa.struct([_field(kind.field(i)) for i in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return pa.list_(_field(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(_field(kind.key_field), _field(kind.item_field))
    return kind


def _field(field: pa.Field) -> pa.Field:
    return field.with_type(_without_text(field.type))
