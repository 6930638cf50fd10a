"""Lists and reads the files under one location by paths below it, with credentials that are renewed; nothing outside can be named."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from delta_sharing_spark.errors import AddressError, CorruptFileError, DeltaSharingError, FileError, NoSuchFileError
from delta_sharing_spark.network.connections import Canceller
from delta_sharing_spark.storage.locations import Location, StoredObject
from delta_sharing_spark.storage.objects import Storage
from delta_sharing_spark.storage.range_reader import FileVersion, Lease, Transfer, renewing
from delta_sharing_spark.storage.ranges import Range

_T = TypeVar("_T")

#: What errors of the storage say of tables, which is not so of other files.
_OF_TABLES = re.compile(r",? or use accessMode=url(?: or dir of this package| if the server offers it)?")
_CHANGED = "read it again"


@dataclass(frozen=True, slots=True)
class Place:
    """What lies under one location. Picklable if its lease is.

    Methods raise CredentialError, NetworkError and FileError as ``Storage`` and the lease do.

    Attributes:
        name: How errors name it.
        root: The location.
        lease: Gives its storage.
    """

    name: str
    root: Location
    lease: Lease[Storage]

    def __repr__(self) -> str:
        return f"Place({self.name} at {self.root})"

    def checked(self, path: str) -> str:
        """A path below the place, without a slash at its end; empty for the place itself.

        Raises:
            AddressError: It names something else: ``..``, an absolute path, a URL.
        """
        if not isinstance(path, str):
            raise AddressError(
                f"{str(path)[:100]!r} ({type(path).__name__}) is no text; write a path within {self.name}"
            )
        below = path.rstrip("/")
        if below and (not {"", ".", ".."}.isdisjoint(below.split("/")) or "\0" in below):
            raise AddressError(
                f"{path!r} is no path within {self.name}; write one below it, without a slash at its beginning and without "
                f"'..', '.' and '//'"
            )
        if self.root.is_local and os.name == "nt" and not {"\\", ":"}.isdisjoint(below):
            raise AddressError(f"{path!r} is no path within {self.name}; write its parts apart by '/'")
        return below

    def entries(self, path: str = "", *, deep: bool = False) -> Iterator[StoredObject]:
        """The files under a directory, by paths below the place, as the storage sorts them.

        Without ``deep`` those right in it, and its directories, whose paths end in ``/``. A directory that does not exist has
        none. Listings hold whatever names the storage has: ``checked`` tells which can be read.

        Raises:
            AddressError: ``path`` is none within the place.
        """
        below = self.checked(path)
        if self.root.is_local:
            yield from self._local_entries(below, deep)
            return
        directory, root_length = self._location(below), len(self.root.key) + 1 if self.root.key else 0
        prefix = f"{directory.key}/" if directory.key else ""
        token: str | None = None
        markers: set[str] = set()
        what = f"the listing of {self._name_of(below)}"
        while True:
            list_page = partial(Storage.list_page, directory=directory, token=token, deep=deep, what=what)
            page, token = self._run(what, list_page)
            for key, size, modified in page:
                if not key.startswith(prefix):
                    raise FileError(f"{what} has {key!r}, which lies elsewhere; ask the provider to check the storage")
                is_marker = key.endswith("/") and not size  # of a directory, as consoles make them
                if key == prefix or (is_marker and deep):
                    continue
                if is_marker:  # a marker beside what lies below it
                    if key in markers:
                        continue
                    markers.add(key)
                yield StoredObject(key[root_length:], size, modified)
            if token is None:
                return

    def info(self, path: str) -> StoredObject:
        """A file, or a directory, whose path ends in ``/``.

        Raises:
            NoSuchFileError: There is neither.
            AddressError: ``path`` is none within the place.
        """
        below = self.checked(path)
        if not below:
            return StoredObject("/", 0, 0)
        location, what = self._location(below), self._name_of(below)
        if self.root.is_local:
            return self._local_info(below)
        try:
            details = self._run(what, lambda storage: storage.info(location, what=what))
            return StoredObject(below, details.size, details.modified_ms)
        except NoSuchFileError:
            if next(self.entries(below), None) is not None:
                return StoredObject(below + "/", 0, 0)
            raise self._missing(below) from None

    def version(self, file: StoredObject, etag: str | None = None) -> FileVersion:
        """What all answers of one reading of a file are compared with."""
        return FileVersion(self._name_of(file.name), file.size, etag, _CHANGED)

    def read(self, path: str, version: FileVersion, start: int, length: int, canceller: Canceller) -> memoryview:
        """Exactly ``length`` bytes of a file from ``start``; a transfer that breaks goes on from the byte it reached.

        Raises:
            NoSuchFileError: It is gone.
            CorruptFileError: It is not, or no longer, the file of ``version``.
            ReadCancelled: By ``canceller``.
        """
        below = self.checked(path)
        location, what = self._location(below), f"file {version.name}"
        if self.root.is_local and self._local_info(below).size != version.size:
            raise version.changed("its size is another")
        transfer = Transfer(Range(start, start + length), version)
        if length:
            with canceller.watching():
                self._run(what, lambda storage: storage.fetch(location, transfer, canceller, what=what))
        if transfer.arrived != length:
            raise CorruptFileError(f"{what} ends at byte {start + transfer.arrived}; {_CHANGED}", file=version.name)
        return transfer.data

    def _run(self, what: str, action: Callable[[Storage], _T]) -> _T:
        """Do something with the storage; a credential that is refused is renewed."""
        try:
            return renewing(self.lease, what, action)
        except FileNotFoundError:
            raise NoSuchFileError(f"{what} does not exist, or no longer; list the files of {self.name}") from None
        except DeltaSharingError as error:
            error.args = (_OF_TABLES.sub("", str(error)).replace("reload the table", "try again"),)
            raise

    def _missing(self, below: str) -> NoSuchFileError:
        return NoSuchFileError(f"{self.name} has no file or directory {below!r}; list its files", file=below)

    def _location(self, below: str) -> Location:
        return replace(self.root, key=f"{self.root.key}/{below}" if self.root.key else below) if below else self.root

    def _name_of(self, below: str) -> str:
        return f"{below} of {self.name}" if below else self.name

    # Local directories, whose links could lead elsewhere

    def _local_entries(self, below: str, deep: bool) -> Iterator[StoredObject]:
        self._refuse_links(below)
        try:
            directory_entries = sorted(os.scandir(self._location(below).path), key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in directory_entries:
            path = f"{below}/{entry.name}".lstrip("/")
            self._refuse_links(path)
            if entry.is_file():
                yield StoredObject.of_file(path, entry.stat())
            elif entry.is_dir() and deep:
                yield from self._local_entries(path, deep)
            elif entry.is_dir():
                yield StoredObject(path + "/", 0, 0)

    def _local_info(self, below: str) -> StoredObject:
        self._refuse_links(below)
        path = self._location(below).path
        try:
            stat = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            raise self._missing(below) from None
        if os.path.isdir(path):
            return StoredObject(below + "/", 0, 0)
        return StoredObject.of_file(below, stat)

    def _refuse_links(self, below: str) -> None:
        root = os.path.realpath(self.root.path)
        if os.path.realpath(os.path.join(root, below)) != os.path.normpath(os.path.join(root, below)):
            raise FileError(
                f"{self._name_of(below)} is a link, or lies behind one, and links are not followed; ask the provider to share "
                f"the file itself",
                file=below,
            )
