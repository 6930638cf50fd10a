"""The gate for speed: does this checkout read as fast, and ask as little, as the bounds in ``gate.json`` say? Some five minutes.

    python benchmarks/gate.py                        all of it; exit code 1 where a bound is passed
    python benchmarks/gate.py rows planning          parts of it: spark, rows, planning, loads, iceberg
    python benchmarks/gate.py rows --only wide       of these what is called so
    python benchmarks/gate.py --keep                 measure, and write what was measured, with room, as bounds

Times are ratios within one run, to a contender that does not depend on this project: ``spark.read.parquet`` of the same
local files, a download and decode of the same URLs (``parts``), Polars, deltalake, an answer that ``json.loads`` reads.
``cpu`` is such a ratio of processor seconds, ``seconds`` of the clock; each is the best of two turns. Where a ratio is beyond its
bound there are two more, and the best of all counts. ``requests``, ``modules`` and ``surplus`` are counts without room; ``surplus``
is bytes fetched beyond the column chunks that a query needs, or beyond whole files where a reader cannot choose.
Linux: processor seconds of Spark's processes come from ``/proc``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import iceberg_tables
import planning
import pyarrow.parquet as pq
import reading
import way
from scan import scanned, session
from served import Served

from delta_sharing_spark import SharingClient

KEPT = Path(__file__).parent / "gate.json"
#: What a kept ratio has above a measured one: other machines, and the weather of this one.
ROOM = {"seconds": 1.35, "cpu": 1.25}
SCALE = 0.5
LOG_FILES, LISTED_FILES = 20_000, 100_000
#: Columns and condition of each table's queries, and the columns that the condition's query needs.
FILTERS = {
    "large": ("id >= 3000000 and id < 3010000", ("id", "customer")),
    "wide": ("c00 < 1000000000", ("c00", "c20")),
    "small": ("id >= 800000 and id < 802000", ("id", "customer")),
}
Measures = dict[str, float]
#: What was measured, by cell: ``large, full scan, lane``.
Cells = dict[str, Measures]


# --- Spark ------------------------------------------------------------------------------------------------------------


def processor_seconds(without: Sequence[int] = ()) -> float:
    """Of this process and all that it started, ended ones included, but for some."""
    stats: dict[int, tuple[int, float]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        stats[int(path.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    ticks, ours = 0.0, {os.getpid()}
    while True:
        more = {pid for pid, (parent, _) in stats.items() if parent in ours and pid not in ours and pid not in without}
        if not more:
            break
        ours |= more
    ticks = sum(spent for pid, (_, spent) in stats.items() if pid in ours)
    return ticks / os.sysconf("SC_CLK_TCK")


def needed_bytes(path: Path, columns: Sequence[str] | None, where: str | None) -> int:
    """Compressed bytes of the column chunks that a query needs, by the statistics of the condition's one column."""
    total = 0
    bounds = where.split() if where else []
    low = int(bounds[2]) if bounds and bounds[1] == ">=" else -math.inf
    high = int(bounds[-1]) if bounds else math.inf
    for file in path.glob("*.parquet"):
        metadata = pq.read_metadata(file)
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            chunks = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
            statistics = chunks[bounds[0]].statistics if bounds else None
            if statistics is None or (statistics.max >= low and statistics.min < high):
                wanted = chunks if columns is None else columns
                total += sum(chunks[name].total_compressed_size for name in wanted)
    return total


def ask(title: str, table: str, frame: Any) -> None:
    """One of the four queries."""
    if title == "full scan":
        scanned(frame)
    elif title == "three columns":
        scanned(frame.select(*reading.NARROW[table].split(",")))
    elif title == "filter":
        where, (_, summed) = FILTERS[table]
        frame.where(where).agg({summed: "sum"}).collect()
    else:
        frame.count()


def counts_of(measures: Measures) -> Measures:
    return {kind: value for kind, value in measures.items() if kind not in ROOM}


QUERIES = ("full scan", "three columns", "filter", "count")
#: Of Iceberg tables, which are read as others once they are planned.
ICEBERG_QUERIES = ("full scan", "filter", "count")


class Turns:
    """Ways that run in turn, the best figures of each."""

    def __init__(self, ways: Mapping[str, Callable[[], Measures]]) -> None:
        self.ways = ways
        self.best: dict[str, Measures] = {way: {} for way in ways}

    def run(self, turns: int) -> None:
        for _ in range(turns):
            for name, measure in self.ways.items():
                best = self.best[name]
                for kind, value in measure().items():
                    best[kind] = min(best.get(kind, value), value)

    def ratios(self, to: str) -> Iterator[tuple[str, Measures]]:
        """Each other way's times as ratios, and its counts as they are."""
        base = self.best[to]
        for name, best in self.best.items():
            if name != to:
                yield name, {kind: value / base[kind] if kind in ROOM else value for kind, value in best.items()}


def by_spark(
    tables: Mapping[str, Path],
    server: Served,
    profile: Path,
    check: Check,
    *,
    is_iceberg: bool = False,
    queries: Collection[str] = QUERIES,
) -> None:
    """Each query of each table by the lane and the Python source, beside Spark's own reader of the same files.

    Args:
        tables: Directories of Parquet files, by name.
        is_iceberg: Whether they are read as the Iceberg tables that the files are of.
    """
    spark, schema = session(), "iceberg" if is_iceberg else "file"

    def once(title: str, table: str, engine: str) -> Measures:
        server.served()
        burnt, began = processor_seconds(without=[server.pid]), time.perf_counter()
        if engine == "file":
            frame = spark.read.parquet(str(tables[table] / "*.parquet"))
        else:  # by a client that has read nothing before
            frame = (
                SharingClient(str(profile), accessMode="iceberg" if is_iceberg else "url")
                .table(f"bench.{schema}.{table}")
                .to_spark(spark, engine=engine)
            )
        ask(title, table, frame)
        seconds, cpu = time.perf_counter() - began, processor_seconds(without=[server.pid]) - burnt
        if engine == "file":
            return {"seconds": seconds, "cpu": cpu}
        counts = server.served()
        requests = {"requests": sum(n for n, _ in counts.values())}
        if is_iceberg:  # of whose bytes some are of manifests
            return {"seconds": seconds, "cpu": cpu, **requests}
        columns = {"three columns": reading.NARROW[table].split(","), "filter": FILTERS[table][1], "count": ()}.get(
            title
        )
        # Spark tells a Python source no columns: it reads them all.
        chosen = columns if engine == "native" else None
        where = FILTERS[table][0] if title == "filter" else None
        surplus = counts.get("data", [0, 0])[1] - needed_bytes(tables[table], chosen, where)
        return {"seconds": seconds, "cpu": cpu, **requests, "surplus": max(0, surplus)}

    def turn(title: str, table: str, engine: str, counts: Measures) -> Measures:
        """Counts are those of the first read: the lane holds what it has read, for later clients too."""
        measures = once(title, table, engine)
        if not counts:
            counts.update(counts_of(measures))
        return {kind: value for kind, value in measures.items() if kind in ROOM} | counts

    spark.range(10).count()  # what a session does once counts for nobody
    for table in tables:
        for title in queries:
            name = f"{'Iceberg, ' * is_iceberg}{table}, {title}"
            ways = {"file": "file", "lane": "native", "Python source": "python"}
            if title != "full scan":
                del ways["Python source"]
            run = {way: partial(turn, title, table, engine, {}) for way, engine in ways.items()}
            check.measure(name, run, to="file")
            # Each query by the Python source is the full scan again, but for what its condition leaves out.
            if title != "full scan" and check.takes(cell := f"{name}, Python source"):
                check.add(cell, counts_of(once(title, table, "python")))
    spark.stop()


# --- without Spark ----------------------------------------------------------------------------------------------------


def by_rows(tables: Mapping[str, Path], server: Served, profile: Path, check: Check) -> None:
    def once(way: str, table: str, columns: str) -> Measures:
        server.served()
        seconds, cpu, _, _ = reading.run(reading.SCRIPTS[way], profile, table, columns)
        counts = server.served()
        if way in ("parts", "polars"):
            return {"seconds": seconds, "cpu": cpu}
        needed = needed_bytes(tables[table], columns.split(",") if columns else None, None)
        surplus = max(0, counts["data"][1] - needed)
        return {"seconds": seconds, "cpu": cpu, "requests": sum(n for n, _ in counts.values()), "surplus": surplus}

    for table in tables:
        for title, columns in (("full scan", ""), ("three columns", reading.NARROW[table])):
            for ours, other in (("to_arrow", "parts"), ("to_polars", "polars")):
                run = {name: partial(once, name, table, columns) for name in (other, ours)}
                check.measure(f"{table}, {title}", run, to=other)


# --- planning ---------------------------------------------------------------------------------------------------------

_LISTING = """
import json, sys, time
import pyarrow.parquet, pyarrow.compute, requests, numpy
from dataclasses import replace
from delta_sharing_spark import SharingClient
from delta_sharing_spark.access.plan import plan
from delta_sharing_spark.predicates.sql import parse_where
profile, table, way = sys.argv[1:]
settings = json.load(open(profile))
def scan():
    mode = {"accessMode": way.split()[0], "storageEndpoint": settings["endpoint"].removesuffix("/delta-sharing")}
    return SharingClient(profile, **mode).table(table).scan()
def all_files():
    return sum(len(split.slices) for split in scan().plan().splits)
def another_filter():
    condition = parse_where("id >= 50000 and id < 53000", load.columns)
    return plan(replace(load, pushed=condition, is_pinned=True), opener=opener).report.listed
def plain():
    share, schema, name = table.split(".")
    url = f"{settings['endpoint']}/shares/{share}/schemas/{schema}/tables/{name}/query"
    headers = {"Authorization": f"Bearer {settings['bearerToken']}", "delta-sharing-capabilities": "responseformat=parquet"}
    answer = requests.post(url, json={}, headers=headers)
    answer.raise_for_status()
    return sum("file" in json.loads(line) for line in answer.content.splitlines())
run = plain if way == "plain" else another_filter if " " in way else all_files
if run is another_filter:
    opener, load = scan().opened()
    plan(replace(load, is_pinned=True), opener=opener)
began, burnt = time.perf_counter(), time.process_time()
files = run()
modules = sum(name.startswith("delta_sharing_spark.") for name in sys.modules)
print(json.dumps([time.perf_counter() - began, time.process_time() - burnt, files, modules]))
"""
#: Ways of a listing; another filter is the second query of a load, whose requests count with those of the first.
_LISTED_WAYS = ("plain", "url", "dir", "url another filter")


def by_planning(directory: Path, check: Check) -> None:
    def replayed(kind: str, table: Path) -> Measures:
        return {"cpu": planning.best(kind, table, 1)["cpu"]}

    logs = {
        "30 commits": planning.write_commits(directory / "json", LOG_FILES, 30),
        "a checkpoint": planning.write_checkpoint(directory / "checkpoint", LOG_FILES),
    }
    for title, table in logs.items():
        run = {kind: partial(replayed, kind, table) for kind in ("deltalake", "columns", "tasks")}
        check.measure(f"{LOG_FILES:,} files in {title}", run, to="deltalake")

    server = Served({"many": planning.write_checkpoint(directory / "many", LISTED_FILES)})
    try:
        profile = directory / "listing.share"
        profile.write_text(server.profile)

        def listed(way: str) -> Measures:
            server.served()
            name = f"bench.{'s3' if way == 'dir' else 'file'}.many"
            command = [sys.executable, "-c", _LISTING, str(profile), name, way]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(done.stderr[-2000:])
            _, cpu, files, modules = json.loads(done.stdout.splitlines()[-1])
            assert files == LISTED_FILES, files
            if way == "plain":
                return {"cpu": cpu}
            return {"cpu": cpu, "requests": sum(n for n, _ in server.served().values()), "modules": modules}

        run = {way: partial(listed, way) for way in _LISTED_WAYS}
        check.measure(f"{LISTED_FILES:,} lines of a listing", run, to="plain")
    finally:
        server.close()


# --- Iceberg ----------------------------------------------------------------------------------------------------------

_ICEBERG_PLANNING = """
import json, sys, time
import pyarrow.parquet, pyarrow.compute, requests, numpy
import pyiceberg.catalog, pyiceberg.io.pyarrow, pyiceberg.table
from delta_sharing_spark import SharingClient
from pyiceberg.table import StaticTable
profile, document, way = sys.argv[1:]
def ours():
    return SharingClient(profile, accessMode="iceberg").table("bench.iceberg.many").scan().plan().report.listed
def pyiceberg():
    from support.written_iceberg import DirectoryIO
    root = document.rsplit("/", 4)[0]
    settings = {"py-io-impl": "support.written_iceberg.DirectoryIO", "lake.location": "s3://lake", "lake.directory": root}
    return sum(1 for _ in StaticTable.from_metadata(document, settings).scan().plan_files())
run = pyiceberg if way == "pyiceberg" else ours
began, burnt = time.perf_counter(), time.process_time()
files = run()
modules = sum(name.startswith("delta_sharing_spark.") for name in sys.modules)
print(json.dumps([time.process_time() - burnt, files, modules]))
"""


def by_iceberg(directory: Path, check: Check) -> None:
    """Iceberg tables with the rows of ``large`` and ``small``, and a plan of many files beside pyiceberg's."""
    delta = reading.write_tables(directory, SCALE)
    documents = iceberg_tables.write_copies({name: delta[name] for name in ("large", "small")}, directory / "copies")
    many = iceberg_tables.write_many(directory / "many", LOG_FILES)
    server = Served(documents)
    try:
        profile = directory / "iceberg.share"
        profile.write_text(server.profile)
        files = {name: document.parents[1] / "data" for name, document in documents.items()}
        by_spark(files, server, profile, check, is_iceberg=True, queries=ICEBERG_QUERIES)
    finally:
        server.close()
    server = Served({"many": many})
    spent: dict[str, float] = {}
    try:
        profile.write_text(server.profile)

        def planned(way: str) -> Measures:
            server.served()
            command = [sys.executable, "-c", _ICEBERG_PLANNING, str(profile), str(many), way]
            env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "tests")}
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
            if done.returncode:
                raise RuntimeError(done.stderr[-2000:])
            cpu, listed, modules = json.loads(done.stdout.splitlines()[-1])
            assert listed == LOG_FILES, listed
            spent[way] = min(cpu, spent.get(way, math.inf))
            requests = sum(n for n, _ in server.served().values())
            return {"cpu": cpu} if way == "pyiceberg" else {"cpu": cpu, "requests": requests, "modules": modules}

        ways = {way: partial(planned, way) for way in ("pyiceberg", "ours")}
        check.measure(f"Iceberg, {LOG_FILES:,} files of a manifest", ways, to="pyiceberg")
        print(*(f"{LOG_FILES:,} files by {way}: {cpu:.2f} processor seconds" for way, cpu in spent.items()), sep="\n")
    finally:
        server.close()


# --- loads ------------------------------------------------------------------------------------------------------------


def by_loads(check: Check) -> None:
    for mode in ("url", "dir"):
        for load in way.LOADS:
            way.measure(load, mode)  # imports count for nobody
            done = way.measure(load, mode)
            protocol = sum(count for kind, count in done.server.items() if kind != "data")
            check.add(
                f"load, {load}, {mode}",
                {"modules": len(done.modules), "requests": protocol + done.log_requests()},
            )


# --- the bounds -------------------------------------------------------------------------------------------------------


class Check:
    """Measures beside the bounds that are kept for them."""

    def __init__(self, bounds: Cells, *, keeps: bool, turns: int, only: str) -> None:
        self.bounds, self.keeps, self.turns, self.only = bounds, keeps, turns, only
        self.measured: Cells = {}

    def measure(self, title: str, ways: Mapping[str, Callable[[], Measures]], *, to: str) -> None:
        """Run ways in turn, and twice as often where one passes a bound of its times."""
        if not any(self.takes(f"{title}, {name}") for name in ways):
            return
        run = Turns(ways)
        run.run(self.turns)
        if not self.keeps and any(self.passed(f"{title}, {name}", cell) for name, cell in run.ratios(to)):
            run.run(self.turns)
        for name, cell in run.ratios(to):
            self.add(f"{title}, {name}", cell)

    def takes(self, cell: str) -> bool:
        """Whether a cell is asked for."""
        return self.only in cell

    def passed(self, cell: str, measures: Measures) -> list[str]:
        bounds = self.bounds.get(cell)
        if bounds is None:
            return [] if self.keeps else ["has no bounds: run --keep"]
        return [
            f"{kind} {_text(kind, value)}, bound {_text(kind, bounds[kind])}"
            for kind, value in measures.items()
            if value > bounds[kind]
        ]

    def add(self, cell: str, measures: Measures) -> None:
        """Print a cell, and keep it for the end."""
        self.measured[cell] = measures
        shown = "  ".join(f"{kind} {_text(kind, value):>11}" for kind, value in measures.items())
        passed = [] if self.keeps else self.passed(cell, measures)
        print(f"{cell:45}{shown}{'  PASSED: ' + '; '.join(passed) if passed else ''}", flush=True)

    def failures(self) -> list[str]:
        return [f"{cell}: {what}" for cell, measures in self.measured.items() for what in self.passed(cell, measures)]

    def keep(self) -> None:
        """Write what was measured, ratios with their room; cells of other parts stay."""
        for cell, measures in self.measured.items():
            self.bounds[cell] = {
                kind: round(value * ROOM[kind], 2) if kind in ROOM else int(value) for kind, value in measures.items()
            }
        lines = [f"  {json.dumps(cell)}: {json.dumps(kept)}" for cell, kept in self.bounds.items()]
        KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _text(kind: str, value: float) -> str:
    return f"{value:.2f}" if kind in ROOM else f"{value:,.0f}"


@contextmanager
def served_tables(directory: Path) -> Iterator[tuple[dict[str, Path], Served, Path]]:
    """The three tables of ``reading.py``, their server, and its profile."""
    tables = reading.write_tables(directory, SCALE)
    server = Served(tables)
    try:
        profile = directory / "gate.share"
        profile.write_text(server.profile)
        yield tables, server, profile
    finally:
        server.close()


PARTS = ("loads", "planning", "rows", "spark", "iceberg")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=PARTS, help=", ".join(PARTS))
    parser.add_argument("--keep", action="store_true", help="write what was measured as bounds, with room")
    parser.add_argument("--turns", type=int, default=2, help="how often each way is timed; the best counts")
    parser.add_argument("--only", default="", help="cells with this in their names, such as 'wide, full scan'")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    bounds = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    check = Check(bounds, keeps=arguments.keep, turns=arguments.turns, only=arguments.only)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="gate-") as name:
        directory = Path(name)
        if "loads" in arguments.parts:
            by_loads(check)
        if "planning" in arguments.parts:
            by_planning(directory, check)
        if {"rows", "spark"} & set(arguments.parts):
            with served_tables(directory) as (tables, server, profile):
                if "rows" in arguments.parts:
                    by_rows(tables, server, profile, check)
                if "spark" in arguments.parts:
                    by_spark(tables, server, profile, check)
        if "iceberg" in arguments.parts:
            by_iceberg(directory, check)
    seconds = f"{time.perf_counter() - began:.0f} s"
    if arguments.keep:
        check.keep()
        print(f"\nbounds of {len(check.measured)} cells were written to {KEPT.name}, in {seconds}")
        return 0
    failures = check.failures()
    print(f"\n{len(check.measured)} cells, in {seconds}: " + ("every bound held" if not failures else "bounds passed"))
    print(*(f"  {failure}" for failure in failures), sep="\n", end="")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
