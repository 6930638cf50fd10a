"""Queries as the protocol sends them, and their answers page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from delta_sharing_spark.errors import ResponseError
from delta_sharing_spark.sharing.actions import FileRecord, Metadata, Protocol, TableSnapshotHead
from delta_sharing_spark.sharing.ndjson import Page


@dataclass(frozen=True, slots=True)
class Query:
    """The body of a table query; fields that are None are not sent. Timestamps are ISO-8601 with zone."""

    version: int | None = None
    timestamp: str | None = None
    starting_version: int | None = None
    ending_version: int | None = None
    predicate_hints: tuple[str, ...] = ()
    json_predicate_hints: str | None = None
    limit_hint: int | None = None
    max_files: int | None = None
    include_refresh_token: bool = False
    refresh_token: str | None = field(default=None, repr=False)
    include_historical_metadata: bool = False
    include_historical_protocol: bool = False
    file_id_hash: str | None = None
    idempotency_key: str | None = None

    def body(self) -> dict[str, Any]:
        """The JSON body, without paging."""
        fields: dict[str, Any] = {
            "predicateHints": list(self.predicate_hints) or None,
            "jsonPredicateHints": self.json_predicate_hints,
            "limitHint": self.limit_hint,
            "version": self.version,
            "timestamp": self.timestamp,
            "startingVersion": self.starting_version,
            "endingVersion": self.ending_version,
            "maxFiles": self.max_files,
            "includeRefreshToken": self.include_refresh_token or None,
            "refreshToken": self.refresh_token,
            "includeHistoricalMetadata": self.include_historical_metadata or None,
            "includeHistoricalProtocol": self.include_historical_protocol or None,
            "idempotencyKey": self.idempotency_key,
        }
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True, slots=True)
class ChangesQuery:
    """The parameters of a change data feed query; both ends are inclusive."""

    starting_version: int | None = None
    starting_timestamp: str | None = None
    ending_version: int | None = None
    ending_timestamp: str | None = None
    max_files: int | None = None
    include_historical_metadata: bool = False
    include_historical_protocol: bool = False
    file_id_hash: str | None = None

    def params(self) -> dict[str, str]:
        """The URL's parameters, without paging."""
        fields = {
            "startingVersion": self.starting_version,
            "startingTimestamp": self.starting_timestamp,
            "endingVersion": self.ending_version,
            "endingTimestamp": self.ending_timestamp,
            "maxFiles": self.max_files,
            "includeHistoricalMetadata": "true" if self.include_historical_metadata else None,
            "includeHistoricalProtocol": "true" if self.include_historical_protocol else None,
        }
        return {name: str(value) for name, value in fields.items() if value is not None}


class QueryResponse:
    """A query's answer: its head at once, its file records page by page as they are asked for.

    Attributes:
        head: Version, response format, protocol and metadata.
        file_id_hash: The hash the server says it used for ids; None if it does not echo the one asked for.
        refresh_token, min_url_expiration: Of the pages read so far (milliseconds since the epoch, the earliest).
        historical_metadata, historical_protocols: ``(version, value)`` of the pages read so far.
    """

    def __init__(
        self,
        head: TableSnapshotHead,
        table: str,
        first: Page,
        fetch: Callable[[str], tuple[Page, int | None]],
        file_id_hash: str | None = None,
    ) -> None:
        self.head = head
        self.file_id_hash = file_id_hash
        self.refresh_token: str | None = None
        self.min_url_expiration: int | None = None
        self.historical_metadata: list[tuple[int, Metadata]] = []
        self.historical_protocols: list[tuple[int, Protocol]] = []
        self._table = table
        self._first: Page | None = first
        self._fetch = fetch
        self._note(first)

    def records(self) -> Iterator[FileRecord]:
        """All file records, once. Each page is complete before its first record is handed on.

        Raises:
            ResponseError: A page of another version, format or table, or a repeated page token.
        """
        page, self._first = self._first, None
        if page is None:
            raise AssertionError("the records of a response are read once")
        seen: set[str] = set()
        while True:
            records, page.records = page.records, []
            yield from records
            token = page.end.next_page_token
            if not token:
                return
            if token in seen:
                raise self._broken("a page token came twice")
            seen.add(token)
            page, version = self._fetch(token)
            self._check(page, version)
            self._note(page)

    def _check(self, page: Page, version: int | None) -> None:
        head = self.head
        if version is not None and head.version is not None and version != head.version:
            raise self._broken(f"a page is of version {version}, the first of {head.version}")
        if page.protocol is not None and page.response_format != head.response_format:
            raise self._broken("a page is in another response format")
        if page.metadata is not None and page.metadata.id != head.metadata.id:
            raise self._broken("a page is of another table")

    def _note(self, page: Page) -> None:
        self.refresh_token = page.end.refresh_token or self.refresh_token
        ends = [t for t in (self.min_url_expiration, page.end.min_url_expiration_timestamp) if t]
        self.min_url_expiration = min(ends) if ends else None
        self.historical_metadata += page.historical_metadata
        self.historical_protocols += page.historical_protocols

    def _broken(self, why: str) -> ResponseError:
        return ResponseError(f"the pages of {self._table} do not fit together: {why}; load the table again")
