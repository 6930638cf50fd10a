"""Filters batches by a mask, column by column, makes the mask of deletion vectors, and cuts a stream of batches at a row limit.

Arrow's own filter of a batch, or of a nested column, turns the mask into indices to take, which costs several times as
much.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
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
    if keep.null_count:
        keep = keep.fill_null(False)
    count = keep.true_count
    if count == len(keep):
        return batch
    if batch.num_columns == 0:
        return pa.RecordBatch.from_struct_array(pa.nulls(count, pa.struct([])))
    rows = _Rows(keep, count)
    return pa.RecordBatch.from_arrays([_filter(column, rows) for column in batch.columns], schema=batch.schema)


class _Rows:
    """Which rows of an array stay, in the forms that the filters of different types need."""

    __slots__ = ("_dropped_positions", "_mask", "count", "keep")

    def __init__(self, keep: pa.BooleanArray, count: int) -> None:
        self.keep = keep
        self.count = count
        self._mask: npt.NDArray[np.bool_] | None = None
        self._dropped_positions: npt.NDArray[np.intp] | None = None

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        """One value for each row, true where it stays."""
        if self._mask is None:
            self._mask = self.keep.to_numpy(zero_copy_only=False)
        return self._mask

    @property
    def dropped_positions(self) -> npt.NDArray[np.intp]:
        """Positions of the rows that do not stay, ascending."""
        if self._dropped_positions is None:
            self._dropped_positions = np.flatnonzero(~self.mask)
        return self._dropped_positions


def _filter(array: pa.Array, rows: _Rows) -> pa.Array:
    kind = array.type
    if 2 * rows.count < len(array):
        return array.filter(rows.keep)  # few indices to take
    if pa.types.is_struct(kind) and kind.num_fields:
        children = [_filter(array.field(i), rows) for i in range(kind.num_fields)]
        return _built(array, rows, [], children)
    if pa.types.is_list(kind):
        return _filter_list(array, [array.values], rows)
    if pa.types.is_map(kind):
        return _filter_list(array, [array.keys, array.items], rows)
    if array.null_count and (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        # Runs of values are copied whole where no value may be NULL.
        bare = pa.Array.from_buffers(kind, len(array), [None, *array.buffers()[1:]], 0, array.offset).filter(rows.keep)
        return _built(array, rows, bare.buffers()[1:], [])
    return array.filter(rows.keep)


def _filter_list(array: pa.ListArray, inner: list[pa.Array], rows: _Rows) -> pa.Array:
    """A list over its values, or a map over its keys and values."""
    offsets = array.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    lengths = np.diff(offsets)
    inner = [values.slice(first, last - first) for values in inner]
    leaving = lengths[rows.dropped_positions]
    ends = np.cumsum(leaving, dtype=np.intp)
    total = int(ends[-1]) if len(ends) else 0
    if total:
        mask = np.ones(last - first, dtype=np.bool_)
        starts = offsets[rows.dropped_positions] - first
        mask[np.repeat(starts - (ends - leaving), leaving) + np.arange(total)] = False
        inner_rows = _Rows(arrow_mask(mask), last - first - total)
        inner = [_filter(values, inner_rows) for values in inner]
    new_offsets = np.zeros(rows.count + 1, dtype=np.int32)
    np.cumsum(lengths[rows.mask], out=new_offsets[1:])
    if len(inner) == 2:
        inner = [pa.StructArray.from_arrays(inner, fields=[array.type.key_field, array.type.item_field])]
    return _built(array, rows, [pa.py_buffer(new_offsets)], inner)


def _built(array: pa.Array, rows: _Rows, buffers: list[pa.Buffer | None], children: list[pa.Array]) -> pa.Array:
    """An array of ``array``'s type and remaining validity over buffers and children that are filtered already."""
    validity = None
    if array.null_count:
        bits = pa.Array.from_buffers(pa.bool_(), len(array), [None, array.buffers()[0]], 0, array.offset)
        validity = bits.filter(rows.keep).buffers()[1]
    unknown = -1 if validity is not None else 0
    return pa.Array.from_buffers(array.type, rows.count, [validity, *buffers], unknown, 0, children)


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
