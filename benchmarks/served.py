"""Tables served by a process of its own: by data URLs, and from a stand-in for S3 whose buckets are local directories.

Both go through the same code, files by the kernel, so that clients can be compared. Signatures are not checked.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape

from delta_sharing_spark.testing.data_files import serve_file
from delta_sharing_spark.testing.responses import Response
from delta_sharing_spark.testing.server import SharingServer


class S3SharingServer(SharingServer):
    """A sharing server whose tables lie at ``s3://<bucket>``, each a local directory."""

    def __init__(self) -> None:
        super().__init__()
        self.vendors["s3"] = _credentials
        self._buckets: dict[str, Path] = {}

    def add_bucket_table(self, name: str, path: Path, **fields: Any) -> None:
        """Share ``path`` by url and by directory, at ``s3://<its name, made a bucket>``."""
        bucket = name.replace(".", "-")
        self._buckets[bucket] = path
        self.add_table(name, path, access_modes=("url", "dir"), location=f"s3://{bucket}", **fields)

    def kind_of(self, path: str) -> tuple[str, str]:
        found = self._object(path)
        if found is None:
            return super().kind_of(path)
        return "log" if found.parent.name == "_delta_log" or not found.suffix else "data", str(found)

    def answer(
        self, kind: str, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes, base: str
    ) -> Response:
        found = self._object(path)
        if found is None:
            return super().answer(kind, method, path, query, headers, body, base)
        if "list-type" in query:
            return _listed(found, parse_qs(query))
        return serve_file(str(found), headers)

    def _object(self, path: str) -> Path | None:
        bucket, _, key = unquote(path).lstrip("/").partition("/")
        root = self._buckets.get(bucket)
        return None if root is None else root / key


def _credentials(location: str, table: object) -> dict[str, Any]:
    keys = {"accessKeyId": "AKIDBENCH", "secretAccessKey": "secret", "sessionToken": "session"}
    return {"awsTempCredentials": keys, "expirationTime": int((time.time() + 3600) * 1000)}


def _listed(root: Path, query: Mapping[str, list[str]]) -> Response:
    prefix, after = query.get("prefix", [""])[0], query.get("start-after", [""])[0]
    directory, _, start = prefix.rpartition("/")
    items = []
    for entry in sorted(os.scandir(root / directory), key=lambda e: e.name):
        key = f"{directory}/{entry.name}" if directory else entry.name
        if entry.is_file() and entry.name.startswith(start) and key > after:
            items.append(
                f"<Contents><Key>{escape(key)}</Key><Size>{entry.stat().st_size}</Size>"
                f"<LastModified>2026-11-21T00:00:00.000Z</LastModified></Contents>"
            )
    body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(items)}</ListBucketResult>"
    return Response(200, body.encode(), {}, "application/xml")


class Served:
    """The server's process, with tables ``bench.file.<name>`` and, at ``s3://``, ``bench.s3.<name>``."""

    def __init__(self, tables: dict[str, Path]) -> None:
        named = [f"{name}={path}" for name, path in tables.items()]
        self._process = subprocess.Popen(
            [sys.executable, __file__, *named], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.profile = self._answer()

    def served(self) -> dict[str, list[int]]:
        """Requests and bytes by kind since the last call."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return dict(json.loads(self._answer()))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def main(tables: list[str]) -> None:
    """Tell on standard output where tables are served, and, for each line read, what was since the last."""
    with S3SharingServer() as server:
        for text in tables:
            name, _, path = text.partition("=")
            server.add_table(f"bench.file.{name}", path, access_modes=("url", "dir"))
            server.add_bucket_table(f"bench.s3.{name}", Path(path))
        print(json.dumps(server.profile()), flush=True)
        for _ in sys.stdin:
            kinds = {request.kind for request in list(server.requests)}
            counts = {kind: [server.count(kind), server.bytes_sent(kind)] for kind in kinds}
            server.reset_metrics()
            print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
