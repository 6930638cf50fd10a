"""Loads the shared tables of a query by the Python data source, each with only the columns and rows that the query needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.sql.types import StructField, StructType

from delta_sharing_spark.access.load import Load, Recipient, cheapest_column
from delta_sharing_spark.options.values import quoted_column
from delta_sharing_spark.schema.types import Struct, backquoted, spark_schema_json
from delta_sharing_spark.spark.register import load_by_python
from delta_sharing_spark.spark.session_settings import warn_of_inline_secrets


@dataclass(frozen=True, slots=True)
class TableNeed:
    """The columns and rows that a query needs of one table.

    Attributes:
        columns: The columns, structs narrowed to their fields; None for all.
        where: A condition in the language of ``where`` that every needed row fulfils; None if there is none.
        left: Conditions that are left to Spark, with the reasons.
        reason: Why it is not less, or another remark for ``explain``.
    """

    columns: Struct | None = None
    where: str | None = None
    left: tuple[str, ...] = ()
    reason: str | None = None


class Frames:
    """Loads of shared tables; mentions that need the same share one."""

    def __init__(self, client: Recipient, spark: SparkSession) -> None:
        self._client, self._spark = client, spark
        self._loaded: dict[tuple[tuple[str, str], ...], DataFrame] = {}

    def whole(self, reference: Load) -> DataFrame:
        """A load of all of a table."""
        return self._load(self._options(reference))

    def narrowed(self, reference: Load, need: TableNeed) -> DataFrame:
        """A load of the part of a table that a query needs; other columns are NULL."""
        options = self._options(reference)
        if need.columns is None:
            return self._load(options)
        where = sent_condition(self._client, need)
        if where is not None:
            options["where"] = where
        options["columns"] = ",".join(needed_paths(reference.schema, need.columns))
        return filled(self._load(options), reference.schema, need.columns)

    def _options(self, reference: Load) -> dict[str, str]:
        client_options = self._client.options_for(reference.table.name)
        replaced = {"where", "columns", *(name.lower() for name in reference.options)}
        kept = {name: value for name, value in client_options.items() if name.lower() not in replaced}
        own = {name.lower(): value for name, value in client_options.items() if name.lower() in ("where", "columns")}
        return {**kept, **own, **reference.options}

    def _load(self, options: dict[str, str]) -> DataFrame:
        # A load that may be pruned by Spark's filters serves one reference only.
        serial = str(len(self._loaded)) if "pushdown" in {name.lower() for name in options} else ""
        key = (*sorted(options.items()), ("", serial))
        if key not in self._loaded:
            warn_of_inline_secrets(self._spark, options)
            path = options.pop("path")
            self._loaded[key] = load_by_python(self._spark.read.format("deltaSharing").options(**options), path)
        return self._loaded[key]


def sent_condition(client: Recipient, need: TableNeed) -> str | None:
    """The condition that a table is loaded with: the client's own and the query's."""
    options = {name.lower(): value for name, value in client.options.items()}
    own = options.get("where")
    if need.where is None or "limit" in options:  # a limit counts the rows that pass a condition
        return own
    return need.where if own is None else f"({own}) AND ({need.where})"


def needed_paths(table: Struct, needed: Struct) -> list[str]:
    """As ``column_paths``, with one column where rows alone are needed."""
    paths = column_paths(table, needed)
    return paths if paths or not table.fields else [quoted_column(str(cheapest_column(table)))]


def column_paths(table: Struct, needed: Struct) -> list[str]:
    """The needed columns as the option ``columns`` takes them; narrowed structs are named by their fields."""
    paths = []
    for column in needed.fields:
        whole = table.find(column.name)
        if whole is not None and isinstance(whole.type, Struct) and isinstance(column.type, Struct) and whole != column:
            paths += [f"{column.name}.{path}" for path in column_paths(whole.type, column.type)]
        else:
            paths.append(quoted_column(column.name))
    return paths


def filled(frame: DataFrame, table: Struct, needed: Struct) -> DataFrame:
    """The table's columns, with NULLs in those that are not needed."""
    if needed == table:
        return frame
    types = StructType.fromJson(spark_schema_json(table)).fields
    return frame.select(*_columns(table, needed, types))


def _columns(table: Struct, needed: Struct, types: Sequence[StructField], above: str = "") -> list[Column]:
    columns = []
    for have, typed in zip(table.fields, types, strict=True):
        want = needed.find(have.name)
        name = above + backquoted(have.name)
        if want is None:
            column = functions.lit(None).cast(typed.dataType)
        elif isinstance(have.type, Struct) and isinstance(want.type, Struct) and want != have:
            assert isinstance(typed.dataType, StructType)
            inner = _columns(have.type, want.type, typed.dataType.fields, f"{name}.")
            column = functions.when(functions.col(name).isNotNull(), functions.struct(*inner))
        else:
            column = functions.col(name)
        columns.append(column.alias(have.name))
    return columns


def described(frame: DataFrame) -> list[tuple[str, str]]:
    """The columns of a frame, by name and type."""
    return [(field.name, field.dataType.simpleString()) for field in frame.schema.fields]
