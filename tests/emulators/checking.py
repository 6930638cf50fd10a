"""A proxy before an emulator that checks what the emulator does not: token, expiry, prefix, read-only, listing."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token may do: read objects under ``prefix`` (``bucket/key``) until ``expires``, and list them or not."""

    secret: str
    prefix: str
    expires: float
    listing: bool

    def covers(self, path: str) -> bool:
        return path == self.prefix or path.startswith(self.prefix + "/")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as the checks see it. ``query`` holds first values."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]


@dataclass
class CheckingProxy:
    """``check`` gives None to let a request pass, or the status and body of a refusal."""

    backend_port: int
    check: Callable[[Asked, dict[str, Grant]], tuple[int, str, str] | None]
    grants: dict[str, Grant] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    passed: int = 0
    url: str = ""

    def vend(self, name: str, secret: str, prefix: str, lifetime: float, listing: bool) -> None:
        self.grants[name] = Grant(secret, prefix.rstrip("/"), time.time() + lifetime, listing)

    def expire_all(self) -> None:
        """From now on, every token that was given out is late, whatever its announced expiry says."""
        self.grants.clear()


_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "date", "server"}


@contextmanager
def proxying(proxy: CheckingProxy) -> Iterator[CheckingProxy]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
            asked = Asked(self.command, unquote(parts.path), query, {k.lower(): v for k, v in self.headers.items()})
            refusal = proxy.check(asked, proxy.grants)
            if refusal is not None:
                status, content_type, body = refusal
                proxy.refused.append(f"{self.command} {asked.path}")
                self._answer(status, [("Content-Type", content_type)], body.encode())
                return
            proxy.passed += 1
            self._forward()

        do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

        def _forward(self) -> None:
            backend = http.client.HTTPConnection("127.0.0.1", proxy.backend_port, timeout=60)
            try:
                headers = {k: v for k, v in self.headers.items() if k.lower() != "connection"}
                backend.request(self.command, self.path, headers=headers)
                answer = backend.getresponse()
                body = answer.read()
                kept = [(k, v) for k, v in answer.getheaders() if k.lower() not in _HOP]
                length = answer.getheader("content-length") if self.command == "HEAD" else None
                self._answer(answer.status, kept, body, length)
            finally:
                backend.close()

        def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes, length: str | None = None) -> None:
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", length or str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

    httpd = Quiet(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    proxy.url = f"http://127.0.0.1:{httpd.server_address[1]}"
    try:
        yield proxy
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()
