"""Reads what a query needs of each of its tables on a Spark Connect session, where plans are texts.

In place of each table stands a relation whose every column is made from a word of its own, drawn anew, by a function that
Spark cannot compute before it runs; executing it fails. A column that Spark's optimizer removed has its word nowhere in
the physical plan.

Conditions are conjectured from the plan's text, in which a string cannot be told from a condition. A conjecture is believed
only if Spark makes the very same plan of the query over tables that are filtered by it first: then Spark itself has found
that the query's own conditions imply it. A condition that changes anything stands in the plan as one more.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.sql.types import ArrayType, MapType, StringType, StructField, StructType
from pyspark.sql.types import DataType as SparkType

from delta_sharing_spark.errors import DeltaSharingError, PredicateError
from delta_sharing_spark.predicates import tree
from delta_sharing_spark.predicates.functions import Operand, call, compare, condition, like, membership
from delta_sharing_spark.predicates.literals import cast
from delta_sharing_spark.predicates.scalar_types import BINARY, STRING, TIMESTAMP
from delta_sharing_spark.predicates.sql import resolve
from delta_sharing_spark.predicates.times import Zone
from delta_sharing_spark.schema.instants import timestamp_micros
from delta_sharing_spark.schema.types import DataType, Struct
from delta_sharing_spark.spark.narrowed_loads import TableNeed
from delta_sharing_spark.spark.plan_conditions import where_of
from delta_sharing_spark.spark.spark_types import spark_struct

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


class WordRelations:
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

    def needs(self, frame: DataFrame, over: Callable[[Callable[[int], DataFrame]], DataFrame]) -> list[TableNeed]:
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

    def _conditions(
        self, physical: str, over: Callable[[Callable[[int], DataFrame]], DataFrame]
    ) -> Sequence[str | None]:
        def plan_with(conditions: Sequence[str | None]) -> str | None:
            def filtered(place: int) -> DataFrame:
                condition = conditions[place]
                return self._frames[place] if condition is None else self._frames[place].where(condition)

            try:
                return self._explained(over(filtered)).rpartition(_PHYSICAL)[2]
            except PySparkException:
                return None

        zone = self._spark.conf.get("spark.sql.session.timeZone") or "UTC"
        conjectured = conjectures(physical, self._word, self._schemas, zone)
        return implied_conditions(physical, self._word, conjectured, plan_with)

    def _need(self, table: int, schema: Struct, physical: str, condition: str | None) -> TableNeed:
        needed = Struct(tuple(f for i, f in enumerate(schema.fields) if self._mark(table, i) in physical))
        reason = None if condition else "conditions are left to Spark: its plan shows none that it proves"
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


def conjectures(plan: str, word: str, schemas: Sequence[Struct], time_zone: str) -> list[str | None]:
    """Conditions in the words of ``where`` that the filters of a plan may be, by table; None where there is none.

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
            parts = dict.fromkeys(_Reader(schemas[table], time_zone).conjuncts(text))
            filters_by_table[table].append(tree.conjunction(list(parts)))
    return [where_of(filters) if filters else None for filters in filters_by_table]


class _Reader:
    """Reads the filter of one table."""

    def __init__(self, schema: Struct, time_zone: str) -> None:
        self._schema, self._zone = schema, Zone(time_zone)

    def conjuncts(self, text: str) -> Iterator[tree.Expression]:
        """The conjuncts that ``where`` can say, by a text that every session reads alike."""
        parts = _split(text, " AND ")
        if len(parts) > 1:
            for part in parts:
                yield from self.conjuncts(part)
            return
        with suppress(DeltaSharingError, ValueError, OverflowError):
            read = self._condition(text)
            if "\\" not in str(read) and tree.depth(read) < tree.MAX_DEPTH:  # an AND comes around it
                yield read

    def _condition(self, text: str) -> tree.Expression:
        for operator, join in ((" AND ", tree.conjunction), (" OR ", tree.disjunction)):
            parts = _split(text, operator)
            if len(parts) > 1:
                return join([self._condition(part) for part in parts])
        text = _bare(text)
        if text.startswith("NOT "):
            return tree.negation(self._condition(text[4:]))
        operand: Operand | None
        if match := _CALL.fullmatch(text):
            column = self._column(match[2])
            texts = [] if match[3] is None else [tree.Literal(match[3], STRING)]
            operand = call(match[1].upper(), [column, *texts], self._zone, None)
        elif match := _LIST.fullmatch(text):
            column = self._column(match[1])
            values = match[2].split(",") if match[2] is not None else match[3].split(", ")
            operand = membership(column, [self._literal(value, column.type) for value in values], self._zone)
        elif match := _LIKE.fullmatch(text):
            operand = like(self._column(match[1]), tree.Literal(match[2], STRING))
        elif match := _COMPARISON.fullmatch(text):
            column = self._column(match[1])
            operand = compare(match[2], column, self._literal(match[3], column.type), self._zone)
        else:
            operand = self._column(text)
        assert operand is not None
        return condition(operand, self._zone)

    def _column(self, text: str) -> tree.Column:
        match = _COLUMN.fullmatch(text)
        if match is None:
            raise PredicateError("not a column")
        return resolve([self._schema.fields[int(match[2])].name, *match[3].split(".")[1:]], self._schema)

    def _literal(self, text: str, kind: DataType) -> tree.Literal:
        if text == "null" or kind == BINARY:
            raise PredicateError("not a literal")
        if kind == TIMESTAMP:
            return tree.Literal(timestamp_micros(text, self._zone.name), kind)
        return cast(tree.Literal(text, STRING), kind, self._zone)


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
    plan: str, word: str, conditions: Sequence[str | None], plan_with: Callable[[Sequence[str | None]], str | None]
) -> list[str | None]:
    """Those of the conditions that the query itself implies; what they change is left out and tried no more.

    Args:
        conditions: One for each table, or None.
        plan_with: The query's plan over tables that are filtered by conditions; None if Spark makes none.
    """
    remaining, before = list(conditions), _normal(plan)
    for _ in range(_ATTEMPTS):
        other = plan_with(remaining) if any(remaining) else None
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
