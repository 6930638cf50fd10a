"""Opens a split's files by presigned URLs, renewed before they end and when the storage refuses one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from delta_sharing_spark.access.url.renewal import RenewalContext, fresh_url
from delta_sharing_spark.access.url.signed_urls import earliest, renew_at, url_end
from delta_sharing_spark.errors import NetworkError, ServerError
from delta_sharing_spark.network.sessions import data_session
from delta_sharing_spark.network.settings import NetworkSettings
from delta_sharing_spark.scan.plan import DeletionVector, FileAccess, FileTask
from delta_sharing_spark.storage.http_source import HttpPolicy, HttpSource
from delta_sharing_spark.storage.ranges import ByteSource, Part


@dataclass(slots=True)
class _Lease:
    """The URL of one data file or vector, renewed through the split's renewal context."""

    access: UrlAccess
    task: FileTask
    current: str = field(repr=False)
    vector: DeletionVector | None = None
    renew_at: float | None = field(init=False)
    ends: float | None = field(init=False)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        self.ends = self.access.ends(self.task if self.vector is None else replace(self.task, location=self.current))
        self.renew_at = renew_at(self.ends, self.access.planned_at)

    def url(self) -> str:
        if self._is_due() and self.access.renewal is not None:
            with self.lock:
                if self._is_due():
                    self._renew_early()
        return self.current

    def refused(self, url: str, reason: str) -> None:
        with self.lock:
            if self.current == url:
                self._renew(reason)

    def _is_due(self) -> bool:
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
        fresh = fresh_url(access.renewal, self.task, self.vector, self.current, reason, access.files)
        self.current, self.renew_at, self.ends = fresh.url, fresh.renew_at, fresh.ends


@dataclass(frozen=True, slots=True)
class UrlAccess(FileAccess):
    """The access of splits whose files are presigned URLs.

    Attributes:
        settings: Proxies, certificates and time-outs of the data session; it never carries the sharing token.
        policy: Bounds of data requests.
        renewal: How to renew URLs; None where the sharing token stays on the driver.
        planned_at: When the URLs were given out, in seconds since the epoch: they are renewed by their length of life.
        expires_at: When the first of them ends, where the answer said so.
        files: The files of the split, which one renewal should find.
    """

    settings: NetworkSettings = field(repr=False)
    policy: HttpPolicy
    renewal: RenewalContext | None = field(default=None, repr=False)
    planned_at: float = 0.0
    expires_at: float | None = None
    files: tuple[FileTask, ...] = field(default=(), repr=False)

    def open(self, task: FileTask) -> HttpSource:
        """See ``FileAccess.open``."""
        lease = _Lease(self, task, task.location)
        return HttpSource(data_session(self.settings), lease, name=task.id, size=task.size, policy=self.policy)

    def open_vector(self, task: FileTask, vector: DeletionVector) -> ByteSource:
        """See ``FileAccess.open_vector``."""
        source = HttpSource(
            data_session(self.settings),
            _Lease(self, task, vector.path, vector),
            name=f"deletion vector {vector.unique_id} of {task.id}",
            size=None,
            policy=self.policy,
        )
        return Part(source, vector.frame)

    def ends(self, task: FileTask) -> float | None:
        """See ``FileAccess.ends``: by the answer, the file's record and the URL itself."""
        return earliest(task.expires_at, self.expires_at, url_end(task.location))

    def restricted_to(self, tasks: Iterable[FileTask]) -> UrlAccess:
        """See ``SplitAccess.restricted_to``; the split's pickle names each file once."""
        return replace(self, files=() if self.renewal is None else tuple(tasks))

    def outlasts_planning(self, task: FileTask) -> bool:
        """See ``SplitAccess.outlasts_planning``."""
        due = renew_at(self.ends(task), self.planned_at)
        # A carried token may have ended: what is given out with the driver's is listed anew in time.
        is_renewed = self.renewal is not None and self.renewal.profile.carried is None
        return is_renewed or due is None or time.time() < due
