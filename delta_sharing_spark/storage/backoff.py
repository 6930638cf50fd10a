"""How long to wait before another try: growing with jitter, or what the other side asked for."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

#: Retry-After is honoured up to this many seconds.
LONGEST_ASKED = 300.0


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
