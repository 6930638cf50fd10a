"""Files that are skipped, and facts that must not skip one (peers.md T24-T31, delta-log.md "Stats")."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_sharing_spark.predicates.file_skipping import FileSkipping
from delta_sharing_spark.predicates.row_groups import RowGroupSkipping
from delta_sharing_spark.predicates.skip_reason import SkipReason
from delta_sharing_spark.predicates.sql import parse_where
from delta_sharing_spark.schema.types import COLUMN_MAPPING_NAME, Array, Decimal, Field, Map, Primitive, Struct
from delta_sharing_spark.testing.tables.checkpoints import parsed_stats
from support.drawing import cases

P = Primitive
TABLE = Struct(
    (
        Field("a", P("integer")), Field("s", P("string")), Field("f", P("double")), Field("f32", P("float")), Field("d", P("date")),
        Field("ts", P("timestamp")), Field("ntz", P("timestamp_ntz")), Field("dc", Decimal(38, 2)), Field("b", P("boolean")), Field("bin", P("binary")),
        Field("wide", P("double"), metadata={"delta.typeChanges": [{"fromType": "float", "toType": "double"}]}),
        Field("m", P("long"), metadata={COLUMN_MAPPING_NAME: "col-1"}),
        Field("n", Struct((Field("x", P("integer"), metadata={COLUMN_MAPPING_NAME: "col-3"}),)), metadata={COLUMN_MAPPING_NAME: "col-2"}),
        Field("p", P("integer"), metadata={COLUMN_MAPPING_NAME: "col-p"}), Field("day", P("date")), Field("pf", P("double")), Field("a2", P("long")),
        Field("array", Array(P("long"), True)), Field("map", Map(P("string"), P("long"), True)),
    )
)  # fmt: skip
PARTITIONS = ("p", "day", "pf")


def stats(column: str, low: Any, high: Any, nulls: int | None = 0, rows: int | None = 10) -> str:
    return json.dumps(
        {"numRecords": rows, "minValues": {column: low}, "maxValues": {column: high}, "nullCount": {column: nulls}}
    )


def skipped(text: str, column: str, low: Any, high: Any, nulls: int | None = 0, rows: int | None = 10) -> bool:
    return (
        FileSkipping(parse_where(text, TABLE), TABLE, ()).reason({}, stats(column, low, high, nulls, rows))
        != SkipReason.KEEP
    )


LONG = "x" * 32
SKIPPED = [
    ("d = '2021-04-29'", "d", "2021-04-27", "2021-04-28"),
    ("d = '2021-04-29'", "d", "2021-04-30", "2021-05-28"),
    ("d < '2021-04-29'", "d", "2021-04-29", "2021-04-30"),
    ("f <= 5.2D", "f", 5.21, 10.0),
    ("a > 5", "a", 1, 5),
    ("NOT a >= 7", "a", 7, 10),
    ("a <> 7", "a", 7, 7),
    ("a NOT IN (7, 8)", "a", 7, 7),
    ("a IN (1, 9)", "a", 2, 8),
    ("s LIKE 'b%'", "s", "c", "d"),
    ("s LIKE 'b%'", "s", "a", "az"),
    ("s NOT LIKE '%'", "s", "a", "b"),
    ("s = 'b'", "s", "a", "az"),
    ("s > 'b'", "s", "a", "ab" + "x" * 30 + "\U0010ffff"),
    ("f < 1D", "f", 1.0, "NaN"),
    ("ts > '2020-01-01 00:00:00.124'", "ts", "2020-01-01T00:00:00.000Z", "2020-01-01T00:00:00.122Z"),
    ("ts > '2020-01-01 00:00:00'", "ts", "2019-01-01T00:00:00.000+01:00", "2020-01-01T00:59:59.998+01:00"),
    ("ts < '1800-01-01 07:52:58Z'", "ts", "1800-01-01T00:00:00.000-07:52:58", "1883-11-18T12:00:00.000-07:52:58"),
    ("dc = 1.5", "dc", 1.51, 2),
    ("a IS NULL", "a", 1, 2),
    ("(a = 1) IS NULL", "a", 1, 2),
    ("NOT (a = 1) IS NOT NULL", "a", 1, 2),
    ("a > 5 AND f > 1D", "a", 1, 5),
]


@pytest.mark.parametrize(("text", "column", "low", "high"), SKIPPED)
def test_files_whose_bounds_exclude_the_predicate_are_skipped(text: str, column: str, low: Any, high: Any) -> None:
    assert skipped(text, column, low, high)


KEPT = [
    ("NOT a >= 7", "a", 2, 10),  # T29
    ("a <> 7", "a", 7, 8),
    ("f > 100D", "f", 1.0, 2.0),  # NaN may be there, and is above
    ("f = 'NaN'", "f", 1.0, 2.0),
    ("f IN (0D, CAST('NaN' AS DOUBLE))", "f", 1.0, 2.0),
    ("f = 1D", "f", "NaN", "NaN"),  # the minimum of a writer that compares by IEEE
    ("f = 1D", "f", 0.5, "NaN"),
    ("f <> 1D", "f", 1.0, 1.0),
    ("f = 0D", "f", -0.0, -0.0),
    ("f32 = 0.1F", "f32", 0.1, 0.1),
    ("f32 = 0.33333334F", "f32", 0.0, 0.3333333),  # of seven digits
    ("wide > 0.1D AND wide < 1D", "wide", 0.1, 0.1),
    ("wide = 0.10000000149011612D", "wide", 0.1, 0.1),
    ("ts = '2020-01-01 00:00:00.123456'", "ts", "2020-01-01T00:00:00.000Z", "2020-01-01T00:00:00.123Z"),
    ("ts <= '1800-01-01 07:52:58Z'", "ts", "1800-01-01T00:00:00.000-07:52:58", "1883-11-18T12:00:00.000-07:52:58"),
    ("ts > '2020-01-01'", "ts", "2019-01-01", "2019-12-31"),
    ("ts <> '2020-01-01 00:00:00.123'", "ts", "2020-01-01T00:00:00.123Z", "2020-01-01T00:00:00.123Z"),
    ("ts > '2020-01-01'", "ts", "2019-01-01 00:00:00", "2019-12-31 23:00:00"),  # no zone: of which one?
    ("ntz = '2020-01-01 00:00:00.9999'", "ntz", "2020-01-01T00:00:00.000", "2020-01-01T00:00:00.999"),
    (f"s = '{LONG}y'", "s", "a", LONG),  # a writer that cut the maximum and added nothing
    (f"s = '{LONG}y'", "s", LONG, LONG + "\U0010ffff"),
    (f"s <> '{LONG}'", "s", LONG, LONG),
    (f"s = '{LONG}😀'", "s", "a", LONG + "\ufffd"),  # below by bytes: Delta once compared UTF-16
    ("s = 'ab😀'", "s", "a", "ab\ufffd"),
    ("s = 'b'", "s", "a", "b\ud83d"),
    ("dc = 12345678901234567890.12", "dc", 1.2345678901234567e19, 1.2345678901234567e19),
    ("bin = X'00'", "bin", "a", "b"),
    ("a = 5", "a", "1", "2"),
    ("a = 5", "a", 1.5, 2.5),
    ("d = '2020-01-01'", "d", "someday", "never"),
    ("a = 5", "a2", 1, 2),
    ("s LIKE 'b%'", "s", "bzz", "c"),
    # Delta up to 3.3 wrote offsets without their seconds: of +00:53:28, -07:52:58, -00:00:52 and, in Liberia, -00:44:30.
    ("ts = '1850-01-01 00:00:00Z'", "ts", "1850-01-01T00:53:28.000+00:53", "1850-01-01T00:53:28.000+00:53"),
    ("ts = '1850-01-01 07:52:58Z'", "ts", "1850-01-01T00:00:00.000-07:52", "1850-01-01T00:00:00.000-07:52"),
    ("ts = '1850-01-01 00:00:52Z'", "ts", "1850-01-01T00:00:00.000Z", "1850-01-01T00:00:00.000Z"),
    ("ts = '1972-01-01 00:44:30Z'", "ts", "1972-01-01T00:00:00.000-00:44", "1972-01-01T00:00:00.000-00:44"),
    # Bounds that contradict each other, as of a writer that compares decimals as unsigned bytes.
    ("dc = 3", "dc", 2.11, -5.44),
    ("a = 5", "a", 7, 3),
    ("d = '2020-01-01'", "d", "2020-02-01", "2019-01-01"),
    ("s = 'b'", "s", "z", "a"),
    ("f < 1D", "f", 3.0, 2.0),
]


@pytest.mark.parametrize(("text", "column", "low", "high"), KEPT)
def test_files_whose_bounds_prove_nothing_are_kept(text: str, column: str, low: Any, high: Any) -> None:
    assert not skipped(text, column, low, high)


@pytest.mark.parametrize(
    ("text", "bounds", "gone"),
    [
        ("a = a2", {"a": [5, 9], "a2": [1, 4]}, True),
        ("a = a2", {"a": [5, 9], "a2": [1, 5]}, False),
        ("a <> a2", {"a": [5, 9], "a2": [1, 4]}, False),
        ("a <> a2", {"a": [1, 4], "a2": [5, 9]}, False),
        ("a <> a2", {"a": [5, 5], "a2": [5, 5]}, True),
        ("a < a2", {"a": [5, 9], "a2": [1, 5]}, True),
        ("NOT a < a2", {"a": [1, 4], "a2": [5, 9]}, True),
        ("NOT a < a2", {"a": [1, 5], "a2": [5, 9]}, False),
        ("a <= a2", {"a": [5, 9], "a2": [1, 5]}, False),
        ("a > a2", {"a": [1, 4], "a2": [4, 9]}, True),
        ("NOT a >= a2", {"a": [5, 9], "a2": [1, 5]}, True),
    ],
)
def test_two_columns_are_compared_by_the_bounds_of_both(text: str, bounds: dict[str, list[int]], gone: bool) -> None:
    skipping = FileSkipping(parse_where(text, TABLE), TABLE, ())
    assert (skipping.reason({}, stats_of(**bounds)) != SkipReason.KEEP) is gone


@pytest.mark.parametrize(
    ("text", "nulls", "rows", "gone"),
    [
        ("a = 1", 10, 10, True),
        ("a IS NOT NULL", 10, 10, True),
        ("a IS NOT NULL", 9, 10, False),
        ("a IS NULL", 0, 10, False),  # of a file of values, no bound at all
        ("b IS NULL", 0, 10, True),
        ("array IS NOT NULL", 10, 10, False),  # older delta-rs counts NULLs within it, and what is empty
        ("map IS NOT NULL", 10, 10, False),
        ("n IS NOT NULL", 10, 10, False),
        ("array IS NULL", 0, 10, True),
        ("a IS NULL", 1, 10, False),
        ("a IS NULL", None, 10, False),
        ("a = 1", 10, None, False),
        ("a = 1", 0, 0, False),
    ],
)
def test_null_counts(text: str, nulls: int | None, rows: int | None, gone: bool) -> None:
    column = text.split()[0].replace("n", "col-2")
    assert skipped(text, column, None, None, nulls, rows) is gone


def test_a_count_of_nulls_beside_bounds_does_not_make_all_rows_null() -> None:
    assert skipped("a IS NULL", "a", 1, 2, nulls=0)
    assert not skipped("a IS NULL", "a", 1, 2, nulls=1)
    assert not skipped("a IS NOT NULL", "a", 1, 2, nulls=10)
    assert not skipped("a = 1", "a", 1, None, nulls=10)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"minValues": 3}', '{"numRecords": "x", "minValues": {"a": []}}']
)
def test_unreadable_statistics_keep_the_file(text: str) -> None:
    assert FileSkipping(parse_where("a = 1", TABLE), TABLE, ()).reason({}, text) == SkipReason.KEEP


def test_columns_are_looked_up_by_physical_names() -> None:
    skipping = FileSkipping(parse_where("m = 1 AND n.x = 2 AND p = 3", TABLE), TABLE, PARTITIONS)
    assert skipping.stats_columns == {"col-1", "col-2"}
    assert skipping.reason({"col-p": "4"}, None) == SkipReason.PARTITION_VALUES
    inside = json.dumps(
        {
            "numRecords": 1,
            "minValues": {"col-1": 1, "col-2": {"col-3": 5}},
            "maxValues": {"col-1": 1, "col-2": {"col-3": 9}},
        }
    )
    assert skipping.reason({"col-p": "3"}, inside) == SkipReason.STATISTICS
    assert skipping.reason({"p": "3"}, inside.replace("col-", "other-")) == SkipReason.KEEP


def test_a_partition_value_may_be_keyed_by_the_logical_name() -> None:
    skipping = FileSkipping(parse_where("p = 3", TABLE), TABLE, PARTITIONS)
    assert skipping.reason({"p": "3"}, None) == SkipReason.KEEP
    assert skipping.reason({"p": "4"}, None) == SkipReason.PARTITION_VALUES
    assert skipping.reason({}, None) == SkipReason.KEEP  # the reader says what is wrong with such a file


def test_what_could_not_help_is_told() -> None:
    text = "a > 1 AND f > 1D AND s LIKE '%x' AND pf > 1D AND (p = 1 OR b) AND (p = 1 OR a = 2) AND NOT bin = X'00' AND b IS NULL AND array IS NULL AND array IS NOT NULL"
    unhelpful = FileSkipping(parse_where(text, TABLE), TABLE, PARTITIONS).non_pruning_conjuncts()
    assert [str(e) for e in unhelpful] == [
        "`f` > 1.0D",
        "`s` LIKE '%x'",
        "`p` = 1 OR `b` = TRUE",
        "NOT (`bin` = X'00')",
        "`array` IS NOT NULL",
    ]


def test_many_files_in_columns() -> None:
    count = 10_000
    days = pa.array([f"2020-{1 + i % 12:02d}-{1 + i % 28:02d}" for i in range(count)])
    names = [f"c{j}" for j in range(20)]
    texts = [
        json.dumps({
            "numRecords": 1000,
            "minValues": {"a": i, "s": "abc", "ts": "2020-01-01T00:00:00.000Z", **dict.fromkeys(names, i)},
            "maxValues": {"a": i + 1, "s": "abd", "ts": "2020-01-01T00:00:00.999Z", **dict.fromkeys(names, i)},
            "nullCount": {"a": 0, "s": 0, "ts": 0, **dict.fromkeys(names, 0)},
        })
        for i in range(count)
    ]  # fmt: skip
    skipping = FileSkipping(
        parse_where("day >= '2020-02-01' AND a = 7778 AND s LIKE 'ab%' AND ts < '2021-01-01'", TABLE),
        TABLE,
        PARTITIONS,
    )
    reasons = skipping.reasons(count, {"day": days}, lambda places: [texts[i] for i in places])
    assert np.count_nonzero(reasons == SkipReason.KEEP) == 2
    assert np.count_nonzero(reasons == SkipReason.PARTITION_VALUES) == sum(d.as_py() < "2020-02-01" for d in days)


class _Statistics:
    def __init__(self, **attributes: Any) -> None:
        self.has_min_max = self.has_null_count = True
        self.__dict__.update(attributes)


class _Column:
    max_repetition_level = 0

    def __init__(self, physical: str, logical: dict[str, Any]) -> None:
        self.physical_type, self.logical_type = physical, self
        self._logical = json.dumps(logical)

    def to_json(self) -> str:
        return self._logical


class _File:
    """Footers that pyarrow cannot write: no null counts, other logical types, old writers."""

    def __init__(
        self, column: _Column, statistics: _Statistics | None, created_by: str = "parquet-mr version 1.13.1"
    ) -> None:
        self.created_by, self.num_rows, self.statistics = created_by, 10, statistics
        self._column = column

    schema = property(lambda self: self)

    def column(self, index: int) -> Any:
        return self if self.in_group else self._column

    in_group = False

    def row_group(self, index: int) -> Any:
        group = _File(self._column, self.statistics)
        group.in_group = True
        return group


DELTA = "parquet-mr version 1.13.1"
INT = {"Type": "None"}
MICROS = {"Type": "Timestamp", "isAdjustedToUTC": True, "timeUnit": "microseconds"}


@pytest.mark.parametrize(
    ("text", "path", "column", "statistics", "created_by", "kept"),
    [
        ("a = 1", ("a",), _Column("INT32", INT), {"min_raw": 5, "max_raw": 9, "null_count": 0}, "", False),
        ("a = 1", ("a",), _Column("INT32", {"Type": "Int", "isSigned": False}), {"min_raw": 5, "max_raw": 9, "null_count": 0}, "", True),
        ("a IS NULL", ("a",), _Column("INT32", INT), {"min_raw": 5, "max_raw": 9, "null_count": 0, "has_null_count": False}, "", True),
        ("a IS NULL", ("a",), _Column("INT32", INT), {"min_raw": 5, "max_raw": 9, "null_count": 0}, "", False),
        ("a = 1", ("a",), _Column("INT32", INT), {"has_min_max": False, "null_count": 10}, "", False),
        ("a = 1", ("a",), _Column("INT32", INT), None, "", True),
        ("f < 5D", ("f",), _Column("DOUBLE", INT), {"min_raw": float("nan"), "max_raw": float("nan"), "null_count": 0}, "", True),
        ("f > 5D", ("f",), _Column("DOUBLE", INT), {"min_raw": 1.0, "max_raw": 2.0, "null_count": 0}, "", True),
        ("f < 1D", ("f",), _Column("FLOAT", INT), {"min_raw": 1.0, "max_raw": 2.0, "null_count": 0}, "", False),
        ("ts = '2020-01-01'", ("ts",), _Column("INT96", INT), {"min_raw": b"", "max_raw": b"", "null_count": 0}, "", True),
        ("ts = '1970-01-01'", ("ts",), _Column("INT64", MICROS), {"min_raw": 1, "max_raw": 2, "null_count": 0}, "", False),
        ("ts = '1970-01-01'", ("ts",), _Column("INT64", {**MICROS, "isAdjustedToUTC": False}), {"min_raw": 1, "max_raw": 2, "null_count": 0}, "", True),
        ("ts = '1970-01-01'", ("ts",), _Column("INT64", {**MICROS, "timeUnit": "nanoseconds"}), {"min_raw": 1, "max_raw": 2, "null_count": 0}, "", True),
        ("dc = 9", ("dc",), _Column("FIXED_LEN_BYTE_ARRAY", {"Type": "Decimal", "scale": 1, "precision": 9}), {"min_raw": b"\xff\xf0", "max_raw": b"\x00\x10", "null_count": 0}, DELTA, False),
        ("dc = 9", ("dc",), _Column("FIXED_LEN_BYTE_ARRAY", {"Type": "Decimal", "scale": 1, "precision": 9}), {"min_raw": b"\xff\xf0", "max_raw": b"\x00\x10", "null_count": 0}, "parquet-mr version 1.8.2 (build x)", True),
        ("s = 'z'", ("s",), _Column("BYTE_ARRAY", {"Type": "String"}), {"min_raw": b"a", "max_raw": b"b", "null_count": 0}, DELTA, False),
        ("s = 'z'", ("s",), _Column("BYTE_ARRAY", {"Type": "String"}), {"min_raw": b"a", "max_raw": b"b", "null_count": 0}, "parquet-mr version 1.8.2 (build x)", True),
        ("s = 'z'", ("s",), _Column("BYTE_ARRAY", {"Type": "Decimal", "scale": 0, "precision": 9}), {"min_raw": b"a", "max_raw": b"b", "null_count": 0}, DELTA, True),
        ("dc = 9", ("dc",), _Column("BYTE_ARRAY", {"Type": "Decimal", "scale": 1, "precision": 9}), {"min_raw": b"\xff\xf0", "max_raw": b"\x00\x10", "null_count": 0}, DELTA, True),
        ("a IS NOT NULL", ("a",), _Column("INT32", INT), {"min_raw": 5, "max_raw": 9, "null_count": 10}, "", True),
        ("a IS NOT NULL", ("a",), _Column("INT32", INT), {"has_min_max": False, "null_count": 10}, "", False),
        ("a IS NOT NULL", ("a",), _Column("INT32", INT), {"has_min_max": False, "null_count": 10}, "Polars (python) version 1.30.0", True),
        ("a = 1", ("a",), _Column("INT32", INT), {"min_raw": 9, "max_raw": 5, "null_count": 0}, "", True),
        ("d = '1970-01-01'", ("d",), _Column("INT32", {"Type": "Date"}), {"min_raw": 1, "max_raw": 2, "null_count": 0}, "", False),
        ("ntz = '1970-01-02 00:00:01'", ("ntz",), _Column("INT32", {"Type": "Date"}), {"min_raw": 1, "max_raw": 1, "null_count": 0}, "", False),
    ],
)  # fmt: skip
def test_footers_that_prove_something_and_those_that_do_not(
    text: str, path: tuple[str, ...], column: _Column, statistics: dict[str, Any] | None, created_by: str, kept: bool
) -> None:
    file = _File(column, None if statistics is None else _Statistics(**statistics), created_by or "x")
    assert RowGroupSkipping(parse_where(text, TABLE)).bind(file, {path: 0}, {}, lambda *_: file.statistics)(0) is kept


@pytest.mark.parametrize(
    ("writer", "is_sound"),
    [
        ("parquet-mr version 1.12.3-databricks-0002 (build 2484)", True),
        ("parquet-mr compatible with Photon version 0.1 (build 3fa2)", True),
        ("parquet-mr-trino version 478 (build n/a)", True),
        ("parquet-mr version 1.8.2 (build x)", False),
        ("parquet-cpp-arrow version 21.0.0", True),
        ("parquet-cpp-arrow version 11.0.0", False),  # of a dictionary in parts, it looked at the first
        ("parquet-cpp version 1.5.1-SNAPSHOT", False),
        ("parquet-rs version 56.2.0", True),
        ("parquet-rs version 5.1.0", False),
        ("DuckDB version v1.4.0 (build abc)", True),
        ("github.com/parquet-go/parquet-go version 0.32.0(build )", False),
        ("Polars", False),
        ("", False),
    ],
)
def test_bounds_of_byte_arrays_are_read_of_writers_that_are_known_to_compare_them_rightly(
    writer: str, is_sound: bool
) -> None:
    for text, name, logical, physical in (
        ("s = 'z'", "s", {"Type": "String"}, "BYTE_ARRAY"),
        ("dc = 9", "dc", {"Type": "Decimal", "scale": 1, "precision": 9}, "FIXED_LEN_BYTE_ARRAY"),
    ):
        file = _File(_Column(physical, logical), _Statistics(min_raw=b"\x01", max_raw=b"\x02", null_count=0), writer)
        skipping = RowGroupSkipping(parse_where(text, TABLE)).bind(
            file, {(name,): 0}, {}, lambda *_, f=file: f.statistics
        )
        assert skipping(0) is not is_sound


def test_a_column_that_a_file_lacks_is_null() -> None:
    file = _File(_Column("INT32", INT), None)
    assert not RowGroupSkipping(parse_where("a = 1", TABLE)).bind(file, {("a",): None}, {}, lambda *_: None)(0)
    assert RowGroupSkipping(parse_where("a = 1", TABLE)).bind(file, {}, {}, lambda *_: None)(0)


@cases(200)
@given(
    st.sampled_from(["a2 = 5", "a2 > 3 AND a2 <= 7", "a >= 2 AND s = 'b'", "a2 < 4 OR a = 1", "a2 IN (2, 4)", "a > 1", "d > '1970-01-02'", "d = '2020-02-02'"]),
    st.lists(
        st.one_of(
            st.none(),
            st.sampled_from(["", "{}", "null", "[]", "{", '{"minValues":null}', '{"minValues":{"a2":1.5}}', '{"minValues"\n:{}}',
                             '{}\n{"minValues":{"a2":9},"maxValues":{"a2":9}}', " ", '{"maxValues":{"d":"19700102"}}', '{"maxValues":{"d":5}}',
                             '{"minValues":{"a2":1e999}}', '{"minValues":{"a2":9223372036854775808,"a":true}}']),
            st.builds(lambda d: stats_of(d=d), st.lists(st.sampled_from(["1969-12-31", "1970-01-02", "2020-02-02", "x"]), min_size=2, max_size=2)),
            st.builds(stats, st.sampled_from(["a2", "a", "s"]), st.integers(-2, 9), st.integers(-2, 9), st.sampled_from([None, 0, 10])),
        ),
        min_size=1,
        max_size=30,
    ),
)  # fmt: skip
def test_statistics_in_columns_skip_what_they_skip_one_by_one(text: str, texts: list[str | None]) -> None:
    skipping = FileSkipping(parse_where(text, TABLE), TABLE, ())
    one_by_one = [skipping.reason({}, t) for t in texts]
    assert skipping.reasons(len(texts), {}, lambda places: [texts[i] for i in places]).tolist() == one_by_one


@pytest.mark.parametrize(
    ("text", "left"),
    [("a = 3", [1]), ("a > 5 AND a2 < 9", [2]), ("d = '1969-12-31'", [0]), ("d < '1970-01-02' AND a <= 2", [0]), ("a = 9 OR a = 10", [])],
)  # fmt: skip
def test_parsed_statistics_leave_files_out_before_their_json_is_made(text: str, left: list[int]) -> None:
    texts = [stats_of(a=[0, 2], a2=[0, 0], d=["1969-12-01", "1970-01-01"]), stats_of(a=[3, 5], a2=[0, 0], d=["1970-01-02", "1970-01-03"]),
             stats_of(a=[6, 8], a2=[5, 9], d=["2020-01-01", "2020-01-02"])]  # fmt: skip
    asked: list[int] = []

    def made(places: list[int]) -> list[str]:
        asked.extend(places)
        return [texts[i] for i in places]

    skipping = FileSkipping(parse_where(text, TABLE), TABLE, ())
    reasons = skipping.reasons(3, {}, made, parsed_stats(texts, TABLE)).tolist()
    assert reasons == [SkipReason.KEEP if i in left else SkipReason.STATISTICS for i in range(3)]
    assert asked == (left or [0, 1, 2])


def test_parsed_statistics_that_contradict_themselves_leave_no_file_out() -> None:
    texts = [stats_of(a=[7, 3], d=["2020-02-01", "2019-01-01"])]
    for text in ("a = 5", "a < 5", "a > 5", "d = '2020-01-01'"):
        skipping = FileSkipping(parse_where(text, TABLE), TABLE, ())
        assert skipping.reasons(1, {}, lambda _: texts, parsed_stats(texts, TABLE)).tolist() == [SkipReason.KEEP]


def stats_of(**bounds: list[Any]) -> str:
    low, high = ({name: ends[i] for name, ends in bounds.items()} for i in (0, 1))
    return json.dumps({"numRecords": 10, "minValues": low, "maxValues": high, "nullCount": dict.fromkeys(bounds, 0)})


def test_statistics_in_columns_are_read_without_pandas() -> None:
    """Its import would cost more than the planning."""
    code = (
        "import sys\nimport pyarrow as pa\n"
        "from delta_sharing_spark.predicates.file_skipping import FileSkipping\n"
        "from delta_sharing_spark.predicates.sql import parse_where\n"
        "from delta_sharing_spark.schema.types import Field, Primitive, Struct\n"
        "schema, bounds = Struct((Field('i', Primitive('long')),)), pa.struct([('i', pa.int64())])\n"
        "stats = pa.nulls(3, pa.struct([('minValues', bounds), ('maxValues', bounds)]))\n"
        "skipping = FileSkipping(parse_where('i > 5', schema), schema, ())\n"
        "assert skipping.reasons(3, {}, lambda places: [None] * len(places), stats).tolist() == [0, 0, 0]\n"
        "assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
