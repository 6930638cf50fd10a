"""Turns what an Iceberg catalog vends into storage tokens of a table's locations, and renews them by the catalog."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from delta_sharing_spark.access.directory.access import UNTOLD_SECONDS, StorageToken, token_covering
from delta_sharing_spark.access.iceberg.catalog import IcebergCatalog, VendedCredentials
from delta_sharing_spark.errors import AccessModeError, CredentialError, UnsupportedFeatureError
from delta_sharing_spark.network.http import NetworkSettings, parse_count
from delta_sharing_spark.network.urls import UrlError, is_local_address, is_loopback, is_on_loopback, parse_url
from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.sharing.profile import Profile
from delta_sharing_spark.storage.clouds.contract import NO_SECRET, Secret
from delta_sharing_spark.storage.clouds.registry import cloud_of, kind_of, parse_location
from delta_sharing_spark.storage.locations import Location
from delta_sharing_spark.storage.range_reader import StorageSettings

#: Directories of files that are held as checked.
_MOST_DIRECTORIES = 1 << 16


@dataclass(frozen=True, slots=True)
class CatalogIssuer:
    """Issues tokens of a table's locations by its catalog (``access.directory.access.Issuer``)."""

    catalog: IcebergCatalog
    table: TableName

    @property
    def settings(self) -> NetworkSettings:
        """How long it asks."""
        return self.catalog.settings

    @property
    def profile(self) -> Profile:
        """The recipient it asks as."""
        return self.catalog.profile

    def issue_token(self, location: Location, seconds: float | None = None) -> StorageToken:
        """See ``Issuer.issue_token``; one request, of whose answer the credentials alone are looked at."""
        credentials = replace(self.catalog, settings=self.settings.early(seconds)).credentials(self.table)
        return token_for(location, credentials, self.catalog, self.table)


def token_for(
    location: Location, credentials: Iterable[VendedCredentials], catalog: IcebergCatalog, table: TableName
) -> StorageToken:
    """The token of one of a table's locations: of the longest prefix that covers it, else of the answer's ``config``.

    Raises:
        CredentialError: Nothing is vended for it, or what is vended is malformed.
        UnsupportedFeatureError: Requests would have to be signed by the catalog.
    """
    origin, now = f"{catalog.profile.iceberg_endpoint} {table}", time.time()
    if location.is_local:
        return StorageToken(location, NO_SECRET, now, now + UNTOLD_SECONDS, origin)
    by_length = sorted(credentials, key=lambda one: len(one.prefix or ""), reverse=True)
    signs = False
    for one in by_length:
        if not _covers(one.prefix, location):
            continue
        secret, ends = _secret(location, one.properties)
        signs |= one.properties.get("s3.remote-signing-enabled", "").lower() == "true"
        if secret is not None:
            expires = ends if ends is not None and ends > now else now + UNTOLD_SECONDS
            return StorageToken(location, secret, now, expires, origin, ended=ends if ends and ends <= now else None)
    if signs:
        raise UnsupportedFeatureError(
            f"the Iceberg catalog vends no credentials for {location} of {table} and would sign each request itself "
            f"(s3.remote-signing-enabled), which this reader does not ask for; ask the provider to vend credentials",
            features=("remote signing",),
        )
    raise CredentialError(
        f"the Iceberg catalog vends no credentials for {location} of {table}; ask the provider to vend credentials for it"
    )


def _covers(prefix: str | None, location: Location) -> bool:
    if prefix is None:
        return True
    scheme = prefix.partition(":")[0].lower()
    if prefix.rstrip(":/").lower() == scheme:
        return kind_of(scheme) == location.kind
    return kind_of(scheme) is not None and parse_location(prefix).covers(location)


def _secret(location: Location, properties: Mapping[str, str]) -> tuple[Secret | None, float | None]:
    """The secret among properties for a location's cloud, and when it ends; None where there is none."""
    cloud = cloud_of(location.kind)
    for names, end in cloud.iceberg_properties(location):
        parts = {part: properties[name] for part, name in names.items() if properties.get(name)}
        if parts.keys() >= set(cloud.parts) - cloud.optional:
            millis = parse_count(properties.get(end, ""))
            return Secret(location.kind, cloud.parts_of(parts)), None if millis is None else millis / 1000
    return None, None


def table_locations(
    credentials: Sequence[VendedCredentials], own: Iterable[str], catalog: IcebergCatalog, table: str
) -> tuple[Location, ...]:
    """The locations below which a table's files may lie: the prefixes that are vended, and the table's own.

    Args:
        credentials: The catalog's credentials.
        own: Locations by the table's metadata: its root, and those that its properties name.

    Raises:
        AccessModeError: A scheme that is not read, or a local location of a catalog elsewhere.
    """
    locations: dict[tuple[object, str], Location] = {}
    prefixes = [one.prefix for one in credentials if one.prefix is not None and one.prefix.partition(":")[2].strip("/")]
    # Where prefixes are vended, they alone say what may be read.
    for text in prefixes or own:
        location = parse_location(text)
        if location.is_local and not is_on_loopback(catalog.profile.iceberg_endpoint or ""):
            raise AccessModeError(
                f"Iceberg table {table} lies at {location}, a local path, which is read only for a catalog on this machine; "
                f"ask the provider to check the table's location"
            )
        locations.setdefault((location.realm, location.key), location)
    return tuple(locations.values())


class VendedPlaces:
    """Where a table's files may lie: below the locations of its tokens."""

    def __init__(self, tokens: Sequence[StorageToken], table: str) -> None:
        self._tokens, self._table = tokens, table
        self._directories: set[str] = set()

    def check(self, path: str) -> None:
        """Raises AccessModeError or CredentialError for a path outside, or one that is none."""
        directory, _, name = path.rpartition("/")
        if directory in self._directories and name not in ("", ".", ".."):
            return
        location = parse_location(path)
        token = token_covering(self._tokens, location, table=self._table)
        # A prefix may be that of a file alone.
        if token.location != location and len(self._directories) < _MOST_DIRECTORIES:
            self._directories.add(directory)


def vended_settings(
    settings: StorageSettings, credentials: Iterable[VendedCredentials], catalog: IcebergCatalog, table: str
) -> StorageSettings:
    """How the storage is reached: by the user's region and endpoint, else by those that the catalog names.

    Raises:
        AccessModeError: The endpoint is one that vended keys may not be shown to.
    """
    regions, endpoints = set(), set()
    for one in credentials:
        regions |= {one.properties[name] for name in ("client.region", "s3.region") if one.properties.get(name)}
        endpoints |= {one.properties["s3.endpoint"].rstrip("/")} if one.properties.get("s3.endpoint") else set()
    region = settings.region or (regions.pop() if len(regions) == 1 else None)
    if settings.endpoint is not None or not endpoints:
        return replace(settings, region=region)
    endpoint = endpoints.pop()
    why = "it names several" if endpoints else None
    is_local = False
    try:
        url = parse_url(endpoint)
        is_local = is_loopback(url.host)
        if is_local and not is_on_loopback(catalog.profile.iceberg_endpoint or ""):
            why = "it is this machine"
        elif not is_local and (url.scheme != "https" or is_local_address(url.host)):
            why = "it is not https" if url.scheme != "https" else "it is an address of this machine or its network"
    except UrlError as error:
        why = str(error)
    if why is not None:
        raise AccessModeError(
            f"the endpoint of the storage (s3.endpoint) that the Iceberg catalog names for {table} is not asked: {why}; set the "
            f"option storageEndpoint if you trust it, or ask the provider"
        )
    return replace(settings, region=region, endpoint=endpoint, trusts_endpoint=is_local)
