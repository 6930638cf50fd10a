"""What a server remembers of its requests, and names that need quoting."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import requests

from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support import HANGS


@pytest.fixture
def alone() -> Iterator[SharingServer]:
    with SharingServer() as server:
        yield server
        assert list(server.failures) == []


def test_requests_are_remembered_without_secrets(alone: SharingServer) -> None:
    headers = {"Authorization": f"Bearer {alone.token}", "X-Test": "1"}
    with requests.Session() as session:
        session.get(f"{alone.endpoint}/shares", headers=headers, timeout=HANGS)
        body = {"limitHint": 3}
        session.post(f"{alone.endpoint}/shares/x/schemas/y/tables/z/query", json=body, headers=headers, timeout=HANGS)
    first, second = alone.requests
    assert (first.method, first.kind, first.status, first.path) == ("GET", "shares", 200, "/delta-sharing/shares")
    assert (first.headers["x-test"], first.headers["authorization"]) == ("1", "")
    assert (second.kind, second.status, second.json) == ("query", 404, body)
    assert first.connection == second.connection
    assert alone.token not in repr(list(alone.requests))
    alone.reset_metrics()
    assert alone.count() == 0


def test_names_are_decoded_segment_by_segment(alone: SharingServer, tmp_path: Path) -> None:
    DeltaTableBuilder(tmp_path / "t", pa.schema({"x": pa.int64()}))
    alone.add_table("a.b?.sch#ema.t%2F ü", tmp_path / "t")
    url = f"{alone.endpoint}/shares/A.b%3F/schemas/sch%23ema/tables/t%252F%20%C3%BC/version"
    answer = requests.get(url, headers={"Authorization": f"Bearer {alone.token}"}, timeout=HANGS)
    assert (answer.status_code, answer.headers.get("Delta-Table-Version")) == (200, "0")


def test_range_of_a_large_file_goes_by_the_kernel(alone: SharingServer, tmp_path: Path) -> None:
    content = hashlib.shake_128(b"x").digest(20_000_000)
    (tmp_path / "f").write_bytes(content)
    headers = {"Range": "bytes=1000-15000000"}
    with requests.get(alone.data_url(tmp_path / "f"), headers=headers, timeout=HANGS) as answer:
        assert answer.content == content[1000:15_000_001]
    assert alone.bytes_sent() == 15_000_001 - 1000
    assert [r.range for r in alone.requests] == ["bytes=1000-15000000"]
    assert alone.requests[0].file == str(tmp_path / "f")


def test_bytes_a_client_did_not_take_do_not_count(alone: SharingServer, tmp_path: Path) -> None:
    with open(tmp_path / "big", "wb") as file:
        file.truncate(200_000_000)
    with requests.get(alone.data_url(tmp_path / "big"), stream=True, timeout=HANGS) as answer:
        answer.raw.read(1000)
    deadline = time.monotonic() + HANGS
    while alone.bytes_sent() == 200_000_000 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert 1000 <= alone.bytes_sent() < 100_000_000


def test_a_table_of_unknown_features_is_passed_on(alone: SharingServer, tmp_path: Path) -> None:
    DeltaTableBuilder(tmp_path / "t", pa.schema({"x": pa.int64()}), features=["someday"])
    alone.add_table("s.d.t", tmp_path / "t")
    url = f"{alone.endpoint}/shares/s/schemas/d/tables/t/metadata"
    headers = {"Authorization": f"Bearer {alone.token}"}
    refused = requests.get(url, headers=headers, timeout=HANGS)
    assert (refused.status_code, "someday" in refused.json()["message"]) == (400, True)
    headers["delta-sharing-capabilities"] = "responseformat=delta;readerfeatures=someday"
    answer = requests.get(url, headers=headers, timeout=HANGS)
    assert answer.status_code == 200
    assert '"readerFeatures":["someday"]' in answer.text
