"""Reads the bodies of answers: decoded, whole, and within bounds. No answer decides how much memory its reader takes."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import requests
import urllib3

from delta_sharing_spark.network.http import parse_count

#: Codings that are asked for; what else is common is read where it comes.
ACCEPT_ENCODING = "gzip, deflate"
_CHUNK = 1 << 18
_INFLATED = ("gzip", "x-gzip", "deflate")
#: Codings that change bytes, registered or common. Other words say nothing of them: storages keep as an object's metadata
#: what its writer sent, such as aws-chunked, utf-8 or binary.
_CODINGS = frozenset(
    {
        *_INFLATED, "aes128gcm", "br", "brotli", "bzip2", "compress", "dcb", "dcz", "exi", "lz4", "lzma", "pack200-gzip",
        "snappy", "x-bzip2", "x-compress", "x-snappy-framed", "xz", "zstd",
    }
)  # fmt: skip
_GZIP = b"\x1f\x8b"
#: zlib's window bits: of gzip, of zlib, and of deflate without a header, as IIS sends it.
_GZIP_BITS, _ZLIB_BITS, _RAW_BITS = 31, 15, -15


class BodyError(Exception):
    """A body that is too large, or not what its headers say."""


class TruncatedBodyError(BodyError):
    """A body that ends before it is complete."""


class DamagedBodyError(BodyError):
    """A compressed body with damage in it, which another try may not have."""


def declared_length(headers: Mapping[str, str]) -> int | None:
    """The number of bytes in ``Content-Length``; None if the header holds no such number.

    >>> declared_length({"content-length": "12, 12"}), declared_length({"content-length": "9" * 5000})
    (12, None)
    """
    return header_count(headers.get("content-length", ""))


def header_count(text: str) -> int | None:
    """The number that a header holds, which may have come twice: ``0, 0``; None if it holds no one number."""
    numbers = {one.strip() for one in text.split(",")}
    return parse_count(numbers.pop()) if len(numbers) == 1 else None


def _is_chunked(headers: Mapping[str, str]) -> bool:
    return "chunked" in headers.get("transfer-encoding", "").lower()


def tells_length(headers: Mapping[str, str]) -> bool:
    """Whether an answer tells where its body ends; else it ends with the connection, which may have broken off."""
    return _is_chunked(headers) or declared_length(headers) is not None


def coding_of(headers: Mapping[str, str]) -> str | None:
    """How an answer's bytes are coded (RFC 9110, section 8.4), in lower case; None where they are as they were stored.

    >>> coding_of({"content-encoding": "aws-chunked, GZIP "}), coding_of({"content-encoding": "utf-8"})
    ('gzip', None)
    """
    words = (word.strip().lower() for word in headers.get("content-encoding", "").split(","))
    return ", ".join(word for word in words if word in _CODINGS) or None


def read_body(response: requests.Response, limit: int) -> bytes:
    """The whole body, decoded; raises BodyError where the body is larger than ``limit``, cannot be decoded, or is truncated."""
    data = bytearray()
    for chunk in iter_body(response):
        data += chunk
        if len(data) > limit:
            raise BodyError(f"it is larger than {limit >> 20} MiB")
    return bytes(data)


def read_start(response: requests.Response, limit: int) -> tuple[bytes, bool]:
    """As much of an error's body as can be read, ``limit`` bytes at most, and whether that is all; its status counts without it."""
    data = bytearray()
    with suppress(BodyError, urllib3.exceptions.HTTPError, OSError):
        for chunk in iter_body(response):
            data += chunk
            if len(data) > limit:
                break
        else:
            return bytes(data), True
    return bytes(data[:limit]), False


def iter_body(response: requests.Response) -> Iterator[bytes]:
    """A body in decoded chunks of at most 256 KiB, however it is compressed; raises BodyError where the body cannot be decoded, or is truncated."""
    coding = coding_of(response.headers)
    raw = response.raw.stream(_CHUNK, decode_content=False)
    if coding is None:
        yield from raw
    elif coding in _INFLATED:
        yield from _inflated(raw, coding)
    else:
        raise BodyError(f"it has the content encoding {coding!r}, which was not asked for")
    declared = declared_length(response.headers)
    # A body in chunks tells its end by itself, whatever length is declared beside them (RFC 9112, section 6.3).
    if declared is not None and not _is_chunked(response.headers) and response.raw.tell() < declared:
        raise TruncatedBodyError("bytes are missing")
    if response.status_code == 200 and not response.raw.tell() and not tells_length(response.headers):
        raise TruncatedBodyError("it has neither a byte nor a length")  # as where its head was cut off


def _inflated(raw: Iterator[bytes], coding: str) -> Iterator[bytes]:
    """The bytes of one stream of deflate, or of gzip's members one after the other; zeros behind them are padding."""
    decoder: Any = None
    start = b""
    has_ended = False
    for piece in raw:
        data = start + piece
        start = b""
        while data:
            if decoder is None:
                data = data.lstrip(b"\0") if has_ended else data
                if len(data) < len(_GZIP):
                    start = data
                    break
                decoder = _decoder(data, coding, is_first=not has_ended)
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
                raise DamagedBodyError(f"its {coding} is damaged") from None
            if decoder.eof:
                data, decoder, has_ended = decoder.unused_data, None, True
    if decoder is not None or (start and _GZIP.startswith(start)):
        raise TruncatedBodyError("bytes are missing")
    if start:
        raise _no(coding, is_first=not has_ended)


def _decoder(data: bytes, coding: str, *, is_first: bool) -> Any:
    """A decoder for what begins so; raises BodyError where that is not what the coding is."""
    if data.startswith(_GZIP):
        return zlib.decompressobj(_GZIP_BITS)
    if not is_first:
        raise _no(coding, is_first=False)
    if data[0] & 15 == 8 and int.from_bytes(data[:2], "big") % 31 == 0:
        return zlib.decompressobj(_ZLIB_BITS)
    if coding != "deflate":
        raise _no(coding, is_first=True)
    return zlib.decompressobj(_RAW_BITS)


def _no(coding: str, *, is_first: bool) -> BodyError:
    why = "is not what it holds" if is_first else "has other bytes behind its end"
    return BodyError(f"the {coding} that its header Content-Encoding names {why}")
