"""A selective ``where`` on a partitioned and sorted table of many files: time to plan, and bytes fetched against needed.

    python benchmarks/pruning.py                   100,000 files in 100 partitions, by URL and by directory
    python benchmarks/pruning.py --files 20000

The log's files are hard links of a few real ones; what is asked of them lies in real ones of its own. ``needed`` is the
compressed size of the chosen columns in the files that hold rows that pass. ``plan s`` includes the server's work, which runs
in this process: ``answer s`` is what the same answer takes that nobody parses. Both are medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import requests

from delta_sharing_spark import SharingClient
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder, FileStyle

ROWS = 1_000
SCHEMA = pa.schema([("p", pa.int32()), ("id", pa.int64()), ("value", pa.float64()), ("text", pa.string())])


def rows_of(file: int) -> pa.Table:
    """The rows of the ``file``-th file: ``id`` is sorted over the whole table."""
    draw = np.random.default_rng(file)
    ids = np.arange(file * ROWS, (file + 1) * ROWS)
    return pa.table({"id": ids, "value": draw.random(ROWS), "text": [f"row {i} {i * 2654435761 % 2**32}" for i in ids]})


def build(directory: Path, files: int, partitions: int, real: set[int]) -> DeltaTableBuilder:
    table = DeltaTableBuilder(directory, SCHEMA, ["p"], style=FileStyle(keep_rows=False))
    filler = directory / "filler.parquet"
    pq.write_table(rows_of(0), filler)
    actions: list[dict[str, Any]] = []
    for file in range(files):
        part = file * partitions // files
        path = directory / f"p={part}" / f"part-{file:06d}.parquet"
        path.parent.mkdir(exist_ok=True)
        if file in real:
            pq.write_table(rows_of(file), path)
        elif file % (files // partitions) == 0 or file % 997 == 0:
            os.link(filler, path)
        first, last = file * ROWS, (file + 1) * ROWS - 1
        stats = {
            "numRecords": ROWS,
            "minValues": {"id": first, "value": 0.0, "text": f"row {first}"},
            "maxValues": {"id": last, "value": 1.0, "text": f"row {last}~"},
            "nullCount": {"id": 0, "value": 0, "text": 0},
        }
        size = path.stat().st_size if file in real else filler.stat().st_size
        add = {
            "path": path.relative_to(directory).as_posix(),
            "partitionValues": {"p": str(part)},
            "size": size,
            "modificationTime": 1_700_000_000_000,
            "dataChange": True,
            "stats": json.dumps(stats),
        }
        actions.append({"add": add})
        if len(actions) == 10_000:
            table.commit(actions)
            actions = []
    if actions:
        table.commit(actions)
    table.checkpoint()
    return table


def needed(directory: Path, part: int, columns: list[str], files: list[int]) -> int:
    total = 0
    for file in files:
        group = pq.read_metadata(directory / f"p={part}" / f"part-{file:06d}.parquet").row_group(0)
        total += sum(
            group.column(i).total_compressed_size
            for i in range(group.num_columns)
            if group.column(i).path_in_schema in columns
        )
    return total


def answered(server: SharingServer) -> float:
    """Seconds until the last query's answer is there, without parsing it."""
    query = [r for r in server.requests if r.kind == "query"][-1]
    headers = {k: v for k, v in query.headers.items() if k.startswith("delta-") or k == "content-type"}
    start = time.perf_counter()
    url = f"http://{server.address}{query.path}"
    with requests.post(url, query.body, headers=headers | {"Authorization": f"Bearer {server.token}"}) as answer:
        assert answer.ok
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--partitions", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    files, middle = options.files, options.files // 2
    part = middle * options.partitions // files
    low, high = middle * ROWS + 10, (middle + 3) * ROWS + 5
    chosen = list(range(middle, middle + 4))
    wheres = {
        "partition and range": f"p = {part} AND id BETWEEN {low} AND {high}",
        "range alone": f"id BETWEEN {low} AND {high}",
    }
    with tempfile.TemporaryDirectory(prefix="pruning-") as name, SharingServer() as server:
        directory = Path(name) / "t"
        table = build(directory, files, options.partitions, set(chosen))
        server.add_table("s.d.t", table.path, access_modes=["url", "dir"], location=table.uri)
        client = SharingClient(server.profile())
        want = needed(directory, part, ["id", "value"], chosen)
        print(f"{files:,} files; needed {want:,} bytes")
        print(
            f"{'':40}{'plan s':>8}{'answer s':>10}{'listed':>9}{'read':>6}{'answers MB':>12}{'fetched':>10}{'of needed':>11}"
        )
        for mode in ("dir", "url"):
            for hints in ("apply", "ignore") if mode == "url" else ("apply",):
                server.settings.predicate_hints = hints  # type: ignore[assignment]
                for title, where in wheres.items():
                    plans, answers = [], []
                    for _ in range(options.repeats):
                        server.reset_metrics()
                        scan = client.table("s.d.t").scan(columns=["id", "value"], where=where, accessMode=mode)
                        scan.resolved()
                        start = time.perf_counter()
                        report = scan.plan().report
                        plans.append(time.perf_counter() - start)
                        megabytes = server.bytes_sent("query") / 1e6
                        assert scan.to_arrow().num_rows == high - low + 1
                        fetched = server.bytes_sent("data")
                        answers.append(answered(server) if mode == "url" else 0.0)
                    shown = f"{fetched:,}" if mode == "url" else "local"
                    ratio = f"{fetched / want:10.2f}x" if mode == "url" else ""
                    label = f"{mode}, {title}" + (f", hints {hints}" if mode == "url" else "")
                    print(
                        f"{label:40}{statistics.median(plans):8.2f}{statistics.median(answers):10.2f}{report.listed:9,}"
                        f"{report.files:6}{megabytes:12.1f}{shown:>10}{ratio}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
