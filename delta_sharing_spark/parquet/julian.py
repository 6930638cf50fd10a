"""Converts dates and times of files that Spark wrote by the Julian calendar: Spark 2 did, and later ones where they were told to.

Databricks' runtimes 9 to 13 were, by default (``LEGACY``). They say so in a file's footer, and Spark's reader converts them
likewise: what was written as 1000-01-01 is read as that, though it is another day of the Gregorian calendar, by which others count.
Spark 2 tells no release, which all later ones do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from delta_sharing_spark.schema.arrow_bridge import numbers_like
from delta_sharing_spark.schema.instants import zone_of
from delta_sharing_spark.schema.types import DataType, Primitive, inner_fields

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_OF_CALENDAR = (Primitive("date"), Primitive("timestamp"))
_KEY = b"org.apache.spark."
_MARKS = (b"version", b"legacyDateTime", b"legacyINT96", b"timeZone")
#: The first day of the Gregorian calendar, 1582-10-15, in days since the epoch.
_FIRST_DAY = -141_427
_DAY = 86_400_000_000
#: Microseconds of 1900-01-01T00:00Z: what Spark writes of later times is the same by all calendars and rules of time zones.
_SETTLED = -2_208_988_800_000_000
_SETTLED_BY_TYPE = {"DATE": _SETTLED // _DAY, "TIMESTAMP_MILLIS": _SETTLED // 1000, "TIMESTAMP_MICROS": _SETTLED}
#: Days from 0000-03-01 to the epoch, by both calendars.
_MARCH_JULIAN, _MARCH_GREGORIAN = 719_470, 719_468


@dataclass(frozen=True, slots=True)
class Julian:
    """What of a file counts by the Julian calendar before 1582-10-15.

    Attributes:
        dates: Dates, and timestamps of 64 bits.
        int96: Timestamps of 96 bits.
        zone: The writer's time zone; where the file does not tell it, the reader's, as for Spark; None where neither is known.
        marks: Pairs of a footer that say so to Spark's reader.
    """

    dates: bool
    int96: bool
    zone: str | None
    marks: tuple[tuple[bytes, bytes], ...]

    def gregorian_dates(self, array: pa.Array) -> pa.Array:
        """Dates as days of the Gregorian calendar."""
        return _with_old(array, _FIRST_DAY, _gregorian_days) if self.dates else array

    def gregorian_times(self, array: pa.Array, is_int96: bool) -> pa.Array:
        """Timestamps in microseconds by the Gregorian calendar.

        Args:
            array: The timestamps.
            is_int96: Whether the file has them in 96 bits.

        Raises:
            ValueError: Timestamps before 1900 of another zone than UTC: Spark converts those by tables of rules of old.
        """
        return _with_old(array, _SETTLED, self._gregorian_micros) if (self.int96 if is_int96 else self.dates) else array

    def is_for(self, data_type: DataType) -> bool:
        """Whether dates or timestamps are in a type."""
        return data_type in _OF_CALENDAR or any(self.is_for(inner.type) for inner in inner_fields(data_type))

    def is_settled(self, converted_type: str, value: int) -> bool:
        """Whether a value that the file stores is the same by both calendars, by the name that pyarrow gives its type."""
        return value >= _SETTLED_BY_TYPE.get(converted_type, value)

    def _gregorian_micros(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if not _is_utc(self.zone):
            zone = (
                f"the time zone {self.zone!r}"
                if self.zone is not None
                else "a time zone that nothing tells (set the option timeZone)"
            )
            raise ValueError(f"Spark wrote times before 1900 by the Julian calendar, and in {zone}")
        days = values // _DAY
        return values + (_gregorian_days(days) - days) * _DAY


def _is_utc(zone: str | None) -> bool:
    try:
        return zone is not None and zone_of(zone) is timezone.utc
    except ValueError:
        return False


def _with_old(array: pa.Array, end: int, change: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]) -> pa.Array:
    """Days or microseconds, of which those before ``end`` are changed."""
    import numpy as np

    values = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64()).fill_null(end).to_numpy()
    if values.min(initial=end) >= end:
        return array
    is_old, changed = values < end, values.copy()
    changed[is_old] = change(values[is_old].astype(np.int64))
    return numbers_like(array, changed, array.type)


def julian_of(metadata: Any, reader_zone: str | None) -> Julian | None:
    """What of a file that Spark wrote counts by the Julian calendar, by the rules of Spark's reader; None for nothing.

    Args:
        metadata: The parsed footer: ``pyarrow.parquet.FileMetaData``.
        reader_zone: The reader's time zone; None where it is not known.
    """
    pairs = metadata.metadata or {}
    pairs_of_marks = {name: pairs[_KEY + name] for name in _MARKS if _KEY + name in pairs}
    if _KEY + b"sql.parquet.row.metadata" in pairs and metadata.created_by.startswith("parquet-mr"):
        pairs_of_marks.setdefault(b"version", b"2")
    version = pairs_of_marks.get(b"version")
    if version is None:
        return None
    dates, int96 = (
        version < b"3.0.0" or b"legacyDateTime" in pairs_of_marks,
        version < b"3.1.0" or b"legacyINT96" in pairs_of_marks,
    )
    zone = pairs_of_marks[b"timeZone"].decode("utf-8", "replace") if b"timeZone" in pairs_of_marks else reader_zone
    return (
        Julian(dates, int96, zone, tuple((_KEY + name, text) for name, text in pairs_of_marks.items()))
        if dates or int96
        else None
    )


def _gregorian_days(days: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Days since the epoch, before 1582-10-15 those that have by the Gregorian calendar the name that ``days`` have by the Julian one.

    Years are counted from March, so that a leap day is the last of its year. A 29th of February that the Gregorian calendar
    does not have is the 1st of March.
    """
    import numpy as np

    since = days + _MARCH_JULIAN
    year = (4 * since + 3) // 1461
    day_of_year = since - 365 * year - year // 4
    gregorian = 365 * year + year // 4 - year // 100 + year // 400 + day_of_year - _MARCH_GREGORIAN
    return np.where(days < _FIRST_DAY, gregorian, days)
