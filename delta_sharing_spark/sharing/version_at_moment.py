"""Finds the first version at or after a moment, also on servers that answer one version late.

The protocol's ``/version?startingTimestamp`` names the earliest version at or after the moment. The reference server
answers the version that follows the last one at or before it, so a moment that is exactly a commit's names the commit
after, and is refused where that commit is the newest. The answer for the millisecond before tells the two apart.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta, timezone

from delta_sharing_spark.errors import NotFoundError, RequestRefusedError
from delta_sharing_spark.schema.instants import parse_instant

_TICK = timedelta(milliseconds=1)
_REFUSALS = (RequestRefusedError, NotFoundError)


def first_version_at(named: Callable[[str], int], newest_by: Callable[[str], int | None], moment: str) -> int:
    """The first version at or after ``moment`` (ISO-8601 with zone, whole milliseconds); two or three requests.

    Args:
        named: The version that ``/version`` names for a moment.
        newest_by: The version that time travel to a moment reads; None if the server does not tell.

    Raises:
        RequestRefusedError, NotFoundError: The server has no such version, or does not share the table's history.
    """
    refusal: RequestRefusedError | NotFoundError | None = None
    version: int | None = None
    try:
        version = named(moment)
    except _REFUSALS as error:
        refusal = error
    before = _millisecond_before(moment)
    if before is not None and version != 0:
        earlier = _answer(named, before)
        if earlier is not None and (version is None or earlier < version):
            newest = _answer(newest_by, before)  # None, so that more is read, if the server does not tell
            if newest is None or newest < earlier:
                return earlier
    if version is None:
        assert refusal is not None
        raise refusal
    return version


def _millisecond_before(moment: str) -> str | None:
    instant = parse_instant(moment)
    if instant is None:
        return None
    text = (instant - _TICK).astimezone(timezone.utc).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _answer(ask: Callable[[str], int | None], moment: str) -> int | None:
    try:
        return ask(moment)
    except _REFUSALS:
        return None
