"""Planning a snapshot: open a log and get at every live file, side by side with deltalake.

    python benchmarks/planning.py                      300,000 files: JSON commits (30 and 3,000) and a checkpoint
    python benchmarks/planning.py --files 1000000 --commits 100
    python benchmarks/planning.py --files 1000000 --commits --layouts       a checkpoint in many forms, and 10,000 commits after it

Each measurement runs in a process of its own; the peak is its resident set's high-water mark (Linux). ``columns`` is
what pruning works on and what deltalake's ``get_add_actions`` is compared with; ``tasks`` also builds and drops one
object for every file, ``tasks held`` keeps them all; ``filter`` leaves out all but a file by an integer's bounds, ``filter of strings``
by a text's. ``--layouts`` writes the checkpoint as one file, as twenty parts, with statistics in columns, and as V2 with sidecars.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in (("id", "long"), ("name", "string"), ("p", "string"))
    ],
}
METADATA = {
    "id": "bench",
    "format": {"provider": "parquet", "options": {}},
    "schemaString": json.dumps(SCHEMA),
    "partitionColumns": ["p"],
    "configuration": {},
}
KINDS = ("deltalake", "columns", "columns without statistics", "filter", "filter of strings", "tasks", "tasks held")
#: Of a checkpoint in each layout; deltalake reads no V2 checkpoint.
LAYOUT_KINDS = ("deltalake", "columns without statistics", "filter", "filter of strings")
LAYOUTS = ("one file", "20 parts", "statistics in columns", "V2 with 20 sidecars", "10,000 commits after it")
_PARTS, _LATER_COMMITS = 20, 10_000


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
    head = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": METADATA}]
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


def write_layout(checkpointed: Path, table: Path, layout: str) -> Path:
    """The table of a checkpoint again, with the checkpoint in another layout."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.json
    import pyarrow.parquet as pq

    shutil.copytree(checkpointed, table)
    log = table / "_delta_log"
    (path,) = log.glob("*.checkpoint.parquet")
    version = int(path.name[:20])
    if layout.startswith("10,000"):
        for number in range(_LATER_COMMITS):
            (log / f"{version + 1 + number:020d}.json").write_text(add(10_000_000 + number) + "\n")
        return table
    rows = pq.read_table(path).combine_chunks()
    files = pc.is_valid(rows["add"])
    if layout == "one file":
        return table
    path.unlink()
    (log / "_last_checkpoint").unlink()
    if layout == "20 parts":
        size = -(-len(rows) // _PARTS)
        for part in range(_PARTS):
            name = f"{version:020d}.checkpoint.{part + 1:010d}.{_PARTS:010d}.parquet"
            pq.write_table(rows.slice(part * size, size), log / name)
    elif layout == "statistics in columns":
        of_files = rows["add"].combine_chunks()
        texts = "\n".join(text or "{}" for text in of_files.field("stats").to_pylist())
        parsed = pa.json.read_json(pa.BufferReader(texts.encode())).to_struct_array().combine_chunks()
        named = {field.name: of_files.field(field.name) for field in of_files.type if field.name != "stats"}
        named["stats_parsed"] = parsed
        adds = pa.StructArray.from_arrays(list(named.values()), list(named), mask=of_files.is_null())
        pq.write_table(rows.set_column(rows.schema.get_field_index("add"), "add", adds), path)
    else:
        (log / "_sidecars").mkdir()
        own, size, sidecars = rows.filter(files).select(["add"]), -(-len(rows) // _PARTS), []
        for part in range(_PARTS):
            sidecar = log / "_sidecars" / f"{part:032x}.parquet"
            pq.write_table(own.slice(part * size, size), sidecar)
            sidecars.append({"path": sidecar.name, "sizeInBytes": sidecar.stat().st_size, "modificationTime": 1})
        features = ["v2Checkpoint"]
        protocol = {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": features,
            "writerFeatures": features,
        }
        metadata = json.loads((log / f"{version:020d}.json").read_text().splitlines()[0]).get("metaData") or METADATA
        actions = [{"checkpointMetadata": {"version": version}}, {"protocol": protocol}, {"metaData": metadata}]
        lines = [*actions, *({"sidecar": sidecar} for sidecar in sidecars)]
        name = f"{version:020d}.checkpoint.{1:08x}-0000-4000-8000-{1:012x}.json"
        (log / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
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

        from delta_sharing_spark.deltalog.replay import read_snapshot
        from delta_sharing_spark.testing.server.table_logs import LocalLogStore

        before, start, burnt = peak_mib(), time.perf_counter(), time.process_time()
        snapshot = read_snapshot(LocalLogStore(table), lambda snapshot: snapshot)
        if kind.startswith("columns"):
            files = sum(batch.num_rows for batch in snapshot.adds(with_stats=kind == "columns"))
        elif kind.startswith("filter"):
            from delta_sharing_spark.predicates.file_skipping import FileSkipping
            from delta_sharing_spark.predicates.sql import parse_where

            where = "name = 'z5'" if kind == "filter of strings" else "id = 5000"
            skipping, files = FileSkipping(parse_where(where, snapshot.schema), snapshot.schema, ("p",)), 0
            for batch in snapshot.adds(stats_columns=skipping.stats_columns):
                files += int((skipping.reasons(batch.num_rows, batch.partition_values, batch) == 0).sum())
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


def report(title: str, table: Path, repeats: int, kinds: Sequence[str] = KINDS) -> None:
    size = sum(file.stat().st_size for file in (table / "_delta_log").rglob("*") if file.is_file())
    print(f"\n{title} ({size / 1e6:.0f} MB)")
    print(f"{'':28}{'seconds':>9}{'cpu':>8}{'speed':>8}{'peak MiB':>10}{'of its':>8}{'(imports)':>11}{'files':>11}")
    other: dict[str, float] | None = None
    for kind in kinds:
        run = best(kind, table, repeats)
        other = other or run
        speed, share = other["seconds"] / run["seconds"], run["peak"] / other["peak"]
        print(
            f"{kind:28}{run['seconds']:9.3f}{run['cpu']:8.2f}{speed:7.1f}x{run['peak']:10.0f}{share:8.0%}{run['imports']:11.0f}"
            f"{run['files']:11.0f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=300_000)
    parser.add_argument("--commits", type=int, nargs="*", default=[30, 3000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--layouts", nargs="*", choices=LAYOUTS, help="by default all; of a checkpoint of all files")
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
        checkpointed = write_checkpoint(Path(directory) / "checkpoint", options.files)
        if options.layouts is None:
            report(f"{options.files:,} files in a checkpoint", checkpointed, options.repeats)
            return
        for layout in options.layouts or LAYOUTS:
            table = write_layout(checkpointed, Path(directory) / layout.replace(",", "").replace(" ", "-"), layout)
            kinds = LAYOUT_KINDS[1:] if layout.startswith("V2") else LAYOUT_KINDS
            report(f"{options.files:,} files in a checkpoint: {layout}", table, options.repeats, kinds)
            shutil.rmtree(table)


if __name__ == "__main__":
    main()
