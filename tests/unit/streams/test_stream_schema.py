"""Every row of "Changes of the schema" in docs/streaming.md: what a running stream does, what a restart does, what it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from delta_sharing_spark.errors import DeltaSharingError, StreamError
from delta_sharing_spark.schema.types import Array, DataType, Field, Map, Primitive, Struct
from delta_sharing_spark.testing.server import SharingServer, queries
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from unit.streams.spark_loop import Checkpoint, Run

INT, LONG, STRING = Primitive("integer"), Primitive("long"), Primitive("string")
SCHEMA = Struct(
    (
        Field("id", LONG, nullable=False),
        Field("n", INT),
        Field("s", Struct((Field("a", STRING), Field("b", STRING)))),
        Field("list", Array(LONG, contains_null=False)),
        Field("map", Map(STRING, LONG, value_contains_null=False)),
    )
)
ROW: dict[str, Any] = {"n": 1, "s": {"a": "x", "b": "y"}, "list": [1], "map": [("k", 1)]}
Share = Callable[..., dict[str, str]]
Change = Callable[[DeltaTableBuilder], object]


def rewritten(**types: DataType | None) -> Change:
    """Commit a schema of other types (None: the column allows NULL), as ``overwriteSchema`` does."""

    def change(table: DeltaTableBuilder) -> None:
        fields = []
        for f in table.schema.fields:
            data_type = types.get(f.name, f.type)
            fields.append(replace(f, nullable=True) if data_type is None else replace(f, type=data_type))
        table.schema = Struct(tuple(fields))
        table.commit([table.metadata_action()])

    return change


def respelled(table: DeltaTableBuilder) -> None:
    table.schema = Struct(tuple(replace(f, name="N") if f.name == "n" else f for f in table.schema.fields))
    table.commit([table.metadata_action()])


def repartitioned(table: DeltaTableBuilder) -> None:
    table.partition_by = ("n",)
    table.commit([table.metadata_action()])


def dropped_and_added(table: DeltaTableBuilder) -> None:
    """In one commit: another column has the name."""
    schema = table.schema
    table.drop_column("n")
    del table.commits[table.version]
    (table.path / "_delta_log" / f"{table.version:020d}.json").unlink()
    table.version -= 1
    assert table.schema != schema
    table.add_column(Field("n", INT))


@dataclass(frozen=True)
class Case:
    """A change of version 3, then a row of version 4; versions 1 and 2 add a row each.

    Attributes:
        change: What version 3 does.
        row: Fields of the row that version 4 adds, and of the columns that are gone (None).
        stops: What the running stream says of the column; None: it reads on.
        column: The column it names.
        history: What a stream says that has the new schema and reads the old versions; None: it reads them.
        given: Options, the same before and after.
        old, new: Fields of the rows before and of the one after as a stream with the new schema has them.
        schema: A user's own schema.
    """

    change: Change
    stops: str | None
    column: str = ""
    row: dict[str, Any] = field(default_factory=dict)
    history: str | None = None
    given: dict[str, str] = field(default_factory=dict)
    old: dict[str, Any] = field(default_factory=dict)
    new: dict[str, Any] = field(default_factory=dict)
    schema: StructType | None = None
    advice: str = "restart the stream to read with the new schema"


def add(name: str, parent: str = "") -> Change:
    return lambda table: table.add_column(Field(name, STRING), parent=parent)


ADDED = "it was added, and the stream does not read it"
OLD_ONLY = "it was dropped later, or added while the stream started"
MAP = {"delta.columnMapping.mode": "name"}

CASES = {
    "a column added": Case(add("x"), ADDED, "x", {"x": "new"}, old={"x": None}, new={"x": "new"}),
    "a field added": Case(
        add("c", "s"),
        ADDED,
        "s.c",
        {"s": {"a": "x", "b": "y", "c": "z"}},
        old={"s": {"a": "x", "b": "y", "c": None}},
        new={"s": {"a": "x", "b": "y", "c": "z"}},
    ),
    "a column added, allowAddedColumns": Case(
        add("x"), None, row={"x": "new"}, given={"allowAddedColumns": "true"}, old={"x": None}, new={"x": "new"}
    ),
    "a column added beside those named": Case(
        add("x"), None, row={"x": "new"}, given={"columns": "id"}, old={"id": 1}, new={"id": 3}
    ),
    "a field added beside those named": Case(
        add("c", "s"), None, given={"columns": "id,s.a"}, old={"s": {"a": "x"}}, new={"s": {"a": "x"}}
    ),
    "a column added beside a user's schema": Case(
        add("x"),
        None,
        row={"x": "new"},
        schema=StructType([StructField("ID", LongType())]),
        old={"ID": 1},
        new={"ID": 3},
    ),
    "a column dropped": Case(
        lambda table: table.drop_column("n"), "it was dropped", "n", {"n": None}, history=f"column 'n' .*{OLD_ONLY}"
    ),
    "a field dropped": Case(
        lambda table: table.drop_column("s.b"),
        "it was dropped",
        "s.b",
        {"s": {"a": "x"}},
        history=rf"column 's\.b' .*{OLD_ONLY}",
        new={"s": {"a": "x"}},
    ),
    "a column renamed": Case(
        lambda table: table.rename_column("n", "m"),
        "it was renamed to 'm'",
        "n",
        {"n": None, "m": 2},
        old={"m": 1},
        new={"m": 2},
    ),
    "a column dropped, another of its name added": Case(
        dropped_and_added, "another column has its name", "n", history="another column has its name"
    ),
    "a column spelled otherwise": Case(
        respelled, "it is spelled 'N', in the stream 'n'", "N", {"n": None, "N": 1}, history="it is spelled 'n'"
    ),
    "a type widened": Case(
        rewritten(n=LONG),
        "its type is long, the stream reads integer",
        "n",
        {"n": 1 << 40},
        old={"n": 1},
        new={"n": 1 << 40},
    ),
    "another type": Case(
        rewritten(n=STRING),
        "its type is string, the stream reads integer",
        "n",
        {"n": "text"},
        history="its type is integer, the stream reads string",
        new={"n": "text"},
    ),
    "NOT NULL given up": Case(rewritten(id=None), "it allows NULL", "id", {"id": None}, new={"id": None}),
    "elements may be NULL": Case(
        rewritten(list=Array(LONG)), "it allows NULL", "list.element", {"list": [None]}, new={"list": [None]}
    ),
    "values may be NULL": Case(
        rewritten(map=Map(STRING, LONG)),
        "it allows NULL",
        "map.value",
        {"map": [("k", None)]},
        new={"map": [("k", None)]},
    ),
    "other partition columns": Case(
        repartitioned, "the partition columns differ", "n", history="the partition columns differ"
    ),
}
UNMAPPED = ("a column spelled otherwise", "a type widened", "another type")


@pytest.mark.parametrize("mode", ["url", "dir"])
@pytest.mark.parametrize("name", list(CASES))
def test_a_change_of_the_schema(tmp_path: Path, share: Share, name: str, mode: str, feed: dict[str, str]) -> None:
    case = CASES[name]
    properties = {"delta.enableChangeDataFeed": "true", **({} if name in UNMAPPED else MAP)}
    table = DeltaTableBuilder(tmp_path / "t", SCHEMA, properties=properties)
    options = {**share(table.append([{"id": 1, **ROW}])), **feed, **case.given, "accessMode": mode}
    checkpoint, from_start = Checkpoint(), {**options, "startingVersion": "0"}
    running = Run(checkpoint, options, schema=case.schema, available_now=False).drain()
    table.append([{"id": 1, **ROW}])
    case.change(table)
    row = {k: v for k, v in {"id": 3, **ROW, **case.row}.items() if k in table.schema.names}
    table.append([row])
    if case.stops is None:
        running.drain()
        assert len(checkpoint.rows) == 3
    else:
        with pytest.raises(StreamError) as stopped:
            running.drain()
        assert str(stopped.value).startswith(
            f"version 3 of s.d.t has column {case.column!r} otherwise than the stream: "
        )
        assert case.stops in str(stopped.value)
        assert case.advice in str(stopped.value)
        assert checkpoint.ids == [1, 1], "what was before the change is delivered, nothing else"
        Run(checkpoint, options, schema=case.schema).drain()
        assert {**checkpoint.sink[checkpoint.committed - 1][0], **case.new} == checkpoint.sink[
            checkpoint.committed - 1
        ][0]
    _of_its_history(from_start, case)


def _of_its_history(options: dict[str, str], case: Case) -> None:
    """A stream of the new schema, from version 0 on."""
    checkpoint = Checkpoint()
    run = Run(checkpoint, options, schema=case.schema)
    if case.history is not None:
        with pytest.raises(StreamError, match=rf"version [012] of s\.d\.t has .*{case.history}"):
            run.drain()
        return
    run.drain()
    rows = [row for batch in checkpoint.sink.values() for row in batch]
    assert [{**row, **values} for row, values in zip(rows, (case.old, case.old, case.new), strict=True)] == rows


@pytest.mark.parametrize("mode", ["url", "dir"])
def test_versions_with_a_column_that_was_dropped_are_read_without_it_if_asked(
    tmp_path: Path, share: Share, mode: str, feed: dict[str, str]
) -> None:
    properties = {"delta.enableChangeDataFeed": "true", **MAP}
    table = DeltaTableBuilder(tmp_path / "t", SCHEMA, properties=properties).append([{"id": 1, **ROW}])
    table.drop_column("n").append([{"id": 2, **{k: v for k, v in ROW.items() if k != "n"}}])
    options = {**share(table), **feed, "accessMode": mode, "startingVersion": "0", "allowAddedColumns": "true"}
    checkpoint = Checkpoint()
    Run(checkpoint, options).drain()
    assert checkpoint.ids == [1, 2]
    assert "n" not in checkpoint.rows[0]


def test_a_mapping_that_ended_is_no_mapping_of_the_versions_before(
    share: Share, server: SharingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that chooses the format by the newest version would answer them in one that has no mapping: NULL in ``m``."""
    table = DeltaTableBuilder(tmp_path / "t", SCHEMA, properties={"delta.columnMapping.mode": "name"})
    table.append([{**ROW, "id": 1}]).rename_column("n", "m").append([{**ROW, "id": 2, "m": 7}])
    table.properties.pop("delta.columnMapping.mode")
    table.commit([*(f.remove(0, data_change=False) for f in table.files), table.metadata_action()])
    options = {**share(table), "startingVersion": "3"}
    by_newest = lambda request, *_: "parquet" if "parquet" in request.capabilities.formats else "delta"  # noqa: E731
    monkeypatch.setattr(queries, "choose_format", by_newest)

    def refusal(**way: str) -> str:
        with pytest.raises(DeltaSharingError) as caught:
            Run(Checkpoint(), {**options, **way}).drain()
        return f"{type(caught.value).__name__}: {caught.value}"

    assert refusal(accessMode="dir") == refusal(accessMode="url")
    assert "cannot express columnMapping" in refusal(accessMode="url", responseFormat="parquet")
