"""``where`` gives the rows that pass, whatever the server does with hints, by URL in both formats and by directory."""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from delta_sharing_spark import SharingClient
from delta_sharing_spark.errors import PredicateError, ResponseError
from delta_sharing_spark.predicates.sql import parse_where
from delta_sharing_spark.schema.types import Field, Primitive, Struct
from delta_sharing_spark.testing.server import ServerSettings, SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support.drawing import cases, drawn
from unit.predicates.row_oracle import answer
from unit.predicates.where_strategies import SCHEMA, predicate, rows, table

BEHAVIOURS = ["apply", "over-return", "ignore", "naive"]
WAYS: list[dict[str, Any]] = [
    {"accessMode": "url", "responseFormat": "parquet"},
    {"accessMode": "url", "responseFormat": "delta"},
    {"accessMode": "dir"},
]


@pytest.fixture(scope="module")
def server() -> Iterator[SharingServer]:
    with SharingServer() as running:
        yield running
        assert not running.failures


@cases(10, suppress_health_check=list(HealthCheck))
@given(drawn(rows, predicate, predicate, predicate), st.data())
def test_where_equals_the_row_oracle(
    server: SharingServer, case: tuple[list[dict[str, Any]], str, str, str], data: st.DataObject
) -> None:
    rows, *texts = case
    numbered = Struct((*SCHEMA.fields, Field("row_number", Primitive("long"))))
    all_rows = table(rows).append_column("row_number", pa.array(range(len(rows)), pa.int64()))
    with tempfile.TemporaryDirectory() as directory:
        builder = DeltaTableBuilder(Path(directory) / "t", numbered)
        cut = data.draw(st.integers(0, len(rows)))
        for part in (all_rows.slice(0, cut), all_rows.slice(cut)):
            builder.append(part, files=2 if part.num_rows > 3 else 1)
        name = f"s.d.t{builder.table_id.replace('-', '')}"
        server.add_table(name, builder.path, access_modes=["url", "dir"], location=builder.uri)
        client = SharingClient(server.profile())
        for text in texts:
            try:
                expression = parse_where(text, SCHEMA)
            except PredicateError:
                continue
            expected = [i for i, row in enumerate(rows) if answer(expression, row) is True]
            way = data.draw(st.sampled_from(WAYS[1:]))  # the rows have timestampNtz, which only the delta format has
            server.settings.predicate_hints = data.draw(st.sampled_from(BEHAVIOURS))  # type: ignore[assignment]
            scan = client.table(name).scan(columns=["row_number"], where=text, **way)
            numbers = scan.to_arrow()["row_number"].to_pylist()
            assert sorted(numbers) == expected, (text, way, server.settings.predicate_hints)
            assert scan.count() == len(expected)


@pytest.mark.parametrize("tight", ["true", "false", None])
@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_statistics_beside_a_deletion_vector_are_of_all_rows_whatever_they_say(
    server: SharingServer, behaviour: Any, tight: str | None, tmp_path: Path
) -> None:
    """Writers leave ``tightBounds`` true where they add a vector (delta-kernel-rs 2664): the bounds and counts are still the old ones."""
    schema = pa.schema([("id", pa.int64()), ("x", pa.int64())])
    builder = DeltaTableBuilder(tmp_path / "t", schema, properties={"delta.enableDeletionVectors": "true"})
    builder.append(pa.table({"id": range(30), "x": [None] * 10 + list(range(10, 30))}, schema=schema))
    builder.append(pa.table({"id": range(30, 40), "x": [None] * 5 + [1] * 5}, schema=schema))
    builder.delete(lambda t: pc.or_(pc.less(t["id"], 10), pc.greater(t["id"], 34)), deletion_vectors=True)
    commit = builder.path / "_delta_log" / f"{builder.version:020d}.json"
    text = commit.read_text()
    assert '\\"tightBounds\\":false' in text
    commit.write_text(
        text.replace('\\"tightBounds\\":false', f'\\"tightBounds\\":{tight}')
        if tight
        else text.replace(',\\"tightBounds\\":false', "")
    )
    name = f"s.d.t{builder.table_id.replace('-', '')}"
    server.add_table(name, builder.path, access_modes=["url", "dir"], location=builder.uri)
    server.settings.predicate_hints = behaviour
    expected: dict[str, list[int]] = {
        "x IS NULL": [*range(30, 35)],
        "x IS NOT NULL": [*range(10, 30)],
        "x = 1": [],
        "x < 20": [*range(10, 20)],
        "NOT (x >= 20)": [*range(10, 20)],
        "x IS NULL OR x > 27": [28, 29, *range(30, 35)],
    }
    table = SharingClient(server.profile()).table(name)
    for way in WAYS[1:]:
        scans = {where: table.scan(where=where, **way) for where in expected}
        assert {where: sorted(scan.to_arrow()["id"].to_pylist()) for where, scan in scans.items()} == expected, way
        assert {where: scan.count() for where, scan in scans.items()} == {w: len(ids) for w, ids in expected.items()}


@pytest.fixture(scope="module")
def partitioned(server: SharingServer, tmp_path_factory: pytest.TempPathFactory) -> DeltaTableBuilder:
    schema = pa.schema([("p", pa.string()), ("day", pa.date32()), ("id", pa.int64())])
    path = tmp_path_factory.mktemp("partitioned") / "t"
    builder = DeltaTableBuilder(path, schema, ["p", "day"], {"delta.enableDeletionVectors": "true"})
    days = [None if i % 7 == 0 else datetime.date(2024, 1, 1 + i % 3) for i in range(60)]
    builder.append(pa.table({"p": ["a", "b", None] * 20, "day": pa.array(days), "id": range(60)}, schema=schema))
    builder.delete(lambda t: pc.less(t["id"], 10), deletion_vectors=True)
    server.add_table("s.d.partitioned", builder.path, access_modes=["url", "dir"], location=builder.uri)
    return builder


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
@pytest.mark.parametrize("way", WAYS[1:])
@pytest.mark.parametrize(
    ("where", "limit", "from_metadata"),
    [
        ("p = 'a'", None, True),
        ("p <> 'a' OR p IS NULL", None, True),
        ("NOT (p = 'a' AND day > DATE'2024-01-01')", None, True),
        ("day IS NULL", None, True),
        ("p = 'b'", 3, True),
        ("p = 'nowhere'", None, True),
        ("p = 'a' AND id > 20", None, False),
        ("id IS NOT NULL", None, False),
    ],
)
def test_a_count_by_partition_columns_reads_no_data(
    server: SharingServer, partitioned: DeltaTableBuilder, behaviour: Any, way: Any, where: str, limit: Any, from_metadata: bool
) -> None:  # fmt: skip
    server.settings.predicate_hints = behaviour
    scan = SharingClient(server.profile()).table("s.d.partitioned").scan(where=where, limit=limit, **way)
    planned = scan.plan()
    rows = scan.to_arrow().num_rows
    assert (planned.exact_rows is not None) == from_metadata
    assert scan.count() == rows
    if planned.exact_rows is not None:
        assert planned.exact_rows == rows
    expression = parse_where(where, partitioned.schema)
    expected = sum(answer(expression, row) is True for row in partitioned.expected().to_pylist())
    assert rows == (expected if limit is None else min(limit, expected))


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
@pytest.mark.parametrize("way", WAYS[1:])
def test_partition_columns_that_exchanged_their_names(
    server: SharingServer, tmp_path: Path, behaviour: Any, way: Any
) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.string()), ("id", pa.int64())])
    builder = DeltaTableBuilder(tmp_path / "t", schema, ["a", "b"])
    builder.append(pa.table({"a": ["x"] * 4, "b": ["y"] * 4, "id": range(4)}, schema=schema))
    builder.set_properties(**{"delta.columnMapping.mode": "name"})
    builder.rename_column("a", "old_a").rename_column("b", "a").rename_column("old_a", "b")
    server.add_table(f"s.d.{tmp_path.name}", builder.path, access_modes=["url", "dir"], location=builder.uri)
    server.settings.predicate_hints = behaviour
    table = SharingClient(server.profile()).table(f"s.d.{tmp_path.name}")
    assert table.scan(where="a = 'y' AND b = 'x' AND id > 1", **way).to_arrow()["id"].to_pylist() == [2, 3]
    assert table.scan(where="a = 'x'", **way).to_arrow().num_rows == 0


@pytest.mark.parametrize("way", WAYS[:2])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_files_are_skipped_while_the_answer_arrives_in_pages(
    tmp_path: Path, way: Any, asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delta_sharing_spark.sharing.response._FIRST_POLL", 0.001)
    builder = DeltaTableBuilder(tmp_path / "t", pa.schema([("p", pa.string()), ("id", pa.int64())]), ["p"])
    for p in ("a", "b"):
        builder.append(pa.table({"p": [p] * 30, "id": range(30)}), files=10)
    settings = ServerSettings(predicate_hints="ignore", page_size=3, async_polls=1 if asynchronous else None)
    with SharingServer({"s.d.t": builder.path}, settings=settings) as server:
        scan = (
            SharingClient(server.profile())
            .table("s.d.t")
            .scan(where="p = 'b' AND id BETWEEN 7 AND 13", asyncQuery=asynchronous, **way)
        )
        report = scan.plan().report
        assert (report.listed, report.files) == (20, 3)
        assert report.skipped == {"partition values": 10, "statistics": 7}
        assert sorted(scan.to_arrow()["id"].to_pylist()) == list(range(7, 14))
        settings.rewrite = lambda line: {**line, "file": {**line["file"], "id": "same"}} if "file" in line else line
        with pytest.raises(ResponseError, match=r"listed (file same|a file that the query leaves out) of .* twice"):
            SharingClient(server.profile()).table("s.d.t").scan(where="id < 0", asyncQuery=asynchronous, **way).plan()
