"""A Connect server in a process of its own, whose Python does not have the package."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support import HANGS, INTERPRETED

# Python runs it at every start: the server's workers see neither the checkout nor an installed copy of it.
_WITHOUT = """
import os, sys
sys.path[:] = [p for p in sys.path if not os.path.isdir(os.path.join(p or ".", "delta_sharing_spark"))]
"""
_CLIENT = """
import sys
from pyspark.sql import SparkSession
import delta_sharing_spark
spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
address = sys.argv[2]
try:
    spark.read.format("deltaSharing").load(address).count()
    print("FOUND")
except Exception as error:
    print("UNKNOWN")
delta_sharing_spark.register(spark)
delta_sharing_spark.register(spark)
print("ROWS", spark.read.format("deltaSharing").load(address).count())
spark.stop()
"""


@pytest.fixture
def bare_connect_server(tmp_path: Path) -> Iterator[str]:
    import pyspark

    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(_WITHOUT)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "PYTHONPATH": str(site),
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [
        str(home / "bin" / "spark-submit"),
        *("--master", "local[1]", "--conf", f"spark.connect.grpc.binding.port={port}"),
        *("--conf", "spark.connect.grpc.binding.address=127.0.0.1", "--conf", "spark.ui.enabled=false"),
        *itertools.chain.from_iterable(("--conf", f"{name}={value}") for name, value in INTERPRETED.items()),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"),
    ]
    log = (tmp_path / "server.log").open("wb")
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, (tmp_path / "server.log").read_text()[-2000:]
            time.sleep(0.1)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, 15)
        process.wait(HANGS)
        log.close()


def test_register_ships_the_package_to_a_server_that_lacks_it(
    bare_connect_server: str, server: SharingServer, share: Any, tmp_path: Path
) -> None:
    table = DeltaTableBuilder(tmp_path / "shipped", pa.schema([("id", pa.int64())])).append(pa.table({"id": [1, 2, 3]}))
    environment = {k: v for k, v in os.environ.items() if k not in ("SPARK_HOME", "SPARK_REMOTE")}
    run = subprocess.run(
        [sys.executable, "-c", _CLIENT, bare_connect_server, share(table)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    assert run.stdout.split() == ["UNKNOWN", "ROWS", "3"], run.stdout + run.stderr[-3000:]
