"""A sharing server whose tables also lie in buckets: local directories behind a small S3, on the same sockets.

Objects are sent by the code that serves data URLs, so that ranges, ETags and every fault are the same in both modes.
The access key of a request decides whether it is answered; signatures are not checked.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape

from delta_sharing_spark.testing.data_files import serve_file, storage_error
from delta_sharing_spark.testing.responses import Response
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.settings import SharedTable

_ACCESS_KEY = re.compile(r"Credential=([^/]+)/")


class BucketServer(SharingServer):
    """A :class:`SharingServer` with buckets; arguments as there. Requests for objects are of kind ``data`` or ``log``.

    Attributes:
        issued: The credentials given out so far (``awsTempCredentials``), the newest last.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.vendors["s3"] = self._vend
        self.issued: list[dict[str, str]] = []
        self._accepted: set[str] = set()
        self._buckets: dict[str, Path] = {}

    def add_bucket_table(
        self, name: str, path: str | os.PathLike[str], modes: tuple[str, ...] = ("dir",), **fields: Any
    ) -> SharedTable:
        """Share the table at ``path`` in a bucket of its own, named like the table; ``fields`` are those of ``add_table``."""
        bucket = name.replace(".", "-")
        self._buckets[bucket] = Path(path)
        return self.add_table(name, path, access_modes=modes, location=f"s3://{bucket}", **fields)

    @property
    def storage_endpoint(self) -> str:
        """Where the buckets are, for the option ``storageEndpoint``."""
        return f"http://{self.address}"

    def expire_credentials(self) -> None:
        """Every credential given out so far stops working now, whatever expiry was announced."""
        self._accepted.clear()

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
        key = _ACCESS_KEY.search(headers.get("authorization", ""))
        if key is None or key[1] not in self._accepted:
            return storage_error(400, "ExpiredToken", "The provided token has expired.")
        if "list-type" in query:
            return _listed(found, parse_qs(query))
        return serve_file(str(found), headers)

    def _object(self, path: str) -> Path | None:
        bucket, _, key = unquote(path).lstrip("/").partition("/")
        root = self._buckets.get(bucket)
        return None if root is None else root / key

    def _vend(self, location: str, table: SharedTable) -> dict[str, Any]:
        keys = {
            "accessKeyId": f"AKID{secrets.token_hex(8).upper()}",
            "secretAccessKey": secrets.token_hex(20),
            "sessionToken": secrets.token_hex(60),
        }
        self.issued.append(keys)
        self._accepted.add(keys["accessKeyId"])
        return {"awsTempCredentials": keys, "expirationTime": int((time.time() + self.settings.credential_ttl) * 1000)}


def _listed(root: Path, query: Mapping[str, list[str]]) -> Response:
    """ListObjectsV2 of what lies right under a prefix; one page."""
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
