"""Writes storage tokens as the options of other engines: fsspec, deltalake, Polars, DuckDB, and Hadoop's configuration.

What is returned works until the token expires, and holds secrets: hand it on, do not print it. No engine here can
renew it; ask again before ``expires``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, get_args

from delta_sharing_spark.access.directory.access import StorageToken
from delta_sharing_spark.errors import CredentialError, OptionError
from delta_sharing_spark.schema.instants import show_seconds
from delta_sharing_spark.storage.clouds.contract import Cloud, Engine
from delta_sharing_spark.storage.clouds.registry import cloud_for, cloud_of
from delta_sharing_spark.storage.range_reader import StorageSettings


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
    values: dict[str, Any] = {}
    if not token.location.is_local:
        values = _cloud(token, settings).engine_options(engine, token.location)
    return EngineOptions(values, location=_uri(token, "s3"), expires=token.expires)


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
    conf: dict[str, str] = {}
    expires, location = float("inf"), ""
    for token in tokens:
        if token.location.is_local:
            options = {}
        else:
            options = _cloud(token, settings).hadoop_options(token.location, token.expires, gcs_token_provider)
        for key, value in options.items():
            if conf.setdefault(key, value) != value:
                raise CredentialError(
                    f"{key} would need two values, because the table's locations ({location}, {token.location}) have "
                    f"credentials of their own; read it with accessMode=dir or url of this package"
                )
        location = location or _uri(token, "s3a")
        expires = min(expires, token.expires)
    return EngineOptions(conf, location=location, expires=expires)


def _cloud(token: StorageToken, settings: StorageSettings | None) -> Cloud:
    return cloud_for(token.secret, token.location, settings or StorageSettings())


def _uri(token: StorageToken, scheme: str) -> str:
    """A location with the schemes that other engines use; ``scheme`` is theirs for S3."""
    location = token.location
    return str(location) if location.is_local else cloud_of(token.kind).engine_uri(location, scheme)
