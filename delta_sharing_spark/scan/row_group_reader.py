"""Reads row groups of one file as record batches of the leaves asked for, in order, with bytes fetched ahead."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
from pyarrow.parquet.core import ParquetReader

from delta_sharing_spark.errors import CorruptFileError
from delta_sharing_spark.errors.redaction import redact
from delta_sharing_spark.scan.footer import Footer
from delta_sharing_spark.scan.read_ahead import BufferedRanges, RangeFile, Ranges, WindowedRanges
from delta_sharing_spark.storage.ranges import ByteSource, Range

_MIN_WINDOW, _MAX_WINDOW = 16 << 10, 4 << 20
_BATCH_BYTES = 8 << 20
_MIN_ROWS, _MAX_ROWS = 64, 32768


@dataclass(slots=True)
class RowGroup:
    """A row group to read: its bytes (once fetching has begun), and the position of its first row in the file."""

    source: ByteSource
    footer: Footer
    index: int
    leaves: list[int]
    cost: int
    window: int | None
    ranges: Ranges | None = None

    @property
    def first_row(self) -> int:
        return self.footer.first_rows[self.index]

    @property
    def rows(self) -> int:
        return int(self.footer.metadata.row_group(self.index).num_rows)

    def fetch(self, pool: ThreadPoolExecutor) -> None:
        """Start to fetch the bytes that will be read."""
        chunks = self.footer.chunks(self.index, self.leaves)
        if self.footer.file_bytes is not None:
            self.ranges = _WholeFile(self.footer.file_bytes)
        elif self.window is not None:
            self.ranges = WindowedRanges(self.source, chunks, self.window, pool)
        else:
            self.ranges = BufferedRanges(self.source.read, chunks, pool)

    def close(self) -> None:
        if self.ranges is not None:
            self.ranges.close()
            self.ranges = None


class _WholeFile:
    """A small file, fetched whole with its footer."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def read(self, start: int, length: int) -> memoryview:
        return self._data[start : start + length]

    def close(self) -> None:
        self._data = memoryview(b"")


def plan_row_group(source: ByteSource, footer: Footer, index: int, leaves: list[int], budget: int) -> RowGroup:
    """A row group whose needed bytes are held at once if they fit ``budget`` bytes, else read through windows."""
    chunks: list[Range] = footer.chunks(index, leaves)
    total = sum(c.length for c in chunks)
    if footer.file_bytes is not None:
        return RowGroup(source, footer, index, leaves, 0, None)
    if total <= budget:
        return RowGroup(source, footer, index, leaves, total, None)
    window = max(_MIN_WINDOW, min(_MAX_WINDOW, budget // (3 * len(chunks))))
    return RowGroup(source, footer, index, leaves, budget, window)


def read_row_group(group: RowGroup, table: str) -> Iterator[pa.RecordBatch]:
    """Decode a row group whose fetching has begun.

    Raises:
        CorruptFileError: The bytes are not what the footer promises (a page checksum among others); names the file.
    """
    if not group.leaves:
        yield from _zero_column_batches(group.rows)
        return
    assert group.ranges is not None
    file = RangeFile(group.ranges, group.source.size)
    try:
        # buffer_size makes pyarrow read pages as they come instead of whole column chunks; held bytes need no buffer.
        # This is what pq.ParquetFile wraps, which takes no memory pool.
        reader = ParquetReader(decoding_pool())
        reader.open(
            file,
            metadata=group.footer.metadata,
            pre_buffer=False,
            buffer_size=0 if group.window is None else min(group.window, 1 << 20),
            coerce_int96_timestamp_unit="us",
            page_checksum_verification=True,
        )
        batches = reader.iter_batches(
            _batch_rows(group), row_groups=[group.index], column_indices=group.leaves, use_threads=False
        )
        decoded = 0
        for batch in batches:
            decoded += batch.num_rows
            if decoded > group.rows:
                break
            yield batch
    except (pa.ArrowException, OSError) as error:
        raise CorruptFileError(
            f"file {group.source.name} of {table}: row group {group.index} cannot be decoded ({redact(str(error))}); "
            f"the file is damaged or was replaced: reload the table, and ask the provider if it goes on",
            file=group.source.name,
        ) from None
    # Positions of deleted rows count from the row groups before: a short one would shift them.
    if decoded != group.rows:
        raise CorruptFileError(
            f"file {group.source.name} of {table}: row group {group.index} holds {decoded} rows, its footer says "
            f"{group.rows}; the file is damaged: ask the provider to check it",
            file=group.source.name,
        )


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


def _batch_rows(group: RowGroup) -> int:
    """Rows a batch, so that a batch of wide rows stays within a few megabytes."""
    metadata = group.footer.metadata.row_group(group.index)
    width = sum(metadata.column(leaf).total_uncompressed_size for leaf in group.leaves) / max(1, group.rows)
    # A leaf costs at least a few bytes a row decoded, however well it is encoded.
    width = max(width, 4.0 * len(group.leaves))
    return max(_MIN_ROWS, min(_MAX_ROWS, int(_BATCH_BYTES / max(width, 1.0))))


def _zero_column_batches(rows: int) -> Iterator[pa.RecordBatch]:
    """Batches without columns, where a load reads no column of the file but its number of rows."""
    for start in range(0, rows, _MAX_ROWS):
        count = min(_MAX_ROWS, rows - start)
        yield pa.RecordBatch.from_struct_array(pa.nulls(count, pa.struct([])))
