"""Dates and timestamps of files that Spark wrote by the Julian calendar are read as Spark reads them."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest

from delta_sharing_spark.errors import CorruptFileError
from delta_sharing_spark.parquet.footer import read_footer
from delta_sharing_spark.predicates.sql import parse_where
from delta_sharing_spark.scan.column_resolution import Context
from delta_sharing_spark.scan.row_group_reader import row_group_filter
from delta_sharing_spark.schema.types import Array, Field, Map, Primitive, Struct
from delta_sharing_spark.storage.ranges import MemorySource
from unit.scan.local_access import LocalAccess, parquet, read, read_one, spec_of
from unit.scan.test_types import int96

DATE, TIMESTAMP = Primitive("date"), Primitive("timestamp")
SPARK_2 = {"version": "2.4.5"}
LEGACY = {"version": "3.5.1", "legacyDateTime": "", "timeZone": "UTC"}
LEGACY_96 = {"version": "3.5.1", "legacyINT96": "", "timeZone": "UTC"}
#: The days that Spark stores of dates, and the dates: 1000-02-29 is a day of the Julian calendar only.
STORED = [-719_164, -682_947, -682_946, -609_895, -354_221, -141_428, -141_427, 0]
NAMES = ["0001-01-01", "0100-02-28", "0100-03-01", "0300-03-01", "1000-03-01", "1582-10-04", "1582-10-15", "1970-01-01"]
DATES = [datetime.date.fromisoformat(name) for name in NAMES]


def marked(array: pa.Array, marks: dict[str, str], **how: Any) -> bytes:
    """A file of the column ``c`` with what Spark says of it in the footer."""
    pairs = {f"org.apache.spark.{name}": text for name, text in marks.items()}
    data = parquet(pa.table({"c": array}).replace_schema_metadata(pairs), **how)
    return data.replace(b"parquet-cpp-arrow", b"parquet-mr versio")


def stored_dates() -> pa.Array:
    return pa.array([*STORED, None], pa.int32()).cast(pa.date32())


@pytest.mark.parametrize(
    ("marks", "is_julian"),
    [
        (SPARK_2, True),
        (LEGACY, True),
        ({"version": "3.0.0"}, False),
        ({"version": "3.5.1", "legacyINT96": ""}, False),
        ({"legacyDateTime": ""}, False),
        ({}, False),
        ({"sql.parquet.row.metadata": "{}"}, True),
    ],
)
def test_dates(marks: dict[str, str], is_julian: bool) -> None:
    got = read_one(marked(stored_dates(), marks), Struct((Field("c", DATE),))).column("c")
    assert (
        got.cast(pa.int32()).to_pylist() == [*(d.toordinal() - 719_163 for d in DATES), None] if is_julian else STORED
    )


def test_dates_within_lists_maps_and_structs() -> None:
    old = stored_dates()
    kind = Struct((Field("l", Array(DATE)), Field("m", Map(Primitive("string"), DATE)), Field("s", DATE)))
    lists = pa.ListArray.from_arrays([0, 2, 2, 9], old)
    maps = pa.MapArray.from_arrays([0, 1, 2, 2], ["k", "k"], old.slice(2, 2))
    array = pa.StructArray.from_arrays([lists, maps, old.slice(6, 3)], ["l", "m", "s"])
    got = read_one(marked(array, SPARK_2), Struct((Field("c", kind),))).column("c").to_pylist()
    assert got == [
        {"l": DATES[:2], "m": [("k", DATES[2])], "s": DATES[6]},
        {"l": [], "m": [("k", DATES[3])], "s": DATES[7]},
        {"l": [*DATES[2:], None], "m": [], "s": None},
    ]


@pytest.mark.parametrize("unit", ["ms", "us"])
@pytest.mark.parametrize(("marks", "is_julian"), [(SPARK_2, True), (LEGACY, True), (LEGACY_96, False)])
def test_timestamps_of_64_bits(unit: str, marks: dict[str, str], is_julian: bool) -> None:
    clock = datetime.timedelta(hours=23, minutes=59)
    stored = [datetime.timedelta(days) + clock for days in STORED]
    each = datetime.timedelta(milliseconds=1) if unit == "ms" else datetime.timedelta(microseconds=1)
    data = marked(pa.array([moment // each for moment in stored], pa.timestamp(unit, "UTC")), marks)
    got = read_one(data, Struct((Field("c", TIMESTAMP),))).column("c").cast(pa.int64()).to_pylist()
    names = [datetime.timedelta(d.toordinal() - 719_163) + clock for d in DATES]
    assert got == [moment // datetime.timedelta(microseconds=1) for moment in (names if is_julian else stored)]


@pytest.mark.parametrize(
    ("marks", "is_julian"), [(SPARK_2, True), ({"version": "3.0.1"}, True), (LEGACY_96, True), (LEGACY, False)]
)
def test_timestamps_of_96_bits(marks: dict[str, str], is_julian: bool) -> None:
    stored = datetime.datetime(1000, 3, 6, 12)
    data = int96([stored], {f"org.apache.spark.{name}": text for name, text in marks.items()})
    got = read_one(data, Struct((Field("c", TIMESTAMP),)), time_zone="UTC").column("c").to_pylist()
    expected = datetime.datetime(1000, 3, 1, 12) if is_julian else stored
    assert got == [expected.replace(tzinfo=datetime.timezone.utc)]


@pytest.mark.parametrize(("zone", "reader"), [("America/Los_Angeles", "UTC"), (None, "Europe/Berlin"), (None, None)])
def test_old_timestamps_of_another_zone_are_refused_and_later_ones_are_read(
    zone: str | None, reader: str | None
) -> None:
    marks = SPARK_2 if zone is None else {**LEGACY, "timeZone": zone}
    schema = Struct((Field("c", TIMESTAMP),))
    late = datetime.datetime(1900, 1, 1, tzinfo=datetime.timezone.utc)
    kind = pa.timestamp("us", "UTC")
    assert read_one(marked(pa.array([late, None], kind), marks), schema, time_zone=reader)["c"].to_pylist() == [
        late,
        None,
    ]
    early = late - datetime.timedelta(microseconds=1)
    with pytest.raises(
        CorruptFileError,
        match=rf"f\.parquet of s\.d\.t: column 'c' cannot be read: .*{zone or reader or 'set the option timeZone'}",
    ):
        read_one(marked(pa.array([early], kind), marks), schema, time_zone=reader)


def test_row_groups_are_not_left_out_by_what_is_stored() -> None:
    schema = Struct((Field("c", DATE),))
    where = parse_where("c = DATE'0001-01-01'", schema)
    spec = spec_of(schema, predicate=where, prune=where)
    data = {"f": marked(stored_dates(), SPARK_2), "g": marked(pa.array([DATES[0]]), {"version": "3.5.1"})}
    assert read(spec, LocalAccess(data))["c"].to_pylist() == [DATES[0]] * 2


@pytest.mark.parametrize(("day", "is_kept"), [(datetime.date(1899, 12, 31), True), (datetime.date(1900, 1, 1), False)])
def test_row_groups_after_the_change_of_calendars_are_left_out(day: datetime.date, is_kept: bool) -> None:
    """Databricks marks all files so that its runtimes 9 to 13 write."""
    schema = Struct((Field("c", DATE),))
    where = parse_where("c = DATE'0001-01-01'", schema)
    footer = read_footer(MemorySource("f", marked(pa.array([day]), LEGACY)), "t")
    context = Context("t", "f", "none", footer.julian("UTC"))
    may_match = row_group_filter(spec_of(schema, predicate=where, prune=where), footer, {}, context)
    assert may_match is not None
    assert may_match(0) is is_kept
