"""Reads Avro files of records (Avro, "Object Container Files"), each block of which is bounded before it is expanded."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from delta_sharing_spark.access.iceberg.avro_values import UnboundedValueError, binary, decoder, number
from delta_sharing_spark.errors import CorruptFileError

#: Expanded, a block or a file of more bytes is none: writers end blocks after some 64 kB, and manifests after 8 MB.
_LARGEST_BLOCK, _LARGEST_FILE = 16 << 20, 2 << 30
_MAGIC, _MARKER_BYTES = b"Obj\x01", 16
_METADATA = {"type": "map", "values": "bytes"}
#: A byte of deflate stands for at most so many.
_MOST_INFLATED = 1032


class AvroFile:
    """An Avro file in memory.

    Args:
        data: Its bytes.
        path: How errors name it.
        keys: See ``avro_values.decoder``.

    Attributes:
        metadata: The texts of its header, by name.
        schema: What its records were written by, as JSON has it.

    Raises:
        CorruptFileError: It is damaged, or of a schema by which few bytes would become very many values.
    """

    def __init__(
        self, data: bytes | memoryview, path: str, keys: Mapping[str, Collection[int]] = MappingProxyType({})
    ) -> None:
        self._path, self._data = path, bytes(data)
        try:
            if not self._data.startswith(_MAGIC):
                raise ValueError("not Avro")
            metadata, at = decoder(_METADATA, {})(self._data, len(_MAGIC))
            self.metadata: Mapping[str, bytes] = metadata
            self._first = at + _MARKER_BYTES
            self._marker = self._data[at : self._first]
            codec = self.metadata.get("avro.codec", b"null").decode()
            self.schema: Any = json.loads(self.metadata["avro.schema"])
            if self._first > len(self._data):
                raise ValueError("cut")
            if self.schema["type"] != "record":
                raise UnboundedValueError("its records are none")
            self._decode = decoder(self.schema, keys)
        except UnboundedValueError as unbounded:
            raise corrupt(path, str(unbounded)) from None
        except Exception as error:  # whatever damaged bytes lead to
            raise self._damaged(error) from None
        if codec not in _EXPANDED:
            raise corrupt(path, f"its codec {codec[:20]!r} is not read")
        self._expanded = _EXPANDED[codec]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The records; raises CorruptFileError where the file is damaged."""
        data, at, total = self._data, self._first, 0
        try:
            while at < len(data):
                count, at = number(data, at)
                block, at = binary(data, at)
                marker, at = data[at : at + _MARKER_BYTES], at + _MARKER_BYTES
                if marker != self._marker or count < 0:
                    raise ValueError("no block")
                expanded = self._expanded(block)
                total += len(expanded)
                if len(expanded) > _LARGEST_BLOCK or total > _LARGEST_FILE:
                    raise corrupt(
                        self._path, f"it expands to more than {_LARGEST_BLOCK} bytes a block, or {_LARGEST_FILE}"
                    )
                yield from self._records(expanded, count)
        except (CorruptFileError, GeneratorExit):
            raise
        except Exception as error:  # whatever damaged bytes lead to
            raise self._damaged(error) from None

    def _records(self, block: bytes, count: int) -> list[dict[str, Any]]:
        if count > len(block):
            raise ValueError("more records than bytes")
        decode, records, at = self._decode, [], 0
        for _ in range(count):
            record, at = decode(block, at)
            records.append(record)
        if at != len(block):
            raise ValueError("a block has fewer bytes than its records, or more")
        return records

    def _damaged(self, error: Exception) -> CorruptFileError:
        return corrupt(self._path, f"it is no Avro file that can be read ({type(error).__name__})")


def corrupt(path: str, why: str) -> CorruptFileError:
    """The error of a manifest or a manifest list that cannot be read."""
    return CorruptFileError(
        f"file {path} is a damaged part of an Iceberg table: {why}; load the table again, and ask the provider to check it",
        file=path,
    )


def _inflated(data: bytes) -> bytes:
    if len(data) * _MOST_INFLATED <= _LARGEST_BLOCK:
        return zlib.decompress(data, -15)
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
