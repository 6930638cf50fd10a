"""Predicts the columns that queries over a plan will read of a row group: by Spark's own plan, or what they read of others."""

from __future__ import annotations

import enum
import os
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence, Set

from delta_sharing_spark.native.layout import Chunk

#: Visits of row groups that are remembered, and tasks that are thought to work at the same time.
_REMEMBERED, _AT_ONCE = 64, max(2, os.cpu_count() or 2)

#: Gives the paths of the columns that each scan of a query reads, those below them included; None as long as it is not known.
Scans = Callable[[], Sequence[frozenset[bytes]] | None]


class Certainty(enum.Enum):
    """How certain it is that a visit reads no columns but the expected ones.

    Not at all; earlier visits read no others; or Spark's plan of the query has a scan of just these.
    """

    NONE = enum.auto()
    LEARNED = enum.auto()
    PLANNED = enum.auto()


class Visits:
    """The columns that the tasks of a plan's queries have read of each row group."""

    def __init__(self) -> None:
        #: The latest last; each is one task's way through one row group.
        self._visits: deque[set[bytes]] = deque(maxlen=_REMEMBERED)
        self._of: OrderedDict[tuple[int, int], set[bytes]] = OrderedDict()
        self._scans: Sequence[frozenset[bytes]] | None = None
        self._planned_of: tuple[tuple[bytes, ...], list[set[bytes]]] = (), []

    def learn(self, scans: Scans | None) -> None:
        """Learn what the scans of the plan's query read, where it is known."""
        if self._scans is None and scans is not None:
            self._scans = scans()

    def enter(self, key: tuple[int, int], column: bytes, chunks: list[Chunk]) -> set[bytes]:
        """The visit of a row group that ``column`` belongs to: a new one if the latest has read that column already.

        So it is if no scan of the query reads both that column and what the latest has read.
        """
        visit = self._of.get(key)
        if visit is None or column in visit or self._is_over(visit, column, chunks):
            visit = self._of[key] = set()
            self._visits.append(visit)
            self._of.move_to_end(key)
            while len(self._of) > _REMEMBERED:
                self._of.popitem(last=False)
        return visit

    def likely(
        self, visit: set[bytes], chunk: Chunk, chunks: list[Chunk], assumed: Set[bytes] = frozenset()
    ) -> tuple[set[bytes], Certainty]:
        """The columns that a visit is expected to read, and how certain it is that it reads no others.

        ``assumed`` are columns that it has been sent, and may have read. What is expected is what a scan of the query
        reads; where none is known, what the latest visit read that is over and came to this chunk the same way. Tasks
        work at the same time: a visit is over when so many began after it.
        """
        before = {c.column for c in chunks if c.range.start < chunk.range.start}
        now = ((visit | assumed) - {chunk.column}) & before
        planned = [columns for columns in self._planned(chunks) if chunk.column in columns and columns & before == now]
        if planned:
            return min(planned, key=len), Certainty.PLANNED
        largest: set[bytes] = set()
        for place, other in enumerate(reversed(self._visits)):
            if other is not visit and chunk.column in other and other & before == now:
                if place >= _AT_ONCE:
                    return other, Certainty.LEARNED
                largest = max(largest, other, key=len)
        return largest, Certainty.NONE

    def is_planned(self, column: bytes, chunks: list[Chunk]) -> bool:
        """Whether a scan of the query reads a column of a row group."""
        return any(column in columns for columns in self._planned(chunks))

    def _is_over(self, visit: set[bytes], column: bytes, chunks: list[Chunk]) -> bool:
        planned = self._planned(chunks)
        return bool(planned) and not any(column in columns and visit <= columns for columns in planned)

    def _planned(self, chunks: list[Chunk]) -> list[set[bytes]]:
        """The columns of a row group that each scan of the query reads."""
        if not self._scans:
            return []
        columns = tuple(chunk.column for chunk in chunks)
        if self._planned_of[0] != columns:  # all files of a table are alike, as a rule
            self._planned_of = columns, [{c for c in columns if _is_in(c, scan)} for scan in self._scans]
        return self._planned_of[1]


def _is_in(column: bytes, scan: frozenset[bytes]) -> bool:
    """Whether a scan reads a column, or a column that it is part of."""
    place = len(column)
    while place >= 0:
        if column[:place] in scan:
            return True
        place = column.rfind(b".", 0, place)
    return False
