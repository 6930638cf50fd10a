"""TPC-H, or shapes of TPC-DS, by ``client.sql`` on both lanes, by whole tables and on local Parquet: seconds and bytes.

    python benchmarks/queries.py                                 TPC-H at scale 0.1, all queries
    python benchmarks/queries.py --suite tpcds --connect
    python benchmarks/queries.py --scale 1 --queries 1 6 14 19 --contenders file native

``file`` is Spark over the same local Parquet files, as views that stand from the start; ``native`` and ``python`` are
``client.sql`` on the native lane and on the Python source, which narrows on Connect; ``whole`` is the Python source with whole tables. Loads
are within the clock for those three. Each contender runs each query in turn, and the turn rotates. Times are medians.
Answers are compared exactly. Bytes are what the sharing server's data URLs sent: the server is in this process.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tpcds
import tpch_data
import tpch_queries

_TABLE = re.compile(r"\b(?:tpch|tpcds)\.sf\.(\w+)")
_SUITES = {"tpch": (tpch_data.tables, tpch_queries.QUERIES), "tpcds": (tpcds.tables, tpcds.QUERIES)}

Run = Callable[[str], Any]


@dataclass
class Measured:
    """What one contender took for one query: the median of its seconds, and the megabytes of its first run."""

    seconds: list[float] = field(default_factory=list)
    megabytes: float = 0.0
    answers: list[Any] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds or [0.0])


def compare(
    contenders: Mapping[str, Run], queries: Mapping[int, str], rounds: int, sent: Callable[[], float] = lambda: 0.0
) -> None:
    """Run queries by contenders in turn and print seconds and megabytes of each, their sums, and the sums' ratios.

    Args:
        contenders: By name, what makes a DataFrame of a query's text; the first one's answers are the right ones.
        queries: By number.
        rounds: How often each query is run, after once to warm up.
        sent: The bytes that were fetched since the last call.
    """
    names = list(contenders)
    heads = "".join(f"{name:>10}" for name in names)
    print(f"{'':5}" + f"{heads}   s   |" * bool(rounds) + f"{heads}   MB")
    totals = {name: Measured([0.0] if rounds else []) for name in names}
    differing = 0
    for place, (number, text) in enumerate(queries.items()):
        measured = {name: Measured() for name in names}
        for turn in range(rounds + 1):
            for step in range(len(names)):
                name = names[(place + turn + step) % len(names)]
                sent()
                start = time.perf_counter()
                answer = contenders[name](text).toArrow().to_pylist()
                if turn:
                    measured[name].seconds.append(time.perf_counter() - start)
                megabytes = sent() / 1e6
                if not turn:  # later runs find what the lane keeps
                    measured[name].megabytes = megabytes
                measured[name].answers.append(answer)
        for name, one in measured.items():
            if rounds:
                totals[name].seconds[0] += one.median
            totals[name].megabytes += one.megabytes
        same = all(answer == measured[names[0]].answers[0] for one in measured.values() for answer in one.answers)
        differing += not same
        print(_line(f"Q{number}", measured), "" if same else "   THE ANSWERS DIFFER", flush=True)
    print(_line("all", totals))
    if rounds:
        print(f"{'':5}" + "".join(f"{totals[name].seconds[0] / totals[names[0]].seconds[0]:10.2f}" for name in names))
    print(f"{differing} answers differ")


def _line(title: str, measured: Mapping[str, Measured]) -> str:
    seconds = "".join(f"{one.median:10.2f}" for one in measured.values()) + "       |"
    megabytes = "".join(f"{one.megabytes:10.2f}" for one in measured.values())
    return f"{title:5}" + seconds * any(one.seconds for one in measured.values()) + megabytes


def session(connect: bool) -> Any:
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    builder = builder.remote("local[*]") if connect else builder.master("local[*]")
    settings = {"ui.enabled": "false", "sql.session.timeZone": "UTC", "sql.shuffle.partitions": "4", "ui.showConsoleProgress": "false",
                "driver.memory": "3g", "log.level": "ERROR"}  # fmt: skip
    for name, value in settings.items():
        builder = builder.config(f"spark.{name}", value)
    return builder.getOrCreate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", choices=_SUITES, default="tpch")
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--files", type=int, default=8, help="files of each large table, sorted by date or key")
    parser.add_argument("--queries", type=int, nargs="*")
    parser.add_argument("--contenders", nargs="*", default=["file", "native", "python", "whole"])
    parser.add_argument("--rounds", type=int, default=3, help="0 compares answers and bytes alone")
    parser.add_argument("--connect", action="store_true", help="a local Spark Connect session")
    options = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

    from delta_sharing_spark import SharingClient, register
    from delta_sharing_spark.testing.server import SharingServer
    from delta_sharing_spark.testing.tables import DeltaTableBuilder, FileStyle

    made, every = _SUITES[options.suite]
    spark = session(options.connect)
    register(spark, engine="python")
    with tempfile.TemporaryDirectory(prefix="queries-") as directory, SharingServer() as server:
        root = Path(directory)
        profile = str(root / "config.share")
        server.write_profile(profile)
        client = SharingClient(profile)
        for name, rows in made(options.scale).items():
            table = DeltaTableBuilder(root / name, rows.schema, style=FileStyle(keep_rows=False))
            table.append(rows, files=options.files if rows.num_rows > 10_000 else 1)
            server.add_table(f"{options.suite}.sf.{name}", table.path)
            spark.read.parquet(str(root / name / "*.parquet")).createOrReplaceTempView(f"file_{name}")

        def whole(text: str) -> Any:
            for name in set(_TABLE.findall(text)):
                frame = spark.read.format("deltaSharing").load(f"{profile}#{options.suite}.sf.{name}")
                frame.createOrReplaceTempView(f"whole_{name}")
            return spark.sql(_TABLE.sub(r"whole_\1", text))

        def sql(**engine: str) -> Run:
            known = inspect.signature(client.sql).parameters  # older versions, beside this one, have one lane
            return lambda text: client.sql(spark, text, **{k: v for k, v in engine.items() if k in known})

        def sent() -> float:
            count = server.bytes_sent("data")
            server.reset_metrics()
            return count

        contenders: dict[str, Run] = {"file": lambda text: spark.sql(_TABLE.sub(r"file_\1", text)), "native": sql(engine="native"),
                                      "python": sql(engine="python"), "whole": whole}  # fmt: skip
        chosen = chosen_queries(every, options.queries)
        print(
            f"{options.suite}, scale {options.scale:g}, Spark {spark.version}, {os.cpu_count()} cores"
            + (f", medians of {options.rounds}" if options.rounds else "")
        )
        compare({name: contenders[name] for name in options.contenders}, chosen, options.rounds, sent)
    spark.stop()


def chosen_queries(every: Mapping[int, str], numbers: Sequence[int] | None) -> dict[int, str]:
    return {number: text for number, text in every.items() if not numbers or number in numbers}


if __name__ == "__main__":
    main()
