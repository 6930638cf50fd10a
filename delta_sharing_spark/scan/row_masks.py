"""Applies deletion vectors: makes the mask of the rows of a file that stay, by their physical position."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from delta_sharing_spark.errors import CorruptFileError
from delta_sharing_spark.scan.deletion_vector import decode, decode_inline, select_mask
from delta_sharing_spark.scan.filter_rows import packed
from delta_sharing_spark.scan.plan import DeletionVector, FileTask
from delta_sharing_spark.storage.ranges import ByteSource

OpenVector = Callable[[FileTask, DeletionVector], ByteSource]

#: Rows whose mask is made at once: a byte each until it is packed into bits.
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class RowSelection:
    """Rows of one file that stay: those outside ``deleted`` (inside, if ``is_inverted``) and outside ``excluded``."""

    deleted: Any
    is_inverted: bool
    excluded: Any

    def mask(self, first_row: int, rows: int) -> pa.BooleanArray:
        """Which of the file's rows ``first_row`` to ``first_row + rows`` stay, a bit each."""
        pieces = [
            packed(self._piece(first_row + start, min(_PIECE, rows - start)))
            for start in range(0, max(rows, 1), _PIECE)
        ]
        return pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)

    def _piece(self, first_row: int, rows: int) -> npt.NDArray[np.bool_]:
        return select_mask(first_row, rows, self.deleted, invert=self.is_inverted, excluded=self.excluded)


def read_row_selection(task: FileTask, rows: int, open_vector: OpenVector) -> RowSelection | None:
    """Fetch and decode the task's deletion vectors; None where every row stays.

    Args:
        task: The file's task.
        rows: The number of rows of the file.
        open_vector: Opens the frame of a vector that lies in a file.

    Raises:
        CorruptFileError: A vector's size, checksum or format is wrong, or it marks rows that the file does not have.
    """
    if task.deletion_vector is None and task.excluded is None:
        return None
    return RowSelection(
        _read(task, task.deletion_vector, rows, open_vector),
        task.invert_deletion_vector,
        _read(task, task.excluded, rows, open_vector),
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
    if len(marked) and marked.max() >= rows:
        raise CorruptFileError(
            f"the deletion vector of {task.id} marks row {marked.max()}, and the file has {rows} rows: they do not belong "
            f"together; reload the DataFrame, and if it happens again ask the provider to check the table",
            file=task.id,
        )
    return marked
