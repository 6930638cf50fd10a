"""Reads row groups of one file as record batches of the leaves asked for, in order, with bytes fetched ahead.

Row groups in which no row can pass the predicate, by the statistics in the footer, are skipped.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow._parquet import ParquetReader  # pyarrow.parquet would import all of its file systems: 20 ms

from delta_sharing_spark.errors import CorruptFileError, out_of_memory
from delta_sharing_spark.parquet.footer import Footer, chunk_range
from delta_sharing_spark.parquet.statistics import ChunkStatistics, dictionary_page
from delta_sharing_spark.redaction import redact
from delta_sharing_spark.scan.column_resolution import Context, leaf_of
from delta_sharing_spark.scan.fetching import BufferedRanges, RangeFile, SlidingRanges
from delta_sharing_spark.scan.pace import Pace
from delta_sharing_spark.scan.plan import ReadSpec
from delta_sharing_spark.schema.types import INITIAL_DEFAULT, fields_along
from delta_sharing_spark.storage.ranges import ByteSource, Range

if TYPE_CHECKING:
    import polars as pl

    from delta_sharing_spark.predicates.row_groups import RowGroupSkipping
    from delta_sharing_spark.predicates.tree import Expression

#: Bytes and rows of a batch whose rows' width is guessed; no batch is smaller than so many rows.
_GUESSED_BYTES, _GUESSED_ROWS, _LEAST_ROWS = 8 << 20, 32768, 64
#: Of a batch whose rows' width is known, at most: others may turn out wider.
_MOST_BYTES, _MOST_ROWS = 64 << 20, 131072
_LEAST_BUFFER, _MOST_BUFFER = 16 << 10, 1 << 20
#: Bytes of a page's header that are read; physical types of any length.
_PAGE_HEADER, _TEXTS = 128, frozenset(("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"))
#: Bytes of buffers that are held for a batch, from which on it matters that others may share them.
_MAY_BE_SLICE = 2 << 20
#: What pyarrow says where the text of a batch, below a list, map or struct, exceeds 2 GiB: fewer rows have less.
_TOO_MUCH_TEXT = "chunked array"
#: Words of pyarrow's about compression and encryption that it does not know.
_NOT_READ = re.compile("decrypt|support|not implemented|not built", re.IGNORECASE)


@dataclass(slots=True)
class RowGroup:
    """A row group to read.

    Attributes:
        source, footer, index, leaves: Which one, and what of it.
        ranges: What is fetched of it; none of a file that is held.
        cost: Bytes that are held from when fetching begins; they slide over ``ranges`` if those are more.
        fetched: What is held of it, or being fetched.
    """

    source: ByteSource
    footer: Footer
    index: int
    leaves: list[int]
    ranges: list[Range]
    cost: int
    fetched: BufferedRanges | None = None

    @property
    def first_row(self) -> int:
        return self.footer.first_rows[self.index]

    @property
    def rows(self) -> int:
        return int(self.footer.metadata.row_group(self.index).num_rows)

    @property
    def slides(self) -> bool:
        """Whether not all of it is held at once."""
        return self.cost < sum(part.length for part in self.ranges)

    def fetch(self, pool: Executor, pace: Pace) -> None:
        """Start to fetch the bytes that will be read."""
        if self.slides:
            self.fetched = SlidingRanges(self.source, pool, pace, self.ranges, self.cost)
        elif self.ranges:
            self.fetched = self.fetched or BufferedRanges(self.source, pool, pace)
            self.fetched.add(self.ranges)

    def close(self) -> None:
        if self.fetched is not None:
            self.fetched.close()
            self.fetched = None

    def views(self, wanted: Range) -> list[memoryview]:
        """Some bytes of the file, in as many parts as they were fetched."""
        if self.footer.file_bytes is not None:
            return [self.footer.file_bytes[wanted.start : wanted.end]]
        assert self.fetched is not None
        return self.fetched.views(wanted.start, wanted.length)

    def hold(self, ranges: Sequence[Range], views: Sequence[memoryview]) -> None:
        """Have ranges read from bytes that are held anyhow, in the place of all that was fetched."""
        if self.footer.file_bytes is None and self.fetched is not None:
            self.fetched.hold(ranges, views)

    def open(self) -> pa.NativeFile | RangeFile:
        """The file, as far as it was fetched."""
        if self.footer.file_bytes is not None:
            return pa.BufferReader(self.footer.file_bytes)
        assert self.fetched is not None
        return RangeFile(self.fetched, self.source.size)


def plan_row_group(
    source: ByteSource, footer: Footer, index: int, leaves: list[int], budget: int, pace: Pace
) -> RowGroup:
    """A row group whose needed bytes are held at once if they fit ``budget`` bytes, neighbours by one request."""
    if footer.file_bytes is not None or not leaves:
        return RowGroup(source, footer, index, leaves, [], 0)
    chunks = footer.chunks(index, leaves)
    ranges = pace.merged(chunks)
    if (cost := sum(part.length for part in ranges)) > budget:
        ranges, cost = chunks, min(budget, sum(chunk.length for chunk in chunks))
    return RowGroup(source, footer, index, leaves, ranges, cost)


def read_row_group(
    group: RowGroup, table: str, budget: int, row_bytes: float, limit: int | None
) -> Iterator[pa.RecordBatch]:
    """Decode a row group whose fetching has begun.

    Args:
        group: The row group.
        table: How errors name the table.
        budget: Bytes of a batch, about, if ``row_bytes`` is known.
        row_bytes: Of a decoded row, as far as known; 0 if not.
        limit: More rows than this are not wanted of the whole.

    Raises:
        CorruptFileError: The bytes are not what the footer promises (a page checksum among others); names the file.
    """
    rows = group.rows
    if not group.leaves:
        for start in range(0, rows, _GUESSED_ROWS):
            yield pa.RecordBatch.from_struct_array(pa.nulls(min(_GUESSED_ROWS, rows - start), pa.struct([])))
        return
    batch_rows = _batch_rows(group, budget, row_bytes)
    if limit is not None:
        batch_rows = max(1, min(batch_rows, limit))
    decoded = 0
    try:
        while batch_rows:
            position = 0
            try:
                for batch in _batches(group, batch_rows):
                    position += batch.num_rows
                    if (new := position - decoded) > 0:
                        decoded = position
                        if decoded > rows:
                            break
                        yield batch.slice(batch.num_rows - new) if new < batch.num_rows else batch
                batch_rows = 0
            except pa.ArrowNotImplementedError as error:
                if batch_rows == 1 or _TOO_MUCH_TEXT not in str(error):
                    raise
                batch_rows = max(1, batch_rows // 16)
    except MemoryError as error:
        name = group.source.name
        raise out_of_memory(f"file {name} of {table}: row group {group.index}", error, name) from None
    except (pa.ArrowException, OSError) as error:
        raise CorruptFileError(
            f"file {group.source.name} of {table}: row group {group.index} cannot be decoded ({redact(str(error))}); "
            f"{_advice(error)}",
            file=group.source.name,
        ) from None
    # Positions of deleted rows count from the row groups before: a short one would shift them.
    if decoded != rows:
        raise CorruptFileError(
            f"file {group.source.name} of {table}: row group {group.index} holds {decoded} rows, its footer says "
            f"{rows}; the file is damaged: ask the provider to check it",
            file=group.source.name,
        )


def _batches(group: RowGroup, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """The row group from its start; raises as pyarrow does."""
    # buffer_size makes pyarrow read pages as they come instead of whole column chunks; held bytes need no buffer. To
    # buffer what is held anyhow makes it look at all chunks before it reads one, where it catches what is wrong.
    # This is what pq.ParquetFile wraps, which takes no memory pool.
    reader = ParquetReader(decoding_pool())
    reader.open(
        group.open(),
        metadata=group.footer.metadata,
        pre_buffer=group.footer.file_bytes is not None,
        buffer_size=max(_LEAST_BUFFER, min(_MOST_BUFFER, group.cost // (8 * len(group.leaves)))) if group.slides else 0,
        coerce_int96_timestamp_unit="us",
        page_checksum_verification=True,
    )
    yield from reader.iter_batches(batch_rows, row_groups=[group.index], column_indices=group.leaves, use_threads=False)


def _advice(error: Exception) -> str:
    """What to do where a row group cannot be decoded."""
    if _NOT_READ.search(str(error)):
        return (
            f"pyarrow {pa.__version__} does not read what this file holds: leave the column out with the option 'columns', "
            f"upgrade pyarrow, or ask the provider to write the file otherwise"
        )
    return "the file is damaged or was replaced: reload the table, and ask the provider if it goes on"


def decoding_pool() -> pa.MemoryPool:
    """The memory that rows are decoded into.

    Arrow's default, mimalloc, returns memory to the system after 10 ms, and the next batch waits for the system to clear
    new pages: up to a fifth of a read. What a user chose instead is kept.
    """
    default = pa.default_memory_pool()
    if default.backend_name != "mimalloc":
        return default
    if mmap.PAGESIZE == 4096:  # jemalloc, built for one size of pages, runs where they are no larger
        with suppress(NotImplementedError):  # an Arrow built without it
            return pa.jemalloc_memory_pool()
    return pa.system_memory_pool()


def size_of(batch: pa.RecordBatch | pl.DataFrame) -> int:
    """Bytes of a batch. A large one may be a slice, whose part of its buffers is looked for: that takes 10 us a column."""
    if not isinstance(batch, pa.RecordBatch):
        return int(batch.estimated_size())
    whole = batch.get_total_buffer_size()
    return whole if whole < _MAY_BE_SLICE else batch.nbytes


def _batch_rows(group: RowGroup, budget: int, row_bytes: float) -> int:
    """Rows a batch: as many as take ``budget`` bytes if their width is known, else so few that they hardly take more."""
    metadata = group.footer.metadata.row_group(group.index)
    # A leaf costs at least a few bytes a row decoded, however well it is encoded.
    encoded = metadata.total_byte_size / max(1, group.rows) + _dictionary_bytes(group)
    width = max(row_bytes, encoded, 4.0 * len(group.leaves))
    if row_bytes:
        return max(_LEAST_ROWS, min(_MOST_ROWS, int(max(_GUESSED_BYTES, min(_MOST_BYTES, budget)) / width)))
    return max(_LEAST_ROWS, min(_GUESSED_ROWS, int(_GUESSED_BYTES / width)))


def _dictionary_bytes(group: RowGroup) -> float:
    """Bytes of a decoded row's texts that stand in dictionaries, once each, as if all were used alike.

    A long text that every row repeats takes hardly more in the file than a short one. What no page's header tells is 0.
    """
    schema, size = group.footer.metadata.schema, 0.0
    for leaf in (leaf for leaf in group.leaves if schema.column(leaf).physical_type in _TEXTS):
        chunk = group.footer.row_group(group.index).column(leaf)
        start = chunk_range(chunk).start
        with suppress(ValueError, IndexError):  # its first page is no dictionary, or its header is damaged
            values, bytes_of_all = dictionary_page(b"".join(group.views(Range(start, start + _PAGE_HEADER))))
            if values > 0:
                size += bytes_of_all / values * chunk.num_values
    return size / max(1, group.rows)


def row_group_filter(
    spec: ReadSpec, footer: Footer, constants: Mapping[str, pa.Scalar], context: Context
) -> Callable[[int], bool] | None:
    """Returns a test of row groups by index: whether one may hold a row that passes. None where nothing is filtered.

    A file whose row groups are all left out may still be corrupt: only its footer is read then.
    """
    if spec.prune is None:
        return None
    skipping = _compiled(spec.prune)
    leaves: dict[tuple[str, ...], int | None] = {}
    for path in skipping.paths:
        fields = fields_along(spec.full_schema, path)
        is_filled = fields is not None and any(
            INITIAL_DEFAULT in field.metadata or field.field_id in context.fallbacks for field in fields[1:]
        )
        if fields is not None and not is_filled:
            leaves[path] = leaf_of(footer.schema, fields, context)

    def statistics(row_group: int, leaf: int) -> ChunkStatistics | None:
        statistics, julian = footer.statistics(row_group, leaf), context.julian
        if julian is None or statistics is None or not statistics.has_min_max:
            return statistics
        is_settled = julian.is_settled(footer.metadata.schema.column(leaf).converted_type, statistics.min_raw)
        return statistics if is_settled else replace(statistics, has_min_max=False)

    return skipping.bind(footer.metadata, leaves, constants, statistics)


@lru_cache(maxsize=8)
def _compiled(expression: Expression) -> RowGroupSkipping:
    from delta_sharing_spark.predicates.row_groups import RowGroupSkipping

    return RowGroupSkipping(expression)
