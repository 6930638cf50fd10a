"""``where`` on CHAR columns: padded as Spark pads them, whatever form files hold, and skipping nothing by what is stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_sharing_spark import SharingClient
from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.predicates.evaluate import evaluate
from delta_sharing_spark.predicates.hints import json_hints, sql_hints
from delta_sharing_spark.predicates.sql import parse_where
from delta_sharing_spark.predicates.tree import quote, sql_of
from delta_sharing_spark.schema.types import Field, Primitive, Struct
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder

STRING = Primitive("string")


def char(name: str, mark: str) -> Field:
    return Field(name, STRING, True, {"__CHAR_VARCHAR_TYPE_STRING": mark})


SCHEMA = Struct((char("c", "char(3)"), char("d", "char(5)"), Field("v", STRING), char("w", "varchar(3)")))
TEXTS = st.text(st.sampled_from("ab é日\t~\x00"), max_size=6)
SIGNS: dict[str, Callable[[bytes, bytes], bool]] = {
    "=": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def shown(value: str, length: int, width: int = 0) -> bytes:
    """A value of CHAR(length), as Spark has it beside a text of ``width`` characters: its rpad cuts what is longer."""
    padded = value.ljust(length)
    return (padded if width <= length else padded.ljust(width)[:width]).encode()


def passes(condition: str, **values: str | None) -> bool | None:
    columns = {name: [values.get(name)] for name in SCHEMA.names}
    result: bool | None = evaluate(parse_where(condition, SCHEMA), pa.table(columns, _ARROW))[0].as_py()
    return result


_ARROW = pa.schema([(name, pa.string()) for name in SCHEMA.names])


@given(TEXTS, TEXTS, st.sampled_from(list(SIGNS)))
def test_the_shorter_side_is_padded_to_the_longer(value: str, text: str, sign: str) -> None:
    """Beside a literal, and beside another CHAR column; a STRING column is not padded."""
    quoted = quote(text)
    expected = SIGNS[sign](shown(value, 3, len(text)), shown(text, 3))
    assert passes(f"c {sign} {quoted}", c=value) is expected
    assert parse_where(sql_of(parse_where(f"c {sign} {quoted}", SCHEMA)), SCHEMA) == parse_where(
        f"c {sign} {quoted}", SCHEMA
    )
    assert passes(f"c IN ({quoted}, 'a')", c=value) is (
        shown(value, 3, len(text)) in (shown(text, 3), shown("a", 3, len(text)))
    )
    assert passes(f"c {sign} d", c=value, d=text) is SIGNS[sign](shown(value, 3, 5), shown(text, 5))
    assert passes(f"c {sign} v", c=value, v=text) is SIGNS[sign](shown(value, 3), text.encode())
    assert passes(f"w {sign} v", w=value, v=text) is SIGNS[sign](value.encode(), text.encode())


@pytest.mark.parametrize(
    ("condition", "value", "expected"),
    [
        ("c LIKE 'a'", "a", False),
        ("c LIKE 'a%'", "a", True),
        ("c LIKE 'a  '", "a", True),
        ("c LIKE '_ _'", "a", True),
        ("endswith(c, ' ')", "a", True),
        ("startswith(c, 'a ')", "a", True),
        ("contains(c, 'b ')", "ab", True),
        ("c IS NULL", None, True),
        ("c <=> NULL", None, True),
        ("c <=> 'a'", None, False),
        ("c <> 'a'", "a  ", False),
        ("c NOT IN ('a', 'b')", None, None),
        ("c = NULL", "a", None),
        ("'a' = c", "a", True),
    ],
)
def test_tests_of_a_char_column(condition: str, value: str | None, expected: bool | None) -> None:
    assert passes(condition, c=value) is expected


NESTED = Struct(
    (
        Field("s", Struct((Field("c", STRING),)), True, {"__CHAR_VARCHAR_TYPE_STRING": "struct<c:char(3)>"}),
        SCHEMA.fields[0],
    )
)


@pytest.mark.parametrize(
    ("condition", "match"),
    [
        ("s.c = 'a'", r"s holds CHAR.*str\.ljust"),
        ("s IS NULL", "holds CHAR"),
        ("c = 5", "literal as a string"),
        ("c IN ('a', NULL)", "NULL in a list"),
        ("c IN (5)", "literal as a string"),
        ("coalesce(c, 'x') = 'a'", "do not compare"),
        ("CAST(c AS STRING) = 'a'", "not evaluated here"),
        ("'a' IN (c)", "list of strings"),
        ("c BETWEEN 'a' AND 'b'", "write >= and <="),
    ],
)
def test_what_is_not_compared_so_is_refused(condition: str, match: str) -> None:
    with pytest.raises(PredicateError, match=match):
        parse_where(condition, NESTED)


@pytest.mark.parametrize("text", ["a", "a    "])
def test_nothing_is_skipped_by_what_is_stored(tmp_path: Path, text: str) -> None:
    """Statistics, partition values and hints of values without padding, or with it."""
    schema = Struct((Field("id", Primitive("integer")), char("c", "char(3)"), char("p", "char(3)")))
    table = DeltaTableBuilder(tmp_path / "t", schema, ["p"])
    rows: list[dict[str, Any]] = [
        {"id": i, "c": value, "p": place}
        for i, (value, place) in enumerate((v, p) for v in ("a", "a  ", "zz", None) for p in ("a", "a  "))
    ]
    for row in rows:
        table.append([row])
    quoted = f"'{text}'"
    with SharingServer() as server:
        server.add_table("s.d.t", table.path, access_modes=("url", "dir"))
        width = max(3, len(text))
        expected = {
            (name, sign): [
                row["id"]
                for row in rows
                if row[name] is not None and SIGNS[sign](row[name].ljust(width).encode(), text.ljust(width).encode())
            ]
            for name in ("c", "p")
            for sign in ("=", "<", ">=")
        }
        table_of = {mode: SharingClient(server.profile(), accessMode=mode).table("s.d.t") for mode in ("url", "dir")}
        for shared in table_of.values():
            scans = {key: shared.scan(where=f"{' '.join(key)} {quoted}") for key in expected}
            assert {key: sorted(scan.to_arrow()["id"].to_pylist()) for key, scan in scans.items()} == expected
            assert {key: scan.count() for key, scan in scans.items()} == {k: len(ids) for k, ids in expected.items()}
    conditions = (f"c = {quoted}", f"p = {quoted} AND c IN ({quoted}, 'b')", f"p LIKE {quoted}")
    expressions = [parse_where(condition, schema) for condition in conditions]
    hints = [(json_hints(expression, schema, ["p"]), sql_hints(expression, ["p"])) for expression in expressions]
    assert hints == [(None, [])] * 3


def test_a_collated_column_is_refused_with_what_pandas_can_do() -> None:
    schema = Struct((Field("co", STRING, True, {"__COLLATIONS": {"co": "spark.UTF8_LCASE"}}),))
    with pytest.raises(
        PredicateError, match=r"column co has a collation.*in pandas df\[df\['co'\]\.str\.lower\(\)"
    ) as refused:
        parse_where("co = 'a'", schema)
    assert "leave it out of where" in str(refused.value)
