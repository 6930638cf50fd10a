"""HTTP to the sharing server: time-outs, retries, and errors mapped once."""

from __future__ import annotations

import base64
import json
import logging
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

import requests
import tenacity
import urllib3

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
    redact,
)
from delta_sharing_spark.sharing.sessions import TransportSettings, data_session, rest_session

__all__ = [
    "Transient",
    "TransportSettings",
    "broken_off",
    "check_endpoint",
    "check_whole",
    "data_session",
    "is_private",
    "read_body",
    "rest_session",
    "send",
    "with_retries",
]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_BY_STATUS: dict[int, type[ServerError]] = {401: UnauthenticatedError, 403: ForbiddenError, 404: NotFoundError}
#: Statuses of 500 and above that say "never", not "not now".
_NOT_IMPLEMENTED = (501, 505)
_FIRST_WAIT, _LONGEST_WAIT, _LONGEST_RETRY_AFTER = 0.5, 30.0, 300.0
_ERROR_BODY, _MESSAGE = 16384, 2000
_HOSTS = 256
#: What no second try changes: the request itself cannot be made.
_UNSENDABLE = (
    requests.exceptions.InvalidURL,
    requests.exceptions.InvalidSchema,
    requests.exceptions.MissingSchema,
    requests.exceptions.InvalidHeader,
    urllib3.exceptions.LocationValueError,
    UnicodeError,
)


class Transient(Exception):
    """A failure that another try may not have.

    Attributes:
        error: What to raise once the tries are used up.
        wait: What Retry-After asked for, in seconds.
        unreached: Whether the host has never answered this process, so that patience is short.
    """

    def __init__(self, error: DeltaSharingError, wait: float | None = None, *, unreached: bool = False) -> None:
        super().__init__(str(error))
        self.error = error
        self.wait = wait
        self.unreached = unreached


def with_retries(settings: TransportSettings, call: Callable[[], _T]) -> _T:
    """``call`` until it does not raise ``Transient``, with jitter and Retry-After, bounded in time.

    Raises:
        DeltaSharingError: What the last ``Transient`` carried, or what ``call`` raised.
    """
    start = settings.clock()
    pauses: dict[int, float] = {}

    def wait(state: tenacity.RetryCallState) -> float:
        number = state.attempt_number
        if number not in pauses:
            pauses[number] = _pause(number, _failure(state))
        return pauses[number]

    def stop(state: tenacity.RetryCallState) -> bool:
        failure = _failure(state)
        bound = settings.retry_seconds
        if failure is not None and (failure.unreached or getattr(failure.error, "status", None) == 500):
            # A host never reached may not exist, and a 500 is a fault of the server more often than a busy one.
            bound = min(bound, settings.first_contact_seconds)
        return settings.clock() + wait(state) > start + bound

    def note(state: tenacity.RetryCallState) -> None:
        _log.info("retrying in %.1f s: %s", wait(state), _failure(state))

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(Transient),
        wait=wait,
        stop=stop,
        sleep=settings.sleep,
        before_sleep=note,
        reraise=True,
    )
    try:
        return retrying(call)
    except Transient as failure:
        raise failure.error from None


def _failure(state: tenacity.RetryCallState) -> Transient | None:
    failure = state.outcome.exception() if state.outcome else None
    return failure if isinstance(failure, Transient) else None


def _pause(attempt: int, failure: Transient | None) -> float:
    """Seconds before the next try: a doubling wait, or a little more than Retry-After, so that clients part."""
    backoff = min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** min(attempt - 1, 16)) * random.uniform(0.5, 1.0)
    if failure is None or failure.wait is None:
        return backoff
    return max(failure.wait * random.uniform(1.0, 1.1), min(backoff, 1.0))


_answered: OrderedDict[str, None] = OrderedDict()
_answered_lock = threading.Lock()


def _note_answer(host: str | None) -> None:
    with _answered_lock:
        _answered[host or ""] = None
        if len(_answered) > _HOSTS:
            _answered.popitem(last=False)


def is_private(url: str) -> bool:
    """Whether a secret may travel there: https, or http on loopback."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and (parts.hostname or "").lower() in _LOOPBACK)


def check_endpoint(endpoint: str, what: str = "endpoint") -> None:
    """Refuse an endpoint that would send a secret unencrypted, or that is not the start of a URL.

    Raises:
        ConfigError: Not https, and not on loopback; or with a query, a fragment or a user.
    """
    try:
        parts = urlsplit(endpoint)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ConfigError(f"the profile's {what} {redact(endpoint)} is not a URL; check the profile") from None
    if not host or parts.query or parts.fragment or parts.username is not None:
        raise ConfigError(
            f"the profile's {what} {redact(endpoint)} is not a plain https URL (a host, and no query, fragment or user); "
            f"check the profile"
        )
    if is_private(endpoint):
        return
    raise ConfigError(
        f"the profile's {what} {redact(endpoint)} is not https: the token would travel unencrypted; "
        f"ask the provider for an https {what}"
    )


def send(
    settings: TransportSettings,
    method: str,
    url: str,
    *,
    what: str,
    authorization: str | None = None,
    expired: str = "",
    server: str = "sharing server",
    refused: str | None = None,
    headers: dict[str, str] | None = None,
    **arguments: Any,
) -> requests.Response:
    """One request, no retry; a failure worth one is raised as ``Transient``.

    Args:
        what: What the request is for, as errors say it ("the metadata of share.schema.table").
        authorization: The Authorization header; requests drops it on a redirect to another host or to plain http.
        expired: A sentence for a 401, on the token's expiry.
        server: Who is asked, as errors say it.
        refused: Advice for a 4xx, in place of that on tables.
        **arguments: For ``requests.Session.request``.

    Raises:
        Transient: 408, 429, 5xx, resets, time-outs.
        ServerError: Any other status of 300 and above, as its class.
        ConfigError: The request cannot be made: its URL or a header is malformed.
        NetworkError: TLS failures.
    """
    host = urlsplit(url).hostname
    sent = dict(headers or {})
    if authorization is not None:
        sent["Authorization"] = authorization
    try:
        response = rest_session(settings).request(
            method,
            url,
            timeout=(settings.connect_timeout, settings.read_timeout),
            headers=sent,
            stream=True,
            **arguments,
        )
    except requests.exceptions.SSLError as error:
        raise NetworkError(
            f"{what}: TLS with {host} failed ({redact(str(error))}); set the option caBundle if your network uses its own certificates"
        ) from None
    except _UNSENDABLE as error:
        # Not the error's text: http.client quotes the header it refuses.
        raise ConfigError(
            f"{what}: the request to {host} cannot be made ({type(error).__name__}); check endpoint and token in the profile"
        ) from None
    except requests.exceptions.TooManyRedirects:
        raise ResponseError(f"{what}: {host} redirects without end; check the endpoint in the profile") from None
    except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        with _answered_lock:
            unreached = (host or "") not in _answered
        raise Transient(_unreachable(what, host, error, server), unreached=unreached) from None
    _note_answer(host)
    if response.status_code < 300:
        return response
    with response:
        answered = _mapped(response, what, server, expired, refused, _secrets_of(authorization))
    if isinstance(answered, UnavailableError):
        raise Transient(answered, _retry_after(response))
    raise answered


def read_body(response: requests.Response, what: str) -> str:
    """The whole body of a small answer, as text.

    Raises:
        Transient: The body broke off.
    """
    try:
        with response:
            text = response.content.decode("utf-8", "replace")
            check_whole(response, what)
            return text
    except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        raise broken_off(what, error) from None


def check_whole(response: requests.Response, what: str) -> None:
    """Compare what was read of a body with its Content-Length, which urllib3 before 2 leaves to its users.

    Raises:
        Transient: Bytes are missing.
    """
    declared = response.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and response.raw.tell() < int(declared):
        raise broken_off(what)


def broken_off(what: str, error: Exception | None = None) -> Transient:
    """A body that ended before it was complete."""
    cause = f" ({type(error).__name__})" if error else ""
    return Transient(
        ResponseError(
            f"{what}: the server's answer was truncated{cause}, which is likely caused by a request timeout; "
            f"try again, with a lower maxFilesPerRequest if the table has many files"
        )
    )


def _unreachable(what: str, host: str | None, error: Exception, server: str) -> NetworkError:
    """The error of a request that got no answer."""
    if isinstance(error, requests.exceptions.ProxyError):
        failed = f"the proxy on the way to the {server} {host} refused or could not be reached"
    elif isinstance(error, requests.Timeout):
        failed = f"the {server} {host} timed out"
    else:
        failed = f"the {server} {host} could not be reached"
    return NetworkError(
        f"{what}: {failed} ({type(error).__name__}); check the endpoint in the profile, the network and the proxy settings"
    )


def _mapped(
    response: requests.Response, what: str, server: str, expired: str, refused: str | None, secrets: tuple[str, ...]
) -> ServerError:
    status = response.status_code
    code, message = _error_body(response, secrets)
    said = f": {message}" if message else ""
    cause = f"{what}: the {server} answered {status}{f' {code}' if code else ''}{said}{_redirected(response)}"
    busy = status in (408, 429) or (status >= 500 and status not in _NOT_IMPLEMENTED)
    if status < 400:
        advice = "that is a redirect without a target, or one that is not followed; check the endpoint in the profile"
        return ResponseError(f"{cause}; {advice}", status=status, error_code=code)
    if busy:
        advice = "the server is busy or failing; try again later, and ask the provider if it goes on"
    elif refused is not None:
        advice = refused
    elif status == 401:
        advice = f"{expired or 'the token is not valid'}; ask the provider for a new profile"
    elif status == 403:
        advice = "the profile may not read this; ask the provider of the share for access"
    elif status == 404:
        advice = "check the names of share, schema and table, and the endpoint in the profile"
    else:
        advice = "check the options of the load, and ask the provider if they are right"
    kind = _BY_STATUS.get(status) or (UnavailableError if busy else RequestRefusedError)
    return kind(f"{cause}; {advice}", status=status, error_code=code, said=redact(message) if message else None)


def _redirected(response: requests.Response) -> str:
    """A remark on a redirect to another host, which was not given the token."""
    hosts = [urlsplit(r.url).netloc for r in (*response.history, response)]
    return f" (redirected from {hosts[0]} to {hosts[-1]}, which is not sent the token)" if len(set(hosts)) > 1 else ""


def _error_body(response: requests.Response, secrets: tuple[str, ...]) -> tuple[str | None, str | None]:
    """``errorCode`` and ``message`` of an error's body, whatever it is; a server that echoes the token is not quoted."""
    try:
        text = response.raw.read(_ERROR_BODY, decode_content=True).decode("utf-8", "replace") if response.raw else ""
    except (urllib3.exceptions.HTTPError, OSError):
        return None, None
    for secret in secrets:
        text = text.replace(secret, "[redacted]")
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return None, " ".join(text.split())[:300] or None
    if not isinstance(tree, dict):
        return None, str(tree)[:300]
    code = tree.get("errorCode") or tree.get("error_code") or tree.get("error")
    message = tree.get("message") or tree.get("error_description")
    return str(code)[:300] if code else None, str(message)[:_MESSAGE] if message else None


def _secrets_of(authorization: str | None) -> tuple[str, ...]:
    """What of an Authorization header must not be quoted: the token, or a password and its encoding."""
    scheme, _, value = (authorization or "").partition(" ")
    found = [value]
    if scheme == "Basic":
        found.append(base64.b64decode(value).decode("utf-8", "replace").partition(":")[2])
    return tuple(secret for secret in found if len(secret) > 3)


def _retry_after(response: requests.Response) -> float | None:
    text = response.headers.get("retry-after", "").strip()
    if not text:
        return None
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), _LONGEST_RETRY_AFTER)
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, min(parsedate_to_datetime(text).timestamp() - time.time(), _LONGEST_RETRY_AFTER))
    except (TypeError, ValueError, OverflowError):
        return None
