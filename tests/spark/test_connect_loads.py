"""``register(spark)`` on a Connect server that is another process: each action's loads are those of what it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

import delta_sharing_spark
from delta_sharing_spark.errors import ConfigError
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from spark.drawn_queries import Queries, tables

Load = Callable[..., Any]

pytestmark = pytest.mark.connect_only


@pytest.fixture
def load(
    spark: Any, monkeypatch: pytest.MonkeyPatch, server: SharingServer, profile: str, tmp_path: Path
) -> Iterator[Load]:
    """Loads the drawn tables, ``first`` and ``second``, whose rows are in four files."""
    monkeypatch.delenv("SPARK_LOCAL_REMOTE", raising=False)  # as if the server were another process
    for name, rows in tables(7).items():
        built = DeltaTableBuilder(tmp_path / name, rows.schema)
        built.append(rows.sort_by("id"), files=4)
        server.add_table(f"narrow.d.{name}", built.path)
        pq.write_table(rows, tmp_path / f"{name}.parquet")

    def one(name: str = "first", **options: str) -> Any:
        return spark.read.format("deltaSharing").options(**options).load(f"{profile}#narrow.d.{name}")

    delta_sharing_spark.register(spark)
    yield one
    delta_sharing_spark.register(spark, engine="python")


@pytest.mark.filterwarnings("ignore:The copy keyword", "ignore:PySpark does not yet")
def test_an_action_reads_what_it_needs(load: Load, spark: Any, server: SharingServer, caplog: Any) -> None:
    from delta_sharing_spark.spark.patches import FETCHES, WRITTEN_PLAN

    frame, other = load(), load("second", where="id > 1")

    def read(derived: Any, *told: str) -> list[Any]:
        server.reset_metrics()
        caplog.clear()
        with caplog.at_level("INFO", "delta_sharing_spark.spark.connect_loads"):
            rows = derived.collect()
        said = [r.getMessage() for r in caplog.records if "an action reads" in r.getMessage()]
        assert [text.partition(", where ")[0] for text in said] == [f"an action reads {columns}" for columns in told]
        return rows

    whole = read(frame)
    ids = sorted(row.id for row in whole if row.id is not None)
    assert server.count("data") == 4
    assert len(read(frame.where("id = 7").select("note"), "id, note")) == ids.count(7)
    assert server.count("data") < 4
    assert read(frame.agg(F.count("id")), "id") == [(len(ids),)]
    read(frame.join(other, frame["id"] == other["offset"]).select(frame["note"]), "id, note", "offset")
    assert repr(read(frame)) == repr(whole)
    server.reset_metrics()
    frame.where("id = 7").select("note").show()
    assert server.count("data") < 4
    server.reset_metrics()
    assert frame.where("id = 7").select("id").toPandas().shape == (ids.count(7), 1)
    assert server.count("data") < 4
    assert load(limit="3").where("id > 2").count() <= 3
    assert load().schema == frame.schema
    delta_sharing_spark.register(spark, engine="python")
    assert not WRITTEN_PLAN.is_applied()
    assert not FETCHES[0].is_applied()
    assert read(frame.agg(F.count("id"))) == [(len(ids),)], "what was loaded is whole from now on"
    with pytest.raises(ConfigError, match="another process"):
        delta_sharing_spark.register(spark, engine="native")


def test_what_is_kept_is_whole(load: Load, spark: Any, server: SharingServer, tmp_path: Path) -> None:
    """A cache, a view, a checkpoint, a write: whoever reads it later may need what the first action does not."""
    count = load().count()

    def is_kept(frame: Any) -> bool:
        return bool(frame._plan.is_cached)

    cached = load()
    cached.where("id > 2").cache()
    assert is_kept(cached)
    cached.where("id > 2").unpersist()
    cached = load().cache()
    assert cached.select("id").count() == count
    server.reset_metrics()
    assert len(cached.where("id IS NULL OR id < 100").collect()) == count
    assert server.count("data") == 0, "the cache has all columns"
    cached.unpersist()
    view = load()
    view.createOrReplaceTempView("kept_load")
    assert is_kept(view)
    assert (
        spark.sql("SELECT count(note), count(*) FROM kept_load WHERE id IS NULL OR id < 100").collect()[0][1] == count
    )
    spark.catalog.dropTempView("kept_load")
    point = load()
    assert point.localCheckpoint().select("note").count() == count
    assert is_kept(point)
    written = load()
    written.select("id").write.parquet(str(tmp_path / "written"))
    assert is_kept(written)
    asked = load()
    _ = asked.schema, asked.columns, asked.isStreaming, asked.sameSemantics(asked)
    asked.explain()
    assert not is_kept(asked)
    stream = spark.readStream.format("deltaSharing").load(f"{tmp_path}")
    assert type(stream._plan).__name__ == "DataSource"


#: Plans that only DataFrames make: of a table's columns as a whole, of one load under two needs, of rows' places, of functions.
FRAMES: dict[str, Callable[[Any, Any], Any]] = {
    "no nulls": lambda a, b: a.na.drop().select("id"),
    "no duplicates": lambda a, b: a.dropDuplicates().select("id"),
    "two needs": lambda a, b: a.where("id > 5").select("id").union(a.where("id < 2").select("offset")),
    "itself": lambda a, b: a.alias("x").join(a.alias("y"), F.expr("x.id = y.offset AND x.id > 3")).select("x.note"),
    "itself, with and without": lambda a, b: a.select("id").exceptAll(a.where("id > 3").select("id")),
    "one side": lambda a, b: a.join(b.where("id > 3"), "id", "left").select("id", b["offset"]),
    "not there": lambda a, b: a.join(b.where("offset > 3"), a["id"] == b["offset"], "left_anti").select("id"),
    "first rows": lambda a, b: a.orderBy("id", "note").limit(5).where("id > 1").select("id"),
    "unpivoted": lambda a, b: a.unpivot(["note"], ["id", "offset"], "k", "v").where("k = 'id'").select("v"),
    "by position": lambda a, b: a.toDF(*(f"c{i}" for i in range(len(a.columns)))).where("c0 IS NOT NULL"),
    "pivoted": lambda a, b: a.groupBy("id").pivot("offset").count(),
    "a function": lambda a, b: a.mapInPandas(lambda parts: (part[["id"]] for part in parts), "id long").where("id > 2"),
    "observed": lambda a, b: a.observe(f"seen{id(a)}", F.count("note").alias("n")).where("id > 4").select("id"),
}


@pytest.mark.filterwarnings("ignore")
def test_plans_of_dataframes(load: Load, spark: Any, tmp_path: Path) -> None:
    """The same rows as over Parquet files, with loads that all share, each needing another part."""
    loads = [load(), load("second")]
    files = [spark.read.parquet(str(tmp_path / f"{name}.parquet")) for name in ("first", "second")]
    wrong, answers = {}, {}
    for name, frame in FRAMES.items():
        expected, answered = (drawn_rows(frame(*frames)) for frames in (files, loads))
        answers[name] = expected
        if expected != answered:
            wrong[name] = expected, answered
    assert not wrong
    assert not any(frame._plan.is_cached for frame in loads)
    assert not [name for name, rows in answers.items() if isinstance(rows, str)], "what fails shows nothing"


def drawn_rows(frame: Any) -> tuple[list[str], list[str]] | str:
    try:
        return frame.columns, sorted(repr(tuple(row)) for row in frame.collect())
    except PySparkException as error:
        return str(error.getCondition())


@pytest.mark.timeout(6 * 3600)
def test_drawn_queries(load: Load, spark: Any, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """Each query is a plan whose tables are plans, those of loads or of Parquet files with the same rows."""
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.plan import SQL, SubqueryAlias

    spark.sql("DECLARE OR REPLACE VARIABLE drawn_variable INT DEFAULT 2")
    spark.sql("CREATE OR REPLACE TEMPORARY FUNCTION drawn_plus(x DOUBLE) RETURNS DOUBLE RETURN x + 1")
    seed = int(pytestconfig.getoption("--drawn-seed"))
    queries, compared, wrong, loads = Queries(seed), 0, [], {name: load(name) for name in ("first", "second")}
    files = {name: spark.read.parquet(str(tmp_path / f"{name}.parquet")) for name in loads}
    try:
        while compared < (pytestconfig.getoption("--drawn-queries") or 8) // 2:
            drawn = queries.query()
            if drawn.args or drawn.settings or " OF " in drawn.text or "#" in drawn.text or "IDENTIFIER" in drawn.text:
                continue
            text = drawn.text.replace("@ . /* FROM @.", "@./* FROM ").replace("@.", "drawn_").replace("~", "drawn_")

            def over(frames: dict[str, Any], text: str = text) -> Any:
                views = [SubqueryAlias(frame._plan, f"drawn_{name}") for name, frame in frames.items()]
                return DataFrame(SQL(text, views=views), spark)

            with_loads = over(loads)
            try:
                _ = with_loads.schema
            except PySparkException:
                continue
            compared += 1
            expected, answered = drawn_rows(over(files)), drawn_rows(with_loads)
            # A query that fails for some of the whole table's rows may succeed on those that it needs, never the reverse.
            if expected != answered and not (isinstance(expected, str) and not isinstance(answered, str)):
                wrong.append((text, expected, answered))
        assert not wrong
        assert not any(frame._plan.is_cached for frame in loads.values())
    finally:
        spark.sql("DROP TEMPORARY FUNCTION drawn_plus")
        spark.sql("DROP TEMPORARY VARIABLE drawn_variable")
