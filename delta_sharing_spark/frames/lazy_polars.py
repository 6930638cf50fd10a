"""Opens a scan as a lazy Polars frame: the columns and conditions of a Polars query narrow what is read, its row limit ends it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from delta_sharing_spark.frames.row_source import library
from delta_sharing_spark.frames.unfit_values import fit_for_others
from delta_sharing_spark.network.parallel_calls import DaemonPool, is_done_within
from delta_sharing_spark.network.process_end import awaited
from delta_sharing_spark.predicates.coercion import FLIPPED
from delta_sharing_spark.predicates.padding import char_length
from delta_sharing_spark.predicates.scalar_types import BITS, BOOLEAN, DOUBLE, STRING, TIMES, from_unscaled
from delta_sharing_spark.predicates.sql import parse_where
from delta_sharing_spark.predicates.tree import (
    MAX_DEPTH,
    Column,
    Compare,
    Expression,
    In,
    IsNull,
    Literal,
    columns,
    conjunction,
    depth,
    disjunction,
    negation,
)
from delta_sharing_spark.schema.arrow import arrow_schema, arrow_type
from delta_sharing_spark.schema.types import DataType, Decimal, Struct

if TYPE_CHECKING:
    import polars as pl

    from delta_sharing_spark.access.load import Load

_L = TypeVar("_L", bound="Load")
#: Types whose values mean the same in Polars' comparisons as in Spark's.
_COMPARABLE = (BOOLEAN, DOUBLE, STRING, *BITS, *TIMES)
_COMPARED = {"Eq": "=", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
#: Seconds without a frame after which Polars is given one without rows.
_STEP = 0.5
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
    ) -> Generator[pl.DataFrame, None, None]:
        def filtered(frame: pl.DataFrame) -> pl.DataFrame:
            frame = frame if predicate is None else frame.filter(predicate)
            return frame if columns is None else frame.select(columns)

        # Polars counts rows before it filters. A limit of the load would take rows of other files: pages of the frame would overlap.
        rows_to_come = rows
        has_yielded = False
        none_yet = empty if columns is None else empty.select(columns)
        reader = rows_of(_narrowed(load, columns, predicate if rows is None else None))
        with DaemonPool(1) as thread:
            batches = fit_for_others(reader, str(load.table))
            while True:
                coming = thread.submit(next, batches, None)
                while not is_done_within(coming, _STEP):
                    yield none_yet  # Polars takes Ctrl-C from everybody else, and looks for it between frames
                batch = coming.result()
                if batch is None:
                    break
                frame: pl.DataFrame = polars.from_arrow(batch)
                if rows_to_come is not None:
                    frame = frame.head(rows_to_come)
                    rows_to_come -= frame.height
                yield filtered(frame)
                has_yielded = True
                if rows_to_come == 0:
                    break
        if not has_yielded:
            yield filtered(empty)

    frame: pl.LazyFrame = register_io_source(lambda *asked: awaited(read(*asked)), schema=empty.schema)
    return frame


def _narrowed(load: _L, columns: list[str] | None, predicate: pl.Expr | None) -> _L:
    """The load that reads what the query needs, and perhaps more rows, of the table that the frame was made of."""
    narrowed = load
    if columns is not None:
        names = columns or [min(load.schema.fields, key=lambda f: len(str(f.type))).name]
        narrowed = narrowed.narrowed_to(names)
    if predicate is not None and not load.limited:
        where = where_of(predicate, load.resolved().columns)
        narrowed = narrowed if where is None else narrowed.filter(where)
    return load if narrowed is load else narrowed.narrows(load)


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
        # An error is ours, Polars' own, or comes of a tree of another form: Polars applies the part to the rows that are read.
        with suppress(Exception):
            condition = parse_where(str(_expression(part, types)), schema)
            # Polars compares values of CHAR as they are, and where pads them.
            if depth(condition) < MAX_DEPTH and not any(char_length(column.type) for column in columns(condition)):
                conditions.append(condition)
    return str(conjunction(conditions)) if conditions else None


def _conjuncts(tree: Any) -> Iterator[Any]:
    if isinstance(tree, dict) and tree.get("BinaryExpr", {}).get("op") == "And":
        yield from _conjuncts(tree["BinaryExpr"]["left"])
        yield from _conjuncts(tree["BinaryExpr"]["right"])
    else:
        yield tree


def _expression(tree: Any, types: Mapping[str, DataType]) -> Expression:
    """Convert a whole expression; raises an error where it has a part that is not known here."""
    (kind,) = tree
    body = tree[kind]
    if kind == "Column":
        return Compare("=", _column(tree, types, BOOLEAN), Literal(True, BOOLEAN))
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
        left, right, op = right, left, FLIPPED[op]
    column = _column(left, types)
    (literal,) = _literals(right, column)
    return Compare(op, column, literal)


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
        column = _column(inputs[0], types)
        return In(column, tuple(_literals(inputs[1], column)))
    raise _Inexpressible(str(function))


def _column(tree: Any, types: Mapping[str, DataType], must_be: DataType | None = None) -> Column:
    name = tree["Column"]
    if must_be is not None and types[name] != must_be:
        raise _Inexpressible(name)
    return Column((name,), types[name])


def _literals(tree: Any, column: Column) -> list[Literal]:
    """The values of a literal, one or a list of them, without NULLs, all of exactly a column's type and as ``where`` holds them."""
    polars, kind = library("polars", "lazy()"), column.type
    if set(tree) != {"Literal"}:
        raise _Inexpressible(str(tree))
    series = polars.select(polars.Expr.deserialize(json.dumps(tree).encode(), format="json")).to_series()
    series = series.item() if series.dtype == polars.List else series
    if isinstance(kind, Decimal):
        is_alike = isinstance(series.dtype, polars.Decimal) and series.dtype.scale == kind.scale
    else:
        is_alike = kind in _COMPARABLE and series.dtype == polars.from_arrow(pa.nulls(0, arrow_type(kind))).dtype
    values = series.drop_nulls().to_physical().to_list()
    # JSON has null for NaN and the infinities.
    if not is_alike or not 0 < len(values) <= _MAX_VALUES or (kind == DOUBLE and not all(map(math.isfinite, values))):
        raise _Inexpressible(str(series))
    return [Literal(from_unscaled(v, kind.scale) if isinstance(kind, Decimal) else v, kind) for v in values]
