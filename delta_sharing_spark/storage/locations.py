"""Names what lies in a storage: locations, whether one lies within another, and objects."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import NamedTuple
from urllib.parse import quote

_IS_WINDOWS, _DRIVE = os.name == "nt", re.compile(r"/[A-Za-z]:(/|$)")
_SLASHES = re.compile("/{2,}")


class StoredObject(NamedTuple):
    """An object, by its name in what was listed (a cloud's page has whole keys), its bytes and its modification time.

    A directory's name ends in ``/``.
    """

    name: str
    size: int
    modified_ms: int

    @property
    def modified(self) -> datetime | None:
        """Its modification time in UTC; None of a directory."""
        return None if self.name.endswith("/") else datetime.fromtimestamp(self.modified_ms / 1000, timezone.utc)

    @staticmethod
    def of_file(name: str, stat: os.stat_result) -> StoredObject:
        """A local file."""
        return StoredObject(name, stat.st_size, stat.st_mtime_ns // 1_000_000)


@dataclass(frozen=True, slots=True)
class Location:
    """A parsed storage location (``clouds.registry.parse_location``). The key is the storage's own, never percent-encoded.

    Attributes:
        scheme: As written, in lower case.
        kind: The kind of credential it takes, by the registry; ``local`` for files of this machine.
        container: Bucket or container; empty for ``file``.
        host: The host that it names, where it names one: an account of Azure or R2; else empty.
        key: Without a slash at its end. A local one has none at its beginning; a cloud's has, where two follow the bucket.
        service: The host that serves what lies there, whichever endpoint the location names; empty where it names none.
    """

    scheme: str
    kind: str
    container: str
    host: str
    key: str
    service: str = ""

    @property
    def is_local(self) -> bool:
        """Whether it is one of this machine's files."""
        return self.kind == "local"

    @property
    def path(self) -> str:
        """``bucket/key``, or an absolute local path."""
        if self.is_local:
            return local_file("/" + self.key)
        return f"{self.container}/{self.key}" if self.key else self.container

    @property
    def realm(self) -> tuple[str, str, str]:
        """What two locations must share before their keys can be compared; s3 is s3a, abfss is wasbs."""
        return self.kind, self.service, self.container

    def covers(self, other: Location) -> bool:
        """Whether ``other`` is this location or lies under it, by whole path segments."""
        if self.realm != other.realm:
            return False
        mine, others = self.folded.key, other.folded.key
        return not mine or others == mine or others.startswith(mine + "/")

    @property
    def folded(self) -> Location:
        """The location without empty segments (``a//b``), which Hadoop's file systems leave out of all they write."""
        if "//" not in f"/{self.key}":
            return self
        return replace(self, key=_SLASHES.sub("/", self.key).strip("/"))

    def __str__(self) -> str:
        if self.is_local:
            return "file:///" + self.key
        container = quote(self.container, safe="$") if self.host else self.container
        authority = f"{container}@{self.host}" if self.host else self.container
        return f"{self.scheme}://{authority}/{self.key}".rstrip("/")


def local_file(path: str) -> str:
    """The file of a ``file:`` URI's path: on Windows that of ``/C:/x`` is ``C:/x``."""
    return path[1:] if _IS_WINDOWS and _DRIVE.match(path) else path
