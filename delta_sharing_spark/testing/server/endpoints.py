"""The protocol's endpoints and those of OpenSharing's assets: what is shared, listings, temporary credentials, paths to answers."""

from __future__ import annotations

import base64
import json
import threading
import time
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
    Request,
    Response,
    bad_request,
    json_response,
    lines_response,
    not_found,
    segments,
)
from delta_sharing_spark.testing.server.settings import ServerSettings, SharedAsset, SharedTable, id_of

#: Asynchronous queries that are remembered.
_JOBS = 1000
_TABLE, _MODEL = "shares/*/schemas/*/tables/*", "shares/*/schemas/*/models/*"
#: The collections of a schema, and what one of each is.
_ONE = {"tables": "table", "volumes": "volume", "models": "model", "skills": "skill"}
_PATHS = {
    "shares": "shares",
    "shares/*": "share",
    "shares/*/schemas": "schemas",
    **{f"shares/*/all-{collection}": f"all-{collection}" for collection in _ONE},
    **{f"shares/*/schemas/*/{collection}": collection for collection in _ONE},
    **{f"shares/*/schemas/*/{collection}/*": one for collection, one in _ONE.items()},
    **{f"{_TABLE}/{kind}": kind for kind in ("version", "metadata", "query", "changes")},
    f"{_TABLE}/queries/*": "poll",
    f"{_TABLE}/temporary-table-credentials": "credentials",
    **{f"shares/*/schemas/*/{one}s/*/temporary-{one}-credentials": f"{one}-credentials" for one in ("volume", "skill")},
    f"{_MODEL}/versions": "model-versions",
    f"{_MODEL}/versions/*": "model-version",
    f"{_MODEL}/aliases/*": "model-alias",
    f"{_MODEL}/versions/*/temporary-model-version-credentials": "model-credentials",
    f"{_MODEL}/versions/*/temporary-model-credentials": "model-credentials",
}
_KINDS = {tuple(path.split("/")): kind for path, kind in _PATHS.items()}


def kind_of(parts: Sequence[str]) -> str:
    """What a path asks for: ``shares``, ``share``, ``schemas``; of tables ``tables``, ``all-tables``, ``table``, ``version``,
    ``metadata``, ``query``, ``poll``, ``changes``, ``credentials``; of volumes ``volumes``, ``all-volumes``, ``volume``,
    ``volume-credentials``, the same of skills and models, ``model-versions``, ``model-version``, ``model-alias``; or ``unknown``."""
    return _KINDS.get(tuple("*" if place % 2 else part for place, part in enumerate(parts)), "unknown")


@dataclass(slots=True)
class _Job:
    """An asynchronous query."""

    request: TableRequest
    polls: int = 0


class Endpoints:
    """Answers requests of the protocol, and of OpenSharing's assets."""

    def __init__(
        self, catalog: Catalog, queries: TableQueries, settings: ServerSettings, vendors: Mapping[str, CredentialVendor]
    ) -> None:
        self._catalog, self._queries, self._settings, self._vendors = catalog, queries, settings, vendors
        self._jobs: OrderedDict[str, _Job] = OrderedDict()
        self._lock = threading.Lock()

    def answer(self, request: Request) -> Response:
        """Answer one request; raises Refusal for an error answer."""
        kind, parts = request.kind, segments(request.path)
        names = parts[1::2]
        parameters: dict[str, Any] = dict(parse_qsl(request.query, keep_blank_values=True))
        if not self._has_endpoint(request):
            raise not_found("the endpoint does not exist")
        is_described = kind == "table" and request.method == "GET" and self._settings.get_table
        if request.method != ("GET" if is_described else _method(kind)):
            raise Refusal(405, "METHOD_NOT_ALLOWED", f"{request.method} is not allowed here")
        if kind == "share":
            return json_response({"share": self._catalog.share(names[0]).item()})
        collection = kind.removeprefix("all-")
        if collection in ("shares", "schemas", *_ONE):
            return json_response(page(self._catalog.items(collection, *names), parameters, self._settings))
        shared = self._catalog.get(parts[4], *names[:3])
        if isinstance(shared, SharedAsset):
            return self._asset(shared, request, parameters)
        if is_described:
            return json_response({**shared.names(), "format": shared.format})  # and nothing of its locations
        try:
            return self._table(shared, request, _body(request) if request.method == "POST" else parameters)
        except DeltaSharingError as error:
            if isinstance(error, TableError) and not isinstance(error, LogError):
                raise bad_request(str(error)) from error
            raise Refusal(500, "INTERNAL_ERROR", str(error)) from error

    def _has_endpoint(self, request: Request) -> bool:
        kind, settings = request.kind, self._settings
        if kind.removeprefix("all-").startswith(("volume", "model", "skill")):
            return settings.assets and segments(request.path)[-1] not in settings.unknown_calls
        gone = {"unknown": True, "all-tables": not settings.all_tables, "version": not settings.version_by_get}
        return not {**gone, "poll": settings.async_polls is None}.get(kind, False)

    def _asset(self, asset: SharedAsset, request: Request, parameters: Mapping[str, str]) -> Response:
        kind, named = request.kind, segments(request.path)[7:8]
        if kind == "model-versions":
            ready = [one.item() for one in asset.versions.values() if one.fields["status"] == "READY"]
            return json_response(page(ready, parameters, self._settings))
        if named:
            asset = _version(asset, "alias" if kind == "model-alias" else "version", named[0])
        if not kind.endswith("-credentials"):
            return json_response(asset.item())
        if asset.fields.get("status", "READY") != "READY":
            raise bad_request(f"version {named[0]} of model {asset} is {asset.fields['status']}, not READY")
        location = asset.location or ""
        body = credentials_of(location, asset, self._vendors, self._settings)
        return json_response({"credentials": {"location": location, **body}} if self._settings.wrapped_assets else body)

    def _table(self, table: SharedTable, asked: Request, parameters: dict[str, Any]) -> Response:
        kind, settings = asked.kind, self._settings
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
            return vend(table, parameters.get("location"), self._vendors, settings)
        if kind != "metadata" and table.access_modes is not None and "url" not in table.access_modes:
            raise bad_request(f"table {table} is shared by directory only; its accessModes are {table.access_modes}")
        capabilities = parse_capabilities(asked.headers.get("delta-sharing-capabilities"), settings)
        hashed = asked.headers.get("fileidhash", "").lower() if settings.file_id_hash else ""
        if hashed not in ("", "parquet", "delta"):
            raise bad_request(f"Unsupported fileidhash: {hashed}")
        request = TableRequest(table, parameters, capabilities, hashed or None, asked.base)
        if kind == "metadata":
            return self._queries.metadata(request)
        if kind == "changes":
            return self._queries.changes(request)
        if kind == "poll":
            return self._poll(segments(asked.path)[7], request)
        return self._submit(request) if capabilities.asynchronous else self._queries.query(request)

    def _submit(self, request: TableRequest) -> Response:
        key = request.parameters.get("idempotencyKey") or request.parameters.get("idempotency_key")
        if not key:
            raise bad_request("idempotency_key is required for async query.")
        query_id = f"q-{id_of(f'{request.table} {key}')}"
        with self._lock:
            self._jobs.setdefault(query_id, _Job(request))
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
        word = status if self._settings.async_status or status != "pending" else None
        fields = {"queryId": query_id, "status": word, "errorMessage": error}
        body = {name: value for name, value in fields.items() if value is not None}
        headers = {"delta-sharing-capabilities": "asyncquery=true"}
        return lines_response([json.dumps({"queryStatus": body}).encode()], headers)

    def expire_queries(self) -> None:
        """Forget every asynchronous query."""
        with self._lock:
            self._jobs.clear()


def _body(request: Request) -> dict[str, Any]:
    try:
        tree = request.json
    except ValueError:
        raise bad_request("The request body is not valid JSON.") from None
    if not isinstance(tree, dict):
        raise bad_request("The request body is not a JSON object.")
    return tree


def _method(kind: str) -> str:
    return "POST" if kind in ("query", "poll") or kind.endswith("credentials") else "HEAD" if kind == "table" else "GET"


def _version(model: SharedAsset, by: str, text: str) -> SharedAsset:
    number = model.aliases.get(text) if by == "alias" else int(text) if text.isdecimal() else None
    version = None if number is None else model.versions.get(number)
    if version is None:
        raise not_found(f"{by} '{text}' of model {model} does not exist")
    return version


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
    locations = [one.rstrip("/") for one in (root, *table.auxiliary_locations)]
    if not any(location == one or location.startswith(f"{one}/") for one in locations):
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


@dataclass(slots=True)
class ShareEntry:
    """A share: its listing's fields, and its schemas' names and items, by lower-case names; items also by their collections."""

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    schemas: dict[str, tuple[str, dict[tuple[str, str], SharedTable | SharedAsset]]] = field(default_factory=dict)

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

    def add(self, shared: SharedTable | SharedAsset) -> None:
        """Share a table or an asset; it replaces one of its collection and name."""
        self.add_schema(shared.share, shared.schema)
        items = self._shares[shared.share.lower()].schemas[shared.schema.lower()][1]
        items[shared.collection, shared.name.lower()] = shared

    def share(self, name: str) -> ShareEntry:
        entry = self._shares.get(name.lower())
        if entry is None:
            raise not_found(f"share '{name}' not found")
        return entry

    def find(self, collection: str, share: str, schema: str, name: str) -> SharedTable | SharedAsset | None:
        """A table or an asset; None where there is none."""
        entry = self._shares.get(share.lower(), ShareEntry(share)).schemas.get(schema.lower(), (schema, {}))
        return entry[1].get((collection, name.lower()))

    def get(self, collection: str, share: str, schema: str, name: str) -> SharedTable | SharedAsset:
        """As ``find``; raises Refusal (404) where there is none."""
        shared = self.find(collection, share, schema, name)
        if shared is None:
            self.items(collection, share, schema)
            what = (
                f"[Share/Schema/Table] '{share}/{schema}/{name}'"
                if collection == "tables"
                else f"{_ONE[collection]} '{name}'"
            )
            raise not_found(f"{what} does not exist")
        return shared

    def table(self, share: str, schema: str, table: str) -> SharedTable:
        shared = self.get("tables", share, schema, table)
        assert isinstance(shared, SharedTable)
        return shared

    def items(self, collection: str, share: str | None = None, schema: str | None = None) -> list[dict[str, Any]]:
        """The items of a listing: ``shares``, the ``schemas`` of a share, or a collection of a share or of one schema."""
        if share is None:
            return [entry.item() for entry in self._shares.values()]
        entry = self.share(share)
        if collection == "schemas":
            return [{"name": name, "share": entry.name} for name, _ in entry.schemas.values()]
        schemas = list(entry.schemas.values()) if schema is None else [entry.schemas.get(schema.lower())]
        if None in schemas:
            raise not_found(f"schema '{schema}' not found")
        return [one.item() for held in schemas if held for (kind, _), one in held[1].items() if kind == collection]


def page(items: Sequence[Any], parameters: Mapping[str, str], settings: ServerSettings) -> dict[str, Any]:
    """One page of a listing (``maxResults``, ``pageToken``)."""
    start, size = 0, settings.list_page_size
    asked = parameters.get("maxResults", "500")
    if not asked.isdecimal() or int(asked) > 500:
        raise bad_request("Acceptable values of 'maxResults' are 0 to 500, inclusive")
    size = min(size, int(asked))
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
