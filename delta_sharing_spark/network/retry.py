"""Decides when a request is retried and when it is given up, alike for the sharing server, data URLs and storage."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from delta_sharing_spark.errors import DeltaSharingError, ServerError
from delta_sharing_spark.network.http import NetworkSettings

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

#: Without a state: a fork does not repeat its parent's draws, and nobody's seeded generator is moved on.
JITTER = random.SystemRandom()
#: Retry-After is honoured up to this many seconds.
LONGEST_RETRY_AFTER = 300.0
#: So often in a row an answer may hold other bytes than asked for.
_MAX_WRONG_RANGES = 3
#: So many 500s in the same words are the server's last word on a request; they come within five seconds.
_MAX_SAME_500 = 3
_WAITS_AFTER_500 = (1.0, 3.0)


class RetryableError(Exception):
    """A failure that a retry may mend. It never reaches a user.

    Args:
        reason: The error to raise once the retries are used up, or a text that the caller makes one of.

    Attributes:
        error: That error, if it was one.
        wait: The seconds of ``Retry-After``.
        is_first_contact: Whether the host has never answered this process, so that retries end soon.
        busy: Whether the other side answered that it is not ready.
        permanent: Whether the same failure came so often that no retry will help.
    """

    permanent = False

    def __init__(
        self,
        reason: str | DeltaSharingError,
        wait: float | None = None,
        *,
        is_first_contact: bool = False,
        busy: bool = False,
    ) -> None:
        super().__init__(str(reason))
        self.error = reason if isinstance(reason, DeltaSharingError) else None
        self.wait, self.is_first_contact, self.busy = wait, is_first_contact, busy


class WrongRangeError(RetryableError):
    """An answer holds other bytes than asked for."""


def retry(
    call: Callable[[], _T],
    settings: NetworkSettings,
    *,
    reached: Callable[[], int] = lambda: 0,
    sleep: Callable[[float], None] | None = None,
    what: str = "",
) -> _T:
    """Call until no ``RetryableError`` is raised, with growing, jittered waits or those that ``Retry-After`` asks for.

    Args:
        call: Makes one request, from where the last one ended.
        settings: How long retries go on, and with what waits.
        reached: Bytes that have arrived, over all tries. Progress starts the count of tries anew; the time stays.
        sleep: Waits instead of the settings' function; may raise to end the tries.
        what: The request's name in the log.

    Raises:
        RetryableError: The last one, once the tries or the time are used up.
    """
    tries = _Tries(settings, reached)
    while True:
        try:
            return call()
        except RetryableError as failure:
            if (pause := tries.pause_after(failure)) is None:
                raise
            _log.info("%s: trying again in %.1f s: %s", what, pause, failure)
        (sleep or settings.sleep)(pause)


class _Tries:
    """Decides about the retries of one call."""

    def __init__(self, settings: NetworkSettings, reached: Callable[[], int]) -> None:
        self._settings, self._reached = settings, reached
        self._start = settings.clock()
        self._progress = self._failures = self._wrong_ranges = self._same = 0
        self._words: tuple[object, object] | None = None

    def pause_after(self, failure: RetryableError) -> float | None:
        """Seconds before the next try; None to give up."""
        self._count(failure)
        settings = self._settings
        grown = backoff(self._failures, settings.first_wait, settings.longest_wait)
        if failure.wait is not None:
            # A little more than what was asked for, so that clients part.
            pause = max(failure.wait * JITTER.uniform(1.0, 1.1), min(grown, 1.0))
        elif _status(failure) == 500 and self._failures <= len(_WAITS_AFTER_500):
            # A server that stumbles has time to recover before it is held to have failed for good.
            pause = _WAITS_AFTER_500[self._failures - 1] * JITTER.uniform(0.5, 1.0)
        else:
            pause = grown
        bound = settings.retry_seconds
        if failure.is_first_contact or _status(failure) == 500:
            # A host never reached may not exist, and a 500 is a fault of the server more often than a busy one.
            bound = min(bound, settings.first_contact_seconds)
        failure.permanent = self._same >= _MAX_SAME_500
        is_late = settings.clock() + pause > self._start + bound
        return None if is_late or failure.permanent or self._wrong_ranges > _MAX_WRONG_RANGES else pause

    def _count(self, failure: RetryableError) -> None:
        reached = self._reached()
        if reached > self._progress:
            self._progress, self._failures, self._wrong_ranges = reached, 0, 0
        self._failures += 1
        self._wrong_ranges += isinstance(failure, WrongRangeError)
        error = failure.error
        words = (
            (error.error_code, error.server_message) if isinstance(error, ServerError) and error.status == 500 else None
        )
        self._same = (self._same + 1 if words == self._words else 1) if words is not None else 0
        self._words = words


def _status(failure: RetryableError) -> int | None:
    return getattr(failure.error, "status", None)


def backoff(failures: int, first: float, longest: float) -> float:
    """Seconds before the try after ``failures`` ones in a row: doubling, with jitter, at most ``longest``."""
    return min(longest, first * 2.0 ** min(failures - 1, 30)) * JITTER.uniform(0.5, 1.0)


def retry_after(text: str | None, now: Callable[[], float] = time.time) -> float | None:
    """Seconds that a ``Retry-After`` header asks for, as a number or a date; None if it is neither.

    >>> retry_after("7"), retry_after("soon"), retry_after("Thu, 01 Jan 1970 00:01:00 GMT", now=lambda: 50.0)
    (7.0, None, 10.0)
    """
    text = (text or "").strip()
    if not text:
        return None
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), LONGEST_RETRY_AFTER)
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, min(parsedate_to_datetime(text).timestamp() - now(), LONGEST_RETRY_AFTER))
    except (TypeError, ValueError, OverflowError, IndexError):
        return None
