"""Partition values of every type, as the Delta protocol serializes them and as writers really do."""

from __future__ import annotations

import datetime
import decimal
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_sharing_spark.errors import CorruptFileError
from delta_sharing_spark.schema.arrow import arrow_type
from delta_sharing_spark.schema.partition_values import partition_scalar, partition_value
from delta_sharing_spark.schema.types import PRIMITIVES, Array, DataType, Decimal, Primitive

P = Primitive


def scalar(text: str | None, kind: DataType, zone: str = "UTC") -> pa.Scalar:
    got = partition_scalar(text, kind, column="c", file="f", time_zone=zone)
    assert got.type.equals(arrow_type(kind))
    return got


@pytest.mark.parametrize("kind", [*(P(n) for n in sorted(PRIMITIVES - {"void"})), Decimal(5, 2)], ids=str)
@pytest.mark.parametrize("text", [None, ""])
def test_null_and_the_empty_string_are_null_for_every_type(kind: DataType, text: str | None) -> None:
    assert not scalar(text, kind).is_valid


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("a/b=c %41 ä\U0001f600", P("string"), "a/b=c %41 ä\U0001f600"),
        (" ", P("string"), " "),
        ("-128", P("byte"), -128),
        ("+7", P("short"), 7),
        ("2147483647", P("integer"), 2147483647),
        ("-9223372036854775808", P("long"), -(1 << 63)),
        ("1.0E10", P("double"), 1e10),
        ("-Infinity", P("float"), -math.inf),
        ("1.1", P("float"), pa.scalar(1.1, pa.float32()).as_py()),
        ("TRUE", P("boolean"), True),
        ("false", P("boolean"), False),
        ("-999.99", Decimal(5, 2), decimal.Decimal("-999.99")),
        ("1E+2", Decimal(5, 2), decimal.Decimal("100.00")),
        ("12345678901234567890123456789012345678", Decimal(38, 0), decimal.Decimal("12345678901234567890123456789012345678")),
        ("2024-02-29", P("date"), datetime.date(2024, 2, 29)),
        ("0001-01-01", P("date"), datetime.date(1, 1, 1)),
        ("9999-12-31", P("date"), datetime.date(9999, 12, 31)),
        ("\x00\u00e4", P("binary"), "\x00ä".encode()),
    ],
)  # fmt: skip
def test_values(text: str, kind: DataType, expected: Any) -> None:
    assert scalar(text, kind).as_py() == expected


def test_nan() -> None:
    assert math.isnan(scalar("NaN", P("double")).as_py())


NOON = datetime.datetime(2021, 11, 12, 12, 0, 29)
LATE = datetime.datetime(9999, 12, 31, 23, 59, 59, 999999)
EPOCH = datetime.datetime(1970, 1, 1)


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("2021-11-12 12:00:29", "UTC", NOON),
        ("2021-11-12T12:00:29.0Z", "UTC", NOON),
        ("2021-11-12T12:00:29.000000Z", "Asia/Tokyo", NOON),
        ("2021-11-12 21:00:29", "Asia/Tokyo", NOON),
        ("2021-11-12T14:00:29+02:00", "UTC", NOON),
        ("2021-11-12T14:00:29+0200", "UTC", NOON),
        ("2021-11-12 04:00:29-08", "UTC", NOON),
        ("2021-11-12 12:00:29.123456789", "UTC", NOON.replace(microsecond=123456)),
        ("2021-11-12", "UTC", NOON.replace(hour=0, second=0)),
        ("1969-12-31 23:59:59.999999", "UTC", datetime.datetime(1969, 12, 31, 23, 59, 59, 999999)),
        ("0001-01-01 00:00:00", "UTC", datetime.datetime(1, 1, 1)),
        ("9999-12-31 23:59:59.999999", "UTC", LATE),
        # Where clocks go forward, Java takes the offset before; where back, the earlier instant.
        ("2024-03-31 02:30:00", "Europe/Berlin", datetime.datetime(2024, 3, 31, 1, 30)),
        ("2024-10-27 02:30:00", "Europe/Berlin", datetime.datetime(2024, 10, 27, 0, 30)),
    ],
)
def test_timestamps_in_both_spellings(text: str, zone: str, expected: datetime.datetime) -> None:
    micros = (expected - EPOCH) // datetime.timedelta(microseconds=1)
    assert scalar(text, P("timestamp"), zone).value == micros


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
@pytest.mark.parametrize("text", ["2021-11-12 12:00:29", "2021-11-12T12:00:29Z"])
def test_timestamps_without_zone_are_never_shifted(text: str, zone: str) -> None:
    assert scalar(text, P("timestamp_ntz"), zone).as_py() == NOON


@given(st.integers(-290_000, 290_000), st.integers(1, 12), st.integers(1, 28))
def test_years_beyond_datetime_count_as_numpy_does(year: int, month: int, day: int) -> None:
    import numpy as np

    sign = "-" if year < 0 else "+" if year > 9999 else ""
    text = f"{sign}{abs(year):04}-{month:02}-{day:02}"
    numpy_days = (
        int(np.datetime64(f"{year:05}" if year < 0 else f"{year:04}", "Y").astype("datetime64[M]").astype(int))
        + month
        - 1
    )
    days = int(np.datetime64(numpy_days, "M").astype("datetime64[D]").astype(int)) + day - 1
    assert scalar(text, P("date")).value == days
    assert scalar(f"{text} 00:00:01", P("timestamp")).value == (days * 86_400 + 1) * 1_000_000
    assert partition_value(text, P("date")) == days


@pytest.mark.parametrize(
    ("text", "zone", "ahead"),
    [
        ("+10003-03-20 12:00:00", "America/New_York", -4 * 3600),  # summer begins in March, as it has since 2007
        ("+10003-01-20 12:00:00", "America/New_York", -5 * 3600),
        ("-0005-06-01 00:00:00", "Europe/Berlin", 3208),  # the local mean time before there were zones
    ],
)
def test_far_years_have_the_last_rules_of_a_zone_and_years_before_the_first_its_first(
    text: str, zone: str, ahead: int
) -> None:
    local = scalar(text, P("timestamp"), "UTC").value
    assert local - scalar(text, P("timestamp"), zone).value == ahead * 1_000_000


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("128", P("byte")),
        ("1.5", P("integer")),
        ("1_000", P("long")),
        ("x", P("long")),
        (" 1", P("long")),
        ("1_0.5", P("double")),
        ("x", P("double")),
        ("yes", P("boolean")),
        ("2024-02-30", P("date")),
        ("20240101", P("date")),
        ("\u0662\u0660\u0662\u0664-01-01", P("date")),
        ("2024-13-01 00:00:00", P("timestamp")),
        ("2024-01-01 25:00:00", P("timestamp")),
        ("999999-01-01 00:00:00", P("timestamp")),
        ("12.345", Decimal(5, 2)),
        ("1000.00", Decimal(5, 2)),
        ("NaN", Decimal(5, 2)),
        ("1_0.5", Decimal(5, 2)),
        ("x", Decimal(5, 2)),
        ("-1.-5", Decimal(5, 2)),  # delta-rs' -1.05, which it cannot read itself
        ("x", P("variant")),
        ("x", Array(P("long"))),
    ],
)
def test_what_is_no_value_of_the_type_names_file_and_column(text: str, kind: DataType) -> None:
    contexts = (decimal.DefaultContext, decimal.ExtendedContext, decimal.Context(prec=1))  # a user's own
    for context in contexts:
        with (
            decimal.localcontext(context),
            pytest.raises(
                CorruptFileError, match=r"file f: the partition value .* of column 'c' is no (?!.*<class)"
            ) as caught,
        ):
            partition_scalar(text, kind, column="c", file="f")
    assert (caught.value.file, caught.value.column) == ("f", "c")
