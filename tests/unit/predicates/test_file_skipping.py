"""Files that are skipped, and facts that must not skip one (peers.md T24-T31, delta-log.md "Stats")."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_sharing_spark.deltalog.add_batch import AddBatch
from delta_sharing_spark.predicates.file_skipping import FileSkipping, TextStatistics
from delta_sharing_spark.predicates.key_columns import keys_of
from delta_sharing_spark.predicates.row_groups import RowGroupSkipping
from delta_sharing_spark.predicates.scalar_types import STRING
from delta_sharing_spark.predicates.skip_reason import SkipReason
from delta_sharing_spark.predicates.sql import parse_where
from delta_sharing_spark.predicates.statistic_keys import has_bounds, lower, upper
from delta_sharing_spark.predicates.three_valued import TRUE, bounds_of_statistics, compile_possible_values
from delta_sharing_spark.predicates.tree import columns
from delta_sharing_spark.schema.arrow_bridge import strings
from delta_sharing_spark.schema.types import COLUMN_MAPPING_NAME, Array, Decimal, Field, Map, Primitive, Struct
from delta_sharing_spark.testing.tables.checkpoints import parsed_stats
from support.drawing import cases
from support.skipping import reason_of

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
        reason_of(FileSkipping(parse_where(text, TABLE), TABLE, ()), {}, stats(column, low, high, nulls, rows))
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
    assert (reason_of(skipping, {}, stats_of(**bounds)) != SkipReason.KEEP) is gone


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
    assert reason_of(FileSkipping(parse_where("a = 1", TABLE), TABLE, ()), {}, text) == SkipReason.KEEP


def test_columns_are_looked_up_by_physical_names() -> None:
    skipping = FileSkipping(parse_where("m = 1 AND n.x = 2 AND p = 3", TABLE), TABLE, PARTITIONS)
    assert skipping.stats_columns == {"col-1", "col-2"}
    assert reason_of(skipping, {"col-p": "4"}, None) == SkipReason.PARTITION_VALUES
    inside = json.dumps(
        {
            "numRecords": 1,
            "minValues": {"col-1": 1, "col-2": {"col-3": 5}},
            "maxValues": {"col-1": 1, "col-2": {"col-3": 9}},
        }
    )
    assert reason_of(skipping, {"col-p": "3"}, inside) == SkipReason.STATISTICS
    assert reason_of(skipping, {"p": "3"}, inside.replace("col-", "other-")) == SkipReason.KEEP


def test_a_partition_value_may_be_keyed_by_the_logical_name() -> None:
    skipping = FileSkipping(parse_where("p = 3", TABLE), TABLE, PARTITIONS)
    assert reason_of(skipping, {"p": "3"}, None) == SkipReason.KEEP
    assert reason_of(skipping, {"p": "4"}, None) == SkipReason.PARTITION_VALUES
    assert reason_of(skipping, {}, None) == SkipReason.KEEP  # the reader says what is wrong with such a file


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
    reasons = skipping.reasons(count, {"day": days}, TextStatistics(texts))
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
@pytest.mark.parametrize(
    ("text", "name", "logical", "physical"),
    [
        ("s = 'z'", "s", {"Type": "String"}, "BYTE_ARRAY"),
        ("dc = 9", "dc", {"Type": "Decimal", "scale": 1, "precision": 9}, "FIXED_LEN_BYTE_ARRAY"),
    ],
    ids=["string", "decimal"],
)
def test_bounds_of_byte_arrays_are_read_of_writers_that_are_known_to_compare_them_rightly(
    writer: str, is_sound: bool, text: str, name: str, logical: dict[str, Any], physical: str
) -> None:
    file = _File(_Column(physical, logical), _Statistics(min_raw=b"\x01", max_raw=b"\x02", null_count=0), writer)
    skipping = RowGroupSkipping(parse_where(text, TABLE)).bind(file, {(name,): 0}, {}, lambda *_: file.statistics)
    assert skipping(0) is not is_sound


def test_a_column_that_a_file_lacks_is_null() -> None:
    file = _File(_Column("INT32", INT), None)
    assert not RowGroupSkipping(parse_where("a = 1", TABLE)).bind(file, {("a",): None}, {}, lambda *_: None)(0)
    assert RowGroupSkipping(parse_where("a = 1", TABLE)).bind(file, {}, {}, lambda *_: None)(0)


#: Values that a bound may have, of the types of ``TABLE`` and of none.
_BOUNDS: dict[str, st.SearchStrategy[Any]] = {
    "a": st.integers(-3, 9), "a2": st.sampled_from([*range(-2, 9), 2**63 - 1, -(2**63), 2**63, 2**80, 5.0, 1.5, True, "5"]),
    "s": st.sampled_from(["", "a", "b", "ba", "bz", "c", "é", "b\ufffd", "b\U0010ffff", "b\x7f", "\ud800", "x" * 31, "x" * 32, "x" * 40,
                          "x" * 30 + "\x7f", "x" * 31 + "\x7f", "é" * 31, "é" * 32 + "\ufffd", "😀" * 16]),
    "f": st.one_of(st.floats(), st.sampled_from(["NaN", "Infinity", "-Infinity", "x", 2**70, 10**400, 5, -0.0])),
    "f32": st.one_of(st.floats(width=32), st.sampled_from([1e39, -1e300, 0.1, 3, "NaN"])),
    "d": st.sampled_from(["1969-12-31", "1970-01-02", "2020-02-02", "9999-12-31", "19700102", "2020-02-30", "x", ""]),
    "ts": st.sampled_from(["1970-01-01T00:00:00.000Z", "1969-12-31T23:59:59.999Z", "2020-01-01T00:00:00.123Z", "2020-01-01T00:00:00.123456Z",
                           "2020-01-01T00:00:00.000+01:00", "2020-01-01 00:00:00", "2020-13-01T00:00:00.000Z", "0000-01-01T00:00:00.000Z",
                           "0001-01-01T00:00:00.000Z", "1850-01-01T00:00:00.000Z", "2020-01-01T24:00:00.000Z", "2020-01-01T00:00:00.000"]),
    "ntz": st.sampled_from(["1970-01-01T00:00:00.000", "2020-01-01T00:00:00.999", "2020-01-01T00:00:00.999999", "2020-01-01T00:00:00.000Z"]),
    "dc": st.one_of(st.sampled_from([1.5, 1.51, 2, -5.44, 12345678901234.56, 1.2345678901234567e19, 10**30, "1.5", "x", 1.005, 0.1]),
                    st.decimals(-(10**6), 10**6, places=2).map(float), st.floats(allow_nan=False)),
    "b": st.booleans(), "bin": st.text(), "wide": st.floats(), "array": st.integers(),
}  # fmt: skip
_ODD = st.sampled_from([None, None, True, "1", 1.5, [], {}, {"x": 1}, float("nan"), 2**70])
#: Conditions on each of these columns; a file's statistics are of one of them, so that bounds and conditions meet.
_CONDITIONS = {
    "a": ["a = 5", "a > 3 AND a <= 7", "NOT a >= 7", "a <> 4", "a NOT IN (2, 8, 3)", "a IS NULL", "(a = 1) IS NULL", "a = a2", "a < a2 OR a > 5"],
    "a2": ["a2 = 5", "a2 IN (2, 4, 9223372036854775807)", "a2 < 4 OR a2 > 6", "NOT (a2 > 3)", "a2 IS NOT NULL"],
    "s": ["s = 'b'", "s > 'b' AND s < 'bb'", "s LIKE 'b%'", "s NOT LIKE 'b%'", "s LIKE '%'", "s LIKE 'b_'", "startswith(s, 'x')", "s IN ('', 'é', 'c')",
          "s <> 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'", "s IS NULL OR s = 'a'", "NOT (s LIKE 'b' OR s = 'c')"],
    "f": ["f = 1D", "f > 100D", "f < 5D", "f = 'NaN'", "f IN (0D, CAST('NaN' AS DOUBLE))", "f <> 0D", "f >= CAST('Infinity' AS DOUBLE)"],
    "f32": ["f32 = 0.1F", "f32 > 3F", "f32 <= 0F", "f32 <> CAST('NaN' AS FLOAT)"], "wide": ["wide > 0.1D", "wide IS NULL"],
    "d": ["d = '2020-02-02'", "d > '1970-01-02'", "d NOT IN ('1969-12-31', '2020-02-02')"],
    "ts": ["ts = '2020-01-01 00:00:00.123456Z'", "ts > '1970-01-01 00:00:00Z'", "ts <= '1850-01-01 00:00:00Z'", "year(ts) = 2020"],
    "ntz": ["ntz > '2020-01-01 00:00:00.9999'", "ntz = '1970-01-01'"],
    "dc": ["dc = 1.5", "dc > 1.5 AND dc < 1.52", "dc = 12345678901234.56", "dc < -5", "dc IN (2, 0.1, 12345678901234567890.12)"],
    "b": ["b", "NOT b", "b IS NULL", "b = true OR a = 1"], "bin": ["bin = X'00'", "bin IS NOT NULL"], "array": ["array IS NULL", "array IS NOT NULL"],
}  # fmt: skip
_OTHER_TEXTS = st.sampled_from(
    [None, "", "{}", "null", "[]", "{", '{"minValues":null}', '{"minValues"\n:{}}', " ", '{"minValues":{"a2":1e999}}', '{"maxValues":5}',
     '{}\n{"minValues":{"a2":9},"maxValues":{"a2":9}}', '{"minValues":{"a":1},"minValues":{"a":9},"maxValues":{"a":9}}', '{}{"maxValues":{"a":1}}',
     '{"maxValues":', '{"a":1}}', ' {"maxValues":{"a":1}}\t']
)  # fmt: skip


@st.composite
def files(draw: st.DrawFn) -> tuple[str, list[str | None]]:
    """A condition, and the statistics of files."""
    column = draw(st.sampled_from(sorted(_CONDITIONS)))
    text = draw(st.sampled_from(_CONDITIONS[column]))
    if draw(st.booleans()):
        text = f"({text}) {draw(st.sampled_from(['AND', 'OR']))} {draw(st.sampled_from([*_CONDITIONS['a'], *_CONDITIONS['s']]))}"
    bound = st.one_of(_BOUNDS[column], _ODD) if draw(st.booleans()) else _BOUNDS[column]
    counts = st.sampled_from([0, 0, 3, 10, None, True, "3", 2**64])

    def statistics(low: Any, high: Any, nulls: Any, rows: Any, other: Any) -> str:
        sides = ({column: end, "s" if column == "a" else "a": other} for end in (low, high))
        lows, highs = ({name: value for name, value in side.items() if value is not None} for side in sides)
        return json.dumps({"numRecords": rows, "minValues": lows, "maxValues": highs, "nullCount": {column: nulls}})

    other = st.one_of(st.none(), _BOUNDS["s" if column == "a" else "a"])
    each = st.one_of(st.builds(statistics, bound, bound, counts, counts, other), _OTHER_TEXTS)
    return text, draw(st.lists(each, min_size=1, max_size=30))


def rule_of(text: str, stats: str | None) -> SkipReason:
    """The rule for one file, written down once more: bounds read one by one, and the truth values that they leave."""
    expression = parse_where(text, TABLE)
    paths = list(dict.fromkeys(column.path for column in columns(expression)))
    kinds = {column.path: column.type for column in columns(expression)}
    try:
        tree = json.loads(stats or "")
    except ValueError:
        return SkipReason.KEEP
    if not isinstance(tree, dict):
        return SkipReason.KEEP
    bounds = []
    for (name,) in paths:
        kind = kinds[name,]
        low, high, nulls = (
            part.get(name) if isinstance(part := tree.get(key), dict) else None
            for key in ("minValues", "maxValues", "nullCount")
        )
        is_read, is_bounded = has_bounds(kind) and name != "wide", low is not None or high is not None
        keys = (lower(low, kind), *upper(high, kind)) if is_read else ()
        nulls, rows = (
            count if type(count) is int and abs(count) < 2**63 else None for count in (nulls, tree.get("numRecords"))
        )
        if nulls == 0 and not is_bounded and is_read and str(kind) != "boolean":
            nulls = None
        bounds.append(bounds_of_statistics(kind, rows, nulls, is_bounded, *keys))
    may_pass = compile_possible_values(expression, {path: slot for slot, path in enumerate(paths)})(bounds) & TRUE
    return SkipReason.KEEP if may_pass else SkipReason.STATISTICS


@cases(600)
@given(files())
def test_files_in_arrays_are_skipped_as_one_by_one(drawn: tuple[str, list[str | None]]) -> None:
    text, texts = drawn
    skipping = FileSkipping(parse_where(text, TABLE), TABLE, ())
    expected = [rule_of(text, stats) for stats in texts]
    assert skipping.reasons(len(texts), {}, TextStatistics(texts)).tolist() == expected
    assert [reason_of(skipping, {}, stats) for stats in texts] == expected


@cases(300)
@given(
    st.lists(st.none() | st.text("aé\U0001f600\x7f\ufffd", max_size=40), min_size=1, max_size=4),
    st.lists(st.integers(0, 40), min_size=1, max_size=4),
)
def test_bounds_of_text_are_cut_in_arrays_where_they_are_cut_one_by_one(
    texts: list[str | None], lengths: list[int]
) -> None:
    """Writers cut texts by UTF-16's units: one of 16 characters may have been cut."""
    values = [*texts, *("\U0001f600" * length for length in lengths)]
    for is_upper, one_by_one in ((False, lower), (True, lambda value, kind: upper(value, kind)[1])):
        for each in (values, strings(values), strings([None, *values])[1:]):
            keys = keys_of(each, STRING, is_upper=is_upper)
            assert [keys.at(place) for place in range(len(values))] == [one_by_one(value, STRING) for value in values]


@pytest.mark.parametrize(
    ("text", "left"),
    [("a = 3", [1]), ("a > 5 AND a2 < 9", [2]), ("d = '1969-12-31'", [0]), ("d < '1970-01-02' AND a <= 2", [0]), ("a = 9 OR a = 10", []),
     ("s = 'b'", [1]), ("dc > 1.49 AND dc < 1.51", [1]), ("ts >= '2020-01-01 00:00:00.123456Z'", [2]), ("f < 1D", [0])],
)  # fmt: skip
def test_parsed_statistics_leave_out_what_their_json_would(text: str, left: list[int]) -> None:
    texts = [
        stats_of(a=[0, 2], a2=[0, 0], d=["1969-12-01", "1970-01-01"], s=["", "a"], dc=[0, 1], ts=["1969-01-01T00:00:00.000Z"] * 2, f=[0.5, 2.0]),
        stats_of(a=[3, 5], a2=[0, 0], d=["1970-01-02", "1970-01-03"], s=["b", "c"], dc=[1.5, 1.5], ts=["2019-12-31T00:00:00.000Z"] * 2, f=[1.0, 3.0]),
        stats_of(a=[6, 8], a2=[5, 9], d=["2020-01-01", "2020-01-02"], s=["c", "d"], dc=[2, 99], ts=["2020-01-01T00:00:00.123Z"] * 2, f=[7, 9]),
    ]  # fmt: skip
    skipping = FileSkipping(parse_where(text, TABLE), TABLE, ())
    expected = [SkipReason.KEEP if i in left else SkipReason.STATISTICS for i in range(3)]
    assert skipping.reasons(3, {}, in_columns(texts)).tolist() == [rule_of(text, stats) for stats in texts] == expected


@pytest.mark.parametrize("text", ["a = 5", "a < 5", "a > 5", "d = '2020-01-01'"])
def test_parsed_statistics_that_contradict_themselves_leave_no_file_out(text: str) -> None:
    stats = in_columns([stats_of(a=[7, 3], d=["2020-02-01", "2019-01-01"])])
    assert FileSkipping(parse_where(text, TABLE), TABLE, ()).reasons(1, {}, stats).tolist() == [SkipReason.KEEP]


def in_columns(texts: list[str]) -> AddBatch:
    """Files whose statistics a checkpoint has in columns alone."""
    parsed, count = parsed_stats(texts, TABLE), len(texts)
    numbers = pa.array(range(count), pa.int64())
    return AddBatch("", pa.array(map(str, range(count))), numbers, {}, numbers, stats_parsed=parsed)


def stats_of(**bounds: list[Any]) -> str:
    low, high = ({name: ends[i] for name, ends in bounds.items()} for i in (0, 1))
    return json.dumps({"numRecords": 10, "minValues": low, "maxValues": high, "nullCount": dict.fromkeys(bounds, 0)})
