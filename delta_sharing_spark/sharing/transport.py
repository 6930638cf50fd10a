"""HTTP to the sharing server: one pooled session per process, time-outs, retries, and errors mapped once."""

from __future__ import annotations

import json
import logging
import platform
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
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

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

_SESSIONS = 8
_POOL = 32
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_BY_STATUS: dict[int, type[ServerError]] = {401: UnauthenticatedError, 403: ForbiddenError, 404: NotFoundError}


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """How requests are sent: the same for the sharing server, its token endpoint and data.

    Attributes:
        connect_timeout, read_timeout: Seconds.
        retry_seconds: How long one call may go on retrying.
        proxy: A proxy for http and https, instead of the environment's.
        ca_bundle: A file of certificates to trust, instead of the environment's and certifi's.
        caller_org: Free text for the User-Agent.
        engine: What runs the request, for the User-Agent (``Spark/4.3.0``).
        sleep, clock: Injectable, so that tests need not wait.
    """

    connect_timeout: float = 20.0
    read_timeout: float = 120.0
    retry_seconds: float = 300.0
    proxy: str | None = field(default=None, repr=False)
    ca_bundle: str | None = None
    caller_org: str | None = None
    engine: str | None = None
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False, compare=False)
    clock: Callable[[], float] = field(default=time.monotonic, repr=False, compare=False)

    @property
    def user_agent(self) -> str:
        """``Delta-Sharing-Spark-Python/<version> Spark/<v> Python/<v> <os> callerOrg-<x>``."""
        parts = [f"Delta-Sharing-Spark-Python/{_package_version()}"]
        if self.engine:
            parts.append(self.engine)
        parts += [f"Python/{platform.python_version()}", f"System/{platform.system()}"]
        if self.caller_org:
            parts.append(f"callerOrg-{_header_text(self.caller_org)}")
        return " ".join(parts)


class Transient(Exception):
    """A failure that another try may not have. ``wait`` is what Retry-After asked for, in seconds; ``error`` is what
    to raise once the tries are used up."""

    def __init__(self, error: DeltaSharingError, wait: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.wait = wait


def with_retries(settings: TransportSettings, call: Callable[[], _T]) -> _T:
    """``call`` until it does not raise ``Transient``, with jitter and Retry-After, bounded in time.

    Raises:
        DeltaSharingError: What the last ``Transient`` carried, or what ``call`` raised.
    """
    deadline = settings.clock() + settings.retry_seconds

    def wait(state: tenacity.RetryCallState) -> float:
        failure = state.outcome.exception() if state.outcome else None
        asked = failure.wait if isinstance(failure, Transient) else None
        return (
            asked if asked is not None else min(30.0, 0.5 * 2 ** (state.attempt_number - 1)) * random.uniform(0.5, 1.0)
        )

    def stop(state: tenacity.RetryCallState) -> bool:
        return settings.clock() + state.upcoming_sleep > deadline

    def note(state: tenacity.RetryCallState) -> None:
        failure = state.outcome.exception() if state.outcome else None
        _log.info("retrying in %.1f s: %s", state.upcoming_sleep, failure)

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


_sessions: OrderedDict[tuple[str, str | None, str | None], requests.Session] = OrderedDict()
_sessions_lock = threading.Lock()


def rest_session(settings: TransportSettings) -> requests.Session:
    """The process's pooled session for the sharing server; requests add their own authentication."""
    return _session("rest", settings)


def data_session(settings: TransportSettings) -> requests.Session:
    """The process's pooled session for data URLs. It never carries a token."""
    return _session("data", settings)


def _session(purpose: str, settings: TransportSettings) -> requests.Session:
    key = (purpose, settings.proxy, settings.ca_bundle)
    with _sessions_lock:
        session = _sessions.pop(key, None) or _new_session(settings)
        _sessions[key] = session
        if len(_sessions) > _SESSIONS:
            _sessions.popitem(last=False)[1].close()
    return session


def _new_session(settings: TransportSettings) -> requests.Session:
    session = requests.Session()
    adapter = requests.adapters.HTTPAdapter(pool_connections=_POOL, pool_maxsize=_POOL, max_retries=0)
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    session.headers["User-Agent"] = settings.user_agent
    session.auth = _no_auth  # else requests would take a password from ~/.netrc and override ours
    if settings.proxy:
        session.proxies = {"http": settings.proxy, "https": settings.proxy}
    if settings.ca_bundle:
        session.verify = settings.ca_bundle
    return session


def _no_auth(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def check_endpoint(endpoint: str, what: str = "endpoint") -> None:
    """Refuse an endpoint that would send a secret unencrypted.

    Raises:
        ConfigError: Not https, and not on loopback.
    """
    parts = urlsplit(endpoint)
    if parts.scheme == "https" and parts.hostname:
        return
    if parts.scheme == "http" and (parts.hostname or "").lower() in _LOOPBACK:
        return
    raise ConfigError(
        f"the profile's {what} {redact(endpoint)} is not https: the token would travel unencrypted; ask the provider for an https {what}"
    )


def send(
    settings: TransportSettings,
    method: str,
    url: str,
    *,
    what: str,
    auth: Callable[[requests.PreparedRequest], requests.PreparedRequest] | None = None,
    expired: str = "",
    **arguments: Any,
) -> requests.Response:
    """One request, no retry; a failure worth one is raised as ``Transient``.

    Args:
        what: What the request is for, as errors say it ("the metadata of share.schema.table").
        auth: Adds the authentication; requests drops it on a redirect to another host.
        expired: A sentence for a 401, on the token's expiry.
        **arguments: For ``requests.Session.request``.

    Raises:
        Transient: 408, 429, 5xx, resets, time-outs.
        ServerError: Any other status of 400 and above, as its class.
        NetworkError: TLS failures.
    """
    host = urlsplit(url).hostname
    try:
        response = rest_session(settings).request(
            method,
            url,
            timeout=(settings.connect_timeout, settings.read_timeout),
            verify=settings.ca_bundle or None,
            auth=auth or _no_auth,
            stream=True,
            **arguments,
        )
    except requests.exceptions.SSLError as error:
        raise NetworkError(
            f"{what}: TLS with {host} failed ({redact(str(error))}); set the option caBundle if your network uses its own certificates"
        ) from None
    except (
        requests.exceptions.InvalidURL,
        requests.exceptions.InvalidSchema,
        requests.exceptions.MissingSchema,
    ) as error:
        raise ConfigError(f"{what}: the endpoint is not a URL ({redact(str(error))}); check the profile") from None
    except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        raise Transient(unreachable(what, host, error)) from None
    if response.status_code < 400:
        return response
    with response:
        answered = _mapped(response, what, expired)
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
            return response.content.decode("utf-8", "replace")
    except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        raise broken_off(what, error) from None


def broken_off(what: str, error: Exception | None = None) -> Transient:
    """A body that ended before it was complete."""
    cause = f" ({type(error).__name__})" if error else ""
    return Transient(
        ResponseError(
            f"{what}: the server's answer was truncated{cause}, which is likely caused by a request timeout; "
            f"try again, with a lower maxFilesPerRequest if the table has many files"
        )
    )


def unreachable(what: str, host: str | None, error: Exception) -> NetworkError:
    """The error of a request that got no answer."""
    kind = "timed out" if isinstance(error, requests.Timeout) else "could not be reached"
    return NetworkError(
        f"{what}: the sharing server {host} {kind} ({type(error).__name__}); check the endpoint in the profile, "
        f"the network and the proxy settings"
    )


def _mapped(response: requests.Response, what: str, expired: str) -> ServerError:
    status = response.status_code
    code, message = _error_body(response)
    said = f": {message}" if message else ""
    cause = f"{what}: the sharing server answered {status}{f' {code}' if code else ''}{said}"
    if status == 401:
        advice = f"{expired or 'the token is not valid'}; ask the provider for a new profile"
    elif status == 403:
        advice = "the profile may not read this; ask the provider of the share for access"
    elif status == 404:
        advice = "check the names of share, schema and table, and the endpoint in the profile"
    elif status == 408 or status == 429 or status >= 500:
        advice = "the server is busy or failing; try again later, and ask the provider if it goes on"
    else:
        advice = "check the options of the load, and ask the provider if they are right"
    kind = _BY_STATUS.get(status)
    if kind is None:
        kind = UnavailableError if status in (408, 429) or status >= 500 else RequestRefusedError
    return kind(f"{cause}; {advice}", status=status, error_code=code)


def _error_body(response: requests.Response) -> tuple[str | None, str | None]:
    try:
        text = response.raw.read(16384, decode_content=True).decode("utf-8", "replace") if response.raw else ""
    except (urllib3.exceptions.HTTPError, OSError):
        return None, None
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return None, " ".join(text.split())[:300] or None
    if not isinstance(tree, dict):
        return None, str(tree)[:300]
    code = tree.get("errorCode") or tree.get("error_code") or tree.get("error")
    message = tree.get("message") or tree.get("error_description")
    return str(code) if code else None, str(message)[:2000] if message else None


def _retry_after(response: requests.Response) -> float | None:
    text = response.headers.get("retry-after", "").strip()
    if text.isdigit():
        return min(float(text), 300.0)
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, min(parsedate_to_datetime(text).timestamp() - time.time(), 300.0)) if text else None
    except (TypeError, ValueError):
        return None


def _package_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("delta-sharing-spark")
    except PackageNotFoundError:
        return "0"


def _header_text(text: str) -> str:
    return "".join(c if " " < c < "\x7f" else "_" for c in text)[:200]
