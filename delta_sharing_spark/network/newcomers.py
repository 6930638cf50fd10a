"""Bounds the connections that have not shown the server's key yet, so that callers without it cannot keep others out."""

from __future__ import annotations

import ipaddress
import logging
import selectors
import socket
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import suppress

#: Seconds that a connection has to show the key, and seconds between two lines of the log.
_SECONDS, _BETWEEN_LINES = 10.0, 60.0
#: The most connections without the key, of one address and of all together.
OF_AN_ADDRESS, IN_ALL = 64, 128
#: Bits of the IPv6 network that a provider gives to one customer, who may use all of its addresses.
_IPV6_BITS = 64


class Newcomers:
    """Connections that have ten seconds to show the key. Safe to call from several threads.

    Where there are too many, one of the half that came first is ended: the oldest that has sent nothing which is still to be
    read. So whoever comes with the key is served, however many others there are, and has time to send it.

    Args:
        log: Gets a line at most once a minute, with how many connections were refused and why.
        server: How a line of the log names the server.
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, log: logging.Logger, server: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._server, self._clock = log, server, clock
        self._lock = threading.Lock()
        #: The oldest first: whose address it is, and until when it has time.
        self._waiting: OrderedDict[socket.socket, tuple[str, float]] = OrderedDict()
        self._refused: Counter[str] = Counter()
        self._next_line = clock()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, connection: socket.socket) -> bool:
        return connection in self._waiting

    def enter(self, connection: socket.socket) -> None:
        """Take in a connection; ends another one where there are too many."""
        address = ""
        with suppress(OSError):  # it has ended
            address = _holder(str(connection.getpeername()[0]))
        with self._lock:
            self._waiting[connection] = address, self._clock() + _SECONDS
            counts = Counter(holder for holder, _ in self._waiting.values())
            if counts[address] <= OF_AN_ADDRESS:
                if len(self._waiting) <= IN_ALL:
                    return
                ((address, _),) = counts.most_common(1)
            crowd = [other for other, (holder, _) in self._waiting.items() if holder == address]
            ended = next((other for other in crowd[: len(crowd) // 2] if not _has_data(other)), crowd[0])
            self._end(ended)
        self.note("it came with too many others that have not shown the key")

    def leave(self, connection: socket.socket) -> None:
        """Count a connection no more: it has shown the key, or has ended."""
        with self._lock:
            self._waiting.pop(connection, None)

    def end(self, connection: socket.socket, why: str) -> None:
        """End a connection."""
        with self._lock:
            self._end(connection)
        self.note(why)

    def end_late(self) -> None:
        """End those that have had their time; to be called every second or so."""
        with self._lock:
            now = self._clock()
            late = [connection for connection, (_, until) in self._waiting.items() if until <= now]
            for connection in late:
                self._end(connection)
        if late:
            self.note(f"it did not show the key within {_SECONDS:.0f} seconds", len(late))
        elif self._refused:
            self.note("", 0)

    def note(self, why: str, count: int = 1) -> None:
        """Log that connections were refused; refusals within a minute of a line are in the next one."""
        with self._lock:
            if count:
                self._refused[why] += count
            now = self._clock()
            if now < self._next_line:
                return
            self._next_line = now + _BETWEEN_LINES
            refused, self._refused = self._refused, Counter()
        causes = "; ".join(f"{number} as {cause}" for cause, number in refused.items())
        self._log.warning("%s refused connections: %s", self._server, causes)

    def _end(self, connection: socket.socket) -> None:
        """Wake what reads from a connection, by its end."""
        self._waiting.pop(connection, None)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def _holder(address: str) -> str:
    """The owner of an address: for IPv6, the network that one customer is given."""
    with suppress(ValueError):
        parsed = ipaddress.ip_address(address.partition("%")[0])
        if parsed.version == 6 and not parsed.ipv4_mapped:
            return str(ipaddress.ip_network((parsed, _IPV6_BITS), strict=False))
    return address


def _has_data(connection: socket.socket) -> bool:
    """Whether a connection has bytes that nobody has read yet."""
    with suppress(OSError, ValueError), selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        return bool(selector.select(0))
    return False
