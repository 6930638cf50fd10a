"""Requests: what is tried again and for how long, where the token goes, through which proxy, with which certificates."""

from __future__ import annotations

import datetime
import gc
import gzip
import json
import logging
import random
import socket
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from delta_sharing_spark.errors import (
    ConfigError,
    DeltaSharingError,
    ForbiddenError,
    NetworkError,
    NotFoundError,
    OptionError,
    RequestRefusedError,
    ResponseError,
    ServerError,
    UnauthenticatedError,
    UnavailableError,
)
from delta_sharing_spark.network.http import NetworkSettings, data_session, rest_session
from delta_sharing_spark.network.retry import RetryableError, backoff, retry
from delta_sharing_spark.sharing.profile import Profile
from delta_sharing_spark.sharing.queries import Query
from delta_sharing_spark.sharing.rest import SharingRest
from delta_sharing_spark.sharing.transport import check_endpoint, with_retries
from delta_sharing_spark.storage.presigned import url_reader
from delta_sharing_spark.storage.range_reader import StorageSettings
from support import HANGS
from support.drawing import cases
from support.one_url import OneUrl
from unit.sharing.scripted_server import HEAD, NAME, OK, TOKEN, Asked, Clock, Reply, Rest, ScriptedServer, refusal


def unused_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


# What is tried again


@pytest.mark.parametrize(
    "fault",
    [
        *(refusal(status) for status in (408, 429, 500, 502, 503, 504)),
        Reply(reset=True),
        Reply({"items": []}, cut=3),
        Reply({"items": []}, cut=3, chunked=True),
    ],
)
def test_what_is_tried_again(server: ScriptedServer, rest: SharingRest, clock: Clock, fault: Reply) -> None:
    """T54; and a truncated answer (T58), which the references do not try again."""
    server.on("/shares", fault, fault, Reply({"items": [{"name": "a"}]}))
    assert [s.name for s in rest.list_shares()] == ["a"]
    assert len(clock.slept) == 2


@pytest.mark.parametrize(
    ("coding", "body", "words"),
    [
        ("gzip", b"not gzip", "gzip that its header Content-Encoding names is not what it holds"),
        ("gzip", gzip.compress(b'{"items": []}') + b"x", "has other bytes behind its end"),
        ("zstd", b"{}", "content encoding 'zstd', which was not asked for"),
    ],
)
def test_a_coding_that_is_none_is_told_at_once(
    server: ScriptedServer, rest: SharingRest, coding: str, body: bytes, words: str
) -> None:
    server.on("/shares", Reply(body, headers={"Content-Encoding": coding}))
    with pytest.raises(ResponseError, match=f"the list of shares: .*{words}; look for a proxy in between"):
        list(rest.list_shares())
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("coding", "encode"),
    [
        ("deflate", lambda body: (coder := zlib.compressobj(wbits=-15)).compress(body) + coder.flush()),
        ("gzip", lambda body: gzip.compress(body) + bytes(512)),
        ("utf-8", lambda body: body),
    ],
)
def test_codings_that_are_read(
    server: ScriptedServer, rest: SharingRest, coding: str, encode: Callable[[bytes], bytes]
) -> None:
    body = json.dumps({"items": [{"name": "a"}]}).encode()
    server.on("/shares", Reply(encode(body), headers={"Content-Encoding": coding}))
    assert [share.name for share in rest.list_shares()] == ["a"]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, RequestRefusedError),
        (401, UnauthenticatedError),
        (403, ForbiddenError),
        (404, NotFoundError),
        (405, RequestRefusedError),
        (409, RequestRefusedError),
        (413, RequestRefusedError),
        (501, RequestRefusedError),
        (302, ResponseError),
    ],
)
def test_what_is_not(
    server: ScriptedServer, rest: SharingRest, clock: Clock, status: int, kind: type[ServerError]
) -> None:
    server.on("", refusal(status, "THE_CODE", "the words."))
    with pytest.raises(ServerError) as caught:
        rest.query(NAME, Query(starting_version=0))
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.error_code) == (status, "THE_CODE")
    assert "sh.sch.t" in str(caught.value)
    assert "THE_CODE: the words; " in str(caught.value)
    assert clock.slept == []
    assert len(server.asked) == 1


def test_waits_double_with_jitter_up_to_a_bound(server: ScriptedServer, rest: SharingRest, clock: Clock) -> None:
    """T53 waits 1, 2, 4... seconds without jitter; here each wait is drawn from the upper half of 0.5, 1, 2... 30."""
    server.on("/version", refusal(503, "BUSY"))
    begin = clock()
    with pytest.raises(UnavailableError, match=r"the version of sh.sch.t.*503 BUSY.*try again later"):
        rest.table_version(NAME)
    assert 60 < clock() - begin <= 100, "bounded by retry_seconds, and used"
    for number, pause in enumerate(clock.slept):
        longest = min(30.0, 0.5 * 2**number)
        assert longest / 2 <= pause <= longest
    assert len(set(clock.slept)) == len(clock.slept)


@pytest.mark.parametrize(
    ("header", "low", "high"),
    [
        ("7", 7, 7.7),
        ("0", 0.2, 0.5),
        ("-5", 0.2, 0.5),
        ("soon", 0.2, 0.5),
        ("", 0.2, 0.5),
        ("²", 0.2, 0.5),
        ("DATE", 25, 34),
    ],
)
def test_retry_after(
    server: ScriptedServer, rest: SharingRest, clock: Clock, header: str, low: float, high: float
) -> None:
    if header == "DATE":
        header = format_datetime(datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=30))
    busy = Reply(status=429, headers={"Retry-After": header})
    server.on("/version", busy, OK)
    assert rest.table_version(NAME) == 7
    assert low <= clock.slept[0] <= high


def test_a_retry_after_beyond_the_bound_fails_at_once(server: ScriptedServer, rest: SharingRest, clock: Clock) -> None:
    server.on("/version", refusal(503, Retry_After="99999999999999999999"))
    with pytest.raises(UnavailableError):
        rest.table_version(NAME)
    assert clock.slept == []


@given(st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=30))
@cases(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_header_is_understood_or_an_error_of_ours(server: ScriptedServer, rest: SharingRest, text: str) -> None:
    value = text.strip()
    headers = dict.fromkeys(("Retry-After", "Delta-Table-Version", "Delta-Sharing-Capabilities", "fileidhash"), value)
    server.on("/query", Reply(status=503, headers=headers), Reply(HEAD, headers=headers))
    with suppress(DeltaSharingError):
        rest.query(NAME, Query())


def test_a_host_that_was_never_there_is_told_soon(settings: NetworkSettings, clock: Clock) -> None:
    """A mistyped port does not take the minutes that an outage is given."""
    rest = SharingRest(Profile(f"http://127.0.0.1:{unused_port()}", bearer_token=TOKEN), settings)
    begin = clock()
    with pytest.raises(
        NetworkError, match=r"version of sh.sch.t: the sharing server 127.0.0.1 could not be reached"
    ) as e:
        rest.table_version(NAME)
    assert 0 < clock() - begin <= 15
    assert "127.0.0.1 refused the connection: nothing listens on port" in str(e.value)


def test_a_host_of_an_unknown_name_is_told_as_one(settings: NetworkSettings) -> None:
    rest = SharingRest(Profile("https://sharing.invalid/api", bearer_token=TOKEN), settings)
    with pytest.raises(NetworkError, match=r"there is no host of the name sharing\.invalid"):
        rest.table_version(NAME)


def test_a_host_that_was_there_is_waited_for(rest_of: Rest, clock: Clock) -> None:
    with ScriptedServer() as server:
        server.on("/version", OK)
        rest = rest_of(server)
        rest.table_version(NAME)
    begin = clock()
    with pytest.raises(NetworkError):
        rest.table_version(NAME)
    assert 60 < clock() - begin <= 100


def test_a_server_that_is_silent(rest_of: Rest, server: ScriptedServer, clock: Clock) -> None:
    import time

    def slow(_: Asked) -> Reply:
        time.sleep(0.4)
        return OK

    server.on("/version", slow)
    rest = rest_of(server, NetworkSettings(read_timeout=0.1, retry_seconds=1, sleep=clock.sleep, clock=clock))
    with pytest.raises(NetworkError, match="timed out"):
        rest.table_version(NAME)


@pytest.mark.parametrize("error", [RuntimeError("x"), ConfigError("y"), KeyboardInterrupt()], ids=repr)
def test_what_is_not_transient_is_raised_as_it_is(
    settings: NetworkSettings, clock: Clock, error: BaseException
) -> None:
    """T53: other errors are never retried."""

    def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        with_retries(settings, fail)
    assert clock.slept == []


def test_retries_are_logged_without_secrets(
    server: ScriptedServer, rest: SharingRest, caplog: pytest.LogCaptureFixture
) -> None:
    server.on("/version", refusal(503, "BUSY", f"bad {TOKEN}"), OK)
    with caplog.at_level(logging.DEBUG):
        rest.table_version(NAME)
    assert any("trying again in" in r.getMessage() for r in caplog.records)
    assert TOKEN not in caplog.text


# Where the token goes


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_does_not_carry_the_token_to_another_host(
    server: ScriptedServer, rest: SharingRest, status: int
) -> None:
    with ScriptedServer() as other:
        other.on("/version", refusal(401, "UNAUTHENTICATED", "who are you"))
        server.on("/version", Reply(status=status, headers={"Location": f"{other.endpoint}/x/version"}))
        with pytest.raises(UnauthenticatedError, match=r"redirected from .* which is not sent the token"):
            rest.table_version(NAME)
        assert "authorization" not in other.asked[0].headers
        assert TOKEN not in str(other.asked)
        assert server.asked[0].headers["authorization"] == f"Bearer {TOKEN}"


def test_a_redirect_on_the_same_host_is_followed(server: ScriptedServer, rest: SharingRest) -> None:
    server.on("/version", Reply(status=307, headers={"Location": "/elsewhere"}))
    server.on("/elsewhere", OK)
    assert rest.table_version(NAME) == 7
    assert server.asked[1].headers["authorization"] == f"Bearer {TOKEN}"
    server.on("/elsewhere", Reply(status=307, headers={"Location": "/elsewhere"}))
    with pytest.raises(ResponseError, match="redirects without end"):
        rest.table_version(NAME)


@pytest.mark.parametrize(
    "endpoint", ["https://h", "https://h:8443/p", "http://localhost:1", "http://[::1]:1/p", "http://127.0.0.1"]
)
def test_endpoints_that_may_have_the_token(endpoint: str) -> None:
    check_endpoint(endpoint)


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        ("http://server.example/p", "is not https"),
        ("http://localhost.evil.example/p", "is not https"),
        ("http://127.0.0.1.evil.example", "is not https"),
        ("ftp://localhost", "is not https"),
        ("server.example/p", "not a plain https URL"),
        ("https://", "not a plain https URL"),
        ("https://me:s3cret@server", "not a plain https URL"),
        ("https://server?token=s3cret", "not a plain https URL"),
        ("https://server#x", "not a plain https URL"),
        ("s3cret-token", "not a plain https URL: it is not a URL"),
        ("https://server\\@s3cret/p", "not a plain https URL: it has a backslash"),
        ("https://server\t.s3cret", "not a plain https URL: it has a backslash, a blank or a control character"),
        ("http://[::1", "not a plain https URL: its host or port is none"),
        ("https://server:port", "not a plain https URL: its host or port is none"),
    ],
)
def test_endpoints_that_may_not(endpoint: str, message: str, settings: NetworkSettings) -> None:
    rest = SharingRest(Profile(endpoint, bearer_token=TOKEN), settings)
    with pytest.raises(ConfigError, match=message) as caught:
        list(rest.list_shares())
    assert "s3cret" not in str(caught.value)


def test_what_cannot_be_sent_is_no_network_error(server: ScriptedServer, settings: NetworkSettings) -> None:
    """http.client quotes a header that it refuses: the message does not."""
    rest = SharingRest(Profile(server.endpoint, bearer_token="secr3t\nX: y"), settings)
    with pytest.raises(ConfigError, match="cannot be made") as caught:
        list(rest.list_shares())
    assert "secr3t" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    rest = SharingRest(Profile(f"https://{'x' * 64}.example", bearer_token=TOKEN), settings)
    with pytest.raises(ConfigError, match="its host is no name"):
        list(rest.list_shares())


def test_an_echoed_token_is_not_quoted(server: ScriptedServer, rest: SharingRest, rest_of: Rest) -> None:
    server.on("/version", refusal(403, "DENIED", f"no table for {TOKEN}"))
    with pytest.raises(
        ForbiddenError, match=r"no table for \[redacted\].*ask the provider of the share for access"
    ) as caught:
        rest.table_version(NAME)
    assert TOKEN not in repr(caught.value) + str(vars(caught.value))
    basic = rest_of(server, shareCredentialsVersion=2, type="basic", username="me", password="p4ssw0rd-s3cret")
    server.on("/version", refusal(403, "DENIED", "not p4ssw0rd-s3cret"))
    with pytest.raises(ForbiddenError, match=r"not \[redacted\]"):
        basic.table_version(NAME)


def test_no_cookie_and_no_netrc(
    server: ScriptedServer, rest: SharingRest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session is the process's: nothing of one recipient stays in it, nothing of ~/.netrc gets in."""
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password s3cret\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    server.on("", Reply(headers=OK.headers | {"Set-Cookie": "session=1; Path=/"}))
    rest.table_version(NAME)
    rest.table_version(NAME)
    data_session(rest.settings).get(server.endpoint, timeout=HANGS)
    assert [a.headers.get("authorization") for a in server.asked] == [f"Bearer {TOKEN}"] * 2 + [None]
    assert all("cookie" not in a.headers for a in server.asked)


def test_debug_logs_hold_no_url_query(server: ScriptedServer, caplog: pytest.LogCaptureFixture) -> None:
    """urllib3 logs the path of every request; the query of a presigned URL is a secret."""
    server.on("", Reply(b"x"))
    with caplog.at_level(logging.DEBUG):
        data_session(NetworkSettings()).get(f"{server.endpoint}/f.parquet?X-Amz-Signature=s3cret", timeout=HANGS)
    assert "f.parquet?[redacted]" in caplog.text
    assert "s3cret" not in caplog.text


# Sessions


def test_sessions_are_shared_by_what_they_depend_on(settings: NetworkSettings, tmp_path: Path) -> None:
    same = replace(settings, read_timeout=1.0)
    assert rest_session(settings) is rest_session(same)
    assert rest_session(settings) is not data_session(settings)
    others = [
        replace(settings, proxy="http://p:1"),
        replace(settings, caller_org="x"),
        replace(settings, engine="Spark/4"),
    ]
    assert len({id(rest_session(s)) for s in (settings, *others)}) == 4


def test_the_number_of_sessions_is_bounded(settings: NetworkSettings) -> None:
    from delta_sharing_spark.network import http

    for number in range(40):
        data_session(replace(settings, caller_org=str(number)))
    assert len(http._sessions) <= 16


def test_the_user_agent(server: ScriptedServer, rest_of: Rest, settings: NetworkSettings) -> None:
    server.on("/version", OK)
    rest_of(server, replace(settings, caller_org="Ac me\n\u00e9", engine="Spark/4.3.0")).table_version(NAME)
    rest_of(server).table_version(NAME)
    first, second = (a.headers["user-agent"] for a in server.asked)
    assert first.startswith("Delta-Sharing-Spark-Python/")
    assert " Spark/4.3.0 Python/3." in first
    assert first.endswith(" callerOrg-Ac_me__")
    assert "callerOrg" not in second


# Proxies


@pytest.fixture
def proxy() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        running.on("/version", Reply(headers={"Delta-Table-Version": "99"}))
        running.on("/oauth", Reply({"access_token": "t", "expires_in": 3600}))
        running.on("/data", Reply(b"by proxy"))
        yield running


def _all_requests(rest_of: Rest, server: ScriptedServer, settings: NetworkSettings) -> tuple[int, bytes]:
    oauth = {"tokenEndpoint": f"{server.endpoint}/oauth", "clientId": "a", "clientSecret": f"b{server.port}"}
    rest = rest_of(server, settings, shareCredentialsVersion=2, type="oauth_client_credentials", **oauth)
    server.on("/oauth", Reply({"access_token": "t", "expires_in": 3600}))
    server.on("/data", Reply(b"direct"))
    server.on("/version", OK)
    version = rest.table_version(NAME)
    return version, data_session(settings).get(f"{server.endpoint}/data", timeout=HANGS).content


@pytest.mark.parametrize("origin", ["option", "environment", "option before environment"])
def test_one_proxy_for_rest_oauth_and_data(
    server: ScriptedServer,
    proxy: ScriptedServer,
    rest_of: Rest,
    settings: NetworkSettings,
    monkeypatch: pytest.MonkeyPatch,
    origin: str,
) -> None:
    """peers.md 2.6: the JVM client's proxy settings hold for data only."""
    address = f"http://user:s3cret@127.0.0.1:{proxy.port}"
    if origin != "option":
        elsewhere = f"http://127.0.0.1:{unused_port()}"
        monkeypatch.setenv("HTTP_PROXY", address if origin == "environment" else elsewhere)
        monkeypatch.setenv("http_proxy", address if origin == "environment" else elsewhere)
    if origin != "environment":
        settings = replace(settings, proxy=address)
    assert _all_requests(rest_of, server, settings) == (99, b"by proxy")
    assert server.asked == []
    assert len(proxy.asked) == 3
    assert "s3cret" not in repr(settings)


def test_no_proxy(
    server: ScriptedServer,
    proxy: ScriptedServer,
    rest_of: Rest,
    settings: NetworkSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert _all_requests(rest_of, server, settings) == (7, b"direct")
    assert proxy.asked == []


class _RefusingProxy(BaseHTTPRequestHandler):
    def do_CONNECT(self) -> None:
        self.send_error(407)

    def log_message(self, *_: object) -> None: ...


@pytest.mark.parametrize("how", ["answers", "is not there"])
def test_a_proxy_that_refuses_is_named(settings: NetworkSettings, clock: Clock, how: str) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _RefusingProxy) as refusing:
        threading.Thread(target=refusing.serve_forever, daemon=True).start()
        port = refusing.server_port if how == "answers" else unused_port()
        settings = replace(settings, proxy=f"http://user:s3cret@127.0.0.1:{port}", retry_seconds=5)
        reason = "407 Proxy Authentication Required" if how == "answers" else "nothing listens at its address"
        rest = SharingRest(Profile("https://sharing.invalid", bearer_token="t0ken"), settings)
        with pytest.raises(NetworkError, match=rf"the proxy on the way to .*sharing\.invalid .*{reason}") as refused:
            rest.table_version(NAME)
        assert (clock.slept == []) == (how == "answers"), "its refusal is final"
        assert "s3cret" not in str(refused.value)
        source = url_reader(
            OneUrl("https://data.invalid/f?sig=x"),
            StorageSettings(retry_seconds=0.5, proxy=settings.proxy),
            name="f",
            size=1,
        )
        with pytest.raises(
            NetworkError, match=rf"the proxy on the way to data\.invalid (did not|refused to) connect.*{reason}"
        ):
            source.read(0, 1)
        refusing.shutdown()


def test_what_a_retried_call_holds_is_let_go_of_when_it_ends(settings: NetworkSettings) -> None:
    class Body:
        def arrived(self) -> int:
            return 0

    body = Body()
    held = weakref.ref(body)
    gc.disable()  # not when the collector comes
    try:
        retry(lambda: None, settings, reached=body.arrived)
        del body
        assert held() is None
    finally:
        gc.enable()


# Certificates


def test_tls_with_a_server_that_speaks_http_is_told(server: ScriptedServer, rest_of: Rest, clock: Clock) -> None:
    client = rest_of(server, endpoint=server.endpoint.replace("http:", "https:"))
    with pytest.raises(NetworkError, match=r"TLS with 127.0.0.1 failed \(.+\); no TLS is spoken on that port; check"):
        client.table_version(NAME)
    assert clock.slept == []


@pytest.mark.parametrize("origin", ["option", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_certificates_from_the_option_or_the_environment(
    secure: ScriptedServer,
    rest_of: Rest,
    settings: NetworkSettings,
    certificate: Path,
    monkeypatch: pytest.MonkeyPatch,
    origin: str,
) -> None:
    from delta_sharing_spark.network import http

    http._sessions.clear()
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    if origin == "option":
        settings = replace(settings, ca_bundle=str(certificate))
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", requests.certs.where())
    else:
        monkeypatch.setenv(origin, str(certificate))
    try:
        assert rest_of(secure, settings).table_version(NAME) == 7
        assert data_session(settings).get(secure.endpoint, timeout=HANGS).status_code == 200
    finally:
        http._sessions.clear()


def test_certificates_that_are_not_there(rest_of: Rest, secure: ScriptedServer, settings: NetworkSettings) -> None:
    with pytest.raises(OptionError, match=r"caBundle names the certificates /nowhere.pem"):
        rest_of(secure, replace(settings, ca_bundle="/nowhere.pem")).table_version(NAME)


def test_a_head_that_was_cut_off_is_no_empty_answer(rest_of: Rest, server: ScriptedServer, clock: Clock) -> None:
    """What came looks like an answer without a body, of a server that is none of Delta Sharing."""
    import socket
    import threading

    line = b'{"protocol":{"minReaderVersion":1}}\n{"metaData":{"id":"T","format":{"provider":"parquet"},"partitionColumns":[],'
    line += b'"schemaString":"{\\"type\\":\\"struct\\",\\"fields\\":[]}"}}\n'
    whole = b"HTTP/1.1 200 OK\r\nDelta-Table-Version: 7\r\nContent-Length: %d\r\n\r\n%b" % (len(line), line)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            for sent in (whole[:30], whole):
                accepted, _ = listener.accept()
                with accepted:
                    accepted.recv(65536)
                    accepted.sendall(sent)

        threading.Thread(target=answer, daemon=True).start()
        client = rest_of(server, endpoint=f"http://127.0.0.1:{listener.getsockname()[1]}/x")
        assert client.metadata(NAME).version == 7
    assert len(clock.slept) == 1


def test_a_transient_failure_says_what_its_error_says() -> None:
    assert str(RetryableError(ResponseError("why"))) == "why"


def test_waits_leave_the_programs_random_numbers_alone(server: ScriptedServer, rest: SharingRest, clock: Clock) -> None:
    server.on("/version", refusal(503), refusal(429, Retry_After="1"), OK)
    before = random.getstate()
    assert rest.table_version(NAME) == 7
    backoff(3, 0.1, 1.0)
    assert len(clock.slept) == 2
    assert random.getstate() == before
