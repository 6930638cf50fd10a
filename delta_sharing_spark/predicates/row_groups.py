"""Skips row groups that cannot hold a row that passes, by the statistics in a Parquet file's footer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import pyarrow as pa

from delta_sharing_spark.predicates.padding import char_length
from delta_sharing_spark.predicates.scalar_types import (
    BINARY,
    BITS,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOATS,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    domain,
    key,
)
from delta_sharing_spark.predicates.three_valued import (
    ALL_NULL,
    TRUE,
    UNBOUNDED,
    ColumnBounds,
    bounds_of_statistics,
    compile_possible_values,
    constant_bounds,
)
from delta_sharing_spark.predicates.times import DAY
from delta_sharing_spark.predicates.tree import Column, Expression, columns
from delta_sharing_spark.schema.parquet_writers import bounds_byte_arrays, counts_nulls
from delta_sharing_spark.schema.types import DataType, Decimal

_UNITS = {"milliseconds": Fraction(1000), "microseconds": Fraction(1), "nanoseconds": Fraction(1, 1000)}

#: From a raw statistic to an exact number (or bytes) in the terms of the column's keys; None if it bounds nothing.
Reading = Callable[[Any], "Fraction | int | bytes | None"]


class RowGroupSkipping:
    """A predicate, compiled once and applied to the row groups of many files."""

    def __init__(self, expression: Expression) -> None:
        self._columns: dict[tuple[str, ...], Column] = {c.path: c for c in columns(expression)}
        self._slots = {path: slot for slot, path in enumerate(self._columns)}
        self._possible_values = compile_possible_values(expression, self._slots)

    @property
    def paths(self) -> tuple[tuple[str, ...], ...]:
        """The columns and nested fields, by logical names, that ``bind`` needs leaves or constants for."""
        return tuple(self._columns)

    def bind(
        self,
        metadata: Any,
        leaves: Mapping[tuple[str, ...], int | None],
        constants: Mapping[str, pa.Scalar],
        statistics: Callable[[int, int], Any],
    ) -> Callable[[int], bool]:
        """Returns a test of row groups by index: whether one may hold a row that passes.

        Args:
            metadata: ``pyarrow.parquet.FileMetaData``.
            leaves: The Parquet leaf column of each path (its first, of a struct); None where the file lacks it and its rows
                read NULL. A path that is missing here may hold anything.
            constants: Top-level columns with one value in the whole file (partition values, change columns).
            statistics: Gives those of a row group and a leaf, as pyarrow's ``Statistics``; None where there are none.
        """
        bounds = [UNBOUNDED] * len(self._slots)
        readers: list[tuple[int, int, DataType, Reading | None]] = []
        writer = metadata.created_by or ""
        is_sound, is_counted = bounds_byte_arrays(writer), counts_nulls(writer)
        for path, column in self._columns.items():
            slot = self._slots[path]
            if char_length(column.type):
                continue  # what is stored need not be padded
            if len(path) == 1 and path[0] in constants:
                bounds[slot] = _constant(constants[path[0]], column.type)
            elif path in leaves:
                leaf = leaves[path]
                if leaf is None:
                    bounds[slot] = ALL_NULL
                elif metadata.schema.column(leaf).max_repetition_level == 0:
                    reading = _reading(metadata.schema.column(leaf), column.type, is_sound)
                    readers.append((slot, leaf, column.type, reading))

        def may_match(index: int) -> bool:
            rows = metadata.row_group(index).num_rows
            of_group = list(bounds)
            for slot, leaf, kind, reading in readers:
                of_group[slot] = _bounds_of(statistics(index, leaf), rows, is_counted, kind, reading)
            return bool(self._possible_values(of_group) & TRUE)

        return may_match


def _constant(scalar: pa.Scalar, kind: DataType) -> ColumnBounds:
    if not scalar.is_valid:
        return ALL_NULL
    timed = pa.types.is_date32(scalar.type) or pa.types.is_timestamp(scalar.type)
    value = scalar.value if timed else scalar.as_py()
    if pa.types.is_timestamp(scalar.type) and scalar.type.unit != "us":
        return UNBOUNDED
    return constant_bounds(key(value, kind))


def _bounds_of(statistics: Any, rows: int, is_counted: bool, kind: DataType, reading: Reading | None) -> ColumnBounds:
    if statistics is None:
        return UNBOUNDED
    nulls = statistics.null_count if statistics.has_null_count and is_counted else None
    if reading is None or not statistics.has_min_max:
        return bounds_of_statistics(kind, rows, nulls, statistics.has_min_max)
    low, high = reading(statistics.min_raw), reading(statistics.max_raw)
    if isinstance(low, Fraction):
        low = low.numerator // low.denominator
    if isinstance(high, Fraction):
        high = -(-high.numerator // high.denominator)
    greatest = domain(kind)[1] if kind in FLOATS else high  # NaN is not in the statistics, and is above all that is
    return bounds_of_statistics(kind, rows, nulls, True, low, greatest, high)


def _reading(column: Any, kind: DataType, is_sound: bool) -> Reading | None:
    """Converts raw statistics of a file's column to bounds of a table's column of ``kind``; None if they give none."""
    physical = column.physical_type
    logical = json.loads(column.logical_type.to_json()) if column.logical_type is not None else {}
    name = logical.get("Type", "None")
    plain_integer = physical in ("INT32", "INT64") and (name == "None" or (name == "Int" and logical.get("isSigned")))
    if kind in BITS:
        return int if plain_integer else None
    if kind in FLOATS:
        if physical in ("FLOAT", "DOUBLE") if kind == DOUBLE else physical == "FLOAT":
            return lambda raw: None if raw != raw else key(raw, kind)
        return (lambda raw: key(float(raw), DOUBLE)) if plain_integer and physical == "INT32" else None
    if isinstance(kind, Decimal):
        if plain_integer:
            return lambda raw: raw * 10**kind.scale
        is_integer = physical in ("INT32", "INT64")
        # Of byte arrays of any length, no release of parquet-rs compares all decimals as numbers.
        if name != "Decimal" or not (is_integer or (physical == "FIXED_LEN_BYTE_ARRAY" and is_sound)):
            return None
        factor = Fraction(10) ** (kind.scale - int(logical["scale"]))
        if is_integer:
            return lambda raw: raw * factor
        return lambda raw: int.from_bytes(raw, "big", signed=True) * factor if raw else None
    if kind in (STRING, BINARY):
        return bytes if physical == "BYTE_ARRAY" and name in ("None", "String") and is_sound else None
    if kind == BOOLEAN:
        return int if physical == "BOOLEAN" else None
    if name == "Date" and physical == "INT32":
        return int if kind == DATE else (lambda raw: raw * DAY) if kind == TIMESTAMP_NTZ else None
    if kind in (TIMESTAMP, TIMESTAMP_NTZ) and name == "Timestamp" and physical == "INT64":
        unit = _UNITS.get(logical.get("timeUnit", ""))
        if unit is not None and logical.get("isAdjustedToUTC") == (kind == TIMESTAMP):
            return lambda raw: raw * unit
    return None
