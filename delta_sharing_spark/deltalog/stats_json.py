"""Writes statistics that a checkpoint keeps in columns (``stats_parsed``) as JSON (Delta protocol, "Per-file Statistics")."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


class NumberText(str):
    """A number that is written as it stands."""

    __slots__ = ()


def stats_to_json(parsed: pa.StructArray) -> list[str | None]:
    """The JSON of each row's statistics; None where the row has none.

    Dates are ``yyyy-MM-dd``, timestamps ISO 8601 (with ``Z`` if zoned), decimals exact numbers; nulls, NaN and
    binary values are left out, as writers of JSON do.
    """
    return [None if tree is None else dump(tree) for tree in _values(parsed)]


def _values(array: pa.Array) -> list[Any]:
    kind = array.type
    if pa.types.is_struct(kind):
        names = [f.name for f in kind]
        columns = [_values(array.field(i)) for i in range(len(names))]
        valid = array.is_valid().to_pylist()
        rows = zip(*columns, strict=True) if columns else ((),) * len(array)
        return [
            {n: v for n, v in zip(names, row, strict=True) if v is not None} if ok else None
            for ok, row in zip(valid, rows, strict=True)
        ]
    if pa.types.is_timestamp(kind):
        zone = "Z" if kind.tz else ""
        text = pc.cast(pc.cast(array, pa.timestamp("us")), pa.string()).to_pylist()
        return [None if t is None else t.replace(" ", "T") + zone for t in text]
    if pa.types.is_date(kind):
        dates: list[Any] = pc.cast(array, pa.string()).to_pylist()
        return dates
    if pa.types.is_decimal(kind):
        return [None if v is None else NumberText(format(v, "f")) for v in array.to_pylist()]
    if pa.types.is_floating(kind):
        return [None if v is None or math.isnan(v) or math.isinf(v) else v for v in array.to_pylist()]
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_string(kind):
        values: list[Any] = array.to_pylist()
        return values
    return [None] * len(array)


def dump(value: Any) -> str:
    """Compact JSON in which exact numbers stay exact."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k, ensure_ascii=False)}:{dump(v)}" for k, v in value.items()) + "}"
    return str(value) if isinstance(value, NumberText) else json.dumps(value, ensure_ascii=False)
