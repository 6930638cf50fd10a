"""``client.sql`` over shared tables gives what Spark gives for the same query over Parquet tables of its own catalog."""

from __future__ import annotations

import datetime
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import ParseException

from delta_sharing_spark import SharingClient
from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.predicates.sql import parse_where
from delta_sharing_spark.schema.types import Field, Primitive, Struct
from delta_sharing_spark.spark import sql
from delta_sharing_spark.spark.connect_plans import TableNeed, sent_condition
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from spark.parquet_twins import create_twin
from support import HANGS

DAY = datetime.date(2024, 1, 1)


def _tables() -> dict[str, pa.Table]:
    count = 60
    orders = pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "cust": pa.array([None if i % 11 == 0 else i % 7 for i in range(count)], pa.int64()),
            "price": pa.array([None if i % 13 == 0 else i * 1.5 for i in range(count)], pa.float64()),
            "day": pa.array([DAY + datetime.timedelta(days=i // 2) for i in range(count)], pa.date32()),
            "at": pa.array(
                [datetime.datetime(2024, 1, 1, i % 24, tzinfo=datetime.timezone.utc) for i in range(count)],
                pa.timestamp("us", "UTC"),
            ),
            "note": pa.array([["red", "it's", None, "s.t {0}", "a,b"][i % 5] for i in range(count)], pa.string()),
        }
    )
    customers = pa.table(
        {
            "cust": pa.array([0, 1, 2, 3, 4, 8, 9], pa.int64()),
            "city": pa.array(["Rome", "Oslo", None, "Rome", "Bern", "Oslo", "Kyiv"], pa.string()),
            "note": pa.array(["red", None, "blue", "red", "a,b", "x", "y"], pa.string()),
            "info": pa.array(
                [{"id": i, "tag": t} for i, t in enumerate(["a", "b", "c", "a", "b", "c", "a"])],
                pa.struct([("id", pa.int64()), ("tag", pa.string())]),
            ),
        }
    )
    return {"orders": orders, "customers": customers}


@pytest.fixture(scope="module")
def client(
    spark: Any, server: SharingServer, profile: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SharingClient]:
    """The tables shared as ``market.shop``, and in Spark's catalog as ``spark_catalog.shop``."""
    root = tmp_path_factory.mktemp("shop")
    spark.sql("CREATE DATABASE IF NOT EXISTS shop")
    for name, rows in _tables().items():
        table = DeltaTableBuilder(root / name, rows.schema)
        third = rows.num_rows // 3
        for start in range(0, rows.num_rows, third):
            table.append(rows.slice(start, third))
        server.add_table(f"market.shop.{name}", table.path)
        create_twin(spark, "shop", name, rows, root)
    spark.sql("SELECT id AS k, id % 5 AS five FROM range(20)").createOrReplaceTempView("session_view")
    yield SharingClient(profile)
    spark.catalog.dropTempView("session_view")
    spark.sql("DROP DATABASE shop CASCADE")


def rows_of(frame: Any) -> list[str]:
    return sorted(repr(tuple(row)) for row in frame.collect())


#: ``@`` stands for catalog (or share) and schema.
QUERIES = [
    # joins
    "SELECT o.id, c.city FROM @.orders o JOIN @.customers c ON o.cust = c.cust WHERE o.price > 10 AND c.city = 'Rome'",
    "SELECT id, city FROM @.orders, @.customers WHERE orders.cust = customers.cust AND id < 30 AND city <> 'Oslo'",
    "SELECT o.id, c.city FROM @.orders o LEFT JOIN @.customers c ON o.cust = c.cust AND c.city = 'Rome' AND o.id < 20",
    "SELECT o.id, c.city FROM @.orders o LEFT JOIN @.customers c ON o.cust = c.cust WHERE c.city IS NULL AND o.id < 40",
    "SELECT o.id, c.city FROM @.orders o LEFT JOIN @.customers c ON o.cust = c.cust WHERE c.city = 'Oslo'",
    "SELECT o.id, c.city FROM @.orders o RIGHT JOIN @.customers c ON o.cust = c.cust AND o.id < 10 AND c.city = 'Rome'",
    "SELECT o.id, c.city FROM @.orders o RIGHT JOIN @.customers c ON o.cust = c.cust WHERE o.price > 30",
    "SELECT o.id, c.cust FROM @.orders o FULL JOIN @.customers c ON o.cust = c.cust AND o.id > 20 AND c.city = 'Rome'",
    "SELECT o.id, c.cust FROM @.orders o FULL JOIN @.customers c ON o.cust = c.cust WHERE o.id > 20 OR c.city = 'Rome'",
    "SELECT o.id, c.cust FROM @.orders o FULL JOIN @.customers c ON o.cust = c.cust WHERE o.id > 20 AND c.city = 'Rome'",
    "SELECT o.id, c.cust FROM @.orders o FULL JOIN @.customers c ON o.cust = c.cust WHERE NOT (o.id > 20) OR o.id IS NULL",
    "SELECT id FROM @.orders o LEFT SEMI JOIN @.customers c ON o.cust = c.cust AND c.city = 'Rome' AND o.id > 5 WHERE price < 60",
    "SELECT id FROM @.orders o LEFT ANTI JOIN @.customers c ON o.cust = c.cust AND c.city = 'Rome' AND o.id > 5 WHERE price < 60",
    "SELECT o.id, c.cust FROM @.orders o CROSS JOIN @.customers c WHERE o.id IN (1, 2) AND c.note IS NULL",
    "SELECT cust, note, id FROM @.orders NATURAL JOIN @.customers WHERE id > 3",
    "SELECT cust, id, city FROM @.orders NATURAL LEFT JOIN @.customers WHERE id > 3 AND orders.price < 50",
    "SELECT cust, id, city FROM @.orders JOIN @.customers USING (cust) WHERE id > 3 AND city = 'Rome'",
    "SELECT cust, id, city FROM @.orders FULL JOIN @.customers USING (cust) WHERE cust > 3",
    "SELECT cust, id, city FROM @.orders o RIGHT JOIN @.customers c USING (cust) WHERE o.id > 9 AND c.city = 'Oslo'",
    "SELECT a.id, b.id AS other FROM @.orders a JOIN @.orders b ON a.id = b.id + 1 WHERE a.price > 30 AND b.price < 60",
    "SELECT a.id, b.city, d.note FROM @.orders a LEFT JOIN @.customers b ON a.cust = b.cust FULL JOIN @.customers d ON b.cust = d.cust WHERE b.city = 'Rome'",
    "SELECT a.id, b.city, d.note FROM @.orders a LEFT JOIN @.customers b ON a.cust = b.cust JOIN @.customers d ON b.city <=> d.city AND b.city IS NULL",
    "SELECT o.id FROM (@.orders o JOIN @.customers c ON o.cust = c.cust) JOIN session_view v ON v.k = o.id WHERE c.city = 'Rome'",
    "SELECT o.id FROM @.orders o JOIN @.customers c ON (o.cust = c.cust AND c.city = 'Rome' AND o.id < 30) OR (o.cust = c.cust AND c.city = 'Oslo' AND o.id > 50)",
    # subqueries
    "SELECT id FROM @.orders WHERE price > (SELECT avg(price) FROM @.orders WHERE cust = 3) AND id % 2 = 0",
    "SELECT id FROM @.orders WHERE cust IN (SELECT cust FROM @.customers WHERE city = 'Rome') AND id < 50",
    "SELECT id FROM @.orders WHERE cust NOT IN (SELECT cust FROM @.customers WHERE city = 'Rome')",
    "SELECT id FROM @.orders o WHERE EXISTS (SELECT * FROM @.customers c WHERE c.cust = o.cust AND c.city = 'Rome' AND o.id > 7)",
    "SELECT id FROM @.orders WHERE NOT EXISTS (SELECT 1 FROM @.customers WHERE customers.cust = orders.cust AND city IS NOT NULL)",
    "SELECT id FROM @.orders WHERE EXISTS (SELECT * FROM @.customers INTERSECT SELECT * FROM @.customers WHERE city = 'Nowhere')",
    "SELECT id, (SELECT max(city) FROM @.customers c WHERE c.cust = o.cust) AS top FROM @.orders o WHERE id < 12",
    "SELECT city, (SELECT count(*) FROM @.orders WHERE orders.note = customers.note AND id > 10) AS n FROM @.customers",
    "SELECT id FROM @.orders o WHERE price = (SELECT max(price) FROM @.orders WHERE cust = o.cust)",
    "SELECT t.id FROM (SELECT id, price AS note FROM @.orders WHERE id > 40) t WHERE t.note > 70",
    "SELECT o.id, l.city FROM @.orders o, LATERAL (SELECT city FROM @.customers c WHERE c.cust = o.cust AND city > 'C') l WHERE o.id < 30",
    # CTEs, among them names that hide others
    "WITH big AS (SELECT * FROM @.orders WHERE price > 60) SELECT a.id, b.id FROM big a JOIN big b ON a.cust = b.cust AND a.id < b.id",
    "WITH orders AS (SELECT cust AS id, city AS price FROM @.customers) SELECT id FROM orders WHERE price = 'Rome'",
    "WITH orders AS (SELECT id, price FROM @.orders WHERE id < 9) SELECT x.id, orders.price FROM @.orders x JOIN orders ON x.id = orders.id WHERE x.note = 'red'",
    "WITH a AS (SELECT cust FROM @.customers), b AS (SELECT * FROM a WHERE cust > 2) SELECT count(*), sum(cust) FROM b",
    "WITH t(x, y) AS (SELECT id, price FROM @.orders WHERE id > 50) SELECT x, y FROM t",
    # set operations
    "SELECT id FROM @.orders WHERE id < 3 UNION SELECT cust FROM @.customers WHERE city = 'Oslo'",
    "SELECT cust, note FROM @.orders EXCEPT SELECT cust, note FROM @.customers",
    "(SELECT cust FROM @.orders WHERE id > 5 ORDER BY id LIMIT 3) UNION ALL (SELECT cust FROM @.customers INTERSECT SELECT cust FROM @.orders)",
    "SELECT * FROM @.customers UNION ALL SELECT * FROM @.customers WHERE cust = 1",
    # windows, groups
    "SELECT id, row_number() OVER (PARTITION BY cust ORDER BY price, id) AS n, sum(price) OVER (ORDER BY id ROWS 2 PRECEDING) AS s FROM @.orders WHERE id > 30",
    "SELECT id, rank() OVER w AS r FROM @.orders WHERE price > 5 WINDOW w AS (PARTITION BY note ORDER BY day, id)",
    "SELECT id, cust FROM @.orders WHERE id > 3 QUALIFY row_number() OVER (PARTITION BY cust ORDER BY price DESC, id) = 1",
    "SELECT cust, note, count(*) AS n FROM @.orders WHERE id > 3 GROUP BY GROUPING SETS ((cust, note), (cust), ()) HAVING count(*) > 1",
    "SELECT cust, note, sum(price), grouping_id() FROM @.orders GROUP BY ROLLUP (cust, note)",
    "SELECT note, month(day) AS m, count(*) AS n FROM @.orders WHERE day >= DATE'2024-01-10' GROUP BY ALL",
    "SELECT note, count(*) FROM @.orders GROUP BY 1 HAVING note = 'red'",
    "SELECT count(*) FROM @.orders", "SELECT count(*) FROM @.customers WHERE city = 'Rome'", "SELECT 1 FROM @.customers",
    "SELECT count(DISTINCT cust), count_if(price > 20) FILTER (WHERE id > 10) FROM @.orders WHERE note IN ('red', 'a,b')",
    "SELECT DISTINCT cust FROM @.orders WHERE price BETWEEN 20 AND 70 ORDER BY cust",
    "SELECT id AS price, price AS id FROM @.orders WHERE id > 55 ORDER BY price",
    # generators, pivots, samples
    "SELECT id, word FROM @.orders LATERAL VIEW explode(split(note, ',')) w AS word WHERE id < 20 AND word <> 'red'",
    "SELECT id, p, word FROM @.orders LATERAL VIEW OUTER posexplode(split(note, ',')) w AS p, word LATERAL VIEW explode(array(1, 2)) AS x WHERE orders.id > 50 AND x = 2",
    "SELECT * FROM (SELECT cust, note, price FROM @.orders WHERE id > 10) PIVOT (sum(price) FOR note IN ('red', 'a,b'))",
    "SELECT * FROM @.orders PIVOT (count(*) FOR note IN ('red')) WHERE id < 5",
    "SELECT * FROM (SELECT id, price, cust FROM @.orders) UNPIVOT (v FOR n IN (price))",
    "SELECT count(*) FROM @.orders TABLESAMPLE (100 PERCENT) WHERE id < 10",
    "SELECT id, x FROM @.orders o, LATERAL explode(array(o.id, 1)) AS t(x) WHERE id < 4",
    # stars, aliases, clashes
    "SELECT * FROM @.customers", "SELECT * EXCEPT (info) FROM @.customers WHERE cust > 2",
    "SELECT c.*, o.id FROM @.orders o JOIN @.customers c ON o.cust = c.cust WHERE o.id < 9 AND c.city IS NOT NULL",
    "SELECT info.*, city FROM @.customers WHERE info.tag = 'a'", "SELECT c.info.id, c.info.tag FROM @.customers c WHERE c.info.id > 2",
    "SELECT struct(*) AS s FROM @.customers WHERE cust = 3", "SELECT hash(c.*) AS h FROM @.customers c",
    "SELECT info.id FROM @.orders info, @.customers c WHERE info.id < 3 AND c.cust = 1",
    "SELECT a FROM @.customers AS t(a, b, c, d) WHERE b = 'Rome'", "SELECT t.x FROM (SELECT cust FROM @.customers) AS t(x)",
    "SELECT orders.id FROM @.orders WHERE shop.orders.id = 4 OR @.orders.id = 5",
    "SELECT ORDERS.Id FROM @.Orders WHERE Price > 80", "SELECT `id` FROM @.`orders` `or` WHERE `or`.`price` > 80",
    "SELECT o.id FROM @.orders o JOIN spark_catalog.shop.customers c ON o.cust = c.cust WHERE c.city = 'Rome' AND o.id > 30",
    "SELECT o.id, v.five FROM @.orders o JOIN session_view v ON o.id = v.k WHERE v.five = 3 AND price > 2",
    "SELECT id FROM @.orders WHERE id IN (SELECT k FROM session_view WHERE five = id % 5)",
    # texts
    "SELECT id, 'market.shop.orders {x} {0}' AS t FROM @.orders -- FROM market.shop.customers\n WHERE note = 's.t {0}' /* , market.shop.x */",
    "SELECT id FROM @.orders WHERE note = 'it''s' AND note LIKE 'it\\'%' OR note = \"it's\"",
    "SELECT /*+ BROADCAST(o) */ o.id, transform(array(1, 2), price -> price + o.id) AS t FROM @.orders o WHERE o.id < 3",
    "SELECT CASE WHEN id > 30 AND price IS NULL OR note = 'red' THEN 'a' ELSE 'b' END AS c, count(*) FROM @.orders WHERE CASE WHEN id > 5 THEN true END GROUP BY 1",
    "SELECT extract(MONTH FROM day) AS m, trim(BOTH 'r' FROM note) AS t FROM @.orders WHERE note IS DISTINCT FROM 'red' AND day > '2024-01-20'",
    "SELECT left(note, 1) AS l FROM @.orders WHERE right(note, 1) = 'd' AND id <> 5",
]  # fmt: skip


def some_on_connect(texts: list[str], each: int) -> list[Any]:
    """One in ``each`` runs over Connect as well: Spark plans them there as it does on classic sessions."""
    marks = [[pytest.mark.connect] if place % each == 0 else [] for place in range(len(texts))]
    return [
        pytest.param(text, marks=mark, id=f"{i}-{text[:50]}")
        for i, (text, mark) in enumerate(zip(texts, marks, strict=True))
    ]


@pytest.mark.parametrize("text", some_on_connect(QUERIES, 8))
def test_it_equals_spark_on_its_own_tables(client: SharingClient, spark: Any, text: str) -> None:
    if "QUALIFY" in text and spark.version < "4.2":
        pytest.skip("Spark knows QUALIFY from 4.2 on")
    expected = spark.sql(text.replace("@", "spark_catalog.shop"))
    rows = rows_of(expected)
    for engine in ("native", "python")[: 1 if QUERIES.index(text) % 8 else 2]:
        found = client.sql(spark, text.replace("@", "market.shop"), engine=engine)
        assert found.columns == expected.columns
        assert rows_of(found) == rows


@pytest.mark.connect_only
def test_only_what_is_needed_is_fetched(client: SharingClient, spark: Any, server: SharingServer) -> None:
    server.reset_metrics()
    text = (
        "SELECT a.id FROM market.shop.orders a JOIN market.shop.orders b ON a.id = b.id WHERE a.id < 20 AND b.price > 1"
    )
    assert client.sql(spark, text, engine="python").count() == 18
    # One for the schema, one for each of the two different loads.
    assert (server.count("metadata"), server.count("query")) == (3, 2)
    assert len({r.path.partition("?")[0] for r in server.requests if r.kind == "data"}) <= 3


def test_the_python_source_reads_what_the_options_of_its_loads_say(
    client: SharingClient, spark: Any, server: SharingServer, caplog: pytest.LogCaptureFixture
) -> None:
    """On a classic session, where the native lane steps aside: whole tables, once for each of them, and the log says so."""
    caplog.set_level("INFO", logger="delta_sharing_spark.spark")
    text = "SELECT a.id FROM market.shop.orders a JOIN market.shop.orders b ON a.id = b.id WHERE a.id < 20"
    server.reset_metrics()
    assert client.sql(spark, text, engine="python").count() == 20
    assert len({r.path.partition("?")[0] for r in server.requests if r.kind == "data"}) == 3
    assert "market.shop.orders: the Python source reads what the options of the load say" in caplog.text
    said = client.explain_sql(text, spark, engine="python").splitlines()
    assert said[0] == "Python data source: engine='python'"
    assert said[1:4] == [
        "market.shop.orders",
        "  columns  all: the Python source reads what the options of the load say",
        "  where    none",
    ]
    narrow = client.with_options({**client.options, "where": "id < 20", "columns": "id"})
    said = narrow.explain_sql("SELECT count(*) FROM market.shop.orders", spark, engine="python").splitlines()
    assert said[2:4] == ["  columns  id", "  where    id < 20"]
    server.reset_metrics()
    assert narrow.sql(spark, "SELECT count(*) FROM market.shop.orders", engine="python").first()[0] == 20
    assert len({r.path.partition("?")[0] for r in server.requests if r.kind == "data"}) == 1


def test_explaining_a_query_asks_for_no_file(client: SharingClient, spark: Any, server: SharingServer) -> None:
    """What it says is what the index is asked when the query runs."""
    text = (
        "SELECT c.city, count(*) FROM market.shop.orders o JOIN market.shop.customers c USING (cust)"
        " WHERE o.price > 5 AND o.note = 'it\\'s' AND c.city <> 'Bern' GROUP BY c.city"
    )
    server.reset_metrics()
    said = client.explain_sql(text, spark)
    assert {request.kind for request in server.requests} <= {"metadata", "shares"}
    client.sql(spark, text).collect()
    asked = {(scan.table, scan.condition) for scan in client.last_scans()[-2:]}
    assert asked == {
        (table, where)
        for table, where in re.findall(r"^(market\S+)\n  columns  .*\n  where    (.*)$", said, re.MULTILINE)
    }
    lines = {
        "SELECT id FROM market.shop.orders LIMIT 7": "rows     7 rows of it are enough",
        "SELECT count(*) FROM market.shop.orders": "columns  none: its rows are counted",
        "SELECT count(*) FROM market.shop.orders WHERE false": "columns  none: Spark's plan does not read it",
    }
    explained = {text: client.explain_sql(text, spark) for text in lines}
    assert {text: said for text, said in explained.items() if lines[text] not in said} == {}
    limited_client = client.with_options({**client.options, "limit": "30"})
    said = limited_client.explain_sql("SELECT id FROM market.shop.orders WHERE id > 3", spark)
    assert "  where    none\n  files    those of the load, " in said


def lane_of(frame: Any) -> str:
    """The lane by what Spark's plan reads from."""
    classic = hasattr(frame, "_jdf")
    plan = frame._jdf.queryExecution().toString() if classic else frame._explain_string(extended=True)
    return "native" if "webhdfs" in plan else "python"


@pytest.mark.connect
def test_spark_s_own_reader_reads_where_it_fits_all_tables(
    client: SharingClient, spark: Any, server: SharingServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = "SELECT o.id, c.city FROM market.shop.orders o JOIN market.shop.customers c USING (cust)"
    assert [lane_of(client.sql(spark, text, engine=e)) for e in (None, "native", "python")] == ["native"] * 2 + [
        "python"
    ]
    assert client.explain_sql(text, spark).startswith("native lane")
    odd_rows = pa.table({"_metadata": pa.array([1, 2], pa.int64())})
    server.add_table("market.shop.odd", DeltaTableBuilder(tmp_path / "odd", odd_rows.schema).append(odd_rows).path)
    caplog.set_level("INFO", logger="delta_sharing_spark")
    mixed = f"{text} JOIN market.shop.odd m ON m._metadata = o.id"
    frame = client.sql(spark, mixed)
    assert lane_of(frame) == "python"
    assert rows_of(frame) == ["(1, 'Oslo')", "(2, None)"]
    assert "market.shop.odd: it has a column _metadata" in caplog.text
    assert "market.shop.odd" in client.explain_sql(mixed, spark).splitlines()[0]


def test_the_lane_leaves_out_files(client: SharingClient, spark: Any) -> None:
    text = "SELECT a.id FROM market.shop.orders a LEFT JOIN market.shop.orders b ON a.id = b.cust AND b.id < 5 WHERE a.id > 50"
    frame = client.sql(spark, text)
    assert len(frame.collect()) == 9
    assert sorted(scan.files for scan in client.last_scans()[-2:]) == [0, 1]  # no cust is above 50
    whole = client.query(spark, lambda t: t("market.shop.orders").where("note LIKE '%e%' OR rand() < 2"))
    whole.collect()
    assert client.last_scans()[-1].files == 3
    calls: list[int] = []

    def build(table: Callable[[str], Any]) -> Any:
        orders = table("market.shop.orders")
        calls.append(orders.where("id > 50").count())  # Spark prunes what a function executes, too
        return orders.where(f"id > {len(calls) + 49}").select("id")

    assert len(client.query(spark, build).collect()) == calls[0] == 9
    assert len(calls) == 1
    assert [scan.files for scan in client.last_scans()[-2:]] == [1, 1]


@pytest.mark.connect
def test_the_tables_of_a_query_are_asked_for_at_the_same_time(
    client: SharingClient, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of two requests waits for the other; a table that is mentioned twice is asked for once."""

    def waiting(call: Callable[..., Any]) -> Callable[..., Any]:
        barrier = threading.Barrier(2, timeout=HANGS)

        def wait_and_call(*arguments: Any, **named: Any) -> Any:
            barrier.wait()
            return call(*arguments, **named)

        return wait_and_call

    monkeypatch.setattr(sql, "_reference", waiting(sql._reference))
    text = "SELECT * FROM {0}.orders a JOIN {0}.customers USING (cust) JOIN {0}.orders b ON a.id = b.id + 1"
    expected = rows_of(spark.sql(text.format("spark_catalog.shop")))
    assert rows_of(client.sql(spark, text.format("market.shop"))) == expected


@pytest.mark.connect
def test_a_query_s_frame_is_used_again(client: SharingClient, spark: Any, profile: str) -> None:
    """Also where the client's loads take Spark's filters: those of one use would be kept for the next."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushing = SharingClient(profile, pushdown="query", engine="python")
        by_sql = pushing.sql(spark, "SELECT id, cust FROM market.shop.orders")
        by_frame = pushing.query(spark, lambda table: table("market.shop.orders"))
        counts = [(frame.where("id < 5").count(), frame.count()) for frame in (by_sql, by_frame)]
        assert counts == [(5, 60), (5, 60)]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.connect
@pytest.mark.parametrize("engine", ["python", "native"])
def test_parameters(client: SharingClient, spark: Any, engine: str) -> None:
    named = "SELECT id FROM market.shop.orders WHERE note = :note AND id > :low AND day > :day"
    args = {"note": "it's", "low": 20, "day": datetime.date(2024, 1, 20)}
    assert rows_of(client.sql(spark, named, args, engine)) == ["(41,)", "(46,)", "(51,)", "(56,)"]
    text = "SELECT id FROM market.shop.orders WHERE id IN (?, ?) AND note <> ?"
    assert rows_of(client.sql(spark, text, [1, 3, "it's"], engine)) == ["(3,)"]
    assert "columns  id, day, note\n" in client.explain_sql(named, spark, args)


@pytest.mark.parametrize("engine", ["python", "native"])
def test_functions_that_call_java_are_just_a_query(client: SharingClient, spark: Any, engine: str) -> None:
    text = "SELECT java_method('java.lang.Math', 'max', 1, 2) AS m FROM market.shop.orders WHERE id = reflect('java.lang.Math', 'min', 7, 9)"
    assert rows_of(client.sql(spark, text, engine=engine)) == ["('2',)"]


@pytest.mark.connect
def test_braces_stay_as_they_are(client: SharingClient, spark: Any) -> None:
    assert rows_of(client.sql(spark, "SELECT '{a} {{b}} {' AS c")) == ["('{a} {{b}} {',)"]
    text = "SELECT '{a} {{b}} {' AS c FROM market.shop.orders WHERE id = 1"
    assert rows_of(client.sql(spark, text)) == ["('{a} {{b}} {',)"]


@pytest.mark.parametrize("engine", ["python", "native"])
def test_a_stream_beside_shared_tables(client: SharingClient, spark: Any, engine: str) -> None:
    spark.readStream.format("rate").option("rowsPerSecond", 10).load().createOrReplaceTempView("rates")
    try:
        text = "SELECT r.value, o.note FROM rates r JOIN market.shop.orders o ON r.value = o.id WHERE o.id < 20"
        frame = client.sql(spark, text, engine=engine)
        assert frame.isStreaming
    finally:
        spark.catalog.dropTempView("rates")


@pytest.mark.connect
@pytest.mark.parametrize("engine", ["python", "native"])
def test_a_function_s_data_frame(client: SharingClient, spark: Any, engine: str) -> None:
    def build(table: Any) -> Any:
        orders, customers = table("market.shop.orders"), table("market.shop.customers")
        return orders.where("id > 5").join(customers, "cust").groupBy("city").agg({"price": "max"})

    expected = rows_of(build(lambda name: spark.table(name.replace("market", "spark_catalog"))))
    frame = client.query(spark, build, engine=engine)
    assert lane_of(frame) == engine
    assert rows_of(frame) == expected
    assert "columns  id, cust, price\n" in client.explain_sql(build, spark)


@pytest.mark.connect
@pytest.mark.parametrize("engine", ["python", "native"])
def test_a_function_that_executes_something_gets_whole_tables(client: SharingClient, spark: Any, engine: str) -> None:
    seen = []

    def build(table: Any) -> Any:
        orders = table("market.shop.orders")
        seen.append(orders.agg({"id": "max"}).collect()[0][0])
        return orders.where(f"id = {seen[-1]}").select("id")

    assert rows_of(client.query(spark, build, engine)) == ["(59,)"]
    assert set(seen) == {59}
    assert "executing it" in client.explain_sql(build, spark)


@pytest.mark.connect
def test_a_function_that_changes_its_mind_gets_whole_tables(client: SharingClient, spark: Any, spark_mode: str) -> None:
    """On Connect, where it is called twice to find out what it needs; on a classic session it is called once."""
    calls = 3 if spark_mode == "connect" else 1
    bounds = iter([50, 40, 30, 20, 10])

    def build(table: Any) -> Any:
        return table("market.shop.orders").where(f"id > {next(bounds)}").select("id")

    assert len(rows_of(client.query(spark, build, "python"))) == (9, 0, 29)[calls - 1]
    names = iter(["orders", "customers", "customers"])
    found = client.query(spark, lambda table: table(f"market.shop.{next(names)}").select("cust"), "python")
    assert found.count() == (60, 0, 7)[calls - 1]
    with pytest.raises(ZeroDivisionError):
        client.query(spark, lambda table: 1 / 0)  # type: ignore[arg-type, return-value]


def test_a_condition_of_all_loads_may_end_in_a_comment() -> None:
    table = Struct((Field("id", Primitive("long")), Field("price", Primitive("double"))))
    above = parse_where("price > 5", table)
    sent = sent_condition({"Where": "id > 40 -- the late ones"}, TableNeed(table, above))
    assert sent is not None
    assert str(parse_where(sent, table)) == "`id` > 40L AND `price` > 5.0D"
    with pytest.raises(PredicateError, match="this parenthesis closes none"):
        sent_condition({"where": "id > 40) OR (id < 4"}, TableNeed(table, above))


@pytest.mark.connect
@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
@pytest.mark.parametrize("engine", ["python", "native"])
def test_literals_are_read_in_the_zone_of_the_session(
    client: SharingClient, spark: Any, zone: str, engine: str
) -> None:
    text = "SELECT id FROM @.orders WHERE at >= TIMESTAMP'2024-01-01 05:00:00' AND at < '2024-01-01 09:00:00Z'"
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        expected = spark.sql(text.replace("@", "spark_catalog.shop"))
        assert rows_of(client.sql(spark, text.replace("@", "market.shop"), engine=engine)) == rows_of(expected)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.filterwarnings("ignore:The SQL config:UserWarning")
@pytest.mark.parametrize(
    ("conf", "value", "condition"),
    [
        ("spark.sql.ansi.enabled", "false", "id = '7' OR id = 'x' OR price > 1.1F"),
        ("spark.sql.ansi.enabled", "false", "cust + 9223372036854775807 < 0"),
        ("spark.sql.parser.escapedStringLiterals", "true", "note <> 'a\\nb'"),
        ("spark.sql.legacy.consecutiveStringLiterals.enabled", "true", "note = 'r''ed'"),
        ("spark.sql.caseSensitive", "true", "id > 30"),
        ("spark.sql.timestampType", "TIMESTAMP_NTZ", "at > TIMESTAMP'2024-01-01 05:00:00'"),
    ],
)
@pytest.mark.parametrize("engine", ["python", "native"])
def test_sessions_with_other_rules(
    client: SharingClient, spark: Any, conf: str, value: str, condition: str, engine: str
) -> None:
    spark.conf.set(conf, value)
    try:
        text = f"SELECT id FROM @.orders WHERE {condition}"
        expected = spark.sql(text.replace("@", "spark_catalog.shop"))
        assert rows_of(client.sql(spark, text.replace("@", "market.shop"), engine=engine)) == rows_of(expected)
    finally:
        spark.conf.unset(conf)


@pytest.mark.connect
def test_it_explains_itself(client: SharingClient, spark: Any, spark_mode: str) -> None:
    query = (
        "SELECT c.*, o.id FROM market.shop.orders o LEFT JOIN market.shop.customers c ON o.cust = c.cust"
        " WHERE o.price > 5 AND c.city IS NULL AND upper(o.note) = 'RED'"
    )
    text = client.explain_sql(query, spark)
    assert client.explain_sql("SELECT 1") == "no shared table"
    assert "market.shop.orders\n  columns  id, cust, price, note\n" in text
    assert "market.shop.customers\n  columns  cust, city, note, info\n" in text
    if spark_mode == "classic":
        assert "where    `note` IS NOT NULL AND `price` > 5.0D\n" in text
        assert "unused   (upper(`note`) = 'RED'): Upper is not part of the language of where" in text


#: What a classic plan tells: a query, the columns and the condition of each of its scans.
NEEDS = [
    ("SELECT id FROM @.orders WHERE note = 'a' AND price = 2 OR id > 60", ["id, price, note"], ["(`note` = 'a' AND `price` = 2.0D) OR `id` > 60L"]),
    ("SELECT count(*) FROM @.orders", ["none: its rows are counted"], ["none"]),
    ("SELECT count(*) FROM (SELECT * FROM @.orders)", ["none: its rows are counted"], ["none"]),
    ("SELECT info.tag FROM @.customers WHERE info.tag > 'a'", ["info.tag"], ["`info`.`tag` > 'a'"]),
    ("SELECT id FROM @.orders WHERE id IN (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)", ["id"], ["`id` IN (1L, 10L, 11L, 2L, 3L, 4L, 5L, 6L, 7L, 8L, 9L)"]),
    ("WITH c AS (SELECT * FROM @.orders) SELECT a.id FROM c a JOIN c b ON a.id = b.cust WHERE a.note = 'x' AND b.price > 3",
     ["id, note", "cust, price"], ["`id` IS NOT NULL AND `note` = 'x'", "`cust` IS NOT NULL AND `price` > 3.0D"]),
    ("SELECT id FROM @.orders WHERE note LIKE 'a_%' AND note LIKE '%\\_b'", ["id, note"], ["`note` LIKE 'a_%' AND `note` LIKE '%\\\\_b'"]),
    ("SELECT id FROM @.orders WHERE id > rand() AND cust > 3", ["id, cust"], ["`id` IS NOT NULL AND `cust` > 3L"]),
    ("SELECT id FROM @.orders WHERE cust > 3 AND id > (SELECT max(cust) FROM @.customers WHERE city = 'Rome')", ["id, cust", "cust, city"], ["`id` IS NOT NULL AND `cust` > 3L", "`city` = 'Rome'"]),
    ("SELECT CASE WHEN current_date() > '2024-01-01' THEN id ELSE cust END AS c FROM @.orders", ["id"], ["none"]),
    ("SELECT id FROM @.orders WHERE note = current_database() AND cust > 3", ["id, cust, note"], ["`note` = 'default' AND `cust` > 3L"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "columns", "conditions"), NEEDS, ids=[q[:60] for q, *_ in NEEDS])
def test_what_a_query_needs(
    client: SharingClient, spark: Any, text: str, columns: list[str], conditions: list[str]
) -> None:
    lines = client.explain_sql(text.replace("@", "market.shop"), spark).splitlines()
    assert [line.removeprefix("  columns  ") for line in lines if line.startswith("  columns")] == columns
    found = [line.removeprefix("  where    ") for line in lines if line.startswith("  where")]
    # The order of conjuncts is Spark's own, and so are its parentheses.
    assert [parts(text) for text in found] == [parts(text) for text in conditions]


def parts(condition: str) -> list[str]:
    return sorted(part for part in re.split(r" AND | OR |[()]", condition) if part)


#: What a Connect plan proves, by reference.
PROVED = [
    ("SELECT o.id FROM @.orders o JOIN @.customers c ON o.cust = c.cust WHERE o.day >= DATE'2024-01-10' AND upper(o.note) = 'RED' AND c.city IN ('Rome', 'Oslo') AND o.price < 50",
     [["`day` >= DATE '2024-01-10'", "`price` < 50.0D", "`cust` IS NOT NULL"], ["`city` IN ('Rome', 'Oslo')", "`cust` IS NOT NULL"]]),
    ("SELECT id FROM @.orders WHERE note = 'it\\'s' AND at > TIMESTAMP'2024-01-01 05:00:00'", [["`at` > TIMESTAMP '2024-01-01 05:00:00Z'", "`note` = 'it\\'s'"]]),
    ("SELECT id FROM @.orders WHERE note IN ('a\\\\b', 'red')", [["`note` IN ('a\\\\b', 'red')"]]),
    ("SELECT a.id FROM (SELECT * FROM @.orders ORDER BY id LIMIT 59) a LEFT JOIN @.customers c ON c.cust > 3 AND a.cust = c.cust WHERE a.id > 50", [["none"], ["`cust` > 3L"]]),
    ("SELECT id FROM @.orders WHERE note = 'x) AND (id = 3' OR id > 58", [["none"]]),
    ("SELECT info.tag FROM @.customers WHERE info.tag LIKE 'a%' AND info.id > 0 AND day(current_date()) > 0", [["none"]]),
    ("SELECT info.tag FROM @.customers WHERE info.tag LIKE 'a%' AND info.id > 0", [["`info`.`tag` LIKE 'a%'", "`info`.`id` > 0L"]]),
]  # fmt: skip


@pytest.mark.connect_only
@pytest.mark.parametrize(("text", "conditions"), PROVED, ids=[q[:60] for q, _ in PROVED])
def test_what_a_connect_plan_proves(client: SharingClient, spark: Any, text: str, conditions: list[list[str]]) -> None:
    lines = client.explain_sql(text.replace("@", "market.shop"), spark).splitlines()
    found = [parts(line.removeprefix("  where    ")) for line in lines if line.startswith("  where")]
    assert found == [parts(" AND ".join(each)) for each in conditions]
    expected = rows_of(spark.sql(text.replace("@", "spark_catalog.shop")))
    assert rows_of(client.sql(spark, text.replace("@", "market.shop"), engine="python")) == expected


@pytest.mark.connect
def test_what_is_not_there_is_spark_s_error(client: SharingClient, spark: Any) -> None:
    from pyspark.errors import AnalysisException

    spark_s = r"TABLE_OR_VIEW_NOT_FOUND|CATALOG_NOT_FOUND|REQUIRES_SINGLE_PART"
    with pytest.raises(
        AnalysisException, match=rf"(?s)({spark_s}).*\nthe metadata of market.shop.order.*did you mean 'orders'\?$"
    ):
        client.sql(spark, "SELECT 1 FROM market.shop.order")
    with pytest.raises(AnalysisException, match=rf"(?s)({spark_s}).*\nmarkt.shop.orders: .*did you mean 'market'\?$"):
        client.sql(spark, "SELECT 1 FROM market.shop.orders JOIN markt.shop.orders USING (id)")
    with pytest.raises(AnalysisException, match="UNRESOLVED_COLUMN"):
        client.sql(spark, "SELECT nothing FROM market.shop.orders")
    with pytest.raises(PredicateError, match="a query"):
        client.sql(spark, "DROP TABLE market.shop.orders")


#: What is not a query, with what Spark would execute; ``?`` stands for the table that must stay as it is.
STATEMENTS = [
    "INSERT INTO ? SELECT id FROM market.shop.orders", "INSERT OVERWRITE ? SELECT id FROM market.shop.orders",
    "WITH c AS (SELECT id FROM market.shop.orders WHERE id < 5) INSERT OVERWRITE ? SELECT id FROM c",
    "WITH c AS (SELECT id FROM market.shop.orders) INSERT INTO ? SELECT id FROM c",
    "WITH c AS (SELECT id FROM market.shop.orders) FROM c INSERT INTO ? SELECT id",
    "FROM market.shop.orders INSERT INTO ? SELECT id", "FROM market.shop.orders INSERT OVERWRITE ? SELECT id",
    "FROM market.shop.orders INSERT INTO ? SELECT id INSERT INTO ? SELECT id + 1",
    "FROM market.shop.orders INSERT INTO ? SELECT id;", "/* SELECT */ INSERT INTO ? TABLE market.shop.orders -- SELECT",
    "INSERT INTO ? VALUES (1)", "INSERT INTO ? FROM (SELECT id FROM market.shop.orders) SELECT id",
    "SELECT 1) INSERT INTO ? SELECT id FROM (SELECT 1 AS id", "SELECT 1) SELECT 2", "SELECT 1; DROP TABLE ?",
    "DROP TABLE ?", "TRUNCATE TABLE ?", "ALTER TABLE ? RENAME TO shop.gone", "CREATE TABLE shop.made AS SELECT id FROM market.shop.orders",
    "CREATE VIEW shop.made AS SELECT id FROM market.shop.orders", "CACHE TABLE made AS SELECT id FROM market.shop.orders",
    "DELETE FROM ?", "UPDATE ? SET id = 1", "MERGE INTO ? USING market.shop.orders s ON s.id = ?.id WHEN MATCHED THEN DELETE",
    "SET spark.sql.shuffle.partitions = 7", "RESET", "USE shop", "SHOW TABLES", "DESCRIBE market.shop.orders",
    "EXPLAIN SELECT id FROM market.shop.orders", "EXPLAIN INSERT INTO ? SELECT id FROM market.shop.orders", "REFRESH TABLE ?",
    "BEGIN INSERT INTO ? VALUES (1); SELECT 1; END", "EXECUTE IMMEDIATE 'DROP TABLE ?'", "DECLARE x INT DEFAULT 1", "", ";",
    "WITH c AS (SELECT 1 AS id) UPDATE ? SET id = 1", "WITH c AS (SELECT 1 AS id) DELETE FROM ?", "WITH c AS (SELECT 1 AS id) MERGE INTO ? USING c ON true WHEN MATCHED THEN DELETE",
    "FROM (SELECT id FROM market.shop.orders) q INSERT OVERWRITE TABLE ? SELECT id WHERE id > 3", "SELECT 1 AS id ; INSERT INTO ? VALUES (9)", "CREATE OR REPLACE TEMP VIEW made AS SELECT 1",
    "INSERT OVERWRITE DIRECTORY '/tmp/made' USING parquet SELECT 1", "EXPLAIN EXTENDED SELECT 1", "ANALYZE TABLE ? COMPUTE STATISTICS", "ADD JAR '/tmp/x.jar'",
    "SET VAR x = 1", "CALL system.do()", "MSCK REPAIR TABLE ?", "UNCACHE TABLE ?", "LOAD DATA INPATH '/tmp/x' INTO TABLE ?", "COMMENT ON TABLE ? IS 'x'", "OPTIMIZE ?",
    "SELECT $$ ( $$) INSERT INTO ? SELECT id FROM (SELECT 1 AS id, $$ ) $$ AS t", "-- nothing",
]  # fmt: skip


@pytest.mark.connect
def test_what_is_no_query_is_refused_and_nothing_runs(client: SharingClient, spark: Any) -> None:
    spark.sql("CREATE TABLE IF NOT EXISTS shop.target AS SELECT CAST(id AS BIGINT) AS id FROM range(3)")
    tables = [t.tableName for t in spark.sql("SHOW TABLES IN shop").collect()]
    ran = []
    for statement in STATEMENTS:
        try:
            client.sql(spark, statement.replace("?", "spark_catalog.shop.target"))
        except (PredicateError, ParseException):
            continue
        ran.append(statement)
    assert not ran
    assert rows_of(spark.table("spark_catalog.shop.target")) == ["(0,)", "(1,)", "(2,)"]
    assert [t.tableName for t in spark.sql("SHOW TABLES IN shop").collect()] == tables


@pytest.mark.connect
def test_the_refusal_says_how_to_write_a_result(client: SharingClient, spark: Any) -> None:
    with pytest.raises(PredicateError, match=r"client\.sql\(spark, .*\.write"):
        client.sql(spark, "WITH c AS (SELECT 1) INSERT INTO shop.target SELECT * FROM c")
    with pytest.raises(PredicateError, match=r"client\.sql\(spark, .*\.write"):
        client.sql(spark, "INSERT INTO shop.target SELECT 1")


@pytest.mark.connect
@pytest.mark.parametrize("text", ["SELECT 1 AS a;", "VALUES (1)", "TABLE session_view", "FROM session_view SELECT k",
                                  "(SELECT 1) -- end", "((SELECT 1)) ; ;", "WITH c AS (SELECT 1) SELECT * FROM c /* ; */"])  # fmt: skip
def test_every_kind_of_query_is_one(client: SharingClient, spark: Any, text: str) -> None:
    assert rows_of(client.sql(spark, text)) == rows_of(spark.sql(text))
