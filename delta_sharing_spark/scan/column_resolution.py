"""Finds the columns of a file that hold the columns of a schema (Delta protocol, "Column Mapping"), and their Parquet leaves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from delta_sharing_spark.errors import CorruptFileError
from delta_sharing_spark.schema.types import Array, DataType, Field, Map, Struct

_FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True, slots=True)
class Context:
    """The table and file that errors name, and how columns are matched (``mapping``: ``"none"``, ``"name"``, ``"id"``)."""

    table: str
    file: str
    mapping: str


class SourceFields:
    """The fields of a file's schema or of one of its structs, found by name or id (a thousand columns are common)."""

    def __init__(self, fields: Iterable[pa.Field]) -> None:
        self.fields = list(fields)
        self._names: dict[str, int] = {}
        self._folded: dict[str, list[int]] | None = None
        self._ids: dict[bytes, int] | None = None
        for i, field in enumerate(self.fields):
            self._names.setdefault(field.name, i)

    def by_name(self, name: str) -> int | None:
        return self._names.get(name)

    def by_folded_name(self, name: str) -> list[int]:
        """All fields of that name, letter case aside."""
        if self._folded is None:
            self._folded = {}
            for i, field in enumerate(self.fields):
                self._folded.setdefault(field.name.lower(), []).append(i)
        return self._folded.get(name.lower(), [])

    def by_id(self, number: int) -> int | None:
        if self._ids is None:
            self._ids = {}
            for i, field in enumerate(self.fields):
                if (field_id := (field.metadata or {}).get(_FIELD_ID)) is not None:
                    self._ids.setdefault(field_id, i)
        return self._ids.get(str(number).encode())


def find_source(field: Field, sources: SourceFields, context: Context) -> int | None:
    """The index of the file's field that holds ``field``; None if the file lacks it.

    Raises:
        CorruptFileError: Several fields fit (they differ by case only).
    """
    if context.mapping == "id" and field.field_id is not None:
        return sources.by_id(field.field_id)
    name = field.physical_name
    exact = sources.by_name(name)
    if exact is not None or context.mapping != "none":
        return exact
    close = sources.by_folded_name(name)
    if len(close) > 1:
        raise CorruptFileError(
            f"file {context.file} of {context.table} has several columns named {name!r} that differ by case only; "
            f"leave the column out with the option 'columns', or ask the provider to rewrite the file",
            file=context.file,
            column=name,
        )
    return close[0] if close else None


def leaves_of(source: pa.Schema, schema: Struct, context: Context) -> list[int]:
    """Indices of the Parquet leaf columns to read for ``schema``, ascending.

    Where the file has none of the fields of a struct in ``schema``, the struct's first leaf is read all the same: only a
    leaf tells which structs are NULL.

    Raises:
        CorruptFileError: Columns are found by id, and the file has none; or several fields fit one column.
    """
    if context.mapping == "id" and schema.fields and len(source) and not any(map(_has_id, source)):
        raise CorruptFileError(
            f"file {context.file} of {context.table} has no field ids, and its table finds columns by them "
            f"(delta.columnMapping.mode is 'id'): every column would be NULL; ask the provider to rewrite the file",
            file=context.file,
        )
    leaves: list[int] = []
    _collect(SourceFields(source), schema.fields, 0, leaves, context)
    return sorted(set(leaves))


def leaf_of(source: pa.Schema, fields: Iterable[Field], context: Context) -> int | None:
    """The first Parquet leaf of the last of ``fields``, each within the one before; None if the file lacks it. Raises as ``find_source``."""
    siblings, first = list(source), 0
    for field in fields:
        place = find_source(field, SourceFields(siblings), context)
        if place is None:
            return None
        first += sum(leaf_count(sibling.type) for sibling in siblings[:place])
        kind = siblings[place].type
        siblings = fields_of(kind) if pa.types.is_struct(kind) else []
    return first


def _has_id(field: pa.Field) -> bool:
    return _FIELD_ID in (field.metadata or {})


def _collect(sources: SourceFields, fields: tuple[Field, ...], first: int, leaves: list[int], context: Context) -> None:
    starts = [first]
    for source in sources.fields:
        starts.append(starts[-1] + leaf_count(source.type))
    for field in fields:
        index = find_source(field, sources, context)
        if index is not None:
            _collect_type(sources.fields[index].type, field.type, starts[index], leaves, context)


def _collect_type(source: pa.DataType, declared: DataType, first: int, leaves: list[int], context: Context) -> None:
    before = len(leaves)
    source = storage(source)
    match declared:
        case Struct(fields) if pa.types.is_struct(source):
            _collect(SourceFields(fields_of(source)), fields, first, leaves, context)
        case Array(element, _) if is_list(source):
            _collect_type(source.value_type, element, first, leaves, context)
        case Map(key, value, _) if pa.types.is_map(source):
            _collect_type(source.key_type, key, first, leaves, context)
            _collect_type(source.item_type, value, first + leaf_count(source.key_type), leaves, context)
        case _:
            leaves.extend(range(first, first + leaf_count(source)))
    if len(leaves) == before:
        leaves.append(first)


def storage(data_type: pa.DataType) -> pa.DataType:
    """The storage type of an extension type (UUID, JSON...); any other type as it is."""
    return data_type.storage_type if isinstance(data_type, pa.BaseExtensionType) else data_type


def fields_of(data_type: pa.StructType) -> list[pa.Field]:
    return [data_type.field(i) for i in range(data_type.num_fields)]


def is_list(data_type: pa.DataType) -> bool:
    return pa.types.is_list(data_type) or pa.types.is_large_list(data_type) or pa.types.is_fixed_size_list(data_type)


def leaf_count(data_type: pa.DataType) -> int:
    """Parquet leaf columns under an Arrow type."""
    data_type = storage(data_type)
    if pa.types.is_struct(data_type):
        return sum(leaf_count(f.type) for f in fields_of(data_type))
    if is_list(data_type):
        return leaf_count(data_type.value_type)
    if pa.types.is_map(data_type):
        return leaf_count(data_type.key_type) + leaf_count(data_type.item_type)
    return 1
