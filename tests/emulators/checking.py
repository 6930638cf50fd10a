"""A proxy before an emulator that checks what the emulator does not: token, expiry, prefix, read-only, listing."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qs, unquote, urlsplit

from support import HANGS
from unit.access.loopback import Answer, Request, answering


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
    """``check`` gives None to let a request pass, or the status, content type and body of a refusal.

    ``rewrite`` turns the path and query of a request that passes into what the emulator takes.
    """

    backend_port: int
    check: Callable[[Asked, dict[str, Grant]], tuple[int, str, str] | None]
    rewrite: Callable[[str], str] = str
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
    def answer(request: Request) -> Answer:
        parts = urlsplit(request.path)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        asked = Asked(request.method, unquote(parts.path), query, request.headers)
        refusal = proxy.check(asked, proxy.grants)
        if refusal is not None:
            status, content_type, body = refusal
            proxy.refused.append(f"{asked.method} {asked.path}")
            return status, {"Content-Type": content_type}, body.encode()
        proxy.passed += 1
        return _forwarded(replace(request, path=proxy.rewrite(request.path)), proxy.backend_port)

    with answering(answer) as proxy.url:
        yield proxy


def _forwarded(request: Request, port: int) -> Answer:
    backend = http.client.HTTPConnection("127.0.0.1", port, timeout=HANGS)
    try:
        headers = {name: value for name, value in request.headers.items() if name != "connection"}
        backend.request(request.method, request.path, headers=headers)
        answer = backend.getresponse()
        body = answer.read()
        kept = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP}
        length = answer.getheader("content-length")
        if request.method == "HEAD" and length is not None:
            kept["Content-Length"] = length
        return answer.status, kept, body
    finally:
        backend.close()
