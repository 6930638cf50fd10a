"""Answers that servers and proxies write by hand: without a length, with two, cut off, too slow, too long."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from delta_sharing_spark.errors import DeltaSharingError, NetworkError
from delta_sharing_spark.network.http import data_session
from delta_sharing_spark.storage.http_source import HttpPolicy, HttpSource
from delta_sharing_spark.storage.locations import parse_location
from delta_sharing_spark.storage.objects import Storage
from delta_sharing_spark.storage.secrets import AwsSession, StorageSettings

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


class _Lease:
    def __init__(self, url: str) -> None:
        self._url = url

    def url(self) -> str:
        return self._url

    def refused(self, url: str, reason: str) -> None:
        raise AssertionError


def pause(_: float) -> None:
    time.sleep(0.01)


def by_url(url: str, **settings: Any) -> bytes:
    policy = HttpPolicy(local_server=True, sleep=pause, **{"retry_seconds": 2.0, **settings})
    lease = _Lease(f"{url}/f?sig=SECRET")
    return bytes(HttpSource(data_session(policy), lease, name="f", size=len(DATA), policy=policy).read(0, len(DATA)))


def by_directory(url: str, **settings: Any) -> bytes:
    """As a commit of the log is read: whole."""
    reached = StorageSettings(endpoint=url, sleep=pause, **{"retry_seconds": 2.0, **settings})
    storage = Storage(parse_location("s3://bucket/t"), AwsSession("id", "SECRET", "token"), reached)
    return bytes(storage.get(parse_location("s3://bucket/t/f")))


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
        storage = Storage(parse_location("s3://bucket/t"), AwsSession("id", "SECRET", "token"), reached)
        assert [entry.name for entry in storage.list_from(storage.location, "")] == ["a"]
    assert len(asked) == 2


@pytest.mark.parametrize("read", [by_url, by_directory])
def test_what_comes_before_the_final_status_is_skipped(read: Callable[[str], bytes]) -> None:
    def answer(to: socket.socket, method: str, start: int, end: int) -> None:
        hints = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n"
        to.sendall(hints + head(start, end) + DATA[start:end])

    with serving(answer) as url:
        assert read(url) == DATA


@pytest.mark.parametrize("read", [by_url, by_directory])
def test_a_length_beside_chunks_or_twice(read: Callable[[str], bytes]) -> None:
    def chunks(to: socket.socket, method: str, start: int, end: int) -> None:
        body = DATA[start:end]
        to.sendall(head(start, end, "Transfer-Encoding: chunked") + b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n")

    def twice(to: socket.socket, method: str, start: int, end: int) -> None:
        to.sendall(head(start, end, f"Content-Length: {end - start}") + (DATA[start:end] if method == "GET" else b""))

    for answer in (chunks, twice):
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
