"""Knows when presigned URLs end, and keeps those of one answer, compressed: a hundred thousand must not become Python objects in a task."""

from __future__ import annotations

import json
import os
import random
import socket
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote

import numpy as np

from delta_sharing_spark.network.http import parse_count
from delta_sharing_spark.scan.plan import DeletionVector
from delta_sharing_spark.schema.instants import due_before, parse_instant
from delta_sharing_spark.sharing.wire_records import FileRecord

#: Entries compressed together. URLs of one answer differ in little but path and signature.
_BLOCK = 256


class FreshVector(NamedTuple):
    """A deletion vector as an answer names it; ``url`` is empty for an inline one."""

    unique_id: str
    offset: int | None
    size: int
    cardinality: int
    url: str

    def is_of(self, vector: DeletionVector, *, by_name: bool) -> bool:
        """Whether this is the planned vector. Its name holds a version in some answers and none in others."""
        shape = (self.offset, self.size, self.cardinality) == (vector.offset, vector.size, vector.cardinality)
        return shape and (self.unique_id == vector.unique_id or not by_name)


@dataclass(frozen=True, slots=True)
class FreshFile:
    """One file of an answer: all its records together (a change feed may list it more than once)."""

    id: str
    size: int
    url: str = field(repr=False)
    ends: float | None
    vectors: tuple[FreshVector, ...] = field(repr=False)

    def vector(self, planned: DeletionVector) -> FreshVector | None:
        """The planned vector, by its name; or the only one there is, if it has the planned one's shape."""
        for vector in self.vectors:
            if vector.is_of(planned, by_name=True):
                return vector
        if len(self.vectors) == 1 and self.vectors[0].is_of(planned, by_name=False):
            return self.vectors[0]
        return None

    def url_of(self, planned: DeletionVector | None) -> str | None:
        """The URL of the planned vector, or of the file itself; None where the answer has none."""
        vector = None if planned is None else self.vector(planned)
        return self.url if planned is None else vector.url or None if vector else None


class UrlPage:
    """The file records of one page of an answer, appended as to a list and found again by id."""

    def __init__(self) -> None:
        self._keys = array("q")
        self._blocks: list[bytes] = []
        self._pending: list[str] = []
        self.nbytes = 0

    def append(self, record: FileRecord) -> None:
        """Take in a record; its statistics and partition values are let go."""
        vector = record.deletion_vector
        described = None
        if vector is not None:
            url = "" if vector.storage == "i" else vector.path
            described = (vector.unique_id, vector.offset, vector.size, vector.cardinality, url)
        ends = record.expiration_timestamp / 1000 if record.expiration_timestamp else None
        self._keys.append(hash(record.id))
        self._pending.append(json.dumps([record.id, record.size, record.url, ends, described]))
        if len(self._pending) == _BLOCK:
            block = zlib.compress("\n".join(self._pending).encode(), 1)
            self._blocks.append(block)
            self._pending.clear()
            self.nbytes += len(block) + 8 * _BLOCK

    def find(self, file_id: str) -> FreshFile | None:
        """The file of an id; None if no record names it."""
        places = np.flatnonzero(np.frombuffer(self._keys, dtype=np.int64) == hash(file_id)) if self._keys else ()
        file: FreshFile | None = None
        for place in places:
            block, row = divmod(int(place), _BLOCK)
            entry = json.loads(self._rows(block)[row])
            if entry[0] != file_id:
                continue
            vectors = file.vectors if file else ()
            if entry[4] is not None:
                vectors += (FreshVector(*entry[4]),)
            file = FreshFile(file_id, entry[1], entry[2], entry[3], vectors)
        return file

    def holds(self, file_ids: set[str]) -> set[str]:
        """Which of these ids are (in all likelihood) among the records."""
        keys = set(self._keys) if len(file_ids) * 50 > len(self._keys) else None
        if keys is not None:
            return {file_id for file_id in file_ids if hash(file_id) in keys}
        return {file_id for file_id in file_ids if self.find(file_id) is not None}

    def _rows(self, block: int) -> list[str]:
        if block == len(self._blocks):
            return self._pending
        return zlib.decompress(self._blocks[block]).decode().split("\n")

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[FileRecord]:
        raise TypeError("the records of a compact page are found by id")


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


def renew_at(end: float | None, since: float) -> float | None:
    """When to renew a URL that was given out at ``since`` and ends at ``end``; None to wait for the storage's refusal.

    A URL that had ended when it was given out tells that clocks differ: only the storage's clock counts then.
    """
    if end is None or end <= since:
        return None
    life = end - since
    return due_before(end, since) - process_share(os.getpid()) * min(JITTER, JITTER_SHARE * life)


@lru_cache(maxsize=1)
def process_share(process: int) -> float:
    """A number in [0, 1) that differs between processes, so that they do not renew all at once."""
    return random.Random(f"{socket.gethostname()}/{process}").random()
