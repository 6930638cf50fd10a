"""Holds the secrets that storage credentials are made of, which no repr shows, and how storage is reached with them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import ClassVar

from delta_sharing_spark.errors import CredentialError
from delta_sharing_spark.network.http import NetworkSettings
from delta_sharing_spark.storage.locations import Kind, Location


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings(NetworkSettings):
    """How storage is reached, none of it secret.

    Attributes:
        region: AWS region; None finds it (S3 names the right one when asked in the wrong one).
        endpoint: The URL, with its scheme, of an endpoint to use instead of the cloud's own (MinIO, Azurite, an emulator).
        trusts_endpoint: Whether the endpoint may lead to this machine or its network: one that the user names may.
    """

    region: str | None = None
    endpoint: str | None = None
    trusts_endpoint: bool = True


#: What a secret may consist of: no white space, no separators of a connection string, nothing that ends a header.
_VISIBLE = re.compile(r"[!-~]+")
_AMAZON = re.compile(r"\bamazonaws\.|\.(?:c2s\.ic|sc2s\.sgov|csp\.hci\.ic)\.gov\b|\.adc-e\.uk\b")
_SAS = re.compile(r"[A-Za-z0-9._~%&=+,:/!*'()@$-]+")


@dataclass(frozen=True, slots=True)
class AwsSession:
    """AWS temporary security credentials (protocol, "AwsCredentials").

    Attributes:
        session_token: None where the server leaves it out, as for keys that its catalog does not limit in time.
    """

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(repr=False)

    kind: ClassVar[Kind] = "aws"
    named: ClassVar[str] = "awsTempCredentials"

    def check(self) -> None:
        """Raises CredentialError if a part is empty or malformed."""
        _check(f"{self.named}.accessKeyId", self.access_key_id, _VISIBLE)
        _check(f"{self.named}.secretAccessKey", self.secret_access_key, _VISIBLE)
        if self.session_token is not None:
            _check(f"{self.named}.sessionToken", self.session_token, _VISIBLE)


@dataclass(frozen=True, slots=True)
class R2Session(AwsSession):
    """Keys of Cloudflare R2 (OpenSharing, "R2Credentials"), which speaks S3's protocol at an endpoint of each account."""

    kind: ClassVar[Kind] = "r2"
    named: ClassVar[str] = "r2Credentials"


@dataclass(frozen=True, slots=True)
class AzureSas:
    """An Azure shared access signature, as a query string without its ``?`` ("AzureUserDelegationSAS")."""

    sas: str = field(repr=False)

    kind: ClassVar[Kind] = "azure"

    @classmethod
    def of_token(cls, text: str) -> AzureSas:
        """The signature of a server's ``sasToken``: without what a file or a URL leaves around it, its ``+`` as base64 means it."""
        query = text.strip().removeprefix("?")
        return cls("&".join(part.replace("+", "%2B") if part.startswith("sig=") else part for part in query.split("&")))

    def check(self) -> None:
        """Raises CredentialError if it is empty or no query string."""
        _check("azureUserDelegationSas.sasToken", self.sas, _SAS)
        if "sig=" not in self.sas:
            raise CredentialError(
                "azureUserDelegationSas.sasToken has no signature (the parameter sig); ask the provider to check the sharing server"
            )


@dataclass(frozen=True, slots=True)
class GcpBearer:
    """A GCP OAuth access token ("GcpOauthToken")."""

    token: str = field(repr=False)

    kind: ClassVar[Kind] = "gcp"

    def check(self) -> None:
        """Raises CredentialError if it is empty or malformed."""
        _check("gcpOauthToken.oauthToken", self.token, _VISIBLE)


@dataclass(frozen=True, slots=True)
class NoSecret:
    """No secret: local files need none."""

    kind: ClassVar[Kind] = "local"

    def check(self) -> None:
        """Raises nothing."""


Secret = AwsSession | AzureSas | GcpBearer | NoSecret


def fits(secret: Secret, location: Location) -> bool:
    """Whether a secret is for a location's cloud; servers write R2's locations as ``r2://`` or as ``s3://``."""
    return secret.kind == location.kind or (secret.kind == "r2" and location.kind == "aws")


def settings_for(secret: Secret, location: Location, settings: StorageSettings) -> StorageSettings:
    """The settings by which a secret is shown to a location: R2's keys to the user's endpoint or the location's own, never Amazon's.

    Raises:
        CredentialError: Nothing tells R2's endpoint.
    """
    if not isinstance(secret, R2Session):
        return settings
    # An endpoint that the user names stands in for every cloud's own, unless it is Amazon's, named for other tables.
    named = settings.endpoint if settings.endpoint and not _AMAZON.search(settings.endpoint.lower()) else None
    if named is None and not location.host:
        raise CredentialError(
            f"the keys for {location} are Cloudflare R2's, and nothing tells its account, so that they are sent nowhere; set "
            f"the option storageEndpoint to https://<account>.r2.cloudflarestorage.com, or ask the provider to share it as "
            f"r2://<bucket>@<account>.r2.cloudflarestorage.com/<path>"
        )
    region = settings.region if named else None
    return replace(settings, endpoint=named or f"https://{location.host}", region=region or "auto")


def _check(name: str, value: object, allowed: re.Pattern[str]) -> None:
    if not isinstance(value, str) or not value.strip():
        raise CredentialError(
            f"the sharing server issued a credential whose {name} is empty; nothing else is used in its place: "
            f"ask the provider to check the sharing server"
        )
    if not allowed.fullmatch(value):
        raise CredentialError(
            f"the sharing server issued a credential whose {name} has characters that cannot stand there; "
            f"ask the provider to check the sharing server"
        )
