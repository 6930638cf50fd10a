"""A threaded HTTP/1.1 server of one file, which does once (or always) what it is told instead of answering well."""

from __future__ import annotations

import re
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Fault = Callable[["Handler", int, int], None]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        assert match, "every request asks for a range"
        start, end = int(match[1]), int(match[2]) + 1
        with self.server.lock:
            self.server.asked.append((self.path, start, end))
            self.server.headers.append(dict(self.headers))
            self.server.lines.append(self.requestline)
            self.server.clients.append(self.client_address[1])
            fault = self.server.faults.popleft() if self.server.faults else self.server.always
        (fault or good)(self, start, end)

    def answer(self, status: int, body: bytes = b"", *, length: int | None = None, **headers: Any) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def part(self, start: int, end: int, body: bytes, *, total: int | None = None, **how: Any) -> None:
        total = len(self.server.data) if total is None else total
        self.answer(206, body, Content_Range=f"bytes {start}-{end - 1}/{total}", **how)

    def reset(self) -> None:
        """End the connection with RST, without TLS or HTTP niceties."""
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def log_message(self, *_: Any) -> None:
        pass


def good(handler: Handler, start: int, end: int) -> None:
    handler.part(start, end, handler.server.data[start:end])


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, data: bytes, context: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.scheme = "http" if context is None else "https"
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.data = data
        self.faults: deque[Fault] = deque()
        self.always: Fault | None = None
        self.asked: list[tuple[str, int, int]] = []
        self.headers: list[dict[str, str]] = []
        #: The first lines of requests, and the ports they came from: one for each connection.
        self.lines: list[str] = []
        self.clients: list[int] = []
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}/f.parquet?sig=SECRET"

    def handle_error(self, *_: Any) -> None:
        pass  # resets are on purpose
