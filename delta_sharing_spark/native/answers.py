"""Sends an answer of the gateway piece by piece, and tells whoever makes it whether its reader has left or has read all."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import NamedTuple

from delta_sharing_spark.native.peers import unread_by_peer

#: Seconds that sent bytes may stay unread before more are sent; the most seconds between two checks.
_UNREAD, _LONGEST_PAUSE = 2.0, 0.05
#: Java closes a connection in two steps, of which the second tells whether it had read all: the most seconds between them.
_RESET = 0.005


@dataclass(frozen=True, slots=True)
class Pause:
    """Yielded between bytes, where the reader may need no more.

    The gateway waits ``seconds`` for the reader to close its connection once it has read what was sent. Where the
    system does not tell what it has read, those are ``blindly`` seconds. The gateway answers with a ``ReaderState``.
    """

    seconds: float
    blindly: float


class ReaderState(NamedTuple):
    """What a reader did meanwhile: whether it closed its connection, and whether it has read all that was sent."""

    has_closed: bool
    has_read_all: bool


WAITS = ReaderState(has_closed=False, has_read_all=True)

#: What an answer yields: bytes, or a pause, to which the gateway sends the reader's state.
Pieces = Generator[memoryview | Pause, ReaderState | None, None]


def send_pieces(connection: socket.socket, pieces: Pieces) -> None:
    """Send an answer's bytes until the reader leaves."""
    state: ReaderState | None = None
    try:
        while True:
            piece = pieces.send(state)
            if isinstance(piece, Pause):
                state = _wait_for_reader(connection, piece)
            else:
                connection.sendall(piece)
                state = None
    except StopIteration:
        return
    finally:
        pieces.close()


def _wait_for_reader(connection: socket.socket, wait: Pause) -> ReaderState:
    """Wait for a reader to close its connection, or to read what it was sent and wait for more."""
    pause, patience = 0.001, time.monotonic() + _UNREAD
    # What the system tells of the other side may be wrong, and a reader may wait for more than it was given.
    while (unread := unread_by_peer(connection)) and time.monotonic() < patience:
        if select.select([connection], [], [], pause)[0]:
            return ReaderState(True, not _is_reset(connection))
        pause = min(2 * pause, _LONGEST_PAUSE)
    has_closed = bool(select.select([connection], [], [], wait.blindly if unread is None else wait.seconds)[0])
    return ReaderState(has_closed, not unread and not (has_closed and _is_reset(connection)))


def _is_reset(connection: socket.socket) -> bool:
    """Whether a reader that has closed its connection had not read all that it was sent: the system resets it then."""
    try:
        if connection.recv(1, socket.MSG_PEEK):
            return False
    except ConnectionError:
        return True
    _wait_for_reset()
    return connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0


def _wait_for_reset() -> None:
    time.sleep(_RESET)
