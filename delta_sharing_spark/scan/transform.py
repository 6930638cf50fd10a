"""Conforms a file's columns to exactly Spark's: casts and fills them in, and checks NOT NULL.

A transform is data: ``plan`` compares the type that a file has with the declared one and returns nodes; ``apply`` runs them on
each batch. Matching follows the Delta protocol, "Column Mapping": by physical name, or by Parquet field id.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from uuid import UUID

import pyarrow as pa

from delta_sharing_spark.errors import CorruptFileError, NullInRequiredError, SchemaError
from delta_sharing_spark.scan.casts import can_cast, cast_leaf, is_bytes_of_timestamps
from delta_sharing_spark.scan.column_resolution import Context, SourceFields, find_source, is_list, storage
from delta_sharing_spark.scan.initial_values import default_of
from delta_sharing_spark.scan.variant import assemble_variant, is_variant
from delta_sharing_spark.schema.arrow import arrow_type
from delta_sharing_spark.schema.types import (
    INITIAL_DEFAULT,
    Array,
    DataType,
    Decimal,
    Field,
    Map,
    Primitive,
    Spatial,
    Struct,
    has_spatial,
    inner_fields,
)


class Whole(Enum):
    """What a whole array becomes."""

    #: It is already of the declared type.
    KEEP = "keep"
    #: The file lacks the column, which is NULL in every row.
    NULLS = "nulls"
    #: The same value in every row of a file: a partition value, or a change feed's commit.
    CONSTANT = "constant"
    #: A leaf of another, convertible type.
    CAST = "cast"
    #: A variant's struct becomes value and metadata in Spark's order; shredded values are put together again.
    VARIANT = "variant"
    #: A UUID of 16 bytes becomes its text.
    UUID = "uuid"


@dataclass(frozen=True, slots=True)
class Inner:
    """What is within a nested type (``inner_fields``): for each, the source's index (None where the file lacks it) and its node."""

    fields: tuple[tuple[int | None, Node], ...]


@dataclass(frozen=True, slots=True)
class Default:
    """A field that the file lacks has this value in every row (Iceberg, "Default values")."""

    value: pa.Scalar


Node = Whole | Inner | Default


def plan(source: pa.DataType, declared: DataType, path: str, context: Context) -> Node:
    """How an array of ``source`` becomes one of ``declared``; ``path`` names the column in errors.

    Raises:
        SchemaError: There is no lossless way; names file, column and both types.
    """
    # Only Iceberg's tables have UUIDs, and texts of 16 bytes each are none; not every Arrow tells the two apart.
    is_uuid = source == pa.binary(16) and context.mapping in ("id", "names")
    is_uuid |= isinstance(source, pa.UuidType)
    source = storage(source)
    if pa.types.is_null(source):
        return Whole.NULLS
    match declared:
        case Primitive("variant"):
            if is_variant(source):
                return Whole.VARIANT
        case Primitive() | Decimal() | Spatial():
            target = arrow_type(declared)
            if is_uuid and declared == Primitive("string"):
                return Whole.UUID
            if source.equals(target) and not context.converts(declared):
                return Whole.KEEP
            if can_cast(source, target) or (context.has_int96_bytes and is_bytes_of_timestamps(source, target)):
                return Whole.CAST
        case Struct(fields):
            if pa.types.is_struct(source):
                children = _plan_children(SourceFields(source), fields, path, context)
                return _simplified(Inner(children), source, declared, context)
        case Array() | Map():
            kinds = [source.key_type, source.item_type] if pa.types.is_map(source) else []
            kinds = [source.value_type] if is_list(source) else kinds
            if isinstance(declared, Map) and is_list(source) and pa.types.is_struct(source.value_type):
                # As the footer has maps read whose keys may be NULL.
                kinds = [inner.type for inner in source.value_type if inner.name in ("key", "value")]
            if len(kinds) == len(inner_fields(declared)):
                parts = zip(kinds, inner_fields(declared), strict=True)
                nodes = [plan(kind, inner.type, f"{path}.{inner.name}", context) for kind, inner in parts]
                return _simplified(Inner(tuple(enumerate(nodes))), source, declared, context)
    raise SchemaError(
        f"file {context.file} of {context.table}: column {path!r} is stored as {source}, which cannot become {declared} without loss; "
        f"ask the provider to check the file, or leave the column out with the option 'columns'",
        file=context.file,
        column=path,
    )


def _plan_children(
    sources: SourceFields, fields: tuple[Field, ...], path: str, context: Context
) -> tuple[tuple[int | None, Node], ...]:
    children: list[tuple[int | None, Node]] = []
    for field in fields:
        index = find_source(field, sources, context)
        node = (
            _absent(field, context)
            if index is None
            else plan(sources.fields[index].type, field.type, f"{path}.{field.name}" if path else field.name, context)
        )
        children.append((index, node))
    return tuple(children)


def _absent(field: Field, context: Context) -> Node:
    """What a field within a struct becomes that the file lacks, and a column that no constant stands in for."""
    if field.field_id in context.fallbacks:
        return Default(context.fallbacks[field.field_id or 0])
    return Default(default_of(field, context)) if INITIAL_DEFAULT in field.metadata else Whole.NULLS


def _simplified(node: Node, source: pa.DataType, declared: DataType, context: Context) -> Node:
    """``Keep`` where both types agree, nested nullability included, and no nested field has to be checked for NULL, named or converted."""
    is_alike = source.equals(arrow_type(declared)) and not _has_required(declared) and not has_spatial(declared)
    return Whole.KEEP if is_alike and not context.converts(declared) else node


def _has_required(declared: DataType) -> bool:
    return any(not inner.nullable or _has_required(inner.type) for inner in inner_fields(declared))


def apply(node: Node, array: pa.Array, declared: DataType, path: str, context: Context) -> pa.Array:
    """``array`` as exactly ``declared``'s Arrow type.

    Raises:
        CorruptFileError: A value does not fit the declared type.
        NullInRequiredError: A nested field declared NOT NULL holds a NULL.
    """
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    match node, declared:
        case Whole.KEEP, _:
            return array
        case Whole.NULLS, _:
            return pa.nulls(len(array), arrow_type(declared))
        case Default(value), _:
            return pa.repeat(value, len(array))
        case Whole.CAST, _:
            return _cast(array, declared, path, context)
        case Whole.VARIANT, _:
            return assemble_variant(array, arrow_type(declared), path=path, file=context.file)
        case Whole.UUID, _:
            return pa.array([None if one is None else str(UUID(bytes=one)) for one in array.to_pylist()], pa.string())
        case Inner(children), Struct():
            return _apply_struct(children, array, declared, path, context)
        case Inner(children), Array() | Map():
            return _apply_entries(children, array, declared, path, context)
    raise AssertionError(f"{node} does not belong to {declared}")


def require_values(array: pa.Array, parent: pa.Array | None, path: str, context: Context) -> None:
    """Refuse a NULL in a NOT NULL column (Spark would answer ``IS NULL`` with no rows).

    Raises:
        NullInRequiredError: Names file and column.
    """
    if array.null_count == 0:
        return
    if parent is not None and parent.null_count:
        import pyarrow.compute as pc

        if not pc.any(pc.and_(array.is_null(), parent.is_valid())).as_py():
            return
    raise NullInRequiredError(
        f"file {context.file} of {context.table} has a NULL in column {path!r}, which the table declares NOT NULL, or the "
        f"schema given to the load; ask the provider to repair the file, or leave the column out with the option 'columns'",
        file=context.file,
        column=path,
    )


def _cast(array: pa.Array, declared: DataType, path: str, context: Context) -> pa.Array:
    julian, kind = context.julian, array.type
    try:
        if julian is not None and pa.types.is_date(kind):
            array = julian.gregorian_dates(array)
        array = cast_leaf(array, arrow_type(declared))
        if julian is not None and pa.types.is_timestamp(kind) and declared == Primitive("timestamp"):
            array = julian.gregorian_times(array, is_int96=kind.tz is None)
        return array
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise CorruptFileError(
            f"file {context.file} of {context.table}: a value of column {path!r} does not fit {declared} ({error}); "
            f"ask the provider to check the file",
            file=context.file,
            column=path,
        ) from None
    except ValueError as error:
        raise CorruptFileError(
            f"file {context.file} of {context.table}: column {path!r} cannot be read: {error}; leave the column out with the "
            f"option 'columns', or ask the provider to rewrite the file with Spark 3 or later",
            file=context.file,
            column=path,
        ) from None


def _apply_struct(
    children: tuple[tuple[int | None, Node], ...],
    array: pa.Array,
    declared: Struct,
    path: str,
    context: Context,
) -> pa.Array:
    built: list[pa.Array] = []
    for (index, node), field in zip(children, declared.fields, strict=True):
        inner = f"{path}.{field.name}"
        child = apply(node, array if index is None else array.field(index), field.type, inner, context)
        if not field.nullable:
            require_values(child, array, inner, context)
        built.append(child)
    if not built:
        return pa.nulls(len(array), pa.struct([]))
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(built, fields=list(arrow_type(declared)), mask=mask)


def _apply_entries(
    children: tuple[tuple[int | None, Node], ...], array: pa.Array, declared: Array | Map, path: str, context: Context
) -> pa.Array:
    is_map = isinstance(declared, Map)
    if not is_map and not pa.types.is_list(array.type):
        fixed = pa.types.is_fixed_size_list(array.type)
        array = array.cast(pa.list_(array.type.value_field))
        if fixed and array.null_count:
            # A NULL of fixed size has elements all the same, NULL ones; taking every row leaves them behind.
            array = array.take(pa.array(range(len(array))))
    array = _at_zero(array)
    first, last = _bounds(array)
    parts = (array.values,)
    if is_map:
        parts = (array.keys, array.items) if pa.types.is_map(array.type) else tuple(array.values.flatten())
    built: list[pa.Array] = []
    for (_, node), part, inner in zip(children, parts, inner_fields(declared), strict=True):
        name = f"{path}.{inner.name}"
        built.append(apply(node, part.slice(first, last - first), inner.type, name, context))
        if not inner.nullable or inner.name == "key":
            require_values(built[-1], None, name, context)
    target = arrow_type(declared)
    if is_map:
        built = [pa.StructArray.from_arrays(built, fields=[target.key_field, target.item_field])]
    return pa.Array.from_buffers(target, len(array), _rebased(array, first), array.null_count, 0, built)


def _bounds(array: pa.Array) -> tuple[int, int]:
    """The child's entries that belong to a list or map without offset; a slice leaves others around them."""
    return array.offsets[0].as_py(), array.offsets[len(array)].as_py()


def _rebased(array: pa.Array, first: int) -> list[pa.Buffer | None]:
    """Validity and offsets of a list or map, for a child that begins with entry ``first``."""
    validity, offsets = array.buffers()[:2]
    if first:
        import numpy as np

        moved = np.frombuffer(offsets, dtype=np.int32, count=len(array) + 1) - np.int32(first)
        offsets = pa.py_buffer(moved)
    return [validity, offsets]


def _at_zero(array: pa.Array) -> pa.Array:
    """The array without an offset into its parent's buffers, which ``from_buffers`` would have to repeat."""
    return array if array.offset == 0 else pa.concat_arrays([array])


Columns = tuple[tuple[int | None, Node], ...]


def plan_columns(source: pa.Schema, schema: Struct, constants: Collection[object], context: Context) -> Columns:
    """For each column of ``schema``, the index of the file's column (None: not from the file) and its node.

    It serves all files of the same schema and the same constants.

    Args:
        source: The schema of the decoder's batches.
        schema: The columns that rows have.
        constants: Names of the columns whose values override whatever the file has (the log is authoritative).
        context: Says how columns are matched, and names table and file in errors.

    Raises:
        SchemaError: A column is stored in a type that cannot become the declared one.
    """
    sources = SourceFields(source)
    columns: list[tuple[int | None, Node]] = []
    for field in schema.fields:
        if field.name in constants:
            columns.append((None, Whole.CONSTANT))
        else:
            columns.extend(_plan_children(sources, (field,), "", context))
    return tuple(columns)


def conform(
    batch: pa.RecordBatch,
    columns: Columns,
    schema: Struct,
    target: pa.Schema,
    context: Context,
    constants: Mapping[str, pa.Scalar] = MappingProxyType({}),
) -> pa.RecordBatch:
    """One batch as exactly the Arrow schema of ``schema``.

    Args:
        batch: A batch of the decoder.
        columns: From ``plan_columns``.
        schema: The columns that rows have.
        target: ``arrow_schema(wanted)``, which costs too much to be made for every batch.
        context: Names table and file in errors.
        constants: The values of the columns that ``plan_columns`` took for such.

    Raises:
        CorruptFileError: A value does not fit its type.
        NullInRequiredError: A NULL in a column declared NOT NULL.
    """
    rows = batch.num_rows
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.nulls(rows, pa.struct([])))
    if batch.schema.equals(target, check_metadata=True) and all(
        node is Whole.KEEP and index == place and field.nullable
        for place, ((index, node), field) in enumerate(zip(columns, schema.fields, strict=True))
    ):
        return batch
    arrays: list[pa.Array] = []
    for (index, node), field, kind in zip(columns, schema.fields, target.types, strict=True):
        if index is not None:
            array = apply(node, batch.column(index), field.type, field.name, context)
        elif node is Whole.CONSTANT and (value := constants[field.name]).is_valid:
            array = pa.repeat(value, rows)
        else:
            array = pa.nulls(rows, kind)
        if not field.nullable:
            require_values(array, None, field.name, context)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=target)
