"""Planning a snapshot: open a log and get at every live file, side by side with deltalake.

    python benchmarks/planning.py                      300,000 files: JSON commits (30 and 3,000) and a checkpoint
    python benchmarks/planning.py --files 1000000 --commits 100

Each measurement runs in a process of its own; the peak is its resident set's high-water mark (Linux). ``columns`` is
what pruning works on and what deltalake's ``get_add_actions`` is compared with; ``tasks`` also builds and drops one
object for every file, ``tasks held`` keeps them all.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in (("id", "long"), ("name", "string"), ("p", "string"))
    ],
}
KINDS = ("deltalake", "columns", "columns without statistics", "tasks", "tasks held")


def add(i: int) -> str:
    stats = {
        "numRecords": 1000,
        "minValues": {"id": i * 1000, "name": f"a{i}"},
        "maxValues": {"id": i * 1000 + 999, "name": f"z{i}"},
        "nullCount": {"id": 0, "name": 0},
    }
    action = {
        "path": f"p={i % 100}/part-{i:05d}-{i:08x}-1c2d-4e5f-8a9b-{i:012x}.c000.snappy.parquet",
        "partitionValues": {"p": str(i % 100)},
        "size": 1_000_000 + i,
        "modificationTime": 1_700_000_000_000 + i,
        "dataChange": True,
        "stats": json.dumps(stats, separators=(",", ":")),
    }
    return json.dumps({"add": action}, separators=(",", ":"))


def write_commits(table: Path, files: int, commits: int) -> Path:
    log = table / "_delta_log"
    log.mkdir(parents=True)
    metadata = {
        "id": "bench",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(SCHEMA),
        "partitionColumns": ["p"],
        "configuration": {},
    }
    head = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}]
    bounds = [files * v // commits for v in range(commits + 1)]
    for version in range(commits):
        lines = [json.dumps(action) for action in head] if version == 0 else []
        lines += [add(i) for i in range(bounds[version], bounds[version + 1])]
        (log / f"{version:020d}.json").write_text("\n".join(lines) + "\n")
    return table


def write_checkpoint(table: Path, files: int) -> Path:
    import deltalake

    write_commits(table, files, 2)
    deltalake.DeltaTable(str(table)).create_checkpoint()
    (table / "_delta_log" / f"{0:020d}.json").unlink()
    return table


def peak_mib() -> float:
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / 1024


def measure(kind: str, table: str) -> dict[str, float]:
    """One measurement, in this process."""
    if kind == "deltalake":
        import deltalake

        before, start, burnt = peak_mib(), time.perf_counter(), time.process_time()
        files = deltalake.DeltaTable(table).get_add_actions(flatten=True).num_rows
    else:
        import pyarrow.json
        import pyarrow.parquet  # noqa: F401  (imports are not planning)

        from delta_sharing_spark.deltalog.replay import load_snapshot
        from delta_sharing_spark.testing.server.table_logs import LocalLogStore

        before, start, burnt = peak_mib(), time.perf_counter(), time.process_time()
        snapshot = load_snapshot(LocalLogStore(table))
        if kind.startswith("columns"):
            files = sum(batch.num_rows for batch in snapshot.adds(with_stats=kind == "columns"))
        elif kind == "tasks":
            files = sum(1 for _ in snapshot.tasks())
        else:
            files = len(list(snapshot.tasks()))
    spent = {"seconds": time.perf_counter() - start, "cpu": time.process_time() - burnt}
    return spent | {"peak": peak_mib(), "imports": before, "files": files}


def best(kind: str, table: Path, repeats: int) -> dict[str, float]:
    """The fastest of several processes, and the highest peak."""
    runs = []
    for _ in range(repeats):
        done = subprocess.run(
            [sys.executable, __file__, "--measure", kind, "--table", str(table)], check=True, capture_output=True
        )
        runs.append(json.loads(done.stdout))
    return min(runs, key=lambda run: run["seconds"]) | {"peak": max(run["peak"] for run in runs)}


def report(title: str, table: Path, repeats: int) -> None:
    size = sum(file.stat().st_size for file in (table / "_delta_log").iterdir())
    print(f"\n{title} ({size / 1e6:.0f} MB)")
    print(f"{'':28}{'seconds':>9}{'speed':>8}{'peak MiB':>10}{'of its':>8}{'(imports)':>11}{'files':>11}")
    other: dict[str, float] | None = None
    for kind in KINDS:
        run = best(kind, table, repeats)
        other = other or run
        speed, share = other["seconds"] / run["seconds"], run["peak"] / other["peak"]
        print(
            f"{kind:28}{run['seconds']:9.3f}{speed:7.1f}x{run['peak']:10.0f}{share:8.0%}{run['imports']:11.0f}"
            f"{run['files']:11.0f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=300_000)
    parser.add_argument("--commits", type=int, nargs="*", default=[30, 3000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--measure", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--table", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.table)))
        return
    with tempfile.TemporaryDirectory(prefix="planning-") as directory:
        for commits in options.commits:
            table = write_commits(Path(directory) / f"json-{commits}", options.files, commits)
            report(f"{options.files:,} files in {commits:,} JSON commits", table, options.repeats)
        report(
            f"{options.files:,} files in a checkpoint",
            write_checkpoint(Path(directory) / "checkpoint", options.files),
            options.repeats,
        )


if __name__ == "__main__":
    main()
