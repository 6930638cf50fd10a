"""Answers to queries: what a client says it can read, the lines of each response format, pages and their tokens."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from delta_sharing_spark.deltalog.paths import local_path
from delta_sharing_spark.schema.features import FEATURES_READER_VERSION
from delta_sharing_spark.schema.table_records import Metadata, Protocol
from delta_sharing_spark.schema.types import TYPE_CHANGES
from delta_sharing_spark.testing.server.data_urls import Signer
from delta_sharing_spark.testing.server.faults import Faults
from delta_sharing_spark.testing.server.responses import Response, bad_request, lines_response
from delta_sharing_spark.testing.server.settings import ServerSettings, SharedTable
from delta_sharing_spark.testing.server.table_logs import FileAction
from delta_sharing_spark.testing.tables.protocols import protocol_body

#: Reader features that change nothing for a client of URLs.
_LOG_ONLY = frozenset({"v2checkpoint", "vacuumprotocolcheck"})


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The header ``delta-sharing-capabilities``, lower-cased."""

    formats: tuple[str, ...] = ("parquet",)
    reader_features: frozenset[str] = frozenset()
    end_stream_action: bool = False
    asynchronous: bool = False


def parse_capabilities(header: str | None, settings: ServerSettings) -> Capabilities:
    """Read the header; an old server does not know it."""
    if header is None or not settings.capabilities:
        return Capabilities()
    values: dict[str, tuple[str, ...]] = {}
    for part in header.lower().split(";"):
        key, separator, value = part.partition("=")
        if separator:
            values[key.strip()] = tuple(v.strip() for v in value.split(",") if v.strip())
    unknown = sorted(set(values.get("readerfeatures", ())) - {name.lower() for name in settings.known_features or ()})
    if settings.known_features is not None and unknown:
        raise bad_request(f"Unknown reader feature: {unknown[0]}")
    return Capabilities(
        tuple(f for f in values.get("responseformat", ()) if f in ("parquet", "delta")) or ("parquet",),
        frozenset(values.get("readerfeatures", ())),
        settings.end_stream_action and values.get("includeendstreamaction") == ("true",),
        settings.async_polls is not None and values.get("asyncquery") == ("true",),
    )


def choose_format(
    request: TableRequest,
    settings: ServerSettings,
    protocol: Protocol,
    metadata: Metadata,
    items: Iterable[FileAction | dict[str, Any]],
) -> str:
    """``parquet`` or ``delta``, for an answer with these lines.

    Raises:
        Refusal: The table needs the delta format, or a reader feature that the client does not list; 400, by name.
    """
    capabilities, table = request.capabilities, request.table
    if protocol.min_reader_version > FEATURES_READER_VERSION and "delta" in capabilities.formats:
        return "delta"  # nobody knows what it takes; the client must see the protocol and refuse
    has_vectors = any(isinstance(item, FileAction) and item.vector is not None for item in items)
    needed = _needed(protocol, metadata, has_vectors)
    if "delta" not in capabilities.formats:
        if needed:
            raise bad_request(
                f"table {table} uses the reader features {', '.join(sorted(needed))}, which the parquet response "
                f"format cannot express; ask with responseformat=delta"
            )
        return "parquet"
    if "parquet" in capabilities.formats and not needed and settings.prefer == "parquet":
        return "parquet"
    missing = sorted(name for name in needed if name.lower() not in capabilities.reader_features)
    if missing:
        raise bad_request(
            f"table {table} requires the reader features {', '.join(missing)}, "
            f"which the client does not list in readerfeatures"
        )
    return "delta"


def _needed(protocol: Protocol, metadata: Metadata, has_vectors: bool) -> Collection[str]:
    """Features of the table that a reader of its files must know, as the log spells them."""
    listed = set(protocol.reader_features or ())
    if protocol.min_reader_version > FEATURES_READER_VERSION:
        listed.add(f"of reader version {protocol.min_reader_version}")
    if protocol.min_reader_version == 2:
        listed.add("columnMapping")
    needed = {name for name in listed if name.lower() not in _LOG_ONLY}
    if metadata.configuration.get("delta.columnMapping.mode", "none") == "none":
        needed.discard("columnMapping")
    if not has_vectors and not metadata.is_enabled("delta.enableDeletionVectors"):
        needed.discard("deletionVectors")
    if TYPE_CHANGES not in metadata.schema_string:
        needed -= {"typeWidening", "typeWidening-preview"}
    return needed


def protocol_line(response_format: str, protocol: Protocol, version: int | None = None) -> dict[str, Any]:
    """The ``protocol`` line; ``version`` only of a historical one."""
    if response_format == "parquet":
        return {"protocol": {"minReaderVersion": 1}}
    body: dict[str, Any] = {"deltaProtocol": protocol_body(protocol)}
    if version is not None:
        body["version"] = version
    return {"protocol": body}


def metadata_line(response_format: str, metadata: Metadata, table: SharedTable, **more: int | None) -> dict[str, Any]:
    """The ``metaData`` line; ``more`` is ``version``, ``size`` and ``numFiles``, where they are not None."""
    named = {"id": metadata.id, "name": metadata.name, "description": metadata.description}
    core: dict[str, Any] = {name: value for name, value in named.items() if value is not None} | {
        "format": {"provider": metadata.provider},
        "schemaString": metadata.schema_string,
        "partitionColumns": list(metadata.partition_columns),
        "configuration": dict(metadata.configuration),
    }
    outer = {k: v for k, v in more.items() if v is not None} | table.directory_fields()
    if response_format == "parquet":
        return {"metaData": core | outer}
    core["format"]["options"] = {}  # the kernel insists on it
    if metadata.created_time is not None:
        core["createdTime"] = metadata.created_time
    return {"metaData": {"deltaMetadata": core, **outer}}


def file_id(path: str, hashed: str) -> str:
    """A file's id: MD5 of its path for ``parquet``, SHA-256 for ``delta``, as the reference server makes them."""
    make = hashlib.md5 if hashed == "parquet" else hashlib.sha256
    return make(path.encode("utf-8", "surrogateescape"), usedforsecurity=False).hexdigest()


_PARQUET_KIND = {"add": "add", "remove": "remove", "cdc": "cdf"}


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


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


def file_line(
    file: FileAction, answer: Answer, hashed: str, url: Callable[[str], str], expires_ms: int | None
) -> dict[str, Any]:
    """A file's line.

    Args:
        hashed: Which hash ids are made with.
        url: Makes the data URL of a local file.
        expires_ms: When URLs end; None leaves ``expirationTimestamp`` out.
    """
    location, body = url(file.location), file.body
    tree: dict[str, Any] = {"id": file_id(file.path, hashed), "size": file.size}
    if file.version is not None:
        tree |= {"version": file.version, "timestamp": file.timestamp}
    if expires_ms is not None:
        tree["expirationTimestamp"] = expires_ms
    if answer.response_format == "parquet":
        tree["url"], tree["partitionValues"] = location, body.get("partitionValues") or {}
        if "stats" in body:
            tree["stats"] = body["stats"]
        return {"file" if answer.snapshot else _PARQUET_KIND[file.kind]: tree}
    action = {**body, "path": location}
    if file.vector is not None and file.vector.storage != "i":
        vector_url = url(local_path(file.vector.path))
        action["deletionVector"] = {**body["deletionVector"], "storageType": "p", "pathOrInlineDv": vector_url}
        tree["deletionVectorFileId"] = file_id(file.vector.path, hashed)
    return {"file": {**tree, "deltaSingleAction": {file.kind: action}}}


class Pages:
    """Cuts answers into pages and writes them."""

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
        url = partial(self._signer.url, request.base, self._signer.terms(expires_ms))
        hashed = request.hashed or answer.response_format
        ends = expires_ms if self._settings.expiration_timestamps else None
        items = [*(answer.head if token is None or self._settings.repeat_head else ()), *answer.items[start:end]]
        lines = (file_line(i, answer, hashed, url, ends) if isinstance(i, FileAction) else i for i in items)
        written = [line for line in map(self._rewritten, lines) if line is not None]
        written += self._last_line(request, answer, end, expires_ms)
        headers = {"Delta-Table-Version": str(answer.version)}
        if self._settings.capabilities:
            ending = ";includeEndStreamAction=true" if request.capabilities.end_stream_action else ""
            headers["delta-sharing-capabilities"] = f"responseformat={answer.response_format}{ending}"
        if request.hashed is not None:
            headers["fileidhash"] = request.hashed
        return lines_response([_encode(line).encode("utf-8", "surrogateescape") for line in written], headers)

    def _rewritten(self, line: dict[str, Any]) -> dict[str, Any] | None:
        if self._faults.drops(line):
            return None
        return line if self._settings.rewrite is None else self._settings.rewrite(line)

    def _page_size(self, request: TableRequest) -> int | None:
        asked = request.parameters.get("maxFiles")
        if asked is not None and (not str(asked).isdecimal() or int(asked) < 1):
            raise bad_request("maxFiles must be positive.")
        return min((int(size) for size in (self._settings.page_size, asked) if size is not None), default=None)

    def _last_line(self, request: TableRequest, answer: Answer, end: int, expires_ms: int) -> list[dict[str, Any]]:
        body: dict[str, Any] = {}
        if end < len(answer.items):
            pin = {**answer.pin, "checksum": request.checksum, "next": end}
            body["nextPageToken"] = self._signer.token("page", pin)
        if answer.refresh_token is not None:
            body["refreshToken"] = answer.refresh_token
        if not body and not request.capabilities.end_stream_action:
            return []
        if self._settings.min_url_expiration and answer.items:
            body["minUrlExpirationTimestamp"] = expires_ms
        return [body if self._settings.bare_end_stream and body else {"endStreamAction": body}]
