"""Faults that a test switches on: by kind of request, path and count; expiry, vanished files, a slow network."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

_DATA = "data"


@dataclass(slots=True)
class Fault:
    """A rule and what it does; every part that is not given leaves the answer as it is.

    Attributes:
        on: ``"rest"`` (all but data), ``"data"``, ``"any"``, or one kind of request (``"query"``, ``"metadata"``...).
        path: Regular expression searched in the request's path, or in the local path of a data file.
        skip: So many matching requests pass first.
        times: So many are hit; None for all that follow.
        delay: Seconds before the answer.
        status: Answer with this status instead; ``retry_after`` goes with it, ``body`` is its text.
        reset: Close the connection with a TCP reset, before the answer or after ``truncate`` bytes of it.
        truncate: Close the connection after so many bytes of the body (negative: so many before its end).
        ignore_range: Answer 200 with the whole file instead of 206.
        shift_range: Serve a range that starts so many bytes later than asked, and say so in Content-Range.
        corrupt: Flip all bits of the body's byte at this place (negative: from its end).
        headers: Replaced in the answer (``ETag``, ``Content-Range``...); None removes one.
        stall: Seconds of silence after ``stall_at`` bytes of the body; the rest follows.
        call: Called before the answer is made, for whatever must happen just now (``server.expire_urls``).
        grow: So many zero bytes are added to the body, as if the file had changed its length.
        hits: How many requests were hit.
    """

    on: str = "any"
    path: str | None = None
    skip: int = 0
    times: int | None = 1
    delay: float = 0.0
    status: int | None = None
    retry_after: str | None = None
    body: str | None = None
    reset: bool = False
    truncate: int | None = None
    ignore_range: bool = False
    shift_range: int = 0
    corrupt: int | None = None
    headers: Mapping[str, str | None] = field(default_factory=dict)
    grow: int = 0
    stall: float = 0.0
    stall_at: int = 0
    call: Callable[[], object] | None = field(default=None, repr=False)
    seen: int = 0
    hits: int = 0

    def hit(self, kind: str, *paths: str) -> bool:
        """Whether a request is hit, which is counted."""
        if self.on not in ("any", kind, _DATA if kind == _DATA else "rest"):
            return False
        if self.path is not None and not any(re.search(self.path, path) for path in paths):
            return False
        self.seen += 1
        is_hit = self.seen > self.skip and (self.times is None or self.hits < self.times)
        self.hits += is_hit
        return is_hit


class Faults:
    """The faults of a server.

    Attributes:
        latency: Seconds before every answer to a data request.
        bandwidth: Bytes per second of each connection's data answers; None is unbounded.
        shape_rest: Whether latency and bandwidth hold for REST as well.
        dropped: Ids of files that are left out of every answer.
    """

    def __init__(self) -> None:
        self.latency = 0.0
        self.bandwidth: float | None = None
        self.shape_rest = False
        self.dropped: set[str] = set()
        self._rules: list[Fault] = []
        self._lock = threading.Lock()

    def add(self, on: str = "any", path: str | None = None, **what: Any) -> Fault:
        """Switch a fault on; the arguments are those of :class:`Fault`. The rule is returned, with its ``hits``."""
        fault = Fault(on, path, **what)
        with self._lock:
            self._rules.append(fault)
        return fault

    def remove(self, fault: Fault) -> None:
        with self._lock:
            self._rules.remove(fault)

    def clear(self) -> None:
        """Switch everything off."""
        with self._lock:
            self._rules.clear()
        self.latency, self.bandwidth, self.shape_rest = 0.0, None, False
        self.dropped.clear()

    def shape(self, latency: float = 0.04, bandwidth: float | None = 30e6, *, rest: bool = True) -> None:
        """A slow network: seconds of latency, bytes per second of each connection."""
        self.latency, self.bandwidth, self.shape_rest = latency, bandwidth, rest

    def drop_file(self, file_id: str) -> None:
        """Leave a file out of every answer from now on."""
        self.dropped.add(file_id)

    def take(self, kind: str, *paths: str) -> list[Fault]:
        """The faults that hit this request, counted."""
        if not self._rules:
            return []
        with self._lock:
            return [fault for fault in self._rules if fault.hit(kind, *paths)]

    def drops(self, line: Mapping[str, Any]) -> bool:
        """Whether a line of an answer is about a dropped file."""
        if not self.dropped:
            return False
        return any(isinstance(body, dict) and body.get("id") in self.dropped for body in line.values())

    def shaped(self, kind: str) -> bool:
        return (kind == _DATA or self.shape_rest) and (self.latency > 0 or self.bandwidth is not None)
