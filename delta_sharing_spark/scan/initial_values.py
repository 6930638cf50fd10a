"""Tells what stands in for a column that a file lacks: a value of its partition, or the field's initial default (Iceberg, "Column
Projection" and "Default values")."""

from __future__ import annotations

import binascii
from datetime import date, datetime
from decimal import Decimal as Number
from decimal import InvalidOperation
from typing import Any
from uuid import UUID

import pyarrow as pa

from delta_sharing_spark.errors import CorruptFileError
from delta_sharing_spark.scan.column_resolution import Context, SourceFields, find_source, leaf_of
from delta_sharing_spark.scan.plan import FileTask
from delta_sharing_spark.schema.arrow import arrow_type
from delta_sharing_spark.schema.arrow_bridge import scalar
from delta_sharing_spark.schema.types import (
    INITIAL_DEFAULT,
    Array,
    DataType,
    Decimal,
    Field,
    Map,
    Primitive,
    Struct,
)


def fallbacks_of(task: FileTask, schema: Struct, source: pa.Schema, context: Context) -> dict[str, pa.Scalar]:
    """The values of top-level columns that a file lacks, by logical name; columns that are NULL then are left out.

    Raises:
        CorruptFileError: A value does not fit its column.
    """
    if context.mapping not in ("id", "names"):
        return {}
    sources, values = SourceFields(source), dict[str, pa.Scalar]()
    for field in schema.fields:
        if field.field_id in task.fallbacks and find_source(field, sources, context) is None:
            values[field.name] = _partition_scalar(task.fallbacks[field.field_id or 0], field, context)
        elif INITIAL_DEFAULT in field.metadata and find_source(field, sources, context) is None:
            values[field.name] = default_of(field, context)
    return values


def nested_fallbacks_of(task: FileTask, schema: Struct, source: pa.Schema, context: Context) -> dict[int, pa.Scalar]:
    """The values by a file's partition of the fields within structs that it lacks, by field id; raises as ``fallbacks_of``."""
    if not task.fallbacks or context.mapping not in ("id", "names"):
        return {}
    values = dict[int, pa.Scalar]()
    waiting: list[tuple[Field, ...]] = [(one,) for one in schema.fields]
    while waiting:
        path = waiting.pop()
        kind, number = path[-1].type, path[-1].field_id
        waiting += [(*path, one) for one in kind.fields] if isinstance(kind, Struct) else []
        if len(path) > 1 and number in task.fallbacks and leaf_of(source, path, context) is None:
            values[number or 0] = _partition_scalar(task.fallbacks[number or 0], path[-1], context)
    return values


def default_of(field: Field, context: Context) -> pa.Scalar:
    """A field's initial default; raises CorruptFileError where it is no value of its type."""
    try:
        return scalar(_value(field.metadata[INITIAL_DEFAULT], field.type), arrow_type(field.type))
    except (KeyError, TypeError, ValueError, InvalidOperation, binascii.Error, pa.ArrowException) as error:
        raise _unfit(field, context, "initial default", error) from None


def _partition_scalar(value: object, field: Field, context: Context) -> pa.Scalar:
    try:
        return scalar(str(value) if isinstance(value, UUID) else value, arrow_type(field.type))
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise _unfit(field, context, "partition's value", error) from None


def _unfit(field: Field, context: Context, what: str, error: Exception) -> CorruptFileError:
    return CorruptFileError(
        f"file {context.file} of {context.table} lacks column {field.name!r}, and its {what} is no {field.type} "
        f"({type(error).__name__}); ask the provider to check the table",
        file=context.file,
        column=field.name,
    )


def _value(tree: Any, kind: DataType) -> Any:
    """A value of its JSON (Iceberg, "JSON single-value serialization")."""
    if tree is None:
        return None
    match kind:
        case Struct(fields):
            if not isinstance(tree, dict):
                raise TypeError("a struct is an object")
            return {
                one.name: _value(tree.get(str(one.field_id), one.metadata.get(INITIAL_DEFAULT)), one.type)
                for one in fields
            }
        case Array(element, _):
            return [_value(one, element) for one in tree]
        case Map(key, value, _):
            keys, values = tree["keys"], tree["values"]
            return [(_value(a, key), _value(b, value)) for a, b in zip(keys, values, strict=True)]
        case Decimal():
            return Number(str(tree))
        case Primitive("date"):
            return date.fromisoformat(tree)
        case Primitive("timestamp" | "timestamp_ntz"):
            return datetime.fromisoformat(tree)
        case Primitive("binary"):
            return binascii.unhexlify(tree)
    return tree
