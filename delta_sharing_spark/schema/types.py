"""Defines Delta's data types as values, parses them from a ``schemaString`` (Delta protocol, "Schema Serialization Format") and to Spark's,
and projects them on the columns of a load."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from delta_sharing_spark.errors import ResponseError, SchemaError, UnreadableColumnError, UnsupportedFeatureError

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
#: Columns that an error names.
_NAMED = 20
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
        return _only(name, self._exact.get(name) or self._folded.get(name.lower(), []))


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


def _as_option(name: str) -> str:
    """A name as the option ``columns`` takes it."""
    return name if re.fullmatch(r"\w+", name) else backquoted(name)


def readable_columns(schema: Struct) -> list[str]:
    """The columns that can be read, as the option ``columns`` names them; of a struct of which only a part can, the fields that can."""
    names = []
    for column in schema.fields:
        if not any(unreadable_in(column.type)):
            names.append(_as_option(column.name))
        elif isinstance(column.type, Struct):
            names += [f"{_as_option(column.name)}.{name}" for name in readable_columns(column.type)]
    return names


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


def with_metadata(schema: Struct, accepts: Callable[[str], bool]) -> Struct:
    """``schema`` with only the metadata whose keys ``accepts`` accepts, at every level."""
    return with_each_field(schema, lambda f: replace(f, metadata={k: v for k, v in f.metadata.items() if accepts(k)}))


def with_each_field(schema: Struct, change: Callable[[Field], Field]) -> Struct:
    """``schema`` with every field changed, at every level; the outer one before those within it."""
    return Struct(tuple(replace(f, type=_with_each_field(f.type, change)) for f in map(change, schema.fields)))


def _with_each_field(data_type: DataType, change: Callable[[Field], Field]) -> DataType:
    match data_type:
        case Struct():
            return with_each_field(data_type, change)
        case Array(element, contains_null):
            return Array(_with_each_field(element, change), contains_null)
        case Map(key, value, value_contains_null):
            return Map(_with_each_field(key, change), _with_each_field(value, change), value_contains_null)
    return data_type


def with_each_type(data_type: DataType, change: Callable[[DataType], DataType]) -> Any:
    """A type with each type in it changed that holds no other."""
    match data_type:
        case Struct(fields):
            return Struct(tuple(replace(f, type=with_each_type(f.type, change)) for f in fields))
        case Array(element, contains_null):
            return Array(with_each_type(element, change), contains_null)
        case Map(key, value, value_contains_null):
            return Map(with_each_type(key, change), with_each_type(value, change), value_contains_null)
    return change(data_type)


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
