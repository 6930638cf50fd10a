"""Keeps the listing of a snapshot for other queries of the same snapshot: another filter, or a count, needs no request."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from delta_sharing_spark.access.contract import FileListing
from delta_sharing_spark.access.planned_files import FileBatches
from delta_sharing_spark.access.pruning import FilePruner
from delta_sharing_spark.access.resolved_scan import ResolvedScan
from delta_sharing_spark.access.url.access import RenewalContext, UrlAccess
from delta_sharing_spark.access.url.files import SnapshotFiles
from delta_sharing_spark.network.process_cache import ProcessCache
from delta_sharing_spark.sharing.queries import Query

#: Bytes of one listing, and of all that a process keeps: a million files take some 140 MB.
LISTING_BYTES = 256 << 20
_LISTINGS = 64
#: Seconds that a listing is used for where nothing tells when its URLs end.
_UNTOLD_LIFE = 300.0


@dataclass(slots=True)
class SnapshotListing:
    """All files of a version, as the server listed them.

    Attributes:
        version: The version.
        pages: The files, page by page, with their statistics.
        access: How to read them.
        listed: How many they are.
        until: When the first of their URLs is due for renewal, in seconds since the epoch.
    """

    version: int
    pages: Sequence[SnapshotFiles]
    access: UrlAccess
    listed: int
    until: float

    def answers(self, scan: ResolvedScan) -> bool:
        """Whether a query of a load is answered: it is of this version, and the URLs are not due for renewal."""
        return scan.version == self.version and time.time() < self.until

    def selection_by(self, pruner: FilePruner) -> FileListing:
        """The files that a pruner does not skip, with no request."""
        files = FileBatches([page.selection_by(pruner) for page in self.pages])
        return FileListing(
            files,
            self.access,
            version=self.version,
            listed=self.listed,
            total_files=self.listed,
            listing_bytes=self.nbytes,
            is_repeated=True,
        )

    @property
    def nbytes(self) -> int:
        """About the bytes that the listing takes."""
        return sum(page.nbytes for page in self.pages)


#: The newest listing of each open table.
LISTINGS: ProcessCache[str, SnapshotListing] = ProcessCache(_LISTINGS, lambda listing: listing.nbytes, LISTING_BYTES)


def listing_of(version: int, pages: Sequence[SnapshotFiles], access: UrlAccess, listed: int) -> SnapshotListing | None:
    """The listing of all files of a version; None where their URLs cannot be renewed, so that each query needs its own."""
    if access.renewal is None:
        return None
    dues = [due for page in pages for due in page.dues(access)]
    until = min((due for due in dues if due < inf), default=access.planned_at + _UNTOLD_LIFE)
    return SnapshotListing(version, pages, _without_hints(access, access.renewal), listed, until)


def _without_hints(access: UrlAccess, renewal: RenewalContext) -> UrlAccess:
    """The same access, whose URLs are renewed by a query of all files."""
    if not isinstance(renewal.query, Query):
        return access
    query = replace(renewal.query, predicate_hints=(), json_predicate_hints=None, limit_hint=None)
    return replace(access, renewal=replace(renewal, key=uuid.uuid4().hex, query=query))
