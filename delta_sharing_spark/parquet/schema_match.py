"""Matches the columns of a Parquet file with a table's, and accepts only types that Spark's reader reads exactly.

Columns are found as the Python source finds them (Delta protocol, "Column Mapping"). Whatever Spark's reader would read
otherwise than the Python source, or might, is no match: such a file is rewritten by the Python source.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from delta_sharing_spark.parquet.thrift import Struct as ThriftStruct
from delta_sharing_spark.schema.types import (
    Array,
    DataType,
    Decimal,
    Field,
    Map,
    Primitive,
    Spatial,
    Struct,
    inner_fields,
)

# Physical types, repetition, converted types and members of LogicalType, by their numbers in parquet.thrift.
BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY, FIXED = range(8)
REQUIRED, OPTIONAL, REPEATED = range(3)
_UTF8, _MAP, _MAP_KEY_VALUE, _LIST, _, _DECIMAL, _DATE = range(7)
_TIMESTAMP_MILLIS, _TIMESTAMP_MICROS, _INT_8, _INT_16, _INT_32, _INT_64 = 9, 10, 15, 16, 17, 18
_L_STRING, _L_MAP, _L_LIST, _L_DECIMAL, _L_DATE, _L_TIMESTAMP, _L_INTEGER, _L_VARIANT = 1, 2, 3, 5, 6, 8, 10, 16
_L_GEOMETRY, _L_GEOGRAPHY = 17, 18
_MILLIS, _MICROS = 1, 2


class NotNativeError(Exception):
    """Spark's own reader might not read this file exactly; the text says why."""


@dataclass(slots=True)
class Element:
    """One element of a file's schema tree, and the name it is shown under.

    Attributes:
        raw: The element as in the footer.
        children: The elements of a group.
        leaf: The number of a leaf's column in the file; -1 for a group.
        is_read: Whether a column of the table is read from it or from below it.
        column: The table's column that it holds, for elements at the top.
        name: The name that Spark is shown.
    """

    raw: ThriftStruct
    children: list[Element] = field(default_factory=list)
    leaf: int = -1
    is_read: bool = False
    column: Field | None = None
    name: str = ""

    def value(self, number: int) -> object:
        item = self.raw.get(number)
        return None if item is None else item[1]

    @property
    def original_name(self) -> str:
        return bytes(self.raw[4][1]).decode("utf-8", "replace")

    @property
    def logical(self) -> tuple[int, ThriftStruct] | None:
        union = self.raw.get(10)
        if union is None or not union[1]:
            return None
        number, (_, inner) = next(iter(union[1].items()))
        return number, inner

    def leaves(self) -> Iterator[Element]:
        if not self.children:
            yield self
        for child in self.children:
            yield from child.leaves()

    def read_elements(self) -> Iterator[Element]:
        """The elements below it that are read, or that hold such."""
        for child in self.children:
            if child.is_read:
                yield child
            yield from child.read_elements()

    def keep_all(self) -> None:
        self.is_read = True
        for child in self.children:
            child.keep_all()


def schema_tree(elements: Sequence[ThriftStruct]) -> Element:
    """The tree of a footer's flat list of schema elements; raises NotNativeError where the list is no tree."""
    position, leaves = 0, 0

    def build() -> Element:
        nonlocal position, leaves
        if position >= len(elements):
            raise NotNativeError("its schema is incomplete")
        raw = elements[position]
        position += 1
        element = Element(raw)
        element.name = element.original_name
        count = element.value(5)
        if isinstance(count, int) and count > 0:
            element.children = [build() for _ in range(count)]
        elif 1 in raw:
            element.leaf = leaves
            leaves += 1
        return element

    return build()


def match_columns(root: Element, schema: Struct, mapping: str) -> None:
    """Mark the elements that hold the columns of ``schema``, and give them their logical names.

    A column that the file lacks is NULL to Spark, as it should be, unless it is declared NOT NULL. Raises NotNativeError where
    a column is stored otherwise than Spark's reader would take it.
    """
    if mapping == "id" and root.children and not any(9 in child.raw for child in root.children):
        raise NotNativeError("it has no field ids")
    find = _finder(root.children, mapping)
    for column in schema.fields:
        element = find(column)
        if element is None:
            if not column.nullable:
                raise NotNativeError(f"it lacks the NOT NULL column {column.name!r}")
            continue
        element.column = column
        _take(element, column, column.name, mapping)


def _finder(among: Sequence[Element], mapping: str) -> Callable[[Field], Element | None]:
    """Finds the one of some elements that holds a field; raises NotNativeError where several may."""
    by_id, by_name, by_lower = (defaultdict[object, list[Element]](list) for _ in range(3))
    for element in among:
        name = element.original_name
        by_id[element.value(9)].append(element)
        by_name[name].append(element)
        by_lower[name.lower()].append(element)

    def find(column: Field) -> Element | None:
        if mapping == "id" and column.field_id is not None:
            matches = by_id.get(column.field_id, [])
        else:
            matches = by_name.get(column.physical_name, [])
            if not matches and mapping == "none":
                matches = by_lower.get(column.physical_name.lower(), [])
        if len(matches) > 1:
            raise NotNativeError(f"it has several columns that may be {column.name!r}")
        return matches[0] if matches else None

    return find


def _take(element: Element, column: Field, path: str, mapping: str) -> None:
    if element.is_read:
        raise NotNativeError(f"one of its columns is two of the table's: {path!r}")
    if element.value(3) == REPEATED:
        raise NotNativeError(f"column {path!r} is a repeated field")
    element.name = column.name
    _take_type(element, column.type, path, mapping)


def _take_type(element: Element, declared: DataType, path: str, mapping: str) -> None:
    element.is_read = True
    match declared:
        case Primitive("variant"):
            _take_variant(element, path)
        case Primitive() | Decimal() | Spatial():
            if element.children or not _same_leaf(element, declared):
                raise NotNativeError(f"column {path!r} is not stored as {declared}")
            if (element.logical or (0, {}))[0] in (_L_GEOMETRY, _L_GEOGRAPHY):
                # Spark takes places on earth from plain bytes, and has not each system that a file may name.
                del element.raw[10]
        case Struct(fields):
            if not element.children or element.logical is not None or 6 in element.raw:
                raise NotNativeError(f"column {path!r} is not stored as a struct")
            find = _finder(element.children, mapping)
            for inner in fields:
                child = find(inner)
                if child is None:
                    # Asked for such fields alone, Spark before 4.1 takes every struct for NULL.
                    raise NotNativeError(f"the struct {path!r} lacks the field {inner.name!r}")
                _take(child, inner, f"{path}.{inner.name}", mapping)
        case Array() | Map():
            is_list, within = isinstance(declared, Array), inner_fields(declared)
            converted, logical = ((_LIST,), _L_LIST) if is_list else ((_MAP, _MAP_KEY_VALUE), _L_MAP)
            children = _repeated(element, len(within), converted, logical, path)
            for child, inner in zip(children, within, strict=True):
                _take_type(child, inner.type, f"{path}.{inner.name}", mapping)


def _repeated(element: Element, size: int, converted: tuple[int, ...], logical: int, path: str) -> list[Element]:
    """The children of the repeated group in a list or map of three levels (Parquet format, "Nested Types")."""
    marked = element.value(6) in converted or (element.logical or (0, {}))[0] == logical
    inner = element.children[0] if len(element.children) == 1 else None
    legacy = inner is not None and (inner.original_name == "array" or inner.original_name.endswith("_tuple"))
    if not marked or inner is None or legacy or inner.value(3) != REPEATED or len(inner.children) != size:
        raise NotNativeError(f"column {path!r} is a list or map of an older form")
    if any(child.value(3) == REPEATED for child in inner.children):
        raise NotNativeError(f"column {path!r} is a list or map of an older form")
    inner.is_read = True
    return inner.children


def _take_variant(element: Element, path: str) -> None:
    names = sorted(child.original_name for child in element.children)
    if names != ["metadata", "value"] or any(
        child.children or child.value(1) != BYTE_ARRAY or child.value(3) == REPEATED for child in element.children
    ):
        raise NotNativeError(f"the variant {path!r} is shredded")
    element.keep_all()


def _same_leaf(element: Element, declared: Primitive | Decimal | Spatial) -> bool:
    """Whether a leaf is stored as exactly the declared type, in one of the ways that Spark writes or reads it."""
    physical, converted, logical = element.value(1), element.value(6), element.logical
    if isinstance(declared, Decimal):
        return (
            physical in (INT32, INT64, BYTE_ARRAY, FIXED)
            and (converted == _DECIMAL or (logical or (0, {}))[0] == _L_DECIMAL)
            and _decimal_of(element) == (declared.precision, declared.scale)
        )
    plain = converted is None and logical is None
    if isinstance(declared, Spatial) or declared.name == "binary":
        return physical == BYTE_ARRAY and (plain or (logical or (0, {}))[0] in (_L_GEOMETRY, _L_GEOGRAPHY))
    match declared.name:
        case "boolean":
            return physical == BOOLEAN
        case "float":
            return physical == FLOAT and plain
        case "double":
            return physical == DOUBLE and plain
        case "long":
            return physical == INT64 and (plain or _is_integer(converted, logical, _INT_64, 64))
        case "integer":
            return physical == INT32 and (plain or _is_integer(converted, logical, _INT_32, 32))
        case "short":
            return physical == INT32 and _is_integer(converted, logical, _INT_16, 16)
        case "byte":
            return physical == INT32 and _is_integer(converted, logical, _INT_8, 8)
        case "string":
            if logical is not None:
                return physical == BYTE_ARRAY and logical[0] == _L_STRING
            return physical == BYTE_ARRAY and converted == _UTF8
        case "date":
            return physical == INT32 and (converted == _DATE or (logical or (0, {}))[0] == _L_DATE)
        case "timestamp":
            return (physical == INT96 and plain) or (physical == INT64 and _is_timestamp(converted, logical, True))
        case "timestamp_ntz":
            return physical == INT64 and _is_timestamp(converted, logical, False)
    return False


def _is_integer(converted: object, logical: tuple[int, ThriftStruct] | None, code: int, bits: int) -> bool:
    if logical is None:
        return converted == code
    number, inner = logical
    return number == _L_INTEGER and inner.get(1, (0, 0))[1] == bits and bool(inner.get(2, (0, False))[1])


def _is_timestamp(converted: object, logical: tuple[int, ThriftStruct] | None, is_utc: bool) -> bool:
    if logical is None:
        return is_utc and converted in (_TIMESTAMP_MILLIS, _TIMESTAMP_MICROS)
    number, inner = logical
    if number != _L_TIMESTAMP or bool(inner.get(1, (0, False))[1]) != is_utc:
        return False
    unit = inner.get(2, (0, {}))[1]
    return _MILLIS in unit or _MICROS in unit


def _decimal_of(element: Element) -> tuple[object, object]:
    logical = element.logical
    if logical is not None and logical[0] == _L_DECIMAL:
        return logical[1].get(2, (0, None))[1], logical[1].get(1, (0, 0))[1]
    return element.value(8), element.value(7) or 0
