"""Predicts the columns that queries over a plan will read of a row group: by Spark's own plan, or what they read of others."""

from __future__ import annotations

import enum
from collections import OrderedDict, deque
from collections.abc import Sequence, Set
from typing import Protocol

from delta_sharing_spark.native.file_pass import AT_ONCE
from delta_sharing_spark.native.layout import Chunk

#: Visits of row groups that are remembered.
_REMEMBERED = 64


class Queries(Protocol):
    """The queries that read plans now, as far as Spark tells."""

    def scans(self, token: str, since: float | None = None) -> Sequence[frozenset[bytes]]:
        """The columns that each scan of a plan reads, as paths that stand for what is below them too.

        Queries that began after ``since``, a time of ``time.monotonic()``, may be missing; by default those that nobody asked
        for before. None of them has ended.
        """


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
        #: The columns that each scan of the running queries reads.
        self._scans: Sequence[frozenset[bytes]] = ()
        #: What was learned, the columns of a row group, and those of them that each scan reads.
        self._planned_of: tuple[object, tuple[bytes, ...], list[set[bytes]]] = None, (), []

    @property
    def knows_scans(self) -> bool:
        """Whether it is known what some running query reads."""
        return bool(self._scans)

    def learn(self, scans: Sequence[frozenset[bytes]]) -> bool:
        """Take over what the scans of the running queries read; returns whether that is something new."""
        is_new = scans != self._scans
        if is_new:
            self._scans = scans
        return is_new

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
                if place >= AT_ONCE:
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
        scans = self._scans
        if not scans:
            return []
        columns = tuple(chunk.column for chunk in chunks)
        known = self._planned_of
        if known[0] is not scans or known[1] != columns:  # all files of a table are alike, as a rule
            known = self._planned_of = scans, columns, [{c for c in columns if is_in(c, scan)} for scan in scans]
        return known[2]


def is_in(column: bytes, scan: frozenset[bytes]) -> bool:
    """Whether a scan reads a column, or a column that it is part of."""
    place = len(column)
    while place >= 0:
        if column[:place] in scan:
            return True
        place = column.rfind(b".", 0, place)
    return False
