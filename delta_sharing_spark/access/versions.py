"""Which versions a load reads, alike in both access modes: time travel, and the range of a change data feed.

Protocol, "Query Table" and "Read Change Data Feed". An end past the newest version means the newest. Two moments with no
commit between them are a range of no versions, as in Delta Lake; any other range that ends before it starts is an error.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from delta_sharing_spark.access.settings import formats_of, iso, millis
from delta_sharing_spark.errors import NotFoundError, RequestRefusedError, VersionError
from delta_sharing_spark.options import ReadOptions
from delta_sharing_spark.sharing.actions import TableSnapshotHead
from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.sharing.query import Query
from delta_sharing_spark.sharing.rest import SharingRest

if TYPE_CHECKING:
    from delta_sharing_spark.deltalog.paths import LogStore

#: How servers refuse versions that they do not have or do not share, and endpoints.
Refusal = RequestRefusedError | NotFoundError
REFUSALS = (RequestRefusedError, NotFoundError)
#: What versions are committed at, and so what moments are told apart by.
_TICK = timedelta(milliseconds=1)


def head_as_of(rest: SharingRest, table: TableName, options: ReadOptions, head: TableSnapshotHead) -> TableSnapshotHead:
    """Protocol and metadata at ``versionAsOf`` or ``timestampAsOf``, also from a server whose metadata is always the newest.

    Args:
        head: What the metadata endpoint said when it was asked for that version or moment.

    Raises:
        VersionError: The server does not have it, or does not share it.
    """
    version, moment = options.version_as_of, iso(options.timestamp_as_of)
    if version is not None and head.version is not None and head.version != version:
        query = Query(version=version, max_files=1)
    elif moment is not None and head.version in (None, rest.table_version(table)):
        # It is the newest: of that moment, or of a server that does not look at the moment.
        query = Query(timestamp=moment, max_files=1)
    else:
        return head
    try:
        found = rest.query(table, query, formats=formats_of(options)).head
    except REFUSALS as refusal:
        raise refused_travel(table, options, head.version, refusal) from refusal
    if version is not None and found.version is not None and found.version != version:
        raise VersionError(
            f"version {version} of {table} was asked for and the server answers with {found.version}; "
            f"leave versionAsOf out, or ask the provider to share the table's history"
        )
    return found


def refused_travel(table: TableName, options: ReadOptions, newest: int | None, refusal: Refusal) -> VersionError:
    """The error of a version or a moment that the server refuses, of a table that it does not refuse as such."""
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


def last_version(rest: SharingRest, table: TableName, options: ReadOptions, newest: int | None) -> int | None:
    """The last version of a change data feed's range by the server; None where nothing tells, which means the newest.

    -1 is before the first.
    """
    end = options.ending_version
    if newest is not None and _begins_after(options, newest):
        return newest
    if options.ending_timestamp is not None:
        after = _version_after(rest, table, options.ending_timestamp)
        end = None if after is None else after - 1
    if end is None or newest is None:
        return newest if end is None else end
    return min(end, newest)


def refused_range(
    rest: SharingRest, table: TableName, options: ReadOptions, newest: int | None, refusal: Refusal
) -> range:
    """What is left to ask of a change data feed that the server refuses by its moments: their versions, maybe none.

    A server may refuse moments that no version lies between, and an end after the newest version.

    Raises:
        VersionError: The range is not one, or is not shared.
    """
    first, last = options.starting_timestamp, options.ending_timestamp
    start, end = options.starting_version, last_version(rest, table, options, newest)
    if first is not None:
        # No endpoint tells the last version before a moment; the first after it follows it.
        start = _version_after(rest, table, first - _TICK)
    moments = first is not None or last is not None
    if moments and newest is not None and isinstance(start, int) and end is not None and end >= 0:
        between = first is not None and last is not None
        found = range_of_versions(start, end, newest, str(table), between_moments=between)
        if (last is not None and end == newest) or (not found and _is_shared(rest, table, options, end)):
            return found
    raise refused_feed(table, options, refusal) from refusal


def refused_feed(table: TableName, options: ReadOptions, refusal: Refusal) -> VersionError:
    """The error of a change data feed that the server refuses."""
    start = iso(options.starting_timestamp) or f"version {options.starting_version}"
    last = "the newest version" if options.ending_version is None else f"version {options.ending_version}"
    return VersionError(
        f"the change feed of {table} from {start} to {iso(options.ending_timestamp) or last} cannot be read: "
        f"{words_of(refusal)}; choose a range that is shared, or ask the provider to record and share the table's changes"
    )


def range_of_versions(start: int, end: int | None, newest: int, table: str, *, between_moments: bool = False) -> range:
    """The versions of a change data feed.

    Args:
        start: The first version; the one after the newest gives none yet.
        end: The last version; None, or one after the newest, means the newest.
        newest: The newest version.
        table: How errors name the table.
        between_moments: Whether both ends were given as timestamps.

    Raises:
        VersionError: It starts after the newest version, or ends before it starts.
    """
    if start > newest + 1:
        raise VersionError(
            f"version {start} of {table} does not exist: the newest is {newest}; start at {newest + 1} or before"
        )
    last = newest if end is None else min(end, newest)
    if last < start and not (last == start - 1 and (between_moments or start > newest)):
        raise VersionError(
            f"the change feed of {table} would start at version {start} and end at version {last}; "
            f"give an end that is not before the start"
        )
    return range(start, last + 1)


def range_in_log(store: LogStore, options: ReadOptions, newest: int, table: str) -> range:
    """The versions of a change data feed by the log. Raises as ``range_of_versions`` and ``deltalog.history``."""
    from delta_sharing_spark.deltalog.history import version_at_or_after

    start, first = options.starting_version, millis(options.starting_timestamp)
    if first is not None:
        start = version_at_or_after(store, first, table=table)
    assert isinstance(start, int), "a batch feed has a start, and it is no word"
    last = last_in_log(store, options, newest, table)
    between = options.starting_timestamp is not None and options.ending_timestamp is not None
    return range_of_versions(start, last, newest, table, between_moments=between)


def last_in_log(store: LogStore, options: ReadOptions, newest: int, table: str) -> int:
    """The last version of a change data feed's range by the log. Raises as ``deltalog.history.version_at_or_before``."""
    from delta_sharing_spark.deltalog.history import version_at_or_before

    end, last = options.ending_version, millis(options.ending_timestamp)
    if _begins_after(options, newest):
        return newest
    if last is not None:
        end = version_at_or_before(store, last, table=table, allow_after_newest=True)
    return newest if end is None else min(end, newest)


def _version_after(rest: SharingRest, table: TableName, moment: datetime) -> int | None:
    """The first version after a moment; None if there is none."""
    try:
        return rest.table_version(table, iso(moment + _TICK))
    except REFUSALS:
        return None


def _begins_after(options: ReadOptions, newest: int) -> bool:
    """Whether a feed waits for a version after the newest: it is empty, wherever it ends."""
    return isinstance(options.starting_version, int) and options.starting_version > newest


def _is_shared(rest: SharingRest, table: TableName, options: ReadOptions, version: int) -> bool:
    """Whether a version can be read: where its commit is gone, a moment after it looks like one before the first."""
    asked = replace(options, version_as_of=version)
    try:
        head_as_of(rest, table, asked, rest.metadata(table, version=version, formats=formats_of(options)))
    except (*REFUSALS, VersionError):
        return False
    return True


def words_of(refusal: Refusal) -> str:
    """What a server says in a refusal, as part of a sentence."""
    if refusal.said:
        return f"the sharing server says: {refusal.said.rstrip('. ')}"
    return str(refusal) if refusal.status is None else f"the sharing server answers {refusal.status} without a word"
