"""Reads byte ranges of one file, whatever the way to it: a presigned URL, an object of a cloud, a local file.

A transfer that breaks goes on from the byte that it reached. A way that is refused is renewed. All answers are of one version of the file.
"""

from __future__ import annotations

import re
import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, Generic, NamedTuple, NoReturn, Protocol, TypeAlias, TypeVar

import numpy as np
import requests
import urllib3

from delta_sharing_spark import metrics
from delta_sharing_spark.errors import (
    ConfigError,
    CorruptFileError,
    DeltaSharingError,
    FileError,
    FileGoneError,
    NetworkError,
)
from delta_sharing_spark.network.bodies import (
    BodyError,
    DamagedBodyError,
    TruncatedBodyError,
    coding_of,
    declared_length,
    read_start,
)
from delta_sharing_spark.network.connection_failures import connection_reason, final_reason, forget_frames
from delta_sharing_spark.network.connections import (
    AddressRefusedError,
    Canceller,
    Deadline,
    extend_deadline,
    refusing_local_addresses,
)
from delta_sharing_spark.network.http import UNSENDABLE, NetworkSettings, data_session
from delta_sharing_spark.network.pooled_connections import Answer, PooledAnswer, send
from delta_sharing_spark.network.retry import RetryableError, WrongRangeError, retry
from delta_sharing_spark.network.urls import Url
from delta_sharing_spark.storage.ranges import UNKNOWN_SIZE, Range, check_range

_T = TypeVar("_T")
_S = TypeVar("_S")

#: Bytes of a body that are received at once.
_CHUNK = 256 << 10
#: The most bytes of an error's body that are looked at.
_LARGEST_ERROR = 64 << 10
_NETWORK = (requests.RequestException, urllib3.exceptions.HTTPError, ConnectionError, TimeoutError, ssl.SSLError)
#: Failures of libraries and sockets, which are not in our words yet.
_FOREIGN = (requests.RequestException, urllib3.exceptions.HTTPError, OSError, UnicodeError, BodyError)
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings(NetworkSettings):
    """How data is asked for, none of it secret.

    Attributes:
        region: AWS region; None finds it (S3 names the right one when asked in the wrong one).
        endpoint: The URL, with its scheme, of an endpoint to use instead of the cloud's own (MinIO, Azurite, an emulator).
        trusts_endpoint: Whether the endpoint may lead to this machine or its network: one that the user names may.
        allowed_hosts: Hosts of presigned URLs, in lower case, that may be plain http, and may be this machine or its network.
        local_server: Whether the sharing server itself is on loopback, so that its presigned URLs may lead there.
    """

    server: ClassVar[str] = "storage"

    region: str | None = None
    endpoint: str | None = None
    trusts_endpoint: bool = True
    allowed_hosts: tuple[str, ...] = ()
    local_server: bool = False


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

    def accept(self, wanted: Range, status: int, headers: Mapping[str, str]) -> int:
        """Check the head of an answer of status 200 or 206; returns how many bytes of its body come before ``wanted``.

        Args:
            wanted: The range that was asked for.
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
            self._check_range(wanted, headers.get("content-range", ""))
        else:
            length = declared_length(headers)
            if "content-range" in headers or (length == wanted.length != (self.size or wanted.end)):
                raise _whole_file(wanted)
            if length is not None:
                self._check_size(length)
        self._check_etag(headers.get("etag"))
        return 0 if status == 206 else wanted.start

    def changed(self, why: str) -> CorruptFileError:
        """The error of a file that was replaced since it was planned."""
        return CorruptFileError(
            f"file {self.name} is not the one that was planned: {why}; {self._advice}", file=self.name
        )

    def _check_range(self, wanted: Range, text: str) -> None:
        match = _CONTENT_RANGE.fullmatch(text.strip())
        if match is None or int(match[1]) != wanted.start or not wanted.start <= int(match[2]) < wanted.end:
            raise WrongRangeError(f"asked for bytes {wanted.start}-{wanted.end - 1}, got {text!r}")
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
        whole: The range.
        version: What the answers are compared with.

    Attributes:
        arrived: How many bytes have arrived.
    """

    def __init__(self, whole: Range, version: FileVersion) -> None:
        self.arrived = 0
        self._whole, self._version = whole, version
        #: All of a range has its room at once: what grows is held up to an eighth larger, and twice while it moves.
        self._room = np.empty(whole.length, dtype=np.uint8).data

    @property
    def data(self) -> memoryview:
        """The bytes that have arrived."""
        return self._room[: self.arrived]

    @property
    def missing(self) -> Range:
        """The range that the next request asks for."""
        return Range(self._whole.start + self.arrived, self._whole.end)

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
        missing, before = self.missing, self.arrived
        skip = before_it = self._version.accept(missing, response.status_code, response.headers)
        fill = response.read_into if isinstance(response, PooledAnswer) else partial(_read_into, response)
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
            if before_it and before_it - skip + self.arrived - before == missing.length:
                self.arrived = before  # its bytes are those of another place
                raise _whole_file(missing)
            raise RetryableError(f"the body ended after {self.arrived} of {self._whole.length} bytes")


def _read_into(response: requests.Response, room: memoryview) -> int:
    # What has arrived, however little: a whole piece would be lost with a connection that breaks. New in urllib3 2.1.
    piece = getattr(response.raw, "read1", response.raw.read)(min(_CHUNK, len(room)))
    room[: len(piece)] = piece
    return len(piece)


class Lease(Protocol[_S]):
    """What files are asked for with, a URL or a storage with its credential, which is kept valid."""

    def current(self) -> _S:
        """What should work now; renewed first if it is about to end."""

    def refused(self, source: _S, name: str, refusal: PermissionError, refusals: int) -> None:
        """Prepare another one, after ``source`` was refused for the ``refusals``-th time in one read of the file ``name``.

        Raises:
            DeltaSharingError: There is no other; says what to do.
        """


#: Looks at a refusal, and how many there were in one read, before another one is prepared; raises to end the read.
Check: TypeAlias = Callable[[_S, PermissionError, int], None]


def renewing(
    lease: Lease[_S],
    name: str,
    action: Callable[[_S], _T],
    check: Check[_S] = lambda source, refusal, refusals: None,
) -> _T:
    """Do something with what a lease gives until that is not refused."""
    refusals = 0
    while True:
        source = lease.current()
        try:
            return action(source)
        except PermissionError as refusal:
            refusals += 1
            check(source, refusal, refusals)
            lease.refused(source, name, refusal, refusals)


class RangeReader(Generic[_S]):
    """A ``ByteSource`` over a lease.

    Args:
        lease: Gives what the file is asked for with.
        fill: Receives with it what a transfer is missing (``HttpWay.fill``).
        version: The file's name, planned size and ETag.
        check: Looks at each refusal first.
    """

    def __init__(
        self,
        lease: Lease[_S],
        fill: Callable[[_S, Transfer, Canceller], None],
        version: FileVersion,
        check: Check[_S] = lambda source, refusal, refusals: None,
    ) -> None:
        self.name = version.name
        self.size = version.size if version.size is not None else UNKNOWN_SIZE
        self._lease, self._fill, self._version, self._check = lease, fill, version, check
        self._canceller = Canceller(f"file {version.name}")

    def read(self, start: int, length: int) -> memoryview:
        """See ``ByteSource.read``; one request, unless it breaks or is refused.

        Raises:
            FileGoneError, CorruptFileError, CredentialError, NetworkError, FileError
            ReadCancelled: By ``close``.
        """
        check_range(self, start, length)
        transfer = Transfer(Range(start, start + length), self._version)
        try:
            with self._canceller.watching():
                if length:
                    renewing(
                        self._lease,
                        self.name,
                        lambda source: self._fill(source, transfer, self._canceller),
                        self._check,
                    )
        except FileNotFoundError:
            raise FileGoneError(
                f"file {self.name}: the storage no longer has it; the table was probably rewritten or vacuumed: reload it",
                file=self.name,
            ) from None
        if transfer.arrived != length:
            raise CorruptFileError(
                f"file {self.name} has {start + transfer.arrived} bytes, needed were {start + length}; "
                f"it was replaced or is damaged: reload the table",
                file=self.name,
            )
        return transfer.data

    def close(self) -> None:
        """Break off reads under way in any thread. Connections belong to the process and stay open."""
        self._canceller.break_off()


class Request(NamedTuple):
    """One request without a body.

    Attributes:
        headers: Made for this URL: none of them is a secret of another host.
        may_be_local: Whether it may lead to this machine or its network.
        state: What of the way it was made by, to tell whether other threads have corrected it since.
    """

    method: str
    url: Url
    headers: Mapping[str, str]
    may_be_local: bool
    state: Any = None


class HttpWay(ABC):
    """A way by HTTP: makes requests until they are answered for good, and corrects them as answers say.

    Args:
        settings: The bounds of requests.
        what: How errors name what is read.

    Attributes:
        most_corrections: How often the answers to one request may say how to ask otherwise.
        endless: The error of more corrections, with ``{host}``.
        unreachable, not_ready: The errors once the retries are used up, with ``{host}``, ``{failure}`` and ``{seconds}``.
    """

    most_corrections: ClassVar[int]
    endless: ClassVar[str]
    unreachable: ClassVar[str]
    not_ready: ClassVar[str]

    def __init__(self, settings: StorageSettings, what: str) -> None:
        self.settings, self.what = settings, what
        self._session = data_session(settings)

    @property
    @abstractmethod
    def host(self) -> str:
        """How errors name the other end."""

    @abstractmethod
    def request(self, headers: Mapping[str, str]) -> Request:
        """The request, with these headers among its own."""

    @abstractmethod
    def corrected(self, request: Request, answer: requests.Response, body: Callable[[], bytes]) -> Request | None:
        """The request to make instead, where an answer other than 200 and 206 says how; else None."""

    @abstractmethod
    def failure(self, request: Request, answer: requests.Response, body: bytes) -> Exception:
        """The error that such an answer means (``answers.failure_of``)."""

    @abstractmethod
    def address_refused(self, request: Request, address: str) -> DeltaSharingError:
        """The error of a host that leads to this machine or its network and may not."""

    def fill(self, transfer: Transfer, canceller: Canceller) -> None:
        """Receive what a transfer is missing; raises as ``ask``."""
        self.ask(lambda answer: transfer.receive(answer, canceller), canceller, transfer)

    def ask(self, receive: Callable[[Any], _T], canceller: Canceller, transfer: Transfer | None = None) -> _T:
        """Make a request until it is answered for good.

        Args:
            receive: Receives an answer of status 200 or 206.
            canceller: Ends it when the reader goes away.
            transfer: What is still missing of it is asked for; None asks for a whole body, which may be compressed.

        Raises:
            FileNotFoundError, PermissionError, NetworkError, FileError, ConfigError, ReadCancelled
            Whatever ``receive`` raises.
        """
        headers, file = {"Accept-Encoding": "identity"}, self.what.removeprefix("file ")

        def attempt() -> _T:
            canceller.check()
            request = self.request(headers if transfer is None else {**headers, "Range": transfer.missing.header})
            for _ in range(self.most_corrections + 1):
                try:
                    return self._exchange(request, receive, canceller, is_decoded=transfer is None)
                except _Corrected as answer:
                    request = answer.request
            raise FileError(f"{self.what}: {self.endless.format(host=self.host)}", file=file)

        def sleep(seconds: float) -> None:
            with canceller.watching():
                self.settings.sleep(seconds)

        try:
            return retry(
                attempt,
                self.settings,
                reached=lambda: 0 if transfer is None else transfer.arrived,
                sleep=sleep,
                what=self.what,
            )
        except WrongRangeError as failure:
            raise FileError(
                f"{self.what}: the storage at {self.host} goes on answering with other bytes than asked for ({failure}); "
                f"look for a proxy in between, and ask the provider if there is none",
                file=file,
            ) from None
        except RetryableError as failure:
            if failure.error is not None:
                raise failure.error from None
            text = self.not_ready if failure.busy else self.unreachable
            why = text.format(host=self.host, failure=failure, seconds=self.settings.retry_seconds)
            raise NetworkError(f"{self.what}: {why}", host=self.host, file=file, busy=failure.busy) from None
        except (FileNotFoundError, PermissionError) as refusal:
            # A read may go on after it, and its frames would hold the bytes.
            raise refusal.with_traceback(None) from None

    def _exchange(
        self, request: Request, receive: Callable[[Any], _T], canceller: Canceller, *, is_decoded: bool
    ) -> _T:
        """Make one request and receive its answer, within the time that the settings allow.

        Raises:
            RetryableError: The network failed, or the time is over.
            _Corrected: The answer says how to ask otherwise.
            Whatever ``ask`` raises.
        """
        settings, host = self.settings, request.url.host

        def late() -> RetryableError:
            return RetryableError(f"{host} had not sent all of it after {settings.request_seconds:.0f} s")

        with Deadline(settings.request_seconds, self.what, settings.read_timeout, late):
            try:
                with canceller.watching(), self._send(request, is_decoded=is_decoded) as answer:
                    canceller.check()
                    if not isinstance(answer, PooledAnswer) and answer.status_code not in (200, 206):
                        self._refuse(request, answer)
                    result = receive(answer)
                    canceller.check()
                    return result
            except Exception as error:
                canceller.check()
                if isinstance(error, PermissionError | FileNotFoundError) or not isinstance(error, _FOREIGN):
                    raise
                try:
                    raise _in_our_words(error, request.url, self.what) from None
                finally:
                    forget_frames(error)

    @contextmanager
    def _send(self, request: Request, *, is_decoded: bool) -> Iterator[Answer]:
        """Sends a request, and counts it and the bytes of its answer for metrics, however it ends."""
        settings, session = self.settings, self._session
        timeout = (settings.connect_timeout, settings.read_timeout)
        metrics.count(metrics.REQUESTS, 1, table=settings.table, server=settings.server)
        try:
            with nullcontext() if request.may_be_local else refusing_local_addresses():
                response = send(session, request.method, request.url, request.headers, timeout, is_decoded=is_decoded)
        except AddressRefusedError as refusal:
            raise self.address_refused(request, str(refusal)) from None
        with response as answer:
            try:
                yield answer
            finally:
                arrived = answer.received if isinstance(answer, PooledAnswer) else answer.raw.tell()
                metrics.count(metrics.BYTES, arrived, table=settings.table)

    def _refuse(self, request: Request, answer: requests.Response) -> NoReturn:
        # The body of an answer to HEAD is as long as its headers say of the object, and is not there.
        body = cache(lambda: b"" if request.method == "HEAD" else read_start(answer, _LARGEST_ERROR)[0])
        other = self.corrected(request, answer, body)
        if other is not None:
            raise _Corrected(other)
        # Not by a local, which would hold the error, and with it all frames, until the collector comes.
        raise self.failure(request, answer, body())


class _Corrected(Exception):
    """An answer said how to ask otherwise: in another region, at another time, elsewhere."""

    def __init__(self, request: Request) -> None:
        self.request = request


def _whole_file(wanted: Range) -> WrongRangeError:
    """The failure of an answer that says it is a whole file, and holds the range that was asked for."""
    return WrongRangeError(
        f"asked for bytes {wanted.start}-{wanted.end - 1}, got {wanted.length} bytes as a whole file: 200, as if something in "
        f"between had made it of 206"
    )


def _in_our_words(error: Exception, url: Url, what: str) -> DeltaSharingError | RetryableError:
    """A failure of the network, or one that no retry will mend."""
    host = url.host
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
    return RetryableError(connection_reason(error, url.text) or f"{type(error).__name__} from {host}")


def bad_url(what: str, why: str) -> FileError:
    """The error of a URL that cannot be used."""
    return FileError(
        f"{what}: the server's URL of it cannot be used ({why}); ask the provider to check it",
        file=what.removeprefix("file "),
    )
