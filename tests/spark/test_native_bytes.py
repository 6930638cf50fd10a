"""What the native lane fetches for a query: by Spark's plan, the columns that its scans read and no more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_sharing_spark import SharingClient
from delta_sharing_spark.native.answers import Pause
from delta_sharing_spark.native.budget import Bounds
from delta_sharing_spark.native.plan_reader import PlanReader
from delta_sharing_spark.native.scan_columns import ScanColumns
from delta_sharing_spark.spark import native
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder, FileStyle

FILES, ROWS = 4, 40_000


@pytest.mark.usefixtures("files_in_parts")
@pytest.mark.parametrize("way", ["client.sql", "view"])
def test_each_planned_column_chunk_is_fetched_once(
    spark: Any, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One scan reads a dictionary first and then a run in which that column stands last, another scan one column alone."""
    # A machine under load takes longer to decode than a reader is waited for.
    monkeypatch.setattr("delta_sharing_spark.native.plan_reader.LEAVES", Pause(60.0, 60.0))
    monkeypatch.setattr("delta_sharing_spark.native.answers._UNREAD", 60.0)
    draw = np.random.default_rng(3)
    columns = {name: pa.array(draw.integers(0, 1 << 40, ROWS)) for name in ("a", "item", "b", "size", "c")}
    columns["day"] = pa.array(np.arange(ROWS) // 100)
    columns["d"] = columns["c"]
    facts = pa.table({name: columns[name] for name in ("a", "item", "day", "b", "size", "c", "d")})
    built = DeltaTableBuilder(tmp_path / "facts", facts.schema, style=FileStyle(keep_rows=False))
    built.append(facts, files=FILES)
    text = "SELECT count(item) FROM s.d.facts WHERE day BETWEEN 120 AND 130 AND item > (SELECT avg(size) / 1000 FROM s.d.facts)"
    days, items = np.arange(ROWS) // 100, columns["item"].to_numpy()
    expected = int(((days >= 120) & (days <= 130) & (items > columns["size"].to_numpy().mean() / 1000)).sum())
    footers = [pq.read_metadata(file) for file in sorted((tmp_path / "facts").glob("*.parquet"))]
    groups = [footer.row_group(0) for footer in footers]
    sizes = [{c.path_in_schema: c.total_compressed_size for c in map(g.column, range(g.num_columns))} for g in groups]
    read = next(
        s for s, g in zip(sizes, groups, strict=True) if g.column(2).statistics.min <= 120 <= g.column(2).statistics.max
    )
    chunks = read["item"] + read["day"] + sum(s["size"] for s in sizes)
    with SharingServer({"s.d.facts": built.path}) as server:
        client = SharingClient(server.write_profile(tmp_path / "config.share"))
        if way == "view":
            client.register(spark, tables={"facts_of_bytes": "s.d.facts"}, engine="native")
            frame = spark.sql(text.replace("s.d.facts", "facts_of_bytes"))
        else:
            frame = client.sql(spark, text, engine="native")
        server.reset_metrics()
        assert frame.collect() == [(expected,)]
        assert chunks <= server.bytes_sent("data") <= chunks + FILES * (8 << 10)
        server.reset_metrics()
        assert frame.collect() == [(expected,)]
        assert server.bytes_sent("data") == 0, "they are held"


@pytest.mark.parametrize(("row_groups", "rows"), [(1, 12_000), (5, 4_000)])
def test_each_byte_of_wide_files_is_fetched_once(
    spark: Any, row_groups: int, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By several tasks, of files whose row groups are larger than what is fetched at once and than what is held once it was read."""
    # A machine under load takes longer to decode than chunks are held for their readers, and than a reader is waited for.
    monkeypatch.setattr("delta_sharing_spark.native.budget._ABANDONED", 60.0)
    monkeypatch.setattr("delta_sharing_spark.native.plan_reader.LEAVES", Pause(60.0, 60.0))
    draw = np.random.default_rng(5)
    wide = pa.table({f"c{n}": pa.array(draw.integers(0, 1 << 40, rows * row_groups)) for n in range(50)})
    style = FileStyle(keep_rows=False, row_group_size=rows)
    built = DeltaTableBuilder(tmp_path / "wide", wide.schema, style=style)
    for _ in range(6):
        built.append(wide)
    files = sum(file.stat().st_size for file in built.path.glob("*.parquet"))
    with SharingServer({"s.d.wide": built.path}) as server:
        client = SharingClient(server.write_profile(tmp_path / "config.share"))
        frame = client.table("s.d.wide").scan().to_spark(spark, engine="native")
        for gateway in native._gateways.values():
            monkeypatch.setattr(gateway._budget, "group_bytes", 1 << 20)
            monkeypatch.setattr(gateway._budget, "_bounds", Bounds(kept=1 << 19, ahead=3 << 20))
        server.reset_metrics()
        frame.write.format("noop").mode("overwrite").save()
        assert files <= server.bytes_sent("data") <= 1.03 * files


@pytest.mark.usefixtures("files_in_parts")
def test_each_scan_is_read_with_its_own_columns(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a derived DataFrame its own, of a cached one what fills the cache, of two scans of a join and of an RDD too."""
    monkeypatch.setattr("delta_sharing_spark.native.plan_reader._SENT_WHOLE", -1)
    inner = pa.struct({"x": pa.int64(), "y": pa.string()})
    built = DeltaTableBuilder(tmp_path / "t", pa.schema({"id": pa.int64(), "text": pa.string(), "inner": inner}))
    built.append([{"id": n, "text": f"t{n}", "inner": {"x": n, "y": "y"}} for n in range(100)], files=2)
    told: set[frozenset[bytes] | None] = set()
    read = PlanReader.read

    def listen(self: PlanReader, number: int, offset: int, columns: ScanColumns | None = None) -> Any:
        told.add(None if columns is None else columns.paths)
        return read(self, number, offset, columns)

    def columns_of(run: Callable[[], object]) -> set[frozenset[bytes] | None]:
        told.clear()
        run()
        return set(told)

    monkeypatch.setattr(PlanReader, "read", listen)
    everything = frozenset({b"id", b"text", b"inner.x", b"inner.y"})
    with SharingServer({"s.d.t": built.path}) as server:
        client = SharingClient(server.write_profile(tmp_path / "config.share"))
        frame = client.sql(spark, "SELECT * FROM s.d.t", engine="native")
        assert columns_of(frame.toArrow) == {everything}
        assert columns_of(lambda: frame.groupBy("id").count().collect()) == {frozenset({b"id"})}
        nested = frame.where("inner.y = 'y'").select("text").write.format("noop").mode("overwrite")
        assert columns_of(nested.save) == {frozenset({b"text", b"inner.y"})}
        other = client.table("s.d.t").scan().to_spark(spark, engine="native")
        joined = other.alias("a").join(other.select("id"), "id").agg({"a.text": "max"})
        assert columns_of(joined.collect) == {frozenset({b"id", b"text"}), frozenset({b"id"})}
        cached = other.select("id", "inner").cache()
        beside = other.select("text").crossJoin(cached.select("id")).agg({"text": "max"})
        assert columns_of(beside.collect) == {frozenset({b"id", b"inner.x", b"inner.y"}), frozenset({b"text"})}
        cached.unpersist()
        assert columns_of(lambda: list(other.select("id").toLocalIterator())) == {frozenset({b"id"})}
        if hasattr(other, "_jdf"):
            assert columns_of(other.select("text").rdd.count) == {frozenset({b"text"})}


def test_queries_over_the_same_files_share_what_was_read(spark: Any, tmp_path: Path) -> None:
    """A table that did not change is not read again; one that changed or failed is listed anew."""
    built = DeltaTableBuilder(tmp_path / "t", pa.schema({"id": pa.int64(), "text": pa.string()}))
    built.append([{"id": n, "text": f"t{n}"} for n in range(100)], files=2)
    count = "SELECT count(id), max(text) FROM s.d.t"
    with SharingServer({"s.d.t": built.path}) as server:
        client = SharingClient(server.write_profile(tmp_path / "config.share"))

        def run(text: str = count, client: SharingClient = client) -> tuple[list[Any], int]:
            server.reset_metrics()
            found = client.sql(spark, text, engine="native").collect()
            return found, sum(request.kind == "data" for request in server.requests)

        assert run() == ([(100, "t99")], 2)
        assert run() == ([(100, "t99")], 0)
        assert run("SELECT a.id FROM s.d.t a JOIN s.d.t b USING (id) WHERE id >= 0 AND a.text = 't7'") == ([(7,)], 0)
        assert run("SELECT count(id), 'x' FROM s.d.t VERSION AS OF 1") == ([(100, "x")], 2), (
            "other options, another load"
        )
        assert run(client=SharingClient(server.profile()))[1] == 0, "the same recipient has the same rights"
        built.append([{"id": 100, "text": "u"}])
        assert run() == ([(101, "u")], 3)
        assert run() == ([(101, "u")], 0)
        built.append([{"id": 101, "text": "v"}])
        server.faults.add("data", times=None, status=404)
        with pytest.raises(Exception, match="the storage no longer has it"):
            run()
        server.faults.clear()
        assert run() == ([(102, "v")], 4)
        session = spark.newSession()
        assert client.sql(session, count, engine="native").collect() == [(102, "v")]
        assert client.sql(session, count, engine="native").sparkSession is session
