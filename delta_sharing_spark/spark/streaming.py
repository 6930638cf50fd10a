"""The stream reader: Spark's calls, translated into positions of a table's history."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from delta_sharing_spark.spark import compat
from delta_sharing_spark.spark.batch import SplitPartition
from delta_sharing_spark.spark.offsets import INITIAL, StreamOffset, check_identity, is_initial, parse_offset

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from delta_sharing_spark.access.load import Load
    from delta_sharing_spark.access.stream import Limits, Position, StreamPlanner
    from delta_sharing_spark.scan.plan import ReadSpec


class _StreamReader(DataSourceStreamReader):
    """What every Spark version's reader shares. A task's copy holds nothing: splits carry what they need."""

    def __init__(self, options: dict[str, str], schema: StructType, *, given: bool) -> None:
        self._options = options
        self._schema = schema
        self._given = given
        self._opened: tuple[Load, ReadSpec, StreamPlanner] | None = None
        self._first: Position | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def initialOffset(self) -> dict[str, Any]:
        """The constant every stream begins with."""
        return dict(INITIAL)

    def prepareForTriggerAvailableNow(self) -> None:
        """Freeze the newest version."""
        self._planner().freeze()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The splits between two offsets: as planned a moment ago, or listed again after a restart."""
        from delta_sharing_spark.access.listing import prune_for_split
        from delta_sharing_spark.access.planning import carried
        from delta_sharing_spark.scan.plan import Split
        from delta_sharing_spark.scan.splits import pack

        self._remember(end)
        if is_initial(end):
            return []
        planner = self._planner()
        load, spec, _ = self._open()
        last = self._checked(end)
        begin = last.first if is_initial(start) else self._checked(start).position
        partitions: list[InputPartition] = []
        for tasks, access in planner.files(begin, last.position):
            for slices in pack(prune_for_split(load, tasks), load.options.max_split_bytes):
                partitions.append(SplitPartition(Split(len(partitions), spec, slices, carried(access, slices, load))))
        return partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split."""
        if not isinstance(partition, SplitPartition):
            return iter(())
        from delta_sharing_spark.scan.read import read_split

        return read_split(partition.split)

    def commit(self, end: dict[str, Any]) -> None:
        """Let go of what the batch held."""
        if self._opened is not None and not is_initial(end):
            load, _, planner = self._opened
            planner.forget(parse_offset(end, str(load.table)).position)

    def stop(self) -> None:
        """Let go of everything."""
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
        end = planner.advance(begin, limits)
        if end == begin and not is_initial(start):
            return start
        return StreamOffset(end, first, planner.source.identity).to_json()

    def _checked(self, tree: dict[str, Any]) -> StreamOffset:
        load, _, planner = self._open()
        offset = parse_offset(tree, str(load.table))
        planner.continue_as(offset.identity, offset.position)
        check_identity(offset, planner.source.identity, str(load.table))
        return offset

    def _remember(self, end: dict[str, Any]) -> None:
        """Before 4.2 Spark passes no start to ``latestOffset``: the last batch's end is the next one's start."""

    def _planner(self) -> StreamPlanner:
        return self._open()[2]

    def _open(self) -> tuple[Load, ReadSpec, StreamPlanner]:
        if self._opened is None:
            from delta_sharing_spark.access.load import resolve
            from delta_sharing_spark.access.stream import open_stream
            from delta_sharing_spark.options import parse_options
            from delta_sharing_spark.schema.types import Struct, parse_type

            load = resolve(parse_options(self._options, streaming=True))
            wanted = parse_type(self._schema.jsonValue(), str(load.table), "")
            assert isinstance(wanted, Struct)
            self._opened = (load, *open_stream(load, wanted, given=self._given))
        return self._opened

    def _limits(self) -> Limits:
        from delta_sharing_spark.access.stream import Limits

        options = self._open()[0].options
        return Limits(options.max_files_per_trigger, options.max_bytes_per_trigger)


class _AdmissionReader(_StreamReader, compat.AvailableNow):
    """Spark 4.2 and later: the start and the limit of a batch are given."""

    def getDefaultReadLimit(self) -> Any:
        """The load's own bounds; Spark knows one limit at a time, so the reader applies both itself."""
        limits = self._limits()
        return compat.read_limit(limits.files, limits.bytes)

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        """The end of the batch that begins at ``start``."""
        from delta_sharing_spark.access.stream import Limits

        return self._advance(start, Limits() if compat.reads_all(limit) else self._limits())


class _RememberingReader(_StreamReader):
    """Spark before 4.2: the position is the end of the last batch, which ``partitions`` is always called with first."""

    def __init__(self, options: dict[str, str], schema: StructType, *, given: bool) -> None:
        super().__init__(options, schema, given=given)
        self._at: dict[str, Any] = dict(INITIAL)

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # before 4.2 it takes nothing
        """The end of the next batch."""
        return self._advance(self._at, self._limits())

    def _limits(self) -> Limits:
        """Only bounds that the user set: Trigger.AvailableNow is one batch here, which a default would cut short."""
        from delta_sharing_spark.access.stream import Limits

        limits = super()._limits()
        named = {name.lower() for name in self._options}
        return limits if named & {"maxfilespertrigger", "maxbytespertrigger"} else Limits()

    def _remember(self, end: dict[str, Any]) -> None:
        self._at = end


def make_stream_reader(options: dict[str, str], schema: StructType, *, given: bool) -> DataSourceStreamReader:
    """The reader for the running Spark version. ``given``: the schema is the user's own choice of columns."""
    if compat.ADMISSION_CONTROL:
        return _AdmissionReader(options, schema, given=given)
    return _RememberingReader(options, schema, given=given)
