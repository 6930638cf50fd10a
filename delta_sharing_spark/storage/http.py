"""Byte ranges of one file over HTTP: resumed where they broke, checked against the plan, renewed when refused."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urljoin, urlsplit

import numpy as np
import requests
import urllib3

from delta_sharing_spark.errors import (
    ConfigError,
    CorruptFileError,
    FileError,
    FileGoneError,
    NetworkError,
    redact,
)

_CHUNK = 1 << 20
_UNKNOWN = 1 << 62
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_MAX_REDIRECTS = 5
_MAX_RENEWALS = 3
_ERROR_BODY = 4096
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
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)


class _Transient(Exception):
    """A failure worth another request; ``wait`` is what Retry-After asked for, in seconds."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


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
        self.size = size if size is not None else _UNKNOWN
        self._session = session
        self._lease = lease
        self._policy = policy or HttpPolicy()
        self._etag: str | None = None
        self._lock = threading.Lock()

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
        done, failures, renewals = 0, 0, 0
        deadline = self._policy.clock() + self._policy.retry_seconds
        while True:
            url = self._lease.url()
            before = done
            try:
                for got in self._transfer(url, start + done, buffer[done:]):
                    done += got
                if done == length:
                    return buffer
                raise _Transient(f"the body ended after {done} of {length} bytes")
            except _Refused as refusal:
                renewals += 1
                if renewals > _MAX_RENEWALS:
                    raise FileError(
                        f"file {self.name}: the storage refused it again after {_MAX_RENEWALS} renewals ({refusal}); "
                        f"reload the table, and ask the provider if it goes on",
                        file=self.name,
                    ) from None
                self._lease.refused(url, str(refusal))
            except _Transient as failure:
                # Bytes may have arrived before the break: progress starts the count anew, the deadline stays.
                failures = 1 if done > before else failures + 1
                self._wait(failure, failures, deadline)

    def close(self) -> None:
        """Nothing to give back: connections belong to the session."""

    def _wait(self, failure: _Transient, failures: int, deadline: float) -> None:
        policy = self._policy
        backoff = min(policy.longest_wait, policy.first_wait * 2 ** (failures - 1))
        pause = failure.wait if failure.wait is not None else backoff * random.uniform(0.5, 1.0)
        if policy.clock() + pause > deadline:
            raise NetworkError(
                f"file {self.name}: the storage could not be read ({redact(str(failure))}), tried for "
                f"{policy.retry_seconds:.0f} s; check the network between the executors and the storage, then run the query again",
                file=self.name,
            ) from None
        policy.sleep(pause)

    def _transfer(self, url: str, start: int, into: memoryview):  # type: ignore[no-untyped-def]
        """Yield the bytes received so far, piece by piece, into ``into``."""
        try:
            with self._get(url, start, start + len(into)) as response:
                self._check(response, start, start + len(into))
                skip = start if response.status_code == 200 else 0
                yield from _drain(response.raw, skip, into)
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            if isinstance(error, requests.exceptions.SSLError):
                raise NetworkError(
                    f"file {self.name}: TLS with {urlsplit(url).hostname} failed ({redact(str(error))}); "
                    f"set the option caBundle if your network uses its own certificates",
                    file=self.name,
                ) from None
            raise _Transient(f"{type(error).__name__} from {urlsplit(url).hostname}") from None

    def _get(self, url: str, start: int, end: int) -> requests.Response:
        headers = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
        timeout = (self._policy.connect_timeout, self._policy.read_timeout)
        for _ in range(_MAX_REDIRECTS + 1):
            self._admit(url)
            response = self._session.get(url, headers=headers, stream=True, timeout=timeout, allow_redirects=False)
            if not response.is_redirect:
                return response
            url = urljoin(url, response.headers["location"])
            response.close()
        raise FileError(
            f"file {self.name}: more than {_MAX_REDIRECTS} redirects; ask the provider to check it", file=self.name
        )

    def _admit(self, url: str) -> None:
        parts = urlsplit(url)
        host = (parts.hostname or "").lower()
        if parts.scheme == "https" or (
            parts.scheme == "http" and (host in _LOOPBACK or host in self._policy.allowed_hosts)
        ):
            return
        raise ConfigError(
            f"file {self.name}: its URL is {parts.scheme}://{host}, which is not encrypted; "
            f"name the host in the option allowedDataHosts if you trust it"
        )

    def _check(self, response: requests.Response, start: int, end: int) -> None:
        status = response.status_code
        if status == 206:
            self._check_range(response, start, end)
        elif status == 200:
            declared = response.headers.get("content-length")
            if declared is not None and int(declared) != self.size and self.size != _UNKNOWN:
                raise self._changed(f"it has {declared} bytes, planned were {self.size}")
        else:
            self._raise_for(response)
        self._check_etag(response.headers.get("etag"))

    def _check_range(self, response: requests.Response, start: int, end: int) -> None:
        match = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", "").strip())
        if match is None or int(match[1]) != start or int(match[2]) >= end or int(match[2]) < start:
            raise _Transient(f"asked for bytes {start}-{end - 1}, got {response.headers.get('content-range')!r}")
        if match[3] != "*" and int(match[3]) != self.size and self.size != _UNKNOWN:
            raise self._changed(f"it has {match[3]} bytes, planned were {self.size}")

    def _check_etag(self, etag: str | None) -> None:
        if etag is None or etag.startswith("W/"):
            return
        with self._lock:
            if self._etag is None:
                self._etag = etag
            elif self._etag != etag:
                raise self._changed("its ETag changed between two ranges")

    def _changed(self, why: str) -> CorruptFileError:
        return CorruptFileError(
            f"file {self.name} is not the one that was planned: {why}; reload the table", file=self.name
        )

    def _raise_for(self, response: requests.Response) -> None:
        status = response.status_code
        if status == 429 or status >= 500 or status == 408:
            raise _Transient(f"HTTP {status}", _retry_after(response))
        body = response.raw.read(_ERROR_BODY, decode_content=True) or b""
        if status in (401, 403) or (status in (400, 404) and _EXPIRED_BODY.search(body)):
            raise _Refused(f"HTTP {status}")
        if status == 416:
            raise self._changed("the storage says it is shorter")
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


def _drain(raw: urllib3.response.BaseHTTPResponse, skip: int, into: memoryview):  # type: ignore[no-untyped-def]
    """Read the body into ``into`` after ``skip`` bytes; yields the count of each piece."""
    while skip > 0:
        dropped = raw.read(min(skip, _CHUNK))
        if not dropped:
            return
        skip -= len(dropped)
    at = 0
    while at < len(into):
        piece = raw.read(min(_CHUNK, len(into) - at))
        if not piece:
            return
        into[at : at + len(piece)] = piece
        at += len(piece)
        yield len(piece)


def _retry_after(response: requests.Response) -> float | None:
    text = response.headers.get("retry-after", "").strip()
    return min(float(text), 120.0) if text.isdigit() else None
