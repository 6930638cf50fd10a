"""The protocol's endpoints and those of OpenSharing's assets: what is shared, listings, temporary credentials, paths to answers."""

from __future__ import annotations

import base64
import json
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from urllib.parse import parse_qsl

from delta_sharing_spark.errors import DeltaSharingError, LogError, TableError
from delta_sharing_spark.testing.server.answers import TableRequest, parse_capabilities
from delta_sharing_spark.testing.server.queries import TableQueries
from delta_sharing_spark.testing.server.responses import (
    Refusal,
    Response,
    bad_request,
    json_response,
    lines_response,
    not_found,
)
from delta_sharing_spark.testing.server.settings import ServerSettings, SharedAsset, SharedTable, id_of

#: Asynchronous queries that are remembered.
_JOBS = 1000

_TABLE_KINDS = {
    "version": "version",
    "metadata": "metadata",
    "query": "query",
    "changes": "changes",
    "temporary-table-credentials": "credentials",
}
_METHODS = {"query": "POST", "poll": "POST", "credentials": "POST", "table": "HEAD"}


@dataclass(slots=True)
class _Job:
    """An asynchronous query."""

    request: TableRequest
    polls: int = 0


class Endpoints:
    """Routes requests of the protocol."""

    def __init__(
        self, catalog: Catalog, queries: TableQueries, settings: ServerSettings, vendors: Mapping[str, CredentialVendor]
    ) -> None:
        self._catalog, self._queries, self._settings, self._vendors = catalog, queries, settings, vendors
        self.assets = AssetEndpoints(catalog, settings, vendors)
        self._jobs: OrderedDict[str, _Job] = OrderedDict()
        self._keys: dict[tuple[str, str], str] = {}
        self._lock = threading.Lock()

    def kind_of(self, segments: list[str]) -> str:
        """What is asked for: an asset's kind, ``shares``, ``share``, ``schemas``, ``tables``, ``all-tables``, ``table``, ``version``,
        ``metadata``, ``query``, ``poll``, ``changes``, ``credentials`` or ``unknown``."""
        match segments:
            case ["shares"]:
                return "shares"
            case ["shares", _]:
                return "share"
            case ["shares", _, "schemas"]:
                return "schemas"
            case ["shares", _, "all-tables"]:
                return "all-tables"
            case ["shares", _, "schemas", _, "tables"]:
                return "tables"
            case ["shares", _, "schemas", _, "tables", _]:
                return "table"
            case ["shares", _, "schemas", _, "tables", _, "queries", _]:
                return "poll"
            case ["shares", _, "schemas", _, "tables", _, last]:
                return _TABLE_KINDS.get(last, "unknown")
        return self.assets.kind_of(segments) or "unknown"

    def answer(
        self,
        kind: str,
        method: str,
        segments: list[str],
        query: str,
        headers: Mapping[str, str],
        body: bytes,
        base: str,
    ) -> Response:
        """Answer one request; raises Refusal for an error answer."""
        parameters: dict[str, Any] = dict(parse_qsl(query, keep_blank_values=True))
        if kind == "unknown" or not self._known(kind):
            raise not_found("the endpoint does not exist")
        if self.assets.kind_of(segments) is not None:
            return self.assets.answer(kind, method, segments, parameters)
        if kind == "table" and method == "GET" and self._settings.get_table:
            table = self._catalog.table(segments[1], segments[3], segments[5])
            return json_response({**table.names(), "format": table.format})  # and nothing of its locations
        if method != _METHODS.get(kind, "GET"):
            raise Refusal(405, "METHOD_NOT_ALLOWED", f"{method} is not allowed here")
        if kind in ("shares", "share", "schemas", "tables", "all-tables"):
            return self._listing(kind, segments, parameters)
        table = self._catalog.table(segments[1], segments[3], segments[5])
        if method == "POST":
            parameters = _body(body)
        try:
            return self._table(kind, table, segments, parameters, headers, base)
        except LogError as error:
            raise Refusal(500, "INTERNAL_ERROR", str(error)) from error
        except TableError as error:
            raise bad_request(str(error)) from error
        except DeltaSharingError as error:
            raise Refusal(500, "INTERNAL_ERROR", str(error)) from error

    def _known(self, kind: str) -> bool:
        if kind == "all-tables":
            return self._settings.all_tables
        if kind == "version":
            return self._settings.version_by_get
        return kind != "poll" or self._settings.async_polls is not None

    def _listing(self, kind: str, segments: list[str], parameters: Mapping[str, str]) -> Response:
        if kind == "share":
            return json_response({"share": self._catalog.share(segments[1]).item()})
        if kind == "shares":
            items = self._catalog.share_items()
        elif kind == "schemas":
            items = self._catalog.schema_items(segments[1])
        else:
            items = self._catalog.table_items(segments[1], segments[3] if kind == "tables" else None)
        return json_response(page(items, parameters, self._settings))

    def _table(
        self,
        kind: str,
        table: SharedTable,
        segments: list[str],
        parameters: dict[str, Any],
        headers: Mapping[str, str],
        base: str,
    ) -> Response:
        formats = [name.strip().lower() for name in table.format.split(",")]
        if "delta" not in formats and kind != "credentials":
            raise Refusal(
                501,
                "NOT_IMPLEMENTED",
                f"table {table} is not a Delta table; read it through the Iceberg catalog or with directory credentials",
            )
        if kind in ("version", "table"):
            version = self._queries.version(table, parameters.get("startingTimestamp"))
            return Response(200, b"", {"Delta-Table-Version": str(version)})
        if kind == "credentials":
            return vend(table, parameters.get("location"), self._vendors, self._settings)
        if kind != "metadata" and table.access_modes is not None and "url" not in table.access_modes:
            raise bad_request(f"table {table} is shared by directory only; its accessModes are {table.access_modes}")
        request = self._table_request(table, parameters, headers, base)
        if kind == "metadata":
            return self._queries.metadata(request)
        if kind == "changes":
            return self._queries.changes(request)
        if kind == "poll":
            return self._poll(segments[7], request)
        if request.capabilities.asynchronous:
            return self._submit(request)
        return self._queries.query(request)

    def _table_request(
        self, table: SharedTable, parameters: dict[str, Any], headers: Mapping[str, str], base: str
    ) -> TableRequest:
        capabilities = parse_capabilities(headers.get("delta-sharing-capabilities"), self._settings)
        hashed = headers.get("fileidhash")
        if hashed is not None and self._settings.file_id_hash and hashed.lower() not in ("parquet", "delta"):
            raise bad_request(f"Unsupported fileidhash: {hashed}")
        known = hashed.lower() if hashed is not None and self._settings.file_id_hash else None
        return TableRequest(table, parameters, capabilities, known, base)

    def _submit(self, request: TableRequest) -> Response:
        key = request.parameters.get("idempotencyKey") or request.parameters.get("idempotency_key")
        if not key:
            raise bad_request("idempotency_key is required for async query.")
        with self._lock:
            query_id = self._keys.get((str(request.table), str(key)))
            if query_id is None or query_id not in self._jobs:
                query_id = f"q-{uuid.uuid4()}"
                self._keys[(str(request.table), str(key))] = query_id
                self._jobs[query_id] = _Job(request)
                if len(self._jobs) > _JOBS:
                    self._jobs.popitem(last=False)
        return self._status(query_id, "pending")

    def _poll(self, query_id: str, request: TableRequest) -> Response:
        with self._lock:
            job = self._jobs.get(query_id)
            if job is None or job.request.table != request.table:
                raise not_found(f"query '{query_id}' is unknown or has expired")
            job.polls += 1
            pending = job.polls <= (self._settings.async_polls or 0)
        if pending:
            return self._status(query_id, "pending")
        if self._settings.async_error is not None:
            return self._status(query_id, "failed", self._settings.async_error)
        paging = {k: v for k, v in request.parameters.items() if k in ("maxFiles", "pageToken")}
        dropped = {"maxFiles", "pageToken"}
        dropped |= {"includeRefreshToken", "refreshToken"} if paging.get("pageToken") else set()
        parameters = {k: v for k, v in job.request.parameters.items() if k not in dropped}
        capabilities = replace(request.capabilities, asynchronous=False)
        return self._queries.query(
            replace(job.request, parameters={**parameters, **paging}, capabilities=capabilities, base=request.base)
        )

    def _status(self, query_id: str, status: str, error: str | None = None) -> Response:
        body: dict[str, Any] = {"queryId": query_id}
        if self._settings.async_status or status != "pending":
            body["status"] = status
        if error is not None:
            body["errorMessage"] = error
        headers = {"delta-sharing-capabilities": "asyncquery=true"}
        return lines_response([json.dumps({"queryStatus": body}).encode()], headers)

    def expire_queries(self) -> None:
        """Forget every asynchronous query."""
        with self._lock:
            self._jobs.clear()


def _body(body: bytes) -> dict[str, Any]:
    if not body.strip():
        return {}
    try:
        tree = json.loads(body)
    except ValueError:
        raise bad_request("The request body is not valid JSON.") from None
    if not isinstance(tree, dict):
        raise bad_request("The request body is not a JSON object.")
    return tree


#: The collections of a schema, and what one of each is.
COLLECTIONS = {"volumes": "volume", "models": "model", "skills": "skill"}
_MODEL_CREDENTIALS = ("temporary-model-version-credentials", "temporary-model-credentials")


class AssetEndpoints:
    """Routes requests for assets."""

    def __init__(self, catalog: Catalog, settings: ServerSettings, vendors: Mapping[str, CredentialVendor]) -> None:
        self._catalog, self._settings, self._vendors = catalog, settings, vendors
        self._assets: dict[tuple[str, str, str, str], SharedAsset] = {}

    def add(self, asset: SharedAsset) -> None:
        """Share an asset; replaces one of its collection and name."""
        self._catalog.add_schema(asset.share, asset.schema)
        self._assets[_key(asset.collection, asset.share, asset.schema, asset.name)] = asset

    def kind_of(self, segments: list[str]) -> str | None:
        """``all-volumes``, ``volumes``, ``volume``, ``volume-credentials``, the same of models and skills,
        ``model-versions``, ``model-version``, ``model-alias``; None for what is no asset's."""
        match segments:
            case ["shares", _, everything] if everything.removeprefix("all-") in COLLECTIONS:
                return everything
            case ["shares", _, "schemas", _, collection, *rest] if collection in COLLECTIONS:
                one = COLLECTIONS[collection]
                match rest:
                    case []:
                        return collection
                    case [_]:
                        return one
                    case [_, last] if one != "model" and last == f"temporary-{one}-credentials":
                        return f"{one}-credentials"
                    case [_, "versions"] if one == "model":
                        return "model-versions"
                    case [_, "versions", _] if one == "model":
                        return "model-version"
                    case [_, "aliases", _] if one == "model":
                        return "model-alias"
                    case [_, "versions", _, last] if one == "model" and last in _MODEL_CREDENTIALS:
                        return "model-credentials"
        return None

    def answer(self, kind: str, method: str, segments: list[str], parameters: Mapping[str, str]) -> Response:
        """Answer a request of a kind that ``kind_of`` gave; raises Refusal for an error answer."""
        last = segments[-1]
        if not self._settings.assets or last in self._settings.unknown_calls:
            raise not_found("the endpoint does not exist")
        if method != ("POST" if kind.endswith("-credentials") else "GET"):
            raise Refusal(405, "METHOD_NOT_ALLOWED", f"{method} is not allowed here")
        if kind.startswith("all-"):
            self._catalog.share(segments[1])
            return self._listing(kind.removeprefix("all-"), segments[1], None, parameters)
        self._catalog.schema(segments[1], segments[3])
        collection = segments[4]
        if kind == collection:
            return self._listing(collection, segments[1], segments[3], parameters)
        asset = self._assets.get(_key(collection, segments[1], segments[3], segments[5]))
        if asset is None:
            raise not_found(f"{COLLECTIONS[collection]} '{segments[5]}' does not exist")
        if kind == "model-versions":
            ready = [one.item() for one in asset.versions.values() if one.fields["status"] == "READY"]
            return json_response(page(ready, parameters, self._settings))
        if kind in ("model-version", "model-alias", "model-credentials"):
            asset = _version(asset, "alias" if kind == "model-alias" else "version", segments[7])
            if kind == "model-credentials" and asset.fields["status"] != "READY":
                raise bad_request(f"version {segments[7]} of model {asset} is {asset.fields['status']}, not READY")
        if kind.endswith("-credentials"):
            location = asset.location or ""
            body = credentials_of(location, asset, self._vendors, self._settings)
            return json_response(
                {"credentials": {"location": location, **body}} if self._settings.wrapped_assets else body
            )
        return json_response(asset.item())

    def _listing(self, collection: str, share: str, schema: str | None, parameters: Mapping[str, str]) -> Response:
        items = [
            asset.item()
            for (kind, of_share, of_schema, _), asset in self._assets.items()
            if kind == collection and of_share == share.lower() and (schema is None or of_schema == schema.lower())
        ]
        return json_response(page(items, parameters, self._settings))


def _version(model: SharedAsset, by: str, text: str) -> SharedAsset:
    number = model.aliases.get(text) if by == "alias" else int(text) if text.isdecimal() else None
    version = None if number is None else model.versions.get(number)
    if version is None:
        raise not_found(f"{by} '{text}' of model {model} does not exist")
    return version


def _key(collection: str, share: str, schema: str, name: str) -> tuple[str, str, str, str]:
    return collection, share.lower(), schema.lower(), name.lower()


class CredentialVendor(Protocol):
    """Makes credentials for one location of a table or an asset."""

    def __call__(self, location: str, table: SharedTable | SharedAsset) -> dict[str, Any]:
        """The ``credentials`` object: one kind of secret, and ``expirationTime`` in milliseconds.

        ``location`` is filled in where it is missing.
        """


def vend(
    table: SharedTable, asked: str | None, vendors: Mapping[str, CredentialVendor], settings: ServerSettings
) -> Response:
    """Answer a request for temporary credentials.

    Raises:
        Refusal: The table is not shared by directory, the location is not the table's, or nobody vends for its scheme.
    """
    if table.access_modes is None or "dir" not in table.access_modes:
        raise bad_request(f"Temporary table credentials are not supported on table: {table}")
    root = table.location if table.location is not None else table.root
    location = (asked or root).rstrip("/")
    if not any(_covers(known, location) for known in (root, *table.auxiliary_locations)):
        raise bad_request(f"The location {location} is not one of table {table}")
    body = credentials_of(location, table, vendors, settings)
    if settings.credential_location:
        body = {"location": location, **body}
    return json_response({"credentials": body} if settings.wrapped_credentials else body)


def credentials_of(
    location: str, shared: SharedTable | SharedAsset, vendors: Mapping[str, CredentialVendor], settings: ServerSettings
) -> dict[str, Any]:
    """One kind of secret for a location, and its expiry; raises Refusal where nobody vends for its scheme."""
    scheme = location.partition(":")[0]
    vendor = vendors.get(scheme)
    if vendor is not None:
        return vendor(location, shared)
    if scheme == "file":
        return {"expirationTime": int((time.time() + settings.credential_ttl) * 1000)}
    raise bad_request(f"Temporary credentials are not supported for scheme {scheme}")


def _covers(known: str, location: str) -> bool:
    known = known.rstrip("/")
    return location == known or location.startswith(known + "/")


@dataclass(slots=True)
class ShareEntry:
    """A share: its listing's fields and its schemas' tables, by lower-case names."""

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    schemas: dict[str, tuple[str, dict[str, SharedTable]]] = field(default_factory=dict)

    def item(self) -> dict[str, Any]:
        return {"name": self.name, "id": id_of(self.name), **self.fields}


class Catalog:
    """What the server shares."""

    def __init__(self) -> None:
        self._shares: dict[str, ShareEntry] = {}

    def add_share(self, name: str, **fields: Any) -> ShareEntry:
        """A share, with ``displayName``, ``comment``, ``properties``... of its listing."""
        entry = self._shares.setdefault(name.lower(), ShareEntry(name))
        entry.fields = {**entry.fields, **fields}
        return entry

    def add_schema(self, share: str, schema: str) -> None:
        self.add_share(share).schemas.setdefault(schema.lower(), (schema, {}))

    def add_table(self, table: SharedTable) -> None:
        self.add_schema(table.share, table.schema)
        self._shares[table.share.lower()].schemas[table.schema.lower()][1][table.name.lower()] = table

    def share(self, name: str) -> ShareEntry:
        entry = self._shares.get(name.lower())
        if entry is None:
            raise not_found(f"share '{name}' not found")
        return entry

    def schema(self, share: str, schema: str) -> tuple[str, dict[str, SharedTable]]:
        entry = self.share(share).schemas.get(schema.lower())
        if entry is None:
            raise not_found(f"schema '{schema}' not found")
        return entry

    def table(self, share: str, schema: str, table: str) -> SharedTable:
        entry = self.schema(share, schema)[1].get(table.lower())
        if entry is None:
            raise not_found(f"[Share/Schema/Table] '{share}/{schema}/{table}' does not exist")
        return entry

    def share_items(self) -> list[dict[str, Any]]:
        return [entry.item() for entry in self._shares.values()]

    def schema_items(self, share: str) -> list[dict[str, Any]]:
        entry = self.share(share)
        return [{"name": name, "share": entry.name} for name, _ in entry.schemas.values()]

    def table_items(self, share: str, schema: str | None = None) -> list[dict[str, Any]]:
        entry = self.share(share)
        schemas = entry.schemas.values() if schema is None else [self.schema(share, schema)]
        return [_table_item(table) for _, tables in schemas for table in tables.values()]


def _table_item(table: SharedTable) -> dict[str, Any]:
    more = {"comment": table.comment, "properties": dict(table.properties) or None}
    item = table.names() | table.directory_fields()
    return item | {name: value for name, value in more.items() if value is not None}


def page(items: Sequence[Any], parameters: Mapping[str, str], settings: ServerSettings) -> dict[str, Any]:
    """One page of a listing (``maxResults``, ``pageToken``)."""
    start, size = 0, settings.list_page_size
    if "maxResults" in parameters:
        size = min(size, _max_results(parameters["maxResults"]))
    if parameters.get("pageToken"):
        try:
            start = int(base64.urlsafe_b64decode(parameters["pageToken"]).decode().removeprefix("from:"))
        except ValueError:
            raise bad_request("invalid 'nextPageToken'") from None
    chosen = list(items[start : start + size])
    if settings.empty_pages and "pageToken" not in parameters:
        chosen, size = [], 0  # filtered after it was cut, as listings by type are
    tree: dict[str, Any] = {} if settings.missing_items and not chosen else {"items": chosen}
    if start + size < len(items):
        tree["nextPageToken"] = base64.urlsafe_b64encode(f"from:{start + size}".encode()).decode()
    elif not settings.missing_items:
        tree["nextPageToken"] = ""
    return tree


def _max_results(text: str) -> int:
    if not text.isdecimal() or int(text) > 500:
        raise bad_request("Acceptable values of 'maxResults' are 0 to 500, inclusive")
    return int(text)
