"""A change data feed's files: from the server's records, or from the log's commits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from delta_sharing_spark.access.url import task_of
from delta_sharing_spark.errors import ResponseError
from delta_sharing_spark.scan.plan import FileTask
from delta_sharing_spark.sharing.actions import FileRecord

_INSERT, _DELETE = "insert", "delete"


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
