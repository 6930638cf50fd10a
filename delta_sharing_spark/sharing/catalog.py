"""Reads listings of shares, schemas and tables page by page, and temporary credentials."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from delta_sharing_spark.errors import ResponseError
from delta_sharing_spark.sharing.wire_records import Schema, Share, Table, TemporaryCredentials

_T = TypeVar("_T")
_PAGE = "500"
#: The end of the year 9999, in milliseconds since the epoch: no instant after it can be shown or compared.
_LATEST = 253_402_300_800_000
#: What a listing or the pages of a query may have: pages, pages without an item in a row, characters of a page's token.
MOST_PAGES, MOST_EMPTY_PAGES, LONGEST_PAGE_TOKEN = 100_000, 100, 1 << 20


def walk_pages(fetch: Callable[[Mapping[str, str]], Mapping[str, Any]], parse: Callable[[Any], _T]) -> Iterator[_T]:
    """All items of a paged listing: ``items`` and ``nextPageToken`` may be missing or empty.

    Raises:
        ResponseError: A page token is repeated, the pages do not end, or an item lacks its name.
    """
    params = {"maxResults": _PAGE}
    seen: set[str] = set()
    empty = 0
    while True:
        page = fetch(params)
        items = page.get("items")
        if items is not None and not isinstance(items, list):
            raise ResponseError(
                "a listing's 'items' is not a list; check that the endpoint is a Delta Sharing server's"
            )
        yield from map(parse, items or [])
        token = page.get("nextPageToken")
        if not token:
            return
        if not isinstance(token, str) or token in seen:
            raise ResponseError("a listing's page token came twice; ask the provider to check the server")
        seen.add(token)
        empty = 0 if items else empty + 1
        if empty >= MOST_EMPTY_PAGES or len(seen) >= MOST_PAGES or len(token) > LONGEST_PAGE_TOKEN:
            raise ResponseError(
                f"a listing goes on after {len(seen)} pages, {empty} of them empty at the end; ask the provider to check the server"
            )
        params = {"maxResults": _PAGE, "pageToken": token}


def parse_share_item(item: Any) -> Share:
    """A share of a listing, or the answer of Get Share."""
    tree = _named(item)
    return Share(tree["name"], _text(tree, "id"), _text(tree, "displayName"), _text(tree, "comment"), _properties(tree))


def parse_schema_item(item: Any, share: str) -> Schema:
    """A schema of the listing of ``share``."""
    tree = _named(item)
    return Schema(tree["name"], _text(tree, "share") or share, _text(tree, "id"), _text(tree, "comment"))


def parse_table_item(item: Any, share: str, schema: str = "") -> Table:
    """A table of the listing of ``share``, or of one ``schema`` of it."""
    tree = _named(item)
    return Table(
        tree["name"],
        _text(tree, "schema") or schema,
        _text(tree, "share") or share,
        _text(tree, "shareId"),
        _text(tree, "id"),
        _text(tree, "comment"),
        _text(tree, "location"),
        _strings(tree, "auxiliaryLocations"),
        tuple(m.lower() for m in _strings(tree, "accessModes")),
        _text(tree, "displayName"),
        _properties(tree),
        formats_of(tree),
    )


def formats_of(tree: Mapping[str, Any]) -> tuple[str, ...]:
    """The formats that a table may be read in, in lower case: a name, or several by commas."""
    return tuple(name for part in (_text(tree, "format") or "").split(",") if (name := part.strip().lower()))


def parse_credentials(tree: Mapping[str, Any], table: str) -> TemporaryCredentials:
    """Parse the answer of Generate Temporary Table Credential; the credentials are checked where they are used.

    Raises:
        ResponseError: The answer has no ``credentials``.
    """
    inner = tree.get("credentials", tree)
    if not isinstance(inner, dict):
        raise ResponseError(
            f"the storage credentials of {table} are not an object; ask the provider to check the server"
        )
    expires = inner.get("expirationTime")
    if isinstance(expires, str) and expires.isascii() and expires.isdigit() and len(expires) < 16:
        expires = int(expires)
    return TemporaryCredentials(
        _text(inner, "location"),
        expires if isinstance(expires, int) and not isinstance(expires, bool) and expires < _LATEST else None,
        _secrets(inner.get("awsTempCredentials")),
        _secrets(inner.get("azureUserDelegationSas")),
        _secrets(inner.get("gcpOauthToken")),
        _secrets(inner.get("r2Credentials")),
    )


def _secrets(tree: Any) -> dict[str, str] | None:
    return {str(k): v if isinstance(v, str) else "" for k, v in tree.items()} if isinstance(tree, dict) else None


def _named(item: Any) -> dict[str, Any]:
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        raise ResponseError("a listing has an item without a name; check that the endpoint is a Delta Sharing server's")
    return item


def _properties(tree: Mapping[str, Any]) -> dict[str, str]:
    properties = tree.get("properties")
    return {str(k): str(v) for k, v in properties.items() if v is not None} if isinstance(properties, dict) else {}


def _text(tree: Mapping[str, Any], name: str) -> str | None:
    value = tree.get(name)
    return value if isinstance(value, str) else None


def _strings(tree: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = tree.get(name)
    return tuple(str(v) for v in value) if isinstance(value, list) else ()
