"""Which columns a query needs of each of its tables, on a Spark Connect session, where plans are texts.

In place of each table stands a relation whose every column is made from a word of its own, drawn anew, by a function that
Spark cannot compute before it runs; executing it fails. A column that Spark's optimizer removed has its word nowhere in the physical plan: so
nothing is read from the plan but which words stand in it. Conditions cannot be told so, and are left to Spark.
"""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from delta_sharing_spark.schema.spark import spark_schema_json
from delta_sharing_spark.schema.types import Struct
from delta_sharing_spark.spark.plan_needs import TableNeed

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
    """Relations to plan over.

    Args:
        spark: A Connect session.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._word = f"w{uuid.uuid4().hex}"
        self._schemas: list[Struct] = []

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
        return self._spark.range(_ROWS).where(functions.raise_error(failure).isNull()).select(*columns)

    def needs(self, frame: DataFrame) -> list[TableNeed]:
        """What a data frame over the relations needs of each, in the order in which they were added."""
        text = self._explained(frame)
        analyzed, _, physical = text.rpartition(_PHYSICAL)
        if _TIMED.search(analyzed):
            reason = "the query may choose by the current moment or session, which may be another when it runs"
        elif not physical or _CUT.search(physical):
            reason = "Spark Connect does not show the whole plan"
        else:
            return [self._need(table, schema, physical) for table, schema in enumerate(self._schemas)]
        return [TableNeed(reason=reason) for _ in self._schemas]

    def _need(self, table: int, schema: Struct, physical: str) -> TableNeed:
        needed = Struct(tuple(f for i, f in enumerate(schema.fields) if self._mark(table, i) in physical))
        return TableNeed(needed, reason="conditions are left to Spark: Spark Connect does not tell them for certain")

    def _mark(self, table: int, column: int) -> str:
        return f"{self._word}t{table}c{column}z"

    def _explained(self, frame: Any) -> str:
        """The frame's plans, in full."""
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
