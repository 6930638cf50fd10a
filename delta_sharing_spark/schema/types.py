"""Defines Delta's data types as values; reads them from a ``schemaString`` (Delta protocol, "Schema Serialization Format"), writes Spark's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from delta_sharing_spark.errors import ResponseError, SchemaError, UnsupportedFeatureError

COLUMN_MAPPING_NAME = "delta.columnMapping.physicalName"
COLUMN_MAPPING_ID = "delta.columnMapping.id"

#: The metadata of a field whose type was widened.
TYPE_CHANGES = "delta.typeChanges"
#: Of Iceberg's fields: their names in files without ids, and, as JSON, the value that stands in where a file lacks one.
#: And the type there, where that is another one than here.
NAMES_IN_FILES, INITIAL_DEFAULT, ICEBERG_TYPE = "iceberg.names", "iceberg.initial-default", "iceberg.type"
_MAPPING = (COLUMN_MAPPING_NAME, COLUMN_MAPPING_ID, NAMES_IN_FILES, INITIAL_DEFAULT, ICEBERG_TYPE)

#: Primitive type names of the Delta protocol that this reader knows, decimals aside.
PRIMITIVES = frozenset({
    "string", "long", "integer", "short", "byte", "float", "double", "boolean", "binary", "date", "timestamp",
    "timestamp_ntz", "void", "variant",
})  # fmt: skip
_ALIASES = {"int": "integer", "bigint": "long", "smallint": "short", "tinyint": "byte", "null": "void"}
_DECIMAL = re.compile(r"decimal\(\s*([0-9]{1,9})\s*,\s*(-?[0-9]{1,9})\s*\)")
_SPATIAL = re.compile(r"(geometry|geography)(?:\(\s*([^(),]+?)\s*(?:,\s*([^(),]+?)\s*)?\))?", re.IGNORECASE)
#: How the edges of geographies run (Parquet format, "Geospatial Types"), the usual one first.
ALGORITHMS = ("SPHERICAL", "VINCENTY", "THOMAS", "ANDOYER", "KARNEY")
#: Half of a surrogate pair, as JSON escapes it; alone it is no character.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
#: Types within types that are read: Python's stack has to hold them, in pickles too.
MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class Primitive:
    """A type without parameters, by its name in the Delta protocol (``"long"``, ``"timestamp_ntz"``)."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Decimal:
    """``decimal(precision, scale)``, 1 to 38 digits."""

    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})"


@dataclass(frozen=True, slots=True)
class Array:
    """``array<element>``."""

    element: DataType
    contains_null: bool = True

    def __str__(self) -> str:
        return f"array<{self.element}>"


@dataclass(frozen=True, slots=True)
class Map:
    """``map<key, value>``; keys are never null."""

    key: DataType
    value: DataType
    value_contains_null: bool = True

    def __str__(self) -> str:
        return f"map<{self.key},{self.value}>"


@dataclass(frozen=True, slots=True)
class Field:
    """A column or a struct's field, by its logical name. ``metadata`` is the raw Delta metadata.

    Fields are equal whatever their metadata: what depends on it compares it as well.
    """

    name: str
    type: DataType
    nullable: bool = True
    metadata: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def physical_name(self) -> str:
        """The name in Parquet files, statistics and partition keys when columns are mapped; else the name."""
        name = self.metadata.get(COLUMN_MAPPING_NAME)
        return name if isinstance(name, str) else self.name

    @property
    def field_id(self) -> int | None:
        """The Parquet ``field_id`` under column mapping, or None."""
        number = self.metadata.get(COLUMN_MAPPING_ID)
        return number if isinstance(number, int) and not isinstance(number, bool) else None

    @property
    def was_another_type(self) -> bool:
        """Whether files may hold the column, and tell its statistics, in a narrower type (Delta protocol, "Type Widening")."""
        return TYPE_CHANGES in self.metadata

    @property
    def comment(self) -> str | None:
        comment = self.metadata.get("comment")
        return comment if isinstance(comment, str) else None


@dataclass(frozen=True, slots=True)
class Struct:
    """``struct<...>``, and a table's schema."""

    fields: tuple[Field, ...]

    def __str__(self) -> str:
        return "struct<" + ",".join(f"{f.name}:{f.type}" for f in self.fields) + ">"

    def _repr_html_(self) -> str:
        from delta_sharing_spark.schema.markup import html_table

        return html_table(["name", "type", "null", "comment"], self.rows())

    def rows(self) -> list[list[str]]:
        """Name, type, ``NOT NULL`` or nothing, and comment of each field, to be shown."""
        return [
            [f.name, str(f.type), "" if f.nullable else "NOT NULL", str(f.metadata.get("comment", ""))]
            for f in self.fields
        ]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f.name for f in self.fields)

    def find(self, name: str) -> Field | None:
        """The field of a name, exactly or else without case, None if absent; raises SchemaError where several differ by case only."""
        exact = [f for f in self.fields if f.name == name]
        return _only(name, exact or [f for f in self.fields if f.name.lower() == name.lower()])


def fields_along(schema: Struct, path: tuple[str, ...]) -> list[Field] | None:
    """The fields along a path of exact names; None where the schema does not reach there."""
    fields: list[Field] = []
    kind: DataType = schema
    for name in path:
        field = next((f for f in kind.fields if f.name == name), None) if isinstance(kind, Struct) else None
        if field is None:
            return None
        fields.append(field)
        kind = field.type
    return fields


def inner_fields(data_type: DataType) -> tuple[Field, ...]:
    """The fields of a struct; an array's ``element``, or a map's ``key`` and ``value``, as fields; of other types none."""
    match data_type:
        case Struct(fields):
            return fields
        case Array(element, contains_null):
            return (Field("element", element, contains_null),)
        case Map(key, value, value_contains_null):
            return (Field("key", key), Field("value", value, value_contains_null))
    return ()


def _only(name: str, fields: list[Field]) -> Field | None:
    if len(fields) > 1:
        raise SchemaError(
            f"column {name!r} is ambiguous: {', '.join(repr(f.name) for f in fields[:20])}; write one of them exactly"
        )
    return fields[0] if fields else None


class FieldsByName:
    """The fields of a struct for many look-ups: a table may have a hundred thousand columns."""

    def __init__(self, struct: Struct) -> None:
        self._exact: dict[str, list[Field]] = {}
        self._folded: dict[str, list[Field]] = {}
        for one in struct.fields:
            self._exact.setdefault(one.name, []).append(one)
            self._folded.setdefault(one.name.lower(), []).append(one)

    def find(self, name: str) -> Field | None:
        """As :meth:`Struct.find`."""
        return _only(name, self._exact.get(name) or self.alike(name))

    def alike(self, name: str) -> list[Field]:
        """All fields of a name without case."""
        return self._folded.get(name.lower(), [])


@dataclass(frozen=True, slots=True)
class Spatial:
    """``geometry(crs)``, or ``geography(crs, algorithm)``: places on earth, in files as well-known binary (WKB).

    Attributes:
        crs: The coordinate reference system, as ``OGC:CRS84``, ``EPSG:3857``, or ``SRID:0`` for none.
        algorithm: How edges run between the points of a geography, as ``SPHERICAL``; None for a geometry, whose edges are straight.
    """

    crs: str = "OGC:CRS84"
    algorithm: str | None = None

    def __str__(self) -> str:
        return f"geometry({self.crs})" if self.algorithm is None else f"geography({self.crs}, {self.algorithm})"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A type that this reader does not read, by its name in the schema. A load that has a column of it is refused."""

    name: str

    def __str__(self) -> str:
        return self.name


DataType = Primitive | Decimal | Spatial | Unreadable | Array | Map | Struct
_Type = TypeVar("_Type", bound=DataType)

#: A type whose only value is NULL: nullable whatever a schema says (Arrow has no other).
_VOID = Primitive("void")


def parse_schema(schema_string: str, table: str = "the table") -> Struct:
    """Parse a ``schemaString``.

    Args:
        schema_string: The JSON text of the table's metadata.

    Raises:
        ResponseError: The text is empty, not JSON, or not a struct of well-formed fields.
        UnsupportedFeatureError: The text is nested deeper than Python reads.
    """
    if not schema_string:
        raise ResponseError(
            f"{table} has no schema: its metadata names none; ask the provider whether anything was written to it, and to check it"
        )
    try:
        tree = json.loads(schema_string)
        if _SURROGATE.search(schema_string):
            json.dumps(tree, ensure_ascii=False).encode()
    except RecursionError:
        raise UnsupportedFeatureError(
            f"the schema of {table} nests types deeper than {MAX_DEPTH} levels, which is as deep as this reader goes; "
            f"ask the provider for a flatter table",
            features=("nesting",),
        ) from None
    except (TypeError, ValueError) as error:
        raise ResponseError(
            f"the schema of {table} is not valid JSON ({error}); ask the provider of the share to check the table's metadata"
        ) from error
    parsed = parse_type(tree, table, "")
    if not isinstance(parsed, Struct):
        raise ResponseError(
            f"the schema of {table} is of type {parsed}, not a struct; ask the provider to check the table's metadata"
        )
    return parsed


def parse_type(tree: Any, table: str, path: str, depth: int = 0) -> DataType:
    """Parse one type of a schema's JSON. A type that is not known, or lies deeper than ``MAX_DEPTH``, is ``Unreadable``.

    Args:
        path: The column that it belongs to, for errors.
        depth: How many types it lies in.

    Raises:
        As :func:`parse_schema`.
    """
    if depth > MAX_DEPTH:
        return Unreadable(f"a type within {MAX_DEPTH} others")
    if isinstance(tree, str):
        return _parse_primitive(tree)
    if not isinstance(tree, dict):
        raise _malformed(f"column {path!r} of {table} has no readable type: {str(tree)[:100]}")
    kind = tree.get("type")
    if kind == "struct" and isinstance(tree.get("fields"), list):
        return Struct(tuple(_parse_field(f, table, path, depth + 1) for f in tree["fields"]))
    if kind == "array" and "elementType" in tree:
        element = parse_type(tree["elementType"], table, f"{path}.element", depth + 1)
        return Array(element, _flag(tree, "containsNull", table, path) or element == _VOID)
    if kind == "map" and "keyType" in tree and "valueType" in tree:
        key = parse_type(tree["keyType"], table, f"{path}.key", depth + 1)
        if key == _VOID:
            key = Unreadable("void")
        value = parse_type(tree["valueType"], table, f"{path}.value", depth + 1)
        return Map(key, value, _flag(tree, "valueContainsNull", table, path) or value == _VOID)
    if kind == "udt":
        return Unreadable("udt")
    raise _malformed(f"column {path!r} of {table} has a malformed type")


def _malformed(why: str) -> ResponseError:
    return ResponseError(f"{why}; ask the provider to check the table's schema")


def _flag(tree: Mapping[str, Any], name: str, table: str, path: str) -> bool:
    flag = tree.get(name, True)
    if not isinstance(flag, bool):
        raise _malformed(f"column {path!r} of {table} has {name} {str(flag)[:50]!r}, which is neither true nor false")
    return flag


def _parse_field(tree: Any, table: str, path: str, depth: int) -> Field:
    if not isinstance(tree, dict) or not isinstance(tree.get("name"), str) or "type" not in tree:
        raise _malformed(f"a field of {path or 'the schema'!r} of {table} lacks its name or type")
    name = tree["name"]
    column = f"{path}.{name}" if path else name
    metadata = _parse_metadata(tree.get("metadata"), table, column)
    data_type = parse_type(tree["type"], table, column, depth)
    return Field(name, data_type, _flag(tree, "nullable", table, column) or data_type == _VOID, metadata)


def _parse_metadata(tree: Any, table: str, column: str) -> dict[str, Any]:
    """A field's metadata: without its physical name a mapped column would be NULL in every row.

    Where delta-rs adds a column to a table it writes the ids of all columns as text.
    """
    metadata = {} if tree is None else tree
    if isinstance(metadata, dict):
        physical_name, number = metadata.get(COLUMN_MAPPING_NAME, ""), metadata.get(COLUMN_MAPPING_ID, 0)
        if isinstance(number, str) and re.fullmatch("[0-9]{1,9}", number):
            number = int(number)
            metadata = {**metadata, COLUMN_MAPPING_ID: number}
        if isinstance(physical_name, str) and type(number) is int:
            return metadata
    raise _malformed(f"column {column!r} of {table} has malformed metadata: {str(metadata)[:100]!r}")


def _parse_primitive(name: str) -> DataType:
    lowered = name.lower()
    lowered = _ALIASES.get(lowered, lowered)
    if lowered in PRIMITIVES:
        return Primitive(lowered)
    if lowered == "decimal":
        return Decimal(10, 0)
    if (decimal := decimal_of(lowered)) is not None:
        return decimal
    if lowered.startswith(("char(", "varchar(")):
        return Primitive("string")
    return _spatial_of(name) or Unreadable(name)


def _spatial_of(name: str) -> Spatial | None:
    """The geometry or geography of a name; its system and its algorithm may be left out."""
    match = _SPATIAL.fullmatch(name)
    if match is None:
        return None
    kind, first, second = (part and part.strip() for part in match.groups())
    is_flat = kind.lower() == "geometry"
    if not is_flat and second is None and first is not None and ":" not in first:
        first, second = None, first
    crs, algorithm = first or "OGC:CRS84", (second or ALGORITHMS[0]).upper()
    if ":" not in crs or (is_flat and second is not None) or algorithm not in ALGORITHMS:
        return None
    return Spatial(crs, None if is_flat else algorithm)


def decimal_of(name: str) -> Decimal | None:
    """The decimal type that a schema writes as ``name``; None if it is another type, or has no such digits."""
    match = _DECIMAL.fullmatch(name)
    kind = Decimal(int(match[1]), int(match[2])) if match else None
    return kind if kind is not None and 1 <= kind.precision <= 38 and 0 <= kind.scale <= kind.precision else None


def has_spatial(data_type: DataType) -> bool:
    """Whether a type is, or holds, a geometry or a geography."""
    return isinstance(data_type, Spatial) or any(has_spatial(inner.type) for inner in inner_fields(data_type))


def unreadable_in(data_type: DataType, path: str = "") -> Iterator[tuple[str, Unreadable]]:
    """The paths of the types within a type, and itself, that are not read, each with its type."""
    if isinstance(data_type, Unreadable):
        yield path, data_type
    for inner in inner_fields(data_type):
        yield from unreadable_in(inner.type, f"{path}.{inner.name}" if path else inner.name)


def with_metadata(schema: Struct, accepts: Callable[[str], bool]) -> Struct:
    """``schema`` with only the metadata whose keys ``accepts`` accepts, at every level."""
    return with_each_field(schema, lambda f: replace(f, metadata={k: v for k, v in f.metadata.items() if accepts(k)}))


def with_each_field(data_type: _Type, change: Callable[[Field], Field]) -> _Type:
    """A schema or a type with every field of its structs changed, at every level; the outer one before those within it."""

    def changed(field: Field) -> Field:
        field = change(field) if isinstance(data_type, Struct) else field
        return replace(field, type=with_each_field(field.type, change)) if inner_fields(field.type) else field

    return _with_inner_fields(data_type, changed)


def with_each_type(data_type: DataType, change: Callable[[DataType], DataType]) -> Any:
    """A type with each type in it changed that holds no other."""
    if not inner_fields(data_type):
        return change(data_type)
    return _with_inner_fields(data_type, lambda field: replace(field, type=with_each_type(field.type, change)))


def _with_inner_fields(data_type: _Type, change: Callable[[Field], Field]) -> _Type:
    """A type with each of its ``inner_fields`` changed."""
    inner = tuple(map(change, inner_fields(data_type)))
    result: Any = data_type
    if isinstance(data_type, Struct):
        result = Struct(inner)
    elif isinstance(data_type, Array):
        result = Array(inner[0].type, inner[0].nullable)
    elif isinstance(data_type, Map):
        result = Map(inner[0].type, inner[1].type, inner[1].nullable)
    return result


def schema_to_json(schema: Struct) -> dict[str, Any]:
    """The schema as Delta and Spark write it (a JSON-ready dict), metadata included.

    Nothing of it is shared with the schema: ``StructType.fromJson`` changes the collations of the metadata that it is given.
    """
    fields = [
        {"name": f.name, "type": _type_to_json(f.type), "nullable": f.nullable, "metadata": deepcopy(f.metadata)}
        for f in schema.fields
    ]
    return {"type": "struct", "fields": fields}


def _type_to_json(data_type: DataType) -> str | dict[str, Any]:
    match data_type:
        case Struct():
            return schema_to_json(data_type)
        case Array(element, contains_null):
            return {"type": "array", "elementType": _type_to_json(element), "containsNull": contains_null}
        case Map(key, value, value_contains_null):
            types = {"keyType": _type_to_json(key), "valueType": _type_to_json(value)}
            return {"type": "map", **types, "valueContainsNull": value_contains_null}
    return str(data_type)


def without_mapping(schema: Struct) -> Struct:
    """The schema of files whose columns are not mapped: without physical names and ids."""
    return with_metadata(schema, lambda key: key not in _MAPPING)


#: How the metadata begins that says how files hold a column.
_OF_FILES = ("delta.", "iceberg.")


def logical_schema(schema: Struct) -> Struct:
    """The schema without all that says how files hold its columns: that of rows which were read."""
    return with_metadata(schema, lambda key: not key.startswith(_OF_FILES))


def is_logical(data_type: DataType) -> bool:
    """Whether nothing in a schema or a type says how files hold its columns."""
    return all(
        not any(key.startswith(_OF_FILES) for key in inner.metadata) and is_logical(inner.type)
        for inner in inner_fields(data_type)
    )


# A default that Spark cannot resolve breaks the load; the others belong to writers.
_STRIPPED = frozenset({"CURRENT_DEFAULT", "EXISTS_DEFAULT"})


def backquoted(*path: str) -> str:
    """A name, or the path of a nested field, as SQL takes any name: each part between backquotes."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in path)


def spark_schema_json(schema: Struct) -> dict[str, Any]:
    """``schema`` as the JSON tree that ``StructType.fromJson`` takes.

    ``delta.*`` and default-value metadata is left out at every level; comments stay, and so do the
    char/varchar and collation marks, which change how Spark pads and compares. Types that are not read are void.
    """
    if any(unreadable_in(schema)):
        schema = with_each_type(schema, lambda t: _VOID if isinstance(t, Unreadable) else t)
    return schema_to_json(with_metadata(schema, lambda key: not key.startswith("delta.") and key not in _STRIPPED))
