"""What the gateway serves is what the Python source reads, file by file, whatever the table has."""

from __future__ import annotations

import datetime
import gc
import itertools
import logging
import random
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conformance.canonical import row_texts
from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.errors import CorruptFileError
from delta_sharing_spark.native.files import _all_at_once
from delta_sharing_spark.native.plan import COUNTED, NativePlan, StepAsideError
from delta_sharing_spark.native.rewriting import FetchedFile
from delta_sharing_spark.network.process_end import OpenResources
from delta_sharing_spark.parquet.file_footer import FooterReader
from delta_sharing_spark.parquet.footer import Footer, read_footer
from delta_sharing_spark.parquet.layout import lay_out, lay_out_together
from delta_sharing_spark.parquet.schema_match import NotNativeError
from delta_sharing_spark.parquet.thrift import read_struct, write_struct
from delta_sharing_spark.scan.pace import Pace
from delta_sharing_spark.storage.ranges import MemorySource
from delta_sharing_spark.table import Scan
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder, FileStyle
from delta_sharing_spark.testing.tables.columns import schema_from_arrow
from support import HANGS
from support.refusals import not_refused
from unit.native.reading import RemoteError, RemoteFile, ask, files_of, plan_native, rows_of, served

SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "part": pa.string(),
        "x": pa.float64(),
        "at": pa.timestamp("us", "UTC"),
        "s": pa.struct({"x": pa.int32(), "l": pa.list_(pa.string())}),
        "m": pa.map_(pa.string(), pa.struct({"k": pa.int64()})),
    }
)
NAME, ID = ({"delta.columnMapping.mode": mode} for mode in ("name", "id"))
VECTORS = {"delta.enableDeletionVectors": "true"}


def data(count: int = 300) -> list[dict[str, Any]]:
    return [
        {
            "id": i,
            "part": ("a", "b/ü ='", None)[i % 3],
            "x": float("nan") if i % 7 == 0 else -0.0 if i % 5 == 0 else i / 3,
            "s": None if i % 11 == 0 else {"x": i, "l": ["é", None][: i % 3]},
            "m": {"k": {"k": i}},
        }
        for i in range(count)
    ]


def table(path: Path, properties: dict[str, str] | None = None, **more: Any) -> DeltaTableBuilder:
    more = {"style": FileStyle(row_group_size=40), **more}
    return DeltaTableBuilder(path, SCHEMA, properties=properties or {}, **more).append(data(), files=3)


def every(n: int) -> Callable[[pa.Table], Any]:
    return lambda rows: pa.array([value % n == 0 for value in rows["id"].to_pylist()])


def many_deleted(path: Path) -> DeltaTableBuilder:
    """Vectors over row groups of several pages, with runs and scattered rows."""
    rows = 200_000
    built = DeltaTableBuilder(path, pa.schema({"id": pa.int64()}), properties=VECTORS)
    built.append(pa.table({"id": range(rows)}), files=1)
    gone = random.Random(4)
    marked = {gone.randrange(rows) for _ in range(3000)} | set(range(70_000, 140_000))
    return built.delete(lambda t: pa.array([v in marked for v in t["id"].to_pylist()]), deletion_vectors=True)


BUILT: dict[str, Callable[[Path], DeltaTableBuilder]] = {
    "plain": table,
    "partitioned": lambda p: table(p, partition_by=["part"]),
    "materialized partitions": lambda p: table(p, partition_by=["part"], style=FileStyle(materialize_partitions=True)),
    "mapped by name": lambda p: table(p, NAME, partition_by=["part"]),
    "mapped by id": lambda p: table(p, ID),
    "vectors": lambda p: table(p, VECTORS).delete(every(3), deletion_vectors=True),
    "vectors, mapped, partitioned": lambda p: table(p, {**VECTORS, **NAME}, partition_by=["part"]).delete(
        every(4), deletion_vectors=True
    ),
    "many deleted rows": many_deleted,
    "empty": lambda p: DeltaTableBuilder(p, SCHEMA, partition_by=["part"]),
    "a file without rows": lambda p: table(p).append([]),
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharingClient]:
    root = tmp_path_factory.mktemp("native")
    with SharingServer() as server:
        for number, build in enumerate(BUILT.values()):
            server.add_table(f"s.d.t{number}", build(root / str(number)).path, access_modes=("url", "dir"))
        yield SharingClient(server.profile())


def reasons(plan: NativePlan) -> list[str]:
    """Why files of a plan were rewritten."""
    with ThreadPoolExecutor(4) as pool:
        shown = [plan.show(n, OpenResources(), pool) for n in range(len(plan.files))]
    return [file.reason for file in shown if file.reason is not None]


@pytest.mark.parametrize("number", range(len(BUILT)), ids=list(BUILT))
def test_rows(client: SharingClient, number: int, how: str) -> None:
    """Alone in one access mode, joined in the other; from table to table they change."""
    scan = client.table(f"s.d.t{number}").scan(accessMode=("url", "dir")[(number + (how == "alone")) % 2])
    with served(scan) as (_, plan, address):
        assert row_texts(rows_of(plan, address)) == row_texts(scan.to_arrow())
        assert not reasons(plan), "no file had to be rewritten"
        if how != "alone":
            assert len(plan.files) == len(plan.partitions), "the files of a partition are one"


@pytest.mark.parametrize("name", ["type_widening", "timestamps_int96", "variant_shredded", "mapping_upgraded"])
def test_files_that_spark_would_read_otherwise_are_rewritten(
    name: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = Path(__file__).parents[2] / "data" / "delta_spark" / name
    with SharingServer() as server:
        server.add_table("s.d.t", path, access_modes=("dir",))
        scan = SharingClient(server.profile()).table("s.d.t").scan()
        if name == "timestamps_int96":
            scan = SharingClient(server.profile()).table("s.d.t").scan(columns=["id"])
        with served(scan) as (_, plan, address):
            assert row_texts(rows_of(plan, address)) == row_texts(scan.to_arrow())
            with caplog.at_level(logging.INFO, "delta_sharing_spark.native"):
                reasons(plan)
            assert ("is rewritten" in caplog.text) == (name in ("type_widening", "variant_shredded"))


def test_spark_is_told_which_files_count_old_dates_by_the_julian_calendar(tmp_path: Path) -> None:
    """By what the writer's footer says of them. Files that differ in it are shown as one only where no date is read."""
    rows = pa.table({"id": [1], "day": [datetime.date(1000, 3, 6)]})
    built = DeltaTableBuilder(tmp_path / "t", rows.schema).append(rows)
    (file,) = built.path.glob("*.parquet")
    (log,) = (built.path / "_delta_log").glob(f"{built.version:020}.json")
    marks = {
        "org.apache.spark.version": "3.2.1",
        "org.apache.spark.legacyDateTime": "",
        "org.apache.spark.timeZone": "UTC",
    }
    pq.write_table(rows.replace_schema_metadata({**marks, "more": "x"}), file)
    log.write_text(re.sub(r'"size":\d+', f'"size":{file.stat().st_size}', log.read_text()))
    with SharingServer() as server:
        server.add_table("s.d.t", built.path, access_modes=("url",))
        table = SharingClient(server.profile()).table("s.d.t")
        with served(table.scan()) as (_, plan, address):
            (shown,) = files_of(plan, address)
            pairs = pq.read_metadata(RemoteFile(shown)).metadata
            assert {key.decode(): text.decode() for key, text in pairs.items()} == marks
            assert not reasons(plan)
        built.append(rows)
        with served(table.scan(columns=["id"])) as (_, plan, address):
            assert (rows_of(plan, address).num_rows, reasons(plan)) == (2, [])
        with served(table.scan(columns=["day"])) as (_, plan, address):
            days = sorted(rows_of(plan, address)["day"].to_pylist())
            assert days == [datetime.date(1000, 3, 1), datetime.date(1000, 3, 6)]
            assert reasons(plan) == ["they count old dates by different calendars"]


@pytest.mark.parametrize(
    "added",
    [pa.field("n", pa.int64(), False), pa.field("n", pa.struct({"a": pa.int64()}), False)],
    ids=["leaf", "struct"],
)
def test_a_column_that_is_required_in_some_files_is_null_in_those_that_lack_it(tmp_path: Path, added: pa.Field) -> None:
    """As Photon writes columns without a NULL, and files from before the column was added lack them."""
    schema = pa.schema({"id": pa.int64()})
    built = DeltaTableBuilder(tmp_path / "t", schema).append([{"id": 1}])
    built.add_column(schema_from_arrow(pa.schema([added.with_nullable(True)])).fields[0])
    built.append([{"id": 2, "n": {"a": None} if added.type.num_fields else 5}])
    (log,) = (built.path / "_delta_log").glob(f"{built.version:020}.json")
    (file,) = (path for path in built.path.glob("*.parquet") if path.name in log.read_text())
    pq.write_table(pq.read_table(file).cast(schema.append(added)), file)
    log.write_text(re.sub(r'"size":\d+', f'"size":{file.stat().st_size}', log.read_text()))
    with SharingServer({"s.d.t": built.path}) as server:
        scan = SharingClient(server.profile()).table("s.d.t").scan()
        with served(scan) as (_, plan, address):
            assert row_texts(rows_of(plan, address)) == row_texts(scan.to_arrow())
            assert reasons(plan) == ["some lack column 'n', which cannot be NULL in the others"]


@pytest.mark.parametrize(("latency", "most"), [(0.0002, 1), (0.001, 2), (0.0051, 10), (0.2, 60)])
def test_small_files_are_opened_by_as_many_threads_as_latency_is_worth(latency: float, most: int) -> None:
    """And no further one is begun once one has failed."""
    pace, running, widest, begun = Pace(), list[str](), 0, list[str]()
    pace.learn(1000, latency)

    def show(task: Any, _: Any) -> Any:
        nonlocal widest
        begun.append(task)
        running.append(task)
        widest = max(widest, len(running))
        time.sleep(0.001)
        running.remove(task)
        if task == "broken":
            raise CorruptFileError("broken")
        return task

    files: list[Any] = [(f"file {n}", None) for n in range(60)]
    with ThreadPoolExecutor(60) as pool:
        assert _all_at_once(files, show, pool, pace) == [name for name, _ in files]
        assert widest <= most
        begun.clear()
        with pytest.raises(CorruptFileError):
            _all_at_once([("broken", None), *files], show, pool, pace)
    assert most > 1 or begun == ["broken"]


def test_small_files_are_let_go_without_the_collector_where_one_fails() -> None:
    fetched: list[weakref.ref[Any]] = []

    def show(task: Any, _: Any) -> Any:
        if task == 5:
            raise CorruptFileError("the sixth")
        file = Pace()  # stands for one that was fetched
        fetched.append(weakref.ref(file))
        return file

    files: list[Any] = [(number, None) for number in range(9)]
    gc.collect()
    gc.disable()
    try:
        with ThreadPoolExecutor(4) as pool, pytest.raises(CorruptFileError, match="the sixth"):
            _all_at_once(files, show, pool, Pace())
        assert fetched
        assert not any(file() for file in fetched)
    finally:
        gc.enable()


def test_an_opening_ends_with_the_pool_that_fetches_for_it() -> None:
    """A session may end while small files are fetched ahead: who waits for them kept the whole process from ending."""
    began, goes_on = threading.Event(), threading.Event()

    def show(_: str, access: None) -> None:
        began.set()
        goes_on.wait(HANGS)

    pool, opener = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
    opened = opener.submit(_all_at_once, [(str(n), None) for n in range(4)], show, pool, Pace())
    assert began.wait(HANGS)
    while pool._work_queue.qsize() < 3:
        time.sleep(0.001)
    pool.shutdown(wait=False, cancel_futures=True)
    goes_on.set()
    with pytest.raises(CancelledError):
        opened.result(HANGS)
    opener.shutdown()


@pytest.mark.parametrize("tasks", [1, 2])
def test_small_files_are_fetched_ahead_however_many_were_read(
    tasks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that a reader was sent make room for others; what is held stays within its bound."""
    built = DeltaTableBuilder(tmp_path / "t", pa.schema({"data": pa.binary()}))
    built.append([{"data": random.Random(n).randbytes(16 << 10)} for n in range(96)], files=48)
    monkeypatch.setattr("delta_sharing_spark.native.plan._JOINED_BYTES", 72 << 10)
    monkeypatch.setattr("delta_sharing_spark.native.plan_reader._FEWEST", 2 if tasks == 1 else 16)
    bound = 8 * (72 << 10)
    monkeypatch.setattr("delta_sharing_spark.native.budget._SHOWN_BYTES", bound)
    with SharingServer({"s.d.t": built.path}) as server:
        scan = SharingClient(server.profile()).table("s.d.t").scan()
        with served(scan) as (running, plan, address):
            numbers = plan.by_partition[0]
            assert len(numbers) == 24
            shown, held = next(iter(running._plans.values()))[0].files, running._budget
            each = 24 // tasks
            for place in (task * each + step for step in range(each) for task in range(tasks)):
                assert pq.read_table(RemoteFile(files_of(plan, address)[place])).num_rows == 4
                if tasks == 1:  # of two, one may wait until the other has read what was fetched for it
                    assert all(number in shown._views for number in numbers[place + 1 : place + 3]), f"after {place}"
                assert held._memory_spent == sum(held._spent.values()) <= held._memory <= bound
            for future in list(shown._views.values()):
                future.result()
            assert len(held._views) < 24
            assert [request.kind for request in server.requests].count("data") == 48, "each is fetched once"
            assert not any(isinstance(kept, FetchedFile) for kept in gc.get_objects()), "bytes are held twice"
        assert held._memory == held._memory_spent == 0


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty files of a partition each, of different sizes."""
    schema = pa.schema({"part": pa.int64(), "data": pa.binary()})
    sizes = [(n * 7 % 20 + 1) << 10 for n in range(20)]
    rows = [{"part": n, "data": random.Random(n).randbytes(size)} for n, size in enumerate(sizes)]
    return DeltaTableBuilder(tmp_path_factory.mktemp("parts"), schema, partition_by=["part"]).append(rows).path


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("at_once", [[6] * 5 + [1], [1]], ids=["a storage that was slow at first", "near"])
def test_files_of_other_partitions_are_fetched_ahead_unless_some_are_left_out(
    at_once: list[int], step: int, parts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark opens the largest first; by what it joins a table with, it may leave out partitions once it has listed them."""
    paces = itertools.chain(at_once if step == 1 else [], itertools.repeat(at_once[-1]))
    monkeypatch.setattr(Pace, "files_at_once", lambda _, most: min(most, next(paces)))
    with SharingServer({"s.d.t": parts}) as server:
        scan = SharingClient(server.profile()).table("s.d.t").scan()
        with served(scan) as (running, plan, address):
            shown = next(iter(running._plans.values()))[0].files
            files = sorted(plan.files, key=lambda file: -file.size)
            numbers = [plan.files.index(file) for file in files]
            for place in range(0, 20, step):
                name = files[place].name(numbers[place])
                assert pq.read_table(RemoteFile(f"{address}/{name}"), columns=["data"]).num_rows == 1
                if step == 1 and place:
                    assert all(number in shown._views for number in numbers[place + 1 : place + 3]), place
            if step > 1:
                assert set(shown._views) == set(numbers[::step])


def test_statistics_that_leave_nan_out_are_not_shown(client: SharingClient) -> None:
    with served(client.table("s.d.t0").scan()) as (_, plan, address):
        for file in files_of(plan, address):
            metadata = pq.ParquetFile(RemoteFile(file)).metadata
            columns = {metadata.row_group(0).column(i).path_in_schema: i for i in range(metadata.num_columns)}
            assert metadata.row_group(0).column(columns["x"]).statistics is None
            assert metadata.row_group(0).column(columns["id"]).statistics.has_min_max


@pytest.mark.parametrize(
    ("writer", "shown"),
    [(f"parquet-cpp-arrow version {pa.__version__}", "is"), ("parquet-cpp-arrow version 11.0.0", "i"), ("Polars", "")],
)
def test_statistics_that_a_writer_is_known_to_get_wrong_are_not_shown(tmp_path: Path, writer: str, shown: str) -> None:
    built = DeltaTableBuilder(tmp_path / "t", pa.schema({"i": pa.int64(), "s": pa.string()}))
    for n in range(2):
        built.append([{"i": n, "s": "a"}, {"i": n, "s": None}])
    written = f"parquet-cpp-arrow version {pa.__version__}".encode()
    for path in built.path.glob("*.parquet"):
        path.write_bytes(path.read_bytes().replace(written, writer.encode().ljust(len(written))))
    with (
        SharingServer({"s.d.t": built.path}) as server,
        served(SharingClient(server.profile()).table("s.d.t").scan()) as (_, plan, address),
    ):
        for file in files_of(plan, address):
            group = pq.ParquetFile(RemoteFile(file)).metadata.row_group(0)
            told = [group.column(i) for i in range(group.num_columns) if group.column(i).statistics is not None]
            assert "".join(column.path_in_schema for column in told) == shown


def test_a_null_in_a_not_null_column_fails_whoever_reads_it(tmp_path: Path) -> None:
    nullable = DeltaTableBuilder(tmp_path / "t", pa.schema({"id": pa.int64(), "n": pa.int64()}))
    nullable.append([{"id": 1, "n": None}, {"id": 2, "n": 2}])
    log = tmp_path / "t" / "_delta_log" / f"{0:020}.json"
    text = log.read_text()
    changed = text.replace(
        '\\"name\\":\\"n\\",\\"type\\":\\"long\\",\\"nullable\\":true',
        '\\"name\\":\\"n\\",\\"type\\":\\"long\\",\\"nullable\\":false',
    )
    assert changed != text
    log.write_text(changed)
    with SharingServer({"s.d.t": tmp_path / "t"}) as server:
        scan = SharingClient(server.profile()).table("s.d.t").scan()
        with served(scan) as (_, plan, address), pytest.raises(RemoteError, match="NULL in column 'n'"):
            rows_of(plan, address)


@pytest.mark.parametrize("number", range(len(BUILT)), ids=list(BUILT))
def test_a_limit_has_the_rows_of_the_python_source(client: SharingClient, number: int) -> None:
    """Those of its files, in its order: the last file is cut, with regard to deleted rows and row groups."""
    whole = client.table(f"s.d.t{number}").scan(accessMode=("url", "dir")[number % 2])
    rows = whole.count()

    def shown(scan: Scan) -> tuple[list[str], bool, int]:
        with served(scan) as (_, plan, address):
            assert plan.planned is not None
            counted = NativePlan(scan.opened()[1], plan.planned, counts=COUNTED)
            is_less = plan.report.files <= whole.plan().report.files
            return row_texts(rows_of(plan, address)), is_less, sum(file.rows or 0 for file in counted.files)

    scans = {limit: whole.limit(limit) for limit in (0, 7, rows // 3 + 100, max(0, rows - 1), rows + 1)}
    assert {limit: shown(scan) for limit, scan in scans.items()} == {
        limit: (row_texts(scan.to_arrow()), True, min(limit, rows)) for limit, scan in scans.items()
    }


def test_a_limit_over_a_file_that_is_rewritten() -> None:
    path = Path(__file__).parents[2] / "data" / "delta_spark" / "type_widening"
    with SharingServer() as server:
        server.add_table("s.d.t", path, access_modes=("dir",))
        whole = SharingClient(server.profile()).table("s.d.t").scan()
        for limit in range(whole.count() + 1):
            scan = whole.limit(limit)
            with served(scan) as (_, plan, address):
                assert row_texts(rows_of(plan, address)) == row_texts(scan.to_arrow()), limit


@pytest.mark.parametrize("said", [None, 7], ids=["untold", "wrong"])
def test_a_limit_counts_by_statistics_that_are_there_and_right(tmp_path: Path, said: int | None) -> None:
    built = DeltaTableBuilder(tmp_path / "t", pa.schema({"id": pa.int64()})).append([{"id": i} for i in range(10)])
    log = built.path / "_delta_log" / f"{1:020}.json"
    text = log.read_text()
    log.write_text(text.replace('\\"numRecords\\":10', '\\"numRecords\\":7' if said else '\\"other\\":10'))
    assert log.read_text() != text
    with SharingServer({"s.d.t": built.path}) as server:
        scan = SharingClient(server.profile()).table("s.d.t").scan(limit=3)
        if said is None:
            with pytest.raises(StepAsideError, match="do not tell its rows"):
                plan_native(scan.resolved())
            return
        with (
            served(scan) as (_, plan, address),
            pytest.raises(RemoteError, match="has 10 rows and its statistics tell 7"),
        ):
            rows_of(plan, address)


def test_loads_that_the_lane_does_not_fit(client: SharingClient) -> None:
    with pytest.raises(StepAsideError, match="limit of the rows that fulfil a condition"):
        plan_native(client.table("s.d.t0").scan(limit=3, where="id > 5").resolved())


def test_unknown_paths(client: SharingClient) -> None:
    with served(client.table("s.d.t1").scan()) as (_, plan, address):
        file, *_ = files_of(plan, address)
        wrong = (f"{address}/_spark_metadata", f"{address}/part-000000.parquet", f"{file}x", f"{address}/../etc")
        assert not_refused(RemoteError, "", *(partial(ask, path, "GETFILESTATUS") for path in wrong)) == []
        with pytest.raises(RemoteError, match="let go"):
            ask(address.replace(plan.token, "0" * 32), "GETFILESTATUS")
        writes = [partial(ask, file, operation) for operation in ("CREATE", "DELETE", "GETCONTENTSUMMARY")]
        assert not_refused(RemoteError, "read-only", *writes) == []


def written(**more: Any) -> tuple[bytes, Footer]:
    """A Parquet file of several row groups, and its footer."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(data(90), SCHEMA), sink, row_group_size=30, **more)
    file = sink.getvalue().to_pybytes()
    return file, read_footer(MemorySource("file", file), "table")


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"write_page_index": True, "data_page_version": "2.0", "compression": "zstd"},
        {"use_dictionary": False, "write_statistics": False},
        {"bloom_filter_options": {"id": True}}
        if "bloom_filter_options" in signature(pq.write_table).parameters
        else {},
    ],
    ids=["plain", "indexes", "bare", "bloom filters"],
)
@pytest.mark.parametrize("is_joined", [False, True], ids=["alone", "two as one"])
def test_chunks_are_described_as_before_wherever_they_stand(more: dict[str, Any], is_joined: bool) -> None:
    file, footer = written(**more)
    reader = FooterReader(schema_from_arrow(SCHEMA), "none")
    apart, moved = (reader.read(footer, len(file), may_move=may_move) for may_move in (False, True))
    joined, spans = lay_out_together([moved, moved], "deleted_row", 2 * len(file), lambda name: name != b"part")
    body = b"PAR1" + b"".join(file[span.source.start : span.source.end] for span in spans)
    marked = replace(apart, deleted=lambda _, count: np.zeros(count, np.bool_))
    alone = file[: apart.data_end] + lay_out(marked, "deleted_row").tail
    shown, times = (body + joined.tail, 2) if is_joined else (alone, 1)
    parsed = pq.ParquetFile(pa.BufferReader(shown))
    rows = pq.read_table(pa.BufferReader(file)).to_pylist()
    assert repr(parsed.read(SCHEMA.names).to_pylist()) == repr(rows * times)

    places = {"file_offset", "data_page_offset", "dictionary_page_offset"}
    # A NaN is greater than any number, and no statistics tell of it.
    left_out = {"DOUBLE": places | {"statistics", "is_stats_set"}}

    def chunks(metadata: Any, group: int) -> list[dict[str, Any]]:
        described = [metadata.row_group(group).column(leaf).to_dict() for leaf in range(footer.metadata.num_columns)]
        return [
            {name: value for name, value in chunk.items() if name not in left_out.get(chunk["physical_type"], places)}
            for chunk in described
        ]

    was = [chunks(footer.metadata, group % 3) for group in range(3 * times)]
    for chunk in itertools.chain(*was):
        if is_joined and "bloom_filter_offset" in chunk:
            chunk.update(bloom_filter_offset=None, bloom_filter_length=None)
    assert [chunks(parsed.metadata, group) for group in range(3 * times)] == was


def test_a_footer_that_does_not_read_as_one_is_left_to_the_python_source() -> None:
    file, footer = written(write_page_index=True)
    reader, whole = FooterReader(schema_from_arrow(SCHEMA), "none"), len(footer.raw) - 8
    read = 0
    for place in range(0, whole, 3):
        for bit in (1, 128):
            raw = bytearray(footer.raw)
            raw[place] ^= bit
            try:
                for chunk in (
                    c for g in reader.read(replace(footer, raw=bytes(raw)), len(file)).groups for c in g.chunks
                ):
                    chunk.described(1 << 40)
                read += 1
            except NotNativeError:
                continue
    assert 0 < read < whole // 2
    for end in range(0, whole, 7):
        with pytest.raises(NotNativeError):
            reader.read(replace(footer, raw=footer.raw[:end] + footer.raw[-8:]), len(file))


def test_thrift_survives() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({f"c{i}": [1.5, None] for i in range(40)}), sink)
    raw = sink.getvalue().to_pybytes()
    footer = raw[-8 - int.from_bytes(raw[-8:-4], "little") : -8]
    parsed, end = read_struct(footer)
    assert end == len(footer)
    assert write_struct(parsed) == footer
    for cut in range(0, len(footer) - 1, 97):
        with pytest.raises(ValueError, match="Thrift"):
            read_struct(footer[:cut])
