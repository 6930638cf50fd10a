"""Byte ranges of one file over HTTP: resumed where they broke, checked against the plan, renewed when refused."""

from __future__ import annotations

import logging
import re
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urljoin, urlsplit

import numpy as np
import requests
import urllib3

from delta_sharing_spark.errors import (
    ConfigError,
    CorruptFileError,
    DeltaSharingError,
    FileError,
    FileGoneError,
    NetworkError,
    redact,
)
from delta_sharing_spark.storage.backoff import Patience, TransientFault, WrongRange, retry_after
from delta_sharing_spark.storage.connections import Breaker, pause
from delta_sharing_spark.storage.ranges import UNKNOWN_SIZE, Range
from delta_sharing_spark.storage.transfer import FileVersion

_log = logging.getLogger(__name__)

_CHUNK = 256 << 10
_MAX_REDIRECTS = 5
_MAX_RENEWALS = 2
_ERROR_BODY = 4096
_NOT_A_URL = (
    requests.exceptions.InvalidURL,
    requests.exceptions.InvalidSchema,
    requests.exceptions.MissingSchema,
    requests.exceptions.InvalidHeader,
    urllib3.exceptions.LocationParseError,
)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
#: What S3, Azure and GCS say in a 400 or 404 whose cause is a URL or token that ended.
_EXPIRED_BODY = re.compile(
    rb"(?i)expired|ExpiredToken|AuthenticationFailed|InvalidToken|TokenRefreshRequired|request has expired|SignatureDoesNotMatch"
)


class UrlLease(Protocol):
    """The URL of one file, kept valid by whoever planned it."""

    def url(self) -> str:
        """A URL that should work now; renewed first if it is about to expire."""

    def refused(self, url: str, reason: str) -> None:
        """The storage refused ``url``: obtain another for the next call of ``url()``.

        Raises:
            DeltaSharingError: There is no other URL to be had; says what to do.
        """


@dataclass(frozen=True, slots=True)
class HttpPolicy:
    """Bounds of data requests: time-outs in seconds, how long to go on retrying, and which hosts may be plain http.

    ``sleep`` and ``clock`` are injectable, so that tests need not wait.
    """

    connect_timeout: float = 20.0
    read_timeout: float = 120.0
    retry_seconds: float = 300.0
    first_wait: float = 0.2
    longest_wait: float = 30.0
    allowed_hosts: tuple[str, ...] = ()
    sleep: Callable[[float], None] = field(default=pause, repr=False)
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)


class HttpSource:
    """A ``ByteSource`` over presigned URLs.

    Args:
        session: A session that never carries the sharing token.
        lease: Where the URL comes from.
        name: How errors name the file.
        size: Planned bytes; a storage that reports another total is an error. None where the plan does not say.
        policy: Time-outs and retries.
    """

    def __init__(
        self,
        session: requests.Session,
        lease: UrlLease,
        *,
        name: str,
        size: int | None,
        policy: HttpPolicy | None = None,
    ) -> None:
        self.name = name
        self.size = size if size is not None else UNKNOWN_SIZE
        self._session = session
        self._lease = lease
        self._policy = policy or HttpPolicy()
        self._version = FileVersion(name, size)
        self._breaker = Breaker(f"file {name}")

    def read(self, start: int, length: int) -> memoryview:
        """See ``ByteSource.read``. A broken transfer goes on from the byte it reached."""
        if start < 0 or length < 0 or start + length > self.size:
            raise CorruptFileError(
                f"file {self.name}: bytes {start} to {start + length} were asked for, but it has {self.size}; "
                f"the file is truncated or damaged: ask the provider to check it",
                file=self.name,
            )
        buffer = np.empty(length, dtype=np.uint8).data
        if length == 0:
            return buffer
        done, renewals, policy = 0, 0, self._policy
        patience = Patience(policy.retry_seconds, policy.first_wait, policy.longest_wait, policy.clock)
        while True:
            self._breaker.check()
            with self._breaker.watching():
                url = self._lease.url()
            try:
                for got in self._transfer(url, start + done, buffer[done:]):
                    done += got
                if done == length:
                    return buffer
                raise TransientFault(f"the body ended after {done} of {length} bytes")
            except _Refused as refusal:
                renewals += 1
                if renewals > _MAX_RENEWALS:
                    raise FileError(
                        f"file {self.name}: the storage refused it again after {_MAX_RENEWALS} renewals ({refusal}); "
                        f"reload the table, and ask the provider if it goes on",
                        file=self.name,
                    ) from None
                with self._breaker.watching():
                    self._lease.refused(url, str(refusal))
            except TransientFault as fault:
                self._wait(fault, patience.wait_after(fault, done))

    def close(self) -> None:
        """Break off reads under way, in whatever thread. Connections belong to the session."""
        self._breaker.break_off()

    def _wait(self, fault: TransientFault, seconds: float | None) -> None:
        policy = self._policy
        if seconds is None and isinstance(fault, WrongRange):
            raise FileError(
                f"file {self.name}: the storage goes on answering with other bytes than asked for ({fault}); "
                f"look for a proxy in between, and ask the provider if there is none",
                file=self.name,
            ) from None
        if seconds is None:
            raise NetworkError(
                f"file {self.name}: the storage could not be read ({redact(str(fault))}), tried for "
                f"{policy.retry_seconds:.0f} s; check the network between the executors and the storage, then run the query again",
                file=self.name,
            ) from None
        _log.info("file %s: trying again in %.1f s (%s)", self.name, seconds, fault)
        with self._breaker.watching():
            policy.sleep(seconds)

    def _transfer(self, url: str, start: int, into: memoryview) -> Iterator[int]:
        """Yield the bytes received so far, piece by piece, into ``into``."""
        wanted = Range(start, start + len(into))
        try:
            with self._breaker.watching(), self._get(url, wanted) as response:
                self._breaker.check()
                if response.status_code not in (200, 206):
                    self._raise_for(response)
                skip = self._version.accept(wanted, response.status_code, response.headers)
                for count in _drain(response.raw, skip, into):
                    self._breaker.check()
                    yield count
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            self._breaker.check()
            final = self._final(error, url)
            if final is not None:
                raise final from None
            raise TransientFault(f"{type(error).__name__} from {urlsplit(url).hostname}") from None

    def _final(self, error: Exception, url: str) -> DeltaSharingError | None:
        """The error of a failure that no other try will mend; None for those of the network."""
        host = urlsplit(url).hostname
        if _is_certificate(error):
            return NetworkError(
                f"file {self.name}: TLS with {host} failed ({redact(str(error))}); "
                f"set the option caBundle if your network uses its own certificates",
                file=self.name,
            )
        if isinstance(error, _NOT_A_URL):
            return FileError(
                f"file {self.name}: the server's URL of it cannot be used ({type(error).__name__}); ask the provider to check it",
                file=self.name,
            )
        network = (requests.RequestException, urllib3.exceptions.HTTPError, ConnectionError, TimeoutError, ssl.SSLError)
        if not isinstance(error, network):
            return ConfigError(
                f"file {self.name}: no request could be sent to {host} ({redact(str(error))}); check the option caBundle"
            )
        return None

    def _get(self, url: str, wanted: Range) -> requests.Response:
        headers = {"Range": wanted.header, "Accept-Encoding": "identity"}
        timeout = (self._policy.connect_timeout, self._policy.read_timeout)
        first = url
        for _ in range(_MAX_REDIRECTS + 1):
            self._admit(url, first)
            response = self._session.get(url, headers=headers, stream=True, timeout=timeout, allow_redirects=False)
            if not response.is_redirect:
                return response
            url = urljoin(url, response.headers["location"])
            response.close()
        raise FileError(
            f"file {self.name}: more than {_MAX_REDIRECTS} redirects; ask the provider to check it", file=self.name
        )

    def _admit(self, url: str, first: str) -> None:
        """Refuse plain http but to allowed hosts; to loopback only where the URL itself, not a redirect, says so."""
        parts = urlsplit(url)
        host = (parts.hostname or "").lower()
        local = host in _LOOPBACK and (urlsplit(first).hostname or "").lower() in _LOOPBACK
        if parts.scheme == "https" or (parts.scheme == "http" and (local or host in self._policy.allowed_hosts)):
            return
        raise ConfigError(
            f"file {self.name}: its URL is {parts.scheme}://{host}, which is not encrypted; "
            f"name the host in the option allowedDataHosts if you trust it"
        )

    def _raise_for(self, response: requests.Response) -> None:
        status = response.status_code
        if status == 429 or status >= 500 or status == 408:
            raise TransientFault(f"HTTP {status}", retry_after(response.headers.get("retry-after")))
        body = response.raw.read(_ERROR_BODY, decode_content=True) or b""
        if status in (401, 403) or (status in (400, 404) and _EXPIRED_BODY.search(body)):
            raise _Refused(f"HTTP {status}")
        if status == 416:
            raise self._version.changed("the storage says it is shorter")
        if status in (404, 410):
            raise FileGoneError(
                f"file {self.name}: the storage no longer has it (HTTP {status}); the table was probably rewritten or vacuumed: reload it",
                file=self.name,
            )
        raise FileError(
            f"file {self.name}: the storage answered HTTP {status}; reload the table, and ask the provider if it goes on",
            file=self.name,
        )


class _Refused(Exception):
    """The storage does not accept the URL (any more)."""


def _drain(raw: urllib3.response.BaseHTTPResponse, skip: int, into: memoryview) -> Iterator[int]:
    """Read the body into ``into`` after ``skip`` bytes; yields the count of each piece."""
    # What has arrived, however little: a whole piece would be lost with a connection that breaks. New in urllib3 2.1.
    read = getattr(raw, "read1", raw.read)
    while skip > 0:
        dropped = read(min(skip, _CHUNK))
        if not dropped:
            return
        skip -= len(dropped)
    at = 0
    while at < len(into):
        piece = read(min(_CHUNK, len(into) - at))
        if not piece:
            return
        into[at : at + len(piece)] = piece
        at += len(piece)
        yield len(piece)


def _is_certificate(error: BaseException | None) -> bool:
    """Whether a certificate was refused; other TLS failures may be a connection that broke."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, ssl.SSLCertVerificationError | ssl.CertificateError):
            return True
        inner = [a for a in (*error.args, getattr(error, "reason", None)) if isinstance(a, BaseException)]
        error = inner[0] if inner else error.__cause__ or error.__context__
    return False
