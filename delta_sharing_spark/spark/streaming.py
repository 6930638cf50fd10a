"""Reads streams: translates Spark's calls into positions of a table's history."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from delta_sharing_spark.access.open import TableOpener, negotiated_table, resolve_opened
from delta_sharing_spark.access.stream.planner import DEFAULT_LIMITS, Limits, open_stream
from delta_sharing_spark.options import parse_options
from delta_sharing_spark.schema.types import Struct, parse_type
from delta_sharing_spark.spark.batch import SplitPartition
from delta_sharing_spark.spark.entrances import entrance
from delta_sharing_spark.spark.offsets import INITIAL, StreamOffset, check_identity, is_initial, parse_offset

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from delta_sharing_spark.access.resolved_scan import ResolvedScan
    from delta_sharing_spark.access.stream.planner import Position, StreamPlanner

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxBytes,
        ReadMaxFiles,
        SupportsTriggerAvailableNow,
    )

    #: Whether ``latestOffset`` is given the start and a limit (4.2 and later).
    ADMISSION_CONTROL = True
except ImportError:
    ADMISSION_CONTROL = False

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]  # the stand-in
        """Before 4.2 Spark runs Trigger.AvailableNow as one batch up to the newest offset."""


class _StreamReader(DataSourceStreamReader):
    """The common part of the readers for all Spark versions. A task's copy holds nothing: splits carry what they need."""

    def __init__(self, options: dict[str, str], schema: StructType, *, columns_chosen: bool) -> None:
        self._options = options
        self._schema = schema
        self._columns_chosen = columns_chosen
        self._opened: tuple[ResolvedScan, StreamPlanner] | None = None
        self._first: Position | None = None
        self._began: Position | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def initialOffset(self) -> dict[str, Any]:
        """The constant offset that every stream begins with."""
        return dict(INITIAL)

    @entrance
    def prepareForTriggerAvailableNow(self) -> None:
        """Pin the newest version."""
        self._planner().pin_newest()

    @entrance
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The splits between two offsets: as planned a moment ago, or listed again after a restart."""
        self._remember(end)
        if is_initial(end):
            return []
        last = self._checked(end)
        first = last.first if is_initial(start) else self._checked(start).position
        return [SplitPartition(split) for split in self._planner().splits(first, last.position)]

    @entrance
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split."""
        if not isinstance(partition, SplitPartition):
            return iter(())
        from delta_sharing_spark.scan.split_reader import read_split
        from delta_sharing_spark.spark.session_settings import in_session_of_task

        return read_split(in_session_of_task(partition.split))

    @entrance
    def commit(self, end: dict[str, Any]) -> None:
        """Release what is kept for the batch."""
        if self._opened is not None and not is_initial(end):
            scan, planner = self._opened
            planner.forget(parse_offset(end, str(scan.table)).position)

    def stop(self) -> None:
        """Release everything."""
        self._opened = None

    def _advance(self, start: dict[str, Any], limits: Limits) -> dict[str, Any]:
        planner = self._planner()
        if is_initial(start):
            if self._first is None:
                self._first = planner.first()
            begin = first = self._first
        else:
            offset = self._checked(start)
            begin, first = offset.position, offset.first
        self._began = first
        end = planner.advance(begin, limits)
        if end == begin and not is_initial(start):
            return start
        return StreamOffset(end, first, planner.identity).to_json()

    def _checked(self, tree: dict[str, Any]) -> StreamOffset:
        scan, planner = self._open()
        offset = parse_offset(tree, str(scan.table))
        planner.continue_as(offset.identity, offset.position)
        check_identity(offset, planner.identity, str(scan.table))
        return offset

    def _remember(self, end: dict[str, Any]) -> None:
        """Keep the last batch's end, which is the next one's start: before 4.2 Spark passes none to ``latestOffset``."""

    def _planner(self) -> StreamPlanner:
        return self._open()[1]

    def _open(self) -> tuple[ResolvedScan, StreamPlanner]:
        if self._opened is None:
            opener = TableOpener(negotiated_table(parse_options(self._options, is_stream=True)))
            scan = resolve_opened(opener)
            schema = parse_type(self._schema.jsonValue(), str(scan.table), "")
            assert isinstance(schema, Struct)
            self._opened = (scan, open_stream(opener, scan, schema, columns_chosen=self._columns_chosen))
        return self._opened

    def _limits(self) -> Limits:
        limits = self._stated_limits()
        return limits if limits != Limits() else DEFAULT_LIMITS

    def _stated_limits(self) -> Limits:
        """The bounds that the user set."""
        options = self._open()[0].options
        return Limits(options.max_files_per_trigger, options.max_bytes_per_trigger)


class _AdmissionReader(_StreamReader, SupportsTriggerAvailableNow):
    """Spark 4.2 and later: the start and the limit of a batch are given."""

    @entrance
    def getDefaultReadLimit(self) -> Any:
        """The load's own bounds; Spark knows one limit at a time, so the reader applies both itself."""
        limits = self._limits()
        if limits.files is not None:
            return ReadMaxFiles(limits.files)
        return ReadAllAvailable() if limits.bytes is None else ReadMaxBytes(limits.bytes)

    @entrance
    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        """The end of the batch that begins at ``start``."""
        return self._advance(start, Limits() if isinstance(limit, ReadAllAvailable) else self._limits())

    @entrance
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The end of the server's newest version, for the query's progress: how far behind it the stream is.

        Trigger.AvailableNow stops before it where versions came meanwhile. None before the first batch is planned.
        """
        if self._began is None:
            return None
        planner = self._planner()
        return StreamOffset(planner.end_of_newest(), self._began, planner.identity).to_json()


class _RememberingReader(_StreamReader):
    """Spark before 4.2: the position is the end of the last batch, which ``partitions`` is always called with first."""

    def __init__(self, options: dict[str, str], schema: StructType, *, columns_chosen: bool) -> None:
        super().__init__(options, schema, columns_chosen=columns_chosen)
        self._last_end: dict[str, Any] = dict(INITIAL)

    @entrance
    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # before 4.2 it takes nothing
        """The end of the next batch."""
        return self._advance(self._last_end, self._limits())

    def _limits(self) -> Limits:
        """The bounds that the user set, without a default, which would cut short the one batch of Trigger.AvailableNow."""
        return self._stated_limits()

    def _remember(self, end: dict[str, Any]) -> None:
        self._last_end = end


def make_stream_reader(options: dict[str, str], schema: StructType, *, columns_chosen: bool) -> DataSourceStreamReader:
    """The reader for the running Spark version; ``columns_chosen`` says that the user chose the schema's columns."""
    if ADMISSION_CONTROL:
        return _AdmissionReader(options, schema, columns_chosen=columns_chosen)
    return _RememberingReader(options, schema, columns_chosen=columns_chosen)
