"""Tells what a storage's error answer means, alike for all clouds and for presigned URLs: by its status, its code and its text."""

from __future__ import annotations

import re
from collections.abc import Mapping

from delta_sharing_spark.errors import CorruptFileError, FileError, NetworkError
from delta_sharing_spark.network.connection_failures import proxy_refusal
from delta_sharing_spark.network.retry import RetryableError, retry_after
from delta_sharing_spark.storage.clouds.contract import Refused
from delta_sharing_spark.storage.clouds.registry import all_clouds

#: The code in a body: S3's and Azure's in XML, Google's reason in JSON, and the code in JSON of Azure's other endpoint and of OneLake.
_CODE = re.compile(
    r'<Code>([A-Za-z0-9_.-]{1,80})</Code>|"(?:reason|code)":\s*"([A-Za-z0-9_.-]{1,80})"',
)


class StorageRefusal(PermissionError):
    """The storage refuses a request: for the credential's sake, or for the object's.

    Args:
        label: The status and the storage's error code, fit to be shown.
        refused: What was refused.
        meaning, action: Why, and what to do, where the answer tells; else empty.
    """

    def __init__(self, label: str, refused: Refused, meaning: str = "", action: str = "") -> None:
        super().__init__(label)
        self.refused, self.meaning, self.action = refused, meaning, action

    def __reduce__(self) -> tuple[type[StorageRefusal], tuple[str, Refused, str, str]]:
        return StorageRefusal, (str(self), self.refused, self.meaning, self.action)


def is_sure(refusal: PermissionError) -> bool:
    """Whether the credential is certainly the cause; else the object may not exist, or lie outside what it covers."""
    return isinstance(refusal, StorageRefusal) and refusal.refused != "request"


def reason_of(refusal: PermissionError) -> str:
    """Why, for errors: ``HTTP 400 ExpiredToken: the credential has expired``."""
    if not isinstance(refusal, StorageRefusal):
        return "permission denied"  # a local file
    words = {"ended": "the credential has expired", "credential": "the credential is not valid, or no longer"}
    meaning = refusal.meaning or words.get(refusal.refused)
    return f"{refusal}: {meaning}" if meaning else str(refusal)


def action_of(refusal: PermissionError, otherwise: str) -> str:
    """What to do about it: as the storage's answer tells, or ``otherwise``."""
    return (refusal.action if isinstance(refusal, StorageRefusal) else "") or otherwise


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
    clouds = all_clouds()
    text, file = body.decode("utf-8", "replace"), what.removeprefix("file ")
    by_headers = (_code(f"<Code>{cloud.code_of(status, headers)}</Code>") for cloud in clouds)
    code = _code(text) or next(filter(None, by_headers), "")
    label = f"HTTP {status} {code}".strip()
    if status == 407:
        return NetworkError(f"{what}: {proxy_refusal('407 Proxy Authentication Required', host)}", host=host, file=file)
    if any(code in cloud.transient for cloud in clouds) or status >= 500 or status in (408, 425, 429):
        return RetryableError(label, retry_after(headers.get("retry-after")), busy=True)
    words = f"{code}\n{text}"
    causes = (cause for cloud in clouds for pattern, cause in cloud.causes if re.search(pattern, words))
    if (cause := next(causes, None)) is not None:
        if cause.refused is not None:
            return StorageRefusal(label, cause.refused, cause.meaning, cause.action)
        return FileError(f"{what}: {cause.meaning} ({label} from {host}); {cause.action}", file=file)
    is_ended = any(code in cloud.ended_codes for cloud in clouds)
    is_credential = any(code in cloud.credential_codes for cloud in clouds)
    if is_ended or is_credential or status in (401, 403) or (label == "HTTP 400" and method == "HEAD"):
        if is_ended or any(cloud.end_text is not None and re.search(cloud.end_text, text) for cloud in clouds):
            return StorageRefusal(label, "ended")
        # A HEAD of S3 with a credential that has ended is answered with a bare 400.
        return StorageRefusal(label, "credential" if is_credential or status in (400, 401) else "request")
    if status in (404, 410):
        return FileNotFoundError(what)
    if status == 416 or code == "InvalidRange":
        return CorruptFileError(
            f"{what} is shorter than planned; the file is damaged or was replaced: reload", file=file
        )
    return FileError(
        f"{what}: the storage answered {label}; reload the table, and ask the provider if it goes on", file=file
    )


def _code(text: str) -> str:
    match = _CODE.search(text)
    return "" if match is None else match[1] or match[2]
