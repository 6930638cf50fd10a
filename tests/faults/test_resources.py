"""What a read leaves behind when it ends early: no threads, sockets or files; and what it holds meanwhile."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.errors import ConfigError, DeltaSharingError
from delta_sharing_spark.scan.plan import Split
from delta_sharing_spark.scan.read import read_split
from delta_sharing_spark.storage.http import HttpPolicy, HttpSource
from delta_sharing_spark.testing.datafiles import FileStyle
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder


def ours() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("delta-sharing")}


def sockets() -> int:
    """Sockets of this process that are open."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{number}").startswith("socket:")
        except OSError:
            continue
    return found


def planned(server: SharingServer, name: str = "s.d.t", **options: str) -> Split:
    scan = SharingClient(server.profile(), **options).table(name).scan(columns=["id", "text"])
    (split,) = scan.plan().splits
    return split


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    deadline = time.monotonic() + 5
    while ours() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not ours()


@pytest.mark.parametrize("slow", ["nothing", "silent body", "waiting to try again"])
@pytest.mark.parametrize("after", [0, 1])
def test_closed_early(server: SharingServer, slow: str, after: int) -> None:
    split = planned(server, memoryBudget="1m", readTimeout="60s", retryTimeout="60s")
    skip = 12
    if slow == "silent body":
        server.faults.add("data", skip=skip, times=None, stall=30, stall_at=10)
    elif slow == "waiting to try again":
        server.faults.add("data", skip=skip, times=None, status=503, retry_after="40")
    began = time.monotonic()
    batches = read_split(split)
    for _ in range(after):
        next(batches)
    batches.close()  # type: ignore[attr-defined]
    while ours():
        assert time.monotonic() - began < 5
        time.sleep(0.02)


def test_a_failed_read_ends_its_threads(server: SharingServer) -> None:
    split = planned(server, retryTimeout="1s")
    server.faults.add("data", skip=9, times=None, status=503)
    with pytest.raises(DeltaSharingError):
        list(read_split(split))


def test_a_thousand_files_over_few_connections(server: SharingServer, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    data = pa.table({"id": range(1000), "text": [str(i) for i in range(1000)]}, schema)
    made = DeltaTableBuilder(tmp_path / "many", schema).append(data, files=1000)
    server.add_table("s.d.many", made.path)
    split = planned(server, "s.d.many", maxSplitBytes="1g")
    before, server_side = sockets(), 2
    server.reset_metrics()
    most = 0
    count = 0
    for batch in read_split(split):
        count += batch.num_rows
        most = max(most, sockets() - before)
    assert count == 1000
    assert len({request.connection for request in server.requests}) <= 10
    assert most <= 10 * server_side


def test_a_slow_consumer_does_not_make_memory_grow(server: SharingServer, tmp_path: Path) -> None:
    noise = os.urandom(1 << 20)
    schema = pa.schema([("id", pa.int64()), ("text", pa.binary())])
    made = DeltaTableBuilder(tmp_path / "fat", schema, style=FileStyle(parquet={"compression": "none"}))
    for number in range(60):
        made.append(pa.table({"id": [number], "text": [noise]}, schema))
    server.add_table("s.d.fat", made.path)
    split = planned(server, "s.d.fat", maxSplitBytes="1g", memoryBudget="32m")
    server.reset_metrics()
    batches, fetched = read_split(split), 0
    for taken in range(1, 9):
        next(batches)
        time.sleep(0.1)
        fetched = max(fetched, server.bytes_sent("data") - taken * (1 << 20))
    batches.close()  # type: ignore[attr-defined]
    assert fetched <= split.spec.fetch_ahead + (3 << 20), "small files count in the budget too"
    assert split.spec.fetch_ahead < 40 << 20


class _Url:
    def __init__(self, url: str) -> None:
        self._url = url

    def url(self) -> str:
        return self._url

    def refused(self, url: str, reason: str) -> None:
        raise AssertionError(reason)


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("http://data.example.com/f?sig=s3cret", "http://data.example.com"),
        ("ftp://data.example.com/f?sig=s3cret", "ftp://data.example.com"),
        ("file:///etc/passwd", "file://"),
    ],
)
def test_urls_that_are_not_admitted(url: str, named: str) -> None:
    import requests

    with requests.Session() as session:
        source = HttpSource(session, _Url(url), name="f", size=10, policy=HttpPolicy(retry_seconds=0))
        with pytest.raises(ConfigError, match=r"allowedDataHosts") as caught:
            source.read(0, 5)
    assert named in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_redirects_are_followed_without_leaving_for_plain_http(server: SharingServer) -> None:
    split = planned(server)
    server.faults.add("data", status=302, headers={"Location": "http://data.example.com/f"}, times=1)
    with pytest.raises(ConfigError, match=r"data\.example\.com, which is not encrypted"):
        list(read_split(split))


@pytest.mark.parametrize("mode", ["url", "dir"])
def test_cache(
    server: SharingServer, tmp_path: Path, expected: pa.Table, mode: str, note: Callable[[str], None]
) -> None:
    server.add_table("s.d.t", server.catalog.table("s", "d", "t").path, access_modes=(mode,))
    options = {"cacheDir": str(tmp_path / "cache"), "cacheMaxBytes": "100m"}
    for attempt in range(2):
        server.reset_metrics()
        batches = list(read_split(planned(server, **options)))
        assert pa.Table.from_batches(batches).sort_by("id").equals(expected)
        if attempt:
            assert server.count("data") == 0
        server.expire_urls()
    kept = sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*") if path.is_file())
    note(f"cache ({mode}): {kept} bytes kept, the second read asked for none")


def test_inline_secrets_are_warned_about_once_on_connect(recwarn: pytest.WarningsRecorder) -> None:
    from delta_sharing_spark.spark import inline_secrets

    inline_secrets._warned.clear()
    connect = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    for session, options in (
        (object(), {"bearerToken": "s3cret"}),
        (connect, {"endpoint": "https://host"}),
        (connect, {"bearerToken": "s3cret"}),
        (connect, {"bearerToken": "s3cret"}),
    ):
        inline_secrets.warn_of_inline_secrets(session, options)
    assert len(recwarn) == 1
    text = str(recwarn.pop(UserWarning).message)
    assert "bearerToken" in text
    assert "s3cret" not in text
