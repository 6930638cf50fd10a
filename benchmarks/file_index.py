"""What a query on a DataFrame costs when Spark hands its filters to the table: seconds, requests and megabytes.

    JVM_PEER=... python benchmarks/file_index.py                     400 files, 20,000 small files, 8 large ones; TPC-H
    JVM_PEER=... python benchmarks/file_index.py --many              and 100,000 files in 10,000 partitions
    JVM_PEER=... python benchmarks/file_index.py --many --tables --scale 0               these alone
    JVM_PEER=... python benchmarks/file_index.py --whole --tables few tiny --networks loopback 0.005,100e6   whole small files
    JVM_PEER=... python benchmarks/file_index.py --whole --scale 0 --runs 1 --warm-ups 0 --tables tiny --networks slow   an hour and a half
    python benchmarks/file_index.py --runs 1 --tables few --networks loopback --contenders file "lane url"

``file`` is ``spark.read.parquet`` of the local files; ``lane`` is ``to_spark(engine="native")`` and ``python`` is
``to_spark(engine="python")`` of a scan that is told columns and conditions, each by URL and by directory; ``jvm`` is the JVM
connector with its defaults and ``tuned`` as in ``jvm.py``, where JVM_PEER names the directory it was built into. The queries are
those of ``frame_queries.py``. Each run makes a new client, loads the table anew, and is timed from the load on. The
contenders take turns, and the first round does not count, but with ``--warm-ups 0``. A cell holds medians: seconds, requests of the sharing protocol and of
the table's log + requests for data, and megabytes of data. The server is a process of its own and counts. It is also the
storage by directory: a stand-in for S3. The answers of all contenders are compared; after each table stand the cells of the lane that
miss the aims: ``JVM_TIMES`` times the JVM connector's time and none of its requests and bytes more, ``FILE_TIMES`` times the time
of ``file``. With ``--whole`` the queries of large tables are asked of small files too, and behind the megabytes stand the most MiB that the
driver and the largest Python worker held. In TPC-H the contenders are views that stand from the start, and joins that differ from those of ``file`` are told.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from frame_queries import MANY, SELECTIVE, WHOLE, Query, timed
from jvm import PEERS, TUNED, JvmPeer, peer_home, tell
from native import measure, session
from scan import write_table
from served import BANDWIDTH, LATENCY, Served
from tpch_data import tables as tpch_tables
from tpch_queries import QUERIES as TPCH

from delta_sharing_spark import SharingClient
from delta_sharing_spark.testing.interpreter import worker_python
from delta_sharing_spark.testing.tables import DeltaTableBuilder, FileStyle

#: The aims of the lane.
JVM_TIMES, FILE_TIMES = 1.2, 1.15
CONTENDERS = ("file", "lane url", "lane dir", "jvm", "tuned", "python url", "python dir")
#: Tables by what they are called here: title, rows, files, rows of a row group, commits.
TABLES = {
    "few": ("400 files", 2_000_000, 400, 5_000, 400),
    "small": ("20,000 small files", 2_000_000, 20_000, 5_000, 20),
    "tiny": ("5,000 files of 50 kB", 5_000_000, 5_000, 1_000, 50),
    "large": ("8 large files", 4_000_000, 8, 500_000, 8),
}
_LOADS = itertools.count()
_JOIN = re.compile(r"\b(\w+Join|CartesianProduct)\b")


@dataclass
class Cell:
    """What a contender took for a query, by run."""

    seconds: list[float] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    fetched: list[int] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    held: list[tuple[int, int]] = field(default_factory=list)

    def add(self, seconds: float, counts: Mapping[str, Sequence[int]], held: tuple[int, int] | None) -> None:
        fetched, sent = counts.get("data", (0, 0))
        self.held += [] if held is None else [held]
        self.seconds.append(seconds)
        self.asked.append(sum(count for kind, (count, _) in counts.items() if kind != "data"))
        self.fetched.append(fetched)
        self.sent.append(sent)

    @property
    def medians(self) -> tuple[float, float, float, float]:
        """Seconds, requests of the protocol and the log, requests for data, bytes of data."""
        seconds = statistics.median(self.seconds)
        asked, fetched, sent = (statistics.median(counts) for counts in (self.asked, self.fetched, self.sent))
        return seconds, asked, fetched, sent

    def __str__(self) -> str:
        if not self.seconds:
            return "failed"
        seconds, asked, fetched, sent = self.medians
        told = f"{seconds:.2f} {asked:.0f}+{fetched:.0f} {sent / 1e6:.1f}"
        driver, worker = (max(sizes) >> 20 for sizes in zip(*self.held, strict=True)) if self.held else (0, 0)
        return f"{told} {driver}+{worker}" if self.held else told


class Ways:
    """Each contender's way to a table.

    Attributes:
        differing: Queries whose answers were not the same for all contenders.
    """

    def __init__(
        self,
        spark: Any,
        served: Served,
        root: Path,
        peer: JvmPeer | None,
        *,
        tells_memory: bool = False,
        warm_ups: int = 1,
    ) -> None:
        self._spark, self._served, self._root, self._peer = spark, served, root, peer
        self._tells_memory, self._warm_ups = tells_memory, warm_ups
        self.differing = 0

    def load(self, way: str, table: str, told: Mapping[str, Any]) -> Any:
        """The table as a DataFrame of this process's Spark."""
        if way == "file":
            return self._spark.read.parquet(str(self._root / table))
        engine, mode = way.split()
        return shared_frame(self._spark, str(self._root / "config.share"), table, engine, mode, told)

    def ask(self, way: str, table: str, query: str) -> tuple[float, Any]:
        """Seconds and answer of a query."""
        if way not in ("jvm", "tuned"):
            return timed(self._spark, query, partial(self.load, way, table))
        assert self._peer is not None
        address = f"{self._root / 'config.share'}#bench.file.{table}"
        seconds, answer = self._peer.ask(query, address, {}, TUNED if way == "tuned" else {})
        return seconds, answer

    def memory(self, way: str) -> tuple[int, int]:
        """The most bytes that the driver and the largest Python worker held since this was last asked."""
        if way in ("jvm", "tuned"):
            assert self._peer is not None
            family = _family(self._peer.pid)
        else:
            family = [os.getpid(), *_family(int(self._spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()))]
        driver = worker = 0
        for pid in family:
            with suppress(OSError):
                most = _resident(pid).get("VmHWM", 0)  # none of a process that has ended
                if b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    worker = max(worker, most)
                else:
                    driver += most
        return driver, worker

    def compare(self, table: str, query: str, ways: Sequence[str], runs: int) -> dict[str, Cell]:
        """The cells of one query; a contender that fails has an empty one, and its error is told."""
        cells = {way: Cell() for way in ways}
        failed: set[str] = set()
        first, differs = None, False
        for turn in range(runs + self._warm_ups):
            place = turn % len(ways)
            for way in (*ways[place:], *ways[:place]):
                if way in failed:
                    continue
                self._served.served()
                held = self.memory(way) if self._tells_memory else None  # from here on
                try:
                    seconds, answer = self.ask(way, table, query)
                except Exception as error:  # another contender's failure is a figure of it, not the end of the run
                    tell(f"{table}, {query}, {way}: {error}")
                    failed.add(way)
                    cells[way] = Cell()
                    continue
                time.sleep(0.05)  # answers that a reader left in the middle are counted when the server notices
                if turn >= self._warm_ups:
                    held = self.memory(way) if self._tells_memory else None
                    cells[way].add(seconds, self._served.served(), held)
                first = answer if first is None else first
                if answer != first:
                    tell(f"{table}, {query}, {way}: answered {answer}, others {first}")
                    differs = True
        self.differing += differs
        tell(f"{table}, {query}: " + ", ".join(f"{way} {cell}" for way, cell in cells.items()))
        return cells


def _family(root: int) -> list[int]:
    """A process and those that it started, and they."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def shared_frame(spark: Any, profile: str, table: str, engine: str, mode: str, told: Mapping[str, Any]) -> Any:
    """A table by a new client: of ``engine`` ``lane`` or ``python``, by ``url`` or ``dir``.

    An option that differs each time makes each load another one: equal loads would share listings, footers and bytes.
    """
    another = {"maxSplitBytes": (128 << 20) + next(_LOADS)}
    if mode == "dir":
        endpoint = json.loads(Path(profile).read_text())["endpoint"].removesuffix("/delta-sharing")
        found = SharingClient(profile, accessMode="dir", storageEndpoint=endpoint).table(f"bench.s3.{table}")
    else:
        found = SharingClient(profile, accessMode="url").table(f"bench.file.{table}")
    if engine == "python":
        return found.scan(**told).to_spark(spark, engine="python")
    return found.scan(**another).to_spark(spark, engine="native")


def show_table(title: str, cells: Mapping[str, Mapping[str, Cell]], ways: Sequence[str]) -> None:
    held = any(cell.held for row in cells.values() for cell in row.values())
    told = ", MiB of driver + worker" if held else ""
    print(f"\n{title}: seconds, requests of protocol and log + for data, MB of data{told}")
    wide = 28 if held else 19
    print(f"{'':15}" + "".join(f"{way:>{wide}}" for way in ways))
    for query, row in cells.items():
        print(f"{query:15}" + "".join(f"{row[way]!s:>{wide}}" for way in ways), flush=True)
    for query, row in cells.items():
        for way in ("lane url", "lane dir"):
            for miss in misses(row, way, beside_file=query in WHOLE):
                print(f"  misses the aim: {query}, {way}: {miss}")


def misses(row: Mapping[str, Cell], way: str, *, beside_file: bool) -> list[str]:
    """What a lane's cell takes beyond the aims."""
    if way not in row:
        return []
    if not row[way].seconds:
        return ["failed"]
    seconds, _, fetched, sent = row[way].medians
    told = []
    peers = [row[name].medians for name in ("jvm", "tuned") if name in row and row[name].seconds]
    if beside_file:
        times = seconds / row["file"].medians[0] if "file" in row and row["file"].seconds else 0.0
        told += [f"{times:.2f} times of file"] if times > FILE_TIMES else []
    elif peers:
        fastest, _, fewest, least = (min(values) for values in zip(*peers, strict=True))
        told += [f"{seconds / fastest:.2f} times of the JVM connector"] if seconds > JVM_TIMES * fastest else []
        told += [f"{fetched:.0f} requests for data, not {fewest:.0f}"] if fetched > fewest else []
        told += [f"{sent / 1e6:.2f} MB, not {least / 1e6:.2f}"] if sent > least else []
    return told


def compare_tpch(ways: Ways, spark: Any, names: Sequence[str], kinds: Sequence[str], runs: int) -> None:
    """The sums of the medians of TPC-H's queries over standing views, and the joins that Spark chose otherwise."""
    for way in kinds:
        for name in names:
            ways.load(way, name, {}).createOrReplaceTempView(f"{_view(way)}_{name}")
    base, sums, other = kinds[0], dict.fromkeys(kinds, 0.0), list[str]()
    for number, text in TPCH.items():
        texts = {way: text.replace("tpch.sf.", f"{_view(way)}_") for way in kinds}
        answers: dict[str, Any] = {}
        medians = measure({way: partial(_answer, spark, texts[way], way, answers) for way in kinds}, runs)
        sums = {way: spent + medians[way] for way, spent in sums.items()}
        if any(answer != answers[base] for answer in answers.values()):
            ways.differing += 1
            tell(f"TPC-H {number}: the answers differ")
        joins = {way: _joins(spark, texts[way]) for way in kinds}
        other += [f"  Q{number}: {w} {joins[w]}; {base} {joins[base]}" for w in kinds if joins[w] != joins[base]]
        tell(f"TPC-H up to {number}: " + ", ".join(f"{way} {sums[way]:.2f}" for way in kinds))
    print(f"\nTPC-H, {len(TPCH)} queries by views: seconds (times of {base})")
    print("  ".join(f"{way} {sums[way]:.2f} ({sums[way] / sums[base]:.2f})" for way in kinds))
    print("other joins than those of " + base if other else "the same joins", *other, sep="\n", flush=True)


def _view(way: str) -> str:
    return way.replace(" ", "_")


def _answer(spark: Any, text: str, way: str, answers: dict[str, Any]) -> None:
    answers[way] = spark.sql(text).toArrow().to_pylist()


def _joins(spark: Any, text: str) -> str:
    """The joins of Spark's plan as its estimates made it, before any row was seen."""
    found = Counter(_JOIN.findall(spark.sql(text)._jdf.queryExecution().sparkPlan().toString()))
    return ", ".join(f"{count} {name}" for name, count in sorted(found.items())) or "none"


# --- very many files --------------------------------------------------------------------------------------------------


def write_many(path: Path, files: int, partitions: int) -> None:
    """Files of 100 rows in partitions, as hard links of one file for each place in a partition, and ten files of their own.

    Each partition has the same ids, so that every link holds the rows that the log tells of it. ``mark`` is 5 or more in the
    first files of ten partitions alone.
    """
    schema = pa.schema([("part", pa.int32()), ("id", pa.int64()), ("mark", pa.int64()), ("note", pa.string())])
    table = DeltaTableBuilder(path, schema, ["part"], style=FileStyle(keep_rows=False))
    each = files // partitions
    marked = set(range(partitions // 20, partitions, partitions // 10))
    sources = {}
    for place, offset in [(place, 0) for place in range(each)] + [(0, 5)]:
        ids = np.arange(place * 100, place * 100 + 100)
        rows = pa.table({"id": ids, "mark": ids % 5 + offset, "note": [f"a note of row {i}" for i in ids]})
        source = path / f".{place}-{offset}.parquet"
        pq.write_table(rows, source)
        lowest = {"id": int(ids[0]), "mark": offset, "note": min(rows["note"].to_pylist())}
        highest = {"id": int(ids[-1]), "mark": offset + 4, "note": max(rows["note"].to_pylist())}
        nulls = dict.fromkeys(lowest, 0)
        stats = {"numRecords": 100, "minValues": lowest, "maxValues": highest, "nullCount": nulls}
        sources[place, offset] = source, source.stat().st_size, json.dumps(stats)
    actions = []
    for part in range(partitions):
        (path / f"part={part}").mkdir()
        for place in range(each):
            source, size, stats_text = sources[place, 5 if place == 0 and part in marked else 0]
            name = f"part={part}/part-{place:05d}-{part:08x}.c000.snappy.parquet"
            os.link(source, path / name)
            add = {"path": name, "partitionValues": {"part": str(part)}, "size": size, "stats": stats_text}
            actions.append({"add": {**add, "modificationTime": 1_700_000_000_000, "dataChange": True}})
    table.commit(actions)
    table.checkpoint()


def _resident(pid: int | str) -> dict[str, int]:
    """Bytes of memory that a process holds, and the most it held since it was last asked (Linux)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    held = {line.split()[0].rstrip(":"): int(line.split()[1]) << 10 for line in lines if line.startswith("Vm")}
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return held


def list_all(profile: str, mode: str, memory: str) -> dict[str, float]:
    """Seconds of a first listing of all files in this process, and what its memory grew by at most."""
    spark = session(memory)
    shared_frame(spark, profile, "one", "lane", mode, {}).count()  # what is imported once counts for nobody
    java = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    before = {pid: _resident(pid)["VmRSS"] for pid in (os.getpid(), java)}
    began = time.perf_counter()
    frame = shared_frame(spark, profile, "many", "lane", mode, {})
    loaded = time.perf_counter()
    tasks = frame._jdf.queryExecution().toRdd().getNumPartitions()
    ended = time.perf_counter()
    python, jvm = (_resident(pid)["VmHWM"] - held for pid, held in before.items())
    spark.stop()
    return {"load": loaded - began, "list": ended - loaded, "tasks": tasks, "python": python, "jvm": jvm}


def show_listings(profile: Path, files: int, runs: int, memory: str) -> None:
    """Full listings, each in a process of its own."""
    print(f"\nfull listing of {files:,} files, each in a new process; memory is the most above what was held before")
    print(f"{'':10}{'load s':>9}{'list s':>9}{'ms a file':>11}{'Python MiB':>12}{'JVM MiB':>9}{'tasks':>7}")
    for mode in ("url", "dir"):
        command = [sys.executable, __file__, "--memory", memory, "--profile", str(profile), "--listing", mode]
        done = [subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout for _ in range(runs)]
        told = [json.loads(text.splitlines()[-1]) for text in done]
        one = {name: statistics.median(each[name] for each in told) for name in told[0]}
        each_file = (one["load"] + one["list"]) / files * 1000
        print(f"{'lane ' + mode:10}{one['load']:9.2f}{one['list']:9.2f}{each_file:11.4f}", end="")
        print(f"{one['python'] / 2**20:12.0f}{one['jvm'] / 2**20:9.0f}{one['tasks']:7.0f}", flush=True)


def measure_many(ways: Ways, served: Served, root: Path, options: argparse.Namespace) -> None:
    """Queries that leave few of very many files, beside what the server needs for its answer, and full listings."""
    kinds = [way for way in options.contenders if way != "file"]
    cells = {}
    for query in chosen_of(MANY, options):
        cells[query] = ways.compare("many", query, kinds, options.runs)
        if "lane url" in kinds:
            served.served()
            ways.ask("lane url", "many", query)
            seconds = [served.answer_seconds() for _ in range(options.runs)]
            tell(f"many, {query}: the server's answers took {statistics.median(seconds):.3f} s")
            cells[query]["answer"] = Cell(seconds, *([0] * len(seconds) for _ in range(3)))
            served.served()
    title = f"{options.files:,} files in {options.partitions:,} partitions (answer: of the server to lane url, parsed by nobody)"
    show_table(title, cells, [*kinds, *(["answer"] if "lane url" in kinds else [])])
    show_listings(root / "config.share", options.files, min(options.runs, 3), options.memory)


# --- all of it --------------------------------------------------------------------------------------------------------


def chosen_of(queries: Mapping[str, Query], options: argparse.Namespace) -> list[str]:
    return [query for query in queries if not options.queries or query in options.queries]


def measure_tables(ways: Ways, served: Served, options: argparse.Namespace) -> None:
    """The queries of each table, and over the slow network where files are chosen."""
    for network in options.networks:
        over = network
        if network != "loopback":
            latency, bandwidth = (LATENCY, BANDWIDTH) if network == "slow" else map(float, network.split(","))
            served.shape(latency, bandwidth)
            over = f"{latency * 1000:.0f} ms and {bandwidth / 1e6:.0f} MB/s a connection"
        for table in options.tables:
            if network != "loopback" and table == "large" and not options.whole:
                continue
            queries = WHOLE if table == "large" or options.whole else SELECTIVE
            kinds = [way for way in options.contenders if network == "loopback" or way != "file"]
            cells = {query: ways.compare(table, query, kinds, options.runs) for query in chosen_of(queries, options)}
            if cells:
                show_table(f"{TABLES[table][0]}, {over}", cells, kinds)


def write_tables(root: Path, options: argparse.Namespace) -> list[str]:
    """Write what is measured; the names of TPC-H's tables."""
    if options.many:
        tell(f"writing {options.files:,} files")
        write_many(root / "many", options.files, options.partitions)
        write_table(root / "one", 100, 1, 100)
    for name in options.tables:
        title, rows, files, row_group, commits = TABLES[name]
        tell(f"writing {title}")
        write_table(root / name, rows, files, row_group, commits=commits)
    tpch = tpch_tables(options.scale) if options.scale else {}
    for name, rows_of_table in tpch.items():
        built = DeltaTableBuilder(root / name, rows_of_table.schema, style=FileStyle(keep_rows=False))
        built.append(rows_of_table, files=8 if rows_of_table.num_rows > 10_000 else 1)
    return list(tpch)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="counted runs")
    parser.add_argument("--warm-ups", type=int, default=1, help="runs before these that are not counted")
    parser.add_argument("--tables", nargs="*", choices=TABLES, default=["few", "small", "large"])
    parser.add_argument(
        "--networks", nargs="+", default=["loopback", "slow"], help="or seconds of latency, bytes a second"
    )
    parser.add_argument(
        "--whole", action="store_true", help="whole tables of small files, and the memory that they take"
    )
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--queries", nargs="+", choices=[*SELECTIVE, *WHOLE, *MANY], help="these alone")
    parser.add_argument("--scale", type=float, default=0.1, help="of TPC-H; 0 leaves it out")
    parser.add_argument("--many", action="store_true", help="also a table of very many files")
    parser.add_argument("--files", type=int, default=100_000, help="of --many")
    parser.add_argument("--partitions", type=int, default=10_000, help="of --many")
    parser.add_argument("--memory", default="3g", help="of Spark's driver")
    parser.add_argument("--listing", choices=("url", "dir"), help=argparse.SUPPRESS)
    parser.add_argument("--profile", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = worker_python(sys.executable)
    if options.listing:
        print(json.dumps(list_all(options.profile, options.listing, options.memory)))
        return 0
    home = peer_home()
    if home is None:
        options.contenders = [way for way in options.contenders if way not in ("jvm", "tuned")]
    with tempfile.TemporaryDirectory(prefix="file-index-") as directory:
        root = Path(directory)
        tpch = write_tables(root, options)
        many = ["many", "one"] if options.many else []
        served = Served({name: root / name for name in (*options.tables, *tpch, *many)})
        (root / "config.share").write_text(served.profile)
        peer = None
        if home is not None and {"jvm", "tuned"} & set(options.contenders):
            peer = JvmPeer(home, str(Path(__file__).with_name("frame_queries.py")), str(PEERS))
        spark = session(options.memory)
        print(f"Spark {spark.version}, {os.cpu_count()} cores, medians of {options.runs}", end="")
        print(f"; JVM connector: {'yes' if home else 'not built'}")
        try:
            ways = Ways(spark, served, root, peer, tells_memory=options.whole, warm_ups=options.warm_ups)
            kinds = [way for way in CONTENDERS[:3] if way in options.contenders]
            if tpch and kinds:
                compare_tpch(ways, spark, tpch, kinds, options.runs)
            if options.many:
                measure_many(ways, served, root, options)
            measure_tables(ways, served, options)
        finally:
            spark.stop()
            served.close()
            if peer is not None:
                peer.close()
    print("\nall answers are the same" if not ways.differing else f"\n{ways.differing} ANSWERS DIFFER")
    return 1 if ways.differing else 0


if __name__ == "__main__":
    sys.exit(main())
