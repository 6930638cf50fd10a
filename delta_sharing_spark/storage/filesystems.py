"""Binds a location and its secret to storage through fsspec: whole objects, byte ranges, listings."""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.util
import os
import re
from collections.abc import Coroutine, Iterator
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from delta_sharing_spark.errors import AccessModeError, CredentialError
from delta_sharing_spark.instants import parse_instant, to_millis
from delta_sharing_spark.network.retry import RetryableError
from delta_sharing_spark.storage.library_errors import StorageSettings, retried
from delta_sharing_spark.storage.locations import EXTRAS, OLDEST, Location
from delta_sharing_spark.storage.ranges import Range
from delta_sharing_spark.storage.secrets import Secret
from delta_sharing_spark.storage.transfer import Cancellation, FileVersion, Transfer

T = TypeVar("T")

_MODULES = {"aws": "s3", "azure": "azure", "gcp": "gcs"}


class StoredObject(NamedTuple):
    """One object under a prefix: its name below it, bytes, and modification time in milliseconds."""

    name: str
    size: int
    modified_ms: int


def missing_extra(location: Location) -> str | None:
    """The extra to install before ``location`` can be read, or None if nothing is missing."""
    extra = EXTRAS.get(location.kind)
    if extra is None:
        return None
    return None if importlib.util.find_spec(extra[1]) else extra[0]


class Storage:
    """One location's objects, read with one secret. Safe to call from several threads.

    Paths are ``Location``s; ``what`` names the object in errors. Exceptions are told apart by
    ``library_errors.retried``: FileNotFoundError, PermissionError, NetworkError, FileError.

    Attributes:
        location: The location it was opened for.
        credential: The uuid of the token it reads with.
        host: How errors name the other end.
    """

    def __init__(self, location: Location, secret: Secret, settings: StorageSettings, *, credential: str = "") -> None:
        self.location = location
        self.credential = credential
        self.settings = settings
        self.host = _host(location, settings)
        self._fs = _filesystem(location, secret, settings)

    def with_settings(self, settings: StorageSettings) -> Storage:
        """The same connections, with other bounds on retries."""
        other = copy.copy(self)
        other.settings = settings
        return other

    def get(
        self,
        location: Location,
        start: int | None = None,
        end: int | None = None,
        *,
        what: str = "",
        version: FileVersion | None = None,
        cancellation: Cancellation | None = None,
    ) -> bytes | memoryview:
        """A whole object, or its bytes ``[start, end)``; one request, unless it breaks.

        Args:
            location: The object.
            start, end: Both or none of them.
            what: How errors name it.
            version: The version of the file that answers must be of, over several calls.
            cancellation: Ends the call when the reader goes away.

        Raises:
            ReadCancelled: By ``cancellation``.
            CorruptFileError: An answer is of another file than ``version`` says.
        """
        what = what or str(location)
        if location.kind == "local":

            def read() -> bytes:
                data: bytes = self._fs.cat_file(location.path, start=start, end=end)
                return data

            return retried(read, self.settings, what=what, host=self.host)
        requested = None if start is None or end is None else Range(start, end)
        transfer = Transfer(requested, version or FileVersion(what, None))
        cancellation = cancellation or Cancellation(what)

        def action() -> None:
            cancellation.run(
                _module(location).get(self._fs, location, transfer), self._fs.loop, self.settings.request_seconds
            )
            if requested is not None and not transfer.is_complete:
                raise RetryableError(f"the body ended after {transfer.arrived} of {requested.length} bytes")

        retried(
            action,
            self.settings,
            what=what,
            host=self.host,
            reached=lambda: transfer.arrived,
            wait=cancellation.wait,
        )
        return transfer.data

    def info(self, location: Location, *, what: str = "") -> StoredObject:
        """Size and modification time of one object; one request, and never a listing."""

        def action() -> StoredObject:
            if location.kind == "local":
                stat = os.stat(location.path)
                return StoredObject(os.path.basename(location.path), stat.st_size, stat.st_mtime_ns // 1_000_000)
            size, modified = self._run(
                _module(location).head(self._fs, location.container, location.key), what or str(location)
            )
            return StoredObject(location.key.rpartition("/")[2], int(size), _milliseconds(modified))

        return retried(action, self.settings, what=what or str(location), host=self.host)

    def list_from(self, directory: Location, start_name: str, *, what: str = "") -> list[StoredObject]:
        """The objects right in ``directory`` whose name is ``start_name`` or sorts after it, sorted by name."""
        prefix = directory.key + "/"
        listed = []
        for key, size, modified in self._pages(directory, prefix, start_name, what or str(directory)):
            name = key[len(prefix) :]
            if name and name >= start_name:
                listed.append(StoredObject(name, int(size), _milliseconds(modified)))
        return sorted(listed)

    def _pages(self, directory: Location, prefix: str, start_name: str, what: str) -> Iterator[Any]:
        if directory.kind == "local":
            yield from self._local_entries(directory, prefix)
            return
        module = _module(directory)
        start = prefix + start_name
        token: str | None = None
        while True:
            page, token = retried(
                lambda: self._run(module.list_page(self._fs, directory.container, prefix, start, token), what),  # noqa: B023
                self.settings,
                what=what,
                host=self.host,
            )
            yield from page
            if token is None:
                return

    def _run(self, request: Coroutine[Any, Any, T], what: str) -> T:
        return Cancellation(what).run(request, self._fs.loop, self.settings.request_seconds)

    def _local_entries(self, directory: Location, prefix: str) -> Iterator[Any]:
        try:
            with os.scandir(directory.path) as entries:
                for entry in entries:
                    if entry.is_file():
                        stat = entry.stat()
                        yield prefix + entry.name, stat.st_size, stat.st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return


def _filesystem(location: Location, secret: Secret, settings: StorageSettings) -> Any:
    if secret.kind != location.kind:
        raise CredentialError(
            f"location {location} takes a credential of kind {location.kind}, but one of kind {secret.kind} was given; "
            f"ask the provider to check the sharing server"
        )
    secret.check()
    if location.kind == "local":
        from fsspec.implementations.local import LocalFileSystem

        return LocalFileSystem(skip_instance_cache=True, use_listings_cache=False)
    return _module(location).build(location, secret, settings)


def load_library(location: Location) -> None:
    """Import the library that reads a location.

    Raises:
        AccessModeError: The library is missing or too old.
    """
    if location.kind != "local":
        _module(location)


def _module(location: Location) -> Any:
    extra, package = EXTRAS[location.kind]
    installed = _too_old(package)
    if installed is not None:
        raise AccessModeError(
            f"location {location} needs {package} {OLDEST[package]} or newer, and {installed} is installed; "
            f"run pip install -U 'delta-sharing-spark[{extra}]', on the executors as well, or use accessMode=url",
            extra=extra,
        )
    try:
        return importlib.import_module(f"delta_sharing_spark.storage.{_MODULES[location.kind]}")
    except ImportError as error:
        raise AccessModeError(
            f"location {location} needs the extra {extra!r} ({package}; {error.name or 'an import'} is missing); "
            f"run pip install 'delta-sharing-spark[{extra}]', on the executors as well, or use accessMode=url",
            extra=extra,
        ) from None


@functools.cache
def _too_old(package: str) -> str | None:
    """The installed release of ``package`` if it is older than this project needs."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        installed = version(package)
    except PackageNotFoundError:
        return None  # absent, or without metadata: the import tells
    return installed if _release(installed) < _release(OLDEST[package]) else None


def _release(version: str) -> tuple[int, ...]:
    """The numbers a version begins with: ``2025.2.0rc1`` is (2025, 2, 0)."""
    return tuple(int(number) for number in re.match(r"[0-9.]*", version)[0].split(".") if number)  # type: ignore[index]


def _host(location: Location, settings: StorageSettings) -> str:
    if settings.endpoint:
        return settings.endpoint
    return {"aws": "S3", "gcp": "storage.googleapis.com", "local": "this machine"}.get(
        location.kind, location.blob_host if location.host else ""
    )


def _milliseconds(when: object) -> int:
    """A storage's modification time in milliseconds since the epoch; an integer is milliseconds already."""
    if isinstance(when, str):
        moment = parse_instant(when)
        if moment is None:
            raise ValueError(f"the storage says {when[:50]!r} for a moment")
        when = moment
    return to_millis(when) if isinstance(when, datetime) else when if isinstance(when, int) else 0
