"""Predicts the columns that queries over a plan will read of a row group, by what they read of others."""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Set

from delta_sharing_spark.native.layout import Chunk

#: Visits of row groups that are remembered, and tasks that are thought to work at the same time.
_REMEMBERED, _AT_ONCE = 64, max(2, os.cpu_count() or 2)


class Visits:
    """The columns that the tasks of a plan's queries have read of each row group."""

    def __init__(self) -> None:
        #: The latest last; each is one task's way through one row group.
        self._visits: deque[set[bytes]] = deque(maxlen=_REMEMBERED)
        self._of: OrderedDict[tuple[int, int], set[bytes]] = OrderedDict()

    def enter(self, key: tuple[int, int], column: bytes) -> set[bytes]:
        """The visit of a row group that ``column`` belongs to: a new one if the latest has read that column already."""
        visit = self._of.get(key)
        if visit is None or column in visit:
            visit = self._of[key] = set()
            self._visits.append(visit)
            self._of.move_to_end(key)
            while len(self._of) > _REMEMBERED:
                self._of.popitem(last=False)
        return visit

    def current(self, key: tuple[int, int]) -> set[bytes]:
        """The latest visit of a row group; empty where there is none."""
        return self._of.get(key, set())

    def likely(
        self, visit: set[bytes], chunk: Chunk, chunks: list[Chunk], assumed: Set[bytes] = frozenset()
    ) -> tuple[set[bytes], bool]:
        """The columns that a visit is expected to read, and whether others are unlikely.

        ``assumed`` are columns that it has been sent, and may have read. What is expected is what the latest visit read that is over and came to this chunk the same way. Tasks work at the same time:
        a visit is over when so many began after it.
        """
        before = {c.column for c in chunks if c.range.start < chunk.range.start}
        now = ((visit | assumed) - {chunk.column}) & before
        largest: set[bytes] = set()
        for place, other in enumerate(reversed(self._visits)):
            if other is not visit and chunk.column in other and other & before == now:
                if place >= _AT_ONCE:
                    return other, True
                largest = max(largest, other, key=len)
        return largest, False
