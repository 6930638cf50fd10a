"""Reads batches: plans once in the planning worker, and reads splits in the tasks."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from delta_sharing_spark.errors import SchemaError
from delta_sharing_spark.schema.types import parse_schema
from delta_sharing_spark.spark.entrances import entrance, table_named

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_sharing_spark.access.resolved_scan import ResolvedScan
    from delta_sharing_spark.options.declared import ReadOptions
    from delta_sharing_spark.scan.plan import Split

#: The longest limit of an engine's that is read by one task, which stops there; many tasks are faster than one at more rows.
_LONGEST_LIMIT = 1 << 17
#: Rows of the first batch of a load's first split: more than ``show`` asks for.
_FIRST_ROWS = 256
_log = logging.getLogger(__name__)


class SplitPartition(InputPartition):
    """One split, as Spark carries it to a task: it is built when Spark pickles it. Its ``repr`` names no URL and no secret."""

    def __init__(self, splits: Sequence[Split], place: int) -> None:
        super().__init__(place)
        self._splits, self._place = splits, place

    @staticmethod
    def of(splits: Sequence[Split]) -> list[InputPartition]:
        """A partition for each split."""
        return [SplitPartition(splits, place) for place in range(len(splits))]

    @property
    def split(self) -> Split:
        """The split."""
        return self._splits[self._place]

    def __reduce__(self) -> tuple[Any, ...]:
        """Python's own pickle takes a third of the time of Spark's, which looks at each object."""
        return _unpickled, (pickle.dumps(self.split, pickle.HIGHEST_PROTOCOL),)

    def __repr__(self) -> str:
        return f"SplitPartition({self.split.index}, files={len(self.split.slices)})"


def _unpickled(split: bytes) -> SplitPartition:
    return SplitPartition([pickle.loads(split)], 0)  # noqa: S301 (a part of a pickle)


class TaskReader:
    """The part of a reader that tasks use. A task's copy holds nothing: splits carry what they need.

    Attributes:
        may_be_limited: Whether Spark may read the first split first, and of it no more than some rows (``show``, ``take``).
    """

    may_be_limited = False

    def __getstate__(self) -> dict[str, Any]:
        return {}

    @entrance
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split; an empty plan comes as a partition without one."""
        if not isinstance(partition, SplitPartition):
            return iter(())
        from delta_sharing_spark.scan.split_reader import read_split
        from delta_sharing_spark.spark.task_session import in_session_of_task

        split = in_session_of_task(partition.split)
        is_tentative = self.may_be_limited and split.index == 0
        batches = read_split(split, is_tentative=is_tentative)
        return _some_rows_first(batches) if is_tentative else batches


class DeltaSharingReader(TaskReader, DataSourceReader):
    """Plans in ``partitions()``, reads in ``read()``.

    ``pruneColumns`` and ``pushLimit`` are called by engines that know them, before ``partitions()``; Spark up to 4.3 does not.
    """

    may_be_limited = True

    def __init__(self, options: ReadOptions, scan: ResolvedScan | None, schema: StructType) -> None:
        self._options = options
        self._scan = scan
        self._schema = schema
        self._filters: list[Any] = []
        self._required: StructType | None = None
        self._limit: int | None = None
        if options.pushdown == "query":  # filters become hints, and skip files and row groups; Spark applies them again
            self.pushFilters = _push_filters(self._filters)  # type: ignore[assignment, method-assign]

    @entrance
    def pruneColumns(self, requiredSchema: StructType | pa.Schema) -> StructType | None:
        """Read these columns only, in this order; without any column, rows are counted.

        Args:
            requiredSchema: Spark's schema, fields of structs left out as well (SPARK-51713), or an Arrow schema, of which the
                names of columns count (Sail). Columns that the engine filters by are among them.

        Returns:
            The schema that is read, as Spark wants to be told; None for an Arrow schema, which binds as it is.

        Raises:
            SchemaError: A column that the load does not have.
        """
        if isinstance(requiredSchema, StructType):
            self._required = requiredSchema
            return requiredSchema
        unknown = [name for name in requiredSchema.names if name not in self._schema.names]
        if unknown:
            raise SchemaError(
                f"the load has no column {unknown[0]!r} to prune to; it has {', '.join(self._schema.names)}"
            )
        self._required = StructType([self._schema[name] for name in requiredSchema.names])
        return None

    def pushLimit(self, limit: int) -> bool:
        """Read no more rows than the engine wants, which cuts them to ``limit`` all the same (SPARK-58551).

        Returns:
            Whether less is read: not where the engine still filters the rows, nor where ``limit`` is more than one task should read.
        """
        if self._filters or not 0 <= limit <= _LONGEST_LIMIT:
            return False
        self._limit = limit
        return True

    @entrance
    def partitions(self) -> list[InputPartition]:
        """Query the server, or replay the log, and balance the files into splits."""
        from delta_sharing_spark.access.open import resolve
        from delta_sharing_spark.access.plan import plan
        from delta_sharing_spark.access.resolved_scan import smaller_limit

        with table_named(self._options.path):
            scan = self._scan or resolve(self._options)
        whole, required = (
            parse_schema(schema.json(), str(scan.table))
            for schema in (self._schema, self._schema if self._required is None else self._required)
        )
        if self._filters:
            from delta_sharing_spark.spark.plan_conditions import pushed_condition

            scan = replace(scan, pushed=pushed_condition(self._filters, whole, scan.options.time_zone))
        elif self._limit is not None:
            limit = smaller_limit(self._limit, scan.options.limit)
            scan = replace(scan, options=replace(scan.options, limit=limit))
        return SplitPartition.of(plan(scan, required).splits)


def _some_rows_first(batches: Generator[pa.RecordBatch, None, None]) -> Iterator[pa.RecordBatch]:
    """The same rows, the first ones in a batch of their own.

    What PySpark writes ends in a buffer of 64 KiB, which the next batch pushes out: without one, Spark would wait for the next file.
    """
    with closing(batches):
        for batch in batches:
            yield batch.slice(0, _FIRST_ROWS)
            if batch.num_rows > _FIRST_ROWS:
                yield batch.slice(_FIRST_ROWS)
            break
        yield from batches


def make_reader(
    options: dict[str, str], scan: ResolvedScan | None, schema: StructType, loaded_at: int
) -> DataSourceReader:
    """The reader for these options, of a table that was loaded at ``loaded_at`` (microseconds since the epoch).

    Raises:
        OptionError: An unknown option or value, or options of a stream.
    """
    from delta_sharing_spark.options.declared import check_batch, parse_options

    if scan is None:
        parsed = parse_options(options, loaded_at=loaded_at)
    else:
        parsed = scan.options  # parsed when it was not known yet to be a batch
        check_batch(parsed)
    return DeltaSharingReader(parsed, scan, schema)


def _push_filters(pushed: list[Any]) -> Callable[[list[Any]], Iterable[Any]]:
    """The ``pushFilters`` of a reader, which Spark calls with its conf on, and which is no error with its conf off."""
    from delta_sharing_spark.spark.patches import look_like_own

    def push(filters: list[Any]) -> Iterable[Any]:
        """Keep the filters, and return all of them as not applied."""
        pushed.extend(filters)
        return filters

    return look_like_own(push)
