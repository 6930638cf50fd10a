"""A third way to reach a table, written against the contract alone: batches, feeds, streams and explain work over it."""

from __future__ import annotations

import ast
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import delta_sharing_spark
from delta_sharing_spark.access.contract import (
    AsOf,
    FileListing,
    OpenTable,
    StreamIdentity,
    TableState,
    VersionFiles,
    VersionListing,
)
from delta_sharing_spark.access.open import MODES, TableOpener, resolve_opened
from delta_sharing_spark.access.plan import plan
from delta_sharing_spark.access.planned_files import FileList
from delta_sharing_spark.access.pruning import FilePruner
from delta_sharing_spark.access.resolved_scan import Decision, Mode, ResolvedScan
from delta_sharing_spark.access.stream.planner import Limits, open_stream
from delta_sharing_spark.access.table_shape import TableShape, check_readable
from delta_sharing_spark.display import explanation
from delta_sharing_spark.errors import TableChangedError
from delta_sharing_spark.options.declared import OPTIONS, parse_options
from delta_sharing_spark.options.values import Choice
from delta_sharing_spark.scan.plan import DeletionVector, FileAccess, FileTask, Split
from delta_sharing_spark.scan.split_reader import read_split
from delta_sharing_spark.schema.types import Array, DataType, Field, Primitive, Struct
from delta_sharing_spark.storage.ranges import ByteSource
from support.drawn_iceberg import Column
from support.shared_iceberg import SharedIceberg
from unit.access.shared_tables import falling_back
from unit.scan.local_access import Bytes

SHAPE = TableShape("m", Struct((Field("id", Primitive("long")), Field("day", Primitive("string")))), ("day",), "none")


class MemoryTable(OpenTable, FileAccess):
    """Version ``v`` adds one file, of the day ``v``. It is its own access."""

    mode = "memory"

    def __init__(self, *ids: list[int]) -> None:
        self.data = {f"f{v}": _parquet(rows) for v, rows in enumerate(ids)}

    def describe(self, as_of: AsOf) -> TableState:
        return TableState(self.newest_version() if as_of.version is None else as_of.version, SHAPE)

    def newest_version(self) -> int:
        return len(self.data) - 1

    def snapshot(self, scan: ResolvedScan, pruner: FilePruner) -> FileListing:
        files = [self._file(version) for version in range((scan.version or 0) + 1)]
        return FileListing(FileList(pruner.remaining(files)), self, version=scan.version, listed=len(files))

    def changes(self, scan: ResolvedScan) -> VersionListing:
        return self.versions(scan, int(scan.options.starting_version or 0), scan.version or 0)

    def versions(self, scan: ResolvedScan, first: int, last: int, identity: Any = None) -> VersionListing:
        feed = "insert" if scan.options.read_change_feed else None
        listed = [VersionFiles(v, [replace(self._file(v), change_type=feed)]) for v in range(first, last + 1)]
        return VersionListing(listed, self, StreamIdentity("m", self.mode, "", None))

    def all_files(self, scan: ResolvedScan, version: int, identity: Any = None) -> VersionListing:
        files = [self._file(v) for v in range(version + 1)]
        return VersionListing([VersionFiles(version, files)], self, StreamIdentity("m", self.mode, "", None))

    def _file(self, v: int) -> FileTask:
        times = {"commit_version": v, "commit_timestamp": v * 1000}
        return FileTask(f"f{v}", "", len(self.data[f"f{v}"]), {"day": str(v)}, rows=2, **times)  # type: ignore[arg-type]

    def restricted_to(self, tasks: Any) -> Any:
        return self

    def outlasts_planning(self, task: FileTask) -> bool:
        return True

    def open(self, task: FileTask) -> ByteSource:
        return Bytes(task.id, self.data[task.id])

    def open_vector(self, task: FileTask, vector: DeletionVector) -> ByteSource:
        raise AssertionError("no file has one")


def _parquet(rows: list[int]) -> bytes:
    data = io.BytesIO()
    pq.write_table(pa.table({"id": pa.array(rows, pa.int64())}), data)
    return data.getvalue()


def _opener(table: OpenTable, *, is_stream: bool = False, **options: str) -> TableOpener:
    negotiated = replace(
        falling_back(lambda: None).negotiated,
        options=parse_options({"path": "share.schema.table", **options}, is_stream=is_stream),
        decision=Decision(table.mode, "it is at hand"),
    )
    return TableOpener(negotiated, lambda _: table)


def _rows(splits: list[Split]) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for split in splits for batch in read_split(split) for row in batch.to_pylist())


@pytest.fixture
def table() -> MemoryTable:
    return MemoryTable([1, 2], [3, 4], [5, 6])


@pytest.fixture(params=["memory", "iceberg"])
def snapshots(request: pytest.FixtureRequest, tmp_path: Path, table: MemoryTable) -> Iterator[tuple[OpenTable, str]]:
    """A table whose three snapshots add a file each, in a mode of tests and in one whose versions nobody counts; and its second one."""
    if request.param == "memory":
        yield table, "1"
        return
    columns = [Column(1, "id", "long"), Column(2, "day", "string")]
    with SharedIceberg(tmp_path, columns) as server:
        server.writer.specs[0] = [(2, "identity")]
        for day in range(3):
            server.writer.insert([{1: 2 * day + n, 2: str(day)} for n in (1, 2)], partition=(str(day),))
            server.writer.commit()
        yield server.client().table("s.db.t").scan().opened()[0].table(), "2"


def test_a_snapshot(snapshots: tuple[OpenTable, str]) -> None:
    table, _ = snapshots
    opener = _opener(table, where="day > '0' and id <> 4", columns="id")
    scan = resolve_opened(opener)
    planned = plan(scan, opener=opener)
    assert _rows(planned.splits) == [(3,), (5,), (6,)]
    assert (planned.report.mode, planned.report.listed, planned.report.skipped) == (
        table.mode,
        3,
        {"partition values": 1},
    )
    assert f"{table.mode}: it is at hand" in explanation(planned, scan)


def test_an_earlier_version_and_a_limit(snapshots: tuple[OpenTable, str]) -> None:
    table, second = snapshots
    opener = _opener(table, versionAsOf=second, limit="3")
    planned = plan(resolve_opened(opener), opener=opener)
    assert (len(planned.splits), planned.exact_rows, planned.report.version) == (1, 3, int(second))
    rows = _rows(planned.splits)
    assert len(rows) == 3
    assert {id_ for id_, _ in rows} < {1, 2, 3, 4}


def test_a_change_feed(table: MemoryTable) -> None:
    opener = _opener(table, readChangeFeed="true", startingVersion="1", columns="id,_change_type,_commit_version")
    planned = plan(resolve_opened(opener), opener=opener)
    assert _rows(planned.splits) == [(id_, "insert", 1 + (id_ > 4)) for id_ in (3, 4, 5, 6)]


def test_a_stream(table: MemoryTable) -> None:
    opener = _opener(table, is_stream=True, pollInterval="1s", where="id <> 2", maxFilesPerTrigger="2")
    planner = open_stream(opener, resolve_opened(opener))
    position = planner.first()
    batches = []
    for _ in range(4):
        end = planner.advance(position, Limits(files=2))
        batches.append([row[0] for row in _rows(planner.splits(position, end))])
        position = end
        table.data["f3"] = _parquet([7, 8])
        planner._polled_at = float("-inf")
    assert batches == [[1, 3, 4], [5, 6], [7, 8], []]


DAY = SHAPE.schema.fields[1]
X, Y = Field("x", Primitive("long")), Field("y", Primitive("long"))


@pytest.mark.parametrize(
    ("now", "earlier", "is_read"),
    [(Struct((X, Y)), Struct((X,)), True), (Struct((X,)), Struct((X, Y)), False), (Primitive("long"), Struct((X,)), False),
     (Array(Struct((X, Y)), True), Array(Struct((X,)), True), True), (Array(Primitive("long"), True), Array(Primitive("date"), True), False)],
)  # fmt: skip
def test_fields_that_another_table_has_added(now: DataType, earlier: DataType, is_read: bool) -> None:
    feed, before = (replace(SHAPE, id=str(kind), schema=Struct((Field("a", kind), DAY))) for kind in (now, earlier))
    if is_read:
        check_readable(feed, before, 0, "t")
    else:
        with pytest.raises(TableChangedError, match="replaced by another table as of version 0"):
            check_readable(feed, before, 0, "t")


@pytest.mark.parametrize(
    ("shape", "is_read"),
    [
        (replace(SHAPE, id="other"), True),  # As a MERGE of delta-rs leaves it, which may add columns.
        (replace(SHAPE, id="other", schema=Struct((DAY,))), True),
        (replace(SHAPE, id="other", schema=Struct((Field("id", Primitive("integer")), DAY))), False),
        (replace(SHAPE, id="other", schema=Struct((*SHAPE.schema.fields, Field("n", Primitive("long"))))), False),
        (replace(SHAPE, id="other", partition_columns=()), False),
        (replace(SHAPE, id="other", mapping="name"), False),
    ],
)
def test_a_feed_of_another_table_is_refused(
    shape: TableShape, is_read: bool, table: MemoryTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replaced(scan: ResolvedScan) -> VersionListing:
        first, *more = MemoryTable.versions(table, scan, 0, 2).versions
        return replace(MemoryTable.versions(table, scan, 0, 2), versions=[replace(first, shape=shape), *more])

    monkeypatch.setattr(table, "changes", replaced)
    opener = _opener(table, readChangeFeed="true", startingVersion="0", columns="id")
    if is_read:
        assert _rows(plan(resolve_opened(opener), opener=opener).splits) == [(id_,) for id_ in range(1, 7)]
    else:
        with pytest.raises(TableChangedError, match="replaced by another table as of version 0"):
            plan(resolve_opened(opener), opener=opener)


def test_each_mode_is_named_once_and_nobody_else_decides_by_a_mode_s_name() -> None:
    """A mode is one more line in ``MODES`` and in ``Mode``; who needs to know more of one asks what it lists."""
    root = Path(delta_sharing_spark.__file__).parent
    assert set(get_args(Mode)) == set(MODES)
    access_mode = next(option.parse for option in OPTIONS if option.name == "accessMode")
    assert isinstance(access_mode, Choice)
    assert {*MODES, "auto"} - {"flight"} == set(access_mode.words)
    deciding = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Compare)
        and isinstance(node.left, ast.Attribute)
        and "mode" in node.left.attr.split("_")
        for other in node.comparators
        if {n.value for n in ast.walk(other) if isinstance(n, ast.Constant)} & {*MODES}
    }
    assert deciding == {"access/open.py"}
