"""Whoever has no token holds nothing of the Flight gateway."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from delta_sharing_spark.flight.connections import FlightConnections
from delta_sharing_spark.flight.gateway import FlightGateway
from delta_sharing_spark.network.newcomers import OF_AN_ADDRESS
from unit.flight.calling import Caller

pytestmark = pytest.mark.skipif(not Path("/dev/fd").exists(), reason="the system lists no descriptors")


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def watched(gateway: FlightGateway) -> FlightConnections:
    watching: FlightConnections = gateway._connections
    return watching


def has_ended(connection: socket.socket) -> bool:
    """Whether the server has ended a connection, whatever it said before."""
    connection.settimeout(0)
    try:
        while connection.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


def test_silent_connections_are_bounded(
    gateway: FlightGateway, caller: Caller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A caller with the token is served beside them, and keeps its connection beyond their time, in which they end."""
    newcomers = watched(gateway).newcomers
    with contextlib.ExitStack() as opened:
        assert len(list(caller.connection.list_actions(caller.options))) > 0
        strangers = [opened.enter_context(socket.create_connection(("127.0.0.1", gateway.port))) for _ in range(300)]
        for stranger in strangers[::2]:
            stranger.sendall(b"PRI * HTTP/2.0\r\n")
        wait_for(lambda: sum(map(has_ended, strangers)) >= 300 - OF_AN_ADDRESS)
        assert len(newcomers) <= OF_AN_ADDRESS
        late = time.monotonic() + 60
        monkeypatch.setattr(newcomers, "_clock", lambda: late)
        wait_for(lambda: all(map(has_ended, strangers)))
        wait_for(lambda: not len(newcomers))
        assert len(list(caller.connection.list_actions(caller.options))) > 0
        assert [peer for _, peer in watched(gateway)._seen], "the caller's connection is there still"
    lines = [record.getMessage() for record in caplog.records if "refused connections" in record.getMessage()]
    assert 1 <= len(lines) <= 3, lines


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell how much has come")
def test_a_message_before_the_token_is_bounded(gateway: FlightGateway, caller: Caller) -> None:
    """Its connection ends long before the whole of it has come; a caller with the token may send it, and is told."""
    sent = 0
    with socket.create_connection(("127.0.0.1", gateway.port)) as stranger, contextlib.suppress(ConnectionError):
        stranger.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
        while sent < 1 << 30:  # frames of a kind that nobody knows
            stranger.sendall((1 << 14).to_bytes(3, "big") + b"\xee" + bytes(5) + bytes(1 << 14))
            sent += 1 << 14
    assert sent < 1 << 30
    list(caller.connection.list_actions(caller.options))
    with pytest.raises(pa.ArrowNotImplementedError, match="there is no action 'x'"):
        list(caller.connection.do_action(flight.Action("x", bytes(16 << 20)), caller.options))
