"""Sends the files of a volume, a model or a skill to Spark's own readers, for the native lane's gateway."""

from __future__ import annotations

import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

from delta_sharing_spark.errors import DeltaSharingError, FileError
from delta_sharing_spark.native import webhdfs
from delta_sharing_spark.native.budget import Budget
from delta_sharing_spark.native.plan_reader import Failures
from delta_sharing_spark.network.connections import Canceller
from delta_sharing_spark.scan.fetching import CallsInOrder
from delta_sharing_spark.storage.locations import StoredObject
from delta_sharing_spark.storage.place import Place

#: Bytes of the first piece of an answer, and of the largest: a reader may leave after a footer.
_FIRST, _LARGEST = 256 << 10, 8 << 20
#: Files of a place whose size is kept, and for how many seconds: Spark asks for each after it has listed them.
_KNOWN_FILES, _KNOWN_FOR = 200_000, 60.0


class ServedPlace:
    """A place, what was listed of it a short while ago, and why files of it could not be reached."""

    def __init__(self, place: Place, token: str) -> None:
        self.place, self.token, self.failures = place, token, Failures()
        self._entries: OrderedDict[str, tuple[float, StoredObject]] = OrderedDict()

    def listed(self, path: str) -> list[StoredObject]:
        """What lies in a directory; a file itself, under no name."""
        cached = self._fresh(path)
        if cached is not None:
            return [cached._replace(name="")]
        entries = list(self.place.entries(path))
        if not entries:
            entry = self.place.info(path)
            return [] if entry.name.endswith("/") else [entry._replace(name="")]
        now = time.monotonic()
        for entry in entries:
            self._entries[entry.name] = (now, entry)
        while len(self._entries) > _KNOWN_FILES:
            self._entries.popitem(last=False)
        return entries

    def info(self, path: str) -> StoredObject:
        """A file or a directory."""
        return self._fresh(path) or self.place.info(path)

    def forget(self, path: str) -> None:
        """Ask for a file anew the next time."""
        self._entries.pop(path, None)

    def send(
        self,
        connection: socket.socket,
        path: str,
        offset: int,
        budget: Budget,
        failed: Callable[[DeltaSharingError], object],
    ) -> bool:
        """Send a file from ``offset`` on, until the reader leaves; returns whether the connection can be used for another."""
        file = self.info(path)
        if file.name.endswith("/"):
            raise FileError(f"{path} of {self.place.name} is a directory; name a file in it", file=path)
        rest = file.size - offset
        if rest <= 0:
            connection.sendall(webhdfs.answer(200, b""))
            return True
        canceller = Canceller(path)
        pieces = self._read_ahead(file, offset, canceller, budget)
        try:
            first = next(pieces)  # an error has to come before the head
        except DeltaSharingError:
            self.forget(path)
            raise
        try:
            connection.sendall(webhdfs.head(200, rest, is_last=True))
            connection.sendall(first)
            for piece in pieces:
                connection.sendall(piece)
        except DeltaSharingError as error:
            # The answer is shorter than its head says, which the reader sees; it reads on, and is told why.
            self.forget(path)
            failed(error)
        finally:
            canceller.break_off()
        return False

    def _fresh(self, path: str) -> StoredObject | None:
        moment, entry = self._entries.get(path, (0.0, None))
        return entry if time.monotonic() - moment < _KNOWN_FOR else None

    def _read_ahead(
        self, file: StoredObject, offset: int, canceller: Canceller, budget: Budget
    ) -> Iterator[memoryview]:
        """The bytes of a file in growing pieces; the next ones arrive while one is sent, where there is room for three."""
        version, largest = self.place.version(file), min(_LARGEST, budget.group_bytes // 3)
        counted: set[int] = set()  # stands for the pieces, as long as they are sent
        if not budget.admit_in_time(counted, 3 * largest):
            largest = min(largest, _FIRST)

        def reads() -> Iterator[Callable[[], memoryview]]:
            start, length = offset, min(_FIRST, largest)
            while start < file.size:
                length = min(length, file.size - start)
                yield partial(self.place.read, file.name, version, start, length, canceller)
                start, length = start + length, min(4 * length, largest)

        waiting = reads()
        first = next(waiting)()  # no more is asked for where it fails
        with closing(CallsInOrder(waiting, budget.fetchers, lambda: 2)) as following:
            yield first
            yield from following


def status_of(entry: StoredObject, name: str) -> dict[str, object]:
    """A file or directory as WebHDFS tells it, under a name."""
    return webhdfs.status(name, None if entry.name.endswith("/") else entry.size, entry.modified_ms)
