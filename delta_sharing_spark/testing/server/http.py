"""HTTP/1.1 over sockets: keep-alive, large writes, files sent by the kernel, faults on the wire."""

from __future__ import annotations

import contextlib
import io
import logging
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from delta_sharing_spark.network.newcomers import Newcomers
from delta_sharing_spark.testing.server.data_urls import storage_error
from delta_sharing_spark.testing.server.faults import Fault, Faults
from delta_sharing_spark.testing.server.responses import FileBody, Refusal, Request, Response, bad_request

_log = logging.getLogger(__name__)

#: Bodies up to this size are written together with their headers.
_JOINED = 256 << 10
#: Bytes that are written at a time where bandwidth is bounded.
_PACED = 64 << 10
#: Bytes of a body that is not looked at, and is taken all the same: a client that still sends would not see the answer.
_DRAINED = 64 << 10
#: Digits of the longest length that is read as a number.
_DIGITS = 18
#: Kinds of requests that are shown by a URL's signature or a storage's credential, and how a wrong one is refused.
SIGNED, _UNPROVEN = ("data", "log"), (400, 401, 403)
#: Requests that are remembered.
_RECORDED = 500_000


class SocketServer(ThreadingHTTPServer):
    """A thread for each connection; connections are closed with the server.

    Args:
        kind_of: Says of a path a request's kind, and the local path of the file that a data URL names.
        admit: The bytes that a request's body may have, of which the head alone is read; raises Refusal where it has no token.
        answer: Answers one request; raises Refusal for an error answer.

    Attributes:
        newcomers: Connections that have shown no token yet.
        requests: What was served, oldest first.
        failures: Errors of the server itself.
    """

    daemon_threads = True
    request_queue_size = 256
    disable_nagle_algorithm = True

    def __init__(
        self,
        address: tuple[str, int],
        faults: Faults,
        kind_of: Callable[[str], tuple[str, str]],
        admit: Callable[[Request], int],
        answer: Callable[[Request], Response],
    ) -> None:
        self.faults, self.kind_of, self.admit, self.answer = faults, kind_of, admit, answer
        self.newcomers = Newcomers(_log, "the sharing server")
        self.requests: deque[Request] = deque(maxlen=_RECORDED)
        self.failures: deque[str] = deque(maxlen=1000)
        self._connections: set[socket.socket] = set()
        super().__init__(address, RequestHandler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        self.newcomers.enter(request)
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        self.newcomers.end_late()

    def shutdown_request(self, request: Any) -> None:
        self.newcomers.leave(request)
        self._connections.discard(request)
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
            self.failures.append(repr(error))


class _ConnectionEnded(Exception):
    """The connection was ended on purpose, in the middle of an answer."""


class RequestHandler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    rbufsize = 64 << 10
    wbufsize = _JOINED
    server: SocketServer

    def log_message(self, format: str, *args: Any) -> None:
        """The server keeps its own record, without URLs' queries."""

    def finish(self) -> None:
        try:
            super().finish()
        finally:  # which the library leaves out where the client has hung up
            self.rfile.close()

    def do_GET(self) -> None:
        """Answer a request of any method."""
        server, (path, _, query) = self.server, self.path.partition("?")
        headers = {name.lower(): value for name, value in self.headers.items()}
        base = f"http://{headers.get('host') or '{}:{}'.format(*server.server_address[:2])}"
        request = Request(self.command, path, query, headers, b"", self.client_address[1], base)
        request.kind, request.file = server.kind_of(path)
        refusal = self._refusal(request)
        faults = server.faults.take(request.kind, path, request.file)
        for fault in faults:
            if fault.call is not None:
                fault.call()
            if fault.delay:
                time.sleep(fault.delay)
        if server.faults.shaped(request.kind) and server.faults.latency:
            time.sleep(server.faults.latency)
        if any(fault.ignore_range for fault in faults):
            headers.pop("range", None)
            headers.pop("x-ms-range", None)
        response = self._answer(request, faults, refusal)
        if refusal is not None or (request.kind in SIGNED and response.status in _UNPROVEN):
            self.close_connection = True
        request.status = response.status
        request.forget_secrets()
        server.requests.append(request)
        try:
            self._send(request, response, faults)
            if refusal is not None:
                self._drain()
        except (_ConnectionEnded, ConnectionError):
            self.close_connection = True
        finally:
            request.ended = time.monotonic()

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

    def _refusal(self, request: Request) -> Refusal | None:
        """Read a request's body; why it is refused, where it has no token or its body is too long."""
        try:
            longest = self.server.admit(request)
            if request.kind != "token":  # which is shown by the body
                self.server.newcomers.leave(self.connection)
            length = self._body_length()
            if length > longest:
                return Refusal(413, "INVALID_PARAMETER_VALUE", f"The request body is longer than {longest} bytes.")
            request.body = self.rfile.read(length)
            if len(request.body) < length:
                raise ConnectionError("the connection ended within a body")
        except Refusal as refusal:
            if refusal.status == 401:
                self.server.newcomers.note("it has no token")
            return refusal
        self.server.newcomers.leave(self.connection)
        return None

    def _drain(self) -> None:
        with contextlib.suppress(Refusal):
            length = self._body_length()
            self.rfile.read(length if length <= _DRAINED else 0)

    def _body_length(self) -> int:
        """Raises Refusal where the length is none."""
        text = self.headers.get("Content-Length", "0").strip()
        if self.headers.get("Transfer-Encoding"):
            raise Refusal(411, "INVALID_PARAMETER_VALUE", "The request body has no Content-Length.")
        if not (text.isascii() and text.isdigit()) or len(text) > _DIGITS:
            raise bad_request("Content-Length is not a number of bytes.")
        return int(text)

    def _answer(self, request: Request, faults: list[Fault], refusal: Refusal | None) -> Response:
        for fault in faults:
            if fault.status is not None:
                return _failed(request.kind, fault)
        try:
            if refusal is not None:
                raise refusal
            return self.server.answer(request)
        except Refusal as refusal:
            return refusal.response()
        except Exception as error:  # a bug here must reach the test as a 500, not end the connection
            _log.exception("%s %s failed", request.method, request.path)
            self.server.failures.append(repr(error))
            return Refusal(500, "INTERNAL_ERROR", "").response()

    def _send(self, request: Request, response: Response, faults: list[Fault]) -> None:
        response, limit, reset = _spoilt(response, faults)
        if reset and limit is None:
            self._reset()
            raise _ConnectionEnded
        headers = {"Content-Type": response.content_type, "Content-Length": str(response.length), **response.headers}
        if self.close_connection:
            headers["Connection"] = "close"
        for fault in faults:
            for name, value in fault.headers.items():
                headers = {k: v for k, v in headers.items() if k.lower() != name.lower()}
                if value is not None:
                    headers[name] = value
        self.send_response_only(response.status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD" or response.status == 204:
            return
        request.bytes = response.length if limit is None else limit
        stalled = next((fault for fault in faults if fault.stall), None)
        if stalled is not None:
            body = _bytes(response.body)[: request.bytes]
            self.wfile.write(body[: stalled.stall_at])
            self.wfile.flush()
            time.sleep(stalled.stall)
            self.wfile.write(body[stalled.stall_at :])
        else:
            self._send_body(request, response.body, request.bytes)
        self.wfile.flush()
        if limit is not None:
            if reset:
                self._reset()
            raise _ConnectionEnded

    def _send_body(self, request: Request, body: bytes | FileBody, length: int) -> None:
        """Send a body, that of a large file by the kernel; what a client that hangs up did not take is not counted."""
        shaping = self.server.faults
        bandwidth = shaping.bandwidth if shaping.shaped(request.kind) else None
        if bandwidth is None and (isinstance(body, bytes) or length <= _JOINED):
            self.wfile.write(memoryview(_bytes(body))[:length])
            return
        self.wfile.flush()
        start, begun = 0 if isinstance(body, bytes) else body.start, time.monotonic()
        step = length if bandwidth is None else _PACED
        with io.BytesIO(body) if isinstance(body, bytes) else open(body.path, "rb") as file:
            file.seek(start)
            try:
                for place in range(start, start + length, step):
                    count = min(step, start + length - place)
                    if self.connection.sendfile(file, place, count) < count:
                        raise _ConnectionEnded  # the file is shorter than it was
                    if bandwidth is not None:
                        due = begun + (place + count - start) / bandwidth
                        time.sleep(max(0.0, due - time.monotonic()))
            finally:
                request.bytes = file.tell() - start

    def _reset(self) -> None:
        """End the connection with RST instead of FIN."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        socket.close(self.connection.detach())
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
