"""Tells what a load asks the sharing server and the storage with, by its options, and makes errors of what the server refuses."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from delta_sharing_spark.errors import (
    AddressError,
    NotFoundError,
    OptionError,
    RequestRefusedError,
    ServerError,
    UnsupportedFeatureError,
    VersionError,
)
from delta_sharing_spark.network.client_certificate import ClientCertificate
from delta_sharing_spark.network.http import NetworkSettings
from delta_sharing_spark.network.urls import host_name, is_on_loopback
from delta_sharing_spark.options.declared import ReadOptions
from delta_sharing_spark.schema.instants import to_iso
from delta_sharing_spark.sharing.address import TableName, parse_address
from delta_sharing_spark.sharing.identity import identity_of, variable_of, whole_path
from delta_sharing_spark.sharing.profile import Profile, profile_by, profile_from_fields
from delta_sharing_spark.sharing.rest import FORMATS
from delta_sharing_spark.sharing.transport import is_about_versions
from delta_sharing_spark.storage.range_reader import StorageSettings


def profile_and_table(options: ReadOptions) -> tuple[Profile, TableName]:
    """The profile and the table of a load, by its address, its inline options or the environment; raises AddressError or ProfileError."""
    address = parse_address(options.path)
    if inline := options.credentials:
        if address.profile is not None:
            raise OptionError(
                "cannot specify both share credentials options and a profile file path; "
                "write the path as <share>.<schema>.<table>, or leave the credentials out"
            )
        inline.setdefault(
            "shareCredentialsVersion", "1" if inline.get("type", "bearer_token") == "bearer_token" else "2"
        )
        return profile_from_fields(inline, "the profile in the options", identity_of(options)), address.table
    profile = profile_by(options, address.profile)
    if profile is None:
        raise AddressError(
            f"the path {options.path!r} names no profile; write <profile>#<share>.<schema>.<table>, "
            f"set DELTA_SHARING_PROFILE, or give the credentials as options"
        )
    return profile, address.table


def transport_of(options: ReadOptions, table: TableName | None = None) -> NetworkSettings:
    """How requests to the sharing server are sent, of which metrics say the table."""
    return NetworkSettings(
        read_timeout=options.read_timeout,
        client_certificate=_client_certificate(options),
        **_bounds(options, table),
    )


def _client_certificate(options: ReadOptions) -> ClientCertificate | None:
    """The certificate of the options, else of the environment."""
    files = options.client_certificate, options.client_key
    if files[0] is None:
        files = os.environ.get(variable_of("clientCertificate")), os.environ.get(variable_of("clientKey"))
    certificate, key = (whole_path(file) if file else None for file in files)
    return None if certificate is None else ClientCertificate(certificate, key, options.client_key_password)


def storage_settings(
    options: ReadOptions, table: TableName | None = None, profile: Profile | None = None
) -> StorageSettings:
    """How data is asked for: at a storage, or by presigned URLs of a profile's server."""
    silence = options.read_timeout
    if silence == NetworkSettings().read_timeout:  # no longer than leaves time to ask once more within retryTimeout
        silence = min(silence, max(options.connect_timeout, options.retry_timeout / 2))
    return StorageSettings(
        region=options.storage_region,
        endpoint=options.storage_endpoint,
        allowed_hosts=tuple(map(host_name, options.allowed_data_hosts)),
        local_server=profile is not None and is_on_loopback(profile.endpoint),
        read_timeout=silence,
        **_bounds(options, table),
    )


def _bounds(options: ReadOptions, table: TableName | None) -> dict[str, Any]:
    """What all requests of a load have in common."""
    # Spark's version, where the process runs under it (without importing it).
    spark = getattr(sys.modules.get("pyspark"), "__version__", None) or os.environ.get("SPARK_VERSION")
    return {
        "connect_timeout": options.connect_timeout,
        "retry_seconds": options.retry_timeout,
        "proxy": options.proxy,
        "ca_bundle": options.ca_bundle,
        "caller_org": options.caller_org,
        "engine": f"Spark/{spark}" if spark else None,
        "table": "" if table is None else str(table),
    }


def response_formats(options: ReadOptions, *, of_versions: bool = False) -> tuple[str, ...]:
    """The response formats to ask for, preferred first.

    Args:
        of_versions: Whether a version, a moment or a range is asked for: that needs the delta format where a server that may
            choose would look at the newest version alone.
    """
    if options.response_format:
        return (options.response_format,)
    travels = options.version_as_of is not None or options.timestamp_as_of is not None
    return FORMATS[:1] if of_versions or travels else FORMATS


def iso(moment: datetime | None) -> str | None:
    """An option's moment as the protocol writes it."""
    return None if moment is None else to_iso(moment)


#: How servers refuse versions that they do not have or do not share, and endpoints.
Refusal = RequestRefusedError | NotFoundError
REFUSALS = (RequestRefusedError, NotFoundError)


def refused_travel(table: TableName, options: ReadOptions, newest: int | None, refusal: Refusal) -> VersionError:
    """The error for a version or a moment that the server refuses while it serves the table itself."""
    version = options.version_as_of
    if version is not None and newest is not None and version > newest:
        return VersionError(
            f"version {version} of {table} does not exist: the newest is {newest}; ask for a version up to {newest}"
        )
    asked = f"version {version} of {table}" if version is not None else f"{table} as of {iso(options.timestamp_as_of)}"
    hint = "" if newest is None else f" (the newest is {newest})"
    return VersionError(
        f"{asked} cannot be read: {words_of(refusal)}; ask for a version that is shared{hint}, or ask the provider to "
        f"share the table's history"
    )


def classified(
    table: TableName, options: ReadOptions, newest: int | None, refusal: RequestRefusedError
) -> RequestRefusedError | VersionError:
    """The error for refused files of a table: a ``VersionError`` where the server says that it is about versions."""
    if not is_about_versions(refusal):
        return refusal
    if options.version_as_of is not None or options.timestamp_as_of is not None:
        return refused_travel(table, options, newest, refusal)
    return VersionError(f"{table} cannot be read: {words_of(refusal)}; ask the provider to check what the share covers")


def check_formats(table: TableName, formats: Sequence[str], profile: Profile) -> None:
    """Refuse a table that is not read as Delta, by its formats; none mean Delta (OpenSharing, "Get Table")."""
    if formats and "delta" not in formats:
        named = " and ".join("Iceberg" if name == "iceberg" else repr(name) for name in formats)
        advice = iceberg_advice(profile) if "iceberg" in formats else "ask the provider to share it as Delta"
        raise UnsupportedFeatureError(
            f"{table} is shared in the format {named} alone; {advice}", features=tuple(formats)
        )


def iceberg_advice(profile: Profile) -> str:
    """What to do about a table that is, or may be, an Iceberg table."""
    if profile.iceberg_endpoint is None:
        return (
            "this profile does not have the address of the provider's Iceberg catalog (icebergEndpoint): ask the provider for one "
            "that has, or to share the table as Delta"
        )
    return f"read it from the Iceberg catalog at {profile.iceberg_endpoint}: set accessMode to auto or iceberg"


def is_of_iceberg(refusal: ServerError) -> bool:
    """Whether a server refuses a call because the table is an Iceberg table."""
    return refusal.status == 501 and "iceberg" in (refusal.server_message or "").lower()


def words_of(refusal: ServerError) -> str:
    """The server's message in a refusal, as part of a sentence."""
    if refusal.server_message:
        return f"the sharing server says: {refusal.server_message.rstrip('. ')}"
    return str(refusal) if refusal.status is None else f"the sharing server answers {refusal.status} without a word"
