"""Predicts the file that Spark reads next, from the files that it has opened and read so far."""

from __future__ import annotations

import os
from collections.abc import Iterable

#: Tasks that are assumed to run at the same time.
AT_ONCE = max(2, os.cpu_count() or 2)


class FilePass:
    """One pass of Spark's tasks over a plan's files; it is over when a file that was read is opened again."""

    def __init__(self) -> None:
        #: Files that were opened, in that order, and whether columns of them were read after it.
        self._opened: dict[int, bool] = {}
        self._foretold: set[int] = set()

    def opened(self, number: int) -> None:
        """Note that the footer of a file was read."""
        if self._opened.get(number):
            self._opened.clear()
            self._foretold.clear()
        self._opened.setdefault(number, False)
        self._foretold.discard(number)

    def read(self, number: int) -> None:
        """Note that columns of a file are being read."""
        if number in self._opened:
            self._opened[number] = True

    def next(self, following: Iterable[int]) -> int | None:
        """The first of the files ``following`` that was not opened; each is told once.

        None before a file was read to its end, where Spark opens files that it does not read on (their footers say that no
        row fits), and where as many as tasks at once are still to be opened.
        """
        over = list(self._opened.values())[:-AT_ONCE]
        if not over or not all(over) or len(self._foretold) >= AT_ONCE:
            return None
        found = next((n for n in following if n not in self._opened and n not in self._foretold), None)
        if found is not None:
            self._foretold.add(found)
        return found
