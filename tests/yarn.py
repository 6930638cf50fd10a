"""The lane on YARN: Hadoop's own MiniYARNCluster, two node managers, on a machine of its own: ``nox -s yarn``, by hand; Linux, as root.

The cluster and the driver each have a network namespace, and the data's port is closed to the driver: what it reads, it does not
read. Maven fetches the cluster (``hadoop-client-minicluster`` of the version that pyspark bundles). Parts (all by default):

    client     deploy mode client: exact rows while containers, gateways and Python daemons are killed; strangers ask each port
    archives   spark-submit in deploy mode cluster, with the environment packed by --archives
    plain      spark-submit in deploy mode cluster, with this environment's Python and no archive
    dynamic    dynamic allocation from no executor, which all leave again
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import cluster
from cluster import (
    DRIVER,
    GATEWAY,
    HERE,
    NAMESPACES,
    Forwarder,
    check,
    executors,
    ip,
    loaded,
    pids_of,
    say,
    strangers,
    wait_for,
)

MACHINE = "dss-one"
CONTAINER = "YarnCoarseGrainedExecutorBackend"
#: What the cluster needs beside Hadoop: its classes name those of test libraries.
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>delta-sharing-spark</groupId><artifactId>yarn</artifactId><version>1</version>
  <dependencies>{}</dependencies>
</project>"""
DEPENDENCIES = (
    ("org.apache.hadoop", "hadoop-client-minicluster", None),
    ("ch.qos.reload4j", "reload4j", "1.2.26"),
    ("junit", "junit", "4.13.2"),
    ("org.junit.jupiter", "junit-jupiter-api", "5.11.4"),
    ("org.mockito", "mockito-core", "4.11.0"),
    ("org.bouncycastle", "bcpkix-jdk18on", "1.78.1"),
)
#: Settings of the cluster: one queue, two node managers of four containers each, nobody's disk is too full.
SETTINGS = {
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "0.9",
    "yarn.nodemanager.resource.memory-mb": "4096",
    "yarn.nodemanager.resource.cpu-vcores": "4",
    "yarn.scheduler.minimum-allocation-mb": "128",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.disk-health-checker.enable": "false",
    "yarn.nodemanager.delete.debug-delay-sec": "3600",
    "yarn.application.classpath": "/nowhere",
    "fs.defaultFS": "file:///",
}


def jars(directory: Path) -> str:
    """The class path of the cluster, by Maven."""
    import pyspark

    (bundled,) = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    version = bundled.stem.rpartition("-")[2]
    parts = (
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{own or version}</version></dependency>"
        for group, name, own in DEPENDENCIES
    )
    (directory / "pom.xml").write_text(POM.format("".join(parts)), encoding="utf-8")
    command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={directory / 'jars'}"]
    subprocess.run(command, cwd=directory, check=True)
    return os.pathsep.join(map(str, sorted((directory / "jars").glob("*.jar"))))


def serve_yarn(class_path: str, directory: str) -> None:
    """The cluster, in a JVM of this process; its configuration is written where Spark looks for it."""
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    port = launch_gateway(
        classpath=class_path, die_on_exit=True, redirect_stdout=sys.stdout, redirect_stderr=sys.stderr
    )
    jvm: Any = JavaGateway(gateway_parameters=GatewayParameters(port=int(port), auto_convert=True)).jvm
    jvm.java.lang.System.setProperty("test.build.data", f"{directory}/yarn")
    settings = jvm.org.apache.hadoop.yarn.conf.YarnConfiguration()
    for name, value in SETTINGS.items():
        settings.set(name, value)
    running = jvm.org.apache.hadoop.yarn.server.MiniYARNCluster("delta-sharing", 2, 1, 1)
    running.init(settings)
    running.start()
    assert running.waitForNodeManagersToConnect(120_000)
    told = jvm.org.apache.hadoop.conf.Configuration(running.getConfig())
    written = Path(directory) / "conf"
    written.mkdir()
    out = jvm.java.io.ByteArrayOutputStream()
    told.writeXml(out)
    (written / "yarn-site.xml").write_text(str(out.toString()).replace(">localhost:", f">{MACHINE}:"))
    (written / "core-site.xml").write_text("<configuration/>")
    (Path(directory) / "ready").touch()
    signal.pause()


@contextmanager
def names() -> Iterator[None]:
    """On the cluster's machine ``localhost``, as MiniYARNCluster calls itself, is the address by which others reach it."""
    folders = [Path("/etc/netns") / name for name in NAMESPACES]
    known = "".join(f"{address} {name}\n" for name, address in NAMESPACES.items())
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        local = NAMESPACES[MACHINE] if folder.name == MACHINE else "127.0.0.1"
        (folder / "hosts").write_text(f"{local} localhost\n{known}")
    try:
        yield
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def outside(directory: Path, options: argparse.Namespace) -> int:
    """Serve, start the cluster, and a driver for each part."""
    from delta_sharing_spark.testing.server import ServerSettings
    from delta_sharing_spark.testing.tables import DeltaTableBuilder
    from support.buckets import BucketServer

    class_path = jars(directory)
    noise = os.urandom(options.rows * 2 + 40).hex()
    rows = [{"id": n, "text": noise[4 * n : 4 * n + 40], "city": ("Oslo", None)[n % 2]} for n in range(options.rows)]
    table = DeltaTableBuilder(directory / "t", cluster.SCHEMA, ["city"]).append(rows, files=4)
    settings = ServerSettings()
    with names(), cluster.machines(), BucketServer({"s.d.t": table.path}, host=HERE, settings=settings) as server:
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
        environment |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        environment |= {"YARN_CONF_DIR": str(directory / "conf"), "HADOOP_CONF_DIR": str(directory / "conf")}
        environment |= {"PYTHONPATH": str(Path(__file__).parent), "SPARK_LOCAL_DIRS": str(directory)}

        def inside_of(name: str, command: list[str], **more: Any) -> subprocess.Popen[Any]:
            own = {**environment, "SPARK_LOCAL_IP": NAMESPACES[name]}
            log = (directory / f"{name}.log").open("ab")
            named = ["unshare", "--uts", "sh", "-c", f'hostname {name} && exec "$@"', "sh"]
            return subprocess.Popen(
                ["ip", "netns", "exec", name, *named, *command], env=own, stderr=log, **{"stdout": log, **more}
            )

        inside_of("dss-driver", [sys.executable, cluster.__file__, "--forward", str(server.port)])
        inside_of(MACHINE, [sys.executable, cluster.__file__, "--forward", str(server.port), str(forwarder.port)])
        inside_of(MACHINE, [sys.executable, __file__, "--yarn", class_path, str(directory)])
        wait_for("YARN", (directory / "ready").exists, 300)
        say("YARN runs, with two node managers")
        told = [f"--{name}={getattr(options, name)}" for name in ("rows", "rounds", "seed")]
        for part in options.parts:
            say(f"-- {part}, seed {options.seed}")
            inner = ["--inside", str(profile), str(forwarder.port), *told, "--parts", part]
            command = [sys.executable, __file__, *inner]
            if part in ("archives", "plain"):
                command = submitted(directory, part, inner)
            driver = inside_of("dss-driver", command, stdout=subprocess.PIPE, text=True)
            assert driver.stdout is not None
            for line in driver.stdout:
                say(line.rstrip())
            code = driver.wait()
            if code:
                said = (directory / "dss-driver.log").read_text(encoding="utf-8", errors="replace")
                say(f"{part} failed with {code}:\n{said[-4000:]}")
                return code
            assert forwarder.askers <= {NAMESPACES[MACHINE]}, forwarder.askers
            wait_for("the gateways' end", lambda: not pids_of(GATEWAY), 60)
            wait_for("the containers' end", lambda: not pids_of(CONTAINER), 60)
            say(f"{part} passed: the storage was asked by the machine alone, and nothing is left")
    return 0


def submitted(directory: Path, part: str, inner: list[str]) -> list[str]:
    """``spark-submit`` of this file in deploy mode cluster."""
    import pyspark

    home = Path(pyspark.__file__).parent
    command = [str(home / "bin" / "spark-submit"), "--master", "yarn", "--deploy-mode", "cluster"]
    settings = SESSION | {"spark.yarn.submit.waitAppCompletion": "true"}
    python = sys.executable
    if part == "archives":
        packed = directory / "environment.tar.gz"
        subprocess.run([sys.executable, "-m", "venv_pack", "-q", "-p", sys.prefix, "-o", str(packed)], check=True)
        command += ["--archives", f"{packed}#environment"]
        python = "./environment/bin/python"
    settings |= {f"spark.{place}.PYSPARK_PYTHON": python for place in ("yarn.appMasterEnv", "executorEnv")}
    settings |= {"spark.yarn.appMasterEnv.PYTHONPATH": str(Path(__file__).parent)}
    command += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    return [*command, __file__, *inner]


#: Small containers, of one core.
SESSION = {
    "spark.ui.enabled": "false",
    "spark.executor.cores": "1",
    "spark.executor.instances": "2",
    "spark.executor.memory": "600m",
    "spark.driver.memory": "600m",
    "spark.yarn.am.memory": "400m",
    "spark.sql.shuffle.partitions": "4",
    "spark.task.maxFailures": "8",
}


def session(**settings: str) -> Any:
    """An application in deploy mode client, or that which ``spark-submit`` has begun."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    if "SPARK_YARN_MODE" not in os.environ and "CONTAINER_ID" not in os.environ:
        own = {"spark.driver.host": DRIVER, "spark.driver.bindAddress": DRIVER}
        builder = builder.master("yarn")
        for name, value in {**SESSION, **own, **settings}.items():
            builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def inside(options: argparse.Namespace) -> None:
    """The driver."""
    from delta_sharing_spark import SharingClient

    profile, port = options.inside
    (part,) = options.parts
    if part not in ("archives", "plain"):  # there the driver is on the cluster's machine
        with suppress(OSError):
            socket.create_connection((HERE, int(port)), timeout=3).close()
            raise SystemExit("the driver reaches the storage: its port is not closed")
    client = SharingClient(profile, retryTimeout="8s")
    {"client": kills, "archives": once, "plain": once, "dynamic": dynamic}[part](client, options)


def once(client: Any, options: argparse.Namespace) -> None:
    spark = session()
    frame, gateway = loaded(client, spark)
    check(frame, options, "full scan")
    check(client.table("s.d.t").to_spark(spark, engine="python"), options, "by the Python source")
    assert gateway.bytes_sent == 0, gateway.bytes_sent
    spark.stop()


def kills(client: Any, options: argparse.Namespace) -> None:
    spark = session()
    wait_for("two executors", lambda: executors(spark) > 1, 300)
    frame, gateway = loaded(client, spark)
    check(frame, options, "full scan")
    check(frame, options, "again")
    assert gateway.bytes_sent == 0, gateway.bytes_sent
    strangers(gateway, gateway.machines(), frame.inputFiles()[0])
    drawn = random.Random(options.seed)
    for number in range(options.rounds):
        word = drawn.choice([GATEWAY, CONTAINER, "pyspark.daemon"])
        killed = drawn.choice(pids_of(word) or [0])
        timer = threading.Timer(drawn.uniform(0, 2), lambda pid=killed: pid and os.kill(pid, signal.SIGKILL))
        timer.start()
        check(frame, options, f"round {number}, {word} killed")
        timer.join()
    check(frame, options, "after the kills")
    say(f"bytes by way of the driver: {gateway.bytes_sent}")
    spark.stop()


def dynamic(client: Any, options: argparse.Namespace) -> None:
    begins = {"minExecutors": "0", "initialExecutors": "0", "maxExecutors": "2", "executorIdleTimeout": "3s"}
    begins |= {"enabled": "true", "shuffleTracking.enabled": "true", "shuffleTracking.timeout": "5s"}
    spark = session(**{f"spark.dynamicAllocation.{name}": value for name, value in begins.items()})
    frame, gateway = loaded(client, spark)
    check(frame, options, "from no executor")
    for number in range(2):
        wait_for("no executor", lambda: executors(spark) == 0, 300)
        wait_for("no gateway", lambda: not gateway.machines(), 300)
        check(frame, options, f"from none again, {number}")
    say(f"bytes by way of the driver: {gateway.bytes_sent}")
    spark.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--inside", nargs=2)
    parser.add_argument("--yarn", nargs=2)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--parts", nargs="+", default=["client", "plain", "archives", "dynamic"])
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    given = parser.parse_args()
    if given.inside:
        inside(given)
        sys.exit(0)
    if given.yarn:
        serve_yarn(*given.yarn)
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(outside(Path(temporary), given))
