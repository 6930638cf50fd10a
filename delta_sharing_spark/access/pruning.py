"""Skips files by the conditions of a scan, and counts them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from delta_sharing_spark.access.resolved_scan import ResolvedScan
from delta_sharing_spark.predicates.skip_reason import SkipReason
from delta_sharing_spark.scan.plan import FileTask

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_sharing_spark.deltalog.add_batch import AddBatch
    from delta_sharing_spark.predicates.file_skipping import PartitionKey
    from delta_sharing_spark.predicates.file_statistics import StatisticsReader


#: How ``explain`` calls the reasons.
_RULES = {SkipReason.PARTITION_VALUES: "partition values", SkipReason.STATISTICS: "statistics"}


class Statistics(Protocol):
    """The statistics of some files, which a pruner looks at."""

    def texts_at(self, places: Sequence[int], /) -> Sequence[str | None]:
        """The JSON of files at some places."""

    def bounds(self, reader: StatisticsReader, /) -> pa.StructArray:
        """The bounds of all files in columns (``StatisticsReader.bounds``)."""


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

    def reason(self, partition_values: Mapping[str, str | None] | None, stats: str | None) -> SkipReason:
        """Why a file can be skipped, if it can. It is not counted yet: an answer that breaks off is read again from its start."""
        self.look_at(1)
        return SkipReason.KEEP if self._skipping is None else self._skipping.reason(partition_values or {}, stats)

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

    def partition_key(self, partition_values: Mapping[str, str | None] | None) -> PartitionKey:
        """What ``reasons`` needs of a file's partition values; equal for many files."""
        return () if self._skipping is None else self._skipping.partition_key(partition_values or {})

    def reasons(
        self, keys: Sequence[PartitionKey], numbers: npt.NDArray[np.integer[Any]], statistics: Statistics
    ) -> npt.NDArray[np.uint8] | None:
        """Why files can be skipped, each a ``SkipReason``; None where no file can. They are not counted yet, as by ``reason``.

        Args:
            keys: What ``partition_key`` tells of some partition values.
            numbers: The place of each file's values among them.
            statistics: Those of the files.
        """
        self.look_at(len(numbers))
        if self._skipping is None:
            return None
        reader = self._skipping.reader
        parsed = (lambda: statistics.bounds(reader)) if reader.ranged else None
        return self._skipping.reasons_of(keys, numbers, statistics.texts_at, parsed)

    def remaining(self, tasks: Iterable[FileTask]) -> Iterator[FileTask]:
        """Files whose rows may pass, without their statistics."""
        for task in tasks:
            reason = self.reason(task.partition_values, task.stats)
            if reason:
                self.count(reason, 1)
            else:
                yield replace(task, stats=None) if task.stats is not None else task

    def remaining_rows(self, batch: AddBatch) -> AddBatch:
        """The same for files in columns: no object is built for a file that is skipped."""
        self.look_at(batch.num_rows)
        if self._skipping is None:
            return batch
        reasons = self._skipping.reasons(batch.num_rows, batch.partition_values, batch.stats_texts, batch.stats_parsed)
        for reason in _RULES:
            self.count(reason, int(np.count_nonzero(reasons == reason)))
        keep: npt.NDArray[np.bool_] = reasons == SkipReason.KEEP
        return batch.filter(keep)
