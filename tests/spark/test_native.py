"""The native lane as users meet it: which lane is taken, what Spark prunes, errors, expiry, views, and secrets."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from delta_sharing_spark import SharingClient, load_as_spark
from delta_sharing_spark.errors import ConfigError, OptionError
from delta_sharing_spark.native.gateway import Gateway
from delta_sharing_spark.native.plan import NativePlan
from delta_sharing_spark.schema.types import Array, Field, Primitive, Struct
from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.sharing.wire_records import Table
from delta_sharing_spark.spark import file_index, native, views
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder, FileStyle
from support import HANGS

SCHEMA = pa.schema({"id": pa.int64(), "city": pa.string(), "x": pa.float64(), "s": pa.struct({"a": pa.int32()})})


def rows(count: int = 3000) -> list[dict[str, Any]]:
    cities = ("Lisbon", "O'Porto \\ é", None)
    return [
        {
            "id": i,
            "city": cities[i % 3],
            "x": float("nan") if i % 50 == 0 else -0.0 if i % 7 == 0 else i / 3,
            "s": {"a": i},
        }
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharingServer]:
    root = tmp_path_factory.mktemp("native")
    style = FileStyle(row_group_size=200, parquet={"write_page_checksum": True, "compression": "none"})
    properties = {"delta.enableDeletionVectors": "true", "delta.columnMapping.mode": "name"}
    plain = DeltaTableBuilder(root / "plain", SCHEMA, style=style).append(rows(), files=3)
    cities = DeltaTableBuilder(root / "cities", SCHEMA, ["city"], properties, style=style).append(rows(), files=1)
    cities.delete(lambda t: pa.array([v % 10 == 3 for v in t["id"].to_pylist()]), deletion_vectors=True)
    empty = DeltaTableBuilder(root / "empty", SCHEMA, ["city"])
    with SharingServer() as server:
        for name, table in (("plain", plain), ("cities", cities), ("empty", empty)):
            server.add_table(f"views.d.{name}", table.path, access_modes=("url", "dir"))
        yield server


@pytest.fixture
def client(shared: SharingServer) -> Iterator[SharingClient]:
    shared.faults.clear()
    yield SharingClient(shared.profile(), retryTimeout="1s")
    shared.faults.clear()


def is_native(frame: Any) -> bool:
    return any(path.startswith("webhdfs://127.0.0.1:") for path in frame.inputFiles())


def explained(frame: Any) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        frame.explain()
    return out.getvalue()


@pytest.mark.connect_only
def test_a_connect_server_lets_go_of_frames_that_have_ended(spark: Any, client: SharingClient) -> None:
    """When the next one is made: nothing is asked of the server while the garbage collector runs."""
    table = client.table("views.d.plain")
    kept = table.to_spark(spark)
    names = file_index._holder(spark).dataFrameCache().keySet
    before = sum(str(name).startswith("delta-sharing-") for name in names())
    for _ in range(3):
        other = table.to_spark(spark, "native").where("id < 5").select("city")
        assert other.count() == 5
        del other
    gc.collect()
    again = table.to_spark(spark)
    assert sum(str(name).startswith("delta-sharing-") for name in names()) <= before + 1
    assert kept.count() == again.count() == 3000


@pytest.mark.connect
def test_engines(spark: Any, client: SharingClient, shared: SharingServer, tmp_path: Path) -> None:
    scan = client.table("views.d.plain").scan()
    assert is_native(scan.to_spark(spark))
    assert is_native(scan.to_spark(spark, engine="native"))
    assert not is_native(
        SharingClient(shared.write_profile(tmp_path / "p"), engine="python")
        .table("views.d.plain")
        .scan()
        .to_spark(spark)
    )
    assert is_native(load_as_spark(f"{tmp_path / 'p'}#views.d.plain", spark=spark, engine="native"))
    assert "native lane" in scan.explain(spark)
    assert "engine='python'" in scan.explain(spark, engine="python")
    limited = client.table("views.d.plain").scan(limit=5)
    assert "limit" in limited.explain(spark)
    with pytest.raises(OptionError, match="auto, native, python"):
        scan.to_spark(spark, engine="jvm")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharingServer]:
    """Many small files: before and after columns were added, with deleted rows, by two writers, without statistics."""
    root = tmp_path_factory.mktemp("small")
    built = DeltaTableBuilder(root / "small", SCHEMA, properties={"delta.enableDeletionVectors": "true"})
    built.append(rows(1200), files=20)
    day = Struct((Field("n", Primitive("long")), Field("day", Primitive("date"))))
    for step, column in enumerate((Field("tags", Array(Primitive("string"), True)), Field("more", day))):
        built.add_column(column)
        first = 2000 + 1000 * step
        new = [
            {"id": first + n, "city": "Faro", "x": n / 7, "s": None, "tags": ["a", None][: n % 3]} for n in range(300)
        ]
        built.append([{**row, "more": {"n": row["id"], "day": None}} if step else row for row in new], files=5)
    built.delete(lambda t: pa.array([v % 10 == 3 for v in t["id"].to_pylist()]), deletion_vectors=True)
    shutil.copytree(root / "small", root / "silent")
    for log in (root / "silent" / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        for action in actions:
            action.get("add", {}).pop("stats", None)
        log.write_text("\n".join(map(json.dumps, actions)))
    style = FileStyle(parquet={"write_page_checksum": True, "compression": "none"})
    damaged = DeltaTableBuilder(root / "damaged", SCHEMA, style=style).append(rows(), files=6)
    with SharingServer() as server:
        for name, path in (("small", built.path), ("silent", root / "silent"), ("damaged", damaged.path)):
            server.add_table(f"views.d.{name}", path, access_modes=("url", "dir"))
        yield server


@pytest.mark.parametrize("mode", [pytest.param("url", marks=pytest.mark.connect), "dir"])
def test_small_files_are_shown_as_one(spark: Any, spark_mode: str, small: SharingServer, mode: str) -> None:
    client = SharingClient(small.profile())
    scan = client.table("views.d.small").scan(accessMode=mode)
    table = scan.to_arrow()
    expected = spark.createDataFrame(table)
    frame = scan.to_spark(spark)
    assert is_native(frame)
    assert len(frame.inputFiles()) == 1
    some = {
        "true": ["id"],
        "id = 77": ["s.a", "id"],
        "more.n > 3290": ["id", "more", "tags"],
        "size(tags) = 2 AND id < 2010": ["s.a", "id"],
        "x = 0": ["id"],
        "more IS NULL AND id > 2290": ["id", "more", "tags"],
    }

    def texts(of: Any) -> dict[tuple[str, bool], list[str]]:
        queries = {(where, is_whole): of.where(where) for where in some for is_whole in (True, False)}
        chosen = {query: left.select(*(["*"] if query[1] else some[query[0]])) for query, left in queries.items()}
        return {query: sorted(map(str, left.collect())) for query, left in chosen.items()}

    assert texts(frame) == texts(expected)
    parts = spark.sql("SELECT * FROM {frame} WHERE id % 2 = 0", frame=frame).agg({"id": "sum", "more.n": "max"})
    assert parts.collect() == expected.where("id % 2 = 0").agg({"id": "sum", "more.n": "max"}).collect()
    if spark_mode == "classic":
        last = client.last_scans()[-1]
        assert (last.files, last.spark_files) == (30, 1)
        assert ", shown as 1, for" in str(last)


@pytest.mark.parametrize("mode", ["url", "dir"])
def test_counts_ask_no_storage(spark: Any, small: SharingServer, shared: SharingServer, mode: str) -> None:

    def counted(client: SharingClient, server: SharingServer, frame: Any, text: str) -> tuple[Any, bool]:
        """A query's rows, and whether the statistics were all that it asked."""
        frame.createOrReplaceTempView("counted")
        server.reset_metrics()
        found = spark.sql(text).collect()
        is_counted = client.last_scans()[-1].is_counted
        assert not (is_counted and server.count("data"))
        return found, is_counted

    client = SharingClient(small.profile())
    count = "SELECT count(*) FROM counted"
    rows_left = client.table("views.d.small").scan().to_arrow().num_rows
    frames = [client.table(f"views.d.{name}").scan(accessMode=mode).to_spark(spark) for name in ("small", "silent")]
    counts = [counted(client, small, frame, count) for frame in frames]
    assert counts == [([(rows_left,)], True), ([(rows_left,)], False)]
    told = client.table("views.d.small").scan(accessMode=mode, countByStatistics="false").to_spark(spark)
    assert counted(client, small, told, count) == ([(rows_left,)], False)
    client = SharingClient(shared.profile())
    cities = client.table("views.d.cities").scan(accessMode=mode)
    expected = spark.createDataFrame(cities.to_arrow())
    frame = cities.to_spark(spark)
    queries = {
        count: True,
        "SELECT city, count(*) FROM counted GROUP BY city ORDER BY city": True,
        "SELECT count(*) FROM counted WHERE city = 'Lisbon'": True,
        "SELECT DISTINCT upper(city) u FROM counted ORDER BY u": True,
        "SELECT 1 one FROM counted WHERE city IS NULL": True,
        "SELECT count(*) FROM counted WHERE id > 100": False,
        "SELECT a.city, count(*) FROM counted a JOIN counted b ON a.id = b.id GROUP BY a.city ORDER BY 1": False,
        "SELECT count(*), (SELECT max(id) FROM counted) FROM counted": False,
        "SELECT DISTINCT input_file_name() > '' named FROM counted": False,
    }
    found = {text: counted(client, shared, frame, text) for text in queries}
    assert {text: is_counted for text, (_, is_counted) in found.items()} == queries
    expected.createOrReplaceTempView("counted")
    wanted = {text: spark.sql(text).collect() for text in queries if "input_file_name" not in text}
    assert {text: found[text][0] for text in wanted} == wanted
    assert frame.select("_metadata.file_path").distinct().count() == 3
    cut = {"spark.sql.files.maxPartitionBytes": "4k", "spark.sql.files.openCostInBytes": "0"}
    try:
        for name, value in cut.items():
            spark.conf.set(name, value)
        sampled = frame.sample(fraction=0.5, seed=3)
        assert sampled.count() == len(sampled.collect())
    finally:
        for name in cut:
            spark.conf.unset(name)


def test_a_damaged_small_file_is_named(spark: Any, small: SharingServer) -> None:
    """Spark's reader tells the file that it was shown, of which six of the table's are part."""
    client = SharingClient(small.profile(), retryTimeout="1s")
    damaged = client.table("views.d.damaged").scan()
    files = NativePlan(damaged.resolved(), damaged.plan()).files[0].members
    victim = files[3].task
    small.faults.add("data", urlsplit(victim.location).path.rpartition("/")[2], times=None, corrupt=500)
    try:
        with pytest.raises(PySparkException, match=f"Error: file {victim.id} of views.d.damaged"):
            client.table("views.d.damaged").scan().to_spark(spark).collect()
    finally:
        small.faults.clear()


@pytest.mark.parametrize("table", ["plain", "cities"])
def test_spark_prunes_and_filters_exactly(spark: Any, client: SharingClient, table: str) -> None:
    conditions = ("id = 77", "id > 2990 AND s.a < 2995", "city IS NULL AND id < 20", "city = 'Lisbon'", "x > 900", "x = 0",
                  "x = double('NaN')", "city LIKE 'O%'", "id % 100 = 4")  # fmt: skip
    rows = client.table(f"views.d.{table}").scan().to_arrow()
    truths = [f"({condition}) IS TRUE" for condition in conditions]
    truth = spark.createDataFrame(rows).selectExpr("id", *truths).toArrow()
    expected = {
        where: sorted(truth["id"].filter(passes).to_pylist())
        for where, passes in zip(conditions, truth.columns[1:], strict=True)
    }
    by_mode = {mode: client.table(f"views.d.{table}").scan(accessMode=mode).to_spark(spark) for mode in ("url", "dir")}
    found = {mode: {where: ids(frame.where(where)) for where in conditions} for mode, frame in by_mode.items()}
    assert found == dict.fromkeys(by_mode, expected)
    assert [frame.count() for frame in by_mode.values()] == [rows.num_rows] * 2


def test_the_plan_shows_what_is_pruned_and_filtered(spark: Any, client: SharingClient, shared: SharingServer) -> None:
    frame = client.table("views.d.cities").scan().to_spark(spark)
    plan = explained(frame.where("city = 'Lisbon' AND id > 2900").select("s.a"))
    assert "FileScan deltaSharing views.d.cities@v" in plan, "what Spark's UI calls the scan"
    assert re.search(r"PartitionFilters: \[.*Lisbon", plan)
    assert "GreaterThan(id,2900)" in plan
    assert re.search(r"ReadSchema: struct<id:bigint,s:struct<a:int>,deleted_row:boolean>", plan)
    shared.reset_metrics()
    assert frame.where("city = 'Lisbon'").select("id").count() == 900
    assert shared.count("data") <= 2, "one file and its deletion vector"


def ids(frame: Any) -> list[int]:
    return sorted(row.id for row in frame.select("id").collect())


@pytest.mark.connect
def test_where_and_columns_of_the_load(spark: Any, client: SharingClient) -> None:
    table = client.table("views.d.cities")
    conditions = ("x > 500 AND city IS NOT NULL", "s.a IN (3, 4, 5)", "city LIKE 'O\\'%' OR x IS NULL", "NOT (x <= 10)",
                  "city LIKE 'O\\'\\'%' ESCAPE '\\''")  # fmt: skip
    scans = {where: table.scan(columns=["x", "id"], where=where) for where in conditions}
    frames = {where: scan.to_spark(spark, engine="native") for where, scan in scans.items()}
    assert [(is_native(frame), frame.columns) for frame in frames.values()] == [(True, ["x", "id"])] * len(conditions)
    expected = {where: sorted(scan.to_arrow()["id"].to_pylist()) for where, scan in scans.items()}
    assert {where: ids(frame) for where, frame in frames.items()} == expected
    assert table.scan(where="id = NULL").to_spark(spark).count() == 0


def test_empty_table_and_partition_columns_alone(spark: Any, client: SharingClient) -> None:
    empty = client.table("views.d.empty").to_spark(spark)
    assert empty.count() == 0
    assert empty.columns == SCHEMA.names
    cities = client.table("views.d.cities").scan(columns=["city"]).to_spark(spark)
    assert is_native(cities)
    assert sorted(map(tuple, cities.groupBy("city").count().collect()), key=str) == sorted(
        [("Lisbon", 900), ("O'Porto \\ é", 900), (None, 900)], key=str
    )


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        pytest.param({"status": 404}, "no longer has it", marks=pytest.mark.connect),
        ({"corrupt": 500}, "CRC|checksum"),
        ({"truncate": 100}, "could not be read"),
    ],
)
def test_a_fault_fails_the_query_with_its_cause(
    spark: Any, client: SharingClient, shared: SharingServer, fault: dict[str, Any], words: str
) -> None:
    frame = client.table("views.d.plain").scan(accessMode="url").to_spark(spark)
    assert frame.count() == 3000
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        shared.faults.add("data", times=None, **fault)
        with pytest.raises(PySparkException, match=words) as caught:
            # Another option, another load: what the first one has read would serve an equal one.
            client.table("views.d.plain").scan(accessMode="url", maxSplitBytes=f"{len(words)}k").to_spark(
                spark
            ).collect()
        assert re.fullmatch(r"\w+Error: file \w+ of views\.d\.plain: [^\n]*", str(caught.value))
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")


def test_a_load_that_comes_as_the_gateway_ends_gets_another(
    spark: Any, client: SharingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, own = Gateway(), native.gateway_of
    ended.close()
    given = [ended]
    monkeypatch.setattr(native, "gateway_of", lambda reach: given.pop() if given else own(reach))
    assert client.table("views.d.plain").to_spark(spark, "native").where("id < 7").count() == 7
    assert not given


def test_a_machine_whose_digits_are_not_ours(spark: Any, client: SharingClient) -> None:
    """Java writes numbers in those of the machine's language: files had names that the gateway did not know."""
    locale = spark._jvm.java.util.Locale
    before = locale.getDefault()
    locale.setDefault(locale.forLanguageTag("fa-IR-u-nu-arabext"))
    try:
        assert client.table("views.d.cities").to_spark(spark, "native").where("id < 2000").count() == 1800
    finally:
        locale.setDefault(before)


def test_errors_that_are_not_the_lanes_stay_as_they_are(spark: Any, client: SharingClient) -> None:
    from py4j.protocol import Py4JJavaError

    frame = client.table("views.d.plain").to_spark(spark)
    with pytest.raises(Py4JJavaError, match="IndexOutOfBounds"):
        spark._jvm.java.util.ArrayList().get(0)
    with pytest.raises(PySparkException, match="DIVIDE_BY_ZERO"):
        frame.selectExpr("assert_true(id / 0 > 0)").collect()


@pytest.mark.connect
def test_a_frame_outlives_its_urls_and_its_listing(spark: Any, client: SharingClient, shared: SharingServer) -> None:
    frame = client.table("views.d.plain").scan(accessMode="url").to_spark(spark)
    assert frame.where("id < 10").count() == 10
    shared.expire_urls()
    assert len(frame.collect()) == 3000
    for gateway in native._gateways.values():
        for reader, _ in list(gateway._plans.values()):
            gateway.release(reader.plan)
    assert len(frame.collect()) == 3000


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # PySpark 4.0 leaves sockets open
def test_what_outlives_its_frame_can_be_read(spark: Any, client: SharingClient) -> None:
    """Rows that are iterated over; an RDD and a checkpoint to come, and when these are gone, so is the listing."""
    # Several partitions, of which the iterator asks for one after the other; and compiled plans, for others hold their relation.
    settings = {
        "spark.sql.files.maxPartitionBytes": "2000",
        "spark.sql.codegen.wholeStage": "true",
        "spark.sql.codegen.factoryMode": "FALLBACK",
    }
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    kept = client.table("views.d.plain").to_spark(spark)  # the gateway ends with the last frame
    try:
        rows = client.table("views.d.plain").scan(columns=["id", "x"]).to_spark(spark).toLocalIterator()
        frame = client.table("views.d.plain").scan(columns=["id"]).to_spark(spark)
        gateway = native._gateways[""]
        index = list(gateway._indexes.values())[-1][0]
        rdd, later = frame.rdd, frame.localCheckpoint(eager=False)
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    assert rdd.getNumPartitions() > 3
    found = [next(rows).id]
    del frame

    def collect() -> None:
        gc.collect()
        spark._jvm.System.gc()
        time.sleep(0.1)
        gateway._release_ended()

    for _ in range(5):
        collect()
    assert rdd.count() == 3000
    assert sorted([*found, *(row.id for row in rows)]) == list(range(3000))
    assert later.count() == 3000
    if spark.version >= "4.3":  # 4.0 was seen to hold more of what has ended
        del rdd, later
        until = time.monotonic() + HANGS
        while index() is not None and time.monotonic() < until:
            collect()
        assert index() is None
    assert kept.count() == 3000


@pytest.mark.connect
def test_nothing_secret_in_what_spark_shows(spark: Any, client: SharingClient, shared: SharingServer) -> None:
    frame = client.table("views.d.plain").scan(accessMode="url").to_spark(spark)
    shown = [explained(frame), *frame.inputFiles()]
    shown += [str(row) for row in frame.selectExpr("input_file_name()", "_metadata").distinct().collect()]
    token = client.profile.bearer_token
    assert token
    assert [text for text in shown if token in text or "http://" in text or "?" in text] == []


def test_a_share_whose_name_has_a_period_is_a_share() -> None:
    def listed(share: str | None) -> list[Table]:
        return [Table("t", str(share), "d")]

    assert views._named("north.sales", listed, str.lower) == ({"d_t": TableName("north.sales", "d", "t")}, [])
    assert views._named("north.sales.t", listed, str.lower) == ({"sales_t": TableName("north", "sales", "t")}, [])


@pytest.mark.connect
def test_views(spark: Any, client: SharingClient, shared: SharingServer, tmp_path: Path) -> None:
    made = client.register(spark, "views")
    assert sorted(v.view for v in made) == ["d_cities", "d_empty", "d_plain"]
    answer = spark.sql("SELECT count(*) n FROM d_plain p JOIN d_cities c USING (id) WHERE p.city = 'Lisbon'").collect()
    assert answer[0].n == 900
    assert is_native(spark.table("d_plain"))
    growing = DeltaTableBuilder(tmp_path / "g", pa.schema({"n": pa.int64()})).append([{"n": 1}])
    shared.add_table("more.d.grow", growing.path)
    client.register(spark, {"mine": "more.d.grow"})
    growing.append([{"n": 2}])
    assert spark.table("mine").count() == 1
    client.refresh(spark, "mine")
    assert spark.table("mine").count() == 2
    with pytest.raises(OptionError, match="was not registered"):
        client.refresh(spark, "other")


@pytest.mark.parametrize(
    "setting",
    [
        {"spark.sql.parquet.enableVectorizedReader": "false"},
        {"spark.sql.sources.useV1SourceList": ""},
        {"spark.sql.parquet.fieldId.read.enabled": "true"},
        {
            "spark.sql.caseSensitive": "true",
            "spark.sql.session.timeZone": "Asia/Tokyo",
            "spark.sql.ansi.enabled": "false",
        },
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_settings_of_the_session(spark: Any, client: SharingClient, setting: dict[str, str]) -> None:
    known = {name: spark.conf.get(name) for name in setting}
    for name, value in setting.items():
        spark.conf.set(name, value)
    try:
        scan = client.table("views.d.cities").scan(where="id > 100")
        frame = scan.to_spark(spark, engine="native")
        assert ids(frame.where("city = 'Lisbon'")) == [n for n in range(102, 3000, 3) if n % 3 == 0 and n % 10 != 3]
        assert frame.count() == scan.count()
    finally:
        for name, value in known.items():
            spark.conf.set(name, value)


@pytest.mark.connect
@pytest.mark.filterwarnings("ignore:Spark Connect writes options:UserWarning")
def test_a_session_without_webhdfs_reads_by_the_python_source(
    spark: Any, client: SharingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = {"fs.webhdfs.impl": "no.such.FileSystem", "fs.webhdfs.impl.disable.cache": "true"}
    monkeypatch.setattr(native, "_READER_OPTIONS", {**native._READER_OPTIONS, **nothing})
    with pytest.raises(ConfigError, match=r"cannot read WebHDFS \(.*no.such.FileSystem not found\); leave engine out"):
        client.table("views.d.plain").to_spark(spark, engine="native")
    frame = client.table("views.d.plain").to_spark(spark, engine="auto")
    assert not is_native(frame)
    assert frame.count() == 3000


@pytest.mark.connect
def test_sql(spark: Any, client: SharingClient) -> None:
    text = """
        SELECT p.city, count(*) n FROM views.d.plain p JOIN views.d.cities c ON p.id = c.id AND c.x > 500
        WHERE p.id NOT IN (SELECT id FROM views.d.cities WHERE city IS NULL) GROUP BY p.city ORDER BY n, p.city
    """
    native_answer = client.sql(spark, text, engine="native")
    assert is_native(native_answer)
    assert native_answer.collect() == client.sql(spark, text).collect()


def test_a_null_in_a_not_null_column_fails_the_query_that_reads_it(
    spark: Any, client: SharingClient, shared: SharingServer, tmp_path: Path
) -> None:
    built = DeltaTableBuilder(tmp_path / "t", pa.schema({"id": pa.int64(), "n": pa.int64()}))
    built.append([{"id": 1, "n": None}, {"id": 2, "n": 2}])
    log = tmp_path / "t" / "_delta_log" / f"{0:020}.json"
    nullable = '\\"name\\":\\"n\\",\\"type\\":\\"long\\",\\"nullable\\":'
    assert f"{nullable}true" in log.read_text()
    log.write_text(log.read_text().replace(f"{nullable}true", f"{nullable}false"))
    shared.add_table("required.d.t", tmp_path / "t")
    frame = client.table("required.d.t").scan().to_spark(spark)
    assert is_native(frame)
    assert ids(frame) == [1, 2]
    with pytest.raises(Exception, match="NULL in column 'n', which the table declares NOT NULL"):
        frame.where("n IS NULL").collect()
