"""Storage in directory mode when requests fail: how long it waits, where it goes on, how it is ended."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from delta_sharing_spark.errors import FileError
from delta_sharing_spark.network.connections import Canceller, ReadCancelled
from delta_sharing_spark.storage.clouds.contract import Secret
from delta_sharing_spark.storage.clouds.registry import parse_location
from delta_sharing_spark.storage.objects import Storage
from delta_sharing_spark.storage.range_reader import FileVersion, StorageSettings, Transfer
from delta_sharing_spark.storage.ranges import Range
from support import HANGS
from support.buckets import BucketServer
from support.cloud_secrets import aws_session, azure_sas, gcp_bearer, no_secret

DATA = os.urandom(300_000)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BucketServer]:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "f.bin").write_bytes(DATA)
    with BucketServer() as running:
        yield running


def opened(server: BucketServer, directory: Path, scheme: str, **settings: Any) -> Storage:
    table = server.add_bucket_table("s.d.t", directory, scheme=scheme)
    vended: dict[str, Any] = server.vendors[scheme](table.root if table.location is None else table.location, table)
    secret: Secret
    if scheme == "s3":
        keys = vended["awsTempCredentials"]
        secret = aws_session(keys["accessKeyId"], keys["secretAccessKey"], keys["sessionToken"])
    elif scheme == "gs":
        secret = gcp_bearer(vended["gcpOauthToken"]["oauthToken"])
    else:
        secret = azure_sas(vended["azureUserDelegationSas"]["sasToken"])
    location = parse_location(str(table.location))
    return Storage(location, secret, StorageSettings(endpoint=server.storage_endpoint, retry_seconds=60, **settings))


def fetched(storage: Storage, start: int, end: int, canceller: Canceller, version: FileVersion | None = None) -> bytes:
    transfer = Transfer(Range(start, end), version or FileVersion("f", None))
    storage.fetch(parse_location(f"{storage.location}/f.bin"), transfer, canceller, what="f")
    return bytes(transfer.data)


class Waits(Canceller):
    """Notes how long it should have waited."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.seconds: list[float] = []

    def wait(self, seconds: float) -> None:
        self.seconds.append(seconds)


@pytest.mark.parametrize("scheme", ["s3", "gs", "abfss"])
def test_retry_after(server: BucketServer, tmp_path: Path, scheme: str) -> None:
    storage, waits = opened(server, tmp_path / "t", scheme), Waits("f")
    server.faults.add("data", times=1, status=503, retry_after="7")
    assert fetched(storage, 10, 1000, waits) == DATA[10:1000]
    assert len(waits.seconds) == 1
    assert 7 <= waits.seconds[0] <= 7.7


@pytest.mark.parametrize("scheme", ["s3", "gs", "abfss"])
@pytest.mark.parametrize("reset", [False, True])
def test_a_break_goes_on_where_it_was(server: BucketServer, tmp_path: Path, scheme: str, reset: bool) -> None:
    storage = opened(server, tmp_path / "t", scheme)
    server.faults.add("data", times=1, truncate=100_000, reset=reset)
    assert fetched(storage, 10, 250_010, Waits("f")) == DATA[10:250_010]
    first, second = (request.headers.get("range") or request.headers["x-ms-range"] for request in server.requests)
    assert first == "bytes=10-250009"
    if not reset:
        assert second == "bytes=100010-250009"
    assert second.endswith("-250009")


@pytest.mark.parametrize("scheme", ["s3", "gs", "abfss"])
@pytest.mark.parametrize("slow", ["silent", "waiting"])
def test_cancelled(server: BucketServer, tmp_path: Path, scheme: str, slow: str) -> None:
    storage, cancellation = opened(server, tmp_path / "t", scheme), Canceller("f")
    if slow == "silent":
        server.faults.add("data", times=None, stall=30, stall_at=10)
    else:
        server.faults.add("data", times=None, status=503, retry_after="30")
    ended: list[BaseException] = []

    def read() -> None:
        try:
            fetched(storage, 0, 1000, cancellation)
        except ReadCancelled as cancelled:
            ended.append(cancelled)

    thread = threading.Thread(target=read)
    thread.start()
    while not server.requests:
        time.sleep(0.01)
    cancellation.break_off()
    thread.join(HANGS)
    assert len(ended) == 1
    with pytest.raises(ReadCancelled):
        fetched(storage, 0, 1000, cancellation)


def test_what_this_machine_says(tmp_path: Path) -> None:
    storage = Storage(parse_location(f"file://{tmp_path}"), no_secret(), StorageSettings())
    with pytest.raises(FileError, match=r"Is a directory \(IsADirectoryError\)"):
        storage.get(parse_location(f"file://{tmp_path}"), 0, 10)


def connections(server: BucketServer) -> int:
    """Connections that this process holds open as the server's client.

    adlfs keeps connections to the end of the process: those of an earlier server on the same port do not count.
    """
    ports = {request.connection for request in server.requests}
    waits = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(number))) as connection:
                    waits += (
                        connection.getpeername() == (server.host, server.port) and connection.getsockname()[1] in ports
                    )
    return waits


def hung_up(server: BucketServer, left: int = 0) -> None:
    """Soon, no more connections are left: the storage's loop closes them in its own time."""
    deadline = time.monotonic() + HANGS
    while connections(server) > left and time.monotonic() < deadline:
        time.sleep(0.01)
    assert connections(server) == left


@pytest.mark.parametrize("scheme", ["s3", "gs", "abfss"])
def test_cancelled_in_a_body_hangs_up(server: BucketServer, tmp_path: Path, scheme: str) -> None:
    """Else the rest is sent for nobody, and asyncio logs an error once the response is forgotten."""
    storage, cancellation = opened(server, tmp_path / "t", scheme), Canceller("f")
    server.faults.add("data", times=None, stall=30, stall_at=10)
    began = threading.Event()

    class Noticed(FileVersion):
        def accept(self, requested: Range, status: int, headers: Mapping[str, str]) -> int:
            began.set()
            return super().accept(requested, status, headers)

    def read() -> None:
        with suppress(ReadCancelled):
            fetched(storage, 0, 1000, cancellation, Noticed("f", None))

    thread = threading.Thread(target=read)
    thread.start()
    assert began.wait(HANGS)
    assert connections(server) == 1
    cancellation.break_off()
    thread.join(HANGS)
    hung_up(server)


@pytest.mark.parametrize("scheme", ["s3", "gs", "abfss"])
@pytest.mark.parametrize("broken", ["silent", "short"])
def test_another_try_of_a_body_is_looked_at_as_well(
    server: BucketServer, tmp_path: Path, scheme: str, broken: str
) -> None:
    """Azure's SDK asks again by itself: it would take other bytes, and keep the silent connection open."""
    storage = opened(server, tmp_path / "t", scheme, read_timeout=0.3)
    server.faults.add("data", times=1, **{"silent": {"stall": 30, "stall_at": 10}, "short": {"truncate": 10}}[broken])
    server.faults.add("data", skip=1, times=1, shift_range=3)
    waits = Waits("f")
    assert fetched(storage, 5, 1000, waits) == DATA[5:1000]
    assert len(waits.seconds) == 2
    hung_up(server, 1)


@pytest.mark.parametrize("scheme", ["s3", "gs", "abfss"])
def test_a_connection_serves_one_read_after_another(server: BucketServer, tmp_path: Path, scheme: str) -> None:
    storage = opened(server, tmp_path / "t", scheme)
    location = parse_location(f"{storage.location}/f.bin")
    assert [storage.get(location, start, start + 1000) for start in range(0, 5000, 1000)] == [
        DATA[start : start + 1000] for start in range(0, 5000, 1000)
    ]
    assert storage.get(location) == DATA
    assert storage.get(location, 299_999, 300_000) == DATA[-1:]
    assert len({request.connection for request in server.requests}) == 1


@pytest.mark.parametrize("scheme", ["s3", "gs", "abfss"])
def test_an_empty_object(server: BucketServer, tmp_path: Path, scheme: str) -> None:
    (tmp_path / "t" / "empty.bin").touch()
    storage = opened(server, tmp_path / "t", scheme)
    assert storage.get(parse_location(f"{storage.location}/empty.bin")) == b""
