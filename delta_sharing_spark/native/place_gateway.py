"""Serves the files of volumes, models and skills to Spark's own readers, as the native lane's gateway serves tables."""

from __future__ import annotations

import secrets
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from delta_sharing_spark.errors import DeltaSharingError, FileError, NetworkError, NoSuchFileError
from delta_sharing_spark.native import webhdfs
from delta_sharing_spark.native.budget import Budget
from delta_sharing_spark.native.gateway import Gateway, HasEnded
from delta_sharing_spark.native.plan_reader import Failures
from delta_sharing_spark.native.webhdfs import Request
from delta_sharing_spark.network.connections import Canceller
from delta_sharing_spark.network.parallel_calls import begin
from delta_sharing_spark.storage.objects import StoredObject
from delta_sharing_spark.storage.place import Place
from delta_sharing_spark.storage.ranges import Range

#: Bytes of the first piece of an answer, and of the largest: a reader may leave after a footer.
_FIRST, _LARGEST = 256 << 10, 8 << 20
#: Files of a place whose size is kept, and for how many seconds: Spark asks for each after it has listed them.
_KNOWN_FILES, _KNOWN_FOR = 200_000, 60.0


class PlaceGateway(Gateway):
    """Serves places beside plans, each under a path of 128 random bits; arguments and attributes are those of ``Gateway``."""

    def __init__(self, **arguments: Any) -> None:
        self._places: dict[str, tuple[ServedPlace, HasEnded]] = {}
        super().__init__(**arguments)

    def share(self, place: Place, has_ended: HasEnded) -> str:
        """Serve a place until a session has ended; returns its address for Spark, the same for an equal place."""
        with self._lock:
            known = (token for token, (served, _) in self._places.items() if served.place == place)
            token = next(known, None) or secrets.token_hex(16)
            served = self._places[token][0] if token in self._places else ServedPlace(place)
            self._places[token] = (served, has_ended)
        return self.address_of(token)

    def _release_ended(self) -> bool:
        with self._lock:
            ended = [token for token, (_, has_ended) in self._places.items() if has_ended()]
            for token in ended:
                del self._places[token]
        were_last = super()._release_ended() or bool(ended)
        return were_last and not self._places and not self._plans and not self._indexes

    def _serve(self, connection: socket.socket, request: Request, token: str, below: str) -> bool:
        served = None
        try:
            served = self._place(token)
            if served is None:
                return super()._serve(connection, request, token, below)
            if (known := served.failures.of(below)) is not None:
                connection.sendall(self._failure(known))
                return True
            if request.operation == "OPEN":
                return self._open_place(connection, request, served, below)
            connection.sendall(self._told(served, below, request.operation))
        except NoSuchFileError:
            connection.sendall(webhdfs.not_found(below))
        except DeltaSharingError as error:
            told = self.remember(error) if served is None else self._place_failed(served, token, below, error)
            connection.sendall(webhdfs.failure(told))
        return True

    def _place_failed(self, served: ServedPlace, token: str, path: str, error: DeltaSharingError) -> str:
        """Note that a file of a place could not be read; returns the cause, for Spark."""
        cause = self._remember(f"{type(error).__name__}: {error}")
        if isinstance(error, NetworkError):
            served.failures.note(path, cause)
        return cause

    def _place(self, token: str) -> ServedPlace | None:
        with self._lock:
            return self._places.get(token, (None, None))[0]

    def _open_place(self, connection: socket.socket, request: Request, served: ServedPlace, path: str) -> bool:
        """Send a file from the request's offset on; returns whether the connection can be used for another."""
        token = (request.path or "").partition("/")[0]
        failed = partial(self._place_failed, served, token, path)
        return _send(connection, served, path, request.offset, self._budget, failed)

    def _told(self, served: ServedPlace, path: str, operation: str) -> bytes:
        if operation == "LISTSTATUS":
            statuses = [_status(entry, entry.name.rstrip("/").rpartition("/")[2]) for entry in served.listed(path)]
            return webhdfs.json_answer({"FileStatuses": {"FileStatus": statuses}})
        if operation == "GETFILESTATUS":
            return webhdfs.json_answer({"FileStatus": _status(served.info(path), "")})
        if operation in ("GETFILEBLOCKLOCATIONS", "GET_BLOCK_LOCATIONS"):
            return webhdfs.json_answer(webhdfs.locations(served.info(path).size))
        return webhdfs.failure(f"what is shared is read-only, and {operation or 'such a request'} is not known")


class ServedPlace:
    """A place, what was listed of it a short while ago, and why files of it could not be reached."""

    def __init__(self, place: Place) -> None:
        self.place, self.failures = place, Failures()
        self._known: OrderedDict[str, tuple[float, StoredObject]] = OrderedDict()

    def listed(self, path: str) -> list[StoredObject]:
        """What lies in a directory; a file itself, under no name."""
        known = self._fresh(path)
        if known is not None:
            return [known._replace(name="")]
        entries = list(self.place.entries(path))
        if not entries:
            found = self.place.info(path)
            return [] if found.name.endswith("/") else [found._replace(name="")]
        now = time.monotonic()
        for entry in entries:
            self._known[entry.name] = (now, entry)
        while len(self._known) > _KNOWN_FILES:
            self._known.popitem(last=False)
        return entries

    def info(self, path: str) -> StoredObject:
        """A file or a directory."""
        return self._fresh(path) or self.place.info(path)

    def forget(self, path: str) -> None:
        """Ask for a file anew the next time."""
        self._known.pop(path, None)

    def _fresh(self, path: str) -> StoredObject | None:
        moment, entry = self._known.get(path, (0.0, None))
        return entry if time.monotonic() - moment < _KNOWN_FOR else None


def _status(entry: StoredObject, name: str) -> dict[str, object]:
    return webhdfs.status(name, None if entry.name.endswith("/") else entry.size, entry.modified_ms)


def _send(
    connection: socket.socket,
    served: ServedPlace,
    path: str,
    offset: int,
    budget: Budget,
    failed: Callable[[DeltaSharingError], object],
) -> bool:
    """Send a file from ``offset`` on, until the reader leaves; returns whether the connection can be used for another."""
    file = served.info(path)
    if file.name.endswith("/"):
        raise FileError(f"{path} of {served.place.name} is a directory; name a file in it", file=path)
    left = file.size - offset
    if left <= 0:
        connection.sendall(webhdfs.answer(200, b""))
        return True
    canceller = Canceller(path)
    pieces = _read_ahead(served.place, file, offset, canceller, budget)
    try:
        first = next(pieces)  # an error has to come before the head
    except DeltaSharingError:
        served.forget(path)
        raise
    try:
        connection.sendall(webhdfs.head(200, left, is_last=True))
        connection.sendall(first)
        for piece in pieces:
            connection.sendall(piece)
    except DeltaSharingError as error:
        # The answer is shorter than its head says, which the reader sees; it reads on, and is told why.
        served.forget(path)
        failed(error)
    finally:
        canceller.break_off()
    return False


def _read_ahead(
    place: Place, file: StoredObject, offset: int, canceller: Canceller, budget: Budget
) -> Iterator[memoryview]:
    """The bytes of a file in growing pieces; the next arrives while one is sent, where there is room for two."""
    version, largest = place.version(file), min(_LARGEST, budget.group_bytes // 2)
    counted: set[int] = set()  # stands for the pieces, as long as they are sent
    if not budget.admit_in_time(counted, 2 * largest):
        largest = min(largest, _FIRST)

    def read(piece: Range) -> memoryview:
        return place.read(file.name, version, piece.start, piece.length, canceller)

    piece = Range(offset, min(offset + min(_FIRST, largest), file.size))
    data = read(piece)
    while piece.end < file.size:
        piece = Range(piece.end, min(piece.end + min(4 * piece.length, largest), file.size))
        following = begin([partial(read, piece)], 1)[0]
        yield data
        data = following.result()
    yield data
