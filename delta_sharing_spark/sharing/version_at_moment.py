"""Finds the first version at or after a moment, also on servers that answer one version late.

The protocol's ``/version?startingTimestamp`` names the earliest version at or after the moment. The reference server
answers the version that follows the last one at or before it, so a moment that is exactly a commit's names the commit
after, and is refused where that commit is the newest. The answer for the millisecond before tells the two apart.
"""

from __future__ import annotations

from datetime import timedelta, timezone
from typing import TYPE_CHECKING

from delta_sharing_spark.errors import NotFoundError, RequestRefusedError
from delta_sharing_spark.schema.instants import parse_instant
from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.sharing.query import Query

if TYPE_CHECKING:
    from delta_sharing_spark.sharing.rest import SharingRest

_TICK = timedelta(milliseconds=1)
_REFUSALS = (RequestRefusedError, NotFoundError)


def first_version_at(rest: SharingRest, table: TableName, moment: str) -> int:
    """The first version at or after ``moment`` (ISO-8601 with zone, whole milliseconds); two or three requests.

    Raises:
        RequestRefusedError, NotFoundError: The server has no such version, or does not share the table's history.
    """
    refusal: RequestRefusedError | NotFoundError | None = None
    named: int | None = None
    try:
        named = rest.named_version(table, moment)
    except _REFUSALS as error:
        refusal = error
    before = _millisecond_before(moment)
    earlier = None if before is None or named == 0 else _answer(rest, table, before)
    if (
        earlier is not None
        and (named is None or earlier < named)
        and not _is_at_or_before(rest, table, earlier, before)
    ):
        return earlier
    if named is None:
        assert refusal is not None
        raise refusal
    return named


def _millisecond_before(moment: str) -> str | None:
    instant = parse_instant(moment)
    if instant is None:
        return None
    text = (instant - _TICK).astimezone(timezone.utc).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _answer(rest: SharingRest, table: TableName, moment: str) -> int | None:
    try:
        return rest.named_version(table, moment)
    except _REFUSALS:
        return None


def _is_at_or_before(rest: SharingRest, table: TableName, version: int, moment: str | None) -> bool:
    """Whether a version was committed by ``moment``, by time travel; False, so that more is read, if the server does not tell."""
    try:
        newest = rest.query(table, Query(timestamp=moment, limit_hint=1)).head.version
    except _REFUSALS:
        return False
    return newest is not None and newest >= version
