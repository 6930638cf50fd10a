"""Refuses values that another library cannot hold, by table and column: text that is no UTF-8, moments beyond Python's years.

Parquet files hold either, by a writer's error or a flipped bit, and Spark and Arrow hand them on as they are. Other libraries
end in errors that name nothing, show other text, or read beyond their memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from delta_sharing_spark.errors import ConversionError

_T = TypeVar("_T")
#: The first and the last day of Python's dates, by days since 1970, and the microseconds of a day.
_FIRST_DAY, _LAST_DAY, _DAY = -719_162, 2_932_896, 86_400_000_000
_RAW = "to_arrow() gives its bytes as they are, for a cast of the column to binary; columns= leaves it out; the provider can mend it"


def fit_for_others(batches: Iterator[pa.RecordBatch], table: str) -> Iterator[pa.RecordBatch]:
    """The batches, for a library that relies on their text being UTF-8; raises ConversionError where a string is not UTF-8."""
    for batch in batches:
        refuse_bad_text(batch, table)
        yield batch


def refuse_bad_text(batch: pa.RecordBatch, table: str) -> None:
    """Raise ConversionError for a string of a batch that is not UTF-8, at any depth: table, column, the bytes and the ways on."""
    for name, values in zip(batch.schema.names, batch.columns, strict=True):
        bad = _first(values, _bad_text)
        if bad is not None:
            raise ConversionError(
                f"table {table}, column {name}: a string is not UTF-8 ({bad[:40]!r}); {_RAW}", column=name
            )


def refuse_far_moments(batch: pa.RecordBatch, table: str, way_on: str) -> None:
    """Raise ConversionError for a date or timestamp of a batch beyond Python's years, at any depth; ``way_on`` is what holds it."""
    for name, values in zip(batch.schema.names, batch.columns, strict=True):
        far = _first(values, _far_moment)
        if far is not None:
            raise ConversionError(
                f"table {table}, column {name}: {far} lies beyond the years 1 to 9999 that Python has; {way_on}",
                column=name,
            )


def _first(values: pa.Array, find: Callable[[pa.Array], _T | None]) -> _T | None:
    """What ``find`` finds in values that hold no others; None if that is nothing."""
    if not pt.is_nested(values.type):
        return find(values)
    return next((first for part in _parts(values) if (first := _first(part, find)) is not None), None)


def _parts(values: pa.Array) -> Sequence[pa.Array]:
    """The values inside structs, lists or maps, but for those that a slice or a NULL hides."""
    if pt.is_struct(values.type):
        return values.flatten()
    if not pt.is_map(values.type):
        return [values.flatten()]
    valid = values.drop_null() if values.null_count else values
    first, last = (valid.offsets[end].as_py() for end in (0, -1))
    return [part.slice(first, last - first) for part in (valid.keys, valid.items)]


def _bad_text(values: pa.Array) -> bytes | None:
    if not (pt.is_string(values.type) or pt.is_large_string(values.type)) or not len(values) or _is_ascii(values):
        return None
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        for text in values.cast(pa.large_binary()).drop_null().unique().to_pylist():
            try:
                text.decode()
            except UnicodeDecodeError:
                return bytes(text)
    return None


def _is_ascii(values: pa.Array) -> bool:
    """Whether all bytes are ASCII, which is sooner told than that they are UTF-8."""
    _, offsets, data = values.buffers()
    if data is None:
        return True
    ends = np.frombuffer(offsets, np.int64 if pt.is_large_string(values.type) else np.int32)
    first, last = ends[values.offset], ends[values.offset + len(values)]
    return bool(first == last or np.frombuffer(data, np.int8)[first:last].min() >= 0)


def _far_moment(values: pa.Array) -> str | None:
    import pyarrow.compute as pc  # 50 ms that text alone does not need

    if pt.is_date32(values.type):
        numbers, unit = values.cast(pa.int32()), 1
    elif pt.is_timestamp(values.type) and values.type.unit == "us":
        numbers, unit = values.cast(pa.int64()), _DAY
    else:
        return None
    extremes = pc.min_max(numbers).as_py()
    least, most = extremes["min"], extremes["max"]
    if least is None or (least >= _FIRST_DAY * unit and most < (_LAST_DAY + 1) * unit):
        return None

    day = (least if least < _FIRST_DAY * unit else most) // unit
    return f"a {'date' if unit == 1 else 'timestamp'} of {np.datetime64(int(day), 'D')}"
