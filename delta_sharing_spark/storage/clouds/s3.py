"""Amazon S3, and storages that speak its protocol: keys of a session, signatures of version 4, regions, listings."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any
from urllib.parse import quote

import requests

from delta_sharing_spark.errors import CredentialError
from delta_sharing_spark.network.http import data_session
from delta_sharing_spark.network.retry import http_seconds
from delta_sharing_spark.network.urls import parse_url
from delta_sharing_spark.storage.clouds import contract
from delta_sharing_spark.storage.locations import Location, StoredObject
from delta_sharing_spark.storage.range_reader import StorageSettings

_log = logging.getLogger(__name__)

#: Buckets that can be a label of a host name, which TLS certificates cover.
_LABEL = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
#: Seconds by which two clocks may differ; S3 allows fifteen minutes.
_LARGEST_SKEW = 600.0
_REGION = re.compile(rb"<Region>([a-z0-9-]{1,40})</Region>")
_DEFAULT_REGION = "us-east-1"
#: The domains of AWS's other partitions, by the beginning of their regions' names.
_DOMAINS = {
    "cn-": "amazonaws.com.cn",
    "eusc-": "amazonaws.eu",
    "us-iso-": "c2s.ic.gov",
    "us-isob-": "sc2s.sgov.gov",
    "us-isof-": "csp.hci.ic.gov",
    "eu-isoe-": "cloud.adc-e.uk",
}
_NO_BODY = hashlib.sha256(b"").hexdigest()
#: The properties of Iceberg's catalogs.
_VENDED = "s3.access-key-id", "s3.secret-access-key", "s3.session-token"
_TEMPORARY_PROVIDER = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
_ELSEWHERE = contract.Cause(
    "the bucket is in another region",
    "set the option storageRegion, or ask the provider to sign its URLs for that region",
)
_CLOCKS = contract.Cause(
    "the clocks of this machine and of the storage differ",
    "check the clock of this machine, and the sharing server's",
    "credential",
)


class S3(contract.Cloud):
    """S3's protocol: GetObject, HeadObject, ListObjectsV2. The region and the clock are the storage's, once it tells them.

    Args:
        secret: AWS temporary security credentials (protocol, "AwsCredentials"); without a session token, as for keys that its
            catalog does not limit in time.
        settings: Region and endpoint; an endpoint is asked in path style.
        clock: The time in seconds since the epoch.
    """

    parts = ("accessKeyId", "secretAccessKey", "sessionToken")
    optional = frozenset({"sessionToken"})
    ended_codes = frozenset(
        {"ExpiredToken", "ExpiredTokenException", "ExpiredRequest", "RequestExpired", "TokenRefreshRequired"}
    )
    credential_codes = frozenset(
        {"InvalidAccessKeyId", "InvalidToken", "InvalidTokenId", "RequestTimeTooSkewed", "SignatureDoesNotMatch"}
    )
    transient = frozenset({"SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable"})  # some with status 400
    causes = (
        (
            r"\A(?:AuthorizationHeaderMalformed|(?:Permanent|Temporary)Redirect|IllegalLocationConstraintException)\n",
            _ELSEWHERE,
        ),
        (r"\AInvalidObjectState\n", contract.ARCHIVED),
        (r"\ANoSuchBucket\n|The specified bucket does not exist", contract.NO_CONTAINER),
        (r"\A(?:AllAccessDisabled|AccountProblem|NotSignedUp|UserSuspended)\n", contract.DISABLED),
        (r"(?i)\A(?:UserProjectMissing|AuthenticationRequiredRequesterPays)\n", contract.REQUESTER_PAYS),
        (r"(?i)\AKMS\.", contract.NO_KEY),
        (r"stored using a form of Server Side Encryption", contract.WRITERS_KEY),
        (r"not authorized to perform: kms:", contract.REFUSED_KEY),
        (r"\ARequestTimeTooSkewed\n", _CLOCKS),
    )
    end_text = r"<Message>(?:Request|The provided token) has expired"

    def __init__(
        self, secret: contract.Secret, settings: StorageSettings, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._parts, self._settings, self._clock = secret.parts, settings, clock
        self._endpoint = settings.endpoint
        self._region = settings.region or _DEFAULT_REGION
        self._skew = 0.0

    @classmethod
    def iceberg_properties(cls, location: Location) -> Iterable[tuple[Mapping[str, str], str]]:
        yield dict(zip(cls.parts, _VENDED, strict=True)), f"{_VENDED[2]}-expires-at-ms"

    @classmethod
    def code_of(cls, status: int, headers: Mapping[str, str]) -> str:
        return "PermanentRedirect" if 300 <= status < 400 and "x-amz-bucket-region" in headers else ""

    def object_url(self, location: Location) -> str:
        return f"{self._bucket_url(location.container)}/{quote(location.key, safe='/-_.~')}"

    def list_url(self, location: Location, prefix: str, start: str, token: str | None, *, deep: bool = False) -> str:
        query = {"list-type": "2", "prefix": prefix, **contract.delimiter(deep)}
        if token is not None:
            query["continuation-token"] = token
        elif start > prefix:
            query["start-after"] = start[:-1]  # S3 lists what comes after a key
        return f"{self._bucket_url(location.container)}/?{contract.query_text(query)}"

    def page(self, body: bytes) -> tuple[list[StoredObject], str | None]:
        root = contract.xml_root(body, "ListBucketResult")
        entries = [
            contract.entry(*(contract.xml_text(item, name) for name in ("Key", "Size", "LastModified")))
            for item in root.iterfind("{*}Contents")
        ]
        prefixes = (contract.xml_text(item, "Prefix") for item in root.iterfind("{*}CommonPrefixes"))
        entries += [StoredObject(prefix, 0, 0) for prefix in prefixes]
        return entries, contract.xml_text(root, "NextContinuationToken") if contract.xml_text(
            root, "IsTruncated"
        ) == "true" else None

    def headers(self, method: str, url: str) -> dict[str, str]:
        return sign(method, url, self._parts, self._region, self._clock() + self._skew)

    @property
    def corrections(self) -> object:
        return self._region, self._skew

    def corrected(self, status: int, headers: Mapping[str, str], body: bytes) -> bool:
        there = http_seconds(headers.get("date", ""))
        # An answer to HEAD has no code: the time itself is looked at.
        if status == 403 and there is not None and abs(there - self._clock() - self._skew) > _LARGEST_SKEW:
            self._skew = there - self._clock()
            return True
        match = _REGION.search(body) if status in (301, 307, 400) else None
        region = headers.get("x-amz-bucket-region") or (match[1].decode() if match else None)
        if status not in (301, 307, 400) or region is None or region == self._region:
            return False
        self._region = region
        return True

    def engine_options(self, engine: contract.Engine, location: Location) -> dict[str, Any]:
        endpoint, (key, secret, token) = self._endpoint, (self._parts.get(name) for name in self.parts)
        region = find_region(location.container, self._settings)
        if token is None and engine != "fsspec":
            raise CredentialError(
                f"the keys for {location} have no session token, in whose place {engine} may take one of this machine's environment; "
                f"read it by fsspec, or use accessMode=url or dir of this package"
            )
        is_plain = endpoint is not None and endpoint.startswith("http://")
        values: dict[str, Any]
        if engine == "fsspec":
            values = {"key": key, "secret": secret, "token": token, "client_kwargs": {"region_name": region}}
            return {**values, "endpoint_url": endpoint} if endpoint else values
        if engine == "duckdb":
            values = {"TYPE": "s3", "KEY_ID": key, "SECRET": secret, "SESSION_TOKEN": token, "REGION": region}
            values["SCOPE"] = self.engine_uri(location, "s3")
            if endpoint:
                host = endpoint.partition("://")[2]
                values |= {"ENDPOINT": host, "URL_STYLE": "path", "USE_SSL": "false" if is_plain else "true"}
            return values
        values = {"access_key_id": key, "secret_access_key": secret, "session_token": token, "region": region}
        values |= {"endpoint_url": endpoint} if endpoint else {}
        values |= {"allow_http": "true"} if is_plain else {}
        return {f"aws_{name}": value for name, value in values.items()}

    def hadoop_options(self, location: Location, expires: float, token_provider: str | None) -> dict[str, str]:
        if "sessionToken" not in self._parts:
            raise CredentialError(
                f"the keys for {location} have no session token, without which Hadoop's provider of temporary keys takes none; "
                f"use accessMode=dir or url of this package"
            )
        names = "access.key", "secret.key", "session.token"
        conf = {f"fs.s3a.{name}": self._parts[part] for name, part in zip(names, self.parts, strict=True)}
        conf["fs.s3a.aws.credentials.provider"] = _TEMPORARY_PROVIDER
        if self._settings.region:
            conf["fs.s3a.endpoint.region"] = self._settings.region
        if self._endpoint:
            conf |= {"fs.s3a.endpoint": self._endpoint, "fs.s3a.path.style.access": "true"}
        return conf

    @classmethod
    def engine_uri(cls, location: Location, scheme: str) -> str:
        return f"{scheme}://{location.path}"

    def _bucket_url(self, bucket: str) -> str:
        if self._endpoint:
            return f"{self._endpoint.rstrip('/')}/{bucket}"
        domain = next((_DOMAINS[start] for start in _DOMAINS if self._region.startswith(start)), "amazonaws.com")
        host = f"s3.{self._region}.{domain}"
        return f"https://{bucket}.{host}" if _LABEL.fullmatch(bucket) else f"https://{host}/{bucket}"


def sign(method: str, url: str, parts: Mapping[str, str], region: str, now: float) -> dict[str, str]:
    """The headers of a request without a body, which show that we hold a session's keys (AWS, "Signature Version 4 signing process").

    Args:
        method: ``GET`` or ``HEAD``.
        url: As it is sent: its path encoded once, its query sorted and encoded.
        parts: The session's keys.
        region: The bucket's.
        now: Seconds since the epoch.
    """
    target = parse_url(url)
    moment = datetime.fromtimestamp(now, timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    headers = {"host": target.authority, "x-amz-content-sha256": _NO_BODY, "x-amz-date": moment}
    if "sessionToken" in parts:
        headers["x-amz-security-token"] = parts["sessionToken"]
    names = ";".join(headers)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    request = f"{method}\n{target.path or '/'}\n{target.query or ''}\n{lines}\n{names}\n{_NO_BODY}"
    scope = f"{moment[:8]}/{region}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = f"AWS4{parts['secretAccessKey']}".encode()
    for step in (*scope.split("/"), text):
        key = hmac.digest(key, step.encode(), "sha256")
    credential = f"{parts['accessKeyId']}/{scope}"
    headers["Authorization"] = f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={key.hex()}"
    return headers


def find_region(bucket: str, settings: StorageSettings) -> str:
    """The bucket's region by the settings, else as S3 tells it to everyone; ``us-east-1`` at an endpoint, and where S3 is silent."""
    if settings.region or settings.endpoint:
        return settings.region or _DEFAULT_REGION
    try:
        return _region_of(bucket, settings)
    except requests.RequestException as error:
        _log.warning("the region of bucket %s could not be asked for (%s)", bucket, type(error).__name__)
        return _DEFAULT_REGION


@lru_cache(maxsize=256)  # of answers: where there was none, the next caller asks
def _region_of(bucket: str, settings: StorageSettings) -> str:
    url, timeout = f"https://s3.amazonaws.com/{bucket}", settings.connect_timeout
    answer = data_session(settings).head(url, timeout=timeout, allow_redirects=False)
    return answer.headers.get("x-amz-bucket-region") or _DEFAULT_REGION
