"""Draws histories of Iceberg tables, file by file, and compares every reader's rows with those that the specification leaves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_sharing_spark import SharingClient
from delta_sharing_spark.testing.server import SharingServer
from support.drawn_iceberg import Column, DataFile, IcebergWriter, day
from unit.native.reading import rows_of, served

ID, KIND, PRICE, RATIO, PART, PLACE, X, Y, ADDED, DAY = range(1, 11)
WIDENED = {"int": "long", "float": "double", "decimal(5, 2)": "decimal(9, 2)"}


def first_columns() -> list[Column]:
    return [
        Column(ID, "id", "int"), Column(KIND, "kind", "string"), Column(PRICE, "price", "decimal(5, 2)"),
        Column(RATIO, "ratio", "float"), Column(PART, "part", "int"), Column(PLACE, "place", [Column(X, "x", "int")]),
        Column(DAY, "day", "date"),
    ]  # fmt: skip


VALUES: dict[int, st.SearchStrategy[Any]] = {
    ID: st.integers(0, 12), KIND: st.sampled_from(["", "a", "ab", "b\u00e9", "c" * 40]), PRICE: st.integers(-9, 9).map(lambda n: Decimal(25 * n).scaleb(-2)),
    RATIO: st.sampled_from([0.0, -0.0, 1.5, -2.5, math.nan]), PART: st.integers(0, 1), DAY: st.integers(0, 3).map(day),
    X: st.integers(0, 3), Y: st.integers(0, 3), ADDED: st.integers(0, 3),
}  # fmt: skip


class Histories:
    """One drawn table, changed step by step."""

    def __init__(self, draw: st.DrawFn, directory: Path) -> None:
        self.draw = draw
        self.version = draw(st.sampled_from([2, 2, 3]))
        self.table = IcebergWriter(
            directory, first_columns(), self.version, by_names=draw(st.sampled_from([False, False, True]))
        )
        self._count = 0
        if draw(st.booleans()):
            self.table.specs[0] = self._spec()

    def _spec(self) -> list[tuple[int, str]]:
        there = self._sources()
        wanted = self.draw(
            st.lists(
                st.sampled_from(
                    [(PART, "identity"), (DAY, "identity"), (DAY, "month"), (KIND, "identity"), (X, "identity")]
                ),
                max_size=2,
                unique=True,
            )
        )
        return [part for part in wanted if part[0] in there]

    def _sources(self) -> set[int]:
        """The columns that a partition may be of."""
        return {path[-1].id for path in self.paths()}

    def paths(self) -> list[tuple[Column, ...]]:
        """The fields down to each that is no struct."""
        found: list[tuple[Column, ...]] = []
        for one in self.table.columns:
            found += [(one, inner) for inner in one.kind] if isinstance(one.kind, list) else [(one,)]
        return found

    def step(self) -> None:
        for _ in range(self.draw(st.integers(1, 3))):
            self.draw(st.sampled_from(self._ways()))()
        self.table.commit()

    def _ways(self) -> list[Callable[[], None]]:
        ways = [self.insert, self.insert, self.insert, self.delete_equal]
        ways += [self.delete_vector] if self.version == 3 else [self.delete_positions, self.delete_positions]
        return ways

    def _row(self) -> dict[int, Any]:
        row: dict[int, Any] = {}
        for one in self.table.columns:
            if isinstance(one.kind, list):
                row[one.id] = self.draw(
                    st.none() | st.fixed_dictionaries({f.id: st.none() | VALUES[f.id] for f in one.kind})
                )
            else:
                row[one.id] = self.draw(st.none() | VALUES[one.id])
        return row

    def insert(self) -> None:
        spec_id = self.draw(st.integers(0, len(self.table.specs) - 1))
        spec = self.table.specs[spec_id]
        if any(source not in self._sources() for source, _ in spec):
            return  # no engine writes by a column that is gone
        rows = [self._row() for _ in range(self.draw(st.integers(1, 9)))]
        partition = []
        for source, transform in spec:
            value = (rows[0][PLACE] or {}).get(X) if source == X else rows[0][source]
            for row in rows:
                if source != X:
                    row[source] = value
                elif row[PLACE] is not None or value is not None:
                    row[PLACE] = {**(row[PLACE] or {}), X: value}
            partition.append(
                value if transform == "identity" or value is None else (value.year - 1970) * 12 + value.month - 1
            )
        lacks = {source for source, transform in spec if transform == "identity" and self.draw(st.booleans())}
        if all(len(one.kind) == 1 for one in self.table.columns if one.id == PLACE):
            lacks.discard(X)  # no file has a struct of nothing
        metrics = self.draw(st.sampled_from(["full", "full", "truncated", "counts", "none"]))
        self.table.insert(rows, spec_id, tuple(partition), lacks=lacks, metrics=metrics)

    def delete_positions(self) -> None:
        if not self.table.files:
            return
        first = self.draw(st.sampled_from(self.table.files))
        alike = [one for one in self.table.files if (one.spec_id, one.partition) == (first.spec_id, first.partition)]
        places = [(file, n) for file in alike for n in range(len(file.rows))]
        chosen = self.draw(
            st.lists(st.sampled_from(places), min_size=1, max_size=6, unique_by=lambda one: (one[0].path, one[1]))
        )
        self.table.delete_positions(chosen, says_path=self.draw(st.booleans()))

    def delete_vector(self) -> None:
        older = [one for one in self.table.files if one.sequence < self.table.next_sequence]
        if older:
            file: DataFile = self.draw(st.sampled_from(older))
            if all(r.get("referenced_data_file") != file.path for r in self.table._deletes):
                self.table.delete_vector(file, self.draw(st.sets(st.integers(0, len(file.rows) - 1), min_size=1)))

    def delete_equal(self) -> None:
        keys = self.draw(
            st.lists(st.sampled_from(self.paths()), min_size=1, max_size=2, unique_by=lambda one: one[-1].id)
        )
        rows = [self._key_row(keys) for _ in range(self.draw(st.integers(1, 2)))]
        where = [(0, ())] if not self.table.specs[0] else []
        where += [(one.spec_id, one.partition) for one in self.table.files]
        if where:
            self.table.delete_equal(keys, rows, *self.draw(st.sampled_from(where)))

    def _key_row(self, keys: list[tuple[Column, ...]]) -> dict[int, Any]:
        row: dict[int, Any] = {}
        for path in keys:
            value = self.draw(st.none() | VALUES[path[-1].id])
            if len(path) == 1:
                row[path[0].id] = value
            else:
                row.setdefault(path[0].id, {})[path[1].id] = value
        if PLACE in row and self.draw(st.booleans()) and set(row[PLACE].values()) == {None}:
            row[PLACE] = None
        return row

    def evolve(self) -> None:
        columns = self.table.columns = [
            Column(one.id, one.name, list(one.kind) if isinstance(one.kind, list) else one.kind, one.default)
            for one in self.table.columns
        ]
        one = self.draw(st.sampled_from(columns))
        match self.draw(st.sampled_from(["rename", "widen", "drop", "add", "nest", "spec"])):
            case "rename":
                self._count += 1
                one.name = f"{one.name}{self._count}"
            case "widen" if isinstance(one.kind, str):
                one.kind = WIDENED.get(one.kind, one.kind)
            case "drop" if len(columns) > 3 and one.id != ID:
                columns.remove(one)
            case "add" if ADDED not in {one.id for one in columns} and ADDED not in self.gone():
                columns.append(Column(ADDED, "added", "int", 2 if self.version == 3 else None))
            case "nest":
                for place in columns:
                    if isinstance(place.kind, list) and len(place.kind) == 1:
                        place.kind.append(Column(Y, "y", "int", 1 if self.version == 3 else None))
            case "spec":
                self.table.specs.append(self._spec())

    def gone(self) -> set[int]:
        return self.table._names.keys() - {one.id for one in self.table.columns}


def rows(found: list[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, found))


def value_at(row: Any, path: tuple[Column, ...]) -> Any:
    for one in path:
        row = None if row is None else row[one.name]
    return row


def passes(value: Any, operator: str, literal: Any) -> bool:
    if operator == "IS NULL":
        return value is None
    if value is None:
        return False
    if value != value:
        return operator == ">"  # NaN is above all, as in Spark
    return bool(value == literal if operator == "=" else value > literal if operator == ">" else value <= literal)


@pytest.fixture(scope="module")
def server() -> Iterator[SharingServer]:
    with SharingServer() as running:
        yield running


@given(st.data())
@settings(max_examples=30)
def test_rows_are_those_that_the_specification_leaves(
    server: SharingServer, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    history = Histories(data.draw, tmp_path_factory.mktemp("t") / "t")
    for _ in range(data.draw(st.integers(1, 4))):
        history.step()
        for _ in range(data.draw(st.integers(0, 2))):
            history.evolve()
    history.table.commit()
    document = history.table.metadata_path
    server.add_iceberg_table("s.db.t", document)
    table = SharingClient(server.profile()).table("s.db.t")
    expected = history.table.rows()
    assert rows(table.to_arrow().to_pylist()) == rows(expected)
    assert table.count() == len(expected)
    with served(table.scan()) as (_, plan, address):
        assert rows(rows_of(plan, address).to_pylist()) == rows(expected), "by the native lane"
    for _ in range(3):
        path = data.draw(st.sampled_from(history.paths()))
        one = path[-1]
        operator = data.draw(st.sampled_from(["=", ">", "<=", "IS NULL"]))
        value = data.draw(VALUES[one.id])
        if value != value:
            continue
        text = (
            ".".join(f"`{part.name}`" for part in path)
            + f" {operator}"
            + ("" if operator == "IS NULL" else f" {literal(value, str(one.kind))}")
        )
        left = [row for row in expected if passes(value_at(row, path), operator, value)]
        scan = table.scan(where=text)
        assert rows(scan.to_arrow().to_pylist()) == rows(left), text
        assert scan.count() == len(left), text


def literal(value: Any, kind: str) -> str:
    match value:
        case str():
            return f"'{value}'"
        case Decimal():
            return str(value)
        case float():
            return f"CAST('{value}' AS {kind})"
        case int():
            return str(value)
    return f"DATE'{value}'"
