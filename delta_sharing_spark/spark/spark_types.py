"""Says what a table's types are to the Spark of this process: places on earth are WKB as BINARY before Spark 4.2.

Spark 4.1 has the types, off by default, and a Parquet reader that fails on them. Later ones know a few coordinate reference systems.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql import Column, DataFrame, functions
from pyspark.sql.types import StructType

from delta_sharing_spark.parquet.decoding import release_of
from delta_sharing_spark.schema.types import (
    DataType,
    Field,
    Primitive,
    Spatial,
    Struct,
    backquoted,
    has_spatial,
    inner_fields,
    parse_schema,
    schema_to_json,
    spark_schema_json,
    with_each_type,
)

if TYPE_CHECKING:
    from delta_sharing_spark.access.resolved_scan import ResolvedScan

_log = logging.getLogger(__name__)
_BINARY = Primitive("binary")
#: In the metadata of a column of the Python data source: its type in the table, as a schema of one column.
_TYPE = "deltaSharing.type"
#: The first Spark whose Parquet reader reads places on earth.
_SINCE = (4, 2)


def as_spark_has(scan: ResolvedScan) -> ResolvedScan:
    """A load whose columns are of types that Spark has; the log names those that are not as the table has them."""
    _tell(scan.output, str(scan.table))
    return replace(scan, columns=_as_spark_has(scan.columns), output=_as_spark_has(scan.output))


def _tell(schema: Struct, table: str) -> None:
    for field, in_spark in zip(schema.fields, _as_spark_has(schema).fields, strict=True):
        if field.type != in_spark.type:
            _log.info(
                "column %r of %s is %s in the table, which this Spark does not have: it is read as %s, in well-known binary (WKB)",
                field.name,
                table,
                field.type,
                in_spark.type,
            )


def spark_struct(schema: Struct) -> StructType:
    """A schema as Spark's, with types that Spark has."""
    return StructType.fromJson(spark_schema_json(_as_spark_has(schema)))


def _as_spark_has(schema: Struct) -> Struct:
    if not has_spatial(schema):
        return schema
    in_spark: Struct = with_each_type(schema, lambda t: _BINARY if isinstance(t, Spatial) and srid_of(t) is None else t)
    return in_spark


@cache
def srid_of(kind: Spatial) -> int | None:
    """The number of a type's coordinate reference system in Spark; None where Spark does not read the type, or does not have the system."""
    if release_of(pyspark.__version__) < _SINCE:
        return None
    try:
        field = {"name": "place", "type": str(kind), "nullable": True, "metadata": {}}
        srid = int(getattr(StructType.fromJson({"type": "struct", "fields": [field]})[0].dataType, "srid", -1))
    except Exception as error:  # of Spark's own, of a class that is another in each release
        _log.debug("Spark does not have %s: %s", kind, error)
        return None
    return srid if srid >= 0 else None


def source_schema(schema: Struct) -> StructType:
    """A load's columns as the Python data source gives them: places as WKB, and in each column's metadata the table's type.

    No data source of Python's can give Spark a place: the JVM refuses what Spark 4.2 and 4.3 make of one themselves.
    """
    fields = tuple(
        replace(f, metadata={**f.metadata, _TYPE: json.dumps(schema_to_json(Struct((f,))))})
        if has_spatial(f.type)
        else f
        for f in schema.fields
    )
    binary: Struct = with_each_type(Struct(fields), lambda t: _BINARY if isinstance(t, Spatial) else t)
    return StructType.fromJson(spark_schema_json(binary))


def with_places(frame: DataFrame, table: str) -> DataFrame:
    """A frame of the Python data source over a table with Spark's own types for places, where it has them; the log names the others."""
    fields = frame.schema.fields
    if not any(_TYPE in field.metadata for field in fields):
        return frame
    columns = []
    for field in fields:
        name = backquoted(field.name)
        text = field.metadata.get(_TYPE)
        metadata = {key: value for key, value in field.metadata.items() if key != _TYPE}
        column = functions.col(name)
        if text is not None:
            schema = parse_schema(text)
            _tell(schema, table)
            column = _placed(column, schema.fields[0].type)
        columns.append(column.alias(field.name, metadata=metadata))
    return frame.select(*columns)


def _placed(column: Column, kind: DataType) -> Column:
    """A column of WKB, or of what holds such, with places of Spark's types."""
    if isinstance(kind, Spatial):
        srid = srid_of(kind)
        if srid is None:
            return column
        if kind.algorithm is not None:
            return functions.call_function("st_geogfromwkb", column)
        return functions.call_function(
            "st_setsrid", functions.call_function("st_geomfromwkb", column), functions.lit(srid)
        )
    if not has_spatial(_as_spark_has(Struct((Field("place", kind),)))):
        return column
    inner = inner_fields(kind)
    if isinstance(kind, Struct):
        parts = [_placed(column.getField(f.name), f.type).alias(f.name) for f in inner]
        return functions.when(column.isNotNull(), functions.struct(*parts))
    if len(inner) == 1:
        return functions.transform(column, lambda element: _placed(element, inner[0].type))
    return functions.transform_values(column, lambda _, value: _placed(value, inner[1].type))
