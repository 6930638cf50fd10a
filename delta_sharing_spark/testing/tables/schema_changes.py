"""Schema evolution as functions from a schema to the next: add, rename, drop, widen; dotted paths reach nested fields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from delta_sharing_spark.schema.types import Array, DataType, Field, Map, Struct, parse_type

_TYPE_CHANGES = "delta.typeChanges"

#: What becomes of a struct's fields when one is changed.
_Edit = Callable[[tuple[Field, ...], str], tuple[Field, ...]]


def add(schema: Struct, parent: str, field: Field) -> Struct:
    """``field`` at the end of the schema, or of the struct at the path ``parent``."""
    if not parent:
        return Struct((*schema.fields, field))
    return _edit(schema, [*parent.split("."), field.name], lambda fields, _: (*fields, field))


def rename(schema: Struct, path: str, new_name: str) -> Struct:
    return _edit(
        schema,
        path.split("."),
        lambda fields, name: tuple(replace(f, name=new_name) if f.name == name else f for f in fields),
    )


def drop(schema: Struct, path: str) -> Struct:
    return _edit(schema, path.split("."), lambda fields, name: tuple(f for f in fields if f.name != name))


def widen(schema: Struct, path: str, new_type: str) -> Struct:
    """Another type for a leaf; the change is noted in the nearest field's metadata (``delta.typeChanges``)."""
    target = parse_type(new_type, "the table", path)
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        field = _find(schema, parts[:length])
        if field is not None:
            changed = _widen_field(field, parts[length:], target)
            return _edit(schema, parts[:length], _replacement(changed))
    raise ValueError(f"no column {path!r}")


def _replacement(changed: Field) -> _Edit:
    return lambda fields, name: tuple(changed if f.name == name else f for f in fields)


def _widen_field(field: Field, inner: list[str], target: DataType) -> Field:
    old, new_type = _replace_inner(field.type, inner, target)
    note = {"toType": str(target), "fromType": str(old)}
    if inner:
        note["fieldPath"] = ".".join(inner)
    changes = [*field.metadata.get(_TYPE_CHANGES, ()), note]
    return Field(field.name, new_type, field.nullable, {**field.metadata, _TYPE_CHANGES: changes})


def _replace_inner(data_type: DataType, inner: list[str], target: DataType) -> tuple[DataType, DataType]:
    """The type that stood at the end of ``inner``, and the whole with ``target`` in its place."""
    if not inner:
        return data_type, target
    match data_type, inner[0]:
        case Array(element, nulls), "element":
            old, new = _replace_inner(element, inner[1:], target)
            return old, Array(new, nulls)
        case Map(key, value, nulls), "key":
            old, new = _replace_inner(key, inner[1:], target)
            return old, Map(new, value, nulls)
        case Map(key, value, nulls), "value":
            old, new = _replace_inner(value, inner[1:], target)
            return old, Map(key, new, nulls)
    raise ValueError(f"{data_type} has no {inner[0]!r}")


def _find(data_type: DataType, parts: list[str]) -> Field | None:
    """The struct field at a path, None if its last part is not a field."""
    name, rest = parts[0], parts[1:]
    match data_type:
        case Struct(fields):
            for field in fields:
                if field.name == name:
                    return _find(field.type, rest) if rest else field
            return None
        case Array(element) if name == "element" and rest:
            return _find(element, rest)
        case Map(key, value) if name in ("key", "value") and rest:
            return _find(key if name == "key" else value, rest)
    return None


def _edit(schema: Struct, parts: list[str], edit: _Edit) -> Struct:
    edited = _edit_type(schema, parts, edit)
    assert isinstance(edited, Struct)
    return edited


def _edit_type(data_type: DataType, parts: list[str], edit: _Edit) -> DataType:
    match data_type:
        case Struct(fields) if len(parts) == 1:
            return Struct(edit(fields, parts[0]))
        case Struct(fields):
            if parts[0] not in data_type.names:
                raise ValueError(f"no field {parts[0]!r} in {data_type}")
            return Struct(
                tuple(replace(f, type=_edit_type(f.type, parts[1:], edit)) if f.name == parts[0] else f for f in fields)
            )
        case Array(element, nulls) if parts[0] == "element":
            return Array(_edit_type(element, parts[1:], edit), nulls)
        case Map(key, value, nulls) if parts[0] == "key":
            return Map(_edit_type(key, parts[1:], edit), value, nulls)
        case Map(key, value, nulls) if parts[0] == "value":
            return Map(key, _edit_type(value, parts[1:], edit), nulls)
    raise ValueError(f"{data_type} has no {parts[0]!r}")
