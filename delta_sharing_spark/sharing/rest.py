"""The sharing protocol, one method per endpoint (protocol, "REST APIs")."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import requests
import urllib3

from delta_sharing_spark.errors import (
    NotFoundError,
    RequestRefusedError,
    ResponseError,
    ServerError,
    UnauthenticatedError,
)
from delta_sharing_spark.sharing.actions import Schema, Share, Table, TableSnapshotHead, TemporaryCredentials
from delta_sharing_spark.sharing.address import TableName, check_name, segment
from delta_sharing_spark.sharing.answers import CAPABILITIES, Answer, header_version, promises_end
from delta_sharing_spark.sharing.auth import authorization, renewable
from delta_sharing_spark.sharing.listing import (
    parse_credentials,
    parse_schema_item,
    parse_share_item,
    parse_table_item,
    walk_pages,
)
from delta_sharing_spark.sharing.ndjson import iter_lines, parse_page
from delta_sharing_spark.sharing.profile import Profile
from delta_sharing_spark.sharing.query import ChangesQuery, Query, QueryResponse
from delta_sharing_spark.sharing.transport import (
    TransportSettings,
    broken_off,
    check_endpoint,
    check_whole,
    read_body,
    send,
    with_retries,
)

__all__ = ["ChangesQuery", "Query", "QueryResponse", "SharingRest"]

_T = TypeVar("_T")
#: Statuses of an endpoint that a server does not have.
_UNKNOWN = (404, 405, 501)
#: The reference server refuses these on later pages.
_FIRST_PAGE_ONLY = ("includeRefreshToken", "refreshToken")
#: Both, the delta format first: it carries every feature.
FORMATS = ("delta", "parquet")


@dataclass(frozen=True, slots=True)
class SharingRest:
    """The endpoints of one server, as one recipient. Cheap to make and to pickle: connections belong to the process."""

    profile: Profile
    settings: TransportSettings = field(default_factory=TransportSettings)

    def list_shares(self) -> Iterator[Share]:
        """All shares, page by page."""
        return walk_pages(
            lambda params: self._json("GET", "/shares", "the list of shares", params=params), parse_share_item
        )

    def get_share(self, name: str) -> Share:
        """One share.

        Raises:
            NotFoundError: There is none of that name.
        """
        tree = self._json("GET", f"/shares/{segment(check_name(name, 'share'))}", f"the share {name!r}")
        inner = tree.get("share")
        return parse_share_item(inner if isinstance(inner, dict) else tree)

    def list_schemas(self, share: str) -> Iterator[Schema]:
        """All schemas of a share."""
        path = f"/shares/{segment(check_name(share, 'share'))}/schemas"
        return walk_pages(
            lambda params: self._json("GET", path, f"the schemas of {share!r}", params=params),
            lambda item: parse_schema_item(item, share),
        )

    def list_tables(self, share: str, schema: str) -> Iterator[Table]:
        """All tables of a schema."""
        path = f"/shares/{segment(check_name(share, 'share'))}/schemas/{segment(check_name(schema, 'schema'))}/tables"
        return walk_pages(
            lambda params: self._json("GET", path, f"the tables of {share}.{schema}", params=params),
            lambda item: parse_table_item(item, share, schema),
        )

    def list_all_tables(self, share: str) -> Iterator[Table]:
        """All tables of a share; schema by schema where the server lacks the endpoint."""
        path = f"/shares/{segment(check_name(share, 'share'))}/all-tables"
        pages = walk_pages(
            lambda params: self._json("GET", path, f"the tables of {share!r}", params=params),
            lambda item: parse_table_item(item, share),
        )
        try:
            first = next(pages, None)
        except ServerError as unknown:
            if unknown.status not in _UNKNOWN:
                raise
            for schema in self.list_schemas(share):
                yield from self.list_tables(share, schema.name)
            return
        if first is not None:
            yield first
            yield from pages

    def table_version(self, table: TableName, starting_timestamp: str | None = None) -> int:
        """The table's version; with a timestamp (ISO-8601 with zone) the earliest at or after it.

        Raises:
            NotFoundError: No such table.
            ResponseError: The answer names no version.
        """
        params = {"startingTimestamp": starting_timestamp} if starting_timestamp else {}
        what = f"the version of {table}"

        def ask(method: str, path: str) -> int:
            with self._send(method, path, what, params=params) as response:
                version = header_version(response.headers, str(table))
            if version is None:
                raise ResponseError(
                    f"{what}: the answer has no Delta-Table-Version header; ask the provider to check the server"
                )
            return version

        try:
            return self._retried(lambda: ask("GET", f"{table.path}/version"))
        except (NotFoundError, RequestRefusedError) as unknown:
            if unknown.status not in _UNKNOWN:
                raise
            try:
                return self._retried(lambda: ask("HEAD", table.path))
            except (NotFoundError, RequestRefusedError, ResponseError):
                raise unknown from None

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
            ResponseError: A line is missing or malformed.
            UnsupportedFeatureError: The provider is not parquet.
        """
        params: dict[str, str] = {}
        if version is not None:
            params["version"] = str(version)
        if timestamp is not None:
            params["timestamp"] = timestamp
        answer = self._page("GET", f"{table.path}/metadata", table, formats, params=params)
        return answer.head(str(table), formats)

    def query(
        self,
        table: TableName,
        query: Query,
        *,
        formats: Sequence[str] = FORMATS,
        collect: Callable[[], Any] = list,
    ) -> QueryResponse:
        """The files of a snapshot, or of a range of versions. The first page is fetched before this returns.

        Args:
            collect: Makes what takes a page's records in (``QueryResponse.pages``).
        """
        extra = {"asyncquery": "true"} if query.idempotency_key else {}
        headers = {"fileidhash": query.file_id_hash} if query.file_id_hash else {}

        submitted: list[str] = []

        def fetch(token: str | None) -> Answer:
            body = query.body()
            if token:
                body["pageToken"] = token
                for name in _FIRST_PAGE_ONLY:
                    body.pop(name, None)
            if submitted:
                kept: dict[str, Any] = {name: body[name] for name in ("maxFiles", "pageToken") if name in body}
                return self.poll(table, submitted[0], kept, formats, collect=collect)
            answer = self._page(
                "POST",
                f"{table.path}/query",
                table,
                formats,
                capabilities=extra,
                headers=headers,
                body=body,
                collect=collect,
            )
            status = answer.page.query_status
            if status is not None and token is None:
                from delta_sharing_spark.sharing.asynchronous import await_query

                query_id, answer = await_query(self, table, status, query, formats, collect=collect)
                submitted.append(query_id)
            return answer

        return QueryResponse(str(table), formats, fetch, query.file_id_hash)

    def poll(
        self,
        table: TableName,
        query_id: str,
        body: Mapping[str, Any],
        formats: Sequence[str],
        *,
        collect: Callable[[], Any] = list,
    ) -> Answer:
        """One poll of an asynchronous query (protocol, "Get Query Info")."""
        path = f"{table.path}/queries/{segment(query_id)}"
        return self._page("POST", path, table, formats, body=dict(body), collect=collect)

    def changes(
        self,
        table: TableName,
        query: ChangesQuery,
        *,
        formats: Sequence[str] = FORMATS,
        collect: Callable[[], Any] = list,
    ) -> QueryResponse:
        """The change files of a range of versions. The first page is fetched before this returns."""
        headers = {"fileidhash": query.file_id_hash} if query.file_id_hash else {}

        def fetch(token: str | None) -> Answer:
            params = query.params()
            if token:
                params["pageToken"] = token
            path = f"{table.path}/changes"
            return self._page("GET", path, table, formats, headers=headers, params=params, collect=collect)

        return QueryResponse(str(table), formats, fetch, query.file_id_hash)

    def credentials(self, table: TableName, location: str | None = None) -> TemporaryCredentials:
        """Temporary storage credentials for the table's root, or for ``location`` (root or auxiliary).

        Raises:
            ResponseError: The answer is not one.
        """
        body = {"location": location} if location is not None else {}
        tree = self._json(
            "POST", f"{table.path}/temporary-table-credentials", f"the storage credentials of {table}", body=body
        )
        return parse_credentials(tree, str(table))

    def _json(
        self, method: str, path: str, what: str, *, params: Mapping[str, str] | None = None, body: Any = None
    ) -> dict[str, Any]:
        def ask() -> dict[str, Any]:
            text = read_body(self._send(method, path, what, params=params, body=body), what)
            try:
                tree = json.loads(text)
            except (ValueError, RecursionError):
                tree = None
            if not isinstance(tree, dict):
                raise ResponseError(
                    f"{what}: the answer is not a JSON object; check that the endpoint is a Delta Sharing server's"
                )
            return tree

        return self._retried(ask)

    def _page(
        self,
        method: str,
        path: str,
        table: TableName,
        formats: Sequence[str],
        *,
        capabilities: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        collect: Callable[[], Any] = list,
    ) -> Answer:
        """One complete NDJSON answer, its version, and its headers."""
        metadata_only = path.endswith("/metadata")
        sent = {CAPABILITIES: _capabilities(formats, not metadata_only, capabilities or {}), **(headers or {})}

        def ask() -> Answer:
            what = f"the metadata of {table}" if metadata_only else f"the query of {table}"
            with self._send(method, path, what, params=params, body=body, headers=sent) as response:
                promised = promises_end(response.headers)
                try:
                    lines = iter_lines(response.iter_content(1 << 18))
                    page = parse_page(lines, str(table), end_required=promised, collect=collect)
                except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
                    raise broken_off(what, error) from None
                check_whole(response, what)
                echoed = response.headers.get("fileidhash", "").lower() or None
                return Answer(page, header_version(response.headers, str(table)), echoed)

        return self._retried(ask)

    def _retried(self, ask: Callable[[], _T]) -> _T:
        return with_retries(self.settings, ask)

    def _send(
        self,
        method: str,
        path: str,
        what: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        headers: dict[str, str] | None = None,
    ) -> requests.Response:
        check_endpoint(self.profile.endpoint)
        token = authorization(self.profile, self.settings)
        arguments: dict[str, Any] = {"params": params or None, "headers": headers}
        if body is not None:
            arguments["json"] = body

        def ask(value: str) -> requests.Response:
            url = self.profile.endpoint + path
            return send(self.settings, method, url, what=what, authorization=value, expired=self._expiry(), **arguments)

        try:
            return ask(token)
        except UnauthenticatedError:
            if not renewable(self.profile):
                raise
            return ask(authorization(self.profile, self.settings, refused=token))

    def _expiry(self) -> str:
        from datetime import datetime, timezone

        expires = self.profile.expires
        if expires is None or expires > datetime.now(timezone.utc):
            return ""
        return f"the profile's token expired at {expires.strftime('%Y-%m-%dT%H:%M:%SZ')}"


def _capabilities(formats: Sequence[str], end_action: bool, more: Mapping[str, str]) -> str:
    from delta_sharing_spark.features import reader_features_header

    parts = {"responseformat": ",".join(formats)}
    if "delta" in formats:
        parts["readerfeatures"] = reader_features_header()
    if end_action:
        parts["includeendstreamaction"] = "true"
    return ";".join(f"{k}={v}" for k, v in {**parts, **more}.items())
