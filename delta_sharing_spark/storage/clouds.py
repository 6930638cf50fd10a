"""Says what the three clouds are asked for an object and for a listing, with which credential, and how they answer.

Only the credential that is given is sent, in requests of our own making: nothing of the machine's identity can get in.
"""

from __future__ import annotations

import re
import time
import xml.etree.ElementTree as ElementTree
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from urllib.parse import quote, unquote

from delta_sharing_spark.network.bodies import declared_length
from delta_sharing_spark.network.http import json_object, parse_count
from delta_sharing_spark.network.retry import http_seconds
from delta_sharing_spark.schema.instants import parse_instant, to_millis
from delta_sharing_spark.storage.aws_signature import sign
from delta_sharing_spark.storage.locations import Location, StoredObject
from delta_sharing_spark.storage.regions import DEFAULT_REGION, s3_domain
from delta_sharing_spark.storage.secrets import AwsSession, AzureSas, GcpBearer, Secret, StorageSettings

#: The version of Azure's protocol: the first that knows a SAS of a directory is 2020-02-10.
_AZURE_VERSION = "2021-12-02"
#: Buckets that can be a label of a host name, which TLS certificates cover.
_LABEL = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
#: Seconds by which two clocks may differ.
_LARGEST_SKEW = 600.0
_REGION = re.compile(rb"<Region>([a-z0-9-]{1,40})</Region>")


class UnreadableAnswer(ValueError):
    """An answer that is not what the cloud's protocol says; the text says why."""


class Cloud(ABC):
    """One cloud's requests, with one credential. URLs hold all that is asked for; ``headers`` are made for each request."""

    @abstractmethod
    def object_url(self, location: Location) -> str:
        """Where an object's bytes are."""

    @abstractmethod
    def list_url(self, location: Location, prefix: str, start: str, token: str | None, *, deep: bool = False) -> str:
        """One page of the objects right under a prefix, from the key ``start`` on where the cloud can begin there.

        ``deep`` asks for all objects under it, and for no directories.
        """

    @abstractmethod
    def page(self, body: bytes) -> tuple[list[StoredObject], str | None]:
        """The objects and directories of a page, and the next page's token.

        Raises:
            UnreadableAnswer
        """

    #: How an object's size and time are asked for.
    info_method = "HEAD"

    def info_url(self, location: Location) -> str:
        """Where an object's size and time are; the permission to read it is enough."""
        return self.object_url(location)

    def info(self, headers: Mapping[str, str], body: bytes) -> tuple[int, int]:
        """An object's size, and its modification time in milliseconds.

        Raises:
            UnreadableAnswer
        """
        return _size_and_time(declared_length(headers), headers.get("last-modified", ""))

    def headers(self, method: str, url: str) -> dict[str, str]:
        """The headers that show the credential."""
        return {}

    @property
    def way(self) -> object:
        """What storages correct of the way that requests are made; other threads may be told first."""
        return None

    def corrected(self, status: int, headers: Mapping[str, str], body: bytes) -> bool:
        """Whether an error answer told what to do otherwise, so that the next request is made another way."""
        return False


class S3(Cloud):
    """S3's protocol: GetObject, HeadObject, ListObjectsV2. The region and the clock are the storage's, once it tells them.

    Args:
        secret: The session's keys.
        settings: Region and endpoint; an endpoint is asked in path style.
        clock: The time in seconds since the epoch.
    """

    def __init__(
        self, secret: AwsSession, settings: StorageSettings, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._secret, self._endpoint, self._clock = secret, settings.endpoint, clock
        self._region = settings.region or DEFAULT_REGION
        self._skew = 0.0

    def object_url(self, location: Location) -> str:
        return f"{self._bucket_url(location.container)}/{quote(location.key, safe='/-_.~')}"

    def list_url(self, location: Location, prefix: str, start: str, token: str | None, *, deep: bool = False) -> str:
        query = {"list-type": "2", "prefix": prefix, **_delimiter(deep)}
        if token is not None:
            query["continuation-token"] = token
        elif start > prefix:
            query["start-after"] = start[:-1]  # S3 lists what comes after a key
        return f"{self._bucket_url(location.container)}/?{_query(query)}"

    def page(self, body: bytes) -> tuple[list[StoredObject], str | None]:
        root = _xml(body, "ListBucketResult")
        entries = [
            StoredObject(_key(_text(item, "Key")), *_size_and_time(_text(item, "Size"), _text(item, "LastModified")))
            for item in root.iterfind("{*}Contents")
        ]
        entries += [StoredObject(_text(item, "Prefix"), 0, 0) for item in root.iterfind("{*}CommonPrefixes")]
        token = _text(root, "NextContinuationToken") if _text(root, "IsTruncated") == "true" else None
        return entries, token

    def headers(self, method: str, url: str) -> dict[str, str]:
        return sign(method, url, self._secret, self._region, self._clock() + self._skew)

    @property
    def way(self) -> object:
        return self._region, self._skew

    def corrected(self, status: int, headers: Mapping[str, str], body: bytes) -> bool:
        told = http_seconds(headers.get("date", ""))
        # An answer to HEAD has no code: the time itself is looked at. S3 allows fifteen minutes.
        if status == 403 and told is not None and abs(told - self._clock() - self._skew) > _LARGEST_SKEW:
            self._skew = told - self._clock()
            return True
        match = _REGION.search(body) if status in (301, 307, 400) else None
        region = headers.get("x-amz-bucket-region") or (match[1].decode() if match else None)
        if status not in (301, 307, 400) or region is None or region == self._region:
            return False
        self._region = region
        return True

    def _bucket_url(self, bucket: str) -> str:
        if self._endpoint:
            return f"{self._endpoint.rstrip('/')}/{bucket}"
        host = f"s3.{self._region}.{s3_domain(self._region)}"
        return f"https://{bucket}.{host}" if _LABEL.fullmatch(bucket) else f"https://{host}/{bucket}"


class Azure(Cloud):
    """Azure's Blob service, whichever endpoint a location names: Get Blob, Get Blob Properties, List Blobs."""

    def __init__(self, secret: AzureSas, settings: StorageSettings) -> None:
        self._sas, self._endpoint = secret.sas, settings.endpoint

    def object_url(self, location: Location) -> str:
        return f"{self._container_url(location)}/{quote(location.key, safe='/-_.~')}?{self._sas}"

    def list_url(self, location: Location, prefix: str, start: str, token: str | None, *, deep: bool = False) -> str:
        # A prefix is listed from its beginning: ``start`` is the caller's to apply.
        query = {"restype": "container", "comp": "list", "prefix": prefix, **_delimiter(deep)}
        return f"{self._container_url(location)}?{_query(query | ({'marker': token} if token else {}))}&{self._sas}"

    def page(self, body: bytes) -> tuple[list[StoredObject], str | None]:
        root = _xml(body, "EnumerationResults")
        entries = []
        for blob in root.iterfind("{*}Blobs/{*}Blob"):
            properties = blob.find("{*}Properties")
            if properties is None:
                raise UnreadableAnswer("a blob has no properties")
            if _text(properties, "ResourceType") == "directory":
                continue
            told = _size_and_time(_text(properties, "Content-Length"), _text(properties, "Last-Modified"))
            entries.append(StoredObject(_blob_name(blob), *told))
        entries += [StoredObject(_blob_name(prefix), 0, 0) for prefix in root.iterfind("{*}Blobs/{*}BlobPrefix")]
        return entries, _text(root, "NextMarker") or None

    def headers(self, method: str, url: str) -> dict[str, str]:
        return {"x-ms-version": _AZURE_VERSION}

    def _container_url(self, location: Location) -> str:
        return (
            f"{(self._endpoint or f'https://{location.blob_host}').rstrip('/')}/{quote(location.container, safe='$')}"
        )


class Google(Cloud):
    """Google Cloud Storage's JSON protocol: objects.get, with and without its media, and objects.list."""

    info_method = "GET"

    def __init__(self, secret: GcpBearer, settings: StorageSettings) -> None:
        self._token, self._endpoint = secret.token, (settings.endpoint or "https://storage.googleapis.com").rstrip("/")

    def object_url(self, location: Location) -> str:
        return f"{self._endpoint}/download{self._path(location)}/{quote(location.key, safe='')}?alt=media"

    def info_url(self, location: Location) -> str:
        return f"{self._endpoint}{self._path(location)}/{quote(location.key, safe='')}"

    def info(self, headers: Mapping[str, str], body: bytes) -> tuple[int, int]:
        described = _json(body)
        return _size_and_time(described.get("size"), described.get("updated"))

    def list_url(self, location: Location, prefix: str, start: str, token: str | None, *, deep: bool = False) -> str:
        query = {"prefix": prefix, "startOffset": start, **_delimiter(deep)}
        query |= {"pageToken": token} if token else {}
        return f"{self._endpoint}{self._path(location)}?{_query(query)}"

    def page(self, body: bytes) -> tuple[list[StoredObject], str | None]:
        listed = _json(body)
        items, token = listed.get("items", []), listed.get("nextPageToken")
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise UnreadableAnswer("its items are none")
        entries = [
            StoredObject(_key(item.get("name")), *_size_and_time(item.get("size"), item.get("updated")))
            for item in items
        ]
        prefixes = listed.get("prefixes", [])
        if not isinstance(prefixes, list):
            raise UnreadableAnswer("its prefixes are none")
        entries += [StoredObject(str(prefix), 0, 0) for prefix in prefixes]
        return entries, str(token) if token else None

    def headers(self, method: str, url: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}"}

    def _path(self, location: Location) -> str:
        return f"/storage/v1/b/{quote(location.container, safe='')}/o"


def cloud_for(secret: Secret, settings: StorageSettings) -> Cloud:
    """The cloud that takes a secret."""
    if isinstance(secret, AwsSession):
        return S3(secret, settings)
    if isinstance(secret, AzureSas):
        return Azure(secret, settings)
    assert isinstance(secret, GcpBearer), "local files have no cloud"
    return Google(secret, settings)


def _delimiter(deep: bool) -> dict[str, str]:
    return {} if deep else {"delimiter": "/"}


def _blob_name(element: ElementTree.Element) -> str:
    name = _key(element.findtext("{*}Name"))
    return unquote(name) if element.find("{*}Name[@Encoded='true']") is not None else name


def _key(text: object) -> str:
    if not isinstance(text, str) or not text:
        raise UnreadableAnswer("an object has no name")  # left out, it would be one fewer
    return text


def _query(parameters: Mapping[str, str]) -> str:
    """A query as signatures want it: sorted, and everything but unreserved characters encoded."""
    return "&".join(f"{name}={quote(value, safe='-_.~')}" for name, value in sorted(parameters.items()))


def _xml(body: bytes, name: str) -> ElementTree.Element:
    if b"<!DOCTYPE" in body:
        raise UnreadableAnswer("it defines entities")
    try:
        root = ElementTree.fromstring(body)  # noqa: S314  what could expand was refused above
    except ElementTree.ParseError:
        raise UnreadableAnswer("it is no XML") from None
    if root.tag.rpartition("}")[2] != name:
        raise UnreadableAnswer(f"it is no {name}")
    return root


def _json(body: bytes) -> dict[str, object]:
    described = json_object(body)
    if described is None:
        raise UnreadableAnswer("it is no JSON object")
    return described


def _text(element: ElementTree.Element, name: str) -> str:
    return element.findtext(f"{{*}}{name}") or ""


def _size_and_time(size: object, time: object) -> tuple[int, int]:
    """A size, and a time in milliseconds, which some clouds write as ISO 8601 has it, and others as HTTP."""
    count, instant = parse_count(str(size)), parse_instant(str(time))
    if count is None:
        raise UnreadableAnswer("a size is missing" if size is None else f"a size is {str(size)[:50]!r}")
    if instant is not None:
        return count, to_millis(instant)
    seconds = http_seconds(str(time))
    if seconds is None:
        raise UnreadableAnswer(f"a time is {str(time)[:50]!r}")
    return count, int(seconds * 1000)
