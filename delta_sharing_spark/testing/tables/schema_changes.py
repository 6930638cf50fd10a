"""Schema evolution as functions from a schema to the next: add, rename, drop, widen; dotted paths reach nested fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from delta_sharing_spark.schema.types import TYPE_CHANGES, Field, Struct, parse_type, schema_to_json

#: Where the JSON of an array or a map has the types within it.
_INNER = {"element": "elementType", "key": "keyType", "value": "valueType"}


@dataclass(slots=True)
class _Place:
    """Where a type stands in a schema's JSON.

    Attributes:
        holder, key: The object that has the type, and under which key.
        siblings: The fields of the nearest struct; empty for the schema itself.
        inner: The path from the nearest field on, within arrays and maps.
    """

    holder: dict[str, Any]
    key: str
    siblings: list[dict[str, Any]]
    inner: list[str]

    @classmethod
    def of(cls, tree: dict[str, Any], path: str) -> _Place:
        """The place that a dotted path leads to; raises ValueError where there is none."""
        place = cls({"type": tree}, "type", [], [])
        for part in path.split(".") if path else ():
            kind = place.holder[place.key]
            if isinstance(kind, dict) and kind["type"] == "struct":
                field = next((one for one in kind["fields"] if one["name"] == part), None)
                if field is None:
                    raise ValueError(f"no field {part!r} of column {path!r}")
                place = cls(field, "type", kind["fields"], [])
            elif isinstance(kind, dict) and _INNER.get(part) in kind:
                place = cls(kind, _INNER[part], place.siblings, [*place.inner, part])
            else:
                raise ValueError(f"{kind} has no {part!r}")
        return place


def add(schema: Struct, parent: str, field: Field) -> Struct:
    """``field`` at the end of the schema, or of the struct at the path ``parent``."""
    tree = schema_to_json(schema)
    place = _Place.of(tree, parent)
    place.holder[place.key]["fields"] += schema_to_json(Struct((field,)))["fields"]
    return _parsed(tree)


def rename(schema: Struct, path: str, new_name: str) -> Struct:
    tree = schema_to_json(schema)
    _Place.of(tree, path).holder["name"] = new_name
    return _parsed(tree)


def drop(schema: Struct, path: str) -> Struct:
    tree = schema_to_json(schema)
    place = _Place.of(tree, path)
    place.siblings.remove(place.holder)
    return _parsed(tree)


def widen(schema: Struct, path: str, new_type: str) -> Struct:
    """Another type for a leaf; the change is noted in the nearest field's metadata (``delta.typeChanges``)."""
    tree = schema_to_json(schema)
    place = _Place.of(tree, path)
    note = {"toType": str(parse_type(new_type, "the table", path)), "fromType": place.holder[place.key]}
    if place.inner:
        note["fieldPath"] = ".".join(place.inner)
    place.holder[place.key] = note["toType"]
    field = _Place.of(tree, path.removesuffix("".join(f".{part}" for part in place.inner))).holder
    field["metadata"] = {**field["metadata"], TYPE_CHANGES: [*field["metadata"].get(TYPE_CHANGES, ()), note]}
    return _parsed(tree)


def _parsed(tree: dict[str, Any]) -> Struct:
    parsed = parse_type(tree, "the table", "")
    assert isinstance(parsed, Struct)
    return parsed
