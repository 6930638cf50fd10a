"""Skips files by the conditions of a scan, and counts them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from delta_sharing_spark.access.resolved_scan import ResolvedScan
from delta_sharing_spark.predicates.skip_reason import SkipReason
from delta_sharing_spark.scan.plan import FileTask

if TYPE_CHECKING:
    from delta_sharing_spark.deltalog.add_batch import AddBatch
    from delta_sharing_spark.predicates.file_skipping import Statistics


#: Files that are looked at together where they come one by one: the first ones, and at most.
_FIRST_TOGETHER, _TOGETHER = 16, 1024
#: How ``explain`` calls the reasons.
_RULES = {SkipReason.PARTITION_VALUES: "partition values", SkipReason.STATISTICS: "statistics"}


class FilePruner:
    """Skips files none of whose rows can pass the scan's conditions, and counts them.

    Args:
        listed: Called with the number of files that were looked at since its last call.

    Attributes:
        skipped: How many files were skipped, by rule.
    """

    def __init__(self, scan: ResolvedScan, listed: Callable[[int], None] | None = None) -> None:
        self._scan, self._listed = scan, listed
        self._skipping = None
        self._skipped: Counter[SkipReason] = Counter()
        if scan.prune is not None:
            from delta_sharing_spark.predicates.file_skipping import FileSkipping

            zone = scan.options.time_zone
            self._skipping = FileSkipping(scan.prune, scan.columns, scan.shape.partition_columns, time_zone=zone)

    @property
    def skipped(self) -> dict[str, int]:
        return {_RULES[reason]: count for reason, count in sorted(self._skipped.items()) if count}

    @property
    def stats_columns(self) -> Collection[str] | None:
        """Physical names of the columns whose statistics are looked at."""
        return () if self._skipping is None else self._skipping.stats_columns

    @property
    def predicate_is_decided(self) -> bool:
        """Whether every row of the remaining files passes ``where``; valid after all files were looked at."""
        if self._skipping is None:
            return True
        return self._scan.pushed is None and self._skipping.is_decided

    def non_pruning_conjuncts(self) -> tuple[str, ...]:
        """Parts of the conditions that no file can be skipped by."""
        return () if self._skipping is None else tuple(str(part) for part in self._skipping.non_pruning_conjuncts())

    def begin(self) -> None:
        """Count anew: files are listed from the beginning."""
        self._skipped.clear()

    def look_at(self, files: int) -> None:
        """Say that so many more files were looked at."""
        if self._listed is not None:
            self._listed(files)

    def count(self, reason: SkipReason, files: int) -> None:
        """Count files that were skipped for a reason."""
        self._skipped[reason] += files

    def partition_number(self, partition_values: Mapping[str, str | None] | None) -> int:
        """What ``reasons`` needs of a file's partition values; equal for many files."""
        return 0 if self._skipping is None else self._skipping.partition_number(partition_values or {})

    def reasons(self, numbers: npt.NDArray[np.integer[Any]], statistics: Statistics) -> npt.NDArray[np.uint8] | None:
        """Why files can be skipped, each a ``SkipReason``; None where no file can. They are not counted yet: an answer that breaks off is
        read again from its start.

        Args:
            numbers: The ``partition_number`` of each file.
            statistics: Those of the files.
        """
        self.look_at(len(numbers))
        return None if self._skipping is None else self._skipping.reasons_of(numbers, statistics)

    def remaining(self, tasks: Iterable[FileTask]) -> Iterator[FileTask]:
        """Files whose rows may pass, without their statistics."""
        coming, together = iter(tasks), _FIRST_TOGETHER
        while batch := list(itertools.islice(coming, together)):
            for task, reason in zip(batch, self._reasons_of_tasks(batch), strict=True):
                if reason:
                    self.count(SkipReason(reason), 1)
                else:
                    yield replace(task, stats=None) if task.stats is not None else task
            together = min(2 * together, _TOGETHER)

    def _reasons_of_tasks(self, tasks: Sequence[FileTask]) -> list[int]:
        self.look_at(len(tasks))
        if self._skipping is None:
            return [SkipReason.KEEP] * len(tasks)
        from delta_sharing_spark.predicates.file_skipping import TextStatistics

        numbers = np.array([self.partition_number(task.partition_values) for task in tasks])
        statistics = TextStatistics([task.stats for task in tasks])
        reasons: list[int] = self._skipping.reasons_of(numbers, statistics).tolist()
        return reasons

    def remaining_rows(self, batch: AddBatch) -> AddBatch:
        """The same for files in columns: no object is built for a file that is skipped."""
        self.look_at(batch.num_rows)
        if self._skipping is None:
            return batch
        reasons = self._skipping.reasons(batch.num_rows, batch.partition_values, batch)
        for reason in _RULES:
            self.count(reason, int(np.count_nonzero(reasons == reason)))
        keep: npt.NDArray[np.bool_] = reasons == SkipReason.KEEP
        return batch.filter(keep)
