"""The log is opened once per load: what is asked of the storage for a log with a checkpoint and 20 commits, one by one."""

from __future__ import annotations

import json
import math
import random
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from delta_sharing_spark.access.open import TableOpener, negotiated_table, resolve_opened
from delta_sharing_spark.access.stream.planner import Limits, open_stream
from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.options.declared import parse_options
from delta_sharing_spark.scan.pace import LEAST
from delta_sharing_spark.table import Scan
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support.buckets import BucketServer
from support.written_iceberg import catalog_at, metadata_file
from unit.access.loopback import Answer, Request
from unit.access.object_server import ObjectServer, serving
from unit.access.shared_tables import upload

SCHEMA = pa.schema([("id", pa.int64())])
NEWEST, CHECKPOINT = 20, 10


def _build(path: Path, kind: str = "classic", stats_bytes: int = 0) -> DeltaTableBuilder:
    """The table, with so many bytes of statistics of each file that the checkpoint holds, which do not compress."""
    built = DeltaTableBuilder(path, SCHEMA, properties={"delta.enableChangeDataFeed": "true"})
    draw = random.Random(13)
    for version in range(1, NEWEST + 1):
        built.append(pa.table({"id": [version]}, SCHEMA))
        if version == CHECKPOINT:
            for add in (action["add"] for actions in built.commits.values() for action in actions if "add" in action):
                add["stats"] = json.dumps({**json.loads(add["stats"]), "more": draw.randbytes(stats_bytes // 2).hex()})
            built.checkpoint(kind)
    return built


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> DeltaTableBuilder:
    return _build(tmp_path_factory.mktemp("log") / "t")


@pytest.fixture(params=[True, False], ids=["listing", "get-only"])
def storage(request: pytest.FixtureRequest, table: DeltaTableBuilder) -> Iterator[ObjectServer]:
    with serving(ObjectServer(upload(table.path, "bucket/t"), listing=request.param)) as running:
        yield running


@pytest.fixture
def client(storage: ObjectServer, table: DeltaTableBuilder) -> Iterator[SharingClient]:
    with _sharing(table, storage) as client:
        yield client


@contextmanager
def _sharing(table: DeltaTableBuilder, storage: ObjectServer) -> Iterator[SharingClient]:
    aws = {"accessKeyId": "A", "secretAccessKey": "s", "sessionToken": "t"}
    with SharingServer() as server:
        server.vendors["s3"] = lambda location, table: {"awsTempCredentials": aws, "expirationTime": 4_000_000_000_000}
        server.add_table("s.d.t", table.path, access_modes=("url", "dir"), location="s3://bucket/t")
        yield SharingClient(server.profile(), accessMode="dir", storageEndpoint=storage.url)


def _log_requests(storage: ObjectServer) -> Counter[str]:
    """Requests by file of the log; ``canary`` is the byte by which it is found out whether the credential works."""
    counts: Counter[str] = Counter()
    for request in storage.seen:
        parts = urlsplit(request.path)
        if "list-type" in parts.query:
            counts["list"] += 1
        elif "_delta_log/" in parts.path:
            name = parts.path.rpartition("/")[2]
            number = name.partition(".")[0].lstrip("0") or "0" if name[0] == "0" else name
            suffix = ".checkpoint" if "checkpoint.parquet" in name else ""
            probe = (
                "canary "
                if request.headers.get("range") == "bytes=0-0"
                else "head "
                if request.method == "HEAD"
                else ""
            )
            counts[f"{probe}{number}{suffix}"] += 1
    return counts


def _once(*commits: int) -> Counter[str]:
    """``_last_checkpoint`` says how many files the checkpoint has."""
    return Counter(["list", "_last_checkpoint", f"{CHECKPOINT}.checkpoint", *map(str, commits)])


def _repeated(counts: Counter[str]) -> set[str]:
    """What was asked for more than once. A file's size and its time cost a HEAD each, where nothing can be listed, and
    the names tried at once a byte of the canary, where some were refused."""
    most = {"head": 2, "canary": 6, "list": counts["list"]}
    return {name for name, count in counts.items() if count > most.get(name.partition(" ")[0], 1)}


def _planned(scan: Scan) -> int:
    assert scan.resolved().version == NEWEST
    return sum(len(split.slices) for _ in range(2) for split in scan.plan().splits) // 2


def test_a_snapshot_fetches_each_file_of_the_log_once(client: SharingClient, storage: ObjectServer) -> None:
    assert _planned(client.table("s.d.t").scan()) == NEWEST
    counts = _log_requests(storage)
    if storage.listing:
        assert counts == _once(*range(CHECKPOINT + 1, NEWEST + 1))
    else:
        assert not _repeated(counts)


class Rounds(ObjectServer):
    """Answers no request for the log before the others of its round have arrived as well; ``missed`` are those that did not."""

    def expect(self, *rounds: Iterable[str]) -> None:
        self.rounds, self.arrived, self.missed = [set(each) for each in rounds], Counter[str](), set[str]()
        self.change = threading.Condition()

    def answer(self, request: Request) -> Answer:
        parts = urlsplit(request.path)
        name = "list" if "list-type" in parts.query else parts.path.partition("_delta_log/")[2]
        with self.change:
            self.arrived[name] += 1
            self.change.notify_all()
            for number, expected in enumerate(self.rounds):
                if name in expected and not self.change.wait_for(lambda: expected <= self.arrived.keys(), 10):  # noqa: B023
                    self.missed |= {f"{number}: {each}" for each in expected - self.arrived.keys()}
        return super().answer(request)


@pytest.mark.parametrize("hint", ["right", "corrupt", "too new", "missing"])
@pytest.mark.parametrize("kind", ["classic", "multipart", "v2-json", "v2-parquet"])
@pytest.mark.parametrize(("version", "newest"), [(None, NEWEST), (CHECKPOINT + 3, CHECKPOINT + 3), (3, 3)])
def test_two_rounds_of_requests_describe_a_version(
    kind: str, hint: str, version: int | None, newest: int, tmp_path: Path
) -> None:
    """The listing, then the checkpoint beside the commits, and what says how many files it has; also of an older version."""
    table = _build(tmp_path / "t", kind)
    files = upload(table.path, "bucket/t")
    path = "bucket/t/_delta_log/_last_checkpoint"
    if hint == "missing":
        del files[path]
    elif hint != "right":
        files[path] = b"{" if hint == "corrupt" else json.dumps({"version": NEWEST + 3, "size": 1}).encode()
    checkpoint = sorted(name.rpartition("/")[2] for name in files if f"_log/{CHECKPOINT:020d}.checkpoint" in name)
    base = [] if newest < CHECKPOINT else checkpoint[:1]
    commits = [f"{commit:020d}.json" for commit in range(CHECKPOINT + 1 if base else 0, newest + 1)]
    with serving(Rounds(files)) as storage, _sharing(table, storage) as client:
        told = ["_last_checkpoint"] if base and hint != "missing" else []
        storage.expect(["list"], [*base, *told, *commits[:8]])
        base = checkpoint if kind == "multipart" and base else base  # the builder's second part has the metadata
        assert client.table("s.d.t").scan(version=version).resolved().version == newest
        assert not storage.missed
        assert storage.arrived == Counter(["list", *base, *told, *commits])


@pytest.mark.parametrize(
    ("kind", "listing"), [("classic", True), ("classic", False), ("multipart", True), ("v2-json", True)]
)
@pytest.mark.parametrize("is_feed", [False, True], ids=["rows", "feed"])
def test_of_a_large_checkpoint_no_byte_is_fetched_twice(
    kind: str, listing: bool, is_feed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine the storage seems far, and is asked for small parts.
    monkeypatch.setattr("delta_sharing_spark.scan.pace._FAR", math.inf)
    table = _build(tmp_path / "t", kind, 1_000_000)
    with (
        serving(ObjectServer(upload(table.path, "bucket/t"), listing=listing)) as storage,
        _sharing(table, storage) as client,
    ):
        table_read = client.table("s.d.t")
        scan = table_read.changes(starting_version=CHECKPOINT + 2) if is_feed else table_read.scan()
        files, most = (NEWEST - CHECKPOINT - 1, 1) if is_feed else (NEWEST, 2)
        assert scan.resolved().version == NEWEST
        assert sum(len(split.slices) for split in scan.plan().splits) == files
        fetched = _ranges_of_large_files(storage)
        assert len(fetched) == (1 if kind == "classic" else 0 if is_feed and kind != "multipart" else 2)
        for path, ranges in fetched.items():
            side_by_side = 0 if is_feed else len(storage.files[path]) // LEAST
            assert most <= len(ranges) <= most + side_by_side, "its footer with the small actions, and its files"
            assert all(end < start for (_, end), (start, _) in pairwise(ranges))


def _ranges_of_large_files(storage: ObjectServer) -> dict[str, list[tuple[int, int]]]:
    """The byte ranges, both ends included, that were fetched of each file that is larger than a load keeps whole."""
    ranges: dict[str, list[tuple[int, int]]] = {}
    for request in storage.seen:
        path = urlsplit(request.path).path.lstrip("/")
        if request.method == "GET" and len(storage.files.get(path, b"")) > 4 << 20:
            match = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers["range"])
            assert match is not None
            ranges.setdefault(path, []).append((int(match[1]), int(match[2])))
    return {path: sorted(each) for path, each in ranges.items()}


def test_a_feed_fetches_each_file_of_the_log_once(client: SharingClient, storage: ObjectServer) -> None:
    assert _planned(client.table("s.d.t").changes(starting_version=5)) == NEWEST - 4
    counts = _log_requests(storage)
    if storage.listing:
        assert counts == _once(*range(NEWEST + 1))
    else:
        assert not _repeated(counts)


@pytest.mark.parametrize("feed", [False, True], ids=["rows", "changes"])
def test_a_stream_lists_anew_for_each_poll_and_fetches_no_commit_twice(
    client: SharingClient, storage: ObjectServer, feed: bool
) -> None:
    options: dict[str, Any] = {"startingVersion": "12", "readChangeFeed": str(feed).lower(), "pollInterval": "1ms"}
    parsed = parse_options(client.load_options("s.d.t", options), is_stream=True)  # type: ignore[arg-type]
    opener = TableOpener(negotiated_table(parsed, client.profile))
    planner = open_stream(opener, resolve_opened(opener))
    planner.pin_newest()
    position, files = planner.first(), 0
    for _ in range(3):
        end = planner.advance(position, Limits(files=2))
        files += sum(len(split.slices) for split in planner.splits(position, end))
        position = end
    assert files == 6
    counts = _log_requests(storage)
    if storage.listing:
        assert counts == _once(*range(CHECKPOINT + 1, NEWEST + 1)) + Counter(["list"])
    else:
        assert not {name for name in _repeated(counts) if name.isdigit() and int(name) <= NEWEST}


@pytest.mark.parametrize(
    ("where", "manifests", "files"),
    [(None, 6, 18), ("id = 17", 1, 2), ("part = 'b' AND id > 20", 4, 4), ("id IN (1, 46)", 2, 4), ("id < 0", 0, 0)],
)
def test_an_iceberg_load_fetches_each_part_once(tmp_path: Path, where: str | None, manifests: int, files: int) -> None:
    """Two requests of the catalog, the list, the manifests that may hold a file of the query, and its files, each whole."""
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import IdentityTransform, TruncateTransform
    from pyiceberg.types import LongType, NestedField, StringType

    catalog = catalog_at("s3://lake", tmp_path)
    spec = PartitionSpec(
        PartitionField(2, 1000, IdentityTransform(), "part"), PartitionField(1, 1001, TruncateTransform(8), "eight")
    )
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "part", StringType()))
    table = catalog.create_table("db.t", schema, partition_spec=spec)
    for start in range(0, 48, 8):
        table.append(pa.table({"id": range(start, start + 8), "part": ["abc"[n % 3] for n in range(8)]}))
    with BucketServer() as server:
        server.bucket("lake", tmp_path)
        keys = server.vended_properties("s3://lake")
        server.add_iceberg_table("s.d.t", metadata_file(table, catalog), table.metadata_location, config=keys)
        scan = SharingClient(server.profile()).table("s.d.t").scan(where=where)
        expected = sum(len(one.slices) for one in scan.plan().splits)
        planned = Counter(request.path for request in server.requests if request.kind in ("data", "log"))
        assert expected == files
        assert sorted(planned.values()) == [1] * (1 + manifests)
        assert server.count("iceberg") == 2
        server.reset_metrics()
        assert scan.to_arrow().num_rows == len(list(filter(_passes(where), range(48))))
        read = Counter(request.path for request in server.requests if request.path.endswith(".parquet"))
        assert sorted(read.values()) == [1] * files


def _passes(where: str | None) -> Any:
    conditions = {
        None: lambda n: True,
        "id = 17": lambda n: n == 17,
        "part = 'b' AND id > 20": lambda n: n % 8 % 3 == 1 and n > 20,
        "id IN (1, 46)": lambda n: n in (1, 46),
        "id < 0": lambda n: False,
    }
    return conditions[where]
