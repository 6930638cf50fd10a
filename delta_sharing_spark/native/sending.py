"""Sends an answer's bytes to a reader that may close its connection at any time, and waits where it may need no more."""

from __future__ import annotations

import select
import socket
import time

from delta_sharing_spark.native.doubts import Doubt, Reaction
from delta_sharing_spark.native.peers import unread_by_peer
from delta_sharing_spark.native.plan_reader import Pieces

#: Seconds that sent bytes may stay unread before more are sent; the most seconds between two checks.
_UNREAD, _LONGEST_PAUSE = 2.0, 0.05
#: Java closes a connection in two steps, of which the second tells whether it had read all: the most seconds between them.
_RESET = 0.005


def send_pieces(connection: socket.socket, pieces: Pieces) -> None:
    """Send an answer's bytes until the reader leaves."""
    reaction: Reaction | None = None
    try:
        while True:
            piece = pieces.send(reaction)
            if isinstance(piece, Doubt):
                reaction = _reaction(connection, piece)
            else:
                connection.sendall(piece)
                reaction = None
    except StopIteration:
        return
    finally:
        pieces.close()


def _reaction(connection: socket.socket, doubt: Doubt) -> Reaction:
    """Wait for a reader to close its connection, or to read what it was sent and wait for more."""
    pause, patience = 0.001, time.monotonic() + _UNREAD
    # What the system tells of the other side may be wrong, and a reader may wait for more than it was given.
    while (unread := unread_by_peer(connection)) and time.monotonic() < patience:
        if select.select([connection], [], [], pause)[0]:
            return Reaction(True, not _is_reset(connection))
        pause = min(2 * pause, _LONGEST_PAUSE)
    has_left = bool(select.select([connection], [], [], doubt.blindly if unread is None else doubt.seconds)[0])
    return Reaction(has_left, not unread and not (has_left and _is_reset(connection)))


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
