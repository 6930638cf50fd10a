"""Finds versions by the sharing server: time travel, moments, and the range of a change data feed (protocol, "Query Table")."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from delta_sharing_spark.access.change_range import begins_after, range_of_versions
from delta_sharing_spark.access.settings import iso, response_formats
from delta_sharing_spark.access.table_refusals import REFUSALS, Refusal, refused_travel, words_of
from delta_sharing_spark.errors import DeltaSharingError, ServerError, StreamError, UnavailableError, VersionError
from delta_sharing_spark.options import ReadOptions
from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.sharing.query import Query
from delta_sharing_spark.sharing.refusals import is_about_versions
from delta_sharing_spark.sharing.rest import SharingRest
from delta_sharing_spark.sharing.wire_records import Protocol, TableSnapshotHead

#: What versions are committed at, and so what moments are told apart by.
_TICK = timedelta(milliseconds=1)


def head_as_of(rest: SharingRest, table: TableName, options: ReadOptions, head: TableSnapshotHead) -> TableSnapshotHead:
    """Protocol and metadata at ``versionAsOf`` or ``timestampAsOf``, also from a server whose metadata is always the newest.

    Args:
        head: The metadata endpoint's answer for that version or moment.

    Raises:
        VersionError: The server does not have it, or does not share it.
    """
    version, moment = options.version_as_of, iso(options.timestamp_as_of)
    if version is not None and head.version is not None and head.version != version:
        query = Query(version=version, limit_hint=1)
    elif moment is not None and head.version in (None, rest.table_version(table)):
        # It is the newest: of that moment, or of a server that does not look at the moment.
        query = Query(timestamp=moment, limit_hint=1)
    else:
        return head
    try:
        answered = rest.query(table, query, formats=response_formats(options)).head
    except REFUSALS as refusal:
        raise refused_travel(table, options, head.version, refusal) from refusal
    if version is not None and answered.version is not None and answered.version != version:
        raise VersionError(
            f"version {version} of {table} was asked for and the server answers with {answered.version}; "
            f"leave versionAsOf out, or ask the provider to share the table's history"
        )
    return answered


def last_version_before(rest: SharingRest, table: TableName, moment: datetime) -> int | None:
    """The last version at or before a moment, which is the one before the first after it; None if no version is after it."""
    after = _version_after(rest, table, moment)
    return None if after is None else after - 1


def refused_range(
    rest: SharingRest, table: TableName, options: ReadOptions, head: TableSnapshotHead, refusal: Refusal
) -> range:
    """The range by versions, maybe empty, of a change data feed that the server refuses by its moments.

    A server may refuse moments that no version lies between, and an end after the newest version.

    Raises:
        VersionError: The range is not one, or is not shared.
    """
    newest, first, last = head.version, options.starting_timestamp, options.ending_timestamp
    start, end = options.starting_version, options.ending_version
    if newest is not None and begins_after(options, newest):
        end = newest
    elif last is not None:
        end = last_version_before(rest, table, last)
    end = newest if end is None else end if newest is None else min(end, newest)
    if first is not None:
        start = _version_after(rest, table, first - _TICK)
    if (
        (first is not None or last is not None)
        and newest is not None
        and isinstance(start, int)
        and end is not None
        and end >= 0
    ):
        between = first is not None and last is not None
        versions = range_of_versions(start, end, newest, str(table), between_moments=between)
        if versions or (last is not None and end == newest) or _is_shared(rest, table, options, end):
            return versions
    raise refused_feed(table, options, head.protocol, refusal) from refusal


def refused_feed(table: TableName, options: ReadOptions, protocol: Protocol, refusal: ServerError) -> DeltaSharingError:
    """The error of a change data feed that the server refuses, or fails on each time; else the refusal."""
    if isinstance(refusal, UnavailableError) and not refusal.permanent:
        return refusal
    start = iso(options.starting_timestamp) or f"version {options.starting_version}"
    last = "the newest version" if options.ending_version is None else f"version {options.ending_version}"
    return VersionError(
        f"the change feed of {table} from {start} to {iso(options.ending_timestamp) or last} cannot be read: "
        f"{words_of(refusal)}; "
        + (
            _feature_advice(protocol, refusal)
            or "choose a range that is shared, or ask the provider to record and share the table's changes"
        )
    )


def refused_stream(table: TableName, protocol: Protocol, asked: range, refusal: ServerError) -> DeltaSharingError:
    """The error of a stream's range of versions that the server refuses, or fails on each time; else the refusal."""
    if isinstance(refusal, UnavailableError) and not refusal.permanent:
        return refusal
    versions = f"version {asked[0]}" if len(asked) == 1 else f"versions {asked[0]} to {asked[-1]}"
    cause = f"the stream of {table} cannot go on: the changes of {versions} cannot be listed ({words_of(refusal)})"
    advice = _feature_advice(protocol, refusal)
    if advice is not None:
        return StreamError(f"{cause}; {advice}")
    return VersionError(f"{cause}; start at a version that is shared, or ask the provider to share the table's history")


def _feature_advice(protocol: Protocol, refusal: ServerError) -> str | None:
    """What to do where a server cannot list changes of a table for its features; None where that is not the cause."""
    features = protocol.reader_features or (("columnMapping",) if protocol.min_reader_version > 1 else ())
    if not features or is_about_versions(refusal):
        return None
    return (
        f"the table uses {', '.join(features)}, and some servers list the snapshots of such tables but no changes: read "
        f"snapshots, or ask the provider for directory access (accessMode=dir) or for a server that lists them"
    )


def _version_after(rest: SharingRest, table: TableName, moment: datetime) -> int | None:
    """The first version after a moment; None if there is none."""
    try:
        return rest.table_version(table, iso(moment + _TICK))
    except REFUSALS:
        return None


def _is_shared(rest: SharingRest, table: TableName, options: ReadOptions, version: int) -> bool:
    """Whether a version can be read: where its commit is gone, a moment after it looks like one before the first."""
    asked = replace(options, version_as_of=version)
    try:
        head_as_of(rest, table, asked, rest.metadata(table, version=version, formats=response_formats(options)))
    except (*REFUSALS, VersionError):
        return False
    return True
