"""Parses and writes the text of option values: numbers, sizes, durations, timestamps, lists. Each error names option and value."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Any

from delta_sharing_spark.errors import OptionError
from delta_sharing_spark.schema.instants import zone_of
from delta_sharing_spark.schema.types import backquoted

_log = logging.getLogger(__name__)

#: ``(name, text, zone)`` to a value; ``zone`` is what zone-less timestamps are read in.
Parser = Callable[[str, str, tzinfo], Any]

#: Of an option's text: a million, which is more than 100,000 values of a condition, take seconds to parse.
MOST_CHARACTERS = 1 << 20
_INTEGER = re.compile(r"[+-]?[0-9]{1,30}\Z")
_SIZE = re.compile(r"([0-9]{1,30})\s*([a-z]*)\Z")
_SIZE_UNITS = {"": 0, "b": 0, "k": 10, "kb": 10, "m": 20, "mb": 20, "g": 30, "gb": 30, "t": 40, "tb": 40, "p": 50}
_DURATION = re.compile(r"([0-9]{1,30}(?:\.[0-9]+)?)\s*([a-z]*)\Z")
_DURATION_UNITS = {"": 1.0, "s": 1.0, "ms": 0.001, "m": 60.0, "min": 60.0, "h": 3600.0}
_TIMESTAMP = re.compile(
    r"(?P<year>[0-9]{4})(?:-(?P<month>[0-9]{1,2})(?:-(?P<day>[0-9]{1,2})"
    r"(?:[T ](?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{1,2})(?::(?P<second>[0-9]{1,2})(?:\.(?P<fraction>[0-9]{1,9}))?)?"
    r"\s*(?P<zone>Z|UTC|GMT|[+-][0-9]{1,2}(?::?[0-9]{2})?|[A-Za-z][A-Za-z0-9_+:/-]*)?)?)?)?\Z"
)
#: What may be the URL of a proxy, with a user, or of a server: no blank, backslash or control character.
_WEB_ADDRESS = re.compile(r"(?i:https?)://[^\s\x00-\x20\x7f-\xa0\\/?#]+(?:[/?#][^\s\x00-\x20\x7f-\xa0\\]*)?")
#: Of a list of names: one in backquotes, a comma, other text, a backquote that nothing closes.
_NAME_PIECES = re.compile(r"`(?:[^`]|``)*`|,|[^,`]+|`")
_EPOCH = re.compile(r"[0-9]{9,14}\Z")

#: Epoch numbers of fewer digits are seconds (up to the year 5138), of more are milliseconds (from 1973 on).
EPOCH_SECONDS_DIGITS = 11


def invalid(name: str, value: str, must: str) -> OptionError:
    """The error of a value that an option cannot take, in the JVM connector's words."""
    return OptionError(f"Invalid value '{value}' for option '{name}', {must}", option=name)


def camel_case(name: str) -> str:
    """A name as options and the protocol spell it: ``limitHint`` of ``limit_hint``."""
    return re.sub(r"_(\w)", lambda letter: letter[1].upper(), name)


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The known word nearest to ``word``, without regard to case; None if none is near enough.

    Near are words with most letters in place, and those of which ``word`` is one part.
    """
    import difflib

    by_lower = {name.lower(): name for name in words}
    lowered = word.lower()
    close = difflib.get_close_matches(lowered, by_lower, n=1, cutoff=0.7)
    if not close and len(lowered) > 3:
        parts = [name for name in by_lower if lowered in name or (len(name) > 2 and lowered.startswith(name))]
        close = sorted(parts, key=len)[:1]
    return by_lower[close[0]] if close else None


def text(name: str, value: str, zone: tzinfo) -> str:
    """Free text of one line."""
    expression(name, value, zone)
    if any(ord(c) < 32 for c in value):
        raise OptionError(f"option '{name}' holds a line break or another control character; remove it", option=name)
    return value


def expression(name: str, value: str, zone: tzinfo) -> str:
    """Text that may span lines."""
    if not value.strip():
        raise OptionError(f"option '{name}' is empty; give it a value or leave it out", option=name)
    return value


@dataclass(frozen=True, slots=True)
class Choice:
    """A parser of one of some words; ``must`` is what an error says instead of listing them."""

    words: tuple[str, ...]
    must: str | None = None

    def __call__(self, name: str, value: str, zone: tzinfo) -> str:
        lowered = value.strip().lower()
        if lowered not in self.words:
            close = nearest(lowered, self.words)
            hint = f"; did you mean '{close}'?" if close else ""
            raise invalid(name, value, self.must or f"must be one of: {', '.join(self.words)}{hint}")
        return lowered


response_format = Choice(
    ("parquet", "delta"), "The user input must be one of:{parquet, delta}. Leave it out to let the server choose."
)
_boolean = Choice(("true", "false"), "must be 'true' or 'false'")
_carried = Choice(("true", "false", "token"), "must be 'true', 'false' or 'token'")


def boolean(name: str, value: str, zone: tzinfo) -> bool:
    return bool(_boolean(name, value, zone) == "true")


def carried(name: str, value: str, zone: tzinfo) -> bool | str:
    chosen = _carried(name, value, zone)
    return chosen if chosen == "token" else chosen == "true"


def starting_version(name: str, value: str, zone: tzinfo) -> int | str:
    """A version, or ``"latest"``."""
    lowered = value.strip().lower()
    if lowered == "latest":
        return lowered
    if not _INTEGER.match(lowered):
        raise invalid(name, value, "must be an integer greater than or equal to zero, or in a stream 'latest'")
    return _whole(name, value, 0, "must be greater than or equal to zero")


def count(name: str, value: str, zone: tzinfo) -> int:
    return _whole(name, value, 0, "must be an integer greater than or equal to zero")


def positive(name: str, value: str, zone: tzinfo) -> int:
    return _whole(name, value, 1, "must be a positive integer")


def _whole(name: str, value: str, least: int, must: str) -> int:
    number = int(value) if _INTEGER.match(value.strip()) else least - 1
    if number < least:
        raise invalid(name, value, must)
    if number >= 1 << 63:
        raise invalid(name, value, "must fit in 64 bits")
    return number


def size(name: str, value: str, zone: tzinfo) -> int:
    """Bytes: ``10g``, ``12k`` (binary units), ``1048576``."""
    match = _SIZE.match(value.strip().lower())
    if match is None or match[2] not in _SIZE_UNITS or int(match[1]) == 0:
        raise invalid(name, value, "must be a size configuration such as '10g'")
    number = int(match[1]) << _SIZE_UNITS[match[2]]
    if number >= 1 << 63:
        raise invalid(name, value, "must be a size configuration such as '10g' of less than 8 EiB")
    return number


def duration(name: str, value: str, zone: tzinfo) -> float:
    """Seconds: ``30``, ``30s``, ``500ms``, ``5m``, ``1h``."""
    match = _DURATION.match(value.strip().lower())
    seconds = float(match[1]) * _DURATION_UNITS[match[2]] if match and match[2] in _DURATION_UNITS else 0.0
    if seconds <= 0 or seconds > 366 * 86400:
        raise invalid(
            name, value, "must be a duration such as '30s', '500ms' or '5m', above zero and of a year at most"
        )
    return seconds


def names(name: str, value: str, zone: tzinfo) -> tuple[str, ...]:
    """``a, `b,c`, s.x``: names between commas; a comma in a name stands between backquotes, which are dropped."""
    parts = [""]
    for piece in _NAME_PIECES.findall(value):
        if piece == "`":
            raise invalid(name, value, "must close its backquotes")
        if piece == ",":
            parts.append("")
        else:
            parts[-1] += piece[1:-1].replace("``", "`") if piece[0] == "`" else piece
    stripped = tuple(part.strip() for part in parts)
    if not all(stripped):
        raise invalid(name, value, "must be names separated by commas, without an empty one")
    return stripped


def web_address(name: str, value: str, zone: tzinfo) -> str:
    """An http or https URL. It may hold a password, so errors do not repeat it. Whoever asks it parses it."""
    if not _WEB_ADDRESS.fullmatch(value.strip()):
        raise OptionError(f"option '{name}' must be a URL such as 'http://host:3128'", option=name)
    return value.strip()


def time_zone(name: str, value: str, zone: tzinfo) -> str:
    return "UTC" if find_zone(value.strip(), name) is timezone.utc else value.strip()


def find_zone(zone_name: str, option: str = "timeZone") -> tzinfo:
    """The zone of a name as Spark reads it (``instants.zone_of``); raises OptionError where there is no such zone; names the nearest."""
    try:
        return zone_of(zone_name)
    except ValueError:
        import zoneinfo

        zones = zoneinfo.available_timezones()
        close = nearest(zone_name, zones)
        if not zones:
            hint = "; this machine has no time zone data: pip install tzdata"
        else:
            hint = f"; did you mean '{close}'?" if close else ""
        raise invalid(option, zone_name, f"must be a time zone's name such as 'Europe/Berlin'{hint}") from None


def first_moment(name: str, value: str, zone: tzinfo) -> datetime:
    """An instant, rounded up to milliseconds, in which versions are stamped; other instants are rounded down."""
    moment = timestamp(name, value, zone)
    up = timedelta(microseconds=-moment.microsecond % 1000)
    return moment + up if moment.replace(tzinfo=None) <= datetime.max - up else moment


def timestamp(name: str, value: str, zone: tzinfo) -> datetime:
    """An instant, in UTC.

    Text is an ISO date or timestamp (``T`` or a blank between), with or without a zone, or an epoch number. Of that, 9 to
    11 digits are seconds, 12 to 14 milliseconds. What has no zone is read in ``zone``.

    Raises:
        OptionError: Not a timestamp.
    """
    try:
        stripped = value.strip()
        if _EPOCH.match(stripped):
            scale = 1 if len(stripped) <= EPOCH_SECONDS_DIGITS else 1000
            whole, rest = divmod(int(stripped), scale)
            return datetime.fromtimestamp(whole, timezone.utc) + timedelta(milliseconds=rest)
        match = _TIMESTAMP.match(stripped)
        if match is None:
            raise ValueError("not a timestamp")
        part = match.groupdict()
        local = datetime(
            int(part["year"]), int(part["month"] or 1), int(part["day"] or 1), int(part["hour"] or 0),
            int(part["minute"] or 0), int(part["second"] or 0), int((part["fraction"] or "0")[:6].ljust(6, "0")),
        )  # fmt: skip
        if part["zone"]:
            zone = zone_of(part["zone"]) if part["zone"][0] in "+-" else find_zone(part["zone"], name)
        return local.replace(tzinfo=zone).astimezone(timezone.utc)
    except (ValueError, OverflowError):
        raise OptionError(
            f"option '{name}': The provided timestamp ({value}) cannot be converted to a valid timestamp. "
            f"Write '2026-01-31T12:00:00Z', '2026-01-31 12:00:00 Europe/Berlin' or seconds since 1970",
            option=name,
        ) from None


def check_zone(option: str, value: str, *, is_in_spark: bool) -> None:
    """Look at a moment that may name no zone, where no option does.

    Raises:
        OptionError: It names none, and ``is_in_spark``: the session has a zone, which is not known here; shows the ways to write it.
    """
    match = _TIMESTAMP.match(value.strip())
    if match is None or match["zone"] or _EPOCH.match(value.strip()):
        return
    if not is_in_spark:
        _note_utc()
        return
    date, time = "-".join(part for part in match.group("year", "month", "day") if part), value.strip()[10:].strip("T ")
    day = date + "-01" * (2 - date.count("-"))
    raise OptionError(
        f"option '{option}': '{value}' names no time zone, and no Spark session is known here whose zone it could mean; write it "
        f"with its zone, '{day}T{time or '00:00:00'}Z', or say the zone, timeZone=America/New_York; after "
        f"delta_sharing_spark.register(spark) it means the session's",
        option=option,
    )


@lru_cache(maxsize=1)
def _note_utc() -> None:
    """Say once in a process's log in which zone it reads moments."""
    _log.warning(
        "moments that name no time zone are read in UTC, as no Spark session is here; timeZone=... says another zone"
    )


def option_text(value: object) -> str:
    """A Python value as the option's text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    return str(value)


def quoted_column(column: str) -> str:
    """A column's name as the option ``columns`` takes it; a name that is already in backquotes stays as it is."""
    if re.fullmatch(r"`(?:[^`]|``)+`(?:\.`(?:[^`]|``)+`)*", column):
        return column
    return backquoted(column) if re.search(r"[^\w.]", column) else column
