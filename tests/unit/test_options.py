"""Options: the JVM connector's cases (peers.md T45-T50), what is refused and how, and the page made from the table."""

from __future__ import annotations

import contextlib
import pickle
import re
from datetime import datetime, timezone
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_sharing_spark.errors import DeltaSharingError, OptionError
from delta_sharing_spark.options.declared import OPTIONS, ReadOptions, check_batch, parse_options, redacted_options
from delta_sharing_spark.options.keywords import LoadOptions
from delta_sharing_spark.options.values import EPOCH_SECONDS_DIGITS, Choice, timestamp
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
        ({"STARTINGTIMESTAMP": "2021-01-01T00:00Z"}, "starting_timestamp", utc(2021, 1, 1)),
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
        ({"timestampAsOf": "2022-01-01 00:00:00", "timeZone": "UTC"}, "2022-01-01T00:00:00Z"),
        ({"timestampAsOf": "2022-01-01 00:00:00.25", "timeZone": "Z"}, "2022-01-01T00:00:00.250000Z"),
        ({"timestampAsOf": "2022-1-5", "timeZone": "GMT"}, "2022-01-05T00:00:00Z"),
        ({"timestampAsOf": "2022", "timeZone": "UTC"}, "2022-01-01T00:00:00Z"),
        # Zones that Spark knows beside the names of the IANA data base.
        ({"timestampAsOf": "2022-07-01", "timeZone": "EST"}, "2022-07-01T05:00:00Z"),
        ({"timestampAsOf": "2022-07-01", "timeZone": "PST"}, "2022-07-01T07:00:00Z"),
        ({"timestampAsOf": "2022-07-01", "timeZone": "UTC+1"}, "2022-06-30T23:00:00Z"),
        ({"timestampAsOf": "2022-07-01", "timeZone": "GMT+01:30"}, "2022-06-30T22:30:00Z"),
        ({"timestampAsOf": "2022-07-01", "timeZone": "-08:00"}, "2022-07-01T08:00:00Z"),
        ({"timestampAsOf": "2022-07-01 12:00:00 EST"}, "2022-07-01T17:00:00Z"),
        ({"timestampAsOf": "2022-07-01 12:00:00 UTC+1"}, "2022-07-01T11:00:00Z"),
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


@pytest.mark.parametrize("name", ["timestampAsOf", "startingTimestamp", "endingTimestamp"])
@pytest.mark.parametrize(
    ("moment", "shown"),
    [
        ("2026-03-02 08:00:00", "2026-03-02T08:00:00Z"),
        ("2026-03-02T08:00", "2026-03-02T08:00Z"),
        ("2026-03-02", "2026-03-02T00:00:00Z"),
        ("2026", "2026-01-01T00:00:00Z"),
    ],
)
def test_a_moment_without_a_zone_is_refused_where_nothing_tells_one(name: str, moment: str, shown: str) -> None:
    feed = {} if name == "timestampAsOf" else {"readChangeFeed": "true", "startingVersion": "0"}
    if name == "startingTimestamp":
        del feed["startingVersion"]
    with pytest.raises(OptionError, match=f"option '{name}': '{moment}' names no time zone") as refused:
        parsed(**feed, **{name: moment})
    assert f"'{shown}'" in str(refused.value)
    assert "timeZone=" in str(refused.value)
    in_zone = parsed(**feed, **{name: moment}, timeZone="UTC")
    written_out = parsed(**feed, **{name: shown})
    attribute = re.sub("(?=[A-Z])", "_", name).lower()
    assert getattr(in_zone, attribute) == getattr(written_out, attribute)


def test_a_range_of_moments_is_rounded_to_the_milliseconds_of_commits() -> None:
    ends = {"startingTimestamp": "2022-01-01T00:00:00.000001Z", "endingTimestamp": "2022-01-01T00:00:00.9999999Z"}
    options = parsed(readChangeFeed="true", **ends)
    assert options.starting_timestamp == utc(2022, 1, 1, 0, 0, 0, 1000)
    assert parsed(True, startingTimestamp="9999-12-31T23:59:59.9999999Z").starting_timestamp
    assert to_millis(options.ending_timestamp) == 1640995200999
    assert to_iso(options.ending_timestamp) == "2022-01-01T00:00:00.999Z"


@given(st.datetimes(min_value=datetime(1973, 3, 4), max_value=datetime(2286, 1, 1)))
def test_epoch_seconds_and_milliseconds_are_told_apart(moment: datetime) -> None:
    moment = moment.replace(microsecond=0, tzinfo=timezone.utc)
    seconds = int(moment.timestamp())
    assert len(str(seconds)) <= EPOCH_SECONDS_DIGITS < len(str(seconds * 1000))
    assert {timestamp("timestampAsOf", str(n), timezone.utc) for n in (seconds, seconds * 1000)} == {moment}


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
    (
        {"endingVersion": "1"},
        "option 'endingVersion' has no meaning in a stream, which reads on: a batch with readChangeFeed",
    ),
    ({"pollInterval": "soon"}, "must be a duration such as '30s'"),
    ({"retryTimeout": "0s"}, "above zero"),
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
    ({"accessMode": "directory"}, "must be one of: auto, url, dir, iceberg; did you mean 'dir'?"),
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
    ({"qqqqqqqq": "1"}, "unknown option 'qqqqqqqq'; https://"),
    ({"schemaTrackingLocation": "/x"}, "of other readers is not read here: a stream fixes its schema"),
    ({"SchemaLocation": "/x"}, "a restart picks up the new one"),
    ({"ignoreFileDeletion": "true"}, "former name of ignoreChanges"),
    ({"pathGlobFilter": "*.parquet"}, "use where, versionAsOf or timestampAsOf"),
    ({"allowSourceColumnTypeChange": "always"}, "a stream fixes its schema"),
    ({"failOnDataLoss": "false"}, "start with a new checkpoint"),
    ({"excludeRegex": "x"}, "shows no paths"),
    ({"paths": '["a#s.t.u"]'}, "load() takes one table"),
    ({"replaceWhere": "a = 1"}, "read-only"),
    ({"ignoreCorruptFiles": "true"}, "its rows would be missing"),
    ({"path": ""}, "'path' is not specified"),
    ({"bearerToken": "t"}, "cannot specify both share credentials options and a profile file path"),
    ({"proxy": "host"}, "option 'proxy' must be a URL"),
    (
        {"clientKey": "/k"},
        "option 'clientKey' needs 'clientCertificate', the file of the certificate that it belongs to",
    ),
    ({"clientKeyPassword": "p"}, "option 'clientKeyPassword' needs 'clientCertificate'"),
    (
        {"path": "a.b.c", "gateway": "grpc://h:1", "clientCertificate": "/c"},
        "'clientCertificate' does not go with 'gateway'",
    ),
    *(
        ({name: "(" * (1 << 20) + "("}, f"option '{name}' has 1048577 characters; at most 1048576 are read")
        for name in ("where", "columns", "timestampAsOf", "path")
    ),
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


def test_stream_options_in_a_batch_read_do_nothing_and_say_so() -> None:
    with pytest.warns(UserWarning, match="'ignoreDeletes', 'maxFilesPerTrigger' belongs to readStream"):
        assert parsed(ignoreDeletes="true", maxFilesPerTrigger="1").ignore_deletes


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
        "clientKeyPassword",
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


def test_options_of_other_readers_whose_value_changes_nothing_are_taken() -> None:
    assert parsed(failOnDataLoss="true", mergeSchema="False", ignoreFileDeletion="false") == parsed()


def test_type_checkers_know_the_options() -> None:
    names = {name for option in OPTIONS for name in (option.name, *option.aliases)}
    types = get_type_hints(LoadOptions)
    assert types.keys() == names - {"path", "columns", "where", "limit"}
    chosen = {option.name: option.parse.words for option in OPTIONS if isinstance(option.parse, Choice)}
    assert {name: get_args(types[name]) for name in chosen} == chosen
