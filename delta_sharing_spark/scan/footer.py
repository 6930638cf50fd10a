"""Reads a Parquet file's footer, and tells which row groups belong to a slice of the file."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from delta_sharing_spark.errors import CorruptFileError
from delta_sharing_spark.errors.redaction import redact
from delta_sharing_spark.scan.chunk_statistics import ChunkStatistics, find_statistics
from delta_sharing_spark.storage.ranges import ByteSource, Range, SeekableFile

#: Bytes of the first request for a footer; most footers fit, a larger one costs a second request.
TAIL = 64 << 10
#: Of the largest footer that is fetched: a hundred thousand column chunks take about 10 MiB.
_MAX_FOOTER = 256 << 20
_MAGIC = b"PAR1"
#: The key of Arrow's own schema, and a name of the same length that Arrow does not look for.
_ARROW_SCHEMA, _UNREAD = b"ARROW:schema", b"ARROW-schema"


@dataclass(slots=True)
class Footer:
    """A parsed footer.

    ``starts`` and ``first_rows`` hold one entry a row group: the offset of its first byte, and its first row's
    position in the file. ``file_bytes`` holds the file's bytes where they were small enough to be read at once.
    """

    metadata: Any
    schema: pa.Schema
    starts: list[int]
    first_rows: list[int]
    file_bytes: memoryview | None
    _raw: bytes = field(repr=False)
    _places: dict[int, int] = field(default_factory=dict, repr=False)

    def statistics(self, row_group: int, leaf: int) -> ChunkStatistics | None:
        """Statistics of one column chunk; None where the writer left none, or none that can be read."""
        chunk = self.metadata.row_group(row_group).column(leaf)
        kind = self.metadata.schema.column(leaf).physical_type
        statistics, self._places[leaf] = find_statistics(self._raw, chunk, kind, self._places.get(leaf, 0))
        return statistics

    def row_groups_in(self, start: int, end: int | None) -> list[int]:
        """Row groups whose first byte lies in ``[start, end)``: each belongs to exactly one slice of the file."""
        return [i for i, offset in enumerate(self.starts) if offset >= start and (end is None or offset < end)]

    def chunks(self, row_group: int, leaves: list[int]) -> list[Range]:
        """Byte ranges of the column chunks of ``leaves``."""
        group = self.metadata.row_group(row_group)
        return [_chunk(group.column(leaf)) for leaf in leaves]


def read_footer(source: ByteSource, table: str, whole_below: int, tail_bytes: int = TAIL) -> Footer:
    """Fetch and parse a file's footer; a file of at most ``whole_below`` bytes is fetched whole instead.

    ``tail_bytes`` are fetched first, and the footer once more if it is larger.

    Raises:
        CorruptFileError: Not a Parquet file, or its footer is damaged; names the file.
    """
    if source.size < 12:
        raise _not_parquet(source, table, f"it has only {source.size} bytes")
    length = source.size if source.size <= whole_below else min(tail_bytes, source.size)
    tail = source.read(source.size - length, length)
    if bytes(tail[-4:]) != _MAGIC:
        if bytes(tail[-4:]) == b"PARE":
            raise _not_parquet(source, table, "its footer is encrypted")
        raise _not_parquet(source, table, "it does not end in PAR1")
    need = struct.unpack("<I", tail[-8:-4])[0] + 8
    if need > min(source.size, _MAX_FOOTER):
        raise _not_parquet(
            source, table, f"its footer claims {need} bytes of {source.size}, at most {_MAX_FOOTER} are read"
        )
    if need > length:
        tail = source.read(source.size - need, need)
    raw = bytes(tail[-need:])
    try:
        metadata = _metadata(raw)
        schema = metadata.schema.to_arrow_schema()
        check_column_chunks(metadata, source.size)
        _check_texts(metadata)
    except (pa.ArrowException, OSError, ValueError) as error:
        if "LogicalType" in str(error):
            raise CorruptFileError(
                f"file {source.name} of {table} has a column of a Parquet type that pyarrow {pa.__version__} does not "
                f"know ({redact(str(error))}); upgrade pyarrow",
                file=source.name,
            ) from None
        raise _not_parquet(source, table, redact(str(error))) from None
    starts, first_rows, rows = _layout(metadata)
    if rows != metadata.num_rows:
        raise _not_parquet(source, table, f"its row groups hold {rows} rows, its footer says {metadata.num_rows}")
    return Footer(metadata, schema, starts, first_rows, tail if length == source.size else None, raw)


def _metadata(footer: bytes) -> Any:
    """The parsed footer without the writer's Arrow schema: Parquet's own types are what Delta's are made of.

    By Arrow's schema, files of pyarrow and Polars would come with other types (fixed-size lists, views, dictionaries),
    which releases of pyarrow before 26 cannot all read.
    """
    if footer.count(_ARROW_SCHEMA) == 1:
        metadata = pq.read_metadata(pa.BufferReader(footer.replace(_ARROW_SCHEMA, _UNREAD)))
        if _UNREAD in (metadata.metadata or {}):
            return metadata
    return pq.read_metadata(pa.BufferReader(footer))  # no such key, or a column has that name


def check_column_chunks(metadata: Any, size: int) -> None:
    """Check every column chunk of a parsed footer, so that pyarrow's ``RowGroupMetaData.column`` can be called at all.

    pyarrow lets an exception in there (level histograms of a wrong size, among others) end the process. Preparing to
    fetch all chunks looks at each of them where exceptions are caught; and that each lies within the file.

    Args:
        metadata: ``pyarrow.parquet.FileMetaData``.
        size: Bytes of the file.

    Raises:
        OSError, pyarrow.ArrowException: A chunk is not what the format allows.
    """
    if metadata.num_rows < 0:
        raise OSError(f"it claims {metadata.num_rows} rows")
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        if group.num_columns != metadata.num_columns:
            raise OSError(f"row group {index} has {group.num_columns} columns, the schema {metadata.num_columns}")
        if group.num_rows < 0:
            raise OSError(f"row group {index} claims {group.num_rows} rows")
    if not metadata.num_row_groups or not metadata.num_columns:
        return
    file = _UnreadableFile(size)
    parquet = pq.ParquetFile(file, metadata=metadata, pre_buffer=True)
    try:
        batches = parquet.reader.iter_batches(
            1,
            row_groups=list(range(metadata.num_row_groups)),
            column_indices=list(range(metadata.num_columns)),
            use_threads=False,
        )
        next(iter(batches), None)
    except (pa.ArrowException, OSError) as error:
        # Arrow keeps the exception as long as the reader; its frames would keep the reader, and the caller's bytes.
        error.__traceback__ = None
        if not file.was_read:
            raise OSError(str(error)) from None


def _check_texts(metadata: Any) -> None:
    """Read the names that pyarrow decodes only when they are asked for.

    Raises:
        UnicodeDecodeError: A name that is not UTF-8.
    """
    _ = metadata.created_by
    for leaf in range(metadata.num_columns):
        _ = metadata.schema.column(leaf).path


class _UnreadableFile(SeekableFile):
    """A file of some size of which nothing can be read."""

    was_read = False

    def read(self, length: int = -1) -> bytes:
        self.was_read = True
        raise OSError("nothing is read here")


def _layout(metadata: Any) -> tuple[list[int], list[int], int]:
    starts, first_rows, rows = [], [], 0
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        starts.append(_chunk(group.column(0)).start if group.num_columns else 0)
        first_rows.append(rows)
        rows += group.num_rows
    return starts, first_rows, rows


def _chunk(column: Any) -> Range:
    dictionary, data = column.dictionary_page_offset, column.data_page_offset
    # Some writers leave a dictionary offset of 0, or put it after the data pages.
    start = min(dictionary, data) if dictionary is not None and dictionary > 0 else data
    return Range(start, start + column.total_compressed_size)


def _not_parquet(source: ByteSource, table: str, why: str) -> CorruptFileError:
    return CorruptFileError(
        f"file {source.name} of {table} is not a readable Parquet file: {why}; ask the provider to check it",
        file=source.name,
    )
