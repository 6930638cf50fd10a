"""What the gateway fetches for scans whose paths name the columns that they read, and what it fetches of footers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.native import budget, plan, plan_reader
from delta_sharing_spark.native.answers import Pause
from delta_sharing_spark.native.gateway import Gateway
from delta_sharing_spark.native.plan_reader import LEAVES, FilePass
from delta_sharing_spark.native.scan_columns import UNTOLD, ScanColumns, ScanNames, leaves_of
from delta_sharing_spark.network.process_end import OpenResources
from delta_sharing_spark.scan import pace
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder, FileStyle
from support import HANGS
from unit.native.reading import RemoteFile, ask, files_of, plan_native, read_by, served

FILES = 6


@pytest.fixture(autouse=True)
def each_file_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "SMALL_FILE", 0)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    noise = os.urandom(100_000).hex()
    inner = pa.struct({"x": pa.string(), "y": pa.string()})
    schema = pa.schema({"id": pa.int64(), **{f"c{i}": pa.string() for i in range(4)}, "inner": inner})
    style = FileStyle(parquet={"compression": "none", "use_dictionary": False})
    built = DeltaTableBuilder(tmp_path_factory.mktemp("planned") / "t", schema, style=style)
    texts = [noise[n * 16 : n * 16 + 40] for n in range(12_000)]
    rows = [
        {"id": n, **{f"c{i}": text for i in range(4)}, "inner": {"x": text, "y": text}} for n, text in enumerate(texts)
    ]
    return built.append(rows, files=FILES).path


@pytest.fixture
def server(path: Path, files_in_parts: None) -> Iterator[SharingServer]:
    with SharingServer({"s.d.t": path}) as running:
        yield running


def size_of(file: pq.ParquetFile, *columns: str) -> int:
    group = file.metadata.row_group(0)
    chunks = (group.column(place) for place in range(group.num_columns))
    return sum(chunk.total_compressed_size for chunk in chunks if chunk.path_in_schema in columns)


def footer_of(file: RemoteFile) -> pq.FileMetaData:
    """A file's footer, read as Spark does: its length, and then just its bytes."""
    end = file.seek(0, os.SEEK_END)
    file.seek(end - 8)
    file.seek(end - 8 - int.from_bytes(file.read(4), "little"))
    return pq.read_metadata(pa.BufferReader(b"PAR1" + file.read()))


def test_only_the_columns_of_a_scan_are_fetched_and_each_once(
    server: SharingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first reader of all takes long over what it has, and nothing else is fetched; another scan finds the bytes held."""
    monkeypatch.setattr(plan_reader, "LEAVES", Pause(60.0, 60.0))
    with served(SharingClient(server.profile()).table("s.d.t").scan()) as (_, native, address):
        scan = read_by(native, address, "id", "c0", "inner.y")
        remote = [RemoteFile(file) for file in files_of(native, scan)]  # all footers are there
        other = [RemoteFile(file) for file in files_of(native, read_by(native, address, "c2"))]
        for number, opened in enumerate(pq.ParquetFile(file, pre_buffer=False) for file in remote):
            server.reset_metrics()
            with ask(remote[number].address, "OPEN", offset=4) as response:
                response.read(size_of(opened, "id", "c0"))
                time.sleep(0.0 if number else 0.4)  # longer than a reader is waited for where nothing is told
            opened.read(["inner.y"])
            assert server.bytes_sent("data") == size_of(opened, "id", "c0", "inner.y")
            pq.ParquetFile(other[number], metadata=opened.metadata, pre_buffer=False).read(["c2"])
            opened.read(["id"])
            assert server.bytes_sent("data") == size_of(opened, "id", "c0", "inner.y", "c2")


def test_a_look_at_a_dictionary_fetches_its_column_alone(server: SharingServer) -> None:
    """By a dictionary Spark may leave out the row group, before it reads the first of its columns."""
    with served(SharingClient(server.profile()).table("s.d.t").scan()) as (_, native, address):
        file, *_ = files_of(native, read_by(native, address, "id", "c1", "c3"))
        opened = pq.ParquetFile(RemoteFile(file), pre_buffer=False)
        server.reset_metrics()
        with ask(file, "OPEN", offset=opened.metadata.row_group(0).column(2).data_page_offset) as response:
            response.read(100)
        assert server.bytes_sent("data") == size_of(opened, "c1")
        opened.read(["id", "c1", "c3"])
        assert server.bytes_sent("data") == size_of(opened, "id", "c1", "c3")


def test_a_reader_that_wants_more_than_its_scan_reads_gets_it(server: SharingServer, path: Path) -> None:
    native = plan_native(SharingClient(server.profile()).table("s.d.t").scan().resolved())
    columns = ScanColumns(frozenset({b"id", b"c0"}))
    running = Gateway()
    running.add(native, lambda: False)
    try:
        reader = next(iter(running._plans.values()))[0]
        layout = reader.files.get(0).layout
        came = list(reader.read(0, 4, columns))
        assert came.count(LEAVES) == 1, "after the columns of the scan"
        assert LEAVES not in list(reader.read(1, 4, columns)), "what misled is not believed again"
        stored = {file.read_bytes()[4 : layout.data_end] for file in path.rglob("*.parquet")}
        assert b"".join(p for p in came if isinstance(p, memoryview))[: layout.data_end - 4] in stored
    finally:
        running.close()


def test_what_was_read_is_kept_within_bounds(server: SharingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = SharingClient(server.profile()).table("s.d.t").scan()
    with served(scan) as (running, native, address):
        scanned = read_by(native, address, "c0")
        files = [pq.ParquetFile(RemoteFile(file), pre_buffer=False) for file in files_of(native, scanned)]
        kept = 2 * size_of(files[0], "c0")
        running._budget._bounds = budget.Bounds(kept=kept)
        for opened in files:
            opened.read(["c0"])
        held = running._budget
        deadline = time.monotonic() + HANGS
        while (
            held.fetched_bytes or sum(group.size for group in held._complete) > kept
        ) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert 0 < sum(group.size for group in held._complete) <= kept
        assert held.fetched_bytes == 0
    assert not held._complete


@pytest.mark.parametrize("is_guessed_short", [False, True], ids=["", "by a guess that is too short"])
def test_a_footer_costs_about_its_own_bytes(
    server: SharingServer, path: Path, monkeypatch: pytest.MonkeyPatch, is_guessed_short: bool
) -> None:
    """The first one by the number of columns, the next ones by the first; a footer that is larger is asked for again."""
    pace._paces.clear()
    if is_guessed_short:
        monkeypatch.setattr(plan, "_TAIL", 64)
        monkeypatch.setattr(plan, "_TAIL_OF_COLUMN", 0)
    scan = SharingClient(server.profile()).table("s.d.t").scan()
    largest = max(8 + int.from_bytes(file.read_bytes()[-8:-4], "little") for file in path.rglob("*.parquet"))
    native = plan_native(scan.resolved())
    server.reset_metrics()
    with ThreadPoolExecutor(1) as pool:
        for number in range(FILES):
            native.show(number, OpenResources(), pool)
    fetched = [request.bytes for request in server.requests if request.kind == "data"]
    assert len(fetched) == FILES + is_guessed_short
    assert all(largest <= size < 2 * largest + 512 for size in fetched[-FILES + 1 :])
    server.reset_metrics()
    with ThreadPoolExecutor(1) as pool:
        plan_native(scan.resolved()).show(0, OpenResources(), pool)
    assert [request.kind for request in server.requests].count("data") == 1, "the next load knows of them"


def _struct(**fields: object) -> dict[str, object]:
    return {"type": "struct", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


_LIST = {"type": "array", "elementType": _struct(x="long")}
_PART = {"type": "struct", "fields": [{"name": "0", "type": "long", "metadata": {"__VARIANT_METADATA_KEY": {}}}]}
_TABLE = _struct(id="long", inner=_struct(x="long", y=_struct(z="string")), innermost="long", list=_LIST, v="variant")


@pytest.mark.parametrize(
    ("required", "columns"),
    [
        (_struct(id="long"), [b"id"]),
        (_struct(inner=_struct(y=_struct(z="string"))), [b"inner.y.z"]),
        (_struct(list=_LIST, v=_PART, _tmp_metadata_row_index="long"), [b"list", b"v"]),
        (_TABLE, [b"id", b"inner.x", b"inner.y.z", b"innermost", b"list", b"v"]),
        (_struct(), []),
    ],
    ids=["one", "nested", "list and variant", "all", "none"],
)
def test_names_of_scans_tell_their_columns(required: dict[str, object], columns: list[bytes]) -> None:
    names = ScanNames(list(leaves_of(_TABLE)))
    told = names.columns_of(names.name(required))
    assert told is not None
    assert told.paths == frozenset(columns)
    others = (b"id", b"inner.x", b"inner.y.z", b"innermost", b"list.list.element.x", b"v.metadata", b"other")
    assert [column for column in others if column in told] == [
        column for column in others if any(column == path or column.startswith(path + b".") for path in columns)
    ]


def test_a_scan_without_a_name_tells_no_columns() -> None:
    names = ScanNames(list(leaves_of(_TABLE)))
    assert names.name(None) == UNTOLD
    assert names.columns_of(UNTOLD) is None


def test_the_next_file_is_fetched_while_one_is_read(server: SharingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a file was read to its end, the same columns of the next one; not where files are opened and not read."""
    monkeypatch.setattr(plan_reader, "AT_ONCE", 1)
    scan = SharingClient(server.profile()).table("s.d.t").scan()
    with served(scan) as (_, native, address):
        remote = [
            RemoteFile(file) for file in files_of(native, read_by(native, address, "id", "c0"))
        ]  # all footers are there
        server.reset_metrics()

        # The third file is fetched while the second is read; its footer is read, and then the fourth file.
        def read(number: int, files_fetched: int, *, is_read: bool = True) -> None:
            opened = pq.ParquetFile(remote[number], metadata=footer_of(remote[number]), pre_buffer=False)
            if is_read:
                assert opened.read(["id", "c0"]).num_rows == 2_000
            deadline, expected = time.monotonic() + HANGS, files_fetched * size_of(opened, "id", "c0")
            while server.bytes_sent("data") < expected and time.monotonic() < deadline:
                time.sleep(0.01)
            assert server.bytes_sent("data") == expected

        read(0, files_fetched=1)
        read(1, files_fetched=3)
        read(2, files_fetched=3, is_read=False)
        read(3, files_fetched=4)
        read(4, files_fetched=5)


def test_passes_over_files() -> None:
    """A file is foretold once; a file that is opened again begins a pass; so many as tasks are not opened yet."""
    at_once = plan_reader.AT_ONCE
    spark, files = FilePass(), range(10 * at_once)
    for number in range(at_once):
        spark.opened(number)
        spark.read(number)
        assert spark.next(files[number + 1 :]) is None
    spark.opened(at_once)
    spark.read(at_once)
    foretold = [spark.next(files[at_once + 1 :]) for _ in range(at_once + 1)]
    assert foretold == [*range(at_once + 1, 2 * at_once + 1), None]
    spark.opened(at_once + 1)
    assert spark.next(files[at_once + 2 :]) == 2 * at_once + 1
    spark.opened(0)
    spark.read(0)
    assert spark.next(files[1:]) is None
