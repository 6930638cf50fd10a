"""Streams over the embedded server: in the end a sink holds what the table's builder says, whatever happens on the way."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, note

from delta_sharing_spark import SharingClient
from delta_sharing_spark.flight.gateway import FlightGateway
from delta_sharing_spark.flight.settings import GatewaySettings
from delta_sharing_spark.scan.plan import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from delta_sharing_spark.spark import streaming
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support.drawing import cases, drawn, one_of
from unit.streams.spark_loop import Checkpoint, Killed, Rows, Run, ordered

SCHEMA = pa.schema([("id", pa.int64()), ("s", pa.string())])
CHANGE_COLUMNS = [CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP]
FEED = {"delta.enableChangeDataFeed": "true"}
Share = Callable[..., dict[str, str]]


def rows(first: int, count: int) -> Rows:
    return [{"id": i, "s": f"row {i}"} for i in range(first, first + count)]


def committed_at(table: DeltaTableBuilder, version: int) -> datetime:
    moment: int = table.commits[version][0]["commitInfo"]["timestamp"]
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=moment)


def expected(table: DeltaTableBuilder, checkpoint: Checkpoint, *, feed: bool) -> Rows:
    """What a stream that began where the checkpoint says has read by the table's newest version."""
    first = checkpoint.last["first"]
    version, rows = first["version"], []
    if first["snapshot"]:
        rows = table.expected(version).to_pylist()
        if feed:
            constants = (
                (CHANGE_TYPE, "insert"),
                (COMMIT_VERSION, version),
                (COMMIT_TIMESTAMP, committed_at(table, version)),
            )
            rows = [{**row, **dict(constants)} for row in rows]
        version += 1
    changes = table.expected_changes(version) if version <= table.version else None
    if changes is not None:
        if not feed:
            assert set(changes[CHANGE_TYPE].to_pylist()) <= {"insert"}
            changes = changes.drop_columns(CHANGE_COLUMNS)
        rows += changes.to_pylist()
    return ordered(rows)


_IDS = itertools.count()


@pytest.fixture(scope="module")
def shared() -> Any:
    with SharingServer() as running, tempfile.TemporaryDirectory() as directory:
        profile, token = running.write_profile(Path(directory) / "config.share"), Path(directory) / "token"
        token.write_text("token")
        with FlightGateway(SharingClient(profile), GatewaySettings(tokens=("token",))) as gateway:
            through = {"gateway": gateway.uri, "gatewayTokenFile": str(token), "maxSplitBytes": "1k"}
            yield running, Path(directory), profile, through
        assert not running.failures


APPENDS = ("append", "append two files", "optimize", "nothing")
CHANGES = (*APPENDS, "delete", "mark deleted", "update")
STEPS = ("step", "restart", "killed planned", "killed split", "killed written", "expire")


def change(table: DeltaTableBuilder, what: str) -> None:
    newest = table.version * 10
    match what:
        case "append" | "append two files":
            table.append(rows(newest, 4), files=1 if what == "append" else 2)
        case "optimize":
            table.optimize()
        case "nothing":
            table.commit([])
        case "delete" | "mark deleted":
            table.delete(ids(lambda i: i % 4 == newest % 3), deletion_vectors=what == "mark deleted")
        case "update":
            table.update(ids(lambda i: i % 4 == 3), lambda t: t.set_column(1, "s", pa.array(["moved"] * len(t))))


def ids(chosen: Callable[[int], bool]) -> Callable[[pa.Table], pa.Array]:
    return lambda t: pa.array([chosen(i) for i in t["id"].to_pylist()])


def some_options(random: Random) -> dict[str, str]:
    """Of a stream of a snapshot or of changes, but where the table is."""
    feed = random.choice(["true", "false"])
    ways = [{"accessMode": "dir"}, {"accessMode": "url"}, {}]  # none: through the gateway
    ways += [{"accessMode": "url", "responseFormat": "parquet"}] if feed == "false" else []
    options = {"pollInterval": "0.001ms", "readChangeFeed": feed, **random.choice(ways)}
    options |= random.choice([{}, {"startingVersion": "0"}, {"startingVersion": "latest"}])
    files = random.choice([None, 1, 2, 3])
    limits = [{}, {"maxBytesPerTrigger": "1500b"}] if files is None else [{"maxFilesPerTrigger": str(files)}]
    return {**options, **random.choice(limits), "maxVersionsPerRpc": str(random.randint(1, 4))}


@cases(15)
@given(drawn(some_options, one_of((), ("s",)), one_of(None, 1, 2), *[one_of(False, True)] * 2, lambda random: random))
def test_exactly_once_whatever_happens(shared: Any, case: tuple[Any, ...]) -> None:
    server, directory, profile, through = shared
    options, partitions, page_size, hashed, admission, random = case
    feed = options["readChangeFeed"] == "true"
    properties = {**FEED, "delta.enableDeletionVectors": "true"} if feed else {}
    table = DeltaTableBuilder(directory / f"t{next(_IDS)}", SCHEMA, partitions, properties)
    server.add_table(f"s.d.{table.path.name}", table.path, access_modes=("url", "dir"))
    name = f"s.d.{table.path.name}"
    options |= {"path": f"{profile}#{name}"} if "accessMode" in options else {**through, "path": name}
    server.settings.page_size, server.settings.file_id_hash = page_size, hashed
    events = random.choices((CHANGES if feed else APPENDS) + STEPS, k=random.randint(4, 14))
    note(f"events: {events}")
    with patch.object(streaming, "ADMISSION_CONTROL", admission):
        checkpoint = Checkpoint()
        change(table, "append two files")
        run = Run(checkpoint, options, available_now=False)
        for event in events:
            match event.split():
                case ["step"]:
                    run.step()
                case ["expire"]:
                    run.step(between=server.expire_urls)
                case ["restart"]:
                    run = Run(checkpoint, options, available_now=False)
                case ["killed", moment]:
                    try:
                        run.step(kill=moment)
                    except Killed:
                        run = Run(checkpoint, options, available_now=False)
                case _:
                    change(table, event)
        Run(checkpoint, options).drain()
    assert checkpoint.rows == expected(table, checkpoint, feed=feed)


def test_every_way_gives_the_same_batches_in_the_end(
    tmp_path: Path, share: Share, way: dict[str, str], feed: dict[str, str]
) -> None:
    table = DeltaTableBuilder(tmp_path / "t", SCHEMA, ("s",), FEED)
    options = {**share(table.append(rows(0, 5), files=2)), **way, **feed, "maxFilesPerTrigger": "2"}
    checkpoint = Checkpoint()
    Run(checkpoint, options).drain()
    table.append(rows(10, 5)).optimize().append(rows(20, 2))
    if feed:
        table.update(pc.field("id") == 3, lambda t: t.set_column(1, "s", pa.array(["moved"] * len(t))))
        table.delete(pc.field("id") > 12)
    Run(checkpoint, options).drain()
    assert checkpoint.rows == expected(table, checkpoint, feed=bool(feed))


@pytest.mark.parametrize(
    ("limit", "batches"),
    [
        ({}, [5]),
        ({"maxFilesPerTrigger": "2"}, [2, 2, 1]),
        ({"maxFilesPerTrigger": "1"}, [1, 1, 1, 1, 1]),
        ({"maxBytesPerTrigger": "1b"}, [1, 1, 1, 1, 1]),
        ({"maxBytesPerTrigger": "1g"}, [5]),
        ({"maxVersionsPerRpc": "1"}, [5]),
    ],
    ids=str,
)
def test_limits_bound_a_batch(
    tmp_path: Path, share: Share, server: SharingServer, limit: dict[str, str], batches: list[int]
) -> None:
    table = DeltaTableBuilder(tmp_path / "t", SCHEMA).append(rows(0, 4), files=2).append(rows(10, 6), files=3)
    options = {**share(table), "startingVersion": "0", "accessMode": "url", **limit}
    run = Run(Checkpoint(), options).drain()
    assert [len(run.files[batch]) for batch in sorted(run.files)] == batches
    asked = [r for r in server.requests if r.kind == "query"]
    assert len(asked) == (3 if "maxVersionsPerRpc" in limit else 1)


def test_a_commit_of_a_change_stream_is_not_split(tmp_path: Path, share: Share, way: dict[str, str]) -> None:
    table = DeltaTableBuilder(tmp_path / "t", SCHEMA, properties=FEED)
    for version in range(1, 4):
        table.append(rows(version * 10, 6), files=version)
    options = {**share(table), **way, "startingVersion": "0", "readChangeFeed": "true", "maxFilesPerTrigger": "2"}
    checkpoint = Checkpoint()
    run = Run(checkpoint, options).drain()
    assert [len(run.files[batch]) for batch in sorted(run.files)] == [1, 2, 3]
    assert [{r[COMMIT_VERSION] for r in checkpoint.sink[b]} for b in range(3)] == [{1}, {2}, {3}]


@pytest.mark.parametrize(
    ("options", "appended", "message"),
    [
        ({}, [0, 1], r"Detected deleted data .* at version 2\..*'ignoreDeletes'"),
        ({"ignoreDeletes": "true"}, [0, 1, 10, 11], r"Detected a data update .* at version 4\..*'skipChangeCommits'"),
        ({"ignoreChanges": "true"}, [0, 1, 10, 11, 11, 20], None),
        ({"skipChangeCommits": "true"}, [0, 1, 10, 11, 20], None),
    ],
    ids=str,
)
def test_versions_that_remove(
    tmp_path: Path, share: Share, way: dict[str, str], options: dict[str, str], appended: list[int], message: str | None
) -> None:
    table = DeltaTableBuilder(tmp_path / "t", SCHEMA).append(rows(0, 2))
    table.delete(pc.field("id") < 10).append(rows(10, 2)).delete(pc.field("id") == 10).append(rows(20, 1))
    checkpoint = Checkpoint()
    run = Run(checkpoint, {**share(table), **way, **options, "startingVersion": "0"})
    if message is None:
        run.drain()
    else:
        with pytest.raises(Exception, match=message):
            run.drain()
    assert checkpoint.ids == appended


@pytest.mark.parametrize("start", [{"startingVersion": "2"}, {"startingTimestamp": "between"}], ids=str)
def test_a_start_in_the_history(tmp_path: Path, share: Share, way: dict[str, str], start: dict[str, str]) -> None:
    times = itertools.count(1_700_000_000_000, 60_000)
    table = DeltaTableBuilder(tmp_path / "t", SCHEMA, clock=lambda: next(times))
    table.append(rows(0, 2)).append(rows(10, 2)).append(rows(20, 2))
    if "startingTimestamp" in start:
        between = committed_at(table, 1) + timedelta(seconds=1)
        start = {"startingTimestamp": between.strftime("%Y-%m-%dT%H:%M:%SZ")}
    checkpoint = Checkpoint()
    Run(checkpoint, {**share(table), **way, **start}).drain()
    assert checkpoint.ids == [10, 11, 20, 21]


def test_columns_and_where_of_a_stream(tmp_path: Path, share: Share, way: dict[str, str], feed: dict[str, str]) -> None:
    table = DeltaTableBuilder(tmp_path / "t", SCHEMA, ("s",), FEED).append(rows(0, 9)).append(rows(20, 9))
    checkpoint = Checkpoint()
    options = {
        **share(table),
        **way,
        **feed,
        "columns": "id",
        "where": "id in (0, 2, 4, 6, 8, 20, 22, 24, 26, 28) and s <> 'row 24'",
    }
    Run(checkpoint, {**options, "maxFilesPerTrigger": "5"}).drain()
    table.append(rows(24, 3))
    Run(checkpoint, {**options, "maxFilesPerTrigger": "5"}).drain()
    assert checkpoint.ids == [0, 2, 4, 6, 8, 20, 22, 26, 26, 28]
