"""Requests for bytes over pooled connections: what is sent, what comes, and when a connection is used again."""

from __future__ import annotations

import http.client
import io
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests
import urllib3
from hypothesis import given
from hypothesis import strategies as st

from delta_sharing_spark.network import pooled_connections
from delta_sharing_spark.network.connections import BreakableAdapter
from delta_sharing_spark.network.http import NetworkSettings, data_session
from delta_sharing_spark.network.pooled_connections import PooledAnswer, send
from delta_sharing_spark.network.urls import parse_url
from support.certificates import certificate_of, context_of
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


def ask(session: requests.Session, url: str, start: int, end: int) -> tuple[int, bytes]:
    """The status and the body."""
    headers = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
    with send(session, "GET", parse_url(url), headers, (5.0, 5.0)) as answer:
        assert isinstance(answer, PooledAnswer)
        room, arrived = memoryview(bytearray(end - start)), 0
        while arrived < end - start and (count := answer.read_into(room[arrived:])):
            arrived += count
        return answer.status_code, bytes(room[:arrived])


def test_one_connection_answers_in_turn_with_the_same_headers(server: Server, session: requests.Session) -> None:
    for turn in range(4):
        asked = ask(session, server.url, turn * 1000, turn * 1000 + 5000)
        assert asked == (206, DATA[turn * 1000 : turn * 1000 + 5000])
    assert len(set(server.clients)) == 1
    first, *others = ({k.lower(): v for k, v in sent.items() if k.lower() != "range"} for sent in server.headers)
    assert all(other == first for other in others)


def test_a_body_that_was_not_read_to_its_end_takes_its_connection_with_it(
    server: Server, session: requests.Session
) -> None:
    ask(session, server.url, 0, 10)
    with send(session, "GET", parse_url(server.url), {"Range": "bytes=0-99999"}, (5.0, 5.0)) as answer:
        assert isinstance(answer, PooledAnswer)
        answer.read_into(memoryview(bytearray(10)))
    assert ask(session, server.url, 50, 60) == (206, DATA[50:60])
    assert ask(session, server.url, 70, 80) == (206, DATA[70:80])
    first, second, third, fourth = server.clients
    assert first == second != third == fourth


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
    assert ask(session, server.url, 5, 5000) == (206, DATA[5:5000])
    assert ask(session, server.url, 70, 80) == (206, DATA[70:80])


@pytest.mark.parametrize("status", [302, 403, 404, 503])
def test_other_answers_are_ones_of_requests_whose_connection_is_used_again(
    server: Server, session: requests.Session, status: int
) -> None:
    seen = []
    for turn in range(2):
        if turn:
            ask(session, server.url, 0, 10)
        server.faults.append(lambda handler, *_: handler.answer(status, b"<Code>Why</Code>", Location="/elsewhere"))
        answer = send(session, "GET", parse_url(server.url), {"Range": "bytes=0-9"}, (5.0, 5.0))
        assert isinstance(answer, requests.Response)
        body = answer.raw.read()
        seen.append((answer.status_code, answer.is_redirect, answer.url, answer.headers["location"], body))
        answer.close()
    assert seen[0] == seen[1]
    assert seen[0][-1] == b"<Code>Why</Code>"
    assert ask(session, server.url, 0, 10) == (206, DATA[:10])
    assert len(set(server.clients)) == 1


#: What ends or respells a target where a library looks at it: small and needless escapes, dots, empty parts, brackets.
TARGETS = [
    *(
        "/k%7Ey",
        "/a%2Db",
        "/%2f%3d",
        "/%2E%2E/x",
        "/a/../b",
        "/./a",
        "//key",
        "///k//x",
        "/k?",
        "/?",
        "/k?a=%2f&b=%2B+c",
        "/k??x",
    ),
    *("/k?a=/../b", "/k;v=1", '/{a}|^`"<>[]', "/%zz%", "/k?x=%41%7e#f", "/a:b@c"),
]


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_is_sent_letter_by_letter_each_time(server: Server, session: requests.Session, target: str) -> None:
    root = server.url.rpartition("/")[0]
    headers = {"Range": "bytes=0-9", "Accept-Encoding": "identity"}
    for is_decoded in (False, False, True):
        with send(session, "GET", parse_url(root + target), headers, (5.0, 5.0), is_decoded=is_decoded) as answer:
            if isinstance(answer, PooledAnswer):
                answer.read_into(memoryview(bytearray(10)))
    assert server.lines == [f"GET {target.partition('#')[0]} HTTP/1.1"] * 3


@given(st.text(st.sampled_from("abzAZ09-._~!$&'()*+,;=:@/?%[]{}|^`\"2EeFf7"), max_size=30), st.booleans())
def test_the_head_of_a_request_holds_the_target_as_it_came(text: str, is_forwarded: bool) -> None:
    url = parse_url(f"http://host.example:8443/{text}")
    pool = SimpleNamespace(proxy="p" if is_forwarded else None, proxy_headers={"Proxy-Authorization": "x"})
    lines = pooled_connections._head("GET", url, {}, pool).decode().split("\r\n")
    root = "http://host.example:8443" if is_forwarded else ""
    assert lines[:2] == [f"GET {root}/{text} HTTP/1.1", "Host: host.example:8443"]
    assert ("Proxy-Authorization: x" in lines) == is_forwarded


@pytest.mark.parametrize("value", ["a\r\nX: y", "a\nb", "a\rb", "ä"])
def test_headers_that_could_say_more_than_they_should_are_refused(
    server: Server, session: requests.Session, value: str
) -> None:
    for _ in range(2):
        with pytest.raises(requests.exceptions.InvalidHeader) as refused:
            send(session, "GET", parse_url(server.url), {"X": value}, (5.0, 5.0))
        assert value not in str(refused.value)
        ask(session, server.url, 0, 10)
    assert len(server.asked) == 2


class Proxy(ThreadingHTTPServer):
    """Answers requests of http itself, and tunnels those of https to one server, whatever host they name."""

    daemon_threads = True

    def __init__(self, behind: Server) -> None:
        super().__init__(("127.0.0.1", 0), ProxyHandler)
        self.behind, self.lines, self.users = behind, list[str](), list[str]()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def settings(self) -> NetworkSettings:
        return NetworkSettings(proxy=f"http://me:s3cret@127.0.0.1:{self.server_address[1]}")


class ProxyHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def do_GET(self) -> None:
        self._note()
        self.send_response(206)
        self.send_header("Content-Range", "bytes 0-9/10")
        self.send_header("Content-Length", "10")
        self.end_headers()
        self.wfile.write(b"by a proxy")

    def do_CONNECT(self) -> None:
        self._note()
        self.send_response(200)
        self.end_headers()
        with socket.create_connection(("127.0.0.1", self.server.behind.server_address[1])) as way:
            back = threading.Thread(target=copy, args=(way, self.connection), daemon=True)
            back.start()
            copy(self.connection, way)
            back.join()
        self.close_connection = True

    def _note(self) -> None:
        self.server.lines.append(self.requestline)
        self.server.users.append(self.headers.get("Proxy-Authorization", ""))

    def log_message(self, *_: object) -> None: ...


def copy(source: socket.socket, to: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            to.sendall(data)
        to.shutdown(socket.SHUT_WR)


def test_a_proxy_of_http_is_named_the_whole_url(server: Server) -> None:
    with Proxy(server) as proxy:
        session = data_session(proxy.settings)
        for _ in range(2):
            assert ask(session, "http://data.invalid:81//k%7e?", 0, 10) == (206, b"by a proxy")
        assert proxy.lines == ["GET http://data.invalid:81//k%7e? HTTP/1.1"] * 2
        assert proxy.users == ["Basic bWU6czNjcmV0"] * 2
        session.close()
        proxy.shutdown()


def test_a_tunnel_is_made_once_and_shows_the_proxy_no_url(tmp_path: Path) -> None:
    certificate = certificate_of(tmp_path, "data.invalid")
    context = context_of(certificate)
    behind = Server(DATA, context)
    with Proxy(behind) as proxy:
        session = data_session(replace(proxy.settings, ca_bundle=str(certificate)))
        answers = [ask(session, "https://data.invalid//k%7e?sig=SECRET", start, start + 10) for start in (0, 500)]
        assert answers == [(206, DATA[:10]), (206, DATA[500:510])]
        assert behind.lines == ["GET //k%7e?sig=SECRET HTTP/1.1"] * 2
        assert [line.rpartition(" ")[0] for line in proxy.lines] == ["CONNECT data.invalid:443"]
        assert proxy.users == ["Basic bWU6czNjcmV0"]
        assert not any("proxy" in name.lower() for headers in behind.headers for name in headers)
        session.close()
        proxy.shutdown()
    behind.shutdown()
    behind.server_close()


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
    """Also what is left of the bytes, which begin the body. Two lengths are refused, of which http.client takes the first."""
    sent = ending.join([status, *headers, "", "5\r\nhello\r\n0\r\n\r\n"]).encode("utf-8")

    class Socket:
        def makefile(self, mode: str) -> io.BufferedReader:
            return io.BufferedReader(io.BytesIO(sent))

    def outcome(kind: type[http.client.HTTPResponse]) -> object:
        answer = kind(Socket(), method=method)  # type: ignore[arg-type]
        try:
            answer.begin()
        except (http.client.HTTPException, urllib3.exceptions.InvalidHeader) as error:
            return type(error)
        ours = isinstance(answer, pooled_connections._HTTPAnswer)
        fields = answer.fields if ours else {name.lower(): value for name, value in answer.headers.items()}
        ends = answer.length, answer.chunked, bool(answer.will_close)
        return answer.version, answer.status, fields, ends, answer.isclosed() or answer.fp.read()

    ours = outcome(pooled_connections._HTTPAnswer)
    if ours is urllib3.exceptions.InvalidHeader:
        assert sum(header.lower().startswith("content-length:") for header in headers) > 1
    else:
        assert ours == outcome(http.client.HTTPResponse)
