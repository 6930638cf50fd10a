"""Metadata, snapshot queries, table streams and change data feeds of shared tables."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from delta_sharing_spark.deltalog.actions import CHANGE_DATA_FEED, metadata_from, protocol_from
from delta_sharing_spark.deltalog.commit_feed import changed_no_row
from delta_sharing_spark.deltalog.commit_times import CommitTimes
from delta_sharing_spark.deltalog.replay import Head
from delta_sharing_spark.schema.instants import show_millis, timestamp_micros
from delta_sharing_spark.schema.table_records import Metadata, Protocol
from delta_sharing_spark.testing.server.answers import (
    Answer,
    Pages,
    TableRequest,
    choose_format,
    metadata_line,
    protocol_line,
)
from delta_sharing_spark.testing.server.data_urls import Signer
from delta_sharing_spark.testing.server.predicate_hints import HintFilter, limited
from delta_sharing_spark.testing.server.responses import Refusal, Response, bad_request
from delta_sharing_spark.testing.server.settings import ServerSettings, SharedTable
from delta_sharing_spark.testing.server.table_logs import FileAction, LoggedCommit, LoggedSnapshot, TableLogs, located

_OFFSET = re.compile(r"T.*(?:[Zz]|[+-]\d{2}:?\d{2})$")
_EXPIRED_REFRESH = "The refresh token has expired. Please restart the query."


class TableQueries:
    """Answers what is asked of one table."""

    def __init__(self, logs: TableLogs, pages: Pages, signer: Signer, settings: ServerSettings) -> None:
        self._logs, self._pages, self._signer, self._settings = logs, pages, signer, settings

    def version(self, table: SharedTable, starting_timestamp: str | None) -> int:
        """The newest version, or the first at or after a timestamp."""
        if starting_timestamp is None:
            return self._logs.latest(table)
        _need_history(table)
        times, moment_ms = self._logs.times(table), millis(starting_timestamp)
        if self._settings.engine == "reference":
            version = version_after(times, self._logs.latest(table), moment_ms)
            self._check_start(table, version)
            return version
        version = times.at_or_after(moment_ms)
        return max(version, table.start_version)

    def metadata(self, request: TableRequest) -> Response:
        """Protocol and metadata of the newest version, of one, or of a time."""
        version = self._asked_version(request.table, request.parameters) if self._settings.metadata_at_version else None
        snapshot = self._logs.snapshot(request.table, version)
        chosen = choose_format(request, self._settings, snapshot.protocol, snapshot.metadata, snapshot.files)
        head = self._head(request.table, snapshot, chosen, with_version=version is not None)
        return self._pages.write(request, Answer(snapshot.version, chosen, head, [], True))

    def query(self, request: TableRequest) -> Response:
        """A snapshot, or with ``startingVersion`` the files that commits added and removed."""
        starts = [k for k in ("version", "timestamp", "startingVersion") if request.parameters.get(k) is not None]
        if len(starts) > 1:
            raise bad_request("Please only provide one of: version,timestamp,startingVersion")
        if starts == ["startingVersion"]:
            return self._pages.write(request, self._stream(request))
        return self._pages.write(request, self._snapshot(request))

    def changes(self, request: TableRequest) -> Response:
        """The change data feed of a range."""
        return self._pages.write(request, self._changes(request))

    # Snapshots

    def _snapshot(self, request: TableRequest) -> Answer:
        parameters, token = request.parameters, self._pages.read_token(request)
        version = self._asked_version(request.table, parameters)
        travelled = version is not None
        for key in ("includeRefreshToken", "refreshToken"):
            if parameters.get(key) and travelled:
                raise bad_request(f"{key} cannot be used when querying a specific version.")
            if parameters.get(key) and token is not None:
                raise bad_request(f"{key} must be used in the first page request.")
        if token is not None:
            version = int(token["version"])
        elif parameters.get("refreshToken"):
            version = self._refreshed(request)
        snapshot = self._logs.snapshot(request.table, version)
        if self._settings.engine == "reference" and any(parameters.get(name) for name in _OLD_ENGINE):
            check_old_engine(snapshot.protocol)
        chosen = choose_format(request, self._settings, snapshot.protocol, snapshot.metadata, snapshot.files)
        files = HintFilter(snapshot.metadata, snapshot.protocol, parameters, self._settings).remaining(snapshot.files)
        if self._settings.limit_hints and parameters.get("limitHint") is not None:
            files = limited(files, int(parameters["limitHint"]))
        if travelled:
            timestamp = self._logs.time(request.table, snapshot)
            files = [replace(f, version=snapshot.version, timestamp=timestamp) for f in files]
        refresh = None
        if parameters.get("includeRefreshToken") and token is None:
            body = {"table": str(request.table), "version": snapshot.version, "id": snapshot.metadata.id}
            refresh = self._signer.token("refresh", body)
        head = self._head(request.table, snapshot, chosen, with_version=travelled)
        return Answer(snapshot.version, chosen, head, files, True, refresh, {"version": snapshot.version})

    def _refreshed(self, request: TableRequest) -> int:
        token = str(request.parameters["refreshToken"])
        body = self._signer.read("refresh", token, self._settings.refresh_token_ttl, _EXPIRED_REFRESH)
        if body["table"] != str(request.table):
            raise bad_request("The table specified in the refresh token does not match the table being queried.")
        # Delta Kernel validates the token and answers the newest version all the same.
        return self._logs.latest(request.table) if self._settings.engine == "reference" else int(body["version"])

    def _asked_version(self, table: SharedTable, parameters: Mapping[str, Any]) -> int | None:
        version, timestamp = parameters.get("version"), parameters.get("timestamp")
        if version is None and timestamp is None:
            return None
        _need_history(table)
        if version is not None and timestamp is not None:
            raise bad_request("Please only provide one of: version,timestamp,startingVersion")
        if version is not None:
            number = _number(version, "version")
            self._check_start(table, number)
            return number
        past_version = self._logs.times(table).at_or_before(millis(str(timestamp)))
        self._check_start(table, past_version)
        return past_version

    def _check_start(self, table: SharedTable, version: int) -> None:
        if version < table.start_version:
            raise bad_request(f"You can only query table data since version {table.start_version}.")

    def _head(
        self, table: SharedTable, snapshot: LoggedSnapshot, chosen: str, *, with_version: bool
    ) -> list[dict[str, Any]]:
        sizes = {"size": snapshot.size, "numFiles": len(snapshot.files)} if self._settings.announce_size else {}
        version = snapshot.version if with_version else None
        metadata = metadata_line(chosen, snapshot.metadata, table, version=version, **sizes)
        return [protocol_line(chosen, snapshot.protocol), metadata]

    # Commits

    def _stream(self, request: TableRequest) -> Answer:
        parameters, table = request.parameters, request.table
        _need_history(table)
        start = _number(parameters["startingVersion"], "startingVersion")
        self._check_start(table, start)
        end = self._end(request, start, parameters.get("endingVersion"))
        if end < start and parameters.get("endingVersion") is not None:
            raise bad_request(f"startingVersion({start}) must be smaller than or equal to endingVersion({end}).")
        kinds = ("metaData", "protocol") if parameters.get("includeHistoricalProtocol") is True else ("metaData",)
        return self._commits(request, start, end, self._logs.head(table, start), kinds, is_feed=False)

    def _changes(self, request: TableRequest) -> Answer:
        parameters, table = request.parameters, request.table
        latest = self._logs.head(table)
        if not table.history or not latest.metadata.is_enabled(CHANGE_DATA_FEED):
            raise bad_request(f"cdf is not enabled on table {table}")
        start = self._range_start(table, parameters)
        self._check_start(table, start)
        ending = parameters.get("endingVersion")
        if ending is not None and parameters.get("endingTimestamp") is not None:
            raise bad_request("Multiple ending arguments provided for CDF read")
        if parameters.get("endingTimestamp") is not None:
            moment_ms, may_be_late = millis(str(parameters["endingTimestamp"])), self._settings.end_after_newest
            ending = self._logs.times(table).at_or_before(moment_ms, may_be_late=may_be_late)
        end = self._end(request, start, ending)
        if end < start:
            raise bad_request(f"CDF range from start {start} to end {end} was invalid. End cannot be before start.")
        asked = {"metaData": "includeHistoricalMetadata", "protocol": "includeHistoricalProtocol"}
        kinds = [kind for kind, name in asked.items() if _flag(parameters.get(name))]
        head = self._logs.head(table, start) if "metaData" in kinds else latest
        return self._commits(request, start, end, head, kinds, is_feed=True)

    def _range_start(self, table: SharedTable, parameters: Mapping[str, Any]) -> int:
        version, timestamp = parameters.get("startingVersion"), parameters.get("startingTimestamp")
        if version is None and timestamp is None:
            raise bad_request("No startingVersion or startingTimestamp provided for CDF read.")
        if version is not None and timestamp is not None:
            raise bad_request("Multiple starting arguments provided for CDF read")
        if version is not None:
            return _number(version, "startingVersion")
        times, moment_ms = self._logs.times(table), millis(str(timestamp))
        if self._settings.engine == "reference":
            check_feed_start(times, moment_ms)
        return times.at_or_after(moment_ms)

    def _end(self, request: TableRequest, start: int, asked: Any) -> int:
        token = self._pages.read_token(request)
        if token is not None:
            return int(token["end"])
        newest = self._logs.latest(request.table)
        if start > newest:
            raise bad_request(
                f"Provided start version({start}) for reading change data is invalid. "
                f"Start version cannot be greater than the latest version of the table({newest})."
            )
        return newest if asked is None else min(newest, _number(asked, "endingVersion"))

    def _commits(
        self, request: TableRequest, start: int, end: int, head: Head, kinds: Collection[str], *, is_feed: bool
    ) -> Answer:
        """The files of a range, and the actions of the kinds ``kinds`` between them, that set what holds from then on."""
        if self._settings.engine == "reference":
            check_old_engine(self._logs.head(request.table).protocol)
        items: list[FileAction | dict[str, Any]] = []
        seen: list[tuple[Protocol, Metadata]] = [(head.protocol, head.metadata)]
        is_recorded = self._logs.head(request.table, start).metadata.is_enabled(CHANGE_DATA_FEED)
        history: list[tuple[int, str, Any]] = []
        for commit in self._logs.commits(request.table, start, end):
            for kind, action in _heads(commit):
                protocol, current = seen[-1]
                seen.append((action, current) if isinstance(action, Protocol) else (protocol, action))
                is_recorded = action.is_enabled(CHANGE_DATA_FEED) if isinstance(action, Metadata) else is_recorded
                if commit.version > start and kind in kinds:
                    history.append((len(items), kind, (commit.version, action)))
            if is_feed and not is_recorded:
                raise bad_request(
                    f"Error getting change data for range [{start}, {end}] as change data was not recorded "
                    f"for version [{commit.version}]"
                )
            items += _files(commit, request.table, is_feed=is_feed)
        formats = [choose_format(request, self._settings, p, m, items) for p, m in seen]
        chosen = "delta" if "delta" in formats else "parquet"
        for position, kind, (version, action) in reversed(history):
            if kind == "metaData":
                items.insert(position, metadata_line(chosen, action, request.table, version=version))
            elif chosen == "delta":
                items.insert(position, protocol_line(chosen, action, version))
        has_metadata = "metaData" in kinds
        stamped = head.version if has_metadata and is_feed else start
        lines = [
            protocol_line(chosen, head.protocol, stamped if "protocol" in kinds and chosen == "delta" else None),
            metadata_line(chosen, head.metadata, request.table, version=stamped if has_metadata else None),
        ]
        return Answer(start, chosen, lines, items, False, None, {"end": end})


def _heads(commit: LoggedCommit) -> Iterator[tuple[str, Protocol | Metadata]]:
    for action in commit.actions:
        if "protocol" in action:
            yield "protocol", protocol_from(action["protocol"], f"commit {commit.version}")
        if "metaData" in action:
            yield "metaData", metadata_from(action["metaData"], f"commit {commit.version}")


def _files(commit: LoggedCommit, table: SharedTable, *, is_feed: bool) -> list[FileAction]:
    """What a commit changed: its change files if it has any (for a feed), else its adds and removes."""
    if is_feed:
        change_files = [located("cdc", a["cdc"], table, commit) for a in commit.actions if "cdc" in a]
        if change_files or any(changed_no_row(a["commitInfo"]) for a in commit.actions if "commitInfo" in a):
            return change_files
    return [
        located(kind, action[kind], table, commit)
        for action in commit.actions
        for kind in ("add", "remove")
        if kind in action and action[kind].get("dataChange", True)
    ]


def _need_history(table: SharedTable) -> None:
    if not table.history:
        raise bad_request(
            "Reading table by version or timestamp is not supported because history sharing is not enabled "
            f"on table: {table}"
        )


def _number(value: Any, name: str) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        raise bad_request(f"{name} is not a valid number.") from None
    if number < 0:
        raise bad_request("table version cannot be negative." if name == "version" else f"{name} cannot be negative.")
    return number


def _flag(value: Any) -> bool:
    return value is True or str(value).lower() == "true"


def millis(text: str) -> int:
    """Milliseconds since the epoch of an ISO-8601 timestamp with its offset ("Timestamp Format")."""
    try:
        micros = timestamp_micros(text, "UTC")
    except ValueError:
        raise bad_request(f"Invalid timestamp: {text}; expected ISO 8601 such as 2022-01-01T00:00:00Z") from None
    if not _OFFSET.search(text):
        raise bad_request(f"Invalid timestamp: {text}; it has no offset from UTC")
    return micros // 1000


#: What sends the query of a snapshot to Delta Standalone.
_OLD_ENGINE = ("maxFiles", "predicateHints", "pageToken")
_STANDALONE_READER = 1


def check_old_engine(protocol: Protocol) -> None:
    """Refuse a table that Delta Standalone cannot read, with 400, or 500 for a v2 checkpoint, as the reference server does."""
    if "v2Checkpoint" in (protocol.reader_features or ()):
        raise Refusal(500, "INTERNAL_ERROR", "")
    if protocol.min_reader_version > _STANDALONE_READER:
        asked = f"({protocol.min_reader_version},{protocol.min_writer_version})"
        raise Refusal(
            400,
            "UNSUPPORTED_OPERATION",
            f"Delta protocol version {asked} is too new for this version of Delta Standalone Reader/Writer (1,2). "
            f"Please upgrade to a newer release.",
        )


def version_after(times: CommitTimes, newest: int, timestamp_ms: int) -> int:
    """What ``/version?startingTimestamp`` names: the version that follows the last one at or before the moment.

    Raises:
        Refusal: No version follows.
    """
    if timestamp_ms < times.time(times.first()):
        return 0
    if timestamp_ms > times.time(newest):
        raise Refusal(
            400,
            "MALFORMED_REQUEST",
            f"The provided timestamp {timestamp_ms} ms ({show_millis(timestamp_ms)}) is after the latest available version "
            f"{newest}. Please use a timestamp less than or equal to {times.time(newest)} ms.",
        )
    version = times.at_or_before(timestamp_ms)
    if version == newest:
        raise bad_request("Not a valid starting timestamp")
    return version + 1


def check_feed_start(times: CommitTimes, timestamp_ms: int) -> None:
    """Refuse a change feed that starts before the first commit, as the reference server does."""
    first = times.first()
    if timestamp_ms < times.time(first):
        raise bad_request(
            f"The provided timestamp ({show_millis(timestamp_ms)}) is before the earliest version available to this table "
            f"({first}). Please use a timestamp greater than or equal to {show_millis(times.time(first))}."
        )
