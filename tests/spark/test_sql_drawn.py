"""Drawn queries by ``client.sql``, by both lanes, against the same queries over the whole tables as Parquet files.

Beside it each query is asked of views of DataFrames, in turn: plain loads of a session with ``engine="auto"``, by URL and by
directory, and change feeds of tables whose changes are inserts alone, by the lane and by the Python source.

The same queries each time; ``nox -s fuzz-sql`` draws others (``--drawn-queries=N --drawn-seed=S``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

import delta_sharing_spark
from delta_sharing_spark import SharingClient
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from spark.drawn_queries import COMMITS, ROWS, Queries, commit_time, tables
from spark.parquet_twins import create_twin

#: How a query travels in time, after a table's name.
_TRAVEL = re.compile(r"(@\.\w+) (?:FOR )?(?:SYSTEM_)?(?:VERSION AS OF '?(\d)'?|TIMESTAMP AS OF '2024-05-0(\d)[^']*')")

#: How a query names a table, after what stands for a share and a schema; the comment is there for those who split at FROM.
_NAMED, _COMMENT = re.compile(r"([@#]) ?\. ?`?(\w+)`?"), re.compile(r"/\*.*?\*/ ")
_FEED = {"readChangeFeed": "true", "startingVersion": "1"}
#: Options of plain loads, and the engine of the session.
WAYS: dict[str, tuple[str, dict[str, str]]] = {
    "auto by url": ("auto", {"accessMode": "url"}),
    "auto by dir": ("auto", {"accessMode": "dir"}),
    "feed by url": ("auto", {"accessMode": "url", **_FEED}),
    "feed by dir": ("auto", {"accessMode": "dir", **_FEED}),
    "feed by Python": ("python", {"accessMode": "url", **_FEED}),
}


def answer(frame: Any) -> tuple[list[str], list[str]] | str:
    """Columns and sorted rows; the class of the error where executing fails."""
    try:
        return frame.columns, sorted(repr(tuple(row)) for row in frame.collect())
    except PySparkException as error:
        return str(error.getCondition())
    except Exception as error:  # what Spark's JVM throws and PySpark has no class for
        return failure(error)


def failure(error: Exception) -> str:
    """An error's class and text, without the numbers of objects and expressions."""
    return re.sub(r"\d+", "#", f"{type(error).__name__}: {str(error)[:300]}")


@contextmanager
def session(spark: Any, settings: Mapping[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def of_twins(text: str) -> str:
    """The query over the Parquet tables, versions as tables of their own."""

    def version(match: re.Match[str]) -> str:
        return f"{match[1]}_v{match[2] or int(match[3]) - 1}"

    named = _TRAVEL.sub(version, text).replace("~", "whole_").replace("#", "spark_catalog.drawn_other")
    return named.replace("@", "spark_catalog.drawn")


def over_views(spark: Any, profile: str, way: str, text: str) -> str:
    """The query over views of plain loads, which it makes."""
    engine, options = WAYS[way]
    delta_sharing_spark.register(spark, engine=engine)

    def version(match: re.Match[str]) -> str:
        return f"{match[1]}_v{match[2] or int(match[3]) - 1}"

    def view(match: re.Match[str]) -> str:
        name, _, version = match[2].partition("_v")
        named = f"drawn_{'other_' if match[1] == '#' else ''}{match[2]}"
        bound = {"endingVersion" if "readChangeFeed" in options else "versionAsOf": version} if version else {}
        address = f"{profile}#odd.drawn{'_other' if match[1] == '#' else ''}.{name}"
        frame = spark.read.format("deltaSharing").options(**options, **bound).load(address)
        if "readChangeFeed" in options:
            frame = frame.where("_change_type = 'insert' AND _commit_version > 0")
            frame = frame.drop("_change_type", "_commit_version", "_commit_timestamp")
        frame.createOrReplaceTempView(named)
        return named

    try:
        return _NAMED.sub(view, _COMMENT.sub("", _TRAVEL.sub(version, text)).replace("~", "@."))
    finally:
        delta_sharing_spark.register(spark, engine="python")


@pytest.fixture
def client(spark: Any, server: SharingServer, profile: str, tmp_path: Path, drawn_seed: int) -> Iterator[SharingClient]:
    """The drawn tables: shared, as Parquet tables by version, and as temporary views over both."""
    for schema, shift in (("drawn", 0), ("drawn_other", 1)):
        spark.sql(f"CREATE DATABASE IF NOT EXISTS {schema}")
        for name, rows in tables(drawn_seed + shift).items():
            now = [commit_time(0)]
            table = DeltaTableBuilder(
                tmp_path / schema / name,
                rows.schema,
                properties={"delta.enableChangeDataFeed": "true"},
                clock=lambda now=now: now[0],
            )
            for version, start in enumerate(range(0, ROWS, ROWS // COMMITS), 1):
                part = rows.slice(start, ROWS // COMMITS)
                now[0] = commit_time(version)
                table.append(part)
                create_twin(
                    spark, schema, f"{name}_v{version}", rows.slice(0, start + part.num_rows), tmp_path / schema
                )
            server.add_table(f"odd.{schema}.{name}", table.path, access_modes=("url", "dir"))
            create_twin(spark, schema, name, rows, tmp_path / schema)
    client = SharingClient(profile, accessMode="url")
    for name in ("first", "second"):
        spark.table(f"spark_catalog.drawn.{name}").createOrReplaceTempView(f"whole_{name}")
        client.table(f"odd.drawn.{name}").scan(accessMode="dir").to_spark(spark).createOrReplaceTempView(
            f"shared_{name}"
        )
    spark.sql("DECLARE OR REPLACE VARIABLE drawn_variable INT DEFAULT 2")
    spark.sql("CREATE OR REPLACE TEMPORARY FUNCTION drawn_plus(x DOUBLE) RETURNS DOUBLE RETURN x + 1")
    yield client
    spark.sql("DROP TEMPORARY FUNCTION drawn_plus")
    spark.sql("DROP TEMPORARY VARIABLE drawn_variable")
    for name in ("whole_first", "whole_second", "shared_first", "shared_second"):
        spark.catalog.dropTempView(name)
    for schema in ("drawn", "drawn_other"):
        spark.sql(f"DROP DATABASE {schema} CASCADE")


@pytest.fixture
def drawn_seed(pytestconfig: pytest.Config) -> int:
    return int(pytestconfig.getoption("--drawn-seed"))


@pytest.mark.connect
@pytest.mark.timeout(6 * 3600)  # nox -s fuzz-sql draws a thousand
@pytest.mark.filterwarnings("ignore:The SQL config:UserWarning")
def test_drawn_queries_answer_as_over_whole_tables(
    client: SharingClient, spark: Any, spark_mode: str, profile: str, drawn_seed: int, pytestconfig: pytest.Config
) -> None:
    count = pytestconfig.getoption("--drawn-queries") or (5 if spark_mode == "classic" else 3)
    queries = Queries(drawn_seed)
    compared = refused = 0
    wrong = []
    while compared < count:
        drawn = queries.query()
        with session(spark, drawn.settings):
            try:
                expected = spark.sql(of_twins(drawn.text), drawn.args or None)
                _ = expected.schema
            except Exception:  # Spark's own internal errors too
                refused += 1
                assert refused < 50 + 3 * count, "most drawn queries are no queries"
                continue
            compared += 1
            # A row group's statistics leave NaN out: by them Spark loses rows of `order > 7` from the Parquet tables.
            with session(spark, {"spark.sql.parquet.filterPushdown": "false"}):
                whole = answer(spark.sql(of_twins(drawn.text), drawn.args or None))
            text = drawn.text.replace("~", "shared_").replace("#", "odd.drawn_other").replace("@", "odd.drawn")
            way = list(WAYS)[compared % len(WAYS)]
            for engine in ("python", "native", way):
                try:
                    if engine == way:
                        found = spark.sql(over_views(spark, profile, way, drawn.text), drawn.args or None)
                    else:
                        found = client.sql(spark, text, drawn.args or None, engine=engine)
                    answered = answer(found)
                except Exception as error:
                    answered = failure(error)
                # A query that fails for some of the whole table's rows may succeed on those that it needs, never the reverse.
                if whole != answered and not (isinstance(whole, str) and not isinstance(answered, str)):
                    wrong.append((engine, drawn, whole, answered))
    detail = "\n\n".join(f"{engine}: {drawn}\n  {whole}\n  {answered}" for engine, drawn, whole, answered in wrong[:20])
    assert not wrong, f"{len(wrong)} of {compared} (seed {drawn_seed}, {refused} were no queries):\n{detail}"
