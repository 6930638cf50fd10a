"""Reads batches: plans once in the planning worker, and reads splits in the tasks."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from delta_sharing_spark.errors import PredicateError, SchemaError
from delta_sharing_spark.schema.types import Struct, parse_schema
from delta_sharing_spark.spark.entrances import entrance, table_named

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_sharing_spark.access.resolved_scan import ResolvedScan
    from delta_sharing_spark.options.declared import ReadOptions
    from delta_sharing_spark.predicates.times import Zone
    from delta_sharing_spark.predicates.tree import Expression, Literal
    from delta_sharing_spark.scan.plan import Split

#: The longest limit of an engine's that is read by one task, which stops there; many tasks are faster than one at more rows.
_LONGEST_LIMIT = 1 << 17
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


class SplitReader:
    """The part of a reader that tasks use. A task's copy holds nothing: splits carry what they need."""

    def __getstate__(self) -> dict[str, Any]:
        return {}

    @entrance
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split; an empty plan comes as a partition without one."""
        if not isinstance(partition, SplitPartition):
            return iter(())
        from delta_sharing_spark.scan.split_reader import read_split
        from delta_sharing_spark.spark.task_session import in_session_of_task

        return read_split(in_session_of_task(partition.split))


class DeltaSharingReader(SplitReader, DataSourceReader):
    """Plans in ``partitions()``, reads in ``read()``.

    ``pruneColumns`` and ``pushLimit`` are called by engines that know them, before ``partitions()``; Spark up to 4.3 does not.
    """

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
            scan = replace(scan, pushed=to_expression(self._filters, whole, scan.options.time_zone))
        elif self._limit is not None:
            limit = smaller_limit(self._limit, scan.options.limit)
            scan = replace(scan, options=replace(scan.options, limit=limit))
        return SplitPartition.of(plan(scan, required).splits)


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


def to_expression(filters: Iterable[Any], schema: Struct, time_zone: str | None) -> Expression | None:
    """The conjunction of the filters that ``where`` can express; None if there are none."""
    from delta_sharing_spark.predicates.times import Zone
    from delta_sharing_spark.predicates.tree import conjunction

    zone, parts = Zone(time_zone), []
    for offered in filters:
        try:
            parts.append(_condition(offered, schema, zone))
        except (PredicateError, SchemaError) as error:
            # Spark applies the filter itself: what cannot be said only does not prune.
            _log.debug("a filter of Spark's does not prune: %s", error)
    return conjunction(parts) if parts else None


def _condition(offered: Any, schema: Struct, zone: Zone) -> Expression:
    """A filter as a condition; raises PredicateError or SchemaError where it cannot be expressed exactly."""
    from delta_sharing_spark.predicates.functions import call, compare, condition, membership
    from delta_sharing_spark.predicates.sql import resolve
    from delta_sharing_spark.predicates.tree import negation
    from delta_sharing_spark.spark.plan_conditions import COMPARISONS

    kind = type(offered).__name__
    if kind == "Not":
        return negation(_condition(offered.child, schema, zone))
    column = resolve(offered.attribute, schema)
    if kind == "In":
        return membership(column, [_literal(value) for value in offered.value], zone)
    if kind in COMPARISONS:
        return compare(COMPARISONS[kind], column, _literal(offered.value), zone)
    values = [] if kind in ("IsNull", "IsNotNull") else [_literal(offered.value)]
    result = call(kind.removeprefix("String").upper(), [column, *values], zone, None)
    if result is None:
        raise PredicateError(f"the filter {kind} is not part of the language of where")
    return condition(result, zone)


def _literal(value: Any) -> Literal:
    """A value of Python's as a literal."""
    from delta_sharing_spark.predicates import scalar_types as types
    from delta_sharing_spark.predicates.literals import fit, number
    from delta_sharing_spark.predicates.tree import Literal

    match value:
        case None:
            return Literal(None, types.VOID)
        case bool():
            return Literal(value, types.BOOLEAN)
        case int():
            return Literal(fit(value, types.LONG), types.LONG)
        case float():
            return Literal(value, types.DOUBLE)
        case Decimal() if value.is_finite():
            return number(f"{value.copy_abs():f}BD", value < 0)  # abs() rounds to 28 digits
        case str():
            return Literal(value, types.STRING)
        case datetime():
            since = value.replace(tzinfo=value.tzinfo or timezone.utc) - datetime(1970, 1, 1, tzinfo=timezone.utc)
            kind = types.TIMESTAMP_NTZ if value.tzinfo is None else types.TIMESTAMP
            return Literal(since // timedelta(microseconds=1), kind)
        case date():
            return Literal((value - date(1970, 1, 1)).days, types.DATE)
    raise PredicateError(f"a value of the type {type(value).__name__}")
