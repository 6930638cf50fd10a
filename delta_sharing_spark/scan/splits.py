"""File tasks to splits, balanced by bytes: small files share one, a large file becomes several."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from delta_sharing_spark.scan.plan import FileSlice, FileTask

#: What opening a file costs, in bytes that could have been read meanwhile: keeps thousands of tiny files apart.
OPEN_COST = 256 << 10


def pack(tasks: Iterable[FileTask], max_bytes: int) -> list[tuple[FileSlice, ...]]:
    """Slices of ``tasks`` in bins of about equal bytes, each at most about ``max_bytes``.

    The same tasks give the same bins: within a bin slices are ordered by file id and offset, so a retried task
    repeats its rows in order. A file's slices cover it without overlap, and a row group belongs to the slice that its
    first byte lies in.

    >>> [[(s.start, s.end) for s in bin] for bin in pack([FileTask("a", "", 250)], 100)]
    [[(0, 84)], [(84, 168)], [(168, None)]]
    """
    slices = [part for task in sorted(tasks, key=_order) for part in _slices(task, max_bytes)]
    if not slices:
        return []
    costs = [_bytes(part) + OPEN_COST if max_bytes > OPEN_COST else _bytes(part) for part in slices]
    count = min(len(slices), -(-sum(costs) // max_bytes))
    bins: list[list[int]] = [[] for _ in range(max(1, count))]
    loads = [(0, i) for i in range(len(bins))]
    # Largest first onto the least loaded bin: within 4/3 of the best balance there is.
    for index in sorted(range(len(slices)), key=lambda i: (-costs[i], i)):
        load, lightest = heapq.heappop(loads)
        bins[lightest].append(index)
        heapq.heappush(loads, (load + costs[index], lightest))
    return [tuple(slices[i] for i in sorted(members)) for members in bins if members]


def _order(task: FileTask) -> tuple[str, int, str]:
    return task.id, task.commit_version or 0, task.change_type or ""


def _slices(task: FileTask, max_bytes: int) -> list[FileSlice]:
    count = max(1, -(-task.size // max_bytes))
    step = -(-task.size // count)
    return [FileSlice(task, i * step, None if i == count - 1 else (i + 1) * step) for i in range(count)]


def _bytes(part: FileSlice) -> int:
    return (part.task.size if part.end is None else part.end) - part.start
