"""Reads Avro files of records (Avro, "Object Container Files"): each block is bounded before fastavro decodes it."""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

from delta_sharing_spark._version import install_line
from delta_sharing_spark.errors import ConfigError, CorruptFileError

#: Expanded, a block or a file of more bytes is none: writers end blocks after some 64 kB, and manifests after 8 MB.
_LARGEST_BLOCK, _LARGEST_FILE = 16 << 20, 2 << 30
_MARKER = {"name": "sync", "type": {"type": "fixed", "name": "marker", "size": 16}}
_HEADER = {
    "type": "record",
    "name": "header",
    "fields": [
        {"name": "magic", "type": {"type": "fixed", "name": "magic", "size": 4}},
        {"name": "meta", "type": {"type": "map", "values": "bytes"}},
        _MARKER,
    ],
}
_BLOCK = {
    "type": "record",
    "name": "block",
    "fields": [{"name": "count", "type": "long"}, {"name": "data", "type": "bytes"}, _MARKER],
}


class AvroFile:
    """An Avro file in memory.

    Args:
        data: Its bytes.
        path: How errors name it.

    Attributes:
        metadata: The texts of its header, by name.
        schema: What its records were written by, as fastavro parsed it.

    Raises:
        CorruptFileError: It is damaged, or of a schema by which few bytes would become very many values.
        ConfigError: fastavro is not installed.
    """

    def __init__(self, data: bytes | memoryview, path: str) -> None:
        self._path, self._length, self._file = path, len(data), io.BytesIO(data)
        fastavro = _fastavro()
        self._read = fastavro.schemaless_reader
        self._block = fastavro.parse_schema(_BLOCK)
        try:
            header = self._read(self._file, fastavro.parse_schema(_HEADER))
            if header["magic"] != b"Obj\x01":
                raise ValueError("not Avro")
            self.metadata: Mapping[str, bytes] = header["meta"]
            codec = self.metadata.get("avro.codec", b"null").decode()
            self.schema: Any = fastavro.parse_schema(json.loads(self.metadata["avro.schema"]))
            why = _danger(self.schema) if self.schema["type"] == "record" else "its records are none"
        except Exception as error:  # fastavro raises whatever damaged bytes lead it to
            raise self._damaged(error) from None
        if why is None and codec not in _EXPANDED:
            why = f"its codec {codec[:20]!r} is not read"
        if why is not None:
            raise corrupt(path, why)
        self._sync, self._expanded = header["sync"], _EXPANDED[codec]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The records; raises CorruptFileError where the file is damaged."""
        read, schema, total = self._read, self.schema, 0
        try:
            while self._file.tell() < self._length:
                block = read(self._file, self._block)
                if block["sync"] != self._sync or block["count"] < 0:
                    raise ValueError("no block")
                expanded = self._expanded(block["data"])
                total += len(expanded)
                if len(expanded) > _LARGEST_BLOCK or total > _LARGEST_FILE:
                    raise corrupt(
                        self._path, f"it expands to more than {_LARGEST_BLOCK} bytes a block, or {_LARGEST_FILE}"
                    )
                records = io.BytesIO(expanded)
                for _ in range(block["count"]):
                    yield read(records, schema)
                if records.tell() != len(expanded):
                    raise ValueError("a block has more than its records")
        except (CorruptFileError, GeneratorExit):
            raise
        except Exception as error:  # fastavro raises whatever damaged bytes lead it to
            raise self._damaged(error) from None

    def _damaged(self, error: Exception) -> CorruptFileError:
        return corrupt(self._path, f"it is no Avro file that can be read ({type(error).__name__})")


def corrupt(path: str, why: str) -> CorruptFileError:
    """The error of a manifest or a manifest list that cannot be read."""
    return CorruptFileError(
        f"file {path} is a damaged part of an Iceberg table: {why}; load the table again, and ask the provider to check it",
        file=path,
    )


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError:
        raise ConfigError(
            f"Iceberg tables are read by fastavro, which is not installed: {install_line('iceberg')}"
        ) from None
    return fastavro


def _danger(schema: Any) -> str | None:
    """Why a schema could make few bytes very many values, or let the decoder call itself without end; None where it cannot."""
    try:
        return None if _takes_bytes(schema, {}, frozenset()) else "its records are of nothing"
    except _DangerError as danger:
        return str(danger)


class _DangerError(Exception):
    """See ``_danger``."""


def _takes_bytes(schema: Any, named: dict[str, bool], around: Set[str]) -> bool:
    """Whether each value takes a byte at least; ``named`` has the answer for the types before, ``around`` those that it lies in."""
    if isinstance(schema, str):
        if schema in around:
            raise _DangerError("a type of it lies within itself")
        return named.get(schema, schema != "null")
    if isinstance(schema, list):
        for one in schema:
            _takes_bytes(one, named, around)
        return True  # which one of a union it is takes a byte
    kind, name = schema["type"], schema.get("name")
    match kind:
        case "record":
            within = around | {name}
            takes = [_takes_bytes(one["type"], named, within) for one in schema["fields"]]
            return named.setdefault(name, any(takes))
        case "array":
            if not _takes_bytes(schema["items"], named, around):
                raise _DangerError("it holds lists of nothing")
            return True
        case "map":
            _takes_bytes(schema["values"], named, around)
            return True
        case "fixed":
            return named.setdefault(name, schema["size"] > 0)
        case "enum":
            return named.setdefault(name, True)
    return _takes_bytes(kind, named, around)


def _inflated(data: bytes) -> bytes:
    stream = zlib.decompressobj(-15)
    expanded = stream.decompress(data, _LARGEST_BLOCK + 1)
    if not stream.eof and len(expanded) <= _LARGEST_BLOCK:
        raise ValueError("the block is cut")
    return expanded


def _of_snappy(data: bytes) -> bytes:
    import pyarrow as pa

    size = sum((byte & 127) << 7 * place for place, byte in enumerate(_leading_number(data)))
    if size > _LARGEST_BLOCK:
        return bytes(_LARGEST_BLOCK + 1)
    expanded = pa.decompress(data[:-4], decompressed_size=size, codec="snappy", asbytes=True)
    if zlib.crc32(expanded) != int.from_bytes(data[-4:], "big"):
        raise ValueError("its checksum is another")
    return bytes(expanded)


def _leading_number(data: bytes) -> bytes:
    """The bytes of a number at the beginning: all but its last have their highest bit."""
    length = next(place for place, byte in enumerate(data[:5], 1) if byte < 128)
    return data[:length]


def _by_arrow(codec: str) -> Callable[[bytes], bytes]:
    def expanded(data: bytes) -> bytes:
        import pyarrow as pa

        with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
            return bytes(stream.read(_LARGEST_BLOCK + 1))

    return expanded


#: The bytes of a block, or of a larger one its beginning, by the name of its codec.
_EXPANDED: Mapping[str, Callable[[bytes], bytes]] = {
    "null": lambda data: data,
    "deflate": _inflated,
    "snappy": _of_snappy,
    "zstandard": _by_arrow("zstd"),
    "bzip2": _by_arrow("bz2"),
}
