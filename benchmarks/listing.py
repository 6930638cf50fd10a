"""What the listing of a table of many files costs, by URL in one answer and in pages, and by directory from each kind of log.

    python benchmarks/listing.py --networks loopback 0.04,30e6

Seconds until the plan of a whole scan stands, and requests; beside them what the server takes for its one answer, which nobody parses.
Each run is a process of its own, timed after its imports. The logs: a checkpoint in one part, in eight parts, in eight sidecars, and
200 commits without a checkpoint. The server is a process of its own and the storage, a stand-in for S3, as well.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from planning import write_checkpoint, write_commits
from served import Served

_SCRIPT = """
import json, sys, time
import pyarrow.parquet, pyarrow.compute, requests, numpy
from delta_sharing_spark import SharingClient
options = json.loads(sys.argv[3])
options["storageEndpoint"] = json.load(open(sys.argv[1]))["endpoint"].removesuffix("/delta-sharing")
client = SharingClient(sys.argv[1], **options)
client.table("bench.file.tiny").scan().to_arrow()
began = time.perf_counter()
plan = client.table(sys.argv[2]).scan().plan()
print(json.dumps([time.perf_counter() - began, sum(len(split.slices) for split in plan.splits)]))
"""
#: What is listed: title, table, options.
CASES = (
    ("url, one answer", "bench.file.one", {"accessMode": "url"}),
    ("url, pages of 10,000", "bench.file.one", {"accessMode": "url", "maxFilesPerRequest": "10000"}),
    ("dir, checkpoint", "bench.s3.one", {"accessMode": "dir"}),
    ("dir, 8 parts", "bench.s3.parts", {"accessMode": "dir"}),
    ("dir, 8 sidecars", "bench.s3.sidecars", {"accessMode": "dir"}),
    ("dir, 200 commits", "bench.s3.commits", {"accessMode": "dir"}),
)


def write_logs(directory: Path, files: int) -> dict[str, Path]:
    """The same files in four logs, and a table of one file."""
    from delta_sharing_spark.testing.tables import DeltaTableBuilder

    one = write_checkpoint(directory / "one", files)
    checkpoint = next((one / "_delta_log").glob("*.checkpoint.parquet"))
    actions = pq.read_table(checkpoint)
    adds = actions.filter(actions.column("add").combine_chunks().is_valid())
    head = actions.filter(actions.column("add").combine_chunks().is_null())
    step = -(-adds.num_rows // 8)
    slices = [adds.slice(start, step) for start in range(0, adds.num_rows, step)]
    version = checkpoint.name.split(".")[0]
    for name in ("parts", "sidecars"):
        log = directory / name / "_delta_log"
        (log / "_sidecars").mkdir(parents=True)
        commit = one / "_delta_log" / f"{version}.json"
        (log / commit.name).write_bytes(commit.read_bytes())
        (log / "_last_checkpoint").write_text(
            json.dumps({"version": int(version), "size": files, **({"parts": 8} if name == "parts" else {})})
        )
    for number, part in enumerate(slices, 1):
        whole = pa.concat_tables([head, part]) if number == 1 else part
        pq.write_table(
            whole, directory / "parts/_delta_log" / f"{version}.checkpoint.{number:010d}.{len(slices):010d}.parquet"
        )
        pq.write_table(part.select(["add"]), directory / "sidecars/_delta_log/_sidecars" / f"{number}.parquet")
    lines = [{k: v for k, v in row.items() if v is not None} for row in head.to_pylist()]
    lines = [{k: _plain(v) for k, v in line.items() if k in ("protocol", "metaData")} for line in lines]
    lines = [line for line in lines if line]
    for line in lines:
        if "protocol" in line:
            line["protocol"] = {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": ["v2Checkpoint"],
                "writerFeatures": ["v2Checkpoint"],
            }
    lines += [{"checkpointMetadata": {"version": int(version)}}]
    for file in sorted((directory / "sidecars/_delta_log/_sidecars").iterdir()):
        lines.append({"sidecar": {"path": file.name, "sizeInBytes": file.stat().st_size, "modificationTime": 1}})
    name = f"{version}.checkpoint.01234567-89ab-cdef-0123-456789abcdef.json"
    (directory / "sidecars/_delta_log" / name).write_text("\n".join(map(json.dumps, lines)))
    write_commits(directory / "commits", files, 200)
    schema = pa.schema([("id", pa.int64())])
    DeltaTableBuilder(directory / "tiny", schema).append(pa.table({"id": [1]}, schema))
    return {name: directory / name for name in ("one", "parts", "sidecars", "commits", "tiny")}


def _plain(value: object) -> object:
    """A checkpoint's action as its JSON: maps are objects, nothing is null."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, list) and all(isinstance(one, tuple) for one in value) and value:
        return dict(value)
    return {} if value == [] else value


def run(profile: Path, table: str, options: dict[str, str]) -> list[float]:
    command = [sys.executable, "-c", _SCRIPT, str(profile), table, json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    result: list[float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--networks", nargs="*", default=["loopback"], help="or seconds of latency, bytes a second")
    parser.add_argument("--cases", default="", help="those whose title holds this text")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="delta-sharing-bench-") as temporary:
        server = Served(write_logs(Path(temporary), arguments.files))
        try:
            profile = Path(temporary) / "bench.share"
            profile.write_text(server.profile)
            for network in arguments.networks:
                if network != "loopback":
                    server.shape(*map(float, network.split(",")))
                print(f"\n{arguments.files:,} files, medians of {arguments.runs}, {network}")
                for title, table, options in CASES:
                    if arguments.cases not in title:
                        continue
                    taken, told = [], ""
                    for _ in range(arguments.runs):
                        server.served()
                        seconds, listed = run(profile, table, options)
                        assert listed == arguments.files, listed
                        taken.append(seconds)
                        if title == "url, one answer":
                            told = f", the server's answer alone {server.answer_seconds():.2f} s"
                        requests = sum(count for count, _ in server.served().values())
                    print(f"{title:24}{statistics.median(taken):7.2f} s{requests:7,} requests{told}", flush=True)
        finally:
            server.close()


if __name__ == "__main__":
    main()
