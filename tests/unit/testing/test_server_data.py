"""Data URLs: ranges, expiry, authentication, metrics; and the faults a test can switch on."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import requests

from delta_sharing_spark.testing.server import SharingServer
from support import HANGS
from unit.testing.plain_http import Asker, files, lines

CONTENT = os.urandom(1_000_003)


@pytest.fixture
def url(tmp_path: Path, server: SharingServer) -> str:
    path = tmp_path / "data file"
    path.write_bytes(CONTENT)
    server.reset_metrics()
    return server.data_url(path)


def get(url: str, span: str | None = None, **headers: str) -> requests.Response:
    if span is not None:
        headers["Range"] = f"bytes={span}"
    return requests.get(url, headers=headers, timeout=HANGS)


@pytest.mark.parametrize(
    ("span", "start", "end"),
    [
        ("0-0", 0, 1),
        ("10-99", 10, 100),
        ("1000000-", 1_000_000, 1_000_003),
        ("-8", 999_995, 1_000_003),
        ("0-9999999", 0, 1_000_003),
        ("-9999999", 0, 1_000_003),
        ("300000-900000", 300_000, 900_001),
    ],
)
def test_ranges(url: str, span: str, start: int, end: int) -> None:
    response = get(url, span)
    assert response.status_code == 206
    assert response.content == CONTENT[start:end]
    assert response.headers["content-range"] == f"bytes {start}-{end - 1}/{len(CONTENT)}"


def test_whole_and_head(server: SharingServer, url: str) -> None:
    whole = get(url)
    assert (whole.status_code, whole.content) == (200, CONTENT)
    head = requests.head(url, timeout=HANGS)
    assert (head.status_code, head.headers["content-length"]) == (200, str(len(CONTENT)))
    assert head.headers["etag"] == whole.headers["etag"]
    beyond = get(url, "1000003-")
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{len(CONTENT)}")
    assert get(url, **{"If-Match": '"other"'}).status_code == 412
    assert [(r.method, r.bytes) for r in server.requests][:2] == [("GET", len(CONTENT)), ("HEAD", 0)]
    assert server.count("data") == 4


def test_one_connection_for_many_requests(server: SharingServer, url: str) -> None:
    with requests.Session() as session:
        ports = set()
        for start in range(0, 5000, 100):
            with session.get(
                url, headers={"Range": f"bytes={start}-{start + 99}"}, stream=True, timeout=HANGS
            ) as served:
                ports.add(served.raw.connection.sock.getsockname()[1])
                assert served.content == CONTENT[start : start + 100]
    assert len(ports) == 1
    assert server.bytes_sent() == 5000


def test_authorization_is_refused(server: SharingServer, url: str) -> None:
    response = get(url, Authorization=f"Bearer {server.token}")
    assert response.status_code == 400
    assert "<Code>InvalidArgument</Code>" in response.text


def test_forged_urls(url: str, server: SharingServer, tmp_path: Path) -> None:
    forged = (url[:-1], url.replace("exp=", "exp=1"), url.replace("/data/", "/data/0"), url.partition("?")[0])
    assert [get(one).status_code for one in forged] == [403] * 4
    (tmp_path / "data file").unlink()
    assert get(url).status_code == 404


@pytest.mark.parametrize(
    ("style", "status", "text"),
    [
        ("s3", 403, "Request has expired"),
        ("s3-400", 400, "ExpiredToken"),
        ("azure", 403, "AuthenticationFailed"),
        ("gcs", 400, "ExpiredToken"),
    ],
)
def test_expiry(server: SharingServer, url: str, tmp_path: Path, style: str, status: int, text: str) -> None:
    server.settings.expired_style = style  # type: ignore[assignment]
    late = server.data_url(tmp_path / "data file", ttl=0.01)
    time.sleep(0.02)
    assert (get(late).status_code, text in get(late).text) == (status, True)
    assert get(url).status_code == 200
    server.expire_urls()
    assert get(url).status_code == status
    assert get(server.data_url(tmp_path / "data file")).status_code == 200


@pytest.mark.parametrize(("style", "name"), [("plain", "exp="), ("s3", "X-Amz-Expires=3"), ("azure", "&se=20")])
def test_url_styles(server: SharingServer, ask: Asker, style: str, name: str) -> None:
    server.settings.url_style = style  # type: ignore[assignment]
    for body in files(ask.query()):
        assert name in body["url"]
        assert get(body["url"]).status_code == 200


def test_status_and_count(server: SharingServer, url: str) -> None:
    fault = server.faults.add("data", skip=1, times=2, status=503, retry_after="0")
    assert [get(url, "0-9").status_code for _ in range(5)] == [206, 503, 503, 206, 206]
    assert fault.hits == 2
    server.faults.add("query", status=429, retry_after="7")
    response = Asker(server, "s.default.plain").query()
    assert (response.status_code, response.headers["retry-after"]) == (429, "7")
    assert set(response.json()) == {"errorCode", "message"}
    assert Asker(server, "s.default.plain").query().status_code == 200


def test_fault_by_path(server: SharingServer, url: str) -> None:
    server.faults.add("any", r"data file$", times=None, status=500)
    assert get(url).status_code == 500
    assert Asker(server, "s.default.plain").query().status_code == 200
    server.faults.clear()
    assert get(url).status_code == 200


@pytest.mark.parametrize(
    "what", [{"reset": True}, {"reset": True, "truncate": 70_000}, {"truncate": -1}, {"truncate": 0}]
)
def test_broken_connections(server: SharingServer, url: str, what: dict[str, object]) -> None:
    server.faults.add("data", **what)
    with pytest.raises((requests.ConnectionError, requests.exceptions.ChunkedEncodingError)):
        _ = get(url, "0-99999").content
    assert get(url, "0-9").content == CONTENT[:10]


def test_spoilt_answers(server: SharingServer, url: str) -> None:
    add = server.faults.add
    add("data", ignore_range=True)
    assert (get(url, "5-9").status_code, get(url, "5-9").status_code) == (200, 206)
    add("data", shift_range=3)
    shifted = get(url, "5-9")
    assert shifted.content == CONTENT[8:13]
    assert shifted.headers["content-range"].startswith("bytes 8-12/")
    add("data", corrupt=2)
    corrupt = get(url, "5-9").content
    assert (corrupt[2], corrupt[:2], corrupt[3:]) == (CONTENT[7] ^ 255, CONTENT[5:7], CONTENT[8:10])
    add("data", headers={"etag": '"new"', "Content-Range": None})
    changed = get(url, "5-9")
    assert changed.headers["etag"] == '"new"'
    assert "content-range" not in changed.headers
    add("data", grow=4)
    assert get(url).content == CONTENT + bytes(4)
    add("data", delay=0.1)
    began = time.monotonic()
    get(url, "0-1")
    assert time.monotonic() - began >= 0.1


def test_reset_is_one(server: SharingServer, url: str) -> None:
    server.faults.add("data", reset=True)
    with pytest.raises(requests.ConnectionError, match=r"reset by peer"):
        get(url)


def test_silence_and_calls(server: SharingServer, url: str) -> None:
    server.faults.add("data", stall=0.3, stall_at=500)
    with requests.get(url, stream=True, timeout=(5, 0.1)) as response:
        assert response.raw.read(500) == CONTENT[:500]
        with pytest.raises(Exception, match=r"timed out"):
            response.raw.read(500)
    server.faults.add("data", skip=1, call=server.expire_urls)
    assert [get(url, "0-9").status_code for _ in range(3)] == [206, 403, 403]


def test_truncated_rest_answer_and_dropped_file(server: SharingServer, ask: Asker) -> None:
    served = files(ask.query())
    server.faults.drop_file(served[0]["id"])
    assert [b["id"] for b in files(ask.query())] == [b["id"] for b in served[1:]]
    server.faults.add("query", truncate=-5)
    with pytest.raises((requests.ConnectionError, requests.exceptions.ChunkedEncodingError)):
        ask.query()


def test_slow_network(server: SharingServer, url: str) -> None:
    server.faults.shape(latency=0.02, bandwidth=10e6)
    began = time.monotonic()
    assert get(url).content == CONTENT
    assert time.monotonic() - began >= 0.11
    server.faults.clear()


def test_metrics_name_no_secrets(server: SharingServer, ask: Asker) -> None:
    server.reset_metrics()
    lines(ask.query())
    get(files(ask.query())[0]["url"])
    assert [(r.method, r.kind) for r in server.requests] == [("POST", "query"), ("POST", "query"), ("GET", "data")]
    assert all("?" not in r.path and "Signature" not in repr(r) for r in server.requests)
