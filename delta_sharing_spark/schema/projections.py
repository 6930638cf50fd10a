"""Projects a table's schema on the columns of a load: those that were named, those of a user's schema, and those that can be read."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import replace

from delta_sharing_spark.errors import SchemaError, UnreadableColumnError
from delta_sharing_spark.schema.types import (
    COLUMN_MAPPING_NAME,
    Array,
    DataType,
    Field,
    FieldsByName,
    Map,
    Primitive,
    Spatial,
    Struct,
    backquoted,
    unreadable_in,
)

#: Columns that an error names.
_NAMED = 20


def select(schema: Struct, columns: Iterable[str], table: str) -> Struct:
    """The named columns of ``schema``, in the order named; ``a.b`` is field ``b`` of struct ``a``.

    A name that is a column as a whole (dots included) wins over a path. Fields of one struct are gathered in it.

    Raises:
        SchemaError: An unknown or repeated column; names the nearest known one.
    """
    chosen: dict[str, tuple[Field, list[str]]] = {}
    fields_by_name = FieldsByName(schema)
    for column in columns:
        field = fields_by_name.find(column)
        rest = ""
        if field is None and "." in column:
            head, _, rest = column.partition(".")
            field = fields_by_name.find(head)
        if field is None:
            raise unknown_column(column, schema, table)
        entry = chosen.get(field.name)
        if entry is not None and (not rest or not entry[1]):
            raise SchemaError(f"column {column!r} is named twice; name each column of {table} once")
        if entry is None:
            chosen[field.name] = (field, [rest] if rest else [])
        else:
            entry[1].append(rest)
    return Struct(tuple(_narrowed(field, rests, table) for field, rests in chosen.values()))


def _narrowed(field: Field, rests: list[str], table: str) -> Field:
    if not rests:
        return field
    if not isinstance(field.type, Struct):
        raise SchemaError(
            f"column {field.name!r} of {table} is of type {field.type}, it has no field {rests[0]!r}; name the column alone"
        )
    return Field(field.name, select(field.type, rests, table), field.nullable, field.metadata)


def select_paths(schema: Struct, paths: Iterable[tuple[str, ...]]) -> Struct:
    """The columns that exact ``paths`` (as a bound predicate holds them) reach, structs narrowed to the fields needed."""
    rests_by_name: dict[str, list[tuple[str, ...]]] = {}
    for path in paths:
        rests_by_name.setdefault(path[0], []).append(path[1:])
    fields = []
    for column in schema.fields:
        rests = rests_by_name.get(column.name)
        if rests is None:
            continue
        if isinstance(column.type, Struct) and all(rests):
            column = replace(column, type=select_paths(column.type, rests))
        fields.append(column)
    return Struct(tuple(fields))


def merge(first: Struct, second: Struct) -> Struct:
    """The fields of both, structs merged field by field: in ``first``'s order, then those that only ``second`` has."""
    fields = {field.name: field for field in first.fields}
    for extra in second.fields:
        base = fields.setdefault(extra.name, extra)
        if base is not extra and isinstance(base.type, Struct) and isinstance(extra.type, Struct):
            fields[extra.name] = Field(base.name, merge(base.type, extra.type), base.nullable, base.metadata)
    return Struct(tuple(fields.values()))


def requested(table_schema: Struct, user_schema: Struct, table: str, path: str = "") -> Struct:
    """A user's schema with the table's metadata; raises SchemaError for an unknown column, or a type that is not the table's."""
    fields: list[Field] = []
    seen: set[str] = set()
    fields_by_name = FieldsByName(table_schema)
    for user_field in user_schema.fields:
        column = f"{path}.{user_field.name}" if path else user_field.name
        table_field = fields_by_name.find(user_field.name)
        if table_field is None:
            raise unknown_column(user_field.name, table_schema, table, path)
        if table_field.name in seen:
            raise SchemaError(f"the given schema names column {column!r} of {table} twice; name each column once")
        seen.add(table_field.name)
        data_type = _requested_type(table_field.type, user_field.type, table, column)
        # The table's spelling of the name, by which the column is found in files and partition keys.
        metadata = {**table_field.metadata, COLUMN_MAPPING_NAME: table_field.physical_name}
        fields.append(Field(user_field.name, data_type, user_field.nullable, metadata))
    return Struct(tuple(fields))


def _requested_type(have: DataType, want: DataType, table: str, path: str) -> DataType:
    match have, want:
        case Struct(), Struct():
            return requested(have, want, table, path)
        case Array(), Array():
            return Array(_requested_type(have.element, want.element, table, f"{path}.element"), want.contains_null)
        case Map(), Map():
            return Map(
                _requested_type(have.key, want.key, table, f"{path}.key"),
                _requested_type(have.value, want.value, table, f"{path}.value"),
                want.value_contains_null,
            )
    if isinstance(have, Spatial) and want == Primitive("binary"):
        return want  # well-known binary, as it lies in files
    if have != want:
        raise SchemaError(
            f"column {path!r} of {table} is of type {have}, the given schema says {want}; "
            f"write its own type in the schema and cast the column after the load"
        )
    return want


def unknown_column(name: str, schema: Struct, table: str, path: str = "") -> SchemaError:
    """The error of a column that is not there, with the nearest that is."""
    lowered = {n.lower(): n for n in schema.names}
    near = difflib.get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.5)
    where = f"struct {path!r} of {table}" if path else table
    hint = f"did you mean {lowered[near[0]]!r}?" if near else f"it has {', '.join(schema.names[:20])}"
    return SchemaError(f"{where} has no column {name!r}; {hint}", column=name)


def check_types(chosen: Struct, schema: Struct, table: str) -> None:
    """Refuse a load of a column whose type is not read.

    Args:
        chosen: The load's columns.
        schema: All columns of the table.

    Raises:
        UnreadableColumnError: Names the column, its type, and the columns that can be read.
    """
    unreadable = next(unreadable_in(chosen), None)
    if unreadable is None:
        return
    path, kind = unreadable
    readable = readable_columns(schema)
    others = ", ".join(readable[:_NAMED]) + (f" and {len(readable) - _NAMED} more" if len(readable) > _NAMED else "")
    way = f"name the columns to read, as in columns={','.join(readable[:2])!r} (it has {others})"
    raise UnreadableColumnError(
        f"column {path!r} of {table} has the type {kind.name[:100]!r}, which this reader does not read; "
        f"{way if readable else 'ask the provider for a table of other types'}, or upgrade delta-sharing-spark",
        column=path,
        kind=kind.name,
        readable=tuple(readable),
    )


def readable_columns(schema: Struct) -> list[str]:
    """The columns that can be read, as the option ``columns`` names them; of a struct of which only a part can, the fields that can."""
    names = []
    for column in schema.fields:
        if not any(unreadable_in(column.type)):
            names.append(_as_option(column.name))
        elif isinstance(column.type, Struct):
            names += [f"{_as_option(column.name)}.{name}" for name in readable_columns(column.type)]
    return names


def _as_option(name: str) -> str:
    """A name as the option ``columns`` takes it."""
    return name if re.fullmatch(r"\w+", name) else backquoted(name)
