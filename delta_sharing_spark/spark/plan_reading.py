"""Reads what a query needs of each of its tables from the plan that Spark makes for it on a classic session.

In place of each table the query is planned over a relation of the table's schema, whose one file nothing can read: whatever
executes a query meanwhile fails, and nothing is guessed from it. Spark prunes the relation's columns and moves the query's
conditions down to its scans, and says so in the scans of the physical plan.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from delta_sharing_spark.schema.project import merge
from delta_sharing_spark.schema.types import DataType, Field, Struct, parse_schema, spark_schema_json
from delta_sharing_spark.spark.narrowed_loads import TableNeed
from delta_sharing_spark.spark.plan_conditions import ScanConditions, either, read_filters
from delta_sharing_spark.spark.plan_moments import Moment, moment_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PLAIN_NAME = re.compile(r"\w+")
_SCAN = "FileSourceScanExec"
#: Plans without children in which no relation of ours can hide.
_LEAVES = {_SCAN, "LocalTableScanExec", "RangeExec", "RDDScanExec", "OneRowRelationExec", "EmptyRelationExec", "BatchScanExec",
           "RowDataSourceScanExec", "HiveTableScanExec", "ReusedExchangeExec", "ReusedSubqueryExec",
           "SubqueryAdaptiveBroadcastExec"}  # fmt: skip


class PlanningRelations:
    """Relations to plan over, in a directory of its own; a context manager.

    Args:
        spark: A classic session.
        zone: The zone in which loads read ``where``.
    """

    def __init__(self, spark: SparkSession, zone: str) -> None:
        self._spark, self._zone = spark, zone
        self._root = Path(tempfile.mkdtemp(prefix="delta-sharing-planning-"))
        self._schemas: list[Struct] = []

    def __enter__(self) -> PlanningRelations:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._root, ignore_errors=True)

    def add(self, schema: Struct) -> DataFrame:
        """A relation of a table's schema.

        Raises:
            pyspark.errors.AnalysisException: Parquet has no such type.
        """
        directory = self._root / str(len(self._schemas))
        directory.mkdir()
        (directory / "planning-only.parquet").write_bytes(b"This file exists for planning and is never read.")
        reader = self._spark.read.schema(StructType.fromJson(spark_schema_json(schema)))
        reader = reader.option("ignoreCorruptFiles", "false").option("ignoreMissingFiles", "false")
        frame = reader.parquet(directory.as_uri())
        self._schemas.append(schema)
        return frame

    def needs(self, frame: Any, over: object = None) -> list[TableNeed]:
        """What a query over the relations needs of each, in the order in which they were added.

        Args:
            frame: The query over the relations; nothing of it is executed.
            over: Not used: this plan holds all that is needed.
        """
        execution = frame._jdf.queryExecution()
        moment = self._moment(execution.analyzed())
        if moment is Moment.NOTHING:
            reason = "the query chooses by the current moment or session, which may be another when it runs"
            return [TableNeed(reason=reason) for _ in self._schemas]
        scans: dict[str, list[Any]] = {}
        for plan in _plans(execution.executedPlan()):
            kind = _kind(plan)
            if kind == _SCAN:
                scans.setdefault(_path(plan), []).append(plan)
            elif kind not in _LEAVES and not _below(plan):
                return [TableNeed(reason=f"the plan has a {kind}, which is not known") for _ in self._schemas]
        return [
            self._need(schema, scans.get(str(self._root / str(i)), []), moment)
            for i, schema in enumerate(self._schemas)
        ]

    def _moment(self, analyzed: Any) -> Moment:
        pattern = self._jvm().org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
        return moment_of(json.loads(analyzed.toJSON())) if analyzed.containsPattern(pattern) else Moment.ANY

    def _jvm(self) -> Any:
        return self._spark._jvm

    def _need(self, schema: Struct, scans: Sequence[Any], moment: Moment) -> TableNeed:
        if not scans:
            return TableNeed(reason="Spark's plan does not read it")
        columns = Struct(())
        for scan in scans:
            columns = merge(columns, _needed(schema, parse_schema(scan.requiredSchema().json())))
        ordered = Struct(tuple(column for f in schema.fields if (column := columns.find(f.name))))
        if moment is Moment.COLUMNS:
            return TableNeed(ordered, reason="conditions may follow the current moment")
        where, left = either([self._reading(scan, schema, moment) for scan in scans])
        return TableNeed(ordered, where, left)

    def _reading(self, scan: Any, schema: Struct, moment: Moment) -> ScanConditions:
        return read_filters(elements(scan.dataFilters()), schema, self._zone, follows_clock=moment is Moment.BOUNDS)


def _plans(plan: Any) -> Iterator[Any]:
    """A physical plan and all below it, those of subqueries and cached data frames included."""
    pending = [plan]
    while pending:
        current = pending.pop(0)
        yield current
        pending = _below(current) + pending


def _below(plan: Any) -> list[Any]:
    kind = _kind(plan)
    if kind == "AdaptiveSparkPlanExec":
        return [plan.initialPlan()]
    below = elements(plan.children()) + elements(plan.subqueries())
    if kind == "InMemoryTableScanExec":
        below.append(plan.relation().cachedPlan())
    return below


def elements(sequence: Any) -> list[Any]:
    """The elements of a sequence of Scala's."""
    return [sequence.apply(place) for place in range(sequence.size())]


def _kind(plan: Any) -> str:
    return str(plan.getClass().getName()).rpartition(".")[2]


def _path(scan: Any) -> str:
    paths = scan.relation().location().rootPaths()
    return str(paths.head().toUri().getPath()) if paths.size() == 1 else ""


def _needed(table: Struct, required: Struct) -> Struct:
    """Columns that a scan requires: structs of plain names may be narrowed, in arrays and maps all is kept."""
    fields = []
    for have in table.fields:
        want = required.find(have.name)
        if want is None:
            continue
        kind: DataType = have.type
        if isinstance(have.type, Struct) and isinstance(want.type, Struct):
            inner = _needed(have.type, want.type)
            if inner.fields and all(_PLAIN_NAME.fullmatch(name) for name in (have.name, *inner.names)):
                kind = inner
        fields.append(Field(have.name, kind, have.nullable, have.metadata))
    return Struct(tuple(fields))
