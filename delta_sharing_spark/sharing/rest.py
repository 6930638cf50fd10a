"""Calls the endpoints of the sharing protocol, one method each (protocol, "REST APIs")."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import islice
from typing import Any, TypeAlias, TypeVar

import requests

from delta_sharing_spark.errors import (
    DeltaSharingError,
    NotFoundError,
    RequestRefusedError,
    ResponseError,
    ServerError,
    UnauthenticatedError,
)
from delta_sharing_spark.network.bodies import declared_length
from delta_sharing_spark.network.http import NetworkSettings, json_object
from delta_sharing_spark.network.process_cache import ProcessCache
from delta_sharing_spark.options.values import nearest
from delta_sharing_spark.redaction import without_secrets
from delta_sharing_spark.schema.instants import parse_instant, to_iso
from delta_sharing_spark.sharing.address import TableName, segment, shares_path
from delta_sharing_spark.sharing.auth import authorization, carried_end, is_renewable, secrets_of
from delta_sharing_spark.sharing.profile import Profile
from delta_sharing_spark.sharing.queries import ChangesQuery, Query
from delta_sharing_spark.sharing.query import (
    FALLBACKS,
    Fallback,
    HeldPage,
    PagesAhead,
    QueryResponse,
    ask_with_features,
    held,
    may_answer_other_shape,
    other_shape,
)
from delta_sharing_spark.sharing.response import (
    CAPABILITIES,
    FileBlocks,
    FileSink,
    Page,
    await_query,
    expects_end_action,
    header_version,
    line_blocks,
    parse_page,
)
from delta_sharing_spark.sharing.transport import (
    LARGEST_ANSWER,
    NOT_THERE,
    RequestPurpose,
    body_chunks,
    check_endpoint,
    read_bytes,
    send,
    unreadable_answer,
    with_retries,
)
from delta_sharing_spark.sharing.wire_records import (
    Schema,
    Share,
    Table,
    TableSnapshotHead,
    TemporaryCredentials,
    broken,
    no_server,
    parse_credentials,
    parse_item,
    walk_pages,
)

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
#: A kind of name, the one asked for, the names that there are, and what holds them.
NamesAt: TypeAlias = tuple[str, str, Callable[[], Iterator[str]], str]
#: Statuses of an endpoint that a server does not have.
UNKNOWN_CALL = (404, 405, 501)
#: The reference server refuses these on later pages.
_FIRST_PAGE_ONLY = ("includeRefreshToken", "refreshToken")
#: Both, the delta format first: it carries every feature.
FORMATS = ("delta", "parquet")
#: How a server refuses a response format that it does not know.
_ABOUT_FORMAT = re.compile(r"(?i)response[\s_-]?format")
#: Names looked at, which is one page of a listing, and names shown where none is near.
_LOOKED_AT, _SHOWN = 500, 5
#: Characters of a refusal's message that are kept.
_QUOTED = 300
#: Seconds for an answer, and for tries: the error is known already, and this only explains it.
_TIMEOUT = 5.0

#: Endpoints without Get Table.
_no_get_table: ProcessCache[str, bool] = ProcessCache(256)


@dataclass(frozen=True, slots=True)
class SharingRest:
    """The endpoints of one server, as one recipient. Cheap to make and to pickle: connections belong to the process.

    ``server`` is what errors call it.
    """

    profile: Profile
    settings: NetworkSettings = field(default_factory=NetworkSettings)
    server: str = "sharing server"

    def list_shares(self) -> Iterator[Share]:
        """All shares, page by page."""
        return self.listed("/shares", "the list of shares", partial(parse_item, Share))

    def list_schemas(self, share: str) -> Iterator[Schema]:
        """All schemas of a share."""
        parse = partial(parse_item, Schema, share=share)
        return self.listed(f"{shares_path(share)}/schemas", f"the schemas of {share!r}", parse)

    def list_tables(self, share: str, schema: str) -> Iterator[Table]:
        """All tables of a schema."""
        parse = partial(parse_item, Table, share=share, schema=schema)
        return self.listed(f"{shares_path(share, schema)}/tables", f"the tables of {share}.{schema}", parse)

    def listed(self, path: str, what: str, parse: Callable[[Any], _T]) -> Iterator[_T]:
        """All items of a listing, page by page; ``what`` names it in errors."""
        with self._quoting_no_token():
            yield from walk_pages(lambda params: self.ask_json("GET", path, what, params=params), parse)

    def list_all_tables(self, share: str) -> Iterator[Table]:
        """All tables of a share; schema by schema where the server lacks the endpoint."""
        parse = partial(parse_item, Table, share=share, schema="")
        pages = self.listed(f"{shares_path(share)}/all-tables", f"the tables of {share!r}", parse)
        yield from unless_unknown(
            pages, lambda _: (t for schema in self.list_schemas(share) for t in self.list_tables(share, schema.name))
        )

    def table_version(self, table: TableName, starting_timestamp: str | None = None) -> int:
        """The table's version; with a timestamp (ISO-8601 with zone, whole milliseconds) the earliest at or after it.

        Raises:
            NotFoundError: No such table, or no version after the timestamp.
            RequestRefusedError: The server does not share the table's history.
            ResponseError: The answer names no version.
        """
        refusal: RequestRefusedError | NotFoundError | None = None
        version: int | None = None
        try:
            version = self.named_version(table, starting_timestamp)
        except _REFUSALS as error:
            refusal = error
        # A server may skip a version that was committed at that very moment; the millisecond before shows it.
        moment = parse_instant(starting_timestamp) if starting_timestamp is not None else None
        before = None if moment is None else to_iso(moment - _TICK)
        if before is not None and version != 0:
            earlier = _unless_refused(lambda: self.named_version(table, before))
            if earlier is not None and (version is None or earlier < version):
                travelled = Query(timestamp=before, limit_hint=1)
                newest = _unless_refused(lambda: self.query(table, travelled).head.version)
                if newest is None or newest < earlier:  # where the server does not tell, more is read
                    return earlier
        if refusal is not None:
            raise refusal
        assert version is not None
        return version

    def named_version(self, table: TableName, starting_timestamp: str | None = None) -> int:
        """The version that the endpoint names, in one request. Raises as ``table_version``."""
        params = {"startingTimestamp": starting_timestamp} if starting_timestamp else {}
        what, rest = f"the version of {table}", self._of(table)

        def ask(method: str, path: str) -> int:
            with rest._send(method, path, what, params=params) as response, self._quoting_no_token():
                version = header_version(response.headers, str(table))
            if version is None:
                raise broken(f"{what}: the answer has no Delta-Table-Version header")
            return version

        try:
            return with_retries(rest.settings, lambda: ask("GET", f"{table.path}/version"))
        except (NotFoundError, RequestRefusedError) as unknown:
            if unknown.status not in UNKNOWN_CALL:
                raise
            try:
                return with_retries(rest.settings, lambda: ask("HEAD", table.path))
            except (NotFoundError, RequestRefusedError, ResponseError):
                if params or not isinstance(unknown, NotFoundError):
                    raise unknown from None
                raise self.with_near_names(unknown, table.share, table.schema, table.table) from None

    def metadata(
        self,
        table: TableName,
        *,
        version: int | None = None,
        timestamp: str | None = None,
        formats: Sequence[str] = FORMATS,
    ) -> TableSnapshotHead:
        """Protocol and metadata of a table, at its newest version or an earlier one.

        Raises:
            NotFoundError: No such table; with the nearest names that the share has.
            ResponseError: A line is missing or malformed.
            UnsupportedFeatureError: The provider is not parquet.
        """
        asked = {"version": version, "timestamp": timestamp}
        params = {name: str(value) for name, value in asked.items() if value is not None}
        try:
            answer = self._of(table)._page("GET", f"{table.path}/metadata", table, formats, params)
        except NotFoundError as error:
            if params:
                raise  # it may be the version that there is not
            raise self.with_near_names(error, table.share, table.schema, table.table) from None
        return answer.head(str(table), formats)

    def with_near_names(self, error: NotFoundError, share: str, schema: str = "", table: str = "") -> NotFoundError:
        """The same error with the nearest names of the share added, if one page of one listing has any; else unchanged.

        Args:
            share, schema, table: The names asked for; without a table, or a schema, those whose content was to be listed.
        """
        brief = replace(self, settings=brief_settings(self.settings))
        listings: tuple[NamesAt, ...] = (
            ("table", table, lambda: (t.name for t in brief.list_tables(share, schema)), f"{share}.{schema}"),
            ("schema", schema, lambda: (s.name for s in brief.list_schemas(share)), share),
            ("share", share, lambda: (s.name for s in brief.list_shares()), "the profile"),
        )

        def hint_of(kind: str, hint: str) -> str:
            is_volume = kind == "table" and brief._is_volume(share, schema, table)
            return f"it is a volume: client.volume('{share}.{schema}.{table}')" if is_volume else hint

        return with_near_name(error, listings, hint_of)

    def _is_volume(self, share: str, schema: str, name: str) -> bool:
        path = f"{shares_path(share, schema)}/volumes/{segment(name)}"
        try:
            return bool(self.ask_json("GET", path, "the description of a volume"))
        except DeltaSharingError:
            return False  # the error is known already, and this only explains it

    def query(
        self,
        table: TableName,
        query: Query,
        *,
        formats: Sequence[str] = FORMATS,
        sink: Callable[[], FileSink] = FileBlocks,
        reads_all: bool = False,
    ) -> QueryResponse:
        """The files of a snapshot, or of a range of versions. The first page is fetched before this returns.

        A query that the server refuses is sent once more in its other shape.

        Args:
            sink: Makes the sink of a page's records (``QueryResponse.pages``).
            reads_all: Whether all pages will be read, so that the next one may be received while one is parsed.

        Raises:
            ServerError: The server refuses the query as it was asked for.
        """

        def ask(asked: Query, fallback: str | None) -> QueryResponse:
            return self._query(table, asked, formats, sink, reads_all, fallback)

        key = self.profile.endpoint, str(table).lower()
        fallback_of_server = FALLBACKS.get(key)
        other = other_shape(query)
        if fallback_of_server is None or other is None or fallback_of_server.is_paged != (other.max_files is not None):
            first, second, shape = query, other, None
        else:
            first, second, shape = other, query, str(fallback_of_server)
        try:
            return ask(first, shape)
        except ServerError as refusal:
            if second is None or not may_answer_other_shape(refusal):
                raise
            why = refusal.server_message or f"HTTP {refusal.status}"
            fallback = Fallback(second.max_files is not None, why[:_QUOTED]) if second is other else None
            try:
                response = ask(second, None if fallback is None else str(fallback))
            except ServerError:
                raise refusal from None
            if fallback is None:
                FALLBACKS.forget(key)
            else:
                FALLBACKS.put(key, fallback)
                _log.info("%s was asked for %s", table, fallback)
            return response

    def _query(
        self,
        table: TableName,
        query: Query,
        formats: Sequence[str],
        sink: Callable[[], FileSink],
        reads_all: bool,
        fallback: str | None,
    ) -> QueryResponse:
        body = query.body()
        ahead, rest = PagesAhead(), self._of(table)

        def page(token: str | None = None) -> Page:
            # An answer that may be the only one is parsed as it arrives.
            pages = ahead if reads_all and (token is not None or query.max_files) else None
            path = f"{table.path}/query"
            return rest._page("POST", path, table, formats, body, token, query=query, sink=sink, ahead=pages)

        first = page()
        if first.query_status is None:
            return QueryResponse(str(table), formats, first, page, query, fallback)
        sizes = {"maxFiles": query.max_files} if query.max_files else {}

        def poll(query_id: str, token: str | None = None) -> Page:
            """One poll of an asynchronous query (protocol, "Get Query Info")."""
            path = f"{table.path}/queries/{segment(query_id)}"
            return rest._page("POST", path, table, formats, sizes, token, sink=sink)

        with self._quoting_no_token():
            query_id, first = await_query(self.settings, table, first.query_status, poll)
        return QueryResponse(str(table), formats, first, partial(poll, query_id), query, fallback)

    def changes(
        self,
        table: TableName,
        query: ChangesQuery,
        *,
        formats: Sequence[str] = FORMATS,
        sink: Callable[[], FileSink] = FileBlocks,
    ) -> QueryResponse:
        """The change files of a range of versions. The first page is fetched before this returns."""
        rest = self._of(table)

        def page(token: str | None = None) -> Page:
            path = f"{table.path}/changes"
            return rest._page("GET", path, table, formats, query.params(), token, query=query, sink=sink)

        return QueryResponse(str(table), formats, page(), page, query)

    def table(self, table: TableName) -> Table | None:
        """What Get Table tells of a table; None where the server has not that call, which is asked once of an endpoint.

        Raises:
            NotFoundError: No such table, or no such call: the two are alike.
        """
        if self.profile.endpoint in _no_get_table:
            return None
        try:
            item = self._of(table).ask_json("GET", table.path, f"the description of {table}")
            return parse_item(Table, item, share=table.share, schema=table.schema)
        except (RequestRefusedError, NotFoundError, ResponseError) as refusal:
            # A server that knows the path by HEAD alone answers GET with its version and no body.
            if isinstance(refusal, NotFoundError) or refusal.status not in (None, *UNKNOWN_CALL):
                raise
            self.note_no_get_table()
            return None

    def note_no_get_table(self) -> None:
        """Note that the server does not have Get Table."""
        _no_get_table.put(self.profile.endpoint, True)

    def credentials(self, table: TableName, location: str | None = None) -> TemporaryCredentials:
        """Temporary storage credentials for the table's root, or for ``location``; raises ResponseError where they are malformed."""
        body = {"location": location} if location is not None else {}
        path = f"{table.path}/temporary-table-credentials"
        tree = self._of(table).ask_json("POST", path, f"the storage credentials of {table}", body=body)
        return parse_credentials(tree, str(table))

    def ask_json(
        self,
        method: str,
        path: str,
        what: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        headers: dict[str, str] | None = None,
        limit: int = LARGEST_ANSWER,
    ) -> dict[str, Any]:
        """A request whose answer is a JSON object of at most ``limit`` bytes; ``what`` names it in errors."""

        def ask() -> dict[str, Any]:
            answer = read_bytes(self._send(method, path, what, headers=headers, params=params, json=body), what, limit)
            tree = json_object(answer)
            if tree is None:
                error = no_server(f"{what}: the answer is not a JSON object")
                raise unreadable_answer(error, answer) if answer.strip() else error
            return tree

        return with_retries(self.settings, ask)

    def _page(
        self,
        method: str,
        path: str,
        table: TableName,
        formats: Sequence[str],
        asked: Mapping[str, Any],
        token: str | None = None,
        *,
        query: Query | ChangesQuery | None = None,
        sink: Callable[[], FileSink] = FileBlocks,
        ahead: PagesAhead | None = None,
    ) -> Page:
        """One complete NDJSON answer, its version, and its headers.

        Args:
            asked: The body of a POST, or the URL's parameters, without paging.
            query: The query, for what stands in headers.
            ahead: Receives the page after this one while this one is parsed.
        """
        metadata_only = path.endswith("/metadata")
        what = f"the metadata of {table}" if metadata_only else f"the query of {table}"
        hashed = {"fileidhash": query.file_id_hash} if query is not None and query.file_id_hash else {}
        is_async = isinstance(query, Query) and query.idempotency_key is not None
        arrived = [] if ahead is None or token is None else [ahead.take(token)]

        def sent(features: Sequence[str], token: str | None) -> requests.Response:
            parts = [f"responseformat={','.join(formats)}"]
            parts += [f"readerfeatures={','.join(features)}"] if features else []
            parts += [] if metadata_only else ["includeendstreamaction=true"]
            parts += ["asyncquery=true"] if is_async else []
            headers = {CAPABILITIES: ";".join(parts), **hashed}
            later = {name: value for name, value in asked.items() if name not in _FIRST_PAGE_ONLY} | {
                "pageToken": token
            }
            values = asked if token is None else later
            return self._send(method, path, what, headers=headers, **{"json" if method == "POST" else "params": values})

        def ask(features: Sequence[str]) -> Page:
            if (page := arrived.pop() if arrived else None) is not None:  # a second try asks anew
                return parsed(features, *page)
            with sent(features, token) as response:
                return parsed(features, response.headers, body_chunks(response, what))

        def parsed(features: Sequence[str], headers: Mapping[str, str], chunks: Iterable[bytes]) -> Page:
            def receive(token: str) -> HeldPage | None:
                with sent(features, token) as response:
                    body, is_whole = held(body_chunks(response, what))
                    return (response.headers, body) if is_whole else None

            if ahead is not None:
                chunks = ahead.begin(chunks, lambda token: with_retries(self.settings, lambda: receive(token)))
            blocks, expects_end = line_blocks(chunks), expects_end_action(headers)
            page = parse_page(blocks, str(table), expects_end=expects_end, sink=sink)
            page.has_length = declared_length(headers) is not None
            page.version = header_version(headers, str(table))
            page.file_id_hash = headers.get("fileidhash", "").lower() or None
            return page

        def ask_patiently(features: Sequence[str]) -> Page:
            with self._quoting_no_token():
                return with_retries(self.settings, lambda: ask(features))

        if "delta" not in formats:
            return ask_patiently(())
        try:
            return ask_with_features(self.profile.endpoint, ask_patiently)
        except RequestRefusedError as refusal:
            if formats != FORMATS[:1] or not _ABOUT_FORMAT.search(refusal.server_message or ""):
                raise
            # A server that speaks the parquet format alone may say so, where others answer in it.
            return self._page(method, path, table, FORMATS, asked, token, query=query, sink=sink, ahead=ahead)

    def _of(self, table: TableName) -> SharingRest:
        """The same for requests of one table, as metrics say."""
        name = str(table)
        return self if self.settings.table == name else replace(self, settings=replace(self.settings, table=name))

    def _send(
        self, method: str, path: str, what: str, *, headers: dict[str, str] | None = None, **content: Any
    ) -> requests.Response:
        """Send a request, once more where its token is refused and another can be had; ``content`` is ``params`` or ``json``."""
        check_endpoint(self.profile.endpoint)
        token = authorization(self.profile, self.settings)

        def ask(value: str) -> requests.Response:
            url, purpose = self.profile.endpoint + path, RequestPurpose(what, self.server, expired=self._expiry())
            return send(self.settings, method, url, purpose, authorization=value, headers=headers, **content)

        try:
            return ask(token)
        except UnauthenticatedError:
            if not is_renewable(self.profile):
                raise
            renewed = authorization(self.profile, self.settings, refused=token)
            if renewed == token:
                raise  # nobody has another one
            return ask(renewed)

    @contextmanager
    def _quoting_no_token(self) -> Iterator[None]:
        """Cuts the token out of errors within: a server may echo it after its status, in what is quoted of an answer."""
        try:
            yield
        except ServerError as error:
            error.args = (without_secrets(str(error), secrets_of(self.profile)),)
            raise

    def _expiry(self) -> str:
        """What to do about a 401, where the profile tells more than that the token is not valid."""
        if self.profile.identity is not None:
            return (
                f"the token of {self.profile.identity} is refused: check its audience and subject with the provider, who names "
                f"those that may read"
            )
        if self.profile.carried:
            return carried_end(self.profile, "is refused")
        expires = self.profile.expires
        if expires is None or expires > datetime.now(timezone.utc):
            return ""
        return f"the profile's token expired at {expires.strftime('%Y-%m-%dT%H:%M:%SZ')}; ask the provider for a new profile"


def unless_unknown(pages: Iterator[_T], otherwise: Callable[[ServerError], Iterable[_T]]) -> Iterator[_T]:
    """All items of a listing; other ones where the server lacks the endpoint, which it says of the first page."""
    try:
        first = next(pages, None)
    except ServerError as unknown:
        if unknown.status not in UNKNOWN_CALL:
            raise
        yield from otherwise(unknown)
        return
    if first is not None:
        yield first
        yield from pages


def brief_settings(settings: NetworkSettings) -> NetworkSettings:
    """Those of a request that only explains an error: it waits a moment, and is not repeated."""
    return replace(settings, read_timeout=min(_TIMEOUT, settings.read_timeout), retry_seconds=0.0)


def with_near_name(
    error: NotFoundError, listings: Iterable[NamesAt], hint_of: Callable[[str, str], str] = lambda kind, hint: hint
) -> NotFoundError:
    """The same error with the nearest names added, if the listing has any that the wrong name should stand in; else unchanged.

    Args:
        listings: From the name asked for to those above it; one of an empty name is passed over.
        hint_of: What is said instead of the hint of ``near_name`` for a kind of name.
    """
    for kind, name, listing, holder in listings:
        if not name:
            continue
        try:
            hint = near_name(kind, name, listing(), holder)
        except NotFoundError:
            continue  # the name above it is wrong as well
        except DeltaSharingError:
            return error
        if hint is None:
            return error
        words = str(error).removesuffix(f"; {NOT_THERE}")
        return NotFoundError(f"{words}; {hint_of(kind, hint)}", **{**error.__dict__, "is_unlisted": True})
    return error


def near_name(kind: str, name: str, names: Iterable[str], holder: str) -> str | None:
    """That ``holder`` has no ``kind`` of a name, and what it has that is near; None if it has it."""
    existing = sorted(islice(names, _LOOKED_AT))
    if name.lower() in (k.lower() for k in existing):
        return None
    if not existing:
        return f"{holder} has no {kind}s"
    close = nearest(name, existing)
    if close is not None:
        return f"{holder} has no {kind} {name!r}; did you mean {close!r}?"
    examples = ", ".join(map(repr, existing[:_SHOWN])) + (", ..." if len(existing) > _SHOWN else "")
    return f"{holder} has no {kind} {name!r}; it has {examples}"


_TICK = timedelta(milliseconds=1)
_REFUSALS = (RequestRefusedError, NotFoundError)


def _unless_refused(ask: Callable[[], int | None]) -> int | None:
    try:
        return ask()
    except _REFUSALS:
        return None
