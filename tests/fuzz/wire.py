"""The surface of HTTP itself: status lines, headers, encodings, redirects and lengths of answers that are otherwise right."""

from __future__ import annotations

import gzip
import random
import socketserver
import threading
import zlib
from functools import cached_property
from typing import Any

from delta_sharing_spark.client import SharingClient
from fuzz import mutations
from fuzz.replay import Replay
from fuzz.surface import Case, Surface
from fuzz.tables import Rows, rows_of, table

NAME = "share.default.t"
_QUICK = {"connectTimeout": "2s", "readTimeout": "2s", "retryTimeout": "1s"}
_LOCATIONS = [
    b"http://[", b"\xff", b"http://127.0.0.1:99999/", b"", b"//", b"?", b"file:///etc/passwd", b"http://169.254.169.254/",
    b"https://[::1]:1/x", b"/delta-sharing/shares", b"\r\n x", b"http://127.0.0.1:1/", b"javascript:1", b"http://\xc3\xa9.invalid/",
]  # fmt: skip
_NAMES = [
    b"Content-Length", b"Content-Encoding", b"Transfer-Encoding", b"Content-Type", b"Delta-Table-Version", b"Retry-After",
    b"delta-sharing-capabilities", b"ETag", b"Content-Range", b"Connection", b"FileIdHash", b"Date", b"Set-Cookie",
]  # fmt: skip


class Wire(Surface):
    """One answer of a read is damaged below its content."""

    name = "wire"

    @cached_property
    def _replay(self) -> Replay:
        replay = Replay(NAME, table().path)
        self._read(str(replay.profile["endpoint"]), replay)
        return replay

    @cached_property
    def _server(self) -> socketserver.ThreadingTCPServer:
        wire, self.damage = self, {}  # type: dict[str, bytes]

        class Handler(socketserver.StreamRequestHandler):
            timeout = 5

            def handle(self) -> None:
                line = self.rfile.readline().split(b" ")
                length = 0
                while (header := self.rfile.readline().strip()) != b"":
                    if header.lower().startswith(b"content-length:"):
                        length = int(header.partition(b":")[2])
                self.rfile.read(length)
                if len(line) < 2:
                    return
                place = f"{line[0].decode()} {line[1].decode().partition('?')[0]}"
                content = wire._replay.answers.get(place)
                if place in wire.damage:
                    self.wfile.write(wire.damage[place])
                elif content is not None:
                    self.wfile.write(_answer(content))

        server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def _read(self, endpoint: str, replay: Replay) -> Rows:
        client = SharingClient({**replay.profile, "endpoint": endpoint}, **_QUICK)
        return rows_of(client.table(NAME).scan().to_arrow().to_batches())

    @cached_property
    def _endpoint(self) -> str:
        known = str(self._replay.profile["endpoint"])
        return known.replace(known.split("/")[2], f"127.0.0.1:{self._server.server_address[1]}", 1)

    @cached_property
    def _rows(self) -> Rows:
        return self._read(self._endpoint, self._replay)

    def draw(self, draw: random.Random) -> Case:
        _ = self._rows
        place = draw.choice(sorted(self._replay.answers))
        damaged = _damaged(self._replay.answers[place], draw)

        def case() -> tuple[Rows, bool]:
            self.damage = {place: damaged}
            try:
                return self._read(self._endpoint, self._replay), True
            finally:
                self.damage = {}

        return case

    def expected(self) -> Rows:
        return self._rows

    def close(self) -> None:
        """Stop what was started."""
        self._server.shutdown()
        self._server.server_close()
        self._replay.close()


def _answer(
    content: bytes, status: bytes = b"200 OK", more: tuple[tuple[bytes, bytes], ...] = (), length: bool = True
) -> bytes:
    headers = [(b"Delta-Table-Version", b"3"), (b"Content-Type", b"application/x-ndjson"), (b"Connection", b"close")]
    headers = [(name, value) for name, value in headers if name not in dict(more)] + list(more)
    if length and b"Content-Length" not in dict(more):
        headers.append((b"Content-Length", str(len(content)).encode()))
    head = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return b"HTTP/1.1 " + status + b"\r\n" + head + b"\r\n" + content


def _damaged(content: bytes, draw: random.Random) -> bytes:
    kind = draw.randrange(9)
    if kind == 0:
        status = draw.choice([b"201", b"204 x", b"206 x", b"304 x", b"400 x", b"401 x", b"403 x", b"404 x", b"418 x", b"500 x", b"503 x", b"600 x", b"999 x", b"-1 x", b"x", b""])  # fmt: skip
        return _answer(draw.choice([content, b"", b"[" * 9000, b'{"errorCode":5,"message":[]}', b"\xff"]), status)
    if kind == 1:
        status = draw.choice([b"301 x", b"302 x", b"303 x", b"307 x", b"308 x"])
        return _answer(b"", status, ((b"Location", draw.choice(_LOCATIONS)),) if draw.random() < 0.9 else ())
    if kind == 2:
        packed: Any = draw.choice(
            [gzip.compress(content), zlib.compress(content), content, gzip.compress(content)[:-9]]
        )
        if draw.random() < 0.5:
            packed, _ = mutations.byte(packed, draw)
        coding = draw.choice([b"gzip", b"deflate", b"br", b"gzip, gzip", b"identity", b"x-gzip", b"zstd", b"\xff"])
        return _answer(packed, more=((b"Content-Encoding", coding),))
    if kind == 3:
        length = draw.choice(
            [b"0", b"1", b"-1", b"9" * 5000, "²".encode(), b"1e3", b"x", b"", str(len(content) + 5).encode()]
        )
        return _answer(content, more=((b"Content-Length", length),))
    if kind == 4:
        chunks = draw.choice([b"5\r\n" + content, b"ffffffffffffffff\r\n" + content, b"-1\r\n", b"x\r\n", b"%x\r\n%s\r\n0\r\n\r\n" % (len(content), content)])  # fmt: skip
        return _answer(chunks, more=((b"Transfer-Encoding", b"chunked"),), length=False)
    if kind == 5:
        hostile = draw.choice(
            [b"", b"x", b"-1", b"9" * 400, b"\x00", b"\xff\xfe", b"a" * 70_000, b"1e999", b"null", b"Thu, 99 Foo 2026"]
        )
        return _answer(content, more=((draw.choice(_NAMES[3:]), hostile),))
    if kind == 6:
        return _answer(content, more=tuple((b"X-%d" % n, b"y") for n in range(draw.choice([90, 101, 500]))))
    whole = _answer(content)
    if kind == 7:
        return mutations.byte(whole[: whole.index(b"\r\n\r\n") + 4], draw)[0] + content
    return whole[: draw.randrange(len(whole))]
