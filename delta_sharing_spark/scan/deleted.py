"""Deletion vectors at work: which rows of a file are kept, by their physical position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from delta_sharing_spark.deltalog.deletion_vector import decode, decode_inline, keep_mask
from delta_sharing_spark.scan.plan import Access, DeletionVector, FileTask


@dataclass(frozen=True, slots=True)
class Kept:
    """Rows of one file that stay: those outside ``deleted`` (inside, if ``inverted``) and outside ``excluded``."""

    deleted: Any
    inverted: bool
    excluded: Any

    def filter(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
        """``batch``, whose first row is the file's row ``first_row``, without the rows that do not stay."""
        rows = batch.num_rows
        mask = np.ones(rows, dtype=bool)
        if self.deleted is not None:
            mask = keep_mask(self.deleted, first_row, rows)
            if self.inverted:
                mask = ~mask
        if self.excluded is not None:
            mask &= keep_mask(self.excluded, first_row, rows)
        if mask.all():
            return batch
        if batch.num_columns == 0:
            return pa.RecordBatch.from_struct_array(pa.nulls(int(mask.sum()), pa.struct([])))
        # Column by column costs half of RecordBatch.filter, which turns the mask into indices to take.
        keep = pa.array(mask)
        return pa.RecordBatch.from_arrays([column.filter(keep) for column in batch.columns], schema=batch.schema)


def read_kept(task: FileTask, access: Access) -> Kept | None:
    """Fetch and decode the task's deletion vectors; None where every row stays.

    Raises:
        CorruptFileError: A vector's size, checksum or format is wrong.
    """
    if task.deletion_vector is None and task.excluded is None:
        return None
    return Kept(
        _read(task, task.deletion_vector, access), task.invert_deletion_vector, _read(task, task.excluded, access)
    )


def _read(task: FileTask, vector: DeletionVector | None, access: Access) -> Any:
    if vector is None:
        return None
    if vector.storage == "i":
        return decode_inline(vector)
    return decode(access.read_vector(task, vector), vector)
