"""Finds the range of versions of a change data feed, alike in every access mode (protocol, "Read Change Data Feed").

An end past the newest version means the newest. Two moments with no commit between them are a range of no versions, as in
Delta Lake; any other range that ends before it starts is an error.
"""

from __future__ import annotations

from delta_sharing_spark.access.contract import OpenTable
from delta_sharing_spark.errors import VersionError
from delta_sharing_spark.options import ReadOptions


def last_version(table: OpenTable, options: ReadOptions, newest: int | None) -> int | None:
    """The last version of a feed's range; None means the newest, -1 that the range ends before the table's first version.

    Raises:
        VersionError: As ``OpenTable.version_at_or_before``.
    """
    end = options.ending_version
    if newest is not None and begins_after(options, newest):
        return newest
    if options.ending_timestamp is not None:
        end = table.version_at_or_before(options.ending_timestamp)
    if end is None or newest is None:
        return newest if end is None else end
    return min(end, newest)


def begins_after(options: ReadOptions, newest: int) -> bool:
    """Whether a feed begins with a version after the newest, which is not there yet: the feed is empty, wherever it ends."""
    return isinstance(options.starting_version, int) and options.starting_version > newest


def range_of_versions(start: int, end: int | None, newest: int, table: str, *, between_moments: bool = False) -> range:
    """The versions of a change data feed.

    Args:
        start: The first version; the one after the newest makes an empty range.
        end: The last version; None, or one after the newest, means the newest.
        newest: The newest version.
        table: How errors name the table.
        between_moments: Whether both ends were given as timestamps.

    Raises:
        VersionError: The range starts after the newest version, or ends before it starts.
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
