"""Chooses what to ask a storage for, by how it has answered: how many bytes at once, what lies between, how much of a file's end."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence

from delta_sharing_spark.storage.ranges import ByteSource, Range, coalesce

#: Bytes of a request, at least and at most.
LEAST, MOST = 4 << 20, 32 << 20
#: Seconds that a request should last: a reader may wait for so long more than if it came in small parts.
_LASTING = 0.05
#: Requests for more bytes tell how fast a storage is, those for fewer how long it takes to begin.
_TELLING, _BRIEF = 1 << 20, 128 << 10
#: Part of a rate that is still believed after a slower request: those under way together slow each other down.
_KEPT = 0.75
#: Bytes between two ranges that are fetched rather than asked around, at least, at most, and before anything is known.
_LEAST_GAP, _MOST_GAP, FIRST_GAP = 4 << 10, 32 << 20, 256 << 10
#: Of the bytes that are wanted, the part that may be fetched besides: never as many again.
_UNWANTED = 0.9
#: Bytes of the first request for a footer before one was seen, and at most: most footers fit, a larger one costs a second request.
TAIL, _LEAST_TAIL, _LONGEST_TAIL = 64 << 10, 8 << 10, 1 << 20
#: Files of at most so many bytes are one request if that is worth it, and of a few always: they come with an answer's first packets.
WHOLE_FILE, _ALWAYS_WHOLE = 4 << 20, 32 << 10
#: By how much of a file's size its bytes may lie elsewhere than those of a file like it.
_SLACK = 1 / 64
#: Seconds until an answer begins, below which a request is not worth a thread of its own.
_NEAR = 0.002
#: Requests of one reader under way at once: for much each, and for little each, which mostly wait.
CONNECTIONS, MOST_CONNECTIONS = 8, 24


class Pace:
    """How a storage answers requests for the files of one table.

    Over a slow connection several small requests at a time are faster, and a request costs what could have come meanwhile.
    Where the storage is near, a request of 4 MiB takes as much of the processor as its bytes. Threads that update it
    together may lose a measurement, and no more.

    Args:
        first_tail: Bytes of the first request for a footer before one was seen, where something tells of them.

    Attributes:
        request_bytes: How much to ask for at once: what comes in ``_LASTING`` seconds, within bounds.
        gap: Bytes that come while a request of their own would wait for its answer.
    """

    def __init__(self, first_tail: int | None = None) -> None:
        self.request_bytes, self.gap = LEAST, FIRST_GAP
        self._rate = self._latency = 0.0
        self._footer_bytes, self._first_tail = 0, first_tail

    def read(self, source: ByteSource, start: int, length: int) -> memoryview:
        """``source.read(start, length)``, and learn from how long it takes."""
        began = time.monotonic()
        data = source.read(start, length)
        self.learn(length, time.monotonic() - began)
        return data

    def learn(self, length: int, seconds: float) -> None:
        """Note that a request for ``length`` bytes took so many seconds."""
        seconds = max(seconds, 1e-6)
        if length >= _TELLING:
            self._rate = max(length / max(seconds - self._latency, seconds / 8), self._rate * _KEPT)
            self.request_bytes = min(MOST, max(LEAST, int(self._rate * _LASTING)))
        elif length <= _BRIEF:
            self._latency = min(seconds, self._latency * 1.25 or seconds)
        if self._rate and self._latency:
            self.gap = min(_MOST_GAP, max(_LEAST_GAP, int(self._rate * self._latency)))

    def learn_footer(self, size: int) -> None:
        """Note the size of a file's footer."""
        self._footer_bytes = max(size, int(self._footer_bytes * 0.9))

    @property
    def is_near(self) -> bool:
        """Whether the storage is known to answer at once."""
        return 0 < self._latency < _NEAR

    def tail_bytes(self, size: int) -> int:
        """Bytes of the first request for the footer of a file: the largest one seen lately and a quarter."""
        if self._footer_bytes:
            return min(_LONGEST_TAIL, size, self._footer_bytes * 5 // 4 + 512)
        return min(TAIL, size, self._first_tail or max(_LEAST_TAIL, size // 8))

    def is_worth_whole(self, size: int, wanted: float) -> bool:
        """Whether a file is fetched whole, as is cheaper than its footer first.

        Args:
            size: Its bytes.
            wanted: The part of its bytes that is wanted; 0 if it is not known.
        """
        if size <= _ALWAYS_WHOLE:
            return True
        unwanted = size * (1 - wanted)
        return size <= WHOLE_FILE and unwanted <= min(self.gap, _UNWANTED * size * wanted)

    def expected(self, size: int, places: Sequence[tuple[float, float]], wanted: float) -> list[Range]:
        """Where the wanted bytes of a file probably lie, as they lay in one like it; less than twice what is wanted.

        Args:
            size: The file's bytes.
            places: Beginnings and ends in the other file, as parts of its size.
            wanted: The part of its bytes that is wanted.
        """
        end = size - self.tail_bytes(size)
        spare = (1 + _UNWANTED) * wanted - sum(b - a for a, b in places)
        slack = max(0.0, min(_SLACK, spare / (2 * len(places)))) if places else 0.0
        guessed = [Range(max(4, int((a - slack) * size)), min(end, int((b + slack) * size))) for a, b in places]
        return coalesce(guessed, 0)

    def merged(self, wanted: Iterable[Range]) -> list[Range]:
        """The ranges to ask for: those wanted, and what lies between them where a request of its own would cost more."""
        ranges = coalesce(wanted, 0)
        allowed = _UNWANTED * sum(part.length for part in ranges)
        bridged = 0
        for gap in sorted(after.start - before.end for before, after in itertools.pairwise(ranges)):
            allowed -= gap
            if gap > self.gap or allowed < 0:
                # Of gaps that are alike some would fit, none is bridged.
                return coalesce(ranges, bridged if gap > bridged else bridged - 1)
            bridged = gap
        return coalesce(ranges, bridged)
