"""Classifies the exceptions of storage libraries: the object is absent, access is refused, a retry may help, or none of these.

The libraries' own texts are not passed on: they may hold URLs with a SAS, and Azure's do not even pickle.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from delta_sharing_spark.errors import CorruptFileError, DeltaSharingError, FileError, NetworkError
from delta_sharing_spark.network.connections import ReadCancelled
from delta_sharing_spark.network.reasons import forget_frames
from delta_sharing_spark.network.retry import RetryableError, WrongRangeError, retry, retry_after
from delta_sharing_spark.network.settings import NetworkSettings

T = TypeVar("T")

#: Error codes of S3 that mean "not with this credential" though their status is 400.
_REFUSED_CODES = frozenset(
    {
        "AccessDenied",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidAccessKeyId",
        "InvalidToken",
        "RequestExpired",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)
_REGION_CODES = frozenset({"AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"})
_TRANSIENT_CODES = frozenset({"SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings(NetworkSettings):
    """How storage is reached, none of it secret.

    Attributes:
        region: AWS region; None finds it (S3 names the right one when asked in the wrong one).
        endpoint: The URL, with its scheme, of an endpoint to use instead of the cloud's own (MinIO, Azurite, an emulator).
    """

    region: str | None = None
    endpoint: str | None = None


def retried(
    action: Callable[[], T],
    settings: StorageSettings,
    *,
    what: str,
    host: str,
    reached: Callable[[], int] = lambda: 0,
    wait: Callable[[float], None] = time.sleep,
) -> T:
    """Run ``action`` and classify its storage exceptions; transient ones are retried with growing waits.

    Args:
        action: Makes one request.
        settings: How long retries go on, and with what waits.
        what, host: How errors name the object and the storage's host.
        reached: Bytes that have arrived, over all tries.
        wait: Sleeps, and may raise to end the tries.

    Raises:
        FileNotFoundError: The object does not exist.
        PermissionError: The storage refuses this credential, or this object.
        NetworkError: The retries are used up.
        FileError: Anything else the storage answered.
    """

    def attempt() -> T:
        try:
            return action()
        except (DeltaSharingError, ReadCancelled, RetryableError):
            raise
        # Three storage libraries raise from six families of exceptions; all are told apart in one place.
        except Exception as error:
            try:
                raise _classified(error, what) from None
            finally:
                forget_frames(error)

    try:
        return retry(attempt, settings, reached=reached, sleep=wait, what=what)
    except RetryableError as failure:
        raise _given_up(failure, what, host) from None
    except (FileNotFoundError, PermissionError) as refusal:
        raise refusal.with_traceback(None) from None  # tenacity's frames refer to it, and a read may go on after it


def _given_up(failure: RetryableError, what: str, host: str) -> DeltaSharingError:
    if isinstance(failure, WrongRangeError):
        return FileError(
            f"{what}: the storage at {host} goes on answering with other bytes than asked for ({failure}); "
            f"look for a proxy in between, and ask the provider if there is none",
            file=what,
        )
    if failure.busy:
        return NetworkError(
            f"{what}: the storage at {host} goes on answering that it is not ready ({failure}); try again later, "
            f"or use accessMode=url if the server offers it",
            host=host,
            busy=True,
        )
    return NetworkError(
        f"{what}: the storage at {host} could not be reached ({failure}); "
        f"check the network from this machine to {host}, or use accessMode=url if the server offers it",
        host=host,
    )


def _classified(error: Exception, what: str) -> Exception:
    status, code = _status(error), _code(error)
    label = " ".join(str(part) for part in (type(error).__name__, status, code) if part)
    if code in _REGION_CODES:
        return FileError(f"{what}: the bucket is in another region ({code}); set the option storageRegion", file=what)
    if _is_broken_body(error):
        return RetryableError(label)
    if code in _TRANSIENT_CODES or (status is not None and (status >= 500 or status in (408, 425, 429))):
        return RetryableError(label, _asked_to_wait(error), busy=True)
    if status in (401, 403) or code in _REFUSED_CODES or isinstance(error, PermissionError) or _is_forbidden(error):
        return PermissionError(label)
    if isinstance(error, FileNotFoundError) or status in (404, 410):
        return FileNotFoundError(what)
    if status == 416 or code == "InvalidRange":
        return CorruptFileError(
            f"{what} is shorter than planned; the file is damaged or was replaced: reload", file=what
        )
    if status is None and _is_network(error):
        return RetryableError(label)
    if isinstance(error, OSError) and error.errno:
        return FileError(f"{what}: {os.strerror(error.errno)} ({label}); look for the cause on this machine", file=what)
    if status is None and code is None and not isinstance(error, OSError):
        return FileError(
            f"{what}: the library that reads the storage failed ({label}); "
            f"look whether its version and those of what it needs fit together (pip check)",
            file=what,
        )
    return FileError(
        f"{what}: the storage answered {label}; reload the table, and ask the provider if it goes on", file=what
    )


def _status(error: BaseException | None) -> int | None:
    """The HTTP status behind an exception of botocore, azure-core, gcsfs or aiohttp."""
    if error is None:
        return None
    for name in ("status_code", "status", "code"):
        value = getattr(error, name, None)
        if isinstance(value, int) and 100 <= value < 600:
            return value
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status if isinstance(status, int) else None
    return _status(error.__cause__)


def _code(error: BaseException | None) -> str | None:
    """S3's or Azure's error code."""
    if error is None:
        return None
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        code = response.get("Error", {}).get("Code")
        return code if isinstance(code, str) and not code.isdigit() else None
    code = getattr(error, "error_code", None)
    if code is not None:
        return str(getattr(code, "value", code))
    return _code(error.__cause__)


def _asked_to_wait(error: BaseException | None) -> float | None:
    """The seconds of ``Retry-After``, where the library passes headers on."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            headers = response.get("ResponseMetadata", {}).get("HTTPHeaders")
        else:
            headers = getattr(response if response is not None else error, "headers", None)
        if headers is not None:
            return retry_after(headers.get("retry-after") or headers.get("Retry-After"))
        error = error.__cause__
    return None


def _is_broken_body(error: BaseException) -> bool:
    # aiohttp's cause of it has a status of its own, 400, which the storage never sent.
    return any(cls.__name__ == "ClientPayloadError" for cls in type(error).__mro__)


def _is_forbidden(error: Exception) -> bool:
    # gcsfs has no class and no status for 403: only this text.
    return isinstance(error, OSError) and str(error).startswith("Forbidden")


def _is_network(error: BaseException) -> bool:
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    for cls in type(error).__mro__:
        package = cls.__module__.partition(".")[0]
        if package in ("aiohttp", "requests", "urllib3") and cls.__name__ in (
            "ClientError",
            "RequestException",
            "HTTPError",
        ):
            return True
        if package == "botocore" and cls.__name__ in ("HTTPClientError", "ConnectionError", "IncompleteReadError"):
            return True
        if package == "azure" and cls.__name__ in ("ServiceRequestError", "ServiceResponseError"):
            return True
        if cls.__name__ == "FSTimeoutError" or cls.__module__ == "socket":
            return True
    return False
