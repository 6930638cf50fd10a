"""What a stream reads, version by version: from the sharing server, or from the log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from delta_sharing_spark.access.carriage import DirectoryAccess
from delta_sharing_spark.access.changes import change_tasks, shapes_of
from delta_sharing_spark.access.credentials import TOKENS
from delta_sharing_spark.access.expiry import earliest, renew_at, url_end
from delta_sharing_spark.access.listing import url_access
from delta_sharing_spark.access.load import Load
from delta_sharing_spark.access.settings import formats_of, iso, millis
from delta_sharing_spark.access.shape import TableShape, shape_in_log, shape_of
from delta_sharing_spark.access.url import SnapshotFiles, UrlAccess, task_of
from delta_sharing_spark.access.versions import REFUSALS, words_of
from delta_sharing_spark.errors import ResponseError, StreamError, VersionError
from delta_sharing_spark.scan.plan import Access, FileTask
from delta_sharing_spark.sharing.actions import FileRecord
from delta_sharing_spark.sharing.rest import ChangesQuery, Query, QueryResponse

if TYPE_CHECKING:
    from delta_sharing_spark.access.directory import DirectoryTable
    from delta_sharing_spark.deltalog.changes import CommitChanges, CommitFiles
    from delta_sharing_spark.deltalog.replay import Head

#: The hash file ids are asked for under, so that they do not depend on the response format.
ID_HASH = "delta"


@dataclass(frozen=True, slots=True)
class Identity:
    """What the order of files within a version depends on; a batch in the middle of one continues only under the same."""

    table_id: str
    mode: str
    format: str
    hash: str | None


@dataclass(slots=True)
class VersionFiles:
    """One version as a stream sees it.

    Attributes:
        version: The version.
        tasks: Its files to read, ordered by id: adds of a table stream, changes of a change stream.
        removes: How many files it removes (table streams).
        shape: The table's shape from this version on: known at the start of a range, and where a version changed it.
    """

    version: int
    tasks: list[FileTask] = field(default_factory=list)
    removes: int = 0
    shape: TableShape | None = None


class StreamSource(Protocol):
    """The versions of one table."""

    identity: Identity

    def latest(self) -> int:
        """The newest version, asked for now."""

    def at_or_after(self, load: Load) -> int:
        """The first version at or after the load's ``startingTimestamp``."""

    def snapshot(self, version: int) -> tuple[VersionFiles, Access]:
        """All files of a version, ordered by id, and the table's shape at it."""

    def versions(self, start: int, end: int) -> tuple[list[VersionFiles], Access]:
        """Versions ``start`` to ``end``, both included, in order; versions without files may be left out."""

    def lasts(self, task: FileTask, access: Access) -> bool:
        """Whether executors can still read what was listed: they renew it themselves, or it is valid for a while."""


class UrlSource:
    """Url mode. The response format of the first answer is kept, unless the server's ids do not depend on it."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._formats = formats_of(load.options)
        self._hash: str | None = ID_HASH
        self._asked = False
        self.identity = Identity(load.shape.id, "url", load.head.response_format, None)

    def latest(self) -> int:
        return self._load.rest.table_version(self._load.table)

    def at_or_after(self, load: Load) -> int:
        moment = iso(load.options.starting_timestamp)
        try:
            return load.rest.table_version(load.table, moment)
        except REFUSALS as refusal:
            raise VersionError(
                f"the stream of {load.table} cannot start at {moment}: {words_of(refusal)}; give a moment that its shared "
                f"history covers, or startingVersion"
            ) from refusal

    def continue_as(self, identity: Identity) -> None:
        """Before anything was asked: expect what an offset names, so that the order of files stays the same."""
        if self._asked or identity.mode != "url":
            return
        self._asked = True
        self.identity = Identity(self.identity.table_id, "url", identity.format, identity.hash)
        self._hash = identity.hash
        if identity.hash is None:
            self._formats = (identity.format,)

    def snapshot(self, version: int) -> tuple[VersionFiles, Access]:
        load, table = self._load, str(self._load.table)
        query = Query(version=version, max_files=load.options.max_files_per_request, file_id_hash=self._hash)
        response = load.rest.query(load.table, query, formats=self._formats)
        head = response.head
        if head.version is not None and head.version != version:
            raise VersionError(
                f"the stream of {table} begins with version {version}, and the server answers with {head.version}; "
                f"ask the provider to share the table's history, or set startingVersion"
            )
        self._note(response)
        times: dict[str, int | None] = {}
        found = SnapshotFiles(table, keep_stats=load.prune is not None)
        for record in response.records():
            found.append(record)
            times[record.id] = record.timestamp
        tasks = found.tasks
        if load.options.read_change_feed:
            tasks = [_as_insert(task, version, times[task.id]) for task in tasks]
        files = VersionFiles(version, sorted(tasks, key=_by_id), shape=shape_of(head.protocol, head.metadata, table))
        return files, url_access(load, query, response)

    def versions(self, start: int, end: int) -> tuple[list[VersionFiles], Access]:
        load, table = self._load, str(self._load.table)
        feed = load.options.read_change_feed
        query = (ChangesQuery if feed else Query)(
            starting_version=start,
            ending_version=end,
            include_historical_metadata=True,
            include_historical_protocol=True,
            max_files=load.options.max_files_per_request,
            file_id_hash=self._hash,
        )
        if isinstance(query, ChangesQuery):
            response = load.rest.changes(load.table, query, formats=self._formats)
        else:
            response = load.rest.query(load.table, query, formats=self._formats)
        self._note(response)
        records = (r for r in response.records() if start <= _version(r, table) <= end)
        found: dict[int, VersionFiles] = {}
        for version, task in (_changes if feed else _files)(records, table):
            files = found.setdefault(version, VersionFiles(version))
            if task is None:
                files.removes += 1
            else:
                files.tasks.append(_kept(task, load))
        return self._ordered(found, response, start, end), url_access(load, query, response)

    def lasts(self, task: FileTask, access: Access) -> bool:
        assert isinstance(access, UrlAccess)
        ends = earliest(task.expires_at, access.expires_at, url_end(task.location))
        due = renew_at(ends, access.planned_at)
        return access.recipe is not None or due is None or time.time() < due

    def _ordered(
        self, found: dict[int, VersionFiles], response: QueryResponse, start: int, end: int
    ) -> list[VersionFiles]:
        table, shapes = str(self._load.table), shapes_of(response, str(self._load.table))
        # The first is the head's, at the range's start; a server that tells the newest stops the stream sooner, never later.
        _, begun = next(shapes)
        for version, shape in shapes:
            if version is not None and start <= version <= end:
                found.setdefault(version, VersionFiles(version)).shape = shape
        files = found.setdefault(start, VersionFiles(start))
        files.shape = files.shape or begun
        for files in found.values():
            files.tasks.sort(key=_by_id)
            for task, following in pairwise(files.tasks):
                if _by_id(task) == _by_id(following):
                    raise ResponseError(
                        f"the server listed file {task.id} twice in version {files.version} of {table}; "
                        f"ask the provider to check the server"
                    )
        return [found[version] for version in sorted(found)]

    def _note(self, response: QueryResponse) -> None:
        head = response.head
        if self.identity.table_id and head.metadata.id and head.metadata.id != self.identity.table_id:
            raise StreamError(
                f"table {self._load.table} was replaced by another table since the stream started; "
                f"start the stream anew with another checkpoint"
            )
        now = Identity(self.identity.table_id, "url", head.response_format, response.file_id_hash)
        if self._asked and (
            now.hash != self.identity.hash or (now.hash is None and now.format != self.identity.format)
        ):
            raise StreamError(
                f"the server now orders the files of {self._load.table} otherwise: file ids by {_order(now)}, the stream's "
                f"by {_order(self.identity)}; restart the stream, and if it stopped in the middle of a version and does not "
                f"go on, start it anew with another checkpoint"
            )
        self._asked = True
        self.identity = now
        if now.hash is None:
            self._formats = (head.response_format,)


class DirectorySource:
    """Directory mode: the log is the authority, ids are paths."""

    def __init__(self, load: Load, directory: DirectoryTable) -> None:
        self._load = load
        self._directory = directory
        self.identity = Identity(load.shape.id, "dir", "log", "path")
        #: Of the last version read: the next range need not search the log for its own.
        self._head: Head | None = None

    def latest(self) -> int:
        from delta_sharing_spark.deltalog.history import latest_version

        return latest_version(self._directory.store, table=str(self._load.table))

    def at_or_after(self, load: Load) -> int:
        from delta_sharing_spark.deltalog.history import version_at_or_after

        moment = millis(load.options.starting_timestamp)
        assert moment is not None
        return version_at_or_after(self._directory.store, moment, table=str(load.table))

    def snapshot(self, version: int) -> tuple[VersionFiles, Access]:
        snapshot = self._directory.snapshot(version=version)
        tasks: list[FileTask] = []
        feed = self._load.options.read_change_feed
        for task in self._directory.tasks(snapshot, keep_stats=self._load.prune is not None):
            tasks.append(_as_insert(task, version, snapshot.timestamp_ms) if feed else task)
        shape = shape_in_log(snapshot.protocol, snapshot.metadata, str(self._load.table))
        return VersionFiles(version, sorted(tasks, key=_by_id), shape=shape), self._access()

    def versions(self, start: int, end: int) -> tuple[list[VersionFiles], Access]:
        found = list(self._feed(start, end) if self._load.options.read_change_feed else self._files(start, end))
        for files in found:
            files.tasks = sorted((_kept(t, self._load) for t in self._directory.checked(files.tasks)), key=_by_id)
        return found, self._access()

    def lasts(self, task: FileTask, access: Access) -> bool:
        assert isinstance(access, DirectoryAccess)
        return access.issuer is not None or all(time.time() < token.renew_at for token in access.tokens)

    def _access(self) -> DirectoryAccess:
        """For executors, with tokens that are valid now: a stream outlives those that it was opened with."""
        issuer = self._directory.driver.issuer
        assert issuer is not None
        access = self._directory.access
        return replace(access, tokens=tuple(TOKENS.get(issuer, token.location) for token in access.tokens))

    def _feed(self, start: int, end: int) -> Iterator[VersionFiles]:
        from delta_sharing_spark.deltalog.changes import load_changes

        store, table = self._directory.store, str(self._load.table)
        for commit in load_changes(store, start, end, table=table, before=self._head):
            yield VersionFiles(commit.version, commit.tasks, 0, self._shape(commit, start))

    def _files(self, start: int, end: int) -> Iterator[VersionFiles]:
        from delta_sharing_spark.deltalog.changes import load_commits

        store, table = self._directory.store, str(self._load.table)
        for commit in load_commits(store, start, end, table=table, before=self._head):
            yield VersionFiles(commit.version, commit.adds, commit.removes, self._shape(commit, start))

    def _shape(self, commit: CommitChanges | CommitFiles, start: int) -> TableShape | None:
        table, self._head = str(self._load.table), commit.head
        if commit.head is None or (commit.metadata is None and commit.protocol is None and commit.version != start):
            return None
        shape = shape_in_log(commit.head.protocol, commit.head.metadata, table)
        if shape.id and self.identity.table_id and shape.id != self.identity.table_id:
            raise StreamError(
                f"table {table} was replaced by another table at version {commit.version}; "
                f"start the stream anew with another checkpoint"
            )
        return shape


def open_source(load: Load) -> StreamSource:
    """The source of a resolved load's versions."""
    if load.decision.mode == "url":
        return UrlSource(load)
    return DirectorySource(load, load.directory())


def _files(records: Iterator[FileRecord], table: str) -> Iterator[tuple[int, FileTask | None]]:
    """What a table stream sees: versions with the files they add, None for each that they remove."""
    for record in records:
        if record.kind not in ("add", "remove"):
            raise ResponseError(
                f"the server listed a {record.kind!r} line among the files of {table}; ask the provider to check the server"
            )
        if record.data_change:
            yield _version(record, table), None if record.kind == "remove" else task_of(record, table)


def _changes(records: Iterator[FileRecord], table: str) -> Iterator[tuple[int, FileTask | None]]:
    """What a change stream sees: versions with the files of their change feed."""
    for task in change_tasks(records, table):
        assert task.commit_version is not None
        yield task.commit_version, task


def _kept(task: FileTask, load: Load) -> FileTask:
    """A task as it waits for its batch: with statistics only if ``where`` will look at them."""
    return task if task.stats is None or load.prune is not None else replace(task, stats=None)


def _as_insert(task: FileTask, version: int, timestamp: int | None) -> FileTask:
    """A row of a change stream's first snapshot is an insert at its version."""
    return replace(task, change_type="insert", commit_version=version, commit_timestamp=timestamp)


def _order(identity: Identity) -> str:
    return identity.hash or f"the {identity.format} format"


def _version(record: FileRecord, table: str) -> int:
    if record.version is None:
        raise StreamError(
            f"the server's changes of {table} have a file without a version; ask the provider to check the server"
        )
    return record.version


def _by_id(task: FileTask) -> tuple[str, str]:
    return task.id, task.change_type or ""
