"""Data URLs: signed, expiring, by range, without authentication."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from email.utils import formatdate

from delta_sharing_spark.testing.server.responses import FileBody, Response
from delta_sharing_spark.testing.server.settings import ServerSettings
from delta_sharing_spark.testing.server.tokens import Signer

_BINARY = "application/octet-stream"
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")

_EXPIRED = {
    "s3": (403, "AccessDenied", "Request has expired"),
    "s3-400": (400, "ExpiredToken", "The provided token has expired."),
    "azure": (403, "AuthenticationFailed", "Signature not valid in the specified time frame"),
    "gcs": (400, "ExpiredToken", "The provided token has expired."),
}


def serve_data(
    opaque: str, query: str, headers: Mapping[str, str], signer: Signer, settings: ServerSettings
) -> Response:
    """Answer GET or HEAD of a data URL.

    A request that carries an Authorization header is refused with 400, as S3 does for presigned URLs.
    """
    if headers.get("authorization") is not None:
        return storage_error(400, "InvalidArgument", "Only one auth mechanism allowed; use the query string alone")
    signed = signer.path_of(opaque, query)
    if signed is None:
        return storage_error(403, "SignatureDoesNotMatch", "The request signature does not match")
    path, stale = signed
    if stale:
        return storage_error(*_EXPIRED[settings.expired_style])
    return serve_file(path, headers)


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
