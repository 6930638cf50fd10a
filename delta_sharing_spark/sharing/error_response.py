"""Turns a server's error responses, and requests that got no answer, into errors."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import requests
import urllib3

from delta_sharing_spark.errors import (
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
from delta_sharing_spark.errors.redaction import without_secrets
from delta_sharing_spark.network.bodies import BodyError, iter_body
from delta_sharing_spark.network.reasons import connection_reason, proxy_reason

_BY_STATUS: dict[int, type[ServerError]] = {401: UnauthenticatedError, 403: ForbiddenError, 404: NotFoundError}
#: Statuses of 500 and above that say "never", not "not now".
_NOT_IMPLEMENTED = (501, 505)
_ERROR_BODY, _MESSAGE, _SHORT = 16384, 2000, 300
_BUSY = "the server is busy or failing; try again later, and ask the provider if it goes on"
_FAILS = "the server fails on this request each time; ask the provider, naming the table and what the server says"


@dataclass(frozen=True, slots=True)
class RequestPurpose:
    """What a request is for, in words that its errors use.

    Attributes:
        what: The thing asked for ("the metadata of share.schema.table").
        server: The kind of server.
        expired: What to do about a 401, instead of the usual advice.
        refused: Advice for a 4xx, instead of the usual one about tables.
        secrets: Parts of the request that errors do not quote if the server echoes them.
    """

    what: str
    server: str
    expired: str
    refused: str | None
    secrets: tuple[str, ...] = field(repr=False)


def permanent_error(error: DeltaSharingError) -> DeltaSharingError:
    """The error of a failure that came each time; the message says so, in the server's words."""
    if not isinstance(error, ServerError):
        return error
    text = f"{str(error).removesuffix(_BUSY)}{_FAILS}"
    details = {"status": error.status, "error_code": error.error_code, "server_message": error.server_message}
    return UnavailableError(text, permanent=True, **details)


def unreachable_error(purpose: RequestPurpose, url: str, error: Exception) -> NetworkError:
    """The error of a request that got no answer."""
    server, host, cause = purpose.server, urlsplit(url).hostname, type(error).__name__
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


def error_of_response(response: requests.Response, purpose: RequestPurpose, hosts: list[str]) -> ServerError:
    status = response.status_code
    code, message = _error_body(response, purpose.secrets)
    quoted = f": {message}" if message else ""
    elsewhere = (
        f" (redirected from {hosts[0]} to {hosts[-1]}, which is not sent the token)" if len(set(hosts)) > 1 else ""
    )
    cause = f"{purpose.what}: the {purpose.server} answered {status}{f' {code}' if code else ''}{quoted}{elsewhere}"
    busy = status in (408, 429) or (status >= 500 and status not in _NOT_IMPLEMENTED)
    if status < 400:
        advice = "that is a redirect without a target, or one that is not followed; check the endpoint in the profile"
        return ResponseError(f"{cause}; {advice}", status=status, error_code=code)
    if busy:
        advice = _BUSY
    elif purpose.refused is not None:
        advice = purpose.refused
    elif status == 401:
        advice = purpose.expired or "the token is not valid; ask the provider for a new profile"
    elif status == 403:
        advice = "the profile may not read this; ask the provider of the share for access"
    elif status == 404:
        advice = "check the names of share, schema and table, and the endpoint in the profile"
    else:
        advice = "check the options of the load, and ask the provider if they are right"
    kind = _BY_STATUS.get(status) or (UnavailableError if busy else RequestRefusedError)
    return kind(f"{cause}; {advice}", status=status, error_code=code, server_message=message)


def _error_body(response: requests.Response, secrets: tuple[str, ...]) -> tuple[str | None, str | None]:
    """``errorCode`` and ``message`` of an error's body, if it has them; secrets that the server echoes are cut out."""
    data = bytearray()
    try:
        for chunk in iter_body(response):
            data += chunk
            if len(data) >= _ERROR_BODY:
                break
    except (BodyError, urllib3.exceptions.HTTPError, OSError):
        if not data:
            return None, None
    text = data[:_ERROR_BODY].decode("utf-8", "replace")
    if len(data) > _ERROR_BODY:
        # The cut may have left a part of an echoed token.
        text = text[: max(0, _ERROR_BODY - 6 * max(map(len, secrets), default=0))]

    def clean(value: object, length: int) -> str | None:
        return " ".join(without_secrets(str(value), secrets).split())[:length] or None

    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return None, clean(text, _SHORT)
    if not isinstance(tree, dict):
        return None, clean(tree, _SHORT)
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
