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
from contextlib import suppress
from datetime import datetime, timezone
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape

from delta_sharing_spark.testing.server import SharedTable, SharingServer
from delta_sharing_spark.testing.server.data_urls import serve_file, storage_error
from delta_sharing_spark.testing.server.responses import Request, Response, json_response

_LOCATIONS = {"s3": "s3://{}", "gs": "gs://{}", "abfss": "abfss://{}@account.dfs.core.windows.net"}
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
        page: Most keys of a page of a listing.
        more_keys: Keys that listings have besides those of the files.
    """

    ended_as = "ended"
    out_of_scope: str | None = None
    lists: tuple[str, ...] = ("s3",)
    vends_r2 = False
    page = 1000
    more_keys: tuple[str, ...] = ()

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
        location = self.bucket(name.replace(".", "-"), path, scheme)
        return self.add_table(name, path, access_modes=modes, location=location, **fields)

    def share_iceberg(self, name: str, document: Path, bucket: str) -> None:
        """Share the Iceberg table of a metadata document, which lies in a bucket of S3, as Iceberg alone, by keys of that bucket.

        Args:
            name: As in ``add_table``.
            document: The file of its newest metadata.
            bucket: The bucket's name, of ``bucket``.
        """
        location = f"s3://{bucket}/{document.relative_to(self._buckets[bucket]).as_posix()}"

        def vended() -> dict[str, str]:
            return self.vended_properties(f"s3://{bucket}", say_end=False)

        self.add_iceberg_table(name, document, location, config=vended)

    def bucket(self, name: str, path: str | os.PathLike[str], scheme: str = "s3") -> str:
        """Make a directory a bucket; returns its location."""
        self._buckets[name] = Path(path)
        return _LOCATIONS[scheme].format(name)

    @property
    def storage_endpoint(self) -> str:
        """Where the buckets are, for the option ``storageEndpoint``."""
        return f"http://{self.address}"

    def vended_properties(self, location: str, *, say_end: bool = True) -> dict[str, str]:
        """New credentials of a bucket as an Iceberg catalog vends them, with where S3's is; ``say_end``: and when they end."""
        table: Any = None
        credentials = {**self._vend(location, table), "location": location}
        if not say_end:
            del credentials["expirationTime"]
        place = {"s3.endpoint": self.storage_endpoint, "client.region": "eu-central-1"}
        return properties_of(credentials) | (place if location.startswith("s3:") else {})

    def expire_credentials(self) -> None:
        """Every credential given out so far stops working now, whatever expiry was announced."""
        self._accepted.clear()

    def kind_of(self, path: str) -> tuple[str, str]:
        target = self._object(path)
        if target is None:
            return super().kind_of(path)
        return "log" if target.parent.name == "_delta_log" or not target.suffix else "data", str(target)

    def answer(self, request: Request) -> Response:
        path, query, headers = request.path, request.query, request.headers
        target = self._object(path)
        if target is None:
            return super().answer(request)
        cloud = "gs" if "/storage/v1/" in path else "abfss" if "sig=" in query else "s3"
        asked = _CREDENTIAL.search(f"{headers.get('authorization', '')}?{query}")
        if asked is None or unquote(next(filter(None, asked.groups()))) not in self._accepted:
            return _refused(cloud, self.ended_as)
        if self.out_of_scope is not None and re.search(self.out_of_scope, str(target)):
            return _refused(cloud, "scope")
        if not target.suffix and (target in self._buckets.values()):
            return self._listed(cloud, target, parse_qs(query)) if cloud in self.lists else _refused(cloud, "scope")
        if target.is_dir():
            return storage_error(404, "NoSuchKey", "The specified key does not exist.")
        if path.startswith("/storage/v1/"):  # Google's description of an object
            if not target.is_file():
                return storage_error(404, "NoSuchKey", "No such object.")
            return json_response(
                {"name": target.name, "size": str(target.stat().st_size), "updated": _iso(target.stat().st_mtime)}
            )
        byte_range = headers.get("range") or headers.get("x-ms-range", "")
        return serve_file(str(target), {**headers, "range": byte_range})

    def _object(self, path: str) -> Path | None:
        google = _GOOGLE.fullmatch(path)
        bucket, _, key = f"{google[1]}/{google[2] or ''}".partition("/") if google else path.lstrip("/").partition("/")
        root = self._buckets.get(bucket)
        return None if root is None else root / unquote(key)

    def _listed(self, cloud: str, root: Path, query: Mapping[str, list[str]]) -> Response:
        """One page of what lies under a prefix, right under it where a delimiter is given."""
        prefix, is_flat = query.get("prefix", [""])[0], "delimiter" in query
        after = query.get("start-after", query.get("startOffset", [""]))[0]
        above = prefix.rpartition("/")[0]
        walked = (
            os.walk(root / above)
            if not is_flat
            else ((d, s, f) for d, s, f in [next(os.walk(root / above), ("", [], []))])
        )
        sizes: dict[str, int] = dict.fromkeys(self.more_keys, 1)
        times: dict[str, float] = dict.fromkeys(self.more_keys, 0.0)
        for directory, below, names in walked:
            for name in [*names, *(f"{one}/" for one in below if is_flat)]:
                path = Path(directory) / name
                key = path.relative_to(root).as_posix() + ("/" if name.endswith("/") else "")
                with suppress(FileNotFoundError):  # renamed meanwhile, as a commit is when it is whole
                    stat = path.stat()
                    sizes[key], times[key] = stat.st_size, stat.st_mtime
        keys = sorted(
            key for key in sizes if key.startswith(prefix) and (key >= after if cloud == "gs" else key > after)
        )
        start = int(query.get("continuation-token", query.get("pageToken", query.get("marker", ["0"])))[0])
        following = str(start + self.page) if start + self.page < len(keys) else ""
        keys = keys[start : start + self.page]
        found, below = [key for key in keys if not key.endswith("/")], [key for key in keys if key.endswith("/")]
        if cloud == "gs":
            items = [{"name": key, "size": str(sizes[key]), "updated": _iso(times[key])} for key in found]
            return json_response(
                {"items": items, "prefixes": below, **({"nextPageToken": following} if following else {})}
            )
        if cloud == "abfss":
            blobs = "".join(
                f"<Blob><Name>{escape(key)}</Name><Properties><Content-Length>{sizes[key]}</Content-Length>"
                f"<Last-Modified>{formatdate(times[key], usegmt=True)}</Last-Modified></Properties></Blob>"
                for key in found
            ) + "".join(f"<BlobPrefix><Name>{escape(key)}</Name></BlobPrefix>" for key in below)
            body = (
                f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker>{following}</NextMarker></EnumerationResults>"
            )
        else:
            items = "".join(
                f"<Contents><Key>{escape(key)}</Key><Size>{sizes[key]}</Size><LastModified>{_iso(times[key])}</LastModified></Contents>"
                for key in found
            ) + "".join(f"<CommonPrefixes><Prefix>{escape(key)}</Prefix></CommonPrefixes>" for key in below)
            more = (
                f"<IsTruncated>true</IsTruncated><NextContinuationToken>{following}</NextContinuationToken>"
                if following
                else ""
            )
            body = f"<ListBucketResult>{more}{items}</ListBucketResult>"
        return Response(200, body.encode(), {}, "application/xml")

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


def properties_of(credentials: Mapping[str, Any]) -> dict[str, str]:
    """Temporary credentials of Delta Sharing's wire in the words of an Iceberg catalog."""
    ends = {"expires": str(credentials["expirationTime"])} if "expirationTime" in credentials else {}
    if aws := credentials.get("awsTempCredentials"):
        names = {
            "access-key-id": "accessKeyId",
            "secret-access-key": "secretAccessKey",
            "session-token": "sessionToken",
        }
        keys = {f"s3.{name}": str(aws[field]) for name, field in names.items()}
        return keys | {f"s3.session-token-{key}-at-ms": value for key, value in ends.items()}
    if gcp := credentials.get("gcpOauthToken"):
        return {"gcs.oauth2.token": gcp["oauthToken"]} | {f"gcs.oauth2.token-{key}-at": v for key, v in ends.items()}
    sas = credentials["azureUserDelegationSas"]["sasToken"]
    account = str(credentials["location"]).partition("@")[2].partition("/")[0]
    return {f"adls.sas-token.{account}": sas} | {f"adls.sas-token-{key}-at-ms.{account}": v for key, v in ends.items()}


def _refused(cloud: str, why: str) -> Response:
    status, code, message = _REFUSALS[cloud][why]
    if cloud == "gs":
        error = {"code": status, "message": message, "errors": [{"reason": code, "message": message}]}
        return json_response({"error": error}, status)
    answer = storage_error(status, code, message)
    return answer if cloud == "s3" else Response(status, answer.body, {"x-ms-error-code": code}, answer.content_type)


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
