"""Renews what ends: one thread asks for all threads of a process, and what still works is used through an outage."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from math import inf
from typing import Generic, TypeVar

from delta_sharing_spark import metrics
from delta_sharing_spark.errors import CredentialError, DeltaSharingError, NetworkError, ServerError

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_V = TypeVar("_V")

#: The longest and the shortest pause between two tries to renew what still works, in seconds; else it is half of the time left.
_LONGEST_PAUSE, _SHORTEST_PAUSE = 30.0, 1.0


def due_before(end: float, since: float, margin: float = 60.0, share: float = 0.25) -> float:
    """When to renew what was given out at ``since`` and ends at ``end``: ``margin`` seconds before, or that share of its life if less."""
    return end - min(margin, share * max(0.0, end - since))


@dataclass(frozen=True, slots=True)
class Term(Generic[_T]):
    """A value and its times, in seconds of the clock of its ``Renewable``.

    Attributes:
        value: Not shown: it mostly is a secret.
        renew_at: When to ask for another one ahead of its end; infinity means that its user waits until it is refused.
        ends_at: When it works no more; infinity where nothing tells.
    """

    value: _T = field(repr=False)
    renew_at: float = inf
    ends_at: float = inf


class Renewable(Generic[_T]):
    """The newest value of its kind in this process, such as a token, a credential or a list of URLs.

    One thread at a time asks for another. While no value works, the other threads wait, and share its failure: an outage is
    waited out once, not by each of them in turn. While one works, nobody waits. If it cannot be renewed, that is logged, and it
    is used to its end. The next try comes after half a minute, or when half of the remaining time is over.

    Args:
        name: How the log names the value.
        clock: The time in seconds. It is the wall clock where another machine says when values end.
        kind, table: How metrics count each call; no kind means that they count none.
    """

    def __init__(
        self, name: str, clock: Callable[[], float] = lambda: time.time(), *, kind: str = "", table: str = ""
    ) -> None:
        self._name, self._clock, self._kind, self._table = name, clock, kind, table
        #: Held by the thread that asks.
        self._lock = threading.Lock()
        self._value: _T | None = None
        #: How many urgent calls have ended, how the last of them failed, and how patient it was.
        self._calls = 0
        self._failure: DeltaSharingError | None = None
        self._patience: object = None
        #: When the last early call failed, and the seconds until the next one.
        self._failed_at, self._pause = 0.0, 0.0

    @property
    def value(self) -> _T | None:
        """The newest value, whether or not it still works; None before the first one."""
        return self._value

    def keep(self, value: _T) -> None:
        """Take a value that came from elsewhere."""
        self._value, self._pause = value, 0.0

    def get(
        self,
        usable: Callable[[_T | None], Term[_V] | None],
        ask: Callable[[float | None], _T],
        accept: Callable[[_T], Term[_V]],
        patience: object = None,
    ) -> Term[_V]:
        """A term that works now; renewed first if it is due.

        Args:
            usable: What the caller can use of the newest value: None if it was refused, or does not have what the caller needs.
            ask: Asks for another value. It is handed the seconds that the present one still works, so that it does not wait out
                an outage, and None where none works.
            accept: What the caller takes of a new value, whatever it thinks of it.
            patience: How long ``ask`` goes on where none works: a failure is shared by threads that would go on as long.

        Raises:
            DeltaSharingError: What ``ask`` raises while no value works, or a copy of what it raised while this thread waited. While
                one works only what is no ServerError, NetworkError or CredentialError. Whatever ``accept`` raises.
        """
        calls = self._calls
        term = self._term(usable)
        if term is not None and (self._clock() < term.renew_at or self._lock.locked()):
            return term
        with self._lock:
            term = self._term(usable)  # another thread may have renewed it
            if term is not None and self._clock() < term.renew_at:
                return term
            value = None if term is None else self._ask_early(ask, term.ends_at)
            if value is None:
                term = self._term(usable)
                if term is not None:
                    return term
                value = self._ask(ask, calls, patience)
            self.keep(value)
            return accept(value)

    def _term(self, usable: Callable[[_T | None], Term[_V] | None]) -> Term[_V] | None:
        """The term that still works, if there is one; it is not due again soon after a failure."""
        term, now = usable(self._value), self._clock()
        if term is None or now >= term.ends_at:
            return None
        # A clock that was set back does not make the pause longer.
        if now >= term.renew_at and 0 <= now - self._failed_at < self._pause:
            return replace(term, renew_at=min(term.ends_at, self._failed_at + self._pause))
        return term

    def _call(self, ask: Callable[[float | None], _T], seconds: float | None) -> _T:
        if self._kind:
            metrics.count(metrics.RENEWALS, 1, table=self._table, kind=self._kind)
        return ask(seconds)

    def _ask(self, ask: Callable[[float | None], _T], calls: int, patience: object) -> _T:
        """Ask while no value works; ``calls`` had ended when this thread came."""
        if self._failure is not None and self._calls > calls and patience == self._patience:
            raise copy(self._failure)
        self._failure, self._patience = None, patience
        try:
            return self._call(ask, None)
        except DeltaSharingError as error:
            self._failure = copy(error)  # callers add to the text of theirs, and its frames would stay
            raise
        finally:
            self._calls += 1

    def _ask_early(self, ask: Callable[[float | None], _T], ends_at: float) -> _T | None:
        """Ask while a value works; None where there is no other yet."""
        seconds = max(0.0, ends_at - self._clock())
        try:
            return self._call(ask, seconds)
        except (ServerError, NetworkError, CredentialError) as error:
            # It still works: the refusal of whoever it is shown to is the last word.
            self._failed_at = self._clock()
            self._pause = min(_LONGEST_PAUSE, max(_SHORTEST_PAUSE, seconds / 2))
            until = "until it is refused" if seconds == inf else f"for {seconds:.0f} s more"
            _log.warning("%s could not be renewed yet and is used %s: %s", self._name, until, error)
            return None
