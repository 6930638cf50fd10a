"""The change data feed in batch: in every mode and format the rows, names and types that the table's builder knows."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given

from delta_sharing_spark.access.open import TableOpener, negotiated_table, resolve_opened
from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.errors import DeltaSharingError, ResponseError, SchemaError, UnsupportedFeatureError
from delta_sharing_spark.flight.gateway import FlightGateway
from delta_sharing_spark.flight.settings import GatewaySettings
from delta_sharing_spark.options.declared import parse_options
from delta_sharing_spark.scan.split_reader import read_split
from delta_sharing_spark.schema.arrow import arrow_schema
from delta_sharing_spark.schema.types import Field, Primitive, Struct
from delta_sharing_spark.table import SharedTable
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support.drawing import cases, drawn, one_of
from unit.changes.feed_tables import (
    FEEDS,
    NAME,
    T0,
    VECTORS,
    WAYS,
    doubled,
    ids,
    moment,
    rows,
    struct_of,
    table,
    texts,
    ways,
)

CHANGE_COLUMNS = ["_change_type", "_commit_version", "_commit_timestamp"]


@pytest.fixture(scope="module")
def server() -> Iterator[SharingServer]:
    with SharingServer() as running:
        yield running
        assert not running.failures


@pytest.fixture(scope="module")
def share(server: SharingServer, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], DeltaTableBuilder]:
    """Builds and shares a table of ``FEEDS``, once."""
    made: dict[str, DeltaTableBuilder] = {}

    def get(case: str) -> DeltaTableBuilder:
        if case not in made:
            made[case] = FEEDS[case](tmp_path_factory.mktemp("feed") / "table")
            server.add_table(shared_name(case), made[case].path, access_modes=("url", "dir"))
        return made[case]

    return get


def shared_name(case: str) -> str:
    return f"s.d.{case.replace(' ', '_')}"


def shared(server: SharingServer, case: str, way: str, **options: str) -> SharedTable:
    return SharingClient(server.profile(), **WAYS[way], **options).table(shared_name(case))


@pytest.mark.parametrize("case", FEEDS)
def test_feeds(server: SharingServer, share: Callable[[str], DeltaTableBuilder], case: str) -> None:
    """All of it in every way; parts of it in one each, for test_versions_asked_for.py has the ranges in every way."""
    built = share(case)
    newest, names = built.version, ways(built)
    parts = enumerate([(2, 2), (1, newest - 1), (newest - 1, newest + 7)], 1)
    asked = [*((way, 0, None) for way in names), *((names[place % len(names)], *part) for place, part in parts)]
    scans = {bounds: shared(server, case, bounds[0]).changes(*bounds[1:]) for bounds in asked}
    found = {bounds: scan.to_arrow() for bounds, scan in scans.items()}
    expected = {(way, a, z): built.expected_changes(a, None if z is None else min(z, newest)) for way, a, z in asked}
    assert {bounds: (texts(rows), struct_of(rows.schema)) for bounds, rows in found.items()} == {
        bounds: (texts(rows), struct_of(rows.schema)) for bounds, rows in expected.items()
    }
    assert {scans[way, 0, None].count() for way in names} == {built.expected_changes().num_rows}


def test_the_cases_cover_every_kind_of_change(share: Callable[[str], DeltaTableBuilder]) -> None:
    """A builder that tells of no change would agree with a reader that finds none."""
    kinds = {case: set(share(case).expected_changes()["_change_type"].to_pylist()) for case in FEEDS}
    assert kinds["change files"] == {"insert", "delete", "update_preimage", "update_postimage"}
    assert kinds["inferred"] == kinds["vectors"] == {"insert", "delete"}
    assert share("compacted").expected_changes(3, 4).num_rows == 0
    assert all(kinds.values())


def of(row: dict[str, Any], kind: str) -> bool:
    return bool(row["_change_type"] == kind)


NARROWED: list[tuple[list[str] | None, str | None, Callable[[dict[str, Any]], bool]]] = [
    (["_change_type", "id"], None, lambda r: True),
    (["_commit_version"], None, lambda r: True),
    (["_commit_timestamp", "s.x"], "id < 4", lambda r: r["id"] < 4),
    (["id"], "_change_type = 'delete'", lambda r: of(r, "delete")),
    (
        ["id"],
        "_change_type like 'update%' and n is not null",
        lambda r: "update" in r["_change_type"] and r["n"] is not None,
    ),
    (None, "_commit_version between 2 and 3", lambda r: 2 <= r["_commit_version"] <= 3),
    (["n"], "_commit_timestamp > timestamp'2023-11-14 22:13:22'", lambda r: r["_commit_timestamp"] > moment(2)),
    (None, "part = 'a' or _change_type = 'insert'", lambda r: r["part"] == "a" or of(r, "insert")),
    (["id", "_change_type"], "part is null", lambda r: r["part"] is None),
    (None, "not (_commit_version = 1) and id >= 0", lambda r: r["_commit_version"] != 1),
    (None, "_commit_version > 99", lambda r: False),
]


@pytest.mark.parametrize("case", ["partitioned", "vectors in partitions"])
@pytest.mark.parametrize(("columns", "where", "keeps"), NARROWED)
def test_columns_and_where(
    server: SharingServer,
    share: Callable[[str], DeltaTableBuilder],
    case: str,
    columns: list[str] | None,
    where: str | None,
    keeps: Callable[[dict[str, Any]], bool],
) -> None:
    built = share(case)
    names = [name.partition(".")[0] for name in columns or [*built.schema.names, *CHANGE_COLUMNS]]
    expected_rows = [{n: r[n] for n in names} for r in built.expected_changes().to_pylist() if keeps(r)]
    if columns and "s.x" in columns:
        expected_rows = [r | {"s": r["s"] and {"x": r["s"]["x"]}} for r in expected_rows]
    feeds = {way: shared(server, case, way).changes(0, columns=columns, where=where).to_arrow() for way in ways(built)}
    found = {way: (rows.column_names, texts(rows)) for way, rows in feeds.items()}
    assert found == dict.fromkeys(feeds, (names, sorted(map(repr, expected_rows))))


@pytest.mark.parametrize("case", ["vectors", "change files"])
@pytest.mark.parametrize("where", [None, "_change_type = 'delete'"])
def test_limit(server: SharingServer, share: Callable[[str], DeltaTableBuilder], case: str, where: str | None) -> None:
    for way in ways(share(case)):
        changes = shared(server, case, way).changes
        every = changes(0, where=where).to_arrow()
        scans = [changes(0, where=where, limit=limit) for limit in (1, every.num_rows - 1, every.num_rows + 5)]
        feeds = [scan.to_arrow() for scan in scans]
        counts = [1, every.num_rows - 1, every.num_rows]
        assert (way, [scan.count() for scan in scans], [feed.num_rows for feed in feeds]) == (way, counts, counts)
        assert {text for feed in feeds for text in texts(feed)} <= set(texts(every))


@pytest.mark.parametrize("way", WAYS)
def test_commit_times_as_milliseconds(
    server: SharingServer, share: Callable[[str], DeltaTableBuilder], way: str
) -> None:
    built = share("change files")
    feed = shared(server, "change files", way, commitTimestampType="long")
    feed_rows = feed.changes(0, where=f"_commit_timestamp >= {T0 + 2000}").to_arrow()
    assert feed_rows.schema.field("_commit_timestamp").type == pa.int64()
    versions = {row["_commit_version"]: row["_commit_timestamp"] for row in feed_rows.to_pylist()}
    assert versions == {v: T0 + 1000 * v for v in range(2, built.version + 1)}


@pytest.mark.parametrize(
    "between",
    [
        {"starting_version": 5},
        {"starting_version": 5, "ending_version": 8},
        {"starting_version": 0, "ending_version": 0},
        {"starting_timestamp": moment(1.2), "ending_timestamp": moment(1.8)},
        {"starting_version": 1, "where": "id > 1000"},
        {"starting_version": 1, "limit": 0},
    ],
    ids=str,
)
@pytest.mark.parametrize("columns", [None, ["_commit_version", "s.t"]])
@pytest.mark.parametrize("way", WAYS)
def test_an_empty_range_has_the_schema(
    server: SharingServer,
    share: Callable[[str], DeltaTableBuilder],
    way: str,
    between: dict[str, Any],
    columns: list[str] | None,
) -> None:
    built = share("change files")
    assert built.version == 4
    scan = shared(server, "change files", way).changes(**between, columns=columns)
    feed_rows = scan.to_arrow()
    assert feed_rows.num_rows == 0
    if columns is None:
        assert struct_of(feed_rows.schema) == struct_of(built.expected_changes().schema)
    else:
        assert struct_of(feed_rows.schema) == [("_commit_version", "int64"), ("s", "struct<t: string>")]
    assert feed_rows.schema == arrow_schema(scan.schema)


@pytest.mark.parametrize("end", [{}, {"ending_version": 99}, {"ending_timestamp": moment(9000)}], ids=str)
@pytest.mark.parametrize("strict", [False, True], ids=["", "strict server"])
def test_a_feed_is_of_the_versions_that_were_there_when_it_was_loaded(
    server: SharingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: dict[str, Any], strict: bool
) -> None:
    """Its columns are of then, and an action that is repeated, planned late or renewed gives the same rows."""
    monkeypatch.setattr(server.settings, "end_after_newest", not strict)
    built = table(tmp_path / "t", NAME).delete(ids(1))
    server.add_table("s.d.moving", built.path, access_modes=("url", "dir"))
    with FlightGateway(SharingClient(server.profile()), GatewaySettings(tokens=("t",))) as gateway:
        clients = [SharingClient(server.profile(), **WAYS[way]) for way in ways(built)]
        tables = [client.table("s.d.moving") for client in (*clients, SharingClient.over(gateway.uri, "t"))]
        scans, late = ([shared.changes(0, **end) for shared in tables] for _ in range(2))
        expected = texts(built.expected_changes())
        plans = [scan.plan() for scan in scans]
        assert [scan.schema.names for scan in late] == [scan.schema.names for scan in scans]
        built.rename_column("n", "later").append([{"id": 50, "part": "a", "later": 1}]).delete(ids(2, 50)).optimize()
        server.expire_urls()
        for scan, other, planned in zip(scans, late, plans, strict=True):
            renewed = [row for split in planned.splits for rows in read_split(split) for row in rows.to_pylist()]
            assert sorted(map(repr, renewed)) == texts(scan.to_arrow()) == texts(other.to_arrow()) == expected


def partitioned_otherwise(built: DeltaTableBuilder) -> DeltaTableBuilder:
    """As an overwrite with another partitioning does."""
    built.partition_by = ()
    return built.commit([*(f.remove(T0) for f in built.files), built.metadata_action()])


def unmapped(built: DeltaTableBuilder) -> DeltaTableBuilder:
    """As dropping the feature columnMapping does, which writes all files anew under their columns' names."""
    built.properties.pop("delta.columnMapping.mode")
    return built.commit([*(f.remove(T0, data_change=False) for f in built.files), built.metadata_action()])


def replaced(built: DeltaTableBuilder) -> DeltaTableBuilder:
    """Another type, as an overwrite with ``overwriteSchema`` does."""
    built.schema = Struct(tuple(field for field in built.schema.fields if field.name != "n"))
    return built.add_column(Field("n", Primitive("date")))


@pytest.mark.parametrize(
    ("properties", "change", "match"),
    [
        (VECTORS, partitioned_otherwise, r"version \d of s.d.changed has column 'part' otherwise.*partition column"),
        (NAME, unmapped, r"version \d of s.d.changed has column '\w+' otherwise.*column mapping was taken off"),
        (VECTORS, replaced, r"column 'n' is stored as int32, which cannot become date"),
    ],
)
@pytest.mark.parametrize("way", ["url-delta", "dir"])
def test_versions_that_cannot_be_read_as_the_feed_are_refused(
    server: SharingServer,
    tmp_path: Path,
    way: str,
    properties: dict[str, str],
    change: Callable[[Any], Any],
    match: str,
) -> None:
    built = change(table(tmp_path / "t", properties, partition_by=["part"] if change is partitioned_otherwise else []))
    server.add_table("s.d.changed", built.path, access_modes=("url", "dir"))
    feed = SharingClient(server.profile(), **WAYS[way]).table("s.d.changed")
    with pytest.raises(SchemaError, match=match):
        feed.changes(0).to_arrow()
    assert feed.changes(built.version).to_arrow().num_rows == 0 or change is partitioned_otherwise


def with_protocols(path: Path, *features: str) -> DeltaTableBuilder:
    """Version 2 raises the protocol by the features, 3 adds rows under it, 4 takes them back, as DROP FEATURE does."""
    built = table(path, VECTORS)
    plain = built.protocol_action()
    strange = copy.deepcopy(plain)
    for kind in ("readerFeatures", "writerFeatures"):
        strange["protocol"][kind] += features
    return built.commit([strange]).append(rows(20, 1)).commit([plain])


@pytest.mark.parametrize("way", ["url-delta", "dir"])
def test_a_feature_that_came_and_went_within_the_range(server: SharingServer, tmp_path: Path, way: str) -> None:
    """The newest protocol does not name it, and rows were written under it."""
    server.add_table("s.d.shiny", with_protocols(tmp_path / "t", "shiny").path, access_modes=("url", "dir"))
    feed = SharingClient(server.profile(), **WAYS[way]).table("s.d.shiny")
    with pytest.raises(DeltaSharingError, match="shiny"):
        feed.changes(0).to_arrow()
    assert feed.changes(0, 1).count() == 10


@pytest.mark.parametrize("stream", [None, "startingVersion", "readChangeFeed"])
def test_the_reader_is_the_gate_where_the_server_is_none(
    server: SharingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: str | None
) -> None:
    """``includeHistoricalProtocol``: a server may check the features of one version of a range only."""
    server.add_table("s.d.told", with_protocols(tmp_path / "t").path, access_modes=("url",))

    def rewrite(line: dict[str, Any]) -> dict[str, Any]:
        if "protocol" in line and line["protocol"].get("version") == 2:
            line["protocol"]["deltaProtocol"]["readerFeatures"] = ["deletionVectors", "shiny"]
        return line

    monkeypatch.setattr(server.settings, "rewrite", rewrite)
    client = SharingClient(server.profile(), **WAYS["url-delta"])
    read: Callable[[], Any] = client.table("s.d.told").changes(0).to_arrow
    if stream is not None:
        options = {"startingVersion": "0", "readChangeFeed": str(stream == "readChangeFeed"), **WAYS["url-delta"]}
        parsed = parse_options({"path": "s.d.told", **options}, is_stream=True)
        opener = TableOpener(negotiated_table(parsed, client.profile))
        read = partial(opener.table().versions, resolve_opened(opener), 0, 4)
    with pytest.raises(UnsupportedFeatureError, match="shiny"):
        read()


@pytest.mark.parametrize("case", ["renamed", "grown", "vectors"])
@pytest.mark.parametrize("head", ["repeated", "once", "always the newest"])
@pytest.mark.parametrize("until", ["the newest", "version 2"])
def test_pages_and_heads(
    server: SharingServer,
    share: Callable[[str], DeltaTableBuilder],
    monkeypatch: pytest.MonkeyPatch,
    case: str,
    head: str,
    until: str,
) -> None:
    """Answers in pages of one file or line of history, and a server that does not tell history at all."""
    built = share(case)

    def rewrite(line: dict[str, Any]) -> dict[str, Any] | None:
        if "metaData" not in line:
            return line
        told = line["metaData"]
        return {"metaData": told | {"deltaMetadata": newest}} if told.get("version") == 1 else None

    newest = built.metadata_action()["metaData"]
    end = 2 if until == "version 2" else built.version
    monkeypatch.setattr(server.settings, "page_size", 1)
    monkeypatch.setattr(server.settings, "repeat_head", head == "repeated")
    scan = shared(server, case, "url-delta").changes(1, end)
    schema = scan.schema
    monkeypatch.setattr(server.settings, "rewrite", rewrite if head == "always the newest" else None)
    assert texts(scan.to_arrow()) == texts(built.expected_changes(1, end))
    assert list(schema.names) == built.expected_changes(1, end).column_names


STEPS: dict[str, Callable[[DeltaTableBuilder, tuple[int, ...], int], Any]] = {
    "append": lambda t, _, step: t.append([{"id": step + i, "part": "ab"[i % 2]} for i in range(3)]),
    "delete": lambda t, chosen, _: t.delete(ids(*chosen)),
    "delete, inferred": lambda t, chosen, _: t.delete(ids(*chosen), change_files=False),
    "delete by vectors": lambda t, chosen, _: t.delete(ids(*chosen), deletion_vectors=True),
    "update": lambda t, chosen, _: t.update(ids(*chosen), doubled("id")),
    "update by vectors": lambda t, chosen, _: t.update(ids(*chosen), doubled("id"), deletion_vectors=True),
    "update by vectors, inferred": lambda t, chosen, _: t.update(
        ids(*chosen), doubled("id"), deletion_vectors=True, change_files=False
    ),
    "undelete": lambda t, _, __: t.undelete(),
    "optimize": lambda t, _, __: t.optimize(),
    "rename": lambda t, _, step: t.rename_column(t.schema.names[2], f"c{step}"),
    "rename partition": lambda t, _, step: t.rename_column(t.schema.names[1], "part") if step else t,
    "drop and add": lambda t, _, step: t.drop_column("s") if "s" in t.schema.names else t,
    "overwrite": lambda t, _, step: t.overwrite([{"id": step, "part": "b"}]),
    "checkpoint": lambda t, _, __: t.checkpoint(),
}


def some_steps(random: Random) -> list[tuple[str, tuple[int, ...]]]:
    """Up to seven, each with the ids that it is about."""
    names = random.choices(sorted(STEPS), k=random.randint(1, 7))
    return [(name, tuple(random.choices(range(41), k=random.randint(0, 6)))) for name in names]


@cases(20, suppress_health_check=list(HealthCheck))
@given(
    drawn(
        some_steps,
        one_of(False, True),
        one_of(False, True),
        lambda random: random.choices(range(9), k=2),
        lambda random: random.choice([None, random.randint(0, 40)]),
    )
)
def test_drawn_histories(
    server: SharingServer,
    tmp_path_factory: pytest.TempPathFactory,
    case: tuple[list[tuple[str, tuple[int, ...]]], bool, bool, list[int], int | None],
) -> None:
    steps, partitioned, mapped, span, least = case
    properties = VECTORS | (NAME if mapped else {})
    built = table(tmp_path_factory.mktemp("drawn"), properties, partition_by=["part"] if partitioned else [])
    for number, (step, chosen) in enumerate(steps):
        if mapped or step not in ("rename", "drop and add"):
            STEPS[step](built, chosen, 100 * (number + 1))
    server.add_table("s.d.drawn", built.path, access_modes=("url", "dir"))
    start, end = sorted(min(version, built.version) for version in span)
    expected = built.expected_changes(start, end)
    where = None if least is None else f"id >= {least}"
    kept = [row for row in expected.to_pylist() if least is None or row["id"] >= least]
    for way in ("url-delta", "dir"):
        feed_rows = (
            SharingClient(server.profile(), **WAYS[way]).table("s.d.drawn").changes(start, end, where=where).to_arrow()
        )
        assert struct_of(feed_rows.schema) == struct_of(expected.schema)
        assert texts(feed_rows) == sorted(map(repr, kept))


def test_a_first_commit_without_a_schema_is_a_version_without_columns(server: SharingServer, tmp_path: Path) -> None:
    """So begin tables of Databricks' pipelines; the next commit tells the schema."""
    built = FEEDS["inferred"](tmp_path / "table")
    first, second = (built.path / "_delta_log" / f"{version:020d}.json" for version in (0, 1))
    lines = [json.loads(line) for line in first.read_text().splitlines()]
    whole = [json.dumps(line) for line in lines if "metaData" in line]
    for line in lines:
        line.get("metaData", {}).pop("schemaString", None)
    first.write_text("\n".join(map(json.dumps, lines)) + "\n")
    second.write_text("\n".join(whole) + "\n" + second.read_text())
    server.add_table("s.d.pipeline", built.path, access_modes=("dir",))
    pipeline = SharingClient(server.profile(), accessMode="dir").table("s.d.pipeline")
    assert texts(pipeline.scan().to_arrow()) == texts(built.expected())
    changes, expected = (
        feed.drop_columns(["_commit_timestamp"]) for feed in (pipeline.changes(0).to_arrow(), built.expected_changes(0))
    )
    assert texts(changes) == texts(expected)  # the commits that were written anew have times of their own
    with pytest.raises(ResponseError, match="has no schema: its metadata names none"):
        pipeline.scan(version=0).to_arrow()
