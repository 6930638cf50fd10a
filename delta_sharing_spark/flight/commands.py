"""Parses the commands in which a client says which rows a flight has: a path of three names, or JSON.

::

    {"table": "share.schema.table",
     "columns": ["id", "address.city"], "where": "id > 5", "limit": 100,
     "version": 7}                                        or "timestamp": "2026-11-01T00:00:00Z"
    {"table": "share.schema.table", "changes": {"startingVersion": 3, "endingVersion": 9}}
    {"table": "share.schema.table", "changes": {"startingTimestamp": "2026-11-01T00:00:00Z"}}
    {"table": "share.schema.table", "options": {"timeZone": "Europe/Lisbon"}}

Times that name no zone are in ``timeZone``, else in UTC. A Spark job that does not know its session's zone asks with the null of
``{"timeZone": null}``. Such a time is then an error, and not another moment than by other access modes.

A stream of this package asks version by version, and not by files: what versions add, their change files, or all files of one::

    {"table": "share.schema.table", "stream": {"first": 3, "last": 9, "feed": false}}
    {"table": "share.schema.table", "stream": {"snapshot": 7, "feed": true}}
"""

from __future__ import annotations

import fnmatch
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from delta_sharing_spark.errors import CommandError
from delta_sharing_spark.options.values import quoted_column
from delta_sharing_spark.sharing.address import TableName, parse_table_name

#: The longest command that is read: 30,000 ids. Its condition is parsed in Python, during which other calls wait.
_LONGEST_COMMAND = 1 << 18
#: Begins the name of a command of Flight SQL, in the ``google.protobuf.Any`` around it.
_FLIGHT_SQL = b"/arrow.flight.protocol.sql."
#: What stands in a command, and the option of a load that it becomes.
_SNAPSHOT = {"where": "where", "limit": "limit", "version": "versionAsOf", "timestamp": "timestampAsOf"}
#: The fields of a command by their options, where the two are called differently.
FIELDS = {option: field for field, option in _SNAPSHOT.items() if option != field}
_CHANGES = ("startingVersion", "endingVersion", "startingTimestamp", "endingTimestamp")
#: Options that a command may hold: they change rows and splits, not the server or the recipient.
_OPTIONS = ("timeZone", "commitTimestampType", "maxSplitBytes", "responseFormat")


@dataclass(frozen=True, slots=True)
class StreamRange:
    """The versions that a stream asks for, both ends included.

    Attributes:
        first, last: The versions.
        snapshot: Whether all files of the version ``first`` are meant, instead of those that the versions add.
        feed: Whether rows are those of the change data feed.
    """

    first: int
    last: int
    snapshot: bool = False
    feed: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """A request for rows of one table.

    Attributes:
        table: The table.
        columns: The columns in this order; ``a.b`` is a nested field, a name between backquotes stands for itself. None means all.
        options: The options of the load, as texts by name, without ``columns``.
        stream: The versions of a stream's batch.
        is_in_utc: Whether a time that names no zone is in UTC where the command names none; else it is refused.
        planned_at: What ``current_timestamp()`` means in ``where``, in microseconds since the epoch; None before it is planned.
    """

    table: TableName
    columns: tuple[str, ...] | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    stream: StreamRange | None = None
    is_in_utc: bool = True
    planned_at: int | None = None

    def load_options(self) -> dict[str, str]:
        """The options of the load, with its columns."""
        chosen = {} if self.columns is None else {"columns": ",".join(quoted_column(name) for name in self.columns)}
        return {**self.options, **chosen}

    def pinned(self, option: str, value: int | str) -> Command:
        """The same command with an option that was told by the server: a version instead of a moment or of the newest one."""
        moments = ("timestampAsOf", "endingTimestamp")
        options = {name: value for name, value in self.options.items() if name not in moments}
        return replace(self, options={**options, option: str(value)})


def parse_path(path: list[bytes]) -> Command:
    """The command of a path descriptor ``[share, schema, table]``; raises CommandError where the path has not three names."""
    try:
        share, schema, table = (name.decode() for name in path)
    except ValueError:
        raise CommandError(
            f"a path descriptor names a table by three names, share, schema and table; this one has {len(path)}"
        ) from None
    return Command(TableName(share, schema, table))


def parse_command(text: bytes) -> Command:
    """The command of a command descriptor.

    Raises:
        CommandError: The text is no JSON object of the documented form; the message names the field.
        AddressError: ``table`` is not a table's name.
    """
    if len(text) > _LONGEST_COMMAND:
        raise CommandError(f"the command has {len(text)} bytes; at most {_LONGEST_COMMAND} are read")
    if _FLIGHT_SQL in text[:100]:
        raise CommandError(
            'the gateway does not speak Flight SQL; say in JSON which rows, {"table": "share.schema.table", "where": "..."}',
            unimplemented=True,
        )
    try:
        tree = json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        raise CommandError('the command is not JSON; write {"table": "share.schema.table"}') from None
    if not isinstance(tree, dict) or not isinstance(tree.get("table"), str):
        raise CommandError('the command names no table; write {"table": "share.schema.table"}')
    options: dict[str, str] = {}
    stream: StreamRange | None = None
    for name, value in tree.items():
        if value is None or name in ("table", "columns"):
            continue
        if name in _SNAPSHOT:
            options[_SNAPSHOT[name]] = _scalar(name, value)
        elif name == "changes":
            options["readChangeFeed"] = "true"
            options.update(_fields(value, "changes", _CHANGES))
        elif name == "stream":
            stream = _stream(value)
        elif name == "options":
            options.update(_fields(value, "options", _OPTIONS))
        else:
            allowed = ", ".join(("table", "columns", *_SNAPSHOT, "changes", "stream", "options"))
            raise CommandError(f"the command has an unknown field {name!r}; it may have {allowed}")
    if stream is not None and stream.feed:
        options["readChangeFeed"], options["startingVersion"] = "true", str(stream.first)
    is_in_utc = "timeZone" not in (tree.get("options") or {}) or "timeZone" in options
    return Command(parse_table_name(tree["table"]), _columns(tree.get("columns")), options, stream, is_in_utc)


def table_names_matching(criteria: bytes) -> Callable[[str], bool]:
    """Returns a test of three-part names by a prefix or a glob; raises CommandError where these criteria are not UTF-8."""
    try:
        text = criteria.decode()
    except UnicodeDecodeError:
        raise CommandError(
            "the criteria are not UTF-8; give a prefix such as 'share.schema.' or a glob such as '*.trips'"
        ) from None
    if any(mark in text for mark in "*?["):
        return lambda name: fnmatch.fnmatchcase(name, text)
    return lambda name: name.startswith(text)


def _object(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; raises CommandError where it has a field twice, of which one would not count."""
    tree = dict(fields)
    if len(tree) < len(fields):
        ((twice, _),) = Counter(name for name, _ in fields).most_common(1)
        raise CommandError(f"the command has the field {twice!r} twice; write it once")
    return tree


def _columns(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise CommandError('the command\'s \'columns\' is not a list of names; write ["a", "b.c"]')
    if not value:
        raise CommandError("the command's 'columns' is an empty list; name a column, or leave it out for all of them")
    return tuple(value)


def _stream(value: Any) -> StreamRange:
    allowed = ("first", "last", "snapshot", "feed")
    if not isinstance(value, dict) or not set(value) <= set(allowed):
        raise CommandError(f"the command's 'stream' is not an object of {', '.join(allowed)}")
    snapshot = value.get("snapshot")
    first, last = (snapshot, snapshot) if snapshot is not None else (value.get("first"), value.get("last"))
    if type(first) is not int or type(last) is not int or not 0 <= first <= last:
        raise CommandError("the command's 'stream' has no versions 'first' to 'last', and no version 'snapshot'")
    return StreamRange(first, last, snapshot is not None, value.get("feed") is True)


def _fields(value: Any, where: str, allowed: tuple[str, ...]) -> dict[str, str]:
    if not isinstance(value, dict):
        raise CommandError(f"the command's {where!r} is not an object; it may have {', '.join(allowed)}")
    for name in value:
        if name not in allowed:
            raise CommandError(
                f"the command's {where!r} has an unknown field {name!r}; it may have {', '.join(allowed)}"
            )
    return {name: _scalar(f"{where}.{name}", item) for name, item in value.items() if item is not None}


def _scalar(name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise CommandError(f"the command's {name!r} is neither a text nor a whole number")
    return str(value)
