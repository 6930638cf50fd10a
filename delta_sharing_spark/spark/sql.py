"""Runs Spark queries over shared tables, and explains them.

Where the native lane reads, Spark's one plan asks for the files of each scan. Else the Python data source reads, on classic sessions
what the options of the loads say, and on Connect what the query needs (``connect_plans``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession

from delta_sharing_spark.access.load import Load, Recipient, RecipientTable
from delta_sharing_spark.errors import DeltaSharingError, NotFoundError, PredicateError
from delta_sharing_spark.native.plan import StepAsideError
from delta_sharing_spark.network.parallel_calls import in_parallel
from delta_sharing_spark.options.declared import naming
from delta_sharing_spark.options.values import quoted_column
from delta_sharing_spark.sharing.address import TableName, parse_table_name
from delta_sharing_spark.sharing.rest import near_name
from delta_sharing_spark.spark.connect_plans import (
    MarkerRelations,
    Query,
    TableNeed,
    described,
    filled,
    first_line,
    narrowing,
    query_needs,
    sent_condition,
)
from delta_sharing_spark.spark.lanes import explain_engine, lane_of_query, note_python_source, python_frame
from delta_sharing_spark.spark.register import active_session, register_source
from delta_sharing_spark.spark.session_settings import in_session, is_connect
from delta_sharing_spark.spark.spark_types import spark_struct
from delta_sharing_spark.spark.table_frames import completed, of_readable
from delta_sharing_spark.spark.table_names import (
    TIME_TRAVEL,
    TableReference,
    Token,
    table_references,
    tokens_of,
    with_frames,
)

_log = logging.getLogger(__name__)

#: Spark's conditions for a name of three parts that none of its catalogs has.
_NOT_THERE = ("TABLE_OR_VIEW_NOT_FOUND", "REQUIRES_SINGLE_PART_NAMESPACE", "CATALOG_NOT_FOUND", "SCHEMA_NOT_FOUND")
#: Those for a name whose first part is no catalog.
_NO_CATALOG = ("REQUIRES_SINGLE_PART_NAMESPACE", "CATALOG_NOT_FOUND")

#: Settings with which a name may stand in double quotes.
_DOUBLE_QUOTED_NAMES = ("spark.sql.ansi.doubleQuotedIdentifiers", "spark.sql.ansi.enabled")

#: Makes a data frame of one: ``table("share.schema.name")`` gives a shared table's.
Build = Callable[[Callable[[str], "DataFrame"]], "DataFrame"]
#: Options of each load: Spark may read one mention of a table twice, and the caller may use a query's DataFrame again.
_FOR_ANY_USE = {"pushdown": "off"}
_ADVICE = (
    "client.sql takes a query (SELECT, WITH ... SELECT, FROM, TABLE or VALUES) and runs nothing else: write its result "
    'with client.sql(spark, "SELECT ...").write or .writeTo(table), and run other statements with spark.sql'
)


def run(client: Recipient, spark: SparkSession, text: str, args: Any = None, engine: str | None = None) -> DataFrame:
    """Run a SQL text over shared tables (``SharingClient.sql``)."""
    engine = engine or client.engine
    references, over = _of_text(client, spark, text, args)
    lane = lane_of_query(spark, engine) if references else None
    if lane is not None:
        try:
            frames = [completed(lane(reference), reference) for reference in references]
        except StepAsideError as reason:
            note_python_source(engine, reason)
        else:
            return over(frames.__getitem__)
    return _narrowed(client, spark, references, over) if is_connect(spark) else over(_whole(spark, references))


def query(client: Recipient, spark: SparkSession, build: Build, engine: str | None = None) -> DataFrame:
    """Build a DataFrame over shared tables (``SharingClient.query``)."""
    lane = lane_of_query(spark, engine or client.engine)
    if lane is not None:
        steps_aside: list[StepAsideError] = []

        def table(name: str) -> DataFrame:
            try:
                reference = _reference(client, parse_table_name(name))
                return completed(lane(reference), reference)
            except StepAsideError as reason:
                steps_aside.append(reason)
                raise

        with suppress(StepAsideError):
            frame = build(table)
            if not steps_aside:
                return frame
        note_python_source(engine or client.engine, steps_aside[0])
    if is_connect(spark):
        references, over, whole = _of_build(client, spark, build)
        if whole is None:
            return _narrowed(client, spark, references, over)
        _log.info("%s; its tables are loaded whole", whole)
    return build(lambda name: _whole(spark, [_reference(client, parse_table_name(name))])(0))


def explain(
    client: Recipient,
    asked: str | Build,
    spark: SparkSession | None = None,
    args: Any = None,
    engine: str | None = None,
) -> str:
    """Explain a SQL text or a function (``SharingClient.explain_sql``)."""
    spark, whole = spark or active_session(), None
    client, engine = in_session(client, spark), engine or client.engine
    if isinstance(asked, str):
        references, over = _of_text(client, spark, asked, args)
    else:
        references, over, whole = _of_build(client, spark, asked)
    if whole is not None and is_connect(spark):
        return f"every table is loaded whole: {whole}"
    if whole is not None:
        return f"what it asks is known when it runs: {whole}; client.last_scans() tells it then"
    if not references:
        return "no shared table"
    is_native, lane = explain_engine(spark, references, engine)
    if is_connect(spark):
        needs, _ = query_needs(spark, references, over)
        tables = [_explained(client, load, need) for load, need in zip(references, needs, strict=True)]
    elif is_native:
        from delta_sharing_spark.spark.index_questions import explained_questions

        tables = explained_questions(spark, references, over)
    else:
        # Spark's error, if it does not understand the query.
        over([completed(spark.createDataFrame([], spark_struct(r.schema)), r) for r in references].__getitem__)
        reason = "the Python source reads what the options of the load say"
        needs = [TableNeed(load.schema if load.has_columns else None, reason=reason) for load in references]
        tables = [_explained(client, load, need) for load, need in zip(references, needs, strict=True)]
    return "\n".join([lane, *(line for table in tables for line in table)])


def _explained(client: Recipient, reference: Load, need: TableNeed) -> list[str]:
    """The lines of a table of which the Python source reads what is needed."""
    if need.columns is None:
        columns = f"all: {need.reason}"
    else:
        columns = ", ".join(map(quoted_column, need.columns.names)) or "none: its rows are counted"
    lines = [
        reference.described(),
        f"  columns  {columns}",
        f"  where    {sent_condition(client.options, need) or 'none'}",
    ]
    return [*lines, f"           {need.reason}"] if need.columns is not None and need.reason else lines


def _whole(spark: SparkSession, references: Sequence[Load]) -> Callable[[int], DataFrame]:
    """The tables of a query by the Python source, as the options of their loads say; mentions of the same share one load."""
    frames: dict[int, DataFrame] = {}

    def frame(place: int) -> DataFrame:
        reference = references[place]
        if id(reference) not in frames:
            _log.info("table %s: the Python source reads what the options of the load say", reference.table)
            frames[id(reference)] = completed(python_frame(reference, spark, _FOR_ANY_USE), reference)
        return frames[id(reference)]

    return frame


def _narrowed(client: Recipient, spark: SparkSession, references: Sequence[Load], over: Query) -> DataFrame:
    """On Connect, the query over loads of what it needs, or over whole tables if its columns would change otherwise."""
    needs, columns = query_needs(spark, references, over)
    frames: dict[object, DataFrame] = {}

    def load(place: int) -> DataFrame:
        """A table with what is needed of it; mentions that need the same share one load."""
        reference, need = references[place], needs[place]
        options = {**_FOR_ANY_USE, **narrowing(client.options, reference.schema, need)}
        key = reference.table.name, *sorted({**reference.options, **options}.items())
        if key not in frames:
            frames[key] = python_frame(reference, spark, options)
        frame = frames[key] if need.columns is None else filled(frames[key], reference.schema, need.columns)
        return completed(frame, reference)

    if any(need.columns is not None for need in needs):
        try:
            narrowed = over(load)
            if described(narrowed) == columns:
                return narrowed
            _log.warning(
                "the narrowed query has other columns than the query over whole tables; reading the whole tables"
            )
        except AnalysisException as error:
            _log.warning("Spark refuses the narrowed query (%s); reading the whole tables", first_line(error))
    return over(_whole(spark, references))


def require_query(spark: SparkSession, text: str) -> None:
    """Refuse every text that is not a single query: commands, inserts (after CTEs or FROM too), scripts.

    ``spark.sql`` executes a statement that is not a query at once, so this comes before anything else. A common table
    expression takes a query and nothing else: Spark's parser is given the text as the body of one.

    Raises:
        PredicateError: The text is not a query.
        pyspark.errors.ParseException: Spark cannot parse the text.
    """
    if not isinstance(text, str):
        raise PredicateError(f"{str(text)[:100]!r} ({type(text).__name__}) is no query; {_ADVICE}", position=0)
    tokens = [t for t in tokens_of(text) if t.kind != "end"]
    while tokens and tokens[-1].text == ";":
        tokens.pop()
    if not tokens:
        raise PredicateError(f"the query is empty; {_ADVICE}", position=0)
    _require_balance(tokens)
    wrapped = f"WITH checked AS (\n{text[: tokens[-1].end]}\n) SELECT 1"
    try:
        if is_connect(spark):
            spark.sql(wrapped)
        else:
            _parse(spark, wrapped)
    except ParseException as refused:
        if not is_connect(spark):
            with suppress(Py4JJavaError):  # a script on Spark 4.0, whose error PySpark has no class for
                _parse(spark, text)  # its own error, if it is no statement at all
        why = first_line(refused)
        raise PredicateError(f"Spark does not read this as a query ({why}); {_ADVICE}", position=0) from refused
    except AnalysisException:
        if not is_connect(spark):  # which analyses too: the query itself tells that error
            raise


def _require_balance(tokens: Sequence[Token]) -> None:
    """Refuse a text that would end the parentheses put around it."""
    depths = list(accumulate({"(": 1, ")": -1}.get(token.text, 0) for token in tokens))
    if min(depths) < 0 or depths[-1]:
        raise PredicateError(f"the query's parentheses do not match; {_ADVICE}", position=0)


def _parse(spark: Any, text: str) -> None:
    spark._jsparkSession.sessionState().sqlParser().parsePlan(text)


# --- the tables of a query --------------------------------------------------------------------------------------------


def _of_text(client: Recipient, spark: SparkSession, text: str, args: Any) -> tuple[list[Load], Query]:
    """The shared tables of a SQL text, and the text as a query over other relations in their place."""
    require_query(spark, text)
    register_source(spark)
    double_quoted = all(str(spark.conf.get(name, "false")).lower() == "true" for name in _DOUBLE_QUOTED_NAMES)
    tokens = tokens_of(text, double_quoted_names=double_quoted)
    mentions = table_references(text, tokens)
    answers = list(zip(mentions, _find_all(client, mentions), strict=True))
    shared = [(mention, reference) for mention, reference in answers if isinstance(reference, Load)]
    missing = next((answer for _, answer in answers if isinstance(answer, NotFoundError)), None)
    others = [mention.name for mention, answer in answers if answer is None]
    names = [f"t{i}" for i in range(len(shared))]
    # Spark fills names in braces in only where there are some.
    spliced = with_frames(text, tokens, [mention for mention, _ in shared], names) if shared else text

    def over(frame_of: Callable[[int], DataFrame]) -> DataFrame:
        try:
            frame = spark.sql(spliced, args, **{name: frame_of(i) for i, name in enumerate(names)})
            if missing is not None or others:
                frame.schema  # noqa: B018 - Connect says now what is not there
            return frame
        except AnalysisException as error:
            first = first_line(error)
            why = _why_not_there(client, first, missing, others)
            if why is None:
                raise
            raise AnalysisException(f"{first}\n{why}") from None

    return [reference for _, reference in shared], over


def _why_not_there(
    client: Recipient, first: str, missing: NotFoundError | None, others: Sequence[Sequence[str]]
) -> str | None:
    """What to add to Spark's error about a table that it does not find; None for any other error.

    Args:
        first: The first line of Spark's error.
        missing: The server's answer for a table that its share does not have, and Spark might have.
        others: The names of tables that are in no share.
    """
    if missing is not None and any(f"[{condition}" in first for condition in _NOT_THERE):
        return str(missing)
    if any(f"[{condition}" in first for condition in _NO_CATALOG):
        for name in others:
            if name[0] in first:
                shares = (share.name for share in client.rest.list_shares())
                why = near_name("share", name[0], shares, "the profile")
                return f"{'.'.join(name)}: {why}" if why else None
    return None


def _find_all(client: Recipient, mentions: Sequence[TableReference]) -> list[Load | NotFoundError | None]:
    """The shared table of each mention, the same for the same table; None where the name is in no share of the server.

    Where it is in one that has no such table, the server's answer.
    """
    shares = client.shares_among({mention.name[0].lower() for mention in mentions})
    keys: list[object] = []
    calls: dict[object, Callable[[], Load | NotFoundError]] = {}
    for mention in mentions:
        key = None
        if mention.profile is not None and not client.is_of(mention.profile):
            raise PredicateError(
                f"query, position {mention.start + 1}: the table is one of the profile {mention.profile}, and this client has another; "
                f"run the query by SharingClient({mention.profile!r}).sql(spark, ...), or make a view of the table: "
                f"CREATE TEMPORARY VIEW name USING deltaSharing OPTIONS (path '...')",
                position=mention.start,
            )
        if mention.name[0].lower() in shares:
            key = tuple(part.lower() for part in mention.name), *mention.travel.items()
            calls.setdefault(key, partial(_find, client, mention))
        keys.append(key)
    references = dict(zip(calls, in_parallel(list(calls.values())), strict=True))
    return [references.get(key) for key in keys]


def _find(client: Recipient, mention: TableReference) -> Load | NotFoundError:
    try:
        with naming(TIME_TRAVEL):
            return _reference(client, TableName(*mention.name), mention.travel)
    except NotFoundError as answer:
        return answer


def _reference(client: Recipient, name: TableName, options: Mapping[str, str] | None = None) -> Load:
    """The load of a table's mention, under the client's own options; a table that is not there is known now."""
    return of_readable(Load(RecipientTable(client, name), options or {}))


def _of_build(client: Recipient, spark: SparkSession, build: Build) -> tuple[list[Load], Query, str | None]:
    """The shared tables that a function asks for, the function as a query, and why its tables must be loaded whole, if so.

    The function is called over tables that nothing can execute, twice. Only if it makes the same of them both times,
    what it needs of them is what it needs at its next call.
    """
    register_source(spark)
    references: list[Load] = []

    def over(frame_of: Callable[[int], DataFrame]) -> DataFrame:
        calls: list[TableName] = []

        def table(name: str) -> DataFrame:
            calls.append(parse_table_name(name))
            if len(calls) > len(references) or references[len(calls) - 1].table.name != calls[-1]:
                raise LookupError("the function asks for other tables at each call")
            return frame_of(len(calls) - 1)

        return build(table)

    relations = MarkerRelations(spark)
    stand_ins: list[DataFrame] = []

    def first(name: str) -> DataFrame:
        reference = _reference(client, parse_table_name(name))
        stand_ins.append(completed(relations.add(reference.schema), reference))
        references.append(reference)
        return stand_ins[-1]

    try:
        planned = build(first)
        same = planned.sameSemantics(over(stand_ins.__getitem__))
    except DeltaSharingError:
        raise
    except Exception as error:  # what is the function's own is raised by its next call, over whole tables
        return references, over, f"the function cannot be planned without executing it ({first_line(error)})"
    return references, over, None if same else "the function makes another data frame at each call"
