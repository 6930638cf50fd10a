"""Decides when a request is retried and given up, alike for the sharing server, data URLs and storage."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from delta_sharing_spark import metrics
from delta_sharing_spark.errors import DeltaSharingError, ServerError
from delta_sharing_spark.network.connections import FIRST, say_waiting
from delta_sharing_spark.network.http import NetworkSettings

if TYPE_CHECKING:
    import tenacity

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

#: The system's generator, which has no state: a forked process does not draw what its parent draws.
JITTER = random.SystemRandom()
#: Seconds to which ``Retry-After`` is cut.
LONGEST_RETRY_AFTER = 300.0
#: How many answers in a row may hold other bytes than those that were asked for.
_MAX_WRONG_RANGES = 3
#: How many answers of status 500 with the same text, within about five seconds, mean that the request itself is at fault.
_MAX_SAME_500 = 3
#: How many answers that are unreadable for the same reason mean that the server sent them so, and the network did not damage them.
_MAX_SAME_ANSWERS = 2
#: Seconds to wait after the first and the second 500.
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
        cause: What in an answer could not be read; the same one again is no damage on the way. None for other failures.
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
        cause: object = None,
    ) -> None:
        super().__init__(str(reason))
        self.error = reason if isinstance(reason, DeltaSharingError) else None
        self.wait, self.is_first_contact, self.busy, self.cause = wait, is_first_contact, busy, cause


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
    start = settings.clock()
    try:
        return call()
    except RetryableError as error:
        failure = error
    try:
        return _call_again(call, failure, _Policy(settings, reached, start, what), sleep or settings.sleep)
    finally:
        del failure  # its traceback holds this frame


def _call_again(call: Callable[[], _T], failure: RetryableError, policy: _Policy, sleep: Callable[[float], None]) -> _T:
    """Call again after a first failure. tenacity is imported here: what succeeds at once does without."""
    import tenacity

    tries = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(RetryableError),
        after=policy.count,
        wait=lambda _: policy.pause,
        stop=lambda _: policy.is_over,
        before_sleep=policy.announce,
        sleep=sleep,
        retry_error_callback=lambda _: None,
    )
    attempt: tenacity.AttemptManager | None = None
    try:
        for attempt in tries:
            if attempt.retry_state.attempt_number > 1:
                try:
                    return call()
                except RetryableError as error:
                    failure = error
            # Failures alone are handed to tenacity: what else is raised passes by, Ctrl-C and a reader's end included.
            attempt.retry_state.set_exception((type(failure), failure, failure.__traceback__))
        raise failure
    finally:
        del failure, attempt  # a traceback that holds its own error keeps the bytes of a read in memory


class _Policy:
    """Decides about the next try of one call, by all failures so far.

    Attributes:
        pause: Seconds before it (tenacity's ``wait``).
        is_over: Whether there is none (tenacity's ``stop``).
    """

    def __init__(self, settings: NetworkSettings, reached: Callable[[], int], start: float, what: str) -> None:
        self._settings, self._reached, self._start, self._what = settings, reached, start, what
        self._progress = self._failures = self._wrong_ranges = self._same = 0
        self._cause: object = None
        self._bound = settings.retry_seconds
        self.pause, self.is_over = 0.0, False

    def count(self, state: tenacity.RetryCallState) -> None:
        """Take account of a failure."""
        failure = _failure_of(state)
        reached = self._reached()
        if reached > self._progress:
            self._progress, self._failures, self._wrong_ranges = reached, 0, 0
        self._failures += 1
        self._wrong_ranges += isinstance(failure, WrongRangeError)
        error, cause = failure.error, failure.cause
        if isinstance(error, ServerError) and error.status == 500:
            cause = error.error_code, error.server_message
        self._same = (self._same + 1 if cause == self._cause else 1) if cause is not None else 0
        self._cause = cause
        failure.permanent = self._same >= (_MAX_SAME_500 if failure.cause is None else _MAX_SAME_ANSWERS)
        self.pause = self._pause_after(failure)
        self._bound = self._settings.retry_seconds
        if failure.is_first_contact or _status(failure) == 500:
            # A host never reached may not exist, and a 500 is a fault of the server more often than a busy one.
            self._bound = min(self._bound, self._settings.first_contact_seconds)
        is_late = self._settings.clock() + self.pause > self._start + self._bound
        self.is_over = is_late or failure.permanent or self._wrong_ranges > _MAX_WRONG_RANGES

    def _pause_after(self, failure: RetryableError) -> float:
        grown = backoff(self._failures, self._settings.first_wait, self._settings.longest_wait)
        if failure.wait is not None:
            # Up to a tenth more than the server asks for, so that clients do not all come back at one moment.
            return max(failure.wait * JITTER.uniform(1.0, 1.1), min(grown, 1.0))
        if _status(failure) == 500 and self._failures <= len(_WAITS_AFTER_500):
            # An overloaded server has some seconds to recover before its 500 is taken for final.
            return _WAITS_AFTER_500[self._failures - 1] * JITTER.uniform(0.5, 1.0)
        return grown

    def announce(self, state: tenacity.RetryCallState) -> None:
        """Log the next try and count it, and tell whoever waits for it where it comes late."""
        settings, failure = self._settings, _failure_of(state)
        _log.info("%s: trying again in %.1f s: %s", self._what, self.pause, failure)
        metrics.count(metrics.RETRIES, 1, table=settings.table, server=settings.server)
        now = settings.clock()
        if now + self.pause - self._start >= FIRST:
            say_waiting(self._what, str(failure), now, now - self._start, self._bound, "retryTimeout")


def _failure_of(state: tenacity.RetryCallState) -> RetryableError:
    failure = None if state.outcome is None else state.outcome.exception()
    assert isinstance(failure, RetryableError), "no other error is handed over"
    return failure


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
    moment = http_seconds(text)
    return None if moment is None else max(0.0, min(moment - now(), LONGEST_RETRY_AFTER))


def http_seconds(text: str) -> float | None:
    """HTTP's date in seconds since the epoch; None if it is none."""
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError, OverflowError, IndexError):
        return None
