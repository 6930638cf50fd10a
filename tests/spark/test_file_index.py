"""Spark asks for the files of each query: what is listed, kept, pinned, refused and told. Classic sessions alone."""

from __future__ import annotations

import re
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from delta_sharing_spark import SharingClient
from delta_sharing_spark.access.url.snapshot_listing import LISTINGS
from delta_sharing_spark.errors import VersionError
from delta_sharing_spark.native import table_index
from delta_sharing_spark.spark import file_index, native
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support import HANGS

ORDERED = pa.schema({"id": pa.int64(), "city": pa.string(), "file_size": pa.int64()})
KEYS = {
    "city": pa.string(),
    "day": pa.date32(),
    "long": pa.decimal128(30, 3),
    "short": pa.decimal128(9, 2),
    "moment": pa.timestamp("us", "UTC"),
    "local": pa.timestamp("us"),
    "bytes": pa.binary(),
    "flag": pa.bool_(),
    "small": pa.int8(),
    "ratio": pa.float32(),
}


def keyed(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "city": ("Lisbon", "O'Porto \\ é=/%", None)[number % 3],
        "day": date(1960 + number % 3, 1, 1),
        "long": Decimal(number % 3 - 1) * 10**20 + Decimal("0.125"),
        "short": Decimal(number % 3 - 1) / 4,
        "moment": datetime(1950 + 50 * (number % 3), 1, 1, 12, 30, tzinfo=timezone.utc),
        "local": datetime(2000 + number % 3, 7, 1, 12, 30),
        "bytes": (b"", b"AB", b"A long one of bytes")[number % 3],
        "flag": (True, False, None)[number % 3],
        "small": number % 3 - 1,
        "ratio": (0.5, -1.5, float("nan"))[number % 3],
    }


@pytest.fixture(autouse=True)
def no_earlier_listings() -> None:
    """A listing of a whole snapshot that another test asked for would answer without a request."""
    LISTINGS.clear()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharingServer]:
    root = tmp_path_factory.mktemp("index")
    ordered = DeltaTableBuilder(root / "ordered", ORDERED)
    for first in range(0, 1000, 100):
        ordered.append([{"id": i, "city": f"c{i % 7}", "file_size": 1} for i in range(first, first + 100)], files=1)
    keys = DeltaTableBuilder(
        root / "keys",
        pa.schema({"id": pa.int64(), **KEYS}),
        list(KEYS),
        {"delta.enableDeletionVectors": "true", "delta.columnMapping.mode": "name"},
    ).append([keyed(i) for i in range(300)])
    keys.delete(lambda t: pa.array([v % 10 == 3 for v in t["id"].to_pylist()]), deletion_vectors=True)
    with SharingServer() as server:
        for name, table in (("ordered", ordered), ("keys", keys)):
            server.add_table(f"index.d.{name}", table.path, access_modes=("url", "dir"))
        yield server


@pytest.fixture
def client(shared: SharingServer) -> Iterator[SharingClient]:
    shared.faults.clear()
    yield SharingClient(shared.profile(), retryTimeout="1s")
    shared.faults.clear()


def ids(frame: Any) -> list[int]:
    return sorted(row.id for row in frame.select("id").collect())


@pytest.fixture(params=[("url", "false"), ("dir", "true")], ids=["url", "dir, pushdown"])
def ordered(request: pytest.FixtureRequest, spark: Any, client: SharingClient) -> Iterator[Any]:
    """The ordered table by each access mode, with Spark's own pushdown and without."""
    mode, pushdown = request.param
    spark.conf.set("spark.sql.parquet.filterPushdown", pushdown)
    frame = client.table("index.d.ordered").scan(accessMode=mode).to_spark(spark)
    frame.createOrReplaceTempView("ordered_by_index")
    yield frame
    spark.conf.unset("spark.sql.parquet.filterPushdown")


@pytest.mark.parametrize(
    ("condition", "files", "rows"),
    [
        ("id >= 120 AND id < 180", 1, range(120, 180)),
        ("id = 777", 1, [777]),
        ("id IN (5, 250)", 2, [5, 250]),
        ("id > 5000", 0, []),
        ("id % 500 = 3", 10, [3, 503]),
        ("id < 250 OR id >= 950", 4, [*range(250), *range(950, 1000)]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_query_lists_what_its_filters_leave(
    spark: Any, client: SharingClient, ordered: Any, condition: str, files: int, rows: Sequence[int]
) -> None:
    assert ids(ordered.where(condition)) == list(rows)
    assert client.last_scans()[-1].files == files
    assert ids(spark.sql(f"SELECT id FROM ordered_by_index WHERE {condition}")) == list(rows)


def test_joins_and_inner_queries_list_what_their_filters_leave(spark: Any, client: SharingClient, ordered: Any) -> None:
    other = spark.createDataFrame([(150,), (450,)], "id long")
    joined = ordered.where("id < 200").alias("a").join(ordered.where("id >= 100").alias("b"), "id")
    assert joined.count() == 100
    listed = {scan.files for scan in client.last_scans()[-2:]}
    assert listed == {1}, "Spark infers each side's filter from the other's"
    assert ordered.where("id < 300").join(other, "id").count() == 1
    within = "SELECT id FROM ordered_by_index WHERE id = (SELECT max(id) FROM ordered_by_index WHERE id < 10)"
    assert ids(spark.sql(within)) == [9]


@pytest.mark.parametrize("mode", ["url", "dir"])
def test_a_file_is_asked_for_by_two_requests_at_most(
    spark: Any, client: SharingClient, shared: SharingServer, mode: str
) -> None:
    shared.reset_metrics()
    assert client.table("index.d.ordered").scan(accessMode=mode).to_spark(spark).where("id = 450").count() == 1
    assert shared.count("data") <= 2


CONDITIONS = (
    "city = 'Lisbon'", "city LIKE 'O\\'%'", "city IS NULL", "length(city) = 6", "day > DATE'1960-06-01'", "long < 0",
    "short = -0.25", "moment < TIMESTAMP'1975-01-01 00:00:00Z'", "year(local) = 2001", "bytes = X'4142'",
    "bytes IS NULL OR flag", "NOT flag", "small IN (-1, 1)", "ratio = 0.5", "isnan(ratio)", "concat(city, small) = 'Lisbon-1'",
    "city = 'Lisbon' AND id < 50 AND small < 1", "city IN ('Lisbon', 'x')",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Keys:
    """The table of many partition columns by the lane, its rows in Spark's own frame, and the ids that pass each condition."""

    frame: Any
    rows: Any
    passing: dict[str, list[int]]


@pytest.fixture(scope="module", params=["url", "dir"])
def keys(request: pytest.FixtureRequest, spark: Any, shared: SharingServer) -> Keys:
    scan = SharingClient(shared.profile()).table("index.d.keys").scan(accessMode=request.param)
    rows = spark.createDataFrame(scan.to_arrow())
    truths = rows.selectExpr("id", *(f"({condition}) IS TRUE" for condition in CONDITIONS)).toArrow()
    passing = {
        condition: sorted(truths["id"].filter(passes).to_pylist())
        for condition, passes in zip(CONDITIONS, truths.columns[1:], strict=True)
    }
    return Keys(scan.to_spark(spark), rows, passing)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_condition_on_partition_columns(keys: Keys, condition: str) -> None:
    assert ids(keys.frame.where(condition)) == keys.passing[condition]


def test_partition_columns_are_real_ones(spark: Any, keys: Keys) -> None:
    frame, rows = keys.frame, keys.rows
    assert frame.columns == rows.columns
    names = [name for name in KEYS if name != "ratio"]
    assert {str(r) for r in frame.select("id", *names).collect()} == {
        str(r) for r in rows.select("id", *names).collect()
    }
    few = spark.createDataFrame([("Lisbon", 1)], "city string, n int").where("n = 1")
    pruned = frame.join(few.hint("broadcast"), "city")
    assert "dynamicpruning" in pruned._jdf.queryExecution().executedPlan().toString()
    assert pruned.count() == rows.where("city = 'Lisbon'").count()


@pytest.mark.parametrize("mode", ["url", "dir"])
def test_a_condition_on_a_partition_column_lists_its_files(spark: Any, client: SharingClient, mode: str) -> None:
    client.table("index.d.keys").scan(accessMode=mode).to_spark(spark).where("day = DATE'1961-01-01'").collect()
    assert client.last_scans()[-1].files == 1


@pytest.mark.parametrize("mode", ["url", "dir"])
@pytest.mark.parametrize(("name", "rows"), [("ordered", 1000), ("keys", 270)])
def test_limits_bound_what_is_listed_and_opened(
    spark: Any, client: SharingClient, shared: SharingServer, mode: str, name: str, rows: int
) -> None:
    frame = client.table(f"index.d.{name}").scan(accessMode=mode).to_spark(spark)
    shared.reset_metrics()
    assert len(frame.take(5)) == 5
    scan = client.last_scans()[-1]
    assert (scan.files, scan.rows) == (1, 5), scan
    assert (scan.sent == {"limitHint": "5"}) == (mode == "url")
    assert shared.count("data") <= 2
    assert frame.limit(150).count() == 150
    assert frame.select("id").limit(7).union(frame.select("id").limit(9)).count() == 16
    assert client.last_scans()[-1].rows == 9
    assert frame.count() == rows
    assert client.last_scans()[-1].rows is None


def test_limits_of_a_frames_operations(spark: Any, client: SharingClient) -> None:
    frame = client.table("index.d.ordered").to_spark(spark)
    assert [row.id for row in frame.orderBy("id", ascending=False).limit(2).collect()] == [999, 998]
    assert len(frame.where("id % 2 = 0").take(500)) == 500
    assert frame.limit(10).where("id >= 0").count() == 10
    assert frame.groupBy("city").count().limit(100).count() == 7
    cached = frame.select("id").cache()
    try:  # its own scan needs all rows, whatever limit stands over another one
        together = cached.where("id >= 0").union(frame.selectExpr("id + 0 AS id").limit(3))
        assert together.count() == 1003
    finally:
        cached.unpersist(blocking=True)


@pytest.mark.parametrize("history", [True, False], ids=["history", "no-history"])
@pytest.mark.parametrize("mode", ["url", "dir"])
def test_one_version_for_a_frames_life(spark: Any, tmp_path: Path, mode: str, history: bool) -> None:
    """Commits between load and query, between two queries, and in a self-join."""
    if mode == "dir" and not history:
        pytest.skip("directory access shares all versions")
    built = DeltaTableBuilder(tmp_path / "t", pa.schema({"id": pa.int64()})).append([{"id": i} for i in range(10)])
    with SharingServer() as server:
        server.add_table("moving.d.t", built.path, access_modes=("url", "dir"), history=history)
        client = SharingClient(server.profile(), accessMode=mode)
        frame = client.table("moving.d.t").to_spark(spark)
        built.append([{"id": i} for i in range(10, 20)])
        first = ids(frame.where("id >= 5"))
        rows = 10 if history else 20  # a server that lists its newest version alone is asked once, after the commit
        assert first == list(range(5, rows))
        built.delete(lambda t: pa.array([v < 8 for v in t["id"].to_pylist()]))
        assert frame.count() == rows
        assert ids(frame.where("id < 3")) == [0, 1, 2]
        assert frame.alias("a").join(frame.where("id > 1").alias("b"), "id").count() == rows - 2
        again = client.table("moving.d.t").to_spark(spark)
        assert ids(again) == list(range(8, 20))
        built.append([{"id": 99}])
        assert ids(again) == list(range(8, 20)), "it was listed when it was loaded, or is asked for by version"


def test_equal_loads_are_equal_to_spark(spark: Any, client: SharingClient, shared: SharingServer) -> None:
    first, second = (client.table("index.d.ordered").to_spark(spark) for _ in range(2))
    assert first.sameSemantics(second)
    assert not first.sameSemantics(client.table("index.d.ordered").scan(where="id > 5").to_spark(spark))
    assert not first.sameSemantics(client.table("index.d.ordered").scan(version=3).to_spark(spark))
    stranger = SharingClient({**shared.profile(), "bearerToken": "another-recipient"})
    load = client.table("index.d.ordered").scan().resolved()
    object.__setattr__(load, "profile", stranger.profile)
    assert table_index.identity_of(load) != table_index.identity_of(client.table("index.d.ordered").scan().resolved())
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    try:
        sums = [frame.groupBy("city").sum("id").withColumnRenamed("sum(id)", "s") for frame in (first, second)]
        joined = sums[0].join(sums[1], "city")
        joined.collect()
        assert "ReusedExchange" in joined._jdf.queryExecution().executedPlan().toString()
    finally:
        spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")
    cached = first.cache()
    try:
        cached.count()
        shared.reset_metrics()
        assert second.count() == 1000
        assert shared.count("data") == 0
    finally:
        cached.unpersist(blocking=True)


def test_listings_are_kept_and_made_anew(spark: Any, client: SharingClient, shared: SharingServer) -> None:
    frame = client.table("index.d.ordered").scan(accessMode="url").to_spark(spark)
    shared.reset_metrics()
    for _ in range(3):
        assert frame.where("id < 150").count() == 150
    assert shared.count("query") == 1
    assert [scan.is_repeated for scan in client.last_scans()] == [False, True, True]
    planned = frame.where("id >= 950")
    paths = planned.limit(0).inputFiles() or planned.inputFiles()
    assert ids(planned) == list(range(950, 1000))
    gateway = next(iter(native._gateways.values()))
    for token in list(gateway._plans):
        gateway.release(gateway.plan(token))
    assert ids(planned) == list(range(950, 1000)), "what Spark has planned is read all the same"
    assert spark.read.parquet(paths[0]).count() > 0


def test_a_name_that_file_metadata_has_too_skips_nothing(spark: Any, client: SharingClient) -> None:
    frame = client.table("index.d.ordered").to_spark(spark)
    assert frame.where("_metadata.file_size > 100").count() == 1000
    assert frame.where("file_size = 1").count() == 1000
    assert frame.where("file_size = 2 AND id < 100").count() == 0
    assert client.last_scans()[-1].condition == "`id` < 100L"


@pytest.mark.parametrize(
    ("fault", "words", "row"),
    [({"status": 403}, "may not read", 3), ({"status": 500}, "500", 5), ({"truncate": 40}, "answer|line", 6)],
    ids=["403", "500", "truncated"],
)
@pytest.mark.parametrize("is_join", [False, True], ids=["filter", "join"])
def test_what_goes_wrong_in_a_listing_is_one_line(
    spark: Any,
    client: SharingClient,
    shared: SharingServer,
    caplog: pytest.LogCaptureFixture,
    fault: dict[str, int],
    words: str,
    row: int,
    is_join: bool,
) -> None:
    """Of a row for each fault, for what was counted before is not listed anew."""
    frame = client.table("index.d.ordered").scan(accessMode="url").to_spark(spark)
    query = frame.join(frame.where(f"id = {row + 10}"), "id") if is_join else frame.where(f"id = {row}")
    shared.faults.add("query", times=None, **fault)
    with pytest.raises(PySparkException, match=words) as caught:
        query.collect()
    assert re.fullmatch(r"\w+Error: [^\n]*", str(caught.value)), str(caught.value)
    shared.faults.clear()
    assert frame.where(f"id = {row}").count() == 1
    assert "Traceback" not in caplog.text


def test_scans_are_told(spark: Any, client: SharingClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "delta_sharing_spark.native.table_index"):
        frame = client.table("index.d.ordered").scan(accessMode="url").to_spark(spark)
        assert frame.where("id = 450").count() == 1
    scan = client.last_scans()[-1]
    assert (scan.files, scan.total_files, scan.mode, scan.version) == (1, 10, "url", 10)
    assert any("450" in text for text in scan.filters)
    assert "jsonPredicateHints" in scan.sent
    assert "1 of 10 files" in caplog.text
    assert "1 of 10 files" in client.table("index.d.ordered").scan().explain(spark)


def test_a_stranger_gets_no_answer(spark: Any, client: SharingClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Py4J's callback server takes anybody's calls of any attribute: what is there answers this user, and files alone."""
    frame = client.table("index.d.ordered").to_spark(spark)
    port = spark.sparkContext._gateway._callback_server.port
    pool = spark.sparkContext._gateway.gateway_property.pool
    ours = [name for name, held in list(pool.dict.items()) if type(held).__name__ == "SharedTableLister"]
    assert ours

    def call(target: str, method: str) -> str:
        with socket.create_connection(("127.0.0.1", port), timeout=HANGS) as peer:
            peer.sendall(f"c\n{target}\n{method}\nn\nn\ne\n".encode())
            return peer.makefile("rb").readline().decode()

    methods = ("answer", "toString", "__getattribute__", "__reduce_ex__", "__dict__", "__init__", "equals", "index")
    answers = {method: call(ours[-1], method) for method in methods}
    assert {method: text for method, text in answers.items() if not text.startswith("!x")} == {}, "errors of Python's"
    assert "SharingClient" not in "".join(answers.values()).replace("test_file_index", "")
    assert call(ours[-1], "apply").startswith("!yj"), "this user's process is told the table's size"
    shown = len(client.last_scans())
    monkeypatch.setattr(file_index, "is_own_process", lambda peer: False)
    import base64

    told = base64.b64decode(call(ours[-1], "apply")[3:])
    assert told == b"\0" + file_index._REFUSED.encode()
    with pytest.raises(Exception, match="another user"):
        frame.where("id = 123").count()
    assert len(client.last_scans()) == shown


def test_a_session_that_differs_falls_back(
    spark: Any, client: SharingClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuses(session: Any) -> None:
        raise RuntimeError("callbacks are forbidden here")

    monkeypatch.setattr(file_index, "_sessions", type(file_index._sessions)())
    monkeypatch.setattr(file_index, "_tried", refuses)
    with caplog.at_level("INFO"):
        frame = client.table("index.d.keys").to_spark(spark)
        client.table("index.d.keys").to_spark(spark)
    assert caplog.text.count("this session does not ask for its files: RuntimeError: callbacks are forbidden here") == 1
    assert caplog.text.count("Python data source (the session does not ask for the files of its queries") == 2
    assert frame.where("city = 'Lisbon'").count() == 90
    assert client.sql(spark, "SELECT count(*) n FROM index.d.keys").collect()[0].n == 270


def test_an_interrupt_ends_the_listing_and_the_query(spark: Any, tmp_path: Path) -> None:
    """While the server is silent; the session goes on."""
    table = DeltaTableBuilder(tmp_path / "t", pa.schema({"id": pa.int64()})).append([{"id": 1}])
    with SharingServer({"s.d.t": table.path}) as server:
        frame = SharingClient(server.profile()).table("s.d.t").scan(accessMode="url").to_spark(spark)
        main, is_over = threading.main_thread().ident or 0, threading.Event()
        server.faults.add(
            "query", times=None, call=lambda: (signal.pthread_kill(main, signal.SIGINT), is_over.wait(HANGS))
        )
        try:
            with pytest.raises(KeyboardInterrupt):
                frame.where("id >= 0").join(frame.where("id < 5"), "id").count()
            until = time.monotonic() + HANGS
            while file_index._under_way:
                assert time.monotonic() < until
                time.sleep(0.05)
        finally:
            is_over.set()
        # Py4J calls from another thread of Java's from now on, and this makes the session its active one.
        assert spark.createDataFrame([(1,)], "id long").count() == 1
        assert not spark.sparkContext.statusTracker().getActiveJobsIds()
        assert server.count("query") <= 1, "the one that was broken off"
        assert server.count("data") == 0


def test_eight_threads_at_once(spark: Any, client: SharingClient) -> None:
    frame = client.table("index.d.ordered").to_spark(spark)
    answers: dict[int, int] = {}
    threads = [
        threading.Thread(target=lambda n=n: answers.update({n: frame.where(f"id < {n * 100 + 50}").count()}))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {n: n * 100 + 50 for n in range(8)}


def test_threads_of_spark_leave_no_connections(spark: Any, client: SharingClient) -> None:
    """Py4J keeps one for each thread of Java's that calls, and Spark plans broadcasts in threads that it makes anew."""
    table = client.table("index.d.ordered").to_spark(spark, "native").select("id")
    table.count()
    server = spark.sparkContext._gateway._callback_server

    def joined(count: int) -> Any:
        frame = table
        for number in range(count):
            frame = frame.join(table.where(f"id < {50 + number}").hint("broadcast"), "id")
        return frame

    before = len(server.connections)
    assert ids(joined(14)) == list(range(50))
    assert len(server.connections) <= before + 8


def test_a_static_frame_joined_to_a_stream(spark: Any, client: SharingClient, shared: SharingServer) -> None:
    frame = client.table("index.d.ordered").scan(accessMode="url").to_spark(spark).where("id < 100")
    shared.reset_metrics()
    ticks = spark.readStream.format("rate").option("rowsPerSecond", 50).load().selectExpr("value % 100 AS id")
    query = ticks.join(frame, "id").writeStream.format("memory").queryName("joined_by_index").start()
    try:
        until = time.monotonic() + HANGS
        while query.lastProgress is None or query.lastProgress["batchId"] < 3:
            assert time.monotonic() < until
            time.sleep(0.1)
    finally:
        query.stop()
    assert spark.table("joined_by_index").count() > 0
    assert shared.count("query") <= 2, "each batch asks, an earlier listing answers"


def test_what_the_function_of_a_streams_batch_reads_is_no_part_of_the_batch(
    spark: Any, client: SharingClient, tmp_path: Path
) -> None:
    """Spark runs it within the batch's execution, whose plan tells nothing of an RDD that the function makes."""
    spark.range(3).write.parquet(str(tmp_path / "in"))
    table = client.table("index.d.ordered")
    found: list[Any] = []

    def read(batch: Any, number: int) -> None:
        found.extend(table.to_spark(spark).rdd.map(lambda row: (row.id, row.city)).collect())

    files = spark.readStream.schema("id long").parquet(str(tmp_path / "in"))
    limited = table.to_spark(spark).limit(5).select("city")

    def read_by(stream: Any, name: str) -> list[Any]:
        found.clear()
        writer = stream.writeStream.foreachBatch(read).option("checkpointLocation", str(tmp_path / name))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(HANGS)
        finally:
            query.stop()
        return sorted(found)

    rows = [(i, f"c{i % 7}") for i in range(1000)]
    assert read_by(files, "alone") == rows
    assert read_by(files.crossJoin(limited), "joined") == rows


def test_versions_that_are_refused_otherwise(client: SharingClient, shared: SharingServer) -> None:
    """A version that the user asks for is never replaced by another one."""
    with pytest.raises(VersionError):
        client.table("index.d.ordered").scan(version=999).resolved()
    assert signal.getsignal(signal.SIGINT) is not None
