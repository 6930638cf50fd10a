"""Declares every option of a read once: the fields of :class:`ReadOptions` carry name, type, default and documentation.

:data:`OPTIONS`, the parser and the documentation page are all made from those fields. To add an option, add a field.
Names are those of the JVM connector where it has one.
"""
# ruff: noqa: RUF009  - the fields are declared through one function, and none of its defaults is mutable

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Literal

from delta_sharing_spark.options import values

Scope = Literal["both", "batch", "stream"]


@dataclass(frozen=True, slots=True)
class Option:
    """The declaration of one option.

    Attributes:
        name: Its spelling in documentation and errors.
        attribute: The field of :class:`ReadOptions` that holds its value.
        parse: Parses its text (:mod:`delta_sharing_spark.options.values`).
        type: The type as documented.
        default: The value where the option is not set.
        shown: The default as documented.
        doc: Its documentation, one or two sentences of Markdown.
        group: The section of the documentation.
        scope: The kinds of load that it applies to.
        sensitive: Whether its value is a secret.
        aliases: Other names of the same option.
    """

    name: str
    attribute: str
    parse: values.Parser
    type: str
    default: Any
    shown: str
    doc: str
    group: str
    scope: Scope
    sensitive: bool
    aliases: tuple[str, ...]


_TYPES: Mapping[values.Parser, str] = {
    values.text: "text",
    values.expression: "text",
    values.boolean: "`true`, `false`",
    values.response_format: "`parquet`, `delta`",
    values.version: "version",
    values.starting_version: "version or `latest`",
    values.count: "number",
    values.positive: "number > 0",
    values.size: "size",
    values.duration: "duration",
    values.names: "names",
    values.web_address: "URL",
    values.time_zone: "time zone",
    values.timestamp: "timestamp",
    values.first_moment: "timestamp",
}


def _option(
    parse: values.Parser,
    default: Any,
    doc: str,
    group: str,
    *,
    shown: str = "",
    type: str = "",
    scope: Scope = "both",
    sensitive: bool = False,
    aliases: tuple[str, ...] = (),
) -> Any:
    """A field of ``ReadOptions`` that declares an option."""
    if not shown and default is not None:
        shown = f"`{str(default).lower() if isinstance(default, bool) else default}`"
    described = {"parse": parse, "type": type or _TYPES[parse], "doc": doc, "group": group, "shown": shown}
    return field(
        default=default,
        repr=not sensitive,
        metadata={"option": {**described, "scope": scope, "sensitive": sensitive, "aliases": aliases}},
    )


_WHAT, _TRAVEL, _CHANGES, _STREAM = "What to read", "Time travel", "Change data feed", "Streams"
_ACCESS, _PLAN, _NET, _CACHE = "Access", "Planning and memory", "Network", "Cache"
_GATEWAY = "Flight gateway"
INLINE = "Inline credentials"
IDENTITY = "Recipients without a secret"


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of one load: parsed, checked, frozen. Secrets stay out of its ``repr``."""

    path: str = _option(
        values.text,
        "",
        "`<profile>#<share>.<schema>.<table>`: the argument of `load()`. The profile is a path or URL of any file system; "
        "with inline credentials the path is the bare `<share>.<schema>.<table>`.",
        _WHAT,
        shown="required",
    )
    columns: tuple[str, ...] | None = _option(
        values.names,
        None,
        "The columns to read, in this order: `a,b`; a nested field as `a.b`, a name with a comma or a blank at its end "
        "between backquotes. Only their bytes are fetched. `spark.read.schema(...)` does the same.",
        _WHAT,
    )
    where: str | None = _option(
        values.expression,
        None,
        "A SQL boolean expression that every row returned fulfils. It is sent to the server as hints, skips files and "
        "row groups, and is applied exactly.",
        _WHAT,
        type="SQL",
    )
    limit: int | None = _option(
        values.count, None, "The maximum number of rows; a repeated read gives the same ones.", _WHAT, scope="batch"
    )
    pushdown: str = _option(
        values.choice("off", "query"),
        "off",
        "`query`: filters of the Spark query prune what is read. Safe only where the loaded DataFrame serves one query.",
        _WHAT,
        type="`off`, `query`",
        scope="batch",
    )
    response_format: str | None = _option(
        values.response_format,
        None,
        "Ask the server for this format only. Left out, the server chooses.",
        _WHAT,
        shown="negotiated",
    )

    version_as_of: int | None = _option(values.version, None, "The table as of this version.", _TRAVEL, scope="batch")
    timestamp_as_of: datetime | None = _option(
        values.timestamp, None, "The table as of this moment.", _TRAVEL, scope="batch"
    )
    time_zone: str | None = _option(
        values.time_zone,
        None,
        "The zone of timestamps written without one, in options and in partition values, by any name that Spark knows: "
        "`America/New_York`, `EST`, `UTC+1`.",
        _TRAVEL,
        shown="the session's, see above",
    )

    read_change_feed: bool = _option(
        values.boolean,
        False,
        "Read the change data feed: the table's columns, `_change_type`, `_commit_version` and `_commit_timestamp`.",
        _CHANGES,
        aliases=("readChangeData",),
    )
    starting_version: int | str | None = _option(
        values.starting_version,
        None,
        "First version of the feed or stream, inclusive. `latest`, in streams only: changes after the present version.",
        _CHANGES,
    )
    starting_timestamp: datetime | None = _option(
        values.first_moment, None, "Instead of `startingVersion`: the first version at or after this moment.", _CHANGES
    )
    ending_version: int | None = _option(
        values.version, None, "Last version of the feed, inclusive.", _CHANGES, shown="newest", scope="batch"
    )
    ending_timestamp: datetime | None = _option(
        values.timestamp,
        None,
        "Instead of `endingVersion`: the last version at or before this moment.",
        _CHANGES,
        scope="batch",
    )
    commit_timestamp_type: str = _option(
        values.choice("timestamp", "long"),
        "timestamp",
        "`long` gives `_commit_timestamp` as the protocol's milliseconds.",
        _CHANGES,
        type="`timestamp`, `long`",
    )

    max_files_per_trigger: int | None = _option(
        values.positive,
        None,
        "The maximum number of files in a micro-batch.",
        _STREAM,
        shown="`1000` unless `maxBytesPerTrigger` is set",
        scope="stream",
    )
    max_bytes_per_trigger: int | None = _option(
        values.size,
        None,
        "The approximate number of bytes in a micro-batch, which holds at least one file.",
        _STREAM,
        scope="stream",
    )
    max_versions_per_rpc: int = _option(
        values.positive, 100, "The maximum number of versions in one request.", _STREAM, scope="stream"
    )
    ignore_deletes: bool = _option(
        values.boolean,
        False,
        "Go on past versions that only delete; their deletes are not told.",
        _STREAM,
        scope="stream",
    )
    ignore_changes: bool = _option(
        values.boolean,
        False,
        "Go on past versions that rewrite files, and emit the rewritten files: unchanged rows come again.",
        _STREAM,
        scope="stream",
    )
    skip_change_commits: bool = _option(
        values.boolean, False, "Leave out versions that delete or rewrite, wholly.", _STREAM, scope="stream"
    )
    allow_added_columns: bool = _option(
        values.boolean,
        False,
        "Read on without a column that was added upstream, instead of stopping the stream.",
        _STREAM,
        scope="stream",
    )
    poll_interval: float = _option(
        values.duration,
        30.0,
        "The server is asked for its version at most this often. Under 10 s only against loopback.",
        _STREAM,
        shown="`30s`",
        scope="stream",
    )

    access_mode: str = _option(
        values.choice("auto", "url", "dir"),
        "auto",
        "`url`: files by presigned URL; `dir`: the table's directory with temporary credentials; `auto`: what the server "
        "offers for the table, url first.",
        _ACCESS,
        type="`auto`, `url`, `dir`",
    )
    carry_profile: bool | Literal["token"] = _option(
        values.carried,
        True,
        "What executors ask for other URLs and credentials with: the profile (`true`), nothing (`false`: none are renewed there), "
        "or, of an OAuth profile, its access token alone (`token`), until that ends.",
        _ACCESS,
        type="`true`, `false`, `token`",
    )
    storage_region: str | None = _option(values.text, None, "Region of the S3 bucket.", _ACCESS, shown="found")
    storage_endpoint: str | None = _option(
        values.web_address, None, "Storage endpoint instead of the cloud's own: MinIO, Azurite, an emulator.", _ACCESS
    )
    allowed_data_hosts: tuple[str, ...] = _option(
        values.names,
        (),
        "Hosts that data URLs may name with plain http, or that lie on this machine or link-local addresses. https needs no "
        "entry elsewhere, and a sharing server on loopback may name loopback.",
        _ACCESS,
        shown="none",
    )

    max_split_bytes: int = _option(
        values.size, 128 << 20, "Bytes of files in one Spark partition, about.", _PLAN, shown="`128m`"
    )
    memory_budget: int = _option(
        values.size,
        128 << 20,
        "Bytes that a task may hold fetched and not yet decoded. A larger row group is read part by part. Outside Spark, by "
        "default, all that is read at once has an eighth of the free memory, from `256m` to `1g`.",
        _PLAN,
        shown="`128m`",
    )
    max_files_per_request: int | None = _option(
        values.positive,
        None,
        "The number of files in a page of the list of files. Unset, the server decides; the reference server cannot page "
        "tables with deletion vectors, column mapping or other reader features.",
        _PLAN,
        shown="none",
    )
    server_hints: str = _option(
        values.choice("json", "sql", "both"),
        "json",
        "How filters are sent to the server: as `jsonPredicateHints`, as SQL `predicateHints` (partition columns only, "
        "for servers that know no others), or both. Rows are filtered here in any case.",
        _PLAN,
        type="`json`, `sql`, `both`",
    )
    count_by_statistics: bool = _option(
        values.boolean,
        True,
        "Whether the native lane answers what needs no column of the files, as `count(*)` does, from the row counts of "
        "their statistics, without the storage.",
        _PLAN,
    )
    async_query: bool = _option(
        values.boolean, False, "Let the server answer a query later and poll for the result.", _PLAN
    )

    connect_timeout: float = _option(values.duration, 10.0, "To open a connection.", _NET, shown="`10s`")
    read_timeout: float = _option(
        values.duration,
        320.0,
        "Between two bytes of an answer. Unless it is set, a storage may be silent for half of `retryTimeout` at most, or for "
        "`connectTimeout` if that is longer.",
        _NET,
        shown="`320s`",
    )
    retry_timeout: float = _option(
        values.duration, 600.0, "How long transient failures of one request are retried.", _NET, shown="`10m`"
    )
    proxy: str | None = _option(
        values.web_address,
        None,
        "Proxy of REST, OAuth and data requests alike.",
        _NET,
        shown="`HTTPS_PROXY`, `NO_PROXY`",
        sensitive=True,
    )
    ca_bundle: str | None = _option(
        values.text,
        None,
        "A PEM file of certificate authorities. Certificates are always verified.",
        _NET,
        shown="`REQUESTS_CA_BUNDLE`",
    )
    caller_org: str | None = _option(values.text, None, "Named to the server in the User-Agent.", _NET)

    cache_dir: str | None = _option(values.text, None, "Keep file bytes in this local directory.", _CACHE, shown="off")
    cache_max_bytes: int = _option(
        values.size, 10 << 30, "Size that the cache is kept under, least recently used first.", _CACHE, shown="`10g`"
    )

    gateway: str | None = _option(
        values.text,
        None,
        "Read through a Flight gateway, `grpc+tls://host:port`, which holds the profile; the path is then the bare "
        "`<share>.<schema>.<table>`.",
        _GATEWAY,
        shown="none",
    )
    gateway_token_file: str | None = _option(
        values.text,
        None,
        "A file with the token that the gateway asks for.",
        _GATEWAY,
        shown="`DELTA_SHARING_FLIGHT_TOKEN`",
    )
    gateway_token: str | None = _option(values.text, None, "The token itself.", _GATEWAY, shown="none", sensitive=True)
    gateway_certificate: str | None = _option(
        values.text, None, "A PEM file of this client's own certificate, for mutual TLS.", _GATEWAY, shown="none"
    )
    gateway_key: str | None = _option(values.text, None, "A PEM file of its private key.", _GATEWAY, shown="none")

    share_credentials_version: str | None = _option(
        values.text, None, "Version of the inline profile: `1` or `2`.", INLINE
    )
    type: str | None = _option(values.text, None, "`bearer_token`, `oauth_client_credentials`, `basic`.", INLINE)
    endpoint: str | None = _option(values.text, None, "The sharing server's URL.", INLINE)
    bearer_token: str | None = _option(values.text, None, "Token of `bearer_token`.", INLINE, sensitive=True)
    expiration_time: str | None = _option(values.text, None, "When the bearer token ends.", INLINE)
    token_endpoint: str | None = _option(values.text, None, "Where OAuth tokens are issued.", INLINE)
    client_id: str | None = _option(values.text, None, "OAuth client.", INLINE, sensitive=True)
    client_secret: str | None = _option(values.text, None, "OAuth client's secret.", INLINE, sensitive=True)
    scope: str | None = _option(values.text, None, "OAuth scope.", INLINE)
    username: str | None = _option(values.text, None, "User of `basic`.", INLINE, sensitive=True)
    password: str | None = _option(values.text, None, "Password of `basic`.", INLINE, sensitive=True)

    identity_endpoint: str | None = _option(
        values.web_address,
        None,
        "The one endpoint that the token may be shown to; a profile that names another one is refused. The option `endpoint` "
        "serves as well.",
        IDENTITY,
        shown="required",
    )
    bearer_token_file: str | None = _option(
        values.text, None, "A local file with the token, which is read again when it rotates.", IDENTITY
    )
    bearer_token_command: str | None = _option(
        values.text,
        None,
        'A program and its arguments, `get-token --for sharing` or `["get-token", "--for", "sharing"]`, which prints a token, '
        "or JSON with `access_token` and `expires_in` or `expiration`. It is run without a shell, for 30 s at most.",
        IDENTITY,
        sensitive=True,
    )
    identity: str | None = _option(
        values.choice("azure", "google", "environment"),
        None,
        "`azure`: the machine's managed identity; `google`: an id token of its service account; `environment`: a token in an "
        "environment variable.",
        IDENTITY,
        type="`azure`, `google`, `environment`",
    )
    identity_audience: str | None = _option(
        values.text, None, "Whom `azure` and `google` issue the token for.", IDENTITY
    )
    identity_client_id: str | None = _option(
        values.text, None, "The client id of an identity that was assigned by a user, for `azure`.", IDENTITY
    )
    identity_variable: str | None = _option(values.text, None, "The variable that `environment` reads.", IDENTITY)
    token_exchange_endpoint: str | None = _option(
        values.web_address,
        None,
        "Exchange the token here for the one that is shown (RFC 8693).",
        IDENTITY,
    )
    token_exchange_audience: str | None = _option(values.text, None, "`audience` of the exchange.", IDENTITY)
    token_exchange_scope: str | None = _option(values.text, None, "`scope` of the exchange.", IDENTITY)
    token_exchange_client_id: str | None = _option(values.text, None, "`client_id` of the exchange.", IDENTITY)

    #: When the table was loaded, in microseconds since 1970: what ``current_timestamp()`` means in ``where``, however
    #: late the plan is run, and however often. None in a stream.
    loaded_at: int | None = field(default=None, repr=False, compare=False)

    @property
    def zone(self) -> str:
        """``time_zone``, empty where nothing tells it: a data source that Spark runs by itself learns it in its tasks."""
        return self.time_zone or ""

    @property
    def credentials(self) -> dict[str, str]:
        """The inline credential options that are set, by name; empty where the load names a profile."""
        values_by_name = ((o.name, getattr(self, o.attribute)) for o in OPTIONS if o.group == INLINE)
        return {name: value for name, value in values_by_name if value is not None}


def _declared() -> tuple[Option, ...]:
    options = []
    for declared in fields(ReadOptions):
        if "option" not in declared.metadata:
            continue
        described = declared.metadata["option"]
        name = re.sub(r"_(\w)", lambda m: m[1].upper(), declared.name)
        options.append(Option(name, declared.name, default=declared.default, **described))
    return tuple(options)


#: Every option, in the order of the documentation.
OPTIONS: tuple[Option, ...] = _declared()


_NOTES = {
    INLINE: "Credentials instead of a profile; the path is then the bare `<share>.<schema>.<table>`.",
    IDENTITY: "See [Recipients without a secret](identities.md). Each of them may stand in the environment instead, "
    "`bearerTokenFile` as `DELTA_SHARING_BEARER_TOKEN_FILE`; options are taken whole, or else the environment.",
}


def options_page() -> str:
    """The options, as a table of Markdown for each group."""
    lines: list[str] = []
    group = ""
    for option in OPTIONS:
        if option.group != group:
            group = option.group
            note = [_NOTES[group], ""] if group in _NOTES else []
            lines += ["", f"## {group}", "", *note, "| Option | Type | Default | What it does |", "|---|---|---|---|"]
        names = f"`{option.name}`" + "".join(f", `{alias}`" for alias in option.aliases)
        where = {"both": "", "batch": " Batch only.", "stream": " Streams only."}[option.scope]
        secret = " Secret: see [Secrets](spark-connect.md#secrets-by-reference)." if option.sensitive else ""
        lines.append(f"| {names} | {option.type} | {option.shown} | {option.doc}{where}{secret} |")
    return "\n".join(lines[1:]) + "\n"
