"""Asks a predicate about single files; the package itself asks of many at once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from delta_sharing_spark.predicates.file_skipping import FileSkipping, TextStatistics
from delta_sharing_spark.predicates.skip_reason import SkipReason


def reason_of(skipping: FileSkipping, partition_values: Mapping[str, str | None], stats: str | None) -> SkipReason:
    """Why a file with these partition values and this JSON of statistics can be skipped."""
    number = np.array([skipping.partition_number(partition_values)])
    return SkipReason(skipping.reasons_of(number, TextStatistics([stats]))[0])
