"""Conditions on every column of every table: the hints that are sent may cut files, never rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from zlib import crc32

import pyarrow as pa

from delta_sharing_spark.errors import DeltaSharingError
from peers.cases import UNREADABLE_THERE, Peers, row_texts

#: Columns of a table that are tried; each costs three queries a way of asking.
_COLUMNS = 5
_WAYS: dict[str, dict[str, object]] = {"new engine": {}, "old engine": {"maxFilesPerRequest": 1000}}


def conditions(peers: Peers) -> None:
    """One of ``c = v``, ``c <= v`` and ``c IS NULL`` a column, in turn, with a value of it, in each engine, row by row.

    With which the turn begins is drawn by the names of table and engine, the same in every run.
    """
    for name in peers.paths:
        if name in UNREADABLE_THERE:
            continue
        for way in _WAYS:
            peers.report.case(f"{name}: {way}", lambda n=name, w=way: _table(peers, n, w), expected=_all_right)


def _all_right(result: object) -> bool:
    return isinstance(result, str) and "OTHER" not in result


def _table(peers: Peers, name: str, way: str) -> str:
    options: dict[str, Any] = _WAYS[way]
    first = crc32(f"{name} {way}".encode())
    try:
        rows = peers.oracle.table(f"peers.all.{name}").scan().to_arrow()
    except DeltaSharingError as error:
        return f"refused by both: {type(error).__name__}"
    files = peers.client.table(f"peers.all.{name}").scan(**options).plan().report.listed
    tried, fewer = 0, 0
    for where in _conditions_of(rows, first):
        expected = row_texts(peers.oracle.table(f"peers.all.{name}").scan(where=where).to_arrow())
        scan = peers.client.table(f"peers.all.{name}").scan(where=where, **options)
        if row_texts(scan.to_arrow()) != expected:
            return f"OTHER ROWS for {where}"
        tried, fewer = tried + 1, fewer + (scan.plan().report.listed < files)
    return f"the rows of {tried} conditions; for {fewer} the server listed fewer than its {files} files"


def _conditions_of(rows: pa.Table, first: int) -> Iterator[str]:
    names = [name for name in rows.column_names if rows.column_names.count(name) == 1]
    tried = [name for name in names if _literal(rows, name) is not None][:_COLUMNS]
    for turn, column in enumerate(tried, first):
        quoted = f"`{column.replace('`', '``')}`"
        yield f"{quoted} {('= {}', '<= {}', 'IS NULL')[turn % 3].format(_literal(rows, column))}"


def _literal(rows: pa.Table, column: str) -> str | None:
    """A value of a column from the middle of its rows, as SQL; None for a type without literals, or only nulls."""
    values = [value for value in rows[column].to_pylist() if value is not None]
    if not values:
        return None
    value = values[len(values) // 2]
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, Decimal)):
        return f"{value:f}" if isinstance(value, Decimal) else str(value)
    if isinstance(value, float):
        return f"double('{value!r}')" if value != value or value in (float("inf"), float("-inf")) else f"{value!r}D"
    if isinstance(value, datetime):
        return f"timestamp'{value.isoformat()}'" if value.tzinfo else f"timestamp_ntz'{value.isoformat()}'"
    if isinstance(value, date):
        return f"date'{value.isoformat()}'"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    return None
