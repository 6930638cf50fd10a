"""Holds the data files of one manifest that pruning left, in columns: a task is built when it is asked for."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from delta_sharing_spark.access.iceberg.manifests import Entry
from delta_sharing_spark.scan.plan import DeleteFile, DeletionVector, TaskColumns


class ManifestFiles:
    """Files that were appended one after the other (``planned_files.FileBatch``)."""

    def __init__(self) -> None:
        self._paths: list[str] = []
        self._sizes, self._rows, self._live = array("q"), array("q"), array("q")
        self._fallbacks: list[Mapping[int, Any]] = []
        self._vectors: dict[int, DeletionVector] = {}
        self._deletes: dict[int, tuple[DeleteFile, ...]] = {}

    def append(
        self,
        entry: Entry,
        vector: DeletionVector | None,
        deletes: tuple[DeleteFile, ...],
        fallbacks: Mapping[int, Any],
    ) -> None:
        """Take in a file.

        Args:
            vector, deletes: What deletes rows of it.
            fallbacks: See ``FileTask``; one object for all files of a partition.
        """
        place, deleted = len(self._paths), 0
        if vector is not None:
            self._vectors[place], deleted = vector, vector.cardinality
        if deletes:
            self._deletes[place] = deletes
        self._paths.append(entry.path)
        self._fallbacks.append(fallbacks)
        self._sizes.append(entry.size)
        self._rows.append(entry.rows)
        self._live.append(-1 if deletes or deleted > entry.rows else entry.rows - deleted)

    @property
    def num_rows(self) -> int:
        return len(self._paths)

    def file_sizes(self) -> npt.NDArray[np.int64]:
        return np.array(self._sizes, np.int64)

    def file_rows(self) -> npt.NDArray[np.int64]:
        return np.array(self._live, np.int64)

    def file_partitions(self) -> tuple[npt.NDArray[np.int64], Sequence[None]]:
        return np.zeros(len(self._paths), np.int64), [None]  # no column has its values by the partition alone

    def columns_at(self, places: npt.NDArray[np.int64]) -> TaskColumns:
        listed = places.tolist()
        paths = [self._paths[place] for place in listed]
        return TaskColumns(
            paths,
            paths,
            [self._sizes[place] for place in listed],
            [self._rows[place] for place in listed],
            [0] * len(listed),
            [{}],
            {new: self._vectors[old] for new, old in enumerate(listed) if old in self._vectors},
            deletes={new: self._deletes[old] for new, old in enumerate(listed) if old in self._deletes},
            fallbacks=[self._fallbacks[place] for place in listed],
        )
