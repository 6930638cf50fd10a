"""Tells what a query on a classic session would ask the indexes of its tables: Spark plans it, and nothing of it is run or listed.

In place of each table stands a relation over an index that lists nothing. The scans of Spark's plan hold the filters, columns and
rows with which they would ask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from delta_sharing_spark.access.load import Load
from delta_sharing_spark.native.plan import LoadColumns
from delta_sharing_spark.native.table_index import is_listed_once
from delta_sharing_spark.options.values import quoted_column
from delta_sharing_spark.parquet.decoding import release_of
from delta_sharing_spark.predicates.tree import all_of, conjunction, conjuncts
from delta_sharing_spark.schema.markup import counted
from delta_sharing_spark.schema.types import Struct, parse_schema
from delta_sharing_spark.spark.connect_plans import Query, first_line
from delta_sharing_spark.spark.file_index import planning_relation, scan_question
from delta_sharing_spark.spark.native import loaded
from delta_sharing_spark.spark.plan_conditions import elements
from delta_sharing_spark.spark.spark_types import as_spark_has
from delta_sharing_spark.spark.table_frames import completed

_SCAN = "FileSourceScanExec"
#: Filters that join values give while a query runs.
_DYNAMIC = "dynamicpruning"


def explained_questions(spark: SparkSession, loads: Sequence[Load], over: Query) -> list[list[str]]:
    """Lines for each scan of a query, by table; tables that the native lane can read.

    Args:
        over: Makes the query over other relations.

    Raises:
        pyspark.errors.AnalysisException: Spark does not understand the query.
    """
    tables = {f"webhdfs://127.0.0.1:1/planned-{place}": _Table(spark, load) for place, load in enumerate(loads)}
    frames = [completed(table.frame(root), table.load) for root, table in tables.items()]
    frame: Any = over(frames.__getitem__)
    execution = frame._jdf.queryExecution()
    try:
        for plan in _plans(execution.executedPlan()):
            if _kind(plan) == _SCAN and (table := tables.get(_root(plan))) is not None:
                table.note(plan, execution)
    except PySparkException as error:  # a stream among its tables, which Spark plans when it starts
        reason = f"Spark does not plan the query before it runs ({first_line(error)})"
        return [[table.load.described(), f"  {reason}"] for table in tables.values()]
    return [table.lines() for table in tables.values()]


class _Table:
    """A mention of a table, and what its scans ask."""

    def __init__(self, spark: SparkSession, load: Load) -> None:
        self.load, self._spark = load, spark
        self._scan = as_spark_has(load.resolved())
        self._load_columns = LoadColumns(self._scan, release_of(str(spark.version)))
        self._questions: dict[tuple[str, ...], None] = {}

    def frame(self, root: str) -> Any:
        """The load over an index at ``root``."""
        size = self._scan.head.metadata.size
        return loaded(planning_relation(self._spark, self._load_columns, root, size), self._load_columns)

    def note(self, scan: Any, execution: Any) -> None:
        """Note what a scan of a query's plan asks."""
        partition = [java for java in elements(scan.partitionFilters()) if not str(java).startswith(_DYNAMIC)]
        rows = scan.relation().location().rowsNeeded(execution, scan.partitionFilters(), scan.dataFilters())
        filters = [*partition, *elements(scan.dataFilters())]
        asked = scan_question(filters, rows, self._scan, self._load_columns)
        is_asked = not is_listed_once(self._scan)
        condition = all_of(self._scan.predicate, asked.condition if is_asked else None)
        where = "none" if condition is None else str(conjunction(list(dict.fromkeys(conjuncts(condition)))))
        lines = [
            f"  columns  {self._columns(scan)}",
            f"  where    {where}",
            *(f"  unused   {text}" for text in asked.unused),
        ]
        if not is_asked:
            lines.append("  files    those of the load, which are listed when it is made, whatever its queries ask")
        elif asked.rows is not None and asked.rows >= 0:
            lines.append(f"  rows     {counted(asked.rows, 'row')} of it are enough")
        self._questions[tuple(lines)] = None

    def lines(self) -> list[str]:
        """The table, and below it what each of its scans asks."""
        questions = [line for question in self._questions for line in question]
        return [self.load.described(), *(questions or ["  columns  none: Spark's plan does not read it"])]

    def _columns(self, scan: Any) -> str:
        """The columns that a scan reads of files, narrowed structs by their fields, and those of partitions."""
        read, table = parse_schema(scan.requiredSchema().json()), self._load_columns.columns
        own = Struct(tuple(field for field in read.fields if table.find(field.name) is not None))
        output = {str(attribute.name()) for attribute in elements(scan.output())}
        partitions = [field.name for field in self._load_columns.partition_columns if field.name in output]
        return ", ".join([*_paths(table, own), *map(quoted_column, partitions)]) or "none: its rows are counted"


def _paths(table: Struct, read: Struct) -> list[str]:
    """Columns as the option ``columns`` takes them; structs of which part is read are named by their fields."""
    paths = []
    for column in read.fields:
        whole = None if (field := table.find(column.name)) is None else field.type
        if isinstance(whole, Struct) and isinstance(column.type, Struct) and str(whole) != str(column.type):
            paths += [f"{quoted_column(column.name)}.{path}" for path in _paths(whole, column.type)]
        else:
            paths.append(quoted_column(column.name))
    return paths


def _plans(plan: Any) -> Iterator[Any]:
    """A physical plan and all below it, those of subqueries and cached data frames included."""
    pending = [plan]
    while pending:
        current = pending.pop(0)
        yield current
        kind = _kind(current)
        if kind == "AdaptiveSparkPlanExec":
            pending = [current.initialPlan(), *pending]
            continue
        below = elements(current.children()) + elements(current.subqueries())
        if kind == "InMemoryTableScanExec":
            below.append(current.relation().cachedPlan())
        pending = below + pending


def _kind(plan: Any) -> str:
    return str(plan.getClass().getName()).rpartition(".")[2]


def _root(scan: Any) -> str:
    roots = scan.relation().location().rootPaths()
    return str(roots.head().toString()) if roots.size() == 1 else ""
