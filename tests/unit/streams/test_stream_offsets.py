"""Offsets: a checkpoint of today is read by every later release, and is believed only where it belongs to the stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_sharing_spark import SharingClient
from delta_sharing_spark.access.contract import StreamIdentity
from delta_sharing_spark.access.stream.planner import Position
from delta_sharing_spark.errors import StreamError
from delta_sharing_spark.flight.gateway import FlightGateway
from delta_sharing_spark.flight.settings import GatewaySettings
from delta_sharing_spark.spark.streaming import INITIAL, StreamOffset, check_identity, is_initial, parse_offset
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from unit.streams.spark_loop import Checkpoint, Rows, Run

SCHEMA = pa.schema([("id", pa.int64())])
Share = Callable[..., dict[str, str]]

#: As checkpoints hold them: never to be edited, only added to.
SAMPLES = {
    "a version read to its end": '{"sourceVersion": 1, "tableId": "7ba6c1f3", "mode": "url", "format": "delta", '
    '"fileIdHash": "delta", "first": {"version": 3, "index": 0, "snapshot": true}, "version": 8, "index": 0, '
    '"snapshot": false}',
    "the middle of a snapshot": '{"sourceVersion": 1, "tableId": "7ba6c1f3", "mode": "url", "format": "delta", '
    '"fileIdHash": "delta", "first": {"version": 3, "index": 0, "snapshot": true}, "version": 3, "index": 1000, '
    '"snapshot": true}',
    "the middle of a version": '{"sourceVersion": 1, "tableId": "7ba6c1f3", "mode": "url", "format": "parquet", '
    '"fileIdHash": "delta", "first": {"version": 0, "index": 0, "snapshot": false}, "version": 4, "index": 2, '
    '"snapshot": false}',
    "a server without fileidhash": '{"sourceVersion": 1, "tableId": "7ba6c1f3", "mode": "url", "format": "parquet", '
    '"fileIdHash": null, "first": {"version": 0, "index": 0, "snapshot": false}, "version": 4, "index": 2, '
    '"snapshot": false}',
    "by directory": '{"sourceVersion": 1, "tableId": "7ba6c1f3", "mode": "dir", "format": "log", "fileIdHash": "path", '
    '"first": {"version": 5, "index": 0, "snapshot": false}, "version": 5, "index": 7, "snapshot": false}',
}
MIDDLE = json.loads(SAMPLES["the middle of a version"])


@pytest.mark.parametrize("text", SAMPLES.values(), ids=list(SAMPLES))
def test_a_sample_is_read_as_ever_and_written_with_what_the_jvm_connector_reads(text: str) -> None:
    """That connector (4.4, client 1.4.1) reads sourceVersion, index and isStartingVersion, and tableId and tableVersion in the parquet
    format, reservoirId and reservoirVersion in delta."""
    tree = json.loads(text)
    offset = parse_offset(tree, "s.d.t")
    assert (offset.position.version, offset.position.index, offset.position.snapshot) == (
        tree["version"],
        tree["index"],
        tree["snapshot"],
    )
    written = offset.to_json()
    assert parse_offset(written, "s.d.t") == offset
    if offset.position.in_the_middle:
        assert {name: written[name] for name in tree} == tree
        # No number: it fails there, with this text in its error.
        assert f"startingVersion={tree['version'] + tree['snapshot']} " in written["tableVersion"]
        assert written["reservoirVersion"] == written["tableVersion"]
    else:
        theirs = {"sourceVersion": 1, "tableId": tree["tableId"], "tableVersion": tree["version"], "index": -1}
        theirs |= {"reservoirId": tree["tableId"], "reservoirVersion": tree["version"]}
        assert {**written, **theirs, "isStartingVersion": False} == written


@pytest.mark.parametrize(
    "tree",
    [
        {"sourceVersion": 1, "tableId": "7ba6c1f3", "tableVersion": 9, "index": -1, "isStartingVersion": False},
        {"sourceVersion": 1, "reservoirId": "7ba6c1f3", "reservoirVersion": 9, "index": -1, "isStartingVersion": False},
        {
            "sourceVersion": 3,
            "reservoirId": "7ba6c1f3",
            "reservoirVersion": 9,
            "index": -100,
            "isStartingVersion": False,
        },
    ],
)
def test_an_offset_of_the_jvm_connector_is_read_at_the_end_of_a_version(tree: dict[str, Any]) -> None:
    offset = parse_offset(tree, "s.d.t")
    assert (offset.position, offset.identity.table_id) == (Position(9), "7ba6c1f3")
    check_identity(offset, StreamIdentity("7ba6c1f3", "dir", "log", "path"), "s.d.t")
    with pytest.raises(StreamError, match=r"JVM connector.* read version 9 in part.*startingVersion=9"):
        parse_offset({**tree, "index": 3}, "s.d.t")
    with pytest.raises(StreamError, match=r"the snapshot of version 9 in part.*no startingVersion"):
        parse_offset({**tree, "index": 3, "isStartingVersion": True}, "s.d.t")
    with pytest.raises(StreamError, match="damaged"):
        parse_offset({**tree, "index": None}, "s.d.t")


def test_the_beginning_is_a_constant() -> None:
    assert json.dumps(INITIAL) == '{"sourceVersion": 1, "initial": true}'
    assert is_initial(json.loads('{"sourceVersion": 1, "initial": true}'))
    assert not is_initial(json.loads('{"sourceVersion": 2, "initial": true}'))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sourceVersion": None}, "Cannot find 'sourceVersion' .* s.d.t; .*another checkpoint"),
        ({"sourceVersion": "foo"}, r"sourceVersion\(foo\) is invalid"),
        ({"sourceVersion": True}, r"sourceVersion\(True\) is invalid"),
        ({"sourceVersion": 2}, "sourceVersion 2, this release reads 1; upgrade delta-sharing-spark"),
        ({"tableId": 7}, "tableId=7; the checkpoint is damaged"),
        ({"mode": None}, "mode=None; the checkpoint is damaged"),
        ({"format": None}, "format=None"),
        ({"version": "4"}, "version='4'"),
        ({"version": -1}, "version=-1"),
        ({"index": True}, "index=True"),
        ({"snapshot": None}, "snapshot=None"),
        ({"first": None}, "first=None"),
        ({"first": {"version": 0, "index": 0}}, "snapshot=None"),
        # The JVM connector's own, of a checkpoint that is carried over.
        (
            {"sourceVersion": 1, "tableVersion": 4, "isStartingVersion": False, "mode": None},
            "the checkpoint is damaged",
        ),
    ],
    ids=str,
)
def test_what_is_no_offset_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(StreamError, match=message):
        parse_offset({**MIDDLE, **change}, "s.d.t")


@pytest.mark.parametrize("tree", [7, None, [], "x", {"logOffset": 0}], ids=str)
def test_a_checkpoint_of_another_source_is_refused(tree: Any) -> None:
    """As Spark's own sources write their offsets, JSON of any kind."""
    assert not is_initial(tree)
    with pytest.raises(StreamError, match=r"Cannot find 'sourceVersion' .* belongs to another source"):
        parse_offset(tree, "s.d.t")


URL = StreamIdentity("7ba6c1f3", "url", "parquet", "delta")
UNHASHED = StreamIdentity("7ba6c1f3", "url", "parquet", None)


@pytest.mark.parametrize(
    ("then", "now", "refusal"),
    [
        (
            URL,
            StreamIdentity("other", "url", "parquet", "delta"),
            r"id 7ba6c1f3, s.d.t has the id other: .* of another table, .* or the table was replaced; .*new checkpoint",
        ),
        (
            URL,
            StreamIdentity("7ba6c1f3", "dir", "log", "path"),
            "version 4.*accessMode=url and responseFormat=parquet until",
        ),
        (StreamIdentity("7ba6c1f3", "dir", "log", "path"), URL, "version 4.*set accessMode=dir until"),
        (URL, StreamIdentity("7ba6c1f3", "url", "parquet", None), r"file ids: delta"),
        (URL, StreamIdentity("7ba6c1f3", "url", "delta", "delta"), None),
        (UNHASHED, StreamIdentity("7ba6c1f3", "url", "delta", None), "in the parquet format .file ids: of that format"),
        (UNHASHED, UNHASHED, None),
    ],
)
@pytest.mark.parametrize("middle", [Position(4, 2), Position(4, 2, True)], ids=["rows", "changes"])
def test_the_middle_of_a_version_goes_on_only_in_the_same_order(
    then: StreamIdentity, now: StreamIdentity, refusal: str | None, middle: Position
) -> None:
    begun = Position(0)
    if refusal is None:
        check_identity(StreamOffset(middle, begun, then), now, "s.d.t")
    else:
        with pytest.raises(StreamError, match=refusal):
            check_identity(StreamOffset(middle, begun, then), now, "s.d.t")
    if then.table_id == now.table_id:
        check_identity(StreamOffset(Position(4), begun, then), now, "s.d.t")


def numbered(ids: Iterable[int]) -> Rows:
    return [{"id": i} for i in ids]


@pytest.fixture
def table(tmp_path: Path) -> DeltaTableBuilder:
    built = DeltaTableBuilder(tmp_path / "t", SCHEMA)
    return built.append(numbered(range(8)), files=4).append(numbered(range(8, 10)), files=2)


BY_URL, BY_DIR = {"accessMode": "url"}, {"accessMode": "dir"}


def begun(options: dict[str, str]) -> Checkpoint:
    """A checkpoint in the middle of version 1."""
    checkpoint = Checkpoint()
    Run(checkpoint, options).step()
    assert (checkpoint.last["version"], checkpoint.last["index"]) == (1, 2)
    return checkpoint


@pytest.mark.parametrize("start", [{}, {"startingVersion": "0"}], ids=["snapshot", "version"])
@pytest.mark.parametrize(("first", "then"), [(BY_URL, BY_DIR), (BY_DIR, BY_URL)])
def test_another_mode_goes_on_at_the_end_of_a_version(
    share: Share, table: DeltaTableBuilder, first: dict[str, str], then: dict[str, str], start: dict[str, str]
) -> None:
    options = {**share(table), **start, "maxFilesPerTrigger": "2"}
    checkpoint = Checkpoint()
    Run(checkpoint, {**options, **first}).step()
    with pytest.raises(StreamError, match=f"set accessMode={first['accessMode']}"):
        Run(checkpoint, {**options, **then}).step()
    Run(checkpoint, {**options, **first}).drain()
    table.append(numbered([10]))
    Run(checkpoint, {**options, **then}).drain()
    assert checkpoint.ids == list(range(11))


def test_a_server_without_fileidhash_keeps_to_one_format(
    share: Share, server: SharingServer, table: DeltaTableBuilder
) -> None:
    options = {**share(table), **BY_URL, "startingVersion": "0", "maxFilesPerTrigger": "2"}
    server.settings.file_id_hash = False
    checkpoint = begun({**options, "responseFormat": "parquet"})
    assert (checkpoint.last["format"], checkpoint.last["fileIdHash"]) == ("parquet", None)
    run = Run(checkpoint, options)
    run.step()
    assert (checkpoint.last["format"], checkpoint.last["version"]) == ("parquet", 2)
    Run(checkpoint, options).drain()
    assert checkpoint.last["format"] == "delta", "at the end of a version the format is that of ranges"
    assert checkpoint.ids == list(range(10))


@pytest.mark.parametrize("echoed", [True, False])
def test_a_server_that_changes_the_order_stops_the_stream(
    share: Share, server: SharingServer, table: DeltaTableBuilder, echoed: bool
) -> None:
    options = {**share(table), **BY_URL, "startingVersion": "0", "maxFilesPerTrigger": "2", "maxVersionsPerRpc": "1"}
    server.settings.file_id_hash = echoed
    checkpoint = begun(options)
    server.settings.file_id_hash = not echoed
    if echoed:
        with pytest.raises(StreamError, match=r"orders the files of s\.d\.t otherwise.*restart the stream"):
            Run(checkpoint, options).step()
        assert checkpoint.committed == 1
    else:
        # The offset says that no hash was echoed, so none is asked for, and the order is the format's still.
        Run(checkpoint, options).drain()
        assert checkpoint.ids == list(range(10))


@pytest.mark.parametrize("start", [{}, {"startingVersion": "0"}], ids=["snapshot", "version"])
def test_a_position_behind_the_files_of_its_version_is_refused(
    share: Share, table: DeltaTableBuilder, way: dict[str, str], start: dict[str, str]
) -> None:
    options = {**share(table), **way, **start, "maxFilesPerTrigger": "2"}
    checkpoint = Checkpoint()
    Run(checkpoint, options).step()
    damaged = json.dumps({**checkpoint.last, "index": 9})
    refusal = r"counts 9 files as read of version \d, which has \d; the checkpoint is damaged"
    with pytest.raises(StreamError, match=refusal):  # the end of a batch that was planned, and is read after a restart
        Run(Checkpoint([damaged]), options).step()
    with pytest.raises(StreamError, match=refusal):
        Run(Checkpoint([damaged], committed=1), options).step()


def test_a_version_that_was_begun_without_its_changes_is_not_gone_on_with_as_changes(
    tmp_path: Path, share: Share, way: dict[str, str]
) -> None:
    table = DeltaTableBuilder(tmp_path / "t", SCHEMA, properties={"delta.enableChangeDataFeed": "true"})
    table.append(numbered(range(8)), files=4)
    table.update(lambda t: pc.less(t["id"], 8), lambda t: numbered(i + 10 for i in t["id"].to_pylist()))
    options = {**share(table), **way, "startingVersion": "2", "ignoreChanges": "true"}
    checkpoint = Checkpoint()
    Run(checkpoint, {**options, "maxFilesPerTrigger": "2"}).step()
    assert (checkpoint.last["version"], checkpoint.last["index"]) == (2, 2)
    with pytest.raises(StreamError, match="in the middle of version 2, read without readChangeFeed; leave that out"):
        Run(checkpoint, {**options, "readChangeFeed": "true"}).step()
    Run(checkpoint, options).drain()
    assert checkpoint.ids == list(range(10, 18))
    table.append(numbered([18]))
    Run(checkpoint, {**options, "readChangeFeed": "true"}).drain()
    assert checkpoint.ids == list(range(10, 19))


@pytest.fixture
def through(tmp_path: Path, server: SharingServer) -> Iterator[dict[str, str]]:
    """Options that load ``s.d.t`` through a gateway, whose splits are small."""
    (tmp_path / "token").write_text("token")
    with FlightGateway(SharingClient(server.profile()), GatewaySettings(tokens=("token",))) as gateway:
        token = str(tmp_path / "token")
        yield {"path": "s.d.t", "gateway": gateway.uri, "gatewayTokenFile": token, "maxSplitBytes": "1k"}


@pytest.mark.parametrize("mode", ["url", "dir", "flight"])
def test_rows_that_pass_the_condition_before_and_after_come_once(
    tmp_path: Path, share: Share, through: dict[str, str], mode: str
) -> None:
    """A condition may be another after a restart, and one of relative moments is."""
    options = share(DeltaTableBuilder(tmp_path / "t", SCHEMA).append(numbered(range(12)), files=12))
    options |= {"maxFilesPerTrigger": "1", **(through if mode == "flight" else {"accessMode": mode})}
    checkpoint = Checkpoint()
    places = []
    for condition in ("id IN (1, 4, 7, 10)", "id IN (1, 4, 7, 10) OR id > 5", "id IN (1, 4, 7, 10) OR id < 5"):
        Run(checkpoint, {**options, "where": condition}).step()
        places.append(checkpoint.last["index"])
    assert min(places) > 0
    Run(checkpoint, options).drain()
    assert len(checkpoint.ids) == len(set(checkpoint.ids))
    assert {1, 4, 7, 10} <= set(checkpoint.ids)


def test_splits_of_another_size_stop_a_stream_through_a_gateway(
    share: Share, table: DeltaTableBuilder, through: dict[str, str]
) -> None:
    options = {**share(table), **through, "maxFilesPerTrigger": "1"}
    checkpoint = Checkpoint()
    Run(checkpoint, options).step()
    with pytest.raises(StreamError, match=r"by .*maxSplitBytes=2048, the stream's by .*maxSplitBytes=1024; restart"):
        Run(checkpoint, {**options, "maxSplitBytes": "2k"}).step()
    with pytest.raises(StreamError, match="in the same way: load through the gateway until that version is read"):
        Run(checkpoint, {**share(table), "accessMode": "url"}).step()
    Run(checkpoint, options).drain()
    assert checkpoint.ids == list(range(10))


def test_a_table_that_was_replaced_stops_the_stream(
    tmp_path: Path, share: Share, server: SharingServer, table: DeltaTableBuilder, way: dict[str, str]
) -> None:
    options = {**share(table), **way}
    checkpoint = Checkpoint()
    running = Run(checkpoint, options, available_now=False).drain()
    other = DeltaTableBuilder(tmp_path / "other" / "t", SCHEMA)
    for _ in range(3):
        other.append(numbered([1]))
    share(other)
    with pytest.raises(StreamError, match=r"or the table was replaced; start the stream with a new checkpoint"):
        Run(checkpoint, options).step()
    if way["accessMode"] == "url":
        with pytest.raises(StreamError, match="was replaced by another table since the stream started"):
            running.drain()
    assert checkpoint.committed == len(checkpoint.offsets) == 1
