"""Rewrites what Spark's reader would not read exactly: files, or columns that then stand behind the others of their file."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import IO, Any

from delta_sharing_spark.native.joined_source import JoinedSource
from delta_sharing_spark.parquet.file_columns import FileColumns, Unread
from delta_sharing_spark.parquet.file_footer import FileFooter, FooterReader
from delta_sharing_spark.parquet.footer import read_footer
from delta_sharing_spark.parquet.layout import Span
from delta_sharing_spark.parquet.schema_match import Element
from delta_sharing_spark.parquet.walker import RowGroup
from delta_sharing_spark.scan.pace import Pace
from delta_sharing_spark.scan.plan import DeletionVector, FileAccess, FileSlice, FileTask, ReadSpec, Split
from delta_sharing_spark.scan.split_reader import read_split
from delta_sharing_spark.schema.types import Struct, logical_schema
from delta_sharing_spark.storage.ranges import ByteSource, LocalSource, MemorySource, Range

_log = logging.getLogger(__name__)

#: Bytes of decoded rows in a row group of a rewritten file.
_ROW_GROUP_BYTES = 64 << 20

#: Batches to the row groups that they are written in.
_Grouping = Callable[[Iterable[Any]], Iterator[list[Any]]]


@dataclass(frozen=True, slots=True)
class FetchedFile:
    """A file whose footer and deletion vector were fetched: how it is laid out, and where its bytes come from.

    ``disk_bytes`` are what was rewritten of it.
    """

    task: FileTask
    access: FileAccess
    footer: FileFooter
    source: ByteSource
    disk_bytes: int = 0

    @property
    def held_bytes(self) -> int:
        """Its bytes in memory, if it was fetched whole."""
        return self.source.size if isinstance(self.source, MemorySource) else 0


@dataclass(frozen=True, slots=True)
class _HeldAccess(FileAccess):
    """Opens a file that is in memory."""

    source: MemorySource

    def open(self, task: FileTask) -> ByteSource:
        """See ``FileAccess.open``."""
        return self.source

    def open_vector(self, task: FileTask, vector: DeletionVector) -> ByteSource:
        """See ``FileAccess.open_vector``."""
        raise NotImplementedError("all rows of the file are read")


def rewriting_spec(spec: ReadSpec, columns: Struct) -> ReadSpec:
    """``spec`` for a rewrite: ``columns`` of files only, and no row left out but those of deletion vectors."""
    return replace(
        spec, schema=columns, full_schema=columns, partition_columns=(), predicate=None, prune=None, limit=None
    )


def rewrite_files(
    files: Sequence[tuple[FileTask, FileAccess]], spec: ReadSpec, reason: str, *, may_move: bool = False
) -> FetchedFile:
    """Write the rows that the Python source reads to a Parquet file on local disk, which has no name.

    Args:
        files: The files, and what reads each.
        spec: How they are read.
        reason: Why Spark's reader does not read them, for the log.
        may_move: As for ``FooterReader.read``.

    Raises:
        DeltaSharingError: As ``read_split``.
    """
    names = files[0][0].id if len(files) == 1 else f"{files[0][0].id} and {len(files) - 1} more"
    _log.info("file %s of %s is rewritten for Spark's reader: %s", names, spec.table, reason)
    out = _written(files, spec, spec.schema, _of_bytes)
    return _fetched(out, files[0], spec, may_move)


def rewrite_columns(file: FetchedFile, unread: Iterable[Unread], spec: ReadSpec, pace: Pace) -> FetchedFile:
    """Write columns anew that Spark's reader cannot decode, and show them behind the bytes of the file, whose others stay.

    Raises:
        DeltaSharingError: As ``read_split``.
    """
    reasons = {column.name: column.reason for column in unread}
    if not reasons:
        return file
    columns_text = ", ".join(f"{name!r} ({reason})" for name, reason in sorted(reasons.items()))
    _log.info("columns of file %s of %s are rewritten for Spark's reader: %s", file.task.id, spec.table, columns_text)
    task = replace(file.task, deletion_vector=None, excluded=None, invert_deletion_vector=False, deletes=())
    access = _HeldAccess(file.source) if isinstance(file.source, MemorySource) else file.access
    # A NULL where none may be is found when Spark reads the column, as those in other columns are.
    columns = Struct(tuple(replace(f, nullable=True) for f in spec.schema.fields if f.name in reasons))
    nullable = rewriting_spec(spec, columns)
    rows = [group.rows for group in file.footer.groups]
    out = _written([(task, access)], nullable, columns, lambda batches: _of_rows(batches, rows))
    declared = Struct(tuple(f for f in spec.schema.fields if f.name in reasons))
    written = _fetched(out, (task, access), rewriting_spec(spec, declared), may_move=True)
    at = file.footer.data_end
    spans = Span(4, 0, Range(4, at)), Span(at, 1, Range(0, written.footer.data_end))
    source = JoinedSource(file.task.id, spans, (file.source, written.source), pace)
    footer = _beside(file.footer, written.footer)
    return replace(file, footer=footer, source=source, disk_bytes=file.disk_bytes + written.disk_bytes)


def _fetched(out: IO[bytes], file: tuple[FileTask, FileAccess], spec: ReadSpec, may_move: bool) -> FetchedFile:
    source = LocalSource(out, file[0].id)
    footer = read_footer(source, spec.table)
    footers = FooterReader(logical_schema(spec.schema), "none")
    return FetchedFile(*file, footers.read(footer, source.size, may_move=may_move), source, source.size)


def _beside(file: FileFooter, written: FileFooter) -> FileFooter:
    """The footer of a file some of whose columns are those of another one, which stands behind it."""
    anew = {element.name for element in written.columns.root.children}
    old, new, by = file.columns, written.columns, file.data_end
    stay = [n for n, leaf in enumerate(old.leaves) if leaf.path[0].decode() not in anew]
    children = [new_or for element in old.root.children if element.is_read for new_or in _either(element, new.root)]
    root = Element({**old.root.raw}, children, is_read=True, name=old.root.name)
    moved = (replace(leaf, number=old.count + leaf.number) for leaf in new.leaves)
    leaves = (*(old.leaves[n] for n in stay), *moved)
    groups = tuple(
        RowGroup(
            group.rows,
            group.bytes,
            (*(group.chunks[n] for n in stay), *(chunk.moved(by) for chunk in beside.chunks)),
        )
        for group, beside in zip(file.groups, written.groups, strict=True)
    )
    orders = None if file.orders is None or written.orders is None else (*file.orders, *written.orders)
    return replace(
        file,
        columns=FileColumns(old.version, root, old.count + new.count, leaves),
        groups=groups,
        orders=orders,
        data_end=by + written.data_end,
        unread=frozenset(column for column in file.unread if column.name not in anew),
    )


def _either(element: Element, written: Element) -> list[Element]:
    """The column of a name that was written anew, or else the file's own."""
    return [other for other in written.children if other.name == element.name] or [element]


def _written(
    files: Sequence[tuple[FileTask, FileAccess]], spec: ReadSpec, columns: Struct, grouping: _Grouping
) -> IO[bytes]:
    """A file without a name that holds ``columns`` of others, in row groups as ``grouping`` says."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from delta_sharing_spark.schema.arrow import arrow_schema

    out = tempfile.TemporaryFile(prefix="delta-sharing-")  # noqa: SIM115 - lives as long as the file is shown
    schema = arrow_schema(columns)
    try:
        with pq.ParquetWriter(out, schema, compression="snappy", store_schema=False, version="2.6") as writer:
            for batches in grouping(_batches(files, spec)):
                writer.write_table(pa.Table.from_batches(batches, schema), row_group_size=1 << 30)
    except BaseException:
        out.close()
        raise
    return out


def _batches(files: Sequence[tuple[FileTask, FileAccess]], spec: ReadSpec) -> Generator[Any, None, None]:
    for task, access in files:
        with closing(read_split(Split(0, spec, (FileSlice(task),), access))) as batches:
            yield from batches


def _of_bytes(batches: Iterable[Any]) -> Iterator[list[Any]]:
    """Row groups of as many bytes."""
    waiting: list[Any] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= _ROW_GROUP_BYTES:
            yield waiting
            waiting, size = [], 0
    if waiting:
        yield waiting


def _of_rows(batches: Iterable[Any], rows: Sequence[int]) -> Iterator[list[Any]]:
    """Row groups of the numbers of rows that are listed."""
    waiting: list[Any] = []
    sizes = iter(rows)
    missing = next(sizes, 0)
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            assert missing, "a file has as many rows as its row groups"
            piece = batch.slice(start, missing)
            waiting.append(piece)
            start, missing = start + piece.num_rows, missing - piece.num_rows
            if not missing:
                yield waiting
                waiting, missing = [], next(sizes, 0)
