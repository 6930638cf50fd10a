"""Url mode: the sharing server's records as file tasks, and a split's presigned URLs as byte sources."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from delta_sharing_spark.access.renewal import FreshUrl, Recipe, ends_soon, fresh_url
from delta_sharing_spark.access.vectors import vector_of
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
    vector: str | None = None

    def url(self) -> str:
        if ends_soon(self.expires_at):
            self._renew("its expiry is near")
        return self.current

    def refused(self, url: str, reason: str) -> None:
        if self.current == url:
            self._renew(reason)

    def _renew(self, reason: str) -> None:
        fresh: FreshUrl = fresh_url(self.access.recipe, self.file_id, self.vector, self.current, reason)
        url = fresh.of(self.vector)
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
        lease = _Lease(self, task.id, vector.path, task.expires_at, vector.unique_id)
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
