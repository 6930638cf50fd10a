"""Asks the Iceberg REST catalog of a share for a table and its credentials (Iceberg REST catalog, OpenSharing's ``icebergEndpoint``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from delta_sharing_spark.errors import (
    AccessModeError,
    NotFoundError,
    ServerError,
    UnsupportedFeatureError,
)
from delta_sharing_spark.network.http import NetworkSettings
from delta_sharing_spark.network.urls import UrlError, parse_url, url_or_none
from delta_sharing_spark.sharing.address import TableName, segment
from delta_sharing_spark.sharing.profile import Profile
from delta_sharing_spark.sharing.rest import SharingRest, brief_settings, with_near_name
from delta_sharing_spark.sharing.wire_records import broken, walk_pages

#: Bytes of a table's description: it lists every snapshot.
_LARGEST_TABLE = 256 << 20
_VENDED = {"X-Iceberg-Access-Delegation": "vended-credentials"}
_TABLE = "/v1/{prefix}/namespaces/{namespace}/tables/{table}"
_VIEW = "GET /v1/{prefix}/namespaces/{namespace}/views/{view}"
_CREDENTIALS = f"GET {_TABLE}/credentials"


@dataclass(frozen=True, slots=True)
class VendedCredentials:
    """Properties that open the storage below a prefix; ``prefix`` None stands for the table's own locations. Secret."""

    prefix: str | None
    properties: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """A catalog's answer for a table.

    Attributes:
        metadata: The metadata document, not checked yet.
        location: Where that document lies, if the catalog tells it.
        credentials: What the catalog vends, those of a prefix first.
    """

    metadata: Mapping[str, Any] = field(repr=False)
    location: str | None
    credentials: tuple[VendedCredentials, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class IcebergCatalog:
    """The catalog of one share, as one recipient. Picklable and hashable: executors renew credentials by it.

    Attributes:
        profile: The recipient, at the sharing server.
        settings: How requests are sent.
        prefix: The path segments that the catalog asks for, encoded; empty for none.
        has_credentials: Whether it announces a call that vends credentials alone.
        has_views: Whether it announces views.
    """

    profile: Profile = field(repr=False)
    settings: NetworkSettings = field(repr=False, compare=False)
    prefix: str = ""
    has_credentials: bool = False
    has_views: bool = False

    @staticmethod
    def of_share(profile: Profile, settings: NetworkSettings, table: TableName) -> IcebergCatalog:
        """The catalog of a table's share; one request. Only the prefix and the calls it announces are taken from its answer.

        Raises:
            AccessModeError: The profile names no catalog, or the catalog sends its clients to another host.
            ServerError, NetworkError: The catalog refuses or does not answer.
        """
        if profile.iceberg_endpoint is None:
            raise AccessModeError(
                f"table {table} cannot be read with accessMode=iceberg: the profile names no Iceberg catalog "
                f"(icebergEndpoint); ask the provider for a profile that does"
            )
        _check_confirmed(profile, table)
        catalog = IcebergCatalog(profile, settings)
        what = f"the Iceberg catalog of {table.share!r}"
        answer = catalog._ask("/config", what, {"warehouse": table.share})
        merged = {**_texts(answer, "defaults", what), **_texts(answer, "overrides", what)}
        if "uri" in merged:
            catalog._check_uri(merged["uri"], what)
        endpoints = answer.get("endpoints")
        announced = endpoints if isinstance(endpoints, list) else []
        # Catalogs encode what is no character of a path, and clients send a prefix as it is (Nessie's "main%7Cwarehouse").
        prefix = quote(merged.get("prefix", "").strip("/"), safe="/%")
        return replace(
            catalog,
            prefix=f"/{prefix}" if prefix else "",
            has_credentials=_CREDENTIALS in announced,
            has_views=_VIEW in announced,
        )

    def load(self, table: TableName) -> LoadedTable:
        """The table as it is now, with credentials; one request.

        Raises:
            NotFoundError: There is no such table in the catalog; with the nearest names that it has.
            UnsupportedFeatureError: It is a view.
            ResponseError: The answer is malformed.
        """
        what = f"the Iceberg table {table}"
        try:
            tree = self._ask(self._path(table), what, headers=_VENDED)
        except NotFoundError as missing:
            if self.has_views and self._is_view(table):
                raise UnsupportedFeatureError(
                    f"{table} is a view of the Iceberg catalog, and this reader reads tables; ask the provider to share a table",
                    features=("view",),
                ) from missing
            raise self._with_near_names(missing, table) from None
        metadata, location = tree.get("metadata"), tree.get("metadata-location")
        if not isinstance(metadata, dict):
            raise broken(f"{what}: the catalog's answer has no metadata")
        config = _texts(tree, "config", what)
        return LoadedTable(metadata, location if isinstance(location, str) else None, _vended(tree, config, what))

    def credentials(self, table: TableName) -> tuple[VendedCredentials, ...]:
        """Credentials for a table alone; by loading it again where the catalog has no call for them."""
        if not self.has_credentials:
            return self.load(table).credentials
        what = f"the storage credentials of the Iceberg table {table}"
        return _vended(self._ask(f"{self._path(table)}/credentials", what, headers=_VENDED), {}, what)

    def _with_near_names(self, missing: NotFoundError, table: TableName) -> NotFoundError:
        """The same error with the nearest names of the catalog added, where it lists any."""
        brief = replace(self, settings=brief_settings(self.settings))
        tables, namespaces = f"/namespaces/{segment(table.schema)}/tables", f"{table.share}.{table.schema}"
        listings = (
            ("table", table.table, lambda: brief._names(tables, "identifiers", namespaces), namespaces),
            ("schema", table.schema, lambda: brief._names("/namespaces", "namespaces", table.share), table.share),
        )
        return with_near_name(missing, listings)

    def _names(self, path: str, items: str, holder: str) -> Iterator[str]:
        """The names of a listing: pages come where they are asked for, and may be empty before the last."""

        def page(asked: Mapping[str, str]) -> Mapping[str, Any]:
            sent = {"pageToken": asked.get("pageToken", ""), "pageSize": asked["maxResults"]}
            answer = self._ask(self.prefix + path, f"the names in {holder}", sent)
            return {"items": answer.get(items), "nextPageToken": answer.get("next-page-token")}

        return walk_pages(page, _name_of)

    def _path(self, table: TableName, kind: str = "tables") -> str:
        return f"{self.prefix}/namespaces/{segment(table.schema)}/{kind}/{segment(table.table)}"

    def _is_view(self, table: TableName) -> bool:
        try:
            return bool(self._ask(self._path(table, "views"), f"the view {table}"))
        except ServerError:
            return False

    def _ask(
        self, path: str, what: str, params: Mapping[str, str] | None = None, headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        endpoint = self.profile.iceberg_endpoint or ""
        version = "" if endpoint.endswith("/v1") else "/v1"
        rest = SharingRest(replace(self.profile, endpoint=endpoint), self.settings, "Iceberg catalog")
        return rest.ask_json("GET", version + path, what, params=params, headers=headers, limit=_LARGEST_TABLE)

    def _check_uri(self, text: str, what: str) -> None:
        """Refuse a catalog that names another server: the recipient's token would follow."""
        try:
            is_own = parse_url(text).origin == parse_url(self.profile.iceberg_endpoint or "").origin
        except UrlError:
            is_own = False
        if not is_own:
            raise AccessModeError(
                f"{what} sends its clients to another server, which is not shown the recipient's token; ask the provider to "
                f"correct icebergEndpoint in the profile"
            )


def _name_of(item: Any) -> str:
    """The name of a table, or of a namespace of one level."""
    name = item.get("name") if isinstance(item, dict) else item[0] if isinstance(item, list) and item else None
    if not isinstance(name, str):
        raise broken("an item of the catalog's listing is without a name")
    return name


def _check_confirmed(profile: Profile, table: TableName) -> None:
    """Refuse to show a token of the recipient's own to a host that the profile alone names: an endpoint was confirmed, no catalog."""
    if profile.identity is None and profile.private_key is None:
        return
    endpoint, catalog = url_or_none(profile.endpoint), url_or_none(profile.iceberg_endpoint or "")
    if endpoint is None or catalog is None or endpoint.origin != catalog.origin:
        raise AccessModeError(
            f"the Iceberg catalog of {table} is on another host than the sharing server, and is not shown a token of your own "
            f"identity or key; ask the provider for a profile with a bearer token, or for a catalog on the server's host"
        )


def _vended(tree: Mapping[str, Any], config: Mapping[str, str], what: str) -> tuple[VendedCredentials, ...]:
    listed = tree.get("storage-credentials")
    if listed is not None and not isinstance(listed, list):
        raise broken(f"{what}: storage-credentials is no list")
    credentials = []
    for entry in listed or ():
        if not isinstance(entry, dict) or not isinstance(entry.get("prefix"), str):
            raise broken(f"{what}: a storage credential has no prefix")
        # What stands beside the entries, as region and endpoint, holds for each.
        credentials.append(VendedCredentials(entry["prefix"], {**_public(config), **_texts(entry, "config", what)}))
    return (*credentials, VendedCredentials(None, config))


def _public(config: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in config.items() if name in ("client.region", "s3.region", "s3.endpoint")}


def _texts(tree: Mapping[str, Any], name: str, what: str) -> dict[str, str]:
    values = tree.get(name)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise broken(f"{what}: {name} is no object")
    return {key: value for key, value in values.items() if isinstance(value, str)}
