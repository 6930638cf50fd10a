"""A cluster's gateways without Spark: the driver's in this process, a machine's in one of its own, as a task starts it."""

from __future__ import annotations

import contextlib
import http.client
import inspect
import itertools
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_sharing_spark.access.open import TableOpener
from delta_sharing_spark.access.plan import plan as planned_files
from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.native import machines
from delta_sharing_spark.native.budget import Bounds
from delta_sharing_spark.native.encrypted_channel import EncryptedChannel, draw_certificate, trusting
from delta_sharing_spark.native.gateway import Gateway
from delta_sharing_spark.native.machine_gateway import Driver, MachineGateway, loopback_identity
from delta_sharing_spark.native.machines import ClusterGateway, preferred_hosts
from delta_sharing_spark.native.plan import NativePlan, VirtualFile
from delta_sharing_spark.network.newcomers import OF_AN_ADDRESS
from delta_sharing_spark.spark import start_gateway
from delta_sharing_spark.spark.start_gateway import start
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support.buckets import BucketServer
from support.refusals import not_refused
from unit.native.reading import RemoteError, ask, files_of, plan_native, rows_of

ROWS = [{"id": n, "city": ("Lisbon", "Oslo", None)[n % 3]} for n in range(3000)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharingServer]:
    schema = pa.schema({"id": pa.int64(), "city": pa.string()})
    table = DeltaTableBuilder(tmp_path_factory.mktemp("machines") / "t", schema, ["city"]).append(ROWS, files=2)
    with SharingServer({"s.d.t": table.path}) as running:
        yield running


@pytest.fixture
def driver() -> Iterator[ClusterGateway]:
    running = ClusterGateway(bind="127.0.0.1", host="127.0.0.1", port=0, driver_bytes=1_000_000)
    yield running
    running.close()


def settings_of(driver: ClusterGateway, **others: Any) -> dict[str, Any]:
    own = {"host": "127.0.0.1", "port": driver.port, "certificate": driver.certificate, "secret": driver.secret.hex()}
    own |= {"key_field": driver.key_field, "memory": 256 << 20}
    running = [machine.identity for machine in driver.machines()]
    return {**own, "version": version("delta-sharing-spark"), "running": running, "hosts": [], **others}


def machine_of(driver: ClusterGateway) -> MachineGateway:
    """A machine's gateway in this process."""
    way = Driver("127.0.0.1", driver.port, driver.certificate, driver.secret)
    gateway = MachineGateway(way, str(driver.key_field), Bounds())
    assert way.join(gateway) is None

    def listen() -> None:
        with way._connection:
            way.listen(gateway)

    threading.Thread(target=listen, daemon=True).start()
    return gateway


def planned(server: SharingServer) -> NativePlan:
    opener, load = SharingClient(server.profile()).table("s.d.t").scan().opened()
    assert isinstance(opener, TableOpener)
    return plan_native(load, opener)


def with_key(driver: ClusterGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    opener = urllib.request.build_opener()
    opener.addheaders = [(str(driver.key_field), '""')]
    monkeypatch.setattr(urllib.request, "_opener", opener)


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def pid_at(port: int) -> int:
    """The process that listens at a port of loopback."""
    address = f"0100007F:{port:04X}"
    lines = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    (inode,) = [line[9] for line in lines if line[1] == address and line[3] == "0A"]
    for opened in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(opened) == f"socket:[{inode}]":
                return int(opened.parts[2])
        except OSError:
            continue
    raise AssertionError(port)


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="no /proc/net")
def test_a_machine_serves_what_it_fetched_itself(
    server: SharingServer, driver: ClusterGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are exact and none passes the driver; without the key neither answers; a second one is not needed; killed, the
    driver sends a bounded number of bytes and says so; let go of, nothing is left."""
    plan = planned(server)
    address = driver.add(plan, lambda: False)
    with pytest.raises(RemoteError, match="its own Spark application alone"):
        ask(address, "GETFILESTATUS")
    with socket.create_connection(("127.0.0.1", driver.port)) as by_proxy:
        by_proxy.sendall(b"GET http://127.0.0.1/webhdfs/v1/x?op=OPEN HTTP/1.1\r\n\r\n")
        assert b"add |127.0.0.1 to -Dhttp.nonProxyHosts" in by_proxy.recv(4096)
    told = start(settings_of(driver, hosts=["127.0.0.1", "192.0.2.77", "no such host"]))
    assert told == {"name": socket.gethostname(), "hosts": ["127.0.0.1"], "identity": loopback_identity()}
    (machine,) = driver.machines()
    assert "lacks" not in start(settings_of(driver))
    assert "lacks" not in start(settings_of(driver, running=[]))
    assert driver.machines() == [machine]

    with pytest.raises(RemoteError, match="its own Spark application alone"):
        ask(f"webhdfs://{machine.authority}/{plan.token}/-/{plan.files[0].name(0)}", "OPEN")
    with_key(driver, monkeypatch)
    assert sorted(rows_of(plan, address).to_pylist(), key=lambda row: row["id"]) == ROWS
    assert driver.bytes_sent == 0
    assert ask(address, "GETDELEGATIONTOKEN") == {}

    own = pid_at(machine.port)
    assert own != os.getpid()
    assert os.getsid(own) != os.getsid(0)
    (core,) = (line for line in Path(f"/proc/{own}/limits").read_text().splitlines() if "core file" in line)
    assert core.split()[4] == "0", core
    os.kill(own, signal.SIGKILL)
    wait_for(lambda: not driver.machines())
    assert sorted(rows_of(plan, address).to_pylist(), key=lambda row: row["id"]) == ROWS
    assert driver.bytes_sent > 0
    driver.bytes_sent = 1_000_000
    monkeypatch.setattr(machines, "_JOINING", 0.1)
    with pytest.raises(RemoteError, match=r"127\.0\.0\.1 has no gateway of the native lane yet, and 1000000 bytes"):
        rows_of(plan, address)

    assert "lacks" not in start(settings_of(driver))
    (machine,) = driver.machines()
    assert sorted(rows_of(plan, address).to_pylist(), key=lambda row: row["id"]) == ROWS
    own = pid_at(machine.port)
    driver.release(plan)

    def is_let_go() -> bool:
        try:
            ask(f"webhdfs://{machine.authority}/{plan.token}/-/{plan.files[0].name(0)}", "OPEN").close()
        except RemoteError as error:
            return "let go" in str(error)
        return False

    wait_for(is_let_go)
    driver.close()
    wait_for(
        lambda: not Path(f"/proc/{own}/exe").exists()
    )  # who has ended has none, even if nobody asks for its status


@pytest.mark.parametrize("fault", ["refuses", "is silent", "lets nobody in"])
def test_a_storage_that_cannot_be_reached_is_tried_once(
    tmp_path: Path, driver: ClusterGateway, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """The error names the machine, and is the answer of the driver too for a while: Spark asks again and again."""
    table = DeltaTableBuilder(tmp_path / "t", pa.schema({"id": pa.int64()})).append([{"id": 1}])
    bounds = {"retryTimeout": "1s", "connectTimeout": "500ms"}
    with SharingServer({"s.d.t": table.path}) as server, contextlib.ExitStack() as opened:
        load_opener, load = SharingClient(server.profile(), **bounds).table("s.d.t").scan().opened()
        plan = plan_native(load, load_opener)
        address = driver.add(plan, lambda: False)
        start(settings_of(driver))
        with_key(driver, monkeypatch)
        file, *_ = files_of(plan, address)
        length = ask(file, "GETFILESTATUS")["FileStatus"]["length"]
        port = server.port
        server.close()
        if fault != "refuses":
            opened.enter_context(
                socket.create_server(("127.0.0.1", port), backlog=0 if fault == "lets nobody in" else 64)
            )
        while fault == "lets nobody in":
            try:
                opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=0.2))
            except TimeoutError:
                break

        def read_end(operation: str) -> str:
            with pytest.raises(RemoteError, match=rf"NetworkError: .*machine {socket.gethostname()}: .*") as failed:
                ask(file, operation, offset=length - 8)
            assert plan.has_failed
            return str(failed.value)

        errors = [read_end(operation) for operation in ("OPEN", "GETFILESTATUS", "OPEN")]
        assert [driver.error_in([error]) for error in errors] == errors
    assert driver.bytes_sent == 0


def test_what_the_driver_cannot_reach_it_does_not_try_for_each_task(
    tmp_path: Path, driver: ClusterGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task on a machine without a gateway is told so, and its slot is free for the start of one."""
    table = DeltaTableBuilder(tmp_path / "t", pa.schema({"id": pa.int64()})).append([{"id": 1}])
    monkeypatch.setattr(machines, "_JOINING", 0.1)
    with SharingServer({"s.d.t": table.path}) as server:
        opener, load = SharingClient(server.profile(), retryTimeout="1s").table("s.d.t").scan().opened()
        plan = plan_native(load, opener)
        address = driver.add(plan, lambda: False)
    with_key(driver, monkeypatch)
    with pytest.raises(RemoteError, match=r"NetworkError: .*could not be read"):
        rows_of(plan, address)
    with pytest.raises(RemoteError, match="no gateway of the native lane yet, and the driver cannot reach"):
        rows_of(plan, address)
    start(settings_of(driver))
    with pytest.raises(RemoteError, match=rf"machine {socket.gethostname()}: "):
        rows_of(plan, address)


def test_without_the_profile_a_machine_renews_nothing(
    server: SharingServer, driver: ClusterGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    opener, load = SharingClient(server.profile(), carryProfile=False).table("s.d.t").scan().opened()
    plan = NativePlan(load, planned_files(load, opener=opener))
    assert server.token.encode() not in zlib.decompress(plan.packed())
    address = driver.add(plan, lambda: False)
    start(settings_of(driver))
    with_key(driver, monkeypatch)
    server.expire_urls()
    with pytest.raises(RemoteError, match=r"carryProfile=false .* load the table again"):
        rows_of(plan, address)
    assert driver.bytes_sent == 0


def test_files_of_a_volume_are_sent_by_the_machine(
    tmp_path: Path, driver: ClusterGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver lists, and sends the reader on; without the key neither answers; an error is known to the driver."""
    (tmp_path / "large").write_bytes(data := os.urandom(3 << 20))
    with SharingServer({}) as server:
        server.add_volume("s.d.v", str(tmp_path))
        place = SharingClient(server.profile()).volume("s.d.v").place
        address = driver.share(place, lambda: False)
        start(settings_of(driver))
        (machine,) = driver.machines()
        there = f"webhdfs://{machine.authority}/{address.rpartition('/')[2]}"
        opens = [partial(ask, f"{base}/large", "OPEN") for base in (address, there)]
        assert not_refused(RemoteError, "its own Spark application alone", *opens) == []
        with_key(driver, monkeypatch)
        assert ask(address, "LISTSTATUS")["FileStatuses"]["FileStatus"][0]["pathSuffix"] == "large"
        assert ask(f"{address}/large", "OPEN").read() == data
        assert ask(f"{there}/large", "OPEN", offset=1 << 20).read() == data[1 << 20 :]
        assert driver.bytes_sent == 0
        (tmp_path / "large").unlink()
        (tmp_path / "large").symlink_to("/etc/hostname")
        with pytest.raises(RemoteError, match=r"large of volume s\.d\.v is a link") as failed:
            ask(f"{address}/large", "OPEN")
        assert driver.error_in([str(failed.value)]) == str(failed.value)


def test_a_volume_whose_storage_cannot_be_reached_is_tried_once(
    tmp_path: Path, driver: ClusterGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a table's: at the beginning of a file, and where an answer broke off, after which the reader asks for the rest."""
    (tmp_path / "large").write_bytes(os.urandom(3 << 20))
    (tmp_path / "small").write_bytes(b"small")
    with BucketServer() as server:
        server.add_volume("s.d.v", server.bucket("v", tmp_path))
        client = SharingClient(server.profile(), storageEndpoint=server.storage_endpoint, retryTimeout="1s")
        address = driver.share(client.volume("s.d.v").place, lambda: False)
        start(settings_of(driver))
        with_key(driver, monkeypatch)
        ask(address, "LISTSTATUS")
        server.faults.add("any", "large", skip=2, times=None, status=503)
        server.faults.add("any", "small", times=None, status=503)
        with pytest.raises(http.client.IncompleteRead):
            ask(f"{address}/large", "OPEN").read()
        with pytest.raises(RemoteError, match="machine"):
            ask(f"{address}/small", "OPEN")
        server.faults.clear()
        of_machine = rf"NetworkError: machine {socket.gethostname()}: .*"
        with pytest.raises(RemoteError, match=of_machine + "large.*HTTP 503"):
            ask(f"{address}/large", "OPEN", offset=1)
        with pytest.raises(RemoteError, match=of_machine + "small.*HTTP 503"):
            ask(f"{address}/small", "OPEN", offset=1)
        assert driver.bytes_sent == 0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": "0.0.1"}, "and the driver's is 0.0.1"),
        ({"secret": "00" * 32}, "is not needed: it does not hold the application's secret"),
        ({"certificate": draw_certificate()[1]}, r"what answers at 127.0.0.1:\d+ is not the application's driver"),
        ({"port": 1}, "the driver at 127.0.0.1:1 cannot be reached"),
    ],
)
def test_what_a_machine_lacks(driver: ClusterGateway, change: dict[str, Any], why: str) -> None:
    told = start(settings_of(driver, **change))
    assert pytest.raises(AssertionError, match=why).matches(AssertionError(told["lacks"])), told
    assert driver.machines() == []


def test_a_machine_without_the_package() -> None:
    """What is sent to it is code of Python's own library, which tells what it lacks."""
    source = inspect.getsource(start_gateway).replace("from __future__ import annotations", "")
    code = f"import json\n{source}\nprint(json.dumps(start({{'hosts': [], 'running': []}})))"
    told = subprocess.run([sys.executable, "-I", "-S", "-c", f"from __future__ import annotations\n{code}"],
        capture_output=True, text=True, check=True).stdout  # fmt: skip
    assert json.loads(told)["is_missing"] == "yes"
    assert "has no delta-sharing-spark (No module named 'delta_sharing_spark')" in json.loads(told)["lacks"]


def test_files_prefer_the_same_host_again_and_none_too_many() -> None:
    files = [VirtualFile((), 1 << 20, int.from_bytes(os.urandom(8), "big")) for _ in range(200)]
    three = preferred_hosts(files, ["a", "b", "c"])
    assert all(three.count(host) <= 81 for host in range(3))
    assert three == preferred_hosts(files, ["a", "b", "c"])
    four = preferred_hosts(files, ["a", "b", "c", "d"])
    assert sum(one == other for one, other in zip(three, four, strict=True)) > 100
    assert preferred_hosts(files[:2], []) == [-1, -1]
    assert sorted(preferred_hosts(files[:2], ["a", "b"])) == [0, 1]


def test_what_machine_and_driver_say_is_encrypted_and_of_the_two() -> None:
    """Each hears all that the other sends, several threads at once, and a listener none of it; a driver of another certificate is refused."""
    context, certificate = draw_certificate()
    heard, content = bytearray(), os.urandom(3 << 20)
    ours, near = socket.socketpair()
    far, theirs = socket.socketpair()
    with ours, near, far, theirs, ThreadPoolExecutor(8) as threads:
        for one, other in ((near, far), (far, near)):
            threads.submit(_pass_on, one, other, heard)
        accepted = threads.submit(EncryptedChannel, theirs, context)
        machine = EncryptedChannel(ours, trusting(certificate))
        driver = accepted.result(30)
        machine.show(b"s" * 32)
        assert driver.has_proof(b"s" * 32)
        machine.show(b"t" * 32)
        assert not driver.has_proof(b"s" * 32)
        sent = [
            threads.submit(end.send, {"kind": "plan", "number": number}, content)
            for end in (machine, driver)
            for number in range(2)
        ]
        messages = [[end.receive() for _ in range(2)] for end in (driver, machine)]
        assert [sorted(message["number"] for message, _ in heard_by) for heard_by in messages] == [[0, 1], [0, 1]]
        assert all(received == content for heard_by in messages for _, received in heard_by)
        assert [future.result(30) for future in sent] == [None] * 4
        assert not any(part in heard for part in (b"plan", b"s" * 32, content[:16]))
        threads.submit(driver.send, {}, bytes(2000))
        with pytest.raises(OSError, match="longer than it may be"):
            machine.receive(1000)
        for end in (ours, theirs):
            end.shutdown(socket.SHUT_RDWR)
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as threads:
        accepted = threads.submit(EncryptedChannel, theirs, draw_certificate()[0])
        with pytest.raises(ssl.SSLCertVerificationError):
            EncryptedChannel(ours, trusting(certificate))
        with pytest.raises(ssl.SSLError):
            accepted.result(30)


def _pass_on(one: socket.socket, other: socket.socket, heard: bytearray) -> None:
    while data := one.recv(1 << 16):
        heard.extend(data)
        other.sendall(data)


@pytest.mark.parametrize("kind", ["driver", "machine", "one machine"])
@pytest.mark.parametrize("sent", [b"", b"GET /webhdfs/v1/x?op=OPEN HTTP/1.1\r\nHost:", b"\x16\x03\x01\x02\x00\x01"])
def test_who_holds_no_key_holds_no_gateway(
    kind: str, sent: bytes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many send a part of a head, a reader and a machine with the key are served, and the others end in their time."""
    with contextlib.ExitStack() as opened:
        driver = opened.enter_context(
            contextlib.closing(ClusterGateway(bind="127.0.0.1", host="127.0.0.1", port=0, driver_bytes=0))
        )
        gateway: Gateway = driver
        if kind == "machine":
            gateway = opened.enter_context(contextlib.closing(machine_of(driver)))
        elif kind == "one machine":
            gateway = opened.enter_context(contextlib.closing(Gateway()))
        strangers = [opened.enter_context(socket.create_connection(("127.0.0.1", gateway.port))) for _ in range(700)]
        for stranger in strangers:
            with contextlib.suppress(OSError):  # it was ended meanwhile
                stranger.sendall(sent)
        if kind == "driver":
            opened.enter_context(contextlib.closing(machine_of(driver)))
            wait_for(driver.machines)
        with_key(driver, monkeypatch)
        with pytest.raises(RemoteError, match="was let go"):
            ask(f"webhdfs://127.0.0.1:{gateway.port}/unknown", "GETFILESTATUS")
        assert len(gateway._newcomers) <= OF_AN_ADDRESS
        # Those that are accepted only now grow old as well.
        late = itertools.count(time.monotonic() + 60)
        monkeypatch.setattr(gateway._newcomers, "_clock", lambda: next(late))
        wait_for(lambda: not len(gateway._newcomers))
        for stranger in strangers:
            stranger.settimeout(30)
            with contextlib.suppress(ConnectionError):
                assert not stranger.recv(100)
    lines = [record.getMessage() for record in caplog.records if "refused connections" in record.getMessage()]
    # A line a minute, and the clock above goes by a second whenever it is asked.
    assert 1 <= len(lines) < len(strangers) / 20, lines
