"""What becomes of a read when the process ends: by the kind of its thread and the way that it reads, in real processes.

All reads of a process wait for a silent storage when its main thread ends. Those that Python promises to finish then have their
rows; others end without a word. The table is in docs/faults-inside.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pytest

from delta_sharing_spark import SharingClient
from delta_sharing_spark.flight.gateway import FlightGateway
from delta_sharing_spark.flight.settings import GatewaySettings
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support import killed_after
from support.buckets import BucketServer

ROWS = 320

#: Ways of reading, as functions that return the number of rows.
WAYS = """
import pandas, polars  # a thread that Python ends within an import of these may take the process with it
import asyncio, atexit, concurrent.futures.thread, itertools, json, os, sys, threading, time, urllib.request
from delta_sharing_spark import SharingClient
from delta_sharing_spark.native.gateway import Gateway
from delta_sharing_spark.native.plan import NativePlan
from delta_sharing_spark.network import process_end
from delta_sharing_spark.scan.parallel import read_splits
from delta_sharing_spark.scan.split_reader import read_split
profile, endpoint, table, flight = sys.argv[1:]
table = SharingClient(json.loads(profile), storageEndpoint=endpoint, readTimeout="100s").table(table)
scan = table.scan()
flown = SharingClient(gateway=flight, gatewayToken="a-token").table("sh.sc.url").scan()
planned = scan.plan().splits

def lane():
    plan = NativePlan(scan.resolved(), scan.plan())
    address = Gateway().add(plan, lambda: False).replace("webhdfs:", "http:").replace(plan.token, "webhdfs/v1/" + plan.token)
    for file in range(len(plan.files)):
        with urllib.request.urlopen(f"{address}/{plan.files[file].name(0)}?op=OPEN") as answer:
            assert answer.read().endswith(b"PAR1")
    return scan.count()

WAYS = {
    "arrow": lambda: scan.to_arrow().num_rows,
    "pandas": lambda: len(scan.to_pandas()),
    "batches": lambda: sum(batch.num_rows for batch in scan.to_record_batch_reader()),
    "lazy": lambda: scan.lazy().collect().height,
    "lane": lane,
    "source": lambda: sum(batch.num_rows for split in planned for batch in read_split(split)),
    "flight": lambda: flown.to_arrow().num_rows,
}

def read(kind, way):
    # Written at once: threads that print side by side mix their lines.
    os.write(1, f"{kind} {way} {WAYS[way]()}\\n".encode())

def tell():
    while not concurrent.futures.thread._shutdown:  # what Python does first when the main thread has ended
        time.sleep(0.01)
    os.write(1, b"main has ended\\n")

"""
#: What runs each way in a thread of a kind that Python waits for, and one of kinds that it ends.
FINISHED = """
threading.Thread(target=tell, daemon=True).start()
pool = concurrent.futures.ThreadPoolExecutor(16)
for way in WAYS:
    threading.Thread(target=read, args=("thread", way)).start()
    pool.submit(read, "pool", way)
"""
ASYNC = """
async def main():
    asyncio.get_running_loop().set_default_executor(concurrent.futures.ThreadPoolExecutor(16))
    for way in WAYS:
        asyncio.ensure_future(asyncio.to_thread(read, "asyncio", way))
    await asyncio.sleep(0)  # all have begun, and are waited for by asyncio.run alone
    os.write(1, b"main has ended\\n")
asyncio.run(main())
"""
BROKEN_OFF = """
for way in WAYS:
    threading.Thread(target=read, args=("daemon", way), daemon=True).start()
held = scan.to_record_batch_reader()
other = read_splits(planned, 4)
threading.Thread(target=lambda: next(other), daemon=True).start()

def all_wait():
    names = [thread.name for thread in threading.enumerate() if thread.ident in process_end._awaiting]
    is_lazy = not process_end._awaiting <= {thread.ident for thread in threading.enumerate()}  # Polars has threads of its own
    # All ways but "lazy" and "lane", and the two of these.
    return sum(name.startswith("Thread-") for name in names) >= 6 and "delta-sharing-native-connection" in names and is_lazy

while not all_wait():
    time.sleep(0.01)
"""
#: Daemons that begin to read when all that is open has been closed: what was registered first is called last.
AFTER_THE_END = (
    """
import atexit, sys, threading, time
has_ended = threading.Event()

def let_daemons_read():
    has_ended.set()
    stays = 0
    while stays < sum(daemon.is_alive() for daemon in daemons):
        frames, stays = [*sys._current_frames().values()], 0
        for frame in frames:
            while frame and frame.f_code.co_name != "stay_at_end":
                frame = frame.f_back
            stays += frame is not None
        time.sleep(0.01)

atexit.register(let_daemons_read)
"""
    + WAYS
    + """
def begin(way):
    has_ended.wait()
    read("daemon", way)

daemons = [threading.Thread(target=begin, args=(way,), daemon=True) for way in WAYS]
for daemon in daemons:
    daemon.start()
"""
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BucketServer]:
    table = DeltaTableBuilder(tmp_path_factory.mktemp("t"), pa.schema([("n", pa.int64())]))
    for _ in range(8):
        table.append([{"n": n} for n in range(40)], files=4)
    with BucketServer({"sh.sc.url": table.path}) as running:
        running.add_bucket_table("sh.sc.dir", table.path)
        yield running


@pytest.fixture(scope="module")
def flight_uri(server: BucketServer) -> Iterator[str]:
    with FlightGateway(SharingClient(server.profile()), GatewaySettings(tokens=("a-token",))) as gateway:
        yield gateway.uri


class Silence:
    """A storage that is silent until it is told to go on."""

    def __init__(self, server: BucketServer) -> None:
        self._server, self._go_on = server, threading.Event()
        self.fault = server.faults.add("data", r"\.parquet", times=None, call=lambda: self._go_on.wait(120))

    def end(self) -> None:
        self._go_on.set()
        self._server.faults.clear()


def process_of(code: str, server: BucketServer, name: str, flight_uri: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-c",
        code,
        json.dumps(server.profile()),
        server.storage_endpoint,
        name,
        flight_uri,
    ]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ways() -> list[str]:
    return ["arrow", "pandas", "batches", "lazy", "lane", "source", "flight"]


@pytest.mark.parametrize("name", ["sh.sc.url", "sh.sc.dir"])
@pytest.mark.parametrize("kinds", ["thread pool", "asyncio"])
def test_threads_that_python_waits_for_read_to_their_end(
    server: BucketServer, flight_uri: str, kinds: str, name: str
) -> None:
    silence = Silence(server)
    process = process_of(WAYS + (FINISHED if kinds == "thread pool" else ASYNC), server, name, flight_uri)
    try:
        with killed_after(process, 120):
            assert process.stdout is not None
            first = process.stdout.readline()
            assert first == "main has ended\n", (first, process.communicate())
            silence.end()
            out, err = process.communicate()
    finally:
        silence.end()
    assert (process.returncode, err) == (0, "")
    assert Counter(out.splitlines()) == Counter(f"{kind} {way} {ROWS}" for kind in kinds.split() for way in ways())


@pytest.mark.parametrize("name", ["sh.sc.url", "sh.sc.dir"])
def test_daemons_and_readers_that_are_held_are_broken_off_without_a_word(
    server: BucketServer, flight_uri: str, name: str
) -> None:
    silence = Silence(server)
    process = process_of(WAYS + BROKEN_OFF, server, name, flight_uri)
    try:
        with killed_after(process, 120):
            out, err = process.communicate()
    finally:
        silence.end()
    assert silence.fault.hits
    assert (process.returncode, err) == (0, "")
    assert str(ROWS) not in out


@pytest.mark.parametrize("name", ["sh.sc.url", "sh.sc.dir"])
def test_daemons_that_begin_to_read_when_the_process_ends_stay_where_they_are(
    server: BucketServer, flight_uri: str, name: str
) -> None:
    """They raised an error of ours, or were within Arrow or Polars when Python ended them, which aborts the process."""
    process = process_of(AFTER_THE_END, server, name, flight_uri)
    with killed_after(process, 120):
        out, err = process.communicate()
    assert (process.returncode, out, err) == (0, "", "")
