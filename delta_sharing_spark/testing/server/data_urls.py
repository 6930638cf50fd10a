"""Data URLs and opaque tokens: signed, expiring; files by range, without authentication."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qs

from delta_sharing_spark.testing.server.responses import FileBody, Request, Response, bad_request
from delta_sharing_spark.testing.server.settings import ServerSettings

#: The Rust kernel takes a URL for presigned by a parameter of this name.
_SIGNATURE = "&X-Amz-Signature="


class Signer:
    """Signs with a key of this server.

    Paths are remembered as long as the server lives: one entry for each file it ever shared.

    Args:
        key: Secret.
        settings: Of the server.
    """

    def __init__(self, key: bytes, settings: ServerSettings) -> None:
        self._key, self._settings = key, settings
        self._paths: dict[str, str] = {}
        self._names: dict[str, str] = {}
        #: URLs of earlier generations have expired, whatever they say.
        self.generation = 0

    def sign(self, text: str) -> str:
        return hmac.digest(self._key, text.encode(), "sha256").hex()

    def terms(self, expires_ms: int) -> str:
        """The query of URLs that work until ``expires_ms``, still without signature; made once for an answer."""
        query = f"exp={expires_ms}&gen={self.generation}&iat={time.time_ns()}"
        if self._settings.url_style == "s3":
            now = datetime.now(timezone.utc)
            life = max(0, int(expires_ms / 1000 - now.timestamp()))
            query += f"&X-Amz-Date={now:%Y%m%dT%H%M%SZ}&X-Amz-Expires={life}"
        elif self._settings.url_style == "azure":
            query += f"&se={datetime.fromtimestamp(expires_ms / 1000, timezone.utc):%Y-%m-%dT%H%%3A%M%%3A%SZ}"
        return query

    def url(self, base: str, terms: str, path: str) -> str:
        """A URL of a local file under these terms."""
        opaque = self._names.get(path)
        if opaque is None:
            opaque = self._names[path] = self.sign(path)[:32]
            self._paths[opaque] = path
        return f"{base}/data/{opaque}?{terms}{_SIGNATURE}{self.sign(opaque + terms)}"

    def path_of(self, opaque: str, query: str) -> tuple[str, bool] | None:
        """The local file of a URL and whether it has expired; None if the URL is not ours."""
        terms, _, signature = query.partition(_SIGNATURE)
        path = self._paths.get(opaque)
        if path is None or not hmac.compare_digest(signature.encode(), self.sign(opaque + terms).encode()):
            return None
        values = parse_qs(terms)
        stale = int(values["gen"][0]) < self.generation or int(values["exp"][0]) <= time.time() * 1000
        return path, stale

    def name_of(self, opaque: str) -> str:
        """The local file of a URL, whatever its signature; the empty string if unknown."""
        return self._paths.get(opaque, "")

    def token(self, kind: str, body: dict[str, Any]) -> str:
        """An opaque token of ``kind`` that carries ``body``."""
        text = json.dumps({"kind": kind, "issued": time.time(), **body}, sort_keys=True)
        return base64.urlsafe_b64encode(json.dumps([text, self.sign(text)]).encode()).decode()

    def read(self, kind: str, token: str, ttl: float, expired: str) -> dict[str, Any]:
        """The body of a token; raises Refusal where it is not ours, of another kind, or too old."""
        try:
            text, signature = json.loads(base64.urlsafe_b64decode(token))
            body: dict[str, Any] = json.loads(text)
        except (ValueError, TypeError):
            raise bad_request(f"Error decoding the {kind} token.") from None
        if not hmac.compare_digest(str(signature).encode(), self.sign(text).encode()) or body.get("kind") != kind:
            raise bad_request(f"Error decoding the {kind} token.")
        if body["issued"] + ttl <= time.time():
            raise bad_request(expired)
        return body


_BINARY = "application/octet-stream"
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")

_EXPIRED = {
    "s3": (403, "AccessDenied", "Request has expired"),
    "s3-400": (400, "ExpiredToken", "The provided token has expired."),
    "azure": (403, "AuthenticationFailed", "Signature not valid in the specified time frame"),
    "gcs": (400, "ExpiredToken", "The provided token has expired."),
}


def serve_data(request: Request, signer: Signer, settings: ServerSettings) -> Response:
    """Answer GET or HEAD of a data URL.

    A request that carries an Authorization header is refused with 400, as S3 does for presigned URLs.
    """
    if "authorization" in request.headers:
        return storage_error(400, "InvalidArgument", "Only one auth mechanism allowed; use the query string alone")
    signed = signer.path_of(request.path.removeprefix("/data/"), request.query)
    if signed is None:
        return storage_error(403, "SignatureDoesNotMatch", "The request signature does not match")
    path, stale = signed
    return storage_error(*_EXPIRED[settings.expired_style]) if stale else serve_file(path, request.headers)


def serve_file(path: str, headers: Mapping[str, str]) -> Response:
    """Answer GET or HEAD of a local file as object stores do, by range if asked."""
    try:
        stat = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return storage_error(404, "NoSuchKey", "The specified key does not exist.")
    size = stat.st_size
    tag = hashlib.md5(f"{path}{stat.st_mtime_ns}{size}".encode(), usedforsecurity=False).hexdigest()
    common = {"ETag": f'"{tag}"', "Last-Modified": formatdate(stat.st_mtime, usegmt=True), "Accept-Ranges": "bytes"}
    if_match = headers.get("if-match")
    if if_match is not None and if_match.strip('"') not in (tag, "*"):
        return storage_error(412, "PreconditionFailed", "At least one of the preconditions did not hold")
    match = _RANGE.fullmatch(headers.get("range", "").strip())
    if match is None or match.groups() == ("", ""):
        return Response(200, FileBody(path, 0, size), common, _BINARY)
    first, last = match.groups()
    start = int(first) if first else max(0, size - int(last))
    end = min(int(last), size - 1) if first and last else size - 1
    if start >= size or start > end:
        refused = storage_error(416, "InvalidRange", "The requested range is not satisfiable")
        return Response(416, refused.body, {"Content-Range": f"bytes */{size}"}, refused.content_type)
    common["Content-Range"] = f"bytes {start}-{end}/{size}"
    return Response(206, FileBody(path, start, end - start + 1), common, _BINARY)


def storage_error(status: int, code: str, message: str) -> Response:
    """An error as object stores word it."""
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>'
    return Response(status, body.encode(), {}, "application/xml")
