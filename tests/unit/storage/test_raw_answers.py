"""Answers that servers and proxies write by hand: without a length, with two, cut off, too slow, too long."""

from __future__ import annotations

import gzip
import re
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any

import pytest

from delta_sharing_spark.errors import DeltaSharingError, NetworkError
from delta_sharing_spark.storage.clouds.registry import parse_location
from delta_sharing_spark.storage.objects import Storage
from delta_sharing_spark.storage.presigned import url_reader
from delta_sharing_spark.storage.range_reader import StorageSettings
from support.cloud_secrets import aws_session
from support.one_url import OneUrl

DATA = b"".join(b'{"add":{"path":"%06d"}}\n' % number for number in range(1000))
#: Sends the answer to a method that asks for the bytes from a place to another; the connection is closed after it.
Answer = Callable[[socket.socket, str, int, int], None]


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def one(accepted: socket.socket) -> None:
            with accepted, accepted.makefile("rb") as lines, suppress(OSError):
                head = b"".join(iter(lines.readline, b"\r\n")).decode()
                asked = re.search(r"(?i)^range: bytes=(\d+)-(\d+)", head, re.MULTILINE)
                start, end = (int(asked[1]), int(asked[2]) + 1) if asked else (0, len(DATA))
                answer(accepted, head.partition(" ")[0], start, end)

        def serve() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def pause(_: float) -> None:
    time.sleep(0.01)


def by_url(url: str, start: int = 0, length: int = len(DATA), **settings: Any) -> bytes:
    policy = StorageSettings(local_server=True, sleep=pause, **{"retry_seconds": 2.0, **settings})
    lease = OneUrl(f"{url}/f?sig=SECRET")
    return bytes(url_reader(lease, policy, name="f", size=len(DATA)).read(start, length))


def storage_at(url: str, **settings: Any) -> Storage:
    reached = StorageSettings(endpoint=url, sleep=pause, **{"retry_seconds": 2.0, **settings})
    return Storage(parse_location("s3://bucket/t"), aws_session("id", "SECRET", "token"), reached)


def by_directory(url: str, **settings: Any) -> bytes:
    """As a commit of the log is read: whole."""
    return bytes(storage_at(url, **settings).get(parse_location("s3://bucket/t/f")))


def part_by_directory(url: str, start: int = 0, length: int = len(DATA), **settings: Any) -> bytes:
    """As a part of a checkpoint or of a data file is read."""
    return bytes(storage_at(url, **settings).get(parse_location("s3://bucket/t/f"), start, start + length))


def head(start: int, end: int, *more: str, length: bool = True) -> bytes:
    status = "200 OK" if (start, end) == (0, len(DATA)) else "206 Partial Content"
    lines = [f"HTTP/1.1 {status}", "Last-Modified: Tue, 24 Nov 2026 00:00:00 GMT", *more]
    lines += [f"Content-Length: {end - start}"] if length else []
    lines += [f"Content-Range: bytes {start}-{end - 1}/{len(DATA)}"] if status.startswith("206") else []
    return "\r\n".join((*lines, "", "")).encode()


@pytest.mark.parametrize("part", [1.0, 0.5])
def test_a_commit_that_came_in_part_is_no_commit(part: float) -> None:
    """A proxy strips the length, and the connection ends between two lines: what it lacks would be files that are not read."""

    def answer(to: socket.socket, method: str, start: int, end: int) -> None:
        if method == "HEAD":
            to.sendall(head(start, end))
        else:
            to.sendall(head(start, end, length=False) + DATA[start:end][: int(len(DATA) * part)])

    with serving(answer) as url:
        if part == 1.0:
            assert by_directory(url) == DATA
        else:
            with pytest.raises(
                NetworkError, match=rf"13000 of {len(DATA)} bytes came, in an answer that does not tell its"
            ):
                by_directory(url)


@pytest.mark.parametrize("read", [by_url, by_directory])
def test_a_head_that_was_cut_off_is_asked_for_again(read: Callable[[str], bytes]) -> None:
    """What came looks like an answer without a body."""
    asked: list[str] = []

    def answer(to: socket.socket, method: str, start: int, end: int) -> None:
        asked.append(method)
        whole = head(start, end) + (DATA[start:end] if method == "GET" else b"")
        to.sendall(whole[:40] if asked.count("GET") == 1 and method == "GET" else whole)

    with serving(answer) as url:
        assert read(url) == DATA
    assert asked.count("GET") == 2


def test_a_listing_that_was_cut_off_is_asked_for_again() -> None:
    asked: list[str] = []
    page = b"<ListBucketResult><Contents><Key>t/a</Key><Size>1</Size><LastModified>2026-11-24T00:00:00Z</LastModified></Contents>"

    def answer(to: socket.socket, method: str, start: int, end: int) -> None:
        asked.append(method)
        to.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + page + (b"" if len(asked) == 1 else b"</ListBucketResult>"))

    with serving(answer) as url:
        reached = StorageSettings(endpoint=url, sleep=pause)
        storage = Storage(parse_location("s3://bucket/t"), aws_session("id", "SECRET", "token"), reached)
        assert [entry.name for entry in storage.list_from(storage.location, "")] == ["a"]
    assert len(asked) == 2


@pytest.mark.parametrize("read", [by_url, by_directory])
def test_what_comes_before_the_final_status_is_skipped(read: Callable[[str], bytes]) -> None:
    def answer(to: socket.socket, method: str, start: int, end: int) -> None:
        hints = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n"
        to.sendall(hints + head(start, end) + DATA[start:end])

    with serving(answer) as url:
        assert read(url) == DATA


def _in_chunks(to: socket.socket, method: str, start: int, end: int) -> None:
    body = DATA[start:end]
    to.sendall(head(start, end, "Transfer-Encoding: chunked") + b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n")


def _with_two_lengths(to: socket.socket, method: str, start: int, end: int) -> None:
    to.sendall(head(start, end, f"Content-Length: {end - start}") + (DATA[start:end] if method == "GET" else b""))


@pytest.mark.parametrize("answer", [_in_chunks, _with_two_lengths])
@pytest.mark.parametrize("read", [by_url, by_directory])
def test_a_length_beside_chunks_or_twice(read: Callable[[str], bytes], answer: Callable[..., None]) -> None:
    with serving(answer) as url:
        assert read(url) == DATA


def _slow(to: socket.socket, method: str, start: int, end: int) -> None:
    for byte in head(start, end):
        to.sendall(bytes([byte]))
        time.sleep(0.2)


@pytest.mark.parametrize("read", [by_url, by_directory])
@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (_slow, NetworkError, "127.0.0.1 had not sent all of it after 2 s"),
        (
            lambda to, method, start, end: to.sendall(head(start, end, "Content-Length: 5") + DATA[start:end]),
            NetworkError,
            "the headers of 127.0.0.1 contradict each other; look for a proxy",
        ),
        (
            lambda to, method, start, end: to.sendall(head(start, end, *(f"X-{n}: y" for n in range(150)))),
            NetworkError,
            "127.0.0.1 sent more headers, or longer ones, than can be read",
        ),
        (
            lambda to, method, start, end: to.sendall(head(start, end, f"X: {'y' * 70000}")),
            NetworkError,
            "127.0.0.1 sent more headers, or longer ones, than can be read",
        ),
        (
            lambda to, method, start, end: to.sendall(
                head(start, end, "Transfer-Encoding: chunked", length=False) + b"zz\r\n"
            ),
            NetworkError,
            "127.0.0.1 (broke off its answer|ended its answer early)",
        ),
    ],
    ids=["slow head", "two lengths", "many headers", "long header", "no chunk"],
)
def test_the_reason_is_told(
    read: Callable[..., bytes], answer: Answer, kind: type[DeltaSharingError], words: str
) -> None:
    with serving(answer) as url, pytest.raises(kind, match=words) as caught:
        read(url, retry_seconds=1.0, read_timeout=1.0, connect_timeout=1.0)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("read", [by_url, by_directory, part_by_directory])
@pytest.mark.parametrize(
    "value", ["aws-chunked", "aws-chunked,identity", "AWS-Chunked ", "utf-8", "binary", "identity ", "", ","]
)
def test_a_coding_that_is_metadata_of_the_object(read: Callable[[str], bytes], value: str) -> None:
    """Stores keep what the writer's SDK sent."""

    def answer(to: socket.socket, method: str, start: int, end: int) -> None:
        to.sendall(head(start, end, f"Content-Encoding: {value}") + (DATA[start:end] if method == "GET" else b""))

    with serving(answer) as url:
        assert read(url) == DATA


def raw_deflate(data: bytes) -> bytes:
    coder = zlib.compressobj(wbits=-15)
    return coder.compress(data) + coder.flush()


@pytest.mark.parametrize(
    ("value", "body"),
    [
        ("deflate", raw_deflate(DATA)),
        ("deflate", zlib.compress(DATA)),
        ("gzip", gzip.compress(DATA)),
        ("aws-chunked,gzip", gzip.compress(DATA[:5000]) + gzip.compress(DATA[5000:])),
        ("gzip", gzip.compress(DATA) + bytes(700)),
        ("x-gzip", gzip.compress(DATA[:5000]) + bytes(3) + gzip.compress(DATA[5000:]) + b"\0"),
    ],
)
def test_a_log_that_is_stored_compressed(value: str, body: bytes) -> None:
    def answer(to: socket.socket, method: str, start: int, end: int) -> None:
        to.sendall(f"HTTP/1.1 200 OK\r\nContent-Encoding: {value}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        # In many chunks, the first of a byte: a decoder is chosen by two.
        ends = [0, 1, *range(2, len(body), 97), len(body)]
        for one, other in pairwise(ends):
            to.sendall(b"%x\r\n%s\r\n" % (other - one, body[one:other]))
        to.sendall(b"0\r\n\r\n")

    with serving(answer) as url:
        assert by_directory(url) == DATA
        with pytest.raises(DeltaSharingError, match=r"file f: .*sent it compressed \((gzip|x-gzip|deflate)\) though"):
            by_url(url, retry_seconds=1)  # the kept connection may have ended meanwhile


@pytest.mark.parametrize(
    ("value", "body", "words", "tries"),
    [
        ("gzip", DATA, "the gzip that its header Content-Encoding names is not what it holds", 1),
        ("gzip", gzip.compress(DATA) + b"more", "has other bytes behind its end", 1),
        ("br", DATA, "it has the content encoding 'br', which was not asked for", 1),
        ("gzip, gzip", DATA, "it has the content encoding 'gzip, gzip', which was not asked for", 1),
        ("gzip", gzip.compress(DATA)[:40] + b"\xff" * 40 + gzip.compress(DATA)[80:], "its gzip is damaged", 2),
        ("deflate", b"\x07" * 30, "its deflate is damaged", 2),
    ],
)
def test_a_coding_that_is_not_what_it_claims_is_told_at_once(value: str, body: bytes, words: str, tries: int) -> None:
    asked: list[str] = []

    def answer(to: socket.socket, method: str, start: int, end: int) -> None:
        asked.append(method)
        to.sendall(f"HTTP/1.1 200 OK\r\nContent-Encoding: {value}\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        to.sendall(body)

    with serving(answer) as url, pytest.raises(DeltaSharingError, match=f"{words}; look for a proxy in between"):
        by_directory(url, retry_seconds=600.0)
    assert len(asked) == tries


@pytest.mark.parametrize("read", [by_url, by_directory])
def test_an_error_whose_body_cannot_be_decoded_is_the_error(read: Callable[..., bytes]) -> None:
    asked: list[str] = []

    def answer(to: socket.socket, method: str, start: int, end: int) -> None:
        asked.append(method)
        to.sendall(b"HTTP/1.1 409 Conflict\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\noops")

    with serving(answer) as url, pytest.raises(DeltaSharingError, match="409"):
        read(url, retry_seconds=600.0)
    assert len(asked) == 1


@pytest.mark.parametrize("read", [by_url, part_by_directory])
@pytest.mark.parametrize("start", [4, 1000, 20_000])
@pytest.mark.parametrize("how", ["length", "no length", "chunks", "range"])
def test_a_gateway_that_makes_200_of_206_is_told(read: Callable[..., bytes], start: int, how: str) -> None:
    asked: list[str] = []

    def answer(to: socket.socket, method: str, first: int, end: int) -> None:
        asked.append(method)
        body = DATA[first:end]
        more = {
            "length": f"Content-Length: {len(body)}",
            "no length": "X: y",
            "chunks": "Transfer-Encoding: chunked",
            "range": f"Content-Range: bytes {first}-{end - 1}/{len(DATA)}",
        }[how]
        to.sendall(f"HTTP/1.1 200 OK\r\n{more}\r\n\r\n".encode())
        to.sendall(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if how == "chunks" else body)

    words = r"got 4000 bytes as a whole file: 200, as if something in between had made it of 206\); look for a proxy"
    with serving(answer) as url, pytest.raises(DeltaSharingError, match=words):
        read(url, start, 4000, retry_seconds=600.0)
    assert len(asked) == 4


@pytest.mark.parametrize("start", [0, 4, 20_000])
def test_a_whole_file_where_a_part_was_asked_for_is_read(start: int) -> None:
    def answer(to: socket.socket, method: str, first: int, end: int) -> None:
        to.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + DATA)

    with serving(answer) as url:
        assert by_url(url, start, 4000) == part_by_directory(url, start, 4000) == DATA[start : start + 4000]
