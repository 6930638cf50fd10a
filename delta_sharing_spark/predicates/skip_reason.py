"""Lists the reasons for which a file is skipped."""

from __future__ import annotations

from enum import IntEnum


class SkipReason(IntEnum):
    """The evidence that no row of a file can pass."""

    KEEP = 0
    PARTITION_VALUES = 1
    STATISTICS = 2
