"""Holds the plans that ``PollFlightInfo`` began, each in a thread of its own, until they are fetched, cancelled or abandoned."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from delta_sharing_spark.errors import CancelledError, NotFoundError, UnavailableError
from delta_sharing_spark.network.connections import Canceller, ReadCancelled
from delta_sharing_spark.network.process_cache import ProcessCache
from delta_sharing_spark.network.process_end import start_thread

#: Seconds after its last poll for which a plan's descriptor is good.
POLL_SECONDS = 300.0
#: Plans under way at one time; plans that have ended, and bytes of their infos, that are kept for a poll that comes again.
_MOST_UNDER_WAY, _ENDED_KEPT, _ENDED_BYTES = 32, 256, 64 << 20


@dataclass(eq=False, slots=True)
class Poll:
    """One plan.

    Attributes:
        flight: The id of the flight, which only its caller knows.
        identity: The caller.
        descriptor: The ``FlightDescriptor`` that the caller asked with.
        expires: Seconds since the epoch; each poll moves it.
        progress: From 0 to 1: 0.5 once the table is described.
        listed: Files listed so far.
        canceller: Ends the requests of the plan.
        has_ended: Whether there is an outcome.
        info: The ``FlightInfo``, where the plan succeeded.
        error: Why it failed, or was cancelled.
    """

    flight: str
    identity: str
    descriptor: bytes = field(repr=False)
    expires: float
    progress: float = 0.0
    listed: int = 0
    canceller: Canceller = field(default_factory=lambda: Canceller("the plan of a flight"), repr=False)
    has_ended: threading.Event = field(default_factory=threading.Event, repr=False)
    info: bytes | None = field(default=None, repr=False)
    error: Exception | None = None

    def note(self, listed: int) -> None:
        """Note that files were listed; raises ReadCancelled where the plan was cancelled."""
        self.canceller.check()
        self.progress, self.listed = 0.5, self.listed + listed


class Polls:
    """Begins plans, finds them again and cancels them; used by many threads.

    Args:
        clock: Seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._under_way: dict[str, Poll] = {}
        self._ended: ProcessCache[str, Poll] = ProcessCache(
            _ENDED_KEPT, lambda poll: len(poll.info or b""), _ENDED_BYTES
        )
        self._is_closed = False

    def begin(self, identity: str, descriptor: bytes, plan: Callable[[Poll], bytes]) -> Poll:
        """Begin a plan, which returns a ``FlightInfo``.

        Raises:
            UnavailableError: So many plans are under way that this one is refused, or the gateway ends.
        """
        poll = Poll(uuid.uuid4().hex, identity, descriptor, self._clock() + POLL_SECONDS)
        self._drop_abandoned()
        with self._lock:
            if self._is_closed:
                raise UnavailableError("the gateway is shutting down; connect to it again, or to another one")
            if len(self._under_way) >= _MOST_UNDER_WAY:
                raise UnavailableError(
                    f"the gateway has {len(self._under_way)} plans under way, which is its limit; try again in a few seconds"
                )
            self._under_way[poll.flight] = poll
        work = partial(self._work, poll, plan)
        try:
            if not start_thread(work, "delta-sharing-flight-plan"):
                work()
        except RuntimeError as error:  # no more threads
            self._end(poll, error=UnavailableError(f"the gateway cannot begin a plan ({error}); try again later"))
        return poll

    def find(self, flight: str, identity: str) -> Poll:
        """The plan of a flight, whose time begins anew.

        Raises:
            NotFoundError: There is none of this caller's: it has expired, or was begun elsewhere.
        """
        self._drop_abandoned()
        with self._lock:
            poll = self._under_way.get(flight) or self._ended.get(flight)
            now = self._clock()
            if poll is None or poll.identity != identity or poll.expires <= now:
                raise NotFoundError(
                    "the descriptor of the poll has expired, or is another caller's or another gateway's; poll again with "
                    "the descriptor of the rows"
                )
            poll.expires = now + POLL_SECONDS
            return poll

    def wait(self, poll: Poll, seconds: float) -> bytes | None:
        """The ``FlightInfo`` of a plan that ends within these seconds; None where it goes on.

        Raises:
            CancelledError: It was cancelled.
            DeltaSharingError: It failed.
        """
        if not poll.has_ended.wait(seconds):
            return None
        if poll.error is not None:
            raise poll.error
        return poll.info

    def cancel(self, flight: str, identity: str) -> bool:
        """End the plan of a flight; returns whether there is one of this caller's, be it under way or not."""
        with self._lock:
            poll = self._under_way.get(flight) or self._ended.get(flight)
        if poll is None or poll.identity != identity:
            return False
        self._cancel(poll)
        return True

    def forget(self, poll: Poll) -> None:
        """Drop a plan that has ended and that nobody will poll again."""
        self._ended.forget(poll.flight)

    def close(self) -> None:
        """End all plans."""
        with self._lock:
            self._is_closed = True
            polls = list(self._under_way.values())
        for poll in polls:
            self._cancel(poll)

    def _cancel(self, poll: Poll) -> None:
        self._end(poll, error=CancelledError("the flight was cancelled while it was planned"), is_final=True)
        poll.canceller.break_off()

    def _work(self, poll: Poll, plan: Callable[[Poll], bytes]) -> None:
        try:
            with poll.canceller.watching():
                poll.canceller.check()
                info = plan(poll)
        except ReadCancelled:
            self._cancel(poll)
        except Exception as error:  # raised to those who poll
            self._end(poll, error=error)
        else:
            self._end(poll, info)

    def _end(
        self, poll: Poll, info: bytes | None = None, error: Exception | None = None, *, is_final: bool = False
    ) -> None:
        """Set the outcome of a plan, unless it has one that stays; a cancellation takes the place of another outcome."""
        with self._lock:
            if poll.has_ended.is_set() and not is_final:
                return
            poll.info, poll.error = info, error
            self._under_way.pop(poll.flight, None)
            self._ended.put(poll.flight, poll)
            poll.has_ended.set()

    def _drop_abandoned(self) -> None:
        """Cancel the plans that nobody has polled in time."""
        with self._lock:
            abandoned = [poll for poll in self._under_way.values() if poll.expires <= self._clock()]
        for poll in abandoned:
            self._cancel(poll)
