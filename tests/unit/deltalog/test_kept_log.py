"""A log that is fetched once says what the log says, and looks anew when it is told to."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from typing import Any

import pytest

from delta_sharing_spark.deltalog import log_store as kept_log
from delta_sharing_spark.deltalog.commit_feed import load_commits
from delta_sharing_spark.deltalog.log_store import CachedLogStore
from delta_sharing_spark.deltalog.paths import LAST_CHECKPOINT, commit_name, in_log
from delta_sharing_spark.deltalog.replay import load_head, times_of
from delta_sharing_spark.errors import LogError
from delta_sharing_spark.storage.ranges import ByteSource
from support import HANGS
from unit.deltalog.logbuilder import (
    TimedStore,
    add,
    lines,
    load_snapshot,
    log,
    metadata,
    protocol,
    remove,
    write_checkpoint,
)

FEED = {"delta__enableChangeDataFeed": "true"}


def _store(**options: bool) -> TimedStore:
    first = [protocol(), metadata(**FEED), add("a")]
    store = log(first, [add("b")], [remove("a", size=9, partitionValues={"p": "x"}), add("c")], [add("d")], **options)
    write_checkpoint(store, 1, [protocol(), metadata(**FEED), add("a"), add("b")], "classic")
    store.files[LAST_CHECKPOINT] = b'{"version":1,"size":4}'
    store.times = {commit_name(version): (version + 1) * 100 for version in range(4)}
    return store


@pytest.mark.parametrize("options", [{}, {"listing": False}, {"listing": False, "refuses": True}], ids=str)
@pytest.mark.parametrize("kept_bytes", [1 << 20, 400, 0])
def test_it_says_what_the_log_says(options: dict[str, bool], kept_bytes: int) -> None:
    store = _store(**options)
    kept = CachedLogStore(store, kept_bytes=kept_bytes)
    kept.list_from_version(2)

    def states(read: Any) -> list[Any]:
        """Of versions in an order in which much is kept: the files and the head of each."""
        versions = (None, 3, 2, 1, None)
        files = [sorted(task.id for task in load_snapshot(read, version=version).tasks()) for version in versions]
        return [*files, *(load_head(read, version=version) for version in versions)]

    assert states(kept) == states(store)
    expected = [(commit.version, commit.timestamp_ms, commit.tasks) for commit in load_commits(store, 1, feed=True)]
    assert [
        (commit.version, commit.timestamp_ms, commit.tasks) for commit in load_commits(kept, 1, feed=True)
    ] == expected
    assert times_of(kept).at_or_after(250) == times_of(store).at_or_after(250) == 2


@pytest.mark.parametrize("listing", [True, False])
def test_a_new_version_shows_after_a_refresh_and_not_before(listing: bool) -> None:
    store = _store(listing=listing)
    kept = CachedLogStore(store)
    assert load_head(kept).version == 3
    store.files[in_log(commit_name(4))] = lines([add("e")])
    store.reads.clear()
    assert load_head(kept).version == 3, "one load sees one version"
    assert store.reads == []
    kept.refresh()
    assert load_head(kept).version == 4
    assert in_log(commit_name(3)) not in store.reads, "a commit never changes"


def test_a_listed_file_that_went_is_looked_for_in_a_new_listing() -> None:
    store = _store()
    kept = CachedLogStore(store)
    assert kept.list_from("_delta_log", "") is not None
    del store.files[in_log(commit_name(3))]
    assert load_snapshot(kept).version == 2
    with pytest.raises(LogError):
        load_snapshot(CachedLogStore(TimedStore({})))


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    store = _store()
    size = len(store.files[in_log(commit_name(0))])
    kept = CachedLogStore(store, kept_bytes=2 * size)
    for version in (0, 1, 2, 3):
        kept.read(in_log(commit_name(version)))
    assert sum(map(len, kept._files.values())) == kept._bytes <= 2 * size
    monkeypatch.setattr(kept_log, "_WHOLE_BYTES", 10)
    store.reads.clear()
    assert load_snapshot(kept).version == 3, "a large checkpoint is read by range"


def test_a_large_checkpoint_is_opened_once_and_only_its_files_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_log, "_WHOLE_BYTES", 10)
    opened: list[RangedSource] = []

    class RangedSource:
        """Bytes that are not held, and may be replaced."""

        def __init__(self, name: str, data: bytes) -> None:
            self.name, self.size, self.data, self.fetched = name, len(data), data, list[int]()

        def read(self, start: int, length: int) -> memoryview:
            self.fetched.append(length)
            return memoryview(self.data)[start : start + length]

        def close(self) -> None:
            pass

    class Store(TimedStore):
        def open(self, path: str, size: int | None = None) -> ByteSource:
            opened.append(RangedSource(path, self.read(path)))
            return opened[-1]

    store = Store(dict(_store().files))
    draw = random.Random(1)
    names = [draw.randbytes(40).hex() for _ in range(2000)]
    write_checkpoint(store, 1, [protocol(), metadata(**FEED), *map(add, names)], "classic")
    kept = CachedLogStore(store)
    head = load_head(kept)
    (source,) = opened
    source.fetched.clear()
    assert load_snapshot(kept).metadata is head.metadata
    kept.refresh()
    snapshot = load_snapshot(kept, version=2)
    assert (len(opened), source.fetched) == (1, [])
    assert sorted(task.id for task in snapshot.tasks()) == sorted([*names, "c"])
    assert len(opened) == 1
    source.data = bytes(len(source.data))
    with pytest.raises(LogError, match="checkpoint"):
        list(snapshot.tasks())
    assert len(list(snapshot.tasks())) == 2001, "what failed is opened anew"
    assert load_head(kept, version=0).version == 0
    assert load_head(kept).version == 3
    gc.disable()
    try:
        gone = weakref.ref(kept)
        del kept, snapshot
        assert gone() is None, "nothing that it keeps refers to it"
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", ["multipart", "v2json"])
def test_the_parts_of_a_checkpoint_are_fetched_together_and_read_in_order(kind: str) -> None:
    """Nobody has a part's rows before all parts were asked for; what is missing is told after what comes before it."""
    together = threading.Barrier(2)

    class Store(TimedStore):
        def open(self, path: str, size: int | None = None) -> ByteSource:
            if waits:
                together.wait(HANGS)
            return super().open(path, size)

    waits = False
    files = [add(name) for name in "abcd"]
    store = Store({})
    write_checkpoint(store, 1, [protocol(), metadata(), *files], kind)
    store.files[in_log(commit_name(1))] = lines([])
    snapshot = load_snapshot(store)
    waits = True
    assert [path for batch in snapshot.adds() for path in batch.paths.to_pylist()] == [*"abcd"]
    waits, read = False, list[str]()
    del store.files[max(path for path in store.files if path.endswith(".parquet"))]
    with pytest.raises(LogError, match="it is missing"):
        read.extend(path for batch in snapshot.adds() for path in batch.paths.to_pylist())
    assert read == [*"ab"]


def test_threads() -> None:
    store = _store()
    kept = CachedLogStore(store)
    versions: list[int] = []
    threads = [threading.Thread(target=lambda: versions.append(load_snapshot(kept).version)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert versions == [3] * 16
