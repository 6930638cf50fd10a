"""Random tables written by Delta Lake on Spark, read by Delta and by this project in every way; prints what differs.

Run by hand, with the environment of ``write_with_delta.py`` and this project beside it (some ten seconds a table):

    /tmp/delta/bin/pip install -e .
    PYTHONPATH=tests /tmp/delta/bin/python -m data.compare_with_delta 0 50             # seeds 0 to 49
    PYTHONPATH=tests /tmp/delta/bin/python -m data.compare_with_delta 0 50 --streams   # as streams, killed and started again

Every version, random predicates and change feeds are compared, or random streams. Where Delta refuses a feed or a
stream, nothing is compared: it refuses some changes of schema that can be read.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamReader
from pyspark.sql.types import StructType

from conformance.canonical import row_texts
from data.random_tables import RandomTable
from data.write_with_delta import answer, session
from delta_sharing_spark import register
from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.schema.types import spark_schema_json
from delta_sharing_spark.table import Scan
from delta_sharing_spark.testing.server import SharingServer

NAME = "s.d.t"
Answer = dict[str, Any]


@dataclass
class Comparison:
    """One table, under ``root``, and what was found to differ."""

    spark: SparkSession
    root: Path
    random: random.Random
    statements: list[str] = field(default_factory=list)
    compared: int = 0
    differences: list[str] = field(default_factory=list)

    @property
    def path(self) -> str:
        return str(self.root / "t")

    def run(self, statement: str) -> bool:
        statement = statement.format(t=f"delta.`{self.path}`")
        try:
            self.spark.sql(statement)
        except Exception as refused:  # Delta does not take every random change
            self.statements.append(f"-- {str(refused)[:100]!r}: {statement}")
            return False
        self.statements.append(statement)
        return True

    def check(
        self, what: str, theirs: Callable[[], Answer], ours: Callable[[], Answer], *, refusable: bool = False
    ) -> None:
        self.compared += 1
        try:
            expected = theirs()
        except Exception:
            if not refusable:
                raise
            return
        try:
            ours_read = ours()
        except Exception as error:
            self.differences.append(f"{what}: Delta reads it, we raise {type(error).__name__}: {str(error)[-600:]}")
            return
        if expected["types"] != ours_read["types"]:
            self.differences.append(f"{what}: types {expected['types']}, ours {ours_read['types']}")
        only, more = (
            Counter(expected["rows"]) - Counter(ours_read["rows"]),
            Counter(ours_read["rows"]) - Counter(expected["rows"]),
        )
        if only or more:
            self.differences.append(f"{what}: missing {list(only.items())[:3]}, too many {list(more.items())[:3]}")

    def tables(self, made: RandomTable, server: SharingServer) -> None:
        table = SharingClient(server.profile()).table(NAME)
        newest = table.version()
        predicates = [made.predicate() for _ in range(8)]
        ends = [sorted(self.random.randrange(newest + 1) for _ in range(2)) for _ in range(3)]
        for way in ({"accessMode": "url", "responseFormat": "delta"}, {"accessMode": "dir"}):
            for version in range(newest + 1):
                theirs, ours = partial(self.delta, versionAsOf=version), partial(table.scan, version=version, **way)
                self.check(f"version {version} {way}", theirs, partial(read, ours))
                self.check(f"version {version} {way}, native lane", theirs, partial(self.native, ours))
            whole = partial(table.scan, **way)
            for where in predicates:
                theirs, ours = partial(self.delta, where), partial(table.scan, where=where, **way)
                self.check(f"where {where} {way}", theirs, partial(read, ours))
                self.check(f"where {where} {way}, native lane", theirs, partial(self.native, ours))
                self.check(f"{where} of Spark's {way}, native lane", theirs, partial(self.native, whole, where))
            for start, end in [(0, newest), *ends]:
                theirs = partial(self.delta, readChangeFeed=True, startingVersion=start, endingVersion=end)
                ours = partial(without_time, partial(table.changes, start, end, **way))
                self.check(f"feed {start} to {end} {way}", theirs, partial(read, ours), refusable=True)

    def delta(self, where: str = "true", **options: Any) -> Answer:
        frame = self.spark.read.format("delta").options(**options).load(self.path)
        return answer(frame.where(where).drop("_commit_timestamp"))

    def native(self, scan_of: Callable[[], Scan], where: str = "true") -> Answer:
        return answer(scan_of().to_spark(self.spark, engine="native").where(where))

    def streams(self, made: RandomTable, server: SharingServer) -> None:
        profile = server.write_profile(self.root / "profile.share")
        newest = SharingClient(profile).table(NAME).version()
        for _ in range(3):
            options: dict[str, Any] = self.random.choice(
                ({}, {"skipChangeCommits": True}, {"ignoreDeletes": True}, {"readChangeFeed": True})
            ).copy()
            if self.random.random() < 0.75:
                options["startingVersion"] = self.random.randrange(newest + 1)
            if self.random.random() < 0.6:
                options["maxFilesPerTrigger"] = self.random.choice((1, 2, 5))
            for mode in ("url", "dir"):
                killed = self.random.choice((None, 0, 1, 2))
                theirs = partial(self.drained, "delta", self.path, options)
                shared = f"{profile}#{NAME}"
                ours = partial(self.drained, "deltaSharing", shared, {**options, "accessMode": mode}, killed)
                self.check(f"stream {options} {mode}, killed in batch {killed}", theirs, ours, refusable=True)

    def drained(self, source: str, path: str, options: dict[str, Any], killed: int | None = None) -> Answer:
        """All rows of a stream, which ends in the batch ``killed`` once and is started again."""
        out = self.root / "out"
        shutil.rmtree(out, ignore_errors=True)
        alive = killed is None

        def take(batch: DataFrame, number: int) -> None:
            nonlocal alive
            if number == killed and not alive:
                alive = True
                raise InterruptedError("killed on purpose")
            batch.write.mode("overwrite").parquet(str(out / f"batch{number}"))

        def loaded() -> DataFrame:
            reader: DataStreamReader = self.spark.readStream.format(source)
            return reader.options(**options).load(path)

        for _ in range(2):
            writer = loaded().writeStream.foreachBatch(take).option("checkpointLocation", str(out / "checkpoint"))
            try:
                writer.trigger(availableNow=True).start().awaitTermination()
                break
            except Exception as error:
                if "killed on purpose" not in str(error):
                    raise
        batches = [str(batch) for batch in out.glob("batch*")]
        schema = loaded().schema
        rows = self.spark.read.schema(schema).parquet(*batches) if batches else self.spark.createDataFrame([], schema)
        return answer(rows.drop("_commit_timestamp"))


def without_time(changes: Callable[..., Scan]) -> Scan:
    """A feed without its commit times, which are the files' own where the log holds none."""
    columns = [column.name for column in changes().schema.fields]
    return changes(columns=[name for name in columns if name != "_commit_timestamp"])


def read(scan_of: Callable[[], Scan]) -> Answer:
    scan = scan_of()
    schema = StructType.fromJson(spark_schema_json(scan.schema))
    types = [[column.name, column.dataType.simpleString()] for column in schema.fields]
    return {"types": types, "rows": row_texts(scan.to_arrow())}


def main(first: int, count: int, streams: bool) -> int:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = session()
    register(spark, engine="python")
    differ = 0
    for seed in range(first, first + count):
        with tempfile.TemporaryDirectory() as root, SharingServer() as server:
            comparison = Comparison(spark, Path(root), random.Random(seed))
            made = RandomTable(random.Random(seed), comparison.run)
            made.make()
            server.add_table(NAME, comparison.path, access_modes=("url", "dir"))
            (comparison.streams if streams else comparison.tables)(made, server)
        sys.stdout.write(f"seed {seed}: {comparison.compared} compared, {len(comparison.differences)} differ\n")
        if comparison.differences:
            differ += 1
            sys.stdout.write(
                "\n".join(["  " + line for line in (*comparison.statements, *comparison.differences)]) + "\n"
            )
        sys.stdout.flush()
    return min(differ, 1)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), "--streams" in sys.argv))
