"""What a read leaves behind when it ends early: no threads, sockets or files; and what it holds meanwhile."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.errors import CorruptFileError, DeltaSharingError
from delta_sharing_spark.network import retry
from delta_sharing_spark.network.connections import ReadCancelled
from delta_sharing_spark.network.parallel_calls import DaemonPool
from delta_sharing_spark.scan import fetching
from delta_sharing_spark.scan.pace import MOST_CONNECTIONS, Pace
from delta_sharing_spark.scan.parallel import read_splits
from delta_sharing_spark.scan.plan import Access, DeletionVector, FileTask, Split
from delta_sharing_spark.scan.row_decoder import RowDecoder
from delta_sharing_spark.scan.split_reader import SplitReader, read_split
from delta_sharing_spark.spark import session_settings
from delta_sharing_spark.storage.range_reader import RangeReader
from delta_sharing_spark.storage.ranges import ByteSource
from delta_sharing_spark.testing.tables import DeltaTableBuilder, FileStyle
from support import HANGS
from support.buckets import BucketServer

#: Threads of earlier tests of other modules, which may still wait for a storage that they made silent.
_EARLIER: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def ours() -> set[threading.Thread]:
    """Threads of reads of a test; a gateway of the native lane lives as long as its Spark session."""
    names = re.compile("delta-sharing(?!-native)")
    return {thread for thread in threading.enumerate() if names.match(thread.name) and thread not in _EARLIER}


def sockets() -> int:
    """Sockets of this process that are open."""
    sockets = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            sockets += os.readlink(f"/proc/self/fd/{number}").startswith("socket:")
        except OSError:
            continue
    return sockets


def planned(server: BucketServer, name: str = "s.d.t", **options: str) -> Split:
    load_options = {"storageEndpoint": server.storage_endpoint, **options}
    (split,) = SharingClient(server.profile(), **load_options).table(name).scan(columns=["id", "text"]).plan().splits
    return split


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    _EARLIER.update(ours())
    yield
    deadline = time.monotonic() + HANGS
    while ours() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not ours()


SLOW: dict[str, dict[str, Any]] = {
    "silent head": {"times": None, "delay": 30},
    "silent body": {"times": None, "stall": 30, "stall_at": 10},
    "waiting to try again": {"times": None, "status": 503, "retry_after": "40"},
}


def until(happened: Callable[[], object]) -> None:
    """Wait for it: far less long than anything here is slow."""
    began = time.monotonic()
    while not happened():
        assert time.monotonic() - began < 60
        time.sleep(0.01)


@pytest.mark.parametrize("name", ["s.d.t", "s.d.dir"])
@pytest.mark.parametrize("slow", SLOW)
@pytest.mark.parametrize("end_of_read", ["footer", "rows"])
def test_closed_early(
    server: BucketServer, end_of_read: str, slow: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With batches at hand, while another thread fetches the last file ahead, as where a storage is not near."""
    monkeypatch.setattr(Pace, "files_at_once", lambda pace, most: most)
    split = planned(server, name, memoryBudget="1m", readTimeout="60s", retryTimeout="60s")
    path = urlsplit(split.slices[-1].task.location).path
    fault = server.faults.add("data", path, skip=1 if end_of_read == "rows" else 0, **SLOW[slow])
    batches = read_split(split)
    for _ in batches:
        time.sleep(0.05)  # the last file's rows are asked for when some of the others' were taken
        if fault.hits:
            break
    batches.close()
    assert fault.hits
    until(lambda: not ours())


@pytest.mark.parametrize("name", ["s.d.t", "s.d.dir"])
@pytest.mark.parametrize("slow", SLOW)
@pytest.mark.parametrize("moment", ["before", "while"])
def test_closed_at_a_deletion_vector(
    server: BucketServer, moment: str, slow: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its request begins, or while it is under way."""
    split = planned(server, name, readTimeout="60s", retryTimeout="60s")
    last, go_on, open_vector = split.slices[-1].task.id, threading.Event(), type(split.access).open_vector

    def held_up(access: Access, task: FileTask, vector: DeletionVector) -> ByteSource:
        assert task.id != last or go_on.wait(HANGS)
        return open_vector(access, task, vector)

    monkeypatch.setattr(type(split.access), "open_vector", held_up)
    reader, has_rows = SplitReader(split, split.access), threading.Event()

    def read() -> None:  # to the end: how far a reader fetches ahead depends on the machine's pace
        with suppress(ReadCancelled):
            for _ in reader.decoded(RowDecoder(split.spec).batches):
                has_rows.set()

    reading = threading.Thread(target=read)
    reading.start()
    until(has_rows.is_set)
    fault = server.faults.add("data", "deletion_vector", **SLOW[slow])
    if moment == "while":
        go_on.set()
        until(lambda: fault.hits)
    reader.close()
    go_on.set()
    until(lambda: not ours())
    reading.join(HANGS)
    assert not reading.is_alive()


@pytest.mark.parametrize("name", ["s.d.t", "s.d.dir"])
@pytest.mark.parametrize("slow", SLOW)
def test_closed_at_a_renewal(server: BucketServer, slow: str, name: str) -> None:
    """As where a wait for the next batch is interrupted, while a thread asks the sharing server and others wait for it."""
    split = planned(server, name, memoryBudget="1m", readTimeout="60s", retryTimeout="60s")
    renewal = server.faults.add("query" if name == "s.d.t" else "credentials", **SLOW[slow])
    server.faults.add("data", times=None, status=400, body="<Error><Code>ExpiredToken</Code></Error>")
    reader = SplitReader(split, split.access)

    def read() -> None:
        with suppress(ReadCancelled):
            list(reader.decoded(RowDecoder(split.spec).batches))

    waiting = threading.Thread(target=read)
    waiting.start()
    until(lambda: renewal.hits)
    reader.close()
    until(lambda: not ours())
    waiting.join(HANGS)
    assert not waiting.is_alive()


@pytest.mark.parametrize("file", [1, 2])
def test_closed_as_the_next_file_is_submitted(server: BucketServer, monkeypatch: pytest.MonkeyPatch, file: int) -> None:
    """The pool refuses it then; that is no error of the reader's."""
    submitted = []

    class ClosingPool(DaemonPool):
        def submit(self, *arguments: Any, **named: Any) -> Future[Any]:
            submitted.append(arguments)
            if len(submitted) == file:
                reader.close()
            return super().submit(*arguments, **named)

    split = planned(server, maxSplitBytes="1g")
    monkeypatch.setattr(fetching, "DaemonPool", ClosingPool)
    reader = SplitReader(split, split.access)
    with pytest.raises(ReadCancelled, match="broken off"):
        list(reader.decoded(RowDecoder(split.spec).batches))
    assert len(submitted) == file
    until(lambda: not ours())


def test_abandoned_and_collected_as_its_own_pool_begins_a_thread(
    server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector may run in a thread of the reader that it ends, wherever that is: here as it submits its first file."""
    submitting, abandoned = threading.Event(), threading.Event()

    class CollectingPool(DaemonPool):
        def submit(self, *arguments: Any, **named: Any) -> Future[Any]:
            if threading.current_thread().name == "delta-sharing-split-1":
                submitting.set()
                assert abandoned.wait(HANGS)
            return super().submit(*arguments, **named)

        def _begin(self) -> None:  # called by submit
            if abandoned.is_set():
                until(lambda: (gc.collect(), gone() is None)[1])  # a collection under way elsewhere makes it do nothing
            super()._begin()

    monkeypatch.setattr(fetching, "DaemonPool", CollectingPool)
    first = planned(server, maxSplitBytes="1g")
    batches = read_splits([first, replace(first, index=1)], workers=2)
    next(batches)
    until(submitting.is_set)
    cycle: list[object] = [batches]
    cycle.append(cycle)
    gone = weakref.ref(batches)
    gc.disable()
    try:
        del batches, cycle
        abandoned.set()
        until(lambda: not ours())
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["s.d.t", "s.d.dir"])
@pytest.mark.parametrize("end", ["limit", "closed", "failed", "cut short"])
def test_nothing_piles_up(
    server: BucketServer, end: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads that end early, again and again: as many descriptors open as before, nothing in the temporary directory."""
    before = sockets()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(retry, "backoff", lambda *_: 0.01)
    split = planned(server, name, retryTimeout="20s", memoryBudget="1m")
    if end == "limit":
        split = replace(split, spec=replace(split.spec, limit=5))
    elif end == "failed":
        server.faults.add("data", skip=9, times=None, corrupt=700)
    open_now = []
    for _ in range(12):
        if end == "cut short":
            server.faults.add("data", skip=5, times=2, truncate=-1)
        batches = read_split(split)
        with suppress(CorruptFileError):
            next(batches)
            if end != "closed":
                list(batches)
        batches.close()
        # The thread that watches deadlines stays for a moment, and has no socket.
        until(lambda: all(thread.name == "delta-sharing-deadlines" for thread in ours()))
        open_now.append(sockets())
    # Both ends of the pooled connections are this process's; those that are being closed may still count.
    assert open_now[-1] <= before + 2 * MOST_CONNECTIONS + 4, open_now
    assert not list(tmp_path.rglob("*"))


def test_a_failed_read_ends_its_threads(server: BucketServer) -> None:
    split = planned(server, retryTimeout="1s")
    server.faults.add("data", skip=9, times=None, status=503)
    with pytest.raises(DeltaSharingError):
        list(read_split(split))


@pytest.fixture(scope="session")
def many(tmp_path_factory: pytest.TempPathFactory) -> DeltaTableBuilder:
    """A thousand files."""
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    data = pa.table({"id": range(1000), "text": [str(i) for i in range(1000)]}, schema)
    return DeltaTableBuilder(tmp_path_factory.mktemp("many") / "t", schema).append(data, files=1000)


@pytest.mark.parametrize("mode", ["url", "dir"])
def test_a_thousand_files_over_few_connections(
    server: BucketServer, many: DeltaTableBuilder, mode: str, note: Callable[[str], None]
) -> None:
    if mode == "url":
        server.add_table("s.d.many", many.path)
    else:
        server.add_bucket_table("s.d.many", many.path)
    split = planned(server, "s.d.many", maxSplitBytes="1g")
    before, server_side = sockets(), 2
    server.reset_metrics()
    most = 0
    count = 0
    for batch in read_split(split):
        count += batch.num_rows
        most = max(most, sockets() - before)
    assert count == 1000
    connections = len({request.connection for request in server.requests})
    note(f"a thousand files ({mode}): {server.count('data')} requests over {connections} connections")
    allowed = MOST_CONNECTIONS + 2  # of a far storage; one that answers within 2 ms is asked over one
    assert connections <= allowed
    assert most <= allowed * server_side


_SLOW_CONSUMER = """
import json, re, sys, time
from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.scan.split_reader import read_split
options, name = json.loads(sys.argv[1]), sys.argv[2]
client = SharingClient(options.pop("profile"), **options)
(split,) = client.table(name).scan().plan().splits
def most():
    return re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]
rows, before = 0, most()
for batch in read_split(split):
    rows += batch.num_rows
    time.sleep(0.02)
print(rows, before, most())
"""


@pytest.mark.parametrize("mode", ["url", "dir"])
def test_memory_of_a_slow_consumer(
    server: BucketServer, tmp_path: Path, mode: str, note: Callable[[str], None]
) -> None:
    """In a process of its own: what reading adds to what planning took."""
    schema = pa.schema([("id", pa.int64()), ("text", pa.binary())])
    made = DeltaTableBuilder(tmp_path / "fat", schema, style=FileStyle(parquet={"compression": "none"}))
    data = pa.table({"id": range(128), "text": [os.urandom(1 << 20) for _ in range(128)]}, schema)
    made.append(data, files=64)
    if mode == "url":
        server.add_table("s.d.fat", made.path)
    else:
        server.add_bucket_table("s.d.fat", made.path)
    options = {"profile": server.write_profile(tmp_path / "p.share"), "storageEndpoint": server.storage_endpoint}
    options |= {"maxSplitBytes": "1g", "memoryBudget": "32m"}
    done = subprocess.run(
        [sys.executable, "-c", _SLOW_CONSUMER, json.dumps(options), "s.d.fat"],
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
        # What malloc keeps for each thread varies by 40 MiB with the machine's pace, and is nothing that a reader holds.
        env={**os.environ, "MALLOC_ARENA_MAX": "1"},
    )
    assert done.returncode == 0, done.stderr
    rows, before, after = map(int, done.stdout.split())
    assert rows == 128
    note(
        f"a slow consumer ({mode}): 128 MiB in a budget of 32 MiB, {(after - before) >> 10} MiB more than after planning"
    )
    assert after - before < 64 << 10


@pytest.mark.parametrize("mode", ["url", "dir"])
@pytest.mark.parametrize(
    "fault",
    [{}, {"status": 503}, {"reset": True, "truncate": 900}, {"status": 403}],
    ids=["none", "503", "reset", "403"],
)
def test_bytes_that_were_decoded_are_let_go_of_at_once(
    server: BucketServer, monkeypatch: pytest.MonkeyPatch, mode: str, fault: dict[str, Any]
) -> None:
    """Not when Python's collector comes: it counts objects, of which a read makes few, and not their bytes."""
    fetched: list[weakref.ref[Any]] = []

    read = RangeReader.read

    def watched(self: Any, start: int, length: int) -> memoryview:
        data = read(self, start, length)
        fetched.append(weakref.ref(data.obj))
        return data

    monkeypatch.setattr(RangeReader, "read", watched)
    split = planned(server, "s.d.t" if mode == "url" else "s.d.dir", retryTimeout="20s")
    if fault:
        server.faults.add("data", times=2, skip=1, **fault)  # one file may meet them all
    gc.collect()
    gc.disable()
    try:
        for batch in read_split(split):
            assert batch.num_rows
        del batch
        deadline = time.monotonic() + HANGS  # a thread may still hold what it returned
        while (held := [ref for ref in fetched if ref() is not None]) and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        gc.enable()
    assert fetched
    assert not held, f"{len(held)} of {len(fetched)}"


def test_a_slow_consumer_is_not_fetched_for(server: BucketServer, tmp_path: Path) -> None:
    noise = os.urandom(1 << 20)
    schema = pa.schema([("id", pa.int64()), ("text", pa.binary())])
    made = DeltaTableBuilder(tmp_path / "fat", schema, style=FileStyle(parquet={"compression": "none"}))
    made.append(pa.table({"id": range(60), "text": [noise] * 60}, schema), files=60)
    server.add_table("s.d.fat", made.path)
    split = planned(server, "s.d.fat", maxSplitBytes="1g", memoryBudget="32m")
    server.reset_metrics()
    batches, ahead = read_split(split), 0
    own = {urlsplit(piece.task.location).path for piece in split.slices}
    for taken in range(1, 9):
        next(batches)
        # Bytes, not files: of a storage that is slow, footers alone are fetched ahead.
        asked = [request.bytes for request in list(server.requests) if urlsplit(request.path).path in own]
        ahead = max(ahead, sum(asked) - (taken << 20))
    batches.close()
    # Without the budget it would be the whole table; a few more are under way while what is taken is counted.
    assert ahead <= split.spec.fetch_ahead + (8 << 20), f"small files count in the budget too: {len(asked)} requests"
    assert split.spec.fetch_ahead < 40 << 20


@pytest.mark.parametrize("mode", ["url", "dir"])
def test_cache(
    server: BucketServer, tmp_path: Path, expected: pa.Table, mode: str, note: Callable[[str], None]
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


def test_clients_warn_once_of_inline_secrets_on_connect(recwarn: pytest.WarningsRecorder) -> None:
    session_settings._warned.clear()
    connect = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    for session, options in (
        (object(), {"bearerToken": "s3cret"}),
        (connect, {"endpoint": "https://host"}),
        (connect, {"bearerToken": "s3cret"}),
        (connect, {"bearerToken": "s3cret"}),
    ):
        session_settings.warn_of_inline_secrets(session, options)
    assert len(recwarn) == 1
    text = str(recwarn.pop(UserWarning).message)
    assert "bearerToken" in text
    assert "s3cret" not in text


def test_servers_log_inline_secrets_once_on_connect(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from delta_sharing_spark.spark.datasource import DeltaSharingDataSource

    session_settings._warned.clear()
    inline = {"bearertoken": "s3cret", "path": "s.d.t"}
    for artifacts, options in (
        ("default", inline),
        ("26d280d8", {"path": "p#s.d.t"}),
        ("26d280d8", inline),
        ("26d280d8", inline),
    ):
        monkeypatch.setenv("SPARK_JOB_ARTIFACT_UUID", artifacts)
        DeltaSharingDataSource(options)
    (record,) = caplog.records
    assert "bearertoken" in record.getMessage()
    assert "s3cret" not in record.getMessage()
