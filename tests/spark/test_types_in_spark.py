"""What Spark itself does with the types it is given: CHAR, VARCHAR and collation marks of a table's schema."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from delta_sharing_spark import SharingClient
from delta_sharing_spark.schema.types import Field, Primitive, Struct
from delta_sharing_spark.testing.tables import DeltaTableBuilder


def marked(name: str, kind: str) -> Field:
    return Field(name, Primitive("string"), True, {"__CHAR_VARCHAR_TYPE_STRING": kind})


@pytest.mark.parametrize("mode", ["url", "dir"])
def test_char_columns_are_padded_by_spark_as_those_of_its_own_tables(
    share: Callable[..., str], load: Callable[..., Any], tmp_path: Path, mode: str
) -> None:
    """Files may hold CHAR unpadded; the mark in the schema makes Spark pad on reading, VARCHAR stays as it is."""
    nested = Struct((Field("c", Primitive("string")),))
    schema = Struct(
        (
            Field("id", Primitive("integer")),
            marked("c", "char(4)"),
            marked("v", "varchar(5)"),
            Field("s", nested, True, {"__CHAR_VARCHAR_TYPE_STRING": "struct<c:char(3)>"}),
        )
    )
    table = DeltaTableBuilder(tmp_path / "padded", schema)
    table.append([{"id": 1, "c": "ab", "v": "ab", "s": {"c": "x"}}, {"id": 2, "c": "abcd", "v": "ab  "}, {"id": 3}])
    frame = load(share(table, access_modes=("url", "dir")), accessMode=mode)
    rows = [tuple(row) for row in frame.selectExpr("id", "c", "v", "s.c AS sc").orderBy("id").collect()]
    assert rows == [(1, "ab  ", "ab", "x  "), (2, "abcd", "ab  ", None), (3, None, None, None)]
    for text in ("ab", "ab  "):
        assert [row.id for row in frame.where(f"c = '{text}'").collect()] == [1]


def test_where_compares_char_columns_as_spark_does(
    share: Callable[..., str], load: Callable[..., Any], tmp_path: Path
) -> None:
    """Spark's own filter is the oracle: of values in both forms, and of some that are longer than their column."""
    schema = Struct(
        (
            Field("id", Primitive("integer")),
            marked("c", "char(3)"),
            marked("d", "char(5)"),
            Field("v", Primitive("string")),
        )
    )
    texts = [None, "", " ", "a", "a ", "a  ", "ab", "abc", "abcd ", "b", "a\t", "é", "日本", "abc~"]
    rows = [{"id": i, "c": texts[i // 14], "d": texts[i % 14], "v": texts[(i * 5) % 14]} for i in range(196)]
    path = share(DeltaTableBuilder(tmp_path / "t", schema).append(rows, files=3), access_modes=("url", "dir"))
    literals = ["", "a", "a ", "ab", "abcd", "abcd  ", "é"]
    conditions = [f"c {sign} '{text}'" for sign in ("=", "<>", "<", ">=", "<=>") for text in literals]
    conditions += [f"c {sign} {other}" for sign in ("=", "<", "<=>") for other in ("d", "v")]
    conditions += [f"v >= c OR '{text}' > d" for text in literals] + [
        f"c LIKE '{text}%' AND d NOT LIKE '{text}'" for text in literals
    ]
    conditions += [
        "c IN ('a', 'abcd')",
        "c NOT IN ('a', 'ab', 'abcd  ')",
        "d IN ('')",
        "contains(c, 'b ')",
        "endswith(c, ' ')",
    ]
    frame = load(path).selectExpr("id", *(f"({condition}) AS k{i}" for i, condition in enumerate(conditions)))
    expected = {condition: set() for condition in conditions}
    for row in frame.collect():
        for i, condition in enumerate(conditions):
            if row[f"k{i}"]:
                expected[condition].add(row["id"])
    profile, _, name = path.partition("#")
    table = SharingClient(profile).table(name)
    for condition in conditions:
        assert set(table.scan(where=condition).to_arrow()["id"].to_pylist()) == expected[condition], condition
    for condition in ("c = 'a'", "c = 'abcd'", "c IN ('a', 'abcd')", "d LIKE 'a  %'"):
        assert {row.id for row in load(path, where=condition).collect()} == expected.get(
            condition, {r["id"] for r in rows if (r["d"] or "x").ljust(5).startswith("a  ")}
        )


@pytest.mark.connect
@pytest.mark.parametrize("engine", ["native", "python"])
def test_collated_columns_are_compared_by_their_collation(
    spark: Any, share: Callable[..., str], tmp_path: Path, engine: str
) -> None:
    """Also within a struct, and in each query: PySpark changes the marks that it is given."""
    nested = Struct((Field("c", Primitive("string"), True, {"__COLLATIONS": {"c": "icu.UNICODE_CI"}}),))
    mark = {"__COLLATIONS": {"k": "spark.UTF8_LCASE"}}
    table = DeltaTableBuilder(tmp_path / "t", Struct((Field("k", Primitive("string"), True, mark), Field("s", nested))))
    table.append([{"k": "a", "s": {"c": "X"}}, {"k": "A", "s": {"c": "x"}}, {"k": "b", "s": None}])
    profile, _, name = share(table).partition("#")
    client = SharingClient(profile, engine=engine)
    text = (
        f"SELECT count(*) AS n, count(DISTINCT k) AS k, count(DISTINCT s.c) AS c FROM {name} WHERE s.c = 'X' OR k = 'B'"
    )
    for _ in range(2):
        assert client.sql(spark, text).collect() == [(3, 2, 1)]
        assert client.table(name).to_spark(spark).where("k = 'A'").count() == 2
