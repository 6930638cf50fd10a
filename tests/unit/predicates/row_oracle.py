"""A slow and obvious reading of the tree, one row of Python values at a time; and a writer's statistics of such rows."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
from typing import Any

import numpy as np

from delta_sharing_spark.predicates.tree import (
    And,
    Column,
    Compare,
    CompareColumns,
    Constant,
    In,
    IsNull,
    IsTrue,
    Like,
    Not,
    Or,
)  # fmt: skip

EPOCH = dt.datetime(1970, 1, 1)


def field(row: dict[str, Any], column: Column) -> Any:
    value: Any = row
    for name in column.path:
        value = None if value is None else value[name]
    return value


def rank(value: Any) -> Any:
    """Something Python compares as Spark compares the value."""
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dt.datetime):
        return (value.replace(tzinfo=None) - EPOCH) // dt.timedelta(microseconds=1)
    if isinstance(value, dt.date):
        return (value - EPOCH.date()).days
    return value


def holds(op: str, a: Any, b: Any) -> bool | None:
    if a is None or b is None:
        return None
    a, b = rank(a), rank(b)
    return {"=": a == b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[op]


def answer(node: Any, row: dict[str, Any]) -> bool | None:
    match node:
        case Constant(value):
            return value
        case Compare(op, column, literal):
            return holds(op, field(row, column), literal.value)
        case CompareColumns(op, left, right):
            return holds(op, field(row, left), field(row, right))
        case In(column, literals):
            value = field(row, column)
            return None if value is None else any(holds("=", value, v.value) for v in literals)
        case Like(column, pattern):
            value = field(row, column)
            return None if value is None else like(value, pattern)
        case IsNull(operand):
            return (field(row, operand) if isinstance(operand, Column) else answer(operand, row)) is None
        case IsTrue(operand):
            return answer(operand, row) is True
        case Not(operand):
            inner = answer(operand, row)
            return None if inner is None else not inner
        case And(operands):
            answers = [answer(o, row) for o in operands]
            return False if False in answers else None if None in answers else True
        case Or(operands):
            answers = [answer(o, row) for o in operands]
            return True if True in answers else None if None in answers else False
    raise AssertionError(node)


def like(text: str, pattern: str, escape: str = "\\") -> bool:
    """Backtracking over the pattern's characters."""
    if not pattern:
        return not text
    if pattern[0] == escape:
        return text[:1] == pattern[1] and like(text[1:], pattern[2:], escape)
    if pattern[0] == "%":
        return any(like(text[i:], pattern[1:], escape) for i in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0]) and like(text[1:], pattern[1:], escape)


def leaves(schema: Any, path: tuple[str, ...] = ()) -> Any:
    for f in schema.fields:
        if hasattr(f.type, "fields"):
            yield from leaves(f.type, (*path, f.name))
        else:
            yield (*path, f.name), f.type


def statistics(
    rows: list[dict[str, Any]], schema: Any, *, nan: bool, prefix: int, short: bool = False
) -> dict[str, Any]:
    """What a writer puts into the log: NaN as the maximum or left out, strings and timestamps cut, floats cut or whole."""
    stats: dict[str, Any] = {"numRecords": len(rows), "minValues": {}, "maxValues": {}, "nullCount": {}}
    for path, kind in leaves(schema):
        values = [field(rows_, Column(path, kind)) for rows_ in rows]
        present = [v for v in values if v is not None]
        put(stats["nullCount"], path, len(values) - len(present))
        if str(kind) in ("boolean", "binary"):
            continue
        if not nan:
            present = [v for v in present if not (isinstance(v, float) and math.isnan(v))]
        if short and str(kind) == "float":
            present = [float(str(np.float32(v))) for v in present]
        if present:
            put(stats["minValues"], path, written(min(present, key=rank), prefix, False))
            put(stats["maxValues"], path, written(max(present, key=rank), prefix, True))
    return stats


def put(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value


def written(value: Any, prefix: int, up: bool) -> Any:
    if isinstance(value, str) and len(value) > prefix:
        return value[:prefix] + ("\U0010ffff" if up else "")
    if isinstance(value, dt.datetime):
        text = value.replace(tzinfo=None).isoformat(timespec="milliseconds")
        return text + ("Z" if value.tzinfo else "")
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, decimal.Decimal):
        return Number(f"{value:f}")
    return value


class Number(float):
    """A decimal that JSON writes with all its digits."""

    def __new__(cls, text: str) -> Number:
        made = super().__new__(cls, text)
        made.text = text  # type: ignore[attr-defined]
        return made

    def __repr__(self) -> str:
        return f"@@{self.text}@@"  # type: ignore[attr-defined]


def to_json(stats: dict[str, Any]) -> str:
    import json

    def plain(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {k: plain(v) for k, v in tree.items()}
        return f"@@{tree.text}@@" if isinstance(tree, Number) else tree

    return re.sub(r'"@@(.*?)@@"', r"\1", json.dumps(plain(stats)))


def partition_text(value: Any) -> str | None:
    """A partition value as the log serializes it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return written(value, 32, False)
    return str(value)
