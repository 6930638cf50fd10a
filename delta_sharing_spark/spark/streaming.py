"""Reads streams: translates Spark's calls into positions of a table's history, and positions into offsets, as Spark stores them.

Offsets are stable, versioned JSON, which is checked when it is read.
The end of a version is written so that the JVM connector reads it as well, and is read as that connector writes it.
That is in the parquet format (``tableVersion``, ``index`` -1, ``isStartingVersion``) and in delta (``reservoirId``,
``reservoirVersion``). Within a version the
two count files in other orders: there either one refuses the other's offset.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from delta_sharing_spark.access.contract import StreamIdentity
from delta_sharing_spark.access.open import TableOpener, as_asked_for, negotiated_table, resolve_opened
from delta_sharing_spark.access.stream.planner import DEFAULT_LIMITS, Limits, Position, StreamPlanner, open_stream
from delta_sharing_spark.errors import FileGoneError, StreamError
from delta_sharing_spark.options.declared import parse_options
from delta_sharing_spark.schema.types import parse_schema
from delta_sharing_spark.sharing.rest import FORMATS
from delta_sharing_spark.spark.batch import SplitPartition, TaskReader
from delta_sharing_spark.spark.entrances import entrance, table_named

if TYPE_CHECKING:
    import pyarrow as pa

#: The version of this format. A checkpoint of another one is refused, never guessed at.
SOURCE_VERSION = 1

#: What the JVM connector counts as no file of a version: in the parquet format and in the forms of delta's.
_NO_FILES = (-1, -100)

#: Where every stream begins, whatever its options: Spark asks for it several times and never stores the answer, so
#: nothing may be resolved in it. The first end offset carries what was resolved, as ``first``.
INITIAL: dict[str, Any] = {"sourceVersion": SOURCE_VERSION, "initial": True}


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A stream's position, its first position, and the identity that the order of files within a version depends on."""

    position: Position
    first: Position
    identity: StreamIdentity

    def to_json(self) -> dict[str, Any]:
        """The offset as Spark stores it."""
        return {
            "sourceVersion": SOURCE_VERSION,
            "tableId": self.identity.table_id,
            "mode": self.identity.mode,
            "format": self.identity.format,
            "fileIdHash": self.identity.hash,
            "first": _position_json(self.first),
            **_position_json(self.position),
            **_for_the_jvm_connector(self.position, self.identity.table_id),
        }


def is_initial(tree: Any) -> bool:
    """Whether an offset is the constant that a stream begins with."""
    return isinstance(tree, dict) and bool(tree.get("initial")) and tree.get("sourceVersion") == SOURCE_VERSION


def parse_offset(tree: Any, table: str) -> StreamOffset:
    """An offset that Spark hands back; raises StreamError where it is none of this source, or of another format version."""
    if not isinstance(tree, dict):
        tree = {}  # an offset of Spark's rate source, for one, is a number
    if "version" not in tree and ("reservoirVersion" in tree or "tableVersion" in tree):
        return _of_the_jvm_connector(tree, table)
    _check_version(tree, table)
    identity = StreamIdentity(
        _text(tree, "tableId", table), _text(tree, "mode", table), _text(tree, "format", table), tree.get("fileIdHash")
    )
    first = tree.get("first")
    if not isinstance(first, dict):
        raise _invalid("first", first, table)
    return StreamOffset(_position(tree, table), _position(first, table), identity)


def check_identity(offset: StreamOffset, now: StreamIdentity, table: str) -> None:
    """Compare an offset with what the stream reads now.

    Raises:
        StreamError: Another table; or, in the middle of a version, another order of its files.
    """
    then = offset.identity
    if then.table_id and now.table_id and then.table_id != now.table_id:
        raise StreamError(
            f"the checkpoint belongs to a table with the id {then.table_id}, {table} has the id {now.table_id}: the checkpoint is that of a "
            f"stream of another table, or of a union in another order, or the table was replaced; start the stream with a new checkpoint"
        )
    if not offset.position.in_the_middle:
        return
    if not then.is_ordered_as(now):
        way = as_asked_for(then.mode) + (f" and responseFormat={then.format}" if then.format in FORMATS else "")
        raise StreamError(
            f"the stream of {table} stopped in the middle of version {offset.position.version}, read by "
            f"accessMode={then.mode} in the {then.format} format (file ids: {then.hash or 'of that format'}); "
            f"it goes on only in the same way: {way} until that version is read"
        )


def _check_version(tree: dict[str, Any], table: str) -> None:
    version = tree.get("sourceVersion")
    if version is None:
        raise StreamError(
            f"Cannot find 'sourceVersion' in an offset of the stream of {table}; "
            f"the checkpoint belongs to another source: start the stream with another checkpoint"
        )
    if not isinstance(version, int) or isinstance(version, bool):
        raise StreamError(
            f"sourceVersion({version}) is invalid in an offset of the stream of {table}; use another checkpoint"
        )
    if version != SOURCE_VERSION:
        raise StreamError(
            f"an offset of the stream of {table} has sourceVersion {version}, this release reads {SOURCE_VERSION}; "
            f"upgrade delta-sharing-spark, or start the stream with another checkpoint"
        )


def _for_the_jvm_connector(position: Position, table_id: str) -> dict[str, Any]:
    """Fields by which the JVM connector goes on from a position, or fails with what they say; it ignores those it does not know."""
    version: int | str = position.version
    if position.in_the_middle:
        part = f"{'the snapshot of ' if position.snapshot else ''}version {position.version}"
        version = (
            f"delta-sharing-spark has read {part} in part: let it finish that (Trigger.AvailableNow), then this checkpoint goes on; or "
            f"start another one with startingVersion={position.version + position.snapshot} once {part} is read"
        )
    both = {"tableVersion": version, "reservoirId": table_id, "reservoirVersion": version}
    return both if position.in_the_middle else {**both, "index": -1, "isStartingVersion": False}


def _of_the_jvm_connector(tree: dict[str, Any], table: str) -> StreamOffset:
    """An offset of the JVM connector, which is the end of a version; raises StreamError where it lies within a version, or is malformed."""
    is_delta = "reservoirVersion" in tree
    version = tree.get("reservoirVersion" if is_delta else "tableVersion")
    index, snapshot = tree.get("index"), tree.get("isStartingVersion")
    if not isinstance(version, int) or not isinstance(index, int) or not isinstance(snapshot, bool):
        raise _invalid("tableVersion, index, isStartingVersion", (version, index, snapshot), table)
    if index not in _NO_FILES or snapshot:
        part = f"the snapshot of version {version}" if snapshot else f"version {version}"
        raise StreamError(
            f"the checkpoint of the stream of {table} was written by the JVM connector, which had read {part} in part, in an order of its "
            f"own; let it finish that (Trigger.AvailableNow), then this checkpoint goes on here; or remove the rows of {part} and start "
            f"with a new checkpoint and {'no startingVersion' if snapshot else f'startingVersion={version}'}"
        )
    position = Position(version)
    identity = StreamIdentity(_text(tree, "reservoirId" if is_delta else "tableId", table), "url", "parquet", None)
    return StreamOffset(position, position, identity)


def _position_json(position: Position) -> dict[str, Any]:
    return {"version": position.version, "index": position.index, "snapshot": position.snapshot}


def _position(tree: dict[str, Any], table: str) -> Position:
    version, index, snapshot = tree.get("version"), tree.get("index"), tree.get("snapshot")
    index = 0 if index == -1 and not snapshot else index
    for name, number in (("version", version), ("index", index)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise _invalid(name, number, table)
    if not isinstance(snapshot, bool):
        raise _invalid("snapshot", snapshot, table)
    assert isinstance(version, int)
    assert isinstance(index, int)
    return Position(version, index, snapshot)


def _text(tree: dict[str, Any], name: str, table: str) -> str:
    value = tree.get(name)
    if not isinstance(value, str):
        raise _invalid(name, value, table)
    return value


def _invalid(name: str, value: object, table: str) -> StreamError:
    return StreamError(
        f"an offset of the stream of {table} has {name}={value!r}; the checkpoint is damaged: start the stream with another"
    )


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


class _StreamReader(TaskReader, DataSourceStreamReader):
    """The common part of the readers for all Spark versions."""

    #: The bounds of a stream to which the user gave none.
    _default = DEFAULT_LIMITS

    def __init__(self, options: dict[str, str], schema: StructType, *, columns_chosen: bool) -> None:
        self._options = options
        self._schema = schema
        self._columns_chosen = columns_chosen
        self._opened: StreamPlanner | None = None
        self._first: Position | None = None
        self._began: Position | None = None
        #: The last batch's end, which is the next one's start: before 4.2 Spark passes none to ``latestOffset``.
        self._last_end: dict[str, Any] = dict(INITIAL)

    def initialOffset(self) -> dict[str, Any]:
        """The constant offset that every stream begins with."""
        return dict(INITIAL)

    @entrance
    def prepareForTriggerAvailableNow(self) -> None:
        """Pin the newest version."""
        self._planner.pin_newest()

    @entrance
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The splits between two offsets: as planned a moment ago, or listed again after a restart."""
        self._last_end = end
        if is_initial(end):
            return []
        last = self._checked(end)
        first = last.first if is_initial(start) else self._checked(start).position
        return SplitPartition.of(self._planner.splits(first, last.position))

    @entrance
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split. After a failure the batch is read again, of the same files: where one is gone, no restart helps."""
        try:
            yield from super().read(partition)
        except FileGoneError as gone:
            raise FileGoneError(
                f"{gone}; a stream that meets this again after a restart has to begin anew, with another checkpoint",
                file=gone.file,
            ) from None

    @entrance
    def commit(self, end: dict[str, Any]) -> None:
        """Release what is kept for the batch."""
        if self._opened is not None and not is_initial(end):
            self._opened.forget(parse_offset(end, str(self._opened.scan.table)).position)

    def stop(self) -> None:
        """Release everything."""
        self._opened = None

    def _advance(self, start: dict[str, Any], limits: Limits) -> dict[str, Any]:
        planner = self._planner
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
        planner, table = self._planner, str(self._planner.scan.table)
        offset = parse_offset(tree, table)
        planner.continue_as(offset.identity, offset.position)
        check_identity(offset, planner.identity, table)
        return offset

    @property
    def _planner(self) -> StreamPlanner:
        if self._opened is None:
            with table_named(self._options.get("path", "")):
                opener = TableOpener(negotiated_table(parse_options(self._options, is_stream=True)))
                scan = resolve_opened(opener)
            schema = parse_schema(self._schema.json(), str(scan.table))
            self._opened = open_stream(opener, scan, schema, columns_chosen=self._columns_chosen)
        return self._opened

    def _limits(self) -> Limits:
        options = self._planner.scan.options
        limits = Limits(options.max_files_per_trigger, options.max_bytes_per_trigger)
        return self._default if limits == Limits() else limits


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
        planner = self._planner
        return StreamOffset(planner.end_of_newest(), self._began, planner.identity).to_json()


class _RememberingReader(_StreamReader):
    """Spark before 4.2: the position is the end of the last batch, which ``partitions`` is always called with first."""

    #: A default would cut short the one batch of Trigger.AvailableNow.
    _default = Limits()

    @entrance
    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # before 4.2 it takes nothing
        """The end of the next batch."""
        return self._advance(self._last_end, self._limits())


def make_stream_reader(options: dict[str, str], schema: StructType, *, columns_chosen: bool) -> DataSourceStreamReader:
    """The reader for the running Spark version; ``columns_chosen`` says that the user chose the schema's columns."""
    reader = _AdmissionReader if ADMISSION_CONTROL else _RememberingReader
    return reader(options, schema, columns_chosen=columns_chosen)
