"""Opens a scan as a lazy Polars frame: the columns and conditions of a Polars query narrow what is read, its row limit ends it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from delta_sharing_spark.frames.row_source import library
from delta_sharing_spark.network.parallel_calls import DaemonPool, is_done_within
from delta_sharing_spark.network.process_end import awaited
from delta_sharing_spark.predicates.functions import Operand
from delta_sharing_spark.predicates.literals import typed
from delta_sharing_spark.predicates.scalar_types import BITS, BOOLEAN, DOUBLE, STRING, TIMES, from_unscaled
from delta_sharing_spark.predicates.sql import resolve
from delta_sharing_spark.predicates.times import Zone
from delta_sharing_spark.predicates.translation import Translator
from delta_sharing_spark.predicates.tree import Column, Expression, Literal, conjunction
from delta_sharing_spark.schema.arrow import arrow_schema, arrow_type
from delta_sharing_spark.schema.arrow_bridge import empty_table
from delta_sharing_spark.schema.types import Decimal, Struct

if TYPE_CHECKING:
    import polars as pl

    from delta_sharing_spark.access.load import Load

_L = TypeVar("_L", bound="Load")
#: Types whose values mean the same in Polars' comparisons as in Spark's.
_COMPARABLE = (BOOLEAN, DOUBLE, STRING, *BITS, *TIMES)
_COMPARED = {"Eq": "=", "NotEq": "<>", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
#: Seconds without a frame after which Polars is given one without rows.
_STEP = 0.5
#: Longer lists are left to Polars.
_MAX_VALUES = 1000


class _Inexpressible(Exception):
    """``where`` cannot express this exactly."""


def lazy_frame(load: _L, frames_of: Callable[..., Generator[pl.DataFrame, None, None]]) -> pl.LazyFrame:
    """A lazy frame of a load, narrowed by each query; it is resolved now, and read when collected.

    Args:
        load: The load.
        frames_of: Reads a load; what is not ``is_filtered`` may hold rows that do not fulfil its condition.

    Raises:
        ConfigError: Polars is missing, or too old to have the plugin.
    """
    polars = library("polars", "lazy()")
    from polars.io.plugins import register_io_source

    empty: pl.DataFrame = polars.from_arrow(empty_table(arrow_schema(load.schema)))

    def read(
        columns: list[str] | None, predicate: pl.Expr | None, rows: int | None, _batch_rows: int | None
    ) -> Generator[pl.DataFrame, None, None]:
        def filtered(frame: pl.DataFrame) -> pl.DataFrame:
            frame = frame if predicate is None else frame.filter(predicate)
            return frame if columns is None else frame.select(columns)

        # Polars counts rows before it filters. A limit of the load would take rows of other files: pages of the frame would overlap.
        # So listing ends with the first files that hold these rows.
        rows_to_come = rows
        has_yielded = False
        none_yet = empty if columns is None else empty.select(columns)
        narrowed = _narrowed(load, columns, predicate if rows is None else None, rows)
        # Polars applies its own condition, and decodes what nobody else filters.
        frames = frames_of(narrowed, is_filtered=load.resolved().predicate is not None)
        with DaemonPool(1) as thread:
            while True:
                coming = thread.submit(next, frames, None)
                while not is_done_within(coming, _STEP):
                    yield none_yet  # Polars takes Ctrl-C from everybody else, and looks for it between frames
                frame = coming.result()
                if frame is None:
                    break
                if rows_to_come is not None:
                    frame = frame.head(rows_to_come)
                    rows_to_come -= frame.height
                yield filtered(frame)
                has_yielded = True
                if rows_to_come == 0:
                    break
        if not has_yielded:
            yield filtered(empty)

    frame: pl.LazyFrame = register_io_source(lambda *asked: awaited(read(*asked), is_pulled=True), schema=empty.schema)
    return frame


def _narrowed(load: _L, columns: list[str] | None, predicate: pl.Expr | None, rows: int | None) -> _L:
    """The load that reads what the query needs, and perhaps more rows, of the table that the frame was made of."""
    narrowed, condition = load, None
    if columns is not None:
        names = columns or [min(load.schema.fields, key=lambda f: len(str(f.type))).name]
        narrowed = narrowed.narrowed_to(names)
    if predicate is not None and not load.limited:
        condition = condition_of(predicate, load.resolved().columns)
    if narrowed is load and condition is None and rows is None:
        return load
    return narrowed.narrows(load, condition, rows)


def condition_of(predicate: pl.Expr, schema: Struct) -> Expression | None:
    """The part of a Polars expression that ``where`` can express: every row that the expression keeps fulfils it.

    Args:
        predicate: Polars's expression, whose literals have the types of the columns they are compared with.
        schema: The columns.
    """
    try:
        tree = json.loads(predicate.meta.serialize(format="json"))
    except Exception:  # a Python function, or a Polars that has no JSON: Polars itself applies the predicate
        return None
    parts = _Reader(schema, Zone()).conjuncts(tree)  # Polars applies all of them to the rows that are read
    return conjunction(parts) if parts else None


class _Reader(Translator):
    """Reads the JSON of an expression; literals that name no zone are not there."""

    def step(self, node: Any) -> tuple[str, Sequence[Any]] | Operand:
        (kind,) = node
        body = node[kind]
        if kind == "Column":
            # One of CHAR is refused: Polars compares its values as they are, and ``where`` padded.
            return resolve([body], self.schema)
        if kind == "BinaryExpr":
            op, left, right = body["op"], body["left"], body["right"]
            return (op.upper(), [left, right]) if op in ("And", "Or") else self._comparison(_COMPARED[op], left, right)
        if kind == "Function":
            return self._function(body["function"], body["input"])
        raise _Inexpressible(kind)

    def _comparison(self, op: str, left: Any, right: Any) -> tuple[str, Sequence[Any]]:
        column = self._column(right if "Literal" in left else left)
        (literal,) = _literals(left if "Literal" in left else right, column)
        return op, [literal, column] if "Literal" in left else [column, literal]

    def _column(self, node: Any) -> Column:
        return resolve([node["Column"]], self.schema)

    def _function(self, function: Any, inputs: list[Any]) -> tuple[str, Sequence[Any]] | Operand:
        name = function.get("Boolean") if isinstance(function, dict) else None
        if name == "Not":
            return "NOT", inputs
        if name in ("IsNull", "IsNotNull"):
            return name.upper(), [self._column(inputs[0])]
        if isinstance(name, dict) and "IsBetween" in name:
            ends = {"Both": (">=", "<="), "Left": (">=", "<"), "Right": (">", "<="), "None": (">", "<")}
            sides = zip(ends[name["IsBetween"]["closed"]], inputs[1:], strict=True)
            return "AND", [self._comparison(op, inputs[0], end) for op, end in sides]
        if isinstance(name, dict) and name.get("IsIn") == {"nulls_equal": False}:
            column = self._column(inputs[0])
            return "IN", [column, *_literals(inputs[1], column)]
        raise _Inexpressible(str(function))


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
    return [typed(from_unscaled(v, kind.scale) if isinstance(kind, Decimal) else v, kind) for v in values]
