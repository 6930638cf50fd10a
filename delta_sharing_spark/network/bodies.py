"""Decodes bodies of answers within bounds, so that no answer decides how much memory its reader takes."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import requests

#: Encodings that are asked for and understood.
ACCEPT_ENCODING = "gzip, deflate"
_CHUNK = 1 << 18
#: zlib's window bits: gzip and zlib by their headers.
_GZIP_OR_ZLIB = 47


class BodyError(Exception):
    """A body that is too large, or not what its headers say."""


class TruncatedBodyError(BodyError):
    """A body that ends before it is complete."""


def declared_length(headers: Mapping[str, str]) -> int | None:
    """The number of bytes in ``Content-Length``; None if the header holds no such number.

    >>> declared_length({"content-length": "12"}), declared_length({"content-length": "9" * 5000})
    (12, None)
    """
    return parse_count(headers.get("content-length", ""))


def parse_count(text: str) -> int | None:
    """A decimal number of at most 18 digits, as headers and URLs write counts; None for anything else."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def read_body(response: requests.Response, limit: int) -> bytes:
    """The whole body, decoded; raises BodyError where the body is larger than ``limit``, cannot be decoded, or is truncated."""
    data = bytearray()
    for chunk in iter_body(response):
        data += chunk
        if len(data) > limit:
            raise BodyError(f"it is larger than {limit >> 20} MiB")
    return bytes(data)


def iter_body(response: requests.Response) -> Iterator[bytes]:
    """A body in decoded chunks of at most 256 KiB, however it is compressed; raises BodyError where the body cannot be decoded, or is truncated."""
    encoding = response.headers.get("content-encoding", "").strip().lower()
    raw = response.raw.stream(_CHUNK, decode_content=False)
    if encoding in ("", "identity"):
        yield from raw
    elif encoding in ("gzip", "x-gzip", "deflate"):
        yield from _inflated(raw)
    else:
        raise BodyError(f"it has the content encoding {encoding[:40]!r}, which was not asked for")
    declared = declared_length(response.headers)
    if declared is not None and response.raw.tell() < declared:
        raise TruncatedBodyError("bytes are missing")


def _inflated(raw: Iterator[bytes]) -> Iterator[bytes]:
    decoder: Any = None
    for piece in raw:
        data = piece
        while data:
            if decoder is None:
                decoder = zlib.decompressobj(_GZIP_OR_ZLIB)
            try:
                chunk = decoder.decompress(data, _CHUNK)
                if chunk:
                    yield chunk
                data = decoder.unconsumed_tail
                if not data and len(chunk) == _CHUNK and not decoder.eof:
                    # The decoder may hold more than it was allowed to give.
                    while rest := decoder.decompress(b"", _CHUNK):
                        yield rest
            except zlib.error:
                raise TruncatedBodyError("it is not compressed as its headers say") from None
            if decoder.eof:
                data, decoder = decoder.unused_data, None
    if decoder is not None:
        raise TruncatedBodyError("bytes are missing")
