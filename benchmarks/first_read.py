"""What the first read of a process is spent on: modules, processor seconds and requests of each step, by way.

    python benchmarks/networks.py --first-read --tables small --networks slow

Spark's Python source reads in three processes: one finds the schema, one plans, and tasks read. Each imports what it needs before
it does anything. Here they run one after the other without a JVM, beside those of a data source of ten lines that yields a batch. What
Spark's own worker imports comes first in each. The lane and ``to_arrow`` read in the process that asks.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from served import Served

STEPS = {
    "python": ("schema", "plan", "task"),
    "ten lines": ("ten lines",),
    "lane": ("lane",),
    "to_arrow": ("arrow",),
}

TEN_LINES = """
from pyspark.sql.datasource import DataSource, DataSourceReader
class Reader(DataSourceReader):
    def read(self, partition):
        import pyarrow
        yield pyarrow.RecordBatch.from_pydict({"n": [1]})
class Source(DataSource):
    def schema(self): return "n long"
    def reader(self, schema): return Reader()
"""


@contextmanager
def step(name: str) -> Iterator[None]:
    """Tell what a step took."""
    modules, burnt, began = set(sys.modules), time.process_time(), time.perf_counter()
    yield
    new = set(sys.modules) - modules
    ours = sum(name.startswith("delta_sharing_spark") for name in new)
    print(json.dumps([name, len(new), ours, time.process_time() - burnt, time.perf_counter() - began]), flush=True)


def schema(address: str, handed: Path) -> None:
    with step("schema: Spark's worker"):
        import pyspark.sql.worker.create_data_source  # noqa: F401
    with step("schema: imports and options"):
        from delta_sharing_spark.spark.datasource import DeltaSharingDataSource

        source = DeltaSharingDataSource({"path": address})
    with step("schema: the table's metadata"):
        found = source.schema()
    handed.write_bytes(pickle.dumps((source, found.json())))


def plan(_: str, handed: Path) -> None:
    with step("plan: Spark's worker"):
        from pyspark.sql.types import StructType
    with step("plan: imports"):
        source, found = pickle.loads(handed.read_bytes())
    with step("plan: files and splits"):
        partitions = source.reader(StructType.fromJson(json.loads(found))).partitions()
    handed.write_bytes(pickle.dumps([pickle.dumps(partition.split) for partition in partitions]))


def task(_: str, handed: Path) -> None:
    with step("task: Spark's worker and pyarrow"):
        import pyarrow  # noqa: F401
        import pyspark.worker  # noqa: F401
    splits = pickle.loads(handed.read_bytes())
    with step("task: imports"):
        from delta_sharing_spark.scan.split_reader import read_split

        split = pickle.loads(splits[0])
    batches = read_split(split)
    with step("task: to the first rows"):
        next(batches)
    with step("task: the rest of its split"):
        for _batch in batches:
            pass
    if len(splits) > 1:
        with step("task: another split, with what the first one taught"):
            for _batch in read_split(pickle.loads(splits[1])):
                pass


def arrow(address: str, _: Path) -> None:
    with step("imports"):
        from delta_sharing_spark import SharingClient

        profile, _, table = address.rpartition("#")
        scan = SharingClient(profile).table(table).scan()
    for turn in ("first", "second"):
        with step(f"the {turn} read"):
            scan.to_arrow()


def lane(address: str, handed: Path) -> None:
    from scan import session

    spark = session()
    spark.range(1000).write.mode("overwrite").parquet(str(handed.with_name("warm")))
    spark.read.parquet(str(handed.with_name("warm"))).count()
    profile, _, table = address.rpartition("#")
    for turn in ("first", "second"):
        with step(f"{turn}: imports, the gateway, the listing"):
            from delta_sharing_spark import SharingClient

            frame = SharingClient(profile).table(table).scan().to_spark(spark, engine="native")
        with step(f"{turn}: all rows (this process without the JVM)"):
            frame.write.format("noop").mode("overwrite").save()


def ten_lines(_: str, __: Path) -> None:
    with step("schema or plan: Spark's worker and the source"):
        import pyspark.sql.worker.plan_data_source_read

        exec(TEN_LINES, space := dict[str, Any]())
    with step("task: what it imports more"):
        import pyspark.worker  # noqa: F401

        next(space["Source"]({}).reader(None).read(None))


ROLES: dict[str, Callable[[str, Path], None]] = {
    "schema": schema,
    "plan": plan,
    "task": task,
    "arrow": arrow,
    "lane": lane,
    "ten lines": ten_lines,
}


def tell(way: str, table: str, server: Served, profile: Path) -> None:
    """Print a line for each step of a first read."""
    handed = profile.with_name("handed")
    for role in STEPS.get(way, ()):
        server.served()
        command = [sys.executable, __file__, role, f"{profile}#bench.file.{table}", str(handed)]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
        most, mean = server.under_way()
        requests = {kind: count for kind, (count, _) in server.served().items()}
        for line in lines:
            name, modules, ours, cpu, seconds = json.loads(line)
            print(f"{table:6} {way:9} {name:52} {modules:4} modules, {ours:3} ours {cpu:6.3f} cpu {seconds:7.3f} s")
        under_way = f", under way {most:.0f}, {mean:.1f}" if most else ""
        print(f"{table:6} {way:9} {role}: requests {requests}{under_way}", flush=True)


if __name__ == "__main__":
    ROLES[sys.argv[1]](sys.argv[2], Path(sys.argv[3]))
