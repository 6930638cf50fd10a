"""Converts instants between datetimes, milliseconds since the epoch and ISO-8601 text; finds time zones by Spark's names."""

from __future__ import annotations

import functools
import re
from datetime import datetime, timedelta, timezone, tzinfo

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_ISO = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})(?:[T ](\d{2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)?)?\s*(Z|z|[+-]\d{2}:?\d{2}|[+-]\d{2})?"
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


def due_before(end: float, since: float, margin: float = 60.0, share: float = 0.25) -> float:
    """When to renew what was given out at ``since`` and ends at ``end``: ``margin`` seconds before, or that share of its life if less."""
    return end - min(margin, share * max(0.0, end - since))


def parse_instant(text: str) -> datetime | None:
    """An ISO-8601 timestamp as an aware datetime (UTC where it names no zone); None if it is not one."""
    match = _ISO.fullmatch(text.strip())
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        utc = datetime(
            int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0),
            int((fraction or "0").ljust(6, "0")[:6]), tzinfo=timezone.utc,
        )  # fmt: skip
        return utc if zone is None else utc.replace(tzinfo=zone_of(zone.upper())).astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None


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
