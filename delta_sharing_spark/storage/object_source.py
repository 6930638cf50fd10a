"""Reads byte ranges of one object of a storage, checks them against the plan, and renews a credential that is refused."""

from __future__ import annotations

from typing import Protocol

from delta_sharing_spark.errors import CorruptFileError, FileGoneError
from delta_sharing_spark.network.connections import Canceller
from delta_sharing_spark.storage.locations import Location
from delta_sharing_spark.storage.objects import Storage
from delta_sharing_spark.storage.ranges import UNKNOWN_SIZE, Range, check_range
from delta_sharing_spark.storage.transfer import FileVersion, Transfer


class StorageLease(Protocol):
    """A location's storage, whose credential is kept valid."""

    def storage(self) -> Storage:
        """The storage, with a credential that should work now; renewed first if it is about to expire."""

    def refused(self, storage: Storage, location: Location, name: str, refusal: PermissionError, refusals: int) -> None:
        """Prepare another credential, after the storage refused the file ``name`` for the ``refusals``-th time in one read.

        Raises:
            DeltaSharingError: There is no other credential; says what to do.
        """


class ObjectSource:
    """A ``ByteSource`` over a storage.

    Args:
        lease: Gives the storage.
        location: The file.
        name: How errors name it.
        size: Planned bytes; None where the plan does not say.
        is_data: Whether it is a data file, as opposed to one of the log.
    """

    def __init__(
        self, lease: StorageLease, location: Location, *, name: str, size: int | None, is_data: bool = True
    ) -> None:
        self.name = name
        self.size = size if size is not None else UNKNOWN_SIZE
        self._lease = lease
        self._location = location
        self._is_data = is_data
        self._version = FileVersion(name, size)
        self._canceller = Canceller(f"file {name}")

    def read(self, start: int, length: int) -> memoryview:
        """See ``ByteSource.read``; one request, unless it breaks. A transfer goes on from the byte it reached.

        Raises:
            FileGoneError, CorruptFileError, CredentialError, NetworkError, FileError
            ReadCancelled: By ``close``.
        """
        check_range(self, start, length)
        transfer = Transfer(Range(start, start + length), self._version)
        refusals = 0
        while length:
            with self._canceller.watching():
                storage = self._lease.storage()
            try:
                storage.fetch(self._location, transfer, self._canceller, what=f"file {self.name}")
                break
            except FileNotFoundError:
                raise FileGoneError(
                    f"file {self.name}: the storage no longer has it; the table was probably rewritten or vacuumed: "
                    f"reload it",
                    file=self.name,
                ) from None
            except PermissionError as refusal:
                refusals += 1
                with self._canceller.watching():
                    self._lease.refused(storage, self._location, self.name, refusal, refusals)
        if transfer.arrived != length:
            raise CorruptFileError(
                f"file {self.name} has {start + transfer.arrived} bytes, needed were {start + length}; "
                f"it was replaced or is damaged: reload the table",
                file=self.name,
            )
        if self._is_data and length:
            storage.note_data_read(self._location)
        return transfer.data

    def close(self) -> None:
        """Break off reads under way in any thread. Connections belong to the process and stay open."""
        self._canceller.break_off()
