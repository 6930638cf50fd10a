"""A change data feed's files: from the server's records, or from the log's commits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from delta_sharing_spark.access.listing import Listed, PlanReport, pruned, url_access
from delta_sharing_spark.access.load import Load
from delta_sharing_spark.access.settings import formats_of, iso
from delta_sharing_spark.access.shape import TableShape, shape_in_log, shape_of
from delta_sharing_spark.access.url import task_of
from delta_sharing_spark.access.versions import REFUSALS, range_in_log, range_of_versions, refused_feed, refused_range
from delta_sharing_spark.errors import ResponseError, SchemaError, TableChangedError
from delta_sharing_spark.scan.plan import FileTask
from delta_sharing_spark.sharing.actions import FileRecord, Metadata, Protocol
from delta_sharing_spark.sharing.query import ChangesQuery, QueryResponse

if TYPE_CHECKING:
    from delta_sharing_spark.deltalog.changes import CommitChanges

_INSERT, _DELETE = "insert", "delete"


def changes_by_url(load: Load) -> Listed:
    """The files of a change data feed, as the server lists them.

    Raises:
        VersionError: The range is not one, or is not shared.
        SchemaError: A version of the range cannot be read as the feed's columns.
    """
    options, table = load.options, str(load.table)
    report = PlanReport("url", load.decision.reason)
    start, end, newest = options.starting_version, options.ending_version, load.head.version
    nothing = Listed([], url_access(load, None, None), report)
    if newest is not None:
        if isinstance(start, int) and not range_of_versions(start, end, newest, table):
            return nothing
        if options.ending_timestamp is None:
            end = newest if end is None else min(end, newest)
    query = ChangesQuery(
        starting_version=start if isinstance(start, int) else None,
        starting_timestamp=iso(options.starting_timestamp),
        ending_version=end,
        ending_timestamp=iso(options.ending_timestamp),
        max_files=options.max_files_per_request,
        include_historical_metadata=True,
        include_historical_protocol=True,
    )
    try:
        response = load.rest.changes(load.table, query, formats=formats_of(options))
    except REFUSALS as refusal:
        versions = refused_range(load.rest, load.table, options, newest, refusal)
        if not versions:
            return nothing
        query = replace(
            query,
            starting_version=versions[0],
            ending_version=versions[-1],
            starting_timestamp=None,
            ending_timestamp=None,
        )
        try:
            response = load.rest.changes(load.table, query, formats=formats_of(options))
        except REFUSALS as again:
            raise refused_feed(load.table, options, again) from again
    records = list(response.records())
    for version, shape in shapes_of(response, table):
        check_readable(load.shape, shape, version, table)
    report.listed = len(records)
    tasks = list(pruned(load, report, change_tasks(records, table)))
    return Listed(tasks, url_access(load, query, response, files=report.listed), report)


def changes_by_directory(load: Load) -> Listed:
    """The files of a change data feed, by the log's commits. Raises as ``changes_by_url``, and LogError."""
    from delta_sharing_spark.deltalog.changes import load_changes

    table, directory = str(load.table), load.directory()
    report = PlanReport("dir", load.decision.reason, version=load.version)
    assert load.version is not None, "directory mode is pinned to a version"
    versions = range_in_log(directory.store, load.options, load.version, table)
    if not versions:
        return Listed([], directory.access, report)
    commits = load_changes(directory.store, versions[0], versions[-1], table=table)
    tasks = directory.checked(task for commit in commits for task in _readable_tasks(commit, load, versions[0]))
    found = list(pruned(load, report, tasks))
    report.listed = len(found) + sum(report.skipped.values())
    return Listed(found, directory.access, report)


def _readable_tasks(commit: CommitChanges, load: Load, start: int) -> list[FileTask]:
    head = commit.head
    if head is not None and (commit.version == start or commit.metadata is not None):
        table = str(load.table)
        check_readable(load.shape, shape_in_log(head.protocol, head.metadata, table), commit.version, table)
    return commit.tasks


def shapes_of(response: QueryResponse, table: str) -> Iterator[tuple[int | None, TableShape]]:
    """A table's shape where an answer begins, and at each version that changed it; every protocol passes the gate.

    The first is the newest, whatever its version, where the server tells no history.

    Args:
        response: Read to its end.
        table: How errors name the table.

    Raises:
        UnsupportedFeatureError: A version asks for more than this reader does.
    """
    protocol, metadata = response.head.protocol, response.head.metadata
    yield metadata.version, shape_of(protocol, metadata, table)
    changes: list[tuple[int, Protocol | Metadata]] = [*response.historical_protocols, *response.historical_metadata]
    for version, group in groupby(sorted(changes, key=lambda change: change[0]), key=lambda change: change[0]):
        for _, changed in group:
            if isinstance(changed, Protocol):
                protocol = changed
            else:
                metadata = changed
        yield version, shape_of(protocol, metadata, table)


def check_readable(feed: TableShape, then: TableShape, version: int | None, table: str) -> None:
    """Refuse a version whose values would be missing from the feed's columns, or stand in others.

    A column that the version lacks is NULL in its rows, one that the feed lacks is left out, and types are compared
    file by file.

    Raises:
        TableChangedError: The version is another table's.
        SchemaError: Names version and column.
    """
    when = "the newest version" if version is None else f"version {version}"
    if feed.id and then.id and feed.id != then.id:
        raise TableChangedError(f"table {table} was replaced by another table as of {when}; load it again")
    columns = {field.physical_name: field for field in feed.schema.fields}
    for field in then.schema.fields:
        known, namesake = columns.get(field.physical_name), feed.schema.find(field.name)
        why = None
        if known is None:
            if namesake is not None and feed.mapping != then.mapping:
                why = "files hold it by another name there (the column mapping differs)"
        elif (field.name in then.partition_columns) != (known.name in feed.partition_columns):
            why = "it is a partition column in one and not in the other"
        if why is not None:
            raise SchemaError(
                f"{when} of {table} has column {field.name!r} otherwise than the change feed that is read: {why}; "
                f"start at a later version",
                column=field.name,
                version=version,
            )


def change_tasks(records: Iterable[FileRecord], table: str) -> Iterator[FileTask]:
    """Tasks of a feed's records: change files as they are, adds as inserts, removes as deletes.

    A version with change files is read from those alone. A file that one version both removes and adds changed its
    deletion vector: only the rows in one vector and not in the other changed. ``dataChange=false`` is no change.

    Raises:
        ResponseError: A record names no version, or a file is added or removed twice in one.
    """
    versions: dict[int, list[FileRecord]] = {}
    for record in records:
        if record.version is None:
            raise ResponseError(
                f"the server's change feed of {table} has a file without a version; ask the provider to check the server"
            )
        versions.setdefault(record.version, []).append(record)
    for version in sorted(versions):
        yield from _version_tasks(versions.pop(version), version, table)


def _version_tasks(records: list[FileRecord], version: int, table: str) -> Iterator[FileTask]:
    changes = [r for r in records if r.kind == "cdf"]
    if changes:
        for record in changes:
            yield _dated(task_of(record, table), record)
        return
    adds = _by_id(records, "add", version, table)
    removes = _by_id(records, "remove", version, table)
    for identity, remove in removes.items():
        add = adds.pop(identity, None)
        if add is None:
            yield replace(_dated(task_of(remove, table), remove), change_type=_DELETE)
        else:
            yield from _pair(add, remove, table)
    for add in adds.values():
        yield replace(_dated(task_of(add, table), add), change_type=_INSERT)


def _by_id(records: list[FileRecord], kind: str, version: int, table: str) -> dict[str, FileRecord]:
    found: dict[str, FileRecord] = {}
    for record in records:
        if record.kind != kind or not record.data_change:
            continue
        if record.id in found:
            raise ResponseError(
                f"the server's change feed of {table} lists file {record.id} twice in version {version}; "
                f"ask the provider to check the server"
            )
        found[record.id] = record
    return found


def _pair(add: FileRecord, remove: FileRecord, table: str) -> Iterator[FileTask]:
    """A file whose deletion vector changed: the rows in one vector and not in the other."""
    after, before = _dated(task_of(add, table), add), _dated(task_of(remove, table), remove)
    new, old = after.deletion_vector, before.deletion_vector
    if new is not None:
        yield replace(after, change_type=_DELETE, invert_deletion_vector=True, excluded=old)
    if old is not None:
        yield replace(after, change_type=_INSERT, deletion_vector=old, invert_deletion_vector=True, excluded=new)


def _dated(task: FileTask, record: FileRecord) -> FileTask:
    return replace(task, commit_version=record.version, commit_timestamp=record.timestamp)
