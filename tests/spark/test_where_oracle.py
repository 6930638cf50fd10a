"""``parse_where`` and ``evaluate`` against Spark's own filter, on the same rows: many drawn predicates per Spark job."""

from __future__ import annotations

import datetime
import random
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from pyspark.errors import AnalysisException

sys.path.append(str(Path(__file__).parents[1] / "unit" / "predicates"))

import test_query_narrowing as narrowing
from where_strategies import ROWS, SCHEMA, predicates, table

from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.predicates.evaluate import evaluate
from delta_sharing_spark.predicates.query import analyse
from delta_sharing_spark.predicates.sql import parse_where

pytestmark = pytest.mark.spark

PER_JOB = 40


def draw(strategy, count):
    """``count`` examples at once (``given`` shrinks; here the Spark job is the cost, so examples are collected)."""
    found = []

    @seed(20261121)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(example):
        found.append(example)

    collect()
    return found


def differences(spark, rows, texts):
    """Predicates whose answers differ from Spark's, or that Spark refuses though we accept them."""
    from pyspark.sql.functions import expr

    data = table(rows)
    frame = spark.createDataFrame(data).coalesce(1).cache()
    wrong = []
    for start in range(0, len(texts), PER_JOB):
        part = texts[start : start + PER_JOB]
        try:
            answers = frame.select(*[expr(f"({text}) = true").alias(f"p{i}") for i, text in enumerate(part)]).toArrow()
        except Exception:
            answers = None
        for i, text in enumerate(part):
            try:
                spark_says = (
                    answers.column(i).to_pylist()
                    if answers
                    else frame.select(expr(f"({text}) = true").alias("p")).toArrow().column(0).to_pylist()
                )
            except Exception as error:
                spark_says = str(error).split("\n")[0]
            ours = evaluate(parse_where(text, SCHEMA), data).to_pylist()
            if ours != spark_says:
                wrong.append((text, str(parse_where(text, SCHEMA)), ours, spark_says))
    frame.unpersist()
    return wrong


def accepted(text):
    try:
        parse_where(text, SCHEMA)
    except PredicateError:
        return False
    return True


def test_drawn_predicates_select_what_spark_selects(spark):
    drawn = draw(predicates(), 800)
    texts = [text for text in dict.fromkeys(drawn) if accepted(text)]
    assert len(texts) > len(drawn) / 3  # the language covers most of what is drawn
    rows = [row for rows in draw(ROWS, 12) for row in rows]
    assert not differences(spark, rows, texts)


QUERIES = [
    "SELECT o.id, (SELECT max(city) FROM s.d.customers c WHERE c.cid = o.cust AND c.city > 'a') m FROM s.d.orders o WHERE o.price >= 1",
    "SELECT id, row_number() OVER (PARTITION BY cust ORDER BY price, id, day, note) r FROM s.d.orders WHERE id = 1 AND price > 0.5",
    "SELECT cust, count(*) FROM s.d.orders WHERE price NOT IN (1.0, 2.0) OR price IS NULL GROUP BY cust HAVING count(*) > 1",
    "SELECT a.id FROM s.d.orders a LEFT SEMI JOIN s.d.orders b ON a.id = b.cust AND b.price > 1 WHERE a.note = 'a'",
    "SELECT a.id, b.id FROM s.d.orders a JOIN s.d.orders b ON a.id = b.cust LEFT JOIN s.d.customers c ON c.cid = b.id"
    " WHERE a.price > 1 AND b.price < 3 AND c.city <=> NULL",
    "SELECT id FROM s.d.orders WHERE id IN (SELECT cid FROM s.d.customers WHERE city = 'b') AND day = '2020-01-01'",
    "SELECT DISTINCT note FROM s.d.orders WHERE NOT (note = 'a' AND id = 1) EXCEPT SELECT note FROM s.d.customers WHERE note = 'A'",
    "SELECT s.d.orders.id FROM s.d.orders, s.d.customers WHERE s.d.orders.cust = customers.cid AND customers.city = 'a'",
    "SELECT sum(CASE WHEN price > 1 THEN 1 ELSE 0 END) FROM s.d.orders WHERE id BETWEEN 1 AND 2 AND cust = 3 OR id = 3",
    "SELECT o.id FROM s.d.customers c RIGHT JOIN s.d.orders o ON o.cust = c.cid AND c.city = 'a' WHERE o.id = 1 AND c.note IS NULL",
    "SELECT g, count(1) c FROM (SELECT id + 1 AS g, * FROM s.d.orders) GROUP BY g",
    "SELECT id FROM s.d.orders o, LATERAL (SELECT city FROM s.d.customers WHERE cid = o.cust AND city = 'a') WHERE o.price > 1",
]


def test_narrowed_tables_answer_queries_as_whole_ones_do(spark):
    pick = random.Random(3).choice
    days = [datetime.date(2020, 1, 1), datetime.date(2020, 6, 1), None]
    orders = [
        (
            pick([1, 2, 3, None]),
            pick([1, 2, 3, 4]),
            pick([0.5, 1.0, 3.0, None, float("nan")]),
            pick(days),
            pick(["a", "A", "it's", None]),
        )
        for _ in range(60)
    ]
    customers = [(pick([1, 2, 3, 4]), pick(["a", "b", "it's", None]), pick(["a", "A", None])) for _ in range(20)]
    whole = {
        "orders": spark.createDataFrame(orders, "id long, cust long, price double, day date, note string"),
        "customers": spark.createDataFrame(customers, "cid long, city string, note string"),
    }
    spark.createDataFrame([(1, 3), (2, 4)], "id long, x long").createOrReplaceTempView("local")
    pushed = compared = 0
    for text in [*list(narrowing.CASES)[::3], *QUERIES]:
        if "rand()" in text or "TABLESAMPLE" in text or "note = 'x'" in text:  # by chance, or ambiguous
            continue
        query = analyse(text, narrowing.look_up)
        answers = []
        for narrow in (False, True):
            views = []
            for i, reference in enumerate(query.references):
                frame = whole[reference.name[2].lower()]
                if narrow and reference.where:
                    frame = frame.where(reference.where)
                    pushed += 1
                if narrow and reference.columns is not None:
                    frame = frame.select(*reference.columns)
                views.append(f"narrowed_{i}")
                frame.createOrReplaceTempView(views[-1])
            try:
                result = spark.sql(query.splice(views))
            except AnalysisException:
                # Some of the unit suite's cases name columns that these tables do not have: no query to compare.
                assert not narrow, text
                break
            answers.append((result.schema, sorted(map(repr, result.collect()))))
        if answers:
            assert answers[0] == answers[1], text
            compared += 1
    assert pushed > 15
    assert compared > 20
