"""Shares, schemas and tables, found without case and listed in pages."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from delta_sharing_spark.testing.server.responses import bad_request, not_found
from delta_sharing_spark.testing.server.settings import ServerSettings, SharedTable, id_of


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
    item: dict[str, Any] = {
        "name": table.name,
        "schema": table.schema,
        "share": table.share,
        "shareId": id_of(table.share),
        "id": table.id or id_of(str(table)),
        **table.directory_fields(),
    }
    if table.comment is not None:
        item["comment"] = table.comment
    if table.properties:
        item["properties"] = dict(table.properties)
    return item


def described_table(table: SharedTable) -> dict[str, Any]:
    """The answer of Get Table (OpenSharing): the format, and nothing of its locations."""
    names = {"name": table.name, "schema": table.schema, "share": table.share, "shareId": id_of(table.share)}
    return {**names, "id": table.id or id_of(str(table)), "format": table.format}


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
