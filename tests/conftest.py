"""Options of the whole suite, an environment without the machine's proxies and identities, a certificate, a Spark session.

The session is classic, or Connect with ``--spark-mode=connect``; the suites that need it share it.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from delta_sharing_spark.testing.interpreter import worker_python
from support import INTERPRETED, PRELOADED_WORKERS
from support.processor_seconds import ProcessorSeconds

_SCRUBBED = (
    "AWS_",
    "AZURE_",
    "GOOGLE_",
    "GCLOUD_",
    "DELTA_SHARING_",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "SSL_CERT_",
)
#: Directories of suites whose every test is marked by the directory's name; elsewhere who asks for Spark is.
_MARKED = {"spark": pytest.mark.spark, "emulators": pytest.mark.emulators}

os.environ["PYSPARK_PYTHON"] = worker_python(sys.executable)
os.environ["PYSPARK_DRIVER_PYTHON"] = os.environ["PYSPARK_PYTHON"]
# Sessions of a few minutes spend far less processor time where Java compiles quickly, keeps all that it has compiled and
# loaded, collects seldom and in one thread, and does not verify Spark's own classes.
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS",
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:MetaspaceSize=512m -XX:+UseSerialGC -XX:NewSize=400m "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
)

# A slow machine fails no test, and a commit is tested alike each time; --hypothesis-profile=search draws anew, and more.
settings.register_profile(
    "steady", deadline=None, derandomize=True, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", settings.get_profile("steady"), derandomize=False, max_examples=1000)
settings.load_profile("steady")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--spark-mode", choices=("classic", "connect"), default="classic", help="the session of tests/spark"
    )
    parser.addoption("--drawn-queries", type=int, help="how many queries test_sql_drawn.py compares; else 5, or 3")
    parser.addoption("--drawn-histories", type=int, default=20, help="how many histories tests/iceberg compares")
    parser.addoption("--drawn-seed", type=int, default=20261122, help="what they are drawn from")
    parser.addoption("--processor-seconds", type=int, help="print so many of the tests that cost most of them; Linux")


def pytest_configure(config: pytest.Config) -> None:
    if (dearest := config.getoption("--processor-seconds")) is not None:
        config.pluginmanager.register(ProcessorSeconds(dearest))
    for name in list(os.environ):
        if name.upper().startswith(_SCRUBBED):
            del os.environ[name]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here, connect = Path(__file__).parent, config.getoption("--spark-mode") == "connect"
    for item in list(items):
        suite = item.path.relative_to(here).parts[0]
        if suite in _MARKED:
            item.add_marker(_MARKED[suite])
        elif "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        only = item.get_closest_marker("connect_only") is not None
        if suite == "spark" and not (only or item.get_closest_marker("connect") if connect else not only):
            items.remove(item)
            config.hook.pytest_deselected(items=[item])


def pytest_collection_finish() -> None:
    """What was imported and collected stays until the end: the garbage collector need not go through it each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def files_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file is fetched whole: its footer first, and each column chunk that is wanted by a request of its own."""
    for size in ("WHOLE_FILE", "_ALWAYS_WHOLE", "_FIRST_GAP"):
        monkeypatch.setattr(f"delta_sharing_spark.scan.pace.{size}", 0)


@pytest.fixture(params=["alone", "joined", "joined, fetched in parts"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether small files are shown as one, and whether they are fetched whole."""
    if request.param == "alone":
        monkeypatch.setattr("delta_sharing_spark.native.plan.SMALL_FILE", 0)
    elif request.param != "joined":
        request.getfixturevalue("files_in_parts")
    return str(request.param)


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets this process's wall clock on by some seconds, for the client and the embedded server alike."""
    wall, passed = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: wall() + sum(passed))
    return passed.append


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1, with its key."""
    from support.certificates import certificate_of

    return certificate_of(tmp_path_factory.mktemp("tls"), "127.0.0.1")


@pytest.fixture(scope="session")
def spark_mode(pytestconfig: pytest.Config) -> str:
    return str(pytestconfig.getoption("--spark-mode"))


@pytest.fixture(scope="session")
def spark(spark_mode: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    if spark_mode == "connect":  # PySpark's own way to a port of this server's own: without it all take 15002
        os.environ["SPARK_TESTING"] = "1"
    builder: Any = SparkSession.builder
    builder = builder.remote("local[2]") if spark_mode == "connect" else builder.master("local[2]")
    builder = (
        builder.appName("delta-sharing-spark tests")
        .config(map=INTERPRETED)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "2g")
    )
    with pytest.MonkeyPatch.context() as patch:  # Java hands its own on to the daemons
        patch.setenv("PYTHONPATH", PRELOADED_WORKERS, prepend=os.pathsep)
        session = builder.getOrCreate()
    yield session
    session.stop()
