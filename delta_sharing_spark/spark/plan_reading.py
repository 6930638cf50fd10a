"""Reads what a query needs of each of its tables from the plan that Spark makes for it on a classic session.

In place of each table the query is planned over a relation of the table's schema, whose one file nothing can read: whatever
executes a query meanwhile fails, and nothing is guessed from it. Spark prunes the relation's columns and moves the query's
conditions down to its scans, and says so in the scans of the physical plan.

Spark computes ``current_date()`` and its like when a plan is optimized, and each action on a data frame may optimize it
anew: what one optimized plan needs must hold for those of later moments too.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from delta_sharing_spark.schema.types import DataType, Field, Struct, merge, parse_schema
from delta_sharing_spark.spark.narrowed_loads import TableNeed
from delta_sharing_spark.spark.plan_conditions import COMPARISONS, TEMPORAL, Node, class_of, read_filters, where_of
from delta_sharing_spark.spark.spark_types import spark_struct

_PLAIN_NAME = re.compile(r"\w+")
_SCAN = "FileSourceScanExec"
#: Plans without children in which no relation of ours can hide.
_LEAVES = {_SCAN, "LocalTableScanExec", "RangeExec", "RDDScanExec", "OneRowRelationExec", "EmptyRelationExec", "BatchScanExec",
           "RowDataSourceScanExec", "HiveTableScanExec", "ReusedExchangeExec", "ReusedSubqueryExec",
           "SubqueryAdaptiveBroadcastExec"}  # fmt: skip
_CLOCK = {"CurrentDate", "CurrentTimestamp", "Now", "LocalTimestamp"}
#: Functions of a moment and constants that never go back when the moment goes on (but for a change of the zone's offset).
_STEADY = {"TimestampAddInterval", "TimeAdd", "TimestampAddYMInterval", "DateAdd", "DateSub", "DateAddInterval", "DateAddYMInterval",
           "AddMonths", "TruncDate", "TruncTimestamp", "TimestampAdd", "Cast"}  # fmt: skip
#: Further functions whose value no other part of a plan is chosen by.
_PLAIN = {*_STEADY, "DateDiff", "SubtractDates", "SubtractTimestamps", "TimestampDiff", "Year", "Month", "DayOfMonth", "Alias", "Add",
          "Subtract", "Multiply", "Divide", "MonthsBetween", "UnixTimestamp", "ToUnixTimestamp", "DateFormatClass"}  # fmt: skip
#: What chooses between expressions: a value that is folded into it may remove columns from the plan.
_CHOICES = {"CaseWhen", "If", "Coalesce", "Or", "Not", "GetArrayItem", "GetMapValue", "ElementAt", "Elt", "In", "NullIf", "Nvl2",
            "Greatest", "Least"}  # fmt: skip
_THROUGH = {"Sort", "GlobalLimit", "LocalLimit", "Distinct", "Offset"}


class PlanningRelations:
    """Relations to plan over, in a directory that is removed with them.

    Args:
        zone: The zone in which loads read ``where``.
    """

    def __init__(self, spark: SparkSession, zone: str | None) -> None:
        self._spark, self._zone = spark, zone
        self._root = Path(tempfile.mkdtemp(prefix="delta-sharing-planning-"))
        weakref.finalize(self, shutil.rmtree, self._root, ignore_errors=True)
        self._schemas: list[Struct] = []

    def add(self, schema: Struct) -> DataFrame:
        """A relation of a table's schema.

        Raises:
            pyspark.errors.AnalysisException: Parquet has no such type.
        """
        directory = self._root / str(len(self._schemas))
        directory.mkdir()
        (directory / "planning-only.parquet").write_bytes(b"This file exists for planning and is never read.")
        reader = self._spark.read.schema(spark_struct(schema))
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
        analyzed, moment = execution.analyzed(), Moment.ANY
        patterns = self._spark._jvm.org.apache.spark.sql.catalyst.trees.TreePattern  # type: ignore[union-attr]
        if analyzed.containsPattern(patterns.CURRENT_LIKE()):
            moment = moment_of(json.loads(analyzed.toJSON()))
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

    def _need(self, schema: Struct, scans: Sequence[Any], moment: Moment) -> TableNeed:
        if not scans:
            return TableNeed(reason="Spark's plan does not read it")
        columns = Struct(())
        for scan in scans:
            columns = merge(columns, _needed(schema, parse_schema(scan.requiredSchema().json())))
        ordered = Struct(tuple(column for f in schema.fields if (column := columns.find(f.name))))
        if moment is Moment.COLUMNS:
            return TableNeed(ordered, reason="conditions may follow the current moment")
        follows_clock = moment is Moment.BOUNDS
        read = [read_filters(elements(s.dataFilters()), schema, self._zone, follows_clock=follows_clock) for s in scans]
        left = dict.fromkeys(text for scan in read for text in scan.left)
        return TableNeed(ordered, where_of([scan.condition for scan in read]), tuple(left))


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


class Moment(IntEnum):
    """How far a plan's needs hold at later moments."""

    ANY = 0
    """The plan does not depend on the moment."""
    BOUNDS = 1
    """Conditions hold, but for those that speak of times and are no lower bounds."""
    COLUMNS = 2
    """The columns hold, conditions may not."""
    NOTHING = 3
    """Another plan may be needed at another moment."""


def moment_of(analyzed: Sequence[dict[str, Any]]) -> Moment:
    """How an analysed plan, as the rows that Spark writes to JSON, depends on the moment.

    Every use of the clock must be known: it bounds a column in a filter, or it stands in the result's columns.
    """
    worst = _plan(_tree(iter(analyzed)), is_result=True)
    chosen = any(class_of(row) in _CHOICES for row in _rows(analyzed))
    return Moment.NOTHING if worst is Moment.COLUMNS and chosen else worst


def _rows(value: Any) -> Iterator[dict[str, Any]]:
    """Every plan and expression within a value."""
    if isinstance(value, dict):
        if "class" in value:
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _rows(inner)


def _is_timed(tree: Node) -> bool:
    """Whether part of it, apart from plans of subqueries, is known only at the moment of planning."""
    return any(node.kind in _CLOCK or node.kind.startswith("Current") for node in tree.walk())


def _has_column(tree: Node) -> bool:
    return any(node.kind in ("AttributeReference", "CommonExpressionRef") for node in tree.walk())


def _tree(rows: Iterator[dict[str, Any]]) -> Node:
    """The tree whose rows, children after their parent, come next."""
    row = next(rows)
    children = tuple(_tree(rows) for _ in range(row["num-children"]))
    if isinstance(row.get("replacement"), int):  # a function that is another by definition
        return children[row["replacement"]]
    if class_of(row) == "With" and all(_has_column(d) and not _is_timed(d) for d in children[1:]):
        return children[0]
    return Node(class_of(row), row, children)


def _plan(plan: Node, *, is_result: bool) -> Moment:
    """The dependence of a plan; ``is_result`` if its columns are those of the whole query."""
    worst = max(
        (_plan(child, is_result=is_result and plan.kind in _THROUGH) for child in plan.children), default=Moment.ANY
    )
    for name, value in plan.fields.items():
        for rows in _expressions(value):
            tree = _tree(iter(rows))
            for inner in tree.walk():
                if inner.fields.get("plan"):
                    worst = max(worst, _plan(_tree(iter(inner.fields["plan"])), is_result=False))
            if _is_timed(tree):
                worst = max(worst, _use(plan.kind, name, tree, is_result))
    return worst


def _expressions(value: Any) -> Iterator[list[dict[str, Any]]]:
    """The expressions that one field of a plan holds."""
    if isinstance(value, list) and value:
        if all(isinstance(row, dict) and "num-children" in row for row in value):
            yield value
        else:
            for inner in value:
                yield from _expressions(inner)


def _use(plan: str, name: str, tree: Node, is_result: bool) -> Moment:
    if plan in ("Filter", "Join") and name == "condition":
        return _condition(tree)
    if is_result and name in ("projectList", "aggregateExpressions") and _is_plain(tree):
        return Moment.ANY
    return Moment.NOTHING


def _condition(tree: Node) -> Moment:
    if not _is_timed(tree):
        return Moment.ANY
    if tree.kind in ("And", "Or"):
        return max(_condition(child) for child in tree.children)
    if tree.kind in COMPARISONS and _has_column(tree) and all(_is_plain(child) for child in tree.children):
        first, second = tree.children
        bound = (_is_steady(first) and not _is_timed(second)) or (_is_steady(second) and not _is_timed(first))
        return Moment.BOUNDS if bound and not tree.kind.startswith("Equal") else Moment.COLUMNS
    return Moment.NOTHING


def _is_plain(tree: Node) -> bool:
    """Whether the moment's value passes only through functions that choose nothing by it."""
    if not _is_timed(tree) or tree.kind in _CLOCK:
        return True
    return tree.kind in _PLAIN and all(_is_plain(child) for child in tree.children)


def _is_steady(tree: Node) -> bool:
    """Whether the expression is the moment, moved or truncated by constants."""
    if tree.kind in _CLOCK:
        return True
    if tree.kind not in _STEADY or (tree.kind == "Cast" and tree.fields.get("dataType") not in TEMPORAL):
        return False
    timed = [child for child in tree.children if _is_timed(child)]
    return len(timed) == 1 and _is_steady(timed[0]) and not _has_column(tree)
