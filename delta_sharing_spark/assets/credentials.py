"""Keeps the storage credentials of an asset: asked for when they are needed, renewed before they end and when they are refused."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from delta_sharing_spark.access.directory.access import TOKENS, StorageToken, issue, storage_for
from delta_sharing_spark.errors import AccessModeError, CredentialError, ResponseError
from delta_sharing_spark.network.http import MAX_RENEWALS, NetworkSettings
from delta_sharing_spark.network.urls import is_on_loopback
from delta_sharing_spark.sharing.assets import READY, AssetName, ModelVersion, Record, asset_credentials
from delta_sharing_spark.sharing.auth import carried_profile, carried_settings
from delta_sharing_spark.sharing.profile import Profile
from delta_sharing_spark.sharing.rest import SharingRest
from delta_sharing_spark.storage.answers import action_of, reason_of
from delta_sharing_spark.storage.clouds.registry import kind_of, parse_location, scheme_of, schemes
from delta_sharing_spark.storage.locations import Location
from delta_sharing_spark.storage.objects import Storage
from delta_sharing_spark.storage.place import Place
from delta_sharing_spark.storage.range_reader import StorageSettings


@dataclass(frozen=True, slots=True)
class AssetIssuer:
    """Asks the sharing server for tokens of an asset (``access.directory.access.Issuer``)."""

    profile: Profile = field(repr=False)
    settings: NetworkSettings = field(repr=False, compare=False)
    asset: AssetName

    def __reduce__(self) -> tuple[type[AssetIssuer], tuple[object, ...]]:
        """Another process is given a profile that needs no identity of this one."""
        profile, settings = carried_profile(self.profile, self.settings, True), carried_settings(self.settings, True)
        return AssetIssuer, (profile, settings, self.asset)

    def issue_token(self, location: Location, seconds: float | None = None) -> StorageToken:
        """See ``Issuer.issue_token``; one request."""
        answer = asset_credentials(SharingRest(self.profile, self.settings.early(seconds)), self.asset)
        return issue(answer, location, origin=f"{self.profile.endpoint} {self.asset}", now=time.time())


@dataclass(frozen=True, slots=True)
class AssetLease:
    """An asset's storage (``storage.range_reader.Lease``). Picklable."""

    issuer: AssetIssuer
    location: Location
    settings: StorageSettings = field(repr=False)

    def token(self, refused: StorageToken | None = None) -> StorageToken:
        """A token that should work now."""
        return TOKENS.get(self.issuer, self.location, refused=refused)

    def current(self) -> Storage:
        return storage_for(self.token(), self.settings)

    def refused(self, storage: Storage, name: str, refusal: PermissionError, refusals: int) -> None:
        if refusals >= MAX_RENEWALS:
            action = action_of(
                refusal,
                f"it may not exist, where the credential cannot list: ask the provider whether the credential of "
                f"{self.issuer.asset} covers all of {self.location}",
            )
            raise CredentialError(
                f"the storage refuses {name}, also with a new credential ({reason_of(refusal)}); {action}"
            )
        token = self.token()
        if token.uuid == storage.credential:
            self.token(refused=token)


def place_of(rest: SharingRest, asset: AssetName, record: Record, settings: StorageSettings) -> Place:
    """Where an asset's files are.

    Raises:
        ResponseError: The server names no location.
        AccessModeError: It is one that is not read: of an unknown scheme, or local of a remote server.
        CredentialError: It is malformed, or the version of a model is not ready.
    """
    if isinstance(record, ModelVersion) and record.status != READY:
        raise CredentialError(f"{asset} is {record.status or 'of no status'}, not {READY}: it has no files to read yet")
    text = record.storage_location
    if not text:
        raise ResponseError(
            f"the sharing server names no storageLocation of {asset}; ask the provider to check the server"
        )
    if kind_of(scheme_of(text)) is None:
        raise AccessModeError(
            f"{asset} lies at {text!r}, whose scheme {scheme_of(text) or 'none'!r} is not read; those that are: {schemes()}"
        )
    root = parse_location(text)
    if root.is_local and not is_on_loopback(rest.profile.endpoint):
        raise AccessModeError(
            f"{asset} lies at {root}, a local path, which is read only for a sharing server on this machine; ask the provider"
        )
    return Place(str(asset), root, AssetLease(AssetIssuer(rest.profile, rest.settings, asset), root, settings))
