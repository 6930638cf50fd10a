"""Writes storage tokens as the options of other engines: fsspec, deltalake, Polars, DuckDB, and Hadoop's configuration.

What is returned works until the token expires, and holds secrets: hand it on, do not print it. No engine here can
renew it; ask again before ``expires``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal, get_args

from delta_sharing_spark._version import install_line
from delta_sharing_spark.access.directory.access import StorageToken
from delta_sharing_spark.errors import AccessModeError, CredentialError, OptionError
from delta_sharing_spark.schema.instants import show_seconds
from delta_sharing_spark.storage.locations import Location
from delta_sharing_spark.storage.regions import find_region
from delta_sharing_spark.storage.secrets import AwsSession, AzureSas, GcpBearer, StorageSettings, settings_for

Engine = Literal["fsspec", "deltalake", "polars", "duckdb"]

_TEMPORARY_PROVIDER = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
_FIXED_SAS_PROVIDER = "org.apache.hadoop.fs.azurebfs.sas.FixedSASTokenProvider"


class EngineOptions(dict[str, Any]):
    """A plain dictionary whose ``repr`` shows its keys but not its values.

    Attributes:
        location: The location as the engine writes it (``s3a`` for Hadoop, ``s3`` elsewhere, ``abfss`` for ``wasbs``).
        expires: Seconds since the epoch when it stops working, as the server announced it.
    """

    def __init__(self, values: Mapping[str, Any], *, location: str, expires: float) -> None:
        super().__init__(values)
        self.location = location
        self.expires = expires

    def __repr__(self) -> str:
        keys = ", ".join(f"{key!r}: '[redacted]'" for key in self)
        return f"EngineOptions({{{keys}}}, location={self.location!r}, expires={show_seconds(self.expires)!r})"

    __str__ = __repr__

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(EngineOptions, dict(self), location=self.location, expires=self.expires), ()


def storage_options(
    token: StorageToken, settings: StorageSettings | None = None, *, engine: Engine = "fsspec"
) -> EngineOptions:
    """A token as an engine's storage options.

    Args:
        token: The token of the location to be read.
        settings: Region and endpoint; an S3 region of None is looked up.
        engine: ``"fsspec"`` (``fsspec.filesystem(..., **options)``, pandas, Dask), ``"deltalake"``
            (``DeltaTable(options.location, storage_options=options)``), ``"polars"``, or ``"duckdb"`` (the parameters
            of ``CREATE SECRET``; ``create_secret`` writes the statement).

    Raises:
        OptionError: An unknown engine.
        CredentialError: The engine cannot take this kind of token; says what can.
    """
    if engine not in get_args(Engine):
        raise OptionError(f"engine={engine!r} is not known; use one of {', '.join(get_args(Engine))}")
    secret = token.secret
    settings = settings_for(secret, token.location, settings or StorageSettings())
    if isinstance(secret, AwsSession):
        values = _aws(secret, token.location, settings, engine)
    elif isinstance(secret, AzureSas):
        values = _azure(secret, token.location, settings, engine)
    elif isinstance(secret, GcpBearer):
        values = _gcp(secret, token.location, settings, engine)
    else:
        values = {}
    return EngineOptions(values, location=_written(token.location, "s3"), expires=token.expires)


def _aws(secret: AwsSession, location: Location, settings: StorageSettings, engine: Engine) -> dict[str, Any]:
    region = settings.region or find_region(location.container, settings)
    endpoint = settings.endpoint
    if secret.session_token is None and engine != "fsspec":
        raise CredentialError(
            f"the keys for {location} have no session token, in whose place {engine} may take one of this machine's environment; "
            f"read it by fsspec, or use accessMode=url or dir of this package"
        )
    if engine == "fsspec":
        values: dict[str, Any] = {
            "key": secret.access_key_id,
            "secret": secret.secret_access_key,
            "token": secret.session_token,
            "client_kwargs": {"region_name": region},
        }
        return {**values, "endpoint_url": endpoint} if endpoint else values
    if engine == "duckdb":
        values = {
            "TYPE": "s3",
            "KEY_ID": secret.access_key_id,
            "SECRET": secret.secret_access_key,
            "SESSION_TOKEN": secret.session_token,
            "REGION": region,
            "SCOPE": _written(location, "s3"),
        }
        if endpoint:
            scheme, _, host = endpoint.partition("://")
            values |= {"ENDPOINT": host, "URL_STYLE": "path", "USE_SSL": "false" if scheme == "http" else "true"}
        return values
    values = {
        "aws_access_key_id": secret.access_key_id,
        "aws_secret_access_key": secret.secret_access_key,
        "aws_session_token": secret.session_token,
        "aws_region": region,
    }
    if endpoint:
        values["aws_endpoint_url"] = endpoint
        if endpoint.startswith("http://"):
            values["aws_allow_http"] = "true"
    return values


def _azure(secret: AzureSas, location: Location, settings: StorageSettings, engine: Engine) -> dict[str, Any]:
    endpoint = settings.endpoint or f"https://{location.blob_host}"
    connection = f"BlobEndpoint={endpoint};SharedAccessSignature={secret.sas}"
    if engine == "fsspec":
        # As a connection string, and not as a SAS: adlfs takes one of the environment before a SAS.
        return {"account_name": location.account, "connection_string": connection}
    if engine == "duckdb":
        # It compares the account's name with the path's, and reads abfss by the DFS endpoint.
        dfs = settings.endpoint or f"https://{location.blob_host.replace('.blob.', '.dfs.', 1)}"
        connection = f"AccountName={location.account};DfsEndpoint={dfs};{connection}"
        return {"TYPE": "azure", "CONNECTION_STRING": connection, "SCOPE": _written(location, "s3")}
    values = {"azure_storage_account_name": location.account, "azure_storage_sas_token": secret.sas}
    if settings.endpoint:
        values["azure_storage_endpoint"] = settings.endpoint
        if settings.endpoint.startswith("http://"):
            values["azure_allow_http"] = "true"
    return values


def _gcp(secret: GcpBearer, location: Location, settings: StorageSettings, engine: Engine) -> dict[str, Any]:
    if engine == "fsspec":
        try:
            from google.oauth2.credentials import Credentials
        except ImportError:
            raise AccessModeError(
                f"fsspec reads {location} by gcsfs, which is not installed: {install_line('gcs')}"
            ) from None
        # An object without an expiry: gcsfs sends a bare string to Google's tokeninfo, and google-auth counts a
        # token expired almost four minutes early.
        values: dict[str, Any] = {"token": Credentials(secret.token)}
        return {**values, "endpoint_url": settings.endpoint} if settings.endpoint else values
    instead = {
        "deltalake": "use accessMode=url or dir of this package",
        "polars": (
            'give scan_parquet(..., credential_provider=lambda: ({"bearer_token": token}, expires)) the token of '
            'storage_options(engine="fsspec")["token"].token, or use accessMode=url or dir of this package'
        ),
        "duckdb": 'register fsspec\'s file system (register_filesystem) made from storage_options(engine="fsspec")',
    }[engine]
    raise CredentialError(
        f"{engine} cannot take a GCS OAuth token as a storage option: it would be passed over, and the machine's own "
        f"Google identity used for {location}; {instead}"
    )


def create_secret(options: EngineOptions, name: str = "delta_sharing") -> str:
    """DuckDB's statement for ``storage_options(engine="duckdb")``: a secret in memory, scoped to the location."""
    parts = ", ".join(f"{key} '{str(value).replace(chr(39), chr(39) * 2)}'" for key, value in options.items())
    return f'CREATE OR REPLACE SECRET "{name.replace(chr(34), chr(34) * 2)}" ({parts})'


def hadoop_conf(
    tokens: Iterable[StorageToken], settings: StorageSettings | None = None, *, gcs_token_provider: str | None = None
) -> EngineOptions:
    """Hadoop's configuration for a table's locations (protocol, "Delta Kernel Example"); the first token is its root's.

    Keys of S3A and GCS hold for all buckets, as in the specification's example; those of Azure for one account.

    Args:
        gcs_token_provider: The Java class that gives Google's connector its token, by
            ``fs.gs.auth.access.token.credential``; the connector itself has none.

    Raises:
        CredentialError: Two locations need the same key with different secrets, or a GCS token and no provider.
    """
    settings = settings or StorageSettings()
    conf: dict[str, str] = {}
    expires, location = float("inf"), ""
    for token in tokens:
        for key, value in _hadoop(token, settings, gcs_token_provider).items():
            if conf.setdefault(key, value) != value:
                raise CredentialError(
                    f"{key} would need two values, because the table's locations ({location}, {token.location}) have "
                    f"credentials of their own; read it with accessMode=dir or url of this package"
                )
        location = location or _written(token.location, "s3a")
        expires = min(expires, token.expires)
    return EngineOptions(conf, location=location, expires=expires)


def _hadoop(token: StorageToken, settings: StorageSettings, gcs_token_provider: str | None) -> dict[str, str]:
    location, secret = token.location, token.secret
    settings = settings_for(secret, location, settings)
    if isinstance(secret, AwsSession):
        if secret.session_token is None:
            raise CredentialError(
                f"the keys for {location} have no session token, without which Hadoop's provider of temporary keys takes none; use accessMode=dir or url of this package"
            )
        conf = {
            "fs.s3a.aws.credentials.provider": _TEMPORARY_PROVIDER,
            "fs.s3a.access.key": secret.access_key_id,
            "fs.s3a.secret.key": secret.secret_access_key,
            "fs.s3a.session.token": secret.session_token,
        }
        if settings.region:
            conf["fs.s3a.endpoint.region"] = settings.region
        if settings.endpoint:
            conf |= {"fs.s3a.endpoint": settings.endpoint, "fs.s3a.path.style.access": "true"}
        return conf
    if isinstance(secret, AzureSas):
        if location.scheme in ("wasbs", "wasb"):
            return {f"fs.azure.sas.{location.container}.{location.blob_host}": secret.sas}
        return {
            f"fs.azure.account.auth.type.{location.host}": "SAS",
            f"fs.azure.sas.token.provider.type.{location.host}": _FIXED_SAS_PROVIDER,
            f"fs.azure.sas.fixed.token.{location.host}": secret.sas,
        }
    if isinstance(secret, GcpBearer):
        if gcs_token_provider is None:
            raise CredentialError(
                "Hadoop's GCS connector takes a token only through a Java class (fs.gs.auth.access.token.provider), and "
                "brings none; name one that reads fs.gs.auth.access.token.credential as gcs_token_provider"
            )
        return {
            "fs.gs.auth.type": "ACCESS_TOKEN_PROVIDER",
            "fs.gs.auth.access.token.provider": gcs_token_provider,
            "fs.gs.auth.access.token.credential": secret.token,
            "fs.gs.auth.access.token.expiration": str(int(token.expires * 1000)),
        }
    return {}


def _written(location: Location, s3: str) -> str:
    """A location with the schemes that other engines use: ``s3`` as given, ``abfss`` for ``wasbs``."""
    if location.kind in ("aws", "r2"):
        return f"{s3}://{location.path}"
    if location.scheme in ("wasbs", "wasb", "abfs") and s3 == "s3":
        host = location.blob_host.replace(".blob.", ".dfs.", 1)
        return str(replace(location, scheme="abfss", host=host))
    return str(location)
