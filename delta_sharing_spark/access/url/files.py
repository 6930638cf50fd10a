"""Makes file tasks of the sharing server's file lines: of a snapshot as they arrive, of a feed version by version."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from delta_sharing_spark.access.contract import VersionFiles
from delta_sharing_spark.access.pruning import FilePruner
from delta_sharing_spark.access.table_shape import TableShape, shape_of
from delta_sharing_spark.access.url.file_columns import FileColumns
from delta_sharing_spark.errors import UnsupportedFeatureError
from delta_sharing_spark.predicates.skip_reason import SkipReason
from delta_sharing_spark.scan.change_feed import ChangedFile, change_files
from delta_sharing_spark.scan.plan import FileTask, rows_in_stats
from delta_sharing_spark.schema.features import MAPPING_MODE
from delta_sharing_spark.schema.table_records import Metadata, Protocol
from delta_sharing_spark.schema.types import COLUMN_MAPPING_NAME, DataType, inner_fields, parse_schema
from delta_sharing_spark.sharing.query import QueryResponse
from delta_sharing_spark.sharing.wire_lines import FileBlock
from delta_sharing_spark.sharing.wire_records import FileRecord, TableSnapshotHead, broken

if TYPE_CHECKING:
    from delta_sharing_spark.predicates.file_skipping import PartitionKey

#: Rows of a file whose statistics do not tell them.
_UNKNOWN = -1


def task_of(record: FileRecord, *, keep_stats: bool = True) -> FileTask:
    """The task of one ``file`` or ``add`` line, in either format."""
    millis = record.expiration_timestamp
    return FileTask(
        id=record.id,
        location=record.url,
        size=record.size,
        partition_values=record.partition_values,
        rows=rows_in_stats(record.stats),
        deletion_vector=record.deletion_vector,
        expires_at=millis / 1000 if millis else None,
        stats=record.stats if keep_stats else None,
    )


class SnapshotFiles:
    """Takes in a snapshot's files as they arrive, and keeps those that are not skipped, in columns (``planned_files.FileBatch``).

    Args:
        pruner: Skips files.
        rows_needed: So many rows are enough, whichever they are; None for all.

    Attributes:
        listed: How many files came.
        skipped: How many of them were skipped, by the pruner's reason.
    """

    __slots__ = (
        "_columns",
        "_counted",
        "_hashes",
        "_keys",
        "_live",
        "_needed",
        "_numbers",
        "_partitions",
        "_pruner",
        "_rows",
        "_table",
        "_values",
        "listed",
        "skipped",
    )

    def __init__(self, table: str, pruner: FilePruner, rows_needed: int | None = None) -> None:
        self._table, self._pruner, self._needed = table, pruner, rows_needed
        self._counted = 0
        self._columns = FileColumns()
        self._rows, self._live, self._hashes, self._partitions = array("q"), array("q"), array("q"), array("i")
        #: Partition values, and what files are skipped by of them, by their number; and the numbers by the values.
        self._values: list[Mapping[str, str | None] | None] = []
        self._keys: list[PartitionKey] = []
        self._numbers: dict[object, int] = {}
        self.listed = 0
        self.skipped: Counter[SkipReason] = Counter()

    def append(self, block: FileBlock) -> None:
        """Take in some files; raises ResponseError where they are not data files'."""
        if block.kind != "add":
            raise broken(f"the server listed a {block.kind!r} line in a snapshot of {self._table}")
        self.listed += len(block)
        self._hashes.extend(map(hash, block.ids))
        numbers = [self._number(values) for values in block.partition_values]
        reasons = self._pruner.reasons([self._keys[number] for number in numbers], block.stats)
        if reasons is not None:
            kept = np.flatnonzero(reasons == SkipReason.KEEP).tolist()
            if len(kept) < len(block):
                for reason in SkipReason:
                    self.skipped[reason] += int(np.count_nonzero(reasons == reason)) if reason else 0
                block, numbers = block.take(kept), [numbers[place] for place in kept]
        self._columns.append(block)
        self._partitions.extend(numbers)
        rows = [_UNKNOWN if count is None else count for count in map(rows_in_stats, block.stats)]
        self._rows.extend(rows)
        if block.vectors:
            for place, vector in block.vectors.items():
                rows[place] = max(_UNKNOWN, rows[place] - vector.cardinality)
        self._live.extend(rows)
        self._counted += sum(count for count in rows if count > 0)

    @property
    def is_full(self) -> bool:
        """Whether the statistics of the files that came tell of as many rows as are needed."""
        return self._needed is not None and self._counted >= self._needed

    def _number(self, values: Mapping[str, str | None] | None) -> int:
        key = None if values is None else tuple(values.items())
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._values)
            self._values.append(values)
            self._keys.append(self._pruner.partition_key(values))
        return number

    @property
    def hashes(self) -> npt.NDArray[np.int64]:
        """A hash of the id of each file that came, also of those that were skipped."""
        return np.array(self._hashes, np.int64)

    @property
    def num_rows(self) -> int:
        return len(self._columns)

    def file_sizes(self) -> npt.NDArray[np.int64]:
        return self._columns.sizes

    def file_rows(self) -> npt.NDArray[np.int64]:
        return np.array(self._live, np.int64)

    def file_partitions(self) -> npt.NDArray[np.int64]:
        return np.array(self._partitions, np.int64)

    def tasks_between(self, first: int, last: int) -> Iterator[FileTask]:
        for place, row in enumerate(self._columns.rows(first, last), first):
            yield FileTask(
                id=row.id,
                location=row.url,
                size=row.size,
                partition_values=self._values[self._partitions[place]],
                rows=None if self._rows[place] == _UNKNOWN else self._rows[place],
                deletion_vector=row.vector,
                expires_at=row.expires / 1000 if row.expires else None,
            )


def check_each_once(pages: Sequence[SnapshotFiles], table: str) -> None:
    """Raises ResponseError where a file is listed more than once, on one page or on several."""
    hashes = np.sort(np.concatenate([page.hashes for page in pages] or [np.zeros(0, np.int64)]))
    repeated = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
    if repeated:
        tasks = (task for page in pages for task in page.tasks_between(0, page.num_rows))
        names = (f"file {task.id}" for task in tasks if hash(task.id) in repeated)
        raise broken(f"the server listed {next(names, 'a file that the query leaves out')} of {table} twice")


def files_by_version(
    records: Iterable[FileRecord], first: int | None, last: int | None, table: str, *, feed: bool
) -> dict[int, VersionFiles]:
    """The files of each version of an answer: those of its changes, or those that it adds, and how many it removes.

    ``dataChange=false`` is no change.

    Args:
        first, last: The versions that were asked for, both included; None is no bound. A server may not know a bound that it is told.
        feed: Whether the answer is a change feed's.

    Raises:
        ResponseError: A record names no version, a file is added or removed twice in one, or a line is none of a table's files.
    """
    lines_by_version: dict[int, list[FileRecord]] = {}
    for record in records:
        version = record.version
        if version is None:
            raise broken(f"the server's change feed of {table} has a file without a version")
        if (first is not None and version < first) or (last is not None and version > last):
            continue
        if record.kind == "cdf" and not feed:
            raise broken(f"the server listed a {record.kind!r} line among the files of {table}")
        if record.data_change or record.kind == "cdf":
            lines_by_version.setdefault(version, []).append(record)
    by_version = {}
    for version in sorted(lines_by_version):
        lines = lines_by_version.pop(version)
        adds, removes, changed = (_by_id(lines, kind, version, table) for kind in ("add", "remove", "cdf"))
        tasks = _changes(adds, removes, changed) if feed else map(task_of, adds.values())
        by_version[version] = VersionFiles(version, list(tasks), len(removes))
    return by_version


def _by_id(records: list[FileRecord], kind: str, version: int, table: str) -> dict[str, FileRecord]:
    found: dict[str, FileRecord] = {}
    for record in records:
        if record.kind == kind and found.setdefault(record.id, record) is not record:
            raise broken(f"the server lists file {record.id} of {table} twice in version {version}")
    return found


def _changes(*kinds: dict[str, FileRecord]) -> Iterator[FileTask]:
    """The change files of a version's adds, removes and change files."""
    adds, removes, changed = (
        {
            name: ChangedFile(partial(getattr, line, "deletion_vector"), partial(_change_task, line))
            for name, line in lines.items()
        }
        for lines in kinds
    )
    return change_files(adds, removes, tuple(changed.values()))


def _change_task(record: FileRecord) -> FileTask:
    """The task of a line of a change feed."""
    return replace(task_of(record), commit_version=record.version, commit_timestamp=record.timestamp)


def shape_of_head(head: TableSnapshotHead, table: str, *, is_newest: bool) -> TableShape:
    """The shape that an answer tells; raises as ``shape_of_answer``, whose arguments these are."""
    return shape_of_answer(head.response_format, head.protocol, head.metadata, table, is_newest=is_newest)


def shape_of_answer(
    response_format: str, protocol: Protocol, metadata: Metadata, table: str, *, is_newest: bool = False
) -> TableShape:
    """The shape that an answer tells in a response format.

    Args:
        is_newest: Whether the newest version was asked for, by which a server chooses the format.

    Raises:
        UnsupportedFeatureError: As ``shape_of``, or the table needs what the format cannot say.
        ResponseError: As ``shape_of``.
    """
    if response_format == "parquet":
        check_parquet(_beyond_parquet(metadata, table, is_newest=is_newest), table)
    return shape_of(protocol, metadata, table)


def check_parquet(needed: Iterable[str], table: str) -> None:
    """Raise UnsupportedFeatureError for an answer in the parquet format of a table that needs features which that cannot express."""
    if features := tuple(needed):
        raise UnsupportedFeatureError(
            f"the sharing server answers for {table} in the parquet format, which cannot express {' and '.join(features)}: rows "
            f"would be wrong; set responseFormat to delta, read it with accessMode=dir if that is offered, or ask the provider "
            f"for a server that answers in the delta format",
            features=features,
        )


def features_beyond_parquet(head: TableSnapshotHead, table: str) -> Iterator[str]:
    """The features of a table that decide over its rows and that the parquet format cannot express."""
    if head.response_format == "parquet":
        yield from _beyond_parquet(head.metadata, table, is_newest=False)
        return
    shape = shape_of(head.protocol, head.metadata, table)
    if shape.mapping != "none" and _is_renamed(shape.schema):
        yield "columnMapping"
    if shape.may_have_vectors:
        yield "deletionVectors"


def _beyond_parquet(metadata: Metadata, table: str, *, is_newest: bool) -> Iterator[str]:
    configuration = metadata.configuration
    if configuration.get(MAPPING_MODE, "none").lower() != "none" and _is_renamed(
        parse_schema(metadata.schema_string, table)
    ):
        yield "columnMapping"
    # Of the newest version a server knows that no file has any.
    if not is_newest and configuration.get("delta.enableDeletionVectors", "").lower() == "true":
        yield "deletionVectors"


def _is_renamed(data_type: DataType) -> bool:
    """Whether files name a column of a type otherwise than the table."""
    return any(
        field.metadata.get(COLUMN_MAPPING_NAME, field.name) != field.name or _is_renamed(field.type)
        for field in inner_fields(data_type)
    )


def shapes_of(response: QueryResponse, table: str) -> Iterator[tuple[int | None, TableShape]]:
    """A table's shape where an answer begins, and at each version that changed it; raises as ``shape_of_answer``.

    The first is the newest, whatever its version, where the server tells no history.

    Args:
        response: Read to its end.
    """
    answered, protocol, metadata = response.head.response_format, response.head.protocol, response.head.metadata
    yield metadata.version, shape_of_answer(answered, protocol, metadata, table)
    changes: list[tuple[int, Protocol | Metadata]] = [*response.historical_protocols, *response.historical_metadata]
    for version, group in groupby(sorted(changes, key=lambda change: change[0]), key=lambda change: change[0]):
        for _, changed in group:
            if isinstance(changed, Protocol):
                protocol = changed
            else:
                metadata = changed
        yield version, shape_of_answer(answered, protocol, metadata, table)


def with_shapes(
    by_version: dict[int, VersionFiles], shapes: Sequence[tuple[int | None, TableShape]], first: int, last: int | None
) -> list[VersionFiles]:
    """Versions ``first`` to ``last`` in order, with the shapes of an answer.

    The first shape is the head's, at the range's start; a server that tells the newest stops a stream sooner, never later.
    """
    for version, shape in shapes[1:]:
        if version is not None and version >= first and (last is None or version <= last):
            by_version.setdefault(version, VersionFiles(version)).shape = shape
    files = by_version.setdefault(first, VersionFiles(first))
    files.shape = files.shape or shapes[0][1]
    return [by_version[version] for version in sorted(by_version)]
