"""Gives data frames the columns of a table: those in which they lack some, or have structs of other fields."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, functions

from delta_sharing_spark.access.load import Load
from delta_sharing_spark.errors import UnreadableColumnError
from delta_sharing_spark.schema.types import Struct, backquoted, unreadable_in
from delta_sharing_spark.spark.spark_types import spark_struct

FIELD_ID = "parquet.field.id"


def reshaped(have: Struct, want: Struct, above: str = "", refusal: str = "") -> list[Column]:
    """The columns ``want`` of a frame whose columns are ``have``: NULL for what it lacks, and structs of other fields built anew.

    Args:
        above: The column in which both lie, followed by a point; the frame itself by default.
        refusal: What fails a query that needs a column of a type that is not read.
    """
    columns = []
    for field, typed in zip(want.fields, spark_struct(want).fields, strict=True):
        own, name = have.find(field.name), above + backquoted(field.name)
        column = functions.col(name)
        if own is None and any(unreadable_in(field.type)):
            column = functions.raise_error(f"column {name} {refusal}").cast(typed.dataType)
        elif own is None:
            column = functions.lit(None).cast(typed.dataType)
        elif isinstance(own.type, Struct) and isinstance(field.type, Struct) and own.type != field.type:
            inner = reshaped(own.type, field.type, f"{name}.", refusal)
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
