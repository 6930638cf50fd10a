"""The way of one load: which modules it enters, and what it asks of the sharing server and of the storage.

Run: ``python benchmarks/way.py [--list]``. One batch, one stream batch and one change feed in each access mode, over a table
of 21 commits with a checkpoint, on loopback. A module counts as entered when one of its functions ran. Storage requests are
counted where they leave; only those of the log are named one by one. The embedded server reads logs in the same process: neither
its threads nor those that they start are counted.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa

from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.storage.objects import Storage
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder

PACKAGE = "delta_sharing_spark"
SCHEMA = pa.schema([("id", pa.int64())])
COMMITS, CHECKPOINT_AT = 21, 10
#: In the names of the server's threads.
_SERVED = "process_request_thread"
_REQUESTS = {"get": "get", "fetch": "get", "info": "head", "list_from": "list"}


@dataclass
class Way:
    """What one load did.

    Attributes:
        modules: Modules of the package whose functions ran, without the embedded server's.
        storage: Requests of the storage, by kind and file.
        server: Requests of the sharing server, by kind.
    """

    modules: set[str] = field(default_factory=set)
    storage: Counter[str] = field(default_factory=Counter)
    server: Counter[str] = field(default_factory=Counter)

    def log_requests(self) -> int:
        return sum(count for name, count in self.storage.items() if "_delta_log" in name)


def build(path: Path) -> DeltaTableBuilder:
    """A table of 21 commits with a checkpoint in the middle, whose changes are recorded."""
    table = DeltaTableBuilder(path, SCHEMA, properties={"delta.enableChangeDataFeed": "true"})
    for version in range(1, COMMITS):
        table.append(pa.table({"id": range(version * 10, version * 10 + 10)}, SCHEMA))
        if version == CHECKPOINT_AT:
            table.checkpoint()
    return table


@contextmanager
def watched(server: SharingServer) -> Iterator[Way]:
    """Watch what runs and what is asked for."""
    way = Way()
    server.reset_metrics()
    originals = {name: getattr(Storage, name) for name in _REQUESTS}
    begin = threading.Thread.start

    def begin_named(thread: threading.Thread) -> None:
        if _SERVED in threading.current_thread().name:
            thread.name = f"{thread.name} ({_SERVED})"
        begin(thread)

    def counting(name: str) -> Callable[..., Any]:
        def count(self: Storage, location: Any, *rest: Any, **named: Any) -> Any:
            is_served = _SERVED in threading.current_thread().name
            if not is_served and not (name == "get" and rest):  # a range is fetched, and counted there
                way.storage[f"{_REQUESTS[name]} {str(location).rpartition('/table/')[2] or location}"] += 1
            return originals[name](self, location, *rest, **named)

        return count

    def enter(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            name = frame.f_globals.get("__name__", "")
            ours = name.startswith(PACKAGE) and f"{PACKAGE}.testing" not in name
            served = _SERVED in threading.current_thread().name
            if ours and not served and frame.f_code.co_name != "<module>":
                way.modules.add(name)

    for name in originals:
        setattr(Storage, name, counting(name))
    threading.Thread.start = begin_named  # type: ignore[method-assign]
    threading.setprofile(enter)
    sys.setprofile(enter)
    try:
        yield way
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        threading.Thread.start = begin  # type: ignore[method-assign]
        for name, original in originals.items():
            setattr(Storage, name, original)
    way.server.update(request.kind for request in server.requests)


def batch(profile: str, mode: str) -> int:
    """Rows of a snapshot."""
    return SharingClient(profile, accessMode=mode).table("s.d.table").scan().to_arrow().num_rows


def feed(profile: str, mode: str) -> int:
    """Rows of a change feed that starts before the checkpoint."""
    changes = SharingClient(profile, accessMode=mode).table("s.d.table").changes(starting_version=5)
    return changes.to_arrow().num_rows


def stream(profile: str, mode: str) -> int:
    """Rows of a stream's first batches, two versions each: the calls of Spark, without Spark."""
    from delta_sharing_spark.spark.datasource import DeltaSharingDataSource

    options = {"path": f"{profile}#s.d.table", "accessmode": mode, "startingversion": "12", "maxfilespertrigger": "2"}
    source = DeltaSharingDataSource(options)
    reader: Any = source.streamReader(source.schema())
    reader.prepareForTriggerAvailableNow()
    rows, start = 0, reader.initialOffset()
    for _ in range(3):
        end = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
        for partition in reader.partitions(start, end):
            rows += sum(piece.num_rows for piece in reader.read(partition))
        reader.commit(end)
        start = end
    return rows


LOADS: dict[str, Callable[[str, str], int]] = {"batch": batch, "stream": stream, "feed": feed}


def measure(load: str, mode: str) -> Way:
    """One load in a process's first use of a server of its own."""
    with tempfile.TemporaryDirectory() as directory, SharingServer() as server:
        table = build(Path(directory) / "table")
        server.add_table("s.d.table", table.path, access_modes=("url", "dir"))
        profile = server.write_profile(Path(directory) / "config.share")
        with watched(server) as way:
            rows = LOADS[load](profile, mode)
        expected = {"batch": 200, "stream": 60, "feed": 160}[load]
        assert rows == expected, f"{load} by {mode}: {rows} rows, not {expected}"
    return way


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="name the modules and the requests")
    arguments = parser.parse_args()
    for mode in ("url", "dir"):
        for load in LOADS:
            measure(load, mode)  # imports count for nobody
            way = measure(load, mode)
            server = ", ".join(f"{count} {kind}" for kind, count in sorted(way.server.items()) if kind != "data")
            print(
                f"{load:6} {mode}: {len(way.modules):3} modules ({_packages(way.modules)}); asked of the server {server}",
                end="",
            )
            print(f"; of the log {way.log_requests()}" if mode == "dir" else "")
            if arguments.list:
                print(*(f"    {name}" for name in sorted(way.modules)), sep="\n")
                print(*(f"    {count} x {name}" for name, count in sorted(way.storage.items())), sep="\n")


def _packages(modules: set[str]) -> str:
    counts = Counter(name.removeprefix(f"{PACKAGE}.").partition(".")[0] for name in modules)
    return ", ".join(
        f"{package} {count}" for package, count in sorted(counts.items()) if package in ("access", "deltalog")
    )


if __name__ == "__main__":
    main()
