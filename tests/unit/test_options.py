"""Options: the JVM connector's cases (peers.md T45-T50), what is refused and how, and the page made from the table."""

from __future__ import annotations

import contextlib
import logging
import pickle
from datetime import date, datetime, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_sharing_spark.errors import DeltaSharingError, OptionError
from delta_sharing_spark.options import OPTIONS, ReadOptions, check_batch, parse_options, redacted_options
from delta_sharing_spark.options.values import EPOCH_SECONDS_DIGITS, to_timestamp
from delta_sharing_spark.schema.instants import to_iso, to_millis

PATH = {"path": "p.share#a.b.c"}


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=timezone.utc)  # type: ignore[misc,arg-type]


def parsed(streaming: bool | None = False, **options: str) -> ReadOptions:
    return parse_options({**PATH, **options}, is_stream=streaming)


@pytest.mark.parametrize(
    ("options", "attribute", "value"),
    [
        ({"maxBytesPerTrigger": "12k"}, "max_bytes_per_trigger", 12288),
        ({"maxBytesPerTrigger": "10G"}, "max_bytes_per_trigger", 10 << 30),
        ({"maxBytesPerTrigger": "7"}, "max_bytes_per_trigger", 7),
        ({"maxFilesPerTrigger": "2"}, "max_files_per_trigger", 2),
        ({}, "max_files_per_trigger", None),
        ({"maxBytesPerTrigger": "1b"}, "max_files_per_trigger", None),
        ({"ignoreChanges": "TRUE"}, "ignore_changes", True),
        ({"startingVersion": "latest"}, "starting_version", "latest"),
        ({"startingVersion": "12"}, "starting_version", 12),
        ({"STARTINGTIMESTAMP": "2021-01-01"}, "starting_timestamp", utc(2021, 1, 1)),
        ({"pollInterval": "500ms"}, "poll_interval", 0.5),
        ({"pollInterval": "2m"}, "poll_interval", 120.0),
        ({"columns": "a, `b,c`,s.x,`q``r`"}, "columns", ("a", "b,c", "s.x", "q`r")),
        ({"readChangeData": "true"}, "read_change_feed", True),
        ({"timeZone": "Z"}, "time_zone", "UTC"),
    ],
)
def test_values_of_a_stream(options: dict[str, str], attribute: str, value: Any) -> None:
    assert getattr(parsed(True, **options), attribute) == value


@pytest.mark.parametrize(
    ("options", "instant"),
    [
        ({"timestampAsOf": "2021-01-01T00:00:00-01:00"}, "2021-01-01T01:00:00Z"),
        ({"timestampAsOf": "2022-01-01T00:00:00-02:00"}, "2022-01-01T02:00:00Z"),
        ({"timestampAsOf": "2022-01-01 00:00:00"}, "2022-01-01T00:00:00Z"),
        ({"timestampAsOf": "2022-01-01 00:00:00.25"}, "2022-01-01T00:00:00.250000Z"),
        ({"timestampAsOf": "2022-1-5"}, "2022-01-05T00:00:00Z"),
        ({"timestampAsOf": "2022"}, "2022-01-01T00:00:00Z"),
        ({"timestampAsOf": "2022-07-01", "timeZone": "Europe/Berlin"}, "2022-06-30T22:00:00Z"),
        ({"timestampAsOf": "2022-07-01T00:00Z", "timeZone": "Europe/Berlin"}, "2022-07-01T00:00:00Z"),
        ({"timestampAsOf": "2022-07-01 00:00:00 America/New_York"}, "2022-07-01T04:00:00Z"),
        ({"timestampAsOf": "2022-07-01T00:00:00+0530"}, "2022-06-30T18:30:00Z"),
        ({"timestampAsOf": "1640995200"}, "2022-01-01T00:00:00Z"),
        ({"timestampAsOf": "1640995200250"}, "2022-01-01T00:00:00.250000Z"),
        # The hour that a change to summer time leaves out moves forward, the one it repeats is the first: as in Java.
        ({"timestampAsOf": "2022-03-27 02:30:00", "timeZone": "Europe/Berlin"}, "2022-03-27T01:30:00Z"),
        ({"timestampAsOf": "2022-10-30 02:30:00", "timeZone": "Europe/Berlin"}, "2022-10-30T00:30:00Z"),
    ],
)
def test_timestamps(options: dict[str, str], instant: str) -> None:
    moment = parsed(**options).timestamp_as_of
    assert moment is not None
    assert moment.isoformat().replace("+00:00", "Z") == instant


def test_a_timestamp_without_zone_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "delta_sharing_spark"):
        parsed(timestampAsOf="2022-01-01T00:00Z", timeZone="Europe/Berlin")
        parsed(timestampAsOf="1640995200")
        assert not caplog.messages
        parsed(timestampAsOf="2022-01-01")
        parsed(True, startingTimestamp="2022-07-01 12:00", timeZone="Europe/Berlin")
    assert caplog.messages == [
        "option 'timestampAsOf': '2022-01-01' names no time zone and is read in UTC, as 2022-01-01T00:00:00Z; "
        "the option 'timeZone' sets another zone",
        "option 'startingTimestamp': '2022-07-01 12:00' names no time zone and is read in Europe/Berlin, "
        "as 2022-07-01T10:00:00Z; the option 'timeZone' sets another zone",
    ]


def test_a_range_of_moments_is_rounded_to_the_milliseconds_of_commits() -> None:
    ends = {"startingTimestamp": "2022-01-01T00:00:00.000001Z", "endingTimestamp": "2022-01-01T00:00:00.9999999Z"}
    options = parsed(readChangeFeed="true", **ends)
    assert options.starting_timestamp == utc(2022, 1, 1, 0, 0, 0, 1000)
    assert parsed(True, startingTimestamp="9999-12-31T23:59:59.9999999Z").starting_timestamp
    assert to_millis(options.ending_timestamp) == 1640995200999
    assert to_iso(options.ending_timestamp) == "2022-01-01T00:00:00.999Z"


@pytest.mark.parametrize("value", [utc(2024, 2, 3, 4), date(2024, 2, 3), datetime(2024, 2, 3), 1706918400])
def test_python_values_are_timestamps_too(value: Any) -> None:
    assert to_timestamp(value).date() == date(2024, 2, 3)


@given(st.datetimes(min_value=datetime(1973, 3, 4), max_value=datetime(2286, 1, 1)))
def test_epoch_seconds_and_milliseconds_are_told_apart(moment: datetime) -> None:
    moment = moment.replace(microsecond=0, tzinfo=timezone.utc)
    seconds = int(moment.timestamp())
    assert len(str(seconds)) <= EPOCH_SECONDS_DIGITS < len(str(seconds * 1000))
    assert to_timestamp(str(seconds)) == to_timestamp(str(seconds * 1000)) == moment


MUST_BE_SIZE = "must be a size configuration such as '10g'"
BAD_TIMESTAMP = "cannot be converted to a valid timestamp"

REFUSED_IN_STREAMS = [
    ({"maxBytesPerTrigger": "2mg"}, MUST_BE_SIZE),
    ({"maxBytesPerTrigger": "-1"}, MUST_BE_SIZE),
    ({"maxBytesPerTrigger": "0"}, MUST_BE_SIZE),
    ({"maxFilesPerTrigger": "-1"}, "Invalid value '-1' for option 'maxFilesPerTrigger', must be a positive integer"),
    ({"maxFilesPerTrigger": "0"}, "must be a positive integer"),
    ({"maxFilesPerTrigger": "a"}, "must be a positive integer"),
    ({"ignoreChanges": "1"}, "Invalid value '1' for option 'ignoreChanges', must be 'true' or 'false'"),
    ({"startingVersion": "-1"}, "must be greater than or equal to zero"),
    ({"startingVersion": "newest"}, "or in a stream 'latest'"),
    ({"startingVersion": "1", "startingTimestamp": "2022-01-01"}, "provide 'startingVersion' or 'startingTimestamp'."),
    ({"versionAsOf": "1"}, "Cannot time travel streams."),
    ({"timestampAsOf": "2022-01-01"}, "Cannot time travel streams."),
    ({"endingVersion": "1"}, "option 'endingVersion' has no meaning in a stream"),
    ({"pollInterval": "soon"}, "must be a duration such as '30s'"),
]

REFUSED_IN_BATCH = [
    ({"versionAsOf": "3x"}, "Invalid value '3x' for option 'versionAsOf', must be an integer greater than or equal"),
    ({"versionAsOf": "-3"}, "must be an integer greater than or equal to zero"),
    ({"versionAsOf": str(1 << 63)}, "must fit in 64 bits"),
    ({"timestampAsOf": "202"}, BAD_TIMESTAMP),
    ({"timestampAsOf": "a"}, BAD_TIMESTAMP),
    ({"timestampAsOf": "2022-02-30"}, BAD_TIMESTAMP),
    ({"timestampAsOf": "0001-01-01T00:00:00+05:00"}, BAD_TIMESTAMP),
    ({"timestampAsOf": "2022-01-01T00:00:00+99"}, BAD_TIMESTAMP),
    ({"endingTimestamp": "2022-01-01T25:00"}, BAD_TIMESTAMP),
    ({"versionAsOf": "1", "timestampAsOf": "2022-01-01"}, "Please either provide 'versionAsOf' or 'timestampAsOf'."),
    ({"endingVersion": "1", "endingTimestamp": "2022-01-01"}, "provide 'endingVersion' or 'endingTimestamp'."),
    ({"readChangeFeed": "true"}, "No startingVersion or startingTimestamp provided for CDF read"),
    ({"readChangeFeed": "true", "readChangeData": "false"}, "are the same and have different values"),
    ({"readChangeFeed": "true", "startingVersion": "2", "endingVersion": "1"}, "is greater than endingVersion 1"),
    ({"readChangeFeed": "true", "versionAsOf": "1"}, "reads a range of versions"),
    ({"startingVersion": "1"}, "option 'startingVersion' needs readChangeFeed=true"),
    ({"readChangeFeed": "true", "startingVersion": "latest"}, "'latest' is for streams"),
    ({"responseFormat": "avro"}, "The user input must be one of:{parquet, delta}."),
    ({"accessMode": "directory"}, "must be one of: auto, url, dir; did you mean 'dir'?"),
    ({"pushdown": "on"}, "must be one of: off, query"),
    ({"timeZone": "Europe/Berln"}, "did you mean 'Europe/Berlin'?"),
    ({"timeZone": "../../etc/passwd"}, "must be a time zone's name"),
    ({"limit": "-1"}, "must be an integer greater than or equal to zero"),
    ({"limit": "1.5"}, "must be an integer"),
    ({"limit": "9" * 5000}, "must be an integer"),
    ({"columns": "a,,b"}, "separated by commas"),
    ({"columns": "`a"}, "must close its backquotes"),
    ({"where": " "}, "option 'where' is empty"),
    ({"callerOrg": "a\r\nX-Evil: 1"}, "line break"),
    ({"maxSplitBytes": "big"}, MUST_BE_SIZE),
    ({"versonAsOf": "1"}, "unknown option 'versonAsOf'; did you mean 'versionAsOf'?"),
    ({"qqqqqqqq": "1"}, "unknown option 'qqqqqqqq'; docs/options.md"),
    ({"schemaTrackingLocation": "/x"}, "of the JVM connector does not exist here"),
    ({"path": ""}, "'path' is not specified"),
    ({"bearerToken": "t"}, "cannot specify both share credentials options and a profile file path"),
    ({"proxy": "host"}, "option 'proxy' must be a URL"),
]


@pytest.mark.parametrize(
    ("streaming", "options", "message"),
    [(True, *case) for case in REFUSED_IN_STREAMS] + [(False, *case) for case in REFUSED_IN_BATCH],
)
def test_refused(streaming: bool, options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as refused:
        parsed(streaming, **options)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    if not streaming:
        with pytest.raises(OptionError) as later:
            check_batch(parsed(None, **options))
        assert str(later.value) == str(refused.value)


def test_a_refused_secret_is_not_repeated() -> None:
    with pytest.raises(OptionError) as refused:
        parsed(proxy="user:hunter2@host:1")
    assert "hunter2" not in str(refused.value)


def test_what_depends_on_batch_or_stream_waits_until_that_is_known() -> None:
    assert parsed(None, startingVersion="latest").starting_version == "latest"
    assert parsed(None, versionAsOf="1").version_as_of == 1


def test_stream_options_in_a_batch_read_do_nothing_and_say_so(caplog: pytest.LogCaptureFixture) -> None:
    assert parsed(ignoreDeletes="true").ignore_deletes
    assert "'ignoreDeletes' belongs to readStream" in caplog.text


def test_inline_credentials() -> None:
    options = parse_options(
        {"path": "a.b.c", "BEARERTOKEN": "s3cret", "endpoint": "https://h/x", "type": "bearer_token"}
    )
    assert options.credentials == {"type": "bearer_token", "endpoint": "https://h/x", "bearerToken": "s3cret"}
    assert "s3cret" not in repr(options)
    assert parsed().credentials == {}


def test_secrets_are_declared_sensitive() -> None:
    assert {o.name for o in OPTIONS if o.sensitive} == {
        "bearerToken",
        "bearerTokenCommand",
        "clientId",
        "clientSecret",
        "password",
        "gatewayToken",
        "proxy",
        "username",
    }


def test_options_are_shown_without_secrets() -> None:
    written = {"LIMIT": "3", "bearertoken": "s3cret", "bearerTokn": "s3cret", "path": "https://h/p?sig=s3cret#a.b.c"}
    shown = redacted_options(written)
    assert shown["LIMIT"] == "3"
    assert "s3cret" not in str(shown)


def test_options_pickle() -> None:
    options = parsed(versionAsOf="3", proxy="http://u:p@h:1")
    assert pickle.loads(pickle.dumps(options)) == options


@given(st.dictionaries(st.sampled_from([o.name for o in OPTIONS]), st.text(max_size=12), max_size=4), st.booleans())
def test_any_text_is_parsed_or_refused_by_an_error_of_ours(options: dict[str, str], streaming: bool) -> None:
    with contextlib.suppress(DeltaSharingError):
        parse_options({**PATH, **options}, is_stream=streaming)
