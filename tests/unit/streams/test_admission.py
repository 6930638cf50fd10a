"""How far batches go: whatever the limits and restarts, every file is read exactly once, in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_sharing_spark.access.contract import OpenTable, StreamIdentity, VersionFiles, VersionListing
from delta_sharing_spark.access.stream.planner import Limits, Position, StreamPlanner
from delta_sharing_spark.access.stream.schema_policy import SchemaPolicy
from delta_sharing_spark.access.table_shape import TableShape
from delta_sharing_spark.errors import StreamError, VersionError
from delta_sharing_spark.options.declared import parse_options
from delta_sharing_spark.scan.plan import FileTask
from delta_sharing_spark.schema.types import Field, Primitive, Struct
from support.drawing import cases

_ID = Field("id", Primitive("long"))


def _shape(*fields: Field, partitions: tuple[str, ...] = ()) -> TableShape:
    return TableShape("t", Struct((_ID, *fields)), partitions, "none")


@dataclass
class FakeTable(OpenTable):
    """Versions in memory: ``counts[v]`` files are added by version ``v``."""

    mode = "url"
    counts: list[int]
    shapes: dict[int, TableShape] = field(default_factory=dict)
    removes: dict[int, int] = field(default_factory=dict)
    identity: StreamIdentity = field(default_factory=lambda: StreamIdentity("t", "url", "delta", "delta"))
    asked: list[tuple[int, int]] = field(default_factory=list)
    polls: int = 0

    def describe(self, as_of: Any) -> Any:
        raise AssertionError

    def newest_version(self) -> int:
        self.polls += 1
        return len(self.counts) - 1

    def files_of(self, version: int) -> list[FileTask]:
        return [FileTask(f"{version:02d}-{i:03d}", "", 10) for i in range(self.counts[version])]

    def snapshot(self, scan: Any, pruner: Any) -> Any:
        raise AssertionError

    def changes(self, scan: Any) -> Any:
        raise AssertionError

    def all_files(self, scan: Any, version: int, identity: StreamIdentity | None = None) -> VersionListing:
        tasks = [task for v in range(version + 1) for task in self.files_of(v)]
        return VersionListing([VersionFiles(version, tasks)], _ACCESS, self.identity)

    def versions(self, scan: Any, first: int, last: int, identity: StreamIdentity | None = None) -> VersionListing:
        self.asked.append((first, last))
        listed = [
            VersionFiles(v, self.files_of(v), self.removes.get(v, 0), self.shapes.get(v))
            for v in range(first, last + 1)
        ]
        return VersionListing([f for f in listed if f.tasks or f.removes or f.shape], _ACCESS, self.identity)


_ACCESS: Any = SimpleNamespace(outlasts_planning=lambda task: True)


def _planner(source: FakeTable, clock: Any = None, **options: str) -> StreamPlanner:
    parsed = parse_options({"path": "p#s.d.t", "pollInterval": "10s", **options}, is_stream=True)
    scan: Any = SimpleNamespace(
        options=parsed, table="s.d.t", profile=SimpleNamespace(endpoint="http://127.0.0.1"), prune=None, shape=_shape()
    )
    opener: Any = SimpleNamespace(run=lambda action: action(source))
    policy = SchemaPolicy(Struct((_ID,)), frozenset(), None, frozenset(), parsed.allow_added_columns)
    spec: Any = None
    return StreamPlanner(scan, opener, spec, policy, clock=clock or (lambda: 0.0))


def _ids(planner: StreamPlanner, start: Position, end: Position) -> list[str]:
    return [task.id for tasks, _ in planner.files(start, end) for task in tasks]


@cases(300)
@given(
    counts=st.lists(st.integers(0, 5), min_size=1, max_size=12),
    files=st.none() | st.integers(1, 6),
    size=st.none() | st.integers(1, 70),
    rpc=st.integers(1, 5),
    feed=st.booleans(),
    begin=st.none() | st.integers(0, 12),
    restarts=st.lists(st.booleans(), min_size=40, max_size=40),
)
def test_every_file_is_read_exactly_once(
    counts: list[int],
    files: int | None,
    size: int | None,
    rpc: int,
    feed: bool,
    begin: int | None,
    restarts: list[bool],
) -> None:
    source, limits = FakeTable(counts), Limits(files, size)
    options = {"maxVersionsPerRpc": str(rpc), "readChangeFeed": str(feed).lower()}
    if begin is not None:
        options["startingVersion"] = str(min(begin, len(counts)))
    planner = _planner(source, **options)
    position = planner.first()
    seen: list[str] = []
    for restart in restarts:
        end = planner.advance(position, limits)
        assert end >= position
        planned = _ids(planner, position, end)
        if restart:
            planner = _planner(source, **options)
        assert _ids(planner, position, end) == planned
        planner.forget(end)
        if feed and not position.snapshot:
            assert end.index == 0
        seen += planned
        if end == position:
            break
        position = end
    else:
        while (end := planner.advance(position, limits)) != position:
            seen += _ids(planner, position, end)
            position = end
    first = 0 if begin is None else min(begin, len(counts))
    assert seen == [task.id for v in range(first, len(counts)) for task in source.files_of(v)]


def test_a_block_is_asked_for_once_however_small_the_batches() -> None:
    source = FakeTable([2] * 50)
    planner = _planner(source, startingVersion="0")
    position = planner.first()
    while (end := planner.advance(position, Limits(1))) != position:
        position = end
    assert source.asked == [(0, 49)]


def test_a_commit_of_the_last_batch_keeps_the_planned_one() -> None:
    source = FakeTable([1, 1])
    planner = _planner(source, startingVersion="0", maxVersionsPerRpc="1")
    first = planner.advance(Position(0), Limits(1))
    second = planner.advance(first, Limits(1))
    planner.forget(first)
    asked = len(source.asked)
    assert _ids(planner, first, second) == ["01-000"]
    assert len(source.asked) == asked


def test_a_frozen_stream_begins_no_later_than_it_was_frozen() -> None:
    source = FakeTable([1, 1])
    planner = _planner(source)
    planner.pin_newest()
    source.counts.append(1)
    position = planner.first()
    assert position == Position(1, 0, True)
    end = planner.advance(position, Limits())
    assert planner.advance(end, Limits()) == end


def test_idle_polls_do_not_ask_the_server() -> None:
    source, now = FakeTable([1]), [0.0]
    planner = _planner(source, clock=lambda: now[0], startingVersion="0")
    position = planner.advance(planner.first(), Limits())
    polls = source.polls
    for _ in range(1000):
        assert planner.advance(position, Limits()) == position
    assert source.polls == polls
    source.counts.append(1)
    now[0] = 10.0
    assert planner.advance(position, Limits()) == Position(2)


@pytest.mark.parametrize("position", [Position(5), Position(3, 1), Position(3, 0, True)])
def test_a_server_that_goes_back_is_an_error(position: Position) -> None:
    with pytest.raises(StreamError, match="replaced or restored"):
        _planner(FakeTable([1, 1, 1])).advance(position, Limits())


def test_a_start_beyond_the_next_version_is_an_error() -> None:
    assert _planner(FakeTable([1]), startingVersion="1").first() == Position(1)
    with pytest.raises(VersionError, match=r"startingVersion 2 of s\.d\.t does not exist: the newest is 0"):
        _planner(FakeTable([1]), startingVersion="2").first()


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (_shape(Field("x", Primitive("long"))), "version 2 .*'x'.*added"),
        (_shape(Field("ID", Primitive("long"))), "spelled 'ID'"),
        (TableShape("t", Struct((Field("id", Primitive("string")),)), (), "none"), "its type is string"),
        (_shape(partitions=("id",)), "partition columns differ"),
    ],
)
def test_all_before_a_change_is_delivered_then_the_stream_stops(shape: TableShape, message: str) -> None:
    source = FakeTable([1, 1, 1], shapes={2: shape})
    planner = _planner(source, startingVersion="0")
    end = planner.advance(Position(0), Limits())
    assert (end, _ids(planner, Position(0), end)) == (Position(2), ["00-000", "01-000"])
    with pytest.raises(StreamError, match=message):
        planner.advance(end, Limits())


def test_a_version_before_a_column_was_widened_is_read() -> None:
    narrow = TableShape("t", Struct((Field("id", Primitive("integer")),)), (), "none")
    planner = _planner(FakeTable([1], shapes={0: narrow}), startingVersion="0")
    assert planner.advance(Position(0), Limits()) == Position(1)


@pytest.mark.parametrize(
    ("files", "removes", "options", "expected"),
    [
        (0, 1, {"ignoreDeletes": "true"}, []),
        (0, 1, {"ignoreChanges": "true"}, []),
        (1, 1, {"ignoreChanges": "true"}, ["00-000"]),
        (1, 1, {"skipChangeCommits": "true"}, []),
        (0, 1, {}, "ignoreDeletes"),
        (1, 1, {}, "skipChangeCommits"),
        (1, 1, {"ignoreDeletes": "true"}, "skipChangeCommits"),
    ],
)
def test_versions_that_delete_or_rewrite(
    files: int, removes: int, options: dict[str, str], expected: list[str] | str
) -> None:
    planner = _planner(FakeTable([files], removes={0: removes}), startingVersion="0", **options)
    if isinstance(expected, str):
        with pytest.raises(StreamError, match=expected):
            planner.advance(Position(0), Limits())
    else:
        assert _ids(planner, Position(0), planner.advance(Position(0), Limits())) == expected
