"""Url mode: the sharing server's records as file tasks, and a split's presigned URLs as byte sources."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from delta_sharing_spark.access.expiry import earliest, renew_at, url_end
from delta_sharing_spark.access.renewal import Recipe, fresh_url
from delta_sharing_spark.access.vectors import vector_of
from delta_sharing_spark.errors import NetworkError, ResponseError, ServerError
from delta_sharing_spark.scan.plan import DeletionVector, FileSlice, FileTask
from delta_sharing_spark.sharing.actions import FileRecord
from delta_sharing_spark.sharing.transport import TransportSettings, data_session
from delta_sharing_spark.storage.http import HttpPolicy, HttpSource

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
    task: FileTask
    current: str = field(repr=False)
    vector: DeletionVector | None = None
    renew_at: float | None = field(init=False)
    ends: float | None = field(init=False)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        self.ends = earliest(self.task.expires_at, self.access.expires_at, url_end(self.current))
        self.renew_at = renew_at(self.ends, self.access.planned_at)

    def url(self) -> str:
        if self._due() and self.access.recipe is not None:
            with self.lock:
                if self._due():
                    self._renew_early()
        return self.current

    def refused(self, url: str, reason: str) -> None:
        with self.lock:
            if self.current == url:
                self._renew(reason)

    def _due(self) -> bool:
        return self.renew_at is not None and time.time() >= self.renew_at

    def _renew_early(self) -> None:
        try:
            self._renew("its expiry is near")
        except (ServerError, NetworkError):
            if self.ends is not None and time.time() >= self.ends:
                raise
            self.renew_at = self.ends  # it still works for a while; the storage's refusal is the last word

    def _renew(self, reason: str) -> None:
        access = self.access
        fresh = fresh_url(access.recipe, self.task, self.vector, self.current, reason, access.files)
        self.current, self.renew_at, self.ends = fresh.url, fresh.renew_at, fresh.ends


@dataclass(frozen=True, slots=True)
class UrlAccess:
    """The access of splits whose files are presigned URLs.

    Attributes:
        settings: Proxies, certificates and time-outs of the data session; it never carries the sharing token.
        policy: Bounds of data requests.
        recipe: How to renew URLs; None where the sharing token stays on the driver.
        planned_at: When the URLs were given out, in seconds since the epoch: they are renewed by their length of life.
        expires_at: When the first of them ends, where the answer said so.
        files: The files of the split, which one renewal should find.
    """

    settings: TransportSettings = field(repr=False)
    policy: HttpPolicy
    recipe: Recipe | None = field(default=None, repr=False)
    planned_at: float = 0.0
    expires_at: float | None = None
    files: tuple[FileTask, ...] = field(default=(), repr=False)
    #: Vectors being read by this split.
    vectors: set[HttpSource] = field(default_factory=set, init=False, repr=False, compare=False)

    def open(self, task: FileTask) -> HttpSource:
        """See ``Access.open``."""
        lease = _Lease(self, task, task.location)
        return HttpSource(data_session(self.settings), lease, name=task.id, size=task.size, policy=self.policy)

    def read_vector(self, task: FileTask, vector: DeletionVector) -> bytes:
        """See ``Access.read_vector``."""
        source = HttpSource(
            data_session(self.settings),
            _Lease(self, task, vector.path, vector),
            name=f"deletion vector {vector.unique_id} of {task.id}",
            size=None,
            policy=self.policy,
        )
        self.vectors.add(source)
        try:
            return bytes(source.read(1 if vector.offset is None else vector.offset, vector.size + _FRAME))
        finally:
            self.vectors.discard(source)

    def close(self) -> None:
        """Break off what is being read of vectors. Connections are pooled by process."""
        for source in list(self.vectors):
            source.close()

    def carrying(self, slices: Iterable[FileSlice]) -> UrlAccess:
        """The same access for one split; its pickle names each file once."""
        return replace(self, files=() if self.recipe is None else tuple(piece.task for piece in slices))


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
