"""Streams, threads of reads, the native lane and a Flight gateway for hours, under expiries and faults: ``nox -s soak``.

The sharing server, which commits every other second, and the gateway are processes of their own. The driver runs a stream for
each access mode and eight threads of reads; every answer is compared with what was committed. Memory, threads, sockets and
temporary files of each process are sampled, written as CSV, and compared at the end: growth and wrong rows fail. Linux.

Sockets that Spark leaves for good are counted apart, as ``left``, and may be one for each stream that was started, in each
process: Py4J keeps the connection, and in the driver a thread, by which a stream's ``foreachBatch`` was called, and the JVM
the listening socket to which a Python source's process came. Plain PySpark 4.3 leaves as many, over its rate source too.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from delta_sharing_spark import SharingClient
from delta_sharing_spark.testing.interpreter import worker_python
from delta_sharing_spark.testing.tables import DeltaTableBuilder, FileStyle

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.buckets import BucketServer

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string()), ("s", pa.string())])
#: Rows of each commit of the growing table, and of the one that stands still.
EACH, STILL = 200, 60_000
GROWING, STANDING = "soak.s.growing", "soak.s.standing"
#: Seconds between commits, samples, and expiries of every URL and credential.
COMMIT_SECONDS, SAMPLE_SECONDS, EXPIRY_SECONDS = 2.0, 10.0, 60.0
#: What a process may have more of in the last third of its time than in the second: a share, and a number beside it.
GROWTH = {"rss_mib": (0.15, 80), "threads": (0.1, 12), "sockets": (0.1, 12), "files": (0.1, 12)}
#: What Spark holds of ``left`` with no stream.
LEFT_AT_FIRST = 8
#: What Spark says of a Python worker that the machine did not start within ten seconds.
_SLOW = "Python worker failed to connect back"
#: What goes wrong now and then, and heals by itself.
FAULTS: list[dict[str, Any]] = [
    {"on": "data", "status": 503},
    {"on": "data", "reset": True},
    {"on": "data", "truncate": 1000},
    {"on": "data", "stall": 3.0, "stall_at": 500},
    {"on": "query", "status": 500},
    {"on": "rest", "status": 429, "retry_after": "1"},
    {"on": "rest", "reset": True},
    {"on": "log", "status": 503},
]


# --- the server's process ---------------------------------------------------------------------------------------------


def rows(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    return pa.table({"id": ids, "day": [f"d{i % 3}" for i in ids], "s": [f"row {i}" for i in ids]}, SCHEMA)


def serve(directory: Path, seed: int) -> None:
    """Commit, expire and break until standard input ends; a line stops the commits and is answered by their number."""
    draw = random.Random(seed)
    style = FileStyle(keep_rows=False)
    standing = DeltaTableBuilder(directory / "standing", SCHEMA, style=style)
    for first in range(0, STILL, STILL // 6):
        standing.append(rows(first, STILL // 6))
    growing = DeltaTableBuilder(directory / "growing", SCHEMA, style=style).append(rows(0, EACH))
    stopped, written = threading.Event(), threading.Lock()

    def commit() -> None:
        while not stopped.wait(COMMIT_SECONDS):
            with written:
                if stopped.is_set():  # while this thread waited for the lock: the number of commits has been told
                    return
                growing.append(rows(growing.version * EACH, EACH))
                if growing.version % 50 == 0:
                    growing.checkpoint()

    def disturb() -> None:
        while not stopped.wait(draw.uniform(2.0, 10.0)):
            server.faults.add(**draw.choice(FAULTS))

    def expire() -> None:
        while not stopped.wait(EXPIRY_SECONDS):
            server.expire_urls()
            server.expire_credentials()
            server.reset_metrics()

    with BucketServer() as server:
        server.settings.url_ttl = server.settings.credential_ttl = 2 * EXPIRY_SECONDS
        for name, table in ((GROWING, growing), (STANDING, standing)):
            server.add_bucket_table(name, table.path, ("url", "dir"))
        server.write_profile(directory / "config.share")
        print(server.storage_endpoint, flush=True)
        for work in (commit, disturb, expire):
            threading.Thread(target=work, daemon=True).start()
        for _ in sys.stdin:
            stopped.set()
            with written:
                print(json.dumps({"commits": growing.version, "failures": list(server.failures)}), flush=True)


# --- what is read -----------------------------------------------------------------------------------------------------


@dataclass
class Soak:
    """A run: what it reads from, what it counted and what went wrong."""

    spark: Any
    client: Callable[[str], SharingClient]
    gateway: SharingClient
    stream_options: dict[str, dict[str, str]]
    directory: Path
    ends: float
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    #: By stream and batch: the number of ids, their sum, the least and the greatest.
    batches: dict[str, dict[int, tuple[int, int, int | None, int | None]]] = field(default_factory=dict)

    def check(self, kind: str, told: Any, expected: Any) -> None:
        if told != expected:
            self.wrong.append(f"{kind}: {str(told)[:300]} instead of {str(expected)[:300]}")

    def reads(self) -> dict[str, Callable[[random.Random], None]]:
        """Each way to read, with the comparison of its rows."""

        def arrow(mode: str) -> Callable[[random.Random], None]:
            def read(draw: random.Random) -> None:
                first = draw.randrange(STILL)
                told = self.client(mode).table(STANDING).scan(where=f"id >= {first}").to_arrow()
                self.check(f"arrow {mode}", (told.num_rows, sum(told["id"].to_pylist())), span(first, STILL))

            return read

        def frame(engine: str) -> Callable[[random.Random], None]:
            def read(draw: random.Random) -> None:
                first = draw.randrange(STILL)
                told = self.client("url").table(STANDING).scan(where=f"id >= {first}").to_spark(self.spark, engine)
                row = told.selectExpr("count(*)", "sum(id)").first()
                self.check(f"spark {engine}", tuple(row), span(first, STILL))

            return read

        def pinned(draw: random.Random) -> None:
            table = self.client(draw.choice(("url", "dir"))).table(GROWING)
            version = table.version()
            told = table.scan(version=version, columns=["id"]).to_pandas()
            self.check("version", (len(told), int(told["id"].sum())), span(0, version * EACH))

        def lane(draw: random.Random) -> None:
            last = draw.randrange(1, EACH)
            told = self.client("url").sql(
                self.spark,
                f"SELECT count(*), sum(g.id) FROM {GROWING} g JOIN {STANDING} s ON g.id = s.id WHERE s.id < {last}",
            )
            self.check("sql", tuple(told.first()), span(0, last))

        def through(draw: random.Random) -> None:
            first = draw.randrange(STILL)
            told = self.gateway.table(STANDING).scan(where=f"id >= {first}").to_arrow()
            self.check("gateway", (told.num_rows, sum(told["id"].to_pylist())), span(first, STILL))

        def abandoned(draw: random.Random) -> None:
            with_rows = draw.choice((self.client("url"), self.gateway)).table(STANDING)
            with_rows.scan().to_record_batch_reader(workers=2).read_next_batch()

        return {
            "arrow url": arrow("url"),
            "arrow dir": arrow("dir"),
            "native": frame("native"),
            "python": frame("python"),
            "version": pinned,
            "sql": lane,
            "gateway": through,
            "abandoned": abandoned,
        }

    def read_on(self, seed: int, pause: float) -> None:
        """Read one way after the other until the time is over."""
        draw, ways = random.Random(seed), self.reads()
        while time.monotonic() < self.ends:
            kind = draw.choice(sorted(ways))
            try:
                ways[kind](draw)
                self.counts[kind] += 1
            except Exception:
                self.wrong.append(f"{kind}: {traceback.format_exc(limit=-3)[-1500:]}")
            time.sleep(draw.uniform(0.0, 2 * pause))

    def start_stream(self, name: str) -> Any:
        """The stream of an access mode, which goes on where an earlier one stopped; what it gives is counted by batch."""
        batches = self.batches.setdefault(name, {})

        def count(frame: Any, number: int) -> None:
            row = frame.selectExpr("count(*)", "coalesce(sum(id), 0)", "min(id)", "max(id)").first()
            batches[number] = tuple(row)

        read = self.spark.readStream.format("deltaSharing").options(**self.stream_options[name])
        path = GROWING if name == "gateway" else f"{self.directory / 'config.share'}#{GROWING}"
        writer = read.load(path).writeStream.foreachBatch(count).queryName(name)
        checkpoint = str(self.directory / f"checkpoint-{name}")
        return writer.option("checkpointLocation", checkpoint).trigger(processingTime="2 seconds").start()

    def stream_on(self, name: str, commits: Callable[[], int], restart_seconds: float) -> None:
        """Run a stream, stop and start it at times, let it catch up when all is committed, and compare its rows."""
        expected: tuple[int, int | None] | None = None
        latest = self.ends
        while expected is None or (self.streamed(name) != expected and time.monotonic() < latest):
            query = self.start_stream(name)
            self.counts["streams started"] += 1
            until = min(latest, time.monotonic() + restart_seconds)
            while time.monotonic() < until and query.isActive and self.streamed(name) != expected:
                time.sleep(1.0)
            failure = str(query.exception() or "")
            if _SLOW in failure:
                self.counts["streams that a busy machine stopped"] += 1
                time.sleep(20.0)
            elif failure:
                self.wrong.append(f"stream {name}: {failure[-1500:]}")
            query.stop()
            if time.monotonic() >= self.ends and expected is None:
                expected, latest = span(0, commits() * EACH), time.monotonic() + 300
        if self.streamed(name) != expected:
            self.wrong.append(
                f"stream {name}: {self.streamed(name)} instead of {expected}: {self.gaps(name, expected[0])}"
            )

    def streamed(self, name: str) -> tuple[int, int]:
        batches = list(self.batches[name].values())
        return sum(batch[0] for batch in batches), sum(batch[1] for batch in batches)

    def gaps(self, name: str, end: int) -> str:
        """Where the ids of a stream's batches do not follow each other: rows that were lost, or only not reached in time."""
        found, reached = [], 0
        for number, (count, _, least, greatest) in sorted(self.batches[name].items()):
            if least is None or greatest is None:
                continue
            if least != reached or greatest - least + 1 != count:
                found.append(f"batch {number} has {count} of the ids {least} to {greatest}, after {reached - 1}")
            reached = greatest + 1
        return "; ".join(found) or f"no batch lacks a row, and ids from {reached} to {end - 1} were not reached in time"


def span(first: int, end: int) -> tuple[int, int | None]:
    """The count and the sum of the ids from ``first`` to before ``end``."""
    return end - first, sum(range(first, end)) if end > first else None


# --- what is measured -------------------------------------------------------------------------------------------------


def sample(pid: int, leaves: Callable[[int, bool], bool] | None = None) -> dict[str, int]:
    """Resident memory, threads and sockets of a process; empty once it has ended.

    ``leaves`` tells of a socket's port, and of whether it listens, that it is one of those which Spark leaves.
    """
    try:
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
        )
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
        ports = [Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    except OSError:
        return {}
    if "VmRSS" not in status:
        return {}
    sockets = set()
    for descriptor in descriptors:
        with suppress(OSError):
            sockets.add(os.readlink(descriptor))
    sockets = {name[8:-1] for name in sockets if name.startswith("socket:")}
    told = {
        "rss_mib": int(status["VmRSS"].split()[0]) >> 10,
        "threads": int(status["Threads"]),
        "sockets": len(sockets),
    }
    if leaves is not None:
        table = [(fields[1], fields[3], fields[9]) for fields in map(str.split, [*ports[0], *ports[1]])]
        told["left"] = sum(
            inode in sockets and leaves(int(local.rpartition(":")[2], 16), state == "0A")
            for local, state, inode in table
        )
        told["sockets"] -= told["left"]
    return told


def descendants(pid: int) -> Iterator[int]:
    """The processes below one; those that end meanwhile may be left out."""
    try:
        children = [(task / "children").read_text().split() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return
    for child in (int(one) for of_a_thread in children for one in of_a_thread):
        yield child
        yield from descendants(child)


def name_of(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return "ended"
    return "jvm" if "java" in command.split("\0")[0] else "workers"


class Sampler:
    """Samples the processes of a run; ``curve`` has a row of numbers for each moment."""

    def __init__(self, fixed: dict[str, int], temporary: Path, callback_port: Callable[[], int]) -> None:
        self._fixed, self._temporary, self._callback_port = fixed, temporary, callback_port
        self.curve: list[dict[str, float]] = []
        self._began = time.monotonic()

    def take(self) -> None:
        numbers: dict[str, float] = {"seconds": round(time.monotonic() - self._began)}
        callbacks = self._callback_port()
        leaves: dict[str, Callable[[int, bool], bool]] = {
            "driver": lambda port, listens: port == callbacks and not listens,
            "jvm": lambda port, listens: listens,
        }
        others = [(name_of(pid), pid) for pid in descendants(os.getpid()) if pid not in self._fixed.values()]
        parts = [(name, sample(pid, leaves.get(name))) for name, pid in [*self._fixed.items(), *others]]
        driver = parts[0][1]
        driver["threads"] -= driver["left"]
        for name, values in parts:
            for what, value in values.items():
                numbers[f"{name} {what}"] = numbers.get(f"{name} {what}", 0) + value
        numbers["temporary files"] = sum(len(files) for _, _, files in os.walk(self._temporary))
        self.curve.append(numbers)

    def write(self, path: Path) -> None:
        columns = list(dict.fromkeys(name for row in self.curve for name in row))
        with path.open("w", newline="", encoding="utf-8") as out:
            writer = csv.DictWriter(out, columns, restval="")
            writer.writeheader()
            writer.writerows(self.curve)

    def growth(self, started: int) -> tuple[list[str], list[str]]:
        """A line for each number, its medians in each third of the time and its end at rest; and a line for each that grew.

        What grew is more in the last third than in the second, and stays so at rest; of ``left``, more than ``started``
        streams leave.
        """
        lines, grown = [], []
        rest = self.curve.pop()
        third = len(self.curve) // 3
        for name in [name for name in self.curve[-1] if name != "seconds"]:
            parts = [self.curve[n * third : (n + 1) * third] for n in range(3)]
            medians = [statistics.median([row.get(name, 0) for row in part] or [0]) for part in parts]
            at_rest = rest.get(name, 0)
            lines.append(f"{name:<24}" + "".join(f"{value:10.0f}" for value in (*medians, at_rest)))
            kind = name.rpartition(" ")[2]
            if kind == "left":
                most = max(row.get(name, 0) for row in self.curve)
                if most > started + LEFT_AT_FIRST:
                    grown.append(f"{name} reached {most:.0f} by {started} streams")
                continue
            share, beside = GROWTH[kind]
            if not name.startswith("server") and min(medians[2], at_rest) > medians[1] * (1 + share) + beside:
                grown.append(f"{name} grew from {medians[1]:.0f} to {medians[2]:.0f}, at rest {at_rest:.0f}")
        return lines, grown


# --- the run ----------------------------------------------------------------------------------------------------------


def session(temporary: Path) -> Any:
    from pyspark.sql import SparkSession

    python = worker_python(sys.executable)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = python
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.local.dir": str(temporary),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={temporary}",
        "spark.sql.warehouse.dir": str(temporary / "warehouse"),
        # Files of shuffles go when the JVM collects what named them.
        "spark.cleaner.periodicGC.interval": "60s",
        # What Spark keeps of queries that ended would look like growth until there are as many.
        "spark.sql.ui.retainedExecutions": "50",
        "spark.ui.retainedJobs": "50",
        "spark.ui.retainedStages": "50",
        "spark.ui.retainedTasks": "1000",
    }
    builder = SparkSession.builder.master("local[4]").appName("soak")
    for name, value in settings.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--pause", type=float, default=1.0, help="mean seconds between two reads of a thread")
    parser.add_argument("--restart-minutes", type=float, default=10.0, help="the streams are stopped and started")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    parser.add_argument("--curve", type=Path, default=Path("soak.csv"))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="soak-") as held:
        directory = Path(held)
        temporary = directory / "temporary"
        temporary.mkdir()
        os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
        return run(directory, temporary, arguments)


def run(directory: Path, temporary: Path, arguments: argparse.Namespace) -> int:
    server = subprocess.Popen(
        [sys.executable, __file__, "serve", str(directory), str(arguments.seed)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdin is not None
    assert server.stdout is not None
    endpoint = server.stdout.readline().strip()
    profile = str(directory / "config.share")
    gateway = subprocess.Popen(
        [sys.executable, "-m", "delta_sharing_spark.cli", "flight", profile, "-o", f"storageEndpoint={endpoint}"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert gateway.stdout is not None
    uri, token = (gateway.stdout.readline().split()[-1] for _ in range(2))
    token_file = directory / "token"
    token_file.write_text(token, encoding="utf-8")
    by_mode = {mode: {"accessMode": mode, "storageEndpoint": endpoint} for mode in ("url", "dir")}
    polls = {"pollInterval": "1s"}
    soak = Soak(
        session(temporary),
        lambda mode: SharingClient(profile, **by_mode[mode]),
        SharingClient.over(uri, token=token),
        {
            **{mode: {**options, **polls} for mode, options in by_mode.items()},
            "gateway": {"gateway": uri, "gatewayTokenFile": str(token_file), **polls},
        },
        directory,
        time.monotonic() + 60 * arguments.minutes,
    )
    told: dict[str, Any] = {}

    asking = threading.Lock()

    def commits() -> int:
        assert server.stdin is not None
        assert server.stdout is not None
        with asking:
            server.stdin.write("\n")
            server.stdin.flush()
            told.update(json.loads(server.stdout.readline()))
        return int(told["commits"])

    def callback_port() -> int:
        started = soak.spark.sparkContext._gateway._callback_server
        return int(started.get_listening_port()) if started else 0

    sampler = Sampler({"driver": os.getpid(), "server": server.pid, "gateway": gateway.pid}, temporary, callback_port)
    threads = [
        threading.Thread(target=soak.stream_on, args=(name, commits, 60 * arguments.restart_minutes))
        for name in soak.stream_options
    ]
    threads += [
        threading.Thread(target=soak.read_on, args=(arguments.seed + number, arguments.pause))
        for number in range(arguments.threads)
    ]
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            if time.monotonic() < soak.ends:
                sampler.take()
                sampler.write(arguments.curve)
            time.sleep(SAMPLE_SECONDS)
        gc.collect()
        soak.spark._jvm.java.lang.System.gc()
        time.sleep(5.0)
        sampler.take()
        sampler.write(arguments.curve)
    finally:
        soak.spark.stop()
        for process in (gateway, server):
            process.terminate()
            process.wait(20)
    return report(soak, sampler, told)


def report(soak: Soak, sampler: Sampler, told: dict[str, Any]) -> int:
    """Print what was read, the curve's thirds, its end after a collection of garbage, and what is wrong."""
    print(
        f"{told.get('commits')} commits; {dict(soak.counts)}; rows by stream { ({n: soak.streamed(n) for n in soak.batches}) }"
    )
    lines, grown = sampler.growth(soak.counts["streams started"])
    print(f"{'median of each third':<24}{'first':>10}{'second':>10}{'last':>10}{'at rest':>10}")
    for line in lines:
        print(line)
    wrong = [*soak.wrong, *grown, *(f"the server: {failure}" for failure in told.get("failures", ()))]
    for what in wrong[:20]:
        print(f"WRONG {what}")
    print(f"{sum(soak.counts.values())} passed, {len(wrong)} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        sys.exit(main())
