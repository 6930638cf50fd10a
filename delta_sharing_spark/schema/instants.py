"""Converts instants between datetimes, milliseconds since the epoch and ISO-8601 text as servers and storages write it."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_ISO = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})(?:[T ](\d{2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)?)?\s*(Z|z|[+-]\d{2}:?\d{2}|[+-]\d{2})?"
)


def parse_instant(text: str) -> datetime | None:
    """An ISO-8601 timestamp as an aware datetime (UTC where it names no zone); None if it is not one."""
    match = _ISO.fullmatch(text.strip())
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        naive = datetime(
            int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0),
            int((fraction or "0").ljust(6, "0")[:6]), tzinfo=timezone.utc,
        )  # fmt: skip
    except ValueError:
        return None
    if zone in (None, "Z", "z"):
        return naive
    digits = zone[1:].replace(":", "").ljust(4, "0")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    try:
        return naive - offset if zone[0] == "+" else naive + offset
    except OverflowError:
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
