"""Splits that are read in parallel outside Spark: in order, and as many at a time as there are workers."""

from __future__ import annotations

import threading
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
import pytest

from delta_sharing_spark.scan.parallel import read_splits
from delta_sharing_spark.scan.plan import Access, ReadSpec, Split


@dataclass
class _Meeting:
    """Splits of one batch each, but for every second one, which is empty; those with rows wait for each other in pairs."""

    pair: threading.Barrier = field(default_factory=lambda: threading.Barrier(2))

    def rows(self, split: Split) -> Generator[pa.RecordBatch, None, None]:
        if split.index % 2 == 0:
            self.pair.wait(60)
            yield pa.record_batch({"n": [split.index]})


def _splits(count: int, access: object) -> list[Split]:
    return [Split(i, (), cast(ReadSpec, None), cast(Access, access)) for i in range(count)]


def test_empty_splits_take_no_workers_place() -> None:
    """A file of one row group is cut into several splits by its bytes; all but one of them are empty."""
    done: list[int] = []
    batches = list(read_splits(_splits(16, _Meeting()), 2, progress=done.append))
    assert [batch["n"][0].as_py() for batch in batches] == list(range(0, 16, 2))
    assert done == list(range(16))


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
