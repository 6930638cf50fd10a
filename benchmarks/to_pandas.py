"""A shared table as a pandas DataFrame: this client beside the reference Python client, on the same table of one server.

    python benchmarks/to_pandas.py --reference /path/to/python          4,000,000 rows x 9 columns in 8 files
    python benchmarks/to_pandas.py --reference /path/to/python --rows 400000 --runs 1

All is measured twice: from this machine, where decoding and conversion count alone, and over a network.

``--reference`` names an interpreter of an environment with ``delta-sharing`` (``pip install delta-sharing``); that of
``nox -s reference-client`` has both, and can be ``--ours`` as well, so that both have the same pandas. Each run is a
process of its own that imports its client, then loads the table; the clock starts after the imports. They take turns; figures
are medians. A second table lacks the decimals, of which either client makes four million Python objects. Rows, columns,
types and values of both frames must be equal, up to the order of the files.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scan import write_table
from served import BANDWIDTH, LATENCY, Served

_HEAD = """
import json, resource, sys, time, warnings
warnings.simplefilter("ignore")
profile, name = sys.argv[1], sys.argv[2]
"""
_OURS = """
import pandas, pyarrow
from delta_sharing_spark import SharingClient
began, burnt = time.perf_counter(), time.process_time()
frame = SharingClient(profile).table(name).to_pandas()
"""
_THEIRS = """
import pandas, pyarrow, delta_sharing
began, burnt = time.perf_counter(), time.process_time()
frame = delta_sharing.load_as_pandas(f"{profile}#{name}")
"""
_TAIL = """
taken, cpu = time.perf_counter() - began, time.process_time() - burnt
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
frame = frame.sort_values("id", ignore_index=True)
types = {column: str(frame[column].dtype) for column in frame}
values = {column: int(pandas.util.hash_pandas_object(frame[column], index=False).sum()) for column in frame}
print(json.dumps({"seconds": taken, "cpu": cpu, "peak": peak, "rows": len(frame), "types": types, "values": values}))
"""
#: How each client's script loads the table.
CLIENTS = {"ours": _OURS, "reference": _THEIRS}


def load(python: str, client: str, profile: Path, name: str) -> dict[str, Any]:
    """One client's run in a process of its own."""
    command = [python, "-c", _HEAD + CLIENTS[client] + _TAIL, str(profile), name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the {client} client failed: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(
    arguments: argparse.Namespace, directory: Path, without: Sequence[str], is_near: bool
) -> dict[str, list[dict[str, Any]]]:
    """Every run of each client over a table without some columns, the first of both left out; near, or over a network."""
    write_table(directory / "big", arguments.rows, arguments.files, 1_000_000, without)
    server = Served({"big": directory / "big"})
    try:
        if not is_near:
            server.shape(LATENCY, BANDWIDTH)
        profile = directory / "bench.share"
        profile.write_text(server.profile)
        pythons = {"ours": arguments.ours, "reference": arguments.reference}
        runs: dict[str, list[dict[str, Any]]] = {client: [] for client in pythons}
        for run in range(arguments.runs + 1):
            for client, python in pythons.items():
                result = load(python, client, profile, "bench.file.big")
                print(
                    f"{'run' if run else 'warming up'}, {client}: {result['seconds']:.2f} s",
                    file=sys.stderr,
                    flush=True,
                )
                if run:
                    runs[client].append(result)
        return runs
    finally:
        server.close()


def report(title: str, runs: Mapping[str, list[dict[str, Any]]]) -> None:
    """Print the medians of both clients, and whether their frames are equal."""
    print(f"\n{title}")
    medians = {client: statistics.median(run["seconds"] for run in results) for client, results in runs.items()}
    for client, results in runs.items():
        cpu = statistics.median(run["cpu"] for run in results)
        peak = max(run["peak"] for run in results) / (1 << 20)
        print(f"{client:12}{medians[client]:8.2f} s, {cpu:.2f} s of processor time{peak:10,.0f} MiB peak")
    print(f"{'':12}{medians['reference'] / medians['ours']:8.1f} times as fast")
    ours, theirs = runs["ours"][0], runs["reference"][0]
    for what in ("rows", "types", "values"):
        print(f"{what:12}{'equal' if ours[what] == theirs[what] else f'DIFFER: {ours[what]} and {theirs[what]}'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", default=sys.executable, help="an interpreter with this package; this one by default")
    parser.add_argument("--reference", required=True, help="an interpreter with delta-sharing")
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    print(f"{arguments.rows:,} rows in {arguments.files} files, medians of {arguments.runs}")
    network = f"{LATENCY * 1000:.0f} ms and {BANDWIDTH / 1e6:.0f} MB/s a connection"
    for title, without, is_near in (
        ("9 columns", (), True),
        ("8 columns, no decimals", ("price",), True),
        (f"9 columns, over {network}", (), False),
        (f"8 columns, no decimals, over {network}", ("price",), False),
    ):
        with tempfile.TemporaryDirectory(prefix="delta-sharing-bench-") as directory:
            report(title, measure(arguments, Path(directory), without, is_near))


if __name__ == "__main__":
    main()
