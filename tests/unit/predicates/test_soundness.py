"""Evaluation against a row-by-row oracle, and skipping that never loses a row that the oracle passes."""

from __future__ import annotations

import io
import pickle
import re
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, example, given

from delta_sharing_spark.deltalog.add_batch import AddBatch
from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.parquet.footer import read_footer
from delta_sharing_spark.predicates.evaluate import evaluate
from delta_sharing_spark.predicates.file_skipping import FileSkipping, TextStatistics
from delta_sharing_spark.predicates.row_groups import RowGroupSkipping
from delta_sharing_spark.predicates.skip_reason import SkipReason
from delta_sharing_spark.predicates.sql import parse_where
from delta_sharing_spark.scan.column_resolution import Context, leaf_of
from delta_sharing_spark.testing.tables.checkpoints import parsed_stats
from support.drawing import cases, drawn, one_of, some_of
from support.skipping import reason_of
from unit.predicates.row_oracle import answer, partition_text, statistics, to_json
from unit.predicates.where_strategies import SCHEMA, predicate, rows, table

PARTITIONS = ("flag", "i8", "i32", "i64", "f64", "dec", "s", "d", "ts", "ntz")
COMMON = cases(500, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])


def parsed(text: str) -> Any:
    try:
        return parse_where(text, SCHEMA)
    except PredicateError:
        assume(False)


@COMMON
@given(drawn(predicate, rows))
def test_evaluate_agrees_with_the_row_oracle(case: tuple[str, list[dict[str, Any]]]) -> None:
    text, rows = case
    expression = pickle.loads(pickle.dumps(parsed(text)))
    data = table(rows)
    expected = [answer(expression, row) for row in rows]
    got = evaluate(expression, data)
    assert isinstance(got, pa.ChunkedArray)
    assert got.to_pylist() == expected
    batch = data.to_batches()[0]
    assert evaluate(expression, batch).to_pylist() == expected
    sliced = batch.slice(1)
    assert evaluate(expression, sliced).to_pylist() == expected[1:]


@COMMON
@given(drawn(predicate))
def test_the_text_of_a_tree_parses_to_a_tree_that_answers_alike(case: tuple[str]) -> None:
    (text,) = case
    expression = parsed(text)
    assume(not re.search(r"'(?:[+-]|0000)", str(expression)))  # beyond the years that literals have
    rows = [{f.name: None for f in SCHEMA.fields}]
    again = parse_where(f"({expression}) AND TRUE", SCHEMA)  # NULL alone is no condition
    assert answer(again, rows[0]) == answer(expression, rows[0])


@COMMON
@given(
    drawn(
        predicate,
        rows,
        rows,
        one_of(False, True),
        one_of(3, 32),
        some_of(["minValues", "maxValues", "nullCount", "numRecords"], 0, 2),
    )
)
def test_statistics_never_skip_a_row_that_passes(
    case: tuple[str, list[dict[str, Any]], list[dict[str, Any]], bool, int, set[str]],
) -> None:
    text, rows, deleted, nan, prefix, dropped = case
    expression = parsed(text)
    skipping = FileSkipping(expression, SCHEMA, ())
    for extra in ([], deleted):  # with deleted rows the bounds are wide
        file_statistics = statistics(rows + extra, SCHEMA, nan=nan, prefix=prefix, short=nan)
        stats = {k: v for k, v in file_statistics.items() if k not in dropped}
        text = to_json({**stats, "tightBounds": not extra})
        one = pa.array([1], pa.int64())
        batch = AddBatch("", pa.array(["f"]), one, {}, one, stats_parsed=parsed_stats([text], SCHEMA))
        in_columns = skipping.reasons(1, {}, batch)
        if reason_of(skipping, {}, text) or in_columns[0]:
            assert not any(answer(expression, row) for row in rows)


@COMMON
@given(drawn(predicate, rows, some_of(PARTITIONS, 1, 4)))
def test_partition_values_decide_exactly_and_with_statistics_soundly(
    case: tuple[str, list[dict[str, Any]], set[str]],
) -> None:
    text, rows, names = case
    expression = parsed(text)
    row = rows[0]
    if "s" in names and row["s"] == "":
        row["s"] = None  # the log cannot tell them apart
    rows = [{**r, **{name: row[name] for name in names}} for r in rows]
    skipping = FileSkipping(expression, SCHEMA, tuple(names))
    values = {name: partition_text(row[name]) for name in names}
    stats = to_json(statistics(rows, SCHEMA, nan=True, prefix=32))
    passes = any(answer(expression, r) for r in rows)
    reason = reason_of(skipping, values, stats)
    if passes:
        assert reason == SkipReason.KEEP
        assert reason_of(skipping, values, None) == SkipReason.KEEP
    columns = {name: pa.array([value] * 2, pa.string()) for name, value in values.items()}
    assert list(skipping.reasons(2, columns, TextStatistics([stats] * 2))) == [reason] * 2


class InMemory:
    """A ``ByteSource`` over bytes."""

    def __init__(self, data: bytes) -> None:
        self.name, self.size, self._data = "f.parquet", len(data), data

    def read(self, start: int, length: int) -> memoryview:
        return memoryview(self._data)[start : start + length]

    def close(self) -> None:
        pass


#: A row whose structs are there, and hold nothing.
HOLLOW = {f.name: None for f in SCHEMA.fields} | {"st": {"x": None, "y": None, "z": {"w": None}}}


@COMMON
@example(("st IS NOT NULL", [HOLLOW], set(), {}))
@example(("NOT isnull(st.z)", [HOLLOW], set(), {}))
@given(
    drawn(
        predicate,
        rows,
        some_of(PARTITIONS, 0, 3),
        one_of({}, {"store_decimal_as_integer": True}, {"version": "1.0"}),
    )
)
def test_row_groups_never_lose_a_row_that_passes(
    case: tuple[str, list[dict[str, Any]], set[str], dict[str, Any]],
) -> None:
    text, rows, names, how = case
    expression = parsed(text)
    rows = [{**r, **{name: rows[0][name] for name in names}} for r in rows]
    data = table(rows)
    sink = io.BytesIO()
    pq.write_table(data.drop_columns(sorted(names)), sink, row_group_size=3, **how)
    footer = read_footer(InMemory(sink.getvalue()), "t", 1 << 20)
    metadata, schema = footer.metadata, footer.metadata.schema.to_arrow_schema()
    skipping = RowGroupSkipping(expression)
    context = Context("t", "f", "none")
    leaves = {}
    for path in skipping.paths:
        fields, kind = [], SCHEMA
        for name in path:
            fields.append(kind.find(name))
            kind = fields[-1].type
        if path[0] not in names:
            leaves[path] = leaf_of(schema, fields, context)
    constants = {name: data.column(name)[0] for name in names}
    may_match = skipping.bind(metadata, leaves, constants, footer.statistics)
    for index in range(metadata.num_row_groups):
        if not may_match(index):
            assert not any(answer(expression, row) for row in rows[3 * index : 3 * index + 3])


@pytest.mark.parametrize(
    "text", ["i64 = 7", "NOT i64 <> 7", "i64 IN (7, 9)", "i64 BETWEEN 7 AND 7", "i64 <=> 7", "(i64 = 7) IS TRUE"]
)
def test_forms_of_one_question_skip_alike(text: str) -> None:
    skipping = FileSkipping(parse_where(text, SCHEMA), SCHEMA, ("i64",))
    assert reason_of(skipping, {"i64": "8"}, None) == SkipReason.PARTITION_VALUES
    assert reason_of(skipping, {"i64": ""}, None) == SkipReason.PARTITION_VALUES
    assert reason_of(skipping, {"i64": "7"}, None) == SkipReason.KEEP
    assert reason_of(skipping, {"i64": "?"}, None) == SkipReason.KEEP
