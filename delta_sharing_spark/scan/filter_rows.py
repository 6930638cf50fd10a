"""Filters batches by a mask, makes the mask of deletion vectors, and cuts a stream of batches at a row limit."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from delta_sharing_spark.errors import CorruptFileError
from delta_sharing_spark.scan.deletion_vector import decode, decode_inline, select_mask
from delta_sharing_spark.scan.plan import DeletionVector, FileTask
from delta_sharing_spark.schema.arrow_bridge import mask as arrow_mask
from delta_sharing_spark.storage.ranges import ByteSource

if TYPE_CHECKING:
    from pyroaring import BitMap64

OpenVector = Callable[[FileTask, DeletionVector], ByteSource]
#: Rows whose mask is made at once; each takes a byte until the mask is packed into bits.
_PIECE = 1 << 20


def first_rows(
    batches: Generator[pa.RecordBatch, None, None], limit: int | None
) -> Generator[pa.RecordBatch, None, None]:
    """The first ``limit`` rows of ``batches`` (all, if None), without empty batches; ``batches`` is closed at the end."""
    remaining = limit
    try:
        while (remaining is None or remaining > 0) and (batch := next(batches, None)) is not None:
            if remaining is not None:
                batch = batch.slice(0, remaining)
                remaining -= batch.num_rows
            if batch.num_rows:
                yield batch
    finally:
        batches.close()


def keep_rows(batch: pa.RecordBatch, keep: pa.BooleanArray) -> pa.RecordBatch:
    """The rows of ``batch`` where ``keep`` is true (not where it is NULL); the batch itself where every row stays."""
    count = keep.true_count
    if count == len(keep):
        return batch
    if batch.num_columns == 0:
        return pa.RecordBatch.from_struct_array(pa.nulls(count, pa.struct([])))
    return batch.filter(keep)


@dataclass(frozen=True, slots=True)
class RowSelection:
    """Rows of one file that stay: those outside ``deleted`` (inside, if ``is_inverted``) and outside ``excluded``."""

    deleted: Any
    is_inverted: bool
    excluded: Any

    def mask(self, first_row: int, rows: int) -> pa.BooleanArray:
        """Which of the file's rows ``first_row`` to ``first_row + rows`` stay, a bit each."""
        how = {"invert": self.is_inverted, "excluded": self.excluded}
        pieces = [
            arrow_mask(select_mask(first_row + start, min(_PIECE, rows - start), self.deleted, **how))
            for start in range(0, max(rows, 1), _PIECE)
        ]
        return pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)


def read_row_selection(
    task: FileTask, rows: int, open_vector: OpenVector, deleted: BitMap64 | None = None
) -> RowSelection | None:
    """Fetch and decode the task's deletion vectors; None where every row stays.

    Args:
        task: The file's task.
        rows: The number of rows of the file.
        open_vector: Opens the frame of a vector that lies in a file.
        deleted: Rows that delete files name.

    Raises:
        CorruptFileError: A vector's size, checksum or format is wrong, or it marks rows that the file does not have.
    """
    if task.deletion_vector is None and task.excluded is None and not deleted:
        return None
    excluded = _read(task, task.excluded, rows, open_vector)
    if deleted:
        _check_rows(task, deleted, rows)
        excluded = deleted if excluded is None else excluded | deleted
    return RowSelection(
        _read(task, task.deletion_vector, rows, open_vector),
        task.invert_deletion_vector,
        excluded,
    )


def _read(task: FileTask, vector: DeletionVector | None, rows: int, open_vector: OpenVector) -> Any:
    if vector is None:
        return None
    if vector.storage == "i":
        marked = decode_inline(vector, file=task.id)
    else:
        source = open_vector(task, vector)
        try:
            marked = decode(source.read(0, source.size), vector, file=task.id)
        finally:
            source.close()
    _check_rows(task, marked, rows)
    return marked


def _check_rows(task: FileTask, marked: BitMap64, rows: int) -> None:
    if len(marked) and marked.max() >= rows:
        raise CorruptFileError(
            f"a deletion vector or delete file of {task.id} marks row {marked.max()}, and the file has {rows} rows: they do not belong "
            f"together; reload the DataFrame, and if it happens again ask the provider to check the table",
            file=task.id,
        )
