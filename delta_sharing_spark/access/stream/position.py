"""Defines a stream's position in a table's history, and how much one batch may take.

A position ``(version, index)`` says that everything before file ``index`` of ``version`` was read; with ``snapshot`` the
files are those of the whole table at that version, else those the version added. The end of a version is the position
``(version + 1, 0)``.
"""

from __future__ import annotations

from dataclasses import dataclass

from delta_sharing_spark.scan.plan import FileTask


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """How far a stream has read, as the module's docstring defines it."""

    version: int
    index: int = 0
    snapshot: bool = False

    @property
    def in_the_middle(self) -> bool:
        """Whether it counts files of a version, so that their order must stay."""
        return self.index > 0 or self.snapshot


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one batch takes at most; None means no bound. Bytes are a soft bound: one file always fits."""

    files: int | None = None
    bytes: int | None = None


#: The limits of a stream whose options bound neither files nor bytes.
DEFAULT_LIMITS = Limits(files=1000)


class BatchBudget:
    """How much a batch has taken of its limits."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._files = self._bytes = 0

    @property
    def is_full(self) -> bool:
        limits = self._limits
        return (limits.files is not None and self._files >= limits.files) or (
            limits.bytes is not None and self._bytes >= limits.bytes
        )

    def take(self, tasks: list[FileTask], *, all_or_none: bool) -> int:
        """How many of ``tasks`` still fit; with ``all_or_none`` they are not split, and fit always if nothing was taken yet."""
        if all_or_none:
            size = sum(t.size for t in tasks)
            limits = self._limits
            over = (limits.files is not None and self._files + len(tasks) > limits.files) or (
                limits.bytes is not None and self._bytes + size > limits.bytes
            )
            if over and self._files:
                return 0
            self._files += len(tasks)
            self._bytes += size
            return len(tasks)
        for count, task in enumerate(tasks):
            if self.is_full:
                return count
            self._files += 1
            self._bytes += task.size
        return len(tasks)
