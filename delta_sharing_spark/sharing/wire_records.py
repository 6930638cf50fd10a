"""Holds the records of the protocol, parsed from lines of both response formats, listings and credentials; unknown fields are ignored."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, TypeVar

from delta_sharing_spark.errors import ResponseError
from delta_sharing_spark.options.values import camel_case
from delta_sharing_spark.scan.plan import DeletionVector
from delta_sharing_spark.storage.clouds.registry import kinds_on_wire


@dataclass(frozen=True, slots=True)
class Protocol:
    """A protocol line: the reader version and features that a table asks for, and those of writers, which reading needs not."""

    min_reader_version: int
    reader_features: tuple[str, ...] = ()
    min_writer_version: int | None = field(default=None, compare=False)
    writer_features: tuple[str, ...] = field(default=(), compare=False)

    def __call__(self, use_delta_format: bool = True) -> Protocol:
        """Itself: the reference client has a method where a table here has a property."""
        return self


@dataclass(frozen=True, slots=True)
class Format:
    """The format of a table's files, as the reference client names it."""

    provider: str
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Metadata:
    """A table's metadata; ``location`` and what follows belong to directory access."""

    id: str
    schema_string: str
    partition_columns: tuple[str, ...]
    provider: str = "parquet"
    name: str | None = None
    description: str | None = None
    configuration: Mapping[str, str] = field(default_factory=dict)
    num_files: int | None = None
    size: int | None = None
    version: int | None = None
    location: str | None = None
    auxiliary_locations: tuple[str, ...] = ()
    access_modes: tuple[str, ...] = ()
    created_time: int | None = None

    def __call__(self, use_delta_format: bool = True) -> Metadata:
        """Itself: the reference client has a method where a table here has a property."""
        return self

    @property
    def format(self) -> Format:
        """The format of the files."""
        return Format(self.provider)

    @property
    def shape(self) -> tuple[object, ...]:
        """The parts of metadata that rows depend on."""
        return self.schema_string, self.partition_columns, self.provider, self.configuration

    def _repr_html_(self) -> str:
        from delta_sharing_spark.schema.markup import html_table

        shown = ((f.name, getattr(self, f.name)) for f in fields(self) if f.name != "schema_string")
        return html_table([], [[name, _in_words(value)] for name, value in shown if value not in (None, (), {})])


def _in_words(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {text}" for name, text in value.items())
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


@dataclass(slots=True)
class FileRecord:
    """One file line of either format. ``kind`` is ``"add"``, ``"cdf"`` or ``"remove"``; times are milliseconds.

    ``partition_values`` is None where the line has none.
    """

    kind: str
    id: str
    url: str = field(repr=False)
    size: int
    partition_values: Mapping[str, str | None] | None
    stats: str | None = field(default=None, repr=False)
    expiration_timestamp: int | None = None
    version: int | None = None
    timestamp: int | None = None
    deletion_vector: DeletionVector | None = None
    data_change: bool = True


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
#: What a ``metaData`` line of the delta format says beside the table's own metadata, and the parquet format within it.
_AROUND = ("numFiles", "size", "version", "location", "auxiliaryLocations", "accessModes")


def parse_protocol(body: Any, table: str) -> tuple[Protocol, str, int | None]:
    """Parse a ``protocol`` line's body; returns the protocol, its response format (``parquet`` or ``delta``) and the line's version."""
    outer = _object(body, "protocol", table)
    inner = outer.get("deltaProtocol")
    tree = outer if inner is None else _object(inner, "deltaProtocol", table)
    reader_version = _integer_of(tree, "minReaderVersion", table)
    if reader_version is None:
        raise malformed("its protocol names no minReaderVersion", table)
    protocol = Protocol(
        reader_version,
        _strings(tree, "readerFeatures", table),
        # Of what reading needs not nothing is refused.
        writer if isinstance(writer := tree.get("minWriterVersion"), int) else None,
        tuple(filter(_text, found)) if isinstance(found := tree.get("writerFeatures"), list) else (),
    )
    return protocol, "parquet" if inner is None else "delta", _integer_of(outer, "version", table)


def parse_metadata(body: Any, table: str) -> Metadata:
    """A ``metaData`` line's body, of either format."""
    outer = _object(body, "metaData", table)
    inner = outer.get("deltaMetadata")
    tree = outer if inner is None else _object(inner, "deltaMetadata", table)
    schema_string = tree.get("schemaString")
    if not isinstance(schema_string, str):
        raise malformed("its metadata has no schemaString", table)
    provider = tree.get("format")
    if provider is not None and not isinstance(_object(provider, "format", table).get("provider"), str | None):
        raise malformed("its format names a provider that is not text", table)
    if not isinstance(tree.get("createdTime"), int):  # which reading needs not
        tree = {name: value for name, value in tree.items() if name != "createdTime"}
    around = {name: outer[name] for name in _AROUND if outer.get(name) is not None}
    told = _told(Metadata, {**tree, **around}, table)
    told |= {"id": told["id"] or "", "provider": (provider or {}).get("provider") or "parquet"}
    return Metadata(**{**told, "access_modes": tuple(mode.lower() for mode in told["access_modes"])})


def parse_end(body: Any, table: str) -> EndStreamAction:
    """An ``endStreamAction``, wrapped or bare."""
    tree = _object(body, "endStreamAction", table)
    if tree.get("errorMessage"):
        tree = {**tree, "errorMessage": words(tree["errorMessage"])}
    for name in ("nextPageToken", "refreshToken"):
        if not isinstance(tree.get(name), str | None):
            raise malformed(f"its {name} is not text", table)
    return EndStreamAction(**{name: value or None for name, value in _told(EndStreamAction, tree, table).items()})


def sole_name(tree: Mapping[str, Any], names: tuple[str, ...], what: str, table: str) -> str | None:
    """Which of some fields an object has; None for none of them, and ResponseError for several, of which all but one would be lost."""
    found = [name for name in names if tree.get(name) is not None]
    if len(found) > 1:
        raise malformed(f"{what} is {' and '.join(found)} at once", table)
    return found[0] if found else None


def words(value: Any) -> str:
    """What a server says in a field that should be text."""
    return value if isinstance(value, str) else json.dumps(value)


def quoted(value: Any) -> str:
    """A value of an answer, for an error; nothing is cut, because half a token that a server echoes cannot be recognised."""
    text = str(value)
    return repr(text) if len(text) <= 100 else f"a text of {len(text)} characters"


def _told(kind: Any, tree: Mapping[str, Any], table: str) -> dict[str, Any]:
    """What a line says of each field of a record, by the field's type; raises ResponseError where it is of another type."""
    return {field: _READERS[of_type](tree, name, table) for field, name, of_type in _names(kind)}


def _object(value: Any, name: str, table: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise malformed(f"its {name!r} is not an object", table)
    return value


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _strings(tree: Mapping[str, Any], name: str, table: str) -> tuple[str, ...]:
    value = tree.get(name)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise malformed(f"its {name} is not a list of names", table)
    return tuple(value)


def _string_map(tree: Mapping[str, Any], name: str, table: str) -> dict[str, str]:
    value = tree.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise malformed(f"its {name} is not an object", table)
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in value.items() if v is not None}


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
        shown = number if abs(number) < 1 << 100 else f"a number of {number.bit_length()} bits"
        raise malformed(f"{name} is {shown}, and must be {least} to {most}", table)
    return number


def _integer_of(tree: Mapping[str, Any], name: str, table: str) -> int | None:
    return integer(tree.get(name), name, table)


def _text_at(tree: Mapping[str, Any], name: str, _: str = "") -> str | None:
    return _text(tree.get(name))


#: How a line's field is read, by the type in its record.
_READERS: Mapping[str, Callable[[Mapping[str, Any], str, str], Any]] = {
    "str": _text_at,
    "str | None": _text_at,
    "int | None": _integer_of,
    "tuple[str, ...]": _strings,
    "Mapping[str, str]": _string_map,
}


def broken(why: str) -> ResponseError:
    """The error of an answer that breaks the protocol."""
    return ResponseError(f"{why}; ask the provider to check the server")


def no_server(why: str) -> ResponseError:
    """The error of an answer that no Delta Sharing server gives."""
    return ResponseError(f"{why}; check that the endpoint is a Delta Sharing server's")


def malformed(why: str, table: str) -> ResponseError:
    """The error of a line that is not as the protocol says."""
    return broken(f"the server's answer for {table} breaks the protocol: {why}")


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
            raise no_server("a listing's 'items' is not a list")
        yield from map(parse, items or [])
        said = [words(page[name]) for name in ERROR_FIELDS if page.get(name)] if items is None else []
        if said:
            raise broken(f"a listing holds an error: {': '.join(said)}")
        token = page.get("nextPageToken")
        if token is None or token == "":
            return
        if not isinstance(token, str):
            raise broken("a listing's page token is not text")
        if token in seen:
            raise broken("a listing's page token came twice")
        seen.add(token)
        empty = 0 if items else empty + 1
        if empty >= MOST_EMPTY_PAGES or len(seen) >= MOST_PAGES or len(token) > LONGEST_PAGE_TOKEN:
            raise broken(f"a listing goes on after {len(seen)} pages, {empty} of them empty at the end")
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
        raise no_server(f"an item of the server's answer is without a {needed}")
    make: Any = kind
    read = ((field, name, _PARSED.get(name, _PARSED.get(of_type, _text_at))) for field, name, of_type in _names(make))
    told = {field: value for field, name, parse in read if (value := parse(item, name)) or name == needed}
    record: _R = make(**{**known, **told})
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
