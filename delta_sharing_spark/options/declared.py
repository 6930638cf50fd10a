"""Declares every option of a load once: the fields of :class:`ReadOptions` carry name, type, default, parser and scope.

:data:`OPTIONS` and the parser are made from those fields; ``docs/option_texts.py`` documents them. Names are those of the JVM
connector where it has one.
"""
# ruff: noqa: RUF009  - the fields are declared through one function, and none of its defaults is mutable

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Literal

from delta_sharing_spark.options import values

Scope = Literal["both", "batch", "stream"]
INLINE = "Inline credentials"
IDENTITY = "Recipients without a secret"


@dataclass(frozen=True, slots=True)
class Option:
    """The declaration of one option.

    Attributes:
        name: Its spelling in documentation and errors.
        attribute: The field of :class:`ReadOptions` that holds its value.
        parse: Parses its text (:mod:`delta_sharing_spark.options.values`).
        default: The value where the option is not set.
        group: ``INLINE`` or ``IDENTITY``; empty for an option that is about no credentials.
        scope: The kinds of load that it applies to.
        sensitive: Whether its value is a secret.
        aliases: Other names of the same option.
    """

    name: str
    attribute: str
    parse: values.Parser
    default: Any
    group: str
    scope: Scope
    sensitive: bool
    aliases: tuple[str, ...]


def _option(
    parse: values.Parser,
    default: Any = None,
    *,
    group: str = "",
    scope: Scope = "both",
    sensitive: bool = False,
    aliases: tuple[str, ...] = (),
) -> Any:
    """A field of ``ReadOptions`` that declares an option."""
    declared = {"parse": parse, "group": group, "scope": scope, "sensitive": sensitive, "aliases": aliases}
    return field(default=default, repr=not sensitive, metadata={"option": declared})


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of one load: parsed, checked, frozen. Secrets stay out of its ``repr``."""

    path: str = _option(values.text, "")
    columns: tuple[str, ...] | None = _option(values.names)
    where: str | None = _option(values.expression)
    limit: int | None = _option(values.count, scope="batch")
    pushdown: str = _option(values.choice("off", "query"), "off", scope="batch")
    response_format: str | None = _option(values.response_format)

    version_as_of: int | None = _option(values.count, scope="batch")
    timestamp_as_of: datetime | None = _option(values.timestamp, scope="batch")
    time_zone: str | None = _option(values.time_zone)

    read_change_feed: bool = _option(values.boolean, False, aliases=("readChangeData",))
    starting_version: int | str | None = _option(values.starting_version)
    starting_timestamp: datetime | None = _option(values.first_moment)
    ending_version: int | None = _option(values.count, scope="batch")
    ending_timestamp: datetime | None = _option(values.timestamp, scope="batch")
    commit_timestamp_type: str = _option(values.choice("timestamp", "long"), "timestamp")

    max_files_per_trigger: int | None = _option(values.positive, scope="stream")
    max_bytes_per_trigger: int | None = _option(values.size, scope="stream")
    max_versions_per_rpc: int = _option(values.positive, 100, scope="stream")
    ignore_deletes: bool = _option(values.boolean, False, scope="stream")
    ignore_changes: bool = _option(values.boolean, False, scope="stream")
    skip_change_commits: bool = _option(values.boolean, False, scope="stream")
    allow_added_columns: bool = _option(values.boolean, False, scope="stream")
    poll_interval: float = _option(values.duration, 30.0, scope="stream")

    access_mode: str = _option(values.choice("auto", "url", "dir"), "auto")
    carry_profile: bool | Literal["token"] = _option(values.carried, True)
    storage_region: str | None = _option(values.text)
    storage_endpoint: str | None = _option(values.web_address)
    allowed_data_hosts: tuple[str, ...] = _option(values.names, ())

    max_split_bytes: int = _option(values.size, 128 << 20)
    memory_budget: int = _option(values.size, 128 << 20)
    max_files_per_request: int | None = _option(values.positive)
    server_hints: str = _option(values.choice("json", "sql", "both"), "json")
    count_by_statistics: bool = _option(values.boolean, True)
    async_query: bool = _option(values.boolean, False)

    connect_timeout: float = _option(values.duration, 10.0)
    read_timeout: float = _option(values.duration, 320.0)
    retry_timeout: float = _option(values.duration, 600.0)
    proxy: str | None = _option(values.web_address, sensitive=True)
    ca_bundle: str | None = _option(values.text)
    caller_org: str | None = _option(values.text)

    cache_dir: str | None = _option(values.text)
    cache_max_bytes: int = _option(values.size, 10 << 30)

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
    token_endpoint: str | None = _option(values.text, group=INLINE)
    client_id: str | None = _option(values.text, group=INLINE, sensitive=True)
    client_secret: str | None = _option(values.text, group=INLINE, sensitive=True)
    scope: str | None = _option(values.text, group=INLINE)
    username: str | None = _option(values.text, group=INLINE, sensitive=True)
    password: str | None = _option(values.text, group=INLINE, sensitive=True)

    identity_endpoint: str | None = _option(values.web_address, group=IDENTITY)
    bearer_token_file: str | None = _option(values.text, group=IDENTITY)
    bearer_token_command: str | None = _option(values.text, group=IDENTITY, sensitive=True)
    identity: str | None = _option(values.choice("azure", "google", "environment"), group=IDENTITY)
    identity_audience: str | None = _option(values.text, group=IDENTITY)
    identity_client_id: str | None = _option(values.text, group=IDENTITY)
    identity_variable: str | None = _option(values.text, group=IDENTITY)
    token_exchange_endpoint: str | None = _option(values.web_address, group=IDENTITY)
    token_exchange_audience: str | None = _option(values.text, group=IDENTITY)
    token_exchange_scope: str | None = _option(values.text, group=IDENTITY)
    token_exchange_client_id: str | None = _option(values.text, group=IDENTITY)

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


#: Every option, in the order of the documentation.
OPTIONS: tuple[Option, ...] = tuple(
    Option(values.camel_case(f.name), f.name, default=f.default, **f.metadata["option"])
    for f in fields(ReadOptions)
    if "option" in f.metadata
)
