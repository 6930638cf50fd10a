"""Turns the row groups of an opened file into rows of the table: without deleted ones, conformed to the schema, filtered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from delta_sharing_spark.parquet.footer import Footer
from delta_sharing_spark.scan.column_resolution import Context
from delta_sharing_spark.scan.filter_rows import RowSelection, keep_rows
from delta_sharing_spark.scan.plan import ReadSpec
from delta_sharing_spark.scan.row_group_reader import RowGroup, read_row_group, size_of
from delta_sharing_spark.scan.transform import Columns, conform, plan_columns
from delta_sharing_spark.schema.arrow import arrow_schema
from delta_sharing_spark.schema.types import logical_schema
from delta_sharing_spark.storage.ranges import ByteSource

#: The most bytes and rows of a batch that is handed on; its consumer holds several.
_BATCH_BYTES, _BATCH_ROWS = 8 << 20, 32768


@dataclass(slots=True)
class Layout:
    """What the files of one schema have in common: where their columns lie, how they become the table's, how wide rows are.

    Attributes:
        schema: Theirs, without what stands beside it.
        is_converted: Whether they count by a calendar or clock of their own.
        constants: The columns that are not read from the file, by name; fields within structs by id and value.
        leaves: The Parquet columns that are.
        columns: How the decoder's columns become the table's; None until the first batch.
        row_bytes: Of the widest row decoded so far, on average of its batch.
    """

    schema: pa.Schema
    is_converted: bool
    constants: frozenset[str | tuple[int, pa.Scalar]]
    leaves: list[int]
    columns: Columns | None = None
    row_bytes: float = 0.0


@dataclass(slots=True)
class OpenSlice:
    """A slice whose footer and deletion vectors were read: see ``OpenFile``.

    Attributes:
        is_shared: Whether other splits read from its source as well.
    """

    source: ByteSource
    footer: Footer
    constants: Mapping[str, pa.Scalar]
    context: Context
    layout: Layout
    groups: list[RowGroup]
    selection: RowSelection | None
    reserved_bytes: int
    is_shared: bool = False

    @property
    def is_held(self) -> bool:
        """Whether the file came whole."""
        return self.footer.file_bytes is not None

    def close(self) -> None:
        """Close its source, unless others read from it."""
        if not self.is_shared:
            self.source.close()

    def rows_to_keep(self, group: RowGroup) -> pa.BooleanArray | None:
        """Which rows of a row group are not deleted; None where all stay."""
        return None if self.selection is None else self.selection.mask(group.first_row, group.rows)


class RowDecoder:
    """Decodes row groups by pyarrow.

    Args:
        spec: What is read of the files.
    """

    def __init__(self, spec: ReadSpec) -> None:
        self.spec = spec
        self._full_schema = self._schema = arrow_schema(spec.full_schema)
        self._projection: Columns | None = None
        if spec.predicate is not None and spec.full_schema != spec.schema:
            # Filtered batches have logical names, whatever the files called the columns.
            self._logical_schema, self._schema = logical_schema(spec.schema), arrow_schema(spec.schema)
            self._logical_context = Context(spec.table, "", "none")
            self._projection = plan_columns(self._full_schema, self._logical_schema, {}, self._logical_context)

    def batches(self, opened: OpenSlice, group: RowGroup) -> Iterator[pa.RecordBatch]:
        """The rows of a row group whose fetching has begun; raises as ``read_split``."""
        spec, layout = self.spec, opened.layout
        keep = opened.rows_to_keep(group)
        limit = spec.limit if spec.predicate is None else None
        row = 0
        for batch in read_row_group(group, spec.table, spec.fetch_ahead // 2, layout.row_bytes, limit):
            count = batch.num_rows
            if count:
                layout.row_bytes = max(layout.row_bytes, size_of(batch) / count)
            if keep is not None:
                batch = keep_rows(batch, keep.slice(row, count))
            row += count
            if batch.num_rows == 0:
                continue
            if layout.columns is None:
                layout.columns = plan_columns(batch.schema, spec.full_schema, layout.constants, opened.context)
            batch = conform(
                batch, layout.columns, spec.full_schema, self._full_schema, opened.context, opened.constants
            )
            yield from _parts(self._filtered(batch))

    def _filtered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.spec.predicate is None:
            return batch
        from delta_sharing_spark.predicates.evaluate import evaluate

        batch = keep_rows(batch, evaluate(self.spec.predicate, batch))
        if self._projection is None:
            return batch
        return conform(batch, self._projection, self._logical_schema, self._schema, self._logical_context)


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in parts that are cheap to hold and to hand on; they share its memory."""
    step = max(1, min(_BATCH_ROWS, batch.num_rows * _BATCH_BYTES // max(1, size_of(batch))))
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)
