"""Ends connections of the Flight gateway that show no token: pyarrow's server, which holds them, bounds neither their number nor messages.

The process's own descriptors are looked through, so that it works where the system lists them: on Linux and macOS.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import stat
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import unquote

from delta_sharing_spark.network.newcomers import Newcomers

_log = logging.getLogger(__name__)

_DESCRIPTORS = "/dev/fd"
#: Seconds between two looks.
_LOOK = 0.1
#: Bytes that a connection may send before it shows a token: a message is held in memory before the server looks at the token.
_MOST_BYTES = 4 << 20
#: Where Linux tells of a connection how many bytes it has received: of linux/tcp.h.
_RECEIVED, _RECEIVED_AT = struct.Struct("=Q"), 128

Peer = tuple[str, int]
#: A connection: the number of its socket, and whose it is.
_Key = tuple[int, Peer]


class FlightConnections:
    """Watches the connections that a port of this process has accepted, from a thread of its own.

    Args:
        port: The port that the server listens on.
    """

    def __init__(self, port: int) -> None:
        self.newcomers = Newcomers(_log, "the Flight gateway")
        self._port = port
        self._lock = threading.Lock()
        #: Whose calls were admitted since the last look.
        self._admitted: set[Peer] = set()
        #: Connections that were seen: with a descriptor of ours as long as they are newcomers.
        self._seen: dict[_Key, socket.socket | None] = {}
        #: By descriptor the number of its socket, and whose it is.
        self._sockets: dict[int, tuple[int, Peer | None]] = {}
        self._closing = threading.Event()
        if os.path.isdir(_DESCRIPTORS):
            threading.Thread(target=self._watch, name="delta-sharing-flight-connections", daemon=True).start()

    def admit(self, peer: str) -> None:
        """Note that a call was admitted; ``peer`` is gRPC's name of its connection's other end."""
        host, _, port = unquote(peer).partition(":")[2].rpartition(":")
        with self._lock, suppress(ValueError):
            self._admitted.add((_plain(host.strip("[]")), int(port)))

    def close(self) -> None:
        """Stop to watch."""
        self._closing.set()

    def _watch(self) -> None:
        while not self._closing.wait(_LOOK):
            self._look()
        for key in list(self._seen):
            self._let_go(key)

    def _look(self) -> None:
        with self._lock:
            admitted, self._admitted = self._admitted, set()
        there = set()
        for key, descriptor in self._accepted():
            there.add(key)
            if key not in self._seen:
                self._take_in(key, descriptor)
        for key in list(self._seen):
            if key not in there:
                self._let_go(key)
                del self._seen[key]
            elif key[1] in admitted:
                self._let_go(key)
        self.newcomers.end_late()
        for key, connection in self._seen.items():
            if connection is None:
                continue
            if connection in self.newcomers and _received(connection) > _MOST_BYTES:
                self.newcomers.end(connection, f"it sent more than {_MOST_BYTES} bytes before a token")
            if connection not in self.newcomers:
                self._let_go(key)

    def _accepted(self) -> Iterator[tuple[_Key, int]]:
        """The connections that the port has accepted, by their descriptors."""
        before, self._sockets = self._sockets, {}
        for name in os.listdir(_DESCRIPTORS):
            with suppress(OSError, ValueError):  # a descriptor that is closed meanwhile
                descriptor = int(name)
                status = os.fstat(descriptor)
                if not stat.S_ISSOCK(status.st_mode):
                    continue
                number, peer = before.get(descriptor, (0, None))
                if number != status.st_ino or not number:
                    number, peer = status.st_ino, self._peer(descriptor)
                self._sockets[descriptor] = number, peer
                if peer is not None:
                    yield (number, peer), descriptor

    def _peer(self, descriptor: int) -> Peer | None:
        """Whose a connection is; None where it is none that the port has accepted."""
        with suppress(OSError, ValueError), socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.family != socket.AF_UNIX and connection.getsockname()[1] == self._port:
                host, port = connection.getpeername()[:2]
                return _plain(host), port
        return None

    def _take_in(self, key: _Key, descriptor: int) -> None:
        with suppress(OSError):
            connection = socket.socket(fileno=os.dup(descriptor))
            self._seen[key] = connection
            self.newcomers.enter(connection)

    def _let_go(self, key: _Key) -> None:
        """Close our descriptor of a connection, which would hold it open."""
        connection, self._seen[key] = self._seen[key], None
        if connection is not None:
            self.newcomers.leave(connection)
            connection.close()


def _plain(host: str) -> str:
    """An address in one spelling: a socket for both IPs tells those of IPv4 in another one."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return str((address.version == 6 and address.ipv4_mapped) or address)


def _received(connection: socket.socket) -> int:
    """The bytes that a connection has received; 0 where the system does not tell."""
    if not hasattr(socket, "TCP_INFO"):
        return 0
    with suppress(OSError, struct.error):
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED_AT + _RECEIVED.size)
        return int(_RECEIVED.unpack_from(info, _RECEIVED_AT)[0])
    return 0
