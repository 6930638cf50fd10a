"""Keeps why files could not be reached: Spark asks up to twelve times, each of which would try as long."""

from __future__ import annotations

import time

#: Seconds for which a file that could not be reached is not tried again.
_FOR = 10.0


class Failures:
    """Why files could not be reached, by the number or the path of each."""

    def __init__(self) -> None:
        self._causes: dict[int | str, tuple[float, str]] = {}

    def note(self, file: int | str, cause: str) -> None:
        """Note that a file could not be reached for as long as it may be tried."""
        self._causes[file] = time.monotonic() + _FOR, cause

    def of(self, file: int | str | None) -> str | None:
        """Why a file could not be reached a moment ago; None if it may be tried."""
        until, cause = self._causes.get(-1 if file is None else file, (0.0, ""))
        return cause if time.monotonic() < until else None
