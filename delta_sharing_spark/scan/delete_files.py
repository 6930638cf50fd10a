"""Tells the rows of a data file that delete files name (Iceberg, "Delete Formats"): by their positions, or by the values of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from delta_sharing_spark.errors import CorruptFileError
from delta_sharing_spark.network.process_cache import ProcessCache
from delta_sharing_spark.scan.plan import DeleteFile, FileTask
from delta_sharing_spark.schema.types import COLUMN_MAPPING_ID, COLUMN_MAPPING_NAME, Field, Primitive, Struct
from delta_sharing_spark.storage.clouds.registry import parse_location

if TYPE_CHECKING:
    from pyroaring import BitMap64

#: Reads columns of a Parquet file, all of its rows in their order.
ReadColumns = Callable[[FileTask, Struct], Iterator[pa.RecordBatch]]

PATH_ID, _POSITION_ID = 2147483546, 2147483545
#: Bytes that delete files may keep in a process once they are decoded.
_KEPT_BYTES = 256 << 20


def _column(name: str, kind: str, field_id: int) -> Field:
    return Field(name, Primitive(kind), False, {COLUMN_MAPPING_ID: field_id, COLUMN_MAPPING_NAME: name})


_POSITIONS = Struct((_column("file_path", "string", PATH_ID), _column("pos", "long", _POSITION_ID)))

_Positions = dict[str, "BitMap64"]
_positions: ProcessCache[DeleteFile, tuple[_Positions, int]] = ProcessCache(256, lambda entry: entry[1], _KEPT_BYTES)
_keys: ProcessCache[DeleteFile, pa.Table] = ProcessCache(256, lambda keys: keys.nbytes, _KEPT_BYTES)


def deleted_rows(task: FileTask, read: ReadColumns) -> BitMap64 | None:
    """Positions of the task's rows that its delete files name; None where it has no such files.

    A delete file is read once a process, and of the data file the columns that equality deletes compare.

    Raises:
        CorruptFileError: A position is none.
        DeltaSharingError: A file cannot be read.
    """
    if not task.deletes:
        return None
    from pyroaring import BitMap64

    deleted_bits = BitMap64()
    by_keys: dict[tuple[Field, ...], list[DeleteFile]] = {}
    for delete in task.deletes:
        if delete.keys:
            by_keys.setdefault(delete.keys, []).append(delete)
        else:
            deleted_bits |= _positions_of(delete, read).get(_same_path(task.location), BitMap64())
    for keys, deletes in by_keys.items():
        deleted = pa.concat_tables([_keys_of(delete, read) for delete in deletes])
        deleted_bits |= _equal_rows(task, Struct(keys), deleted, read)
    return deleted_bits


def _same_path(path: str) -> str:
    """One spelling of a path: writers spell local paths ``file:/x`` and ``file:///x`` in one table."""
    return str(parse_location(path))


def _task_of(delete: DeleteFile) -> FileTask:
    return FileTask(delete.location, delete.location, delete.size)


def _positions_of(delete: DeleteFile, read: ReadColumns) -> _Positions:
    entry = _positions.get(delete)
    if entry is None:
        rows = _decoded_positions(delete, read)
        # A row takes at most two bytes of a bitmap that is not run-length encoded, and a file the bitmap's own.
        entry = rows, sum(200 + len(path) + 2 * len(bitmap) for path, bitmap in rows.items())
        _positions.put(delete, entry)
    return entry[0]


def _decoded_positions(delete: DeleteFile, read: ReadColumns) -> _Positions:
    import pyarrow.compute as pc
    from pyroaring import BitMap64

    rows: _Positions = {}
    for batch in read(_task_of(delete), _POSITIONS):
        places = batch.column("pos")
        if pc.min(places).as_py() < 0:
            raise CorruptFileError(
                f"delete file {delete.location} names a negative position; ask the provider to check the table",
                file=delete.location,
            )
        paths = batch.column("file_path").dictionary_encode()
        for number, path in enumerate(paths.dictionary.to_pylist()):
            own = places.filter(pc.equal(paths.indices, number))
            bitmap = rows.setdefault(_same_path(path), BitMap64())
            bitmap.update(own.to_pylist())
    return rows


def _keys_of(delete: DeleteFile, read: ReadColumns) -> pa.Table:
    keys = _keys.get(delete)
    if keys is None:
        keys = _canonical(read(_task_of(delete), Struct(delete.keys)), Struct(delete.keys))
        _keys.put(delete, keys)
    return keys


def _equal_rows(task: FileTask, keys: Struct, deleted: pa.Table, read: ReadColumns) -> BitMap64:
    """Positions of a data file's rows whose keys equal those of a deleted row: NULL equals NULL, and NaN equals NaN."""
    import numpy as np
    from pyroaring import BitMap64

    if not deleted.num_rows:
        return BitMap64()
    matched, first = BitMap64(), 0
    codes = _Codes(deleted)
    for batch in read(FileTask(task.id, task.location, task.size, fallbacks=task.fallbacks), keys):
        table = _canonical(iter([batch]), keys)
        places = np.flatnonzero(codes.match(table)) + first
        matched.update(places.tolist())
        first += batch.num_rows
    return matched


class _Codes:
    """The deleted keys as one number a row, made column by column: rows are equal where their numbers are."""

    def __init__(self, deleted: pa.Table) -> None:
        import numpy as np

        self._values: list[pa.Array] = []
        self._steps: list[Any] = []
        total = np.zeros(deleted.num_rows, np.int64)
        for column in deleted.columns:
            values = column.combine_chunks().unique()
            self._values.append(values)
            combined = total * (len(values) + 1) + self._code(column.combine_chunks(), values)
            unique = np.unique(combined)  # numbers stay small whatever the number of columns
            self._steps.append(unique)
            total = np.searchsorted(unique, combined)

    @staticmethod
    def _code(column: pa.Array, values: pa.Array) -> Any:
        """The place of each value among ``values``, from 1; 0 where it is not among them."""
        import pyarrow.compute as pc

        return (
            pc.fill_null(pc.index_in(column, value_set=values, skip_nulls=False), -1).to_numpy(zero_copy_only=False) + 1
        )

    def match(self, table: pa.Table) -> Any:
        """A mask of the rows that equal a deleted one."""
        import numpy as np

        total = np.zeros(table.num_rows, np.int64)
        matches = np.ones(table.num_rows, np.bool_)
        for column, values, unique in zip(table.columns, self._values, self._steps, strict=True):
            code = self._code(column.combine_chunks(), values)
            combined = total * (len(values) + 1) + code
            total = np.minimum(np.searchsorted(unique, combined), len(unique) - 1)
            matches &= (code > 0) & (unique[total] == combined)
        return matches


def _canonical(batches: Iterator[pa.RecordBatch], keys: Struct) -> pa.Table:
    """Key columns, those within structs too, in a form whose values are equal where Iceberg compares them so: floats by
    their bits, all NaN alike."""
    from delta_sharing_spark.schema.arrow import arrow_schema

    table = pa.Table.from_batches(list(batches), arrow_schema(keys))
    leaves = [leaf for column in table.columns for leaf in _leaves(_joined(column))]
    return pa.table([_bits(leaf) for leaf in leaves], names=[str(number) for number in range(len(leaves))])


def _joined(column: pa.ChunkedArray) -> pa.Array:
    joined = column.combine_chunks()
    return pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) else joined


def _leaves(column: pa.Array) -> Iterator[pa.Array]:
    """What is compared of a column: of a struct its fields, and whether it is NULL, which one of NULLs is not."""
    if not pa.types.is_struct(column.type):
        yield column
        return
    yield column.is_null()
    for field in column.flatten():
        yield from _leaves(field)


def _bits(column: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    if not pa.types.is_floating(column.type):
        return column
    whole = pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), column)
    return whole.view(pa.int32() if pa.types.is_float32(column.type) else pa.int64())
