"""Computes with dates and timestamps as Spark 4 does: time zones, texts, calendar arithmetic.

A form that is rare and easily misread (a year of five digits, ``'today'``, a zone on a timestamp without zone) is
refused, never guessed.
"""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo

import numpy as np

from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.predicates.scalar_types import DATE, TIMESTAMP, TIMESTAMP_NTZ, spark_name
from delta_sharing_spark.schema.instants import date_days, local_micros, zone_of
from delta_sharing_spark.schema.types import DataType

#: Microseconds of a day, and of a minute.
DAY, MINUTE = 86_400_000_000, 60_000_000
#: From 1973 on each time zone is ahead of UTC by whole minutes.
WHOLE_MINUTES = 3 * 365 * DAY + DAY

_DATE = re.compile(r"([+-]?[0-9]{4,6})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL)
_TIMESTAMP = re.compile(
    r"([+-]?[0-9]{4,6})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T](?:([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]+))?)?"
    r" ?(Z|UTC|GMT|[+-][0-9]{1,2}:[0-9]{2}|[+-][0-9]{2}(?:[0-9]{2})?|[A-Z][A-Za-z_]+/[A-Za-z_/+-]+)?)?)?)?)?"
)
_SPECIAL_DATES = {"epoch", "now", "today", "tomorrow", "yesterday"}


@dataclass(frozen=True, slots=True)
class Zone:
    """The session time zone, in which timestamps without a zone are read; ``name`` is None where none is known."""

    name: str | None = "UTC"

    @property
    def is_fixed(self) -> bool:
        """Whether its clock is never set; raises PredicateError for an offset that is none."""
        return self._ahead() is not None

    def to_utc(self, local: int, fold: int = 0) -> int:
        """Microseconds since 1970 of a local wall clock, given as if it were UTC; as ``java.time`` resolves it.

        Args:
            fold: 1 for the second time that the clock shows it, where it is set back.
        """
        ahead = self._ahead()
        if ahead is None:
            ahead = _micros(self._region().utcoffset(self._moment(local).replace(fold=fold)))
        return local - ahead

    def to_local(self, micros: int) -> int:
        """The local wall clock at an instant, as if it were UTC."""
        ahead = self._ahead()
        if ahead is None:
            instant = self._moment(micros).replace(tzinfo=timezone.utc)
            ahead = _micros(instant.astimezone(self._region()).utcoffset())
        return micros + ahead

    def _moment(self, micros: int) -> datetime:
        if not 0 <= micros // DAY <= 2_900_000:
            raise PredicateError(f"a time in the zone {self.name} outside 1970 to 9900; write it in UTC")
        return datetime(1970, 1, 1) + timedelta(microseconds=micros)

    def start_of_day(self, days: int) -> int:
        """The first instant of a local day, in microseconds since 1970; a clock that is set forward over midnight skips to it."""
        wall = days * DAY
        first = self.to_utc(wall)
        if self.is_fixed or self.to_local(first) == wall:
            return first
        before = range(first - DAY, first)  # midnight is skipped: the day begins where the clock is set forward
        return before.start + bisect.bisect_left(before, wall, key=self.to_local)

    def passes_once(self, wall: int) -> bool:
        """Whether a local wall clock (microseconds since 1970 as if it were UTC) shows a time no more than once."""
        if self.is_fixed:
            return True
        second = self.to_utc(wall, fold=1)
        return second == self.to_utc(wall) or self.to_local(second) != wall

    def plus(self, micros: int, days: int, rest: int) -> int:
        """An instant some local days and then microseconds later; of a time that the clock shows twice, as ``java.time`` chooses."""
        if days:
            wall = self.to_local(micros) + days * DAY
            before = self.to_local(micros) - micros
            later = self.to_utc(wall)
            steady = wall - before  # the offset stays as it is where the wall clock allows
            micros = steady if self.to_local(steady) == wall else later
        return micros + rest

    def _ahead(self) -> int | None:
        """Microseconds that the zone is always ahead of UTC; None if that depends on the time."""
        region = self._region()
        return _micros(region.utcoffset(None)) if isinstance(region, timezone) else None

    def _region(self) -> tzinfo:
        if self.name is None:
            raise PredicateError(
                "a time without a zone, and no Spark session is known here whose zone it could mean; write it with its zone, such as "
                "'2026-01-31 12:00:00Z', call delta_sharing_spark.register(spark) in Spark, or set the option timeZone"
            )
        try:
            return zone_of(self.name)
        except ValueError as error:
            raise PredicateError(f"the time zone {self.name!r} is not known here; write the time in UTC") from error


def _micros(offset: timedelta | None) -> int:
    assert offset is not None
    return offset // timedelta(microseconds=1)


def month_of(days: int) -> int:
    """The month, since January 1970, of a day since 1970; of any year."""
    return int(np.datetime64(days, "D").astype("M8[M]").astype(np.int64))


def first_of_month(month: int) -> int:
    """The first day, since 1970, of a month since January 1970."""
    return int(np.datetime64(month, "M").astype("M8[D]").astype(np.int64))


def plus_months(days: int, months: int) -> int:
    """A date some months later, on the month's last day where it has no such day."""
    month = month_of(days)
    return min(first_of_month(month + months) + days - first_of_month(month), first_of_month(month + months + 1) - 1)


def start_of_unit(days: int, unit: str, units_later: int = 0) -> int:
    """The first day of the ``YEAR``, ``QUARTER``, ``MONTH``, ``WEEK`` or ``DAY`` that holds a day, or of a later one."""
    if unit in ("DAY", "WEEK"):
        length = 1 if unit == "DAY" else 7
        return (days + 3) // length * length - 3 + units_later * length  # weeks begin on Mondays
    months = {"YEAR": 12, "QUARTER": 3, "MONTH": 1}[unit]
    return first_of_month((month_of(days) // months + units_later) * months)


def parse_date(text: str) -> int:
    """Days since 1970 of a string that Spark casts to DATE (``[+-]yyyy[yy][-m[m][-d[d][ ...]]]``)."""
    match = _DATE.fullmatch(text.strip(" \t\r\n"))
    if match is None:
        raise malformed(text, DATE)
    try:
        return date_days(f"{match[1]}-{match[2] or 1}-{match[3] or 1}")
    except ValueError:
        raise malformed(text, DATE) from None


def parse_timestamp(text: str, zone: Zone, *, is_ntz: bool = False) -> int:
    """Microseconds since 1970 of a string that Spark casts to TIMESTAMP, or with ``is_ntz`` to TIMESTAMP_NTZ."""
    kind = TIMESTAMP_NTZ if is_ntz else TIMESTAMP
    match = _TIMESTAMP.fullmatch(text.strip(" \t\r\n"))
    if match is None:
        raise malformed(text, kind)
    year, month, day, hour, minute, second, fraction, zone_text = match.groups()
    try:
        clock = f"{hour or 0}:{minute or 0}:{second or 0}.{(fraction or '0')[:6]}"
        micros = local_micros(f"{year}-{month or 1}-{day or 1} {clock}")
    except ValueError:
        raise malformed(text, kind) from None
    if is_ntz:
        if zone_text:
            raise PredicateError(f"{text!r} names a time zone, but TIMESTAMP_NTZ has none; leave the zone out")
        return micros
    return (Zone(zone_text) if zone_text else zone).to_utc(micros)


def malformed(text: str, kind: DataType) -> PredicateError:
    """The error of a string that cannot be cast."""
    if text.strip().lower() in _SPECIAL_DATES:
        return PredicateError(f"the special value {text!r} changes with the time of the query; write the {kind} itself")
    hints = {"date": " (yyyy-mm-dd)", "timestamp": " (yyyy-mm-dd hh:mm:ss[.ffffff][zone])"}
    form = hints.get(str(kind).removesuffix("_ntz"), "")
    return PredicateError(f"the string {text[:50]!r} cannot be cast to {spark_name(kind)}{form}")
