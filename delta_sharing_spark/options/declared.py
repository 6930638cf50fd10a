"""Declares every option of a load once, and parses what a user wrote into a checked :class:`ReadOptions`.

The fields of :class:`ReadOptions` carry name, type, default, parser and scope; :data:`OPTIONS` and the parser are made from them,
and ``docs/option_texts.py`` documents them. Names are those of the JVM connector where it has one; their case does not matter
(Spark lower-cases the keys it hands over). An unknown option or value is an error that names the nearest known one.
"""
# ruff: noqa: RUF009  - the fields are declared through one function, and none of its defaults is mutable

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal

from delta_sharing_spark._version import page_address
from delta_sharing_spark.errors import OptionError
from delta_sharing_spark.options import values
from delta_sharing_spark.redaction import redact

Scope = Literal["both", "batch", "stream"]
INLINE = "Inline credentials"
IDENTITY = "Recipients without a secret"
KEYS = "A private key of your own"
CERTIFICATE = "A certificate of your own"


@dataclass(frozen=True, slots=True)
class Option:
    """The declaration of one option.

    Attributes:
        name: Its spelling in documentation and errors.
        attribute: The field of :class:`ReadOptions` that holds its value.
        parse: Parses its text (:mod:`delta_sharing_spark.options.values`).
        default: The value where the option is not set.
        group: ``INLINE``, ``IDENTITY``, ``KEYS`` or ``CERTIFICATE``; empty for an option that is about no credentials.
        scope: The kinds of load that it applies to.
        sensitive: Whether its value is a secret.
        aliases: Other names of the same option.
        behind_gateway: Whether it says how the sharing server or the storage is asked, which a Flight gateway does for its callers.
    """

    name: str
    attribute: str
    parse: values.Parser
    default: Any
    group: str
    scope: Scope
    sensitive: bool
    aliases: tuple[str, ...]
    behind_gateway: bool


def _option(
    parse: values.Parser,
    default: Any = None,
    *,
    group: str = "",
    scope: Scope = "both",
    sensitive: bool = False,
    aliases: tuple[str, ...] = (),
    behind_gateway: bool = False,
) -> Any:
    """A field of ``ReadOptions`` that declares an option; the arguments are the attributes of ``Option``."""
    kind = {"group": group, "scope": scope, "sensitive": sensitive}
    declared = {"parse": parse, "aliases": aliases, "behind_gateway": behind_gateway or bool(group), **kind}
    return field(default=default, repr=not sensitive, metadata={"option": declared})


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of one load: parsed, checked, frozen. Secrets stay out of its ``repr``."""

    path: str = _option(values.text, "")
    columns: tuple[str, ...] | None = _option(values.names)
    where: str | None = _option(values.expression)
    limit: int | None = _option(values.count, scope="batch")
    pushdown: str = _option(values.Choice(("off", "query")), "off", scope="batch")
    response_format: str | None = _option(values.response_format, behind_gateway=True)

    version_as_of: int | None = _option(values.count, scope="batch")
    timestamp_as_of: datetime | None = _option(values.timestamp, scope="batch")
    ref: str | None = _option(values.text, scope="batch")
    #: None where none is known: a data source that Spark runs by itself learns the session's in its tasks.
    time_zone: str | None = _option(values.time_zone)

    read_change_feed: bool = _option(values.boolean, False, aliases=("readChangeData",))
    starting_version: int | str | None = _option(values.starting_version)
    starting_timestamp: datetime | None = _option(values.first_moment)
    ending_version: int | None = _option(values.count, scope="batch")
    ending_timestamp: datetime | None = _option(values.timestamp, scope="batch")
    commit_timestamp_type: str = _option(values.Choice(("timestamp", "long")), "timestamp")

    max_files_per_trigger: int | None = _option(values.positive, scope="stream")
    max_bytes_per_trigger: int | None = _option(values.size, scope="stream")
    max_versions_per_rpc: int = _option(values.positive, 100, scope="stream")
    ignore_deletes: bool = _option(values.boolean, False, scope="stream")
    ignore_changes: bool = _option(values.boolean, False, scope="stream")
    skip_change_commits: bool = _option(values.boolean, False, scope="stream")
    allow_added_columns: bool = _option(values.boolean, False, scope="stream")
    poll_interval: float = _option(values.duration, 30.0, scope="stream")

    access_mode: str = _option(values.Choice(("auto", "url", "dir", "iceberg")), "auto", behind_gateway=True)
    carry_profile: bool | Literal["token"] = _option(values.carried, True, behind_gateway=True)
    storage_region: str | None = _option(values.text, behind_gateway=True)
    storage_endpoint: str | None = _option(values.web_address, behind_gateway=True)
    allowed_data_hosts: tuple[str, ...] = _option(values.names, (), behind_gateway=True)

    max_split_bytes: int = _option(values.size, 128 << 20)
    memory_budget: int = _option(values.size, 128 << 20)
    max_files_per_request: int | None = _option(values.positive, behind_gateway=True)
    server_hints: str = _option(values.Choice(("json", "sql", "both")), "json", behind_gateway=True)
    count_by_statistics: bool = _option(values.boolean, True)
    async_query: bool = _option(values.boolean, False, behind_gateway=True)

    connect_timeout: float = _option(values.duration, 10.0)
    read_timeout: float = _option(values.duration, 320.0)
    retry_timeout: float = _option(values.duration, 600.0)
    proxy: str | None = _option(values.web_address, sensitive=True, behind_gateway=True)
    ca_bundle: str | None = _option(values.text)
    caller_org: str | None = _option(values.text, behind_gateway=True)

    cache_dir: str | None = _option(values.text, behind_gateway=True)
    cache_max_bytes: int = _option(values.size, 10 << 30, behind_gateway=True)

    gateway: str | None = _option(values.text)
    gateway_token_file: str | None = _option(values.text)
    gateway_token: str | None = _option(values.text, sensitive=True)
    gateway_certificate: str | None = _option(values.text)
    gateway_key: str | None = _option(values.text)

    share_credentials_version: str | None = _option(values.text, group=INLINE)
    type: str | None = _option(values.text, group=INLINE)
    endpoint: str | None = _option(values.text, group=INLINE)
    bearer_token: str | None = _option(values.text, group=INLINE, sensitive=True)
    expiration_time: str | None = _option(values.text, group=INLINE)
    iceberg_endpoint: str | None = _option(values.text, group=INLINE)
    token_endpoint: str | None = _option(values.text, group=INLINE)
    client_id: str | None = _option(values.text, group=INLINE, sensitive=True)
    client_secret: str | None = _option(values.text, group=INLINE, sensitive=True)
    scope: str | None = _option(values.text, group=INLINE)
    username: str | None = _option(values.text, group=INLINE, sensitive=True)
    password: str | None = _option(values.text, group=INLINE, sensitive=True)

    identity_endpoint: str | None = _option(values.web_address, group=IDENTITY)
    bearer_token_file: str | None = _option(values.text, group=IDENTITY)
    bearer_token_command: str | None = _option(values.text, group=IDENTITY, sensitive=True)
    identity: str | None = _option(values.Choice(("azure", "google", "environment")), group=IDENTITY)
    identity_audience: str | None = _option(values.text, group=IDENTITY)
    identity_client_id: str | None = _option(values.text, group=IDENTITY)
    identity_variable: str | None = _option(values.text, group=IDENTITY)
    token_exchange_endpoint: str | None = _option(values.web_address, group=IDENTITY)
    token_exchange_audience: str | None = _option(values.text, group=IDENTITY)
    token_exchange_scope: str | None = _option(values.text, group=IDENTITY)
    token_exchange_client_id: str | None = _option(values.text, group=IDENTITY)

    private_key_file: str | None = _option(values.text, group=KEYS)
    private_key_origin: str | None = _option(values.web_address, group=KEYS)
    private_key_audience: str | None = _option(values.text, group=KEYS)

    client_certificate: str | None = _option(values.text, group=CERTIFICATE)
    client_key: str | None = _option(values.text, group=CERTIFICATE)
    client_key_password: str | None = _option(values.text, group=CERTIFICATE, sensitive=True)

    #: When the table was loaded, in microseconds since 1970: what ``current_timestamp()`` means in ``where``, however
    #: late the plan is run, and however often. None in a stream.
    loaded_at: int | None = field(default=None, repr=False, compare=False)

    @property
    def credentials(self) -> dict[str, str]:
        """The inline credential options that are set, by name; empty where the load names a profile."""
        values_by_name = ((o.name, getattr(self, o.attribute)) for o in OPTIONS if o.group == INLINE)
        return {name: value for name, value in values_by_name if value is not None}


#: Every option, in the order of the documentation.
OPTIONS: tuple[Option, ...] = tuple(
    Option(values.camel_case(f.name), f.name, default=f.default, **f.metadata["option"])
    for f in fields(ReadOptions)
    if "option" in f.metadata
)


_BY_NAME: Mapping[str, Option] = MappingProxyType(
    {name.lower(): option for option in OPTIONS for name in (option.name, *option.aliases)}
)


def parse_options(
    written: Mapping[str, str],
    *,
    is_stream: bool | None = False,
    loaded_at: int | None = None,
    is_in_spark: bool = True,
) -> ReadOptions:
    """The options of one load, from what the user wrote.

    Args:
        written: The text of each option by its name, in any case.
        is_stream: Whether they belong to ``readStream``; None where that is not certain yet, for Spark asks for the schema
            of both in the same way. A later call then makes the checks that depend on it.
        loaded_at: When the table was loaded, in microseconds since the epoch; None means now.
        is_in_spark: Whether a time that names no zone is the session's: without the option ``timeZone`` it is refused. Else
            it is in UTC, which the log says once.

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
        if len(text) > values.MOST_CHARACTERS:
            raise _refused(
                option.name, f"option '{key}' has {len(text)} characters; at most {values.MOST_CHARACTERS} are read"
            )
        if texts.setdefault(option.name, text) != text:
            raise _refused(
                option.name,
                f"options '{spellings[option.name]}' and '{key}' are the same and have different values; give one",
            )
        spellings[option.name] = key
    _check_address(texts)
    zone = values.find_zone(texts.get("timeZone", "UTC").strip())
    parsed = {o.name: o.parse(o.name, texts[o.name], zone) for o in OPTIONS if o.name in texts}
    _check_versions(parsed)
    _check_gateway(parsed)
    _check_credentials(parsed)
    if is_stream is not None:
        _check_scope(parsed, is_stream)
    if "timeZone" not in texts:
        for option in OPTIONS:
            if option.parse in (values.timestamp, values.first_moment) and option.name in texts:
                values.check_zone(option.name, texts[option.name], is_in_spark=is_in_spark)
    moment = None if is_stream else loaded_at or time.time_ns() // 1000
    options = ReadOptions(**{o.attribute: parsed[o.name] for o in OPTIONS if o.name in parsed}, loaded_at=moment)
    return options if is_in_spark or options.time_zone is not None else replace(options, time_zone="UTC")


def _refused(option: str, why: str) -> OptionError:
    return OptionError(why, option=option)


def _clash(option: str, other: str, why: str = "give one") -> OptionError:
    """The error of two options that exclude each other."""
    return _refused(option, f"option '{option}' does not go with '{other}': {why}")


def _need(parsed: Mapping[str, Any], options: Sequence[str], needed: str, why: str) -> None:
    """Refuse options, by the first of them, without another one that they need."""
    if options and needed not in parsed:
        raise _refused(needed, f"option '{options[0]}' needs '{needed}', {why}")


def _of_group(names: Iterable[str], *groups: str) -> list[str]:
    """The options of some groups among those that are given, in the order of their declaration."""
    return [o.name for o in OPTIONS if o.group in groups and o.name in names]


def _check_address(texts: Mapping[str, str]) -> None:
    if not texts.get("path", "").strip():
        raise _refused(
            "path",
            "'path' is not specified: load('<profile>#<share>.<schema>.<table>'); in SQL CREATE TEMPORARY VIEW name USING "
            "deltaSharing OPTIONS (path '...'), as a table of Spark's catalogue forgets its options",
        )
    inline = _of_group(texts, INLINE)
    if inline and "#" in texts["path"]:
        raise _refused(
            inline[0],
            f"cannot specify both share credentials options and a profile file path: remove {', '.join(inline)}, or "
            f"load the bare '<share>.<schema>.<table>'",
        )


#: Versions, and the moments that may be named in their place.
_MOMENTS = (
    ("versionAsOf", "timestampAsOf"),
    ("startingVersion", "startingTimestamp"),
    ("endingVersion", "endingTimestamp"),
)


def _check_versions(parsed: Mapping[str, Any]) -> None:
    for version, timestamp in _MOMENTS:
        if version in parsed and timestamp in parsed:
            raise _refused(version, f"Please either provide '{version}' or '{timestamp}'.")
    travels = {"versionAsOf", "timestampAsOf"} & parsed.keys()
    if "ref" in parsed and (others := travels | ({"readChangeFeed"} & parsed.keys())):
        raise _clash("ref", min(others), "it names the snapshot of a branch or tag; give one")
    if travels and parsed.get("readChangeFeed"):
        raise _clash(
            "readChangeFeed", min(travels), "it reads a range of versions; give startingVersion and endingVersion"
        )
    first, last = parsed.get("startingVersion"), parsed.get("endingVersion")
    if isinstance(first, int) and isinstance(last, int) and first > last:
        why = f"startingVersion {first} is greater than endingVersion {last}; give a range that goes forward"
        raise _refused("startingVersion", why)
    begin, end = parsed.get("startingTimestamp"), parsed.get("endingTimestamp")
    if begin is not None and end is not None and begin > end:
        why = "startingTimestamp is later than endingTimestamp; give a range that goes forward"
        raise _refused("startingTimestamp", why)


def _check_gateway(parsed: Mapping[str, Any]) -> None:
    ours = sorted(name for name in parsed if name.startswith("gateway") and name != "gateway")
    _need(parsed, ours, "gateway", "the address of the Flight gateway that it is for")
    if "gateway" not in parsed:
        return
    if "ref" in parsed:
        raise _clash("ref", "gateway", "give the id of its snapshot as 'versionAsOf'")
    others = [option.name for option in OPTIONS if option.behind_gateway and option.name in parsed]
    if others:
        holds = "the gateway holds the profile, asks the server and reads the files"
        raise _clash(others[0], "gateway", f"{holds}; leave it out, or give it to the gateway")
    if "#" in re.sub("`[^`]*`", "", parsed["path"]):
        why = "with 'gateway' the path is the bare '<share>.<schema>.<table>': the gateway holds the profile"
        raise _refused("path", why)


#: What may name the source of a token, and the options that belong to some of them: those needed, those allowed.
_SOURCES = ("bearerTokenFile", "bearerTokenCommand", "identity")
_NEEDED = {"azure": "identityAudience", "google": "identityAudience", "environment": "identityVariable"}
_ALLOWED = {
    "identityAudience": ("azure", "google"), "identityClientId": ("azure",), "identityVariable": ("environment",)
}  # fmt: skip
#: Inline options that are no credentials.
_BESIDE = ("shareCredentialsVersion", "endpoint")
_EITHER = "the token is got by one or the other; leave one out"


def _check_credentials(parsed: Mapping[str, Any]) -> None:
    _need(parsed, _of_group(parsed, CERTIFICATE), "clientCertificate", "the file of the certificate that it belongs to")
    ours, of_key = _of_group(parsed, IDENTITY), _of_group(parsed, KEYS)
    if set(ours) <= {"identityEndpoint"} and of_key:
        _need(parsed, of_key, "privateKeyOrigin", "the origin that may receive what the key signs")
        _need(parsed, of_key, "identityEndpoint", "the one endpoint that may be shown the tokens which the key gets")
        if inline := _of_group(parsed, INLINE):
            raise _clash(inline[0], of_key[0], "a key is for a profile's path; leave one out")
        return
    if not ours:
        return
    if of_key:
        raise _clash(of_key[0], ours[0], _EITHER)
    sources = [name for name in ours if name in _SOURCES]
    if len(sources) != 1:
        raise _refused(
            (sources or ours)[0],
            f"{' and '.join(sources or ours[:1])} must stand beside exactly one source of the token: "
            f"bearerTokenFile, bearerTokenCommand or identity",
        )
    if secrets := [name for name in _of_group(parsed, INLINE) if name not in _BESIDE]:
        raise _clash(secrets[0], sources[0], _EITHER)
    if "endpoint" not in parsed:
        _need(parsed, sources, "identityEndpoint", "the one endpoint that the token may be shown to")
    kind = parsed.get("identity", sources[0])
    for name, kinds in _ALLOWED.items():
        if name in parsed and kind not in kinds:
            raise _refused(name, f"option '{name}' is for identity={' and '.join(kinds)}; leave it out")
    if (needed := _NEEDED.get(kind)) is not None and needed not in parsed:
        raise _refused(needed, f"identity={kind} needs the option '{needed}'")
    exchange = [name for name in ours if name.startswith("tokenExchange")]
    _need(parsed, exchange, "tokenExchangeEndpoint", "where the token is exchanged")


def check_batch(options: ReadOptions) -> None:
    """Make the checks that ``parse_options`` leaves out with ``is_stream=None``, for a load that turns out to be a batch. Raises OptionError."""
    values_by_name = ((o, getattr(options, o.attribute)) for o in OPTIONS)
    _check_scope({option.name: value for option, value in values_by_name if value != option.default}, False)


def _check_scope(parsed: Mapping[str, Any], is_stream: bool) -> None:
    if is_stream:
        if {"versionAsOf", "timestampAsOf"} & parsed.keys():
            raise _refused("versionAsOf", "Cannot time travel streams. Use startingVersion or startingTimestamp")
        for option in OPTIONS:
            if option.scope == "batch" and option.name in parsed:
                reads_on = ", which reads on: a batch with readChangeFeed has an end" if "ending" in option.name else ""
                raise _refused(option.name, f"option '{option.name}' has no meaning in a stream{reads_on}; remove it")
        return
    if parsed.get("startingVersion") == "latest":
        why = "must be an integer greater than or equal to zero; 'latest' is for streams"
        raise values.invalid("startingVersion", "latest", why)
    _, starts, ends = _MOMENTS
    ranged = [option.name for option in OPTIONS if option.name in (*starts, *ends) and option.name in parsed]
    if parsed.get("readChangeFeed") and not set(starts) & parsed.keys():
        why = "No startingVersion or startingTimestamp provided for CDF read: give the first version of the feed"
        raise _refused("readChangeFeed", why)
    if ranged and not parsed.get("readChangeFeed"):
        why = f"option '{ranged[0]}' needs readChangeFeed=true; for the table as of a version use versionAsOf"
        raise _refused(ranged[0], why)
    warn_of_stream_options(parsed)


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


def overridden(options: Mapping[str, str], by: Mapping[str, str]) -> dict[str, str]:
    """Options with those of ``by`` in the place of theirs, in whatever case each writes the names."""
    names = {name.lower() for name in by}
    return {**{name: value for name, value in options.items() if name.lower() not in names}, **by}


def redacted_options(written: Mapping[str, str]) -> dict[str, str]:
    """Options as they may be shown, without the values of sensitive and unknown ones, and without the secrets in URLs.

    >>> redacted_options({"limit": "3", "bearerToken": "s3cret"})
    {'limit': '3', 'bearerToken': '[redacted]'}
    """
    safe = {}
    for name, value in written.items():
        option = _BY_NAME.get(name.lower())
        safe[name] = "[redacted]" if option is None or option.sensitive else redact(str(value))
    return safe


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
    "datetimerebasemode": (None, "dates and times are read by the calendar that the footer of each file names; leave it out"),
    "int96rebasemode": (None, "dates and times are read by the calendar that the footer of each file names; leave it out"),
    "sharecredentialstype": (None, "the option is called type"),
    "paths": (None, "load() takes one table; load each of them, and union the DataFrames"),
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
    """Raise OptionError for an unknown option, unless its value changes nothing here; says what takes its place, or the nearest known one."""
    if key.lower() in _FOREIGN:
        harmless, why = _FOREIGN[key.lower()]
        if value.strip().lower() == harmless:
            return
        raise _refused(key, f"option '{key}' of other readers is not read here: {why}")
    close = _meant(key, ())
    hint = f"did you mean '{close}'?" if close else f"{page_address('options')} lists the known ones"
    raise _refused(key, f"unknown option '{key}'; {hint}")


#: What people and other readers call options, in lower case and without underscores.
_OTHER_WORDS = {
    **dict.fromkeys(("filter", "filters", "predicate", "predicates", "condition", "conditions", "rowfilter"), "where"),
    **dict.fromkeys(
        ("column", "cols", "columnnames", "columnsnames", "select", "selectedcolumns", "usecols", "fields", "projection"),
        "columns",
    ),
    **dict.fromkeys(("rows", "nrows", "numrows", "maxrows", "top"), "limit"),
    **dict.fromkeys(("asof", "versionnumber"), "version"),
}  # fmt: skip


def check_arguments(names: Iterable[str], arguments: Sequence[str]) -> None:
    """Check the names of a method's further keywords.

    Args:
        names: They should be options.
        arguments: What the method has arguments for: a near one is named rather than an option.

    Raises:
        OptionError: One is neither an option nor one of another reader's.
    """
    for name in names:
        if name.lower() not in _BY_NAME and name.lower() not in _FOREIGN:
            close = _meant(name, arguments)
            if close in arguments:
                raise _refused(name, f"unknown option '{name}'; did you mean '{close}'?")


def _meant(name: str, arguments: Sequence[str]) -> str | None:
    """The argument or option that a wrong name stands for, or is near to."""
    word = _OTHER_WORDS.get(name.lower().replace("_", ""))
    if word is not None:
        return word if word in arguments else {"version": "versionAsOf"}.get(word, word)
    return values.nearest(name, arguments) or values.nearest(name, (option.name for option in OPTIONS))


#: The arguments of ``scan`` and ``changes`` by the options that they become, where the two are called differently.
ARGUMENTS: Mapping[str, str] = MappingProxyType(
    {
        "versionAsOf": "version",
        "timestampAsOf": "timestamp",
        "startingVersion": "starting_version",
        "endingVersion": "ending_version",
        "startingTimestamp": "starting_timestamp",
        "endingTimestamp": "ending_timestamp",
    }
)


@contextmanager
def naming(arguments: Mapping[str, str]) -> Iterator[None]:
    """Within it an OptionError names ``arguments``, by their options, instead of the options."""
    try:
        yield
    except OptionError as error:
        text = str(error)
        for option, argument in arguments.items():
            text = re.sub(rf"(?:option )?'{option}'|\b{option}\b", argument, text)
        if text == str(error):
            raise
        raise OptionError(text, **vars(error)) from None
