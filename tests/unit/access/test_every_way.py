"""Each table of ``FEEDS`` by each way: its rows, and those that pass conditions on each column, though the server skips by whatever stands
in statistics. A feature by which files hold other values than the table has a table there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.options.values import quoted_column
from delta_sharing_spark.schema.types import Struct
from delta_sharing_spark.testing.server import ServerSettings, SharingServer
from unit.changes.feed_tables import FEEDS, WAYS, texts, ways
from unit.native.reading import rows_of, served

Row = dict[str, Any]


@pytest.fixture(scope="module")
def server() -> Iterator[SharingServer]:
    with SharingServer(settings=ServerSettings(predicate_hints="naive")) as running:
        yield running
        assert not running.failures


def _leaves(schema: Struct, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of numbers and texts."""
    for field in schema.fields:
        if isinstance(field.type, Struct):
            yield from _leaves(field.type, (*above, field.name))
        elif str(field.type) in ("long", "integer", "string"):
            yield (*above, field.name)


def _value(row: Row, path: tuple[str, ...]) -> Any:
    value: Any = row
    for name in path:
        value = None if value is None else value[name]
    return value


def _conditions(path: tuple[str, ...], rows: list[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Conditions on a column, each with the rows that pass it."""
    column = ".".join(map(quoted_column, path))
    for value in {_value(row, path) for row in (rows[0], rows[-1])}:
        if value is None:
            yield f"{column} IS NULL", [row for row in rows if _value(row, path) is None]
            continue
        literal = f"'{value}'" if isinstance(value, str) else str(value)
        yield f"{column} = {literal}", [row for row in rows if _value(row, path) == value]
        above = [row for row in rows if (other := _value(row, path)) is not None and other > value]
        yield f"{column} > {literal}", above
        if isinstance(value, str):
            start = [row for row in rows if (_value(row, path) or "").startswith(value[:1])]
            yield f"{column} LIKE '{value[:1]}%'", start


@pytest.mark.parametrize("case", FEEDS)
def test_rows_conditions_and_what_spark_is_shown(server: SharingServer, case: str, tmp_path: Path) -> None:
    built = FEEDS[case](tmp_path / "t")
    name, rows = f"s.d.{case.replace(' ', '_')}", built.expected().to_pylist()
    server.add_table(name, built.path, access_modes=("url", "dir"))
    expected = {(): texts(built.expected()), ("native lane",): texts(built.expected())}
    for path in _leaves(built.schema):
        for number, (where, passing) in enumerate(_conditions(path, rows)):
            columns = tuple(name for name in built.schema.names if name != path[0] or number % 2)
            expected[columns, where] = sorted(repr({name: row[name] for name in columns}) for row in passing)
    for way in ways(built):
        table = SharingClient(server.profile(), **WAYS[way]).table(name)  # type: ignore[arg-type]
        found = {asked: texts(table.scan(*asked).to_arrow()) for asked in expected if asked != ("native lane",)}
        with served(table.scan()) as (_, plan, address):
            found["native lane",] = texts(rows_of(plan, address))
        assert found == expected, way
