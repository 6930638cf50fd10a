"""Holds the secrets that storage credentials are made of; none of them shows up in a repr."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar

from delta_sharing_spark.errors import CredentialError
from delta_sharing_spark.storage.locations import Kind

#: What a secret may consist of: no white space, no separators of a connection string, nothing that ends a header.
_VISIBLE = re.compile(r"[!-~]+")
_SAS = re.compile(r"[A-Za-z0-9._~%&=+,:/!*'()@$-]+")


@dataclass(frozen=True, slots=True)
class AwsSession:
    """AWS temporary security credentials (protocol, "AwsCredentials"): all three parts are required."""

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str = field(repr=False)

    kind: ClassVar[Kind] = "aws"

    def check(self) -> None:
        """Raises CredentialError if a part is empty or malformed."""
        _check("awsTempCredentials.accessKeyId", self.access_key_id, _VISIBLE)
        _check("awsTempCredentials.secretAccessKey", self.secret_access_key, _VISIBLE)
        _check("awsTempCredentials.sessionToken", self.session_token, _VISIBLE)


@dataclass(frozen=True, slots=True)
class AzureSas:
    """An Azure shared access signature, as a query string without its ``?`` ("AzureUserDelegationSAS")."""

    sas: str = field(repr=False)

    kind: ClassVar[Kind] = "azure"

    def check(self) -> None:
        """Raises CredentialError if it is empty or no query string."""
        _check("azureUserDelegationSas.sasToken", self.sas, _SAS)
        if "sig=" not in self.sas:
            raise CredentialError(
                "azureUserDelegationSas.sasToken has no signature (sig=); ask the provider to check the sharing server"
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
