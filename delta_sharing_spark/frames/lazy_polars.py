"""Opens a scan as a lazy Polars frame: the columns, conditions and row limits of a Polars query narrow what is read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal as DecimalValue
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from delta_sharing_spark.frames.row_source import library
from delta_sharing_spark.frames.unfit_values import fit_for_others
from delta_sharing_spark.predicates.tree import (
    Column,
    Compare,
    Expression,
    In,
    IsNull,
    Literal,
    Value,
    conjunction,
    disjunction,
    negation,
)
from delta_sharing_spark.schema.arrow import arrow_schema
from delta_sharing_spark.schema.types import DataType, Decimal, Primitive, Struct, backquoted

if TYPE_CHECKING:
    import polars as pl

    from delta_sharing_spark.access.load import Load

_L = TypeVar("_L", bound="Load")
#: The kind of a literal in Polars' expressions that is exactly a column's type, by that type.
_KINDS = {
    "byte": "Int8",
    "short": "Int16",
    "integer": "Int32",
    "long": "Int64",
    "double": "Float64",
    "string": "String",
    "boolean": "Boolean",
    "date": "Date",
    "timestamp": "Datetime",
    "timestamp_ntz": "Datetime",
}
_COMPARED = {"Eq": "=", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
#: ``literal op column`` is the column compared the other way round.
_MIRRORED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
#: Longer lists are left to Polars.
_MAX_VALUES = 1000


class _Inexpressible(Exception):
    """``where`` cannot express this exactly."""


def lazy_frame(load: _L, rows_of: Callable[[_L], pa.RecordBatchReader]) -> pl.LazyFrame:
    """A lazy frame of a load, narrowed by each query; it is resolved now and read, by ``rows_of``, when collected.

    Raises:
        ConfigError: Polars is missing, or too old to have the plugin.
    """
    polars = library("polars", "lazy()")
    from polars.io.plugins import register_io_source

    empty: pl.DataFrame = polars.from_arrow(arrow_schema(load.schema).empty_table())

    def read(
        columns: list[str] | None, predicate: pl.Expr | None, rows: int | None, _batch_rows: int | None
    ) -> Iterator[pl.DataFrame]:
        left = rows
        has_yielded = False
        with rows_of(_narrowed(load, columns, predicate, rows)) as reader:
            for batch in fit_for_others(reader, str(load.table)):
                frame: pl.DataFrame = polars.from_arrow(batch)
                if left is not None:
                    frame = frame.head(left)
                    left -= frame.height
                if predicate is not None:
                    frame = frame.filter(predicate)
                yield frame if columns is None else frame.select(columns)
                has_yielded = True
                if left == 0:
                    break
        if not has_yielded:
            yield empty if columns is None else empty.select(columns)

    frame: pl.LazyFrame = register_io_source(read, schema=empty.schema)
    return frame


def _narrowed(scan: _L, columns: list[str] | None, predicate: pl.Expr | None, rows: int | None) -> _L:
    """The load that reads what the query needs, and perhaps more rows. Polars counts ``rows`` before it filters."""
    if columns is not None:
        names = columns or [min(scan.schema.fields, key=lambda f: len(str(f.type))).name]
        scan = scan.select(*map(backquoted, names))
    if rows is not None:
        return scan.limit(rows)
    if predicate is None or scan.limited:
        return scan
    where = where_of(predicate, scan.resolved().columns)
    return scan if where is None else scan.filter(where)


def where_of(predicate: pl.Expr, schema: Struct) -> str | None:
    """The part of a Polars expression that ``where`` can express: every row that the expression keeps fulfils it.

    Args:
        predicate: Polars's expression, whose literals have the types of the columns they are compared with.

    Returns:
        SQL, or None if there is no such part.
    """
    try:
        tree = json.loads(predicate.meta.serialize(format="json"))
    except Exception:  # a Python function, or a Polars that has no JSON: Polars itself applies the predicate
        return None
    types = {field.name: field.type for field in schema.fields}
    conditions = []
    for part in _conjuncts(tree):
        try:
            conditions.append(_expression(part, types))
        except (_Inexpressible, KeyError, TypeError, ValueError, AttributeError, IndexError):
            continue  # Polars applies it to the rows that are read
    return str(conjunction(conditions)) if conditions else None


def _conjuncts(tree: Any) -> Iterator[Any]:
    if isinstance(tree, dict) and tree.get("BinaryExpr", {}).get("op") == "And":
        yield from _conjuncts(tree["BinaryExpr"]["left"])
        yield from _conjuncts(tree["BinaryExpr"]["right"])
    else:
        yield tree


def _expression(tree: Any, types: Mapping[str, DataType]) -> Expression:
    """Convert a whole expression; raises one of the errors that ``where_of`` catches where it has a part that is not known here."""
    (kind,) = tree
    body = tree[kind]
    if kind == "Column":
        return Compare("=", _column(tree, types, "boolean"), Literal(True, Primitive("boolean")))
    if kind == "BinaryExpr":
        return _binary(body, types)
    if kind == "Function":
        return _function(body["function"], body["input"], types)
    raise _Inexpressible(kind)


def _binary(body: Mapping[str, Any], types: Mapping[str, DataType]) -> Expression:
    op, left, right = body["op"], body["left"], body["right"]
    if op in ("And", "Or"):
        parts = [_expression(left, types), _expression(right, types)]
        return conjunction(parts) if op == "And" else disjunction(parts)
    if op == "NotEq":
        return negation(_compare("=", left, right, types))
    if op not in _COMPARED:
        raise _Inexpressible(op)
    return _compare(_COMPARED[op], left, right, types)


def _compare(op: str, left: Any, right: Any, types: Mapping[str, DataType]) -> Expression:
    if "Literal" in left:
        left, right, op = right, left, _MIRRORED[op]
    column = _column(left, types)
    return Compare(op, column, _literal(right, column.type))


def _function(function: Any, inputs: list[Any], types: Mapping[str, DataType]) -> Expression:
    name = function.get("Boolean") if isinstance(function, dict) else None
    if name == "Not":
        return negation(_expression(inputs[0], types))
    if name in ("IsNull", "IsNotNull"):
        is_null = IsNull(_column(inputs[0], types))
        return is_null if name == "IsNull" else negation(is_null)
    if isinstance(name, dict) and "IsBetween" in name:
        low, high = {"Both": (">=", "<="), "Left": (">=", "<"), "Right": (">", "<="), "None": (">", "<")}[
            name["IsBetween"]["closed"]
        ]
        return conjunction([_compare(low, inputs[0], inputs[1], types), _compare(high, inputs[0], inputs[2], types)])
    if isinstance(name, dict) and name.get("IsIn") == {"nulls_equal": False}:
        return _membership(_column(inputs[0], types), inputs[1])
    raise _Inexpressible(str(function))


def _membership(column: Column, values: Any) -> Expression:
    """``is_in``: its list travels as an Arrow stream of one column."""
    series = library("polars", "lazy()").read_ipc_stream(bytes(values["Literal"]["Scalar"]["List"])).to_series()
    if str(series.dtype) != _kind(column.type) or not 0 < len(series) <= _MAX_VALUES:
        raise _Inexpressible(str(series.dtype))
    literals = tuple(
        Literal(_scalar(v, _kind(column.type)), column.type) for v in series.to_physical().to_list() if v is not None
    )
    if not literals:
        raise _Inexpressible("only nulls")
    return In(column, literals)


def _column(tree: Any, types: Mapping[str, DataType], must_be: str | None = None) -> Column:
    name = tree["Column"]
    if must_be is not None and types[name] != Primitive(must_be):
        raise _Inexpressible(name)
    return Column((name,), types[name])


def _literal(tree: Any, data_type: DataType) -> Literal:
    """A literal of exactly a column's type."""
    body = tree["Literal"]
    ((kind, value),) = body.get("Scalar", body).items()
    if isinstance(data_type, Decimal):
        unscaled, _, scale = value
        if kind != "Decimal" or scale != data_type.scale:
            raise _Inexpressible(kind)
        return Literal(DecimalValue(unscaled).scaleb(-scale), data_type)
    if kind != _kind(data_type):
        raise _Inexpressible(kind)
    if kind == "Datetime":
        instant, unit, zone = value
        expected = {"inner": "UTC"} if data_type == Primitive("timestamp") else None
        if unit != "Microseconds" or zone != expected:
            raise _Inexpressible(unit)
        value = instant
    return Literal(_scalar(value, kind), data_type)


def _kind(data_type: DataType) -> str:
    return _KINDS[data_type.name] if isinstance(data_type, Primitive) else ""


def _scalar(value: Any, kind: str) -> Value:
    """A value, if it is certainly of its kind: JSON has null for NaN and the infinities."""
    if kind == "Float64":
        good = isinstance(value, float) and math.isfinite(value)
    else:
        good = type(value) is {"String": str, "Boolean": bool}.get(kind, int)
    if not good:
        raise _Inexpressible(kind)
    scalar: Value = value
    return scalar
