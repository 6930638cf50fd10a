"""Lays out the files of a plan as Spark sees them, over the byte sources of the plan's access.

Only this module and ``plan.py`` use the access contract (splits, tasks, sources).
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import weakref
from dataclasses import dataclass, field, replace
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from delta_sharing_spark.errors import CorruptFileError
from delta_sharing_spark.native.layout import Layout, lay_out
from delta_sharing_spark.native.schema_match import NotNativeError
from delta_sharing_spark.network.open_ones import OpenOnes
from delta_sharing_spark.scan.file_access import FileAccess
from delta_sharing_spark.scan.footer import TAIL, Footer, read_footer
from delta_sharing_spark.scan.plan import DeletionVector, FileSlice, FileTask, ReadSpec, Split
from delta_sharing_spark.scan.row_masks import RowSelection, read_row_selection
from delta_sharing_spark.schema.mapping import without_mapping
from delta_sharing_spark.schema.types import Struct
from delta_sharing_spark.storage.ranges import ByteSource

_log = logging.getLogger(__name__)

#: Files of at most this many bytes are fetched whole with their footer.
WHOLE_FILE = 256 << 10
#: Bytes of decoded rows in a row group of a rewritten file.
_ROW_GROUP_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class ShownFile:
    """A file as it is served: its layout and the source of its bytes.

    ``whole`` holds all bytes of a small file; ``reason`` says why the Python source rewrote the file, if it did.
    ``footer_bytes`` are those at the end of the table's own file, 0 if it was rewritten.
    """

    source: ByteSource
    layout: Layout
    whole: memoryview | None = field(default=None, repr=False)
    reason: str | None = None
    footer_bytes: int = 0

    @property
    def memory_bytes(self) -> int:
        """The memory it takes, in bytes, about."""
        whole = 0 if self.whole is None else len(self.whole)
        return 1000 + len(self.layout.tail) + 300 * len(self.layout.chunks) + whole

    def read(self, start: int, end: int) -> memoryview:
        """Bytes ``[start, end)`` of the file's own data.

        Raises:
            DeltaSharingError: As ``ByteSource.read``.
        """
        if self.whole is not None:
            return self.whole[start:end]
        return self.source.read(start, end - start)


@dataclass(frozen=True, slots=True)
class NotedAccess(FileAccess):
    """Opens files by another access, and notes their sources, so that their reads can be broken off."""

    access: FileAccess
    sources: OpenOnes[ByteSource]

    def open(self, task: FileTask) -> ByteSource:
        """See ``FileAccess.open``."""
        return self.sources.add(self.access.open(task))

    def open_vector(self, task: FileTask, vector: DeletionVector) -> ByteSource:
        """See ``FileAccess.open_vector``."""
        return self.sources.add(self.access.open_vector(task, vector))

    def ends(self, task: FileTask) -> float | None:
        """See ``Access.ends``."""
        return self.access.ends(task)

    def renewed(self) -> FileAccess:
        """See ``Access.renewed``."""
        return NotedAccess(self.access.renewed(), self.sources)


@dataclass(frozen=True, slots=True)
class FileShape:
    """How all files of a plan are read, and the names of Spark's columns.

    ``leaves_deleted_rows`` is whether Spark filters by the column of deleted rows; where it does not, a file with deleted
    rows is rewritten without them.
    """

    spec: ReadSpec
    deletion_column: str
    hidden: frozenset[str]
    leaves_deleted_rows: bool = True


def show_file(
    task: FileTask, access: FileAccess, shape: FileShape, *, may_rewrite: bool = True, tail_bytes: int = TAIL
) -> ShownFile:
    """Fetch a file's footer and deletion vector, and lay it out for Spark's reader, or rewrite it where that is needed.

    Args:
        task, access: The file, and what reads it.
        shape: How it is read.
        may_rewrite: Whether it may be rewritten.
        tail_bytes: Of the first request for its footer.

    Raises:
        DeltaSharingError: As ``read_split``.
        NotNativeError: The file has to be rewritten, and ``may_rewrite`` is false.
    """
    spec = shape.spec
    source = _TailRecorder(access.open(task))
    footer = read_footer(source, spec.table, WHOLE_FILE, tail_bytes)
    kept = read_row_selection(task, footer.metadata.num_rows, access.open_vector)
    try:
        if kept is not None and not shape.leaves_deleted_rows:
            raise NotNativeError("it has deleted rows, and the table's protocol does not allow any")
        layout = lay_out(
            source.footer,
            source.size,
            spec.schema,
            spec.mapping,
            deleted=None if kept is None else _deleted(kept),
            deletion_column=shape.deletion_column,
            hidden=shape.hidden,
        )
    except NotNativeError as reason:
        source.close()
        if not may_rewrite:
            raise
        return _rewrite(task, access, shape, str(reason))
    _check_chunks(layout, footer, task, spec)
    return ShownFile(source.inner, layout, footer.file_bytes, footer_bytes=len(source.footer) + 8)


def _check_chunks(layout: Layout, footer: Footer, task: FileTask, spec: ReadSpec) -> None:
    for chunk in layout.chunks:
        if not 4 <= chunk.range.start <= chunk.range.end <= layout.data_end:
            raise CorruptFileError(
                f"file {task.id} of {spec.table} has a column chunk at bytes {chunk.range.start} to {chunk.range.end}, "
                f"and its data end at {layout.data_end}; ask the provider to check it",
                file=task.id,
            )


def _deleted(kept: RowSelection) -> Any:
    def rows(first: int, count: int) -> npt.NDArray[np.bool_]:
        mask: npt.NDArray[np.bool_] = ~kept.mask(first, count).to_numpy(zero_copy_only=False)
        return mask

    return rows


def _rewrite(task: FileTask, access: FileAccess, shape: FileShape, reason: str) -> ShownFile:
    """Write the rows that the Python source reads to a Parquet file on local disk, which has no name."""
    spec = shape.spec
    _log.info("file %s of %s is rewritten for Spark's reader: %s", task.id, spec.table, reason)
    out = tempfile.TemporaryFile(prefix="delta-sharing-")  # noqa: SIM115 - lives as long as the file is shown
    try:
        _write_rows(out, task, access, spec)
        source = _TailRecorder(LocalSource(out, task.id))
        read_footer(source, spec.table, 0)
        layout = lay_out(
            source.footer,
            source.size,
            without_mapping(spec.schema),
            "none",
            deletion_column=shape.deletion_column,
            hidden=shape.hidden,
            length_planned=task.size,
        )
    except BaseException:
        out.close()
        raise
    return ShownFile(source.inner, layout, None, reason)


def _write_rows(out: IO[bytes], task: FileTask, access: FileAccess, spec: ReadSpec) -> None:
    import pyarrow.parquet as pq

    from delta_sharing_spark.scan.split_reader import read_split
    from delta_sharing_spark.schema.arrow import arrow_schema

    schema = arrow_schema(spec.schema)
    batches = read_split(Split(0, spec, (FileSlice(task),), access))
    try:
        with pq.ParquetWriter(out, schema, compression="snappy", store_schema=False, version="2.6") as writer:
            waiting: list[Any] = []
            size = 0
            for batch in batches:
                waiting.append(batch)
                size += batch.nbytes
                if size >= _ROW_GROUP_BYTES:
                    _write(writer, waiting, schema)
                    waiting, size = [], 0
            _write(writer, waiting, schema)
    finally:
        batches.close()


def _write(writer: Any, batches: list[Any], schema: Any) -> None:
    import pyarrow as pa

    if batches:
        writer.write_table(pa.Table.from_batches(batches, schema), row_group_size=1 << 30)


class LocalSource:
    """A ``ByteSource`` over an open local file, which is closed with its last reader."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self.name = name
        self._file = file
        self._lock = threading.Lock()
        self.size = file.seek(0, os.SEEK_END)
        # Readers of a plan outlive its place in the gateway: the file is closed when nobody has this source any more.
        weakref.finalize(self, file.close)

    def read(self, start: int, length: int) -> memoryview:
        """See ``ByteSource.read``."""
        with self._lock:
            self._file.seek(start)
            return memoryview(self._file.read(length))

    def close(self) -> None:
        """Do nothing: the file is closed with its last reader."""


class _TailRecorder:
    """Passes reads on to a source, and keeps the bytes read up to its end: the footer as it stands in the file."""

    def __init__(self, inner: ByteSource) -> None:
        self.inner = inner
        self.name, self.size = inner.name, inner.size
        self._tail = b""

    def read(self, start: int, length: int) -> memoryview:
        data = self.inner.read(start, length)
        if start + length == self.size:
            self._tail = bytes(data)
        return data

    def close(self) -> None:
        self.inner.close()

    @property
    def footer(self) -> bytes:
        """The footer without its length and magic."""
        length = int.from_bytes(self._tail[-8:-4], "little")
        return self._tail[-8 - length : -8]


def rewriting_spec(spec: ReadSpec, columns: Struct) -> ReadSpec:
    """``spec`` for a rewrite: ``columns`` of files only, and no row left out but those of deletion vectors."""
    return replace(
        spec, schema=columns, full_schema=columns, partition_columns=(), predicate=None, prune=None, limit=None
    )
