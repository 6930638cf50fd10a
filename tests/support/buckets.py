"""A sharing server whose tables also lie in buckets: local directories behind a small S3, GCS and Azure, on one socket.

Objects are sent by the code that serves data URLs, so that ranges, ETags and every fault are the same in both modes.
The credential of a request decides whether it is answered, and refusals are worded as each cloud words them; signatures
are not checked.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Mapping
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape

from delta_sharing_spark.testing.server import SharedTable, SharingServer
from delta_sharing_spark.testing.server.data_urls import serve_file, storage_error
from delta_sharing_spark.testing.server.responses import Response, json_response

_LOCATIONS = {"s3": "s3://{}", "gs": "gs://{}", "abfss": "abfss://{}@account.dfs.core.windows.net"}
_MODIFIED = "2026-11-21T00:00:00.000Z"
_GOOGLE = re.compile(r"/(?:download/)?storage/v1/b/([^/]+)/o(?:/(.*))?")
#: By cloud, how it refuses: a credential that has ended, one that was revoked, one whose scope leaves an object out.
_REFUSALS: dict[str, dict[str, tuple[int, str, str]]] = {
    "s3": {
        "ended": (400, "ExpiredToken", "The provided token has expired."),
        "revoked": (403, "AccessDenied", "Access Denied"),
        "scope": (403, "AccessDenied", "Access Denied"),
    },
    "abfss": {
        "ended": (
            403,
            "AuthenticationFailed",
            "</Message><AuthenticationErrorDetail>Signature not valid in the specified time frame</AuthenticationErrorDetail><Message>",
        ),
        "revoked": (403, "AuthorizationFailure", "This request is not authorized to perform this operation."),
        "scope": (403, "AuthorizationPermissionMismatch", "This request is not authorized using this permission."),
    },
    "gs": {
        "ended": (401, "authError", "Invalid Credentials"),
        "revoked": (401, "authError", "Invalid Credentials"),
        "scope": (
            403,
            "forbidden",
            "does not have storage.objects.get access. Permission denied (or it may not exist).",
        ),
    },
}
#: What identifies a credential in a request: an access key, a bearer token, the signature of a SAS.
_CREDENTIAL = re.compile(r"Credential=([^/]+)/|Bearer ([^?]+)|[?&]sig=([^&]+)")


class BucketServer(SharingServer):
    """A :class:`SharingServer` with buckets; arguments as there. Requests for objects are of kind ``data`` or ``log``.

    Attributes:
        issued: Every secret text given out in credentials so far.
        ended_as: How credentials are refused that no longer work: ``ended`` or ``revoked``.
        out_of_scope: A regular expression of local paths that no credential covers.
        lists: The schemes whose credentials may list.
        vends_r2: Whether buckets of S3 are Cloudflare R2's by their credentials.
    """

    ended_as = "ended"
    out_of_scope: str | None = None
    lists: tuple[str, ...] = ("s3",)
    vends_r2 = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.vendors.update({"s3": self._vend, "gs": self._vend, "abfss": self._vend})
        self.issued: list[str] = []
        self._accepted: set[str] = set()
        self._buckets: dict[str, Path] = {}

    def add_bucket_table(
        self,
        name: str,
        path: str | os.PathLike[str],
        modes: tuple[str, ...] = ("dir",),
        *,
        scheme: str = "s3",
        **fields: Any,
    ) -> SharedTable:
        """Share the table at ``path`` in a bucket of its own, named like the table.

        Args:
            name, path: As in ``add_table``.
            modes: ``accessModes``.
            scheme: ``s3``, ``gs`` or ``abfss``.
            **fields: As in ``add_table``.
        """
        bucket = name.replace(".", "-")
        self._buckets[bucket] = Path(path)
        return self.add_table(name, path, access_modes=modes, location=_LOCATIONS[scheme].format(bucket), **fields)

    @property
    def storage_endpoint(self) -> str:
        """Where the buckets are, for the option ``storageEndpoint``."""
        return f"http://{self.address}"

    def expire_credentials(self) -> None:
        """Every credential given out so far stops working now, whatever expiry was announced."""
        self._accepted.clear()

    def kind_of(self, path: str) -> tuple[str, str]:
        target = self._object(path)
        if target is None:
            return super().kind_of(path)
        return "log" if target.parent.name == "_delta_log" or not target.suffix else "data", str(target)

    def answer(
        self, kind: str, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes, base: str
    ) -> Response:
        target = self._object(path)
        if target is None:
            return super().answer(kind, method, path, query, headers, body, base)
        cloud = "gs" if "/storage/v1/" in path else "abfss" if "sig=" in query else "s3"
        asked = _CREDENTIAL.search(f"{headers.get('authorization', '')}?{query}")
        if asked is None or unquote(next(filter(None, asked.groups()))) not in self._accepted:
            return _refused(cloud, self.ended_as)
        if self.out_of_scope is not None and re.search(self.out_of_scope, str(target)):
            return _refused(cloud, "scope")
        if not target.suffix and (target in self._buckets.values()):
            return _listed(cloud, target, parse_qs(query)) if cloud in self.lists else _refused(cloud, "scope")
        if path.startswith("/storage/v1/"):  # Google's description of an object
            if not target.is_file():
                return storage_error(404, "NoSuchKey", "No such object.")
            return json_response({"name": target.name, "size": str(target.stat().st_size), "updated": _MODIFIED})
        byte_range = headers.get("range") or headers.get("x-ms-range", "")
        return serve_file(str(target), {**headers, "range": byte_range})

    def _object(self, path: str) -> Path | None:
        google = _GOOGLE.fullmatch(path)
        bucket, _, key = f"{google[1]}/{google[2] or ''}".partition("/") if google else path.lstrip("/").partition("/")
        root = self._buckets.get(bucket)
        return None if root is None else root / unquote(key)

    def _vend(self, location: str, table: SharedTable) -> dict[str, Any]:
        first, second, third = (secrets.token_hex(20) for _ in range(3))
        self._accepted.add(first)
        kind = location.partition(":")[0]
        if kind == "s3":
            named = "r2Credentials" if self.vends_r2 else "awsTempCredentials"
            body = {named: {"accessKeyId": first, "secretAccessKey": second, "sessionToken": third}}
            self.issued += [first, second, third]
        elif kind == "gs":
            body = {"gcpOauthToken": {"oauthToken": first}}
            self.issued.append(first)
        else:
            body = {"azureUserDelegationSas": {"sasToken": f"sv=2021-06-08&sp=r&sig={first}"}}
            self.issued.append(first)
        return {**body, "expirationTime": int((time.time() + self.settings.credential_ttl) * 1000)}


def _refused(cloud: str, why: str) -> Response:
    status, code, message = _REFUSALS[cloud][why]
    if cloud == "gs":
        error = {"code": status, "message": message, "errors": [{"reason": code, "message": message}]}
        return json_response({"error": error}, status)
    answer = storage_error(status, code, message)
    return answer if cloud == "s3" else Response(status, answer.body, {"x-ms-error-code": code}, answer.content_type)


def _listed(cloud: str, root: Path, query: Mapping[str, list[str]]) -> Response:
    """One page of what lies right under a prefix."""
    prefix, after = query.get("prefix", [""])[0], query.get("start-after", query.get("startOffset", [""]))[0]
    directory, _, start = prefix.rpartition("/")
    found = []
    for entry in sorted(os.scandir(root / directory), key=lambda e: e.name):
        key = f"{directory}/{entry.name}" if directory else entry.name
        if entry.is_file() and entry.name.startswith(start) and (key >= after if cloud == "gs" else key > after):
            found.append((key, entry.stat().st_size))
    if cloud == "gs":
        return json_response({"items": [{"name": k, "size": str(n), "updated": _MODIFIED} for k, n in found]})
    if cloud == "abfss":
        blobs = "".join(
            f"<Blob><Name>{escape(key)}</Name><Properties><Content-Length>{size}</Content-Length>"
            f"<Last-Modified>{formatdate(0, usegmt=True)}</Last-Modified></Properties></Blob>"
            for key, size in found
        )
        body = f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker/></EnumerationResults>"
    else:
        items = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size><LastModified>{_MODIFIED}</LastModified></Contents>"
            for key, size in found
        )
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{items}</ListBucketResult>"
    return Response(200, body.encode(), {}, "application/xml")
