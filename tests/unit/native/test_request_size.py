"""How many bytes the gateway asks a storage for at once, by how fast it answered before."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event, Thread
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

from delta_sharing_spark.native.budget import Bounds, Budget
from delta_sharing_spark.native.files import FileView
from delta_sharing_spark.native.plan_reader import HeldChunks
from delta_sharing_spark.parquet.layout import Chunk, Layout
from delta_sharing_spark.scan import pace
from delta_sharing_spark.storage.ranges import Range
from support import HANGS

MIB = 1 << 20
GROUP = 40 * MIB


@dataclass
class TimedStorage:
    """A file of zeros, each request for which takes its latency and its bytes' time on a clock of its own."""

    latency: float
    rate: float
    now: float = 0.0
    asked: list[int] = field(default_factory=list)
    name = "zeros"
    size = 1 << 40

    def read(self, start: int, length: int) -> memoryview:
        self.asked.append(length)
        self.now += self.latency + length / self.rate
        return memoryview(bytes(length))

    def close(self) -> None:
        """Hold nothing."""


@pytest.mark.parametrize(
    ("latency", "rate", "largest"),
    [(0.04, 30e6, 1.5 * MIB), (0.001, 200e6, 8 * MIB), (0.001, 2e9, 20 * MIB)],
    ids=["far", "near", "on this machine"],
)
def test_requests_are_as_large_as_is_soon_answered(
    latency: float, rate: float, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first row group is asked for in small parts, later ones as the storage has answered, in equal ones; no byte twice."""
    storage = TimedStorage(latency, rate)
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=lambda: storage.now))
    budget = Budget(Bounds())
    budget.fetchers = ThreadPoolExecutor(1)  # one after the other, as the clock has it
    learned = pace.Pace()
    learned.read(storage, 0, 8192)  # the footer
    held = HeldChunks(budget, learned)
    shown = FileView(storage, Layout(1 << 40, b"", ()))
    try:
        for group in range(4):
            storage.asked.clear()
            starts = range(group * GROUP, (group + 1) * GROUP, GROUP // 4)
            chunks = [Chunk(Range(start, start + GROUP // 4), group, b"%d" % start) for start in starts]
            buffer = held.fetch((0, group), shown, chunks)
            assert buffer is not None
            for chunk in chunks:
                assert len(buffer.read(chunk.range.start, chunk.range.length)) == chunk.range.length
            assert sum(storage.asked) == GROUP
            assert largest * 0.9 <= max(storage.asked) <= largest if group else max(storage.asked) in (MIB, 4 * MIB)
            held.close()
    finally:
        budget.close()


def test_a_slow_answer_makes_requests_smaller_again() -> None:
    sizes = pace.Pace()
    sizes.learn(4 * MIB, 0.002)
    assert sizes.request_bytes == pace.MOST
    sizes.learn(64 << 10, 0.04)
    assert sizes.request_bytes == pace.MOST, "it tells the latency, and no rate"
    before = sizes.request_bytes
    for _ in range(20):
        sizes.learn(4 * MIB, 0.2)
        assert sizes.request_bytes <= before
        before = sizes.request_bytes
    assert pace.LEAST_OF_FAR <= before < 1.5 * MIB


def test_who_would_hold_too_much_waits_for_others() -> None:
    """What nobody reads is released for it; a chunk that is being read is counted until its reader is done."""
    budget = Budget(Bounds(held=16 * MIB, kept=8 * MIB))
    held, shown = HeldChunks(budget, pace.Pace()), FileView(TimedStorage(0, 1e9), Layout(1 << 40, b"", ()))

    def fetch(group: int) -> Any:
        return held.fetch((0, group), shown, [Chunk(Range(group * GROUP, group * GROUP + 2 * MIB), group, b"c")])

    try:
        buffers = [fetch(group) for group in range(9)]
        assert [buffer is not None for buffer in buffers] == [True] * 8 + [False]
        del buffers[0]
        held.was_read((0, 0), b"c")
        assert budget.wait_for_room(2 * MIB, monotonic() + HANGS)
        buffers.append(fetch(8))
        assert buffers[-1] is not None
        held.close()
        assert fetch(9) is None
        Thread(target=buffers.clear).start()
        assert budget.wait_for_room(2 * MIB, monotonic() + HANGS)
        assert fetch(9) is not None
    finally:
        budget.close()


def test_of_a_row_group_too_large_to_be_fetched_at_once_the_first_part_is_fetched_ahead() -> None:
    """Its next parts are, until there is no more room, and once it is being read what is fetched at once is not counted."""
    budget = Budget(Bounds(held=64 * MIB, ahead=20 * MIB))
    storage = TimedStorage(0, 1e9)
    held, shown = HeldChunks(budget, pace.Pace()), FileView(storage, Layout(1 << 40, b"", ()))
    chunks = [Chunk(Range(start, start + 4 * MIB), 0, b"%d" % start) for start in range(0, 10 * GROUP, GROUP)]
    try:
        ahead = []
        for read in (0, 0, 0, 0, 1, 2, 3):
            for chunk in chunks[:read]:
                held.was_read((0, 0), chunk.column)
            held.fetch_ahead((0, 0), shown, chunks[read:])
            ahead.append([held.find((0, 0), chunk) is not None for chunk in chunks])
        assert ahead == [[n < count for n in range(10)] for count in (2, 4, 5, 5, 7, 7, 7)]
    finally:
        held.close()
        budget.close()


def test_the_rest_of_a_large_row_group_is_not_released_with_the_part_that_was_read() -> None:
    """The first part is more than may be held once it was read, so it is released, by another thread, when the next one has begun."""
    budget = Budget(Bounds(held=64 * MIB, kept=4 * MIB))
    budget.fetchers = ThreadPoolExecutor(1)
    storage = TimedStorage(0, 1e9)
    held, shown = HeldChunks(budget, pace.Pace()), FileView(storage, Layout(1 << 40, b"", ()))
    chunks = [Chunk(Range(start, start + 4 * MIB), 0, b"%d" % start) for start in range(0, 16 * MIB, 4 * MIB)]
    goes_on = Event()

    def read(part: list[Chunk]) -> None:
        buffer = held.fetch((0, 0), shown, part)
        goes_on.set()
        assert buffer is not None
        budget.fetchers.submit(lambda: None).result(HANGS)  # what was to be released has been
        for chunk in part:
            assert held.find((0, 0), chunk) is buffer
            buffer.read(chunk.range.start, chunk.range.length)
        goes_on.clear()
        budget.fetchers.submit(goes_on.wait, HANGS)
        for chunk in part:
            held.was_read((0, 0), chunk.column)

    try:
        read(chunks[:2])
        read(chunks[2:])
        goes_on.set()
        budget.fetchers.submit(lambda: None).result(HANGS)
        assert held.find((0, 0), chunks[0]) is None, "all of it was read"
        assert sum(storage.asked) == 16 * MIB
    finally:
        goes_on.set()
        held.close()
        budget.close()
