"""Spark's micro-batch loop without Spark: the calls a stream reader gets, in their measured order, over a checkpoint.

Spark stores what ``latestOffset`` returns before it calls ``partitions``, and never what ``initialOffset`` returned; it asks
for ``initialOffset`` again until batch 0 is committed. After a restart a batch that was planned and not committed is
replayed: ``partitions`` comes before any ``latestOffset``. Before 4.2 ``latestOffset`` has no arguments, and every restart
shows as ``partitions(last, last)``, where ``last`` is the newest offset stored.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.types import StructType

from delta_sharing_spark.spark import streaming
from delta_sharing_spark.spark.datasource import DeltaSharingDataSource

Rows = list[dict[str, Any]]


def ordered(rows: Rows) -> Rows:
    return sorted(rows, key=str)


@dataclass
class Checkpoint:
    """What survives a driver: offsets as JSON, how many batches are committed, and the rows a sink has of each."""

    offsets: list[str] = field(default_factory=list)
    committed: int = 0
    sink: dict[int, Rows] = field(default_factory=dict)

    @property
    def rows(self) -> Rows:
        return ordered([row for batch in self.sink.values() for row in batch])

    @property
    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.rows)

    @property
    def last(self) -> dict[str, Any]:
        offset: dict[str, Any] = json.loads(self.offsets[-1])
        return offset


class Killed(Exception):
    """The driver ended here."""


class Run:
    """One run of a streaming query. Another one over the same checkpoint is a restart.

    Args:
        checkpoint: Where to go on.
        options: Of the load.
        schema: A user's own.
        available_now: Stop at the version that is newest at the start, as Trigger.AvailableNow does; else poll.

    Attributes:
        files: Ids of the files that each batch read.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        options: Mapping[str, str],
        *,
        schema: StructType | None = None,
        available_now: bool = True,
    ) -> None:
        self.checkpoint = checkpoint
        source = DeltaSharingDataSource({key.lower(): value for key, value in options.items()})
        self.schema = schema or source.schema()
        self.reader: Any = pickle.loads(pickle.dumps(source)).streamReader(self.schema)
        self._carried = pickle.dumps(self.reader)
        self.files: dict[int, list[str]] = {}
        self._available_now, self._started = available_now, False

    def drain(self) -> Run:
        """Batch after batch, until there is nothing new."""
        while self.step():
            pass
        return self

    def step(self, kill: str | None = None, between: Callable[[], object] = lambda: None) -> bool:
        """At most one batch; whether there was one.

        Args:
            kill: End the driver once the batch is ``"planned"`` (its end stored), ``"split"`` or ``"written"``.
            between: Called between planning and reading.

        Raises:
            Killed: As asked for.
        """
        checkpoint, reader = self.checkpoint, self.reader
        if not self._started:
            self._start()
        batch = checkpoint.committed
        if batch == len(checkpoint.offsets):
            start = self._position(batch)
            offset = self._latest(start)
            text = json.dumps(offset)
            if (checkpoint.offsets and text == checkpoint.offsets[-1]) or text == json.dumps(reader.initialOffset()):
                return False
            checkpoint.offsets.append(text)
            if kill == "planned":
                raise Killed
        start, end = self._position(batch), json.loads(checkpoint.offsets[batch])
        partitions = pickle.loads(pickle.dumps(reader.partitions(start, end)))
        if kill == "split":
            raise Killed
        self.files[batch] = [piece.task.id for partition in partitions for piece in partition.split.slices]
        between()
        rows = self.read(partitions)
        if batch in checkpoint.sink:
            assert ordered(checkpoint.sink[batch]) == ordered(rows), "a replayed batch has other rows"
        checkpoint.sink[batch] = rows
        if kill == "written":
            raise Killed
        checkpoint.committed += 1
        reader.commit(end)
        return True

    def read(self, partitions: list[Any]) -> Rows:
        """The rows of a batch, each partition read by a copy of the reader, as in a task."""
        rows: Rows = []
        for partition in partitions:
            for batch in pickle.loads(self._carried).read(partition):
                rows += batch.to_pylist()
        return rows

    def _start(self) -> None:
        reader, checkpoint = self.reader, self.checkpoint
        self._started = True
        if streaming.ADMISSION_CONTROL:
            if self._available_now:
                reader.prepareForTriggerAvailableNow()
            reader.getDefaultReadLimit()
        elif checkpoint.offsets:
            assert list(reader.partitions(checkpoint.last, checkpoint.last)) == []

    def _position(self, batch: int) -> dict[str, Any]:
        offset: dict[str, Any] = (
            json.loads(self.checkpoint.offsets[batch - 1]) if batch else self.reader.initialOffset()
        )
        return offset

    def _latest(self, start: dict[str, Any]) -> dict[str, Any]:
        if not streaming.ADMISSION_CONTROL:
            offset: dict[str, Any] = self.reader.latestOffset()
            return offset
        limit = self.reader.getDefaultReadLimit()
        offset = self.reader.latestOffset(start, limit)
        return offset
