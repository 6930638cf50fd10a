"""Reads what a query needs of each of its tables on a Spark Connect session, where plans are texts.

In place of each table stands a relation whose every column is made from a word of its own, drawn anew, by a function that
Spark cannot compute before it runs; executing it fails. A column that Spark's optimizer removed has its word nowhere in
the physical plan. What the plan's filters seem to say is put to Spark itself: see ``connect_conditions``.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from delta_sharing_spark.schema.types import Struct, spark_schema_json
from delta_sharing_spark.spark.connect_conditions import conjectures, implied_conditions
from delta_sharing_spark.spark.narrowed_loads import TableNeed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_PHYSICAL = "== Physical Plan =="
#: The longest lists that Spark writes in full by default have 25 items; then it says how many more there are.
_CUT = re.compile(r"\.\.\. \d+ more fields|\.\.\.\s*$", re.MULTILINE)
_FIELDS_SHOWN = "spark.sql.debug.maxToStringFields"
#: Calls, as analysed plans write them, of what is known at the moment of planning only.
_TIMED = re.compile(r"\b(?:current_\w+|now|localtimestamp)\(")
_ROWS = 1 << 40


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
        from pyspark.sql import functions

        table = len(self._schemas)
        self._schemas.append(schema)
        columns = [
            _opaque(field.dataType, self._mark(table, i)).alias(field.name, metadata=field.metadata)
            for i, field in enumerate(StructType.fromJson(spark_schema_json(schema)).fields)
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


def _opaque(kind: DataType, mark: str) -> Column:
    """A value of a type that depends on the row, so that Spark cannot fold it, and holds a word."""
    from pyspark.sql import functions

    if isinstance(kind, MapType) and not isinstance(kind.keyType, StringType):
        keys, values = (ArrayType(inner) for inner in (kind.keyType, kind.valueType))
        return functions.map_from_arrays(_opaque(keys, mark), _opaque(values, mark))
    text = functions.concat(functions.lit(mark), functions.col("id").cast("string"))
    return functions.from_json(text, StructType([StructField("value", kind)])).getField("value")
