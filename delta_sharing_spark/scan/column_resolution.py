"""Finds the columns of a file that hold the columns of a schema (Delta protocol, "Column Mapping"), and their Parquet leaves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from delta_sharing_spark.errors import CorruptFileError
from delta_sharing_spark.schema.types import NAMES_IN_FILES, Array, DataType, Field, Map, Struct

if TYPE_CHECKING:
    from delta_sharing_spark.parquet.julian import Julian

_FIELD_ID = b"PARQUET:field_id"
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Context:
    """What a file's columns are matched by.

    Attributes:
        table, file: What errors name.
        mapping: How columns are found: ``"none"``, ``"name"``, ``"id"``, ``"names"``.
        julian: The calendar that the file counts by, if it is another.
        has_int96_bytes: Whether its timestamps of 96 bits come as bytes.
        fallbacks: Values of fields within structs that the file lacks, by field id.
    """

    table: str
    file: str
    mapping: str
    julian: Julian | None = None
    has_int96_bytes: bool = False
    fallbacks: Mapping[int, pa.Scalar] = dataclasses.field(default_factory=dict)

    def converts(self, declared: DataType) -> bool:
        """Whether dates or timestamps within a type may count by another calendar."""
        return self.julian is not None and self.julian.is_for(declared)


class SourceFields:
    """The fields of a file's schema or of one of its structs, found by name or id (a thousand columns are common)."""

    def __init__(self, fields: Iterable[pa.Field]) -> None:
        self.fields = list(fields)

    def by_name(self, name: str) -> list[int]:
        """All fields of that name."""
        return self._names.get(name, [])

    def by_folded_name(self, name: str) -> list[int]:
        """All fields of that name, letter case aside."""
        return self._folded.get(name.lower(), [])

    def by_id(self, number: int) -> list[int]:
        """All fields of that id."""
        return self._ids.get(str(number).encode(), [])

    @property
    def has_ids(self) -> bool:
        """Whether any field has an id."""
        return bool(self._ids)

    @property
    def has_any_id(self) -> bool:
        """Whether any field, or one within, has an id."""
        waiting = list(self.fields)
        while waiting:
            field = waiting.pop()
            if _FIELD_ID in (field.metadata or {}):
                return True
            kind = storage(field.type)
            waiting += [kind.field(place) for place in range(kind.num_fields)]
        return False

    @cached_property
    def _names(self) -> dict[str, list[int]]:
        return self._places(lambda field: field.name)

    @cached_property
    def _folded(self) -> dict[str, list[int]]:
        return self._places(lambda field: field.name.lower())

    @cached_property
    def _ids(self) -> dict[bytes, list[int]]:
        return self._places(lambda field: (field.metadata or {}).get(_FIELD_ID))

    def _places(self, key: Callable[[pa.Field], Key | None]) -> dict[Key, list[int]]:
        places: dict[Key, list[int]] = {}
        for place, field in enumerate(self.fields):
            if (place_key := key(field)) is not None:
                places.setdefault(place_key, []).append(place)
        return places


def mapping_of(schema: Struct, source: pa.Schema, mapping: str) -> str:
    """How a file's columns are found: by ids, but by a table's mapping of names where no field of the file has any (Iceberg)."""
    has_names = mapping == "id" and any(NAMES_IN_FILES in field.metadata for field in schema.fields)
    return "names" if has_names and not SourceFields(source).has_any_id else mapping


def find_source(field: Field, sources: SourceFields, context: Context) -> int | None:
    """The index of the file's field that holds ``field``; None if the file lacks it.

    Raises:
        CorruptFileError: Several fields fit, or the column is found by its id and there are no ids.
    """
    if context.mapping == "names":
        names: tuple[str, ...] = tuple(field.metadata.get(NAMES_IN_FILES, ()))
        places, looked_for = [place for name in names for place in sources.by_name(name)], f"named as {field.name!r} is"
    elif context.mapping == "id" and field.field_id is not None:
        places, looked_for = sources.by_id(field.field_id), f"with the field id {field.field_id}"
        if sources.fields and not sources.has_ids:
            raise CorruptFileError(
                f"file {context.file} of {context.table} has no field ids beside {sources.fields[0].name!r}, and its table finds "
                f"columns by them (delta.columnMapping.mode is 'id'): every such column would be NULL; ask the provider to "
                f"rewrite the file",
                file=context.file,
            )
    else:
        name = field.physical_name
        places, looked_for = sources.by_name(name), f"named {name!r}"
        if not places and context.mapping == "none":
            places, looked_for = sources.by_folded_name(name), f"named {name!r} that differ by case only"
    if len(places) > 1:
        raise CorruptFileError(
            f"file {context.file} of {context.table} has several columns {looked_for}; leave the column out with the option "
            f"'columns', or ask the provider to rewrite the file",
            file=context.file,
            column=field.physical_name,
        )
    return places[0] if places else None


def leaves_of(source: pa.Schema, schema: Struct, context: Context) -> list[int]:
    """Indices of the Parquet leaf columns to read for ``schema``, ascending.

    Where the file has none of the fields of a struct in ``schema``, the struct's first leaf is read all the same: only a
    leaf tells which structs are NULL.

    Raises:
        CorruptFileError: As ``find_source``.
    """
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
        siblings = list(kind) if pa.types.is_struct(kind) else []
    return first


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
            _collect(SourceFields(source), fields, first, leaves, context)
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


def is_list(data_type: pa.DataType) -> bool:
    return pa.types.is_list(data_type) or pa.types.is_large_list(data_type) or pa.types.is_fixed_size_list(data_type)


def leaf_count(data_type: pa.DataType) -> int:
    """Parquet leaf columns under an Arrow type."""
    data_type = storage(data_type)
    if pa.types.is_struct(data_type):
        return sum(leaf_count(f.type) for f in data_type)
    if is_list(data_type):
        return leaf_count(data_type.value_type)
    if pa.types.is_map(data_type):
        return leaf_count(data_type.key_type) + leaf_count(data_type.item_type)
    return 1
