"""Any Spark query over shared tables: each loaded with just what the query needs of it, the query itself left to Spark."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException

from delta_sharing_spark.client import cheapest_column, quoted_column
from delta_sharing_spark.errors import NotFoundError
from delta_sharing_spark.predicates.query import Query, TableReference, analyse
from delta_sharing_spark.schema.types import Struct
from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.spark.register import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from delta_sharing_spark.client import SharingClient

_log = logging.getLogger(__name__)


def run(client: SharingClient, spark: SparkSession, text: str) -> DataFrame:
    """See ``SharingClient.sql``.

    The narrowed query is analysed beside the one over whole tables; where their schemas differ, or Spark refuses the
    narrowed one, the whole tables are read.
    """
    register(spark)
    found = _Found(client)
    query = analyse(text, found.schema_of, time_zone=spark.conf.get("spark.sql.session.timeZone") or "UTC")
    whole = _frame(client, spark, query, found, narrow=False)
    if all(r.columns is None and r.where is None for r in query.references):
        return whole
    try:
        narrowed = _frame(client, spark, query, found, narrow=True)
        if narrowed.schema == whole.schema:
            return narrowed
        _log.warning("the narrowed query has another schema than the query over whole tables; reading the whole tables")
    except AnalysisException as error:
        _log.warning("Spark refuses the narrowed query (%s); reading the whole tables", str(error).partition("\n")[0])
    return whole


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


def _frame(client: SharingClient, spark: SparkSession, query: Query, found: _Found, *, narrow: bool) -> DataFrame:
    """The query over its tables, as Spark analysed it."""
    names: list[str] = []
    frames: dict[str, Any] = {}
    for reference in query.references:
        table = found.table(reference.name)
        assert table is not None
        # Spark takes data frames by name in place of {braces}, and makes and drops the views for them itself.
        name = f"t{uuid.uuid4().hex}"
        names.append(f"\x00{name}\x01")
        frames[name] = _load(client, spark, table, reference, narrow)
    escaped = query.splice(names).replace("{", "{{").replace("}", "}}")
    return spark.sql(escaped.replace("\x00", "{").replace("\x01", "}"), **frames)


def _load(
    client: SharingClient, spark: SparkSession, table: _Table, reference: TableReference, narrow: bool
) -> DataFrame:
    options = client.options_for(table.name)
    path = options.pop("path")
    if narrow and reference.columns is not None:
        columns = reference.columns or (cheapest_column(table.schema),)
        options["columns"] = ",".join(map(quoted_column, columns))
    if narrow and reference.where is not None:
        options["where"] = reference.where
    return spark.read.format("deltaSharing").options(**options).load(path)
