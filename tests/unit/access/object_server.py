"""A small S3 over real HTTP: path style, GET with ranges, HEAD, ListObjectsV2; it knows which access keys it accepts."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


@dataclass
class Seen:
    method: str
    path: str
    headers: dict[str, str]


@dataclass
class ObjectServer:
    """``files`` maps ``bucket/key`` to bytes. ``listing=False`` plays a policy of GetObject alone.

    Requests with ``hangs`` in their path or query are never answered.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    accepted: set[str] | None = None
    refused_prefixes: tuple[str, ...] = ()
    listing: bool = True
    failures: list[int] = field(default_factory=list)
    hangs: str | None = None
    ended: threading.Event = field(default_factory=threading.Event)
    seen: list[Seen] = field(default_factory=list)
    url: str = ""

    def answer(self, request: Seen) -> tuple[int, dict[str, str], bytes]:
        parts = urlsplit(request.path)
        path, query = unquote(parts.path).lstrip("/"), parse_qs(parts.query)
        if self.failures:
            return _error(self.failures.pop(0), "InternalError")
        key = re.search(r"Credential=([^/]+)/", request.headers.get("authorization", ""))
        if self.accepted is not None and (key is None or key[1] not in self.accepted):
            return _error(400, "ExpiredToken")
        if "list-type" in query:
            return self._list(path.strip("/"), query) if self.listing else _error(403, "AccessDenied")
        if path.startswith(self.refused_prefixes) and self.refused_prefixes:
            return _error(403, "AccessDenied")
        if path not in self.files:
            return _error(404, "NoSuchKey") if self.listing else _error(403, "AccessDenied")
        data, headers, status = self.files[path], {"Last-Modified": "Sat, 21 Nov 2026 00:00:00 GMT"}, 200
        if match := re.fullmatch(r"bytes=(\d+)-(\d+)?", request.headers.get("range", "")):
            start, end = int(match[1]), min(int(match[2] or len(data)) + 1, len(data))
            if start >= len(data):
                return _error(416, "InvalidRange")
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
            data, status = data[start:end], 206
        return status, headers, data

    def _list(self, bucket: str, query: dict[str, list[str]]) -> tuple[int, dict[str, str], bytes]:
        prefix, after = query.get("prefix", [""])[0], query.get("start-after", [""])[0]
        keys = sorted(k.removeprefix(bucket + "/") for k in self.files if k.startswith(f"{bucket}/{prefix}"))
        items = "".join(
            f"<Contents><Key>{escape(k)}</Key><Size>{len(self.files[f'{bucket}/{k}'])}</Size>"
            f"<LastModified>2026-11-21T00:00:00.000Z</LastModified></Contents>"
            for k in keys
            if k > after and "/" not in k[len(prefix) :]
        )
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{items}</ListBucketResult>"
        return 200, {"Content-Type": "application/xml"}, body.encode()


def _error(status: int, code: str) -> tuple[int, dict[str, str], bytes]:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code} sig=secret-in-text</Message></Error>"
    return status, {"Content-Type": "application/xml"}, body.encode()


@contextmanager
def serving(server: ObjectServer) -> Iterator[ObjectServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            request = Seen(self.command, self.path, {k.lower(): v for k, v in self.headers.items()})
            server.seen.append(request)
            if server.hangs is not None and server.hangs in self.path:
                self.close_connection = server.ended.wait()
                return
            status, headers, body = server.answer(request)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_POST = do_PUT = do_GET

        def log_message(self, *args: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

    httpd = Quiet(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{httpd.server_address[1]}"
    try:
        yield server
    finally:
        server.ended.set()
        httpd.shutdown()
        httpd.server_close()
        thread.join()
