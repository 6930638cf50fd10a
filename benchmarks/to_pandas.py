"""A shared table as a pandas DataFrame: this client beside the reference Python client, on the same table of one server.

    python benchmarks/to_pandas.py --reference /path/to/python          4,000,000 rows x 9 columns in 8 files
    python benchmarks/to_pandas.py --reference /path/to/python --rows 400000 --runs 1

All is measured twice: from this machine, where decoding and conversion count alone, and over a network.

``--reference`` names an interpreter of an environment with ``delta-sharing`` (``pip install delta-sharing``). Where it has
this package too, as that of ``nox -s reference-client``, this client is measured there as well: the reference client holds
pandas back, before whose version 3 strings are Python objects. Each run is a process of its own that imports its client, then
loads the table; the clock starts after the imports. They take turns; figures are medians. A second table lacks the
decimals, of which either client makes four million Python objects. Rows, columns, types and values of the frames must be
equal, up to the order of the files; of pandas 3, but for the type of strings.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
if pandas.__version__ >= "3":
    types = {column: "object" if kind == "str" else kind for column, kind in types.items()}
print(json.dumps({"pandas": pandas.__version__, "seconds": taken, "cpu": cpu, "peak": peak, "rows": len(frame), "types": types, "values": values}))
"""
#: What the reference client is called in the output.
_REFERENCE = "reference"


@dataclass(frozen=True)
class Client:
    """A client to measure: the interpreter whose environment has it, and how its script loads the table."""

    python: str
    script: str


def clients_of(arguments: argparse.Namespace) -> dict[str, Client]:
    """All clients to measure, by what they are called in the output."""
    clients = {"ours": Client(sys.executable, _OURS), _REFERENCE: Client(arguments.reference, _THEIRS)}
    has_ours = subprocess.run(
        [arguments.reference, "-c", "import delta_sharing_spark"], capture_output=True, check=False
    )
    if not has_ours.returncode:
        clients["ours, there"] = Client(arguments.reference, _OURS)
    return clients


def load(client: Client, profile: Path, name: str) -> dict[str, Any]:
    """One client's run in a process of its own."""
    command = [client.python, "-c", _HEAD + client.script + _TAIL, str(profile), name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{client.python} failed: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(
    arguments: argparse.Namespace, clients: Mapping[str, Client], directory: Path, without: Sequence[str], is_near: bool
) -> dict[str, list[dict[str, Any]]]:
    """Every run of each client over a table without some columns, the first of each left out; near, or over a network."""
    write_table(directory / "big", arguments.rows, arguments.files, 1_000_000, without)
    server = Served({"big": directory / "big"})
    try:
        if not is_near:
            server.shape(LATENCY, BANDWIDTH)
        profile = directory / "bench.share"
        profile.write_text(server.profile)
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in clients}
        for run in range(arguments.runs + 1):
            for name, client in clients.items():
                result = load(client, profile, "bench.file.big")
                print(
                    f"{'run' if run else 'warming up'}, {name}: {result['seconds']:.2f} s",
                    file=sys.stderr,
                    flush=True,
                )
                if run:
                    runs[name].append(result)
        return runs
    finally:
        server.close()


def report(title: str, runs: Mapping[str, list[dict[str, Any]]]) -> None:
    """Print the medians of all clients, and whether their frames are equal."""
    print(f"\n{title}")
    medians = {name: statistics.median(run["seconds"] for run in results) for name, results in runs.items()}
    for name, results in runs.items():
        cpu = statistics.median(run["cpu"] for run in results)
        peak = max(run["peak"] for run in results) / (1 << 20)
        times = "" if name == _REFERENCE else f"{medians[_REFERENCE] / medians[name]:8.1f} times as fast"
        print(
            f"{name:12}{medians[name]:8.2f} s, {cpu:.2f} s of processor time{peak:8,.0f} MiB peak"
            f"   pandas {results[0]['pandas']}{times}"
        )
    theirs = runs[_REFERENCE][0]
    for what in ("rows", "types", "values"):
        others = {name: results[0][what] for name, results in runs.items() if results[0][what] != theirs[what]}
        print(f"{what:12}{f'DIFFER: {others} and {theirs[what]}' if others else 'equal'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", required=True, help="an interpreter with delta-sharing")
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    print(f"{arguments.rows:,} rows in {arguments.files} files, medians of {arguments.runs}")
    clients = clients_of(arguments)
    network = f"{LATENCY * 1000:.0f} ms and {BANDWIDTH / 1e6:.0f} MB/s a connection"
    for title, without, is_near in (
        ("9 columns", (), True),
        ("8 columns, no decimals", ("price",), True),
        (f"9 columns, over {network}", (), False),
        (f"8 columns, no decimals, over {network}", ("price",), False),
    ):
        with tempfile.TemporaryDirectory(prefix="delta-sharing-bench-") as directory:
            report(title, measure(arguments, clients, Path(directory), without, is_near))


if __name__ == "__main__":
    main()
