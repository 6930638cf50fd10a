"""Chooses the access mode of a table (protocol, "Access Modes"), and makes errors of what a sharing server refuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from delta_sharing_spark.access.resolved_scan import Decision, Mode
from delta_sharing_spark.access.settings import iso
from delta_sharing_spark.errors import (
    AccessModeError,
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

#: With both modes on offer, tables of more files than this are read by directory.
MANY_FILES = 1000


def negotiate(
    offered: Sequence[str] | None,
    requested: str = "auto",
    *,
    table: str,
    num_files: int | None = None,
    location: str | None = None,
    url_refusal: str | None = None,
) -> Decision:
    """Choose a mode.

    Args:
        offered: The server's ``accessModes``; None and empty mean url only, as the protocol says.
        requested: The option ``accessMode``: ``"auto"``, ``"url"`` or ``"dir"``.
        num_files: The server's count of the table's files, if it says.
        location: The table's root, as the server says.
        url_refusal: Why the server would not answer for this table in url mode (its features), if it was asked.

    Raises:
        AccessModeError: No mode fits; names what the server offers and what can be done.
    """
    modes = _known(offered)
    if not modes:
        raise AccessModeError(
            f"the sharing server offers table {table} by {_listed(offered)} only, and this client knows url and dir; "
            f"upgrade delta-sharing-spark, or ask the provider to offer one of them"
        )
    no_location = None if location else "the server names no location for it, which the protocol requires"
    refusals: dict[Mode, str | None] = {"url": url_refusal, "dir": no_location}
    if requested in ("url", "dir"):
        return _only("url" if requested == "url" else "dir", modes, offered, table, refusals)
    usable = {mode for mode in modes if refusals[mode] is None}
    if len(usable) == 2:
        if num_files is not None and num_files > MANY_FILES:
            return Decision("dir", f"both modes are offered and the table has {num_files} files", fallback="url")
        return Decision("url", f"both modes are offered, and url is preferred up to {MANY_FILES} files")
    if "url" in usable:
        why = "the server offers url only" if "dir" not in modes else f"dir cannot be used: {no_location}"
        return Decision("url", why if offered else "the server names no access modes, which means url")
    if "dir" in usable:
        return Decision(
            "dir", "the server offers dir only" if "url" not in modes else f"url was refused: {url_refusal}"
        )
    causes = [f"url was refused: {url_refusal}"] if "url" in modes else []
    causes += [f"dir cannot be used: {no_location}"] if "dir" in modes else []
    raise AccessModeError(
        f"table {table} cannot be read by what the sharing server offers ({_listed(offered)}): {'; '.join(causes)}; "
        f"ask the provider to offer {'dir' if 'dir' not in modes else 'url'} as well"
    )


def _only(
    mode: Mode, modes: set[Mode], offered: Sequence[str] | None, table: str, refusals: Mapping[Mode, str | None]
) -> Decision:
    """The mode that the user asked for; raises AccessModeError where it does not fit."""
    other, refusal = "dir" if mode == "url" else "url", refusals[mode]
    if mode not in modes:
        offer = f"offers table {table} by {_listed(offered)} only"
        if not offered:
            offer = f"names no access modes for {table}, which means url"
        more = ", or ask the provider to offer dir" if mode == "dir" else ""
        raise AccessModeError(
            f"accessMode={mode} was asked for, but the sharing server {offer}; set accessMode to auto or {other}{more}"
        )
    if refusal is not None:
        asked = "offer dir as well" if mode == "url" else "correct it or to offer url"
        way = f"set accessMode to auto or {other}" if other in modes else f"ask the provider to {asked}"
        raise AccessModeError(f"table {table} cannot be read with accessMode={mode}: {refusal}; {way}")
    return Decision(mode, f"accessMode={mode}")


def _known(offered: Sequence[str] | None) -> set[Mode]:
    if not offered:
        return {"url"}
    names = {mode.strip().lower() for mode in offered}
    modes: tuple[Mode, ...] = ("url", "dir")
    return {mode for mode in modes if mode in names}


def _listed(offered: Sequence[str] | None) -> str:
    return ", ".join(repr(mode) for mode in offered) if offered else "'url' (it names none)"


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
    """Refuse a table that is not read as Delta, by its formats; none mean Delta (OpenSharing, "Get Table")."""
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
