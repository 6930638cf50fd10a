"""The JVM connector beside this one, in turns, on the same table of the same embedded server.

    JVM_PEER=... python benchmarks/jvm.py                        12,000,000 rows x 9 columns in 8 files
    JVM_PEER=... python benchmarks/jvm.py --rows 200000 --runs 1

``native`` is ``spark.read.parquet`` on the local files; ``ours`` the connector in url mode; ``jvm`` the JVM connector with its
defaults, ``tuned`` with ``parquet.hadoop.vectored.io.enabled=false`` and ``spark.databricks.delta.snapshotPartitions=2``. The
JVM connector runs in a Spark of its own, which ``../shared/peers/jvm/build.sh`` builds into JVM_PEER; without it there is
nothing to run. Figures are medians, and in brackets times of ``native``.
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
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from scan import scanned, session, write_table
from served import Served

PEERS = Path(__file__).parents[1].parent / "shared" / "peers" / "jvm"
TUNED = {"parquet.hadoop.vectored.io.enabled": "false", "spark.databricks.delta.snapshotPartitions": "2"}
CASES = ("full scan", "3 columns agg", "selective where", "count")
_CONTENDERS = ("native", "ours", "jvm", "tuned")


def peer_home() -> Path | None:
    """The directory that the JVM connector was built into; None if it was not."""
    home = Path(os.environ.get("JVM_PEER") or Path(tempfile.gettempdir()) / "jvmpeer")
    return home if (home / "jars").is_dir() and (PEERS / "jvm_speed.py").is_file() else None


class JvmPeer:
    """The JVM connector's process: one case at a time."""

    def __init__(self, home: Path) -> None:
        command = [str(home / "venv" / "bin" / "python"), str(PEERS / "jvm_speed.py"), "--serve"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "JVM_PEER": str(home)}
        )
        self._answer()

    def run(self, case: str, address: str, query: Mapping[str, Any], conf: Mapping[str, str]) -> float:
        """Seconds of one case."""
        assert self._process.stdin is not None
        print(json.dumps({"case": case, "url": address, **query, "conf": conf}), file=self._process.stdin, flush=True)
        found = self._answer()
        if "s" not in found:
            raise RuntimeError(f"the JVM connector failed on {case}: {found.get('error')}")
        return float(found["s"])

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found


def seconds(frame: Callable[..., Any], case: str, query: Mapping[str, Any]) -> float:
    """Seconds of one case in this process's Spark; ``frame`` loads the table, with a condition for the server if given."""
    began = time.perf_counter()
    if case == "full scan":
        scanned(frame())
    elif case == "3 columns agg":
        key, *others = query["columns"]
        frame().groupBy(key).agg(dict.fromkeys(others, "sum")).collect()
    elif case == "selective where":
        frame(where=query["where"]).agg({"id": "sum"}).collect()
    else:
        frame().count()
    return time.perf_counter() - began


def measure(given: argparse.Namespace, home: Path, directory: Path) -> dict[str, dict[str, float]]:
    """Medians by case and contender."""
    big = directory / "big"
    write_table(big, given.rows, given.files, 1_000_000)
    server, peer = Served({"big": big}), JvmPeer(home)
    try:
        profile = directory / "bench.share"
        profile.write_text(server.profile)
        address = f"{profile}#bench.file.big"
        middle = given.rows // 2
        query = {"columns": ["city", "customer", "ratio"], "where": f"id >= {middle} and id < {middle + 5000}"}
        spark = session()

        def native(where: str | None = None) -> Any:
            found = spark.read.parquet(str(big))
            return found if where is None else found.where(where)

        def ours(where: str | None = None) -> Any:
            reader = spark.read.format("deltaSharing").option("accessMode", "url")
            return (reader if where is None else reader.option("where", where)).load(address)

        taken: dict[str, dict[str, list[float]]] = {case: {name: [] for name in _CONTENDERS} for case in CASES}
        for run in range(given.runs + 1):
            for case in CASES:
                contenders: dict[str, Callable[[], float]] = {
                    "native": partial(seconds, native, case, query),
                    "ours": partial(seconds, ours, case, query),
                    "jvm": partial(peer.run, case, address, query, {}),
                    "tuned": partial(peer.run, case, address, query, TUNED),
                }
                for name, contender in contenders.items():
                    spent = contender()
                    if run:
                        taken[case][name].append(spent)
        spark.stop()
        return {case: {n: statistics.median(s) for n, s in found.items()} for case, found in taken.items()}
    finally:
        peer.close()
        server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=12_000_000)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    given = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)  # pyspark's about pandas
    home = peer_home()
    if home is None:
        print(f"skipped: the JVM connector is not built (JVM_PEER), or {PEERS} is not there")
        sys.exit(0)
    with tempfile.TemporaryDirectory(prefix="delta-sharing-bench-") as directory:
        found = measure(given, home, Path(directory))
    if given.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{given.rows:,} rows x 9 columns in {given.files} files, seconds (times native)\n")
    print(f"{'':18}" + "".join(f"{name:>16}" for name in _CONTENDERS))
    for case, times in found.items():
        cells = "".join(f"{spent:8.2f} ({spent / times['native']:5.1f})" for spent in times.values())
        print(f"{case:18}{cells}")


if __name__ == "__main__":
    main()
