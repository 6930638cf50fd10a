"""Tables written by Delta Lake on Spark (``tests/data/write_with_delta.py``): exactly the rows and types Delta reads.

Every kept version and the change feed of every table, in url mode in both response formats, from a server with the
reference server's two engines, and in dir mode; no Spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.canonical import row_texts
from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.schema.types import spark_schema_json
from delta_sharing_spark.table import Scan
from delta_sharing_spark.testing.server import ServerSettings, SharingServer

spark_types = pytest.importorskip("pyspark.sql.types")

HERE = Path(__file__).parents[1] / "data" / "delta_spark"
TABLES = {path.parent.name: path.parent for path in sorted(HERE.glob("*/expected.json"))}
EXPECTED: dict[str, dict[str, Any]] = {
    name: json.loads((path / "expected.json").read_text(encoding="utf-8")) for name, path in TABLES.items()
}

#: How a table is asked for: the access mode, and the response format of url mode.
WAYS: dict[str, dict[str, str]] = {
    "url-delta": {"accessMode": "url", "responseFormat": "delta"},
    "url-parquet": {"accessMode": "url", "responseFormat": "parquet"},
    "url-reference": {"accessMode": "url"},
    "dir": {"accessMode": "dir"},
}

#: Columns of type CHAR: files hold them unpadded, and it is Spark that pads them on reading, ours as Delta's.
PADDED = {"types": "c"}


def ways(name: str) -> list[str]:
    """Format ``parquet`` cannot say what a table with reader features holds; the server refuses it."""
    return [way for way in WAYS if way != "url-parquet" or EXPECTED[name]["protocol"][0] == 1]


SNAPSHOTS = [
    (name, way, version)
    for name, description in EXPECTED.items()
    for way in ways(name)
    for version in description["versions"]
]
FEEDS = [
    (name, way, span)
    for name, description in EXPECTED.items()
    for way in ways(name)
    for span in description.get("changes", {})
    # The reference server lists no feed of a table with reader features: tests/unit/testing/test_reference_engine.py.
    if way != "url-reference" or description["protocol"][0] == 1
]


@pytest.fixture(scope="module")
def clients() -> Iterator[dict[str, SharingClient]]:
    """A client for each way."""
    with SharingServer() as running, SharingServer(settings=ServerSettings(engine="reference")) as reference:
        for server in (running, reference):
            for name, path in TABLES.items():
                server.add_table(f"delta.spark.{name}", path, access_modes=("url", "dir"))
        clients = {way: SharingClient(running.profile()) for way in WAYS}
        yield {**clients, "url-reference": SharingClient(reference.profile())}


def types(scan: Scan) -> list[list[str]]:
    schema = spark_types.StructType.fromJson(spark_schema_json(scan.schema))
    return [[field.name, field.dataType.simpleString()] for field in schema.fields]


def unpadded(name: str, texts: list[str]) -> list[str]:
    column = PADDED.get(name)
    return texts if column is None else sorted(re.sub(rf"\b{column}='([^']*?) *'", rf"{column}='\1'", t) for t in texts)


def check(name: str, scan: Scan, answer: dict[str, Any]) -> None:
    """The same names, types and rows."""
    assert types(scan) == answer["types"]
    assert unpadded(name, row_texts(scan.to_arrow())) == unpadded(name, answer["rows"])


def test_the_catalogue_lists_every_table() -> None:
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    assert TABLES
    assert not [name for name in TABLES if f"`{name}`" not in readme]


@pytest.mark.parametrize(("name", "way", "version"), SNAPSHOTS)
def test_snapshot(clients: dict[str, SharingClient], name: str, way: str, version: str) -> None:
    scan = clients[way].table(f"delta.spark.{name}").scan(version=int(version), **WAYS[way])
    check(name, scan, EXPECTED[name]["versions"][version])


@pytest.mark.parametrize(("name", "way", "span"), FEEDS)
def test_change_feed(clients: dict[str, SharingClient], name: str, way: str, span: str) -> None:
    start, end = map(int, span.split("-"))
    answer = EXPECTED[name]["changes"][span]
    if "error" in answer:
        pytest.skip(f"Delta itself refuses this range: {answer['error']}")
    columns = [column for column, _ in answer["types"]]
    scan = clients[way].table(f"delta.spark.{name}").changes(start, end, columns=columns, **WAYS[way])
    check(name, scan, answer)
