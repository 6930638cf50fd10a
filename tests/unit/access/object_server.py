"""A small S3 over real HTTP: path style, GET with ranges, HEAD, ListObjectsV2; it knows which access keys it accepts."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from unit.access.loopback import Answer, Request, answering


@dataclass
class ObjectServer:
    """``files`` maps ``bucket/key`` to bytes. ``listing=False`` plays a policy of GetObject alone.

    Requests with ``hangs`` in their path or query are never answered. ``failures`` are the statuses of the next answers,
    or a status with the seconds of its Retry-After.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    accepted: set[str] | None = None
    refused_prefixes: tuple[str, ...] = ()
    listing: bool = True
    failures: list[int | tuple[int, int]] = field(default_factory=list)
    hangs: str | None = None
    ended: threading.Event = field(default_factory=threading.Event)
    seen: list[Request] = field(default_factory=list)
    url: str = ""

    def answer(self, request: Request) -> Answer:
        parts = urlsplit(request.path)
        path, query = unquote(parts.path).lstrip("/"), parse_qs(parts.query)
        if self.failures:
            failure = self.failures.pop(0)
            status, seconds = failure if isinstance(failure, tuple) else (failure, None)
            return _error(status, "InternalError", seconds)
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

    def _list(self, bucket: str, query: dict[str, list[str]]) -> Answer:
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


def _error(status: int, code: str, retry_after: int | None = None) -> Answer:
    headers = {"Content-Type": "application/xml"} | ({} if retry_after is None else {"Retry-After": str(retry_after)})
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code} sig=secret-in-text</Message></Error>"
    return status, headers, body.encode()


@contextmanager
def serving(server: ObjectServer) -> Iterator[ObjectServer]:
    def answer(request: Request) -> Answer | None:
        server.seen.append(request)
        if server.hangs is not None and server.hangs in request.path:
            server.ended.wait()
            return None
        return server.answer(request)

    with answering(answer) as server.url:
        try:
            yield server
        finally:
            server.ended.set()
