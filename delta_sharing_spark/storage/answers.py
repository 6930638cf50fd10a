"""Tells what a storage's error answer means, alike for the three clouds: by its status, its error code and its text.

The texts are looked at and not passed on: they may hold URLs with a signature.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from delta_sharing_spark.errors import CorruptFileError, FileError, NetworkError
from delta_sharing_spark.network.retry import RetryableError, proxy_refusal, retry_after

#: What a refusal says: the credential has ended; it is not (or no longer) accepted; or this request is not allowed with it.
Refused = Literal["ended", "credential", "request"]

#: Error codes by which the storage refuses the credential itself, whatever the status (S3 answers some of them with 400).
_CREDENTIAL_CODES: Mapping[str, Refused] = {
    "ExpiredToken": "ended",
    "ExpiredTokenException": "ended",
    "RequestExpired": "ended",
    "TokenRefreshRequired": "ended",
    "InvalidAccessKeyId": "credential",
    "InvalidToken": "credential",
    "RequestTimeTooSkewed": "credential",
    "SignatureDoesNotMatch": "credential",
    "AuthenticationFailed": "credential",
    "InvalidAuthenticationInfo": "credential",
    "NoAuthenticationInformation": "credential",
    "PublicAccessNotPermitted": "credential",
}
#: Error codes of statuses that are otherwise final (S3's RequestTimeout is a 400, Google's limits may be 403).
_TRANSIENT_CODES = frozenset(
    {"SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable", "rateLimitExceeded", "userRateLimitExceeded"}
)
_REGION_CODES = frozenset({"AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"})
#: The code in a body: S3's and Azure's in XML, Google's reason in JSON.
_CODE = re.compile(r'<Code>([A-Za-z0-9_.-]{1,80})</Code>|"reason":\s*"([A-Za-z0-9_.-]{1,80})"')
#: Whole sentences, for a key may have any word in it: S3's of an answer to a presigned URL or a token, Azure's.
_ENDED = re.compile(
    r"<Message>(?:Request|The provided token) has expired|>Signature not valid in the specified time frame"
)


class StorageRefusal(PermissionError):
    """The storage refuses a request: for the credential's sake, or for the object's.

    Args:
        label: The status and the storage's error code, fit to be shown.
        refused: What was refused.
    """

    def __init__(self, label: str, refused: Refused) -> None:
        super().__init__(label)
        self.refused = refused

    def __reduce__(self) -> tuple[type[StorageRefusal], tuple[str, Refused]]:
        return StorageRefusal, (str(self), self.refused)


def is_sure(refusal: PermissionError) -> bool:
    """Whether the credential is certainly the cause; else the object may not exist, or lie outside what it covers."""
    return isinstance(refusal, StorageRefusal) and refusal.refused != "request"


def reason_of(refusal: PermissionError) -> str:
    """Why, for errors: ``HTTP 400 ExpiredToken: the credential has expired``."""
    if not isinstance(refusal, StorageRefusal):
        return "permission denied"  # a local file
    told = {"ended": ": the credential has expired", "credential": ": the credential is not valid, or no longer"}
    return f"{refusal}{told.get(refusal.refused, '')}"


def passing_failure(
    status: int, headers: Mapping[str, str], body: bytes, *, method: str = "GET"
) -> RetryableError | StorageRefusal | None:
    """The failure that an answer other than 200 and 206 means if another try or another credential may mend it; None if not.

    Args: As those of ``failure_of``.
    """
    text = body.decode("utf-8", "replace")
    code = _code(headers, text)
    label = f"HTTP {status} {code}".strip()
    if code in _TRANSIENT_CODES or status >= 500 or status in (408, 425, 429):
        return RetryableError(label, retry_after(headers.get("retry-after")), busy=True)
    if code in _CREDENTIAL_CODES or status in (401, 403) or (status == 400 and method == "HEAD"):
        ended = _ENDED.search(text) is not None
        # A HEAD of S3 with a credential that has ended is answered with a bare 400.
        sure: Refused = "credential" if status in (400, 401) else "request"
        return StorageRefusal(label, "ended" if ended else _CREDENTIAL_CODES.get(code, sure))
    return None


def failure_of(status: int, headers: Mapping[str, str], body: bytes, *, what: str, method: str, host: str) -> Exception:
    """The error that an answer other than 200 and 206 means.

    Args:
        status, headers, body: Those of the answer; ``body`` may be its beginning.
        what: How errors name the object.
        method: The request's method: an answer to HEAD has no body, so that 400 has no code.
        host: How errors name the other end.

    Returns:
        A ``RetryableError``, a ``StorageRefusal``, a ``FileNotFoundError``, or the error to raise.
    """
    code = _code(headers, body.decode("utf-8", "replace"))
    label = f"HTTP {status} {code}".strip()
    if status == 407:
        return NetworkError(f"{what}: {proxy_refusal('407 Proxy Authentication Required', host)}", host=host)
    if code in _REGION_CODES or (300 <= status < 400 and "x-amz-bucket-region" in headers):
        return FileError(f"{what}: the bucket is in another region ({label}); set the option storageRegion", file=what)
    if (passing := passing_failure(status, headers, body, method=method)) is not None:
        return passing
    if status in (404, 410):
        return FileNotFoundError(what)
    if status == 416 or code == "InvalidRange":
        return CorruptFileError(
            f"{what} is shorter than planned; the file is damaged or was replaced: reload", file=what
        )
    return FileError(
        f"{what}: the storage answered {label}; reload the table, and ask the provider if it goes on", file=what
    )


def _code(headers: Mapping[str, str], text: str) -> str:
    match = _CODE.search(text) or _CODE.search(f"<Code>{headers.get('x-ms-error-code', '')}</Code>")
    return "" if match is None else match[1] or match[2]
