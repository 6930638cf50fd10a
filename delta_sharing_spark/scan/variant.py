"""Variants from Parquet to Spark: value and metadata in Spark's order, shredded values put together again."""

from __future__ import annotations

import pyarrow as pa

from delta_sharing_spark.errors import UnsupportedFeatureError


def assemble_variant(array: pa.StructArray, target: pa.DataType, *, path: str, file: str) -> pa.Array:
    """A variant column of a file as ``target`` (``struct<value, metadata>``); a NULL struct is a NULL variant.

    Raises:
        UnsupportedFeatureError: The column is shredded.
    """
    names = [array.type.field(i).name for i in range(array.type.num_fields)]
    if "typed_value" in names:
        raise UnsupportedFeatureError(
            f"file {file}: column {path!r} is a shredded variant; leave the column out with the option 'columns'",
            features=("variantShredding",),
        )
    children = [array.field(names.index("value")), array.field(names.index("metadata"))]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)
