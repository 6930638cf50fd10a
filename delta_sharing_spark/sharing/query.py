"""Builds the queries of the protocol, and reads their answers page by page."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from delta_sharing_spark.errors import ResponseError
from delta_sharing_spark.sharing.catalog import LONGEST_PAGE_TOKEN, MOST_EMPTY_PAGES, MOST_PAGES
from delta_sharing_spark.sharing.response import Answer, Page
from delta_sharing_spark.sharing.wire_records import FileRecord, Metadata, Protocol, TableSnapshotHead


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
    """A query's answer: its head, and its file records, whose further pages are requested as they are iterated.

    Attributes:
        head: Version, response format, protocol and metadata.
        file_id_hash: The hash that the server states it used for ids; None if it states none.
        refresh_token, min_url_expiration: Those of the pages read so far (milliseconds since the epoch, the earliest).
        historical_metadata, historical_protocols: ``(version, value)`` of the pages read so far.
        received_at: When the first page had arrived, in seconds since the epoch.
        query: The query that was answered: another than the one asked for, if that was refused.
        fallback: Why another query was answered, if so (``sharing.request_shape``).
    """

    def __init__(
        self,
        table: str,
        formats: Sequence[str],
        first_page: Answer,
        next_page: Callable[[str], Answer],
        query: Query | ChangesQuery,
        fallback: str | None = None,
    ) -> None:
        first, head = first_page.page, first_page.head(table, formats)
        self.head: TableSnapshotHead = head
        self.query = query
        self.fallback = fallback
        self.file_id_hash = first_page.file_id_hash if query.file_id_hash else None
        self.received_at = time.time()
        self.refresh_token: str | None = None
        self.min_url_expiration: int | None = None
        self.historical_metadata: list[tuple[int, Metadata]] = []
        self.historical_protocols: list[tuple[int, Protocol]] = []
        self._table = table
        self._first: Page | None = first
        self._next_page = next_page
        self._first_versions = {None, head.version, first.protocol_version}
        self._first_versions.add(first.metadata.version if first.metadata else None)
        self._note(first)

    def records(self) -> Iterator[FileRecord]:
        """All file records, once. Each page is complete before its first record is handed on.

        Raises:
            ResponseError: A page of another version, format or table, or a repeated page token.
        """
        for records in self.pages():
            yield from records

    def pages(self) -> Iterator[Any]:
        """The records page by page, each page in its sink; otherwise as ``records``."""
        page, self._first = self._first, None
        if page is None:
            raise AssertionError("the records of a response are read once")
        seen: set[str] = set()
        empty = 0
        while True:
            empty = 0 if page.files else empty + 1
            records, page.records = page.records, []
            yield records
            token = page.end.next_page_token
            if not token:
                return
            if token in seen:
                raise self._broken("a page token came twice")
            seen.add(token)
            if empty >= MOST_EMPTY_PAGES or len(seen) >= MOST_PAGES or len(token) > LONGEST_PAGE_TOKEN:
                raise self._broken(f"they go on after {len(seen)} pages, {empty} of them without files at the end")
            answer = self._next_page(token)
            page = answer.page
            self._check(page, answer.version)
            self._note(page)

    def _check(self, page: Page, version: int | None) -> None:
        """Compare a later page with the first; it need not repeat the head.

        A versioned protocol or metadata line at its top is history where its version is not the head's.
        """
        head, first = self.head, self._first_versions
        if page.query_status is not None or not page.lines:
            raise self._broken("a page is empty")
        if version is not None and head.version is not None and version != head.version:
            raise self._broken(f"a page is of version {version}, the first of {head.version}")
        protocol, metadata = page.protocol, page.metadata
        if protocol is not None:
            if page.response_format != head.response_format:
                raise self._broken("a page is in another response format")
            if page.protocol_version not in first:
                assert page.protocol_version is not None
                page.historical_protocols.insert(0, (page.protocol_version, protocol))
            elif protocol != head.protocol:
                raise self._broken("a page has another protocol")
        if metadata is not None:
            if metadata.id != head.metadata.id:
                raise self._broken("a page is of another table")
            if metadata.version not in first:
                assert metadata.version is not None
                page.historical_metadata.insert(0, (metadata.version, metadata))
            elif _shape(metadata) != _shape(head.metadata):
                raise self._broken("a page has another schema")

    def _note(self, page: Page) -> None:
        self.refresh_token = page.end.refresh_token or self.refresh_token
        ends = [t for t in (self.min_url_expiration, page.end.min_url_expiration_timestamp) if t]
        self.min_url_expiration = min(ends) if ends else None
        self.historical_metadata += page.historical_metadata
        self.historical_protocols += page.historical_protocols

    def _broken(self, why: str) -> ResponseError:
        return ResponseError(f"the pages of {self._table} do not fit together: {why}; load the table again")


def _shape(metadata: Metadata) -> tuple[object, ...]:
    """The parts of metadata that rows depend on."""
    return metadata.schema_string, metadata.partition_columns, metadata.provider, metadata.configuration
