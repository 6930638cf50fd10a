"""Url mode: the sharing server's records as file tasks, and a split's presigned URLs as byte sources."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from delta_sharing_spark.access.expiry import earliest, renew_at, url_end
from delta_sharing_spark.access.renewal import Recipe, fresh_url
from delta_sharing_spark.access.vectors import vector_of
from delta_sharing_spark.deltalog.adds import rows_in_stats
from delta_sharing_spark.errors import NetworkError, ResponseError, ServerError
from delta_sharing_spark.scan.plan import DeletionVector, FileSlice, FileTask
from delta_sharing_spark.sharing.actions import FileRecord
from delta_sharing_spark.sharing.transport import TransportSettings, data_session
from delta_sharing_spark.storage.http import HttpPolicy, HttpSource
from delta_sharing_spark.storage.ranges import ByteSource, Part


def task_of(record: FileRecord, table: str, *, keep_stats: bool = True) -> FileTask:
    """The task of one ``file`` or ``add`` line, in either response format.

    Raises:
        ResponseError: The line lacks what a reader needs, or its deletion vector is malformed.
    """
    millis = record.expiration_timestamp
    return FileTask(
        id=record.id,
        location=record.url,
        size=record.size,
        partition_values=record.partition_values,
        rows=rows_in_stats(record.stats),
        deletion_vector=vector_of(record, table),
        expires_at=millis / 1000 if millis else None,
        stats=record.stats if keep_stats else None,
    )


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

    def open(self, task: FileTask) -> HttpSource:
        """See ``Access.open``."""
        lease = _Lease(self, task, task.location)
        return HttpSource(data_session(self.settings), lease, name=task.id, size=task.size, policy=self.policy)

    def open_vector(self, task: FileTask, vector: DeletionVector) -> ByteSource:
        """See ``Access.open_vector``."""
        source = HttpSource(
            data_session(self.settings),
            _Lease(self, task, vector.path, vector),
            name=f"deletion vector {vector.unique_id} of {task.id}",
            size=None,
            policy=self.policy,
        )
        return Part(source, vector.frame)

    def carrying(self, slices: Iterable[FileSlice]) -> UrlAccess:
        """The same access for one split; its pickle names each file once."""
        return replace(self, files=() if self.recipe is None else tuple(piece.task for piece in slices))


class SnapshotFiles:
    """Takes in a snapshot's records as they arrive, and keeps the tasks of the files that are left.

    Args:
        table: How errors name the table.
        reason: Why a file is skipped; 0 keeps it. None keeps all.
        keep_stats: Whether the tasks carry their statistics.

    Attributes:
        ids: Of all files taken in.
        tasks: Of those that are left.
        skipped: How many are not, by reason.
    """

    __slots__ = ("_keep_stats", "_reason", "_table", "ids", "skipped", "tasks")

    def __init__(
        self, table: str, reason: Callable[[FileRecord], int] | None = None, *, keep_stats: bool = False
    ) -> None:
        self._table, self._reason, self._keep_stats = table, reason, keep_stats
        self.ids: set[str] = set()
        self.tasks: list[FileTask] = []
        self.skipped: Counter[int] = Counter()

    def append(self, record: FileRecord) -> None:
        """Take in one record.

        Raises:
            ResponseError: It came before, or is not a data file's.
        """
        if record.kind != "add":
            raise ResponseError(
                f"the server listed a {record.kind!r} line in a snapshot of {self._table}; ask the provider to check the server"
            )
        if record.id in self.ids:
            raise self._repeated(record.id)
        self.ids.add(record.id)
        reason = 0 if self._reason is None else self._reason(record)
        if reason:
            self.skipped[reason] += 1
        else:
            self.tasks.append(task_of(record, self._table, keep_stats=self._keep_stats))

    def extend(self, page: SnapshotFiles) -> None:
        """Take in what another page has.

        Raises:
            ResponseError: A file is in both.
        """
        for repeated in self.ids & page.ids:
            raise self._repeated(repeated)
        self.ids |= page.ids
        self.tasks += page.tasks
        self.skipped += page.skipped

    def _repeated(self, file: str) -> ResponseError:
        return ResponseError(
            f"the server listed file {file} of {self._table} twice; ask the provider to check the server"
        )
