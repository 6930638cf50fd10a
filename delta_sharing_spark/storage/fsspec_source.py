"""Reads byte ranges of one file through fsspec, checks them against the plan, and renews a credential that is refused."""

from __future__ import annotations

from typing import Protocol

from delta_sharing_spark.errors import CorruptFileError, FileGoneError
from delta_sharing_spark.storage.filesystems import Storage
from delta_sharing_spark.storage.locations import Location
from delta_sharing_spark.storage.ranges import UNKNOWN_SIZE, SeekableFile, check_range
from delta_sharing_spark.storage.transfer import Cancellation, FileVersion


class StorageLease(Protocol):
    """A location's storage, whose credential is kept valid."""

    def storage(self) -> Storage:
        """The storage, with a credential that should work now; renewed first if it is about to expire."""

    def refused(self, storage: Storage, name: str, refusals: int) -> None:
        """Prepare another credential, after the storage refused the file ``name`` for the ``refusals``-th time in one read.

        Raises:
            DeltaSharingError: There is no other credential; says what to do.
        """


class FsspecSource:
    """A ``ByteSource`` over fsspec.

    Args:
        lease: Gives the storage.
        location: The file.
        name: How errors name it.
        size: Planned bytes; None where the plan does not say.
    """

    def __init__(self, lease: StorageLease, location: Location, *, name: str, size: int | None) -> None:
        self.name = name
        self.size = size if size is not None else UNKNOWN_SIZE
        self._lease = lease
        self._location = location
        self._version = FileVersion(name, size)
        self._cancellation = Cancellation(f"file {name}")

    def read(self, start: int, length: int) -> memoryview:
        """See ``ByteSource.read``; one request, unless it breaks."""
        check_range(self, start, length)
        if length == 0:
            return memoryview(b"")
        data = read_leased(
            self._lease,
            self._location,
            start,
            start + length,
            name=self.name,
            version=self._version,
            cancellation=self._cancellation,
        )
        if len(data) != length:
            raise CorruptFileError(
                f"file {self.name} has {start + len(data)} bytes, needed were {start + length}; "
                f"it was replaced or is damaged: reload the table",
                file=self.name,
            )
        return memoryview(data)

    def close(self) -> None:
        """Break off reads under way in any thread. Connections belong to the process and stay open."""
        self._cancellation.break_off()


def read_leased(
    lease: StorageLease,
    location: Location,
    start: int | None,
    end: int | None,
    *,
    name: str,
    version: FileVersion | None = None,
    cancellation: Cancellation | None = None,
) -> bytes | memoryview:
    """Bytes ``[start, end)`` of a file, or all of it, renewing the credential on a refusal.

    Raises:
        FileGoneError, CredentialError, NetworkError, FileError
        ReadCancelled: By ``cancellation``.
    """
    refusals = 0
    cancellation = cancellation or Cancellation(f"file {name}")
    while True:
        with cancellation.watching():
            storage = lease.storage()
        try:
            return storage.get(location, start, end, what=f"file {name}", version=version, cancellation=cancellation)
        except FileNotFoundError:
            raise FileGoneError(
                f"file {name}: the storage no longer has it; the table was probably rewritten or vacuumed: reload it",
                file=name,
            ) from None
        except PermissionError:
            refusals += 1
            with cancellation.watching():
                lease.refused(storage, name, refusals)


class SourceFile(SeekableFile):
    """Presents a source as a seekable file object."""

    def __init__(self, source: FsspecSource) -> None:
        super().__init__(source.size)
        self._source = source

    def read(self, length: int = -1, /) -> bytes:
        data = bytes(self._source.read(self._position, self._available(length)))
        self._position += len(data)
        return data
