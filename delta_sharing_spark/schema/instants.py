"""Converts dates and instants between text, numbers since the epoch and datetimes; finds time zones by Spark's names."""

from __future__ import annotations

import functools
import re
from datetime import date, datetime, timedelta, timezone, tzinfo

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: Its number as ``date.toordinal`` counts days.
EPOCH_DAY = EPOCH.toordinal()
_DATE = re.compile(r"([+-]?\d{4,6})-(\d{1,2})-(\d{1,2})", re.ASCII)
_TIMESTAMP = re.compile(
    r"([+-]?\d{4,6})-(\d{1,2})-(\d{1,2})"
    r"(?:[ T](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,9}))?)?)?"
    r"\s*(Z|z|UTC|GMT|[+-]\d{1,2}(?::?\d{2}(?::?\d{2})?)?)?",
    re.ASCII,
)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2})(?::?(\d{2}))?)?")
#: ``java.time.ZoneId.SHORT_IDS``, which Spark reads besides the names of the IANA data base.
_SHORT_IDS = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires", "ART": "Africa/Cairo",
    "AST": "America/Anchorage", "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka", "CAT": "Africa/Harare",
    "CNT": "America/St_Johns", "CST": "America/Chicago", "CTT": "Asia/Shanghai", "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris", "IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata", "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia", "NET": "Asia/Yerevan", "NST": "Pacific/Auckland", "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico", "PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh", "EST": "-05:00", "MST": "-07:00", "HST": "-10:00",
}  # fmt: skip


@functools.lru_cache(64)
def zone_of(name: str) -> tzinfo:
    """The time zone of a name of Spark (``Europe/Berlin``, ``UTC+1``, ``-08:00``, ``EST``); raises ValueError where there is none."""
    name = _SHORT_IDS.get(name, name)
    if name.upper() in ("UTC", "GMT", "UT", "Z", "ETC/UTC"):
        return timezone.utc
    match = _OFFSET.fullmatch(name)
    if match is not None:
        hours, minutes, seconds = (int(part or 0) for part in match.groups()[1:])
        offset = timedelta(hours=hours, minutes=minutes, seconds=seconds)
        if offset > timedelta(hours=18) or minutes > 59 or seconds > 59:
            raise ValueError(f"{name} is not an offset from UTC")
        return timezone(offset if match[1] == "+" else -offset)
    import zoneinfo

    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, OSError) as error:
        raise ValueError(f"{name!r} is no time zone that is known here") from error


def parse_instant(text: str) -> datetime | None:
    """An ISO-8601 timestamp as an aware datetime (UTC where it names no zone); None if it is not one."""
    try:
        return EPOCH + timedelta(microseconds=timestamp_micros(text.replace(",", "."), "UTC"))
    except (ValueError, OverflowError):
        return None


class NoZoneError(ValueError):
    """A timestamp that names no zone, where none is known."""


def timestamp_micros(text: str, time_zone: str | None) -> int:
    """Microseconds since the epoch of ``yyyy-MM-dd HH:mm:ss[.ffffff]`` or an ISO-8601 timestamp.

    Args:
        text: With or without a zone.
        time_zone: The zone of a text that names none; None where none is known.

    Raises:
        NoZoneError: The text names no zone, and ``time_zone`` is None.
        ValueError: Not a timestamp.
    """
    local, clock, zone = _parts(text)
    if zone is None and time_zone == "UTC":
        return local
    name = time_zone if zone is None else zone.upper()
    if name is None:
        raise NoZoneError(f"{text!r} names no time zone, and none is known")
    offset = clock.replace(tzinfo=zone_of(name)).utcoffset()
    assert offset is not None
    return local - int(offset.total_seconds()) * 1_000_000


def local_micros(text: str) -> int:
    """The same of a text whose fields are taken as they are, whatever zone it names (TIMESTAMP_NTZ); raises ValueError."""
    return _parts(text)[0]


def _parts(text: str) -> tuple[int, datetime, str | None]:
    """The wall clock of a timestamp in microseconds since the epoch as if it were UTC, one of a near year, and the zone it names."""
    match = _TIMESTAMP.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a timestamp")
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    near, shift = _near_year(int(year))
    clock = datetime(near, int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0))
    micros = int((fraction or "0").ljust(9, "0")[:6])
    delta = clock - datetime(1970, 1, 1)
    return ((delta.days + shift) * 86_400 + delta.seconds) * 1_000_000 + micros, clock, zone


def date_days(text: str) -> int:
    """Days since the epoch of ``[+-]y...yyy-MM-dd``, in years beyond ``datetime`` too; raises ValueError where the text is no date."""
    match = _DATE.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a date")
    near, shift = _near_year(int(match[1]))
    return (date(near, int(match[2]), int(match[3])) - date(1970, 1, 1)).days + shift


def _near_year(year: int) -> tuple[int, int]:
    """A year that ``datetime`` knows and has the same calendar and rules of time zones, and the days from it to ``year``."""
    if 1 <= year <= 9999:
        return year, 0
    cycles, rest = divmod(year, 400)  # the Gregorian calendar repeats after 400 years
    alike = 24 if year > 0 else 1
    return alike * 400 + rest, (cycles - alike) * 146_097


def to_millis(moment: datetime) -> int:
    """A moment in milliseconds since the epoch; fractions of one are dropped."""
    return (moment - EPOCH) // timedelta(milliseconds=1)


def to_iso(moment: datetime) -> str:
    """A moment as the protocol writes it: ISO-8601 in UTC, milliseconds only where there are some."""
    utc = moment.astimezone(timezone.utc)
    text = utc.strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{utc.microsecond // 1000:03d}Z" if utc.microsecond else f"{text}Z"


def show_millis(millis: int) -> str:
    """Milliseconds since the epoch as errors and logs write them, in UTC; years beyond 9999 as the number."""
    try:
        return (EPOCH + timedelta(milliseconds=millis)).isoformat()
    except OverflowError:
        return f"{millis} ms since 1970"


def show_seconds(seconds: float) -> str:
    """Seconds since the epoch as errors and logs write them, in UTC; years beyond 9999 as the number."""
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.0f} s after 1970"
