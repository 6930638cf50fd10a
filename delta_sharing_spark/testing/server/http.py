"""HTTP/1.1 over sockets: keep-alive, large writes, files sent by the kernel, faults on the wire."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, BinaryIO, Protocol
from urllib.parse import urlsplit

from delta_sharing_spark.testing.server.data_urls import storage_error
from delta_sharing_spark.testing.server.faults import Fault, Faults, Pace
from delta_sharing_spark.testing.server.responses import FileBody, Refusal, Request, Response

_log = logging.getLogger(__name__)

#: Bodies up to this size are written together with their headers.
_JOINED = 256 << 10
#: Bytes of a file for one call of the kernel.
_SENT_AT_ONCE = 8 << 20


class Answering(Protocol):
    """What answers the requests of a server (``SharingServer``)."""

    faults: Faults
    failures: deque[str]

    @property
    def address(self) -> str:
        """``host:port``."""

    def kind_of(self, path: str) -> tuple[str, str]:
        """A request's kind, and the local path of the file that a data URL names."""

    def answer(
        self, kind: str, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes, base: str
    ) -> Response:
        """Answer one request; raises Refusal for an error answer."""

    def record(self, request: Request) -> None:
        """Keep a request that was served."""


class SocketServer(ThreadingHTTPServer):
    """A thread for each connection; connections are closed with the server."""

    daemon_threads = True
    request_queue_size = 256
    disable_nagle_algorithm = True

    def __init__(self, address: tuple[str, int], sharing: Answering) -> None:
        self.sharing = sharing
        self._connections: set[socket.socket] = set()
        #: Connections to be closed by RST.
        self.resetting: set[socket.socket] = set()
        super().__init__(address, RequestHandler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        if request in self.resetting:
            self.resetting.discard(request)
            self.close_request(request)  # without the FIN of a shutdown
        else:
            super().shutdown_request(request)

    def close_connections(self) -> None:
        """End every open connection, so that the threads behind them end."""
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, (ConnectionError, TimeoutError)):
            _log.error("the connection from %s failed", client_address, exc_info=error)
            self.sharing.failures.append(repr(error))


class _ConnectionEnded(Exception):
    """The connection was ended on purpose, in the middle of an answer."""


class RequestHandler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    rbufsize = 64 << 10
    server: SocketServer
    _headers_buffer: list[bytes]

    def log_message(self, format: str, *args: Any) -> None:
        """The server keeps its own record, without URLs' queries."""

    def do_GET(self) -> None:
        """Answer a request of any method."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        sharing = self.server.sharing
        parts = urlsplit(self.path)
        kind, local = sharing.kind_of(parts.path)
        faults = sharing.faults.take(kind, parts.path, local)
        for fault in faults:
            if fault.call is not None:
                fault.call()
            if fault.delay:
                time.sleep(fault.delay)
        if sharing.faults.shaped(kind) and sharing.faults.latency:
            time.sleep(sharing.faults.latency)
        headers = {name.lower(): value for name, value in self.headers.items()}
        if any(fault.ignore_range for fault in faults):
            headers.pop("range", None)
            headers.pop("x-ms-range", None)
        response = self._answer(kind, parts.path, parts.query, headers, body, faults)
        kept = {name: "" if name == "authorization" else value for name, value in headers.items()}
        port = self.client_address[1]
        record = Request(
            self.command, kind, 0, response.status, parts.path, kept, b"" if kind == "token" else body, local, port
        )
        sharing.record(record)
        try:
            self._send(record, response, faults)
        except (_ConnectionEnded, ConnectionError):
            self.close_connection = True

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

    def _answer(
        self, kind: str, path: str, query: str, headers: Mapping[str, str], body: bytes, faults: list[Fault]
    ) -> Response:
        for fault in faults:
            if fault.status is not None:
                return _failed(kind, fault)
        sharing = self.server.sharing
        base = f"http://{self.headers.get('Host') or sharing.address}"
        try:
            return sharing.answer(kind, self.command, path, query, headers, body, base)
        except Refusal as refusal:
            return refusal.response()
        except Exception as error:  # a bug here must reach the test as a 500, not end the connection
            _log.exception("%s %s failed", self.command, path)
            sharing.failures.append(repr(error))
            return Refusal(500, "INTERNAL_ERROR", "").response()

    def _send(self, record: Request, response: Response, faults: list[Fault]) -> None:
        response, limit, reset = _spoilt(response, faults)
        if reset and limit is None:
            self._reset()
            raise _ConnectionEnded
        headers = {"Content-Type": response.content_type, "Content-Length": str(response.length), **response.headers}
        for fault in faults:
            for name, value in fault.headers.items():
                headers = {k: v for k, v in headers.items() if k.lower() != name.lower()}
                if value is not None:
                    headers[name] = value
        self.send_response_only(response.status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers_buffered()
        if self.command == "HEAD" or response.status == 204:
            self._flush(b"")
            return
        record.bytes = response.length if limit is None else limit
        stalls = [fault for fault in faults if fault.stall]
        if stalls:
            body = _bytes(response.body)[: record.bytes]
            self._flush(body[: stalls[0].stall_at])
            time.sleep(stalls[0].stall)
            self.connection.sendall(body[stalls[0].stall_at :])
        else:
            self._send_body(record, response.body, record.bytes)
        if limit is not None:
            if reset:
                self._reset()
            raise _ConnectionEnded

    def end_headers_buffered(self) -> None:
        """End the headers without writing them yet."""
        self._headers_buffer.append(b"\r\n")

    def _flush(self, more: bytes) -> None:
        """Write the headers, and a small body with them in one packet."""
        buffered = b"".join(self._headers_buffer)
        self._headers_buffer = []
        self.connection.sendall(buffered + more)

    def _send_body(self, record: Request, body: bytes | FileBody, length: int) -> None:
        shaping = self.server.sharing.faults
        pace = Pace(shaping.bandwidth) if shaping.shaped(record.kind) and shaping.bandwidth is not None else None
        if isinstance(body, FileBody):
            with open(body.path, "rb") as file:
                if pace is None and length <= _JOINED:
                    file.seek(body.start)
                    self._flush(file.read(length))
                    return
                self._flush(b"")
                self._send_file(record, file, body.start, length, pace)
            return
        if pace is None:
            if length <= _JOINED:
                self._flush(body[:length])
            else:
                self._flush(b"")
                self.connection.sendall(memoryview(body)[:length])
            return
        self._flush(b"")
        for start in range(0, length, Pace.CHUNK):
            chunk = body[start : min(start + Pace.CHUNK, length)]
            self.connection.sendall(chunk)
            pace.after(len(chunk))

    def _send_file(self, record: Request, file: BinaryIO, start: int, length: int, pace: Pace | None) -> None:
        """Hand a file to the kernel; what a client that hangs up did not take is not counted."""
        sent = 0
        try:
            while sent < length:
                count = min(Pace.CHUNK if pace is not None else _SENT_AT_ONCE, length - sent)
                done = _send_part(self.connection, file, start + sent, count)
                if done == 0:
                    raise _ConnectionEnded  # the file is shorter than it was
                sent += done
                if pace is not None:
                    pace.after(done)
        finally:
            if sent < length:
                record.bytes = sent

    def _reset(self) -> None:
        """End the connection with RST instead of FIN."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.server.resetting.add(self.connection)
        self.close_connection = True


def _failed(kind: str, fault: Fault) -> Response:
    """The error answer of a fault, as object stores or as the protocol words it."""
    assert fault.status is not None
    message = fault.body if fault.body is not None else "a fault that the test asked for"
    headers = {} if fault.retry_after is None else {"Retry-After": fault.retry_after}
    if kind == "data":
        error = storage_error(fault.status, "InjectedFault", message)
        body = error.body if fault.body is None else fault.body.encode()
        return Response(fault.status, body, headers, error.content_type)
    return Refusal(fault.status, "INJECTED_FAULT", message, headers).response()


def _spoilt(response: Response, faults: list[Fault]) -> tuple[Response, int | None, bool]:
    """The answer after faults of its bytes, where to cut it, and whether to reset the connection."""
    limit, reset = None, False
    for fault in faults:
        reset = reset or fault.reset
        if fault.truncate is not None:
            limit = max(0, fault.truncate if fault.truncate >= 0 else response.length + fault.truncate)
            limit = min(limit, response.length)
        if fault.shift_range and response.status == 206:
            response = _shifted(response, fault.shift_range)
        if fault.corrupt is not None or fault.grow:
            body = bytearray(_bytes(response.body))
            if fault.corrupt is not None and -len(body) <= fault.corrupt < len(body):
                body[fault.corrupt] ^= 0xFF
            body += bytes(fault.grow)
            response = Response(response.status, bytes(body), response.headers, response.content_type)
    return response, limit, reset


def _shifted(response: Response, shift: int) -> Response:
    assert isinstance(response.body, FileBody)
    span, _, size = response.headers["Content-Range"].removeprefix("bytes ").partition("/")
    first, _, last = span.partition("-")
    start, end = int(first) + shift, min(int(last) + shift, int(size) - 1)
    headers = {**response.headers, "Content-Range": f"bytes {start}-{end}/{size}"}
    return Response(206, FileBody(response.body.path, start, end - start + 1), headers, response.content_type)


def _bytes(body: bytes | FileBody) -> bytes:
    if isinstance(body, bytes):
        return body
    with open(body.path, "rb") as file:
        file.seek(body.start)
        return file.read(body.length)


def _send_part(connection: socket.socket, file: BinaryIO, start: int, count: int) -> int:
    """Send bytes of a file, by the kernel where it can (not on Windows); returns how many were taken."""
    if hasattr(os, "sendfile"):
        return os.sendfile(connection.fileno(), file.fileno(), start, count)
    file.seek(start)
    return connection.send(file.read(min(count, Pace.CHUNK)))
