"""Says what a table's types are to the Spark of this process: places on earth are WKB as BINARY before Spark 4.2.

Spark 4.1 has the types, off by default, and a Parquet reader that fails on them. Later ones know a few coordinate reference systems.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql.types import StructType

from delta_sharing_spark.native.decoding import release_of
from delta_sharing_spark.schema.types import (
    DataType,
    Primitive,
    Spatial,
    Struct,
    has_spatial,
    inner_fields,
    spark_schema_json,
    with_each_type,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_sharing_spark.access.contract import ResolvedScan

_log = logging.getLogger(__name__)
_BINARY = Primitive("binary")
#: The first Spark whose Parquet reader reads places on earth.
_SINCE = (4, 2)


def as_spark_has(scan: ResolvedScan) -> ResolvedScan:
    """A load whose columns are of types that Spark has; the log names those that are not as the table has them."""
    columns, output = _as_spark_has(scan.columns), _as_spark_has(scan.output)
    for field, shown in zip(scan.output.fields, output.fields, strict=True):
        if field.type != shown.type:
            _log.info(
                "column %r of %s is %s in the table, which this Spark does not have: it is read as %s, in well-known binary (WKB)",
                field.name,
                scan.table,
                field.type,
                shown.type,
            )
    return replace(scan, columns=columns, output=output)


def spark_struct(schema: Struct) -> StructType:
    """A schema as Spark's, with types that Spark has."""
    return StructType.fromJson(spark_schema_json(_as_spark_has(schema)))


def _as_spark_has(schema: Struct) -> Struct:
    if not has_spatial(schema):
        return schema
    shown: Struct = with_each_type(schema, lambda t: _BINARY if isinstance(t, Spatial) and srid_of(t) is None else t)
    return shown


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


def spatial_batches(batches: Iterator[pa.RecordBatch], schema: Struct) -> Iterator[pa.RecordBatch]:
    """Batches of a schema as Spark takes them from a Python data source: places on earth with their SRIDs."""
    if not has_spatial(schema):
        return batches
    return _with_srids(batches, schema)


def _with_srids(batches: Iterator[pa.RecordBatch], schema: Struct) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        arrays = [_with_srid(array, f.type) for array, f in zip(batch.columns, schema.fields, strict=True)]
        fields = [pa.field(f.name, array.type, f.nullable) for f, array in zip(schema.fields, arrays, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _with_srid(array: Any, kind: DataType) -> Any:
    import pyarrow as pa

    if not has_spatial(kind):
        return array
    mask = array.is_null() if array.null_count else None
    if isinstance(kind, Spatial):
        values = array.fill_null(b"") if mask is not None else array
        srids = pa.repeat(pa.scalar(srid_of(kind), pa.int32()), len(array))
        fields = [pa.field("srid", pa.int32(), False), pa.field("wkb", pa.binary(), False)]
        return pa.StructArray.from_arrays([srids, values], fields=fields, mask=mask)
    if array.offset:
        array = pa.concat_arrays([array])
    inner = inner_fields(kind)
    if isinstance(kind, Struct):
        built = [_with_srid(array.field(place), f.type) for place, f in enumerate(inner)]
        fields = [pa.field(f.name, part.type, f.nullable) for f, part in zip(inner, built, strict=True)]
        return pa.StructArray.from_arrays(built, fields=fields, mask=mask)
    parts = (array.keys, array.items) if pa.types.is_map(array.type) else (array.values,)
    built = [_with_srid(part, f.type) for part, f in zip(parts, inner, strict=True)]
    fields = [pa.field(f.name, part.type, f.nullable and f.name != "key") for f, part in zip(inner, built, strict=True)]
    if len(built) == 1:
        target, entries = pa.list_(fields[0]), built
    else:
        target, entries = pa.map_(*fields), [pa.StructArray.from_arrays(built, fields=fields)]
    return pa.Array.from_buffers(target, len(array), array.buffers()[:2], array.null_count, 0, entries)
