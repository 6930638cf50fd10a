"""Sends HTTP requests to the sharing server: time-outs, retries, redirects, and the error that an answer's status and body mean."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import requests
import urllib3

from delta_sharing_spark import metrics
from delta_sharing_spark.errors import (
    ConfigError,
    DeltaSharingError,
    ForbiddenError,
    NetworkError,
    NotFoundError,
    RequestRefusedError,
    ResponseError,
    ServerError,
    UnauthenticatedError,
    UnavailableError,
)
from delta_sharing_spark.network.bodies import (
    ACCEPT_ENCODING,
    BodyError,
    DamagedBodyError,
    TruncatedBodyError,
    iter_body,
    read_body,
    read_start,
)
from delta_sharing_spark.network.connection_failures import connection_reason, final_reason, proxy_reason
from delta_sharing_spark.network.connections import (
    AddressRefusedError,
    Deadline,
    extend_deadline,
    refusing_local_addresses,
)
from delta_sharing_spark.network.http import UNSENDABLE, NetworkSettings, rest_session
from delta_sharing_spark.network.process_cache import ProcessCache
from delta_sharing_spark.network.retry import RetryableError, retry, retry_after
from delta_sharing_spark.network.urls import (
    Url,
    UrlError,
    host_of,
    is_loopback,
    is_private,
    parse_url,
    redirect_refusal,
    redirect_target,
)
from delta_sharing_spark.redaction import without_secrets
from delta_sharing_spark.sharing.wire_records import broken

_T = TypeVar("_T")

#: Bytes of an answer that is held whole: a page of a listing, credentials.
LARGEST_ANSWER = 32 << 20
MAX_REDIRECTS = 5
#: An answer that arrives faster than this, bytes a second, is let go on.
_SLOWEST = 64 << 10
#: A compressed answer of more bytes than these may not be so many times as large as what was sent.
_SUSPICIOUS, _HIGHEST_RATIO = 64 << 20, 200
_HOSTS = 256


def with_retries(settings: NetworkSettings, call: Callable[[], _T]) -> _T:
    """Call until no ``RetryableError`` is raised; each try, answer included, has a deadline.

    Raises:
        DeltaSharingError: The error in the last ``RetryableError``, or any other that ``call`` raises.
    """

    def late() -> RetryableError:
        return RetryableError(
            NetworkError(
                f"the server's answer was not complete after {settings.request_seconds:.0f} s; check the endpoint and the network, "
                f"and set readTimeout and retryTimeout higher if the server is merely slow"
            )
        )

    def attempt() -> _T:
        with Deadline(settings.request_seconds, "the sharing server", settings.read_timeout, late):
            return call()

    try:
        return retry(attempt, settings, what="the sharing server")
    except RetryableError as failure:
        error = failure.error or NetworkError(str(failure))
        raise (permanent_error(error) if failure.permanent else error) from None


#: Hosts that have answered this process.
_answered: ProcessCache[str, bool] = ProcessCache(_HOSTS)


def check_endpoint(endpoint: str, what: str = "endpoint") -> None:
    """Refuse an endpoint that would send a secret unencrypted, or one of a server that is not the start of a URL.

    Args:
        what: The profile's field. A token endpoint is a whole URL, and may have a query (RFC 6749, section 3.2).

    Raises:
        ConfigError: The endpoint is neither https nor on loopback, or has a fragment, a user, or a query that it may not have.
    """
    try:
        url = parse_url(endpoint)
        if url.fragment or (url.query and what == "endpoint"):
            raise UrlError("it has a query or a fragment")
    except UrlError as why:  # not the text: it may be a token in the wrong place
        raise ConfigError(f"the profile's {what} is not a plain https URL: {why}; check the profile") from None
    if not is_private(url):
        raise ConfigError(
            f"the profile's {what} {url.root} is not https: the token would travel unencrypted; "
            f"ask the provider for an https {what}"
        )


@dataclass(frozen=True, slots=True)
class RequestPurpose:
    """What a request is for, in words that its errors use.

    Attributes:
        what: The request's object ("the metadata of share.schema.table").
        server: The kind of server.
        expired: What to do about a 401, instead of the usual advice.
        refused: Advice for a 4xx, instead of the usual one about tables.
        secrets: Parts of the request that errors do not quote if the server echoes them.
    """

    what: str
    server: str = "sharing server"
    expired: str = ""
    refused: str | None = None
    secrets: tuple[str, ...] = field(default=(), repr=False)


def send(
    settings: NetworkSettings,
    method: str,
    url: str,
    purpose: RequestPurpose,
    *,
    authorization: str | None = None,
    headers: dict[str, str] | None = None,
    follow: bool = True,
    **arguments: Any,
) -> requests.Response:
    """Send one request without retries; a failure that a retry may mend is raised as ``RetryableError``.

    Redirects are followed, five at most: never from https to plain http, and never to this machine or its network. They
    go to another host without token and certificate of the client, and a request with a body only within its host.

    Args:
        authorization: The Authorization header, which errors do not quote; it is dropped on a redirect to another host.
        follow: Whether redirects are followed.
        **arguments: For ``requests.Session.request``.

    Raises:
        RetryableError: 408, 429, 5xx, resets, time-outs.
        ServerError: Any other status of 300 and above, as its class.
        ConfigError: The request cannot be made: its URL or a header is malformed.
        NetworkError: TLS failures.
    """
    what = purpose.what
    try:
        target = first = parse_url(url)
    except UrlError as why:
        raise ConfigError(f"{what}: the {purpose.server}'s address cannot be asked: {why}; check the profile") from None
    purpose = replace(purpose, secrets=(*secrets_in(authorization), *purpose.secrets))
    sent = {"Accept-Encoding": ACCEPT_ENCODING, **(headers or {})}
    if authorization is not None:
        sent["Authorization"] = authorization
    hosts = [first.authority]
    for _ in range(MAX_REDIRECTS + 1):
        response = _exchange(settings, method, target, purpose, sent, is_redirected=target is not first, **arguments)
        if response.status_code < 300:
            return response
        location = response.headers.get("location")
        if not (300 <= response.status_code < 400 and location and follow):
            with response:
                answered = error_of_response(response, purpose, hosts)
            if isinstance(answered, UnavailableError):
                raise RetryableError(answered, retry_after(response.headers.get("retry-after")), busy=True)
            raise answered
        response.close()
        before, target = target, _redirected(target, location, method, response.status_code, purpose)
        if target.origin != before.origin:
            sent.pop("Authorization", None)
            settings = replace(settings, client_certificate=None)
        hosts.append(target.authority)
        arguments.pop("params", None)  # the first URL's; a redirect's target has its own
    raise ResponseError(f"{what}: {hosts[0]} redirects without end; check the endpoint in the profile")


def _exchange(
    settings: NetworkSettings,
    method: str,
    url: Url,
    purpose: RequestPurpose,
    headers: dict[str, str],
    *,
    is_redirected: bool,
    **arguments: Any,
) -> requests.Response:
    """Send one request and read the head of its answer; ``is_redirected`` says that a redirect led to it."""
    what, host = purpose.what, url.host
    metrics.count(metrics.REQUESTS, 1, table=settings.table, server=settings.server)
    timeout = (settings.connect_timeout, settings.read_timeout)
    guard = refusing_local_addresses() if is_redirected and not is_loopback(host) else nullcontext()
    try:
        with guard:
            response = rest_session(settings).request(
                method, url.text, timeout=timeout, headers=headers, stream=True, allow_redirects=False, **arguments
            )
    except AddressRefusedError as refusal:
        raise ResponseError(
            f"{what}: the {purpose.server} redirects to {host}, which leads to {refusal}, an address of this machine or its "
            f"network; check the endpoint in the profile"
        ) from None
    except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, UnicodeError) as error:
        if (final := final_reason(error, host)) is not None:
            raise NetworkError(f"{what}: {final}") from None
        if isinstance(error, UNSENDABLE):
            # Not the error's text: http.client quotes the header it refuses.
            raise ConfigError(
                f"{what}: the request to {host} cannot be made ({type(error).__name__}); check endpoint and token in the profile"
            ) from None
        raise RetryableError(
            unreachable_error(purpose, url.text, error), is_first_contact=host not in _answered
        ) from None
    _answered.put(host, True)
    return response


def _redirected(url: Url, location: str, method: str, status: int, purpose: RequestPurpose) -> Url:
    """The URL that a redirect leads to; raises ResponseError where it may not be followed."""
    target, place = url, "what is no URL"
    try:
        target = redirect_target(url, location)
        place = target.root
        refusal = redirect_refusal(url, target)
    except UrlError as why:
        refusal = str(why)
    is_same = url.origin == target.origin
    if refusal is None and method != "GET" and not (is_same and status in (307, 308)):
        refusal = "a request with a body is not sent anywhere else"
    if refusal is not None:
        raise ResponseError(
            f"{purpose.what}: the {purpose.server} redirects to {place} ({status}), which is not followed: {refusal}; "
            f"check the endpoint in the profile, or ask the provider",
            status=status,
        )
    return target


def read_bytes(response: requests.Response, what: str, limit: int = LARGEST_ANSWER) -> bytes:
    """The whole body of an answer.

    Raises:
        RetryableError: The body was truncated.
        ResponseError: The body is larger than ``limit`` bytes.
    """
    with response, _body_errors(what):
        return read_body(response, limit)


def body_chunks(response: requests.Response, what: str) -> Iterator[bytes]:
    """The body of a long answer, decoded, chunk by chunk; its deadline is extended while it makes progress.

    Raises:
        RetryableError: The body was truncated.
        ResponseError: The body expands more than an answer of a sharing server can.
    """
    total = received = 0
    with _body_errors(what):
        for chunk in iter_body(response):
            total, before, received = total + len(chunk), received, response.raw.tell()
            extend_deadline((received - before) / _SLOWEST)
            if total > _SUSPICIOUS and total > _HIGHEST_RATIO * received:
                raise BodyError(f"{received} bytes expand to more than {total >> 20} MiB")
            yield chunk


@contextmanager
def _body_errors(what: str) -> Iterator[None]:
    """Turns failures to read a body into errors of our tree."""
    try:
        yield
    except BodyError as error:
        if isinstance(error, TruncatedBodyError):
            raise truncated_answer(what, error) from None
        unreadable = broken(f"{what}: the server's answer cannot be read: {error}; look for a proxy in between")
        if isinstance(error, DamagedBodyError):
            raise RetryableError(unreadable, cause=str(error)) from None
        raise unreadable from None
    except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        raise truncated_answer(what, error) from None


def unreadable_answer(error: ResponseError, text: bytes) -> RetryableError:
    """The failure of an answer with a text in it that is not JSON: damaged on the way, or, the same one again, the server's own."""
    # A page for people, as of a login, may differ each time.
    return RetryableError(error, cause=text if text.lstrip().startswith(b"{") else b"")


def truncated_answer(what: str, error: Exception | None = None) -> RetryableError:
    """The error of a body that ended before it was complete."""
    cause = f" ({type(error).__name__})" if error else ""
    return RetryableError(
        ResponseError(
            f"{what}: the server's answer was truncated{cause}, which is likely caused by a request timeout; "
            f"try again, with maxFilesPerRequest (say 10000) if the table has many files"
        )
    )


_BY_STATUS: dict[int, type[ServerError]] = {
    401: UnauthenticatedError,
    403: ForbiddenError,
    404: NotFoundError,
    419: UnauthenticatedError,  # an Iceberg catalog's
}
#: Statuses of 500 and above that say "never", not "not now".
_NOT_IMPLEMENTED = (501, 505)
_ERROR_BODY, _MESSAGE, _SHORT = 16384, 2000, 300
_REFUSED = "the token is not valid; ask the provider for a new profile"
_NO_ACCESS = "the profile may not read this; ask the provider of the share for access"
NOT_THERE = "check the names of share, schema and table, and the endpoint in the profile"
_NOT_SO = (
    "check the options of the load, and the table's features (docs/features.md); ask the provider if both are right"
)
#: How nginx, Apache and gateways say that they want a certificate of their clients.
_NO_CERTIFICATE = re.compile(r"(?i)(?:no required|client) (?:ssl|tls)? ?certificate|ssl certificate error")
_BUSY = "the server is busy or failing; try again later, and ask the provider if it goes on"
_FAILS = "the server fails on this request each time; ask the provider, naming the table and what the server says"


def permanent_error(error: DeltaSharingError) -> DeltaSharingError:
    """The error of a failure that came each time; the message says so, in the server's words."""
    if not isinstance(error, UnavailableError):
        return error
    text = f"{str(error).removesuffix(_BUSY)}{_FAILS}"
    details = {"status": error.status, "error_code": error.error_code, "server_message": error.server_message}
    return UnavailableError(text, permanent=True, **details)


def unreachable_error(purpose: RequestPurpose, url: str, error: Exception) -> NetworkError:
    """The error of a request that got no answer."""
    server, host, cause = purpose.server, host_of(url), type(error).__name__
    if isinstance(error, requests.exceptions.ProxyError):
        failed = f"the proxy on the way to the {server} {host} refused or could not be reached"
        cause = proxy_reason(error) or cause
    elif isinstance(error, requests.Timeout):
        failed = f"the {server} {host} timed out"
    else:
        failed = f"the {server} {host} could not be reached"
        cause = connection_reason(error, url) or cause
    return NetworkError(
        f"{purpose.what}: {failed} ({cause}); check the endpoint in the profile, the network and the proxy settings"
    )


def error_kind(status: int | None) -> type[ServerError]:
    """The class of an error answer by its status; UnavailableError where another try may help."""
    if status is None or (status < 500 and status not in (408, 429)) or status in _NOT_IMPLEMENTED:
        return _BY_STATUS.get(status or 0, RequestRefusedError)
    return UnavailableError


def error_of_response(response: requests.Response, purpose: RequestPurpose, hosts: list[str]) -> ServerError:
    status = response.status_code
    code, message = _error_body(response, purpose.secrets)
    quoted = f": {message.rstrip('. ')}" if message else ""
    path = f" (redirected from {hosts[0]} to {hosts[-1]}, which is not sent the token)"
    elsewhere = path if len(set(hosts)) > 1 else ""
    cause = f"{purpose.what}: the {purpose.server} answered {status}{f' {code}' if code else ''}{quoted}{elsewhere}"
    if status < 400:
        advice = "that is a redirect without a target, or one that is not followed; check the endpoint in the profile"
        return ResponseError(f"{cause}; {advice}", status=status, error_code=code)
    kind = error_kind(status)
    if kind is UnavailableError:
        advice = _BUSY
    elif message and _NO_CERTIFICATE.search(message):
        advice = "set the options clientCertificate and clientKey, or ask the provider which certificate it takes"
    elif purpose.refused is not None:
        advice = purpose.refused
    else:
        expired = purpose.expired or _REFUSED
        by_status = {401: expired, 403: _NO_ACCESS, 404: NOT_THERE, 419: expired}
        advice = by_status.get(status, _NOT_SO)
    return kind(f"{cause}; {advice}", status=status, error_code=code, server_message=message)


def _error_body(response: requests.Response, secrets: tuple[str, ...]) -> tuple[str | None, str | None]:
    """``errorCode`` and ``message`` of an error's body, if it has them; secrets that the server echoes are cut out."""
    data, is_whole = read_start(response, _ERROR_BODY)
    text = data.decode("utf-8", "replace")

    def clean(value: object, length: int) -> str | None:
        return " ".join(without_secrets(str(value), secrets).split())[:length] or None

    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        # What is cut off may leave a part of an echoed token.
        length = len(text) - (0 if is_whole else 6 * max(map(len, secrets), default=0))
        return None, clean(text[: max(0, length)], _SHORT)
    if not isinstance(tree, dict):
        return None, clean(tree, _SHORT)
    if isinstance(of_catalog := tree.get("error"), dict):  # of an Iceberg catalog
        tree = {"errorCode": of_catalog.get("type"), "message": of_catalog.get("message")}
    code = tree.get("errorCode") or tree.get("error_code") or tree.get("error")
    message = tree.get("message") or tree.get("error_description")
    return clean(code, _SHORT) if code else None, clean(message, _MESSAGE) if message else None


def secrets_in(authorization: str | None) -> tuple[str, ...]:
    """The secrets in an Authorization header, which errors must not quote: the token, or a password and its encoding."""
    scheme, _, value = (authorization or "").partition(" ")
    parts = [value]
    if scheme == "Basic":
        parts.append(base64.b64decode(value).decode("utf-8", "replace").partition(":")[2])
    return tuple(secret for secret in parts if len(secret) > 3)


#: How the reference server, Delta Kernel, Delta Standalone and Delta Lake say that a version is not to be had.
_VERSIONS = re.compile(
    r"""(?ix) you \s can \s only \s query \s table \s data \s since \s version
    | cannot \s (?:load|read|time \s travel) .{0,80} \b version
    | history \s sharing \s is \s not \s enabled
    | reading \s table \s by \s version \s or \s timestamp \s is \s not \s supported
    | timestamp .{0,120} \b (?:before|after|earlier|later|older|greater)\b
    | not \s a \s valid \s starting \s timestamp
    | version .{0,60} (?:does \s not \s exist|is \s not \s available|not \s found|cannot \s be \s negative)
    | (?:no|missing) \s .{0,40} (?:commit|checkpoint|delta \s log) .{0,40} version
    """
)


def is_about_versions(refusal: ServerError) -> bool:
    """Whether a refusal is about a version or a moment that the server does not have or does not share."""
    return bool(refusal.server_message and _VERSIONS.search(refusal.server_message))
