"""A fourth cloud, whole: what a newcomer writes for one, and a small server that speaks its protocol.

Its secret is one word, which a header shows. A listing is lines of size, time and key, three a page.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

from delta_sharing_spark.storage.clouds import contract
from delta_sharing_spark.storage.locations import Location, StoredObject
from delta_sharing_spark.storage.range_reader import StorageSettings

_PAGE = 3


class Toy(contract.Cloud):
    parts = ("word",)
    ended_codes = frozenset({"WordForgotten"})

    def __init__(self, secret: contract.Secret, settings: StorageSettings) -> None:
        self._word, self._endpoint = secret.parts["word"], settings.endpoint or "https://toys.example"

    def object_url(self, location: Location) -> str:
        return f"{self._endpoint}/{location.container}/{quote(location.key)}"

    def list_url(self, location: Location, prefix: str, start: str, token: str | None, *, deep: bool = False) -> str:
        query = {"prefix": prefix, "after": token or "", **contract.delimiter(deep)}
        return f"{self._endpoint}/{location.container}/?{contract.query_text(query)}"

    def page(self, body: bytes) -> tuple[list[StoredObject], str | None]:
        lines = [line.split("\t") for line in body.decode().splitlines()]
        entries = [contract.entry(key, size, time) for size, time, key in lines]
        return entries, entries[-1].name if len(entries) == _PAGE else None

    def headers(self, method: str, url: str) -> dict[str, str]:
        return {"X-Word": self._word}


class ToyServer(ThreadingHTTPServer):
    """Serves a directory as the bucket ``box`` to those who know a word of ``words``."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root, self.words = root, set[str]()
        self.asked: list[tuple[str, str, int]] = []
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        super().__exit__(*error)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ToyServer

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        path = self.server.root / unquote(parts.path).removeprefix("/box/")
        if self.headers.get("X-Word") not in self.server.words:
            self._answer(403, b"<Error><Code>WordForgotten</Code></Error>")
        elif parts.query:
            self._answer(200, self._listed(parse_qs(parts.query, keep_blank_values=True)))
        elif not path.is_file():
            self._answer(404, b"")
        else:
            data, asked = path.read_bytes(), self.headers.get("Range", "")
            first, _, last = asked.removeprefix("bytes=").partition("-")
            end = int(last) + 1 if asked else len(data)
            headers = {"Last-Modified": formatdate(path.stat().st_mtime, usegmt=True)}
            if asked:
                headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(data)}"
            self._answer(206 if asked else 200, data[int(first or 0) : end], headers)

    do_HEAD = do_GET

    def _listed(self, query: Mapping[str, list[str]]) -> bytes:
        prefix, after = query["prefix"][0], query["after"][0]
        files = {path.relative_to(self.server.root).as_posix(): path for path in self.server.root.rglob("*")}
        keys = sorted(key for key, path in files.items() if path.is_file() and key.startswith(prefix) and key > after)
        if "delimiter" in query:
            keys = [key for key in keys if "/" not in key[len(prefix) :]]
        stats = [(files[key].stat(), key) for key in keys[:_PAGE]]
        return "".join(f"{s.st_size}\t{formatdate(s.st_mtime, usegmt=True)}\t{key}\n" for s, key in stats).encode()

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str] = {}) -> None:
        self.server.asked.append((self.command, self.path, status))
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...
