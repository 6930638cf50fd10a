"""Signs requests to S3: AWS's signature of version 4, with a session's keys, of requests without a body."""

from __future__ import annotations

import hashlib
import hmac
from datetime import datetime, timezone

from delta_sharing_spark.network.urls import parse_url
from delta_sharing_spark.storage.secrets import AwsSession

_NO_BODY = hashlib.sha256(b"").hexdigest()


def sign(method: str, url: str, secret: AwsSession, region: str, now: float) -> dict[str, str]:
    """The headers of a request that show that we hold a session's keys (AWS, "Signature Version 4 signing process").

    Args:
        method: ``GET`` or ``HEAD``.
        url: As it is sent: its path encoded once, its query sorted and encoded.
        secret: The session's keys.
        region: The bucket's.
        now: Seconds since the epoch.
    """
    parts = parse_url(url)
    moment = datetime.fromtimestamp(now, timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    headers = {
        "host": parts.authority,
        "x-amz-content-sha256": _NO_BODY,
        "x-amz-date": moment,
    }
    if secret.session_token is not None:
        headers["x-amz-security-token"] = secret.session_token
    signed = ";".join(headers)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    request = f"{method}\n{parts.path or '/'}\n{parts.query or ''}\n{lines}\n{signed}\n{_NO_BODY}"
    scope = f"{moment[:8]}/{region}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = f"AWS4{secret.secret_access_key}".encode()
    for step in (*scope.split("/"), text):
        key = hmac.digest(key, step.encode(), "sha256")
    credential = f"{secret.access_key_id}/{scope}"
    headers["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={signed}, Signature={key.hex()}"
    )
    return headers
