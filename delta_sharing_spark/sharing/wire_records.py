"""Holds the records of the protocol in both response formats, parsed from their lines; unknown fields are ignored."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from delta_sharing_spark.errors import ResponseError
from delta_sharing_spark.scan.plan import MAX_FILE_BYTES, MAX_FILE_ROWS, MAX_MILLIS, MAX_VECTOR_BYTES


@dataclass(frozen=True, slots=True)
class Protocol:
    """A protocol line: the reader version and features that a table asks for."""

    min_reader_version: int
    reader_features: tuple[str, ...] = ()


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

    def _repr_html_(self) -> str:
        from delta_sharing_spark.schema.markup import html_table

        shown = ((f.name, getattr(self, f.name)) for f in fields(self) if f.name != "schema_string")
        return html_table([], [[name, _in_words(value)] for name, value in shown if value not in (None, (), {})])


def _in_words(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {text}" for name, text in value.items())
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


@dataclass(frozen=True, slots=True)
class VectorDescriptor:
    """A deletion vector as the delta format gives it; the path of a stored one is a presigned URL."""

    storage_type: str
    path_or_inline_dv: str = field(repr=False)
    offset: int | None
    size_in_bytes: int
    cardinality: int


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
    deletion_vector: VectorDescriptor | None = None
    deletion_vector_file_id: str | None = None
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
    schema: str
    share: str
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
    """Storage credentials of one location, as the server sent them; exactly one kind should be set."""

    location: str | None
    expiration_time: int | None
    aws: Mapping[str, str] | None = field(default=None, repr=False)
    azure: Mapping[str, str] | None = field(default=None, repr=False)
    gcp: Mapping[str, str] | None = field(default=None, repr=False)
    r2: Mapping[str, str] | None = field(default=None, repr=False)


_INTEGER = re.compile(r"-?[0-9]{1,19}")
_KINDS = {"add": "add", "cdc": "cdf", "remove": "remove"}


def parse_protocol(body: Any, table: str) -> tuple[Protocol, str]:
    """Parse a ``protocol`` line's body; returns the protocol and its response format (``parquet`` or ``delta``)."""
    tree = _object(body, "protocol", table)
    inner = tree.get("deltaProtocol")
    response_format = "parquet" if inner is None else "delta"
    if inner is not None:
        tree = _object(inner, "deltaProtocol", table)
    version = _integer(tree.get("minReaderVersion"), "minReaderVersion", table)
    if version is None:
        raise _malformed("its protocol names no minReaderVersion", table)
    return Protocol(version, _strings(tree, "readerFeatures", table)), response_format


def parse_metadata(body: Any, table: str) -> Metadata:
    """A ``metaData`` line's body, of either format."""
    outer = _object(body, "metaData", table)
    inner = outer.get("deltaMetadata")
    tree = outer if inner is None else _object(inner, "deltaMetadata", table)
    schema_string = tree.get("schemaString")
    if not isinstance(schema_string, str):
        raise _malformed("its metadata has no schemaString", table)
    provider = tree.get("format")
    if provider is not None and not isinstance(_object(provider, "format", table).get("provider"), str | None):
        raise _malformed("its format names a provider that is not text", table)
    return Metadata(
        id=_text(tree.get("id")) or "",
        schema_string=schema_string,
        partition_columns=_strings(tree, "partitionColumns", table),
        provider=(provider or {}).get("provider") or "parquet",
        name=_text(tree.get("name")),
        description=_text(tree.get("description")),
        configuration=_string_map(tree, "configuration", table),
        num_files=_integer(_first(outer, tree, "numFiles"), "numFiles", table),
        size=_integer(_first(outer, tree, "size"), "size", table),
        version=_integer(_first(outer, tree, "version"), "version", table),
        location=_text(_first(outer, tree, "location")),
        auxiliary_locations=_strings(_holder(outer, tree, "auxiliaryLocations"), "auxiliaryLocations", table),
        access_modes=tuple(m.lower() for m in _strings(_holder(outer, tree, "accessModes"), "accessModes", table)),
    )


def parse_parquet_file(kind: str, body: Any, table: str) -> FileRecord:
    """A ``file``, ``add``, ``cdf`` or ``remove`` line of the parquet format."""
    tree = _object(body, kind, table)
    url, identity = tree.get("url"), tree.get("id")
    if not isinstance(url, str) or not isinstance(identity, str):
        raise _malformed(f"a {kind!r} line lacks its url or id", table)
    return FileRecord(
        "add" if kind == "file" else kind,
        identity,
        url,
        _size(tree, table),
        _partition_values(tree, table),
        _text(tree.get("stats")),
        _integer(tree.get("expirationTimestamp"), "expirationTimestamp", table),
        _integer(tree.get("version"), "version", table),
        _integer(tree.get("timestamp"), "timestamp", table, -MAX_MILLIS, MAX_MILLIS),
    )


def parse_delta_file(body: Any, table: str) -> FileRecord | None:
    """A ``file`` line of the delta format: a wrapped ``deltaSingleAction``; None for an action that is no file."""
    outer = _object(body, "file", table)
    single = _object(outer.get("deltaSingleAction"), "deltaSingleAction", table)
    name = next((n for n in _KINDS if single.get(n) is not None), None)
    if name is None:
        return None
    tree = _object(single[name], name, table)
    path, identity = tree.get("path"), outer.get("id")
    if not isinstance(path, str) or not isinstance(identity, str):
        raise _malformed(f"a delta {name!r} action lacks its path or id", table)
    return FileRecord(
        _KINDS[name],
        identity,
        path,
        _size(tree, table),
        _partition_values(tree, table),
        _text(tree.get("stats")),
        _integer(outer.get("expirationTimestamp"), "expirationTimestamp", table),
        _integer(outer.get("version"), "version", table),
        _integer(outer.get("timestamp"), "timestamp", table, -MAX_MILLIS, MAX_MILLIS),
        _vector(tree.get("deletionVector"), table),
        _text(outer.get("deletionVectorFileId")),
        _changes_data(tree, table),
    )


def parse_end(body: Any, table: str) -> EndStreamAction:
    """An ``endStreamAction``, wrapped or bare."""
    tree = _object(body, "endStreamAction", table)
    return EndStreamAction(
        _text(tree.get("refreshToken")) or None,
        _text(tree.get("nextPageToken")) or None,
        _integer(tree.get("minUrlExpirationTimestamp"), "minUrlExpirationTimestamp", table),
        _text(tree.get("errorMessage")),
        _integer(tree.get("httpStatusErrorCode"), "httpStatusErrorCode", table),
    )


def _changes_data(tree: Mapping[str, Any], table: str) -> bool:
    change = tree.get("dataChange", True)
    if not isinstance(change, bool):
        raise _malformed(f"dataChange is {str(change)[:50]!r}", table)
    return change


def _vector(tree: Any, table: str) -> VectorDescriptor | None:
    if tree is None:
        return None
    tree = _object(tree, "deletionVector", table)
    storage, path = tree.get("storageType"), tree.get("pathOrInlineDv")
    size = _integer(tree.get("sizeInBytes"), "sizeInBytes", table, 0, MAX_VECTOR_BYTES)
    if not isinstance(storage, str) or not isinstance(path, str) or size is None:
        raise _malformed("a deletion vector lacks its storageType, pathOrInlineDv or sizeInBytes", table)
    cardinality = _integer(tree.get("cardinality"), "cardinality", table, 0, MAX_FILE_ROWS)
    if cardinality is None:
        raise _malformed("a deletion vector lacks its cardinality", table)
    offset = _integer(tree.get("offset"), "offset", table, 0, MAX_FILE_BYTES)
    return VectorDescriptor(storage, path, offset, size, cardinality)


def _size(tree: Mapping[str, Any], table: str) -> int:
    size = _integer(tree.get("size"), "the size of a file", table, 0, MAX_FILE_BYTES)
    if size is None:
        raise _malformed("a file line has no size", table)
    return size


def _partition_values(tree: Mapping[str, Any], table: str) -> Mapping[str, str | None] | None:
    values = tree.get("partitionValues")
    if values is None:
        return None
    if not isinstance(values, dict) or not all(v is None or isinstance(v, str) for v in values.values()):
        raise _malformed("a file line has partitionValues that are not strings", table)
    for name, value in values.items():
        if not _is_unicode(name) or (value and not _is_unicode(value)):
            raise _malformed("a file line has partitionValues that are not Unicode", table)
    return values


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _holder(outer: Mapping[str, Any], inner: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return inner if outer.get(name) is None else outer


def _first(outer: Mapping[str, Any], inner: Mapping[str, Any], name: str) -> Any:
    return _holder(outer, inner, name).get(name)


def _object(value: Any, name: str, table: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _malformed(f"its {name!r} is not an object", table)
    return value


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _strings(tree: Mapping[str, Any], name: str, table: str) -> tuple[str, ...]:
    value = tree.get(name)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise _malformed(f"its {name} is not a list of names", table)
    return tuple(value)


def _string_map(tree: Mapping[str, Any], name: str, table: str) -> dict[str, str]:
    value = tree.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _malformed(f"its {name} is not an object", table)
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in value.items() if v is not None}


def _integer(value: Any, name: str, table: str, least: int = -(1 << 63), most: int = (1 << 63) - 1) -> int | None:
    if value is None:
        return None
    # Some servers write 64-bit numbers as strings, as JavaScript needs them.
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        value = int(value)
    if type(value) is not int:
        raise _malformed(f"{name} is {str(value)[:100]!r}, not a whole number", table)
    if not least <= value <= most:
        # A number of thousands of digits cannot be written.
        shown = value if abs(value) < 1 << 100 else f"a number of {value.bit_length()} bits"
        raise _malformed(f"{name} is {shown}, and must be {least} to {most}", table)
    return value


def _malformed(why: str, table: str) -> ResponseError:
    return ResponseError(
        f"the server's answer for {table} breaks the protocol: {why}; ask the provider to check the server"
    )
