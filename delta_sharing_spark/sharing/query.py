"""Asks queries in the shape that a server answers, and reads their answers page by page."""

from __future__ import annotations

import itertools
import logging
import re
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from delta_sharing_spark.errors import RequestRefusedError, ResponseError, ServerError, UnavailableError
from delta_sharing_spark.network.http import json_object
from delta_sharing_spark.network.parallel_calls import DaemonPool, result_of
from delta_sharing_spark.network.process_cache import ProcessCache
from delta_sharing_spark.schema.features import reader_features_header
from delta_sharing_spark.schema.table_records import Metadata, Protocol
from delta_sharing_spark.sharing.queries import ChangesQuery, Query
from delta_sharing_spark.sharing.response import FileBlocks, Page
from delta_sharing_spark.sharing.transport import is_about_versions
from delta_sharing_spark.sharing.wire_lines import FileBlock
from delta_sharing_spark.sharing.wire_records import (
    LONGEST_PAGE_TOKEN,
    MOST_EMPTY_PAGES,
    MOST_PAGES,
    TableSnapshotHead,
)


class QueryResponse:
    """A query's answer: its head, and its files, whose further pages are requested as they are iterated.

    Attributes:
        head: Version, response format, protocol and metadata.
        file_id_hash: The hash that the server states it used for ids; None if it states none.
        refresh_token, min_url_expiration: Those of the pages read so far (milliseconds since the epoch, the earliest).
        historical_metadata, historical_protocols: ``(version, value)`` of the pages read so far.
        received_at: When the first page had arrived, in seconds since the epoch.
        query: The query that was answered: another than the one asked for, if that was refused.
        fallback: Why another query was answered, if so.
    """

    def __init__(
        self,
        table: str,
        formats: Sequence[str],
        first: Page,
        next_page: Callable[[str | None], Page],
        query: Query | ChangesQuery,
        fallback: str | None = None,
    ) -> None:
        head = first.head(table, formats)
        self.head: TableSnapshotHead = head
        self.query = query
        self.fallback = fallback
        self.file_id_hash = first.file_id_hash if query.file_id_hash else None
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
        #: What counts the files of the whole answer.
        self._counts = _counts(query, first)
        self._files = self._bytes = 0
        self._note(first)

    def blocks(self) -> Iterator[FileBlock]:
        """All files in blocks of columns, once. Each page is complete before its first block is handed on. Raises as ``pages``."""
        return itertools.chain.from_iterable(self.pages())

    def pages(self) -> Iterator[Any]:
        """The files page by page, each page in its sink; otherwise as ``blocks``."""
        page, self._first = self._first, None
        if page is None:
            raise AssertionError("the files of a response are read once")
        tokens: set[str] = set()
        token: str | None = None
        empty = 0
        while True:
            if not page.end.next_page_token and not page.is_cut:
                page = self._complete(page, token)
            self._files, self._bytes = self._files + page.files, self._bytes + page.size
            empty = 0 if page.files else empty + 1
            blocks, page.blocks = page.blocks, FileBlocks()
            yield blocks
            token = page.end.next_page_token
            if not token:
                return
            if token in tokens:
                raise self._broken("a page token came twice")
            tokens.add(token)
            if empty >= MOST_EMPTY_PAGES or len(tokens) >= MOST_PAGES or len(token) > LONGEST_PAGE_TOKEN:
                raise self._broken(f"they go on after {len(tokens)} pages, {empty} of them without files at the end")
            page = self._next_page(token)
            self._check(page)
            self._note(page)

    def _complete(self, last: Page, token: str | None) -> Page:
        """The last page, which is asked for once more where nothing marks its end and the table has more files."""
        missing = self._missing(last)
        if last.has_end:
            if missing:
                _warn_once(
                    self._table,
                    f"the server marks the end of the files of {self._table} after {missing}; its count is not believed",
                )
        elif missing:
            last = self._next_page(token)
            self._check(last)
            if not last.has_end and (missing := self._missing(last)):
                raise ResponseError(
                    f"the query of {self._table}: the server's answer ended after {missing}, and so it did when it was "
                    f"asked again; try again, with maxFilesPerRequest (say 10000) if the table has many files, and ask the "
                    f"provider if it goes on"
                )
        elif self._counts == (None, None) and not last.has_length:
            _warn_once(
                self._table,
                f"nothing tells where the server's answer for {self._table} ends (no endStreamAction, no numFiles, no "
                f"Content-Length): should it break off after a line, nobody notices; ask the provider for a newer server",
            )
        return last

    def _missing(self, last: Page) -> str | None:
        """How much came of what the table has, by its metadata; None where that is all, or nothing tells."""
        files, size = self._counts
        came = self._files + last.files
        if files is not None:
            return f"{came} of {files} files" if came < files else None
        came = self._bytes + last.size
        return f"{came} of {size} bytes of files" if size is not None and came < size else None

    def _check(self, page: Page) -> None:
        """Compare a later page with the first; it need not repeat the head.

        A versioned protocol or metadata line at its top is history where its version is not the head's.
        """
        head, first = self.head, self._first_versions
        if page.query_status is not None or not page.has_lines:
            raise self._broken("a page is empty")
        if page.version is not None and head.version is not None and page.version != head.version:
            raise self._broken(f"a page is of version {page.version}, the first of {head.version}")
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
            elif metadata.shape != head.metadata.shape:
                raise self._broken("a page has another schema")

    def _note(self, page: Page) -> None:
        self.refresh_token = page.end.refresh_token or self.refresh_token
        ends = [t for t in (self.min_url_expiration, page.end.min_url_expiration_timestamp) if t]
        self.min_url_expiration = min(ends) if ends else None
        self.historical_metadata += page.historical_metadata
        self.historical_protocols += page.historical_protocols

    def _broken(self, why: str) -> ResponseError:
        return ResponseError(f"the pages of {self._table} do not fit together: {why}; load the table again")


_log = logging.getLogger(__name__)
_warned: ProcessCache[str, bool] = ProcessCache(1024)


def _warn_once(table: str, message: str) -> None:
    if not _warned.get(table):
        _warned.put(table, True)
        _log.warning(message)


def _counts(query: Query | ChangesQuery, first: Page) -> tuple[int | None, int | None]:
    """How many files an answer must have, and of how many bytes; None where nothing tells."""
    metadata = first.metadata
    if metadata is None or not isinstance(query, Query) or not query.asks_for_all_files:
        return None, None
    if None not in (first.version, metadata.version) and first.version != metadata.version:
        return None, None  # the newest version's, of a server that describes no other
    return metadata.num_files, metadata.size


#: The page size of the paged shape; the reference server's own bound.
PAGE_SIZE = 10_000
#: Statuses that can be about a query's shape: bad, too large an answer, unprocessable, not implemented.
_ABOUT_SHAPE = (400, 413, 422, 501)
_MOST_TABLES = 1024


@dataclass(frozen=True, slots=True)
class Fallback:
    """The shape that a server answered, with a page size or without, and its ``reason`` for refusing the other one."""

    is_paged: bool
    reason: str

    def __str__(self) -> str:
        shape = f"with pages of {PAGE_SIZE} files" if self.is_paged else "without a page size"
        return f"{shape} and without hints, because the server refuses the usual query: {self.reason}"


#: The shapes that were answered, by endpoint and the table's name in lower case.
FALLBACKS: ProcessCache[tuple[str, str], Fallback] = ProcessCache(_MOST_TABLES)


def other_shape(query: Query) -> Query | None:
    """The query for the same snapshot in the other shape; None where a query has only one.

    A range of versions has one, and so has a query that renews by a token: its refusal is about the token.
    """
    if query.starting_version is not None or query.refresh_token is not None:
        return None
    is_paged = query.max_files is None and not query.predicate_hints
    return replace(
        query,
        max_files=PAGE_SIZE if is_paged else None,
        predicate_hints=(),
        json_predicate_hints=None,
        limit_hint=None,
        idempotency_key=str(uuid.uuid4()) if query.idempotency_key else None,
    )


def may_answer_other_shape(refusal: ServerError) -> bool:
    """Whether a refusal, or a 500 that came each time, may be about the query's shape; one about versions is not."""
    if is_about_versions(refusal):
        return False
    if isinstance(refusal, UnavailableError):
        return refusal.permanent
    return isinstance(refusal, RequestRefusedError) and refusal.status in _ABOUT_SHAPE


_T = TypeVar("_T")
#: By endpoint, the features that the server does not know.
_unknown: ProcessCache[str, frozenset[str]] = ProcessCache(256)


def ask_with_features(endpoint: str, ask: Callable[[Sequence[str]], _T]) -> _T:
    """Ask with the reader features that the server may know.

    Args:
        ask: Sends the request with these features.

    Raises:
        RequestRefusedError: The server refuses it also without the features that it named, or asks for one of them.
    """
    unknown = _unknown.get(endpoint) or frozenset()
    before = unknown
    first: RequestRefusedError | None = None
    while True:
        features = [name for name in reader_features_header().split(",") if name not in unknown]
        try:
            answer = ask(features)
        except RequestRefusedError as refusal:
            named = _first_named(refusal, features)
            if named is None:
                needs_it = first is not None and _first_named(refusal, sorted(unknown - before)) is not None
                raise (first if needs_it and first is not None else refusal) from None
            first = first or refusal
            unknown |= {named}
            continue
        if unknown != before:
            _unknown.put(endpoint, unknown)
        return answer


def _first_named(refusal: RequestRefusedError, features: Sequence[str]) -> str | None:
    """The first of some features that a refusal names; None if it is about something else."""
    if refusal.status != 400 or not features:
        return None
    names = "|".join(map(re.escape, sorted(features, key=len, reverse=True)))
    match = re.search(rf"(?i)(?<![\w-])(?:{names})(?![\w-])", refusal.server_message or "")
    return match and match[0].lower()


#: Bytes of a page that is held whole; a longer one is parsed as it arrives, and nothing is asked for ahead.
_HELD_BYTES = 32 << 20
#: Of a last line that is looked at before the lines above it.
_LONGEST_END = 64 << 10

#: The headers of a page, and its body.
HeldPage: TypeAlias = "tuple[Mapping[str, str], list[bytes]]"


class PagesAhead:
    """The page that is being received, of one query; one at a time, which is dropped if another is asked for. A request under way
    is broken off when nothing holds this any more."""

    def __init__(self) -> None:
        self._threads = DaemonPool(1)
        weakref.finalize(self, self._threads.close).atexit = False
        self._begun: set[str] = set()
        self._coming: tuple[str, Future[HeldPage | None]] | None = None

    def take(self, token: str) -> HeldPage | None:
        """Wait for the page of a token; None if it was not begun, or is too long to be held. Raises as ``receive`` did."""
        coming, self._coming = self._coming, None
        return None if coming is None or coming[0] != token else result_of(coming[1])

    def begin(self, chunks: Iterable[bytes], receive: Callable[[str], HeldPage | None]) -> Iterator[bytes]:
        """The chunks of a page, once ``receive`` was begun with the token in its last line."""
        arriving = iter(chunks)
        body, is_whole = held(arriving)
        token = _next_token(body) if is_whole else None
        if token is not None and token not in self._begun:
            self._begun.add(token)
            self._coming = token, self._threads.submit(receive, token)
        return itertools.chain(body, arriving)


def held(chunks: Iterable[bytes]) -> tuple[list[bytes], bool]:
    """The first chunks of a page, as many as are held, and whether they are all."""
    body, size = [], 0
    for chunk in chunks:
        body.append(chunk)
        size += len(chunk)
        if size > _HELD_BYTES:
            return body, False
    return body, True


def _next_token(body: list[bytes]) -> str | None:
    """The token in the last line, if it tells of a next page; the parser says what is wrong with it."""
    end = b""
    for chunk in reversed(body):
        end = chunk + end
        if len(end) > _LONGEST_END or b"\n" in end.rstrip():
            break
    last = end.rstrip().rpartition(b"\n")[2]
    if len(last) > _LONGEST_END or b"nextPageToken" not in last:
        return None
    tree = json_object(last) or {}
    end = tree.get("endStreamAction", tree)
    token = end.get("nextPageToken") if isinstance(end, dict) else None
    return token if isinstance(token, str) and token else None
