"""Reads a load at the version that it found, where the table has moved on before its files were listed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from delta_sharing_spark.access.contract import ResolvedScan
from delta_sharing_spark.errors import DeltaSharingError

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


def as_loaded(
    scan: ResolvedScan,
    listed: int | None,
    list_pinned: Callable[[], _T],
    refusals: tuple[type[DeltaSharingError], ...],
) -> _T | None:
    """The listing of the version that a load found; None where the one at hand is as good.

    A listing names no version at first: servers that list the newest alone refuse one, and so do none as long as nothing is committed.

    Args:
        scan: The load, of no version that its user chose.
        listed: The version that was listed; None where the server does not tell it.
        list_pinned: Lists the load's version.
        refusals: Its errors where the server lists its newest version alone, which is then read, as a warning says.
    """
    if scan.version is None or listed is None or listed == scan.version:
        return None
    try:
        return list_pinned()
    except refusals as refusal:
        why = str(refusal).partition(";")[0]
        _log.warning("%s was loaded at version %d and is read at %d: %s", scan.table, scan.version, listed, why)
        return None
