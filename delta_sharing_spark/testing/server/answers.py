"""Answers about a table: lines after a head, in pages, with the last line that names what follows."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from delta_sharing_spark.testing.server.capabilities import Capabilities, answer_header
from delta_sharing_spark.testing.server.faults import Faults
from delta_sharing_spark.testing.server.response_lines import LineWriter, encode_line
from delta_sharing_spark.testing.server.responses import Response, bad_request, lines_response
from delta_sharing_spark.testing.server.settings import ServerSettings, SharedTable
from delta_sharing_spark.testing.server.table_logs import FileAction
from delta_sharing_spark.testing.server.tokens import Signer

#: Parameters that may differ, or must be absent, on the pages after the first.
_FREE = ("pageToken", "maxFiles", "includeRefreshToken", "refreshToken")
_EXPIRED_PAGE = "The page token has expired. Please restart the query."


@dataclass(frozen=True, slots=True)
class TableRequest:
    """A request about a table, whichever endpoint it came by.

    Attributes:
        table: The table.
        parameters: The body's fields, or the query's parameters.
        capabilities: The client's capabilities.
        hashed: The header ``fileidhash``, lower-cased; None without.
        base: Scheme and host for data URLs, as the client reached the server.
    """

    table: SharedTable
    parameters: Mapping[str, Any]
    capabilities: Capabilities
    hashed: str | None
    base: str

    @property
    def checksum(self) -> str:
        """Of everything that must be the same on the next page."""
        own = {k: v for k, v in self.parameters.items() if k not in _FREE and v is not None}
        text = json.dumps([str(self.table), own, self.hashed, list(self.capabilities.formats)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer before it is cut into pages.

    Attributes:
        version: For the header ``Delta-Table-Version``.
        response_format: ``parquet`` or ``delta``.
        head: Protocol and metadata lines.
        items: Files, and historical metadata lines between them.
        snapshot: Whether the files are a snapshot's.
        refresh_token: For the last line.
        pin: What a page token must carry so that the next page is cut from the same answer.
    """

    version: int
    response_format: str
    head: Sequence[dict[str, Any]]
    items: Sequence[FileAction | dict[str, Any]] = field(repr=False)
    snapshot: bool
    refresh_token: str | None = None
    pin: Mapping[str, Any] = field(default_factory=dict)


class Pages:
    """Cuts answers into pages and writes them.

    Args:
        signer, settings, faults: Of the server.
    """

    def __init__(self, signer: Signer, settings: ServerSettings, faults: Faults) -> None:
        self._signer, self._settings, self._faults = signer, settings, faults

    def read_token(self, request: TableRequest) -> dict[str, Any] | None:
        """The page token of a request, checked; None for a first page."""
        token = request.parameters.get("pageToken")
        if not token:
            return None
        body = self._signer.read("page", str(token), self._settings.page_token_ttl, _EXPIRED_PAGE)
        if body["checksum"] != request.checksum:
            raise bad_request("Query parameter mismatch detected for the next page query.")
        return body

    def write(self, request: TableRequest, answer: Answer) -> Response:
        """The page that was asked for."""
        token = self.read_token(request)
        start = 0 if token is None else int(token["next"])
        size = self._page_size(request)
        end = len(answer.items) if size is None else min(len(answer.items), start + size)
        expires_ms = int((time.time() + self._settings.url_ttl) * 1000)
        writer = LineWriter(
            answer.response_format,
            request.hashed or answer.response_format,
            request.base,
            self._signer,
            self._signer.terms(expires_ms),
            expires_ms if self._settings.expiration_timestamps else None,
            answer.snapshot,
        )
        lines = list(answer.head) if token is None or self._settings.repeat_head else []
        for item in answer.items[start:end]:
            lines.append(writer.line(item) if isinstance(item, FileAction) else item)
        last = self._last_line(request, answer, end, expires_ms)
        encoded = [encode_line(line) for line in map(self._rewritten, lines) if line is not None]
        if last is not None:
            encoded.append(encode_line(last))
        headers = {"Delta-Table-Version": str(answer.version)}
        headers |= answer_header(answer.response_format, request.capabilities, self._settings)
        if request.hashed is not None and self._settings.file_id_hash:
            headers["fileidhash"] = request.hashed
        return lines_response(encoded, headers)

    def _rewritten(self, line: dict[str, Any]) -> dict[str, Any] | None:
        if self._faults.drops(line):
            return None
        return line if self._settings.rewrite is None else self._settings.rewrite(line)

    def _page_size(self, request: TableRequest) -> int | None:
        sizes = [] if self._settings.page_size is None else [self._settings.page_size]
        asked = request.parameters.get("maxFiles")
        if asked is not None:
            if not str(asked).isdecimal() or int(asked) < 1:
                raise bad_request("maxFiles must be positive.")
            sizes.append(int(asked))
        return min(sizes) if sizes else None

    def _last_line(self, request: TableRequest, answer: Answer, end: int, expires_ms: int) -> dict[str, Any] | None:
        body: dict[str, Any] = {}
        if end < len(answer.items):
            pin = {**answer.pin, "checksum": request.checksum, "next": end}
            body["nextPageToken"] = self._signer.token("page", pin)
        if answer.refresh_token is not None:
            body["refreshToken"] = answer.refresh_token
        if not body and not request.capabilities.end_stream_action:
            return None
        if self._settings.min_url_expiration and answer.items:
            body["minUrlExpirationTimestamp"] = expires_ms
        return body if self._settings.bare_end_stream else {"endStreamAction": body}
