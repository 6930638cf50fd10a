"""Makes one request for a file's bytes, and receives them: failures are told apart, and all answers are of one version of the file."""

from __future__ import annotations

import re
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import numpy as np
import requests
import urllib3

from delta_sharing_spark import metrics
from delta_sharing_spark.errors import ConfigError, CorruptFileError, DeltaSharingError, FileError, NetworkError
from delta_sharing_spark.network.bodies import (
    BodyError,
    DamagedBodyError,
    TruncatedBodyError,
    coding_of,
    declared_length,
)
from delta_sharing_spark.network.connection_failures import connection_reason, final_reason, forget_frames
from delta_sharing_spark.network.connections import Canceller, Deadline, extend_deadline
from delta_sharing_spark.network.http import UNSENDABLE, NetworkSettings
from delta_sharing_spark.network.kept_connections import Answer, KeptAnswer
from delta_sharing_spark.network.retry import RetryableError, WrongRangeError
from delta_sharing_spark.network.urls import host_of
from delta_sharing_spark.network.waits import say_waiting
from delta_sharing_spark.storage.ranges import Range

T = TypeVar("T")

_CHUNK = 256 << 10
_NETWORK = (requests.RequestException, urllib3.exceptions.HTTPError, ConnectionError, TimeoutError, ssl.SSLError)
#: What is not in our words yet.
_UNTOLD = (requests.RequestException, urllib3.exceptions.HTTPError, OSError, UnicodeError, BodyError)
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)", re.IGNORECASE)


class FileVersion:
    """The size and ETag of one file, by which a storage's answers are compared with the plan and with each other.

    Args:
        name: How errors name the file.
        size: Planned bytes; None where the plan does not say.
        etag: Of what has been read of it before.
        advice: What to do if it has changed.
    """

    def __init__(self, name: str, size: int | None, etag: str | None = None, advice: str = "reload the table") -> None:
        self.name, self.size = name, size
        self.etag, self._advice = etag, advice
        self._lock = threading.Lock()

    def accept(self, requested: Range, status: int, headers: Mapping[str, str]) -> int:
        """Check the head of an answer of status 200 or 206; returns how many bytes of its body come before ``requested``.

        Args:
            requested: The range that was asked for.
            status, headers: Those of the answer; ``headers`` is looked up by names in lower case.

        Raises:
            WrongRangeError: The answer holds other bytes.
            CorruptFileError: The answer is of another file than the one planned, or than the last answer.
            FileError: Something in between changed the body.
        """
        if (coding := coding_of(headers)) is not None:
            raise FileError(
                f"file {self.name}: the storage sent it compressed ({coding}) though that was not asked for; "
                f"look for a proxy in between that changes what it passes on",
                file=self.name,
            )
        if status == 206:
            self._check_range(requested, headers.get("content-range", ""))
        else:
            declared = declared_length(headers)
            if "content-range" in headers or (declared == requested.length != (self.size or requested.end)):
                raise made_whole(requested)
            if declared is not None:
                self._check_size(declared)
        self._check_etag(headers.get("etag"))
        return 0 if status == 206 else requested.start

    def changed(self, why: str) -> CorruptFileError:
        """The error of a file that was replaced since it was planned."""
        return CorruptFileError(
            f"file {self.name} is not the one that was planned: {why}; {self._advice}", file=self.name
        )

    def _check_range(self, requested: Range, text: str) -> None:
        match = _CONTENT_RANGE.fullmatch(text.strip())
        if match is None or int(match[1]) != requested.start or not requested.start <= int(match[2]) < requested.end:
            raise WrongRangeError(f"asked for bytes {requested.start}-{requested.end - 1}, got {text!r}")
        if match[3] != "*":
            self._check_size(int(match[3]))

    def _check_size(self, size: int) -> None:
        if self.size is not None and size != self.size:
            raise self.changed(f"it has {size} bytes, planned were {self.size}")

    def _check_etag(self, etag: str | None) -> None:
        if etag is None or etag.startswith("W/"):
            return
        with self._lock:
            if self.etag is None:
                self.etag = etag
            elif self.etag != etag:
                raise self.changed("its ETag changed between two ranges")


class Transfer:
    """The bytes of one range of a file, over as many requests as it takes: each asks for what is still missing.

    Args:
        requested: The range.
        version: What the answers are compared with.

    Attributes:
        arrived: How many bytes have arrived.
    """

    def __init__(self, requested: Range, version: FileVersion) -> None:
        self.arrived = 0
        self._requested, self._version = requested, version
        #: All of a range has its room at once: what grows is held up to an eighth larger, and twice while it moves.
        self._room = np.empty(requested.length, dtype=np.uint8).data

    @property
    def data(self) -> memoryview:
        """The bytes that have arrived."""
        return self._room[: self.arrived]

    @property
    def missing(self) -> Range:
        """The range that the next request asks for."""
        return Range(self._requested.start + self.arrived, self._requested.end)

    def keep(self, data: bytes) -> None:
        """Keep bytes that arrived otherwise than in an answer."""
        self._room[self.arrived : self.arrived + len(data)] = data
        self.arrived += len(data)

    def receive(self, response: Answer, canceller: Canceller) -> None:
        """Receive an answer of status 200 or 206; its bytes are kept as they arrive, also if it breaks off.

        Raises:
            RetryableError: Bytes are missing.
            CorruptFileError, FileError, WrongRangeError: As ``FileVersion.accept``.
            ReadCancelled
        """
        asked, before = self.missing, self.arrived
        skip = asked_from = self._version.accept(asked, response.status_code, response.headers)
        fill = response.read_into if isinstance(response, KeptAnswer) else partial(_read_into, response)
        while skip or self.missing.length:
            room = memoryview(bytearray(min(skip, _CHUNK))) if skip else self._room[self.arrived :]
            if not (count := fill(room)):
                break
            extend_deadline(0)
            if skip:
                skip -= count
            else:
                self.arrived += count
            canceller.check()
        if self.missing.length:
            if asked_from and asked_from - skip + self.arrived - before == asked.length:
                self.arrived = before  # its bytes are those of another place
                raise made_whole(asked)
            raise RetryableError(f"the body ended after {self.arrived} of {self._requested.length} bytes")


def _read_into(response: requests.Response, room: memoryview) -> int:
    # What has arrived, however little: a whole piece would be lost with a connection that breaks. New in urllib3 2.1.
    piece = getattr(response.raw, "read1", response.raw.read)(min(_CHUNK, len(room)))
    room[: len(piece)] = piece
    return len(piece)


def made_whole(asked: Range) -> WrongRangeError:
    """The failure of an answer that says it is a whole file, and holds the range that was asked for."""
    return WrongRangeError(
        f"asked for bytes {asked.start}-{asked.end - 1}, got {asked.length} bytes as a whole file: 200, as if something in "
        f"between had made it of 206"
    )


def exchange(
    send: Callable[[], Answer],
    receive: Callable[[Any], T],
    *,
    url: str,
    settings: NetworkSettings,
    canceller: Canceller,
    what: str,
) -> T:
    """Make one request and receive its answer, within the time that the settings allow.

    Args:
        send: Sends the request; returns its answer before the body.
        receive: Receives it.
        url: Where it goes; errors name its host.
        settings: The bounds.
        canceller: Ends it when the reader goes away.
        what: How errors name what is read.

    Raises:
        RetryableError: The network failed, or the time is over.
        NetworkError: A certificate or a proxy refuses.
        ConfigError, FileError: No request can be made.
        ReadCancelled: By ``canceller``.
        Whatever ``send`` and ``receive`` raise beyond failures of the network.
    """

    def silent(host: str, now: float, waited: float) -> None:
        say_waiting(what, f"{host} is silent", now, waited, settings.read_timeout, "readTimeout")

    with Deadline(settings.request_seconds, silent) as deadline:
        try:
            with canceller.watching(), _counted(send, settings) as response:
                canceller.check()
                received = receive(response)
                canceller.check()
        except Exception as error:
            canceller.check()
            if not deadline.is_over:  # else what was broken off may look like another answer
                if isinstance(error, PermissionError | FileNotFoundError) or not isinstance(error, _UNTOLD):
                    raise
                try:
                    raise _told(error, url, host_of(url), what) from None
                finally:
                    forget_frames(error)
    if deadline.is_over:
        raise RetryableError(f"{host_of(url)} had not sent all of it after {settings.request_seconds:.0f} s")
    return received


@contextmanager
def _counted(send: Callable[[], Answer], settings: NetworkSettings) -> Iterator[Answer]:
    """Sends a request, and counts it and the bytes of its answer for metrics, however it ends."""
    metrics.count(metrics.REQUESTS, 1, table=settings.table, server=settings.server)
    with send() as answer:
        try:
            yield answer
        finally:
            arrived = answer.received if isinstance(answer, KeptAnswer) else answer.raw.tell()
            metrics.count(metrics.BYTES, arrived, table=settings.table)


def _told(error: Exception, url: str, host: str, what: str) -> DeltaSharingError | RetryableError:
    """A failure in our words: of the network, or one that no retry will mend."""
    final = final_reason(error, host)
    if final is not None:
        return NetworkError(f"{what}: {final}", host=host, file=what.removeprefix("file "))
    if isinstance(error, BodyError):
        if isinstance(error, TruncatedBodyError):
            return RetryableError(f"the body of {host} is cut off: {error}")
        unreadable = FileError(
            f"{what}: the answer of {host} cannot be read: {error}; look for a proxy in between, and ask the provider if "
            f"there is none",
            file=what,
        )
        return RetryableError(unreadable, cause=str(error)) if isinstance(error, DamagedBodyError) else unreadable
    if isinstance(error, UNSENDABLE):
        return bad_url(what, type(error).__name__)
    if not isinstance(error, _NETWORK):
        return ConfigError(f"{what}: no request could be sent to {host} ({error}); check the option caBundle")
    return RetryableError(connection_reason(error, url) or f"{type(error).__name__} from {host}")


def wrong_bytes(what: str, failure: WrongRangeError, at: str = "") -> FileError:
    """The error of a storage that answers every try with other bytes than asked for."""
    return FileError(
        f"{what}: the storage{at} goes on answering with other bytes than asked for ({failure}); "
        f"look for a proxy in between, and ask the provider if there is none",
        file=what.removeprefix("file "),
    )


def bad_url(what: str, why: str) -> FileError:
    """The error of a URL that cannot be used."""
    return FileError(
        f"{what}: the server's URL of it cannot be used ({why}); ask the provider to check it",
        file=what.removeprefix("file "),
    )
