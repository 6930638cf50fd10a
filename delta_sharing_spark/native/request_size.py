"""Finds how many bytes a request for column chunks should ask for, by how fast those before it were answered."""

from __future__ import annotations

import time

from delta_sharing_spark.storage.ranges import ByteSource

#: Bytes of a request, at least and at most.
LEAST, MOST = 4 << 20, 32 << 20
#: Seconds that a request should last: a reader may wait for so long more than if it came in small parts.
_LASTING = 0.05
#: Requests for fewer bytes tell how long a storage takes to begin, not how fast it is.
_TELLING = 1 << 20
#: Part of a rate that is still believed after a slower request: those under way together slow each other down.
_KEPT = 0.75


class RequestSize:
    """How many bytes to ask for at once of one plan's files.

    Over a slow connection several small requests at a time are faster. Where the storage is near, a request of 4 MiB takes
    as much of the processor as its bytes. Threads that update it together may lose a measurement, and no more.

    Attributes:
        bytes: What comes in ``_LASTING`` seconds, within bounds.
    """

    def __init__(self) -> None:
        self.bytes = LEAST
        self._rate = 0.0

    def read(self, source: ByteSource, start: int, length: int) -> memoryview:
        """``source.read(start, length)``, and learn from how long it takes."""
        began = time.monotonic()
        data = source.read(start, length)
        self.learn(length, time.monotonic() - began)
        return data

    def learn(self, length: int, seconds: float) -> None:
        """Note that a request for ``length`` bytes took so many seconds."""
        if length >= _TELLING:
            self._rate = max(length / max(seconds, 1e-6), self._rate * _KEPT)
            self.bytes = min(MOST, max(LEAST, int(self._rate * _LASTING)))
