"""The JVM connector beside this one, in turns, on the same table of the same embedded server.

    JVM_PEER=... python benchmarks/jvm.py                        12,000,000 rows x 9 columns in 8 files
    JVM_PEER=... python benchmarks/jvm.py --rows 200000 --runs 1

``files`` is ``spark.read.parquet`` on the local files; ``python`` and ``native`` are this connector's two lanes in url mode;
``jvm`` is the JVM connector with its defaults, ``tuned`` with ``parquet.hadoop.vectored.io.enabled=false`` and
``spark.databricks.delta.snapshotPartitions=2``. ``python`` is told the columns and the condition, for Spark prunes nothing for
a Python source; the others find them by themselves. Each time includes loading the table. The JVM connector runs in a Spark
of its own, which ``../shared/peers/jvm/build.sh`` builds into JVM_PEER; without it there is nothing to run. Figures are
medians, and in brackets times of ``files``. A line on standard error tells of each case as it ends.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from scan import scanned, session, write_table
from served import Served

from delta_sharing_spark.client import SharingClient

PEERS = Path(__file__).parents[1].parent / "shared" / "peers" / "jvm"
TUNED = {"parquet.hadoop.vectored.io.enabled": "false", "spark.databricks.delta.snapshotPartitions": "2"}
CASES = ("full scan", "3 columns agg", "selective where", "count")
_CONTENDERS = ("files", "python", "native", "jvm", "tuned")


def peer_home() -> Path | None:
    """The directory that the JVM connector was built into; None if it was not."""
    home = Path(os.environ.get("JVM_PEER") or Path(tempfile.gettempdir()) / "jvmpeer")
    return home if (home / "jars").is_dir() and (PEERS / "jvm_speed.py").is_file() else None


class JvmPeer:
    """The JVM connector's process: one case at a time.

    Args:
        home: The directory it was built into.
        *program: A script for its interpreter and the script's arguments; ``jvm_speed.py`` of the peer by default.
    """

    def __init__(self, home: Path, *program: str) -> None:
        told = program or (str(PEERS / "jvm_speed.py"), "--serve")
        command = [str(home / "venv" / "bin" / "python"), *told]
        # Its Spark is another version: nothing of this process's may name its workers or its home.
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "SPARK_HOME", "PYTHONPATH"))}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**inherited, "JVM_PEER": str(home)}
        )
        self._answer()

    def run(self, case: str, address: str, query: Mapping[str, Any], conf: Mapping[str, str]) -> float:
        """Seconds of one case."""
        return float(self.ask(case, address, query, conf))

    def ask(self, case: str, address: str, query: Mapping[str, Any], conf: Mapping[str, str]) -> Any:
        """What the program tells of one case."""
        assert self._process.stdin is not None
        print(json.dumps({"case": case, "url": address, **query, "conf": conf}), file=self._process.stdin, flush=True)
        answer = self._answer()
        if "s" not in answer:
            raise RuntimeError(f"the JVM connector failed on {case}: {answer.get('error')}")
        return answer["s"]

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the JVM connector's process ended with status {self._process.wait(60)}")
        answer: dict[str, Any] = json.loads(line)
        return answer


#: Loads the table's DataFrame, told what a query needs of it.
Load = Callable[[Sequence[str] | None, str | None], Any]


def seconds(load: Load, case: str, query: Mapping[str, Any]) -> float:
    """Seconds of one case in this process's Spark, as ``jvm_speed.py`` times it in the other."""
    began = time.perf_counter()
    if case == "full scan":
        scanned(load(None, None))
    elif case == "3 columns agg":
        key, *others = query["columns"]
        load(query["columns"], None).groupBy(key).agg(dict.fromkeys(others, "sum")).collect()
    elif case == "selective where":
        load(["id"], query["where"]).where(query["where"]).agg({"id": "sum"}).collect()
    else:
        load(None, None).count()
    return time.perf_counter() - began


def measure(arguments: argparse.Namespace, home: Path, directory: Path) -> dict[str, dict[str, float]]:
    """Medians by case and contender."""
    big = directory / "big"
    tell(f"writing {arguments.rows:,} rows")
    write_table(big, arguments.rows, arguments.files, 1_000_000)
    with ExitStack() as stack:
        server = Served({"big": big})
        stack.callback(server.close)
        profile = directory / "bench.share"
        profile.write_text(server.profile)
        address = f"{profile}#bench.file.big"
        middle = arguments.rows // 2
        query = {"columns": ["city", "customer", "ratio"], "where": f"id >= {middle} and id < {middle + 5000}"}
        tell("starting both Sparks")
        peer = JvmPeer(home)
        stack.callback(peer.close)
        spark = session()
        stack.callback(spark.stop)
        spark.conf.set("spark.sql.shuffle.partitions", "4")  # as in the peer's session
        table = SharingClient(str(profile), accessMode="url").table("bench.file.big")

        def files(columns: Sequence[str] | None, where: str | None) -> Any:
            return spark.read.parquet(str(big))

        def python(columns: Sequence[str] | None, where: str | None) -> Any:
            return table.scan(columns=columns, where=where).to_spark(spark, engine="python")

        def native(columns: Sequence[str] | None, where: str | None) -> Any:
            return table.scan().to_spark(spark, engine="native")

        taken: dict[str, dict[str, list[float]]] = {
            case: {name: [] for name in _CONTENDERS} for case in arguments.cases
        }
        for run in range(arguments.runs + 1):
            for case in arguments.cases:
                contenders: dict[str, Callable[[], float]] = {
                    "files": partial(seconds, files, case, query),
                    "python": partial(seconds, python, case, query),
                    "native": partial(seconds, native, case, query),
                    "jvm": partial(peer.run, case, address, query, {}),
                    "tuned": partial(peer.run, case, address, query, TUNED),
                }
                spent = {name: contender() for name, contender in contenders.items()}
                told = ", ".join(f"{name} {value:.2f}" for name, value in spent.items())
                tell(f"{f'run {run}' if run else 'warming up'}, {case}: {told}")
                for name, value in spent.items():
                    if run:
                        taken[case][name].append(value)
        return {case: {n: statistics.median(s) for n, s in times.items()} for case, times in taken.items()}


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def table_of(arguments: argparse.Namespace, medians: Mapping[str, Mapping[str, float]]) -> str:
    """The figures as one table of text."""
    lines = [
        f"{arguments.rows:,} rows x 9 columns in {arguments.files} files, medians of {arguments.runs}: seconds (times files)",
        "",
    ]
    lines.append(f"{'':18}" + "".join(f"{name:>16}" for name in _CONTENDERS))
    for case, times in medians.items():
        cells = "".join(f"{spent:8.2f} ({spent / times['files']:5.1f})" for spent in times.values())
        lines.append(f"{case:18}{cells}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=12_000_000)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--runs", type=int, default=3, help="counted runs, after one that is not")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)  # pyspark's about pandas
    home = peer_home()
    if home is None:
        print(f"skipped: the JVM connector is not built (JVM_PEER), or {PEERS} is not there")
        sys.exit(0)
    with tempfile.TemporaryDirectory(prefix="delta-sharing-bench-") as directory:
        medians = measure(arguments, home, Path(directory))
    print(json.dumps(medians, indent=2) if arguments.json else table_of(arguments, medians))


if __name__ == "__main__":
    main()
