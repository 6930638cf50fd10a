"""Spark's own reader over the change feeds of built tables gives what the client gives: rows, types, conditions, counts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from conformance.canonical import row_texts
from conformance.ways import as_nullable
from delta_sharing_spark import SharingClient
from delta_sharing_spark.schema.types import spark_schema_json
from delta_sharing_spark.testing.server import SharingServer
from unit.changes.feed_tables import FEEDS

NUMBERS = {name: number for number, name in enumerate(FEEDS)}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharingClient]:
    root = tmp_path_factory.mktemp("feeds")
    with SharingServer() as server:
        for name, build in FEEDS.items():
            number = NUMBERS[name]
            server.add_table(f"feeds.d.t{number}", build(root / str(number)).path, access_modes=("url", "dir"))
        yield SharingClient(server.profile())


@pytest.mark.parametrize("name", FEEDS)
def test_change_feed(spark: Any, client: SharingClient, name: str) -> None:
    number = NUMBERS[name]
    table, mode = client.table(f"feeds.d.t{number}"), ("url", "dir")[number // 2 % 2]
    narrow = ("_change_type <> 'insert' AND id < 7", "_commit_version = 2 OR id IS NULL")[number % 2]
    scan = table.changes(number % 2, accessMode=mode)
    frame, rows = scan.to_spark(spark, engine="native"), scan.to_arrow()
    assert json.loads(frame.schema.json()) == as_nullable(spark_schema_json(scan.schema))
    assert row_texts(frame.toArrow()) == row_texts(rows)
    narrowed = table.changes(number % 2, accessMode=mode, where=narrow)
    assert row_texts(frame.where(narrow).toArrow()) == row_texts(narrowed.to_arrow())
    if number % 6 == 0:
        counts = Counter(zip(rows["_change_type"].to_pylist(), rows["_commit_version"].to_pylist(), strict=True))
        grouped = frame.groupBy("_change_type", "_commit_version").count().collect()
        assert {tuple(row)[:2]: row["count"] for row in grouped} == counts
