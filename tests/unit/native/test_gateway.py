"""The gateway itself: who may ask, what it holds, and that nothing of it is left."""

from __future__ import annotations

import os
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from delta_sharing_spark.access.plan import plan as plan_files
from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.errors import DeltaSharingError
from delta_sharing_spark.native import answers, budget, gateway, peers, plan, plan_reader
from delta_sharing_spark.native.budget import Bounds, Budget
from delta_sharing_spark.native.gateway import Gateway, GatewayClosedError
from delta_sharing_spark.native.plan import NativePlan
from delta_sharing_spark.native.served_place import ServedPlace
from delta_sharing_spark.network.connections import Canceller
from delta_sharing_spark.scan import pace
from delta_sharing_spark.storage.locations import StoredObject
from delta_sharing_spark.storage.place import Place
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder, FileStyle
from support import HANGS
from unit.native.reading import RemoteError, RemoteFile, ask, files_of, plan_native, read_by, rows_of, served


@pytest.fixture(autouse=True)
def each_file_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "SMALL_FILE", 0)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    noise = os.urandom(300_000).hex()
    schema = pa.schema({"id": pa.int64(), **{f"c{i}": pa.string() for i in range(6)}})
    style = FileStyle(row_group_size=5_000, parquet={"compression": "none", "use_dictionary": False})
    built = DeltaTableBuilder(tmp_path_factory.mktemp("gateway") / "t", schema, style=style)
    rows = [{"id": n, **{f"c{i}": noise[n * 20 + i : n * 20 + i + 40] for i in range(6)}} for n in range(20_000)]
    return built.append(rows, files=2).path


def wait_for(condition: object, seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.05)
    return False


def ours() -> set[threading.Thread]:
    """Threads of gateways; a Spark session of this process may have one of its own."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("delta-sharing-native")}


def test_it_ends_with_the_last_session(path: Path) -> None:
    ended: set[str] = set()
    before = ours()
    with SharingServer({"s.d.t": path}) as server:
        scan = SharingClient(server.profile()).table("s.d.t").scan()
        running = Gateway()
        first, second = (plan_native(scan.resolved()) for _ in range(2))
        addresses = [running.add(plan, lambda plan=plan: plan.token in ended) for plan in (first, second)]
        ended.add(first.token)
        assert wait_for(lambda: not running.serves(first))
        with pytest.raises(RemoteError, match="let go"):
            ask(addresses[0], "GETFILESTATUS")
        assert rows_of(second, addresses[1]).num_rows == 20_000
        ended.add(second.token)
        assert wait_for(lambda: running.is_closed and not ours() - before)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", running.port), timeout=HANGS)


def test_what_comes_as_it_ends_is_told_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be served for a moment, and by nothing then."""
    with SharingServer({"s.d.t": path}) as server:
        scan = SharingClient(server.profile()).table("s.d.t").scan()
        running = Gateway()
        came: list[str] = []

        def close(reader: plan_reader.PlanReader) -> None:
            try:
                came.append(running.add(plan_native(scan.resolved()), lambda: False))
            except GatewayClosedError:
                came.append("refused")
            reader.close()

        monkeypatch.setattr(running, "_close", close)
        running.add(plan_native(scan.resolved()), lambda: True)
        assert wait_for(lambda: came)
        assert came == ["refused"]
        running.wait_until_ended()
        Gateway(port=running.port).close()  # as a cluster's, whose settings name its port


def test_a_stranger_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SharingServer({"s.d.t": path}) as server:
        scan = SharingClient(server.profile()).table("s.d.t").scan()
        with served(scan) as (_, plan, address):
            file, *_ = files_of(plan, address)
            ask(file, "GETFILESTATUS")
            monkeypatch.setattr(os, "geteuid", lambda: 12345)
            with pytest.raises(OSError):  # noqa: PT011 - reset or closed without an answer
                ask(file, "GETFILESTATUS")


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="no /proc/net")
def test_both_ways_to_the_owner_agree() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            ends = accepted.getpeername()[:2], accepted.getsockname()[:2]
            assert peers._by_table(*ends) == os.geteuid()
            assert peers._by_kernel(*ends) in ((0, os.geteuid()), None)
            accepted.sendall(b"four")
            assert peers.unread_by_peer(accepted) in (4, None)


@pytest.mark.usefixtures("files_in_parts")
def test_memory_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Footers are let go of, chunks fetched ahead too, and the rows are the same; nothing is held at the end."""
    monkeypatch.setattr(budget, "_SHOWN_BYTES", 3000)
    monkeypatch.setattr(budget, "AHEAD_BYTES", 1 << 20)
    monkeypatch.setattr(plan_reader, "_PIECE", 64 << 10)
    monkeypatch.setattr(pace, "LEAST", 64 << 10)
    monkeypatch.setattr(pace, "MOST", 64 << 10)
    with SharingServer({"s.d.t": path}) as server:
        scan = SharingClient(server.profile()).table("s.d.t").scan()
        with served(scan) as (running, plan, address):
            expected = scan.to_arrow().sort_by("id")
            for _ in range(2):
                assert rows_of(plan, address).sort_by("id").equals(expected)
            assert running._budget.fetched_bytes <= 2 << 20
            assert len(running._budget._views) == 1
            running.release(plan)
            assert running._budget._memory == 0


def test_old_plans_are_let_go(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "MAX_PLANS", 3)
    with SharingServer({"s.d.t": path}) as server:
        load = SharingClient(server.profile()).table("s.d.t").scan().resolved()
        running = Gateway()
        try:
            plans = [plan_native(load) for _ in range(6)]
            addresses = [running.add(plan, lambda: False) for plan in plans]
            assert [running.serves(plan) for plan in plans] == [False] * 3 + [True] * 3
            with pytest.raises(RemoteError, match="load the table again"):
                ask(addresses[0], "GETFILESTATUS")
        finally:
            running.close()


def test_a_thousand_loads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is listed and read once, none is let go: threads and sockets stay few, and memory is that of file lists."""
    with SharingServer({"s.d.t": path}) as server:
        opener, load = SharingClient(server.profile()).table("s.d.t").scan().opened()
        planned = plan_files(load, opener=opener)
        running, before = Gateway(), ours()
        try:
            plans = []
            for number in range(1000):
                plans.append(NativePlan(load, planned))
                address = running.add(plans[-1], lambda: False)
                if number % 10 == 0:
                    file, *_ = files_of(plans[-1], address)
                    assert RemoteFile(file).read(4) == b"PAR1"
                if number == 100:
                    tracemalloc.start()
            held, _ = tracemalloc.get_traced_memory()
            held -= (
                running._budget._held
            )  # of files that were fetched whole, as on a busy machine, where the storage seems far
            assert held < 900 * 20_000
            assert all(running.serves(plan) for plan in plans)
            assert len(ours() - before) <= 1 + budget.CONNECTIONS * 3 // 2 + 8
            assert len(running._connections) <= 8
            for plan in plans:
                running.release(plan)
            assert running._budget._memory == running._budget.fetched_bytes == 0
        finally:
            tracemalloc.stop()
            running.close()


def test_an_error_names_its_table(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It stands alone among Java's lines, and a file's id says nothing to a reader; the log has it once."""
    with (
        SharingServer({"s.d.t": path}) as server,
        served(SharingClient(server.profile()).table("s.d.t").scan()) as (
            _,
            plan,
            address,
        ),
    ):
        server.faults.add("data", times=None, status=404)
        file, *_ = files_of(plan, address)
        for _ in range(2):
            with pytest.raises(RemoteError, match=r"^FileGoneError: file .* of s\.d\.t: .*reload it$"):
                ask(file, "GETFILESTATUS")
        (line,) = (record.getMessage() for record in caplog.records if record.name.endswith("native.gateway"))
        assert "FileGoneError: file " in line


def test_closing_breaks_off_what_is_being_opened(path: Path) -> None:
    """The interpreter waits for these threads when it ends: as long as a storage that does not answer is asked."""
    before = ours()
    with (
        SharingServer({"s.d.t": path}) as server,
        served(SharingClient(server.profile()).table("s.d.t").scan()) as (
            running,
            plan,
            address,
        ),
    ):
        server.faults.add("data", times=None, status=503)
        file, *_ = files_of(plan, address)

        def ask_for_a_file() -> None:
            with suppress(OSError):
                ask(file, "GETFILESTATUS")

        asking = threading.Thread(target=ask_for_a_file)
        asking.start()
        deadline = time.monotonic() + HANGS
        while not server.count("data") and time.monotonic() < deadline:
            time.sleep(0.01)
        running.close()
        asking.join(HANGS)
        for thread in ours() - before:
            thread.join(HANGS)
        assert not ours() - before


@pytest.mark.parametrize(("mode", "kinds"), [("url", ["metadata", "query"]), ("dir", ["metadata", "credentials"])])
def test_a_load_opens_the_table_once(path: Path, mode: str, kinds: list[str]) -> None:
    with SharingServer() as server:
        server.add_table("s.d.t", path, access_modes=("url", "dir"))
        with served(SharingClient(server.profile()).table("s.d.t").scan(accessMode=mode)) as (_, plan, _):
            assert len(plan.files) == 2
            assert [request.kind for request in server.requests if request.kind != "data"] == kinds


@pytest.mark.usefixtures("files_in_parts")
def test_the_second_row_group_is_fetched_before_it_is_asked_for(path: Path) -> None:
    """Two columns of seven: their chunks come by requests of their own, the next row group's with the first's."""
    import pyarrow.parquet as pq

    with SharingServer({"s.d.t": path}) as server:
        scan = SharingClient(server.profile()).table("s.d.t").scan()
        with served(scan) as (running, native, address):
            file, other = files_of(native, read_by(native, address, "c0", "c4"))
            pq.ParquetFile(RemoteFile(file), pre_buffer=False).read(["c0", "c4"])
            opened = pq.ParquetFile(RemoteFile(other), pre_buffer=False)
            server.reset_metrics()
            opened.read_row_group(0, ["c0", "c4"])
            reader = next(iter(running._plans.values()))[0]
            assert wait_for(lambda: (1, 1) in reader._chunks._groups)
            opened.read_row_group(1, ["c0", "c4"])
            chunks = [opened.metadata.row_group(group).column(column) for group in (0, 1) for column in (1, 5)]
            assert server.bytes_sent("data") == sum(c.total_compressed_size for c in chunks)


@pytest.mark.usefixtures("files_in_parts")
def test_a_reader_in_doubt_that_wants_all_gets_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column chunk of less than a taste is sent with it, and nothing is left of the chunk."""
    monkeypatch.setattr(plan_reader, "_TASTE", 64 << 10)
    with SharingServer({"s.d.t": path}) as server:
        running = Gateway()
        running.add(plan_native(SharingClient(server.profile()).table("s.d.t").scan().resolved()), lambda: False)
        try:
            reader = next(iter(running._plans.values()))[0]
            layout = reader.files.get(0).layout
            assert layout.chunks[7].range.length < plan_reader._TASTE
            came = list(reader.read(0, 0))
            assert plan_reader.TASTED in came
            stored = {file.read_bytes()[: layout.data_end] for file in path.rglob("*.parquet")}
            assert b"".join(piece for piece in came if isinstance(piece, memoryview))[: layout.data_end] in stored
        finally:
            running.close()


@pytest.mark.usefixtures("files_in_parts")
def test_columns_that_nobody_reads_are_not_fetched_where_nobody_told(path: Path) -> None:
    import pyarrow.parquet as pq

    with SharingServer({"s.d.t": path}) as server:
        scan = SharingClient(server.profile()).table("s.d.t").scan()
        with served(scan) as (_, plan, address):
            for opened in (pq.ParquetFile(RemoteFile(f), pre_buffer=False) for f in files_of(plan, address)):
                server.reset_metrics()
                for group in (0, 1):
                    opened.read_row_group(group, ["id", "c2"])
                chunks = [opened.metadata.row_group(group).column(column) for group in (0, 1) for column in (0, 3)]
                size = sum(chunk.total_compressed_size for chunk in chunks)
                assert server.bytes_sent("data") <= size + 4 * plan_reader._TASTE


@pytest.mark.parametrize("unread", [1 << 20, 0])
def test_what_a_reader_left_unread_is_seen_though_it_closes_in_two_steps(
    monkeypatch: pytest.MonkeyPatch, unread: int
) -> None:
    """Java says first that it sends no more, and closes then: only then does the system tell that bytes were left."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as reader,
    ):
        connection, _ = listener.accept()
        with connection:
            connection.setblocking(False)
            if unread:
                connection.send(b"x" * unread)
            connection.settimeout(10)
            reader.shutdown(socket.SHUT_WR)
            monkeypatch.setattr(answers, "_wait_for_reset", reader.close)
            assert answers._is_reset(connection) == bool(unread)


def test_answers_of_places_share_the_threads_of_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fetches two pieces ahead; six of them together no more than the gateway has threads."""
    monkeypatch.setattr(budget, "CONNECTIONS", 3)
    changed, size = threading.Condition(), 8 << 20
    under_way = most = submitted = 0

    class Volume:
        name = "s.d.v"

        def info(self, path: str) -> StoredObject:
            return StoredObject(path, size, 0)

        def version(self, _: StoredObject) -> None: ...

        def read(self, _path: str, _version: None, start: int, length: int, _: Canceller) -> memoryview:
            nonlocal under_way, most
            if start:  # the first piece is read by who answers
                with changed:
                    under_way += 1
                    most = max(most, under_way)
                    changed.notify_all()
                    changed.wait_for(lambda: most > 3 or submitted >= 12, HANGS)
                with changed:
                    under_way -= 1
            return memoryview(bytes([start >> 18 & 255]) * length)

    place, shared = ServedPlace(cast("Place", Volume()), "token"), Budget(Bounds())
    failures: list[DeltaSharingError] = []
    submit = shared.fetchers.submit

    def counted(call: Callable[[], Any]) -> Future[Any]:
        nonlocal submitted
        with changed:
            submitted += 1
            changed.notify_all()
        return submit(call)

    monkeypatch.setattr(shared.fetchers, "submit", counted)

    def read(path: str) -> bytes:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            sender = threading.Thread(target=place.send, args=(theirs, path, 0, shared, failures.append), daemon=True)
            sender.start()
            with ours.makefile("rb") as answer:
                while answer.readline().strip():
                    pass
                body = answer.read(size)
            sender.join(HANGS)
            return body

    with ThreadPoolExecutor(6) as readers:
        bodies = list(readers.map(read, [f"f{n}" for n in range(6)]))
    shared.close()
    assert {len(body) for body in bodies} == {size}
    assert len(set(bodies)) == 1
    assert most == 3
    assert not failures
