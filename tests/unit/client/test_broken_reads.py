"""Whatever breaks a read ends its threads: an exception at any line of what waits for them, as signal handlers raise them."""

from __future__ import annotations

import gc
import linecache
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

from delta_sharing_spark import SharingClient
from delta_sharing_spark.network import parallel_calls, process_end
from delta_sharing_spark.scan import parallel
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support.buckets import BucketServer

_FILES = {module.__file__ for module in (parallel_calls, process_end, parallel)}


class Interrupted(BaseException):
    """What a handler of a signal raises: Ctrl-C, or the limit of a scheduler's task."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BucketServer]:
    table = DeltaTableBuilder(tmp_path_factory.mktemp("t"), pa.schema([("n", pa.int64())]))
    for _ in range(4):
        table.append([{"n": n} for n in range(40)], files=2)
    with BucketServer({"sh.sc.url": table.path}) as running:
        running.add_bucket_table("sh.sc.dir", table.path)
        yield running


def ours() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("delta-sharing")}


def _stack(thread: threading.Thread) -> str:
    return f"{thread.name}: {''.join(traceback.format_stack(sys._current_frames().get(thread.ident or 0))[-9:])}"


def interrupted_at(line: int, call: Callable[[], object]) -> bool:
    """Raise an exception at a line of those that this thread comes to, counted; returns whether it came so far."""
    seen = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal seen
        if frame.f_code.co_filename not in _FILES:
            return None
        # Python lets no signal in as it leaves ``with`` a lock, where a tracer is told of its line once more.
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and not text.lstrip().startswith("with "):
            seen += 1
            if seen == line:
                sys.settrace(None)
                raise Interrupted
        return trace

    sys.settrace(trace)
    try:
        call()
    except Interrupted:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.skipif(sys.gettrace() is not None, reason="another tracer is there")
@pytest.mark.parametrize("name", ["sh.sc.url", "sh.sc.dir"])
def test_an_exception_at_any_line_leaves_no_thread(server: BucketServer, name: str) -> None:
    client = SharingClient(server.profile(), storageEndpoint=server.storage_endpoint)

    def read() -> None:
        assert client.table(name).scan().to_arrow().num_rows == 160

    read()
    line, step = 1, int(os.environ.get("INTERRUPT_STEP", "13"))
    while interrupted_at(line, read):
        line += step
        patience = time.monotonic() + 20
        while ours():
            gc.collect()
            assert time.monotonic() < patience, (line, [_stack(thread) for thread in ours()])
            time.sleep(0.005)
    assert line > 50


@pytest.mark.parametrize("how", ["reader", "generator", "lazy"])
@pytest.mark.parametrize("name", ["sh.sc.url", "sh.sc.dir"])
def test_what_is_dropped_half_way_leaves_no_thread(server: BucketServer, name: str, how: str) -> None:
    scan = SharingClient(server.profile(), storageEndpoint=server.storage_endpoint).table(name).scan()
    if how == "reader":
        reader = scan.to_record_batch_reader()
        reader.read_next_batch()
        del reader
    elif how == "generator":
        batches = scan._batches(2)
        next(batches)
        del batches
    else:
        assert scan.lazy().head(1).collect().height == 1
    patience = time.monotonic() + 20
    while ours():
        gc.collect()
        assert time.monotonic() < patience, [_stack(thread) for thread in ours()]
        time.sleep(0.005)


@pytest.mark.parametrize("name", ["sh.sc.url", "sh.sc.dir"])
def test_where_no_thread_can_be_started_any_more_the_caller_reads(
    server: BucketServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Python 3.12, once the main thread has ended."""
    begin = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name.startswith("delta-sharing"):
            raise RuntimeError("can't create new thread at interpreter shutdown")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    scan = SharingClient(server.profile(), storageEndpoint=server.storage_endpoint).table(name).scan()
    assert scan.to_arrow().num_rows == len(scan.to_pandas()) == scan.lazy().collect().height == 160
    assert scan.count() == 160
