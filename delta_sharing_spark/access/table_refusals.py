"""Tells from a sharing server's refusal whether it is about a version, and makes the error of it."""

from __future__ import annotations

from collections.abc import Sequence

from delta_sharing_spark.access.settings import iso
from delta_sharing_spark.errors import (
    NotFoundError,
    RequestRefusedError,
    ServerError,
    UnsupportedFeatureError,
    VersionError,
)
from delta_sharing_spark.options import ReadOptions
from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.sharing.profile import Profile
from delta_sharing_spark.sharing.transport import is_about_versions

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
    known = "" if newest is None else f" (the newest is {newest})"
    return VersionError(
        f"{asked} cannot be read: {words_of(refusal)}; ask for a version that is shared{known}, or ask the provider to "
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
    """Refuse a table that is not read as Delta; no formats mean Delta (OpenSharing, "Get Table").

    Raises:
        UnsupportedFeatureError: None of the formats is Delta; names them.
    """
    if formats and "delta" not in formats:
        named = " and ".join("Iceberg" if name == "iceberg" else repr(name) for name in formats)
        advice = iceberg_advice(table, profile) if "iceberg" in formats else "ask the provider to share it as Delta"
        raise UnsupportedFeatureError(
            f"{table} is shared in the format {named}, and this reader reads Delta; {advice}", features=tuple(formats)
        )


def iceberg_advice(table: TableName, profile: Profile) -> str:
    """What to do about a table that is, or may be, an Iceberg table."""
    if profile.iceberg_endpoint is None:
        return (
            "read it by an Iceberg client from the provider's Iceberg catalog, whose address this profile does not have "
            "(icebergEndpoint), or ask the provider to share it as Delta"
        )
    return (
        f"read it by an Iceberg client from the catalog at {profile.iceberg_endpoint} (warehouse {table.share}, table "
        f"{table.schema}.{table.table}), or ask the provider to share it as Delta"
    )


def words_of(refusal: ServerError) -> str:
    """The server's message in a refusal, as part of a sentence."""
    if refusal.server_message:
        return f"the sharing server says: {refusal.server_message.rstrip('. ')}"
    return str(refusal) if refusal.status is None else f"the sharing server answers {refusal.status} without a word"
