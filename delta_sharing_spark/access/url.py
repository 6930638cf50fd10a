"""Url mode: the sharing server's records as file tasks, and a split's presigned URLs as byte sources."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from delta_sharing_spark.access.renewal import FreshUrl, Recipe, ends_soon, fresh_url
from delta_sharing_spark.deltalog.deletion_vector import unique_id
from delta_sharing_spark.errors import CorruptFileError, ResponseError
from delta_sharing_spark.scan.plan import DeletionVector, FileTask
from delta_sharing_spark.sharing.actions import FileRecord
from delta_sharing_spark.sharing.transport import TransportSettings, data_session
from delta_sharing_spark.storage.http import HttpPolicy, HttpSource
from delta_sharing_spark.storage.ranges import ByteSource

#: What frames a vector's payload in its file: its size before, its CRC after.
_FRAME = 8


def task_of(record: FileRecord, table: str, min_url_expiration: int | None = None) -> FileTask:
    """The task of one ``file`` or ``add`` line, in either response format.

    Raises:
        ResponseError: The line lacks what a reader needs, or its deletion vector is malformed.
    """
    millis = record.expiration_timestamp or min_url_expiration
    return FileTask(
        id=record.id,
        location=record.url,
        size=record.size,
        partition_values=record.partition_values,
        rows=rows_of(record.stats),
        deletion_vector=vector_of(record, table),
        expires_at=millis / 1000 if millis else None,
        stats=record.stats,
    )


def vector_of(record: FileRecord, table: str) -> DeletionVector | None:
    """The deletion vector of a line in delta format; its path is a presigned URL unless it is inline."""
    raw = record.deletion_vector
    if raw is None:
        return None
    if raw.storage_type not in ("i", "p", "u"):
        raise ResponseError(
            f"file {record.id} of {table} has a deletion vector of the unknown storage type {raw.storage_type!r}; "
            f"upgrade delta-sharing-spark"
        )
    name = record.deletion_vector_file_id or record.id
    return DeletionVector(
        storage=raw.storage_type,
        path=raw.path_or_inline_dv,
        offset=raw.offset,
        size=raw.size_in_bytes,
        cardinality=raw.cardinality,
        unique_id=unique_id("i", raw.path_or_inline_dv, None) if raw.storage_type == "i" else f"{name}@{raw.offset}",
        file_id=record.deletion_vector_file_id,
    )


def rows_of(stats: str | None) -> int | None:
    """``numRecords`` of a file's statistics; None if they do not say."""
    if not stats:
        return None
    try:
        rows = json.loads(stats).get("numRecords")
    except (ValueError, AttributeError):
        return None  # statistics are advice: a malformed one tells nothing, and nothing is skipped by it
    return rows if isinstance(rows, int) and not isinstance(rows, bool) and rows >= 0 else None


@dataclass(slots=True)
class _Lease:
    """The URL of one data file or vector, renewed through the split's recipe."""

    access: UrlAccess
    file_id: str
    current: str = field(repr=False)
    expires_at: float | None
    of_vector: bool = False

    def url(self) -> str:
        if ends_soon(self.expires_at):
            self._renew("its expiry is near")
        return self.current

    def refused(self, url: str, reason: str) -> None:
        if self.current == url:
            self._renew(reason)

    def _renew(self, reason: str) -> None:
        fresh: FreshUrl = fresh_url(self.access.recipe, self.file_id, (), self.current, reason)
        url = fresh.vector_url if self.of_vector else fresh.url
        if url is None:
            raise CorruptFileError(
                f"file {self.file_id}: its deletion vector is gone from the server's answer; load the table again",
                file=self.file_id,
            )
        self.current, self.expires_at = url, fresh.expires_at


@dataclass(slots=True)
class UrlAccess:
    """The access of splits whose files are presigned URLs.

    Attributes:
        settings: Proxies, certificates and time-outs of the data session; it never carries the sharing token.
        policy: Bounds of data requests.
        recipe: How to renew URLs; None where the sharing token stays on the driver.
    """

    settings: TransportSettings = field(repr=False)
    policy: HttpPolicy
    recipe: Recipe | None = field(default=None, repr=False)

    def open(self, task: FileTask) -> ByteSource:
        """See ``Access.open``."""
        lease = _Lease(self, task.id, task.location, task.expires_at)
        return HttpSource(data_session(self.settings), lease, name=task.id, size=task.size, policy=self.policy)

    def read_vector(self, task: FileTask, vector: DeletionVector) -> bytes:
        """See ``Access.read_vector``."""
        start = 1 if vector.offset is None else vector.offset
        length = vector.size + _FRAME
        lease = _Lease(self, task.id, vector.path, task.expires_at, of_vector=True)
        source = HttpSource(
            data_session(self.settings),
            lease,
            name=f"deletion vector {vector.unique_id} of {task.id}",
            size=None,
            policy=self.policy,
        )
        return bytes(source.read(start, length))

    def close(self) -> None:
        """Connections are pooled by process; nothing of a split's own."""


def plan_tasks(records: Iterator[FileRecord], table: str) -> Iterator[FileTask]:
    """Tasks of a snapshot's records, one by one; a file listed twice is an error.

    Raises:
        ResponseError: A record is repeated, or is not a data file's.
    """
    seen: set[str] = set()
    for record in records:
        if record.kind != "add":
            raise ResponseError(
                f"the server listed a {record.kind!r} line in a snapshot of {table}; ask the provider to check the server"
            )
        if record.id in seen:
            raise ResponseError(
                f"the server listed file {record.id} of {table} twice; ask the provider to check the server"
            )
        seen.add(record.id)
        yield task_of(record, table)


def without_stats(task: FileTask) -> FileTask:
    """The task as a split carries it."""
    return replace(task, stats=None) if task.stats is not None else task


def expiring(task: FileTask, millis: int | None) -> FileTask:
    """The task with the answer's earliest expiry, where its own line names none."""
    if task.expires_at is not None or not millis:
        return task
    return replace(task, expires_at=millis / 1000)
