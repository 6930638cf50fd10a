"""The program of ``test_secrets_in_spark``: one session reads each load in its way, and keeps what Spark shows of it.

Its arguments: connect or cluster; a directory to work in; a file of loads; a file to leave the lane's secrets in.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import shutil
import sys
import threading
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

#: Spark gives each Python worker of a stream ten seconds to start, which a busy machine may not have.
TRIES = 5
#: One executor: tests/spark/test_native_cluster.py has several.
MASTER = "local-cluster[1,2,1024]"


def session(mode: str, work: str) -> SparkSession:
    builder: Any = SparkSession.builder
    builder = builder.remote("local[2]") if mode == "connect" else builder.master(MASTER)
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{work}",
        "spark.eventLog.compress": "false",
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.log.level": "INFO",
        "spark.local.dir": f"{work}/local",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={work}",
        "spark.executor.extraJavaOptions": f"-Djava.io.tmpdir={work} {os.environ.get('SPARK_SUBMIT_OPTS', '')}",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.task.maxFailures": "1",
        # Each worker is forked anew, so that it looks at how much is to be logged.
        "spark.python.worker.reuse": "false",
        **dict.fromkeys(
            ("spark.broadcast.compress", "spark.shuffle.compress", "spark.shuffle.spill.compress"), "false"
        ),
        # They stay until the job ends.
        **dict.fromkeys(
            (f"spark.sql.{one}.shuffleDependency.fileCleanup.enabled" for one in ("classic", "connect")), "false"
        ),
        # What is sorted is spilled after so many rows.
        "spark.shuffle.spill.numElementsForceSpillThreshold": "500",
        "spark.sql.sortExec.spill.row.threshold": "500",
    }
    made: SparkSession = builder.config(map=settings).getOrCreate()
    return made


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")


def tell(name: str, count: Callable[[], int]) -> None:
    """Print how many rows there are, or all that a user sees of the error."""
    try:
        say("ROWS", name, count())
    except Exception as error:  # each of them is what is looked at
        logging.exception("FAILED %s", name)
        say("FAILED", name, type(error).__name__, str(error), repr(error))


def frame(spark: SparkSession, load: dict[str, Any]) -> Any:
    """A load as a DataFrame, in its way."""
    if load["way"] == "lane":
        from delta_sharing_spark import SharingClient
        from delta_sharing_spark.spark import gateway_starts

        gateway_starts.PATIENCE = 600.0  # a busy machine starts two JVMs and their Python workers
        profile, _, table = load["address"].rpartition("#")
        scan = SharingClient(profile or None, **load["options"]).table(table).scan()
        return scan.to_spark(spark, engine="native")
    reader: Any = spark.readStream if load["way"] == "stream" else spark.read
    return reader.format("deltaSharing").options(**load["options"]).load(load["address"])


def count(way: str, name: str, read: Any, work: str) -> int:
    """The rows of a DataFrame, which are shuffled, sorted and spilled on their way."""
    if way != "stream":
        return int(read.repartition(2).sort("text").toArrow().num_rows)
    for number in range(TRIES):
        rows = f"{name}_{number}"
        writer = (
            read.writeStream.format("memory").queryName(rows).option("checkpointLocation", f"{work}/checkpoint-{rows}")
        )
        try:
            writer.trigger(availableNow=True).start().awaitTermination()
            break
        except Exception as error:
            if "failed to connect back" not in str(error) or number + 1 == TRIES:
                raise
    return int(read.sparkSession.table(rows).count())


def read_all(spark: SparkSession, work: str, loads: list[dict[str, Any]]) -> None:
    """Those of a way that succeed are read in one query, each other by itself: each costs Python workers."""
    for way in ("source", "lane", "stream"):
        whole = [frame(spark, load) for load in loads if load["way"] == way and not load["fails"]]
        if not whole:
            continue
        together = functools.reduce(lambda one, other: one.unionAll(other), whole)
        if way != "stream":
            together.explain(True)
            say(repr(together))
        tell(way, lambda way=way, together=together: count(way, f"all_{way}", together, work))  # type: ignore[misc]
    for load in loads:
        if load["fails"]:
            (Path(work) / "quiet").unlink(missing_ok=True)
            if load["quiet"]:
                (Path(work) / "quiet").touch()
            package = logging.getLogger("delta_sharing_spark")
            package.setLevel(logging.INFO if load["quiet"] else logging.DEBUG)
            tell(load["name"], lambda load=load: count(load["way"], load["name"], frame(spark, load), work))  # type: ignore[misc]


class KeptFiles(threading.Thread):
    """Gives each file that Spark or a worker makes below its directory a second name, so that it stays when they remove it."""

    def __init__(self, work: str) -> None:
        super().__init__(daemon=True)
        self._work, self._seen, self._ends = Path(work), Path(work) / "seen", threading.Event()
        self._known: set[int] = set()
        self._seen.mkdir()

    def run(self) -> None:
        while not self._ends.wait(0.05):
            self._look()
        self._look()

    def end(self) -> None:
        self._ends.set()
        self.join()

    def _look(self) -> None:
        for directory, below, names in os.walk(self._work):
            if directory == str(self._work):
                below.remove(self._seen.name)
            for name in names:
                path = Path(directory) / name
                with suppress(OSError):  # it has gone
                    if (number := path.stat().st_ino) not in self._known:
                        os.link(path, self._seen / f"{len(self._known)}-{name}")
                        self._known.add(number)


def keep_what_shows(mode: str, work: str, own: Path) -> None:
    """Keep the UI's pages, command lines and the executors' logs, before they go; and the secrets of the lane, elsewhere."""
    context: Any = SparkContext._active_spark_context  # of the Connect server's too, which this process has started
    application = context.applicationId

    def page(path: str) -> str:
        with urllib.request.urlopen(f"{context.uiWebUrl}/{path}") as answer:
            return str(answer.read().decode())

    of_it = f"api/v1/applications/{application}"
    queries = json.loads(page(f"{of_it}/sql?length=1000"))
    pages = ["jobs/", "stages/", "environment/", "executors/", "SQL/", "StreamingQuery/", "metrics/json/", "storage/"]
    pages += [f"SQL/execution/?id={query['id']}" for query in queries]
    pages += [
        f"{of_it}/{what}" for what in ("sql?details=true&length=1000", "stages?details=true", "environment", "jobs")
    ]
    pages += [f"{of_it}/{what}" for what in ("executors", "allexecutors", "storage/rdd")]
    with open(f"{work}/ui.txt", "w") as out:
        out.writelines(f"{path} {page(path)}\n" for path in pages)
    with open(f"{work}/commands.txt", "wb") as commands:
        for command in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # its process has ended
                commands.write(command.read_bytes())
    executors = Path(pyspark.__file__).parent / "work" / application
    if mode == "cluster":
        from delta_sharing_spark.spark import native

        shutil.move(executors, f"{work}/executors")
        (gateway,) = native._gateways.values()
        secrets = [gateway.key_field, gateway.secret.hex(), gateway.secret.decode("latin-1")]
        own.write_text(json.dumps(secrets), "utf-8")


def main() -> None:
    mode, work, loads, own = sys.argv[1:]
    kept = KeptFiles(work)
    kept.start()
    spark = session(mode, work)
    read_all(spark, work, json.loads(Path(loads).read_text("utf-8")))
    kept.end()
    keep_what_shows(mode, work, Path(own))
    spark.stop()


if __name__ == "__main__":
    main()
