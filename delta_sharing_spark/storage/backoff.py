"""When to try again and when to give up: waits that grow with jitter, or what the other side asked for."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

#: Retry-After is honoured up to this many seconds.
LONGEST_ASKED = 300.0
#: So often in a row an answer may hold other bytes than asked for.
_MAX_STRANGE = 3


class TransientFault(Exception):
    """A failure that another try may mend. Never leaves this package.

    Attributes:
        wait: What Retry-After asked for, in seconds.
        busy: The storage answered: that it is not ready.
    """

    def __init__(self, reason: str, wait: float | None = None, *, busy: bool = False) -> None:
        super().__init__(reason)
        self.wait, self.busy = wait, busy


class WrongRange(TransientFault):
    """An answer with other bytes than asked for."""


class Patience:
    """The tries of one read.

    Args:
        seconds: How long transient failures are repeated, from now on.
        first, longest: Seconds to wait after the first failure, and at most.
        clock: Injectable, so that tests need not wait.
    """

    def __init__(
        self, seconds: float, first: float, longest: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._deadline = clock() + seconds
        self._first, self._longest, self._clock = first, longest, clock
        self._reached = self._failures = self._strange = 0

    def wait_after(self, fault: TransientFault, reached: int = 0) -> float | None:
        """Seconds to wait before the next try; None to give up.

        Args:
            fault: Why the last try failed.
            reached: Bytes that have arrived, over all tries. Progress starts the counts anew; the deadline stays.
        """
        if reached > self._reached:
            self._reached, self._failures, self._strange = reached, 0, 0
        self._failures += 1
        if isinstance(fault, WrongRange):
            self._strange += 1
            if self._strange > _MAX_STRANGE:
                return None
        pause = fault.wait if fault.wait is not None else backoff(self._failures, self._first, self._longest)
        return pause if self._clock() + pause <= self._deadline else None


def backoff(failures: int, first: float, longest: float) -> float:
    """Seconds before the try after ``failures`` ones in a row: doubling, with jitter, at most ``longest``."""
    return min(longest, first * 2.0 ** min(failures - 1, 30)) * random.uniform(0.5, 1.0)


def retry_after(text: str | None, now: Callable[[], float] = time.time) -> float | None:
    """Seconds that a ``Retry-After`` header asks for, as a number or a date; None if it says nothing sensible.

    >>> retry_after("7"), retry_after("soon"), retry_after("Thu, 01 Jan 1970 00:01:00 GMT", now=lambda: 50.0)
    (7.0, None, 10.0)
    """
    text = (text or "").strip()
    if not text:
        return None
    if text.isascii() and text.isdigit():
        return min(float(text), LONGEST_ASKED)
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, min(parsedate_to_datetime(text).timestamp() - now(), LONGEST_ASKED))
    except (TypeError, ValueError, OverflowError):
        return None
