"""Reads parts of several sources as one file."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from operator import itemgetter

from delta_sharing_spark.parquet.layout import Span
from delta_sharing_spark.scan.pace import Pace
from delta_sharing_spark.storage.ranges import ByteSource, Range


class JoinedSource:
    """A ``ByteSource`` over spans of others, behind the four bytes that a Parquet file begins with.

    Args:
        name: Names it in errors.
        spans: Its bytes, in order.
        members: The sources.
        pace: How they answer.
    """

    def __init__(self, name: str, spans: Sequence[Span], members: Sequence[ByteSource], pace: Pace) -> None:
        self.name = name
        self.size = spans[-1].end if spans else 4
        self._spans, self._members, self._pace = spans, members, pace
        self._starts = [span.start for span in spans]

    def read(self, start: int, length: int) -> memoryview:
        """See ``ByteSource.read``: pieces of one source that lie near each other are one request."""
        end = start + length
        joined = [memoryview(b"PAR1")[start:end]]
        pieces: list[tuple[int, Range]] = []
        for span in self._spans[max(0, bisect.bisect_right(self._starts, start) - 1) :]:
            if span.start >= end:
                break
            by = span.source.start - span.start
            piece = Range(max(start, span.start) + by, min(end, span.end) + by)
            if piece.length > 0:
                pieces.append((span.member, piece))
        if len(pieces) == 1 and start >= 4:
            member, piece = pieces[0]
            return self._members[member].read(piece.start, piece.length)
        for member, parts in itertools.groupby(pieces, itemgetter(0)):
            wanted = [part for _, part in parts]
            read = self._members[member].read
            fetched = {whole: read(whole.start, whole.length) for whole in self._pace.merged(wanted)}
            for part in wanted:
                whole = next(whole for whole in fetched if whole.start <= part.start < whole.end)
                joined.append(fetched[whole][part.start - whole.start : part.end - whole.start])
        return memoryview(b"".join(joined))

    def close(self) -> None:
        """Close the sources."""
        for member in self._members:
            member.close()
