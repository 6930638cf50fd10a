"""Google Cloud Storage, by its JSON protocol: an OAuth access token, objects, listings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from delta_sharing_spark._version import install_line
from delta_sharing_spark.errors import AccessModeError, CredentialError
from delta_sharing_spark.storage.clouds import contract
from delta_sharing_spark.storage.locations import Location, StoredObject
from delta_sharing_spark.storage.range_reader import StorageSettings

#: What to do for an engine that would pass over the token.
_INSTEAD = {
    "deltalake": "use accessMode=url or dir of this package",
    "polars": (
        'give scan_parquet(..., credential_provider=lambda: ({"bearer_token": token}, expires)) the token of '
        'storage_options(engine="fsspec")["token"].token, or use accessMode=url or dir of this package'
    ),
    "duckdb": 'register fsspec\'s file system (register_filesystem) made from storage_options(engine="fsspec")',
}
_PERIMETER = contract.Cause(
    "the provider's VPC Service Controls keep this machine out", "ask the provider to let its network in", "credential"
)


class Google(contract.Cloud):
    """Google Cloud Storage's JSON protocol: objects.get, with and without its media, and objects.list.

    The secret is an OAuth access token ("GcpOauthToken").
    """

    parts = ("oauthToken",)
    info_method = "GET"
    transient = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "quotaExceeded"})  # some with status 403
    causes = (
        (r"The specified bucket does not exist", contract.NO_CONTAINER),
        (r"\A(?:accountDisabled|userProjectAccountProblem)\n", contract.DISABLED),
        (r"(?i)is a? ?requester pays bucket", contract.REQUESTER_PAYS),
        (r"\AcloudKms", contract.NO_KEY),
        (
            r"encrypted by a customer-supplied encryption key|\AresourceIsEncryptedWithCustomerEncryptionKey\n",
            contract.WRITERS_KEY,
        ),
        (r"Permission denied on Cloud KMS key", contract.REFUSED_KEY),
        (r"\AvpcServiceControls\n|vpcServiceControlsUniqueIdentifier", _PERIMETER),
    )

    def __init__(self, secret: contract.Secret, settings: StorageSettings) -> None:
        self._token, self._users = secret.parts["oauthToken"], settings.endpoint
        self._endpoint = (settings.endpoint or "https://storage.googleapis.com").rstrip("/")

    @classmethod
    def iceberg_properties(cls, location: Location) -> Iterable[tuple[Mapping[str, str], str]]:
        yield {"oauthToken": "gcs.oauth2.token"}, "gcs.oauth2.token-expires-at"

    def object_url(self, location: Location) -> str:
        return f"{self._endpoint}/download{self._path(location)}/{quote(location.key, safe='')}?alt=media"

    def info_url(self, location: Location) -> str:
        return f"{self._endpoint}{self._path(location)}/{quote(location.key, safe='')}"

    def info(self, headers: Mapping[str, str], body: bytes) -> tuple[int, int]:
        tree = contract.json_body(body)
        return contract.size_and_time(tree.get("size"), tree.get("updated"))

    def list_url(self, location: Location, prefix: str, start: str, token: str | None, *, deep: bool = False) -> str:
        query = {"prefix": prefix, "startOffset": start, **contract.delimiter(deep)}
        query |= {"pageToken": token} if token else {}
        return f"{self._endpoint}{self._path(location)}?{contract.query_text(query)}"

    def page(self, body: bytes) -> tuple[list[StoredObject], str | None]:
        tree = contract.json_body(body)
        items, prefixes, token = tree.get("items", []), tree.get("prefixes", []), tree.get("nextPageToken")
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise contract.UnreadableAnswer("its items are none")
        if not isinstance(prefixes, list):
            raise contract.UnreadableAnswer("its prefixes are none")
        entries = [contract.entry(item.get("name"), item.get("size"), item.get("updated")) for item in items]
        entries += [StoredObject(str(prefix), 0, 0) for prefix in prefixes]
        return entries, str(token) if token else None

    def headers(self, method: str, url: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}"}

    def engine_options(self, engine: contract.Engine, location: Location) -> dict[str, Any]:
        if engine != "fsspec":
            raise CredentialError(
                f"{engine} cannot take a GCS OAuth token as a storage option: it would be passed over, and the machine's own "
                f"Google identity used for {location}; {_INSTEAD[engine]}"
            )
        try:
            from google.oauth2.credentials import Credentials
        except ImportError:
            raise AccessModeError(
                f"fsspec reads {location} by gcsfs, which is not installed: {install_line('gcs')}"
            ) from None
        # An object without an expiry: gcsfs sends a bare string to Google's tokeninfo, and google-auth counts a
        # token expired almost four minutes early.
        values: dict[str, Any] = {"token": Credentials(self._token)}
        return {**values, "endpoint_url": self._users} if self._users else values

    def hadoop_options(self, location: Location, expires: float, token_provider: str | None) -> dict[str, str]:
        if token_provider is None:
            raise CredentialError(
                "Hadoop's GCS connector takes a token only through a Java class (fs.gs.auth.access.token.provider), and "
                "brings none; name one that reads fs.gs.auth.access.token.credential as gcs_token_provider"
            )
        return {
            "fs.gs.auth.type": "ACCESS_TOKEN_PROVIDER",
            "fs.gs.auth.access.token.provider": token_provider,
            "fs.gs.auth.access.token.credential": self._token,
            "fs.gs.auth.access.token.expiration": str(int(expires * 1000)),
        }

    def _path(self, location: Location) -> str:
        return f"/storage/v1/b/{quote(location.container, safe='')}/o"
