"""Servers that answer to harm: without end, too much, elsewhere, with the token. All end soon, with an error of ours."""

from __future__ import annotations

import gzip
import html
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import unquote

import pytest

from delta_sharing_spark.access.url.signed_urls import url_end
from delta_sharing_spark.errors import (
    LONGEST_MESSAGE,
    ConfigError,
    DeltaSharingError,
    FileError,
    ProfileError,
    ResponseError,
    ServerError,
    displayable,
    printable,
    printable_json,
)
from delta_sharing_spark.network.connections import AddressRefusedError, refusing_local_addresses
from delta_sharing_spark.network.http import NetworkSettings, data_session, parse_count
from delta_sharing_spark.network.process_cache import ProcessCache
from delta_sharing_spark.network.urls import is_local_address, is_loopback, parse_url, redirect_refusal
from delta_sharing_spark.redaction import redact, without_secrets
from delta_sharing_spark.schema.instants import show_seconds
from delta_sharing_spark.sharing.profile import load_profile
from delta_sharing_spark.sharing.queries import Query
from delta_sharing_spark.sharing.rest import SharingRest
from delta_sharing_spark.storage.presigned import url_reader
from delta_sharing_spark.storage.range_reader import RangeReader, StorageSettings
from delta_sharing_spark.storage.ranges import check_range
from support.refusals import not_refused
from unit.sharing.scripted_server import HEAD, NAME, OK, TOKEN, Reply, Rest, ScriptedServer, refusal

HASTY = NetworkSettings(connect_timeout=1, read_timeout=1, retry_seconds=1, first_contact_seconds=1)
Speak = Callable[[socket.socket], None]


class RawServer:
    """Speaks TCP as a test tells it to, to each client in a thread of its own."""

    def __init__(self, speak: Speak) -> None:
        self._speak, self._ended = speak, threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.clients = 0
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.clients += 1
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            client.recv(65536)
            self._speak(client)

    def __enter__(self) -> RawServer:
        return self

    def __exit__(self, *_: object) -> None:
        # Its thread ends before the descriptor is free: it would take the clients of whoever has that number next.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()


def a_byte_at_a_time(text: bytes) -> Speak:
    def speak(client: socket.socket) -> None:
        for byte in itertools.chain(text, itertools.repeat(32)):
            client.sendall(bytes([byte]))
            time.sleep(0.2)

    return speak


def endless(start: bytes, repeated: bytes, pause: float = 0.0) -> Speak:
    def speak(client: socket.socket) -> None:
        client.sendall(start)
        while True:
            client.sendall(repeated)
            time.sleep(pause)

    return speak


WITHOUT_END = {
    "head": a_byte_at_a_time(b"HTTP/1.1 200 OK\r\nX: "),
    "continue": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.01),
    "body": a_byte_at_a_time(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{"),
    "chunks": endless(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n", 0.05),
    "silence": lambda client: time.sleep(20),
    "until closed": endless(b"HTTP/1.1 200 OK\r\n\r\n", b" ", 0.1),
}


@pytest.mark.parametrize("asked", ["listing", "query", "data", "profile"])
def test_answers_without_end(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All kinds at once: what they take is waiting."""
    monkeypatch.setattr("delta_sharing_spark.network.http.NetworkSettings", lambda **_: HASTY)
    with ThreadPoolExecutor(len(WITHOUT_END)) as pool:
        ended = {kind: pool.submit(_ends, speak, asked) for kind, speak in WITHOUT_END.items()}
        assert {kind: future.result() for kind, future in ended.items()} == dict.fromkeys(WITHOUT_END, True)


def _ends(speak: Speak, asked: str) -> bool:
    """Whether what is asked of such a server ends in time, with an error of ours."""
    with RawServer(speak) as server:
        rest = SharingRest(
            load_profile({"shareCredentialsVersion": 1, "endpoint": server.url, "bearerToken": TOKEN}), HASTY
        )
        ask: dict[str, Callable[[], object]] = {
            "listing": lambda: list(rest.list_shares()),
            "query": lambda: list(rest.query(NAME, Query()).blocks()),
            "data": lambda: source(f"{server.url}/f", connect_timeout=1, read_timeout=1).read(0, 1000),
            "profile": lambda: load_profile(f"{server.url}/p.share"),
        }
        begin = time.monotonic()
        with pytest.raises(DeltaSharingError):
            ask[asked]()
        return time.monotonic() - begin < 15 and server.clients > 0


class Lease:
    def __init__(self, url: str) -> None:
        self._url = url

    def current(self) -> str:
        return self._url

    def refused(self, source: str, name: str, refusal: PermissionError, refusals: int) -> None:
        raise FileError(str(refusal))


def source(url: str, **policy: object) -> RangeReader:
    settings = StorageSettings(**{"local_server": True, "retry_seconds": 0.2, **policy})  # type: ignore[arg-type]
    return url_reader(Lease(url), settings, name="part-1", size=1000)


BOMB = gzip.compress(b" " * (80 << 20), 1)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply(BOMB, headers={"Content-Encoding": "gzip"}), "larger than 32 MiB"),
        (Reply(gzip.compress(BOMB), headers={"Content-Encoding": "gzip, gzip"}), "content encoding"),
        (Reply(b" " * (33 << 20)), "larger than 32 MiB"),
        (Reply(b"x", headers={"Content-Encoding": "br"}), "content encoding"),
    ],
)
def test_bodies_have_a_bound(server: ScriptedServer, rest: SharingRest, reply: Reply, message: str) -> None:
    server.on("", reply)
    with pytest.raises(ResponseError, match=message):
        list(rest.list_shares())
    with pytest.raises(ResponseError, match=message):
        rest.credentials(NAME)
    with pytest.raises(ProfileError, match=r"larger than|content encoding"):
        load_profile(f"{server.endpoint}/p.share")


@pytest.mark.parametrize(
    ("body", "headers", "message"),
    [
        (b"x" * (65 << 20), {}, "line of more than 64 MiB"),
        (b"{}\n" * 100_001, {}, "no kind that is known"),
        (gzip.compress(b"\n" * (80 << 20), 1), {"Content-Encoding": "gzip"}, "expand to more than"),
    ],
)
def test_lines_have_bounds(
    server: ScriptedServer, rest: SharingRest, body: bytes, headers: dict[str, str], message: str
) -> None:
    server.on("/query", Reply(body, headers=headers))
    with pytest.raises(ResponseError, match=message):
        rest.query(NAME, Query())


def test_pages_end(server: ScriptedServer, rest: SharingRest) -> None:
    numbers = itertools.count()
    server.on("/shares", lambda asked: Reply({"items": [], "nextPageToken": f"t{next(numbers)}"}))
    with pytest.raises(ResponseError, match="goes on after 100 pages"):
        list(rest.list_shares())
    server.on("/query", lambda asked: Reply([*HEAD, {"endStreamAction": {"nextPageToken": f"t{next(numbers)}"}}]))
    with pytest.raises(ResponseError, match="go on after 100 pages"):
        list(rest.query(NAME, Query()).blocks())


# Where a redirect leads


@pytest.mark.parametrize(
    "location", ["http://[", "/\xff", "http://h:99999/", "https://[", "http://127.0.0.1:0/", "ftp://h/", "//"]
)
def test_locations_that_are_none(server: ScriptedServer, rest: SharingRest, location: str) -> None:
    server.on("", Reply(status=302, headers={"Location": location}))
    with pytest.raises(ResponseError, match=r"redirects to .* not followed|without end"):
        rest.table_version(NAME)
    with pytest.raises(ProfileError, match=r"redirects to|without end"):
        load_profile(f"{server.endpoint}/p.share")
    with pytest.raises((FileError, ConfigError)):
        source(f"{server.endpoint}/f").read(0, 10)


@pytest.mark.parametrize(
    "url", ["https://[", "http://127.0.0.1:99999/f", "https://", "https://\ud800/f", "https://h\x00/"], ids=ascii
)
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(DeltaSharingError):
        source(url).read(0, 10)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_body_goes_to_no_other_host(server: ScriptedServer, rest: SharingRest, status: int) -> None:
    with ScriptedServer() as other:
        other.on("", Reply(HEAD))
        server.on("/query", Reply(status=status, headers={"Location": f"{other.endpoint}/query"}))
        with pytest.raises(ResponseError, match="a request with a body is not sent anywhere else"):
            rest.query(NAME, Query(refresh_token="refresh-me"))
        assert not other.asked
    server.on("/query", Reply(status=status, headers={"Location": "/prefix/elsewhere"}))
    server.on("/elsewhere", Reply(HEAD))
    if status in (307, 308):
        assert rest.query(NAME, Query(limit_hint=3)).head.metadata.id == "T"
        assert server.asked[-1].json["limitHint"] == 3
    else:
        with pytest.raises(ResponseError, match="not followed"):
            rest.query(NAME, Query())


@pytest.mark.parametrize(
    ("url", "target", "refused"),
    [
        ("https://a/x", "https://b/y", None),
        ("https://a/x", "http://a/x", "not encrypted"),
        ("https://a/x", "http://127.0.0.1/x", "not encrypted"),
        ("https://a/x", "https://127.0.0.1/x", "this machine"),
        ("https://a/x", "https://[::1]/x", "this machine"),
        ("https://a/x", "https://[::ffff:127.0.0.1]/x", "this machine"),
        ("https://a/x", "https://localhost/x", "this machine"),
        ("https://a/x", "https://api.localhost./x", "this machine"),
        ("https://a/x", "https://169.254.169.254/x", "this machine"),
        ("https://a/x", "https://[fe80::1]/x", "this machine"),
        ("https://a/x", "https://0.0.0.0/x", "this machine"),
        ("https://a/x", "https://[64:ff9b::a9fe:a9fe]/x", "this machine"),
        ("https://a/x", "https://[2002:7f00:1::]/x", "this machine"),
        ("https://a/x", "ftp://a/x", "not https"),
        ("http://127.0.0.1/x", "http://169.254.169.254/x", "not encrypted"),
        ("http://127.0.0.1/x", "https://169.254.169.254/x", "this machine"),
        ("http://127.0.0.1/x", "http://localhost:1/x", None),
        ("http://127.0.0.1/x", "http://b/x", "not encrypted"),
    ],
)
def test_where_redirects_may_lead(url: str, target: str, refused: str | None) -> None:
    reason = redirect_refusal(parse_url(url), parse_url(target))
    assert (reason is None) if refused is None else (reason is not None and refused in reason)


def test_a_name_that_leads_to_this_machine_is_not_asked(
    server: ScriptedServer, settings: NetworkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookup = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *a, **k: lookup("127.0.0.1" if "example" in str(host) else host, *a, **k)
    )
    server.on("", OK)
    for host in ("127.0.0.1", "localhost", "data.example"):
        with refusing_local_addresses(), pytest.raises(AddressRefusedError, match=r"127\.0\.0\.1|::1"):
            data_session(settings).get(f"http://{host}:{server.port}/f")
    # A pooled connection is looked at again.
    assert data_session(settings).get(f"http://127.0.0.1:{server.port}/f").status_code == 200
    with refusing_local_addresses(), pytest.raises(AddressRefusedError):
        data_session(settings).get(f"http://127.0.0.1:{server.port}/f")
    assert len(server.asked) == 1
    with pytest.raises(ConfigError, match=r"data\.example, which leads to 127\.0\.0\.1.*allowedDataHosts"):
        source(f"https://data.example:{server.port}/f").read(0, 10)
    server.on("/moved", Reply(status=302, headers={"Location": f"https://data.example:{server.port}/f"}))
    with pytest.raises(ConfigError, match=r"data\.example, which leads to 127\.0\.0\.1.*allowedDataHosts"):
        source(f"http://127.0.0.1:{server.port}/moved").read(0, 10)


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost", "[::1]", "169.254.169.254", "[fe80::1]", "0.0.0.0", "LOCALHOST.", "\uff4cocalhost"),
        *(
            "[::ffff:7f00:1]",
            "[::127.0.0.1]",
            "[64:ff9b::7f00:1]",
            "[64:ff9b:1::7f00:1]",
            "[2002:a9fe:a9fe::]",
            "[fd00:ec2::23]",
        ),
    ],
)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_server_elsewhere_names_no_data_on_this_machine(server: ScriptedServer, host: str, scheme: str) -> None:
    url = f"{scheme}://{host}:{server.port}/f"
    with pytest.raises(ConfigError, match="allowedDataHosts"):
        source(url, local_server=False).read(0, 10)
    assert not server.asked


def test_allowed_hosts_open_what_a_user_wants_open(server: ScriptedServer) -> None:
    server.on("/f", Reply(b"x" * 1000))
    data = source(f"http://127.0.0.1:{server.port}/f", local_server=False, allowed_hosts=("127.0.0.1",)).read(0, 10)
    assert bytes(data) == b"x" * 10


# What an error shows


@pytest.mark.parametrize(
    "echo",
    [
        json.dumps,
        lambda token: token.replace("-", "\\u002d").replace("d", "\\u0064"),
        lambda token: token.replace("-", "%2D"),
        lambda token: token.replace("-", "&#45;"),
        lambda token: "Bearer " + token,
        lambda token: " " * 16370 + token,
    ],
)
@pytest.mark.parametrize("as_json", [True, False])
def test_an_echoed_token_is_not_shown(
    server: ScriptedServer, rest: SharingRest, echo: Callable[[str], str], as_json: bool
) -> None:
    text = echo(TOKEN)
    server.on("", Reply(f'{{"errorCode": "{text}", "message": "got {text}"}}'.encode() if as_json else text, 403))
    with pytest.raises(ServerError) as caught:
        rest.table_version(NAME)
    words = str(caught.value) + str(vars(caught.value))
    assert TOKEN not in words
    assert TOKEN[5:-3] not in words
    assert TOKEN[5:-3] not in html.unescape(unquote(words.replace("\\u002d", "-").replace("\\u0064", "d")))


@pytest.mark.parametrize(
    "lines",
    [
        [*HEAD, {"endStreamAction": {"errorMessage": f"bad {TOKEN}"}}],
        [*HEAD, {"errorCode": TOKEN, "message": TOKEN.replace("-", "%2D")}],
        [*HEAD, {"endStreamAction": {"errorMessage": f"bad {TOKEN}", "httpStatusErrorCode": 503}}],
        [{"protocol": {"minReaderVersion": TOKEN}}],
        [{"queryStatus": {"status": "failed", "error": f"bad {TOKEN}"}}],
        [{"protocol": {"minReaderVersion": TOKEN.rjust(102)}}],
        [
            *HEAD,
            {
                "file": {
                    "deltaSingleAction": {"add": {"path": "p", "size": 1, "dataChange": TOKEN.rjust(52)}},
                    "id": "f",
                }
            },
        ],
        {"errorCode": TOKEN},
        {"items": [], "nextPageToken": [TOKEN]},
    ],
)
def test_a_token_echoed_after_the_status_200_is_not_shown(
    server: ScriptedServer, rest_of: Rest, lines: list[object] | dict[str, object]
) -> None:
    server.on("", Reply(lines))
    rest = rest_of(server, settings=HASTY)
    ask = (lambda: list(rest.list_shares())) if isinstance(lines, dict) else (lambda: rest.query(NAME, Query()))
    with pytest.raises(ServerError) as caught:
        ask()
    words = unquote(str(caught.value) + str(vars(caught.value)))
    assert TOKEN not in words
    assert TOKEN[5:-3] not in words


@pytest.mark.parametrize(
    "reply",
    [
        Reply(f"got {TOKEN}", 403, cut=4),
        Reply(f"got {TOKEN}", 403, cut=4, chunked=True),
    ],
)
def test_a_part_of_an_echoed_token_is_not_shown(server: ScriptedServer, rest: SharingRest, reply: Reply) -> None:
    server.on("", reply)
    with pytest.raises(ServerError, match="403") as caught:
        rest.table_version(NAME)
    assert TOKEN[5:-8] not in str(caught.value) + str(vars(caught.value))


@pytest.mark.parametrize("version", [TOKEN, TOKEN.rjust(102, "v")], ids=["alone", "at the end of a long one"])
def test_a_token_echoed_as_a_version_is_not_shown(server: ScriptedServer, rest: SharingRest, version: str) -> None:
    server.on("", Reply(headers={"Delta-Table-Version": version}))
    with pytest.raises(ServerError, match="has the version") as caught:
        rest.table_version(NAME)
    assert TOKEN[5:-12] not in str(caught.value)


def test_an_echoed_password_or_assertion_is_not_shown(server: ScriptedServer, rest_of: Rest) -> None:
    fields = {"shareCredentialsVersion": 2, "type": "basic", "username": "u", "password": "pass/word=1"}
    server.on("", lambda asked: refusal(403, message="you sent pass\\/word\u003d1 " + asked.headers["authorization"]))
    with pytest.raises(ServerError) as caught:
        rest_of(server, **fields).table_version(NAME)
    assert "word" not in str(caught.value)
    assert "cGFzcy93" not in str(caught.value)


LONG = 300_000
SPITEFUL = [
    "a",
    "a://",
    "a://b:",
    ":",
    'password:"',
    "bearer ",
    "https://u:",
    "?",
    "url: /",
    " ",
    "\\",
    "sig=",
    "x-amz-",
]


@pytest.mark.parametrize("unit", [*SPITEFUL, "'", "&#", "@", "a@", "//", "u:p@", "password ", "\u202e"])
def test_errors_take_time_in_proportion_to_their_text(unit: str) -> None:
    begin = time.process_time()
    error = DeltaSharingError(unit * (LONG // len(unit)))
    assert time.process_time() - begin < 5, "a quadratic pass takes minutes"
    assert len(str(error)) <= LONGEST_MESSAGE
    assert len(str(DeltaSharingError(str(error)))) <= LONGEST_MESSAGE, "errors are pickled by their text"


def test_what_is_shown_moves_no_cursor() -> None:
    raw = "a\x1b[2Jb\x07c\rd\u202ee\u2066f\x9bg\u2028h\x00i"
    assert displayable(raw) == printable(raw, one_line=True)
    assert not [c for c in printable(raw) if not c.isprintable()]
    assert json.loads(printable_json({raw: raw})) == {raw: raw}
    assert not [c for c in printable_json(raw) if not c.isprintable()]
    assert printable("naïve – 東京 👩‍🔬\n\t") == "naïve – 東京 👩‍🔬\n\t", "what people write stays as it is"


def test_secrets_are_found_in_any_spelling() -> None:
    assert without_secrets(r"\u0064a\/x%2fx&#x2F;x", ["da/x/x/x"]) == "[redacted]"
    assert redact(r"{\"clientSecret\":\"abc\"}") == r"{\"clientSecret\":[redacted]}"
    assert redact("clientSecret: 'ab") == "clientSecret: [redacted]", "also where the text was cut"
    assert redact("https:\\/\\/h\\/f?sig=x") == "https:\\/\\/h\\/f?[redacted]"


# Numbers


@pytest.mark.parametrize("text", ["²", "9" * 5000, "-1", "1e9", "", "٣", "+1"])
def test_numbers_of_headers_and_urls(server: ScriptedServer, text: str) -> None:
    assert parse_count(text) is None
    assert url_end(f"https://b/f?X-Amz-Date=20261121T080000Z&X-Amz-Expires={text}") is None
    body = (
        b"HTTP/1.1 200 OK\r\nContent-Length: " + text.encode("utf-8") + b"\r\nConnection: close\r\n\r\n" + b"x" * 1000
    )
    with RawServer(lambda client: client.sendall(body)) as raw, suppress(DeltaSharingError):
        assert bytes(source(f"{raw.url}/f").read(0, 10)) == b"x" * 10


def test_a_credential_that_ends_never_is_refused(server: ScriptedServer, rest: SharingRest) -> None:
    server.on("", Reply({"credentials": {"location": "s3://b/t", "expirationTime": 10**400}}))
    assert rest.credentials(NAME).expiration_time is None
    assert "1970" in show_seconds(1e300)


def test_what_cannot_be_held_is_not_allocated() -> None:
    reads = [partial(source("https://h/f").read, *part) for part in ((0, 1001), (0, 1 << 50), (-1, 2), (0, -1))]
    assert not_refused(FileError, "were asked for", *reads) == []
    unplanned = url_reader(Lease("https://h/f"), StorageSettings(), name="vector", size=None)
    with pytest.raises(FileError, match="unknown size"):
        check_range(unplanned, 0, 2 << 30)


# Profiles


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff\xfe{", "is not text in UTF-8 or UTF-16"),
        (b"{\xff", "is not text in UTF-8 or UTF-16"),
        (b" " * (2 << 20), "more than 1024 KiB"),
        (b"{", "not valid JSON"),
    ],
)
def test_profiles_that_are_none(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "p.share"
    path.write_bytes(data)
    with pytest.raises(ProfileError, match=message) as caught:
        load_profile(path)
    assert "Unicode" not in str(caught.value)


def test_a_profile_is_not_fetched_over_plain_http_after_a_redirect(server: ScriptedServer) -> None:
    server.on("/p.share", Reply(status=302, headers={"Location": "http://example.invalid/p.share"}))
    with pytest.raises(ProfileError, match="not encrypted"):
        load_profile(f"{server.endpoint}/p.share")


# Caches


def test_a_cache_is_bounded_by_number_and_weight() -> None:
    cache: ProcessCache[int, bytes] = ProcessCache(3, len, 10)
    for number in range(5):
        cache.put(number, b"x")
        assert cache.get(2 if 2 in cache else number) == b"x"
    assert [key for key, _ in cache.items()] == [3, 4, 2]
    cache.put(9, b"x" * 100)
    assert [key for key, _ in cache.items()] == [9], "the newest is kept, however heavy"
    assert cache.get_or_make(9, lambda: b"") == b"x" * 100


def test_a_fork_begins_with_empty_caches() -> None:
    import os

    cache: ProcessCache[int, int] = ProcessCache(3)
    cache.put(1, 1)
    with cache._lock:  # a lock held by another thread at the fork
        child = os.fork()
        if child == 0:
            os._exit(0 if len(cache) == 0 and cache.get_or_make(1, lambda: 2) == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert cache.get(1) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "LOCALHOST", "a.localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)
    assert not is_loopback(f"{host}.evil.example")
    assert not is_local_address("8.8.8.8")
