"""Any Spark query over shared tables: each loaded with just what the query needs of it, the query itself left to Spark."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql.types import StructType

from delta_sharing_spark.errors import NotFoundError
from delta_sharing_spark.options import parse_options
from delta_sharing_spark.predicates.query import Query, TableReference, analyse
from delta_sharing_spark.schema.spark import spark_schema_json
from delta_sharing_spark.schema.types import Struct
from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.spark.inline_secrets import warn_of_inline_secrets
from delta_sharing_spark.spark.register import register
from delta_sharing_spark.table import cheapest_column, quoted_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from delta_sharing_spark.client import SharingClient

_log = logging.getLogger(__name__)


#: Settings under which a session reads literals and comparisons as ``where`` does, and their defaults.
_RULES = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.legacy.consecutiveStringLiterals.enabled": "false",
    "spark.sql.legacy.exponentLiteralAsDecimal.enabled": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.session.collation.default": "UTF8_BINARY",
}


def run(client: SharingClient, spark: SparkSession, text: str) -> DataFrame:
    """See ``SharingClient.sql``.

    The narrowed query is analysed beside the one over whole tables (empty ones of the same schemas, for analysis needs
    no rows); where their schemas differ, or Spark refuses the narrowed one, the whole tables are read.
    """
    register(spark)
    found = _Found(client)
    query = analyse(
        text,
        found.schema_of,
        time_zone=spark.conf.get("spark.sql.session.timeZone") or "UTC",
        load_zone=_zone_of_loads(client),
        refused=_other_rules(spark, text),
    )
    if all(r.columns is None and r.where is None for r in query.references):
        return _over(spark, query, _Loads(client, spark, found, narrow=False))
    try:
        narrowed = _over(spark, query, _Loads(client, spark, found, narrow=True))
        if _described(narrowed) == _described(_over(spark, query, _Empty(spark, found))):
            return narrowed
        _log.warning("the narrowed query has another schema than the query over whole tables; reading the whole tables")
    except AnalysisException as error:
        _log.warning("Spark refuses the narrowed query (%s); reading the whole tables", str(error).partition("\n")[0])
    return _over(spark, query, _Loads(client, spark, found, narrow=False))


def _zone_of_loads(client: SharingClient) -> str:
    """The zone in which a load reads the literals of ``where`` that name none."""
    return parse_options(client.load_options(TableName("a", "b", "c"), {})).time_zone


def _other_rules(spark: SparkSession, text: str) -> str | None:
    """Why ``where`` may not stand for the session's own conditions in a query; None if it may."""
    if spark.version < "4.1" and ("''" in text or '""' in text or any(c > "\uffff" for c in text)):
        return "Spark 4.0 reads two quotes in a literal as none, and takes the surrogates of a LIKE pattern apart"
    for name, needed in _RULES.items():
        value = spark.conf.get(name, needed)
        if str(value).upper() != needed.upper():
            return f"{name} is {value}"
    return None


def _described(frame: DataFrame) -> list[tuple[str, str, bool]]:
    return [(f.name, f.dataType.simpleString(), f.nullable) for f in frame.schema.fields]


def explain(client: SharingClient, text: str) -> str:
    """What each shared table of a query is loaded with, and why not less."""
    query = analyse(text, _Found(client).schema_of)
    return "\n".join(line for reference in query.references for line in _explained(reference)) or "no shared table"


def _explained(reference: TableReference) -> list[str]:
    lines = [".".join(reference.name)]
    if reference.columns is None:
        lines.append(f"  columns  all: {reference.whole}")
    else:
        lines.append(f"  columns  {', '.join(reference.columns) or 'none: its rows are counted'}")
    lines.append(f"  where    {reference.where or 'none'}")
    if reference.unpushed:
        lines.append(f"           {reference.unpushed}")
    return lines


@dataclass
class _Table:
    """A shared table: its name, and its schema."""

    name: TableName
    schema: Struct


class _Found:
    """Which three-part names of a query are shared tables: those of the server's shares that it knows."""

    def __init__(self, client: SharingClient) -> None:
        self._client = client
        self._shares: set[str] | None = None
        self._tables: dict[tuple[str, ...], _Table | None] = {}

    def schema_of(self, name: tuple[str, str, str]) -> Struct | None:
        """The schema of a shared table; None if the name is another one."""
        table = self.table(name)
        return None if table is None else table.schema

    def table(self, name: tuple[str, str, str]) -> _Table | None:
        key = tuple(part.lower() for part in name)
        if key not in self._tables:
            self._tables[key] = self._look_up(name)
        return self._tables[key]

    def _look_up(self, name: tuple[str, str, str]) -> _Table | None:
        if self._shares is None:
            self._shares = {share.name.lower() for share in self._client.rest.list_shares()}
        if name[0].lower() not in self._shares:
            return None
        table = TableName(*name)
        try:
            return _Table(table, self._client.table(str(table)).scan().schema)
        except NotFoundError:
            return None


def _over(spark: SparkSession, query: Query, table_of: Callable[[TableReference], DataFrame]) -> DataFrame:
    """The query over its tables, as Spark analysed it."""
    names: list[str] = []
    frames: dict[str, Any] = {}
    for reference in query.references:
        # Spark takes data frames by name in place of {braces}, and makes and drops the views for them itself.
        name = f"t{uuid.uuid4().hex}"
        names.append(f"\x00{name}\x01")
        frames[name] = table_of(reference)
    escaped = query.splice(names).replace("{", "{{").replace("}", "}}")
    return spark.sql(escaped.replace("\x00", "{").replace("\x01", "}"), **frames)


@dataclass
class _Loads:
    """Each reference's load; references that need the same share one."""

    client: SharingClient
    spark: SparkSession
    found: _Found
    narrow: bool
    _made: dict[tuple[tuple[str, str], ...], DataFrame] = field(default_factory=dict)

    def __call__(self, reference: TableReference) -> DataFrame:
        table = self.found.table(reference.name)
        assert table is not None
        options = self.client.options_for(table.name)
        if self.narrow and reference.columns is not None and table.schema.fields:
            columns = reference.columns or (cheapest_column(table.schema),)
            options["columns"] = ",".join(quoted_column(c) for c in columns if c is not None)
        if self.narrow and reference.where is not None:
            options["where"] = reference.where
        # A load that may be pruned by Spark's filters serves one reference only.
        serial = str(len(self._made)) if "pushdown" in {name.lower() for name in options} else ""
        key = (*sorted(options.items()), ("", serial))
        if key not in self._made:
            warn_of_inline_secrets(self.spark, options)
            path = options.pop("path")
            self._made[key] = self.spark.read.format("deltaSharing").options(**options).load(path)
        return self._made[key]


@dataclass
class _Empty:
    """Tables without rows in place of the whole ones, to know the query's schema at no request."""

    spark: SparkSession
    found: _Found
    _made: dict[TableName, DataFrame] = field(default_factory=dict)

    def __call__(self, reference: TableReference) -> DataFrame:
        table = self.found.table(reference.name)
        assert table is not None
        if table.name not in self._made:
            schema = StructType.fromJson(spark_schema_json(table.schema))
            self._made[table.name] = self.spark.createDataFrame([], schema)
        return self._made[table.name]
