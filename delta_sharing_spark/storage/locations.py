"""Parses storage locations: tells the cloud of a scheme, and whether one location lies within another; and names what lies there."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple
from urllib.parse import quote, unquote

from delta_sharing_spark.errors import AccessModeError, CredentialError

Kind = Literal["aws", "r2", "azure", "gcp", "local"]

#: Scheme to the kind of credential it takes.
SCHEMES: dict[str, Kind] = {
    "s3": "aws",
    "s3a": "aws",
    "s3n": "aws",
    "r2": "r2",
    "abfss": "azure",
    "abfs": "azure",
    "wasbs": "azure",
    "wasb": "azure",
    "gs": "gcp",
    "file": "local",
}

_IS_WINDOWS, _DRIVE = os.name == "nt", re.compile(r"/[A-Za-z]:(/|$)")
_SLASHES = re.compile("/{2,}")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,221}")
#: Workspaces of OneLake have names of their users' choice, or ids.
_WORKSPACE = re.compile(r"[^\x00-\x1f\x7f-\x9f/\\@:?#]{1,256}")
_ONELAKE = re.compile(r"\.(?:dfs|blob)\.(?:fabric|pbidedicated)\.")
_CONTAINER = re.compile(r"\$root|\$web|[A-Za-z0-9][A-Za-z0-9-]{0,62}")
#: Cloudflare R2's accounts, with a jurisdiction where they have one.
_R2_HOST = re.compile(r"[a-z0-9]{1,63}(?:\.[a-z0-9-]{1,20})?\.r2\.cloudflarestorage\.com")
#: An account, for accounts in DNS zones the zone (``z12``; of OneLake's private links ``z3f``), the service, and the cloud's domain.
_HOST = re.compile(r"([a-z0-9][a-z0-9-]{0,62}(?:\.z[0-9a-f]{1,4})?)\.(?:dfs|blob)\.([a-z0-9][a-z0-9.-]*[a-z0-9])")


class StoredObject(NamedTuple):
    """An object, by its name in what was listed (a cloud's page has whole keys), its bytes and its modification time.

    A directory's name ends in ``/``.
    """

    name: str
    size: int
    modified_ms: int

    @staticmethod
    def of_file(name: str, stat: os.stat_result) -> StoredObject:
        """A local file."""
        return StoredObject(name, stat.st_size, stat.st_mtime_ns // 1_000_000)


@dataclass(frozen=True, slots=True)
class Location:
    """A parsed storage location. The key is the storage's own, never percent-encoded.

    Attributes:
        scheme: As written, in lower case (a key of ``SCHEMES``).
        kind: The kind of credential it takes.
        container: Bucket or container; empty for ``file``.
        host: Azure's account host (``account.dfs.core.windows.net``) or R2's (``account.r2.cloudflarestorage.com``); else empty.
        key: Without a slash at its end. A local one has none at its beginning; a cloud's has, where two follow the bucket.
    """

    scheme: str
    kind: Kind
    container: str
    host: str
    key: str

    @property
    def path(self) -> str:
        """``bucket/key``, or an absolute local path."""
        if self.kind == "local":
            return local_file("/" + self.key)
        return f"{self.container}/{self.key}" if self.key else self.container

    @property
    def account(self) -> str:
        """Azure's account name, the first label of the host; empty elsewhere."""
        return self.host.partition(".")[0]

    @property
    def blob_host(self) -> str:
        """The host that serves an Azure account's blobs, whichever endpoint the location names."""
        return _HOST.sub(r"\1.blob.\2", self.host)

    @property
    def realm(self) -> tuple[str, str, str]:
        """What two locations must share before their keys can be compared; s3 is s3a, abfss is wasbs."""
        return self.kind, self.blob_host if self.host else "", self.container

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
        if self.kind == "local":
            return "file:///" + self.key
        container = quote(self.container, safe="$") if self.host else self.container
        authority = f"{container}@{self.host}" if self.host else self.container
        return f"{self.scheme}://{authority}/{self.key}".rstrip("/")


def local_file(path: str) -> str:
    """The file of a ``file:`` URI's path: on Windows that of ``/C:/x`` is ``C:/x``."""
    return path[1:] if _IS_WINDOWS and _DRIVE.match(path) else path


def scheme_of(location: str) -> str:
    """The scheme in lower case; a bare absolute path is ``file``; empty if there is none."""
    if location.startswith("/"):
        return "file"
    match = _SCHEME.match(location)
    return match[1].lower() if match else ""


def parse_location(text: str) -> Location:
    """Parse a location.

    Raises:
        AccessModeError: Directory access does not read its scheme.
        CredentialError: It is malformed, or has ``.`` or ``..`` segments (a prefix check could be walked around).
    """
    scheme = scheme_of(text)
    kind = SCHEMES.get(scheme)
    if kind is None:
        raise AccessModeError(
            f"location {text!r} has the scheme {scheme or 'none'!r}, which directory access does not read "
            f"(it reads {', '.join(SCHEMES)}); use accessMode=url if the server offers it",
            location=text,
        )
    rest = text if text.startswith("/") else text[len(scheme) + 1 :]
    if kind == "local":
        return _local(text, rest)
    if not rest.startswith("//"):
        raise _malformed(text, f"expected {scheme}://...")
    authority, _, key = rest[2:].partition("/")
    key = key.rstrip("/")
    _refuse_dots(text, key)
    if kind == "azure":
        container, separator, host = authority.rpartition("@")
        host = host.lower()
        is_onelake = _ONELAKE.search(host) is not None
        container = unquote(container) if is_onelake else container
        named = _WORKSPACE if is_onelake else _CONTAINER
        if not separator or not named.fullmatch(container) or container in (".", "..") or not _HOST.fullmatch(host):
            raise _malformed(text, f"expected {scheme}://<container>@<account>.dfs.core.windows.net/<path>")
        return Location(scheme, kind, container, host, key)
    bucket, separator, host = authority.partition("@") if kind == "r2" else (authority, "", "")
    if not _BUCKET.fullmatch(bucket):
        raise _malformed(text, f"expected {scheme}://<bucket>/<path>")
    if separator and not _R2_HOST.fullmatch(host.lower()):
        raise _malformed(
            text, "its host is not <account>.r2.cloudflarestorage.com, and R2's keys are shown to no other"
        )
    return Location(scheme, kind, bucket, host.lower(), key)


def _local(text: str, rest: str) -> Location:
    if rest.startswith("//"):
        host, _, path = rest[2:].partition("/")
        if host not in ("", "localhost"):
            raise _malformed(text, "it names a file on another host")
        rest = "/" + path
    if not rest.startswith("/"):
        raise _malformed(text, "expected file:///<absolute path>")
    key = rest.strip("/")
    _refuse_dots(text, key)
    return Location("file", "local", "", "", key)


def _refuse_dots(text: str, key: str) -> None:
    if any(segment in (".", "..") for segment in key.split("/")):
        raise _malformed(text, "it has . or .. segments")


def _malformed(text: str, why: str) -> CredentialError:
    return CredentialError(
        f"location {text!r} cannot be used: {why}; ask the provider to correct the table's location", location=text
    )
