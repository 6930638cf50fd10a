"""What Spark calls when: a server that moves on between two calls, replays after a restart, idle polls, expiry."""

from __future__ import annotations

import contextlib
import json
import random
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_sharing_spark.errors import DeltaSharingError, FileGoneError, OptionError, StreamError, VersionError
from delta_sharing_spark.schema.types import Field, Primitive
from delta_sharing_spark.spark import streaming
from delta_sharing_spark.testing.server import SharingServer, queries
from delta_sharing_spark.testing.server.answers import Pages
from delta_sharing_spark.testing.server.queries import TableQueries
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from unit.streams.spark_loop import Checkpoint, Killed, Rows, Run

SCHEMA = pa.schema([("id", pa.int64())])
FEED = {"delta.enableChangeDataFeed": "true"}
Share = Callable[..., dict[str, str]]


def numbered(first: int, count: int = 1) -> Rows:
    return [{"id": i} for i in range(first, first + count)]


@pytest.fixture
def table(tmp_path: Path) -> DeltaTableBuilder:
    """Versions 1 and 2 add ids 0 to 5 in two files each."""
    value = DeltaTableBuilder(tmp_path / "t", SCHEMA, properties=FEED)
    return value.append(numbered(0, 2), files=2).append(numbered(2, 2), files=2)


@pytest.fixture(params=[True, False], ids=["4.2", "4.1"])
def admission_control(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether Spark gives a batch its start and limit (4.2 and later), or does not."""
    monkeypatch.setattr(streaming, "ADMISSION_CONTROL", request.param)
    return bool(request.param)


class Restless:
    """A reader whose table gets a new version before each of Spark's calls."""

    def __init__(self, reader: Any, table: DeltaTableBuilder) -> None:
        self._reader, self._table = reader, table

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._reader, name)
        if name.startswith("_"):
            return value

        def call(*args: Any) -> Any:
            self._table.append(numbered(self._table.version * 2, 2), files=2)
            return value(*args)

        return call


@pytest.mark.parametrize("start", [{}, {"startingVersion": "1"}, {"startingVersion": "latest"}], ids=str)
@pytest.mark.parametrize("mode", ["url", "dir"])
@pytest.mark.usefixtures("admission_control")
def test_a_server_that_moves_on_between_the_calls(
    share: Share, table: DeltaTableBuilder, mode: str, start: dict[str, str]
) -> None:
    options = {**share(table), **start, "accessMode": mode, "maxFilesPerTrigger": "3"}
    checkpoint = Checkpoint()
    run = Run(checkpoint, options, available_now=False)
    run.reader = Restless(run.reader, table)
    newest = table.version
    assert [run.reader.initialOffset() for _ in range(3)] == [{"sourceVersion": 1, "initial": True}] * 3
    for kill in ("planned", "split", None, "written"):
        try:
            run.step(kill)
        except Killed:
            run = Run(checkpoint, options, available_now=False)
            run.reader = Restless(run.reader, table)
    Run(checkpoint, options).drain()
    first = checkpoint.last["first"]
    if start.get("startingVersion") == "latest":
        assert newest < first["version"] <= newest + 10, "resolved in the first latestOffset, not before"
        assert checkpoint.ids == [i for i in range(table.version * 2) if i >= (first["version"] - 1) * 2]
    else:
        assert checkpoint.ids == list(range(table.version * 2))


def test_the_beginning_asks_nobody(share: Share, server: SharingServer, table: DeltaTableBuilder) -> None:
    run = Run(Checkpoint(), share(table))
    server.reset_metrics()
    assert run.reader.initialOffset() == run.reader.initialOffset()
    assert server.count() == 0


def test_a_relative_profile_is_that_of_the_worker_that_loaded(
    share: Share, table: DeltaTableBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Spark Connect the worker that a load asks for its schema runs in the session's directory, a stream's in the server's."""
    share(table)
    monkeypatch.chdir(tmp_path)
    checkpoint = Checkpoint()
    run = Run(checkpoint, {"path": "config.share#s.d.t"})
    monkeypatch.chdir(table.path)
    run.drain()
    assert checkpoint.ids == list(range(4))


@pytest.mark.usefixtures("admission_control")
def test_a_replay_comes_before_any_latest_offset(
    share: Share, server: SharingServer, table: DeltaTableBuilder, way: dict[str, str], feed: dict[str, str]
) -> None:
    options = {**share(table), **way, **feed, "startingVersion": "0", "maxFilesPerTrigger": "2"}
    checkpoint = Checkpoint()

    def killed_at(moment: str) -> None:
        with pytest.raises(Killed):
            Run(checkpoint, options).step(moment)
        table.append(numbered(table.version * 2, 2))
        server.expire_urls()

    killed_at("planned")
    killed_at("written")
    run = Run(checkpoint, options)
    server.reset_metrics()
    start, end = run.reader.initialOffset(), checkpoint.last
    split = run.reader.partitions(start, end)
    assert server.count("version") == 0
    server.expire_urls()
    assert sorted(row["id"] for row in run.read(split)) == [0, 1]
    run.drain()
    Run(checkpoint, options).drain()
    assert checkpoint.ids == list(range(table.version * 2))


def test_a_batch_whose_urls_expired_reads_the_same_rows(
    share: Share, server: SharingServer, table: DeltaTableBuilder, feed: dict[str, str]
) -> None:
    options = {**share(table), **feed, "accessMode": "url", "maxFilesPerTrigger": "1"}
    checkpoint = Checkpoint()
    run = Run(checkpoint, options)
    while run.step(between=server.expire_urls):
        pass
    table.append(numbered(4, 3), files=3)
    run = Run(checkpoint, options)
    while run.step(between=server.expire_urls):
        pass
    assert checkpoint.ids == list(range(7))


@pytest.mark.parametrize("mode", ["url", "dir"])
@pytest.mark.parametrize("start", [{}, {"startingVersion": "0"}], ids=str)
def test_executors_that_cannot_renew_are_given_what_is_valid_now(
    share: Share, table: DeltaTableBuilder, mode: str, start: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**share(table), **start, "accessMode": mode, "maxFilesPerTrigger": "1", "carryProfile": "false"}
    real, passed = time.time, 0.0
    monkeypatch.setattr(time, "time", lambda: real() + passed)
    checkpoint = Checkpoint()
    run = Run(checkpoint, options)
    while run.step():
        passed += 7200.0
    assert checkpoint.ids == [0, 1, 2, 3]


@pytest.mark.usefixtures("admission_control")
def test_idle_polls_ask_nobody_and_do_not_sleep(
    share: Share, server: SharingServer, table: DeltaTableBuilder, way: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(Checkpoint(), {**share(table), **way, "pollInterval": "30s"}, available_now=False).drain()
    server.reset_metrics()
    table.append(numbered(4))

    polling, sleep = threading.get_ident(), time.sleep

    def no_sleep(seconds: float) -> None:
        assert threading.get_ident() != polling, f"slept {seconds} s"
        sleep(seconds)  # another thread of the process: py4j's, where a Spark session stands beside

    monkeypatch.setattr(time, "sleep", no_sleep)
    for _ in range(500):
        assert not run.step()
    assert server.count() == 0


def test_the_poll_interval_is_bounded_for_servers_elsewhere(
    share: Share, server: SharingServer, table: DeltaTableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = share(table)
    monkeypatch.setattr("delta_sharing_spark.access.stream.planner.is_on_loopback", lambda url: False)
    with pytest.raises(OptionError, match=r"'pollInterval' is 9 s, the least is 10 s"):
        Run(Checkpoint(), {**options, "pollInterval": "9s"}).step()
    assert Run(Checkpoint(), {**options, "pollInterval": "10s"}).step()


def test_files_beyond_the_asked_range_are_dropped(
    share: Share, table: DeltaTableBuilder, feed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = TableQueries._end
    monkeypatch.setattr(TableQueries, "_end", lambda self, ask, start, asked: real(self, ask, start, None))
    table.append(numbered(4, 2))
    options = {**share(table), **feed, "accessMode": "url", "startingVersion": "0", "maxVersionsPerRpc": "1"}
    checkpoint = Checkpoint()
    run = Run(checkpoint, options).drain()
    assert checkpoint.ids == list(range(6))
    assert [len(files) for files in run.files.values()] == [5]


@pytest.mark.parametrize("start", [{}, {"startingVersion": "0"}], ids=["snapshot", "version 0"])
def test_a_server_that_lists_files_in_any_order(
    share: Share,
    table: DeltaTableBuilder,
    feed: dict[str, str],
    start: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, draw = Pages.write, random.Random(7)

    def shuffled(self: Pages, ask: Any, answer: Any) -> Any:
        return real(self, ask, replace(answer, items=draw.sample(answer.items, len(answer.items))))

    monkeypatch.setattr(Pages, "write", shuffled)
    table.append(numbered(4, 4), files=4).append(numbered(8, 8), files=8)
    options = {**share(table), **feed, **start, "accessMode": "url", "maxFilesPerTrigger": "3"}
    checkpoint = Checkpoint()
    for kill in ("planned", "split", "written", None) * 3:
        with contextlib.suppress(Killed):
            Run(checkpoint, options).step(kill)
    Run(checkpoint, options).drain()
    assert checkpoint.ids == list(range(16))


def test_rewrites_that_change_no_row_are_no_rows(
    share: Share, table: DeltaTableBuilder, feed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = queries._files

    def every(commit: Any, shared: Any, *, is_feed: bool) -> Any:
        bare = [
            {k: {**v, "dataChange": True} if "dataChange" in v else v for k, v in a.items()} for a in commit.actions
        ]
        told = iter([a for a in commit.actions if "add" in a or "remove" in a])
        value = real(replace(commit, actions=bare), shared, is_feed=is_feed)
        return [replace(file, body={**file.body, **next(iter(next(told).values()))}) for file in value]

    monkeypatch.setattr(queries, "_files", every)
    table.optimize().append(numbered(4))
    options = {**share(table), **feed, "accessMode": "url", "responseFormat": "delta", "startingVersion": "0"}
    checkpoint = Checkpoint()
    Run(checkpoint, options).drain()
    assert checkpoint.ids == list(range(5))


def test_a_server_that_does_not_know_the_snapshots_version(
    share: Share, table: DeltaTableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TableQueries, "_asked_version", lambda self, shared, parameters: None)
    options = {**share(table), "accessMode": "url"}
    checkpoint = Checkpoint()
    with pytest.raises(Killed):
        Run(checkpoint, options).step("planned")
    table.append(numbered(4))
    with pytest.raises(
        VersionError,
        match="files of version 2 were asked for, and the server answers with those of 3; ask the provider",
    ):
        Run(checkpoint, options).step()


def _edited(kind: str, **fields: Any) -> Callable[[dict[str, Any]], dict[str, Any] | None]:
    """Change the lines of added files, in the parquet format."""

    def rewrite(line: dict[str, Any]) -> dict[str, Any] | None:
        if "add" not in line:
            return line
        return {kind: {k: v for k, v in {**line["add"], **fields}.items() if v is not None}}

    return rewrite


@pytest.mark.parametrize(
    ("rewrite", "message"),
    [
        (_edited("add", version=None), "a file without a version"),
        (_edited("add", id="same"), "file same .*twice"),
    ],
    ids=["no version", "twice"],
)
def test_answers_that_would_lose_or_double_rows_are_errors(
    share: Share, server: SharingServer, table: DeltaTableBuilder, feed: dict[str, str], rewrite: Any, message: str
) -> None:
    server.settings.rewrite = rewrite
    options = {**share(table), **feed, "accessMode": "url", "responseFormat": "parquet", "startingVersion": "0"}
    with pytest.raises(Exception, match=message):
        Run(Checkpoint(), options).step()


def test_a_batch_that_ends_in_a_version_that_is_listed_no_more_is_refused(
    share: Share, server: SharingServer, table: DeltaTableBuilder
) -> None:
    """The batch was read again without the files that its end counts."""
    way = {"accessMode": "url", "responseFormat": "parquet", "startingVersion": "0", "maxFilesPerTrigger": "3"}
    checkpoint, options = Checkpoint(), {**share(table), **way}
    with pytest.raises(Killed):
        Run(checkpoint, options).step("planned")
    server.settings.rewrite = lambda line: None if line.get("add", {}).get("version") == 2 else line
    with pytest.raises(StreamError, match=r"counts 1 files as read of version 2, which has 0"):
        Run(checkpoint, options).step()
    assert checkpoint.ids == []


def test_change_files_are_no_rows_of_a_table(share: Share, server: SharingServer, table: DeltaTableBuilder) -> None:
    server.settings.rewrite = _edited("cdf")
    options = {**share(table), "accessMode": "url", "responseFormat": "parquet", "startingVersion": "0"}
    with pytest.raises(Exception, match=r"listed a 'cdf' line among the files of s\.d\.t"):
        Run(Checkpoint(), options).step()


@pytest.mark.parametrize("mode", ["url", "dir"])
def test_a_server_that_went_back_in_version(share: Share, table: DeltaTableBuilder, tmp_path: Path, mode: str) -> None:
    checkpoint = Checkpoint()
    Run(checkpoint, {**share(table), "accessMode": mode}).drain()
    behind = DeltaTableBuilder(tmp_path / "behind" / "t", SCHEMA, table_id=table.table_id, properties=FEED)
    with pytest.raises(StreamError, match="has read version 2, and the server now says that 0 is the newest"):
        Run(checkpoint, {**share(behind), "accessMode": mode}).step()


def test_versions_that_are_gone_say_where_the_stream_can_begin(
    share: Share, table: DeltaTableBuilder, way: dict[str, str], feed: dict[str, str]
) -> None:
    options = {**share(table), **way, **feed}
    checkpoint = Checkpoint()
    Run(checkpoint, options).drain()
    table.append(numbered(4)).append(numbered(5)).checkpoint().append(numbered(6)).expire_log(4)
    with pytest.raises(
        VersionError,
        match=r"stream of s\.d\.t has read all before version 3, and cannot go on: .*another checkpoint.*snapshot",
    ):
        Run(checkpoint, options).step()


@pytest.mark.parametrize("begun", [0, 5, 6, 9, 10], ids=str)
def test_a_log_that_was_cleaned_between_checkpoints_is_read_by_its_commits(
    share: Share, table: DeltaTableBuilder, feed: dict[str, str], begun: int
) -> None:
    """Commits 5 to 14 and the checkpoint of 10 are left; a stream that stopped before one of them has what it did not read."""
    options = {**share(table), **feed, "accessMode": "dir"}
    checkpoint = Checkpoint()
    for version in range(3, 15):
        table.append(numbered(version + 1))
        if version == 10:
            table.checkpoint()
        if version == begun + 1:
            Run(checkpoint, options).drain()
    read_before = len(checkpoint.ids)
    for version in range(5):
        (table.path / "_delta_log" / f"{version:020d}.json").unlink()
    if begun == 0:  # a new stream, from a version and from its time
        moment = datetime.fromtimestamp(table.commits[6][0]["commitInfo"]["timestamp"] / 1000, timezone.utc).isoformat()
        by_version, by_time = Checkpoint(), Checkpoint()
        Run(by_version, {**options, "startingVersion": "6"}).drain()
        Run(by_time, {**options, "startingTimestamp": moment}).drain()
        assert by_version.ids == by_time.ids == list(range(7, 16))
    elif begun > 4:
        Run(checkpoint, options).drain()
        assert checkpoint.ids == list(range(16))
        assert read_before < 16


@pytest.mark.parametrize("start", [5, 6])
def test_versions_whose_columns_are_not_known_are_refused_without_advice_that_leaves_rows_out(
    share: Share, table: DeltaTableBuilder, feed: dict[str, str], start: int
) -> None:
    options = {**share(table), **feed, "accessMode": "dir", "allowAddedColumns": "true"}
    for number in range(4, 8):
        table.append(numbered(number))
    table.add_column(Field("more", Primitive("string")))  # version 7
    table.append([{"id": 8, "more": "x"}]).checkpoint().append([{"id": 9, "more": "x"}])
    for version in range(5):
        (table.path / "_delta_log" / f"{version:020d}.json").unlink()
    checkpoint = Checkpoint()
    Run(checkpoint, {**options, "startingVersion": "7"}).drain()
    assert checkpoint.ids == [8, 9]
    with pytest.raises(VersionError, match=r"until version 7 changed them is not known") as refused:
        Run(Checkpoint(), {**options, "startingVersion": str(start)}).step()
    assert not re.search(r"(start|ask|read).{0,20} (at|from|for) version \d|startingVersion \d", str(refused.value))


OBSTACLES: dict[str, Callable[[DeltaTableBuilder], object]] = {
    "feed off": lambda table: table.set_properties(**{"delta.enableChangeDataFeed": "false"}),
    "feed off and on again": lambda table: table.set_properties(
        **{"delta.enableChangeDataFeed": "false"}
    ).set_properties(**FEED),
    "newer protocol": lambda table: table.commit(
        [
            {
                "protocol": {
                    "minReaderVersion": 3,
                    "minWriterVersion": 7,
                    "readerFeatures": ["somethingNew"],
                    "writerFeatures": ["somethingNew"],
                }
            }
        ],
        "UPGRADE",
    ),
}


@pytest.mark.parametrize("place", [3, 4, 9, 20])
@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_what_comes_before_an_obstacle_is_delivered(
    share: Share, table: DeltaTableBuilder, way: dict[str, str], obstacle: str, place: int
) -> None:
    """All versions of a block are asked for at once; those before one that cannot be read come all the same, and then the error."""
    options = {**share(table), **way, "readChangeFeed": "true", "startingVersion": "0", "maxVersionsPerRpc": "50"}
    checkpoint = Checkpoint()
    run = Run(checkpoint, options, available_now=False)
    run.step()
    while table.version < 25:
        if table.version + 1 == place:
            OBSTACLES[obstacle](table)
        else:
            table.append(numbered(table.version + 2))
    match = "somethingNew" if obstacle == "newer protocol" else r"read all before version .*every row.*anew"
    # As the reference server: it lists no changes at all of a table whose feed is off now.
    is_listed = way["accessMode"] == "dir" or obstacle != "feed off"
    for _ in range(2):
        with pytest.raises(DeltaSharingError, match=match) as refused:
            run.drain()
        assert checkpoint.ids == list(range(place + 1 if is_listed else 4))
        assert "ask for a range" not in str(refused.value)
        if obstacle == "newer protocol":
            break  # a restart learns the columns of the newest version, which are not read
        run = Run(checkpoint, options)


def test_a_file_that_is_gone_says_that_no_restart_helps(
    share: Share, table: DeltaTableBuilder, way: dict[str, str], feed: dict[str, str]
) -> None:
    options = {**share(table), **way, **feed}
    checkpoint = Checkpoint()
    with pytest.raises(Killed):
        Run(checkpoint, options).step("planned")
    for file in table.path.glob("*.parquet"):
        file.unlink()
    with pytest.raises(FileGoneError, match=r"s\.d\.t.*no longer has it.*begin anew, with another checkpoint$") as gone:
        Run(checkpoint, options).step()
    assert gone.value.file is not None


def test_a_damaged_checkpoint_that_runs_backwards(share: Share, table: DeltaTableBuilder) -> None:
    checkpoint = Checkpoint()
    run = Run(checkpoint, {**share(table), "startingVersion": "0", "maxFilesPerTrigger": "2"}).drain()
    first, last = json.loads(checkpoint.offsets[0]), checkpoint.last
    with pytest.raises(StreamError, match="the checkpoint is damaged"):
        run.reader.partitions(last, first)
