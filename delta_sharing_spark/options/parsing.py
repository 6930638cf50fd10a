"""Parses the options of one load: names and text as the user wrote them become a checked :class:`ReadOptions`.

Case of names does not matter (Spark lower-cases the keys it hands over); an unknown option or value is an error that
names the nearest known one.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from delta_sharing_spark.errors import OptionError
from delta_sharing_spark.errors.redaction import redact
from delta_sharing_spark.options import values
from delta_sharing_spark.options.declared import IDENTITY, INLINE, OPTIONS, Option, ReadOptions

_BY_NAME: Mapping[str, Option] = MappingProxyType(
    {name.lower(): option for option in OPTIONS for name in (option.name, *option.aliases)}
)

_DEFAULTS: Mapping[str, Any] = MappingProxyType({option.attribute: option.default for option in OPTIONS})


def parse_options(
    written: Mapping[str, str], *, is_stream: bool | None = False, loaded_at: int | None = None
) -> ReadOptions:
    """The options of one load, from what the user wrote.

    Args:
        written: The text of each option by its name, in any case.
        is_stream: Whether they belong to ``readStream``; None where that is not known yet (Spark asks for the schema
            of both in the same way), which leaves the checks that depend on it to a later call.
        loaded_at: When the table was loaded, in microseconds since the epoch; None means now.

    Raises:
        OptionError: An unknown option or value, naming the nearest known one; options that contradict each other.
    """
    texts: dict[str, str] = {}
    spellings: dict[str, str] = {}
    for key, value in written.items():
        option = _BY_NAME.get(key.lower())
        text = value if isinstance(value, str) else str(value)
        if option is None:
            refuse_foreign(key, text)
            continue
        if texts.setdefault(option.attribute, text) != text:
            raise OptionError(
                f"options '{spellings[option.attribute]}' and '{key}' are the same and have different values; give one",
                option=option.name,
            )
        spellings[option.attribute] = key
    _check_address(texts)
    zone = values.find_zone(texts.get("time_zone", "UTC").strip())
    parsed = {o.attribute: o.parse(o.name, texts[o.attribute], zone) for o in OPTIONS if o.attribute in texts}
    _check_versions(parsed)
    _check_gateway(parsed)
    _check_identity(parsed)
    if is_stream is not None:
        _check_scope(parsed, is_stream)
    if "time_zone" not in texts:
        for option in OPTIONS:
            if option.parse in (values.timestamp, values.first_moment) and option.attribute in texts:
                values.require_zone(option.name, texts[option.attribute])
    moment = None if is_stream else loaded_at or time.time_ns() // 1000
    return ReadOptions(**parsed, loaded_at=moment)


def _check_address(texts: Mapping[str, str]) -> None:
    if not texts.get("path", "").strip():
        raise OptionError(
            "'path' is not specified: load('<profile>#<share>.<schema>.<table>'); in SQL CREATE TEMPORARY VIEW name USING "
            "deltaSharing OPTIONS (path '...'), as a table of Spark's catalogue forgets its options",
            option="path",
        )
    inline = [o.name for o in OPTIONS if o.group == INLINE and o.attribute in texts]
    if inline and "#" in texts["path"]:
        raise OptionError(
            f"cannot specify both share credentials options and a profile file path: remove {', '.join(inline)}, or "
            f"load the bare '<share>.<schema>.<table>'",
            option=inline[0],
        )


def _check_versions(parsed: Mapping[str, Any]) -> None:
    for version, timestamp in (
        ("versionAsOf", "timestampAsOf"),
        ("startingVersion", "startingTimestamp"),
        ("endingVersion", "endingTimestamp"),
    ):
        if _BY_NAME[version.lower()].attribute in parsed and _BY_NAME[timestamp.lower()].attribute in parsed:
            raise OptionError(f"Please either provide '{version}' or '{timestamp}'.", option=version)
    travels = {"version_as_of", "timestamp_as_of"} & parsed.keys()
    if travels and parsed.get("read_change_feed"):
        raise OptionError(
            "readChangeFeed reads a range of versions: give startingVersion and endingVersion instead of "
            "versionAsOf or timestampAsOf",
            option="readChangeFeed",
        )
    first, last = parsed.get("starting_version"), parsed.get("ending_version")
    if isinstance(first, int) and isinstance(last, int) and first > last:
        raise OptionError(
            f"startingVersion {first} is greater than endingVersion {last}; give a range that goes forward",
            option="startingVersion",
        )
    begin, end = parsed.get("starting_timestamp"), parsed.get("ending_timestamp")
    if begin is not None and end is not None and begin > end:
        raise OptionError(
            "startingTimestamp is later than endingTimestamp; give a range that goes forward",
            option="startingTimestamp",
        )


def _check_gateway(parsed: Mapping[str, Any]) -> None:
    ours = sorted(name for name in parsed if name.startswith("gateway_"))
    if "gateway" not in parsed:
        if ours:
            raise OptionError(
                f"option '{_name(ours[0])}' is for a Flight gateway; name it with 'gateway'", option=_name(ours[0])
            )
        return
    others = sorted(
        {"access_mode", "cache_dir", *(o.attribute for o in OPTIONS if o.group in (INLINE, IDENTITY))} & parsed.keys()
    )
    if others:
        raise OptionError(
            f"option '{_name(others[0])}' does not go with 'gateway': the gateway holds the profile and reads the files; "
            f"leave it out, or give it to the gateway",
            option=_name(others[0]),
        )
    if "#" in parsed["path"]:
        raise OptionError(
            "with 'gateway' the path is the bare '<share>.<schema>.<table>': the gateway holds the profile",
            option="path",
        )


#: What may name the source of a token, and the options that belong to some of them: those needed, those allowed.
_SOURCES = ("bearer_token_file", "bearer_token_command", "identity")
_NEEDED = {"azure": "identity_audience", "google": "identity_audience", "environment": "identity_variable"}
_ALLOWED = {
    "identity_audience": ("azure", "google"),
    "identity_client_id": ("azure",),
    "identity_variable": ("environment",),
}


def _check_identity(parsed: Mapping[str, Any]) -> None:
    ours = [o.attribute for o in OPTIONS if o.group == IDENTITY and o.attribute in parsed]
    if not ours:
        return
    sources = [name for name in ours if name in _SOURCES]
    if len(sources) != 1:
        raise OptionError(
            f"{' and '.join(map(_name, sources or ours[:1]))} must stand beside exactly one source of the token: "
            f"bearerTokenFile, bearerTokenCommand or identity",
            option=_name((sources or ours)[0]),
        )
    secrets = [o.name for o in OPTIONS if o.group == INLINE and o.attribute in parsed and o.attribute not in _BESIDE]
    if secrets:
        raise OptionError(
            f"option '{secrets[0]}' does not go with '{_name(sources[0])}': the token is one or the other; leave one out",
            option=secrets[0],
        )
    if not {"identity_endpoint", "endpoint"} & parsed.keys():
        raise OptionError(
            f"option '{_name(sources[0])}' needs 'identityEndpoint', the one endpoint that the token may be shown to",
            option="identityEndpoint",
        )
    kind = parsed.get("identity", sources[0])
    for name, kinds in _ALLOWED.items():
        if name in parsed and kind not in kinds:
            raise OptionError(
                f"option '{_name(name)}' is for identity={' and '.join(kinds)}; leave it out", option=_name(name)
            )
    needed = _NEEDED.get(kind)
    if needed is not None and needed not in parsed:
        raise OptionError(f"identity={kind} needs the option '{_name(needed)}'", option=_name(needed))
    others = [name for name in ours if name.startswith("token_exchange_")]
    if others and "token_exchange_endpoint" not in parsed:
        raise OptionError(
            f"option '{_name(others[0])}' needs 'tokenExchangeEndpoint', where the token is exchanged",
            option=_name(others[0]),
        )


#: Inline options that are no credentials.
_BESIDE = ("share_credentials_version", "endpoint")


def _name(attribute: str) -> str:
    return next(option.name for option in OPTIONS if option.attribute == attribute)


def check_batch(options: ReadOptions) -> None:
    """Make the checks that ``parse_options`` leaves out with ``is_stream=None``, for a load that turns out to be a batch.

    Raises:
        OptionError: As ``parse_options``.
    """
    parsed = {o.attribute: getattr(options, o.attribute) for o in OPTIONS}
    _check_scope({name: value for name, value in parsed.items() if value != _DEFAULTS[name]}, False)


def _check_scope(parsed: Mapping[str, Any], is_stream: bool) -> None:
    if is_stream:
        if {"version_as_of", "timestamp_as_of"} & parsed.keys():
            raise OptionError(
                "Cannot time travel streams. Use startingVersion or startingTimestamp", option="versionAsOf"
            )
        for option in OPTIONS:
            if option.scope == "batch" and option.attribute in parsed:
                reads_on = ", which reads on: a batch with readChangeFeed has an end" if "ending" in option.name else ""
                raise OptionError(
                    f"option '{option.name}' has no meaning in a stream{reads_on}; remove it", option=option.name
                )
        return
    if parsed.get("starting_version") == "latest":
        raise OptionError(
            "Invalid value 'latest' for option 'startingVersion', must be an integer greater than or equal to zero; "
            "'latest' is for streams",
            option="startingVersion",
        )
    ranged = [
        o.name
        for o in OPTIONS
        if o.attribute in ("starting_version", "starting_timestamp", "ending_version", "ending_timestamp")
        and o.attribute in parsed
    ]
    if parsed.get("read_change_feed"):
        if not {"starting_version", "starting_timestamp"} & parsed.keys():
            raise OptionError(
                "No startingVersion or startingTimestamp provided for CDF read: give the first version of the feed",
                option="readChangeFeed",
            )
    elif ranged:
        raise OptionError(
            f"option '{ranged[0]}' needs readChangeFeed=true; for the table as of a version use versionAsOf",
            option=ranged[0],
        )
    warn_of_stream_options(option.name for option in OPTIONS if option.attribute in parsed)


def warn_of_stream_options(names: Iterable[str]) -> None:
    """Warn of options of a batch load that only streams have: jobs share one set of options between a load and a stream."""
    options = filter(None, (_BY_NAME.get(name.lower()) for name in names))
    idle = sorted(option.name for option in options if option.scope == "stream")
    if idle:
        named = "', '".join(idle)
        # From here, so that a load which is looked at in several places warns once.
        warnings.warn(
            f"option '{named}' belongs to readStream and does nothing in a batch read", UserWarning, stacklevel=1
        )


def redacted_options(written: Mapping[str, str]) -> dict[str, str]:
    """Options as they may be shown, without the values of sensitive and unknown ones, and without the secrets in URLs.

    >>> redacted_options({"limit": "3", "bearerToken": "s3cret"})
    {'limit': '3', 'bearerToken': '[redacted]'}
    """
    shown = {}
    for name, value in written.items():
        option = _BY_NAME.get(name.lower())
        shown[name] = "[redacted]" if option is None or option.sensitive else redact(str(value))
    return shown


_OPTIONS_PAGE = "https://delta-sharing-spark.github.io/delta-sharing-spark/options/"
_SCHEMA = "a stream fixes its schema when it starts, and a restart picks up the new one; leave it out"
_FILES = "a shared table is all of its files: use where, versionAsOf or timestampAsOf"
_SKIPPED = "a file that cannot be read is an error, for its rows would be missing; leave it out, or set it to false"
_WRITING = "Delta Sharing is read-only, and this one is for writing; leave it out"

#: Options of other readers in lower case: the value that changes nothing here, which is accepted, and why others are refused.
_FOREIGN: dict[str, tuple[str | None, str]] = {
    "schematrackinglocation": (None, _SCHEMA),
    "schemalocation": (None, _SCHEMA),
    "streamingsourcetrackingid": (None, _SCHEMA),
    "allowsourcecolumndrop": ("false", _SCHEMA),
    "allowsourcecolumnrename": ("false", _SCHEMA),
    "allowsourcecolumnrenameanddrop": ("false", _SCHEMA),
    "allowsourcecolumntypechange": ("false", _SCHEMA),
    "failondataloss": (
        "true",
        "a stream never goes on without a version that the server no longer has; leave it out, and after a loss start with a new "
        "checkpoint",
    ),
    "ignorefiledeletion": (
        "false",
        "it is Delta's former name of ignoreChanges; use that, or ignoreDeletes or skipChangeCommits",
    ),
    "excluderegex": (None, "a sharing server shows no paths to leave files out by; use where"),
    "pathglobfilter": (None, _FILES),
    "modifiedbefore": (None, _FILES),
    "modifiedafter": (None, _FILES),
    "basepath": (None, _FILES),
    "recursivefilelookup": ("false", _FILES),
    "ignorecorruptfiles": ("false", _SKIPPED),
    "ignoremissingfiles": ("false", _SKIPPED),
    "mergeschema": ("false", "the table's log says its schema, and older files are read by it; leave it out"),
    "datetimerebasemode": (None, "dates are read as Delta writes them, by the proleptic Gregorian calendar; leave it out"),
    "int96rebasemode": (None, "dates are read as Delta writes them, by the proleptic Gregorian calendar; leave it out"),
    "sharecredentialstype": (None, "the option is called type"),
    **dict.fromkeys(("checkpointlocation", "queryname"), (None, "it is one of writeStream; set it there")),
    **dict.fromkeys(
        (
            "replacewhere", "replaceon", "replaceusing", "targetalias", "overwriteschema", "usermetadata", "datachange",
            "partitionoverwritemode", "optimizewrite", "maxrecordsperfile", "compression", "txnappid", "txnversion",
            "parquet.writer.version", "writepartitioncolumns", "usenullintolerantequalitywithdpo",
        ),
        (None, _WRITING),
    ),
}  # fmt: skip


def refuse_foreign(key: str, value: str) -> None:
    """Refuse an option that this reader does not have, unless its value changes nothing here.

    Raises:
        OptionError: Says what takes its place, or names the nearest known one.
    """
    if key.lower() in _FOREIGN:
        harmless, why = _FOREIGN[key.lower()]
        if value.strip().lower() == harmless:
            return
        raise OptionError(f"option '{key}' of other readers is not read here: {why}", option=key)
    close = values.nearest(key, (option.name for option in OPTIONS))
    hint = f"did you mean '{close}'?" if close else f"{_OPTIONS_PAGE} lists the known ones"
    raise OptionError(f"unknown option '{key}'; {hint}", option=key)
