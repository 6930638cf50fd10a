"""The change feed that a builder expects of its table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from delta_sharing_spark.scan.plan import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from delta_sharing_spark.schema.arrow import arrow_schema
from delta_sharing_spark.schema.types import Struct
from delta_sharing_spark.testing.tables.columns import to_logical

_TYPES = ((CHANGE_TYPE, pa.string()), (COMMIT_VERSION, pa.int64()), (COMMIT_TIMESTAMP, pa.timestamp("us", tz="UTC")))


@dataclass(frozen=True, slots=True)
class Change:
    """Rows of one kind of change in one commit, under physical names; ``timestamp`` in milliseconds."""

    version: int
    timestamp: int
    kind: str
    rows: pa.Table = field(repr=False)


def changes_table(changes: Sequence[Change], schema: Struct) -> pa.Table:
    """The changes in the shape of ``schema``, with the three change columns at the end."""
    tables = [_with_columns(to_logical(c.rows, schema), c) for c in changes]
    if tables:
        return pa.concat_tables(tables)
    empty = arrow_schema(schema)
    for name, kind in _TYPES:
        empty = empty.append(pa.field(name, kind))
    return empty.empty_table()


def _with_columns(table: pa.Table, change: Change) -> pa.Table:
    values = (change.kind, change.version, change.timestamp * 1000)
    for (name, kind), value in zip(_TYPES, values, strict=True):
        scalar = pa.scalar(value, pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else pa.scalar(value, kind)
        table = table.append_column(name, pa.repeat(scalar, table.num_rows))
    return table
