"""Bridges the differences between the supported Spark versions (4.0 to 4.3)."""

from __future__ import annotations

from typing import Any

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxBytes,
        ReadMaxFiles,
        SupportsTriggerAvailableNow,
    )

    #: Whether ``latestOffset`` is given the start and a limit (4.2 and later).
    ADMISSION_CONTROL = True
    AvailableNow = SupportsTriggerAvailableNow
except ImportError:
    ADMISSION_CONTROL = False

    class AvailableNow:  # type: ignore[no-redef]  # the stand-in
        """Before 4.2 Spark runs Trigger.AvailableNow as one batch up to the newest offset."""


def read_limit(files: int | None, size: int | None) -> Any:
    """Spark's limit object for a bound on files or bytes."""
    if files is not None:
        return ReadMaxFiles(files)
    return ReadMaxBytes(size) if size is not None else ReadAllAvailable()


def reads_all(limit: Any) -> bool:
    """Whether Spark asks for everything at once (Trigger.Once)."""
    return isinstance(limit, ReadAllAvailable)
