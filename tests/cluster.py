"""A standalone cluster of two machines, each a network namespace: ``nox -s cluster``, by hand; Linux, as root.

The driver, too, has a namespace, in which the data's port is closed: what it reads, it does not read. Parts, each an application
(all by default):

    kills      rows are compared while executors, gateways, Python daemons and workers are killed; strangers ask every port;
               a volume's files; then the storage falls silent, and is closed
    lacks      executors whose Python lacks the package, on one machine, and on both
    dynamic    dynamic allocation from no executor, which all leave again; executors have one core
    stopped    the driver is stopped: the gateways end
    killed     the driver is killed: the gateways end
"""

from __future__ import annotations

import argparse
import json
import logging
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
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

NETWORK = "10.77.0"
NAMESPACES = {"dss-driver": f"{NETWORK}.10", "dss-one": f"{NETWORK}.11", "dss-two": f"{NETWORK}.12"}
MACHINES = ("dss-one", "dss-two")
HERE, DRIVER = f"{NETWORK}.1", NAMESPACES["dss-driver"]
GATEWAY, EXECUTOR = "delta_sharing_spark.native.machine_gateway", "CoarseGrainedExecutorBackend"
WORKER = "deploy.worker.Worker"
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
        self.connections: set[socket.socket] = set()
        self.state = "open"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self, *, silent: bool) -> None:
        """Be reached no more: connections end, kept ones among them, or no more comes by them."""
        self.state = "silent" if silent else "closed"
        if not silent:
            for connection in list(self.connections):
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        while True:
            connection, (address, _) = self.listener.accept()
            if self.state == "closed":
                connection.close()
                continue
            self.askers.add(address)
            onward = socket.create_connection((HERE, self.target))
            for source, sink in ((connection, onward), (onward, connection)):
                self.connections.add(source)
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        # A connection that breaks is not left open at its other side: who waits there would take it for a silent one.
        try:
            while data := source.recv(1 << 18):
                if self.state != "silent":
                    sink.sendall(data)
        except OSError:
            pass
        finally:
            self.connections.discard(source)
            with suppress(OSError):
                sink.shutdown(socket.SHUT_WR if self.state == "open" else socket.SHUT_RDWR)


def java_class(name: str, *arguments: str) -> list[str]:
    import pyspark

    home = Path(pyspark.__file__).parent
    return [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]


def outside(directory: Path, options: argparse.Namespace) -> int:
    """Serve, start master and workers, and the driver."""
    from delta_sharing_spark.testing.server import ServerSettings
    from delta_sharing_spark.testing.tables import DeltaTableBuilder
    from support.buckets import BucketServer

    noise = os.urandom(options.rows * 2 + 40).hex()
    rows = [{"id": n, "text": noise[4 * n : 4 * n + 40], "city": ("Oslo", None)[n % 2]} for n in range(options.rows)]
    table = DeltaTableBuilder(directory / "t", SCHEMA, ["city"]).append(rows, files=4)
    settings = ServerSettings()
    shared = {f"s.d.{name}": table.path for name in ("t", "silent", "closed")}
    with machines(), BucketServer(shared, host=HERE, settings=settings) as server:
        forwarder = Forwarder((HERE, 0), server.port)

        def rewrite(line: dict[str, Any]) -> Any:
            text = json.dumps(line)
            for host in (HERE, "127.0.0.1"):
                text = text.replace(f"{host}:{server.port}/", f"127.0.0.1:{forwarder.port}/")
            return json.loads(text) if "file" in line else line

        settings.rewrite = rewrite
        ip(f"-n dss-driver rule add dport {forwarder.port} ipproto tcp prohibit")
        files = directory / "v" / "many"
        files.mkdir(parents=True)
        for number in range(20):
            (files / f"{number}.txt").write_text("".join(f"{number} {line}\n" for line in range(2000)))
        server.add_volume("s.d.v", server.bucket("v", directory / "v"))
        profile = Path(server.write_profile(directory / "config.share"))
        profile.write_text(profile.read_text().replace(HERE, "127.0.0.1"))
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SPARK_")}
        lacking = directory / "lacking"  # addresses of machines whose Python has no package but Spark's
        lacking.touch()
        python = directory / "python"
        python.write_text(
            f'#!/bin/sh\ngrep -qxF "$SPARK_LOCAL_IP" {lacking} && exec {sys.executable} -S "$@"\nexec {sys.executable} "$@"\n'
        )
        python.chmod(0o755)
        environment |= {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": sys.executable}
        environment |= {"SPARK_NO_DAEMONIZE": "1", "SPARK_LOCAL_DIRS": str(directory)}

        def inside_of(name: str, command: list[str]) -> subprocess.Popen[bytes]:
            own = {**environment, "SPARK_LOCAL_IP": NAMESPACES[name]}
            log = (directory / f"{name}.log").open("ab")
            return subprocess.Popen(["ip", "netns", "exec", name, *command], env=own, stdout=log, stderr=log)

        forward = [sys.executable, __file__, "--forward", str(server.port)]
        inside_of("dss-driver", forward)
        inside_of("dss-driver", java_class("master.Master", "--host", DRIVER, "--port", "7077", "--webui-port", "0"))
        time.sleep(5)
        numbers = f"--cores {options.cores} --memory 1g --webui-port 0".split()

        def start_worker(name: str) -> subprocess.Popen[bytes]:
            worker = ["worker.Worker", f"spark://{DRIVER}:7077", "--host", NAMESPACES[name]]
            return inside_of(name, java_class(*worker, *numbers, "--work-dir", str(directory / name)))

        workers = {name: start_worker(name) for name in MACHINES}
        is_over = threading.Event()

        def keep_workers() -> None:
            while not is_over.wait(1):
                workers.update({name: start_worker(name) for name in MACHINES if workers[name].poll() is not None})

        threading.Thread(target=keep_workers, daemon=True).start()
        for name in MACHINES:
            inside_of(name, [*forward, str(forwarder.port)])
        own = {**environment, "SPARK_LOCAL_IP": DRIVER}
        told = [f"--{name}={getattr(options, name)}" for name in ("rows", "rounds", "seed")]
        for part in options.parts:
            say(f"-- {part}, seed {options.seed}")
            inner = ["--inside", str(profile), str(forwarder.port), *told, "--parts", part]
            driver = subprocess.Popen(
                ["ip", "netns", "exec", "dss-driver", sys.executable, __file__, *inner],
                env=own,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert driver.stdout is not None
            for line in driver.stdout:
                say(line.rstrip())
                if line.startswith("the storage is"):
                    forwarder.close(silent=line.endswith("silent\n"))
                if line.startswith("the package is missing on"):
                    lacking.write_text("\n".join(line.split()[5:]))
                if line.startswith("end the driver"):
                    end(driver.pid, line.split()[-1])
            code = driver.wait()
            forwarder.state = "open"
            lacking.write_text("")
            assert forwarder.askers <= {NAMESPACES[name] for name in MACHINES}, forwarder.askers
            wait_for("the gateways' end", lambda: not pids_of(GATEWAY), 30)
            wait_for("the executors' end", lambda: not pids_of(EXECUTOR))
            if code and part not in ("stopped", "killed"):
                is_over.set()
                return code
            say(f"{part} passed: the storage was asked by the machines alone, and nothing is left")
        is_over.set()
    return 0


def end(driver: int, how: str) -> None:
    """Stop or kill a driver and its JVM; its gateways end all the same."""
    children = subprocess.run(["pgrep", "-P", str(driver)], capture_output=True, text=True, check=True).stdout
    pids = [driver, *map(int, children.split())]
    assert pids_of(GATEWAY), "gateways"
    began = time.monotonic()
    for pid in pids:
        os.kill(pid, getattr(signal, how))
    wait_for("the gateways' end", lambda: not pids_of(GATEWAY), 30)
    say(f"{how} of the driver: the gateways ended after {time.monotonic() - began:.1f} s")
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


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
    for name in MACHINES:
        listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False).stdout
        for pid in listed.split():
            with suppress(OSError):
                if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(int(pid))
    return found


def inside(options: argparse.Namespace) -> None:
    """The driver."""
    from delta_sharing_spark import SharingClient

    profile, port = options.inside
    with suppress(OSError):
        socket.create_connection((HERE, int(port)), timeout=3).close()
        raise SystemExit("the driver reaches the storage: its port is not closed")
    endpoint = json.loads(Path(profile).read_text())["endpoint"]  # the volume's bucket is there, too
    client = SharingClient(profile, retryTimeout="8s", storageEndpoint="http://" + endpoint.split("/")[2])
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("delta_sharing_spark.native.machines").setLevel(logging.INFO)
    parts = {"kills": kills, "lacks": lacks, "dynamic": dynamic}
    parts |= {"stopped": partial(dies, how="SIGSTOP"), "killed": partial(dies, how="SIGKILL")}
    parts[options.parts[0]](client, options)


def session(**settings: str) -> Any:
    """An application with executors of one core."""
    from pyspark.sql import SparkSession

    told = {
        "spark.ui.enabled": "false",
        "spark.driver.host": DRIVER,
        "spark.driver.bindAddress": DRIVER,
        "spark.executor.cores": "1",
        "spark.executor.memory": "600m",
        "spark.sql.shuffle.partitions": "4",
        "spark.task.maxFailures": "8",
        **settings,
    }
    builder = SparkSession.builder.master(f"spark://{DRIVER}:7077")
    for name, value in told.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def executors(spark: Any) -> int:
    return int(spark._jsc.sc().statusStore().executorList(True).size()) - 1


def check(frame: Any, options: argparse.Namespace, what: str) -> None:
    """Compare a frame's rows."""
    began = time.monotonic()
    found = frame.selectExpr("count(*)", "sum(id)", "sum(length(text))", "count(city)").collect()[0]
    rows = options.rows
    assert tuple(found) == (rows, rows * (rows - 1) // 2, 40 * rows, (rows + 1) // 2), (what, found)
    say(f"{what}: exact, {time.monotonic() - began:.1f} s")


def loaded(client: Any, spark: Any) -> tuple[Any, Any]:
    """The table's frame, and the driver's gateway."""
    from delta_sharing_spark.spark import native

    began = time.monotonic()
    frame = client.table("s.d.t").to_spark(spark, engine="native")
    say(f"load with the gateways' start: {time.monotonic() - began:.1f} s")
    return frame, native.gateway_of(native.reach_of(spark))


def kills(client: Any, options: argparse.Namespace) -> None:
    spark = session()
    wait_for("two executors", lambda: executors(spark) > 1)
    frame, gateway = loaded(client, spark)
    check(frame, options, "full scan")
    check(frame, options, "again")
    found = gateway.machines()
    assert {machine.address for machine in found} == {NAMESPACES[name] for name in MACHINES}, found
    assert gateway.bytes_sent == 0
    strangers(gateway, found, frame.inputFiles()[0])
    drawn = random.Random(options.seed)
    words = [GATEWAY, EXECUTOR, "pyspark.daemon", WORKER]
    for number in range(options.rounds):
        word = drawn.choice(words)
        killed = drawn.choice(pids_of(word) or [0])
        timer = threading.Timer(drawn.uniform(0, 2), lambda pid=killed: pid and os.kill(pid, signal.SIGKILL))
        timer.start()
        check(frame, options, f"round {number}, {word} killed")
        timer.join()
    wait_for("gateways on both machines again", lambda: len(gateway.machines()) == 2, 90)
    check(frame, options, "after the kills")
    before = gateway.bytes_sent
    lines = spark.read.text(client.volume("s.d.v").spark_path("many", spark))
    assert (lines.count(), lines.where("value like '%7'").count()) == (40_000, 4_000)
    say(f"bytes by way of the driver: {before}, and of a volume's files {gateway.bytes_sent - before}")
    for state in ("silent", "closed"):
        say(f"the storage is {state}")
        time.sleep(1)
        began = time.monotonic()
        try:
            client.table(f"s.d.{state}").to_spark(spark).selectExpr("sum(id)", "max(text)").collect()
        except Exception as error:
            took, line = time.monotonic() - began, str(error).splitlines()[0]
            assert "NetworkError: machine " in line, line
            assert took < 20, took
            say(f"a storage that is {state}: {took:.1f} s, {line[:200]}")
        else:
            raise SystemExit(f"a storage that is {state} was read")
    spark.stop()


def lacks(client: Any, options: argparse.Namespace) -> None:
    from delta_sharing_spark.errors import ConfigError

    two, both = NAMESPACES["dss-two"], f"{NAMESPACES['dss-one']} {NAMESPACES['dss-two']}"
    for addresses in (two, both):
        say(f"the package is missing on {addresses}")
        time.sleep(1)
        spark = session()
        wait_for("two executors", lambda: executors(spark) > 1)  # noqa: B023 - it is asked at once
        scan = client.table("s.d.t").scan()
        began = time.monotonic()
        try:
            told = next(line for line in scan.explain(spark).splitlines() if "machine" in line)
            assert "has no delta-sharing-spark" in told, told
            assert addresses == two, told
        except ConfigError as error:
            told = str(error)
            assert addresses == both, told
            assert "on all machines" in told, told
            assert "pip install" in told, told
        say(f"told after {time.monotonic() - began:.1f} s: {told.strip()}")
        spark.stop()


def dynamic(client: Any, options: argparse.Namespace) -> None:
    begins = {"minExecutors": "0", "initialExecutors": "0", "maxExecutors": "2", "executorIdleTimeout": "3s"}
    begins |= {"enabled": "true", "shuffleTracking.enabled": "true", "shuffleTracking.timeout": "5s"}
    spark = session(**{f"spark.dynamicAllocation.{name}": value for name, value in begins.items()})
    assert executors(spark) == 0
    frame, gateway = loaded(client, spark)
    check(frame, options, "from no executor")
    for number in range(2):
        wait_for("no executor", lambda: executors(spark) == 0)
        wait_for("no gateway", lambda: not gateway.machines())
        check(frame, options, f"from none again, {number}")
    say(f"bytes by way of the driver: {gateway.bytes_sent}")
    spark.stop()


def dies(client: Any, options: argparse.Namespace, how: str) -> None:
    spark = session()
    frame, _ = loaded(client, spark)
    check(frame, options, "full scan")
    say(f"end the driver by {how}")
    time.sleep(600)


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
    parser.add_argument("--parts", nargs="+", default=["lacks", "dynamic", "stopped", "killed", "kills"])
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
