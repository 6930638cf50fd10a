"""Asks for the bytes of one file by a presigned URL: where it may lead, redirects, and URLs that are refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache

import requests

from delta_sharing_spark.errors import ConfigError, DeltaSharingError, FileError
from delta_sharing_spark.network.http import MAX_RENEWALS, SETTLING
from delta_sharing_spark.network.urls import (
    Url,
    UrlError,
    host_of,
    is_local_address,
    is_loopback,
    parse_url,
    redirect_target,
    scheme_of,
)
from delta_sharing_spark.storage.answers import StorageRefusal, action_of, failure_of, reason_of
from delta_sharing_spark.storage.range_reader import (
    FileVersion,
    HttpWay,
    Lease,
    RangeReader,
    Request,
    StorageSettings,
    bad_url,
)

#: What storages say beside the clouds' codes in a 400 or 404 whose cause is a URL or token that ended.
_EXPIRED_BODY = re.compile(rb"(?i)expired|AuthenticationFailed|InvalidToken|TokenRefreshRequired|SignatureDoesNotMatch")


def url_reader(lease: Lease[str], settings: StorageSettings, *, name: str, size: int | None) -> RangeReader[str]:
    """A ``ByteSource`` over presigned URLs. Requests never carry the sharing token.

    Args:
        lease: Gives the URL; one read asks for another ``MAX_RENEWALS`` times.
        name: How errors name the file.
        size: Planned bytes; a storage that reports another total is an error. None where the plan does not say.
    """

    def check(url: str, refusal: PermissionError, refusals: int) -> None:
        if refusals > MAX_RENEWALS:
            action = action_of(refusal, "reload the table, and ask the provider if it goes on")
            raise FileError(
                f"file {name}: the storage {host_of(url)} refused it again after {MAX_RENEWALS} renewals "
                f"({reason_of(refusal)}); {action}",
                file=name,
            ) from None
        if refusals > 1:
            settings.sleep(SETTLING)

    version = FileVersion(name, size)
    # A URL is looked at once, and asked for many ranges.
    way = lru_cache(maxsize=1)(lambda url: PresignedUrl(url, version, settings))
    return RangeReader(lease, lambda url, transfer, canceller: way(url).fill(transfer, canceller), version, check)


class PresignedUrl(HttpWay):
    """The way by one URL; raises ConfigError or FileError where that may not be asked."""

    most_corrections = 5
    endless = f"more than {most_corrections} redirects; ask the provider to check it"
    unreachable = not_ready = (
        "the storage could not be read ({failure}), tried for {seconds:.0f} s; check the network between the executors and "
        "the storage, then run the query again"
    )

    def __init__(self, url: str, version: FileVersion, settings: StorageSettings) -> None:
        super().__init__(settings, f"file {version.name}")
        self._url, self._version = url, version
        try:
            self._first = parse_url(url)
        except UrlError as why:
            raise self._no_url(url, str(why)) from None
        self._may_be_local = self._check(self._first)

    @property
    def host(self) -> str:
        return host_of(self._url)

    def request(self, headers: Mapping[str, str]) -> Request:
        return Request("GET", self._first, headers, self._may_be_local)

    def corrected(self, request: Request, answer: requests.Response, body: Callable[[], bytes]) -> Request | None:
        if not answer.is_redirect:
            return None
        location = answer.headers["location"]
        try:
            target = redirect_target(request.url, location)
        except UrlError as why:
            raise self._no_url(location, f"it redirects to what is no URL: {why}") from None
        return request._replace(url=target, may_be_local=self._check(target))

    def failure(self, request: Request, answer: requests.Response, body: bytes) -> Exception:
        status, host = answer.status_code, request.url.host
        failure = failure_of(status, answer.headers, body, what=self.what, method="GET", host=host)
        if isinstance(failure, FileNotFoundError | FileError) and status in (400, 404) and _EXPIRED_BODY.search(body):
            return StorageRefusal(f"HTTP {status}", "ended")
        return self._version.changed("the storage says it is shorter") if status == 416 else failure

    def address_refused(self, request: Request, address: str) -> DeltaSharingError:
        return self._refused_host(f"{request.url.host}, which leads to {address},")

    def _refused_host(self, host: str) -> ConfigError:
        return ConfigError(
            f"{self.what}: its URL names {host} an address of this machine or its network, and the sharing server is "
            f"elsewhere; name the host in the option allowedDataHosts if you trust it"
        )

    def _no_url(self, text: str, why: str) -> FileError:
        """The error of a text that is no URL of http, and of which only the scheme may be shown."""
        scheme = scheme_of(text)
        if scheme not in ("http", "https"):
            what = f"of the scheme {scheme!r}" if scheme else "a path"
            why = f"it is {what}, where a signed https URL belongs"
        return bad_url(self.what, why)

    def _check(self, url: Url) -> bool:
        """Whether a URL may lead to this machine or its network; a redirect may only if the first URL was there.

        Raises:
            ConfigError: The URL is neither encrypted, nor on loopback, nor on an allowed host; or it is a local address that
                a server elsewhere may not name.
            FileError: Its scheme is another one.
        """
        if url.scheme not in ("https", "http"):
            raise self._no_url(url.root, "")
        is_allowed, is_here = url.name in self.settings.allowed_hosts, is_loopback(url.host)
        if url.scheme == "http" and not (is_allowed or is_here):
            raise ConfigError(
                f"{self.what}: its URL is {url.scheme}://{url.host}, which is not encrypted; "
                f"name the host in the option allowedDataHosts if you trust it"
            )
        may_be_local = is_allowed or (self.settings.local_server and is_here and is_loopback(self._first.host))
        if (is_here or is_local_address(url.host)) and not may_be_local:
            raise self._refused_host(f"{url.host},")
        return may_be_local
