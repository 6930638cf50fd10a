"""Reads a Parquet file's footer, checks what pyarrow would not survive, and tells which row groups belong to a slice of the file."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow._parquet import ParquetReader  # pyarrow.parquet would import all of its file systems: 20 ms

from delta_sharing_spark.errors import CorruptFileError, out_of_memory
from delta_sharing_spark.parquet.statistics import ChunkStatistics, find_statistics
from delta_sharing_spark.parquet.thrift import I32, STRUCT, Struct, read_struct, write_struct
from delta_sharing_spark.redaction import redact
from delta_sharing_spark.storage.ranges import ByteSource, Range, SeekableFile

if TYPE_CHECKING:
    from delta_sharing_spark.parquet.julian import Julian

#: Bytes of the first request for a footer where nothing tells of its size: most footers fit, a larger one costs a second request.
TAIL = 64 << 10
#: Of the largest footer that is fetched: a hundred thousand column chunks take about 10 MiB.
_MAX_FOOTER = 256 << 20
_MAGIC = b"PAR1"
_ARROW = re.compile(r"parquet-cpp(?:-arrow)? version (\d+)\.")
_SOUND_SINCE = 23
#: Physical types by their numbers in parquet.thrift, and the bytes of a timestamp of 96 bits: nanoseconds of a day, then the Julian day.
_INT96_TYPE, _FIXED_TYPE, INT96_BYTES = 3, 7, 12
#: Repetitions, converted types and members of LogicalType, likewise.
_OPTIONAL, _REPEATED, _MAP, _MAP_KEY_VALUE, _LIST, _L_MAP, _L_LIST = 1, 2, 1, 2, 3, 2, 3
#: Of a file that Spark wrote: that it may count old dates by the Julian calendar. A mark says so, an old release behind the length of
#: its text, or that no release is told.
_MAY_BE_JULIAN = re.compile(rb"org\.apache\.spark\.(?:legacy|version..(?:[0-2]\.|3\.0))", re.DOTALL)
_SPARKS, _SPARKS_RELEASE = b"org.apache.spark.sql.parquet.row.metadata", b"org.apache.spark.version"
#: The key of Arrow's own schema, and a name of the same length that Arrow does not look for.
_ARROW_SCHEMA, _UNREAD = b"ARROW:schema", b"ARROW-schema"


@dataclass(slots=True)
class Footer:
    """A parsed footer. What it says of column chunks is checked before it is used, as pyarrow ends the process over some of it.

    Attributes:
        metadata, schema: As pyarrow has them.
        first_rows: For each row group, its first row's position in the file.
        file_bytes: The file's bytes, where they were small enough to be read at once.
        raw: The footer as it stands in the file, up to the file's end.
        has_int96_bytes: Whether ``metadata`` has timestamps of 96 bits as their bytes.
        size: Its bytes.
    """

    metadata: Any
    schema: pa.Schema
    first_rows: list[int]
    file_bytes: memoryview | None
    raw: bytes = field(repr=False)
    has_int96_bytes: bool
    _refusal: Callable[[str], CorruptFileError] = field(repr=False)
    _file_size: int = 0
    _is_checked: bool = False
    _places: dict[int, int] = field(default_factory=dict, repr=False)

    @property
    def size(self) -> int:
        return len(self.raw)

    def row_group(self, index: int) -> Any:
        """``metadata.row_group(index)``, whose columns may be asked for.

        Raises:
            CorruptFileError: Column chunks are not what the format allows.
        """
        if not self._is_checked:
            try:
                check_column_chunks(self.metadata, self._file_size)
            except (pa.ArrowException, OSError, ValueError) as error:
                raise self._refusal(redact(str(error))) from None
            self._is_checked = True
        return self.metadata.row_group(index)

    def statistics(self, row_group: int, leaf: int) -> ChunkStatistics | None:
        """Statistics of one column chunk; None where the writer left none, or none that can be read."""
        chunk = self.row_group(row_group).column(leaf)
        kind = self.metadata.schema.column(leaf).physical_type
        statistics, self._places[leaf] = find_statistics(self.raw, chunk, kind, self._places.get(leaf, 0))
        return statistics

    def julian(self, reader_zone: str | None) -> Julian | None:
        """What of the file counts by the Julian calendar; see :func:`delta_sharing_spark.parquet.julian.julian_of`."""
        if _MAY_BE_JULIAN.search(self.raw) is None and (_SPARKS not in self.raw or _SPARKS_RELEASE in self.raw):
            return None
        from delta_sharing_spark.parquet.julian import julian_of  # few files need it

        return julian_of(self.metadata, reader_zone)

    def row_groups_in(self, start: int, end: int | None) -> list[int]:
        """Row groups whose first byte lies in ``[start, end)``: each belongs to exactly one slice of the file."""
        indices = range(self.metadata.num_row_groups)
        if not start and end is None:
            return list(indices)
        firsts = [group.column(0) if (group := self.row_group(i)).num_columns else None for i in indices]
        starts = [0 if first is None else chunk_range(first).start for first in firsts]
        return [i for i, offset in enumerate(starts) if offset >= start and (end is None or offset < end)]

    def chunks(self, row_group: int, leaves: list[int]) -> list[Range]:
        """Byte ranges of the column chunks of ``leaves``."""
        group = self.row_group(row_group)
        return [chunk_range(group.column(leaf)) for leaf in leaves]


def read_footer(source: ByteSource, table: str, tail_bytes: int = TAIL, *, checks_later: bool = False) -> Footer:
    """Fetch and parse a file's footer.

    ``tail_bytes`` are fetched first, all of a file that has no more, and the footer once more if it is larger. With
    ``checks_later`` the column chunks of a file that is fetched whole are checked when they are asked for.

    Raises:
        CorruptFileError: Not a Parquet file, or its footer is damaged; names the file.
    """
    if source.size < 12:
        raise _not_parquet(source.name, table, f"it has only {source.size} bytes")
    length = min(tail_bytes, source.size)
    tail = source.read(source.size - length, length)
    if bytes(tail[-4:]) != _MAGIC:
        if bytes(tail[-4:]) == b"PARE":
            raise _not_parquet(source.name, table, "its footer is encrypted")
        raise _not_parquet(source.name, table, "it does not end in PAR1")
    need = struct.unpack("<I", tail[-8:-4])[0] + 8
    if need > min(source.size, _MAX_FOOTER):
        raise _not_parquet(
            source.name, table, f"its footer claims {need} bytes of {source.size}, at most {_MAX_FOOTER} are read"
        )
    if need > length:
        tail = source.read(source.size - need, need)
    raw = bytes(tail[-need:])
    try:
        readable = raw
        try:
            metadata = _metadata(raw)
        except pa.ArrowInvalid as error:
            if "Map keys" not in str(error):
                raise
            metadata = _metadata(readable := _changed(raw, _read_maps_as_lists))
        has_int96_bytes = _has_signed_clocks(metadata)
        if has_int96_bytes:
            metadata = _metadata(_changed(readable, _read_int96_as_bytes))
        schema = metadata.schema.to_arrow_schema()
        first_rows = _first_rows(metadata)
        _check_texts(metadata)
    except MemoryError as error:
        raise out_of_memory(f"file {source.name} of {table}: its footer", error, source.name) from None
    except (pa.ArrowException, OSError, ValueError) as error:
        if "LogicalType" in str(error):
            raise CorruptFileError(
                f"file {source.name} of {table} has a column of a Parquet type that pyarrow {pa.__version__} does not "
                f"know ({redact(str(error))}); upgrade pyarrow",
                file=source.name,
            ) from None
        raise _not_parquet(source.name, table, redact(str(error)).strip()) from None
    is_whole = length == source.size
    footer = Footer(
        metadata,
        schema,
        first_rows,
        tail if is_whole else None,
        raw,
        has_int96_bytes,
        partial(_not_parquet, source.name, table),
        source.size,
    )
    if metadata.num_row_groups and not (is_whole and checks_later):
        footer.row_group(0)
    return footer


def _has_signed_clocks(metadata: Any) -> bool:
    """Whether a file has timestamps of 96 bits by Arrow C++ before 23: those before 1970 count nanoseconds back from the end of their day.

    pyarrow reads such a number as one without a sign, and so a time 584 years later, which is one as well (apache/arrow, issue
    48246). pandas wrote them by ``flavor="spark"``, and awswrangler.
    """
    writer = _ARROW.match(metadata.created_by or "")
    if writer is None or int(writer[1]) >= _SOUND_SINCE:
        return False
    return any(metadata.schema.column(leaf).physical_type == "INT96" for leaf in range(metadata.num_columns))


def _changed(footer: bytes, change: Callable[[Struct], None]) -> bytes:
    """A changed footer, with its length and the magic behind it.

    Raises:
        ValueError: The bytes are no footer.
    """
    fields, _ = read_struct(footer)
    try:
        change(fields)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"its footer is of an unknown form ({type(error).__name__})") from None
    written = write_struct(fields)
    return written + len(written).to_bytes(4, "little") + footer[-4:]


def _read_int96_as_bytes(fields: Struct) -> None:
    """Have timestamps of 96 bits read as their bytes."""
    for element in fields[2][1].items:
        if element.get(1, (I32, None))[1] == _INT96_TYPE:
            element |= {1: (I32, _FIXED_TYPE), 2: (I32, INT96_BYTES)}
    for group in fields[4][1].items:
        for chunk in group[1][1].items:
            if chunk[3][1][1][1] == _INT96_TYPE:
                chunk[3][1][1] = (I32, _FIXED_TYPE)


def _read_maps_as_lists(fields: Struct) -> None:
    """Have maps whose keys may be NULL, as Presto and Athena wrote them, read as lists of keys and values: pyarrow reads no such map."""
    elements = fields[2][1].items
    for outer, entries, key in zip(elements, elements[1:], elements[2:], strict=False):
        is_map = outer.get(6, (I32, None))[1] in (_MAP, _MAP_KEY_VALUE) or _L_MAP in outer.get(10, (STRUCT, {}))[1]
        if is_map and entries[3][1] == _REPEATED and key[3][1] == _OPTIONAL:
            outer |= {6: (I32, _LIST), 10: (STRUCT, {_L_LIST: (STRUCT, {})})}
            entries.pop(6, None)


def _metadata(footer: bytes) -> Any:
    """The parsed footer without the writer's Arrow schema: Parquet's own types are what Delta's are made of.

    By Arrow's schema, files of pyarrow and Polars would come with other types (fixed-size lists, views, dictionaries),
    which releases of pyarrow before 26 cannot all read.
    """
    if footer.count(_ARROW_SCHEMA) == 1:
        metadata = _parsed(footer.replace(_ARROW_SCHEMA, _UNREAD))
        if _UNREAD in (metadata.metadata or {}):
            return metadata
    return _parsed(footer)  # no such key, or a column has that name


def _parsed(footer: bytes) -> Any:
    # What pq.read_metadata wraps, which looks at each column.
    reader = ParquetReader()
    reader.open(pa.BufferReader(footer))
    return reader.metadata


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
    if not metadata.num_row_groups or not metadata.num_columns:
        return
    file = _UnreadableFile(size)
    reader = ParquetReader()
    try:
        reader.open(file, metadata=metadata, pre_buffer=True)
        batches = reader.iter_batches(
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
        return b""  # pyarrow raises an error of its own, cheaper than to tell it of one of Python's


def _first_rows(metadata: Any) -> list[int]:
    """The position of each row group's first row.

    Raises:
        OSError: Numbers of rows or columns that contradict each other.
    """
    if metadata.num_rows < 0:
        raise OSError(f"it claims {metadata.num_rows} rows")
    first_rows, rows = [], 0
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        if group.num_columns != metadata.num_columns:
            raise OSError(f"row group {index} has {group.num_columns} columns, the schema {metadata.num_columns}")
        if group.num_rows < 0:
            raise OSError(f"row group {index} claims {group.num_rows} rows")
        first_rows.append(rows)
        rows += group.num_rows
    if rows != metadata.num_rows:
        raise OSError(f"its row groups hold {rows} rows, its footer says {metadata.num_rows}")
    return first_rows


def chunk_range(column: Any) -> Range:
    """The bytes of a column chunk, given as pyarrow's ``ColumnChunkMetaData``."""
    dictionary, data = column.dictionary_page_offset, column.data_page_offset
    # Some writers leave a dictionary offset of 0, or put it after the data pages.
    start = min(dictionary, data) if dictionary is not None and dictionary > 0 else data
    return Range(start, start + column.total_compressed_size)


def _not_parquet(file: str, table: str, why: str) -> CorruptFileError:
    return CorruptFileError(
        f"file {file} of {table} is not a readable Parquet file: {why}; ask the provider to check it", file=file
    )
