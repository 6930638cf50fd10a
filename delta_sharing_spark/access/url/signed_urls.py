"""Knows when presigned URLs end, and finds a file's fresh URL in an answer."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import lru_cache
from urllib.parse import unquote

from delta_sharing_spark.access.url.file_columns import FileColumns
from delta_sharing_spark.network.http import parse_count
from delta_sharing_spark.network.renewable import Term, due_before
from delta_sharing_spark.scan.plan import DeletionVector
from delta_sharing_spark.schema.instants import parse_instant


@dataclass(frozen=True, slots=True)
class FreshFile:
    """One file of an answer: all its records together (a change feed may list it more than once)."""

    id: str
    size: int
    url: str = field(repr=False)
    ends: float | None
    vectors: tuple[DeletionVector, ...] = field(repr=False)

    def vector(self, planned: DeletionVector) -> DeletionVector | None:
        """The planned vector, by its name; or the only one there is: some answers' names hold a version, and others' do not."""
        shape = (planned.offset, planned.size, planned.cardinality)
        alike = [vector for vector in self.vectors if (vector.offset, vector.size, vector.cardinality) == shape]
        by_name = [vector for vector in alike if vector.unique_id == planned.unique_id]
        matches = by_name or (alike if len(self.vectors) == 1 else [])
        return matches[0] if matches else None

    def url_of(self, planned: DeletionVector | None) -> str | None:
        """The URL of the planned vector, or of the file itself; None where the answer has none."""
        if planned is None:
            return self.url
        vector = self.vector(planned)
        return None if vector is None or vector.storage == "i" else vector.path or None


def fresh_file(pages: Iterable[FileColumns], file_id: str) -> FreshFile | None:
    """The file of an id in the pages of an answer, all its records together; None if no record names it."""
    rows = [row for page in pages for row in page.find(file_id)]
    if not rows:
        return None
    last = rows[-1]
    vectors = tuple(row.vector for row in rows if row.vector is not None)
    return FreshFile(file_id, last.size, last.url, None if not last.expires else last.expires / 1000, vectors)


#: A URL is renewed so much earlier than ``due_before`` says, by a share that differs from process to process: they do not all ask at one moment.
JITTER, JITTER_SHARE = 30.0, 0.125

#: What old signatures write is seconds since the epoch from here on, and in thousands of years: no URL lives for so many seconds.
_LEAST_EPOCH = 10**8


def url_end(url: str) -> float | None:
    """When a URL ends by its own query (S3, GCS and Azure SAS, old signatures), in seconds since the epoch.

    >>> url_end("https://b/f?X-Amz-Date=20261121T080000Z&X-Amz-Expires=3600") == url_end("https://b/f?se=2026-11-21T09%3A00%3A00Z")
    True
    """
    pairs = (part.partition("=") for part in url.partition("?")[2].split("&"))
    query = {name.lower(): value for name, _, value in pairs}
    epoch = parse_count(query.get("expires", ""))
    return earliest(
        *(_signed_end(query.get(f"{by}-date", ""), query.get(f"{by}-expires", "")) for by in ("x-amz", "x-goog")),
        _sas_end(query.get("se", "")),
        None if epoch is None or not _LEAST_EPOCH <= epoch < 1000 * _LEAST_EPOCH else float(epoch),
    )


@lru_cache(maxsize=64)  # the files of one answer mostly share it
def _signed_end(began: str, lasts: str) -> float | None:
    seconds = parse_count(lasts)
    if seconds is None:
        return None
    try:
        return datetime.strptime(began, "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc).timestamp() + seconds
    except ValueError:
        return None


@lru_cache(maxsize=64)
def _sas_end(text: str) -> float | None:
    end = parse_instant(unquote(text))
    return None if end is None else end.timestamp()


def earliest(*ends: float | None) -> float | None:
    """The earliest of the ends that are not None; None if there is none."""
    return min((end for end in ends if end is not None), default=None)


def url_term(url: str, end: float | None, since: float) -> Term[str]:
    """A URL that was given out at ``since`` and ends at ``end``, in seconds since the epoch.

    A URL that had ended when it was given out tells that clocks differ. Only the storage's clock counts then, so that the URL
    has no end here.
    """
    if end is None or end <= since:
        return Term(url)
    jitter = process_share(os.getpid()) * min(JITTER, JITTER_SHARE * (end - since))
    return Term(url, due_before(end, since) - jitter, end)


@lru_cache(maxsize=1)
def process_share(process: int) -> float:
    """A number in [0, 1) that differs between processes, so that they do not renew all at once."""
    return random.Random(f"{socket.gethostname()}/{process}").random()
