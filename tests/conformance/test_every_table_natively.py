"""Spark's own reader over a share (the native lane) gives what the Python source gives: rows, types, column metadata.

Every golden table, the tables that Delta Lake on Spark wrote with each schema that they had, and the change feeds of ours.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.canonical import row_texts
from conformance.test_golden import ANSWERED, BROKEN, COUNTED, TABLES, shared_name
from delta_sharing_spark import SharingClient
from delta_sharing_spark.schema.types import spark_schema_json
from delta_sharing_spark.spark.lanes import python_frame
from delta_sharing_spark.spark.native import native_frame, reach_of
from delta_sharing_spark.table import Scan
from delta_sharing_spark.testing.server import SharingServer
from unit.changes.feed_tables import FEEDS

HERE = Path(__file__).parents[1] / "data" / "delta_spark"
WRITTEN = {path.parent.name: path.parent for path in sorted(HERE.glob("*/expected.json"))}
#: Tables of which the lane says that it does not fit them.
ASIDE = {"void_column": "a nested void"}


@pytest.fixture(scope="module")
def client() -> Iterator[SharingClient]:
    with SharingServer() as running:
        for name, path in TABLES.items():
            running.add_table(f"golden.tables.{shared_name(name)}", path, access_modes=("url", "dir"))
        for name, path in WRITTEN.items():
            running.add_table(f"delta.spark.{name}", path, access_modes=("url", "dir"))
        yield SharingClient(running.profile(), retryTimeout="1s")


def check(spark: Any, scan: Scan, counted: bool = True) -> None:
    frame = native_frame(spark, scan.opened(), reach_of(spark), scan.table.client.scans.append)
    described = json.loads(frame.schema.json())
    assert described == as_nullable(spark_schema_json(scan.schema))
    # Spark's toArrow refuses a variant or a place that is NULL.
    if any(name in str(scan.schema) for name in ("variant", "geometry", "geography")):
        assert sorted(map(str, frame.collect())) == sorted(map(str, python_frame(scan, spark).collect()))
    else:
        assert unpadded(scan, row_texts(frame.toArrow())) == unpadded(scan, row_texts(scan.to_arrow()))
    assert not counted or frame.count() == scan.count()
    assert all(path.startswith("webhdfs://") for path in frame.inputFiles())
    shown = frame.inputFiles()
    assert (len(shown) == 0) == (scan.plan().report.files == 0), "small files are shown as one"


def unpadded(scan: Scan, texts: list[str]) -> list[str]:
    """CHAR columns are padded by Spark on reading, and in no file."""
    padded = any("char(" in str(f.metadata.get("__CHAR_VARCHAR_TYPE_STRING", "")) for f in scan.schema.fields)
    return sorted(t.replace(" ", "") for t in texts) if padded else texts


def as_nullable(tree: Any) -> Any:
    """A schema without its NOT NULLs: Parquet files read by Spark are always nullable."""
    if isinstance(tree, dict):
        return {
            k: True if k in ("nullable", "containsNull", "valueContainsNull") else as_nullable(v)
            for k, v in tree.items()
        }
    return [as_nullable(item) for item in tree] if isinstance(tree, list) else tree


@pytest.mark.parametrize(
    ("name", "mode"), list(zip([*ANSWERED, *COUNTED], itertools.cycle(["url", "dir"]), strict=False))
)
def test_golden(spark: Any, client: SharingClient, name: str, mode: str) -> None:
    check(spark, client.table(f"golden.tables.{shared_name(name)}").scan(accessMode=mode))


@pytest.mark.parametrize("name", BROKEN)
def test_broken_golden(spark: Any, client: SharingClient, name: str) -> None:
    error, words = BROKEN[name]
    scan = client.table(f"golden.tables.{shared_name(name)}").scan(accessMode="dir")
    with pytest.raises(Exception) as refused:  # noqa: PT011 - ours at the load, Spark's own in a query
        native_frame(spark, scan.opened(), reach_of(spark), scan.table.client.scans.append).collect()
    text = f"{type(refused.value).__name__}: {refused.value}"
    assert error in text
    assert words in text


@pytest.mark.parametrize("name", WRITTEN)
def test_written_by_delta(spark: Any, client: SharingClient, name: str) -> None:
    """The last version of each schema: ``test_delta_spark_tables.py`` has the rows of the others, and Spark's part is types."""
    versions = json.loads((WRITTEN[name] / "expected.json").read_text(encoding="utf-8"))["versions"]
    following = itertools.zip_longest(versions, list(versions)[1:])
    last = [
        version for version, after in following if versions[version]["types"] != versions.get(after, {}).get("types")
    ]
    table = client.table(f"delta.spark.{name}")
    for version in last:
        mode = "dir" if int(version) % 2 else "url"
        scan = table.scan(version=int(version), accessMode=mode)
        if name in ASIDE:
            with pytest.raises(Exception, match=ASIDE[name]):
                native_frame(spark, scan.opened(), reach_of(spark), scan.table.client.scans.append)
            continue
        check(spark, scan, counted=version == last[-1])


def test_change_feeds(spark: Any, tmp_path: Path) -> None:
    with SharingServer() as server:
        for number, (name, build) in enumerate(FEEDS.items()):
            server.add_table(f"feeds.d.t{number}", build(tmp_path / str(number)).path, access_modes=("url", "dir"))
            table = SharingClient(server.profile()).table(f"feeds.d.t{number}")
            changes = functools.partial(table.changes, number % 2, accessMode=("url", "dir")[number // 2 % 2])
            scan = changes()
            frame = native_frame(spark, scan.opened(), reach_of(spark), scan.table.client.scans.append)
            assert json.loads(frame.schema.json()) == as_nullable(spark_schema_json(scan.schema)), name
            narrow = ("_change_type <> 'insert' AND id < 7", "_commit_version = 2 OR id IS NULL")[number % 2]
            rows = scan.to_arrow()
            assert row_texts(frame.toArrow()) == row_texts(rows), name
            assert row_texts(frame.where(narrow).toArrow()) == row_texts(changes(where=narrow).to_arrow()), name
            if number % 6 == 0:
                counts = Counter(
                    zip(rows["_change_type"].to_pylist(), rows["_commit_version"].to_pylist(), strict=True)
                )
                grouped = frame.groupBy("_change_type", "_commit_version").count().collect()
                assert {tuple(row)[:2]: row["count"] for row in grouped} == counts, name
