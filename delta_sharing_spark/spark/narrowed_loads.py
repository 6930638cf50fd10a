"""Narrows loads by the Python data source to the columns and rows that a query needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, functions

from delta_sharing_spark.access.load import Load, cheapest_column, narrowed
from delta_sharing_spark.errors import UnreadableColumnError
from delta_sharing_spark.options.values import quoted_column
from delta_sharing_spark.schema.types import Struct, backquoted, unreadable_in
from delta_sharing_spark.spark.spark_types import spark_struct

FIELD_ID = "parquet.field.id"


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


def narrowing(options: Mapping[str, str], table: Struct, need: TableNeed) -> dict[str, str]:
    """The options by which a table is loaded with what a query needs of it; none where that is all.

    Args:
        options: Those of all its loads.
    """
    if need.columns is None:
        return {}
    paths = column_paths(table, need.columns)
    if not paths and table.fields:  # its rows are counted
        paths = [quoted_column(str(cheapest_column(table)))]
    where = sent_condition(options, need)
    return {"columns": ",".join(paths), **({} if where is None else {"where": where})}


def sent_condition(options: Mapping[str, str], need: TableNeed) -> str | None:
    """The condition that a table is loaded with: that of all its loads, and the query's."""
    given = {name.lower(): value for name, value in options.items()}
    if need.where is None or "limit" in given:  # a limit counts the rows that pass a condition
        return given.get("where")
    return narrowed(given, {"where": need.where})["where"]


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
    return frame if needed == table else frame.select(*reshaped(needed, table))


def reshaped(have: Struct, want: Struct, above: str = "", refusal: str = "") -> list[Column]:
    """The columns ``want`` of a frame whose columns are ``have``: NULL for what it lacks, and structs of other fields built anew.

    Args:
        above: The column in which both lie, followed by a point; the frame itself by default.
        refusal: What fails a query that needs a column of a type that is not read.
    """
    columns = []
    for field, typed in zip(want.fields, spark_struct(want).fields, strict=True):
        known, name = have.find(field.name), above + backquoted(field.name)
        column = functions.col(name)
        if known is None and any(unreadable_in(field.type)):
            column = functions.raise_error(f"column {name} {refusal}").cast(typed.dataType)
        elif known is None:
            column = functions.lit(None).cast(typed.dataType)
        elif isinstance(known.type, Struct) and isinstance(field.type, Struct) and known.type != field.type:
            inner = reshaped(known.type, field.type, f"{name}.", refusal)
            column = functions.when(column.isNotNull(), functions.struct(*inner))
        elif FIELD_ID not in field.metadata:  # a frame read of Parquet has its columns' metadata but for this
            columns.append(column)
            continue
        columns.append(column.alias(field.name, metadata=typed.metadata))
    return columns


def of_readable(load: Load) -> Load:
    """A load whose table is there; of a table with columns whose types are not read, the load of the others.

    Raises:
        DeltaSharingError: The table cannot be resolved, or such a column was asked for.
    """
    try:
        load.resolved()
    except UnreadableColumnError as refusal:
        if load.has_columns or not refusal.readable:
            raise
        load = load.select(list(refusal.readable))
        load.resolved()
    return load


def completed(frame: DataFrame, load: Load) -> DataFrame:
    """A frame with the columns that ``of_readable`` left out of its load in their places: a query that needs one is refused."""
    table = load.resolved().columns
    if "columns" not in load.options or not any(unreadable_in(table)):
        return frame
    refusal = f"of {load.table} has a type that this reader does not read; name the other columns in the query"
    return frame.select(*reshaped(load.schema, table, refusal=refusal))


def described(frame: DataFrame) -> list[tuple[str, str]]:
    """The columns of a frame, by name and type."""
    return [(field.name, field.dataType.simpleString()) for field in frame.schema.fields]
