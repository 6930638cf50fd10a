"""Gives DuckDB the geographies that it refuses, whose edges are not straight, as plain well-known binary."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

_EXTENSION = b"ARROW:extension:metadata"


def planar_schema(schema: pa.Schema) -> pa.Schema:
    """A schema whose geographies, nested ones too, are binary columns of no extension type."""
    return pa.schema([_planar(field) for field in schema], schema.metadata)


def _planar(field: pa.Field) -> pa.Field:
    if b'"edges"' in (field.metadata or {}).get(_EXTENSION, b""):
        field = field.remove_metadata()
    kind = field.type
    if pa.types.is_struct(kind):
        return field.with_type(pa.struct([_planar(inner) for inner in kind]))
    if pa.types.is_map(kind):
        return field.with_type(pa.map_(_planar(kind.key_field), _planar(kind.item_field)))
    return field.with_type(pa.list_(_planar(kind.value_field))) if pa.types.is_list(kind) else field


class PlanarSource:
    """The rows of a source by Arrow's C stream interface, with the columns of ``planar_schema``; each call reads anew.

    Args:
        schema: The columns of the source.
        source: Speaks that interface.
    """

    def __init__(self, schema: pa.Schema, source: object) -> None:
        self._source, self._schema = source, planar_schema(schema)

    def __arrow_c_schema__(self) -> object:
        """The columns."""
        return self._schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The rows."""
        reader = pa.RecordBatchReader.from_stream(self._source)
        return pa.RecordBatchReader.from_batches(self._schema, self._batches(reader)).__arrow_c_stream__()

    def _batches(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        for batch in reader:
            yield pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)
