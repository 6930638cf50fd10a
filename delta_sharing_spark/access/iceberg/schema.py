"""Turns an Iceberg schema into ours (Iceberg, "Schemas"): columns are found by field id, or in files without ids by a name mapping."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from delta_sharing_spark.schema.types import (
    COLUMN_MAPPING_ID,
    COLUMN_MAPPING_NAME,
    ICEBERG_TYPE,
    INITIAL_DEFAULT,
    MAX_DEPTH,
    NAMES_IN_FILES,
    Array,
    DataType,
    Decimal,
    Field,
    Map,
    Primitive,
    Struct,
    Unreadable,
)

#: The type whose values are texts here, and sixteen bytes there.
UUID = "uuid"
_PRIMITIVES = {
    "boolean": "boolean",
    "int": "integer",
    "long": "long",
    "float": "float",
    "double": "double",
    "date": "date",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    "string": "string",
    UUID: "string",
    "binary": "binary",
    "unknown": "void",
    "variant": "variant",
}
_DECIMAL = re.compile(r"decimal\(\s*([0-9]{1,2})\s*,\s*([0-9]{1,2})\s*\)")
#: Characters of an unknown type that errors name.
_LONGEST_NAME = 60
_FIXED = re.compile(r"fixed\[[0-9]+\]")

#: Names of a field in files without ids, and those of the fields within it, by id.
NameMapping = Mapping[int, tuple[str, ...]]


def parse_name_mapping(tree: Sequence[Mapping[str, Any]]) -> NameMapping:
    """The names of fields by id (Iceberg, "Column Projection"); raises KeyError or TypeError where it is malformed."""
    names: dict[int, tuple[str, ...]] = {}
    waiting = list(tree)
    while waiting:
        one = waiting.pop()
        if "field-id" in one:
            names[int(one["field-id"])] = tuple(str(name) for name in one["names"])
        waiting += one.get("fields") or ()
    return names


def physical_name(field_id: int) -> str:
    """The key of a column's statistics."""
    return f"_{field_id}"


def parse_schema(tree: Mapping[str, Any], names: NameMapping | None) -> Struct:
    """An Iceberg schema; types that are not read are ``Unreadable``, and refused where a load has such a column.

    Raises:
        KeyError, TypeError, ValueError: It is malformed.
    """
    kind = _type({**tree, "type": "struct"}, names, 0)
    if not isinstance(kind, Struct):
        raise TypeError("a schema is a struct")
    return kind


def path_of_id(schema: Struct, field_id: int) -> tuple[Field, ...] | None:
    """The fields from a column down to the one of an id, through structs alone; None where there is none."""
    for field in schema.fields:
        if field.field_id == field_id:
            return (field,)
        if isinstance(field.type, Struct) and (within := path_of_id(field.type, field_id)) is not None:
            return field, *within
    return None


def _type(tree: Any, names: NameMapping | None, depth: int) -> DataType:
    if depth > MAX_DEPTH:
        raise ValueError("types within types without end")
    if isinstance(tree, str):
        if (match := _DECIMAL.fullmatch(tree)) and 1 <= int(match[1]) <= 38 and int(match[2]) <= int(match[1]):
            return Decimal(int(match[1]), int(match[2]))
        if _FIXED.fullmatch(tree):
            return Primitive("binary")
        name = _PRIMITIVES.get(tree)
        return Unreadable(tree[:_LONGEST_NAME]) if name is None else Primitive(name)
    match tree["type"]:
        case "struct":
            fields = tuple(_field(one, names, depth) for one in tree["fields"])
            if len({one.name for one in fields}) < len(fields):
                raise ValueError("two fields of one name")
            return Struct(fields)
        case "list":
            return Array(_type(tree["element"], names, depth + 1), not tree["element-required"])
        case "map":
            key, value = _type(tree["key"], names, depth + 1), _type(tree["value"], names, depth + 1)
            return Map(key, value, not tree["value-required"])
        case other:
            return Unreadable(str(other)[:_LONGEST_NAME])


def _field(tree: Mapping[str, Any], names: NameMapping | None, depth: int) -> Field:
    number, name = tree["id"], tree["name"]
    if type(number) is not int or not isinstance(name, str):
        raise TypeError("a field has an id and a name")
    metadata: dict[str, Any] = {COLUMN_MAPPING_ID: number, COLUMN_MAPPING_NAME: physical_name(number)}
    if isinstance(tree.get("doc"), str):
        metadata["comment"] = tree["doc"]
    if names is not None:
        metadata[NAMES_IN_FILES] = names.get(number, ())
    if tree.get("initial-default") is not None:
        metadata[INITIAL_DEFAULT] = tree["initial-default"]
    if tree["type"] == UUID:
        metadata[ICEBERG_TYPE] = UUID
    kind = _type(tree["type"], names, depth + 1)
    required = tree.get("required", False)
    return Field(name, kind, not required, metadata)
