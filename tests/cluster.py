"""A standalone cluster of two machines, each a network namespace: ``nox -s cluster``, by hand; Linux, as root.

The driver, too, has a namespace, in which the data's port is closed: what it reads, it does not read. Rows are compared while
executors, gateways, Python daemons and workers are killed, and strangers ask every port.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

NETWORK = "10.77.0"
NAMESPACES = {"dss-driver": f"{NETWORK}.10", "dss-one": f"{NETWORK}.11", "dss-two": f"{NETWORK}.12"}
HERE, DRIVER = f"{NETWORK}.1", NAMESPACES["dss-driver"]
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("city", pa.string())])


def ip(arguments: str, check: bool = True) -> None:
    subprocess.run(["ip", *arguments.split()], check=check, stderr=None if check else subprocess.DEVNULL)


@contextmanager
def machines() -> Iterator[None]:
    """The namespaces, each joined to a bridge here."""
    remove()
    try:
        ip("link add dss-bridge type bridge")
        ip(f"addr add {HERE}/24 dev dss-bridge")
        ip("link set dss-bridge up")
        for name, address in NAMESPACES.items():
            ip(f"netns add {name}")
            ip(f"link add {name} type veth peer name eth0 netns {name}")
            ip(f"link set {name} master dss-bridge up")
            for line in ("link set lo up", f"addr add {address}/24 dev eth0", "link set eth0 up"):
                ip(f"-n {name} {line}")
        yield
    finally:
        for name in NAMESPACES:
            listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
            for pid in listed.stdout.split():
                with suppress(OSError):
                    os.kill(int(pid), signal.SIGKILL)
        remove()


def remove() -> None:
    for name in NAMESPACES:
        ip(f"netns del {name}", check=False)
        ip(f"link del {name}", check=False)
    ip("link del dss-bridge", check=False)


class Forwarder:
    """A port behind which another one of this machine is; it can be closed, and counts who asked.

    That of the storage is one; and on each machine loopback, for a token is sent unencrypted there alone.
    """

    def __init__(self, address: tuple[str, int], target: int) -> None:
        self.listener = socket.create_server(address, backlog=256)
        self.port, self.target = self.listener.getsockname()[1], target
        self.askers: set[str] = set()
        self.is_open = True
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, (address, _) = self.listener.accept()
            if not self.is_open:
                connection.close()
                continue
            self.askers.add(address)
            onward = socket.create_connection((HERE, self.target))
            for source, sink in ((connection, onward), (onward, connection)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 18):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


def java_class(name: str, *arguments: str) -> list[str]:
    import pyspark

    home = Path(pyspark.__file__).parent
    return [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]


def outside(directory: Path, options: argparse.Namespace) -> int:
    """Serve, start master and workers, and the driver."""
    from delta_sharing_spark.testing.server import ServerSettings, SharingServer
    from delta_sharing_spark.testing.tables import DeltaTableBuilder

    noise = os.urandom(options.rows * 2 + 40).hex()
    rows = [{"id": n, "text": noise[4 * n : 4 * n + 40], "city": ("Oslo", None)[n % 2]} for n in range(options.rows)]
    table = DeltaTableBuilder(directory / "t", SCHEMA, ["city"]).append(rows, files=4)
    settings = ServerSettings()
    with machines(), SharingServer({"s.d.t": table.path}, host=HERE, settings=settings) as server:
        forwarder = Forwarder((HERE, 0), server.port)

        def rewrite(line: dict[str, Any]) -> Any:
            text = json.dumps(line)
            for host in (HERE, "127.0.0.1"):
                text = text.replace(f"{host}:{server.port}/", f"127.0.0.1:{forwarder.port}/")
            return json.loads(text) if "file" in line else line

        settings.rewrite = rewrite
        ip(f"-n dss-driver rule add dport {forwarder.port} ipproto tcp prohibit")
        profile = Path(server.write_profile(directory / "config.share"))
        profile.write_text(profile.read_text().replace(HERE, "127.0.0.1"))
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SPARK_")}
        environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_NO_DAEMONIZE": "1", "SPARK_LOCAL_DIRS": str(directory)}

        def inside_of(name: str, command: list[str]) -> subprocess.Popen[bytes]:
            own = {**environment, "SPARK_LOCAL_IP": NAMESPACES[name]}
            log = (directory / f"{name}.log").open("ab")
            return subprocess.Popen(["ip", "netns", "exec", name, *command], env=own, stdout=log, stderr=log)

        forward = [sys.executable, __file__, "--forward", str(server.port)]
        inside_of("dss-driver", forward)
        inside_of("dss-driver", java_class("master.Master", "--host", DRIVER, "--port", "7077", "--webui-port", "0"))
        time.sleep(5)
        for name in ("dss-one", "dss-two"):
            worker = ["worker.Worker", f"spark://{DRIVER}:7077", "--host", NAMESPACES[name]]
            more = [
                "--cores",
                str(options.cores),
                "--memory",
                "1g",
                "--webui-port",
                "0",
                "--work-dir",
                str(directory / name),
            ]
            inside_of(name, java_class(*worker, *more))
            inside_of(name, [*forward, str(forwarder.port)])
        own = {**environment, "SPARK_LOCAL_IP": DRIVER}
        numbers = (f"--{name}={getattr(options, name)}" for name in ("rows", "rounds", "seed"))
        command = [sys.executable, __file__, "--inside", str(profile), str(forwarder.port), *numbers]
        driver = subprocess.Popen(
            ["ip", "netns", "exec", "dss-driver", *command], env=own, stdout=subprocess.PIPE, text=True
        )
        assert driver.stdout is not None
        for line in driver.stdout:
            say(line.rstrip())
            if line.startswith("close the storage"):
                forwarder.is_open = False
        code = driver.wait()
        assert forwarder.askers <= {NAMESPACES["dss-one"], NAMESPACES["dss-two"]}, forwarder.askers
        wait_for("the gateways' end", lambda: not pids_of("delta_sharing_spark.native.machine_gateway"))
        if code == 0:
            say("passed: the storage was asked by the machines alone, and nothing is left")
    return code


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def wait_for(what: str, condition: Any, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.1)


def pids_of(word: str) -> list[int]:
    """Processes in the machines' namespaces whose command line has a word."""
    found = []
    for name in ("dss-one", "dss-two"):
        listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False).stdout
        for pid in listed.split():
            with suppress(OSError):
                if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(int(pid))
    return found


def inside(options: argparse.Namespace) -> None:
    """The driver."""
    from pyspark.sql import SparkSession

    from delta_sharing_spark import SharingClient
    from delta_sharing_spark.spark import native

    profile, port = options.inside
    with suppress(OSError):
        socket.create_connection((HERE, int(port)), timeout=3).close()
        raise SystemExit("the driver reaches the storage: its port is not closed")
    spark = (
        SparkSession.builder.master(f"spark://{DRIVER}:7077").config("spark.ui.enabled", "false")
        .config("spark.driver.host", DRIVER).config("spark.driver.bindAddress", DRIVER)
        .config("spark.executor.cores", "1").config("spark.executor.memory", "600m")
        .config("spark.sql.shuffle.partitions", "4").config("spark.task.maxFailures", "8").getOrCreate()
    )  # fmt: skip
    wait_for("two executors", lambda: spark._jsc.sc().statusStore().executorList(True).size() > 2)
    client = SharingClient(profile, retryTimeout="8s")
    began = time.monotonic()
    frame = client.table("s.d.t").to_spark(spark)
    say(f"load with the gateways' start: {time.monotonic() - began:.1f} s")

    def check(what: str) -> None:
        began = time.monotonic()
        found = frame.selectExpr("count(*)", "sum(id)", "sum(length(text))", "count(city)").collect()[0]
        rows = options.rows
        assert tuple(found) == (rows, rows * (rows - 1) // 2, 40 * rows, (rows + 1) // 2), (what, found)
        say(f"{what}: exact, {time.monotonic() - began:.1f} s")

    check("full scan")
    check("again")
    (gateway,) = native._gateways.values()
    found = gateway.machines()  # type: ignore[attr-defined]
    assert {machine.address for machine in found} == {NAMESPACES["dss-one"], NAMESPACES["dss-two"]}, found
    assert gateway.bytes_sent == 0  # type: ignore[attr-defined]
    strangers(gateway, found, frame.inputFiles()[0])
    drawn = random.Random(options.seed)
    words = ["machine_gateway", "CoarseGrainedExecutorBackend", "pyspark.daemon", "CoarseGrainedExecutorBackend"]
    for number in range(options.rounds):
        word = drawn.choice(words)
        killed = drawn.choice(pids_of(word) or [0])
        timer = threading.Timer(drawn.uniform(0, 2), lambda pid=killed: pid and os.kill(pid, signal.SIGKILL))
        timer.start()
        check(f"round {number}, {word} killed")
        timer.join()
    wait_for("gateways on both machines again", lambda: len(gateway.machines()) == 2, 90)  # type: ignore[attr-defined]
    check("after the kills")
    say(f"bytes by way of the driver: {gateway.bytes_sent}")  # type: ignore[attr-defined]
    say("close the storage")
    time.sleep(1)
    fresh = client.table("s.d.t").to_spark(spark)
    began = time.monotonic()
    try:
        fresh.where("id >= 0 and text > 'zz'").selectExpr("sum(id)", "max(text)").collect()
    except Exception as error:
        took, line = time.monotonic() - began, str(error).splitlines()[0]
        assert "machine " in line, line
        say(f"a storage that cannot be reached: {took:.1f} s, {line[:200]}")
    spark.stop()


def strangers(gateway: Any, found: list[Any], path: str) -> None:
    """Processes without the key, of root and of another user, on the machines and on the driver's, get nothing."""
    token_and_file = path.split("/", 3)[3]
    asked = [("dss-driver", f"{DRIVER}:{gateway.port}")]
    for name, address in NAMESPACES.items():
        asked += [(name, f"{DRIVER}:{gateway.port}")]
        asked += [(name, f"127.0.0.1:{machine.port}") for machine in found if machine.address == address]
    script = (
        "import sys,urllib.request,urllib.error\n"
        "for op in ('OPEN', 'GETFILESTATUS'):\n"
        "    try:\n"
        "        print('GOT', urllib.request.urlopen(sys.argv[1] + op, timeout=20).read(99))\n"
        "    except OSError as error:\n"
        "        print('refused')\n"
    )
    for name, authority in asked:
        for uid in ("0", "65534"):
            url = f"http://{authority}/webhdfs/v1/{token_and_file}?op="
            command = ["ip", "netns", "exec", name, "setpriv", f"--reuid={uid}", "--clear-groups", "/usr/bin/python3"]
            told = subprocess.run([*command, "-c", script, url], capture_output=True, text=True, check=True).stdout
            assert told == "refused\n" * 2, (name, authority, uid, told)
    say(f"strangers: {2 * len(asked)} refused")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--inside", nargs=2)
    parser.add_argument("--forward", nargs="+", type=int)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    given = parser.parse_args()
    if given.inside:
        inside(given)
        sys.exit(0)
    if given.forward:
        forwarders = [Forwarder(("127.0.0.1", port), port) for port in given.forward]
        signal.pause()
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(outside(Path(temporary), given))
