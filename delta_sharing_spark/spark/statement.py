"""Checks that a SQL text is a query by Spark's own parser, without executing anything."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException, ParseException

from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.spark.table_names import Token, tokens_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ADVICE = (
    "client.sql takes a query (SELECT, WITH ... SELECT, FROM, TABLE or VALUES) and runs nothing else: write its result "
    'with client.sql(spark, "SELECT ...").write or .writeTo(table), and run other statements with spark.sql'
)


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is one of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def require_query(spark: SparkSession, text: str) -> None:
    """Refuse every text that is not a single query: commands, inserts (after CTEs or FROM too), scripts.

    ``spark.sql`` executes a statement that is not a query at once, so this comes before anything else. A common table
    expression takes a query and nothing else: Spark's parser is given the text as the body of one.

    Raises:
        PredicateError: The text is not a query.
        pyspark.errors.ParseException: Spark cannot parse the text.
    """
    tokens = [t for t in tokens_of(text) if t.kind != "end"]
    while tokens and tokens[-1].text == ";":
        tokens.pop()
    if not tokens:
        raise PredicateError(f"the query is empty; {_ADVICE}", position=0)
    _require_balance(tokens)
    wrapped = f"WITH checked AS (\n{text[: tokens[-1].end]}\n) SELECT 1"
    try:
        if is_connect(spark):
            _analyse_on_connect(spark, wrapped)
        else:
            _parse(spark, wrapped)
    except ParseException as refused:
        if not is_connect(spark):
            from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

            with suppress(Py4JJavaError):  # a script on Spark 4.0, whose error PySpark has no class for
                _parse(spark, text)  # its own error, if it is no statement at all
        first_line = str(refused).strip().partition("\n")[0]
        raise PredicateError(f"Spark does not read this as a query ({first_line}); {_ADVICE}", position=0) from refused


def _require_balance(tokens: Sequence[Token]) -> None:
    """Refuse a text that would end the parentheses put around it."""
    depth = 0
    for token in tokens:
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if depth < 0:
            break
    if depth:
        raise PredicateError(f"the query's parentheses do not match; {_ADVICE}", position=0)


def _parse(spark: Any, text: str) -> None:
    spark._jsparkSession.sessionState().sqlParser().parsePlan(text)


def _analyse_on_connect(spark: SparkSession, wrapped: str) -> None:
    """Have a Connect server parse a text that can be nothing but a query; errors of analysis are ignored here."""
    try:
        spark.sql(wrapped)
    except ParseException:
        raise
    except AnalysisException:
        return
