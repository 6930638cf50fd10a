"""The Iceberg REST catalog of the embedded server's shares (Iceberg REST catalog, as OpenSharing asks for it)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

from delta_sharing_spark.testing.server.responses import Refusal, Request, Response, json_response

#: Where the catalog's paths begin.
ICEBERG = "/iceberg"
_TABLE = re.compile(r"/namespaces/([^/]+)/tables/([^/]+)(/credentials)?")
_TABLES = re.compile(r"/namespaces/([^/]+)/tables")
_VIEW = re.compile(r"/namespaces/([^/]+)/views/([^/]+)")

#: Properties of a table, or what makes them anew.
Properties = Mapping[str, str] | Callable[[], Mapping[str, str]]


@dataclass(slots=True)
class IcebergTable:
    """A table of the catalog.

    Attributes:
        metadata_location: Where its newest metadata document lies, for clients.
        metadata_path: The same document, a local file.
        config: Properties that are vended with it, or what makes them anew for each answer.
        storage_credentials: Prefixes with properties of their own.
    """

    metadata_location: str
    metadata_path: str
    config: Properties = field(default_factory=dict, repr=False)
    storage_credentials: Sequence[Mapping[str, Any]] = field(default=(), repr=False)


@dataclass(slots=True)
class IcebergCatalog:
    """What the catalog holds, and how it behaves; may be changed while it runs.

    Attributes:
        tables: By share, schema and table.
        prefix_in: Where the answer to config names the prefix; None: nowhere.
        overrides: Further overrides of that answer.
        announces_credentials: Whether credentials can be asked for alone.
        views: Names of views, as share, schema and view; one makes the catalog announce that it has some.
        page_size: Items of a page of a listing, and after each such page an empty one; None: all in one page.
        refusal: What every request is refused with, if it is: status, and whether in Iceberg's shape.
        loads, renewals: How often a table was loaded, and its credentials asked for alone.
    """

    tables: dict[tuple[str, str, str], IcebergTable] = field(default_factory=dict)
    prefix_in: str | None = "overrides"
    overrides: Mapping[str, str] = field(default_factory=dict)
    announces_credentials: bool = False
    views: set[tuple[str, str, str]] = field(default_factory=set)
    page_size: int | None = None
    refusal: tuple[int, bool] | None = None
    loads: int = 0
    renewals: int = 0

    def add(self, name: str, path: str | os.PathLike[str], location: str | None = None, **fields: Any) -> IcebergTable:
        """Share the table whose newest metadata document is the file ``path``, as ``share.schema.table``."""
        share, schema, table = name.rsplit(".", 2)
        local = os.path.abspath(path)
        iceberg_table = IcebergTable(Path(local).as_uri() if location is None else location, local, **fields)
        self.tables[share, schema, table] = iceberg_table
        return iceberg_table

    def answer(self, request: Request) -> Response:
        """Answer one request; errors have the catalog's shape."""
        if self.refusal is not None:
            status, is_own = self.refusal
            if not is_own:
                raise Refusal(status, "REFUSED", "refused by a filter")
            return _error(status, "RefusedException", "refused by the catalog")
        path = request.path.removeprefix(f"{ICEBERG}/v1")
        if path == "/config":
            return self._config(dict(parse_qsl(request.query)))
        share = next(iter({key[0] for key in self.tables}), "")
        if self.prefix_in is not None:
            match = re.match(r"/shares/([^/]+)", path)
            if match is None:
                return _error(400, "BadRequestException", "the prefix is missing")
            share, path = unquote(match[1]), path[match.end() :]
        if path == "/namespaces":
            return self._listing(
                "namespaces", [[s] for s in sorted({s for d, s, _ in self.tables if d == share})], request
            )
        if match := _TABLES.fullmatch(path):
            schema = unquote(match[1])
            names = [{"namespace": [s], "name": t} for d, s, t in self.tables if (d, s) == (share, schema)]
            if not names:
                return _error(404, "NoSuchNamespaceException", "there is no such namespace")
            return self._listing("identifiers", names, request)
        if (match := _VIEW.fullmatch(path)) and (share, unquote(match[1]), unquote(match[2])) in self.views:
            return json_response({"metadata": {"view-uuid": unquote(match[2])}})
        match = _TABLE.fullmatch(path)
        table = None if match is None else self.tables.get((share, unquote(match[1]), unquote(match[2])))
        if match is None or table is None:
            return _error(404, "NoSuchTableException", "there is no such table")
        if match[3]:
            self.renewals += 1
            return json_response({"storage-credentials": _listed(table)})
        self.loads += 1
        with open(table.metadata_path, encoding="utf-8") as file:
            metadata = json.load(file)
        return json_response(
            {
                "metadata-location": table.metadata_location,
                "metadata": metadata,
                "config": _properties(table.config),
                "storage-credentials": _listed(table),
            }
        )

    def _listing(self, name: str, items: Sequence[Any], request: Request) -> Response:
        """A page of a listing: the place of its token tells half-pages, of which every second one is empty."""
        if self.page_size is None:
            return json_response({name: items, "next-page-token": None})
        half = int(dict(parse_qsl(request.query)).get("pageToken") or 0)
        start = half // 2 * self.page_size
        end = start + self.page_size
        page = [] if half % 2 else items[start:end]
        is_last = half % 2 == 0 and end >= len(items)
        return json_response({name: page, "next-page-token": None if is_last else str(half + 1)})

    def _config(self, parameters: Mapping[str, str]) -> Response:
        prefix = {"prefix": f"shares/{parameters.get('warehouse', '')}"}
        tree: dict[str, Any] = {"defaults": {}, "overrides": dict(self.overrides)}
        if self.prefix_in is not None:
            tree[self.prefix_in] |= prefix
        base = "/v1/{prefix}/namespaces/{namespace}/tables/{table}"
        tree["endpoints"] = [f"GET {base}", *([f"GET {base}/credentials"] if self.announces_credentials else [])]
        if self.views:
            tree["endpoints"].append("GET /v1/{prefix}/namespaces/{namespace}/views/{view}")
        return json_response(tree)


def _properties(config: Properties) -> dict[str, str]:
    return dict(config() if callable(config) else config)


def _listed(table: IcebergTable) -> list[dict[str, Any]]:
    return [{"prefix": one["prefix"], "config": _properties(one["config"])} for one in table.storage_credentials]


def _error(status: int, kind: str, message: str) -> Response:
    return json_response({"error": {"message": message, "type": kind, "code": status}}, status)
