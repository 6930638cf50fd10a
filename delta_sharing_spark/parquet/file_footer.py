"""Reads a data file's footer for the one that Spark is shown: its columns matched with the table's, its chunks' descriptions cut.

The schema is read once for all files that have the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from delta_sharing_spark.parquet.decoding import OLDEST, Release
from delta_sharing_spark.parquet.file_columns import FileColumns, Unread, leaves_of
from delta_sharing_spark.parquet.footer import Footer
from delta_sharing_spark.parquet.schema_match import NotNativeError, match_columns, schema_tree
from delta_sharing_spark.parquet.thrift import Struct as ThriftStruct
from delta_sharing_spark.parquet.thrift import read_struct
from delta_sharing_spark.parquet.walker import PARQUET_MR, RowGroup, Walker
from delta_sharing_spark.schema.types import Struct

#: Schemas of files, and ends of footers, that are held at once: files of one writer share them.
_HELD = 64

#: Texts that are the same in all rows of a file, by their columns.
Constants = Mapping[str, str]
NO_CONSTANTS: Constants = MappingProxyType({})
#: Which rows of a file are deleted: first row and count to a mask that is true where a row is.
DeletedRows = Callable[[int, int], npt.NDArray[np.bool_]]


@dataclass(frozen=True, slots=True)
class FileFooter:
    """A data file's footer.

    Attributes:
        columns: Its columns.
        groups: Its row groups.
        created_by: What wrote it.
        orders: The order of the values of each column in the file; None where it tells none.
        data_end: Where its own bytes begin in the file.
        deleted: The rows of the file's deletion vector; None where it has none.
        constants: Columns that are not read from the file, and their value.
        marks: The pairs by which Spark's reader knows that old dates count by the Julian calendar.
        unread: Columns that Spark's reader cannot decode.
    """

    columns: FileColumns
    groups: tuple[RowGroup, ...]
    created_by: bytes
    orders: tuple[ThriftStruct, ...] | None
    data_end: int
    deleted: DeletedRows | None
    constants: Constants
    marks: tuple[tuple[bytes, bytes], ...] = ()
    unread: frozenset[Unread] = frozenset()

    @property
    def is_of_parquet_mr(self) -> bool:
        """Whether the reference implementation wrote it: it leaves out statistics of columns that hold a NaN."""
        return self.created_by.startswith(PARQUET_MR)


class FooterReader:
    """Reads footers of files of one table. Safe to call from several threads.

    Args:
        schema: The table's columns that are read from files.
        mapping: How they are found in a file (Delta protocol, "Column Mapping").
        release: Spark's, by which its reader decodes more or less.
    """

    def __init__(self, schema: Struct, mapping: str, release: Release = OLDEST) -> None:
        self._schema, self._mapping, self._release = schema, mapping, release
        self._columns: tuple[tuple[bytes, tuple[str, ...], FileColumns], ...] = ()
        self._orders: tuple[tuple[bytes, tuple[ThriftStruct, ...] | None], ...] = ()

    def read(
        self,
        footer: Footer,
        size: int,
        deleted: DeletedRows | None = None,
        constants: Constants = NO_CONSTANTS,
        *,
        may_move: bool = False,
    ) -> FileFooter:
        """Read the footer of a file of ``size`` bytes.

        Args:
            deleted: The rows of its deletion vector; None where it has none.
            constants: Columns that are not read from the file, and their value.
            may_move: Whether its chunks are to be shown elsewhere than they are: then without indexes and Bloom filters, which
                name places and which small files hardly need.

        Raises:
            NotNativeError: Spark's reader would not read the file as exactly as the Python source does.
        """
        raw, created_by = footer.raw[:-8], footer.metadata.created_by.encode()
        julian = footer.julian(None)
        try:
            head, columns = self._matched(raw, tuple(constants))
            walker = Walker(raw, columns, created_by, may_move, self._release)
            groups, end = walker.groups(head)
            orders = self._ends(raw[end:])
            if orders is not None and len(orders) != columns.count:
                raise ValueError("a footer tells the order of each column")
            marks = julian.marks if julian is not None and julian.is_for(self._schema) else ()
            unread = walker.unread()
            if marks and unread:
                # Those that are written anew count by the calendar of today.
                raise NotNativeError(f"its old dates are Julian, and it has {next(iter(unread)).reason}")
            end = size - len(footer.raw)
            return FileFooter(columns, groups, created_by, orders, end, deleted, constants, marks, unread)
        except (KeyError, ValueError, TypeError, AttributeError, IndexError, RecursionError) as error:
            raise NotNativeError(f"its footer is of an unknown form ({type(error).__name__})") from error

    def _matched(self, raw: bytes, constants: tuple[str, ...]) -> tuple[int, FileColumns]:
        """Where the schema ends that a footer begins with, and its columns."""
        for head, names, columns in self._columns:
            if names == constants and raw.startswith(head):
                return len(head), columns
        fields, end = read_struct(raw, last_field=2)
        root = schema_tree(fields[2][1].items)
        schema = Struct(tuple(f for f in self._schema.fields if f.name not in constants))
        match_columns(root, schema, self._mapping)
        columns = FileColumns(fields[1], root, sum(1 for _ in root.leaves()), tuple(leaves_of(root)))
        self._columns = (*self._columns[1 - _HELD :], (raw[:end], constants, columns))
        return end, columns

    def _ends(self, tail: bytes) -> tuple[ThriftStruct, ...] | None:
        """The orders of values that a footer ends with."""
        for ending, orders in self._orders:
            if ending == tail:
                return orders
        fields, _ = read_struct(tail, before=4)
        orders = tuple(fields[7][1].items) if 7 in fields else None
        self._orders = (*self._orders[1 - _HELD :], (tail, orders))
        return orders
