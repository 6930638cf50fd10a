"""Listings of many files: what is kept of them, in which order, when they end early, and that each way to look at them says the same."""

from __future__ import annotations

import contextlib
import gc
import json
import pickle
import time
import tracemalloc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_sharing_spark import SharingClient
from delta_sharing_spark.access.open import TableOpener
from delta_sharing_spark.access.plan import ScanPlan, plan
from delta_sharing_spark.access.planned_files import FileBatches, OrderedFiles, _LazySlices, live_rows
from delta_sharing_spark.access.resolved_scan import ResolvedScan
from delta_sharing_spark.access.url.access import UrlAccess
from delta_sharing_spark.access.url.snapshot_listing import LISTINGS
from delta_sharing_spark.errors import ResponseError, VersionError
from delta_sharing_spark.predicates.file_skipping import FileSkipping
from delta_sharing_spark.predicates.skip_reason import SkipReason
from delta_sharing_spark.predicates.sql import parse_where
from delta_sharing_spark.scan.plan import Bin, FileSlice, FileTask, TaskColumns
from delta_sharing_spark.schema.types import parse_schema
from delta_sharing_spark.spark.batch import SplitPartition
from support.drawing import cases
from support.skipping import reason_of
from unit.sharing.scripted_server import Reply, ScriptedServer

SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in (("id", "long"), ("note", "string"), ("day", "integer"))
        ],
    }
)
#: Files of each listing; blocks of a listing hold some hundred.
COUNT = 5_000


def stats(number: int) -> str | None:
    """Statistics of every kind that a file may have."""
    bounds: dict[str, Any] = {"id": number * 10}
    if number % 7 == 0:
        return None
    if number % 11 == 0:
        return '{"numRecords":10,"minValues":{"id":NaN}}'
    if number % 13 == 0:
        return "broken"
    tree = {"numRecords": 10, "minValues": bounds, "maxValues": {"id": number * 10 + 9}, "nullCount": {"id": 0}}
    if number % 17 == 0:
        tree |= {"minValues": None, "maxValues": {"id": "x", "note": {"a": 1}}}
    return json.dumps(tree)


def add(number: int) -> dict[str, Any]:
    """The action of a file; every hundredth has a deletion vector."""
    tree: dict[str, Any] = {
        "path": f"https://store/{number}.parquet?X-Amz-Signature={number:064x}",
        "size": 1000 + number,
        "partitionValues": {"day": str(number % 50) if number % 50 else None},
        "modificationTime": 1,
        "dataChange": True,
        "stats": stats(number),
    }
    if number % 100 == 1:
        vector = {"storageType": "p", "pathOrInlineDv": "https://store/v", "offset": number, "sizeInBytes": 40}
        tree["deletionVector"] = {**vector, "cardinality": 3}
    return tree


def lines(count: int, **told: Any) -> list[Any]:
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"]}
    metadata = {"id": "T", "format": {"provider": "parquet"}, "schemaString": SCHEMA, "partitionColumns": ["day"]}
    return [
        {"protocol": {"deltaProtocol": protocol}},
        {"metaData": {"version": 7, **told, "deltaMetadata": metadata}},
        *(
            {"file": {"id": f"f{number}", "expirationTimestamp": 4e12, "deltaSingleAction": {"add": add(number)}}}
            for number in range(count)
        ),
        {"endStreamAction": {}},
    ]


@pytest.fixture(scope="module")
def client() -> Iterator[SharingClient]:
    """A client of a table of many files, none of which can be fetched."""
    listing = lines(COUNT)
    headers = {"Delta-Table-Version": "7"}
    with ScriptedServer() as server:
        server.on("/metadata", Reply(listing[:2], headers=headers))
        server.on(
            "/query", Reply(listing, headers={**headers, "delta-sharing-capabilities": "includeEndStreamAction=true"})
        )
        profile = {"shareCredentialsVersion": 1, "endpoint": server.endpoint, "bearerToken": "t"}
        yield SharingClient(profile)


@pytest.mark.parametrize(
    "where",
    [
        "id BETWEEN 5000 AND 7999",
        "day = 7",
        "day IS NULL AND id < 900",
        "day > 40 OR id > 49000",
        "note = 'x'",
        "id = -1",
    ],
)
def test_files_are_skipped_as_one_by_one(client: SharingClient, where: str) -> None:
    """In columns and over blocks of lines, as a look at each file alone says."""
    schema = parse_schema(SCHEMA, "t")
    skipping = FileSkipping(parse_where(where, schema), schema, ["day"])
    expected = [
        number
        for number in range(COUNT)
        if reason_of(skipping, add(number)["partitionValues"], stats(number)) is SkipReason.KEEP
    ]
    planned = client.table("s.d.t").scan(where=where).plan()
    assert [task.id for task in planned.files] == [f"f{number}" for number in expected]
    assert planned.report.listed == COUNT
    assert sum(planned.report.skipped.values()) == COUNT - len(expected)


#: Conditions after one another over one load; None is a count.
QUERIES = ("id BETWEEN 5000 AND 7999", "day = 7", None, "id = 20011 AND day > 3", "note = 'x'", "day IS NULL")
HEADERS = {"Delta-Table-Version": "7"}
WHOLE = {**HEADERS, "delta-sharing-capabilities": "includeEndStreamAction=true"}


def chosen(opener: TableOpener, load: ResolvedScan, where: str | None) -> ScanPlan:
    """What a query of a load is planned as, for which its condition prunes."""
    condition = None if where is None else parse_where(where, load.columns)
    return plan(replace(load, pushed=condition, is_pinned=True), opener=opener)


@pytest.mark.parametrize(
    ("told", "most_bytes", "requests"),
    [
        ({"numFiles": COUNT}, 256 << 20, 1),
        ({}, 256 << 20, 3),  # hints may have left files out, until a count sends none
        ({"numFiles": COUNT + 1}, 256 << 20, 3),
        ({"numFiles": COUNT}, 100_000, 6),  # there is no room for the listing
        ({"numFiles": COUNT}, 0, 6),
    ],
)
def test_another_query_of_the_snapshot_needs_no_request(
    told: dict[str, Any], most_bytes: int, requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is kept of the first listing, each query has the files of a listing of its own."""
    monkeypatch.setattr("delta_sharing_spark.access.url.table.LISTING_BYTES", most_bytes)
    listing = lines(COUNT, **told)
    with ScriptedServer() as server:
        server.on("/metadata", Reply(listing[:2], headers=HEADERS))
        server.on("/query", Reply(listing, headers=WHOLE))
        client = SharingClient({"shareCredentialsVersion": 1, "endpoint": server.endpoint, "bearerToken": "t"})
        opener, load = client.table("s.d.t").scan().opened()
        server.asked.clear()
        planned = [chosen(opener, load, where) for where in QUERIES]
        assert len(server.asked) == requests
        assert [one.report.is_repeated for one in planned].count(False) == requests
        for one, where in zip(planned, QUERIES, strict=True):
            anew = chosen(*client.table("s.d.t").scan().opened(), where)
            assert list(one.files) == list(anew.files), where
            assert (one.exact_rows, one.files.live_rows()) == (anew.exact_rows, anew.files.live_rows())
            assert one.report.skipped == anew.report.skipped
            assert (one.report.listed, one.report.bytes) == (COUNT, anew.report.bytes)


@pytest.mark.parametrize(
    "why", ["its URLs end", "they cannot be renewed", "it is of another version", "hints left files out"]
)
def test_a_listing_that_cannot_answer_is_asked_for_anew(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = lines(200, numFiles=200)
    if why == "its URLs end":
        now = time.time()
        for line in listing[2:-1]:
            line["file"]["expirationTimestamp"] = int(now + 3600) * 1000
    some = [*listing[:2], *listing[2:90], listing[-1]] if why == "hints left files out" else listing
    with ScriptedServer() as server:
        server.on("/metadata", Reply(listing[:2], headers=HEADERS))
        server.on("/query", Reply(some, headers=WHOLE))
        profile = {"shareCredentialsVersion": 1, "endpoint": server.endpoint, "bearerToken": "t"}
        options = {"carryProfile": "false"} if why == "they cannot be renewed" else {}
        opener, load = SharingClient(profile, **options).table("s.d.t").scan().opened()
        server.asked.clear()
        first = chosen(opener, load, "day = 7")
        if why == "its URLs end":
            monkeypatch.setattr(time, "time", lambda: now + 3590)
        if why == "it is of another version":
            load = replace(load, version=6)
            with contextlib.suppress(VersionError):
                chosen(opener, load, "day = 8")
        else:
            assert not chosen(opener, load, "day = 8").report.is_repeated
        assert len(server.asked) >= 2
        assert not first.report.is_repeated


def test_a_scan_of_a_scan_shares_its_listing_while_the_table_stays() -> None:
    """The server is asked what the table is, and its files only where it has moved on."""
    listing = lines(100, numFiles=100)
    moved = [listing[0], {"metaData": {**listing[1]["metaData"], "version": 8}}, *listing[2:]]
    newer = {"Delta-Table-Version": "8"}
    with ScriptedServer() as server:
        server.on("/metadata", *[Reply(listing[:2], headers=HEADERS)] * 3, Reply(moved[:2], headers=newer))
        server.on("/query", Reply(listing, headers=WHOLE), Reply(moved, headers={**WHOLE, **newer}))
        scan = (
            SharingClient({"shareCredentialsVersion": 1, "endpoint": server.endpoint, "bearerToken": "t"})
            .table("s.d.t")
            .scan()
        )
        scan.plan()
        narrower = [scan.where(where).plan() for where in ("day = 7", "day > 40")]
        assert [(one.report.is_repeated, len(one.files)) for one in narrower] == [(True, 2), (True, 18)]
        later = scan.select("id").plan()
        assert (later.report.is_repeated, later.report.version, later.report.files) == (False, 8, 100)


def test_a_listing_goes_with_its_load(client: SharingClient) -> None:
    opener, load = client.table("s.d.t").scan().opened()
    kept = len(LISTINGS)
    planned = chosen(opener, load, None)
    assert len(LISTINGS) == kept + 1
    assert 30 * COUNT < planned.report.listing_bytes < 300 * COUNT
    del opener, load, planned
    gc.collect()
    assert len(LISTINGS) == kept


def test_each_partition_is_told_once_however_many_batches_have_it(client: SharingClient) -> None:
    """Pages of a server and parts of a checkpoint each have files of most partitions."""
    plans = [client.table("s.d.t").scan(where=where).plan() for where in ("id < 20000", "id >= 20000 OR id IS NULL")]
    files = FileBatches([batch for one in plans for batch in one.files.batches])  # type: ignore[attr-defined]
    first: dict[str | None, FileTask] = {}
    rows: dict[str | None, int | None] = {}
    for task in files:
        day, own = (task.partition_values or {})["day"], live_rows(task)
        first.setdefault(day, task)
        before = rows.setdefault(day, 0)
        rows[day] = None if own is None or before is None else before + own
    told = list(files.rows_by_partition())
    assert [task for task, _ in told] == list(first.values())
    assert {(task.partition_values or {})["day"]: count for task, count in told} == rows
    assert len(told) == 50


def test_a_task_has_all_that_its_line_says(client: SharingClient) -> None:
    planned = client.table("s.d.t").scan().plan()
    tasks = list(planned.files)
    assert len(tasks) == COUNT
    numbers = (*range(150), 255, 256, 257, COUNT - 1)
    some = [(tasks[number], tasks[number].deletion_vector, add(number), number) for number in numbers]
    assert [(task.id, task.location, task.size, task.partition_values, task.expires_at) for task, *_ in some] == [
        (f"f{n}", action["path"], action["size"], action["partitionValues"], 4e9) for *_, action, n in some
    ]
    assert [task.rows for task, *_ in some] == [None if stats(n) in (None, "broken") else 10 for n in numbers]
    vectors = [vector and (vector.offset, vector.cardinality) for _, vector, *_ in some]
    assert vectors == [(n, 3) if n % 100 == 1 else None for n in numbers]
    slices = [piece for split in planned.splits for piece in split.slices]
    assert slices == [FileSlice(task) for task in tasks]
    assert planned.splits[-1].slices == tuple(slices[-len(planned.splits[-1].slices) :])


def test_a_limit_ends_the_listing(client: SharingClient) -> None:
    """A server that does not know the hint is read until statistics tell of enough rows."""
    limited = client.table("s.d.t").scan().limit(30).plan()
    assert 3 <= limited.report.listed < COUNT
    assert limited.exact_rows in (30, None)
    assert client.table("s.d.t").scan(where="day = 5").limit(3).plan().report.listed == COUNT, (
        "rows that pass are not known"
    )
    assert client.table("s.d.t").scan().limit(10 * COUNT).plan().report.listed == COUNT


def test_the_first_rows_end_the_listing_and_no_server_chooses_them(client: SharingClient) -> None:
    """As a Polars frame asks for them: what comes is the beginning of the whole frame."""
    load = client.table("s.d.t").scan()
    first, whole = load.narrows(load, first_rows=30).plan(), client.table("s.d.t").scan().plan()
    assert 3 <= first.report.listed < COUNT == whole.report.listed
    assert "limitHint" not in first.report.sent
    assert list(first.files) == list(whole.files)[: first.report.files]
    assert [piece.task for split in first.splits for piece in split.slices] == list(first.files)
    assert load.narrows(load, first_rows=10 * COUNT).plan().report.listed == COUNT
    narrowed = load.where("day = 5")
    assert narrowed.narrows(narrowed, first_rows=3).plan().report.listed == COUNT


def test_scans_of_a_scan_share_the_listing_of_the_first_of_them() -> None:
    """The scan that they narrow was never read itself."""
    listing = lines(100, numFiles=100)
    with ScriptedServer() as server:
        server.on("/metadata", Reply(listing[:2], headers=HEADERS))
        server.on("/query", Reply(listing, headers=WHOLE))
        client = SharingClient({"shareCredentialsVersion": 1, "endpoint": server.endpoint, "bearerToken": "t"})
        scan = client.table("s.d.t").scan()
        plans = [scan.where(where).plan() for where in ("day = 7", "day > 40", "id > 5")]
        assert [(one.report.is_repeated, len(one.files)) for one in plans[:2]] == [(False, 2), (True, 18)]
        assert scan.plan().report.is_repeated
        assert [asked.path.endswith("/query") for asked in server.asked].count(True) == 1


@pytest.mark.parametrize("again", [3, COUNT // 2])
def test_a_file_that_is_listed_twice_is_an_error(again: int) -> None:
    listing = lines(COUNT // 2)
    listing[-1:-1] = [listing[again]]
    with ScriptedServer() as server:
        server.on("/metadata", Reply(listing[:2], headers=HEADERS))
        server.on("/query", Reply(listing, headers=HEADERS))
        profile = {"shareCredentialsVersion": 1, "endpoint": server.endpoint, "bearerToken": "t"}
        with pytest.raises(ResponseError, match=f"listed file f{again - 2} of s.d.t twice"):
            SharingClient(profile).table("s.d.t").scan().plan()


@pytest.mark.parametrize(("where", "most"), [(None, 250), ("day = 7", 30)])
def test_a_listing_is_held_small(client: SharingClient, where: str | None, most: int) -> None:
    """Some hundred bytes a file, where an object for each took ten times as much; fewer where the query needs few."""
    client.table("s.d.t").scan().plan()
    tracemalloc.start()
    planned = client.table("s.d.t").scan(where=where).plan()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held / COUNT < most
    assert planned.report.listed == COUNT


def test_a_split_is_built_when_it_is_asked_for(client: SharingClient, monkeypatch: pytest.MonkeyPatch) -> None:
    restricted: list[int] = []
    restrict = UrlAccess.restricted_to

    def counting(access: UrlAccess, tasks: Iterable[FileTask]) -> UrlAccess:
        narrowed = restrict(access, tasks)
        restricted.append(len(narrowed.files))
        return narrowed

    monkeypatch.setattr(UrlAccess, "restricted_to", counting)
    splits = client.table("s.d.t").scan(maxSplitBytes=10_000_000).plan().splits
    assert len(splits) > 50
    assert restricted == []
    assert pickle.loads(pickle.dumps(splits[7])) == splits[7]
    assert restricted == [len(splits[7].slices)] * 2 + restricted[2:]


@pytest.mark.parametrize("where", [None, "day = 7", "id < 30000"])
def test_a_partition_is_small_and_holds_its_own_files(client: SharingClient, where: str | None) -> None:
    """What crosses to a task is columns, the same each time, of which the task makes the plan's slices."""
    planned = client.table("s.d.t").scan(where=where, maxSplitBytes=40_000_000).plan()
    partitions = SplitPartition.of(planned.splits)
    pickled = [pickle.dumps(partition) for partition in partitions]
    assert pickled == [pickle.dumps(partition) for partition in partitions]
    splits = [pickle.loads(one).split for one in pickled]
    assert [piece for split in splits for piece in split.slices] == [FileSlice(task) for task in planned.files]
    for split in splits:
        assert isinstance(split.access, UrlAccess)
        assert list(split.access.files) == [piece.task for piece in split.slices]
    assert sum(map(len, pickled)) < 100 * len(planned.files) + 4_000 * len(partitions)


def test_a_stream_orders_a_large_first_listing_in_columns(client: SharingClient) -> None:
    """By the characters of ids, as one after the other; what orders them and each batch of it stays small."""
    files = client.table("s.d.t").scan().plan().files
    assert isinstance(files, FileBatches)
    tracemalloc.start()
    ordered = OrderedFiles(files)
    held, most = tracemalloc.get_traced_memory()
    assert sum(1 for _ in ordered[1000:1100]) == 100
    of_batch = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert held < 20 * COUNT
    assert max(most, of_batch) < 200 * COUNT + 3_000_000
    assert list(ordered) == sorted(files, key=lambda task: task.id)


@cases(200)
@given(st.lists(st.text(st.characters(codec="utf-8")), unique=True, max_size=20))
def test_ids_are_ordered_by_their_characters(ids: list[str]) -> None:
    assert [task.id for task in OrderedFiles(FileBatches([Ids(ids)]))] == sorted(ids)


@dataclass(frozen=True)
class Ids:
    """Files of which nothing but the id is known (``FileBatch``)."""

    ids: list[str]
    asked: list[int] = field(default_factory=list)

    @property
    def num_rows(self) -> int:
        return len(self.ids)

    def columns_at(self, places: npt.NDArray[np.int64]) -> TaskColumns:
        self.asked.extend(places.tolist())
        ids = [self.ids[place] for place in places.tolist()]
        nothing = [0] * len(ids)
        return TaskColumns(ids, ids, nothing, nothing, nothing, [None], {})


def test_some_slices_of_a_split_are_those_of_the_whole() -> None:
    batches = [Ids([f"a{n}" for n in range(5)]), Ids([f"b{n}" for n in range(4)])]
    some = _LazySlices(FileBatches(batches), Bin(1, 8, 3, 7))
    whole = tuple(some)
    places = [0, 3, 6, -1, -7, slice(2), slice(1, 3), slice(5, 2), slice(None), slice(None, None, -2), slice(1, 6, 2)]
    assert [some[place] for place in places] == [whole[place] for place in places]
    batches[0].asked.clear()
    assert (some[0], some[:2]) == (whole[0], whole[:2])
    assert batches[0].asked == [1, 1, 2]  # the files of these alone


def test_a_table_without_files_is_planned() -> None:
    listing = lines(0, numFiles=0)
    with ScriptedServer() as server:
        server.on("/metadata", Reply(listing[:2], headers=HEADERS))
        server.on("/query", Reply(listing, headers=WHOLE))
        client = SharingClient({"shareCredentialsVersion": 1, "endpoint": server.endpoint, "bearerToken": "t"})
        plans = [client.table("s.d.t").scan(where=where).plan() for where in (None, "day = 7")]
        assert [(list(planned.files), SplitPartition.of(planned.splits)) for planned in plans] == [([], []), ([], [])]
        assert client.table("s.d.t").scan().count() == 0
