"""Why a file is not read."""

from __future__ import annotations

from enum import IntEnum


class SkipReason(IntEnum):
    """What shows that no row of a file can pass."""

    KEEP = 0
    PARTITION_VALUES = 1
    STATISTICS = 2
