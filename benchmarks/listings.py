"""Tables of very many files, by url and by directory: what a first and a second query cost, and what they hold.

    python benchmarks/listings.py                          100,000 and 1,000,000 files; some five minutes
    python benchmarks/listings.py --files 100000 --ways client lane

A server in a process of its own answers every query with the same lines, 780 bytes each: 1,000 partitions, statistics on two columns.
``plain`` reads that answer by HTTP and drops it. Each group of rows (``client``, ``lane``...) is a process of its own, and its
rows follow each other there: the first is a first query, the others are of the same snapshot. Modules are loaded by
a small table before. Columns: seconds, seconds above ``plain``, processor seconds, the most MiB that this process held above an
idle client, MiB of the largest Python worker, requests, and MB that came. Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from file_index import _family, _resident

PARTITIONS, ROWS = 1_000, 100
#: Spark tells a Python source nothing of ``count()``, which reads each file: only of so many is it measured.
_READ_WHOLE = 100_000
SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in (("id", "long"), ("name", "string"), ("p", "integer"))
    ],
}
TOKEN = "token"


# --- the server -------------------------------------------------------------------------------------------------------


def stats_of(number: int) -> str:
    """The statistics of a file, as JSON: rows in the order of their ids and names."""
    first = number * ROWS
    return (
        f'{{"numRecords":{ROWS},"minValues":{{"id":{first},"name":"name {first:010d}"}},"maxValues":{{"id":{first + ROWS - 1},'
        f'"name":"name {first + ROWS - 1:010d}"}},"nullCount":{{"id":0,"name":0}}}}'
    )


def line_of(number: int, size: int, port: int) -> str:
    """The line of a file, some 780 bytes long."""
    stats = stats_of(number).replace('"', '\\"')
    key, part = number * 2654435761 % (1 << 64), number % PARTITIONS
    return (
        f'{{"file":{{"id":"{key:032x}{number:032x}","expirationTimestamp":4000000000000,"deltaSingleAction":{{"add":{{"path":'
        f'"http://127.0.0.1:{port}/data/p={part}/part-{number:05d}-{key:08x}-1c2d-4e5f-8a9b-{number:012x}.c000.snappy.parquet'
        f"?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Date=20260101T000000Z&X-Amz-Expires=3600&X-Amz-SignedHeaders=host"
        f'&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20260101&X-Amz-Signature={key:064x}",'
        f'"partitionValues":{{"p":"{part}"}},"size":{size},"modificationTime":1700000000000,"dataChange":true,'
        f'"stats":"{stats}"}}}}}}}}\n'
    )


def head_of(files: int) -> bytes:
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"]}
    metadata = {"id": f"of {files}", "format": {"provider": "parquet"}, "schemaString": json.dumps(SCHEMA)}
    metadata |= {"partitionColumns": ["p"], "configuration": {}}
    lines = [
        {"protocol": {"deltaProtocol": protocol}},
        {"metaData": {"version": 1, "numFiles": files, "size": files << 10, "deltaMetadata": metadata}},
    ]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


class Answers(ThreadingHTTPServer):
    """Answers of tables that are named by their number of files; every data URL is one small file."""

    daemon_threads = True

    def __init__(self, directory: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        rows = pa.table({"id": pa.array(range(ROWS)), "name": [f"name {number:010d}" for number in range(ROWS)]})
        pq.write_table(rows, directory / "rows.parquet")
        self.rows = (directory / "rows.parquet").read_bytes()
        self.directory = directory
        self.counts = [0, 0]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has enough closes its connection."""

    def body(self, files: int) -> Path:
        """The answer to a query, written once."""
        path = self.directory / f"{files}.ndjson"
        if not path.exists():
            with path.open("wb") as out:
                out.write(head_of(files))
                for first in range(0, files, 10_000):
                    lines = (
                        line_of(n, len(self.rows), self.server_port) for n in range(first, min(files, first + 10_000))
                    )
                    out.write("".join(lines).encode())
                out.write(b'{"endStreamAction":{}}\n')
        return path


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # as servers do: a body would wait 40 ms for the receipt of its head
    server: Answers

    def do_GET(self) -> None:
        if self.path == "/counts":
            body, self.server.counts = json.dumps(self.server.counts).encode(), [0, 0]
            self._send(body)
        elif self.path.startswith("/data/"):
            data = self.server.rows
            first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
            start = len(data) - int(last) if not first else int(first)
            end = min(len(data), int(last) + 1 if first and last else len(data))
            span = {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"} if "Range" in self.headers else {}
            self._count(end - start)
            self._send(data[start:end], span, status=206 if span else 200)
        else:
            files = int(self.path.split("/tables/")[1].split("/")[0].removeprefix("of"))
            self._count(0)
            self._send(head_of(files) if self.path.endswith("/metadata") else b"", {"Delta-Table-Version": "1"})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        files = int(self.path.split("/tables/")[1].split("/")[0].removeprefix("of"))
        path = self.server.body(files)
        self.send_response(200)
        self.send_header("Delta-Table-Version", "1")
        self.send_header("delta-sharing-capabilities", "responseformat=delta;includeEndStreamAction=true")
        self.send_header("Content-Length", str(path.stat().st_size))
        self.end_headers()
        self.wfile.flush()
        self._count(0)
        with path.open("rb") as body:
            try:
                while chunk := body.read(1 << 16):
                    self.wfile.write(chunk)
                    self.server.counts[1] += len(chunk)
            except OSError:  # the client has enough
                self.close_connection = True

    def _count(self, size: int) -> None:
        self.server.counts[0] += 1
        self.server.counts[1] += size

    def _send(self, body: bytes, headers: dict[str, str] | None = None, status: int = 200) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def serve(directory: str, sizes: list[int]) -> None:
    """Serve until standard input ends; tells the port once the answers are written."""
    server = Answers(Path(directory))
    for files in sizes:
        server.body(files)
    print(server.server_port, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


# --- what is measured -------------------------------------------------------------------------------------------------


class Meter:
    """Measures calls in this process, one after the other."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self.rows: dict[str, dict[str, float]] = {}

    def counts(self) -> list[int]:
        import urllib.request

        with urllib.request.urlopen(f"{self._endpoint}/counts") as answer:
            counts: list[int] = json.loads(answer.read())
            return counts

    def run(self, title: str, call: Callable[[], Any], expected: Any = None) -> None:
        self.counts()
        idle = _resident("self")["VmRSS"]
        with _workers() as most:
            began, burnt = time.perf_counter(), time.process_time()
            result = call()
            seconds, cpu = time.perf_counter() - began, time.process_time() - burnt
        if expected is not None and result != expected:
            raise AssertionError(f"{title}: {result}, not {expected}")
        peak = (_resident("self")["VmHWM"] - idle) / 2**20
        requests, sent = self.counts()
        self.rows[title] = {
            "seconds": seconds, "cpu": cpu, "peak": peak, "worker": most[0] / 2**20, "requests": requests, "MB": sent / 1e6,
        }  # fmt: skip


@contextmanager
def _workers() -> Iterator[list[int]]:
    """The most bytes that a Python worker of this process' Spark has held by the end."""
    most, ended = [0], threading.Event()
    java = int(os.environ.get("BENCHMARK_JVM", "0"))

    def watch() -> None:
        while not ended.wait(0.1):
            for pid in _family(java):
                try:
                    if b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                        most[0] = max(
                            most[0], *(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
                        )
                except (OSError, ValueError):
                    continue

    if not java:
        yield most
        return
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield most
    ended.set()
    thread.join()


def conditions(files: int) -> dict[str, str]:
    """Conditions that three files pass, each by other statistics."""
    first = files // 2 * ROWS
    return {
        "filter": f"id >= {first} and id < {first + 3 * ROWS}",
        "another filter": f"id >= {first // 2} and id < {first // 2 + 3 * ROWS} and p >= 0",
        "filter of strings": f"name >= 'name {first:010d}' and name < 'name {first + 3 * ROWS:010d}'",
        "many conditions": f"(name like 'name {first:010d}%' or id in (1, 2)) and not (name is null)",
    }


def plain(meter: Meter, profile: str, files: int) -> None:
    import requests

    told = json.loads(Path(profile).read_text())
    headers = {"Authorization": f"Bearer {TOKEN}", "delta-sharing-capabilities": "responseformat=delta"}

    def read() -> None:
        url = f"{told['endpoint']}/shares/a/schemas/b/tables/of{files}/query"
        with requests.post(url, json={}, headers=headers, stream=True) as answer:
            for _ in answer.iter_content(1 << 16):
                pass

    meter.run("plain", read)


def client_first(meter: Meter, profile: str, files: int) -> None:
    from delta_sharing_spark import SharingClient

    client = SharingClient(profile)
    for condition in conditions(10).values():
        client.table("a.b.of10").scan(where=condition).to_arrow()
    client.table("a.b.of10").scan().count()
    scan, told = client.table(f"a.b.of{files}").scan(), conditions(files)
    meter.run("filter", lambda: scan.where(told["filter"]).to_arrow().num_rows, 0)
    meter.run("the same filter", lambda: scan.where(told["filter"]).to_arrow().num_rows, 0)
    for title in ("another filter", "filter of strings", "many conditions"):
        meter.run(title, lambda title=title: scan.where(told[title]).plan().report.files)  # type: ignore[misc]
    meter.run("count after a filter", scan.count, files * ROWS)


def client_count(meter: Meter, profile: str, files: int) -> None:
    from delta_sharing_spark import SharingClient

    client = SharingClient(profile)
    client.table("a.b.of10").scan().count()
    scan = client.table(f"a.b.of{files}").scan()
    meter.run("count", scan.count, files * ROWS)


def client_limit(meter: Meter, profile: str, files: int) -> None:
    from delta_sharing_spark import SharingClient

    client = SharingClient(profile)
    client.table("a.b.of10").scan().limit(5).to_pandas()
    client.table("a.b.of10").lazy().head(5).collect()
    table = client.table(f"a.b.of{files}")
    meter.run("head() to pandas", lambda: len(table.head()), 5)
    meter.run("limit(5) to Arrow", lambda: table.scan().limit(5).to_arrow().num_rows, 5)
    meter.run("Polars, lazy, head(5)", lambda: table.lazy().head(5).collect().height, 5)


def _spark() -> Any:
    from native import session

    spark = session("3g")
    os.environ["BENCHMARK_JVM"] = str(int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()))
    return spark


def lane(meter: Meter, profile: str, files: int, first: str = "filter") -> None:
    from delta_sharing_spark import SharingClient

    spark, client, told = _spark(), SharingClient(profile), conditions(files)

    def load(name: str) -> Any:
        return client.table(f"a.b.{name}").to_spark(spark, engine="native")

    small = load("of10")
    small.where(conditions(10)["filter of strings"]).collect()
    small.count()
    frame = load(f"of{files}")
    if first == "count":
        meter.run("lane: count", frame.count, files * ROWS)
        return
    if first == "show":
        meter.run("lane: head(5), as show(5)", lambda: len(frame.head(5)), 5)
        return
    meter.run("lane: filter", lambda: len(frame.where(told["filter"]).collect()), 0)
    meter.run("lane: the same filter", lambda: len(frame.where(told["filter"]).collect()), 0)
    meter.run("lane: filter of strings", lambda: len(frame.where(told["filter of strings"]).collect()), 0)
    meter.run("lane: count after a filter", frame.count, files * ROWS)


def python_source(meter: Meter, profile: str, files: int) -> None:
    from delta_sharing_spark import SharingClient

    spark, client, told = _spark(), SharingClient(profile), conditions(files)["filter"]
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")

    def load(name: str, **named: Any) -> Any:
        return client.table(f"a.b.{name}").scan(**named).to_spark(spark, engine="python")

    load("of10", where=conditions(10)["filter"]).collect()
    frame = load(f"of{files}", pushdown="query")
    meter.run("Python source: load().filter()", lambda: len(frame.where(told).collect()), 0)
    meter.run("Python source: where=", lambda: len(load(f"of{files}", where=told).collect()), 0)
    meter.run(
        "Python source: load and plan, all files",
        lambda: load(f"of{files}")._jdf.queryExecution().toRdd().getNumPartitions(),
    )
    meter.run("Python source: limit=5", lambda: len(load(f"of{files}", limit=5).collect()), 5)
    if files <= _READ_WHOLE:
        meter.run("Python source: count() of all rows", load(f"of{files}").count, files * ROWS)


GROUPS: dict[str, tuple[Callable[[Meter, str, int], None], ...]] = {
    "plain": (plain,),
    "client": (client_first, client_count, client_limit),
    "lane": (lane, partial(lane, first="count"), partial(lane, first="show")),
    "python": (python_source,),
}


# --- all of it --------------------------------------------------------------------------------------------------------


def measured(group: str, place: int, profile: Path, files: int) -> dict[str, dict[str, float]]:
    command = [sys.executable, __file__, "--measure", group, "--place", str(place), "--files", str(files)]
    command += ["--at", str(profile)]
    env = {
        **os.environ,
        "PYTHONDONTWRITEBYTECODE": "",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=env)
    if done.returncode:
        raise RuntimeError(f"{group} failed")
    rows: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return rows


def report(files: int, profile: Path, ways: list[str]) -> None:
    print(
        f"\n{files:,} files: seconds, above plain, processor seconds, MiB above an idle client, MiB of a worker, requests, MB"
    )
    base = 0.0
    for group in ("plain", *(way for way in ways if way != "plain")):
        for place in range(len(GROUPS[group])):
            for title, row in measured(group, place, profile, files).items():
                base = row["seconds"] if group == "plain" else base
                above = row["seconds"] - base if row["MB"] > files * 5e-4 else row["seconds"]
                print(
                    f"{title:42}{row['seconds']:8.2f}{above:8.2f}{row['cpu']:8.2f}{row['peak']:8.0f}{row['worker']:8.0f}"
                    f"{row['requests']:6.0f}{row['MB']:9.1f}",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--ways", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--place", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--at", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.files)
        return
    if options.measure:
        meter = Meter(json.loads(Path(options.at).read_text())["endpoint"])
        GROUPS[options.measure][options.place](meter, options.at, options.files[0])
        print(json.dumps(meter.rows), flush=True)
        return
    with tempfile.TemporaryDirectory(prefix="listings-") as name:
        command = [sys.executable, __file__, "--serve", name, "--files", "10", *map(str, options.files)]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        assert server.stdin is not None
        profile = Path(name) / "listings.share"
        endpoint = f"http://127.0.0.1:{int(server.stdout.readline())}"
        profile.write_text(json.dumps({"shareCredentialsVersion": 1, "endpoint": endpoint, "bearerToken": TOKEN}))
        try:
            for files in options.files:
                report(files, profile, options.ways)
        finally:
            server.stdin.close()
            server.wait(20)


if __name__ == "__main__":
    main()
