"""Tells what a storage's error answer means, alike for the three clouds: by its status, its error code and its text.

The texts are looked at and not passed on: they may hold URLs with a signature.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

from delta_sharing_spark.errors import CorruptFileError, FileError, NetworkError
from delta_sharing_spark.network.connection_failures import proxy_refusal
from delta_sharing_spark.network.retry import RetryableError, retry_after

#: What a refusal says: the credential has ended; it is not (or no longer) accepted; or this request is not allowed with it.
Refused = Literal["ended", "credential", "request"]

#: Error codes by which the storage refuses the credential itself, whatever the status (S3 answers some of them with 400).
_CREDENTIAL_CODES: Mapping[str, Refused] = {
    "ExpiredToken": "ended",
    "ExpiredTokenException": "ended",
    "ExpiredRequest": "ended",
    "RequestExpired": "ended",
    "TokenRefreshRequired": "ended",
    "InvalidAccessKeyId": "credential",
    "InvalidToken": "credential",
    "InvalidTokenId": "credential",
    "RequestTimeTooSkewed": "credential",
    "SignatureDoesNotMatch": "credential",
    "AuthenticationFailed": "credential",
    "InvalidAuthenticationInfo": "credential",
    "NoAuthenticationInformation": "credential",
    "PublicAccessNotPermitted": "credential",
}
#: Error codes of statuses that are otherwise final (S3's RequestTimeout is a 400, Google's limits may be 403).
_TRANSIENT_CODES = frozenset(
    {
        "SlowDown",
        "RequestTimeout",
        "InternalError",
        "ServiceUnavailable",
        "rateLimitExceeded",
        "userRateLimitExceeded",
        "quotaExceeded",
    }
)
_REGION_CODES = frozenset({"AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"})
#: The code in a body: S3's and Azure's in XML, Google's reason in JSON, and the code in JSON of Azure's other endpoint and of OneLake.
_CODE = re.compile(
    r'<Code>([A-Za-z0-9_.-]{1,80})</Code>|"(?:reason|code)":\s*"([A-Za-z0-9_.-]{1,80})"',
)
#: Whole sentences, for a key may have any word in it: S3's of an answer to a presigned URL or a token, Azure's.
_ENDED = re.compile(
    r"<Message>(?:Request|The provided token) has expired|>Signature not valid in the specified time frame"
)


class Cause(NamedTuple):
    """What some answers of storages mean beyond their status.

    Attributes:
        pattern: Found in the error code, a line break and the body.
        meaning, action: Why (empty where that is not certain), and what to do.
        refused: What such an answer refuses; None where neither another credential nor another try mends it.
    """

    pattern: re.Pattern[str]
    meaning: str
    action: str
    refused: Refused | None = None


_CAUSES = (
    Cause(
        re.compile(r"\A(?:InvalidObjectState|BlobArchived)\n"),
        "it is archived",
        "ask the provider to restore it, and to keep the files of shared tables out of the archive",
    ),
    Cause(
        re.compile(r"\ABlobBeingRehydrated\n"),
        "it is still being restored from the archive",
        "try again when that is done",
    ),
    Cause(
        re.compile(
            r"\A(?:NoSuchBucket|ContainerNotFound|FilesystemNotFound)\n|The specified (?:bucket|container) does not exist"
        ),
        "its bucket or container does not exist there",
        "ask the provider where the table lies, and check the option storageEndpoint if it is set",
    ),
    Cause(
        re.compile(
            r"\A(?:AccountIsDisabled|InsufficientAccountPermissions|AllAccessDisabled|AccountProblem|NotSignedUp|UserSuspended|accountDisabled|"
            r"userProjectAccountProblem)\n"
        ),
        "the provider's storage account is disabled",
        "ask the provider",
    ),
    Cause(
        re.compile(r"(?i)\A(?:UserProjectMissing|AuthenticationRequiredRequesterPays)\n|is a? ?requester pays bucket"),
        "whoever reads the bucket is to pay for it (requester pays), which this reader cannot",
        "ask the provider to turn that off for recipients",
    ),
    Cause(
        re.compile(r"(?i)\A(?:KMS\.|cloudKms)"),
        "the key that it is encrypted with cannot be used",
        "ask the provider to look at the state of the key (KMS)",
    ),
    Cause(
        re.compile(
            r"stored using a form of Server Side Encryption|encrypted by a customer-supplied encryption key|"
            r"(?i:\A(?:BlobUsesCustomerSpecifiedEncryption|resourceIsEncryptedWithCustomerEncryptionKey)\n)"
        ),
        "it is encrypted with a key that only its writer has (SSE-C, a customer-provided key)",
        "ask the provider to store shared tables under keys of the storage itself",
    ),
    Cause(
        re.compile(r"not authorized to perform: kms:|Permission denied on Cloud KMS key"),
        "the credential may not use the key that it is encrypted with (KMS)",
        "ask the provider to allow that, or use accessMode=url if the server offers it",
        "credential",
    ),
    Cause(
        re.compile(r"\AAuthorizationSourceIPMismatch\n"),
        "the credential is for other addresses than this machine's",
        "ask the provider to let this machine's address in",
        "credential",
    ),
    Cause(
        re.compile(r"\AvpcServiceControls\n|vpcServiceControlsUniqueIdentifier"),
        "the provider's VPC Service Controls keep this machine out",
        "ask the provider to let its network in",
        "credential",
    ),
    Cause(
        re.compile(r"\AKeyBasedAuthenticationNotPermitted\n"),
        "the storage account takes no credential that was made with its key",
        "ask the provider to have the sharing server issue user delegation SAS",
        "credential",
    ),
    Cause(
        re.compile(r"\ARequestTimeTooSkewed\n"),
        "the clocks of this machine and of the storage differ",
        "check the clock of this machine, and the sharing server's",
        "credential",
    ),
    Cause(
        re.compile(r"\AAuthorizationFailure\n"),
        "",
        "ask the provider whether the storage account's firewall lets this machine in, and whether the credential is still valid",
        "request",
    ),
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
    told = {"ended": "the credential has expired", "credential": "the credential is not valid, or no longer"}
    meaning = refusal.meaning or told.get(refusal.refused)
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
    text, file = body.decode("utf-8", "replace"), what.removeprefix("file ")
    code = _code(headers, text)
    label = f"HTTP {status} {code}".strip()
    if status == 407:
        return NetworkError(f"{what}: {proxy_refusal('407 Proxy Authentication Required', host)}", host=host, file=file)
    if code in _REGION_CODES or (300 <= status < 400 and "x-amz-bucket-region" in headers):
        return FileError(
            f"{what}: the bucket is in another region ({label}); set the option storageRegion, or ask the provider to sign its "
            f"URLs for that region",
            file=file,
        )
    if code in _TRANSIENT_CODES or status >= 500 or status in (408, 425, 429):
        return RetryableError(label, retry_after(headers.get("retry-after")), busy=True)
    told = f"{code}\n{text}"
    cause = next((cause for cause in _CAUSES if cause.pattern.search(told)), None)
    if cause is not None:
        if cause.refused is not None:
            return StorageRefusal(label, cause.refused, cause.meaning, cause.action)
        return FileError(f"{what}: {cause.meaning} ({label} from {host}); {cause.action}", file=file)
    if code in _CREDENTIAL_CODES or status in (401, 403) or (label == "HTTP 400" and method == "HEAD"):
        ended = _ENDED.search(text) is not None
        # A HEAD of S3 with a credential that has ended is answered with a bare 400.
        sure: Refused = "credential" if status in (400, 401) else "request"
        return StorageRefusal(label, "ended" if ended else _CREDENTIAL_CODES.get(code, sure))
    if status in (404, 410):
        return FileNotFoundError(what)
    if status == 416 or code == "InvalidRange":
        return CorruptFileError(
            f"{what} is shorter than planned; the file is damaged or was replaced: reload", file=file
        )
    return FileError(
        f"{what}: the storage answered {label}; reload the table, and ask the provider if it goes on", file=file
    )


def _code(headers: Mapping[str, str], text: str) -> str:
    match = _CODE.search(text) or _CODE.search(f"<Code>{headers.get('x-ms-error-code', '')}</Code>")
    return "" if match is None else match[1] or match[2]
