"""Holds the files of a listing that pruning left, as objects or in columns, and cuts them into splits that are built when they are needed."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar, overload

import numpy as np
import numpy.typing as npt

from delta_sharing_spark.scan.plan import Bin, FileSlice, FileTask, Split, TaskColumns, cut_bins, pack
from delta_sharing_spark.schema.arrow_bridge import compressed, decompressed, integers, strings

#: Tasks whose columns are built together.
_BUILT_TOGETHER = 1024
#: Tasks that are built together where their order is not that of the columns: each time all columns may be decompressed.
_ORDERED_TOGETHER = 1 << 16

_T = TypeVar("_T")


class PlannedFiles(Protocol):
    """The files of a listing that pruning left, as objects or as columns."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[FileTask]: ...

    @property
    def total_bytes(self) -> int:
        """Bytes of all files, as they lie in storage."""

    def live_rows(self) -> int | None:
        """Rows of all files that are not deleted; None where statistics do not tell of one."""

    def bins(self, max_bytes: int) -> Sequence[Sequence[FileSlice]]:
        """Slices of the files in bins of about equal bytes, at most about ``max_bytes`` each: one for each split."""


class FileList(list[FileTask]):
    """A list of planned files (``PlannedFiles``)."""

    @property
    def total_bytes(self) -> int:
        return sum(task.size for task in self)

    def live_rows(self) -> int | None:
        rows = [live_rows(task) for task in self]
        return None if None in rows else sum(filter(None, rows))

    def bins(self, max_bytes: int) -> Sequence[Sequence[FileSlice]]:
        """Slices of the files in bins of about equal bytes, the same whatever the files' order."""
        return pack(self, max_bytes)


def live_rows(task: FileTask) -> int | None:
    """Rows of a file that are not deleted; None where statistics do not tell."""
    if task.rows is None or task.invert_deletion_vector or task.excluded is not None or task.deletes:
        return None
    return task.rows - (task.deletion_vector.cardinality if task.deletion_vector else 0)


class FileBatch(Protocol):
    """Some files of a listing in columns."""

    @property
    def num_rows(self) -> int:
        """The number of files."""

    def file_sizes(self) -> npt.NDArray[np.int64]:
        """Bytes of each file."""

    def file_rows(self) -> npt.NDArray[np.int64]:
        """Rows of each file that are not deleted; -1 where statistics do not tell."""

    def file_partitions(self) -> tuple[npt.NDArray[np.int64], Sequence[Mapping[str, str | None] | None]]:
        """The number of each file's partition, and partition values by such a number."""

    def columns_at(self, places: npt.NDArray[np.int64]) -> TaskColumns:
        """The tasks of the files at some places, which grow; there is one at least."""


class FileBatches(Sequence[FileTask]):
    """The files of batches in their order (``PlannedFiles``); a task is built when it is asked for.

    Attributes:
        change: Changes each task.
    """

    def __init__(self, batches: Sequence[FileBatch], change: Callable[[FileTask], FileTask] | None = None) -> None:
        self.change = change
        self.batches = [batch for batch in batches if batch.num_rows]
        self._starts = [0]
        for batch in self.batches:
            self._starts.append(self._starts[-1] + batch.num_rows)

    @property
    def total_bytes(self) -> int:
        return sum(int(batch.file_sizes().sum()) for batch in self.batches)

    def live_rows(self) -> int | None:
        total = 0
        for batch in self.batches:
            rows = batch.file_rows()
            if (rows < 0).any():
                return None
            total += int(rows.sum())
        return total

    def least_rows(self) -> int:
        """Rows of the files whose statistics tell them, that are not deleted: there are no fewer."""
        return sum(int(rows[rows > 0].sum()) for rows in (batch.file_rows() for batch in self.batches))

    def rows_by_partition(self) -> Iterator[tuple[FileTask, int | None]]:
        """Of the files of each partition the first, and the rows of all that are not deleted.

        The number is None where the statistics of one do not tell. No other task is built.
        """
        first: dict[object, int] = {}
        totals: dict[object, int | None] = {}
        for batch, start in zip(self.batches, self._starts, strict=False):
            counts, (numbers, values) = batch.file_rows(), batch.file_partitions()
            used, places, inverse = np.unique(numbers, return_index=True, return_inverse=True)
            rows = np.zeros(len(used), np.int64)
            np.add.at(rows, inverse, counts)
            unknown = set(inverse[counts < 0].tolist())
            for index, (number, place) in enumerate(zip(used.tolist(), places.tolist(), strict=True)):
                own = values[number]
                key = None if own is None else tuple(sorted(own.items()))
                first.setdefault(key, start + place)
                total = totals.setdefault(key, 0)
                totals[key] = None if total is None or index in unknown else total + int(rows[index])
        keys = sorted(first, key=first.__getitem__)
        tasks = self.tasks_at(np.array([first[key] for key in keys], np.int64))
        yield from zip(tasks, (totals[key] for key in keys), strict=True)

    def bins(self, max_bytes: int) -> list[Sequence[FileSlice]]:
        """Slices of the files in their order, as ``scan.plan.pack`` cuts them."""
        sizes = [batch.file_sizes() for batch in self.batches]
        together = np.concatenate(sizes) if sizes else np.zeros(0, np.int64)
        return [_LazySlices(self, piece) for piece in cut_bins(together, max_bytes)]

    def tasks_between(self, first: int, last: int) -> Iterator[FileTask]:
        """The tasks ``first`` to ``last``, the latter excluded."""
        return self.tasks_at(np.arange(first, last))

    def tasks_at(self, places: npt.NDArray[np.int64]) -> Iterator[FileTask]:
        """The tasks at some places, which grow."""
        for columns in self.columns_at(places):
            yield from columns.tasks() if self.change is None else map(self.change, columns.tasks())

    def columns_at(self, places: npt.NDArray[np.int64]) -> Iterator[TaskColumns]:
        """The same before ``change``, some together."""
        edges = np.searchsorted(places, self._starts).tolist()
        for batch, start, (first, last) in zip(self.batches, self._starts, itertools.pairwise(edges), strict=False):
            for begin in range(first, last, _BUILT_TOGETHER):
                yield batch.columns_at(places[begin : min(last, begin + _BUILT_TOGETHER)] - start)

    def __len__(self) -> int:
        return self._starts[-1]

    def __iter__(self) -> Iterator[FileTask]:
        return self.tasks_between(0, len(self))

    def __getitem__(self, index: Any) -> Any:
        places = range(len(self))[index]
        if isinstance(places, range):
            return [self[place] for place in places]
        return next(self.tasks_between(places, places + 1))


class OrderedFiles(Sequence[FileTask]):
    """Files in the order of their ids, of which slices are views; tasks are built as they are iterated.

    Args:
        places: The places of the files, in their order; by default of all.
    """

    def __init__(self, files: FileBatches, places: npt.NDArray[np.int64] | None = None) -> None:
        self._files = files
        if places is None:
            import pyarrow as pa
            import pyarrow.compute as pc

            # Bytes of UTF-8 are in the order of their characters; a million ids as objects would take 120 MB.
            ids = pa.chunked_array(
                [strings(columns.ids) for columns in files.columns_at(np.arange(len(files)))], pa.string()
            )
            places = integers(pc.sort_indices(ids).cast(pa.int64()))
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[FileTask]:
        start, together = 0, 256
        while start < len(self):
            places = self._places[start : start + together]
            inverse = np.argsort(np.argsort(places))
            tasks = list(self._files.tasks_at(np.sort(places)))
            yield from (tasks[index] for index in inverse.tolist())
            start, together = start + together, min(4 * together, _ORDERED_TOGETHER)

    @overload
    def __getitem__(self, index: int) -> FileTask: ...
    @overload
    def __getitem__(self, index: slice) -> OrderedFiles: ...
    def __getitem__(self, index: int | slice) -> FileTask | OrderedFiles:
        if isinstance(index, slice):
            return OrderedFiles(self._files, self._places[index])
        return self._files[int(self._places[index])]


class _Compared(Sequence[_T]):
    """Items that are built when they are asked for, and compared as a tuple of them is."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # nobody needs it, and it would build them all


class _LazySlices(_Compared[FileSlice]):
    """The slices of one split, built when they are asked for. Pickled, they are columns, of which a task makes a tuple of slices."""

    def __init__(self, files: FileBatches, piece: Bin) -> None:
        self._files, self._bin = files, piece

    def _between(self, start: int, stop: int) -> Iterator[FileSlice]:
        tasks = self._files.tasks_between(self._bin.first + start, self._bin.first + stop)
        ends = itertools.islice(self._bin.ranges(), start, stop)
        return (FileSlice(task, *of_task) for task, of_task in zip(tasks, ends, strict=True))

    def __iter__(self) -> Iterator[FileSlice]:
        return self._between(0, len(self))

    def __len__(self) -> int:
        return self._bin.last - self._bin.first

    def __getitem__(self, index: Any) -> Any:
        places = range(len(self))[index]  # readers look at the first one or two alone
        if isinstance(places, int):
            return next(self._between(places, places + 1))
        if places.step != 1:
            return tuple(self)[index]
        return tuple(self._between(places.start, max(places.start, places.stop)))

    def __reduce__(self) -> tuple[Any, ...]:
        if self._files.change is not None:
            return tuple, (list(self),)
        columns = list(self._files.columns_at(np.arange(self._bin.first, self._bin.last)))
        data = pickle.dumps((columns, self._bin), pickle.HIGHEST_PROTOCOL)
        return _unpickled_slices, (compressed(data), len(data))


def _unpickled_slices(data: bytes, size: int) -> tuple[FileSlice, ...]:
    columns, piece = pickle.loads(decompressed(data, size))  # noqa: S301 (a part of a pickle)
    tasks = itertools.chain.from_iterable(one.tasks() for one in columns)
    return tuple(FileSlice(task, *ends) for task, ends in zip(tasks, piece.ranges(), strict=True))


class TasksOfSlices(_Compared[FileTask]):
    """The tasks of the slices of a split, in whose pickle they stand once."""

    def __init__(self, slices: Sequence[FileSlice]) -> None:
        self._slices = slices

    def __len__(self) -> int:
        return len(self._slices)

    def __iter__(self) -> Iterator[FileTask]:
        return (piece.task for piece in self._slices)

    @overload
    def __getitem__(self, index: int) -> FileTask: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[FileTask]: ...
    def __getitem__(self, index: int | slice) -> FileTask | Sequence[FileTask]:
        return tuple(self)[index]


class LazySplits(Sequence[Split]):
    """The splits of a plan, each built anew when it is asked for: a million files do not become objects all at once.

    Args:
        bins: The slices of each split.
        make: Makes a split of its place among them, and its slices.
    """

    def __init__(self, bins: Sequence[Sequence[FileSlice]], make: Callable[[int, Sequence[FileSlice]], Split]) -> None:
        self._bins, self._make = bins, make

    def __len__(self) -> int:
        return len(self._bins)

    @overload
    def __getitem__(self, index: int) -> Split: ...
    @overload
    def __getitem__(self, index: slice) -> list[Split]: ...
    def __getitem__(self, index: int | slice) -> Split | list[Split]:
        places = range(len(self._bins))[index]
        if isinstance(places, range):
            return [self[place] for place in places]
        return self._make(places, self._bins[places])

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled, they are splits: what a task gets has no columns behind it."""
        return list, (list(self),)
