"""Checkpoints that cannot be read, or list other files than the log says beside them, while the commits are there: every row comes all
the same, and one warning names the file. Where nothing can stand in for them, they are refused."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from delta_sharing_spark.deltalog import replay
from delta_sharing_spark.deltalog.log_store import CachedLogStore
from delta_sharing_spark.deltalog.paths import LAST_CHECKPOINT, checksum_name, commit_name, in_log
from delta_sharing_spark.deltalog.replay import load_head, read_snapshot
from delta_sharing_spark.errors import LogError
from unit.deltalog.logbuilder import TimedStore, add, log, metadata, protocol, remove, write_checkpoint

KINDS = ["classic", "multipart", "v2json", "v2parquet", "v2json-inline", "v2parquet-inline"]
HEAD = [protocol(), metadata()]
#: By version, after commits that add a to f and remove b.
LIVE = ["a", "c", "d", "e", "f"]
#: The version of the damaged checkpoint; those before it have one at 2.
DAMAGED, NEWEST = 4, 6


@pytest.fixture(autouse=True)
def _warnings(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    replay._WARNED.clear()
    caplog.set_level(logging.WARNING, "delta_sharing_spark")
    yield
    replay._WARNED.clear()


def built(kind: str, *, earlier: bool = False, rows: list[dict[str, Any]] | None = None) -> TimedStore:
    """A log of seven commits, with a checkpoint of four live files at version 4, or of ``rows`` instead."""
    files: list[list[dict[str, Any]]] = [[add(name)] for name in "abcd"]
    store = log([*HEAD, *files[0]], *files[1:], [remove("b"), add("e")], [add("f")], [])
    store.files[in_log(commit_name(NEWEST))] = b'{"commitInfo":{"operation":"OPTIMIZE"}}\n'
    if earlier:
        write_checkpoint(store, 2, [*HEAD, add("a"), add("b"), add("c")], "classic")
    if rows is None:
        rows = [*HEAD, add("a"), add("c"), add("d"), add("e"), remove("b")]
    write_checkpoint(store, DAMAGED, rows, kind)
    return store


def checkpoint_files(store: TimedStore) -> list[str]:
    """The files of the damaged checkpoint, sidecars included."""
    return sorted(p for p in store.files if f"{DAMAGED:020d}.checkpoint" in p or f"_sidecars/{DAMAGED}-" in p)


def files_of(store: Any, version: int | None = None) -> list[str]:
    return read_snapshot(store, lambda s: sorted(task.id for task in s.tasks()), version=version, table="s.d.t")


def hint(**more: Any) -> bytes:
    return json.dumps({"version": DAMAGED, "size": 7, **more}).encode()


def checksum(files: int, **more: Any) -> bytes:
    return json.dumps(
        {"numFiles": files, "tableSizeBytes": 10 * files, "numMetadata": 1, "numProtocol": 1, **more}
    ).encode()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "one byte": lambda data: data[:1],
    "cut in the middle": lambda data: data[: len(data) // 2],
    "cut before its end": lambda data: data[:-2],
    "its end is zeros": lambda data: data[:-64] + bytes(64),
    "its middle is zeros": lambda data: data[:8] + bytes(len(data) // 2) + data[8 + len(data) // 2 :],
    "another file": lambda data: b"<html>not found</html>",
}


FILES_OF_KINDS = [(kind, name) for kind in KINDS for name in checkpoint_files(built(kind))]


@pytest.mark.parametrize("earlier", [False, True], ids=["", "an earlier one"])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(("kind", "name"), FILES_OF_KINDS)
def test_a_damaged_file_of_a_checkpoint_hides_no_row(
    kind: str, name: str, damage: str, earlier: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store = built(kind, earlier=earlier)
    store.files[name] = DAMAGES[damage](store.files[name])
    kept = CachedLogStore(store)
    assert load_head(kept).version == NEWEST
    assert files_of(kept) == files_of(store) == files_of(kept, NEWEST) == LIVE
    assert files_of(kept, DAMAGED) == LIVE[:-1]
    assert files_of(kept, 3) == ["a", "b", "c", "d"]
    (warning,) = [record.getMessage() for record in caplog.records]
    assert f"checkpoint of version {DAMAGED} of" in warning
    assert name.rpartition("/")[2] in warning
    assert "version 6 is replayed from" in warning
    assert ("0002.checkpoint.parquet" in warning) == earlier


@pytest.mark.parametrize("known_version", [None, NEWEST])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", ["classic", "multipart", "v2json-inline"])
def test_a_log_that_cannot_be_listed_is_replayed_without_it_too(
    kind: str, damage: str, known_version: int | None
) -> None:
    """``_last_checkpoint`` names the damaged one."""
    store = built(kind, earlier=True)
    files = checkpoint_files(store)
    named = {"parts": 2} if kind == "multipart" else {"v2Checkpoint": {"path": files[0].rpartition("/")[2]}}
    store.files[LAST_CHECKPOINT] = hint(**named)
    store.files[files[-1]] = DAMAGES[damage](store.files[files[-1]])
    store.listing = False
    store.known_version = known_version
    assert files_of(CachedLogStore(store)) == files_of(store) == LIVE


@pytest.mark.parametrize(("kind", "name"), FILES_OF_KINDS)
def test_without_the_commits_it_is_refused_by_its_name(kind: str, name: str) -> None:
    store = built(kind)
    for version in range(DAMAGED):
        del store.files[in_log(commit_name(version))]
    assert files_of(store) == LIVE
    store.files[name] = store.files[name][: len(store.files[name]) // 2]
    cannot = r"checkpoint of version 4 of s.d.t cannot be read.*ask the provider"
    with pytest.raises(LogError, match=cannot) as first:
        files_of(store)
    with pytest.raises(LogError, match=cannot) as again:
        files_of(store)
    assert {first.value.file, again.value.file} <= {name, checkpoint_files(store)[0]}


def test_a_checkpoint_whose_commit_is_gone_is_never_passed_over_for_an_older_version() -> None:
    store = built("classic", earlier=True)
    for version in range(DAMAGED, NEWEST + 1):
        del store.files[in_log(commit_name(version))]
    assert files_of(store) == LIVE[:-1]
    store.files[checkpoint_files(store)[0]] = b""
    with pytest.raises(LogError, match=r"checkpoint of version 4 of s.d.t cannot be read"):
        files_of(store)


@pytest.mark.parametrize("other", ["classic", "multipart"])
def test_another_checkpoint_of_the_same_version_stands_in(other: str) -> None:
    store = built("v2parquet")
    damaged = next(name for name in checkpoint_files(store) if "_sidecars" not in name)
    write_checkpoint(store, DAMAGED, [*HEAD, add("a"), add("c"), add("d"), add("e")], other)
    for version in range(DAMAGED + 1):
        del store.files[in_log(commit_name(version))]
    store.files[damaged] = store.files[damaged][:100]
    assert files_of(CachedLogStore(store)) == files_of(store) == LIVE


SHORT = [*HEAD, add("a"), add("c"), remove("b")]
NUMBERS: dict[str, dict[str, bytes]] = {
    "_last_checkpoint, files": {LAST_CHECKPOINT: hint(numOfAddFiles=4)},
    "_last_checkpoint, actions": {LAST_CHECKPOINT: hint()},
    "checksum of the checkpoint's version": {in_log(checksum_name(DAMAGED)): checksum(4)},
    "checksum of the version": {in_log(checksum_name(NEWEST)): checksum(5)},
    "bytes alone": {in_log(checksum_name(NEWEST)): checksum(5, numFiles=None)},
    "a corrupt checksum before a good one": {
        in_log(checksum_name(NEWEST)): b"{",
        in_log(checksum_name(DAMAGED)): checksum(4),
    },
}


@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_that_is_valid_and_short_loses_no_row(
    kind: str, numbers: str, caplog: pytest.LogCaptureFixture
) -> None:
    whole, short = built(kind), built(kind, rows=SHORT)
    for store in (whole, short):
        store.files.update(NUMBERS[numbers])
    if numbers == "_last_checkpoint, actions":
        actions = 7 if kind in ("classic", "multipart") else 8 if kind.endswith("-inline") else 10
        short.files[LAST_CHECKPOINT] = whole.files[LAST_CHECKPOINT] = hint(size=actions)
    assert files_of(whole) == LIVE
    assert not caplog.records
    assert files_of(short) == files_of(CachedLogStore(short)) == LIVE
    assert len(caplog.records) == 1
    assert "as _delta_log/" in caplog.text
    for version in range(DAMAGED):
        del whole.files[in_log(commit_name(version))], short.files[in_log(commit_name(version))]
    assert files_of(whole) == LIVE
    with pytest.raises(
        LogError, match=r"version 4 of s.d.t cannot be read.* instead of .*as _delta_log/.*ask the provider"
    ):
        files_of(short)


@pytest.mark.parametrize("kind", ["classic", "multipart", "v2json"])
def test_a_short_checkpoint_is_noticed_without_listing(kind: str) -> None:
    store = built(kind, rows=SHORT)
    name = checkpoint_files(store)[0].rpartition("/")[2]
    named = {"parts": 2} if kind == "multipart" else {"v2Checkpoint": {"path": name}}
    store.listing = False
    store.files[LAST_CHECKPOINT] = hint(numOfAddFiles=4, **named)
    assert files_of(store) == LIVE
    if kind == "classic":
        del store.files[LAST_CHECKPOINT]
        store.files[in_log(checksum_name(DAMAGED))] = checksum(4)
        store.known_version = NEWEST
        assert files_of(store) == LIVE


OTHER_SCHEMA = metadata(
    schema='{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}', partitions=()
)
HEADS = {
    "metadata": [protocol(), OTHER_SCHEMA],
    "protocol": [protocol(features=[]), metadata()],
    "mapping": [protocol(features=["columnMapping"]), metadata(delta__columnMapping__mode="name")],
}


@pytest.mark.parametrize("version", [DAMAGED, NEWEST])
@pytest.mark.parametrize("head", [*HEADS, "the same"])
def test_a_checkpoint_with_another_head_is_done_without(
    head: str, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    more = {"protocol": HEAD[0]["protocol"], "metadata": HEAD[1]["metaData"]}
    store = built("classic", rows=[*HEADS.get(head, HEAD), add("a"), add("c"), add("d"), add("e")])
    store.files[in_log(checksum_name(version))] = checksum(5 if version == NEWEST else 4, **more)
    loaded = load_head(store)
    assert loaded.metadata.partition_columns == ("p",)
    assert loaded.protocol.reader_features == ("deletionVectors", "v2Checkpoint")
    assert files_of(store) == LIVE
    assert len(caplog.records) == (head in HEADS)


@pytest.mark.parametrize("checksum_text", [b"", b"[]", b"{}", b'{"numFiles":"5"}', b'{"protocol":7}'])
@pytest.mark.parametrize(
    "last_checkpoint",
    [
        {"version": 3, "numOfAddFiles": 99, "size": 99},
        {"version": DAMAGED, "numOfAddFiles": "99", "size": -1},
        {"version": DAMAGED, "size": 1},
        {"version": DAMAGED, "numOfAddFiles": 4, "size": 99},
    ],
    ids=str,
)
def test_what_says_nothing_of_the_checkpoint_is_not_compared(
    last_checkpoint: dict[str, Any], checksum_text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A hint of another version, numbers that are none, more actions than the hint says: removed files may be among them."""
    store = built("classic")
    store.files[LAST_CHECKPOINT] = json.dumps(last_checkpoint).encode()
    store.files[in_log(checksum_name(DAMAGED))] = checksum_text
    assert files_of(store) == LIVE
    assert not caplog.records


def test_commits_alone_are_the_authority(caplog: pytest.LogCaptureFixture) -> None:
    """A checksum that all replays contradict is wrong itself, and the commits say so."""
    store = built("classic", earlier=True)
    store.files[in_log(checksum_name(NEWEST))] = checksum(77)
    assert files_of(store) == LIVE
    assert len(caplog.records) == 2
