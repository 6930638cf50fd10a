"""Packs file tasks into splits of about equal bytes: small files share one, a large file becomes several."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from delta_sharing_spark.scan.plan import FileSlice, FileTask

#: What opening a file costs, in bytes that could have been read meanwhile: keeps thousands of tiny files apart.
OPEN_COST = 256 << 10
#: More splits than this help nobody, and a size that a log or a server makes up could ask for any number of them:
#: slices and splits get larger instead.
MAX_SLICES_PER_FILE, MAX_SPLITS = 1 << 14, 1 << 17


@dataclass(frozen=True, slots=True)
class Bin:
    """One split: files ``first`` to ``last`` (excluded) in some order; the first and the last of them may be cut.

    ``start`` is where the first file begins to be read; ``end`` where the last one ends, None at its end.
    """

    first: int
    last: int
    start: int = 0
    end: int | None = None

    def ranges(self) -> Iterator[tuple[int, int | None]]:
        """The byte range of each file."""
        for index in range(self.first, self.last):
            yield self.start if index == self.first else 0, self.end if index == self.last - 1 else None


def cut_bins(sizes: npt.NDArray[np.int64], max_bytes: int) -> list[Bin]:
    """Cut files of ``sizes`` bytes, in their order, into bins of about equal cost, at most about ``max_bytes`` each.

    A file larger than ``max_bytes`` is cut into equal slices, a bin each; the files between large ones share bins.
    """
    bins: list[Bin] = []
    max_bytes = max(max_bytes, int(sizes.sum(dtype=np.float64)) // MAX_SPLITS)
    large = np.flatnonzero(sizes > max_bytes).tolist()
    start = 0
    for index in [*large, len(sizes)]:
        bins += _share(sizes[start:index], start, max_bytes)
        if index < len(sizes):
            bins += _cut_file(index, int(sizes[index]), max_bytes)
        start = index + 1
    return bins


def _share(sizes: npt.NDArray[np.int64], offset: int, max_bytes: int) -> list[Bin]:
    """Bins of whole files: with all costs laid end to end, each file goes to the bin that its middle lies in."""
    if not len(sizes):
        return []
    costs = sizes.astype(np.float64) + min(OPEN_COST, max_bytes // 4)  # sums of sizes may be above 64 bits
    total = int(costs.sum())
    count = min(len(sizes), -(-total // max_bytes))
    middles = np.cumsum(costs) - costs / 2
    owner = np.minimum((middles * count / total).astype(np.int64), count - 1)
    edges = [0, *(np.flatnonzero(np.diff(owner)) + 1).tolist(), len(sizes)]
    return [Bin(offset + a, offset + b) for a, b in itertools.pairwise(edges)]


def _cut_file(index: int, size: int, max_bytes: int) -> list[Bin]:
    count = min(-(-size // max_bytes), MAX_SLICES_PER_FILE)
    step = -(-size // count)
    return [Bin(index, index + 1, i * step, None if i == count - 1 else (i + 1) * step) for i in range(count)]


def pack(tasks: Iterable[FileTask], max_bytes: int) -> list[tuple[FileSlice, ...]]:
    """Slices of ``tasks`` in bins of about equal bytes, each at most about ``max_bytes``.

    The same tasks give the same bins, whatever order they come in: a retried task repeats its rows in order. A file's
    slices cover it without overlap, and a row group belongs to the slice that its first byte lies in.

    >>> [[(s.start, s.end) for s in bin] for bin in pack([FileTask("a", "", 250)], 100)]
    [[(0, 84)], [(84, 168)], [(168, None)]]
    """
    ordered = sorted(tasks, key=order)
    sizes = np.fromiter((task.size for task in ordered), dtype=np.int64, count=len(ordered))
    return [
        tuple(
            FileSlice(ordered[index], start, end)
            for index, (start, end) in zip(range(piece.first, piece.last), piece.ranges(), strict=True)
        )
        for piece in cut_bins(sizes, max_bytes)
    ]


def order(task: FileTask) -> tuple[int, str, str]:
    """The order tasks are read in: by version of a change feed, then by file."""
    return task.commit_version or 0, task.id, task.change_type or ""
