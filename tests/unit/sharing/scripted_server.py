"""A tiny HTTP server that answers what a test tells it to: for what the embedded sharing server never does."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.sharing.rest import SharingRest

NAME = TableName("sh", "sch", "t")
TOKEN = "dapi-S3cretT0ken-0123456789"
#: Makes clients of a server.
Rest = Callable[..., SharingRest]
SCHEMA_STRING = '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}'
PROTOCOL = {"protocol": {"minReaderVersion": 1}}
METADATA = {
    "metaData": {"id": "T", "format": {"provider": "parquet"}, "schemaString": SCHEMA_STRING, "partitionColumns": []}
}
DELTA_PROTOCOL = {
    "protocol": {"deltaProtocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"]}}
}
DELTA_METADATA = {"metaData": {"size": 7, "numFiles": 1, "deltaMetadata": METADATA["metaData"]}}
HEAD = [PROTOCOL, METADATA]


def file_line(name: str, **more: Any) -> dict[str, Any]:
    """A ``file`` line of the parquet format."""
    return {"file": {"url": f"https://store/{name}?sig=s3cret", "id": name, "size": 10, "partitionValues": {}, **more}}


def end_line(**fields: Any) -> dict[str, Any]:
    return {"endStreamAction": fields}


def ndjson(lines: Iterable[Any]) -> bytes:
    return b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)


@dataclass
class Asked:
    """A request as it came; ``has_certificate`` says whether the client showed one."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    has_certificate: bool = False

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def form(self) -> dict[str, str]:
        return {k: v[0] for k, v in parse_qs(self.body.decode()).items()}


@dataclass
class Reply:
    """An answer: ``body`` as bytes, text, an object (JSON) or a list of lines (NDJSON).

    Attributes:
        cut: Bytes of the body that are announced and not sent.
        chunked: With chunks instead of a Content-Length; with ``cut``, without the last chunk.
        closes: End the body with the connection, as HTTP/1.0 does, instead of telling its length.
        reset: Close the connection with a TCP reset before the answer.
    """

    body: Any = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut: int = 0
    chunked: bool = False
    closes: bool = False
    reset: bool = False

    @property
    def bytes(self) -> bytes:
        if isinstance(self.body, bytes):
            return self.body
        if isinstance(self.body, str):
            return self.body.encode()
        return ndjson(self.body) if isinstance(self.body, list) else json.dumps(self.body).encode()


#: The answer to a question for ``NAME``'s version.
OK = Reply(headers={"Delta-Table-Version": "7"})


def refusal(status: int, code: str = "CODE", message: str = "what the server says", **headers: str) -> Reply:
    return Reply({"errorCode": code, "message": message}, status, {k.replace("_", "-"): v for k, v in headers.items()})


class ScriptedServer:
    """Answers by the end of the path: each call of :meth:`on` sets the replies, one by one, the last one for good."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.asked: list[Asked] = []
        self._scripts: list[tuple[str, list[Reply] | Callable[[Asked], Reply]]] = []
        self._lock = threading.Lock()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1

            def log_message(self, *_: Any) -> None:
                pass

            def _serve(self) -> None:
                owner._serve(self)

            do_GET = do_POST = do_HEAD = do_CONNECT = _serve

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                pass  # clients that hang up are part of the tests

        self._server = Server(("127.0.0.1", 0), Handler)
        self.scheme = "http"
        if context is not None:
            self.scheme = "https"
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def endpoint(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/prefix"

    def on(self, end: str, *replies: Reply | Callable[[Asked], Reply]) -> None:
        """What to answer for paths that end so; a later call goes before an earlier one."""
        script = list(replies) if isinstance(replies[0], Reply) else replies[0]
        self._scripts.insert(0, (end, script))  # type: ignore[arg-type]

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _reply(self, asked: Asked) -> Reply:
        with self._lock:
            self.asked.append(asked)
            for end, script in self._scripts:
                if asked.path.endswith(end):
                    if callable(script):
                        return script(asked)
                    return script.pop(0) if len(script) > 1 else script[0]
        return refusal(404, "NOT_SCRIPTED", f"no script for {asked.path}")

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("content-length") or 0)
        parts = urlsplit(handler.path)
        asked = Asked(
            handler.command,
            parts.path if not handler.path.startswith("http") else handler.path,
            {k: v[0] for k, v in parse_qs(parts.query, keep_blank_values=True).items()},
            {k.lower(): v for k, v in handler.headers.items()},
            handler.rfile.read(length) if length else b"",
            isinstance(handler.connection, ssl.SSLSocket) and handler.connection.getpeercert() is not None,
        )
        reply = self._reply(asked)
        if reply.reset:
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            handler.connection.close()
            handler.close_connection = True
            return
        body = reply.bytes
        handler.send_response(reply.status)
        for name, value in reply.headers.items():
            handler.send_header(name, value)
        sent = body[: len(body) - reply.cut] if reply.cut else body
        if handler.command == "HEAD":
            sent = b""
        if reply.chunked:
            handler.send_header("Transfer-Encoding", "chunked")
            sent = b"%x\r\n%s\r\n" % (len(sent), sent) + (b"" if reply.cut else b"0\r\n\r\n")
        elif not reply.closes:
            handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(sent)
        handler.wfile.flush()
        handler.close_connection = handler.close_connection or bool(reply.cut) or reply.closes


class Clock:
    """Time that passes by sleeping only."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds
