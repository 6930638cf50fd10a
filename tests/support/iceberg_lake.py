"""Serves the stored Iceberg tables as a provider does: a catalog that vends keys, and a bucket ``lake`` that asks for them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote

from delta_sharing_spark.testing.server import SharingServer

STORED = Path(__file__).parents[1] / "data" / "iceberg"


class Lake(ThreadingHTTPServer):
    """A bucket below a directory. It counts requests, and refuses keys that have ended.

    Attributes:
        requests: The keys that were asked for, in order.
        ends: Before this many more requests, the keys that are valid end; None: they stay.
        generation: Of the keys that are valid now.
    """

    daemon_threads = True

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.requests: list[str] = []
        self.ends: int | None = None
        self.generation = 0
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def config(self) -> dict[str, str]:
        return {
            "s3.access-key-id": f"KEY{self.generation}",
            "s3.secret-access-key": "lake-secret",
            "s3.session-token": "session",
            "s3.endpoint": f"http://127.0.0.1:{self.server_address[1]}",
            "client.region": "eu-central-1",
        }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Lake

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged."""

    def do_GET(self) -> None:
        lake, key = self.server, unquote(self.path.partition("?")[0]).removeprefix("/lake/")
        lake.requests.append(key)
        if lake.ends is not None:
            lake.ends -= 1
            if lake.ends < 0:
                lake.ends, lake.generation = None, lake.generation + 1
        if f"Credential=KEY{lake.generation}/" not in self.headers.get("Authorization", ""):
            return self._answer(403, b"<Error><Code>ExpiredToken</Code></Error>")
        file = lake.directory / key
        if not file.is_file():
            return self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        data = file.read_bytes()
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked is None:
            return self._answer(200, data)
        start, end = int(asked[1]), int(asked[2]) + 1
        self._answer(206, data[start:end], {"Content-Range": f"bytes {start}-{min(end, len(data)) - 1}/{len(data)}"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "ETag": '"e"', **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def newest_metadata(table: Path) -> Path:
    """The newest metadata document of a table that a catalog of directories wrote."""
    numbered = {int(re.sub(r"\D", "", file.name)): file for file in (table / "metadata").glob("v*.metadata.json")}
    return numbered[max(numbered)]


@contextmanager
def served_lake(directory: Path = STORED / "lake") -> Iterator[tuple[SharingServer, Lake]]:
    """The stored tables, as ``s.db.<name>`` of a sharing server whose share is an Iceberg catalog alone."""
    lake = Lake(directory)
    Thread(target=lake.serve_forever, args=(0.05,), daemon=True).start()
    server = SharingServer()
    for table in sorted(directory.glob("db/*/metadata")):
        document = newest_metadata(table.parent)
        location = f"s3://lake/{document.relative_to(directory).as_posix()}"
        shared = server.iceberg.add(f"s.db.{table.parent.name}", document, location)
        shared.config = _Vended(lake)
        if table.parent.name == "imported":  # its files lie where they were imported from
            shared.storage_credentials = [{"prefix": "s3://lake", "config": shared.config}]
        server.add_table(f"s.db.{table.parent.name}", table.parent, format="iceberg", access_modes=("dir",))
    try:
        with server:
            yield server, lake
    finally:
        lake.shutdown()
        lake.server_close()


class _Vended(Mapping[str, str]):
    """The lake's keys that are valid when they are looked at."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def __getitem__(self, name: str) -> str:
        return self._lake.config[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._lake.config)

    def __len__(self) -> int:
        return len(self._lake.config)
