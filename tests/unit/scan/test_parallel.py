"""Splits that are read in parallel outside Spark: in order, and as many at a time as there are workers."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Generator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from delta_sharing_spark.scan.pace import pace_of
from delta_sharing_spark.scan.parallel import read_splits
from delta_sharing_spark.scan.plan import Access, FileSlice, FileTask, ReadSpec, Split, pack
from delta_sharing_spark.scan.row_group_reader import decoding_pool
from delta_sharing_spark.scan.split_reader import is_waiting
from delta_sharing_spark.schema.types import Field, Primitive, Struct
from support import HANGS
from unit.scan.local_access import Bytes, LocalAccess, parquet, spec_of


@dataclass
class _Meeting:
    """Splits of one batch each, but for every second one, which is empty; those with rows wait for each other in pairs."""

    pair: threading.Barrier = field(default_factory=lambda: threading.Barrier(2))

    def rows(self, split: Split) -> Generator[pa.RecordBatch, None, None]:
        if split.index % 2 == 0:
            self.pair.wait(HANGS)
            yield pa.record_batch({"n": [split.index]})


def _splits(count: int, access: object) -> list[Split]:
    return [Split(i, cast("ReadSpec", None), (), cast("Access", access)) for i in range(count)]


def test_empty_splits_take_no_workers_place() -> None:
    """A file of one row group is cut into several splits by its bytes; all but one of them are empty."""
    done: list[int] = []
    batches = list(read_splits(_splits(16, _Meeting()), 2, progress=done.append))
    assert [batch["n"][0].as_py() for batch in batches] == list(range(0, 16, 2))
    assert done == list(range(16))


@dataclass
class _Empty:
    """Splits without rows; how many threads there were at most is noted."""

    threads: int = 0

    def rows(self, _: Split) -> Generator[pa.RecordBatch, None, None]:
        self.threads = max(self.threads, threading.active_count())
        yield from ()


def test_threads_of_empty_splits_end_while_others_begin() -> None:
    """Of a file of one row group all splits but one are empty; a Flight gateway may tell of a size that makes 16,384."""
    empty = _Empty()
    done: list[int] = []
    assert list(read_splits(_splits(1500, empty), 2, progress=done.append)) == []
    assert done == list(range(1500))
    assert empty.threads < 500


@dataclass
class _Far:
    """Splits of which eight must be read at once; what each may hold fetched is noted."""

    all: threading.Barrier = field(default_factory=lambda: threading.Barrier(8))
    budgets: set[int] = field(default_factory=set)

    def rows(self, split: Split) -> Generator[pa.RecordBatch, None, None]:
        self.budgets.add(split.spec.fetch_ahead)
        self.all.wait(HANGS)
        yield pa.record_batch({"n": [split.index]})


@pytest.mark.parametrize(("table", "latency", "slices"), [("far", 0.04, 1), ("near", 0.001, 1), ("small", 0.04, 40)])
def test_of_a_far_storage_four_splits_take_a_workers_place_and_share_its_budget(
    table: str, latency: float, slices: int
) -> None:
    schema = Struct((Field("n", Primitive("long")),))
    task = FileTask("f", "https://far/f", 100, {})
    far = _Far()
    pace = pace_of(table, task.location)
    pace.learn(1000, latency)
    spec = ReadSpec(table, schema, schema, (), {}, "none", fetch_ahead=64 << 20)
    splits = [Split(i, spec, (FileSlice(task),) * slices, cast("Access", far)) for i in range(16)]
    assert is_waiting(splits[0]) == (table == "far")
    if table == "far":
        batches = list(read_splits(splits, 2))
        assert [batch["n"][0].as_py() for batch in batches] == list(range(16))
        assert far.budgets == {16 << 20}


def test_all_readers_of_a_storage_share_its_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight splits of thirty files each would ask for 48 at once, of each split; no more are under way than there may be."""
    monkeypatch.setattr("delta_sharing_spark.scan.pace.OF_STORAGE", 5)
    clock = itertools.count()
    monkeypatch.setattr("delta_sharing_spark.scan.pace.time", SimpleNamespace(monotonic=lambda: next(clock) * 0.04))
    file, changed = parquet(pa.table({"n": pa.array(range(500), pa.int64())})), threading.Condition()
    under_way, most = 0, 0

    class Storage(LocalAccess):
        def open(self, task: FileTask) -> Bytes:
            class Counted(Bytes):
                def read(self, start: int, length: int) -> memoryview:
                    nonlocal under_way, most
                    with changed:
                        under_way += 1
                        most = max(most, under_way)
                        changed.notify_all()
                        changed.wait_for(lambda: most >= 5, HANGS)
                    with changed:
                        under_way -= 1
                    return super().read(start, length)

            return Counted(task.id, file)

    spec = spec_of(Struct((Field("n", Primitive("long")),)))
    tasks = [[FileTask(f"{i} {j}", "https://crowded/f", len(file)) for j in range(30)] for i in range(8)]
    splits = [Split(i, spec, tuple(map(FileSlice, files)), Storage()) for i, files in enumerate(tasks)]
    assert sum(batch.num_rows for batch in read_splits(splits, 8)) == 8 * 30 * 500
    assert most == 5


@pytest.mark.parametrize(("workers", "held"), [(1, 4 << 20), (3, 4 << 20), (3, 0)])
def test_a_file_that_is_cut_is_opened_once_and_its_footer_fetched_once(
    workers: int, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for footers that are too large to be held for others."""
    monkeypatch.setattr("delta_sharing_spark.scan.split_reader._SHARED_FOOTER", held)
    numbers = np.random.default_rng(1).integers(0, 1 << 60, 1_000_000)
    data = parquet(pa.table({"n": pa.array(numbers, pa.int64())}), row_group_size=300_000, use_dictionary=False)
    opened: list[str] = []

    class Storage(LocalAccess):
        def open(self, task: FileTask) -> Bytes:
            opened.append(task.id)
            return super().open(task)

    storage = Storage({"f": data, "g": data})
    slices = [part for file in "fg" for (part,) in pack([FileTask(file, file, len(data))], len(data) // 6)]
    spec = spec_of(Struct((Field("n", Primitive("long")),)))
    splits = [Split(i, spec, (part,), storage) for i, part in enumerate(slices)]
    assert len(splits) >= 12
    read = pa.Table.from_batches(list(read_splits(splits, workers)))
    assert np.array_equal(read["n"].to_numpy(), np.concatenate([numbers, numbers]))
    times = 1 if held else len(splits) // 2
    assert sorted(opened) == ["f"] * times + ["g"] * times
    assert all(sum(end == len(data) for _, end in ranges) == times for ranges in storage.reads.values())


def test_a_worker_that_cannot_begin_is_an_error_and_not_fewer_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "delta-sharing-split-3":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    meeting = _Meeting()
    seen: list[Any] = []
    with pytest.raises(RuntimeError, match="can't start new thread"):
        seen.extend(read_splits(_splits(8, meeting), 2))
    meeting.pair.abort()


@dataclass
class _Counted:
    """A split of ten batches, of which it is noted how many were read."""

    read: int = 0
    seven: threading.Event = field(default_factory=threading.Event)

    def rows(self, split: Split) -> Generator[pa.RecordBatch, None, None]:
        for _ in range(10):
            self.read += 1
            if self.read == 7:
                self.seven.set()
            yield pa.record_batch({"n": pa.array([0] * 1000, pa.int64())})


def test_so_many_bytes_are_read_ahead_and_no_more() -> None:
    counted = _Counted()
    batches = read_splits(_splits(1, counted), 1, ready_bytes=5 * 8000)
    taken = 1
    next(batches)
    # Five are held, one waits for room.
    assert counted.seven.wait(HANGS)
    threading.Event().wait(0.3)
    assert counted.read == 7
    taken += sum(1 for _ in batches)
    assert taken == 10


def test_memory_that_the_user_chose_is_decoded_into(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = pa.logging_memory_pool(pa.system_memory_pool())
    monkeypatch.setattr(pa, "default_memory_pool", lambda: chosen)
    assert decoding_pool() is chosen
