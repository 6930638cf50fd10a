"""A Spark job that can reach nothing but a Flight gateway: ``nox -s flight-alone``, by hand; Linux, as root.

The job runs in a network namespace of its own, whose loopback ends there; the gateway listens on a Unix socket. It reads a
table, its change feed and a stream while the URLs behind the gateway's tickets expire.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

TOKEN = "token-of-this-run"
TABLE = "sh.sc.t"
SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])


def outside(directory: Path) -> int:
    """Serve, and start the job inside."""
    from delta_sharing_spark import SharingClient
    from delta_sharing_spark.flight.gateway import FlightGateway
    from delta_sharing_spark.flight.settings import GatewaySettings
    from delta_sharing_spark.testing.interpreter import worker_python
    from delta_sharing_spark.testing.server import ServerSettings, SharingServer
    from delta_sharing_spark.testing.tables import DeltaTableBuilder

    properties = {"delta.enableChangeDataFeed": "true", "delta.enableDeletionVectors": "true"}
    table = DeltaTableBuilder(directory / "t", SCHEMA, ("day",), properties)
    table.append([{"id": i, "day": "ab"[i % 2]} for i in range(100)], files=4)
    table.delete(lambda batch: pc.less(batch["id"], 10), deletion_vectors=True)
    with SharingServer(settings=ServerSettings(url_ttl=4.0)) as server:
        server.add_table(TABLE, table.path, access_modes=("url",))
        settings = GatewaySettings(f"grpc+unix://{directory}/gateway.sock", (TOKEN,))
        with FlightGateway(SharingClient(server.profile(), maxSplitBytes="1k"), settings):
            environment = {**os.environ, "DELTA_SHARING_FLIGHT_TOKEN": TOKEN, "SPARK_LOCAL_IP": "127.0.0.1"}
            environment["PYSPARK_PYTHON"] = worker_python(sys.executable)
            inside_command = f"ip link set lo up && exec {sys.executable} {__file__} {directory} {server.endpoint}"
            done = subprocess.run(
                ["unshare", "--net", "sh", "-c", inside_command], env=environment, timeout=400, check=False
            )
    return done.returncode


def inside(directory: Path, endpoint: str) -> None:
    """The job."""
    import time
    import urllib.error
    import urllib.request

    from pyspark.sql import SparkSession

    try:
        urllib.request.urlopen(endpoint, timeout=2)
        raise SystemExit("the sharing server can be reached; the namespace does not work")
    except urllib.error.HTTPError:
        raise SystemExit("the sharing server can be reached; the namespace does not work") from None
    except urllib.error.URLError:
        pass
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    through = {"gateway": f"grpc+unix://{directory}/gateway.sock", "maxSplitBytes": "1k"}

    def read(**options: str) -> list[int]:
        frame = spark.read.format("deltaSharing").options(**through, **options).load(TABLE)
        first = sorted(row.id for row in frame.collect())
        time.sleep(6)  # the URLs that the plan was made of have ended
        assert sorted(row.id for row in frame.collect()) == first
        return first

    assert read() == list(range(10, 100))
    feed = read(readChangeFeed="true", startingVersion="1")
    assert feed == sorted([*range(100), *range(10)])
    query = (
        spark.readStream.format("deltaSharing").options(**through, maxFilesPerTrigger="1").load(TABLE)
        .writeStream.format("parquet").option("path", f"{directory}/sink").option("checkpointLocation", f"{directory}/check")
        .trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(200)
    assert query.exception() is None, query.exception()
    assert sorted(row.id for row in spark.read.parquet(f"{directory}/sink").collect()) == list(range(10, 100))
    spark.stop()
    sys.stdout.write("3 passed, 0 failed\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        inside(Path(sys.argv[1]), sys.argv[2])
        sys.exit(0)
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(outside(Path(temporary)))
