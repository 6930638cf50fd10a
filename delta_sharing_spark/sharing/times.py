"""Instants on the wire: ISO-8601 in every spelling servers use, which Python 3.10 does not all read."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

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
