"""Whoever has no token holds nothing of the embedded server."""

from __future__ import annotations

import contextlib
import socket
import time

import pytest

from delta_sharing_spark.network.newcomers import OF_AN_ADDRESS
from delta_sharing_spark.testing.server import SharingServer
from unit.testing.plain_http import Asker

_TOKEN = "<token>"
_QUERY = "POST /delta-sharing/shares/s/schemas/default/tables/plain/query"


def said(connection: socket.socket) -> str:
    """All that a server says until it ends the connection."""
    connection.settimeout(30)
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts).decode("latin-1")


@pytest.mark.parametrize(
    ("request_line", "fields", "status"),
    [
        (_QUERY, ["Content-Length: 400000000"], "401"),
        (_QUERY, ["Authorization: Bearer wrong", "Content-Length: 1000"], "401"),
        (_QUERY, ["Authorization: Basic \xff", "Content-Length: 0"], "401"),
        (_QUERY, [_TOKEN, "Content-Length: 100000000000000"], "413"),
        (_QUERY, [_TOKEN, f"Content-Length: {10**14}{'0' * 5000}"], "400"),
        (_QUERY, [_TOKEN, "Content-Length: -1"], "400"),
        (_QUERY, [_TOKEN, "Content-Length: 1\xb2"], "400"),
        (_QUERY, [_TOKEN, "Transfer-Encoding: chunked"], "411"),
        ("POST /oauth/token", ["Content-Length: 100000000000000"], "413"),
        ("GET /data/unknown", ["Content-Length: 400000000"], "413"),
        ("GET /data/unknown", [], "403"),
        ("GET /elsewhere", [], "401"),
    ],
)
def test_a_body_is_bounded_and_read_only_with_the_token(
    server: SharingServer, request_line: str, fields: list[str], status: str
) -> None:
    """The refusal comes before the body, ends the connection, and is no failure of the server."""
    head = "\r\n".join([f"{request_line} HTTP/1.1", "Host: x", *fields, "", ""])
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head.replace(_TOKEN, f"Authorization: Bearer {server.token}").encode("latin-1"))
        connection.shutdown(socket.SHUT_WR)
        answer = said(connection)
    assert answer.startswith(f"HTTP/1.1 {status} "), answer
    assert "\r\nConnection: close\r\n" in answer


@pytest.mark.parametrize(
    "sent", ["", "GET / HTTP/1.1\r\nHost:", "POST /oauth/token HTTP/1.1\r\nContent-Length: 9\r\n\r\n"]
)
def test_silent_connections_are_bounded(
    server: SharingServer, ask: Asker, sent: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers with the token are served beside them; the others end in their time, with few lines of the log."""
    newcomers = server._socket.newcomers
    with contextlib.ExitStack() as opened:
        address = ("127.0.0.1", server.port)
        strangers = [opened.enter_context(socket.create_connection(address)) for _ in range(300)]
        for stranger in strangers:
            with contextlib.suppress(OSError):
                stranger.sendall(sent.encode())
        assert ask.query().status_code == 200
        assert len(newcomers) <= OF_AN_ADDRESS
        late = time.monotonic() + 60
        monkeypatch.setattr(newcomers, "_clock", lambda: late)
        assert {said(stranger) for stranger in strangers} == {""}
        assert ask.get("version").status_code == 200
    lines = [record.getMessage() for record in caplog.records if "refused connections" in record.getMessage()]
    assert 1 <= len(lines) <= 3, lines
