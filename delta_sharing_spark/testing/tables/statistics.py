"""Statistics of a data file as Delta on Spark writes them (Delta protocol, "Per-file Statistics")."""

from __future__ import annotations

import datetime
import json
import math
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

#: Leaf columns that get statistics when ``delta.dataSkippingNumIndexedCols`` does not say.
INDEXED_COLUMNS = 32
_STRING_PREFIX = 32
#: Sorts after every character that a truncated maximum may go on with.
_TIE_BREAKER = "\U0010ffff"


class _Exact(str):
    """A number of a decimal, written as it stands."""

    __slots__ = ()


def statistics(table: pa.Table, *, indexed: int = INDEXED_COLUMNS) -> str:
    """The ``stats`` JSON of a file holding ``table`` (physical names, no partition columns).

    Args:
        table: The file's rows, deleted ones included.
        indexed: So many leaf columns, counted in order, get statistics; -1 is all.
    """
    budget = [indexed if indexed >= 0 else 1 << 30]
    low, high, nulls = _struct_stats([(f, table.column(i)) for i, f in enumerate(table.schema)], budget)
    tree: dict[str, Any] = {"numRecords": table.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}
    return dump(tree)


def _struct_stats(
    columns: list[tuple[pa.Field, pa.ChunkedArray]], budget: list[int]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for field, column in columns:
        if pa.types.is_struct(field.type) and field.type.num_fields:
            flat = column.flatten()
            child = _struct_stats(list(zip(field.type, flat, strict=True)), budget)
            for tree, part in zip((low, high, nulls), child, strict=True):
                if part:
                    tree[field.name] = part
            continue
        if budget[0] <= 0:
            continue
        budget[0] -= 1
        nulls[field.name] = column.null_count
        bounds = _bounds(column)
        if bounds is not None:
            low[field.name], high[field.name] = bounds
    return low, high, nulls


def _bounds(column: pa.ChunkedArray) -> tuple[Any, Any] | None:
    kind = column.type
    types = pa.types
    comparable = (
        types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
        or types.is_date(kind) or types.is_timestamp(kind) or types.is_string(kind)
    )  # fmt: skip
    if not comparable or column.null_count == len(column):
        return None
    if types.is_floating(kind):
        return _float_bounds(column)
    extremes = pc.min_max(column)
    least, greatest = extremes["min"].as_py(), extremes["max"].as_py()
    if types.is_string(kind):
        return least[:_STRING_PREFIX], greatest if len(greatest) <= _STRING_PREFIX else greatest[
            :_STRING_PREFIX
        ] + _TIE_BREAKER
    if types.is_timestamp(kind):
        raw = pc.min_max(column.cast(pa.int64()))
        return _millis(raw["min"].as_py(), kind.tz), _millis(raw["max"].as_py(), kind.tz)
    if types.is_decimal(kind):
        return _Exact(format(least, "f")), _Exact(format(greatest, "f"))
    if types.is_date(kind):
        return least.isoformat(), greatest.isoformat()
    return least, greatest


def _float_bounds(column: pa.ChunkedArray) -> tuple[Any, Any]:
    """Spark orders NaN above everything and writes it as a string."""
    numbers = column.filter(pc.invert(pc.fill_null(pc.is_nan(column), True)))
    extremes = pc.min_max(numbers)
    least = math.nan if not len(numbers) else extremes["min"].as_py()
    has_nan = len(numbers) + column.null_count < len(column)
    greatest = math.nan if has_nan else extremes["max"].as_py()
    return _float(least), _float(greatest)


def _float(value: float) -> Any:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _millis(micros: int, zone: str | None) -> str:
    """Timestamps are cut down to milliseconds, minimum and maximum alike."""
    seconds, rest = divmod(micros // 1000, 1000)
    clock = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)
    return f"{clock.isoformat()}.{rest:03d}" + ("Z" if zone else "")


def dump(tree: Any) -> str:
    """Compact JSON in which exact decimals stay exact."""
    if isinstance(tree, dict):
        return "{" + ",".join(f"{json.dumps(k, ensure_ascii=False)}:{dump(v)}" for k, v in tree.items()) + "}"
    return str(tree) if isinstance(tree, _Exact) else json.dumps(tree, ensure_ascii=False)
