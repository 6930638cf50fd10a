"""Requests over connections that earlier answers left open: what is sent, what comes, and when requests is asked instead."""

from __future__ import annotations

import http.client
import io
import random
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from delta_sharing_spark.network import kept_connections
from delta_sharing_spark.network.connections import BreakableAdapter
from delta_sharing_spark.network.hosts import origin
from delta_sharing_spark.network.kept_connections import KeptAnswer, send
from unit.storage.misbehaving_server import Handler, Server

DATA = random.Random(7).randbytes(300_000)


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server(DATA)
    yield one
    one.shutdown()
    one.server_close()


@pytest.fixture
def session() -> Iterator[requests.Session]:
    with requests.Session() as one:
        one.trust_env = False
        one.mount("http://", BreakableAdapter())
        yield one


def ask(session: requests.Session, url: str, start: int, end: int) -> tuple[bool, int, bytes]:
    """Whether a kept connection was used, the status, and the body."""
    headers = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
    with send(session, "GET", url, headers, (5.0, 5.0)) as answer:
        if not isinstance(answer, KeptAnswer):
            return False, answer.status_code, answer.raw.read()
        room, arrived = memoryview(bytearray(end - start)), 0
        while arrived < end - start and (count := answer.read_into(room[arrived:])):
            arrived += count
        return True, answer.status_code, bytes(room[:arrived])


def test_one_connection_answers_in_turn_with_the_same_headers(server: Server, session: requests.Session) -> None:
    for turn in range(4):
        assert ask(session, server.url, turn * 1000, turn * 1000 + 5000) == (
            turn > 0,
            206,
            DATA[turn * 1000 : turn * 1000 + 5000],
        )
    first, *others = ({k.lower(): v for k, v in sent.items() if k.lower() != "range"} for sent in server.headers)
    assert all(other == first for other in others)


def test_a_body_that_was_not_read_to_its_end_takes_its_connection_with_it(
    server: Server, session: requests.Session
) -> None:
    ask(session, server.url, 0, 10)
    with send(session, "GET", server.url, {"Range": "bytes=0-99999"}, (5.0, 5.0)) as answer:
        assert isinstance(answer, KeptAnswer)
        answer.read_into(memoryview(bytearray(10)))
    assert ask(session, server.url, 50, 60) == (False, 206, DATA[50:60])
    assert ask(session, server.url, 70, 80) == (True, 206, DATA[70:80])


def in_chunks(handler: Handler, start: int, end: int) -> None:
    handler.send_response(206)
    handler.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(DATA)}")
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    for at in range(start, end, 700):
        piece = DATA[at : min(at + 700, end)]
        handler.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
    handler.wfile.write(b"0\r\n\r\n")


def test_bodies_in_chunks(server: Server, session: requests.Session) -> None:
    ask(session, server.url, 0, 10)
    server.faults.append(in_chunks)
    assert ask(session, server.url, 5, 5000) == (True, 206, DATA[5:5000])
    assert ask(session, server.url, 70, 80)[1:] == (206, DATA[70:80])


@pytest.mark.parametrize("status", [302, 403, 404, 503])
def test_other_answers_are_those_of_requests(server: Server, session: requests.Session, status: int) -> None:
    seen = []
    for turn in range(2):
        if turn:
            ask(session, server.url, 0, 10)
        server.faults.append(lambda handler, *_: handler.answer(status, b"<Code>Why</Code>", Location="/elsewhere"))
        answer = send(session, "GET", server.url, {"Range": "bytes=0-9"}, (5.0, 5.0))
        assert isinstance(answer, requests.Response)
        body = answer.raw.read() or b"<Code>Why</Code>"  # requests reads a redirect's
        seen.append((answer.status_code, answer.is_redirect, answer.url, answer.headers["location"], body))
        answer.close()
    assert seen[0] == seen[1]
    assert ask(session, server.url, 0, 10)[1:] == (206, DATA[:10])


@given(st.text(st.sampled_from("abzAZ09-._~!$&'()*+,;=:@/?#%[]{}|^`\" \\2EeFf7"), max_size=30))
def test_urls_that_are_sent_as_they_are_are_those_that_requests_leaves_alone(text: str) -> None:
    url = f"https://host.example:8443/{text}"
    address = kept_connections._address_of(url)
    if address is None:
        return
    prepared = requests.Request("GET", url).prepare()
    head = kept_connections._head("GET", address, {})
    assert head is not None
    assert head.startswith(f"GET {prepared.path_url} HTTP/1.1\r\nHost: host.example:8443\r\n".encode())


@pytest.mark.parametrize("value", ["a\r\nX: y", "a\nb", "a\rb", "ä"])
def test_headers_that_could_say_more_than_they_should_are_left_to_requests(value: str) -> None:
    address = kept_connections._address_of("http://h/f")
    assert address is not None
    assert kept_connections._head("GET", address, {"X": value}) is None


@pytest.mark.parametrize(
    ("host", "named"),
    [("h", "h"), ("h:80", "h"), ("h:080", "h"), ("h:443", "h:443"), ("[::1]", "[::1]"), ("[::1]:8080", "[::1]:8080")],
)
def test_hosts_are_named_as_requests_names_them(host: str, named: str) -> None:
    address = kept_connections._address_of(f"http://{host}/f?a=%2F")
    assert address is not None
    assert (address.host, address.target) == (named, "/f?a=%2F")
    assert address.origin == origin(urlsplit(f"http://{host}/f"))


@pytest.mark.parametrize("escaped", ["%2F", "%41"])
def test_a_long_url_is_looked_at_once(escaped: str) -> None:
    """An expression that goes back and forth over it would take longer than this test suite."""
    assert kept_connections._address_of(f"https://h/f?{f'token{escaped}' * 20_000} ") is None


HEADERS = [
    *(
        "Content-Length: 5",
        "content-length:5",
        "Content-Length: 7",
        "Content-Length: 5 ",
        "Content-Length: +5",
        "Content-Length: ٥",
    ),
    *("Connection: keep-alive", "Connection: Close", "Connection: keep-alive, x", "Transfer-Encoding: chunked"),
    *(
        'ETag: \t"a:b" ',
        "Content-Range: bytes 0-4/9",
        "X-Note: \x85\x0bé",
        "X-Note: b",
        " folded",
        "no colon",
        "Empty:",
        "A B: c",
    ),
]


@given(
    st.sampled_from(
        ["HTTP/1.1 206 Partial Content", "HTTP/1.1 200", "HTTP/1.0 200 OK", "HTTP/1.1 204 No", "HTTP/1.1 100 Go"]
    ),
    st.lists(st.sampled_from(HEADERS), max_size=5),
    st.sampled_from(["\r\n", "\n"]),
    st.sampled_from(["GET", "HEAD"]),
)
def test_a_head_reads_as_by_http_client(status: str, headers: list[str], ending: str, method: str) -> None:
    """Also what is left of the bytes, which begin the body."""
    sent = ending.join([status, *headers, "", "5\r\nhello\r\n0\r\n\r\n"]).encode("utf-8")

    class Socket:
        def makefile(self, mode: str) -> io.BufferedReader:
            return io.BufferedReader(io.BytesIO(sent))

    def outcome(kind: type[http.client.HTTPResponse]) -> object:
        answer = kind(Socket(), method=method)  # type: ignore[arg-type]
        try:
            answer.begin()
        except http.client.HTTPException as error:
            return type(error)
        ours = isinstance(answer, kept_connections._HTTPAnswer)
        fields = answer.fields if ours else {name.lower(): value for name, value in answer.headers.items()}
        ends = answer.length, answer.chunked, bool(answer.will_close)
        return answer.version, answer.status, fields, ends, answer.isclosed() or answer.fp.read()

    assert outcome(kept_connections._HTTPAnswer) == outcome(http.client.HTTPResponse)
