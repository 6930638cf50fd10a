"""Reads what a query needs of each of its tables on a Spark Connect session, and narrows its loads by the Python data source to that.

This module and ``connect_loads`` can go when Spark hands a Python data source the columns and filters of each use of a load
(SPARK-51713 has the columns, SPARK-58551 the limit). They can also go when the native lane reaches a server in another
process. On classic sessions Spark asks the index of the native lane instead (``file_index``), and nothing is narrowed.

Plans are texts there. In place of each table stands a marker relation. Each of its columns is made from a word of its own,
drawn anew, by a function that Spark cannot compute before it runs. Executing it fails. A column that Spark's optimizer
removed has its word nowhere in the physical plan.

Conditions are conjectured from the plan's text, in which a string cannot be told from a condition. A conjecture is believed
only if Spark makes the very same plan of the query over tables that are filtered by it first. Then Spark itself has found
that the query's own conditions imply it. A condition that changes anything stands in the plan as one more.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.sql.types import ArrayType, MapType, StringType, StructField, StructType
from pyspark.sql.types import DataType as SparkType

from delta_sharing_spark.access.load import Load, cheapest_column, narrowed
from delta_sharing_spark.access.resolved_scan import has_limit
from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.options.values import quoted_column
from delta_sharing_spark.predicates import tree
from delta_sharing_spark.predicates.functions import Operand, like
from delta_sharing_spark.predicates.literals import cast
from delta_sharing_spark.predicates.scalar_types import BINARY, STRING, TIMESTAMP
from delta_sharing_spark.predicates.sql import resolve
from delta_sharing_spark.predicates.times import Zone
from delta_sharing_spark.predicates.translation import Translator
from delta_sharing_spark.schema.instants import timestamp_micros
from delta_sharing_spark.schema.types import DataType, Struct
from delta_sharing_spark.spark.spark_types import spark_struct
from delta_sharing_spark.spark.table_frames import completed, reshaped

_PHYSICAL = "== Physical Plan =="
#: The longest lists that Spark writes in full by default have 25 items; then it says how many more there are.
_CUT = re.compile(r"\.\.\. \d+ more fields|\.\.\.\s*$", re.MULTILINE)
_FIELDS_SHOWN = "spark.sql.debug.maxToStringFields"
#: Calls, as analysed plans write them, of what is known at the moment of planning only.
_TIMED = re.compile(r"\b(?:current_\w+|now|localtimestamp)\(")
_ROWS = 1 << 40
_FILTER = re.compile(r"^[\s:+*\-]*(?:\*?\(\d+\) )?Filter (.*)$", re.MULTILINE)
#: A column where a plan's text has had its expression replaced: table, column, and the fields within it.
_COLUMN = re.compile(r"\x01(\d+),(\d+)\x02((?:\.\w+)*)")
_COMPARISON = re.compile(r"(\x01[^\x02]*\x02[\w.]*) (=|<=>|<=|<|>=|>) (.*)", re.DOTALL)
_CALL = re.compile(r"(isnotnull|isnull|StartsWith|EndsWith|Contains)\((\x01[^\x02]*\x02[\w.]*)(?:, (.*))?\)", re.DOTALL)
_LIST = re.compile(r"(\x01[^\x02]*\x02[\w.]*) (?:IN \((.*)\)|INSET (.*))", re.DOTALL)
_LIKE = re.compile(r"(\x01[^\x02]*\x02[\w.]*) LIKE (.*)", re.DOTALL)
#: What differs between the texts of two equal plans: numbers of expressions and stages, and the order of conjuncts.
_NUMBERED = re.compile(r"#\d+L?|plan_id=\d+|\*?\(\d+\) |[()]")
#: How often Spark is asked: once more where some conditions change the plan.
_ATTEMPTS = 2

#: A query over other relations: those of its tables by their places.
Query = Callable[[Callable[[int], DataFrame]], DataFrame]


@dataclass(frozen=True, slots=True)
class TableNeed:
    """The columns and rows that a query needs of one table.

    Attributes:
        columns: The columns; None for all.
        where: What every needed row fulfils; None if that is nothing.
        reason: Why it is not less, or another remark for ``explain``.
    """

    columns: Struct | None = None
    where: tree.Expression | None = None
    reason: str | None = None


def query_needs(
    spark: SparkSession, loads: Sequence[Load], over: Query
) -> tuple[list[TableNeed], list[tuple[str, str]]]:
    """The needs of a query of each of its tables, and its own columns by name and type; nothing of it is executed.

    Raises:
        pyspark.errors.AnalysisException: Spark does not understand the query.
    """
    if not loads:
        return [], []
    relations = MarkerRelations(spark)
    try:
        stand_ins = [completed(relations.add(load.schema), load) for load in loads]
        for frame in stand_ins:
            _ = frame.schema  # Connect says now whether it has such a relation
    except PySparkException as error:
        return [TableNeed(reason=f"Spark cannot plan over its types ({first_line(error)})")] * len(loads), []
    planned = over(stand_ins.__getitem__)
    try:
        return relations.needs(planned, over), described(planned)
    except PySparkException as error:  # a stream among its tables, which Spark plans when it starts
        reason = f"Spark does not plan the query before it runs ({first_line(error)})"
        return [TableNeed(reason=reason)] * len(loads), []


def narrowing(options: Mapping[str, str], table: Struct, need: TableNeed) -> dict[str, str]:
    """The options by which a table is loaded with what a query needs of it; none where that is all.

    Args:
        options: Those of all its loads.
    """
    if need.columns is None:
        return {}
    names: Sequence[str] = need.columns.names
    if not names and table.fields:  # its rows are counted
        names = [str(cheapest_column(table))]
    where = sent_condition(options, need)
    return {"columns": ",".join(map(quoted_column, names)), **({} if where is None else {"where": where})}


def sent_condition(options: Mapping[str, str], need: TableNeed) -> str | None:
    """The text of the condition that a table is loaded with: that of all its loads, and the query's."""
    own = {name.lower(): value for name, value in options.items()}
    if need.where is None or has_limit(own):
        return own.get("where")
    return narrowed(own, {"where": str(need.where)})["where"]


def filled(frame: DataFrame, table: Struct, needed: Struct) -> DataFrame:
    """The table's columns, with NULLs in those that are not needed."""
    return frame if needed == table else frame.select(*reshaped(needed, table))


def described(frame: DataFrame) -> list[tuple[str, str]]:
    """The columns of a frame, by name and type."""
    return [(field.name, field.dataType.simpleString()) for field in frame.schema.fields]


def first_line(error: Exception) -> str:
    """The first line of an error of Spark's."""
    return str(error).strip().partition("\n")[0]


class MarkerRelations:
    """Makes relations to plan a query over."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._word = f"w{uuid.uuid4().hex}"
        self._schemas: list[Struct] = []
        self._frames: list[DataFrame] = []

    def add(self, schema: Struct) -> DataFrame:
        """A relation of a table's schema.

        Raises:
            pyspark.errors.PySparkException: A type that JSON does not have.
        """
        table = len(self._schemas)
        self._schemas.append(schema)
        columns = [
            _opaque(field.dataType, self._mark(table, i)).alias(field.name, metadata=field.metadata)
            for i, field in enumerate(spark_struct(schema).fields)
        ]
        # So many rows that no plan is simplified for their number; executing them fails at the first.
        failure = functions.concat(
            functions.lit("this relation is there to plan over "), functions.col("id").cast("string")
        )
        rows = self._spark.range(_ROWS).where(functions.raise_error(failure).isNull())
        self._frames.append(rows.select(*columns))
        return self._frames[-1]

    def needs(self, frame: DataFrame, over: Query) -> list[TableNeed]:
        """What a query over the relations needs of each, in the order in which they were added.

        Args:
            over: Makes the query over other relations.
        """
        text = self._explained(frame)
        analyzed, _, physical = text.rpartition(_PHYSICAL)
        if _TIMED.search(analyzed):
            reason = "the query may choose by the current moment or session, which may be another when it runs"
        elif not physical or _CUT.search(physical):
            reason = "Spark Connect does not show the whole plan"
        else:
            conditions = self._conditions(physical, over)
            return [self._need(i, schema, physical, conditions[i]) for i, schema in enumerate(self._schemas)]
        return [TableNeed(reason=reason) for _ in self._schemas]

    def _conditions(self, physical: str, over: Query) -> Sequence[tree.Expression | None]:
        def plan_with(conditions: Sequence[tree.Expression | None]) -> str | None:
            def filtered(place: int) -> DataFrame:
                frame, condition = self._frames[place], conditions[place]
                return frame if condition is None else frame.where(tree.sql_of(condition, tree.quote_bytes))

            try:
                return self._explained(over(filtered)).rpartition(_PHYSICAL)[2]
            except PySparkException:
                return None

        zone = self._spark.conf.get("spark.sql.session.timeZone") or "UTC"
        conjectured = conjectures(physical, self._word, self._schemas, zone)
        return implied_conditions(physical, self._word, conjectured, plan_with)

    def _need(self, table: int, schema: Struct, physical: str, condition: tree.Expression | None) -> TableNeed:
        needed = Struct(tuple(f for i, f in enumerate(schema.fields) if self._mark(table, i) in physical))
        reason = None if condition is not None else "conditions are left to Spark: its plan shows none that it proves"
        return TableNeed(needed, condition, reason=reason)

    def _mark(self, table: int, column: int) -> str:
        return f"{self._word}t{table}c{column}z"

    def _explained(self, frame: Any) -> str:
        """The text of all of the frame's plans."""
        text = str(frame._explain_string(extended=True))
        if not _CUT.search(text):
            return text
        conf = self._spark.conf
        before = conf.get(_FIELDS_SHOWN, None)
        conf.set(_FIELDS_SHOWN, str(1 << 30))
        try:
            return str(frame._explain_string(extended=True))
        finally:
            conf.unset(_FIELDS_SHOWN) if before is None else conf.set(_FIELDS_SHOWN, before)


def _opaque(kind: SparkType, mark: str) -> Column:
    """A value of a type that depends on the row, so that Spark cannot fold it, and holds a word."""
    if isinstance(kind, MapType) and not isinstance(kind.keyType, StringType):
        keys, values = (ArrayType(inner) for inner in (kind.keyType, kind.valueType))
        return functions.map_from_arrays(_opaque(keys, mark), _opaque(values, mark))
    text = functions.concat(functions.lit(mark), functions.col("id").cast("string"))
    return functions.from_json(text, StructType([StructField("value", kind)])).getField("value")


def _normal(plan: str) -> list[tuple[str, ...]]:
    return [tuple(sorted(_NUMBERED.sub("", line).split())) for line in plan.splitlines()]


def conjectures(plan: str, word: str, schemas: Sequence[Struct], time_zone: str) -> list[tree.Expression | None]:
    """Conditions that the filters of a plan may be, by table; None where there is none.

    Args:
        word: What the marks of columns begin with.
        time_zone: The session's zone, in which the plan shows timestamps.
    """
    expression = re.compile(
        rf"from_json\(StructField\(value,(?:(?!from_json\().)*?\), concat\({word}t(\d+)c(\d+)z, cast\(id#\d+L? as string\)\), "
        rf"Some\([^)]*\)(?:, \w+)*\)\.value"
    )
    filters_by_table: list[list[tree.Expression]] = [[] for _ in schemas]
    for match in _FILTER.finditer(plan):
        text = expression.sub(lambda column: f"\x01{column[1]},{column[2]}\x02", match[1])
        tables = {int(column[1]) for column in _COLUMN.finditer(text)}
        if len(tables) == 1:
            (table,) = tables
            parts = dict.fromkeys(_Reader(schemas[table], Zone(time_zone)).conjuncts(text))
            filters_by_table[table].append(tree.conjunction(list(parts)))
    either = [tree.disjunction(list(dict.fromkeys(filters))) for filters in filters_by_table]
    return [None if isinstance(condition, tree.Constant) else condition for condition in either]


class _Reader(Translator):
    """Reads the filter of one table."""

    #: An AND of a filter, an OR of a table's filters and an AND with the load's own come around it.
    deepest = tree.MAX_DEPTH - 3

    def step(self, node: str) -> tuple[str, Sequence[Any]] | Operand:
        for word in ("AND", "OR"):
            parts = _split(node, f" {word} ")
            if len(parts) > 1:
                return word, parts
        text = _bare(node)
        if text.startswith("NOT "):
            return "NOT", [text[4:]]
        if match := _CALL.fullmatch(text):
            texts = [] if match[3] is None else [tree.Literal(match[3], STRING)]
            return match[1].upper(), [self._column(match[2]), *texts]
        if match := _LIST.fullmatch(text):
            column = self._column(match[1])
            values = match[2].split(",") if match[2] is not None else match[3].split(", ")
            return "IN", [column, *(self._literal(value, column.type) for value in values)]
        if match := _LIKE.fullmatch(text):
            return like(self._column(match[1]), tree.Literal(match[2], STRING))
        if match := _COMPARISON.fullmatch(text):
            column = self._column(match[1])
            return match[2], [column, self._literal(match[3], column.type)]
        return self._column(text)

    def _column(self, text: str) -> tree.Column:
        match = _COLUMN.fullmatch(text)
        if match is None:
            raise PredicateError("not a column")
        return resolve([self.schema.fields[int(match[2])].name, *match[3].split(".")[1:]], self.schema)

    def _literal(self, text: str, kind: DataType) -> tree.Literal:
        if text == "null" or kind == BINARY:
            raise PredicateError("not a literal")
        if kind == TIMESTAMP:
            return tree.Literal(timestamp_micros(text, self.zone.name), kind)
        return cast(tree.Literal(text, STRING), kind, self.zone)


def _split(text: str, operator: str) -> list[str]:
    """The operands of an operator that stands outside all parentheses, once those around the whole are left out."""
    text = _bare(text)
    parts, depth, start, position = [], 0, 0, 0
    while position < len(text):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if depth == 0 and text.startswith(operator, position):
            parts.append(text[start:position])
            position = start = position + len(operator)
        else:
            position += 1
    return [*parts, text[start:]]


def _bare(text: str) -> str:
    """The text without parentheses around all of it."""
    while text.startswith("(") and text.endswith(")"):
        depth = 0
        for position, character in enumerate(text):
            depth += {"(": 1, ")": -1}.get(character, 0)
            if depth == 0 and position < len(text) - 1:
                return text
        text = text[1:-1]
    return text


def implied_conditions(
    plan: str,
    word: str,
    conditions: Sequence[tree.Expression | None],
    plan_with: Callable[[Sequence[tree.Expression | None]], str | None],
) -> list[tree.Expression | None]:
    """Those of the conditions that the query itself implies; what they change is left out and tried no more.

    Args:
        conditions: One for each table, or None.
        plan_with: The query's plan over tables that are filtered by conditions; None if Spark makes none.
    """
    remaining, before = list(conditions), _normal(plan)
    for _ in range(_ATTEMPTS):
        other = plan_with(remaining) if remaining.count(None) < len(remaining) else None
        if other is None:
            break
        after = _normal(other)
        if after == before:
            return remaining
        changed = {int(t) for line in set(before) ^ set(after) for t in re.findall(rf"{word}t(\d+)c", " ".join(line))}
        remaining = [None if place in changed else condition for place, condition in enumerate(remaining)]
        if not changed:
            break
    return [None] * len(conditions)
