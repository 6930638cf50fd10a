"""Reads Google Cloud Storage through gcsfs, with one OAuth token and nothing of the machine's own identity."""

from __future__ import annotations

import ssl
import weakref
from typing import Any
from urllib.request import getproxies, proxy_bypass

import aiohttp
from gcsfs.core import GCSFileSystem  # not gcsfs.GCSFileSystem: that one makes a gRPC call per bucket first
from google.oauth2.credentials import Credentials

from delta_sharing_spark.storage.library_errors import StorageSettings
from delta_sharing_spark.storage.locations import Location
from delta_sharing_spark.storage.secrets import GcpBearer
from delta_sharing_spark.storage.transfer import Transfer, close_later

#: Given, so that STORAGE_EMULATOR_HOST and GOOGLE_CLOUD_UNIVERSE_DOMAIN cannot redirect the token.
ENDPOINT = "https://storage.googleapis.com"


class _BearerFileSystem(GCSFileSystem):  # type: ignore[misc]  # gcsfs has no types
    """gcsfs with a session of ours, which uses no client certificate of the machine, and without gcsfs's own retries."""

    protocol = ()
    cachable = False

    def __init__(self, secret: GcpBearer, settings: StorageSettings) -> None:
        self._settings = settings
        super().__init__(
            project="",
            access="read_only",
            # Without an expiry: google-auth counts a token expired almost four minutes before it is.
            token=Credentials(secret.token),
            endpoint_url=settings.endpoint or ENDPOINT,
            requests_timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=settings.connect_timeout, sock_read=settings.read_timeout
            ),
            use_listings_cache=False,
        )
        self._use_client_cert = self._use_mtls_endpoint = False

    _session: Any

    async def _set_session(self) -> Any:
        if self._session is None:
            bundle = self._settings.ca_bundle
            verify = ssl.create_default_context(cafile=bundle) if bundle else True
            proxy = self._proxy()
            # Named only where there is one: aiohttp knows it since 3.11.
            proxied: dict[str, Any] = {"proxy": proxy} if proxy else {}
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=verify, limit=32),
                trust_env=False,
                **proxied,
            )
            weakref.finalize(self, close_later, self.loop, self._session.close)
        return self._session

    async def _request(self, *args: Any, **kwargs: Any) -> Any:
        return await GCSFileSystem._request.__wrapped__(self, *args, **kwargs)

    def _proxy(self) -> str | None:
        if self._settings.proxy:
            return self._settings.proxy
        if self._settings.endpoint or proxy_bypass("storage.googleapis.com"):
            return None
        return getproxies().get("https")


def build(location: Location, secret: GcpBearer, settings: StorageSettings) -> Any:
    """A file system for any bucket that the token may read."""
    return _BearerFileSystem(secret, settings)


async def get(fs: Any, location: Location, transfer: Transfer) -> None:
    """One request for what a transfer is missing; its bytes are kept as they arrive.

    gcsfs's own request is not used: it returns a body only whole, and an error without its headers.
    """
    session = await fs._set_session()
    headers = fs._get_headers(transfer.headers)
    async with session.get(fs.url(location.path), headers=headers, timeout=fs.requests_timeout) as answer:
        answer.raise_for_status()
        await transfer.receive(answer.status, answer.headers, answer.content.read)


async def head(fs: Any, bucket: str, name: str) -> tuple[int, Any]:
    """An object's size and modification time; objects.get permission is enough."""
    answer = await fs._call("GET", "b/{}/o/{}", bucket, name, json_out=True)
    return int(answer["size"]), answer.get("updated")


async def list_page(fs: Any, bucket: str, prefix: str, start: str, token: str | None) -> tuple[list[Any], str | None]:
    """One page of objects.list from a name on: ``(name, size, modified)`` and the next page's token."""
    answer = await fs._call(
        "GET", "b/{}/o", bucket, prefix=prefix, delimiter="/", startOffset=start, pageToken=token, json_out=True
    )
    objects = [(item["name"], int(item.get("size", 0)), item.get("updated")) for item in answer.get("items", ())]
    return objects, answer.get("nextPageToken")
