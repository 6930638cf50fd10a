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
