"""Holds the records of the protocol, parsed from lines of both response formats, listings and credentials; unknown fields are ignored."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, TypeVar

from delta_sharing_spark.errors import ResponseError
from delta_sharing_spark.options.values import camel_case
from delta_sharing_spark.schema.table_records import STATED_BESIDE, Metadata, Protocol, read_metadata, read_protocol
from delta_sharing_spark.storage.clouds.registry import kinds_on_wire

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class EndStreamAction:
    """The last line of a response, where there is one."""

    refresh_token: str | None = field(default=None, repr=False)
    next_page_token: str | None = field(default=None, repr=False)
    min_url_expiration_timestamp: int | None = None
    error_message: str | None = None
    http_status_error_code: int | None = None


@dataclass(frozen=True, slots=True)
class TableSnapshotHead:
    """The part of an answer before the files: version, response format, protocol and metadata."""

    version: int | None
    response_format: str
    protocol: Protocol
    metadata: Metadata


@dataclass(frozen=True, slots=True)
class Share:
    """A share of the server."""

    name: str
    id: str | None = None
    display_name: str | None = None
    comment: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema of a share."""

    name: str
    share: str
    id: str | None = None
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table in a listing."""

    name: str
    share: str
    schema: str
    share_id: str | None = None
    id: str | None = None
    comment: str | None = None
    location: str | None = None
    auxiliary_locations: tuple[str, ...] = ()
    access_modes: tuple[str, ...] = ()
    display_name: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    formats: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TemporaryCredentials:
    """Storage credentials of one location, as the server sent them; exactly one kind should be set.

    Attributes:
        secrets: By the field that holds it, such as ``awsTempCredentials`` (``storage.clouds.registry``).
    """

    location: str | None
    expiration_time: int | None
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)


_INTEGER = re.compile(r"(-?[0-9]{1,19})(?:\.0+)?")
#: Fields of an error's body, which a server that fails after it has sent its status can only add to its answer.
ERROR_FIELDS = ("errorCode", "error_code", "error", "message")


def parse_protocol(body: Any, table: str) -> tuple[Protocol, str, int | None]:
    """Parse a ``protocol`` line's body; returns the protocol, its response format (``parquet`` or ``delta``) and the line's version."""
    outer, tree, response_format = _bodies(body, "protocol", "deltaProtocol", table)
    if tree.get("minReaderVersion") is None:
        raise malformed("its protocol names no minReaderVersion", table)
    writer, features = tree.get("minWriterVersion"), tree.get("writerFeatures")
    # Of what reading needs not nothing is refused.
    fields = {
        "minReaderVersion": integer(tree.get("minReaderVersion"), "minReaderVersion", table),
        "readerFeatures": tree.get("readerFeatures"),
        "minWriterVersion": writer if type(writer) is int else None,
        "writerFeatures": [name for name in features if isinstance(name, str)] if isinstance(features, list) else None,
    }
    version = integer(outer.get("version"), "version", table)
    return _well_formed(table, read_protocol, fields), response_format, version


def parse_metadata(body: Any, table: str) -> Metadata:
    """A ``metaData`` line's body, of either format."""
    outer, tree, _ = _bodies(body, "metaData", "deltaMetadata", table)
    if not isinstance(tree.get("schemaString"), str):
        raise malformed("its metadata has no schemaString", table)
    # Of what reading needs not nothing is refused.
    fields = {
        **tree,
        **{name: _text_at(tree, name) for name in ("name", "description")},
        "id": _text_at(tree, "id") or "",
    }
    if isinstance(configuration := tree.get("configuration"), dict):
        fields["configuration"] = {key: None if value is None else words(value) for key, value in configuration.items()}
    around = {name: tree.get(name) if outer.get(name) is None else outer[name] for name in STATED_BESIDE.values()}
    around |= {name: integer(around[name], name, table) for name in ("numFiles", "size", "version")}
    around["location"] = _text_at(around, "location")
    beside = {field: around[name] for field, name in STATED_BESIDE.items() if around[name] is not None}
    metadata = _well_formed(table, read_metadata, fields, beside)
    return replace(metadata, access_modes=tuple(map(str.lower, metadata.access_modes)))


def parse_end(body: Any, table: str) -> EndStreamAction:
    """An ``endStreamAction``, wrapped or bare."""
    tree = _object(body, "endStreamAction", table)
    for name in ("nextPageToken", "refreshToken"):
        if not isinstance(tree.get(name), str | None):
            raise malformed(f"its {name} is not text", table)
    ends, status = (integer(tree.get(n), n, table) for n in ("minUrlExpirationTimestamp", "httpStatusErrorCode"))
    message = words(tree["errorMessage"]) if tree.get("errorMessage") else None
    return EndStreamAction(
        tree.get("refreshToken") or None, tree.get("nextPageToken") or None, ends or None, message, status or None
    )


def _bodies(body: Any, name: str, name_within: str, table: str) -> tuple[dict[str, Any], dict[str, Any], str]:
    """A line's body, the object of the log in it, and the response format: the parquet format has one object for both."""
    outer = _object(body, name, table)
    inner = outer.get(name_within)
    return (outer, outer, "parquet") if inner is None else (outer, _object(inner, name_within, table), "delta")


def _well_formed(table: str, read: Callable[..., _T], *arguments: Any) -> _T:
    """What ``read`` makes of an object of a line; raises ResponseError where it is of another form."""
    try:
        return read(*arguments)
    except ValueError as error:
        raise malformed(str(error), table) from None


def sole_name(tree: Mapping[str, Any], names: tuple[str, ...], what: str, table: str) -> str | None:
    """Which of some fields an object has; None for none of them, and ResponseError for several, of which all but one would be lost."""
    several = [name for name in names if tree.get(name) is not None]
    if len(several) > 1:
        raise malformed(f"{what} is {' and '.join(several)} at once", table)
    return several[0] if several else None


def words(value: Any) -> str:
    """What a server says in a field that should be text."""
    return value if isinstance(value, str) else json.dumps(value)


def quoted(value: Any) -> str:
    """A value of an answer, for an error; nothing is cut, because half a token that a server echoes cannot be recognised."""
    text = str(value)
    return repr(text) if len(text) <= 100 else f"a text of {len(text)} characters"


def _object(value: Any, name: str, table: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise malformed(f"its {name!r} is not an object", table)
    return value


def whole_number(value: Any) -> int | None:
    """A whole number; None for anything else. Some servers write those of 64 bits as text, as JavaScript needs them, or as ``7.0``."""
    if isinstance(value, str | float) and (match := _INTEGER.fullmatch(str(value))):
        return int(match[1])
    return value if type(value) is int else None


def integer(value: Any, name: str, table: str, least: int = -(1 << 63), most: int = (1 << 63) - 1) -> int | None:
    """A whole number within bounds, None for None; raises ResponseError for anything else."""
    if value is None:
        return None
    number = whole_number(value)
    if number is None:
        raise malformed(f"{name} is {quoted(value)}, not a whole number", table)
    if not least <= number <= most:
        # A number of thousands of digits cannot be written.
        text = number if abs(number) < 1 << 100 else f"a number of {number.bit_length()} bits"
        raise malformed(f"{name} is {text}, and must be {least} to {most}", table)
    return number


def _text_at(tree: Mapping[str, Any], name: str) -> str | None:
    return value if isinstance(value := tree.get(name), str) else None


def broken(why: str) -> ResponseError:
    """The error of an answer that breaks the protocol."""
    return ResponseError(f"{why}; ask the provider to check the server")


def no_server(why: str) -> ResponseError:
    """The error of an answer that no Delta Sharing server gives."""
    return ResponseError(f"{why}; check that the endpoint is a Delta Sharing server's")


def malformed(why: str, table: str) -> ResponseError:
    """The error of a line that is not as the protocol says."""
    return broken(f"the server's answer for {table} breaks the protocol: {why}")


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
    tokens: set[str] = set()
    empty = 0
    while True:
        page = fetch(params)
        items = page.get("items")
        if items is not None and not isinstance(items, list):
            raise no_server("a listing's 'items' is not a list")
        yield from map(parse, items or [])
        errors = [words(page[name]) for name in ERROR_FIELDS if page.get(name)] if items is None else []
        if errors:
            raise broken(f"a listing holds an error: {': '.join(errors)}")
        token = page.get("nextPageToken")
        if token is None or token == "":
            return
        if not isinstance(token, str):
            raise broken("a listing's page token is not text")
        if token in tokens:
            raise broken("a listing's page token came twice")
        tokens.add(token)
        empty = 0 if items else empty + 1
        if empty >= MOST_EMPTY_PAGES or len(tokens) >= MOST_PAGES or len(token) > LONGEST_PAGE_TOKEN:
            raise broken(f"a listing goes on after {len(tokens)} pages, {empty} of them empty at the end")
        params = {"maxResults": _PAGE, "pageToken": token}


def parse_item(kind: type[_R], item: Any, name_field: str = "name", **defaults: Any) -> _R:
    """A record of an answer, each field of which stands there under its name in camel case.

    Args:
        item: An item of a listing, or the answer that describes one.
        name_field: The field that an answer must have.
        **defaults: What fields are where the answer says nothing of them.

    Raises:
        ResponseError: The item is no object, or lacks the field ``name_field``.
    """
    if not isinstance(item, dict) or not isinstance(item.get(name_field), str):
        raise no_server(f"an item of the server's answer is without a {name_field}")
    make: Any = kind
    read = ((field, name, _PARSED.get(name, _PARSED.get(of_type, _text_at))) for field, name, of_type in _names(make))
    values = {field: value for field, name, parse in read if (value := parse(item, name)) or name == name_field}
    record: _R = make(**{**defaults, **values})
    return record


@lru_cache(maxsize=16)
def _names(kind: Any) -> list[tuple[str, str, str]]:
    """The fields of a record, their names in answers, and their types."""
    return [(field.name, camel_case(field.name), str(field.type)) for field in fields(kind)]


def _formats_at(tree: Mapping[str, Any], _: str) -> tuple[str, ...]:
    """The formats that a table may be read in, in lower case: a name, or several by commas."""
    return tuple(name for part in (_text_at(tree, "format") or "").split(",") if (name := part.strip().lower()))


def parse_credentials(tree: Mapping[str, Any], table: str) -> TemporaryCredentials:
    """Parse the answer of Generate Temporary Table Credential; raises ResponseError where it has no ``credentials``."""
    inner = tree.get("credentials", tree)
    if not isinstance(inner, dict):
        raise broken(f"the storage credentials of {table} are not an object")
    expires = whole_number(inner.get("expirationTime"))
    return TemporaryCredentials(
        _text_at(inner, "location"),
        expires if expires is not None and expires < _LATEST else None,
        {
            name: {part: text if isinstance(text, str) else "" for part, text in inner[name].items()}
            for name in kinds_on_wire()
            if isinstance(inner.get(name), dict)
        },
    )


def _texts_at(tree: Mapping[str, Any], name: str) -> dict[str, str]:
    value = tree.get(name)
    return {str(k): str(v) for k, v in value.items() if v is not None} if isinstance(value, dict) else {}


def _strings_at(tree: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = tree.get(name)
    return tuple(str(v) for v in value) if isinstance(value, list) else ()


#: How an item's fields are read that are no texts, by their types, or by their names in answers.
_PARSED: Mapping[str, Callable[[Mapping[str, Any], str], Any]] = {
    "accessModes": lambda tree, name: tuple(mode.lower() for mode in _strings_at(tree, name)),
    "formats": _formats_at,
    "tuple[str, ...]": _strings_at,
    "Mapping[str, str]": _texts_at,
}
