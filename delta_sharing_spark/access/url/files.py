"""Makes file tasks of the sharing server's file lines: of a snapshot as they arrive, of a feed version by version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

from delta_sharing_spark.access.contract import FilePruner, TableShape, VersionFiles, shape_of
from delta_sharing_spark.errors import UnsupportedFeatureError
from delta_sharing_spark.predicates.skip_reason import SkipReason
from delta_sharing_spark.scan.change_feed import ChangedFile, change_files
from delta_sharing_spark.scan.plan import FileTask, rows_in_stats
from delta_sharing_spark.schema.features import MAPPING_MODE
from delta_sharing_spark.schema.types import COLUMN_MAPPING_NAME, DataType, inner_fields, parse_schema
from delta_sharing_spark.sharing.query import QueryResponse
from delta_sharing_spark.sharing.wire_records import FileRecord, Metadata, Protocol, TableSnapshotHead, broken


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
    """Takes in a snapshot's records as they arrive, and keeps the tasks of the files that are left.

    Args:
        pruner: Skips files; None keeps all, with their statistics if ``keep_stats``.
        keep_stats: Whether the tasks carry their statistics.

    Attributes:
        tasks: Of the files that are left.
        times: When each file was added, in milliseconds since the epoch, where the server tells.
        skipped: How many files are not left, by the pruner's reason.
    """

    __slots__ = ("_keep_stats", "_pruner", "_table", "skipped", "tasks", "times")

    def __init__(self, table: str, pruner: FilePruner | None = None, *, keep_stats: bool = False) -> None:
        self._table, self._pruner, self._keep_stats = table, pruner, keep_stats
        self.times: dict[str, int | None] = {}
        self.tasks: list[FileTask] = []
        self.skipped: Counter[SkipReason] = Counter()

    def append(self, record: FileRecord) -> None:
        """Take in one record; raises ResponseError where it came before, or is not a data file's."""
        if record.kind != "add":
            raise broken(f"the server listed a {record.kind!r} line in a snapshot of {self._table}")
        if record.id in self.times:
            raise broken(f"the server listed file {record.id} of {self._table} twice")
        self.times[record.id] = record.timestamp
        reason = SkipReason.KEEP if self._pruner is None else self._pruner.reason(record.partition_values, record.stats)
        if reason:
            self.skipped[reason] += 1
        else:
            self.tasks.append(task_of(record, keep_stats=self._keep_stats))

    def extend(self, page: SnapshotFiles) -> None:
        """Take in what another page has; raises ResponseError where a file is in both."""
        for repeated in self.times.keys() & page.times.keys():
            raise broken(f"the server listed file {repeated} of {self._table} twice")
        self.times.update(page.times)
        self.tasks += page.tasks
        self.skipped += page.skipped


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
