"""Reads byte ranges of one file over HTTP: resumes broken transfers, checks answers against the plan, renews refused URLs."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol

import requests

from delta_sharing_spark.errors import (
    ConfigError,
    DeltaSharingError,
    FileError,
    FileGoneError,
    NetworkError,
)
from delta_sharing_spark.network.bodies import read_start
from delta_sharing_spark.network.connections import AddressRefusedError, Canceller, refusing_local_addresses
from delta_sharing_spark.network.hosts import is_local_address, is_loopback
from delta_sharing_spark.network.http import MAX_RENEWALS, SETTLING, NetworkSettings
from delta_sharing_spark.network.kept_connections import Answer, KeptAnswer, send
from delta_sharing_spark.network.retry import RetryableError, WrongRangeError, retry
from delta_sharing_spark.network.urls import Url, UrlError, host_of, parse_url, redirect_target, scheme_of
from delta_sharing_spark.storage.answers import StorageRefusal, action_of, failure_of, reason_of
from delta_sharing_spark.storage.ranges import UNKNOWN_SIZE, Range, check_range
from delta_sharing_spark.storage.transfer import FileVersion, Transfer, bad_url, exchange, wrong_bytes

_MAX_REDIRECTS = 5
_ERROR_BODY = 4096
#: What storages say beside the three clouds' codes in a 400 or 404 whose cause is a URL or token that ended.
_EXPIRED_BODY = re.compile(rb"(?i)expired|AuthenticationFailed|InvalidToken|TokenRefreshRequired|SignatureDoesNotMatch")


class UrlLease(Protocol):
    """The URL of one file, which is kept valid."""

    def url(self) -> str:
        """A URL that should work now; renewed first if it is about to expire."""

    def refused(self, url: str, reason: str) -> None:
        """Get another URL for the next call of ``url()``, after the storage refused ``url``.

        Raises:
            DeltaSharingError: There is no other URL; says what to do.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpPolicy(NetworkSettings):
    """How data requests are made, and where they may go.

    Attributes:
        allowed_hosts: Hosts, in lower case, that may be plain http, and may be this machine or its network.
        local_server: Whether the sharing server itself is on loopback, so that it may name data there.
    """

    server: ClassVar[str] = "storage"

    allowed_hosts: tuple[str, ...] = ()
    local_server: bool = False


class HttpSource:
    """A ``ByteSource`` over presigned URLs.

    Args:
        session: A session that never carries the sharing token.
        lease: Gives the URL.
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
        self._canceller = Canceller(f"file {name}")
        #: The URL that was looked at last, its parts, and whether it may be local.
        self._checked: tuple[str, Url, bool] | None = None

    def read(self, start: int, length: int) -> memoryview:
        """See ``ByteSource.read``. A broken transfer goes on from the byte it reached."""
        check_range(self, start, length)
        transfer = Transfer(Range(start, start + length), self._version)
        if length == 0:
            return transfer.data
        renewals = 0

        def attempt() -> None:
            nonlocal renewals
            while True:
                self._canceller.check()
                with self._canceller.watching():
                    url = self._lease.url()
                try:
                    return self._receive(url, transfer)
                except StorageRefusal as refusal:
                    renewals += 1
                    self._renew(url, refusal, renewals)

        try:
            retry(attempt, self._policy, reached=lambda: transfer.arrived, sleep=self._sleep, what=f"file {self.name}")
        except RetryableError as failure:
            raise self._given_up(failure) from None
        return transfer.data

    def close(self) -> None:
        """Break off reads under way in any thread. Connections belong to the session and stay open."""
        self._canceller.break_off()

    def _renew(self, url: str, refusal: StorageRefusal, renewals: int) -> None:
        if renewals > MAX_RENEWALS:
            action = action_of(refusal, "reload the table, and ask the provider if it goes on")
            raise FileError(
                f"file {self.name}: the storage {host_of(url)} refused it again after {MAX_RENEWALS} renewals "
                f"({reason_of(refusal)}); {action}",
                file=self.name,
            ) from None
        if renewals > 1:
            self._sleep(SETTLING)
        with self._canceller.watching():
            self._lease.refused(url, str(refusal))

    def _sleep(self, seconds: float) -> None:
        with self._canceller.watching():
            self._policy.sleep(seconds)

    def _given_up(self, failure: RetryableError) -> DeltaSharingError:
        if isinstance(failure, WrongRangeError):
            return wrong_bytes(f"file {self.name}", failure)
        return NetworkError(
            f"file {self.name}: the storage could not be read ({failure}), tried for "
            f"{self._policy.retry_seconds:.0f} s; check the network between the executors and the storage, then run the query again",
            file=self.name,
        )

    def _receive(self, url: str, transfer: Transfer) -> None:
        def receive(response: Answer) -> None:
            if not isinstance(response, KeptAnswer) and response.status_code not in (200, 206):
                # Not by a local, which would hold the error, and with it all frames, until the collector comes.
                raise self._failure_of(response)
            transfer.receive(response, self._canceller)

        exchange(
            partial(self._get, url, transfer.missing),
            receive,
            url=url,
            settings=self._policy,
            canceller=self._canceller,
            what=f"file {self.name}",
        )

    def _refused_host(self, host: str) -> ConfigError:
        return ConfigError(
            f"file {self.name}: its URL names {host} an address of this machine or its network, and the sharing server is "
            f"elsewhere; name the host in the option allowedDataHosts if you trust it"
        )

    def _get(self, url: str, asked: Range) -> Answer:
        headers = {"Range": asked.header, "Accept-Encoding": "identity"}
        timeout = (self._policy.connect_timeout, self._policy.read_timeout)
        if (checked := self._checked) is None or checked[0] != url:
            parts = self._parsed(url)
            self._checked = checked = url, parts, self._may_be_local(parts, parts)
        _, first, may_be_local = checked
        target = first
        for _ in range(_MAX_REDIRECTS + 1):
            try:
                with nullcontext() if may_be_local else refusing_local_addresses():
                    response = send(self._session, "GET", target, headers, timeout)
            except AddressRefusedError as refusal:
                raise self._refused_host(f"{target.host}, which leads to {refusal},") from None
            if isinstance(response, KeptAnswer) or not response.is_redirect:
                return response
            response.close()
            location = response.headers["location"]
            try:
                target = redirect_target(target, location)
            except UrlError as why:
                raise self._no_url(location, f"it redirects to what is no URL: {why}") from None
            may_be_local = self._may_be_local(target, first)
        raise FileError(
            f"file {self.name}: more than {_MAX_REDIRECTS} redirects; ask the provider to check it", file=self.name
        )

    def _parsed(self, url: str) -> Url:
        """The parts of the file's URL; raises FileError where it is none that can be asked."""
        try:
            return parse_url(url)
        except UrlError as why:
            raise self._no_url(url, str(why)) from None

    def _no_url(self, text: str, why: str) -> FileError:
        """The error of a text that is no URL of http, and of which only the scheme may be shown."""
        scheme = scheme_of(text)
        if scheme not in ("http", "https"):
            what = f"of the scheme {scheme!r}" if scheme else "a path"
            why = f"it is {what}, where a signed https URL belongs"
        return bad_url(f"file {self.name}", why)

    def _may_be_local(self, url: Url, first: Url) -> bool:
        """Whether a URL may lead to this machine or its network; a redirect may only if the first URL was there.

        Raises:
            ConfigError: The URL is neither encrypted, nor on loopback, nor on an allowed host; or it is a local address that
                a server elsewhere may not name.
            FileError: Its scheme is another one.
        """
        if url.scheme not in ("https", "http"):
            raise self._no_url(url.root, "")
        allowed, is_here = url.name in self._policy.allowed_hosts, is_loopback(url.host)
        if url.scheme == "http" and not (allowed or is_here):
            raise ConfigError(
                f"file {self.name}: its URL is {url.scheme}://{url.host}, which is not encrypted; "
                f"name the host in the option allowedDataHosts if you trust it"
            )
        may_be_local = allowed or (self._policy.local_server and is_here and is_loopback(first.host))
        if (is_here or is_local_address(url.host)) and not may_be_local:
            raise self._refused_host(f"{url.host},")
        return may_be_local

    def _failure_of(self, response: requests.Response) -> Exception:
        status, host = response.status_code, host_of(response.url)
        body = read_start(response, _ERROR_BODY)[0] if status < 500 else b""
        failure = failure_of(status, response.headers, body, what=f"file {self.name}", method="GET", host=host)
        is_final = isinstance(failure, FileNotFoundError | FileError)
        if is_final and status in (400, 404) and _EXPIRED_BODY.search(body):
            return StorageRefusal(f"HTTP {status}", "ended")
        if isinstance(failure, FileNotFoundError):
            return FileGoneError(
                f"file {self.name}: the storage no longer has it (HTTP {status}); the table was probably rewritten or vacuumed: reload it",
                file=self.name,
            )
        return self._version.changed("the storage says it is shorter") if status == 416 else failure
