"""Reads Azure Blob Storage through adlfs, with one shared access signature and nothing of the machine's own identity."""

from __future__ import annotations

from typing import Any
from urllib.request import getproxies, proxy_bypass

from adlfs import AzureBlobFileSystem
from azure.storage.blob.aio import BlobServiceClient

from delta_sharing_spark.storage.library_errors import StorageSettings
from delta_sharing_spark.storage.locations import Location
from delta_sharing_spark.storage.secrets import AzureSas
from delta_sharing_spark.storage.transfer import Transfer


class _SasFileSystem(AzureBlobFileSystem):  # type: ignore[misc]  # adlfs has no types
    """adlfs with a client of our making.

    adlfs takes a connection string of the environment before a SAS, turns an empty SAS into a default identity,
    and gives no way to bound the SDK's retries (80 s for an unreachable host); so the client is made here.
    """

    protocol = ()
    cachable = False

    def __init__(self, location: Location, secret: AzureSas, settings: StorageSettings) -> None:
        self._client_arguments = _client_arguments(location, secret, settings)
        # A SAS given here keeps adlfs from looking for other credentials; the client below is what is used.
        super().__init__(
            account_name=location.account,
            sas_token=secret.sas,
            anon=False,
            use_listings_cache=False,
            assume_container_exists=True,
            max_concurrency=1,
        )
        self.account_key = self.connection_string = self.credential = None
        self.client_id = self.client_secret = self.tenant_id = None

    def do_connect(self) -> None:
        self.service_client = BlobServiceClient(**self._client_arguments)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        # Paths come here as container/blob; adlfs would lose what follows a "#" in a name.
        return path if isinstance(path, list) else path.lstrip("/")


def _client_arguments(location: Location, secret: AzureSas, settings: StorageSettings) -> dict[str, Any]:
    url = settings.endpoint or f"https://{location.blob_host}"
    arguments: dict[str, Any] = {
        "account_url": url,
        "credential": secret.sas,
        "retry_total": 0,
        "connection_timeout": settings.connect_timeout,
        "read_timeout": settings.read_timeout,
        # The environment's settings would bring ~/.netrc along, another identity; its proxies are passed on below.
        "use_env_settings": False,
        # A whole object in one request, of whatever size.
        "max_single_get_size": 1 << 50,
    }
    host = location.blob_host
    if settings.proxy:
        arguments["proxies"] = {"http": settings.proxy, "https": settings.proxy}
    elif not settings.endpoint and not proxy_bypass(host):
        arguments["proxies"] = getproxies()
    if settings.ca_bundle:
        arguments["connection_verify"] = settings.ca_bundle
    return arguments


def build(location: Location, secret: AzureSas, settings: StorageSettings) -> Any:
    """A file system for one account, paths being ``container/blob`` whatever the location's scheme."""
    return _SasFileSystem(location, secret, settings)


class _ResponseReceived(Exception):
    """Takes an answer out of the SDK, which would retry by itself where a body breaks off, without checking the answer.

    Its downloader also takes a wrong range for the right one, leaves a silent connection open, starts a broken body
    from its beginning, and does not hang up when it is cancelled.
    """

    def __init__(self, response: Any) -> None:
        super().__init__()
        self.response = response


def _keep(answer: Any) -> None:
    if answer.http_response.status_code in (200, 206):
        raise _ResponseReceived(answer.http_response)


async def get(fs: Any, location: Location, transfer: Transfer) -> None:
    """One request for what a transfer is missing; its bytes are kept as they arrive."""
    missing = transfer.missing
    asked = {} if missing is None else {"offset": missing.start, "length": missing.length}
    async with fs.service_client.get_blob_client(container=location.container, blob=location.key) as client:
        try:
            await client.download_blob(raw_response_hook=_keep, **asked)
        except _ResponseReceived as answered:
            answer = answered.response
    body = answer.internal_response
    try:
        await transfer.receive(answer.status_code, answer.headers, body.content.read)
    finally:
        body.close()


async def head(fs: Any, container: str, blob: str) -> tuple[int, Any]:
    """A blob's size and modification time; the permission to read is enough."""
    async with fs.service_client.get_blob_client(container=container, blob=blob) as client:
        properties = await client.get_blob_properties()
        return properties.size, properties.last_modified


async def list_page(
    fs: Any, container: str, prefix: str, start: str, token: str | None
) -> tuple[list[Any], str | None]:
    """One page of the blobs right under a prefix: ``(name, size, modified)`` and the next page's token.

    The blob endpoint lists a prefix from its beginning: ``start`` is the caller's to apply.
    """
    async with fs.service_client.get_container_client(container) as client:
        pages = client.walk_blobs(name_starts_with=prefix, delimiter="/").by_page(continuation_token=token)
        page = [blob async for blob in await anext(pages)]
        listed = [(blob.name, blob.size, blob.last_modified) for blob in page if hasattr(blob, "size")]
        return listed, pages.continuation_token or None
