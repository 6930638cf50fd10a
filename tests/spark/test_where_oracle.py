"""``parse_where`` and ``evaluate`` against Spark's own filter, on the same rows: many drawn predicates per Spark job."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

sys.path.append(str(Path(__file__).parents[1] / "unit" / "predicates"))

from where_strategies import ROWS, SCHEMA, predicates, table

from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.predicates.evaluate import evaluate
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
