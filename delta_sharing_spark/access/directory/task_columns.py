"""Keeps file tasks in columns until their split is pickled: the plan of a million files fits a small driver."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from delta_sharing_spark.scan.plan import FileSlice, FileTask
from delta_sharing_spark.scan.splits import Bin, cut_bins

if TYPE_CHECKING:
    from delta_sharing_spark.deltalog.add_batch import AddBatch


class TaskColumns(Sequence[FileTask]):
    """The tasks of a snapshot's files, built when they are asked for."""

    def __init__(self, batches: Sequence[AddBatch]) -> None:
        self._batches = list(batches)
        self._starts = [0]
        for batch in self._batches:
            self._starts.append(self._starts[-1] + batch.num_rows)

    @property
    def total_bytes(self) -> int:
        """Bytes of all files, as they lie in storage."""
        return int(self._sizes().sum())

    def bins(self, max_bytes: int) -> list[Sequence[FileSlice]]:
        """Splits over the files in their order, as ``scan.splits.pack`` cuts them."""
        return [LazySlices(self, bin_) for bin_ in cut_bins(self._sizes(), max_bytes)]

    def _sizes(self) -> npt.NDArray[np.int64]:
        """Bytes of each file."""
        from delta_sharing_spark.deltalog.arrow_bridge import bools, integers

        sizes = [np.where(bools(batch.sizes.is_valid()), integers(batch.sizes), 0) for batch in self._batches]
        return np.concatenate(sizes) if sizes else np.zeros(0, np.int64)

    def live_rows(self) -> int | None:
        """Rows of all files that are not deleted; None where statistics do not tell of one."""
        import pyarrow.compute as pc

        total = 0
        for batch in self._batches:
            rows = batch.num_records()
            if rows.null_count:
                return None
            total += pc.sum(rows).as_py() or 0
            if batch.vectors is not None:
                total -= pc.sum(pc.struct_field(batch.vectors, "cardinality")).as_py() or 0
        return total

    def part(self, first: int, last: int) -> Iterator[FileTask]:
        """The tasks ``first`` to ``last``, the latter excluded."""
        part = bisect.bisect_right(self._starts, first) - 1
        while first < last:
            start = self._starts[part]
            stop = min(last, self._starts[part + 1])
            yield from self._batches[part].slice(first - start, stop - first).tasks()
            first, part = stop, part + 1

    def __len__(self) -> int:
        return self._starts[-1]

    def __iter__(self) -> Iterator[FileTask]:
        return self.part(0, len(self))

    @overload
    def __getitem__(self, index: int) -> FileTask: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[FileTask]: ...
    def __getitem__(self, index: int | slice) -> FileTask | Sequence[FileTask]:
        if isinstance(index, slice):
            return list(self)[index]
        position = range(len(self))[index]
        return next(self.part(position, position + 1))


class LazySlices(Sequence[FileSlice]):
    """The slices of one split. Pickled, they are a plain tuple: what a task gets has no columns behind it."""

    def __init__(self, tasks: TaskColumns, bin_: Bin) -> None:
        self._tasks = tasks
        self._bin = bin_

    def __iter__(self) -> Iterator[FileSlice]:
        pieces = self._bin
        tasks = self._tasks.part(pieces.first, pieces.last)
        for task, (start, end) in zip(tasks, pieces.ranges(), strict=True):
            yield FileSlice(task, start, end)

    def __len__(self) -> int:
        return self._bin.last - self._bin.first

    @overload
    def __getitem__(self, index: int) -> FileSlice: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[FileSlice]: ...
    def __getitem__(self, index: int | slice) -> FileSlice | Sequence[FileSlice]:
        return tuple(self)[index]

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (list(self),)
