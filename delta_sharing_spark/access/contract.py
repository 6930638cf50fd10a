"""Defines what an access mode offers of a shared table, whichever way its files are reached, how its files are pruned, and a resolved
load, which pickles to the planning worker.

``open.py`` negotiates a mode and opens the table by it; what resolves a load, ``plan.py`` and ``stream/`` work with an ``OpenTable``
and name no mode. Another way to reach a table is one more subclass of ``OpenTable`` and one more line in ``open.MODES``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import numpy.typing as npt

from delta_sharing_spark.access.planned_files import PlannedFiles
from delta_sharing_spark.errors import AccessModeError, SchemaError, TableChangedError, VersionError
from delta_sharing_spark.network.http import NetworkSettings
from delta_sharing_spark.options import ReadOptions
from delta_sharing_spark.predicates.skip_reason import SkipReason
from delta_sharing_spark.predicates.tree import Expression, conjunction
from delta_sharing_spark.scan.plan import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, Access, FileTask
from delta_sharing_spark.schema.features import TYPE_CHANGES, check_type_changes
from delta_sharing_spark.schema.table_records import Metadata
from delta_sharing_spark.schema.table_records import Protocol as DeltaProtocol
from delta_sharing_spark.schema.types import (
    Field,
    FieldsByName,
    Primitive,
    Struct,
    inner_fields,
    without_mapping,
)
from delta_sharing_spark.sharing import wire_records
from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.sharing.profile import Profile

if TYPE_CHECKING:
    from delta_sharing_spark.deltalog.add_batch import AddBatch
    from delta_sharing_spark.predicates.file_skipping import PartitionKey


@dataclass(frozen=True, slots=True)
class TableShape:
    """The schema of a table, with what maps its columns to those of its files.

    Attributes:
        id: The table's id; another one means another table.
        schema: Its columns, with physical names only where columns are mapped.
        partition_columns: Logical names.
        mapping: Column mapping mode.
        may_have_vectors: Whether its protocol allows its files to have deletion vectors.
    """

    id: str
    schema: Struct
    partition_columns: tuple[str, ...]
    mapping: str
    may_have_vectors: bool = False


def shape_of(protocol: DeltaProtocol, metadata: Metadata, table: str) -> TableShape:
    """The shape of a table as the sharing server or its log describes it; the protocol passes the gate first.

    Raises:
        UnsupportedFeatureError: A reader feature or a type that this reader does not know, by its name.
        ResponseError: A schema that is malformed.
    """
    protocol.check(table)
    schema = metadata.schema(table)
    if TYPE_CHANGES in metadata.schema_string:
        check_type_changes(schema, table=table)
    mapping = metadata.mapping(protocol, table)
    if mapping == "none":
        schema = without_mapping(schema)
    vectors = "deletionVectors" in protocol.reader_features
    return TableShape(metadata.id, schema, metadata.partition_columns, mapping, vectors)


def check_same(loaded: TableShape, now: TableShape, table: str) -> None:
    """Compare the table that a query returns with the one that was loaded; columns that were only added do no harm.

    Raises:
        TableChangedError: The rows would not be what the DataFrame promises.
    """
    why = None
    if loaded.id and now.id and loaded.id != now.id:
        why = "it was replaced by another table"
    elif loaded.partition_columns != now.partition_columns:
        why = "its partition columns changed"
    elif loaded.mapping != now.mapping:
        why = "its column mapping changed"
    else:
        fields = FieldsByName(now.schema)
        for old in loaded.schema.fields:
            new = fields.find(old.name)
            if new is None:
                why = f"column {old.name!r} was dropped"
            elif new.type != old.type or (new.nullable and not old.nullable):
                why = f"column {old.name!r} changed from {_shown(old)} to {_shown(new)}"
            elif new.physical_name != old.physical_name:
                why = f"column {old.name!r} was replaced"
            if why:
                break
    if why:
        raise TableChangedError(f"table {table} has changed since it was loaded: {why}; load it again")


def check_readable(feed: TableShape, earlier: TableShape, version: int | None, table: str) -> None:
    """Refuse a version whose values would be missing from the feed's columns, or stand in others.

    A column that the version lacks is NULL in its rows, one that the feed lacks is left out, and types are compared
    file by file. A version with another id is read where its columns are all in the feed: a MERGE of delta-rs
    that adds columns or fields gives the table another id.

    Raises:
        TableChangedError: The version is another table's.
        SchemaError: Names version and column.
    """
    when = "the newest version" if version is None else f"version {version}"
    if feed.id and earlier.id and feed.id != earlier.id and not _goes_on(feed, earlier):
        raise TableChangedError(
            f"table {table} was replaced by another table as of {when}; load it again, or start at a later version"
        )
    columns = {column.physical_name: column for column in feed.schema.fields}
    for column in earlier.schema.fields:
        known, namesake = columns.get(column.physical_name), feed.schema.find(column.name)
        why = None
        if feed.mapping == "none" != earlier.mapping and known is not namesake:
            why = "files hold it by another name there (the column mapping was taken off)"
        elif known is not None and (column.name in earlier.partition_columns) != (known.name in feed.partition_columns):
            why = "it is a partition column in one and not in the other"
        if why is not None:
            raise SchemaError(
                f"{when} of {table} has column {column.name!r} otherwise than the change feed that is read: {why}; "
                f"start at a later version",
                column=column.name,
                version=version,
            )


def _goes_on(feed: TableShape, earlier: TableShape) -> bool:
    """Whether the files of an earlier shape are read as they were."""
    same_files = (feed.mapping, feed.partition_columns) == (earlier.mapping, earlier.partition_columns)
    return same_files and _holds(feed.schema.fields, earlier.schema.fields)


def _holds(now: Sequence[Field], earlier: Sequence[Field]) -> bool:
    """Whether every earlier field is still there as it was, but for fields that were added within it."""
    types = {(new.name, new.physical_name): new.type for new in now}
    for old in earlier:
        kind, inner = types.get((old.name, old.physical_name)), inner_fields(old.type)
        if kind is None or not (_holds(inner_fields(kind), inner) if inner else kind == old.type):
            return False
    return True


def _shown(field_: Field) -> str:
    return f"{field_.type}{'' if field_.nullable else ' NOT NULL'}"


def with_change_columns(schema: Struct, options: ReadOptions) -> Struct:
    """A table's columns and those of its change data feed."""
    moment = "long" if options.commit_timestamp_type == "long" else "timestamp"
    return Struct(
        (
            *schema.fields,
            Field(CHANGE_TYPE, Primitive("string")),
            Field(COMMIT_VERSION, Primitive("long")),
            Field(COMMIT_TIMESTAMP, Primitive(moment)),
        )
    )


Mode = Literal["url", "dir", "flight", "iceberg"]


@dataclass(frozen=True, slots=True)
class Decision:
    """The mode of one load.

    Attributes:
        mode: ``"url"``, ``"dir"``, ``"flight"`` or ``"iceberg"``.
        reason: Why, for the log.
        fallback: The other mode, where it may be tried if this one turns out not to work; else None.
    """

    mode: Mode
    reason: str
    fallback: Mode | None = None


@dataclass(frozen=True, slots=True)
class NegotiatedTable:
    """A table that the sharing server has described, and the access mode that was chosen.

    Attributes:
        options: What the user asked for.
        profile, settings, table: The sharing server and recipient, how requests are sent, the table's name.
        head: What the sharing server states about the table.
        decision: The access mode, why, and what to fall back to.
    """

    options: ReadOptions = field(repr=False)
    profile: Profile = field(repr=False)
    settings: NetworkSettings = field(repr=False)
    table: TableName
    head: wire_records.TableSnapshotHead = field(repr=False)
    decision: Decision


@dataclass(frozen=True, slots=True)
class ResolvedScan(NegotiatedTable):
    """A load whose table, version, columns and conditions are known.

    Attributes:
        shape: The table's shape at the version loaded; of a change feed at the end of its range.
        version: The version loaded, the newest at that time for a change feed; None where the server does not tell.
        columns: The table's columns and, for a change feed, the change columns.
        output: The columns that the load has.
        predicate: The parsed ``where``.
        pushed: Filters of the one query that the load serves (``pushdown=query``); prunes, filters no row.
        is_pinned: Whether the server is asked for ``version``, that all listings of the load be of one version.
        rows_needed: So many of its rows are enough, whichever they are: listing may end with the files that hold them.
    """

    shape: TableShape = field(repr=False)
    version: int | None
    columns: Struct = field(repr=False)
    output: Struct
    predicate: Expression | None = None
    pushed: Expression | None = None
    is_pinned: bool = False
    rows_needed: int | None = None

    @property
    def prune(self) -> Expression | None:
        """The conditions that files and row groups may be skipped by; None if there are none."""
        # A limit counts rows before Spark's filters do: pruning by them would give other rows.
        parts = [p for p in (self.predicate, self.pushed if self.options.limit is None else None) if p is not None]
        return conjunction(parts) if parts else None


#: How ``explain`` calls the reasons.
_RULES = {SkipReason.PARTITION_VALUES: "partition values", SkipReason.STATISTICS: "statistics"}


class NotPinnedError(VersionError):
    """The server does not list the files of a version that was not asked for by the user (``ResolvedScan.is_pinned``)."""


@dataclass(frozen=True, slots=True)
class AsOf:
    """Which version of a table: a number, the last one at or before a moment, or (neither) the newest."""

    version: int | None = None
    moment: datetime | None = None


@dataclass(frozen=True, slots=True)
class TableState:
    """A table at one version.

    Attributes:
        version: The version; None where the server does not tell it.
        shape: Schema, partition columns and column mapping.
    """

    version: int | None
    shape: TableShape


class SplitAccess(Protocol):
    """The access to all files of a listing, from which each split takes what its own files need."""

    def restricted_to(self, tasks: Iterable[FileTask]) -> Access:
        """The same access with only those URLs, tokens or tickets that these files need."""

    def outlasts_planning(self, task: FileTask) -> bool:
        """Whether executors can still read a file that was listed earlier: its access is valid, or they can renew it."""


@dataclass(frozen=True, slots=True)
class FileListing:
    """The files of a snapshot.

    Attributes:
        files: Those that pruning left.
        access: How to read them.
        version: The version listed; None where the server does not tell it.
        listed: How many files there were before pruning.
        hints: The hints that the server was sent to prune by, by the protocol's names.
        fallback: Why the files were in the end asked for without ``hints``, if they were.
        rows: Rows of all files that are not deleted, where more than the files tells it.
    """

    files: PlannedFiles
    access: SplitAccess
    version: int | None = None
    listed: int = 0
    hints: Mapping[str, str] = field(default_factory=dict)
    fallback: str | None = None
    rows: int | None = None


@dataclass(slots=True)
class VersionFiles:
    """The files of one version of a change feed or a stream.

    Attributes:
        version: The version.
        tasks: Files to read: those of its change feed, or those that it adds.
        removes: How many files it removes (streams of a table).
        shape: The table's shape from this version on, where it is known: at the start of a range, and where it changed.
    """

    version: int
    tasks: list[FileTask] = field(default_factory=list)
    removes: int = 0
    shape: TableShape | None = None


@dataclass(frozen=True, slots=True)
class StreamIdentity:
    """What the order of files within a version depends on; a stream goes on in the middle of a version only if it is equal.

    Attributes:
        table_id: The table's id; another one means another table.
        mode: The access mode.
        format, hash: The response format, and the hash of file ids where the server says which it used.
    """

    table_id: str
    mode: str
    format: str
    hash: str | None

    def is_ordered_as(self, other: StreamIdentity) -> bool:
        """Whether files have one order by both; the table's id is looked at apart."""
        own, others = ((i.mode, i.hash, i.format if i.hash is None else None) for i in (self, other))
        return own == others


@dataclass(frozen=True, slots=True)
class VersionListing:
    """Files version by version.

    Attributes:
        versions: In ascending order; those without files may be left out. Iterated once.
        access: How to read them.
        identity: What the order of files within a version depended on.
    """

    versions: Iterable[VersionFiles]
    access: SplitAccess
    identity: StreamIdentity


class OpenTable(ABC):
    """A shared table that one access mode has opened; lives in one process.

    Every method may ask the sharing server or the storage and raises what these raise: ServerError, NetworkError,
    CredentialError, ResponseError, LogError; and VersionError for a version that is not there or not shared.

    Attributes:
        mode: The access mode's name, in ``explain`` and in stream offsets.
    """

    mode: str

    @abstractmethod
    def describe(self, as_of: AsOf) -> TableState:
        """The table at a version; raises UnsupportedFeatureError where that asks for more than this reader does."""

    @abstractmethod
    def newest_version(self) -> int:
        """The newest version, looked for now."""

    def version_at_or_after(self, moment: datetime) -> int:
        """The first version committed at or after a moment."""
        raise AccessModeError(f"access mode {self.mode} does not find versions by time; give a version")

    def version_at_or_before(self, moment: datetime) -> int | None:
        """The last version committed at or before a moment; None if that is the newest, -1 if there is none."""
        raise AccessModeError(f"access mode {self.mode} does not find versions by time; give a version")

    def commit_times(self, most: int) -> Mapping[int, int | None]:
        """The newest versions, at most ``most``, each with its timestamp in milliseconds where that is told."""
        raise AccessModeError(f"access mode {self.mode} tells no times of versions; changes() has _commit_timestamp")

    @abstractmethod
    def snapshot(self, scan: ResolvedScan, pruner: FilePruner) -> FileListing:
        """The files of the snapshot that was resolved, those left out that ``pruner`` skips.

        Raises:
            TableChangedError: The table is no longer the one that was resolved.
            NotPinnedError: The scan is pinned, and the server lists its newest version alone.
        """

    @abstractmethod
    def changes(self, scan: ResolvedScan) -> VersionListing:
        """The files of the change data feed over the range that the scan's options name, with their change columns."""

    @abstractmethod
    def versions(
        self, scan: ResolvedScan, first: int, last: int, identity: StreamIdentity | None = None
    ) -> VersionListing:
        """What the versions ``first`` to ``last``, both included, add; with ``readChangeFeed`` their change files.

        Args:
            first, last: Versions that exist.
            identity: What the files were ordered by so far; None if none were asked for.
        """

    @abstractmethod
    def all_files(self, scan: ResolvedScan, version: int, identity: StreamIdentity | None = None) -> VersionListing:
        """All files of a version, with which a stream begins; with ``readChangeFeed`` each of its rows is an insert."""

    def stream_identity(self, scan: ResolvedScan) -> StreamIdentity:
        """What the order of files will depend on, before any were asked for."""
        return StreamIdentity(scan.shape.id, self.mode, self.mode, None)


def as_insert(task: FileTask, version: int, timestamp_ms: int | None) -> FileTask:
    """A file of a change stream's first snapshot: its rows are inserts of that version."""
    return replace(task, change_type="insert", commit_version=version, commit_timestamp=timestamp_ms)


def last_version(table: OpenTable, options: ReadOptions, newest: int | None) -> int | None:
    """The last version of a feed's range; None means the newest, -1 that the range ends before the table's first version. Raises VersionError."""
    end = options.ending_version
    start = options.starting_version
    if newest is not None and isinstance(start, int) and start > newest:
        return newest  # it begins with a version that is not there yet: the feed is empty, wherever it ends
    if options.ending_timestamp is not None:
        end = table.version_at_or_before(options.ending_timestamp)
    if end is None or newest is None:
        return newest if end is None else end
    return min(end, newest)


def range_of_versions(start: int, end: int | None, newest: int, table: str, options: ReadOptions) -> range:
    """The versions of a change data feed.

    Args:
        start: The first version; the one after the newest makes an empty range.
        end: The last version; None, or one after the newest, means the newest.
        options: Those of the feed: between two moments there may be no version.

    Raises:
        VersionError: The range starts after the newest version, or ends before it starts.
    """
    if start > newest + 1:
        raise VersionError(
            f"version {start} of {table} does not exist: the newest is {newest}; start at {newest + 1} or before"
        )
    last = newest if end is None else min(end, newest)
    between_moments = options.starting_timestamp is not None and options.ending_timestamp is not None
    if last < start and not (last == start - 1 and (between_moments or start > newest)):
        raise VersionError(
            f"the change feed of {table} would start at version {start} and end at version {last}; "
            f"give an end that is not before the start"
        )
    return range(start, last + 1)


class FilePruner:
    """Skips files none of whose rows can pass the scan's conditions, and counts them.

    Args:
        listed: Called with the number of files that were looked at since its last call.

    Attributes:
        skipped: How many files were skipped, by rule.
    """

    def __init__(self, scan: ResolvedScan, listed: Callable[[int], None] | None = None) -> None:
        self._scan, self._listed = scan, listed
        self._skipping = None
        self._skipped: Counter[SkipReason] = Counter()
        if scan.prune is not None:
            from delta_sharing_spark.predicates.file_skipping import FileSkipping

            zone = scan.options.time_zone
            self._skipping = FileSkipping(scan.prune, scan.columns, scan.shape.partition_columns, time_zone=zone)

    @property
    def skipped(self) -> dict[str, int]:
        return {_RULES[reason]: count for reason, count in sorted(self._skipped.items()) if count}

    @property
    def stats_columns(self) -> Collection[str] | None:
        """Physical names of the columns whose statistics are looked at."""
        return () if self._skipping is None else self._skipping.stats_columns

    @property
    def predicate_is_decided(self) -> bool:
        """Whether every row of the remaining files passes ``where``; valid after all files were looked at."""
        if self._skipping is None:
            return True
        return self._scan.pushed is None and self._skipping.is_decided

    def non_pruning_conjuncts(self) -> tuple[str, ...]:
        """Parts of the conditions that no file can be skipped by."""
        return () if self._skipping is None else tuple(str(part) for part in self._skipping.non_pruning_conjuncts())

    def reason(self, partition_values: Mapping[str, str | None] | None, stats: str | None) -> SkipReason:
        """Why a file can be skipped, if it can. It is not counted yet: an answer that breaks off is read again from its start."""
        if self._listed is not None:
            self._listed(1)
        return SkipReason.KEEP if self._skipping is None else self._skipping.reason(partition_values or {}, stats)

    def begin(self) -> None:
        """Count anew: files are listed from the beginning."""
        self._skipped.clear()

    def count(self, reason: SkipReason, files: int) -> None:
        """Count files that were skipped for a reason."""
        self._skipped[reason] += files

    def partition_key(self, partition_values: Mapping[str, str | None] | None) -> PartitionKey:
        """What ``reasons`` needs of a file's partition values; equal for many files."""
        return () if self._skipping is None else self._skipping.partition_key(partition_values or {})

    def reasons(self, keys: Sequence[PartitionKey], stats: Sequence[str | None]) -> npt.NDArray[np.uint8] | None:
        """Why files can be skipped, each a ``SkipReason``; None where no file can. They are not counted yet, as by ``reason``.

        Args:
            keys: Of each file what ``partition_key`` tells.
            stats: The JSON of each file's statistics.
        """
        if self._listed is not None:
            self._listed(len(keys))
        if self._skipping is None:
            return None
        return self._skipping.reasons_of(keys, lambda places: [stats[place] for place in places])

    def remaining(self, tasks: Iterable[FileTask]) -> Iterator[FileTask]:
        """Files whose rows may pass, without their statistics."""
        for task in tasks:
            reason = self.reason(task.partition_values, task.stats)
            if reason:
                self.count(reason, 1)
            else:
                yield replace(task, stats=None) if task.stats is not None else task

    def remaining_rows(self, batch: AddBatch) -> AddBatch:
        """The same for files in columns: no object is built for a file that is skipped."""
        if self._listed is not None:
            self._listed(batch.num_rows)
        if self._skipping is None:
            return batch
        import numpy as np

        reasons = self._skipping.reasons(batch.num_rows, batch.partition_values, batch.stats_texts, batch.stats_parsed)
        for reason in _RULES:
            self.count(reason, int(np.count_nonzero(reasons == reason)))
        keep: npt.NDArray[np.bool_] = reasons == SkipReason.KEEP
        return batch.filter(keep)
