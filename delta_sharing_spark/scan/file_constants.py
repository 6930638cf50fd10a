"""The columns that have the same value in every row of a file: those of its partition, and the commit of a change feed."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from delta_sharing_spark.errors import CorruptFileError
from delta_sharing_spark.scan.plan import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, FileTask, ReadSpec
from delta_sharing_spark.schema.arrow_bridge import scalar
from delta_sharing_spark.schema.partition_values import partition_scalar
from delta_sharing_spark.schema.types import Field


def constants_of(task: FileTask, spec: ReadSpec) -> dict[str, pa.Scalar]:
    """The columns of ``spec`` that have the same value in every row of a file, by logical name."""
    constants: dict[str, pa.Scalar] = {}
    for column in spec.full_schema.fields:
        if column.name in spec.partition_columns:
            text = _partition_text(task, column, spec.partition_keys)
            constants[column.name] = partition_scalar(
                text, column.type, column=column.name, file=task.id, time_zone=spec.time_zone
            )
        elif spec.change_feed and column.name == CHANGE_TYPE and task.change_type is not None:
            constants[column.name] = scalar(task.change_type)
        elif spec.change_feed and column.name == COMMIT_VERSION:
            constants[column.name] = scalar(task.commit_version, pa.int64())
        elif spec.change_feed and column.name == COMMIT_TIMESTAMP:
            constants[column.name] = _commit_timestamp(task, spec)
    return constants


def _partition_text(task: FileTask, column: Field, keys: Mapping[str, tuple[str, ...]]) -> str | None:
    """The serialized value, under one of the column's ``keys``, letter case aside if it must be.

    Delta Lake leaves a NULL out where it copies a file's action. Beside a name that is not a partition column's, it may
    be that name the value stands under.

    Raises:
        CorruptFileError: The file has no value for the column at all.
    """
    values = task.partition_values
    if values is not None:
        for key in keys[column.physical_name]:
            if key in values:
                return values[key]
        lowered = column.physical_name.lower()
        close = [v for k, v in values.items() if k.lower() == lowered]
        if len(close) == 1:
            return close[0]
        names = {key.lower() for all_of_one in keys.values() for key in all_of_one}
        if not close and all(name.lower() in names for name in values):
            return None
    raise CorruptFileError(
        f"file {task.id} has no value for the partition column {column.name!r}; ask the provider to check the table's log",
        file=task.id,
        column=column.name,
    )


def _commit_timestamp(task: FileTask, spec: ReadSpec) -> pa.Scalar:
    millis = task.commit_timestamp
    if spec.commit_timestamp_long:
        return scalar(millis, pa.int64())
    return scalar(None if millis is None else millis * 1000, pa.timestamp("us", tz="UTC"))
