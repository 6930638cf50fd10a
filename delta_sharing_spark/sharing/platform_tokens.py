"""Asks the platform for a token of the machine's own identity, by the library of its vendor."""

from __future__ import annotations

from delta_sharing_spark.errors import ConfigError, CredentialError


def azure_token(audience: str, client_id: str | None) -> tuple[str, float | None]:
    """A token of the machine's managed identity (azure-identity), and its end in seconds since 1970.

    Args:
        audience: The resource that the token is for, an application id URI such as ``api://sharing``.
        client_id: Of an identity that was assigned by a user; None means the system's.

    Raises:
        ConfigError: azure-identity is not installed.
        CredentialError: The platform issues no token.
    """
    try:
        from azure.identity import ManagedIdentityCredential
    except ImportError:
        raise _missing("azure", "azure-identity", "azure-identity") from None
    scope = audience if audience.endswith("/.default") else f"{audience}/.default"
    try:
        # A new credential each time: one that was used before would hand out the token that it has kept.
        with ManagedIdentityCredential(client_id=client_id) as credential:
            token = credential.get_token(scope)
    # The library lets errors of its own, of its transport and of msal pass; their texts may quote an answer.
    except Exception as error:
        raise _refused("azure", audience, error, "that a managed identity is assigned to this machine") from None
    return token.token, float(token.expires_on)


def google_token(audience: str) -> tuple[str, float | None]:
    """An id token of the machine's service account (google-auth); the token itself tells its end.

    Raises:
        ConfigError: google-auth is not installed.
        CredentialError: The platform issues no token.
    """
    try:
        from google.auth.transport.requests import Request
        from google.oauth2.id_token import fetch_id_token_credentials
    except ImportError:
        raise _missing("google", "google-auth", "google-identity") from None
    import requests

    try:
        with requests.Session() as session:
            request = Request(session)
            credentials = fetch_id_token_credentials(audience, request)
            credentials.refresh(request)
        return str(credentials.token or ""), None
    except Exception as error:  # as above
        raise _refused("google", audience, error, "that a service account is attached to this machine") from None


def _missing(kind: str, package: str, extra: str) -> ConfigError:
    return ConfigError(f"identity={kind} needs the package '{package}'; pip install 'delta-sharing-spark[{extra}]'")


def _refused(kind: str, audience: str, error: Exception, check: str) -> CredentialError:
    return CredentialError(
        f"identity={kind}: the platform issued no token for the audience {audience} ({type(error).__name__}); check {check}, "
        f"and the audience"
    )
