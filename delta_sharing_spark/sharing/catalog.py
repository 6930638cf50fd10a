"""Reads listings of shares, schemas and tables page by page, and temporary credentials."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any, TypeVar

from delta_sharing_spark.errors import ResponseError
from delta_sharing_spark.sharing.wire_records import TemporaryCredentials

_T = TypeVar("_T")
_R = TypeVar("_R")
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


def parse_item(kind: type[_R], item: Any, needed: str = "name", **known: Any) -> _R:
    """A record of an answer, each field of which stands there under its name in camel case.

    Args:
        item: An item of a listing, or the answer that describes one.
        needed: The field that an answer must have.
        **known: What fields are where the answer says nothing of them.

    Raises:
        ResponseError: The item is no object, or lacks the field ``needed``.
    """
    if not isinstance(item, dict) or not isinstance(item.get(needed), str):
        raise ResponseError(
            f"an item of the server's answer is without a {needed}; check that the endpoint is a Delta Sharing server's"
        )
    make: Any = kind
    told = {field: value for field, name, read in _fields(make) if (value := read(item, name)) or name == needed}
    record: _R = make(**{**known, **told})
    return record


@lru_cache(maxsize=16)
def _fields(kind: Any) -> list[tuple[str, str, Callable[[Mapping[str, Any], str], Any]]]:
    """The fields of a record, their names in answers, and what reads them there."""
    names = {field.name: re.sub(r"_(\w)", lambda letter: letter[1].upper(), field.name) for field in fields(kind)}
    return [(field, name, _PARSED.get(name, _text)) for field, name in names.items()]


def _formats(tree: Mapping[str, Any], _: str) -> tuple[str, ...]:
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


def _texts(tree: Mapping[str, Any], name: str) -> dict[str, str]:
    value = tree.get(name)
    return {str(k): str(v) for k, v in value.items() if v is not None} if isinstance(value, dict) else {}


def _text(tree: Mapping[str, Any], name: str) -> str | None:
    value = tree.get(name)
    return value if isinstance(value, str) else None


def _strings(tree: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = tree.get(name)
    return tuple(str(v) for v in value) if isinstance(value, list) else ()


#: How fields are read that are no texts, by their names in answers.
_PARSED: Mapping[str, Callable[[Mapping[str, Any], str], Any]] = {
    "accessModes": lambda tree, name: tuple(mode.lower() for mode in _strings(tree, name)),
    "auxiliaryLocations": _strings,
    "formats": _formats,
    "metadata": _texts,
    "properties": _texts,
}
