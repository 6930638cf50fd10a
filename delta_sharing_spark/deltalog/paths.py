"""Defines the storage a log is read from, the URIs in a log, and the grammar of its file names."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import unquote

from delta_sharing_spark.errors import LogError
from delta_sharing_spark.storage.locations import StoredObject, local_file
from delta_sharing_spark.storage.ranges import ByteSource

LOG_DIR = "_delta_log"
SIDECAR_DIR = f"{LOG_DIR}/_sidecars"
LAST_CHECKPOINT = f"{LOG_DIR}/_last_checkpoint"
#: Versions before the one wanted that are listed with it: most writers leave a checkpoint every 10 or 100.
LISTED_BEFORE = 128


class LogStore(Protocol):
    """The storage a table's log is read from. Methods are called from several threads at once.

    ``root`` is the table's absolute location with its scheme and no trailing slash. Paths are decoded (never
    URIs with ``%``): absolute with a scheme, or relative to ``root``.
    """

    @property
    def root(self) -> str: ...

    @property
    def known_version(self) -> int | None:
        """A version that the sharing server says exists, from which a log that cannot be listed is searched; None if unknown."""

    def read(self, path: str) -> bytes:
        """A whole file.

        Raises:
            FileNotFoundError: It does not exist.
            PermissionError: The storage refuses; with a credential that cannot list, that may mean absent.
        """

    def open(self, path: str, size: int | None = None) -> ByteSource:
        """A file for reading by range, of ``size`` bytes if that is known. Raises as :meth:`read`."""

    def list_from(self, relative_dir: str, start_name: str) -> list[StoredObject] | None:
        """Files of a directory whose name is ``start_name`` or sorts after it, sorted; ``[]`` if there is none.

        None: listing is not permitted, the log is then read by GET alone.
        """

    def info(self, path: str) -> StoredObject:
        """A file's bytes and modification time. Raises as :meth:`read`."""


def read_if_there(store: LogStore, path: str) -> bytes | None:
    """A whole file; None where it is not there, or is refused, which is alike where a credential cannot list."""
    try:
        return store.read(path)
    except (FileNotFoundError, PermissionError):
        return None


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def decode_uri(uri: str) -> str:
    """Decode a path of the log (a URI, RFC 2396) to the storage's own, once; raises LogError where its bytes are not UTF-8.

    A relative path that would look absolute, as ``a%3Ab``, begins with ``./``.
    """
    if "%" not in uri:
        return uri
    try:
        path = unquote(uri, errors="strict")
        return f"./{path}" if is_absolute(path) and not is_absolute(uri) else path
    except UnicodeDecodeError as error:
        raise LogError(
            f"the path {uri!r} in the table's log is not UTF-8 ({error.reason}); ask the provider to rename the file",
            file=uri,
        ) from None


def is_absolute(path: str) -> bool:
    """Whether a path is absolute: with a scheme, or from the storage's root."""
    return path.startswith("/") or _SCHEME.match(path) is not None


def join(root: str, path: str) -> str:
    """The absolute location of a decoded path of a table at ``root``.

    A bare absolute path gets the root's scheme and bucket; ``file:/x`` becomes ``file:///x``; ``.`` and ``..`` are
    resolved, so that a later check by prefix cannot be walked around.
    """
    if is_absolute(path):
        return qualify(root, path)
    return f"{root}/{path}" if not _has_dots(path) else qualify(root, f"{_split_root(root)[1]}/{path}")


def qualify(root: str, path: str) -> str:
    """The canonical form of an absolute path: ``file:/x``, ``file:///x`` and ``/x`` become ``file:///x``."""
    if path.startswith("/"):
        authority, rest = _split_root(root)[0], path
    elif path.startswith("file:"):
        authority, rest = "file://", local_path(path)
    else:
        authority, rest = _split_root(path)
    return authority + (posixpath.normpath("/" + rest.lstrip("/")) if _has_dots(rest) else "/" + rest.lstrip("/"))


def _has_dots(path: str) -> bool:
    return "./" in path or path.endswith("/..") or path in {".", ".."}


def _split_root(location: str) -> tuple[str, str]:
    """``s3://bucket/a/b`` as (``s3://bucket``, ``/a/b``), ``dbfs:/a`` as (``dbfs:``, ``/a``)."""
    scheme, separator, rest = location.partition("://")
    if not separator:
        match = _SCHEME.match(location)
        return (match[0], location[match.end() :]) if match else ("", location)
    bucket, slash, key = rest.partition("/")
    return f"{scheme}://{bucket}", slash + key


def local_path(uri: str) -> str:
    """The local path of ``file:/x``, ``file:///x`` or ``file://localhost/x``; ``uri`` is not percent-encoded."""
    rest = uri.removeprefix("file:")
    if rest.startswith("//"):
        host, _, path = rest[2:].partition("/")
        if host not in {"", "localhost"}:
            raise LogError(f"{uri!r} names a file on another host; only local file: paths are read")
        rest = "/" + path
    return local_file(rest)


# The file name grammar of `_delta_log/` (Delta protocol, "Delta Table Specification").

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.([0-9A-Za-z-]+))?\.(parquet|json)")


@dataclass(frozen=True, slots=True)
class LogName:
    """A parsed name of a log file: ``commit``, or a checkpoint: ``classic``, ``multipart`` (``part`` of ``parts``, from 1) or
    ``v2`` (with a uuid)."""

    kind: str
    version: int
    part: int = 0
    parts: int = 0


def parse_name(name: str) -> LogName | None:
    """Parse the name of a file in ``_delta_log/``; None for a file that readers ignore."""
    if match := _COMMIT.fullmatch(name):
        return LogName("commit", int(match[1]))
    if match := _CHECKPOINT.fullmatch(name):
        version, parquet = int(match[1]), match[5] == "parquet"
        if match[2] is not None:
            return LogName("multipart", version, part=int(match[2]), parts=int(match[3])) if parquet else None
        if match[4] is not None:
            return LogName("v2", version)
        return LogName("classic", version) if parquet else None
    return None


def commit_name(version: int) -> str:
    return f"{version:020d}.json"


def checksum_name(version: int) -> str:
    """The file name of a version's checksum (Delta protocol, "Version Checksum File")."""
    return f"{version:020d}.crc"


def checkpoint_names(version: int, parts: int = 0) -> list[str]:
    """The file names of a classic checkpoint, or of one of ``parts`` parts."""
    if not parts:
        return [f"{version:020d}.checkpoint.parquet"]
    return [f"{version:020d}.checkpoint.{part:010d}.{parts:010d}.parquet" for part in range(1, parts + 1)]


def in_log(name: str) -> str:
    """A log file's path relative to the table's root."""
    return f"{LOG_DIR}/{name}"
