"""Ranges over HTTP against a server that misbehaves in every way storages and networks do."""

from __future__ import annotations

import errno
import pickle
import random
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from delta_sharing_spark.errors import (
    CorruptFileError,
    CredentialError,
    DeltaSharingError,
    FileError,
    FileGoneError,
    NetworkError,
)
from delta_sharing_spark.network import pooled_connections
from delta_sharing_spark.network.connections import ReadCancelled
from delta_sharing_spark.network.retry import RetryableError
from delta_sharing_spark.storage import answers
from delta_sharing_spark.storage.clouds.registry import all_clouds
from delta_sharing_spark.storage.presigned import url_reader
from delta_sharing_spark.storage.range_reader import RangeReader, StorageSettings
from support import HANGS
from support.certificates import context_of
from support.refusals import not_refused
from unit.storage.misbehaving_server import Fault, Handler, Server, good

DATA = random.Random(7).randbytes(3_000_000)


@dataclass
class Lease:
    url: str
    renewed: list[str] = field(default_factory=list)
    fails: bool = False

    def current(self) -> str:
        return self.url

    def refused(self, source: str, name: str, refusal: PermissionError, refusals: int) -> None:
        assert source == self.url
        if self.fails:
            raise CredentialError("no other URL")
        self.renewed.append(str(refusal))
        self.url = f"{source}&renewed={len(self.renewed)}"


@dataclass
class Clock:
    now: float = 0.0
    waits: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server(DATA)
    yield one
    one.shutdown()
    one.server_close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def source(server: Server, clock: Clock, lease: Lease | None = None, **how: Any) -> RangeReader:
    size = how.pop("size", len(DATA))
    policy = StorageSettings(local_server=True, read_timeout=5.0, clock=clock, sleep=clock.sleep, **how)
    return url_reader(lease or Lease(server.url), policy, name="part-1", size=size)


def test_any_range_is_the_files(server: Server, clock: Clock) -> None:
    one = source(server, clock)
    parts = [(0, 10), (len(DATA) - 8, 8), (5, 0), (0, len(DATA)), (1_000_000, 1_500_000)]
    assert [(a, n) for a, n in parts if one.read(a, n) != DATA[a : a + n]] == []
    assert len(server.asked) == 4
    assert all("Authorization" not in h for h in server.headers)
    outside = [partial(one.read, *part) for part in ((-1, 5), (len(DATA), 1), (0, len(DATA) + 1))]
    assert not_refused(CorruptFileError, r"part-1.*truncated or damaged", *outside) == []


def short(handler: Handler, start: int, end: int) -> None:
    """The body ends early, though its length was declared; the connection closes."""
    handler.part(start, end, DATA[start : start + (end - start) // 3], length=end - start)
    handler.close_connection = True


def reset_midway(handler: Handler, start: int, end: int) -> None:
    handler.part(start, end, DATA[start : start + (end - start) // 2], length=end - start)
    handler.reset()


def reset_at_once(handler: Handler, start: int, end: int) -> None:
    handler.reset()


def less_than_asked(handler: Handler, start: int, end: int) -> None:
    """A 206 of fewer bytes than asked for, which HTTP allows."""
    middle = start + max(1, (end - start) // 2)
    handler.part(start, middle, DATA[start:middle])


def whole(handler: Handler, start: int, end: int) -> None:
    handler.answer(200, DATA)


def other_range(handler: Handler, start: int, end: int) -> None:
    handler.part(start + 1, end + 1, DATA[start + 1 : end + 1])


def no_content_range(handler: Handler, start: int, end: int) -> None:
    handler.answer(206, DATA[start:end])


def garbage(handler: Handler, start: int, end: int) -> None:
    handler.wfile.write(b"SSH-2.0-no\r\n\r\n")
    handler.close_connection = True


def status(code: int, body: bytes = b"", **headers: Any) -> Fault:
    return lambda handler, start, end: handler.answer(code, body, **headers)


@pytest.mark.parametrize(
    "fault",
    [short, reset_midway, reset_at_once, less_than_asked, whole, other_range, no_content_range, garbage, status(500), status(503), status(408), status(429)],
    ids=lambda f: getattr(f, "__name__", "status"),
)  # fmt: skip
@pytest.mark.parametrize("times", [1, 3])
def test_what_passes_is_tried_again_and_resumed(server: Server, clock: Clock, fault: Fault, times: int) -> None:
    server.faults.extend([fault] * times)
    one = source(server, clock)
    assert one.read(1000, 2_000_000) == DATA[1000:2_001_000]
    starts = [start for _, start, _ in server.asked]
    assert starts == sorted(starts)
    assert all(end == 2_001_000 for *_, end in server.asked)
    if fault in (short, less_than_asked):
        assert starts[-1] > 1000, "goes on from the byte it reached"


def test_the_unit_of_a_range_is_read_in_any_case(server: Server, clock: Clock) -> None:
    server.faults.append(
        lambda handler, start, end: handler.answer(
            206, DATA[start:end], **{"Content-Range": f"Bytes {start}-{end - 1}/{len(DATA)}"}
        )
    )
    assert source(server, clock).read(5, 10) == DATA[5:15]
    assert len(server.asked) == 1


def test_retry_after_is_waited_for(server: Server, clock: Clock) -> None:
    server.faults.extend([status(429, Retry_After=7), status(503, Retry_After=3)])
    assert source(server, clock).read(0, 10) == DATA[:10]
    first, second = clock.waits
    assert (7 <= first <= 7.7, 3 <= second <= 3.3) == (True, True)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (status(503), "HTTP 503"),
        (reset_at_once, "127.0.0.1 closed the connection"),
        (short, "127.0.0.1 ended its answer early"),
        (garbage, "127.0.0.1 did not answer in HTTP"),
    ],
    ids=["status", "reset_at_once", "short", "garbage"],
)
def test_retries_end(server: Server, clock: Clock, fault: Fault, why: str) -> None:
    server.always = fault
    one = source(server, clock, retry_seconds=20.0)
    with pytest.raises(NetworkError, match=rf"part-1.*\({why}\), tried for 20 s") as caught:
        one.read(0, 1)
    assert clock.now <= 20
    assert 4 < len(clock.waits) < 50
    assert_no_secret(caught.value)


def test_a_server_that_is_not_there(server: Server, clock: Clock) -> None:
    lease = Lease("http://127.0.0.1:9/f?sig=SECRET")
    with pytest.raises(NetworkError) as caught:
        source(server, clock, lease, retry_seconds=1.0).read(0, 1)
    assert_no_secret(caught.value)


def test_a_storage_that_never_gives_the_range_ends_soon(server: Server, clock: Clock) -> None:
    server.always = other_range
    with pytest.raises(FileError, match="other bytes than asked for"):
        source(server, clock).read(0, 10)
    assert len(server.asked) < 10


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            lambda h, s, e: h.part(s, e, DATA[s:e], total=len(DATA) + 5),
            f"it has {len(DATA) + 5} bytes, planned were {len(DATA)}",
        ),
        (lambda h, s, e: h.answer(200, DATA[:-1]), f"it has {len(DATA) - 1} bytes, planned"),
        (status(416), "shorter"),
    ],
)
def test_another_file_than_planned_is_an_error_at_once(
    server: Server, clock: Clock, fault: Fault, message: str
) -> None:
    server.always = fault
    with pytest.raises(CorruptFileError, match=message) as caught:
        source(server, clock).read(0, 10)
    assert "reload the table" in str(caught.value)
    assert caught.value.file == "part-1"
    assert len(server.asked) == 1


def test_an_etag_that_changes_between_ranges_is_an_error(server: Server, clock: Clock) -> None:
    def tagged(tag: str) -> Fault:
        return lambda h, s, e: h.part(s, e, DATA[s:e], ETag=tag)

    server.faults.extend([tagged('"a"'), tagged('W/"x"'), good, tagged('"a"'), tagged('"b"')])
    one = source(server, clock)
    for _ in range(4):
        one.read(0, 10)
    with pytest.raises(CorruptFileError, match="ETag changed"):
        one.read(0, 10)


@pytest.mark.parametrize(
    "refusal",
    [
        status(403),
        status(401),
        status(400, b"<Code>ExpiredToken</Code>"),
        status(404, b"Signature not valid: AuthenticationFailed"),
    ],
)
def test_a_refused_url_is_renewed(server: Server, clock: Clock, refusal: Fault) -> None:
    server.faults.extend([refusal, short, refusal])
    lease = Lease(server.url)
    assert source(server, clock, lease).read(0, 100_000) == DATA[:100_000]
    assert len(lease.renewed) == 2
    assert [path.count("renewed") for path, *_ in server.asked] == [0, 1, 1, 2]
    assert server.asked[-1][1] == 33_333


CODES = sorted({c for one in all_clouds() for c in one.ended_codes | one.credential_codes | one.transient})


@pytest.mark.parametrize("name", [*CODES, "InvalidArgument"])
@pytest.mark.parametrize("code", [400, 403, 404, 409])
def test_an_error_code_means_the_same_by_url_as_by_directory(
    server: Server, clock: Clock, code: int, name: str
) -> None:
    """Azure's 409 PublicAccessNotPermitted renews a URL, Google's 403 rateLimitExceeded is waited out, as with a directory's credential."""
    body = b"<Error><Code>%b</Code></Error>" % name.encode()
    meant = answers.failure_of(code, {}, body, what="f", method="GET", host="h")
    server.faults.append(status(code, body))
    lease = Lease(server.url)
    with suppress(FileError):
        source(server, clock, lease).read(0, 10)
    assert bool(lease.renewed) == isinstance(meant, answers.StorageRefusal)
    assert len(server.asked) == 1 + isinstance(meant, answers.StorageRefusal | RetryableError)


def test_renewals_end_and_a_lease_that_cannot_renew_says_why(server: Server, clock: Clock) -> None:
    server.always = status(403, b"<Error><Code>AccessDenied</Code></Error>")
    with pytest.raises(
        FileError, match=r"storage 127.0.0.1 refused it again after \d renewals \(HTTP 403 AccessDenied"
    ) as caught:
        source(server, clock).read(0, 10)
    assert 2 <= len(server.asked) <= 5
    assert clock.waits == [2.0], "what is new may not be known everywhere yet"
    assert_no_secret(caught.value)
    with pytest.raises(CredentialError, match="no other URL"):
        source(server, clock, Lease(server.url, fails=True)).read(0, 10)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (status(404), FileGoneError),
        (status(410), FileGoneError),
        (status(400, b"bad"), FileError),
        (status(451), FileError),
        (status(304), FileError),
    ],
)
def test_other_answers_are_errors_at_once(
    server: Server, clock: Clock, fault: Fault, kind: type[DeltaSharingError]
) -> None:
    server.always = fault
    with pytest.raises(kind, match="part-1") as caught:
        source(server, clock).read(0, 10)
    assert len(server.asked) == 1
    assert_no_secret(caught.value)


def test_redirects_are_followed_with_the_range_and_bounded(server: Server, clock: Clock) -> None:
    server.faults.append(status(302, Location="/elsewhere?sig=OTHER"))
    assert source(server, clock).read(5, 10) == DATA[5:15]
    assert server.asked[1] == ("/elsewhere?sig=OTHER", 5, 15)
    server.always = status(307, Location="/round")
    with pytest.raises(FileError, match="more than 5 redirects"):
        source(server, clock).read(5, 10)


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("http://example.invalid/f?sig=SECRET", "http://example.invalid, which is not encrypted.*allowedDataHosts"),
        ("ftp://127.0.0.1/f", "of the scheme 'ftp'"),
        ("file:///etc/passwd", "of the scheme 'file'"),
        ("s3://SECRET/f", "of the scheme 's3', where a signed https URL belongs"),
    ],
)
@pytest.mark.parametrize("is_redirected", [False, True], ids=["", "redirect"])
def test_plain_http_and_other_schemes_are_refused_also_after_a_redirect(
    server: Server, clock: Clock, location: str, why: str, is_redirected: bool
) -> None:
    server.always = status(302, Location=location)
    with pytest.raises(DeltaSharingError, match=why) as caught:
        source(server, clock, Lease(server.url if is_redirected else location)).read(0, 10)
    assert_no_secret(caught.value)


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("/\u00fc/%7e//k?", "/%C3%BC/%7e//k?"),
        ("//{host}//%2E%2E/k?a=%2f", "//%2E%2E/k?a=%2f"),
        ("http://{host}/a%2Db?", "/a%2Db?"),
        ("?b=%7E", "/f.parquet?b=%7E"),
    ],
)
def test_a_redirect_is_followed_letter_by_letter(server: Server, clock: Clock, location: str, target: str) -> None:
    """Servers that do not encode a path write it in UTF-8, which http.server and http.client take for Latin-1."""
    there = location.format(host=f"127.0.0.1:{server.server_address[1]}").encode().decode("latin-1")
    for turn in range(2):
        server.faults.append(lambda handler, *_: handler.answer(302, Location=there))
        assert source(server, clock).read(0, 10) == DATA[:10]
        assert server.lines[-1] == f"GET {target} HTTP/1.1", turn


@pytest.mark.parametrize("at", ["request", "body"])
def test_a_network_that_goes_away_under_a_kept_connection_is_tried_again(
    server: Server, clock: Clock, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """As the kernel tells of a lost route, which no server can show: no ConnectionError."""
    begin, failed = pooled_connections._HTTPAnswer.begin, list[str]()

    def fails(*_: object) -> Any:
        failed.append(at)
        raise OSError(errno.EHOSTUNREACH, "No route to host")

    def begun(answer: Any) -> None:
        if at == "request" and not failed:
            fails()
        begin(answer)
        if not failed:
            answer.fp.close()
            answer.fp = SimpleNamespace(readinto1=fails, close=lambda: None, flush=lambda: None)

    one = source(server, clock)
    one.read(0, 10)
    monkeypatch.setattr(pooled_connections._HTTPAnswer, "begin", begun)
    assert one.read(5, 10) == DATA[5:15]
    assert failed == [at]
    failed.clear()
    with pytest.raises(NetworkError, match="no route to 127"):
        source(server, clock, retry_seconds=0).read(5, 10)


def test_plain_http_to_a_trusted_host_is_allowed(server: Server, clock: Clock) -> None:
    lease = Lease("http://trusted.invalid/f?sig=SECRET")
    one = source(server, clock, lease, allowed_hosts=("trusted.invalid",), retry_seconds=0.5)
    with pytest.raises(NetworkError):
        one.read(0, 10)


def test_a_compressed_answer_is_refused(server: Server, clock: Clock) -> None:
    server.always = lambda h, s, e: h.part(s, e, DATA[s:e], Content_Encoding="gzip")
    with pytest.raises(FileError, match="compressed"):
        source(server, clock).read(0, 10)


def test_an_unknown_size_is_not_compared(server: Server, clock: Clock) -> None:
    assert source(server, clock, size=None).read(10, 10) == DATA[10:20]
    server.faults.append(whole)
    assert source(server, clock, size=None).read(10, 10) == DATA[10:20]


def test_threads_share_a_source(server: Server, clock: Clock) -> None:
    from concurrent.futures import ThreadPoolExecutor

    server.faults.extend([reset_midway, short, status(503), whole] * 5)
    one = source(server, clock)
    ranges = [(i * 10_000, 25_000) for i in range(200)]
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda r: one.read(*r) == DATA[r[0] : r[0] + r[1]], ranges))


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("silent", ["before the head", "in the body"])
def test_closing_breaks_off_a_read_under_way(certificate: Path, silent: str, tls: bool) -> None:
    hold = threading.Event()

    def slow(handler: Handler, start: int, end: int) -> None:
        if silent == "in the body":
            handler.part(start, end, DATA[start : start + 10], length=end - start)
        hold.wait(HANGS)

    server = Server(DATA, context_of(certificate) if tls else None)
    server.always = slow
    settings = StorageSettings(local_server=True, ca_bundle=str(certificate) if tls else None)
    one = url_reader(Lease(server.url), settings, name="part-1", size=len(DATA))
    caught: list[BaseException] = []

    def run() -> None:
        try:
            one.read(0, 1000)
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while not server.asked:
        time.sleep(0.01)
    time.sleep(0.1)
    one.close()
    thread.join(HANGS)
    hold.set()
    server.shutdown()
    server.server_close()
    assert isinstance(caught[0], ReadCancelled)


def assert_no_secret(error: DeltaSharingError) -> None:
    chain: BaseException | None = error
    while chain is not None:
        assert "SECRET" not in f"{chain!r} {chain}"
        chain = chain.__cause__ or (None if chain.__suppress_context__ else chain.__context__)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
