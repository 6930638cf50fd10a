"""The native lane as users meet it: which lane is taken, what Spark prunes, errors, expiry, views, and secrets."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from delta_sharing_spark import SharingClient, load_as_spark
from delta_sharing_spark.errors import OptionError
from delta_sharing_spark.native.plan import plan_native
from delta_sharing_spark.spark import native
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder, FileStyle

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


def test_many_small_files_are_left_to_the_python_source(
    spark: Any, spark_mode: str, shared: SharingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they are listed when a table is loaded, unless the native lane is asked for, or a query leaves few of them."""
    client = SharingClient(shared.write_profile(tmp_path / "config.share"))
    monkeypatch.setattr("delta_sharing_spark.native.plan.MOST_SMALL_FILES", 2)
    scan, text = client.table("views.d.plain").scan(), "SELECT id FROM views.d.plain"
    frame = scan.to_spark(spark)
    assert ids(frame) == list(range(3000))
    if spark_mode == "classic":  # Spark asks for the files of each query: no number of them is too many
        assert is_native(frame)
        assert "engine     native lane" in scan.explain(spark)
        return
    assert not is_native(frame)
    assert is_native(scan.to_spark(spark, engine="native"))
    told = "Python data source: it has 3 files to read, of "
    assert told in scan.explain(spark)
    assert "engine     native lane" in scan.explain(spark, engine="native")
    assert not is_native(client.sql(spark, text))
    assert "Python data source: views.d.plain: it has 3 files" in client.explain_sql(text, spark)
    assert is_native(few := client.sql(spark, f"{text} WHERE id < 10"))
    assert ids(few) == list(range(10))
    assert client.explain_sql(f"{text} WHERE id < 10", spark).startswith("native lane")


def test_spark_prunes_and_filters_exactly(spark: Any, client: SharingClient, shared: SharingServer) -> None:
    for table in ("plain", "cities"):
        expected = spark.createDataFrame(client.table(f"views.d.{table}").scan().to_arrow())
        for mode in ("url", "dir"):
            frame = client.table(f"views.d.{table}").scan(accessMode=mode).to_spark(spark)
            for where in (
                "id = 77", "id > 2990 AND s.a < 2995", "city IS NULL AND id < 20", "city = 'Lisbon'", "x > 900", "x = 0",
                "x = double('NaN')", "city LIKE 'O%'", "id % 100 = 4",
            ):  # fmt: skip
                assert ids(frame.where(where)) == ids(expected.where(where)), (table, where)
            assert frame.count() == expected.count()
    frame = client.table("views.d.cities").scan().to_spark(spark)
    plan = explained(frame.where("city = 'Lisbon' AND id > 2900").select("s.a"))
    assert re.search(r"PartitionFilters: \[.*Lisbon", plan)
    assert "GreaterThan(id,2900)" in plan
    assert re.search(r"ReadSchema: struct<id:bigint,s:struct<a:int>,deleted_row:boolean>", plan)
    shared.reset_metrics()
    assert frame.where("city = 'Lisbon'").select("id").count() == 900
    assert shared.count("data") <= 2, "one file and its deletion vector"


def ids(frame: Any) -> list[int]:
    return sorted(row.id for row in frame.select("id").collect())


def test_where_and_columns_of_the_load(spark: Any, client: SharingClient) -> None:
    table = client.table("views.d.cities")
    for where in (
        "x > 500 AND city IS NOT NULL",
        "s.a IN (3, 4, 5)",
        "city LIKE 'O\\'%' OR x IS NULL",
        "NOT (x <= 10)",
    ):
        scan = table.scan(columns=["x", "id"], where=where)
        frame = scan.to_spark(spark, engine="native")
        assert is_native(frame)
        assert frame.columns == ["x", "id"]
        assert ids(frame) == sorted(scan.to_arrow()["id"].to_pylist()), where


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
        ({"status": 404}, "no longer has it"),
        ({"corrupt": 500}, "CRC|checksum"),
        ({"truncate": 100}, "could not be read"),
    ],
)
def test_a_fault_fails_the_query_with_its_cause(
    spark: Any, spark_mode: str, client: SharingClient, shared: SharingServer, fault: dict[str, Any], words: str
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
        if spark_mode == "classic":  # one line, that of the lane
            assert re.fullmatch(r"\w+Error: file \w+ of views\.d\.plain: [^\n]*", str(caught.value))
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")


def test_errors_that_are_not_the_lanes_stay_as_they_are(spark: Any, spark_mode: str, client: SharingClient) -> None:
    if spark_mode != "classic":
        pytest.skip("classic PySpark alone speaks to the JVM")
    from py4j.protocol import Py4JJavaError

    frame = client.table("views.d.plain").to_spark(spark)
    with pytest.raises(Py4JJavaError, match="IndexOutOfBounds"):
        spark._jvm.java.util.ArrayList().get(0)
    with pytest.raises(PySparkException, match="DIVIDE_BY_ZERO"):
        frame.selectExpr("assert_true(id / 0 > 0)").collect()


def test_a_frame_outlives_its_urls_and_ends_when_let_go(
    spark: Any, client: SharingClient, shared: SharingServer
) -> None:
    scan = client.table("views.d.plain").scan(accessMode="url")
    opener, load = scan.opened()
    plan = plan_native(load, opener)
    frame = native.planned_frame(spark, plan, native.reach_of(spark))
    assert frame.where("id < 10").count() == 10
    shared.expire_urls()
    assert len(frame.collect()) == 3000
    native.release(plan)
    with pytest.raises(Exception, match="load the table again"):
        frame.count()


def test_nothing_secret_in_what_spark_shows(spark: Any, client: SharingClient, shared: SharingServer) -> None:
    frame = client.table("views.d.plain").scan(accessMode="url").to_spark(spark)
    shown = [explained(frame), *frame.inputFiles()]
    shown += [str(row) for row in frame.selectExpr("input_file_name()", "_metadata").distinct().collect()]
    token = client.profile.bearer_token
    assert token
    for text in shown:
        assert token not in text
        assert "http://" not in text
        assert "?" not in text


def test_views(spark: Any, client: SharingClient, shared: SharingServer, tmp_path: Path) -> None:
    views = client.register(spark, "views")
    assert sorted(v.view for v in views) == ["d_cities", "d_empty", "d_plain"]
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


@pytest.mark.filterwarnings("ignore:Spark Connect writes options:UserWarning")
def test_a_session_without_webhdfs_reads_by_the_python_source(
    spark: Any, client: SharingClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nothing = {"fs.webhdfs.impl": "no.such.FileSystem", "fs.webhdfs.impl.disable.cache": "true"}
    monkeypatch.setattr(native, "_READER_OPTIONS", {**native._READER_OPTIONS, **nothing})
    frame = client.table("views.d.plain").to_spark(spark, engine="native")
    assert "cannot read WebHDFS" in caplog.text
    assert "no.such.FileSystem not found" in caplog.text
    assert not is_native(frame)
    assert frame.count() == 3000


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
