"""The protocol's endpoints, and those of OpenSharing's assets: paths to answers."""

from __future__ import annotations

import json
import threading
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl

from delta_sharing_spark.errors import DeltaSharingError, LogError, TableError
from delta_sharing_spark.testing.server.answers import TableRequest
from delta_sharing_spark.testing.server.capabilities import parse_capabilities
from delta_sharing_spark.testing.server.catalog import Catalog, described_table, page
from delta_sharing_spark.testing.server.credentials import CredentialVendor, credentials_of, vend
from delta_sharing_spark.testing.server.queries import TableQueries
from delta_sharing_spark.testing.server.responses import (
    Refusal,
    Response,
    bad_request,
    json_response,
    lines_response,
    not_found,
)
from delta_sharing_spark.testing.server.settings import ServerSettings, SharedAsset, SharedTable

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
    """Routes requests of the protocol.

    Args:
        catalog, queries, settings, vendors: Of the server.
    """

    def __init__(
        self,
        catalog: Catalog,
        queries: TableQueries,
        settings: ServerSettings,
        vendors: Mapping[str, CredentialVendor],
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
        """Answer one request.

        Raises:
            Refusal: An error answer.
        """
        parameters: dict[str, Any] = dict(parse_qsl(query, keep_blank_values=True))
        if kind == "unknown" or not self._known(kind):
            raise not_found("the endpoint does not exist")
        if self.assets.kind_of(segments) is not None:
            return self.assets.answer(kind, method, segments, parameters)
        if kind == "table" and method == "GET" and self._settings.get_table:
            table = self._catalog.table(segments[1], segments[3], segments[5])
            return json_response(described_table(table))
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
        dropped = {"maxFiles", "pageToken"} | (
            {"includeRefreshToken", "refreshToken"} if paging.get("pageToken") else set()
        )
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
    """Routes requests for assets.

    Args:
        catalog, settings, vendors: Of the server.
    """

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
        """Answer a request of a kind that ``kind_of`` gave.

        Raises:
            Refusal: An error answer.
        """
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
            asset = _version(
                asset, "version" if kind == "model-credentials" else kind.removeprefix("model-"), segments[7]
            )
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
